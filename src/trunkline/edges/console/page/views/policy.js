// The rules in force in the order in which they are tried, and what would happen if somebody called something.

import { get, part, post } from "../api.js";
import { visible } from "../danger.js";
import { fill, h } from "../dom.js";
import { parse } from "../exact.js";
import { conditionText, pretty } from "../format.js";
import { doing, empty, facts, heading, labelled, stateTag, table, trouble } from "../parts.js";
import { on, state } from "../store.js";

export function show(root, _words, parameters, signal) {
  const rows = h("div", { class: "sheet" }, h("p", { class: "pad muted" }, "Looking …"));
  const version = h("span", { class: "muted small" });
  const read = async () => {
    try {
      const policy = await get("/v1/policy", { signal });
      fill(version, "version ", h("span", { class: "hash" }, policy.version));
      fill(rows, policy.rules.length ? ruleTable(policy.rules, parameters.get("rule")) : empty("There are no rules: everything is denied."));
      rows.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
    } catch (error) {
      if (error.name !== "AbortError") fill(rows, h("div", { class: "pad" }, trouble(error)));
    }
  };
  fill(root, heading("Policy", version),
    h("section", null, h("h2", null, "What would happen if"), whatIf(parameters, signal)),
    h("section", null, h("h2", null, "Rules, the first that fits decides"), rows,
      h("p", { class: "muted small", style: { "margin-top": "8px" } }, "Rules of your own stand before the built-in ones, as ", h("code", null, "[[policy.rule]]"), " in ", h("code", null, "trunkline.toml"), ". What no rule names is denied.")));
  const end = on("entries:policy", read);
  signal.addEventListener("abort", end);
  read();
}

const onCard = (name) => h("span", { class: "on-card muted" }, `${name} `);

function ruleTable(rules, wanted) {
  const shown = table("Rules", [
    { name: "", class: "num muted", cell: (rule) => String(rules.indexOf(rule) + 1) },
    { name: "Decision", class: "side", cell: (rule) => stateTag(rule.decision) },
    { name: "Caller", class: "mono wide", cell: (rule) => [onCard("caller"), visible(rule.caller)] },
    { name: "Tool", class: "mono wide", cell: (rule) => [onCard("tool"), visible(rule.tool)] },
    { name: "Only if", class: "small wide", cell: conditions },
    { name: "Why", class: "small wide", cell: (rule) => [visible(rule.reason), " ", h("span", { class: "muted mono" }, visible(rule.id))] },
  ], rules);
  [...shown.querySelectorAll("tbody tr")].forEach((row, at) => {
    if (wanted && rules[at].id === wanted) row.setAttribute("aria-current", "true");
  });
  return shown;
}

const SAID = new Set(["id", "caller", "tool", "decision", "reason"]);

function conditionOf(name, value) {
  if (name === "input" && Array.isArray(value)) return value.map(conditionText).join(", ");
  return typeof value === "string" ? value : pretty(value);
}

function conditions(rule) {
  const others = Object.entries(rule).filter(([name]) => !SAID.has(name));
  return others.map(([name, value]) => h("div", null, h("span", { class: "muted" }, `${name.replaceAll("_", " ")}: `), visible(conditionOf(name, value))));
}

function whatIf(parameters, signal) {
  const callers = [...new Set(["operator", ...[...state.agents.values()].map((one) => `${one.edge}:${one.agent_id}`)])];
  const caller = h("input", { type: "text", value: parameters.get("caller") ?? "", placeholder: "agent:com.example.reporter", list: "callers", autocomplete: "off" });
  const tool = h("input", { type: "text", value: parameters.get("tool") ?? "", placeholder: "com.example.notes/append", list: "tool-ids", autocomplete: "off" });
  const input = h("textarea", { rows: "2", placeholder: '{"text": "hello"}', spellcheck: "false" });
  const toolList = h("datalist", { id: "tool-ids" });
  get("/v1/tools?limit=1000", { signal }).then(({ tools }) => fill(toolList, tools.map((one) => h("option", { value: one.tool_id }))), () => {});
  const answer = h("div", { role: "status" });
  const ask = h("button", { type: "submit", class: "primary" }, "Ask");
  const submit = (event) => {
    event.preventDefault();
    doing(ask, async () => {
      const body = { caller: caller.value.trim(), tool_id: tool.value.trim() };
      if (input.value.trim()) body.input = parse(input.value);
      fill(answer, verdict(await post("/v1/policy/check", body, { signal })));
    });
  };
  return h("form", { class: "sheet pad stack", on: { submit } },
    h("div", { class: "filters", style: { margin: "0" } }, labelled("this caller", caller, { class: "grow" }), labelled("called this tool", tool, { class: "grow" })),
    h("div", { class: "field" }, h("label", { class: "muted" }, "with this input (JSON, optional)", input)),
    h("datalist", { id: "callers" }, callers.map((one) => h("option", { value: one }))), toolList,
    h("div", { class: "row" }, ask), answer);
}

const MEANS = { allow: "It would be allowed.", deny: "It would be denied.", ask: "A person would be asked first." };

function verdict(found) {
  return h("div", { class: "stack", style: { gap: "8px" } },
    h("p", { class: "row" }, stateTag(found.decision), h("b", null, MEANS[found.decision] ?? "")),
    facts([
      ["Rule", h("a", { class: "mono", href: `#/policy?rule=${part(found.rule)}` }, found.rule)], ["Because", visible(found.reason ?? "")],
      ["Decided for", visible(found.caller ?? "")], ["Fault", found.fault ? visible(`${found.fault.code}: ${found.fault.message}`) : null],
    ]));
}
