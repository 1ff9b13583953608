// The entries of one call as a story: for each one its words, its tone and what stands below it. Pure; tested with Node.

import { waitedAbove } from "./figures.js";
import { brief, duration, failedWith } from "./format.js";

const TELLS = {
  "call.accepted": (entry) => {
    const asked = entry.decision === "ask";
    return {
      text: asked ? `${entry.caller} asks; a person has to decide` : `${entry.caller} calls, and it is ${entry.decision === "allow" ? "allowed" : entry.decision}`,
      tone: asked ? "wait" : "busy",
      detail: [
        `rule ${entry.rule}`,
        entry.chain?.length ? `for ${entry.chain.join(", ")}` : "",
        entry.circumstances?.length ? `because of ${entry.circumstances.join(", ")}` : "",
        entry.key ? `key ${entry.key}` : "",
        entry.warning ?? "",
      ],
    };
  },
  "call.sent": (entry) => ({ text: entry.attempt > 1 ? `Sent again (attempt ${entry.attempt})` : "Sent to its agent", tone: "busy", detail: [entry.provider ? `served by ${entry.provider}` : ""] }),
  "call.returned": (entry) => ({ text: `${entry.provider} did not take it on`, tone: "wait", detail: [entry.code] }),
  "call.settled": (entry, tool_id) => ({
    text: failedWith(tool_id, entry) !== null ? `The call succeeded; its command ended with ${failedWith(tool_id, entry)}` : { succeeded: "Succeeded", failed: "Failed", canceled: "Canceled", unknown: "Outcome not known" }[entry.status] ?? entry.status,
    tone: failedWith(tool_id, entry) !== null ? "bad" : { succeeded: "good", failed: "bad", canceled: "idle", unknown: "bad" }[entry.status] ?? "idle",
    detail: [
      entry.fault ? `${entry.fault.code}: ${entry.fault.message}` : "",
      entry.started_ms && entry.finished_ms ? `ran ${duration(entry.finished_ms - entry.started_ms)}` : "",
      entry.stream ? `showed ${entry.stream.chunks} pieces, ${entry.stream.bytes} bytes` : "",
      entry.untrusted ? "its result is from strangers" : "",
      entry.provider ? `served by ${entry.provider}` : "",
    ],
  }),
  "call.refused": (entry) => ({ text: `Refused: ${entry.code}`, tone: "bad", detail: [entry.why || "", entry.rule ? `rule ${entry.rule}` : ""] }),
  "call.noted": (entry) => ({ text: entry.note.replaceAll("_", " "), tone: "idle", detail: [entry.by ? `by ${entry.by}` : "", entry.detail] }),
  "question.opened": (entry) => ({ text: `A person is asked (${entry.approval_id})`, tone: "wait", detail: [entry.reason] }),
  "question.joined": (entry) => ({ text: `Waits behind ${entry.approval_id}`, tone: "wait", detail: [] }),
  "question.closed": (entry) => ({
    text: `${entry.approval_id} was ${entry.how}${entry.by ? ` by ${entry.by}` : ""}`,
    tone: { approved: "good", denied: "bad", expired: "bad" }[entry.how] ?? "idle",
    detail: [entry.reason, entry.same_person ? "the one who answered is the one who asked" : ""],
  }),
};

const named = (tool_ids) => (Array.isArray(tool_ids) ? tool_ids.map((one) => one.slice(one.indexOf("/") + 1)).join(", ") : "");
const some = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// Entries that are of no call.
const OTHERS = {
  "exchange.started": (entry) => ({ text: `The exchange started, version ${entry.version}` }),
  "exchange.stopped": (entry) => ({ text: "The exchange stopped", detail: [entry.open_calls ? `${some(entry.open_calls, "call")} left open` : ""] }),
  "policy.changed": (entry) => ({ text: "Other rules are in force", detail: [Array.isArray(entry.rules) ? some(entry.rules.length, "rule") : "", `version ${entry.version}`] }),
  "agent.launched": (entry) => ({ text: `${entry.agent_id} was started`, detail: [`process ${entry.pid}`] }),
  "agent.exited": (entry) => ({ text: `${entry.agent_id} ended with ${entry.exit_code}`, tone: entry.exit_code ? "bad" : "idle", detail: [entry.note, typeof entry.restart_in_s === "number" ? `starts again in ${entry.restart_in_s} s` : ""] }),
  "agent.admitted": (entry) => ({ text: `${entry.agent_id} is here`, tone: "good", detail: [`over ${entry.edge}`, `version ${entry.version}`] }),
  "agent.refused": (entry) => ({ text: `Somebody who says to be ${entry.claimed} was refused`, tone: "bad", detail: [`over ${entry.edge}`, entry.reason] }),
  "agent.left": (entry) => ({ text: `${entry.agent_id} left`, detail: [entry.reason] }),
  "agent.health": (entry) => ({ text: `${entry.agent_id} is ${String(entry.health).replaceAll("_", " ")}` }),
  "agent.permissions": (entry) => ({ text: `${entry.agent_id} holds permissions`, detail: [(entry.permissions ?? []).join(", ")] }),
  "tools.offered": (entry) => ({ text: `${entry.agent_id} offers ${named(entry.tool_ids) || "tools"}`, detail: [Object.keys(entry.rejected ?? {}).length ? `not taken: ${Object.keys(entry.rejected).join(", ")}` : ""] }),
  "tools.withdrawn": (entry) => ({ text: `${entry.agent_id} does not offer ${named(entry.tool_ids) || "tools"} any more` }),
  "tool.pinned": (entry) => ({ text: `The definition of ${entry.definition?.tool_id ?? /"tool_id":"([^"]*)"/.exec(entry.definition?.$cut ?? "")?.[1] ?? "a tool"} is in force`, detail: [entry.approval_id ? `approved as ${entry.approval_id}` : "", entry.definition?.description ?? ""] }),
  "directive.stated": (entry) => ({ text: `${entry.by} stated an intent for ${entry.tool_id}`, detail: [entry.reason] }),
  "token.issued": (entry) => ({ text: `A token for ${entry.edge}:${entry.agent} was made`, detail: [entry.token_id] }),
  "token.revoked": (entry) => ({ text: `The token ${entry.token_id} was taken back` }),
  notice: (entry) => ({ text: String(entry.code), detail: [entry.who, entry.place, entry.detail] }),
  "process.step": (entry) => ({ text: `${entry.process} ${entry.subject}: ${entry.step}` }),
  "topic.subscribed": (entry) => ({ text: `${entry.subscriber} is told of ${entry.pattern}` }),
  "event.published": (entry) => ({ text: `${entry.publisher} published on ${entry.topic}` }),
  "ledger.snapshot": (entry) => ({ text: `A snapshot was taken, up to entry ${entry.through}` }),
  "ledger.part_closed": (entry) => ({ text: `Entries ${entry.first} to ${entry.last} were removed; their hash stays` }),
};

/** One entry in words: `{n, at, text, tone, detail, kind}`; of a call's entries, `tool_id` is its tool. */
export function told(entry, tool_id) {
  const tell = TELLS[entry.kind] ?? OTHERS[entry.kind];
  const { n, at, kind } = entry;
  if (!tell) {
    const { kind: _kind, n: _n, at: _at, ...rest } = entry;
    return { n, at, kind, text: kind, tone: "idle", detail: Object.keys(rest).length ? [brief(rest, 200)] : [] };
  }
  const { text, tone = "idle", detail = [] } = tell(entry, tool_id);
  return { n, at, kind, text, tone, detail: detail.filter(Boolean) };
}

/**
 * Calls of a correlation as rows of a waterfall: `{call, depth, start, end, took_ms}`, causes before what they caused.
 * `entries` say who caused whom; times are shares of the whole, between 0 and 1. `took_ms` is how long it ran, without the
 * time in which a person was asked about what it called; null of a call that never ran.
 */
export function waterfall(entries, now_ms) {
  const calls = new Map();
  const byNumber = new Map();
  const questions = new Map();
  for (const entry of entries) {
    if (entry.kind === "call.accepted") {
      const call = { call_id: entry.call_id, tool_id: entry.tool_id, caller: entry.caller, status: entry.decision === "ask" ? "waiting_approval" : "running", cause: entry.cause, at: entry.at, from: entry.at, to: null, asked_ms: 0 };
      calls.set(entry.call_id, call);
      byNumber.set(entry.n, call);
    } else if (entry.kind === "call.sent") {
      const call = byNumber.get(entry.call);
      if (call) call.status = "running";
    } else if (entry.kind === "question.opened" && entry.call) {
      questions.set(entry.approval_id, entry);
    } else if (entry.kind === "question.closed") {
      const question = questions.get(entry.approval_id);
      if (question) waitedAbove(byNumber.get(question.call), (call) => byNumber.get(call?.cause), entry.at - question.at);
    } else if (entry.kind === "call.settled") {
      const call = calls.get(entry.call_id) ?? byNumber.get(entry.call);
      if (call) Object.assign(call, { started_ms: entry.started_ms ?? null, status: entry.status, failed_with: failedWith(call.tool_id, entry), to: entry.finished_ms ?? entry.at });
    } else if (entry.kind === "call.refused") {
      calls.set(entry.call_id, { call_id: entry.call_id, tool_id: entry.tool_id, caller: entry.caller, status: "refused", at: entry.at, from: entry.at, to: entry.at, started_ms: null, asked_ms: 0 });
    }
  }
  const all = [...calls.values()];
  if (!all.length) return [];
  const first = Math.min(...all.map((one) => one.from));
  const last = Math.max(...all.map((one) => one.to ?? now_ms), first + 1);
  const depthOf = (call, most = 32) => {
    const cause = byNumber.get(call.cause);
    return cause && cause !== call && most > 0 ? 1 + depthOf(cause, most - 1) : 0;
  };
  return all.map((call) => ({
    call,
    depth: depthOf(call),
    took_ms: call.to !== null && call.started_ms === null ? null : Math.max(0, (call.to ?? now_ms) - (call.started_ms ?? call.from) - call.asked_ms),
    start: (call.from - first) / (last - first),
    end: ((call.to ?? now_ms) - first) / (last - first),
  }));
}
