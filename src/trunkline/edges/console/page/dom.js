// Elements from values. The one place that makes nodes: text is always a text node, never markup, so nothing that an
// agent wrote can become part of the page's structure.

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

/** Append children: nodes, texts, numbers, lists of them; nothing for null and false. */
export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
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

/**
 * Bring the children of `node` in line with `items`: one element for each key, made once by `make(item)` and brought up
 * to date by `update(element, item)`. What somebody has typed or focused inside an element that stays is kept.
 */
export function keyed(node, items, key, make, update) {
  const had = new Map(Array.from(node.children, (child) => [child.dataset.key, child]));
  let place = node.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let element = had.get(name);
    if (element) had.delete(name);
    else {
      element = make(item);
      element.dataset.key = name;
    }
    update?.(element, item);
    if (element === place) place = place.nextElementSibling;
    else node.insertBefore(element, place);
  }
  for (const gone of had.values()) gone.remove();
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
