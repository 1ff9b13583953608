// All calls, newest first: searched, filtered, page by page. `#/calls/ID` is one call (`call.js`).

import { get, query } from "../api.js";
import { visible } from "../danger.js";
import { add, fill, h, say, throttled } from "../dom.js";
import { brief, bytes, clock, duration, moment, shortId } from "../format.js";
import { callTag, empty, heading, labelled, table, toolName, trouble } from "../parts.js";
import { on } from "../store.js";
import { showCall } from "./call.js";

const PAGE = 50;
const STATUSES = ["", "running", "waiting_approval", "succeeded", "failed", "canceled", "unknown"];
const FILTERS = ["search", "status", "tool", "caller", "from", "to"];

export function show(root, words, parameters, signal) {
  if (words[0]) {
    showCall(root, words[0], signal);
    return;
  }
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) ?? ""]));
  const rows = h("div", { class: "sheet" });
  const foot = h("div", { class: "row", style: { "margin-top": "12px" } });
  const fresh = h("button", { type: "button", class: "quiet", hidden: true }, "Show newer calls");
  let next = null;
  let reading = null;

  const read = async (is_more) => {
    reading?.abort();
    reading = new AbortController();
    const stop = AbortSignal.any([signal, reading.signal]);
    fresh.hidden = true;
    try {
      const page = await get(query("/v1/calls", { ...asked(wanted), limit: PAGE, before: is_more ? next : null }), { signal: stop });
      next = page.next;
      if (is_more) add(rows.querySelector("tbody"), [...callTable(page.calls).querySelectorAll("tbody tr")]);
      else fill(rows, page.calls.length ? callTable(page.calls) : nothing(wanted));
      fill(foot, next ? h("button", { type: "button", on: { click: () => read(true) } }, "Older calls") : null,
        h("span", { class: "muted small" }, page.calls.length ? `${rows.querySelectorAll("tbody tr").length} shown` : ""));
    } catch (error) {
      if (error.name !== "AbortError") fill(rows, h("div", { class: "pad" }, trouble(error)));
    }
  };
  const again = throttled(() => {
    const given = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    history.replaceState(null, "", given.size ? `#/calls?${given}` : "#/calls");
    read(false);
  }, 200);
  const change = (name) => (event) => {
    wanted[name] = event.target.value.trim();
    again();
  };
  const text = (name, label, props = {}) =>
    labelled(label, h("input", { type: "search", value: wanted[name], maxlength: "256", on: { input: change(name) }, ...props.input }), props.label);

  fill(root, heading("Calls", h("span", { class: "push" }, fresh)),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      text("search", "Search", { label: { class: "grow" }, input: { placeholder: "words of input, output, tool, caller", name: "search" } }),
      labelled("Status", h("select", { on: { change: change("status") } }, STATUSES.map((one) =>
        h("option", { value: one, selected: one === wanted.status }, one ? one.replaceAll("_", " ") : "any")))),
      h("details", { class: "more-filters", open: innerWidth > 860 || Boolean(wanted.tool || wanted.caller || wanted.from || wanted.to) },
        h("summary", null, "More filters"), text("tool", "Tool"), text("caller", "Caller"),
        labelled("From", h("input", { type: "datetime-local", value: wanted.from, on: { change: change("from") } })),
        labelled("To", h("input", { type: "datetime-local", value: wanted.to, on: { change: change("to") } })))),
    rows, foot);
  const has_filter = () => Object.values(wanted).some(Boolean);
  const follow = throttled(() => {
    if (!has_filter() && scrollY < 40 && rows.querySelectorAll("tbody tr").length <= PAGE) read(false);
    else say(fresh, "Show newer calls").hidden = false;
  }, 1000);
  fresh.addEventListener("click", () => read(false));
  const end = on("entries:call", follow);
  signal.addEventListener("abort", () => {
    end();
    follow.stop();
    again.stop();
    reading?.abort();
  });
  fill(rows, h("p", { class: "pad muted" }, "Looking …"));
  read(false);
}

/** The filters as the exchange wants them. */
function asked(wanted) {
  const time = (value) => (value ? new Date(value).toISOString() : "");
  return { ...wanted, from: time(wanted.from), to: time(wanted.to) };
}

function nothing(wanted) {
  if (Object.values(wanted).some(Boolean)) return empty("No call matches.", h("a", { href: "#/calls", on: { click: () => setTimeout(() => dispatchEvent(new HashChangeEvent("hashchange"))) } }, "All calls"));
  return empty("No call was made yet.", h("a", { href: "#/tools" }, "Try a tool"), "or from a terminal:", h("code", null, "trunkline tools"));
}

/** From its begin to its end; a call that never began took no time. */
export function tookMs(call) {
  return call.started_at && call.finished_at ? moment(call.finished_at) - moment(call.started_at) : null;
}

function whatCame(call) {
  if (call.error) return h("span", { class: "cut" }, visible(`${call.error.code}: ${call.error.message}`));
  if (call.output_bytes) return `${bytes(call.output_bytes)} of output`;
  return call.output === undefined ? "" : h("span", { class: "cut" }, visible(brief(call.output)));
}

/** Calls as a table; the call's link is its tool. */
export function callTable(calls) {
  return table("Calls", [
    { name: "Tool", class: "wide", cell: (call) => toolName(call.tool_id, `#/calls/${call.call_id}`) },
    { name: "Status", cell: (call) => callTag(call) },
    { name: "Caller", class: "small caller", cell: (call) => visible(call.caller) },
    { name: "What happened", class: "small muted wide", cell: whatCame },
    { name: "Took", class: "num", cell: (call) => duration(tookMs(call)) },
    { name: "Time", class: "num muted side", cell: (call) => clock(call.accepted_at ?? call.started_at) },
    { name: "Entry", class: "num muted not-on-card", cell: (call) => shortId(call.call_id) },
  ], calls);
}

