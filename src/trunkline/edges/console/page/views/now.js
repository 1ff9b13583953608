// What happens at this moment: figures, two drawings, calls in flight with what they show, faults, agents.

import { post } from "../api.js";
import { drawLatency, drawThroughput } from "../charts.js";
import { fill, h, keyed, say, sayToTheEnd, throttled } from "../dom.js";
import { SECONDS } from "../figures.js";
import { clock, count, duration } from "../format.js";
import { doing, empty, heading, stateTag, toolName } from "../parts.js";
import { on, refetch, state } from "../store.js";
import { visible } from "../danger.js";
import { agentRows } from "./agents.js";

// More would not be read; the view Calls has them all.
const MOST_OPEN = 40;
const MOST_FAULTS = 12;
const REDRAW_MS = 250;
const LASTING_MS = 300;
// Counts of single agents are looked up again at most this often while calls end.
const RECOUNT_MS = 3000;

export function show(root, _words, _parameters, signal) {
  const figures = figureStrip();
  const charts = chartPair();
  const open = h("div", { class: "sheet" });
  const openTitle = h("h2", null, "Calls in flight");
  const faults = h("div", { class: "sheet" });
  const agents = h("div", { class: "sheet" });
  const agentsTitle = h("h2", null, "Agents");

  fill(root,
    heading("Now", h("span", { class: "muted", id: "waiting-note" })),
    h("section", null, figures.node),
    h("section", { class: "columns" }, charts.nodes),
    h("div", { class: "columns wide-left" },
      h("section", null, openTitle, open),
      h("section", null, h("h2", null, "Latest faults"), faults)),
    h("section", null, agentsTitle, agents),
  );

  const drawOpen = () => {
    // The oldest first, and only those that last: what is over in a moment would make the list jump.
    const all = [...state.open.values()].filter((one) => one.output || Date.now() - one.at > LASTING_MS);
    const running = [...all.filter((one) => one.status !== "waiting_approval"), ...all.filter((one) => one.status === "waiting_approval")];
    say(openTitle, running.length ? `Calls in flight (${count(running.length)})` : "Calls in flight");
    if (!running.length) {
      fill(open, empty("No call is running.", h("a", { href: "#/tools" }, "Try a tool"), h("a", { href: "#/spaces" }, "Run a command in a space"), "or let an agent work: what it calls shows up here."));
      return;
    }
    if (open.firstElementChild && !open.firstElementChild.dataset.key) fill(open);
    keyed(open, running.slice(0, MOST_OPEN), (one) => one.call_id, openRow, updateOpenRow);
  };
  const drawFaults = () => {
    if (!state.faults.length) {
      fill(faults, empty("Nothing went wrong."));
      return;
    }
    fill(faults, state.faults.slice(0, MOST_FAULTS).map(faultRow));
  };
  const drawAgents = () => {
    const list = [...state.agents.values()];
    const ready = list.filter((one) => one.state === "ready").length;
    say(agentsTitle, list.length ? `Agents (${ready} of ${count(list.length)} ready)` : "Agents");
    fill(agents, agentRows(list, 12), list.length > 12 ? h("p", { class: "pad" }, h("a", { href: "#/agents" }, `All ${count(list.length)} agents`)) : null);
  };
  const drawFigures = () => {
    figures.draw();
    charts.draw();
  };

  const [soonOpen, soonFaults, soonAgents] = [drawOpen, drawFaults, drawAgents].map((draw) => throttled(draw, REDRAW_MS));
  const recount = throttled(() => !document.hidden && refetch.agents(), RECOUNT_MS);
  const ends = [on("entries:call", recount), on("open", soonOpen), on("faults", soonFaults), on("agents", soonAgents), on("counts", drawFigures), on("questions", drawFigures)];
  const tick = setInterval(() => {
    drawFigures();
    drawOpen();
  }, 1000);
  const resized = throttled(charts.draw, 100);
  addEventListener("resize", resized);
  signal.addEventListener("abort", () => {
    clearInterval(tick);
    removeEventListener("resize", resized);
    for (const end of ends) end();
    for (const one of [soonOpen, soonFaults, soonAgents, resized, recount]) one.stop();
  });
  drawOpen();
  drawFaults();
  drawAgents();
  drawFigures();
}

function figureStrip() {
  const cells = ["waiting for you", "in flight", "calls a second", "median run time", "95 % ran within", "agents ready"].map((name) => {
    const value = h("b", null, "–");
    return { value, node: h("div", { class: "figure" }, value, h("span", null, name)) };
  });
  cells[0].node = h("a", { class: "figure", href: "#/approvals", style: { "text-decoration": "none", color: "inherit" } }, cells[0].value, h("span", null, "waiting for you"));
  const draw = () => {
    const now = state.figures.now(Date.now());
    const agents = [...state.agents.values()];
    say(cells[0].value, count(state.questions.size));
    cells[0].node.classList.toggle("wait", state.questions.size > 0);
    say(cells[1].value, count(state.open.size));
    say(cells[2].value, now.rate >= 10 ? count(Math.round(now.rate)) : now.rate.toFixed(1));
    say(cells[3].value, now.median === null ? "–" : duration(now.median));
    say(cells[4].value, now.high === null ? "–" : duration(now.high));
    say(cells[5].value, `${count(agents.filter((one) => one.state === "ready").length)} / ${count(agents.length)}`);
  };
  return { node: h("div", { class: "figures" }, cells.map((one) => one.node)), draw };
}

function chartPair() {
  const make = (title, label) => {
    const scale = h("span");
    const canvas = h("canvas", { role: "img", aria: { label } });
    const node = h("div", { class: "sheet chart" }, h("p", { class: "top" }, h("b", null, title), scale), canvas,
      h("p", { class: "top", aria: { hidden: "true" } }, h("span", null, `${SECONDS / 60} min ago`), h("span", null, "now")));
    return { scale, canvas, node };
  };
  const rate = make("Calls that ended, by second", "Calls that ended in each second of the last two minutes; failed ones in red");
  const time = make("How long they ran, questions left out", "Median and 95th percentile of how long calls ran, in each second of the last two minutes; time in which a person was asked is left out");
  const draw = () => {
    const series = state.figures.series(Date.now());
    say(rate.scale, `top: ${count(drawThroughput(rate.canvas, series))}`);
    say(time.scale, `median, 95th percentile; top: ${duration(drawLatency(time.canvas, series))}`);
  };
  return { nodes: [rate.node, time.node], draw };
}

function openRow(call) {
  const cancel = h("button", { type: "button", class: "quiet", on: { click: () => doing(cancel, () => post(`/v1/calls/${call.call_id}/cancel`, { reason: "canceled on the console" })) } },
    "Cancel", h("span", { class: "sr" }, ` ${call.tool_id}`));
  return h("article", { class: "open-call", data: { call: call.call_id } },
    h("div", { class: "row" },
      toolName(call.tool_id, `#/calls/${call.call_id}`),
      h("span", { class: "muted small" }, `by ${visible(call.caller)}`),
      h("span", { class: "push row" }, h("span", { class: "how" }), h("span", { class: "muted small nowrap took" }), cancel)),
    h("pre", { class: "output", hidden: true, tabindex: "0", aria: { label: "What it showed" }, role: "log" }));
}

function updateOpenRow(row, call) {
  const how = row.querySelector(".how");
  if (how.dataset.status !== call.status) {
    how.dataset.status = call.status;
    const link = call.status === "waiting_approval" ? h("a", { href: "#/approvals" }, stateTag(call.status)) : stateTag(call.status);
    fill(how, link);
  }
  const output = row.querySelector(".output");
  output.hidden = !call.output;
  sayToTheEnd(output, visible(call.output.slice(-4000)));
  say(row.querySelector(".took"), duration(Date.now() - call.at));
}

function faultRow(fault) {
  const code = h("span", { class: "mono" }, fault.code);
  return h("article", { class: "fault" },
    h("div", { class: "row" }, fault.href ? h("a", { href: fault.href }, code) : code, fault.times > 1 ? h("span", { class: "tag bad" }, `${count(fault.times)} times`) : null, h("span", { class: "push muted small nowrap" }, clock(fault.at))),
    h("p", { class: "small" }, fault.where ? [h("span", { class: "mono" }, visible(fault.where)), fault.text ? ": " : ""] : null, visible(fault.text)));
}

