// Open questions: exactly what would run with what is dangerous first, who asks through whom, by which rule, and what is
// different from the last time. Approve, deny with a reason, several at once, or allow from now on.
//
// Keys work on a question that has the focus (j and k move it): a approves, d goes to the reason, x selects.

import { get, part, post } from "../api.js";
import { kindOf, ordered, summary, visible } from "../danger.js";
import { fill, h, keyed, say } from "../dom.js";
import { clock, left, plural, pretty } from "../format.js";
import { chainOf, diffBlock, doing, empty, heading, marked, notify, toolName } from "../parts.js";
import { on, refetch, state } from "../store.js";
import { rulePanel } from "./allow.js";
import { lastTime } from "./last_time.js";
import { signedOut, signInCard } from "./sign_in.js";

const SUBJECTS = { manifest: "permissions for an agent", definition: "a changed definition", directive: "a stated intent" };

export function show(root, words, _parameters, signal) {
  const chosen = new Set();
  // The rules of the configuration: only what one of them asks about can be allowed from now on.
  let rules = new Map();
  const list = h("div", { class: "stack" });
  const bulk = h("div", { class: "sheet bulk", hidden: true, role: "group", aria: { label: "Selected questions" } });
  const title = heading("Approvals", h("span", { class: "muted", id: "approvals-count" }), h("span", { class: "push" }, notifyButton()));
  const signIns = h("div", { class: "stack" });
  fill(root, title, h("div", { id: "one" }), h("div", { id: "told", class: "stack", aria: { live: "polite" } }), signIns, list, bulk,
    h("p", { class: "muted small keys", style: { "margin-top": "14px" } }, h("kbd", null, "j"), " ", h("kbd", null, "k"), " move, ", h("kbd", null, "a"), " approve, ",
      h("kbd", null, "d"), " deny with a reason, ", h("kbd", null, "x"), " select"));

  const drawBulk = () => {
    for (const id of chosen) if (!state.questions.has(id)) chosen.delete(id);
    bulk.hidden = chosen.size < 2;
    if (bulk.hidden) return;
    const reason = h("input", { type: "text", maxlength: "2000", placeholder: "Reason for a denial", aria: { label: "Reason for all of them" } });
    const all = (decision) => async (event) => {
      await doing(event.currentTarget, () => answerAll([...chosen], decision, reason.value));
      chosen.clear();
      drawBulk();
    };
    fill(bulk, h("b", null, `${chosen.size} selected`),
      h("button", { type: "button", class: "primary", on: { click: all("approved") } }, "Approve selected"), reason,
      h("button", { type: "button", class: "danger", on: { click: all("denied") } }, "Deny selected"),
      h("button", { type: "button", class: "quiet", on: { click: () => { chosen.clear(); draw(); } } }, "Clear"));
  };
  const choose = (id, is_on) => {
    if (is_on) chosen.add(id);
    else chosen.delete(id);
    drawBulk();
  };
  const draw = () => {
    const questions = [...state.questions.values()];
    const first = words[0] ? questions.filter((one) => one.approval_id === words[0]) : [];
    const sorted = [...first, ...questions.filter((one) => one.approval_id !== words[0])];
    say(document.getElementById("approvals-count"), questions.length ? `${questions.length} waiting, the oldest first` : "");
    root.querySelector(".keys").hidden = !questions.length;
    if (!sorted.length) {
      fill(list, h("div", { class: "sheet" }, empty("Nobody waits for you.",
        "When an agent wants to do something that a rule asks about, it waits here until you answer.",
        h("a", { href: "#/policy" }, "Which rules ask"), h("a", { href: "#/spaces" }, "See it happen: run a command in a space"))));
    } else {
      if (list.firstElementChild && !list.firstElementChild.dataset.key) fill(list);
      keyed(list, sorted, (one) => one.approval_id, (one) => card(one, choose, () => rules), (node, one) => {
        const always = node.querySelector(".always");
        if (always) always.hidden = !rules.has(one.rule);
        node.querySelector(".chooses").hidden = sorted.length < 2;
        node.querySelector(".chooses input").checked = chosen.has(one.approval_id);
        say(node.querySelector(".left"), left(one.expires_at));
        const waiting = node.querySelector(".also");
        say(waiting, one.waiting > 1 ? `${one.waiting} calls wait; an answer is for one of them` : "");
      });
    }
    drawBulk();
  };
  const drawSignIns = () => keyed(signIns, signedOut(), (one) => one.agent_id, (one) => signInCard(one.agent_id), () => {});
  const keys = (event) => onKey(event, list);
  // On all of the page: who arrives by a link has the focus elsewhere, and j brings it to a question.
  document.addEventListener("keydown", keys);
  const readRules = () => get("/v1/policy", { signal }).then((policy) => {
    rules = new Map(policy.rules.map((rule) => [rule.id, rule]));
    draw();
  }, () => {});
  const ends = [on("questions", draw), on("agents", drawSignIns), on("entries:policy", readRules)];
  const tick = setInterval(draw, 5000);
  signal.addEventListener("abort", () => {
    for (const end of ends) end();
    clearInterval(tick);
    document.removeEventListener("keydown", keys);
  });
  draw();
  readRules();
  drawSignIns();
  if (words[0]) showNamed(document.getElementById("one"), words[0], signal);
}

/** The question of the address, if it is not open any more: what became of it. */
async function showNamed(place, approval_id, signal) {
  try {
    const { approval_id: found } = await get(`/v1/approvals/${part(approval_id)}`, { signal });
    if (found !== approval_id) {
      // Asked again since its address was told: that of now has it at the top.
      location.replace(`#/approvals/${part(found)}`);
      return;
    }
    await refetch.questions.now();
    document.querySelector(`[data-key="${CSS.escape(approval_id)}"]`)?.focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    const text = error.status === 404 ? `${approval_id} is not open any more: it was answered, withdrawn, or has expired.` : error.message;
    fill(place, h("p", { class: "note", style: { "margin-bottom": "12px" } }, text));
  }
}

// -- one question ------------------------------------------------------------------------------------------------------

function card(question, choose, rules) {
  const whys = summary(question.input, question);
  const id = question.approval_id;
  const box = h("input", { type: "checkbox", on: { change: () => choose(id, box.checked) }, aria: { label: `Select ${id}` } });
  const reason = h("input", { type: "text", maxlength: "2000", placeholder: "Reason, for who asked (optional)", aria: { label: "Reason" }, class: "reason" });
  const approve = h("button", { type: "button", class: "primary approve", on: { click: () => answer(approve, question, "approved", reason.value) } }, "Approve");
  const deny = h("button", { type: "button", class: "danger deny", on: { click: () => answer(deny, question, "denied", reason.value) } }, "Deny");
  reason.addEventListener("keydown", (event) => {
    if (event.key === "Enter") deny.click();
    if (event.key === "Escape") reason.closest(".question").focus();
  });
  const more = h("div");
  const always = question.subject === "call"
    ? h("button", { type: "button", class: "quiet always", hidden: true, aria: { expanded: "false" }, on: { click: () => toggleRule(always, more, question, rules().get(question.rule)) } }, "Allow from now on …")
    : null;
  const heading_id = `question-${id}`;
  return h("article", { class: "sheet question", tabindex: "0", data: { danger: whys.length ? "1" : "0", question: id }, aria: { labelledby: heading_id } },
    h("header", null,
      h("label", { class: "chooses", hidden: true }, box),
      h("h2", { id: heading_id }, question.tool_id ? toolName(question.tool_id) : titleOf(question)),
      whys.map((why) => h("span", { class: "tag bad" }, why)),
      h("span", { class: "push muted small nowrap" }, `${id}, ends in `, h("span", { class: "left" }))),
    h("div", { class: "stack", style: { gap: "3px" } },
      whoAsks(question),
      because(question),
      h("p", { class: "muted also" })),
    aboutOf(question),
    question.subject === "call" ? lastTime(question) : null,
    h("div", { class: "answer" }, approve, deny, reason, always,
      question.call_id ? h("a", { class: "small", href: `#/calls/${question.call_id}` }, "Its story") : null),
    more);
}

/** Why it is asked: the reason with its rule, or the rule alone where it gives none. */
function because({ reason, rule }) {
  if (!reason && !rule) return null;
  const named = rule ? h("a", { class: "mono", href: `#/policy?rule=${part(rule)}` }, rule) : null;
  const words = reason ? [visible(reason), named ? [" (rule ", named, ")"] : null] : ["the rule ", named, " asks; it gives no reason"];
  return h("p", null, h("span", { class: "muted" }, "Because  "), words);
}

function titleOf(question) {
  const what = SUBJECTS[question.subject] ?? question.subject;
  return question.agent_id ? `${what}: ${visible(question.agent_id)}` : what;
}

function whoAsks(question) {
  const callers = [...(question.chain ?? []), question.asked_by];
  return h("div", { class: "row", style: { gap: "4px 8px" } }, h("span", { class: "muted" }, "Who asks"),
    chainOf(callers, question.tool_id), h("span", { class: "muted small" }, `at ${clock(question.asked_at)}`));
}

function aboutOf(question) {
  if (question.subject === "manifest" || question.permissions?.length) {
    return h("div", { class: "row" }, h("span", { class: "muted" }, "Permissions it would hold:"),
      (question.permissions ?? []).map((one) => h("span", { class: "tag accent mono" }, visible(one))));
  }
  if (question.before !== undefined || question.after !== undefined) {
    return h("div", { class: "stack" }, h("h3", null, "What changed in its definition"),
      diffBlock(pretty(question.before ?? ""), pretty(question.after ?? "")));
  }
  return h("div", { class: "stack" }, argumentList(question.input, question), besideOf(question));
}

/** What else its provider gets, and who that is: an answer is to this as well. */
function besideOf(question) {
  const { provider, actor, context } = question;
  if (!provider && !actor && context === undefined) return null;
  return h("div", { class: "stack beside" },
    provider ? h("p", null, h("span", { class: "muted" }, "Served by  "), toolName(provider)) : null,
    actor ? h("p", null, h("span", { class: "muted" }, "For, as the caller says  "), visible(Object.values(actor).join(" "))) : null,
    context === undefined ? null : [h("h3", null, "Beside the input"), argumentList(context)]);
}

/** The exact arguments, the dangerous ones first. `asked` is the question about them, if there is one. */
export function argumentList(input, asked) {
  const all = ordered(input, asked);
  if (!all.length) return h("p", { class: "muted" }, "Without arguments.");
  return h("dl", { class: "arguments" }, all.map(({ name, value, whys }) => {
    const text = pretty(value);
    return h("div", { class: whys.length ? "danger" : null }, h("dt", null, visible(name) || "input"),
      h("dd", null, h("pre", { tabindex: text.length > 400 ? "0" : null }, marked(text, typeof value === "string" || !whys.length ? kindOf(name) : "command"), text === "" ? h("span", { class: "muted" }, "(empty)") : null)));
  }));
}

// -- answers -----------------------------------------------------------------------------------------------------------

async function answer(button, question, decision, reason) {
  const went_well = await doing(button, () => post(`/v1/approvals/${part(question.approval_id)}`, { decision, ...(reason && { reason }) }));
  if (went_well) {
    const story = question.call_id ? h("a", { href: `#/calls/${part(question.call_id)}` }, decision === "approved" ? "Watch it run" : "Its story") : null;
    told(question, decision, story);
    const next = button.closest(".question")?.nextElementSibling;
    state.questions.delete(question.approval_id);
    if (next?.classList.contains("question")) next.focus();
  }
  await refetch.questions.now();
}

// So many of the latest answers stay in sight, each with its way to the call.
const MOST_TOLD = 3;

function told(question, decision, story) {
  const place = document.getElementById("told");
  const what = question.tool_id ? toolName(question.tool_id) : titleOf(question);
  place?.prepend(h("p", { class: "note row" }, h("span", { class: `state ${decision === "approved" ? "good" : "bad"}` }, decision), h("span", null, what), story));
  while (place?.children.length > MOST_TOLD) place.lastElementChild.remove();
}

async function answerAll(ids, decision, reason) {
  const failed = [];
  for (const id of ids) {
    try {
      await post(`/v1/approvals/${part(id)}`, { decision, ...(reason && { reason }) });
    } catch (error) {
      failed.push(`${id}: ${error.message}`);
    }
  }
  await refetch.questions.now();
  notify(`${plural(ids.length - failed.length, "question")} ${decision}`);
  if (failed.length) throw new Error(failed.join("; "));
}

function toggleRule(button, place, question, rule) {
  const is_open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!is_open));
  if (is_open) fill(place);
  else fill(place, rulePanel(question, rule, () => button.click()));
}

// -- keys and notifications --------------------------------------------------------------------------------------------

function onKey(event, list) {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const cards = [...list.querySelectorAll(".question")];
  const here = event.target.closest?.(".question");
  const at = cards.indexOf(here);
  if (event.key === "j" || event.key === "k") {
    cards[Math.max(0, Math.min(cards.length - 1, event.key === "j" ? at + 1 : at - 1))]?.focus();
  } else if (here && event.key === "a") here.querySelector(".approve").click();
  else if (here && event.key === "d") here.querySelector(".reason").focus();
  else if (here && event.key === "x") here.querySelector(".chooses input").click();
  else return;
  event.preventDefault();
}

function notifyButton() {
  if (!globalThis.Notification || Notification.permission !== "default") return null;
  const button = h("button", { type: "button", class: "quiet", on: { click: async () => {
    await Notification.requestPermission();
    button.remove();
  } } }, "Notify me when somebody asks");
  return button;
}

