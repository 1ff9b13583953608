// Spaces: workspaces with a sandbox. One space: its runs with the edits they made, its files, and bringing it back.

import { get, part, post, query } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, sayToTheEnd, throttled } from "../dom.js";
import { bytes, clock, count, failedWith, plural, shortId } from "../format.js";
import { callTag, diffBlock, doing, empty, facts, heading, notify, stateTag, table, trouble, valueBlock } from "../parts.js";
import { on, state } from "../store.js";
import { commandForm } from "./command.js";

const RECENT_CALLS = 200;
// What a first space is called unless somebody says otherwise.
const FIRST_NAME = "demo";

export function show(root, words, _parameters, signal) {
  if (words[1] === "runs" && words[2]) showRun(root, words[0], words[2], signal);
  else if (words[0]) showSpace(root, words[0], signal);
  else showAll(root, signal);
}

function showAll(root, signal) {
  const rows = h("div", { class: "sheet" }, h("p", { class: "pad muted" }, "Looking …"));
  const form = h("section");
  const read = async () => {
    try {
      const { spaces } = await get("/v1/spaces", { signal });
      // What somebody types there stays.
      if (!form.firstElementChild) fill(form, newSpace(spaces.some((one) => one.name === FIRST_NAME) ? "" : FIRST_NAME));
      fill(rows, spaces.length ? table("Spaces", [
        { name: "Space", class: "wide", cell: (one) => h("a", { class: "tool", href: `#/spaces/${part(one.name)}` }, one.name) },
        { name: "Preset", class: "side", cell: (one) => one.preset },
        { name: "Runs", cell: (one) => (one.awaiting_approval ? h("span", { class: "state wait" }, `${one.awaiting_approval} waiting for a person`) : one.open_runs ? h("span", { class: "state busy" }, `${one.open_runs} open`) : h("span", { class: "muted" }, "none open")) },
        { name: "Commands", class: "small", cell: (one) => (one.shell ? (one.network ? "sandbox with network" : "sandbox, no network") : h("span", { class: "state bad" }, "no sandbox here")) },
        { name: "Folder", class: "mono small muted wide", cell: (one) => visible(one.folder ?? one.note ?? "") },
      ], spaces) : empty("There is no space yet.", "A space is a folder with a policy, and a sandbox for commands. Make one here, or in a terminal with ", h("code", null, `trunkline space new ${FIRST_NAME}`)));
    } catch (error) {
      if (error.name !== "AbortError") fill(rows, h("div", { class: "pad" }, trouble(error)));
    }
  };
  fill(root, heading("Spaces"), rows, form);
  const soon = throttled(read, 700);
  const ends = [on("entries:process", soon), on("entries:question", soon), on("agents", soon)];
  signal.addEventListener("abort", () => { for (const end of ends) end(); soon.stop(); });
  read();
}

function newSpace(value) {
  const name = h("input", { type: "text", value, required: true, placeholder: "its name", pattern: "[a-z0-9][a-z0-9_-]*", maxlength: "63", aria: { label: "Name of the space" } });
  const make = h("button", { type: "submit" }, "Make a space");
  return h("form", { class: "row", on: { submit: (event) => { event.preventDefault(); doing(make, async () => {
    const wanted = name.value.trim();
    await post("/v1/spaces", { name: wanted });
    location.hash = `#/spaces/${part(wanted)}`;
  }); } } }, name, make);
}

// -- one space ---------------------------------------------------------------------------------------------------------

function showSpace(root, name, signal) {
  const about = h("div", { class: "sheet pad" });
  const runs = h("div", { class: "sheet" });
  const kept = h("div", { class: "sheet" });
  const files = h("div", { class: "sheet" });
  const content = h("div");
  const command = h("section");
  fill(root, heading(name, h("span", { class: "muted" }, "a space")), command, h("section", null, about),
    h("div", { class: "columns wide-left" },
      h("section", null, h("h2", null, "Runs"), runs),
      h("section", null, h("h2", null, "Bring it back"), kept)),
    h("section", null, h("h2", null, "Files"), h("div", { class: "columns" }, files, content)));
  const fails = (place) => (error) => error.name !== "AbortError" && fill(place, h("div", { class: "pad" }, trouble(error)));

  const readAbout = () => get(`/v1/spaces/${part(name)}`, { signal }).then((space) => {
    // What somebody types there stays.
    if (space.shell && !command.firstElementChild) fill(command, h("div", { class: "sheet pad" }, commandForm(space)));
    fill(about, facts([
    ["Preset", space.preset], ["Folder", h("span", { class: "mono" }, visible(space.folder ?? ""))],
    ["Commands", space.shell ? (space.network ? "in a sandbox with network" : "in a sandbox without network") : visible(space.note ?? "not offered")],
    ["Tools", h("a", { href: `#/agents/${part(space.agent_id)}` }, space.agent_id)],
    ["Open runs", space.open_runs ? `${space.open_runs}, ${space.awaiting_approval} waiting for a person` : "none"],
    ["Policy", h("details", null, h("summary", null, "all of it"), valueBlock(space.policy))],
    ]));
  }, (error) => {
    if (error.status === 404) fill(root, heading("Space"), h("div", { class: "sheet" }, empty("No such space.", `Nothing is here under ${visible(name)}.`, h("a", { href: "#/spaces" }, "All spaces"))));
    else fails(about)(error);
  });
  const readRuns = () => get(query("/v1/calls", { tool: `space.${name}/`, limit: RECENT_CALLS }), { signal })
    .then(({ calls }) => fill(runs, runTable(name, calls)), fails(runs));
  const readKept = () => get(`/v1/spaces/${part(name)}/snapshots`, { signal })
    .then((found) => fill(kept, snapshots(name, found, again)), fails(kept));
  const again = () => {
    readAbout();
    readRuns();
    readKept();
    readFiles("");
  };
  const readFiles = (path) => get(query(`/v1/spaces/${part(name)}/files`, { path }), { signal })
    .then((found) => fill(files, fileTable(name, path, found, readFiles, content, signal)), fails(files));
  const soon = throttled(again, 1000);
  const is_of_it = () => state.recent.slice(-100).some((entry) => entry.tool_id?.startsWith(`space.${name}/`) || entry.kind === "process.step");
  const ends = [on("entries:process", soon), on("entries:call", () => is_of_it() && soon())];
  signal.addEventListener("abort", () => { for (const end of ends) end(); soon.stop(); });
  again();
}

function runTable(name, calls) {
  const byRun = new Map();
  for (const call of calls) {
    const id = call.correlation_id ?? call.call_id;
    if (!byRun.has(id)) byRun.set(id, []);
    byRun.get(id).push(call);
  }
  if (!byRun.size) return empty("Nothing was run here yet.", "Run a command above, or several operations in a terminal:", h("code", null, `trunkline space run ${name} < operations.json`));
  return table("Runs", [
    { name: "Run", class: "wide", cell: ([id, own]) => h("a", { class: "tool", href: `#/spaces/${part(name)}/runs/${part(id)}`, title: visible(id) }, runName(id), h("span", { class: "sr" }, ` of ${plural(own.length, "operation")}`)) },
    { name: "State", cell: ([, own]) => callTag(worst(own)) },
    { name: "Operations", class: "small side", cell: ([, own]) => [...own].reverse().map((call) => call.tool_id.split("/")[1].replaceAll("_", " ")).slice(0, 6).join(", ") + (own.length > 6 ? " …" : "") },
    { name: "Time", class: "muted num side", cell: ([, own]) => clock(own.at(-1).accepted_at) },
  ], [...byRun]);
}

/** A run by its id; a call that was made by itself, outside of any run, by the number of its entry. */
function runName(id) {
  const short = shortId(id);
  return visible(short.startsWith("#") ? `call ${short}` : short);
}

/** The call of a run that says most about it. */
function worst(calls) {
  for (const status of ["waiting_approval", "running", "queued", "unknown", "failed", "canceled"]) {
    const found = calls.find((call) => call.status === status);
    if (found) return found;
  }
  return calls.find((call) => failedWith(call.tool_id, call) !== null) ?? calls[0];
}

function snapshots(name, found, again) {
  if (!found.snapshots.length) return empty("Nothing is kept yet.", "Before each run that changes something, the space is kept as it was.");
  const undo = async (button, snapshot) => {
    let plan = null;
    if (!(await doing(button, async () => { plan = await post(`/v1/spaces/${part(name)}/undo`, { run: String(snapshot.number), dry_run: true }); }))) return;
    const place = button.closest("tr").nextElementSibling?.classList.contains("plan") ? button.closest("tr").nextElementSibling : h("tr", { class: "plan" });
    const really = h("button", { type: "button", class: "danger", on: { click: async () => {
      const went_well = await doing(really, () => post(`/v1/spaces/${part(name)}/undo`, { run: String(snapshot.number) }));
      if (went_well) { notify(`${name} is as it was before ${snapshot.run ?? "that run"}`); again(); }
    } } }, "Undo now");
    fill(place, h("td", { colspan: "4", class: "wide" }, h("div", { class: "stack note" }, planOf(plan), h("div", { class: "row" }, really, h("button", { type: "button", class: "quiet", on: { click: () => place.remove() } }, "Leave it")))));
    button.closest("tr").after(place);
  };
  return [table("Snapshots", [
    { name: "Before run", class: "mono small nowrap", cell: (one) => (one.run ? h("span", { title: visible(one.run) }, runName(one.run)) : `number ${one.number}`) },
    { name: "Taken", class: "muted small", cell: (one) => clock(one.taken_at).split(" ").map((word) => [h("span", { class: "nowrap" }, word), " "]) },
    { name: "Holds", class: "small side nowrap", cell: (one) => plural(one.files, "file") },
    { name: "", class: "side nowrap", cell: (one) => { const button = h("button", { type: "button", class: "quiet", on: { click: () => undo(button, one) } }, "Undo …"); return button; } },
  ], found.snapshots), h("p", { class: "pad small muted" }, `All of them take ${bytes(found.bytes)}.`)];
}

function planOf(plan) {
  const lines = [["Would come back", plan.brought_back, plan.first_brought_back], ["Would be changed back", plan.changed_back, plan.first_changed_back], ["Would be removed", plan.removed, plan.first_removed]];
  const shown = lines.filter(([, number]) => (Array.isArray(number) ? number.length : number));
  if (!shown.length) return h("p", null, "Nothing would change.");
  return facts(shown.map(([title, number, first]) => [title, `${Array.isArray(number) ? number.length : count(number)}: ${visible((first ?? number).join?.(", ") ?? "")}`]));
}

// -- files -------------------------------------------------------------------------------------------------------------

function fileTable(name, path, found, readFiles, content, signal) {
  const open = async (file) => {
    try {
      const read = await get(query(`/v1/spaces/${part(name)}/files`, { path: file }), { signal });
      fill(content, h("h3", { class: "mono", style: { "margin-bottom": "6px" } }, visible(file)), valueBlock(read.content ?? "", "Content"), read.cut ? h("p", { class: "muted small" }, `The first ${bytes(read.content.length)} of ${bytes(read.bytes)}.`) : null);
    } catch (error) {
      if (error.name !== "AbortError") fill(content, trouble(error));
    }
  };
  const go = (where) => () => readFiles(where);
  const up = path ? h("button", { type: "button", class: "quiet", on: { click: go(path.split("/").slice(0, -1).join("/")) } }, `${visible(path)} ↑ up`) : null;
  if (!found.files.length) return [up, empty(path ? "This folder is empty." : "The space is empty.")];
  return [up, table("Files", [
    { name: "Name", class: "wide", cell: (one) => {
      const whole = path ? `${path}/${one.name}` : one.name;
      return h("button", { type: "button", class: "quiet tool", on: { click: one.kind === "folder" ? go(whole) : () => open(whole) } }, visible(one.name), one.kind === "folder" ? "/" : "");
    } },
    { name: "Size", class: "num", cell: (one) => (one.kind === "folder" ? "" : bytes(one.bytes)) },
    { name: "Changed", class: "num muted side", cell: (one) => clock(one.changed_at) },
  ], found.files), found.count > found.files.length ? h("p", { class: "pad small muted" }, `${count(found.files.length)} of ${count(found.count)} are shown.`) : null];
}

// -- one run -----------------------------------------------------------------------------------------------------------

async function showRun(root, name, run_id, signal) {
  const place = h("div", { class: "stack" }, h("p", { class: "muted" }, "Looking …"));
  fill(root, h("div", { class: "head" }, h("h1", { class: "mono" }, visible(run_id)), h("a", { href: `#/spaces/${part(name)}` }, `in ${name}`)), place);
  const read = async () => {
    try {
      const asked = /^run_/.test(run_id) ? { correlation_id: run_id } : { call_id: run_id };
      const { entries } = await get(query("/v1/ledger", asked), { signal });
      fill(place, operations(entries, name));
      drawOutput();
    } catch (error) {
      if (error.name !== "AbortError") fill(place, trouble(error));
    }
  };
  const drawOutput = () => {
    for (const output of place.querySelectorAll("[data-call] > .output")) {
      const shown = state.open.get(output.parentElement.dataset.call)?.output;
      output.hidden = !shown;
      if (shown) sayToTheEnd(output, visible(shown));
    }
  };
  const soon = throttled(read, 500);
  const ends = [on("entries:call", soon), on("entries:question", soon), on("open", drawOutput)];
  signal.addEventListener("abort", () => { for (const end of ends) end(); soon.stop(); });
  read();
}

function operations(entries, name) {
  const settled = new Map(entries.filter((entry) => entry.kind === "call.settled").map((entry) => [entry.call_id, entry]));
  const asked = new Map(entries.filter((entry) => entry.kind === "question.opened").map((entry) => [entry.call, entry]));
  const sent = new Set(entries.filter((entry) => entry.kind === "call.sent").map((entry) => entry.call));
  const begun = entries.filter((entry) => (entry.kind === "call.accepted" || entry.kind === "call.refused") && entry.tool_id.startsWith(`space.${name}/`));
  if (!begun.length) return empty("Nothing is on record of this run.");
  return begun.map((entry) => {
    if (entry.kind === "call.refused") return refusedOperation(entry);
    const end = settled.get(entry.call_id);
    const question = asked.get(entry.n);
    const status = end?.status ?? (entry.decision === "ask" && !sent.has(entry.n) ? "waiting_approval" : "running");
    return h("article", { class: "sheet pad stack", data: { call: entry.call_id } },
      h("div", { class: "row" }, h("h2", { style: { margin: "0" } }, entry.tool_id.split("/")[1].replaceAll("_", " ")), end ? callTag(end, entry.tool_id) : stateTag(status),
        h("a", { class: "small", href: `#/calls/${entry.call_id}` }, "Its story"),
        !end && question ? h("a", { class: "button", href: `#/approvals/${question.approval_id}` }, "Answer its question") : null,
        h("span", { class: "muted small", style: { "margin-left": "auto" } }, clock(entry.at))),
      status === "waiting_approval" ? h("p", { class: "note" }, "It has not begun: a person has to approve it first.") : null,
      operationBody(entry, end),
      end ? null : h("pre", { class: "output", hidden: true, tabindex: "0", role: "log", aria: { label: "What it shows" } }));
  });
}

/** An operation that was not taken on: of what it was to do, nothing is on record. */
function refusedOperation(entry) {
  const why = [entry.why, entry.rule ? `by ${entry.rule}` : ""].filter(Boolean).join("; ");
  return h("article", { class: "sheet pad stack" },
    h("div", { class: "row" }, h("h2", { style: { margin: "0" } }, entry.tool_id.split("/")[1].replaceAll("_", " ")), stateTag("refused"),
      h("a", { class: "small", href: `#/calls/${entry.call_id}` }, "Its story"),
      h("span", { class: "muted small", style: { "margin-left": "auto" } }, clock(entry.at))),
    h("p", { class: "trouble" }, visible(why ? `${entry.code}: ${why}` : entry.code)));
}

function operationBody(entry, end) {
  const { input = {} } = entry;
  const kind = entry.tool_id.split("/")[1];
  const fault = end?.fault ? h("p", { class: "trouble" }, visible(`${end.fault.code}: ${end.fault.message}`)) : null;
  if (kind === "edit_file") return [h("p", { class: "mono" }, visible(input.path)), (input.edits ?? []).map((edit) => diffBlock(edit.oldContent ?? "", edit.newContent ?? "", `Edit of ${input.path}`)), fault];
  if (kind === "create_file") return [h("p", { class: "mono" }, visible(input.path)), diffBlock("", input.content ?? "", `Content of ${input.path}`), fault];
  if (kind === "shell") {
    const output = [end?.output?.stdout, end?.output?.stderr].filter(Boolean).join("\n");
    return [h("pre", { class: "code" }, `$ ${visible(input.command ?? "")}`), output ? valueBlock(output, "What it printed") : null,
      end?.output?.exitCode !== undefined ? h("p", { class: "muted small" }, `ended with ${end.output.exitCode}`) : null, fault];
  }
  return [valueBlock(input), fault];
}
