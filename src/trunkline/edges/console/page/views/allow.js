// "Allow from now on": the rule that would be written is shown before it is, word for word, and only that one is written.

import { get, part, post } from "../api.js";
import { visible } from "../danger.js";
import { fill, h } from "../dom.js";
import { doing, notify, trouble } from "../parts.js";
import { refetch } from "../store.js";

/** A panel with the rule for this question, which `asking` is the rule behind; `close` puts it away. */
export function rulePanel(question, asking, close) {
  const address = `/v1/approvals/${part(question.approval_id)}/rule`;
  const place = h("div", { class: "note stack" }, h("p", { class: "muted" }, "Looking …"));
  const draw = async (also_untrusted = false) => {
    try {
      const { rule, also, passed_over } = await get(also_untrusted ? `${address}?also_untrusted=true` : address);
      const write = h("button", { type: "button", class: "primary", on: { click: () => doing(write, async () => {
        await post(address, { rule, also_untrusted });
        notify("The rule is in force.");
        await refetch.questions.now();
      }) } }, "Write this rule");
      fill(place, h("p", null, `This would be written into your configuration, and the call goes on${also_untrusted ? ". It holds also when what strangers wrote may have led to the call" : ""}:`),
        also.length ? h("p", { class: "warning" }, `It also lets go what waits now in ${also.length === 1 ? "another question" : `${also.length} other questions`}: ${also.join(", ")}. Look at them first.`) : null,
        passed_over.length ? h("p", { class: "warning" }, `For this caller and tool these rules of yours are not reached any more: ${passed_over.map(visible).join(", ")}.`) : null,
        h("pre", { class: "code", tabindex: "0", role: "group", aria: { label: "The rule" } }, visible(rule)),
        h("div", { class: "row" }, write, h("button", { type: "button", class: "quiet", on: { click: close } }, "Leave it"),
          h("span", { class: "muted small" }, "Taken back by removing it from the file and ", h("code", null, "trunkline reload"), ".")));
    } catch (error) {
      const more = h("button", { type: "button", class: "quiet", on: { click: () => draw(true) } }, "Show the rule for that, too");
      fill(place, trouble(error), asking?.when && error.status === 409 && !also_untrusted ? h("div", { class: "row" }, more) : null);
    }
  };
  draw();
  return place;
}
