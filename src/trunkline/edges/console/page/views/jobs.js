// Typed jobs: which types there are, who works on them, the jobs that were done, each a call with its hashes, and what was
// paid for which of them. `#/jobs/ID` is one receipt (`receipt.js`).

import { get, part, query } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, throttled } from "../dom.js";
import { count } from "../format.js";
import { empty, heading, stateTag, table, toolName, trouble } from "../parts.js";
import { on, refetch, state } from "../store.js";
import { callTable } from "./calls.js";
import { receiptList, showReceipt } from "./receipt.js";

const AGENT = "trunkline.jobs";
const PAGE = 50;

export function show(root, words, _parameters, signal) {
  if (words[0]) {
    showReceipt(root, words[0], signal);
    return;
  }
  const receipts = receiptList(signal);
  const figures = h("div", { class: "figures" });
  const types = h("div", { class: "sheet" }, h("p", { class: "pad muted" }, "Looking …"));
  const done = h("div", { class: "sheet" }, h("p", { class: "pad muted" }, "Looking …"));
  const drawFigures = () => {
    const jobs = state.status?.edges?.jobs ?? {};
    fill(figures, ["types", "open", "succeeded", "failed", "canceled", "workers"].map((name) =>
      h("div", { class: `figure ${name === "failed" && jobs.failed ? "bad" : ""}` }, h("b", null, jobs[name] === undefined ? "–" : count(jobs[name])), h("span", null, name))));
  };
  const readJobs = async () => {
    try {
      const { calls } = await get(query("/v1/calls", { tool: `${AGENT}/`, limit: PAGE }), { signal });
      fill(done, calls.length ? callTable(calls) : empty("No job was done yet.", "A job is a call of one of these types; try one, or send it as an OpenAgents job over Nostr."));
    } catch (error) {
      if (error.name !== "AbortError") fill(done, h("div", { class: "pad" }, trouble(error)));
    }
  };
  fill(root, heading("Jobs"), h("section", null, figures),
    h("section", null, h("h2", null, "Types"), types), h("section", null, h("h2", null, "Jobs, newest first"), done),
    h("section", null, h("h2", null, "Receipts, newest first"), receipts.node));
  get(query("/v1/tools", { limit: 1000, after: `${AGENT}/` }), { signal }).then(({ tools }) => {
    const own = tools.filter((one) => one.tool_id.startsWith(`${AGENT}/`));
    fill(types, own.length ? table("Types of jobs", [
      { name: "Type", class: "wide", cell: (one) => toolName(one.tool_id, `#/tools/${part(one.tool_id)}`) },
      { name: "Status", cell: (one) => stateTag(one.status) },
      { name: "What it does", class: "small wide", cell: (one) => visible(one.description) },
    ], own) : empty("No type of job can be done here.", "docs/jobs.md says what each needs."));
  }, (error) => error.name !== "AbortError" && fill(types, h("div", { class: "pad" }, trouble(error))));
  const soon = throttled(() => { refetch.status(); readJobs(); }, 2000);
  // A receipt is a step of a process on record.
  const paid = throttled(receipts.again, 2000);
  const ends = [on("status", drawFigures), on("entries:process", paid), on("entries:call", () => {
    if (state.recent.slice(-100).some((entry) => entry.tool_id?.startsWith(`${AGENT}/`))) soon();
  })];
  signal.addEventListener("abort", () => {
    for (const end of ends) end();
    soon.stop();
    paid.stop();
  });
  refetch.status();
  drawFigures();
  readJobs();
}
