// Requests to the exchange: the routes of /v1 and /console. The one place that fetches, and that knows the key which
// counts together with the sign-in's cookie. Everything is of the page's own origin.

import { parse } from "./exact.js";

const WAIT_MS = 30_000;
const KEPT_AS = "trunkline-console-key";

/** Take the key out of the address that a sign-in leads to, and keep it for this origin. Whether there was one. */
export function takeKey() {
  const given = /^#key=([A-Za-z0-9._~-]+)$/.exec(location.hash);
  if (!given) return false;
  localStorage.setItem(KEPT_AS, given[1]);
  history.replaceState(null, "", "/#/now");
  return true;
}

export const hasKey = () => localStorage.getItem(KEPT_AS) !== null;

export function forgetKey() {
  localStorage.removeItem(KEPT_AS);
}

/** What a request came to if it was not done: the exchange's own words, with `code` and the HTTP `status`. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Told when the cookie is not worth anything (any more).
let signedOut = () => {};

/** Who is told that somebody has to sign in. */
export function onSignedOut(act) {
  signedOut = act;
}

async function request(method, path, body, options = {}) {
  const { signal, wait_ms = WAIT_MS, headers } = options;
  const stop = AbortSignal.timeout(wait_ms);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: { "x-trunkline-console": localStorage.getItem(KEPT_AS) ?? "", ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, stop]) : stop,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "unreachable", "The exchange does not answer. Is it running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  if (answer.status === 401) signedOut();
  throw new Refused(answer.status, said.error?.code ?? "", said.error?.message ?? `The exchange answered ${answer.status}.`);
}

async function json(answer) {
  return answer.status === 204 ? null : parse(await answer.text());
}

export const get = async (path, options) => json(await request("GET", path, undefined, options));
export const post = async (path, body = {}, options) => json(await request("POST", path, body, options));
export const getText = async (path, options) => (await request("GET", path, undefined, options)).text();
export const remove = async (path, options) => json(await request("DELETE", path, undefined, options));

/** A path with a query of those parameters that have a value. */
export function query(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export const part = encodeURIComponent;

/** An answer as a file for the person to keep: a plain link could not send the key. */
export async function download(path, name) {
  const answer = await request("GET", path);
  const address = URL.createObjectURL(await answer.blob());
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/**
 * A call of a tool whose progress is followed: `told(name, data)` hears `accepted`, `progress`, `outcome`,
 * `waiting_approval`. Resolves when the stream ended; a refusal is thrown.
 */
export async function followCall(body, told, signal) {
  const answer = await request("POST", "/v1/calls", body, {
    signal,
    wait_ms: 3_600_000,
    headers: { accept: "text/event-stream" },
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block)?.[1];
      const data = [...block.matchAll(/^data: ?(.*)$/gm)].map((line) => line[1]).join("\n");
      if (name && data) told(name, parse(data));
    }
  }
}
