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
  starting: "busy", stopped: "idle", failed_to_start: "bad", allow: "good", deny: "bad", ask: "wait", completed: "good",
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

/** Whether a call with this status has its outcome. */
export function isOutcome(status) {
  return status in OUTCOMES;
}
