// Compute every hash of a trajectory (REPLAY.jsonl v1) with nothing but Node.js: `node check_trajectory.js FILE`.
// JSON.parse would turn 1.0 into 1 and round large integers, so the text is read token by token.
const { createHash } = require("node:crypto");
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/gy;

function number(text) {
  if (!/[.eE]/.test(text)) return text === "-0" ? "-0.0" : text;
  const value = Number(text), size = Math.abs(value);
  if (size !== 0 && (size < 1e-5 || size >= 1e16)) return value.toExponential().replace("+", "");
  const plain = Object.is(value, -0) ? "-0" : String(value);
  return plain.includes(".") ? plain : plain + ".0";
}

function read(tokens) { // the canonical text of the next value, and its members if it is an object
  const token = tokens.shift();
  if (token === "[" || token === "{") {
    const items = [], close = token === "[" ? "]" : "}";
    while (tokens[0] !== close) {
      const key = token === "{" ? JSON.parse(tokens.shift()) : "";
      if (token === "{") tokens.shift(); // the colon
      items.push([key, read(tokens)]);
      if (tokens[0] === ",") tokens.shift();
    }
    tokens.shift();
    if (token === "[") return { text: `[${items.map(([, item]) => item.text).join()}]` };
    items.sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const text = `{${items.map(([key, item]) => `${JSON.stringify(key)}:${item.text}`).join()}}`;
    return { text, members: Object.fromEntries(items) };
  }
  if (token[0] === '"') return { text: JSON.stringify(JSON.parse(token)) };
  return { text: /^[tfn]/.test(token) ? token : number(token) };
}

const digest = (text) => "sha256:" + createHash("sha256").update(text).digest("hex");
const lines = require("node:fs").readFileSync(process.argv[2], "utf8").split("\n").filter(Boolean);
const events = lines.map((line) => read(line.match(new RegExp(`\\s*(?:${TOKEN.source})`, "g")).map((t) => t.trim())));
let computed = 0, wrong = 0;
for (const { members } of events)
  for (const [name, of] of [["plan", "plan_hash"], ["params", "params_hash"], ["output", "output_hash"]])
    if (members[name] && members[of]) {
      computed += 1;
      wrong += digest(members[name].text) !== JSON.parse(members[of].text);
    }
const session = events.find(({ members }) => members.event.text === '"SessionStart"').members.session_id.text;
console.log(`${computed} hashes computed, ${wrong} wrong`);
console.log("trajectory", digest(`{"events":[${events.map((e) => e.text).join()}],"session_id":${session}}`));
process.exit(wrong ? 1 : 0);
