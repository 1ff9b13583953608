// Agents that wait until a person has signed in somewhere: the question, and the way to the address.
//
// The address is asked for when the person wants it, and is a link that he follows himself: he sees first who signs him
// in. What comes of it shows in the agent's state.

import { part, post } from "../api.js";
import { visible } from "../danger.js";
import { fill, h, linkOut } from "../dom.js";
import { doing } from "../parts.js";
import { state } from "../store.js";

const WAITS = "signed-out";

/** The agents that wait for a sign-in. */
export const signedOut = () => [...state.agents.values()].filter((agent) => agent.state === WAITS);

/** The question of one agent. */
export function signInCard(agent_id) {
  const place = h("p", { class: "row" });
  const button = h("button", { type: "button", class: "primary", on: { click: () => doing(button, async () => {
    const { url, issuer } = await post(`/v1/agents/${part(agent_id)}/sign-in`);
    fill(place, linkOut(url, `Sign in at ${visible(issuer)}`),
      h("span", { class: "muted small" }, "opens a new page; this one notices when you are done"));
  }) } }, "Sign in…");
  fill(place, button);
  return h("article", { class: "sheet pad", data: { key: agent_id } },
    h("h2", null, h("a", { class: "tool", href: `#/agents/${part(agent_id)}` }, visible(agent_id)), " wants you to sign in"), place);
}
