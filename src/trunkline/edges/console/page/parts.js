// Pieces that several views show: a state, a tool's name, a chain of callers, a block of JSON, a difference, an empty
// place that says what to do next, a short notice. Made of `dom.h` only.

import { signs, visible } from "./danger.js";
import { hunks, lines } from "./diff.js";
import { add, fill, h } from "./dom.js";
import { failedWith, pretty, tone, toolParts, words } from "./format.js";

/** A state as colour and word. */
export function stateTag(state) {
  return h("span", { class: `state ${tone(state)}` }, words(state));
}

/** How a call stands. One that succeeded and ran a command that did not is no success to who looks at it. */
export function callTag(call, tool_id = call.tool_id) {
  const code = failedWith(tool_id, call);
  if (code === null) return stateTag(call.status);
  return h("span", { class: "state bad", title: "The call was carried out; a command that it ran did not succeed." }, `ended with ${code}`);
}

/** A tool's id with its agent's part dimmed; a link if it leads somewhere. */
export function toolName(tool_id, href) {
  const [agent, name] = toolParts(tool_id);
  const inside = [agent ? h("span", { class: "of" }, `${visible(agent)}/`) : null, visible(name)];
  return href ? h("a", { class: "tool", href }, inside) : h("span", { class: "tool" }, inside);
}

/** Who asks through whom, in order; the last one is the tool. */
export function chainOf(callers, tool_id) {
  const steps = [...callers.map((one) => h("span", { class: "mono" }, visible(one))), tool_id ? toolName(tool_id) : null];
  const shown = steps.filter(Boolean).flatMap((step, at) => (at ? [h("span", { class: "arrow", aria: { hidden: "true" } }, "→"), step] : [step]));
  return h("p", { class: "chain" }, shown);
}

/** A text with what is dangerous in it marked, by what kind of text it is (`danger.kindOf`). */
export function marked(text, kind) {
  const found = [];
  let at = 0;
  for (const { start, end, why } of signs(text, kind)) {
    found.push(visible(text.slice(at, start)), h("mark", { title: why }, visible(text.slice(start, end))));
    at = end;
  }
  return [...found, visible(text.slice(at))];
}

/** A value as JSON, or a text as it is. */
export function valueBlock(value, label) {
  const text = pretty(value);
  return h("pre", { class: "code", tabindex: text.length > 400 ? "0" : null, aria: label ? { label } : undefined, role: label ? "group" : null }, visible(text));
}

/** A difference of two texts. */
export function diffBlock(before, after, label = "Difference") {
  const shown = hunks(lines(before, after));
  if (!shown.length) return h("p", { class: "muted" }, "No difference.");
  return h("div", { class: "diff", tabindex: "0", role: "group", aria: { label } }, shown.map((line) =>
    line.kind === "skipped"
      ? h("div", { class: "skipped" }, `${line.count} lines as before`)
      : h("div", { class: line.kind }, visible(line.text) || "\u00a0"),
  ));
}

/** A place where nothing is, and what to do about it. */
export function empty(what, ...next) {
  return h("div", { class: "empty" }, h("strong", null, what), next.map((one) => (one instanceof Node ? one : h("span", null, one))));
}

export function trouble(error) {
  return h("p", { class: "trouble", role: "alert" }, error.message ?? String(error));
}

/** A list of facts: pairs of a name and a value; those without a value are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h("dl", { class: "facts" }, shown.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

export function heading(title, ...rest) {
  return h("div", { class: "head" }, h("h1", null, title), rest);
}

/** A table. `columns`: `{name, class, cell(row)}`; on a small screen its rows become cards. */
export function table(label, columns, rows) {
  const head = h("tr", null, columns.map((one) => h("th", { scope: "col", class: one.class?.includes("num") ? "num" : null }, one.name)));
  const body = h("tbody", null, rows.map((row) => h("tr", null, columns.map((one) => h("td", { class: one.class }, one.cell(row))))));
  return h("table", { class: "cards", aria: { label } }, h("thead", null, head), body);
}

/** One input with its label. */
export function labelled(text, control, props) {
  return h("label", props, text, control);
}

/** A short notice at the edge of the page: a text, or a list of texts and links. */
export function notify(text, is_bad = false) {
  const place = document.getElementById("notices");
  const note = h("p", { class: is_bad ? "bad" : null }, text);
  add(place, note);
  setTimeout(() => note.remove(), is_bad || note.querySelector("a") ? 9000 : 4500);
}

/** Do something with a button that rests meanwhile; what goes wrong is said. Whether it went well. */
export async function doing(button, act) {
  if (button) button.disabled = true;
  try {
    await act();
    return true;
  } catch (error) {
    notify(error.message ?? String(error), true);
    return false;
  } finally {
    if (button) button.disabled = false;
  }
}

/** Show what a request brings: `make(data)` in place of a word that it is on its way. */
export async function shown(place, request, make) {
  fill(place, h("p", { class: "muted" }, "Looking …"));
  try {
    fill(place, make(await request));
  } catch (error) {
    if (error.name !== "AbortError") fill(place, trouble(error));
  }
}
