// The frame of the page: signing in, which view is shown, the line's state, the title that says that somebody waits, the
// switch between light and dark. Views are modules with `show(root, words, parameters, signal)`; `signal` ends them.

import { forgetKey, get, hasKey, onSignedOut, remove, takeKey } from "./api.js";
import { visible } from "./danger.js";
import { fill, h, say } from "./dom.js";
import { is_possible as keeps_numbers } from "./exact.js";
import { plural } from "./format.js";
import { Line } from "./live.js";
import { empty, heading, notify } from "./parts.js";
import { on, state } from "./store.js";
import * as agents from "./views/agents.js";
import * as approvals from "./views/approvals.js";
import * as calls from "./views/calls.js";
import * as jobs from "./views/jobs.js";
import * as ledger from "./views/ledger.js";
import * as now from "./views/now.js";
import * as policy from "./views/policy.js";
import * as spaces from "./views/spaces.js";
import * as tools from "./views/tools.js";

const VIEWS = [
  ["now", "Now", now],
  ["approvals", "Approvals", approvals],
  ["calls", "Calls", calls],
  ["agents", "Agents", agents],
  ["tools", "Tools", tools],
  ["spaces", "Spaces", spaces],
  ["jobs", "Jobs", jobs],
  ["policy", "Policy", policy],
  ["ledger", "Ledger", ledger],
];
const THEME_KEPT_AS = "trunkline-console-theme";

const root = document.getElementById("view");
let shown = null;
let line = null;

// -- which view --------------------------------------------------------------------------------------------------------

function address() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const words = path.split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  return { name: words[0] || "now", words: words.slice(1).filter(Boolean), parameters: new URLSearchParams(search) };
}

function route() {
  if (!line) return;
  const { name, words, parameters } = address();
  const view = VIEWS.find(([id]) => id === name) ?? ["", "No such page", { show: showNoPage }];
  shown?.abort();
  shown = new AbortController();
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === view[0]) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  fill(root);
  root.dataset.view = view[0];
  view[2].show(root, words, parameters, shown.signal);
  retitle();
  scrollTo(0, 0);
}

function showNoPage(place) {
  const { name } = address();
  fill(place, heading("There is no such page"), h("div", { class: "sheet" }, empty(`Nothing is at #/${visible(name)}.`,
    "The pages are named above.", h("a", { href: "#/now" }, "Now"), h("a", { href: "#/approvals" }, "Approvals"))));
}

function drawViews() {
  const links = VIEWS.map(([id, name]) => {
    const badge = id === "approvals" ? h("span", { class: "badge", id: "waiting", hidden: true }) : null;
    return h("a", { href: `#/${id}`, data: { view: id } }, name, badge);
  });
  fill(document.getElementById("views"), links);
}

// -- somebody waits ----------------------------------------------------------------------------------------------------

let known = null;

function retitle() {
  const count = state.questions.size;
  const name = VIEWS.find(([id]) => id === root.dataset.view)?.[1] ?? "No such page";
  document.title = `${count ? `(${count}) ` : ""}${name ? `${name} · ` : ""}Trunkline`;
  document.querySelector("link[rel=icon]").href = `/console/page/icon${count ? "-waiting" : ""}.svg`;
  const badge = document.getElementById("waiting");
  if (!badge) return;
  badge.hidden = count === 0;
  fill(badge, String(count), h("span", { class: "sr" }, " waiting"));
}

function tellOfQuestions() {
  retitle();
  const fresh = [...state.questions.values()].filter((one) => known && !known.has(one.approval_id));
  known = new Set(state.questions.keys());
  if (!fresh.length) return;
  const [first] = fresh;
  const what = first.tool_id ?? first.agent_id ?? first.subject;
  if (document.hidden && globalThis.Notification?.permission === "granted") {
    const note = new Notification(fresh.length === 1 ? "Somebody asks for your approval" : `${fresh.length} questions wait`, {
      body: `${first.asked_by}: ${what}`,
      tag: "trunkline-question",
    });
    note.addEventListener("click", () => {
      focus();
      location.hash = fresh.length === 1 ? `#/approvals/${first.approval_id}` : "#/approvals";
      note.close();
    });
  } else if (root.dataset.view !== "approvals") notify(`${plural(fresh.length, "question")} for you: ${what}`);
}

// -- the frame ---------------------------------------------------------------------------------------------------------

const LINE_WORDS = { live: "live", connecting: "connecting", lost: "lost, trying again" };

function drawLine() {
  const place = document.getElementById("line");
  place.dataset.state = state.line.state;
  say(place, LINE_WORDS[state.line.state]);
}

function isDark() {
  const kept = localStorage.getItem(THEME_KEPT_AS);
  return kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function drawTheme() {
  const kept = localStorage.getItem(THEME_KEPT_AS);
  if (kept) document.documentElement.dataset.theme = kept;
  else delete document.documentElement.dataset.theme;
  const button = document.getElementById("theme");
  say(button, isDark() ? "Light" : "Dark");
  button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
}

function signInFirst(is_over) {
  line?.close();
  line = null;
  shown?.abort();
  fill(document.getElementById("views"));
  document.getElementById("line").hidden = true;
  document.getElementById("sign-out").hidden = true;
  root.dataset.view = "";
  document.title = "Sign in · Trunkline";
  fill(root, h("div", { class: "sheet pad sign-in" },
    h("h1", null, is_over ? "You are signed out" : "Sign in"),
    h("p", null, "Run this in a terminal, as the user who runs the exchange, and open the address that it prints:"),
    h("pre", { class: "code" }, "trunkline console"),
    h("p", { class: "muted" }, "The address works once and for 15 minutes."),
  ));
}

async function begin() {
  try {
    await get("/console/session");
  } catch (error) {
    if (error.status === 401) return;
    // The exchange is not there at the moment: the line comes back by itself.
  }
  if (!hasKey()) return;
  drawViews();
  drawLine();
  const out = document.getElementById("sign-out");
  out.hidden = false;
  out.addEventListener("click", async () => {
    await remove("/console/session").catch(() => {});
    forgetKey();
    signInFirst(true);
  });
  line = new Line(() => signInFirst(true));
  line.open();
  route();
  if (!keeps_numbers) notify("This browser rounds very large and very long numbers. Read and approve those in the terminal, or use a newer one.", true);
}

document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem(THEME_KEPT_AS, isDark() ? "light" : "dark");
  drawTheme();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  root.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);
addEventListener("hashchange", () => {
  if (takeKey()) location.reload();
  else route();
});
on("line", drawLine);
on("questions", tellOfQuestions);
onSignedOut(() => {
  const was_in = line !== null;
  forgetKey();
  signInFirst(was_in);
});
drawTheme();
takeKey();
if (hasKey()) begin();
else signInFirst(false);
