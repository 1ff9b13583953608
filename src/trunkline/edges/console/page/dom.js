// Elements from values. The one place that makes nodes: text is always a text node, never markup, so nothing that an
// agent wrote can become part of the page's structure.

import { isExact } from "./exact.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "rect", "circle", "polyline", "text", "title", "g"]);
// Where a link may lead: into this page, or to a path of the exchange itself.
const OWN_ADDRESS = /^(#|\/(?!\/))/;

/** An element. `props`: `class`, `on` (events), `data`, `aria`, properties that inputs need, and plain attributes. */
export function h(tag, props, ...children) {
  const node = SVG_TAGS.has(tag) && tag !== "title" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "aria") for (const [key, said] of Object.entries(value)) node.setAttribute(`aria-${key}`, said);
    else if (name === "style") for (const [key, said] of Object.entries(value)) node.style.setProperty(key, said);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else if (name === "href" && !OWN_ADDRESS.test(String(value))) node.setAttribute("data-address", String(value));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

/** A link that leaves the exchange, in a page of its own; only for an address that a person asked the exchange for. */
export function linkOut(address, ...children) {
  if (!["https:", "http:"].includes(new URL(address).protocol)) throw new Error("This is no address that can be opened.");
  const node = h("a", { target: "_blank", rel: "noopener noreferrer" }, ...children);
  node.setAttribute("href", address);
  return node;
}

/** Append children: nodes, texts, numbers, lists of them; nothing for null and false. */
export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : document.createTextNode(isExact(child) ? child.rawJSON : String(child)));
  }
  return node;
}

/** Replace what is in a node. */
export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

/** Change a text only if it is another one: selections and screen readers are left alone. */
export function say(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
  return node;
}

/** The same for a text that grows: its end stays in sight, unless somebody reads in it. */
export function sayToTheEnd(node, text) {
  say(node, text);
  if (!node.matches(":hover, :focus")) node.scrollTop = node.scrollHeight;
}

/**
 * Bring the children of `node` in line with `items`: one element for each key, made once by `make(item)` and brought up
 * to date by `update(element, item)`. What somebody has typed or focused inside an element that stays is kept.
 */
export function keyed(node, items, key, make, update) {
  const wanted = new Map(items.map((item) => [String(key(item)), item]));
  const had = new Map();
  for (const child of [...node.children]) {
    if (wanted.has(child.dataset.key)) had.set(child.dataset.key, child);
    else child.remove();
  }
  let place = node.firstElementChild;
  for (const [name, item] of wanted) {
    const element = had.get(name) ?? make(item);
    element.dataset.key = name;
    // An element that is moved loses its place in a text that scrolls: those that stand right are not touched.
    if (element === place) place = place.nextElementSibling;
    else node.insertBefore(element, place);
    update?.(element, item);
  }
}

/** Run `act` at most once in each frame and at least `every_ms` apart, however often it is asked for. */
export function throttled(act, every_ms = 0) {
  let timer = null;
  let last = -Infinity;
  const run = () => {
    timer = null;
    last = performance.now();
    act();
  };
  const ask = () => {
    if (timer !== null) return;
    timer = setTimeout(run, Math.max(0, every_ms - (performance.now() - last)));
  };
  ask.stop = () => {
    clearTimeout(timer);
    timer = null;
  };
  return ask;
}
