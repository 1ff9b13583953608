import { h } from "../dom.js";

export function rulePanel() {
  return h("p", null, "");
}
