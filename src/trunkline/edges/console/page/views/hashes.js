// Hashes with their check. Of one call: what the record says of its input and output, computed again here from what is
// shown. Of the whole record: up to which entry it is verified, signed and anchored.

import { getText, part, post } from "../api.js";
import { canonical, hashOf } from "../canonical.js";
import { fill, h, say } from "../dom.js";
import { clock, count } from "../format.js";
import { doing, facts, trouble } from "../parts.js";
import { on, refetch, state } from "../store.js";

/** What stands behind one call, and whether its hashes are right. */
export function checkedEntries(call_id, entries, correlation_id, signal) {
  const accepted = entries.find((entry) => entry.kind === "call.accepted");
  const settled = entries.find((entry) => entry.kind === "call.settled");
  const checks = h("div", { class: "stack" });
  const numbers = entries.map((entry) => entry.n);
  if (correlation_id && accepted) check(checks, call_id, correlation_id, settled?.output !== undefined, signal);
  return h("div", { class: "stack" },
    facts([
      ["Entries", numbers.length ? numbers.join(", ") : "none"],
      ["Signed", numbers.length && state.counts?.entries_signed >= numbers.at(-1) ? "all of them" : "not all yet"],
      ["Tool's definition", accepted?.fingerprint ? h("span", { class: "hash" }, accepted.fingerprint) : null],
      ["Policy", accepted?.policy ? h("span", { class: "hash" }, accepted.policy) : null],
      ["What it showed", settled?.stream ? h("span", { class: "hash" }, settled.stream.sha256) : null],
    ]),
    checks,
    correlation_id ? null : h("p", { class: "muted small" }, "A call with a correlation has a replay, whose hashes are checked here."));
}

async function check(place, call_id, correlation_id, has_output, signal) {
  try {
    const text = await getText(`/v1/ledger/${part(correlation_id)}/replay.jsonl`, { signal });
    const lines = text.split("\n").filter(Boolean).map((line) => JSON.parse(line)).filter((line) => line.id === call_id);
    const found = [];
    for (const line of lines) {
      if (line.params_hash) found.push(await compared("Input", line.params_hash, line.params, line.masked || line.as_text));
      // The trajectory of a call that never ran has the hash of nothing: there is no output to be checked.
      if (line.output_hash && has_output) found.push(await compared("Output", line.output_hash, line.output, line.masked || line.as_text));
    }
    fill(place, found);
  } catch (error) {
    if (error.name !== "AbortError") fill(place, trouble(error));
  }
}

async function compared(name, recorded, value, is_other) {
  const computed = is_other || value === undefined || canonical(value) === null ? null : await hashOf(value);
  const verdict = computed === null
    ? h("span", { class: "state idle" }, "cannot be computed here")
    : h("span", { class: `state ${computed === recorded ? "good" : "bad"}` }, computed === recorded ? "checked, it fits" : "does not fit");
  return h("div", { data: { check: name.toLowerCase() } }, h("span", { class: "row" }, h("b", null, name), verdict), h("span", { class: "hash" }, recorded));
}

/** The record as a whole: what was proved, signed and published of it, and a button that has it proved now. */
export function verification(signal) {
  const facts_place = h("div");
  const verify = h("button", { type: "button", on: { click: () => doing(verify, async () => {
    await post("/v1/ledger/verify");
    refetch.status();
  }) } }, "Verify now");
  let was_verifying = false;
  const draw = () => {
    const known = { ...state.status, ...state.counts };
    const { entries_verified: verified, entries_signed: signed, entries_anchored: anchored, entries, verifying } = known;
    // When it was, and the anchored hash, are told by the status only.
    if (was_verifying && !verifying) refetch.status();
    was_verifying = Boolean(verifying);
    verify.disabled = was_verifying;
    say(verify, verifying ? "Verifying …" : "Verify now");
    fill(facts_place, facts([
      ["Verified", verified ? `up to entry ${count(verified)}${upTo(verified, entries)}${when(state.status)}` : "nothing yet in this run"],
      ["Signed", signed ? `up to entry ${count(signed)}${upTo(signed, entries)}` : "nothing yet"],
      ["Anchored head", anchored ? [`entry ${count(anchored)}`, state.status?.anchored_head ? h("span", { class: "hash below" }, state.status.anchored_head) : null] : "none: no head was published elsewhere"],
    ]));
  };
  const ends = [on("counts", draw), on("status", draw)];
  signal.addEventListener("abort", () => ends.forEach((end) => end()));
  draw();
  return h("div", { class: "sheet pad stack" }, facts_place, h("div", { class: "row" }, verify,
    h("span", { class: "muted small" }, "Every entry and hash is read again beside the work. If one was changed, the exchange stops and says which.")));
}

const upTo = (number, all) => (number >= all ? ", all there is" : ` of ${count(all)}`);

const when = (status) => (status?.verified_at ? `, at ${clock(status.verified_at)}` : "");
