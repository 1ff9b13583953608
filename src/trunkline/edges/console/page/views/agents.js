// Agents: who is here, how well, what each has done; one agent's log, and starting, stopping and restarting it.

import { get, part, post, query } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, keyed, say, sayToTheEnd, throttled } from "../dom.js";
import { count, plural, words } from "../format.js";
import { doing, empty, facts, heading, labelled, notify, stateTag, table, toolName, trouble } from "../parts.js";
import { on, state } from "../store.js";
import { signedOut, signInCard } from "./sign_in.js";

const PAGE = 100;
const LOG_LINES = 300;
const LOG_AGAIN_MS = 2000;
// Those that need somebody first.
const ORDER = (agent) => (agent.state === "ready" ? (agent.health && agent.health !== "ok" ? 1 : 2) : 0);

/** Agents as a table, those with trouble first, so many at most. */
export function agentRows(agents, most = Infinity) {
  if (!agents.length) {
    return empty("No agent is here.", "An agent is a few lines of Python; the README shows one. Examples to begin with:", h("code", null, "trunkline up --demo"));
  }
  const sorted = [...agents].sort((one, other) => ORDER(one) - ORDER(other) || one.agent_id.localeCompare(other.agent_id));
  return table("Agents", [
    { name: "Agent", class: "wide", cell: (one) => h("a", { class: "tool", href: `#/agents/${part(one.agent_id)}` }, visible(one.agent_id)) },
    { name: "State", cell: healthOf },
    { name: "Edge", class: "small muted side", cell: (one) => one.edge },
    { name: "Tools", class: "num", cell: (one) => labelledNumber(one.tools, "tools") },
    { name: "Open", class: "num", cell: (one) => labelledNumber(one.open_calls, "open") },
    { name: "Succeeded", class: "num", cell: (one) => labelledNumber(one.succeeded, "succeeded") },
    { name: "Failed", class: "num", cell: (one) => labelledNumber(one.failed, "failed") },
    { name: "Note", class: "small muted wide", cell: (one) => visible(one.note ?? "") },
  ], sorted.slice(0, most));
}

function labelledNumber(value, name) {
  if (!value) return h("span", { class: "muted zero" }, "0");
  return [count(value), h("span", { class: "on-card muted" }, ` ${name}`)];
}

function healthOf(agent) {
  const is_well = agent.state !== "ready" || !agent.health || agent.health === "ok";
  return is_well ? stateTag(agent.state) : h("span", { class: "state wait" }, words(agent.health));
}

export function show(root, given, parameters, signal) {
  if (given[0]) {
    showAgent(root, given[0], signal);
    return;
  }
  let wanted = parameters.get("search") ?? "";
  let most = PAGE;
  const rows = h("div", { class: "sheet" });
  const foot = h("div", { style: { "margin-top": "12px" } });
  const title = h("span", { class: "muted" });
  const draw = () => {
    const all = [...state.agents.values()];
    const found = all.filter((one) => `${one.agent_id} ${one.edge} ${one.state} ${one.health ?? ""}`.toLowerCase().includes(wanted.toLowerCase()));
    say(title, plural(all.length, "agent"));
    fill(rows, all.length && !found.length ? empty("No agent matches.") : agentRows(found, most));
    fill(foot, found.length > most ? h("button", { type: "button", on: { click: () => { most += PAGE; draw(); } } }, `${count(found.length - most)} more`) : null);
  };
  fill(root, heading("Agents", title),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      labelled("Search", h("input", { type: "search", value: wanted, on: { input: (event) => { wanted = event.target.value; most = PAGE; draw(); } } }), { class: "grow" })),
    rows, foot);
  const soon = throttled(draw, 500);
  const end = on("agents", soon);
  signal.addEventListener("abort", () => { end(); soon.stop(); });
  draw();
}

// -- one agent ---------------------------------------------------------------------------------------------------------

function showAgent(root, agent_id, signal) {
  const place = h("div");
  const signIn = h("div");
  const log = h("pre", { class: "code", tabindex: "0", role: "log", aria: { label: "Log" } });
  const tools = h("div", { class: "sheet" });
  const readLog = () => get(query(`/v1/agents/${part(agent_id)}/logs`, { lines: LOG_LINES }), { signal }).then(
    ({ lines }) => {
      sayToTheEnd(log, lines.length ? visible(lines.join("\n")) : "It has printed nothing.");
    },
    (error) => error.name !== "AbortError" && fill(log, h("span", { class: "muted" }, error.message)));
  fill(root, place, signIn,
    h("section", null, h("div", { class: "head", style: { "margin-bottom": "8px" } }, h("h2", { style: { margin: "0" } }, "Log"),
      h("span", { class: "muted small" }, `the last ${LOG_LINES} lines, as they come`)), log),
    h("section", null, h("h2", null, "Tools"), tools));
  const draw = () => {
    const agent = state.agents.get(agent_id);
    if (!agent) fill(place, heading(agent_id), h("div", { class: "sheet" }, empty("No agent of this name is here.", h("a", { href: "#/agents" }, "All agents"))));
    else fill(place, agentHead(agent), h("section", { class: "sheet pad" }, agentFacts(agent)));
    keyed(signIn, signedOut().filter((one) => one.agent_id === agent_id), (one) => one.agent_id, (one) => signInCard(one.agent_id), () => {});
  };
  const soon = throttled(draw, 300);
  const end = on("agents", soon);
  const again = setInterval(() => document.hidden || readLog(), LOG_AGAIN_MS);
  signal.addEventListener("abort", () => { end(); soon.stop(); clearInterval(again); });
  draw();
  readLog();
  get(query("/v1/tools", { limit: 1000, after: `${agent_id}/` }), { signal }).then(({ tools: all }) => {
    const own = all.filter((one) => one.tool_id.startsWith(`${agent_id}/`));
    fill(tools, own.length ? table("Tools", [
      { name: "Tool", class: "wide", cell: (one) => toolName(one.tool_id, `#/tools/${part(one.tool_id)}`) },
      { name: "Status", cell: (one) => stateTag(one.status) },
      { name: "What it does", class: "small wide", cell: (one) => visible(one.description) },
    ], own) : empty("It offers no tools."));
  }, (error) => error.name !== "AbortError" && fill(tools, trouble(error)));
}

function agentHead(agent) {
  const steer = (action, name, props) => {
    const button = h("button", { type: "button", ...props, on: { click: async () => {
      if (await doing(button, () => post(`/v1/agents/${part(agent.agent_id)}/${action}`))) notify(`${name}: ${agent.agent_id}`);
    } } }, name);
    return button;
  };
  return h("div", { class: "head" }, h("h1", { class: "mono" }, visible(agent.agent_id)), healthOf(agent),
    agent.steerable ? h("span", { class: "push row" }, steer("restart", "Restart"), agent.state === "stopped" ? steer("start", "Start", { class: "primary" }) : steer("stop", "Stop", { class: "danger" })) : null);
}

function agentFacts(agent) {
  return facts([
    ["Speaks", agent.edge], ["Version", visible(agent.version ?? "")], ["Process", agent.pid], ["Restarts", agent.restarts || null],
    ["Isolation", agent.isolation], ["Permissions", agent.permissions?.length ? visible(agent.permissions.join(", ")) : null],
    ["Calls", [h("a", { href: `#/calls?tool=${part(`${agent.agent_id}/`)}` }, "of its tools"), ", ", h("a", { href: `#/calls?caller=${part(agent.agent_id)}` }, "that it made")]],
    ["Open calls", count(agent.open_calls ?? 0)], ["Succeeded", count(agent.succeeded ?? 0)], ["Failed", count(agent.failed ?? 0)], ["Note", visible(agent.note ?? "")],
  ]);
}
