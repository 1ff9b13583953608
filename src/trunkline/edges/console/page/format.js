// Values as people read them: times, durations, sizes, ids, JSON. Pure; tested with Node.

const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** 1536 → "1.5 KB". */
export function bytes(count) {
  if (!Number.isFinite(count)) return "";
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Milliseconds as "3 ms", "1.2 s", "4 min 05 s", "2 h 10 min". */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
  const value = Math.max(0, ms);
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 60_000) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)} s`;
  const seconds = Math.round(value / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

/** A number with thin groups: 1234567 → "1,234,567". */
export function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en-US") : "0";
}

/** A moment (RFC 3339 or milliseconds) in milliseconds; NaN if it is none. */
export function moment(value) {
  return typeof value === "number" ? value : Date.parse(value ?? "");
}

const two = (number) => String(number).padStart(2, "0");

/** "14:03:09", with the day in front if it was not today. */
export function clock(value, now = Date.now()) {
  const at = new Date(moment(value));
  if (Number.isNaN(at.getTime())) return "";
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = new Date(now);
  const is_today = at.toDateString() === today.toDateString();
  return is_today ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** "14:03:09.123". */
export function clockMs(value) {
  const at = new Date(moment(value));
  return Number.isNaN(at.getTime()) ? "" : `${clock(value)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** How long ago, in one unit: "now", "12 s ago", "3 min ago". */
export function ago(value, now = Date.now()) {
  const ms = now - moment(value);
  if (!Number.isFinite(ms)) return "";
  if (ms < 2000) return "now";
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ago`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h ago`;
  return `${Math.floor(ms / 86_400_000)} d ago`;
}

/** What is left until then: "59 min", "40 s", "over". */
export function left(value, now = Date.now()) {
  const ms = moment(value) - now;
  if (!Number.isFinite(ms)) return "";
  if (ms <= 0) return "over";
  if (ms < 120_000) return `${Math.ceil(ms / 1000)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

/** The short form of an id: a call's ends in the number of its entry; of others the beginning and the end stay. */
export function shortId(id) {
  const text = String(id ?? "");
  const entry = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-0*([0-9a-f]+)$/.exec(text);
  if (entry) return `#${parseInt(entry[1], 16)}`;
  return text.length > 22 ? `${text.slice(0, 9)}…${text.slice(-6)}` : text;
}

/** The number of the entry that a call began with, which is the end of its id; null if it is no call's id. */
export function entryOf(id) {
  const entry = /-([0-9a-f]{12})$/.exec(String(id ?? ""));
  return entry ? parseInt(entry[1], 16) : null;
}

/** Of calls with the newest first, the last one before this call that was carried out: one that waits or was denied was not. */
export function lastCarriedOut(calls, call_id) {
  const own = entryOf(call_id);
  return calls.find((call) => call.started_at && (own === null ? call.call_id !== call_id : entryOf(call.call_id) < own)) ?? null;
}

/** JSON over several lines; a text that is no JSON stays as it is. */
export function pretty(value) {
  if (value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** JSON in one line, cut at so many characters. */
export function brief(value, most = 120) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** What a piece of progress shows, as text. */
export function progressText(data) {
  if (data === null || data === undefined) return "";
  if (typeof data === "string") return data;
  if (typeof data === "object" && typeof data.text === "string") {
    return typeof data.percent === "number" ? `${data.percent} % ${data.text}` : data.text;
  }
  return JSON.stringify(data);
}

/** The part of a tool's id before its slash, and the part after it. */
export function toolParts(tool_id) {
  const text = String(tool_id ?? "");
  const slash = text.indexOf("/");
  return slash < 0 ? ["", text] : [text.slice(0, slash), text.slice(slash + 1)];
}

/** A count and its noun: "1 call", "2 calls". */
export function plural(number, noun, many = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : many}`;
}

const OUTCOMES = { succeeded: "good", failed: "bad", canceled: "idle", unknown: "bad" };
const STATES = {
  ...OUTCOMES,
  refused: "bad", running: "busy", queued: "busy", waiting_approval: "wait", waiting: "wait", ready: "good", ok: "good",
  available: "good", unavailable: "bad", suspended: "wait", quarantined: "bad", unhealthy: "bad", degraded: "wait",
  starting: "busy", stopped: "idle", failed_to_start: "bad", crashed: "bad", lost: "bad", backoff: "bad", "signed-out": "wait", stopping: "busy", allow: "good", deny: "bad", ask: "wait", completed: "good",
  awaiting_approval: "wait", error: "bad", on: "good", off: "idle", whole: "good", broken: "bad",
};

/** Which of the five colours a state has: good, bad, wait, busy, idle. */
export function tone(state) {
  return STATES[state] ?? "idle";
}

/** A state in words: "waiting_approval" → "waiting for a person". */
export function words(state) {
  if (state === "waiting_approval" || state === "awaiting_approval") return "waiting for a person";
  return String(state ?? "").replaceAll("_", " ");
}

/**
 * The first exit code other than 0 of the commands that a call ran, which itself succeeded; null if there is none. `ended`
 * is a call as it is listed, or the entry of its end; what is read of that is what trajectories read (trajectory/commands).
 */
export function failedWith(tool_id, ended) {
  if (ended?.status !== "succeeded") return null;
  if (ended.failed_with !== undefined) return ended.failed_with;
  const codes = ended.metrics?.exit_codes ?? codesOf(String(tool_id ?? ""), ended.output);
  return (Array.isArray(codes) ? codes : []).find((code) => Number.isInteger(code) && code !== 0) ?? null;
}

function codesOf(tool_id, output) {
  if (/^space\..*\/shell$/.test(tool_id)) return [output?.exitCode];
  if (!tool_id.endsWith("/oa.sandbox_run.v1")) return [];
  return (output?.runs ?? output?.outputs?.runs ?? []).map((run) => run?.exit_code);
}

/** A condition on a call's input as the command line writes it: `/qty > 3`. */
export function conditionText({ path, compare, value }) {
  const pointer = path.map((one) => one.replaceAll("~", "~0").replaceAll("/", "~1")).join("/");
  return `/${pointer} ${compare} ${typeof value === "string" ? `'${value}'` : JSON.stringify(value)}`;
}

/** Whether a call with this status has its outcome. */
export function isOutcome(status) {
  return status in OUTCOMES;
}
