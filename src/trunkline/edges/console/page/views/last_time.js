// What is different from the last time that the same caller called the same tool: shown below a question, so that a
// person who approved it before sees what he has not seen yet.

import { get, part, query } from "../api.js";
import { visible } from "../danger.js";
import { values } from "../diff.js";
import { fill, h } from "../dom.js";
import { ago, brief } from "../format.js";
import { stateTag } from "../parts.js";

const MOST_DIFFERENCES = 12;

/** A place that fills itself. */
export function lastTime(question) {
  const place = h("div", { class: "small" });
  look(question).then((found) => fill(place, found), () => fill(place));
  return place;
}

async function look(question) {
  const { calls } = await get(query("/v1/calls", { tool: question.tool_id, caller: question.asked_by, limit: 10 }));
  const before = calls.find((call) => call.call_id !== question.call_id && call.accepted_at <= question.asked_at);
  if (!before) return h("p", { class: "muted" }, "It has not asked for this before.");
  const { entries } = await get(query("/v1/ledger", { call_id: before.call_id }));
  const accepted = entries.find((entry) => entry.kind === "call.accepted");
  const said = h("a", { href: `#/calls/${part(before.call_id)}` }, ago(before.accepted_at));
  const differences = values(accepted?.input ?? {}, question.input ?? {});
  if (!differences.length) return h("p", { class: "muted" }, "The same arguments as last time, ", said, ": ", stateTag(before.status));
  return h("details", { open: differences.length <= MOST_DIFFERENCES },
    h("summary", { class: "muted" }, "Different from last time, ", said, ": ", stateTag(before.status)),
    h("div", { class: "diff" }, differences.slice(0, MOST_DIFFERENCES).flatMap(({ path, kind, before: old, after }) => [
      kind === "added" ? null : h("div", { class: "removed" }, `${visible(path)}: ${visible(brief(old, 300))}`),
      kind === "removed" ? null : h("div", { class: "added" }, `${visible(path)}: ${visible(brief(after, 300))}`),
    ])));
}
