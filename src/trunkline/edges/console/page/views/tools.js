// Tools: what can be called. One tool has a form made from its schema, its output as it comes, and a way to cancel.

import { followCall, get, part, post, query } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, say, throttled } from "../dom.js";
import { count, duration, plural, progressText } from "../format.js";
import { empty, facts, heading, labelled, notify, stateTag, table, toolName, trouble, valueBlock } from "../parts.js";
import * as form from "../schema_form.js";
import { on } from "../store.js";

const PAGE = 1000;
const SHOWN = 100;
const MAX_OUTPUT_CHARS = 100_000;

async function allTools(signal) {
  const found = [];
  let after = "";
  do {
    const page = await get(query("/v1/tools", { limit: PAGE, after }), { signal });
    found.push(...page.tools);
    after = page.next;
  } while (after);
  return found;
}

export function show(root, words, parameters, signal) {
  if (words[0]) {
    // An id has a slash, which may have come as it is.
    showTool(root, words.join("/"), signal);
    return;
  }
  let all = [];
  let wanted = parameters.get("search") ?? "";
  let most = SHOWN;
  const title = h("span", { class: "muted" });
  const rows = h("div", { class: "sheet" }, h("p", { class: "pad muted" }, "Looking …"));
  const foot = h("div", { style: { "margin-top": "12px" } });
  const draw = () => {
    const found = all.filter((one) => `${one.tool_id} ${one.description} ${(one.tags ?? []).join(" ")}`.toLowerCase().includes(wanted.toLowerCase()));
    say(title, plural(all.length, "tool"));
    fill(rows, !all.length ? empty("No tool is offered.", "Tools come with agents:", h("code", null, "trunkline up --demo")) : !found.length ? empty("No tool matches.") : table("Tools", [
      { name: "Tool", class: "wide", cell: (one) => toolName(one.tool_id, `#/tools/${part(one.tool_id)}`) },
      { name: "Status", cell: (one) => stateTag(one.status) },
      { name: "Kind", class: "side nowrap small", cell: kindOf },
      { name: "What it does", class: "small wide", cell: (one) => visible(one.description) },
    ], found.slice(0, most)));
    fill(foot, found.length > most ? h("button", { type: "button", on: { click: () => { most += SHOWN; draw(); } } }, `${count(found.length - most)} more`) : null);
  };
  const read = async () => {
    try {
      all = await allTools(signal);
      draw();
    } catch (error) {
      if (error.name !== "AbortError") fill(rows, h("div", { class: "pad" }, trouble(error)));
    }
  };
  fill(root, heading("Tools", title),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      labelled("Search", h("input", { type: "search", value: wanted, on: { input: (event) => { wanted = event.target.value; most = SHOWN; draw(); } } }), { class: "grow" })),
    rows, foot);
  const soon = throttled(read, 1000);
  const end = on("tools", soon);
  signal.addEventListener("abort", () => { end(); soon.stop(); });
  read();
}

function kindOf(tool) {
  return tool.side_effects === false ? h("span", { class: "tag" }, "only reads") : h("span", { class: "tag wait" }, "changes things");
}

// -- one tool ----------------------------------------------------------------------------------------------------------

async function showTool(root, tool_id, signal) {
  fill(root, heading("Tool"), h("p", { class: "muted" }, "Looking …"));
  let tool;
  try {
    // The page of tools that begins just before it.
    const { tools } = await get(query("/v1/tools", { limit: 1, after: before(tool_id) }), { signal });
    tool = tools.find((one) => one.tool_id === tool_id) ?? (await allTools(signal)).find((one) => one.tool_id === tool_id);
  } catch (error) {
    if (error.name !== "AbortError") fill(root, heading("Tool"), trouble(error));
    return;
  }
  if (!tool) {
    fill(root, heading("Tool"), h("div", { class: "sheet" }, empty("No tool of this name is offered.", h("a", { href: "#/tools" }, "All tools"))));
    return;
  }
  const trial = new Trial(tool, signal);
  fill(root,
    h("div", { class: "head" }, h("h1", null, toolName(tool.tool_id)), stateTag(tool.status), kindOf(tool)),
    h("p", { style: { "margin-bottom": "18px", "max-width": "75ch" } }, visible(tool.description)),
    h("div", { class: "columns" },
      h("section", null, h("h2", null, "Try it"), trial.form),
      h("section", null, h("h2", null, "What comes of it"), trial.outcome)),
    h("section", null, h("h2", null, "Definition"), h("div", { class: "sheet pad stack" }, facts([
      ["Capabilities", tool.capabilities?.join(", ")], ["Needs permissions", tool.required_permissions?.join(", ")],
      ["Needs a directive", tool.requires_directive ? "yes: trunkline directive new" : null], ["Tags", tool.tags?.join(", ")],
      ["Fingerprint", h("span", { class: "hash" }, tool.fingerprint)], ["Calls", h("a", { href: `#/calls?tool=${part(tool.tool_id)}` }, "of this tool")]]),
      h("details", null, h("summary", null, "Schema of its input"), valueBlock(tool.input_schema)),
      tool.output_schema ? h("details", null, h("summary", null, "Schema of its output"), valueBlock(tool.output_schema)) : null)));
}

/** A name that sorts right before this one. */
function before(tool_id) {
  const last = tool_id.charCodeAt(tool_id.length - 1);
  return tool_id.slice(0, -1) + (last > 33 ? `${String.fromCharCode(last - 1)}~` : "");
}

class Trial {
  constructor(tool, signal) {
    this._tool = tool;
    this._signal = signal;
    this._fields = form.fields(tool.input_schema);
    this._inputs = new Map();
    this._problems = h("div", { role: "alert" });
    this._run = h("button", { type: "submit", class: "primary" }, "Call");
    this._cancel = h("button", { type: "button", class: "danger", hidden: true, on: { click: () => this._cancelCall() } }, "Cancel");
    this._call_id = null;
    this.outcome = h("div", { class: "sheet pad stack" }, h("p", { class: "muted" }, "Nothing was called yet."));
    this.form = h("form", { class: "sheet pad stack", on: { submit: (event) => { event.preventDefault(); this._submit(); } } },
      this._fields.length ? this._fields.map((one) => this._field(one)) : h("p", { class: "muted" }, "It takes no input."),
      this._problems, h("div", { class: "row" }, this._run, this._cancel));
  }

  _field(field) {
    const id = `field-${this._inputs.size}`;
    const shared = { id, aria: field.description ? { describedby: `${id}-hint` } : undefined };
    let control;
    if (field.kind === "choice") {
      control = h("select", shared, field.required && field.start !== "" ? null : h("option", { value: "" }, field.required ? "choose" : "(not given)"),
        field.options.map((one, at) => h("option", { value: String(at), selected: one === field.start }, typeof one === "string" ? visible(one) : JSON.stringify(one))));
    } else if (field.kind === "switch") control = h("input", { ...shared, type: "checkbox", checked: field.start });
    else if (field.kind === "lines") control = h("textarea", { ...shared, rows: "3", value: field.start });
    else if (field.kind === "json") control = h("textarea", { ...shared, rows: field.name === "" ? "8" : "4", value: field.start, spellcheck: "false", placeholder: "JSON" });
    else control = h("input", { ...shared, type: "text", inputmode: field.kind === "line" ? null : "decimal", value: field.start, autocomplete: "off" });
    this._inputs.set(field.name, control);
    const bounds = [field.min !== undefined ? `from ${field.min}` : "", field.max !== undefined ? `to ${field.max}` : ""].filter(Boolean).join(" ");
    return h("div", { class: "field" },
      h("label", { for: id }, h("span", { class: "mono" }, visible(field.name) || "input"), h("span", { class: "muted small" }, `  ${field.kind === "line" || field.kind === "lines" ? "text" : field.kind === "switch" ? "yes or no" : field.kind} ${bounds}${field.required ? ", needed" : ""}`)),
      control, field.description ? h("span", { class: "hint", id: `${id}-hint` }, visible(field.description)) : null);
  }

  async _submit() {
    const entries = new Map([...this._inputs].map(([name, control]) => [name, control.type === "checkbox" ? control.checked : control.value]));
    const { input, problems } = form.input(this._fields, entries);
    fill(this._problems, problems?.map((one) => h("p", { class: "trouble" }, one)));
    if (problems) return;
    const status = h("div", { class: "row" }, stateTag("running"));
    const output = h("pre", { class: "output tall", tabindex: "0", role: "log", aria: { label: "What it shows" }, hidden: true });
    const result = h("div");
    fill(this.outcome, status, output, result);
    this._run.disabled = true;
    const began = performance.now();
    let text = "";
    try {
      await followCall({ tool_id: this._tool.tool_id, input }, (name, data) => {
        if (name === "accepted") {
          this._call_id = data.call_id;
          this._cancel.hidden = !this._tool.capabilities?.includes("cancellation");
          fill(status, stateTag("running"), h("a", { class: "small", href: `#/calls/${data.call_id}` }, "Its story"));
        } else if (name === "progress") {
          const piece = progressText(data.data);
          const is_text = data.channel === "stdout" || data.channel === "stderr" || data.channel === "tokens";
          text = (text + (is_text || !text ? piece : `\n${piece}`)).slice(-MAX_OUTPUT_CHARS);
          output.hidden = false;
          output.textContent = visible(text);
          output.scrollTop = output.scrollHeight;
        } else if (name === "outcome") {
          fill(status, stateTag(data.status), h("span", { class: "muted small" }, duration(performance.now() - began)), h("a", { class: "small", href: `#/calls/${data.call_id}` }, "Its story"));
          fill(result, data.error ? h("p", { class: "trouble" }, h("span", { class: "mono" }, visible(data.error.code)), ": ", visible(data.error.message)) : null,
            data.output !== undefined ? valueBlock(data.output, "Output") : null);
        } else if (name === "waiting_approval") {
          fill(status, stateTag("waiting_approval"), h("a", { class: "button", href: `#/approvals/${data.approval_id}` }, "Answer its question"), h("a", { class: "small", href: `#/calls/${data.call_id}` }, "Its story"));
        }
      }, this._signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.outcome, h("div", { class: "row" }, stateTag("refused"), h("span", { class: "mono small" }, error.code)), trouble(error));
    }
    this._run.disabled = false;
    this._cancel.hidden = true;
    this._call_id = null;
  }

  async _cancelCall() {
    try {
      await post(`/v1/calls/${part(this._call_id)}/cancel`, { reason: "canceled on the console" });
    } catch (error) {
      notify(error.message, true);
    }
  }
}
