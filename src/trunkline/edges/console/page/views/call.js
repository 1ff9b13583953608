// One call: what was asked, what came of it, its story entry by entry, and the other calls of its correlation as a
// waterfall over time. Followed while it is open.

import { download, get, part, post, query } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, say, sayToTheEnd, throttled } from "../dom.js";
import { bytes, clock, clockMs, duration, isOutcome, shortId, tone } from "../format.js";
import { callTag, doing, empty, facts, heading, stateTag, toolName, trouble, valueBlock } from "../parts.js";
import { on, state } from "../store.js";
import { told, waterfall } from "../story.js";
import { argumentList } from "./approvals.js";
import { checkedEntries } from "./hashes.js";

export function showCall(root, call_id, signal) {
  const place = h("div");
  fill(root, place);
  fill(place, h("p", { class: "muted" }, "Looking …"));
  const parts = { call_id, place, is_drawn: false };
  const draw = throttled(() => drawCall(parts, signal), 300);
  const touches = () => {
    if (state.recent.slice(-200).some((entry) => entry.call_id === call_id || parts.numbers?.has(entry.call) || parts.questions?.has(entry.approval_id))) draw();
  };
  const ends = [on("entries:call", touches), on("entries:question", touches), on(`progress:${call_id}`, () => drawOutput(parts))];
  signal.addEventListener("abort", () => {
    draw.stop();
    for (const end of ends) end();
  });
  drawCall(parts, signal);
}

function drawOutput(parts) {
  const output = parts.place.querySelector(".live-output");
  const call = state.open.get(parts.call_id);
  if (!output || !call) return;
  output.hidden = !call.output;
  sayToTheEnd(output, visible(call.output));
}

async function drawCall(parts, signal) {
  const { call_id, place } = parts;
  let call = null;
  let entries = [];
  try {
    [call, { entries }] = await Promise.all([
      get(`/v1/calls/${part(call_id)}`, { signal }).catch((error) => {
        if (error.status === 404) return null;
        throw error;
      }),
      get(query("/v1/ledger", { call_id }), { signal }),
    ]);
  } catch (error) {
    if (error.name !== "AbortError") fill(place, heading("Call"), trouble(error));
    return;
  }
  const began = entries.find((entry) => entry.kind === "call.accepted" || entry.kind === "call.refused");
  if (!call && !began) {
    fill(place, heading("Call"), h("div", { class: "sheet" }, empty("No such call.", `Nothing is on record under ${call_id}.`, h("a", { href: "#/calls" }, "All calls"))));
    return;
  }
  parts.numbers = new Set([began?.n]);
  parts.questions = new Set(entries.map((entry) => entry.approval_id).filter(Boolean));
  const status = call?.status ?? "refused";
  const correlation_id = call?.correlation_id ?? began?.correlation_id;
  fill(place,
    head(call, began, status, call_id),
    h("div", { class: "columns wide-left" },
      h("div", null,
        began?.input !== undefined ? h("section", null, h("h2", null, "Input"), h("div", { class: "sheet pad" }, argumentList(began.input))) : null,
        outcome(call, status),
        h("section", null, h("h2", null, "Story"), h("div", { class: "sheet pad" }, timeline(entries)))),
      h("div", null,
        h("section", null, h("h2", null, "Facts"), h("div", { class: "sheet pad" }, factsOf(call, began, status, call_id))),
        h("section", null, h("h2", null, "Record"), h("div", { class: "sheet pad" }, checkedEntries(call_id, entries, correlation_id, signal))))),
    correlation_id ? correlation(correlation_id, call_id, signal) : null);
  drawOutput(parts);
}

function head(call, began, status, call_id) {
  const cancel = h("button", { type: "button", class: "danger", on: { click: () => doing(cancel, () => post(`/v1/calls/${part(call_id)}/cancel`, { reason: "canceled on the console" })) } }, "Cancel");
  const tool_id = call?.tool_id ?? began?.tool_id;
  return h("div", { class: "head" }, h("h1", null, toolName(tool_id)), call ? callTag(call) : stateTag(status),
    h("span", { class: "push row" },
      call?.approval_id && !isOutcome(status) ? h("a", { class: "button", href: `#/approvals/${call.approval_id}` }, "Answer its question") : null,
      call && !isOutcome(status) ? cancel : null,
      h("a", { class: "button", href: `#/tools/${part(tool_id)}` }, "Try this tool")));
}

function outcome(call, status) {
  if (!call) return null;
  if (!isOutcome(status)) {
    return h("section", null, h("h2", null, "Output so far"),
      h("pre", { class: "output tall live-output", hidden: true, tabindex: "0", role: "log", aria: { label: "Output so far" } }),
      h("p", { class: "muted small" }, status === "waiting_approval" ? "It waits for a person and has not begun." : "It runs; what it shows comes here."));
  }
  return h("section", null, h("h2", null, call.error ? "Fault" : "Output"),
    call.error ? h("div", { class: "trouble" }, h("span", { class: "mono" }, visible(call.error.code)), ": ", visible(call.error.message)) : null,
    call.output !== undefined ? largeOr(call.output) : null);
}

function largeOr(output) {
  const reference = output?.$ref;
  if (typeof reference !== "string" || !/[0-9a-f]{64}$/.test(reference)) return valueBlock(output, "Output");
  const sha256 = reference.slice(-64);
  const button = h("button", { type: "button", on: { click: () => doing(button, () => download(`/v1/blobs/${sha256}`, `${sha256.slice(0, 12)}.json`)) } },
    `Download ${output.bytes ? bytes(output.bytes) : "it"}`);
  return h("div", { class: "stack" }, valueBlock(output), h("div", null, button));
}

function factsOf(call, began, status, call_id) {
  const start = call?.started_at ?? call?.accepted_at ?? began?.at;
  const caller = call?.caller ?? began?.caller;
  return facts([
    ["Caller", h("a", { href: `#/calls?caller=${part(caller)}` }, visible(caller))],
    ["On behalf of", began?.chain?.length ? visible(began.chain.join(" → ")) : null],
    ["Caused by", began?.causation_id ? h("a", { href: `#/calls/${part(began.causation_id)}` }, shortId(began.causation_id)) : null],
    ["Decision", began?.decision ? `${began.decision} by ${began.rule}` : began?.code],
    ["Asked at", clockMs(began?.at ?? start)],
    ["Began at", call?.started_at ? clockMs(call.started_at) : null],
    ["Ended at", call?.finished_at ? clockMs(call.finished_at) : null],
    ["Took", call?.finished_at && call?.started_at ? h("span", { data: { took: call_id } }, duration(Date.parse(call.finished_at) - Date.parse(call.started_at))) : null],
    ["Side effects", began?.kind === "call.accepted" ? (began.side_effects === false ? "only reads" : "changes things") : null],
    ["Call", h("span", { class: "hash" }, call_id)],
  ]);
}

function timeline(entries) {
  const start = entries[0]?.at;
  return h("ol", { class: "timeline" }, entries.map((entry) => {
    const { text, tone: colour, detail, at, n } = told(entry, entries[0]?.tool_id);
    return h("li", null,
      h("span", { class: "when", title: clockMs(at) }, at === start ? clock(at) : `+${duration(at - start)}`),
      h("span", { class: `dot ${colour}`, aria: { hidden: "true" } }),
      h("div", { class: "what" }, h("span", null, visible(text), " ", h("span", { class: "muted small" }, `entry ${n}`)),
        detail.map((one) => h("span", { class: "muted small" }, visible(one)))));
  }));
}

// -- its correlation ---------------------------------------------------------------------------------------------------

function correlation(correlation_id, call_id, signal) {
  const rows = h("div", { class: "waterfall" }, h("p", { class: "muted" }, "Looking …"));
  const replay = h("button", { type: "button", on: { click: () => doing(replay, () =>
    download(`/v1/ledger/${part(correlation_id)}/replay.jsonl`, `${correlation_id.replace(/[^A-Za-z0-9._-]/g, "_")}.replay.jsonl`)) } }, "Download replay");
  get(query("/v1/ledger", { correlation_id }), { signal }).then(({ entries }) => {
    const found = waterfall(entries, Date.now());
    const own = found.find((row) => row.call.call_id === call_id);
    const took = document.querySelector(`[data-took="${CSS.escape(call_id)}"]`);
    if (took && own?.call.asked_ms) say(took, `${duration(own.took_ms)}, and ${duration(own.call.asked_ms)} in which a person was asked`);
    fill(rows, found.length ? found.map((row) => bar(row, call_id)) : h("p", { class: "muted" }, "No other call."));
  }, (error) => error.name !== "AbortError" && fill(rows, trouble(error)));
  return h("section", null, h("div", { class: "head", style: { "margin-bottom": "8px" } }, h("h2", { style: { margin: "0" } }, "All of this correlation, over time"),
    h("span", { class: "muted mono small" }, visible(correlation_id)), h("span", { class: "push" }, replay)), h("div", { class: "sheet pad" }, rows));
}

function bar({ call, depth, start, end, took_ms }, current) {
  const span = h("span", { class: `span ${call.failed_with ? "bad" : tone(call.status)}`, style: { left: `${(start * 100).toFixed(2)}%`, width: `${Math.max(0, (end - start) * 100).toFixed(2)}%` } });
  const edge = call.caller.includes(":") ? call.caller.split(":", 1)[0] : "";
  return h("a", { href: `#/calls/${part(call.call_id)}`, aria: call.call_id === current ? { current: "true" } : undefined },
    h("span", { class: "name", style: { "padding-left": `${Math.min(depth, 8) * 14}px` } }, toolName(call.tool_id), edge ? h("span", { class: "muted small" }, `  ${edge}`) : null, h("span", { class: "sr" }, call.failed_with ? ` ended with ${call.failed_with}` : ` ${call.status}`)),
    h("span", { class: "track" }, span),
    h("span", { class: "right muted small" }, call.status === "refused" ? "refused" : took_ms === null ? "never ran" : duration(took_ms)));
}
