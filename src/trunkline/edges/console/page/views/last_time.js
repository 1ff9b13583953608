// What is different from the last time that the same tool was carried out for the same caller: shown below a question, so that a
// person who approved it before sees what he has not seen yet.

import { get, part, query } from "../api.js";
import { visible } from "../danger.js";
import { values } from "../diff.js";
import { fill, h } from "../dom.js";
import { ago, brief, lastCarriedOut } from "../format.js";
import { callTag } from "../parts.js";

const MOST_DIFFERENCES = 12;
const LOOKED_AT = 50;

/** A place that fills itself. */
export function lastTime(question) {
  const place = h("div", { class: "small" });
  look(question).then((found) => fill(place, found), () => fill(place));
  return place;
}

async function look(question) {
  const { calls } = await get(query("/v1/calls", { tool: question.tool_id, caller: question.asked_by, limit: LOOKED_AT }));
  const before = lastCarriedOut(calls, question.call_id);
  if (!before) return h("p", { class: "muted" }, "Nothing of this kind was carried out for it before.");
  const { entries } = await get(query("/v1/ledger", { call_id: before.call_id }));
  const accepted = entries.find((entry) => entry.kind === "call.accepted");
  const said = h("a", { href: `#/calls/${part(before.call_id)}` }, ago(before.accepted_at));
  const differences = values(accepted?.input ?? {}, question.input ?? {});
  if (!differences.length) return h("p", { class: "muted" }, "The same arguments as last time, ", said, ": ", callTag(before));
  return h("details", { open: differences.length <= MOST_DIFFERENCES },
    h("summary", { class: "muted" }, "Different from last time, ", said, ": ", callTag(before)),
    h("div", { class: "diff" }, differences.slice(0, MOST_DIFFERENCES).flatMap(({ path, kind, before: old, after }) => [
      kind === "added" ? null : h("div", { class: "removed" }, `${visible(path)}: ${visible(brief(old, 300))}`),
      kind === "removed" ? null : h("div", { class: "added" }, `${visible(path)}: ${visible(brief(after, 300))}`),
    ])));
}
