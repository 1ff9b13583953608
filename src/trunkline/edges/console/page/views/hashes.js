// Hashes of the record with their check: of the entries of one call, and of the record as a whole.

import { h } from "../dom.js";

export function checkedEntries(_call_id, entries) {
  return h("p", { class: "muted" }, `${entries.length} entries on record.`);
}

export function verification() {
  return h("div", { class: "sheet pad" });
}
