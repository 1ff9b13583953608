// What the page knows of the exchange at this moment: agents, open calls with what they showed, questions, the latest
// entries, faults and figures. Fed by the live line (`take`), filled by a few requests (`load`), read by the views.
// Views are told by topic that something changed and look themselves; nothing here touches the document.
//
// Invariant: everything is bounded, and `seen` counts entries without a gap: what the live line left out is fetched by
// it before anything later is taken.

import { get, query } from "./api.js";
import { throttled } from "./dom.js";
import { Figures, waitedAbove } from "./figures.js";
import { entryOf, progressText } from "./format.js";

const MAX_RECENT = 400;
const MAX_FAULTS = 60;
const MAX_OPEN = 5000;
const MAX_OUTPUT_CHARS = 20_000;
const MAX_SETTLED = 4000;
// A burst of changes asks the exchange once.
const REFETCH_MS = 250;
// What is on record as a notice and is nobody's fault.
const ORDINARY = new Set(["console.signed_in", "console.signed_out", "mounts.signed_in", "mounts.signed_out"]);
const OPEN = ["running", "queued", "waiting_approval"];

// Calls that ended a moment ago: a list that was asked for before may still show them as open.
const settled = new Set();

// What calls showed that are not known here yet: the list that has them is on its way.
const early = new Map();
const MAX_EARLY = 64;

// Since when a person is asked about which call.
const asked = new Map();
const MAX_ASKED = 1000;

const listeners = new Map();

/** Call `act` when this topic changed; returns what ends it. */
export function on(topic, act) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(act);
  return () => listeners.get(topic).delete(act);
}

export function changed(topic) {
  for (const act of listeners.get(topic) ?? []) act();
}

export const state = {
  agents: new Map(),
  open: new Map(),
  // By the number of the entry with which a call began: later entries name it so.
  byNumber: new Map(),
  questions: new Map(),
  recent: [],
  faults: [],
  figures: new Figures(),
  status: null,
  // What the exchange says once a second.
  counts: null,
  // The first and last number of an entry that this page saw, and how many were missing between them.
  seen: { first: null, last: null, gaps: 0 },
  line: { state: "connecting", since: Date.now(), detail: "" },
};

/** The line to the exchange is `live`, `connecting` or `lost`. */
export function lineIs(name, detail = "") {
  if (state.line.state === name && state.line.detail === detail) return;
  state.line = { state: name, since: Date.now(), detail };
  changed("line");
}

// -- what is fetched ---------------------------------------------------------------------------------------------------

function refetching(load) {
  let is_running = false;
  let is_wanted = false;
  const run = async () => {
    if (is_running) {
      is_wanted = true;
      return;
    }
    is_running = true;
    try {
      await load();
    } catch {
      // Who is signed out or has no line is told by others; the next change asks again.
    } finally {
      is_running = false;
      if (is_wanted) {
        is_wanted = false;
        ask();
      }
    }
  };
  const ask = throttled(run, REFETCH_MS);
  return Object.assign(ask, { now: run });
}

export const refetch = {
  agents: refetching(async () => {
    const { agents } = await get("/v1/agents");
    state.agents = new Map(agents.map((agent) => [agent.agent_id, agent]));
    changed("agents");
  }),
  questions: refetching(async () => {
    const { approvals } = await get("/v1/approvals");
    state.questions = new Map(approvals.map((question) => [question.approval_id, question]));
    changed("questions");
  }),
  status: refetching(async () => {
    state.status = await get("/v1/status");
    changed("status");
  }),
  open: refetching(async () => {
    const pages = await Promise.all(OPEN.map((status) => get(query("/v1/calls", { limit: 200, status }))));
    const calls = pages.flatMap((page) => page.calls).sort((one, other) => (one.accepted_at < other.accepted_at ? -1 : 1));
    for (const call of calls) if (!state.open.has(call.call_id) && !settled.has(call.call_id)) addOpen(call.call_id, openCall(call));
    changed("open");
  }),
};

/** Everything anew: at the start, and after the line was lost. */
export async function load() {
  await Promise.all([refetch.agents.now(), refetch.questions.now(), refetch.status.now(), refetch.open.now()]);
}

function openCall(call) {
  return {
    number: entryOf(call.call_id),
    call_id: call.call_id,
    tool_id: call.tool_id,
    caller: call.caller,
    status: call.status,
    at: Date.parse(call.started_at ?? call.accepted_at) || Date.now(),
    correlation_id: call.correlation_id,
    approval_id: call.approval_id,
    output: "",
    percent: null,
  };
}

function addOpen(call_id, call) {
  state.open.set(call_id, call);
  for (const piece of early.get(call_id) ?? []) takeProgress(piece);
  early.delete(call_id);
  if (call.number) state.byNumber.set(call.number, call_id);
  if (state.open.size > MAX_OPEN) removeOpen(state.open.keys().next().value);
}

function removeOpen(call_id) {
  const call = state.open.get(call_id);
  if (call?.number) state.byNumber.delete(call.number);
  state.open.delete(call_id);
}

// -- what is told ------------------------------------------------------------------------------------------------------

const TAKES = {
  "call.accepted"(entry) {
    addOpen(entry.call_id, {
      number: entry.n,
      call_id: entry.call_id,
      tool_id: entry.tool_id,
      caller: entry.caller,
      status: entry.decision === "ask" ? "waiting_approval" : entry.sent ? "running" : "queued",
      at: entry.at,
      correlation_id: entry.correlation_id,
      cause: entry.cause,
      output: "",
      percent: null,
    });
  },
  "question.opened"(entry) {
    if (entry.subject !== "call") return;
    asked.set(entry.approval_id, { call_id: state.byNumber.get(entry.call), at: entry.at });
    if (asked.size > MAX_ASKED) asked.delete(asked.keys().next().value);
  },
  "question.closed"(entry) {
    const question = asked.get(entry.approval_id);
    asked.delete(entry.approval_id);
    if (question) waitedAbove(state.open.get(question.call_id), causeOf, entry.at - question.at);
  },
  "call.sent"(entry) {
    const call = state.open.get(state.byNumber.get(entry.call));
    if (call) call.status = "running";
  },
  "call.settled"(entry) {
    const call = state.open.get(entry.call_id);
    // One that never ran has no time; while somebody below it waited for a person, it did not work either.
    const took_ms = entry.started_ms ? Math.max(0, (entry.finished_ms ?? entry.at) - entry.started_ms - (call?.asked_ms ?? 0)) : NaN;
    const is_failed = entry.status === "failed" || entry.status === "unknown";
    state.figures.ended(entry.at, took_ms, is_failed);
    if (is_failed) {
      faulty({
        at: entry.at,
        n: entry.n,
        code: entry.fault?.code ?? entry.status,
        text: entry.fault?.message ?? "",
        where: call?.tool_id ?? "",
        href: `#/calls/${entry.call_id}`,
      });
    }
    entry.tool_id = call?.tool_id;
    settled.add(entry.call_id);
    if (settled.size > MAX_SETTLED) settled.delete(settled.values().next().value);
    removeOpen(entry.call_id);
  },
  "call.refused"(entry) {
    faulty({
      at: entry.at, n: entry.n, code: entry.code, text: `${entry.caller} was refused`, where: entry.tool_id,
      href: `#/calls/${entry.call_id}`,
    });
  },
  "agent.exited"(entry) {
    if (entry.exit_code !== 0) {
      const text = entry.note || `its process ended with ${entry.exit_code}`;
      faulty({ at: entry.at, n: entry.n, code: "agent.exited", text, where: entry.agent_id, href: `#/agents/${encodeURIComponent(entry.agent_id)}` });
    }
  },
  "agent.refused"(entry) {
    faulty({ at: entry.at, n: entry.n, code: "agent.refused", text: entry.reason, where: `${entry.edge}:${entry.claimed}`, href: "" });
  },
  notice(entry) {
    if (ORDINARY.has(entry.code)) return;
    faulty({ at: entry.at, n: entry.n, code: entry.code, text: entry.detail ?? "", where: entry.place, href: "" });
  },
};

/** The open call for which this one was made. */
function causeOf(call) {
  return state.open.get(state.byNumber.get(call?.cause));
}

function faulty(fault) {
  // The same again is counted where it stands, and comes to the top.
  fault.key = `${fault.code} ${fault.where} ${fault.text}`;
  const at = state.faults.findIndex((one) => one.key === fault.key);
  const times = at < 0 ? 0 : state.faults.splice(at, 1)[0].times;
  state.faults.unshift({ ...fault, times: times + 1 });
  if (state.faults.length > MAX_FAULTS) state.faults.pop();
  changed("faults");
}

/** Begin to count after this entry: what came before is not followed. */
export function beginAt(last) {
  state.seen = { first: last + 1, last, gaps: 0 };
  state.open.clear();
  state.byNumber.clear();
  changed("entries");
}

/** A batch of the live line: entries up to number `upto`, in order, and pieces of what running calls show. */
export function take(entries, output, upto) {
  const touched = new Set();
  const { seen } = state;
  // A piece of output may be told in the batch in which its call begins, or in the one in which it ends.
  const ended = [];
  for (const entry of entries) {
    if (seen.last !== null && entry.n <= seen.last) continue;
    if (seen.last !== null && entry.n > seen.last + 1) seen.gaps += entry.n - seen.last - 1;
    seen.first ??= entry.n;
    seen.last = entry.n;
    if (entry.kind === "call.settled") ended.push(entry);
    else TAKES[entry.kind]?.(entry);
    state.recent.push(entry);
    touched.add(entry.kind.split(".", 1)[0]);
  }
  for (const piece of output ?? []) takeProgress(piece);
  for (const entry of ended) TAKES["call.settled"](entry);
  if (upto > (seen.last ?? -1)) {
    seen.gaps += upto - (seen.last ?? upto);
    seen.last = upto;
  }
  if (state.recent.length > MAX_RECENT) state.recent.splice(0, state.recent.length - MAX_RECENT);
  if (touched.has("question") || touched.has("agent")) refetch.questions();
  if (touched.has("call") || output?.length) changed("open");
  for (const family of touched) changed(`entries:${family}`);
  changed("entries");
}

/** Who is here: what is new or changed, and who is gone. */
export function takeRegistry({ agents = [], gone = [], tools = [], tools_gone = [] }) {
  // How busy each is does not come by this way.
  for (const agent of agents) {
    const { open_calls, succeeded, failed } = state.agents.get(agent.agent_id) ?? {};
    state.agents.set(agent.agent_id, { ...agent, open_calls, succeeded, failed });
  }
  for (const agent_id of gone) state.agents.delete(agent_id);
  changed("agents");
  if (tools.length || tools_gone.length) changed("tools");
}

export function takeFigures(figures) {
  state.counts = figures;
  changed("counts");
}

function takeProgress(piece) {
  const call = state.open.get(piece.call_id);
  if (!call) {
    takeEarly(piece);
    return;
  }
  const text = progressText(piece.data);
  if (typeof piece.data?.percent === "number") call.percent = piece.data.percent;
  const is_text = piece.channel === "stdout" || piece.channel === "stderr" || piece.channel === "tokens";
  call.output = (call.output + (is_text || !call.output ? text : `\n${text}`)).slice(-MAX_OUTPUT_CHARS);
  changed(`progress:${piece.call_id}`);
}

function takeEarly(piece) {
  if (settled.has(piece.call_id)) return;
  const pieces = early.get(piece.call_id) ?? [];
  if (pieces.length < MAX_EARLY) pieces.push(piece);
  early.set(piece.call_id, pieces);
  if (early.size > MAX_EARLY) early.delete(early.keys().next().value);
}
