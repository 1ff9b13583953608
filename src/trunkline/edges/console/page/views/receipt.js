// Receipts: a table of them, and one of them with each link that it stands on and whether that holds. The exchange
// follows the links when a receipt is looked at; nothing is remembered from an earlier look.

import { get, part, query } from "../api.js";
import { visible } from "../danger.js";
import { add, fill, h } from "../dom.js";
import { clock, count } from "../format.js";
import { empty, facts, heading, shown, stateTag, table, trouble, valueBlock } from "../parts.js";

const PAGE = 50;
// In the order in which they are followed, with what each of them says.
const LINKS = [
  ["receipt", "Its form and hash are those on record, and that entry stands in the chain."],
  ["payment", "The proof of payment fits the amount and the provider's own signed request."],
  ["policy", "The rules that it names were in force."],
  ["trajectory", "Every hash of the session computes, and the session's own."],
  ["job", "The hash of the job is that of what was called."],
];

/** All receipts, newest first, page by page. */
export function receiptList(signal) {
  const rows = h("div", { class: "sheet" });
  const foot = h("div", { class: "row" });
  let next = null;
  const read = async (is_more) => {
    try {
      const page = await get(query("/v1/receipts", { limit: PAGE, before: is_more ? next : null }), { signal });
      next = page.next;
      if (is_more) add(rows.querySelector("tbody"), [...receiptTable(page.receipts).querySelectorAll("tbody tr")]);
      else fill(rows, page.receipts.length ? receiptTable(page.receipts) : empty("No receipt yet.", "A priced job that was paid and verified has one; docs/money.md tells how jobs are priced and paid."));
      fill(foot, next ? h("button", { type: "button", on: { click: () => read(true) } }, "Older receipts") : null);
    } catch (error) {
      if (error.name !== "AbortError") fill(rows, h("div", { class: "pad" }, trouble(error)));
    }
  };
  fill(rows, h("p", { class: "pad muted" }, "Looking …"));
  read(false);
  return { node: h("div", { class: "stack" }, rows, foot), again: () => read(false) };
}

function receiptTable(receipts) {
  return table("Receipts", [
    { name: "Receipt", class: "wide mono", cell: (one) => h("a", { href: `#/jobs/${part(one.receipt_id)}` }, visible(one.receipt_id)) },
    { name: "Paid", class: "num nowrap", cell: (one) => `${count(one.amount_msats)} msats` },
    { name: "By", class: "small", cell: (one) => visible(one.rail) },
    { name: "To", class: "small wide", cell: (one) => h("span", { class: "cut mono" }, visible(one.provider_id)) },
    { name: "Time", class: "num muted side nowrap", cell: (one) => clock(one.timestamp) },
  ], receipts);
}

/** One receipt. */
export function showReceipt(root, receipt_id, signal) {
  const place = h("div");
  fill(root, place);
  shown(place, get(`/v1/receipts/${part(receipt_id)}`, { signal }).catch((error) => {
    if (error.status === 404) return null;
    throw error;
  }), (found) => (found ? drawn(found, receipt_id) : [heading("Receipt"), h("div", { class: "sheet" }, empty("No such receipt.", `Nothing is on record under ${visible(receipt_id)}.`, h("a", { href: "#/jobs" }, "All receipts")))]));
}

function drawn(found, receipt_id) {
  const receipt = found.receipt ?? {};
  return [
    h("div", { class: "head" }, h("h1", null, "Receipt"), stateTag(found.status), h("span", { class: "muted mono small" }, visible(receipt_id)),
      h("span", { class: "push" }, found.call_id ? h("a", { class: "button", href: `#/calls/${part(found.call_id)}` }, "The job that was paid for") : null)),
    h("div", { class: "columns wide-left" },
      h("section", null, h("h2", null, "Verification"), h("div", { class: "sheet pad" }, verdict(found), h("ul", { class: "links" }, LINKS.map((one) => link(found, one))))),
      h("section", null, h("h2", null, "Facts"), h("div", { class: "sheet pad" }, facts([
        ["Paid", Number.isFinite(receipt.amount_msats) ? `${count(receipt.amount_msats)} msats (${visible(receipt.asset_id)} by ${visible(receipt.rail)})` : null],
        ["Before the job was done", receipt.prepaid ? "yes: that wallet cannot hold money" : null],
        ["To", receipt.provider_id ? h("span", { class: "hash" }, visible(receipt.provider_id)) : null],
        ["At", receipt.timestamp ? clock(receipt.timestamp) : null],
        ["Let through by", receipt.approval_rule_id ? h("a", { href: "#/policy" }, visible(receipt.approval_rule_id)) : null],
        ["On record", found.entry ? `entry ${count(found.entry)}` : null],
        ["Its hash", found.receipt_hash ? h("span", { class: "hash" }, found.receipt_hash) : null],
        ["Take it along", h("code", null, `trunkline receipts export ${visible(receipt_id)}`)],
      ])))),
    h("section", null, h("h2", null, "All fields"), valueBlock(receipt, "Receipt")),
  ];
}

function verdict(found) {
  if (found.status === "whole") return h("p", null, "It holds: every link was followed just now.");
  return h("p", { class: "trouble", role: "alert" }, `It does not hold. ${visible(found.link)}: ${visible(found.reason)}`);
}

function link(found, [name, says]) {
  const holds = found.status === "whole";
  const unproved = (found.unproved ?? []).filter((text) => text.startsWith(`${name}_`));
  const state = holds ? (unproved.length ? ["wait", "not computed"] : ["good", "holds"]) : name === found.link ? ["bad", "broken"] : ["idle", "not looked at"];
  return h("li", { data: { link: name } }, h("span", { class: "row" }, h("b", null, name), h("span", { class: `state ${state[0]}` }, state[1])),
    h("span", { class: "muted small" }, unproved.length ? unproved.map((text) => visible(text)).join(" ") : says));
}
