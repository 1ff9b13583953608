// The record: up to which entry it was verified, signed and anchored, and its latest entries as they come.

import { visible } from "../danger.js";
import { fill, h, throttled } from "../dom.js";
import { brief, bytes, clockMs, count } from "../format.js";
import { empty, facts, heading, table } from "../parts.js";
import { on, refetch, state } from "../store.js";
import { told } from "../story.js";
import { verification } from "./hashes.js";

const SHOWN = 60;

export function show(root, _words, _parameters, signal) {
  const figures = h("div", { class: "figures" });
  const about = h("div", { class: "sheet pad" });
  const rows = h("div", { class: "sheet" });
  const drawFigures = () => {
    const counts = { ...state.status, ...state.counts };
    const { seen } = state;
    fill(figures, [
      ["entries", count(counts.entries)],
      ["on disk", count(counts.entries_on_disk)],
      ["verified up to", counts.entries_verified ? count(counts.entries_verified) : "–"],
      ["signed up to", counts.entries_signed ? count(counts.entries_signed) : "–"],
      ["anchored head", counts.entries_anchored ? count(counts.entries_anchored) : "none"],
      ["size", bytes(state.status?.ledger_bytes)],
    ].map(([name, value]) => h("div", { class: "figure" }, h("b", null, value), h("span", null, name))));
    const gaps = seen.gaps ? `${count(seen.gaps)} missing` : "none missing";
    const range = seen.last === null || seen.last < seen.first ? `nothing yet, from entry ${count(seen.first ?? 0)} on` : `entries ${count(seen.first)} to ${count(seen.last)}, ${gaps}`;
    fill(about, facts([
      ["This page saw", h("span", { id: "seen", data: { first: String(seen.first ?? ""), last: String(seen.last ?? ""), gaps: String(seen.gaps) } }, range)],
      ["Not anchored?", counts.entries_anchored ? null : ["A signed head that is published elsewhere shows even the owner of this machine a change. Set ", h("code", null, "[ledger] anchor"), "; docs/operations.md tells how."]],
    ]));
  };
  const drawRows = () => {
    const latest = state.recent.slice(-SHOWN).reverse();
    fill(rows, latest.length ? table("Latest entries", [
      { name: "Entry", class: "num", cell: (entry) => String(entry.n) },
      { name: "Time", class: "muted side nowrap", cell: (entry) => clockMs(entry.at) },
      { name: "Kind", class: "mono", cell: (entry) => entry.kind },
      { name: "What happened", class: "small wide", cell: summaryOf },
    ], latest) : empty("Nothing was recorded since this page was opened.", "New entries come here as they are written."));
  };
  fill(root, heading("Ledger"), h("section", null, figures), h("section", { class: "columns" },
    h("div", null, h("h2", null, "Verification"), verification(signal)), h("div", null, h("h2", null, "What this page has seen"), about)),
    h("section", null, h("h2", null, "Latest entries"), rows));
  const [soonFigures, soonRows] = [throttled(drawFigures, 500), throttled(drawRows, 700)];
  const ends = [on("counts", soonFigures), on("status", soonFigures), on("entries", () => { soonFigures(); soonRows(); })];
  signal.addEventListener("abort", () => {
    for (const end of ends) end();
    soonFigures.stop();
    soonRows.stop();
  });
  refetch.status();
  drawFigures();
  drawRows();
}

function summaryOf(entry) {
  const { text, detail } = told(entry);
  const said = text === entry.kind ? detail.join(", ") : [text, ...detail].join(", ");
  const tool = entry.tool_id ? `${entry.tool_id}: ` : "";
  const line = visible(brief(tool + said, 200));
  return entry.call_id ? h("a", { class: "line-link", href: `#/calls/${entry.call_id}` }, line) : line;
}

