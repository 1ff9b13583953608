// A form that runs one command in a space's sandbox, as a run of its own; the run's page shows what comes of it.

import { part, post } from "../api.js";
import { h } from "../dom.js";
import { doing, labelled } from "../parts.js";

// Long enough for what is over at once, and for the question of one that has to be asked about.
const WAIT_S = 1;

/** The form; `space` is what `GET /v1/spaces/{name}` says of it. */
export function commandForm(space) {
  const command = h("input", { type: "text", class: "mono", maxlength: "8192", required: true, placeholder: "ls -l", autocomplete: "off", spellcheck: "false" });
  const run = h("button", { type: "submit", class: "primary" }, "Run");
  const start = () => doing(run, async () => {
    const message = { protocolVersion: "1.0", operations: [{ type: "shell", command: command.value }] };
    const { runId } = await post(`/v1/spaces/${part(space.name)}/runs?wait=${WAIT_S}`, message);
    location.hash = `#/spaces/${part(space.name)}/runs/${part(runId)}`;
  });
  return h("form", { class: "stack", on: { submit: (event) => { event.preventDefault(); start(); } } },
    h("div", { class: "filters", style: { margin: "0" } }, labelled("Run a command", command, { class: "grow" }), run),
    h("p", { class: "muted small" }, hint(space), " ", h("button", { type: "button", class: "link", on: { click: () => { command.value = EXAMPLE; command.focus(); } } }, "Such as this one")));
}

// It is asked about in the presets `standard` and `restrictive`, runs for some seconds, and does no harm.
const EXAMPLE = "rm -rf old; for n in 1 2 3 4 5; do echo step $n of 5; sleep 1; done";

function hint(space) {
  if (space.preset === "permissive") return "It runs at once: this space asks about hardly anything.";
  if (space.preset === "restrictive") return "What does more than read is asked about first.";
  return "What removes or changes much (rm -r, chmod -R, git push --force) is asked about first.";
}
