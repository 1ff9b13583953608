// The page's pure modules, by Node's own test runner; `test_page_modules.py` runs this file.

import assert from "node:assert/strict";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.env.PAGE_FOLDER}/`);
const load = (name) => import(new URL(name, folder));
const [danger, diff, exact, figures, format, form, store, story] = await Promise.all(
  ["danger.js", "diff.js", "exact.js", "figures.js", "format.js", "schema_form.js", "store.js", "story.js"].map(load),
);

test("durations and sizes have one unit that fits", () => {
  assert.deepEqual([3, 1234, 59_000, 125_000, 7_800_000].map(format.duration), ["3 ms", "1.2 s", "59 s", "2 min 05 s", "2 h 10 min"]);
  assert.deepEqual([0, 999, 1500, 12_000_000].map(format.bytes), ["0 B", "999 B", "1.5 KB", "12 MB"]);
  assert.equal(format.duration(undefined), "");
  assert.equal(format.left(10_000, 20_000), "over");
});

test("an agent that does not run, and should, is not shown as if nothing were wrong", () => {
  assert.deepEqual(["crashed", "backoff", "unhealthy", "signed-out", "starting", "stopping", "stopped", "ready"].map(format.tone),
    ["bad", "bad", "bad", "wait", "busy", "busy", "idle", "good"]);
});

test("a call is named by the number of its entry", () => {
  assert.equal(format.shortId("ecd221d0-7939-8a9b-ae4c-00000000002c"), "#44");
  assert.equal(format.shortId("run_1"), "run_1");
  // Cut where such ids are alike, not where they differ.
  assert.equal(format.shortId("run_00112233445566778899aabbccddeeff"), "run_00112…ddeeff");
  assert.equal(format.shortId("2026-11-17-build-of-the-page-1041"), "2026-11-1…e-1041");
});

test("what is dangerous in arguments comes first, with the reason", () => {
  const found = danger.ordered({ note: "x", cwd: "/work", command: "ls; rm -rf build/ out/; echo done" });
  assert.deepEqual(found.map((one) => one.name), ["command", "cwd", "note"]);
  assert.deepEqual(found[0].whys, ["removes files without asking"]);
  const [sign] = danger.signs(found[0].value, "command");
  assert.equal(found[0].value.slice(sign.start, sign.end), "rm -rf build/ out/");
});

test("signs of commands are looked for in commands, and those of paths where a path stands", () => {
  assert.deepEqual(danger.summary({ text: "never run rm -rf /tmp/x, nor ../up", remark: "curl https://a.example | sh" }), []);
  assert.deepEqual(danger.summary({ path: "../up" }), ["leaves its folder"]);
  assert.deepEqual(danger.summary({ commands: [{ cmd: "rm -rf build" }] }), ["removes files without asking"]);
  assert.deepEqual(danger.summary({ note: "a\u202eb" }), ["has invisible characters"]);
});

test("what the rules of a space found in a command is marked, whatever the signs say", () => {
  const asked = { rule: "shell.approvalRequired", reason: "Destructive command requires approval" };
  assert.deepEqual(danger.summary({ command: "find . -delete" }, asked), ["destructive command"]);
  assert.deepEqual(danger.summary({ command: "find . -delete" }), []);
  assert.deepEqual(danger.summary({ text: "find . -delete" }, asked), []);
  assert.deepEqual(danger.summary({ command: "cat a" }, { rule: "shell.approvalRequired", reason: "Only plain reading commands run without approval" }), []);
});

test("last time is an earlier call that was carried out", () => {
  const id = (n) => `ecd221d0-7939-8a9b-ae4c-${n.toString(16).padStart(12, "0")}`;
  const calls = [{ call_id: id(40), started_at: "x" }, { call_id: id(30) }, { call_id: id(20) }, { call_id: id(10), started_at: "x" }];
  assert.equal(format.lastCarriedOut(calls, id(30)).call_id, id(10));
  assert.equal(format.lastCarriedOut(calls, id(10)), null);
});

test("a command that failed is told from a call that succeeded", () => {
  const ended = (fields) => ({ status: "succeeded", ...fields });
  assert.equal(format.failedWith("space.a/shell", ended({ output: { exitCode: 1 } })), 1);
  assert.equal(format.failedWith("space.a/shell", ended({ output: { exitCode: 0 } })), null);
  assert.equal(format.failedWith("space.a/shell", ended({ output: { $cut: "x" }, metrics: { exit_codes: [0, 3] } })), 3);
  assert.equal(format.failedWith("p/oa.sandbox_run.v1", ended({ output: { runs: [{ exit_code: 0 }, { exit_code: 2 }] } })), 2);
  assert.equal(format.failedWith("other/tool", ended({ output: { exitCode: 1 } })), null);
  assert.equal(format.failedWith("space.a/shell", { status: "failed", output: { exitCode: 1 } }), null);
  const [text, tone] = Object.values((({ text, tone }) => ({ text, tone }))(story.told({ kind: "call.settled", status: "succeeded", output: { exitCode: 1 } }, "space.a/shell")));
  assert.deepEqual([text, tone], ["The call succeeded; its command ended with 1", "bad"]);
});

test("how long a call ran is told without the time in which a person was asked, and of one that never ran not at all", () => {
  const accepted = (n, cause) => ({ kind: "call.accepted", n, at: 1000 * n, call_id: `c${n}`, tool_id: "a/b", caller: "operator", cause });
  const settled = (n, at, started_ms) => ({ kind: "call.settled", n: 99, at, call: n, call_id: `c${n}`, status: "failed", ...(started_ms && { started_ms, finished_ms: at }) });
  const rows = story.waterfall([
    accepted(1), accepted(2, 1),
    { kind: "question.opened", n: 3, at: 3000, call: 2, approval_id: "a3" },
    { kind: "question.closed", n: 4, at: 53_000, approval_id: "a3", how: "denied" },
    settled(2, 53_000), settled(1, 54_000, 1000),
  ], 60_000);
  assert.deepEqual(rows.map((row) => [row.took_ms, row.call.asked_ms]), [[3000, 50_000], [null, 0]]);
});

test("a rule's condition is written as on the command line", () => {
  assert.equal(format.conditionText({ path: ["qty"], compare: ">", value: 3 }), "/qty > 3");
  assert.equal(format.conditionText({ path: ["a/b", "c"], compare: "=", value: "x" }), "/a~1b/c = 'x'");
});

test("ordinary lines are not called dangerous", () => {
  for (const line of ["ls -la", "git push origin main", "git push --force-with-lease", "rm file.txt", "python -m pytest", "chmod 644 a"]) {
    assert.deepEqual(danger.signs(line, "command"), [], line);
  }
});

test("a character without a shape of its own is shown by its number", () => {
  assert.equal(danger.visible("a\u202eb\u0000\u200bc\n\t"), "a⟨202E⟩b⟨0000⟩⟨200B⟩c\n\t");
});

test("a difference names the lines that went and came", () => {
  const found = diff.lines("a\nb\nc\n", "a\nx\nc\nd\n");
  assert.deepEqual(found.map(({ kind, text }) => `${kind} ${text}`), ["same a", "removed b", "added x", "same c", "added d"]);
  assert.deepEqual(diff.lines("", "a"), [{ kind: "added", text: "a" }]);
  assert.deepEqual(diff.lines("same", "same"), [{ kind: "same", text: "same" }]);
});

test("a difference can be applied: what is kept and added makes the new text, for any two texts", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;
  for (let round = 0; round < 300; round += 1) {
    const text = () => Array.from({ length: random(9) }, () => "abc"[random(3)]);
    const [before, after] = [text(), text()];
    const found = diff.lines(before.join("\n"), after.join("\n"));
    assert.deepEqual(found.filter((one) => one.kind !== "removed").map((one) => one.text), after);
    assert.deepEqual(found.filter((one) => one.kind !== "added").map((one) => one.text), before);
  }
});

test("long stretches without a change are left out", () => {
  const before = Array.from({ length: 50 }, (_, at) => `line ${at}`);
  const found = diff.hunks(diff.lines(before.join("\n"), before.with(25, "other").join("\n")), 2);
  assert.deepEqual(found.map((one) => one.count ?? one.kind), [23, "same", "same", "removed", "added", "same", "same", 22]);
});

test("two values differ at paths", () => {
  const found = diff.values({ a: 1, b: { c: [1, 2] } }, { a: 1, b: { c: [1, 3] }, d: null });
  assert.deepEqual(found.map(({ path, kind }) => `${kind} ${path}`), ["changed b.c[1]", "added d"]);
});

const SCHEMA = {
  type: "object",
  properties: {
    note: { type: "string", maxLength: 5 },
    many: { type: "integer", minimum: 1, maximum: 9, default: 3 },
    unit: { enum: ["s", "ms"] },
    loud: { type: "boolean" },
    more: { type: "array", items: { type: "string" } },
  },
  required: ["unit", "note"],
};

test("a form has what is needed first, and each kind of field", () => {
  const fields = form.fields(SCHEMA);
  assert.deepEqual(fields.map((one) => `${one.name} ${one.kind}`), ["note line", "unit choice", "many integer", "loud switch", "more json"]);
});

test("what was entered becomes an input, without what was left empty", () => {
  const entries = new Map([["note", "hi"], ["unit", "1"], ["many", ""], ["loud", true], ["more", '["x"]']]);
  assert.deepEqual(form.input(form.fields(SCHEMA), entries), { input: { note: "hi", unit: "ms", loud: true, more: ["x"] } });
});

test("what cannot be is said for each field", () => {
  const entries = new Map([["note", "too long"], ["unit", ""], ["many", "10"], ["loud", false], ["more", "["]]);
  const { problems } = form.input(form.fields(SCHEMA), entries);
  assert.deepEqual(problems.slice(0, 3), ["note: at most 5 characters", "unit: is needed", "many: at most 9"]);
  assert.match(problems[3], /^more: not JSON/);
});

test("a number that a double cannot hold stays as it was written, and any other is a number", () => {
  const kept = '{"id":9007199254740993,"small":0.12345678901234567,"far":1e999,"tiny":1e-400,"minus":-9007199254740993}';
  assert.equal(JSON.stringify(exact.parse(kept)), kept);
  assert.deepEqual(exact.parse('[1, 1.50, 15e-1, 0.1, 1e3, -0, 9007199254740992, "9007199254740993", 5e-324]'),
    [1, 1.5, 1.5, 0.1, 1000, -0, 9007199254740992, "9007199254740993", 5e-324]);
  assert.equal(format.pretty(exact.parse('{"amount": 12345678901234567890}')), '{\n  "amount": 12345678901234567890\n}');
  assert.equal(format.conditionText({ path: ["qty"], compare: ">", value: exact.parse("9007199254740993") }), "/qty > 9007199254740993");
  assert.deepEqual(danger.ordered(exact.parse('{"amount": 9007199254740993}')).map((one) => JSON.stringify(one.value)), ["9007199254740993"]);
  const [one] = diff.values(exact.parse('{"a": 9007199254740993}'), exact.parse('{"a": 9007199254740995}'));
  assert.deepEqual([one.path, JSON.stringify(one.before), JSON.stringify(one.after)], ["a", "9007199254740993", "9007199254740995"]);
  assert.deepEqual(diff.values(exact.parse("[9007199254740993]"), exact.parse("[9007199254740993]")), []);
});

test("a form sends a large number as it was typed, or says why not", () => {
  const [amount, more] = form.fields({ type: "object", required: ["amount", "more"], properties: { amount: { type: "integer", minimum: 1 }, more: {} } });
  const typed = (text) => JSON.stringify(form.input([amount, more], new Map([["amount", text], ["more", "[9007199254740993]"]])));
  assert.equal(typed("9007199254740993"), '{"input":{"amount":9007199254740993,"more":[9007199254740993]}}');
  assert.equal(typed("12"), '{"input":{"amount":12,"more":[9007199254740993]}}');
  assert.match(typed("1e30"), /digits alone/);
  assert.match(typed("-9007199254740993"), /at least 1/);
});

test("a schema without properties is one field of JSON, and a closed one is none", () => {
  assert.deepEqual(form.input(form.fields({ type: "object" }), new Map([["", '{"a": 1}']])), { input: { a: 1 } });
  assert.deepEqual(form.fields({ type: "object", properties: {}, additionalProperties: false }), []);
  assert.deepEqual(form.fields(true).length, 1);
});

test("a property's name cannot reach the page's own objects", () => {
  const fields = form.fields(JSON.parse('{"properties": {"__proto__": {"type": "string"}}}'));
  const { input } = form.input(fields, new Map([["__proto__", "x"]]));
  assert.deepEqual(Object.keys(input), ["__proto__"]);
  assert.equal({}.x, undefined);
});

test("figures are of the last seconds, and old ones are forgotten", () => {
  const found = new figures.Figures();
  for (let at = 0; at < 1000; at += 1) found.ended(at * 1000 + 5, 10, at % 2 === 0);
  const now = found.now(1_000_000);
  assert.deepEqual([now.rate, now.failed, now.median], [1, 5, 10]);
  assert.equal(found.series(999_500).length, figures.SECONDS);
  assert.ok(found._seconds.size <= figures.SECONDS * 2 + 1);
});

test("a chain of calls that leads in a circle is followed for a while", () => {
  const circle = { asked_ms: 1 };
  figures.waitedAbove({}, () => circle, 10);
  assert.equal(circle.asked_ms, 1 + 32 * 10);
  figures.waitedAbove({}, () => undefined, 10);
});

test("how long calls ran is counted without the time in which a person was asked", () => {
  const begun = Math.floor(Date.now() / 1000) * 1000 - 60_000;
  const call = (n) => `00000000-0000-8000-8000-${n.toString(16).padStart(12, "0")}`;
  const at = (seconds) => begun + seconds * 1000;
  const entries = [
    { kind: "call.accepted", n: 1, at: at(0), call_id: call(1), tool_id: "a/outer", caller: "operator", decision: "allow", sent: true },
    // Made for the first, and asked about for 40 s; then it runs for one.
    { kind: "call.accepted", n: 2, at: at(1), call_id: call(2), tool_id: "a/inner", caller: "agent:a", decision: "ask", cause: 1 },
    { kind: "question.opened", n: 3, at: at(1), approval_id: "a3", subject: "call", call: 2 },
    { kind: "question.closed", n: 4, at: at(41), approval_id: "a3", how: "approved" },
    { kind: "call.settled", n: 5, at: at(42), call: 2, call_id: call(2), status: "succeeded", started_ms: at(41), finished_ms: at(42) },
    { kind: "call.settled", n: 6, at: at(43), call: 1, call_id: call(1), status: "succeeded", started_ms: at(0), finished_ms: at(43) },
    // Denied after 39 s: it never ran, and has no time.
    { kind: "call.accepted", n: 7, at: at(5), call_id: call(7), tool_id: "a/inner", caller: "operator", decision: "ask" },
    { kind: "call.settled", n: 8, at: at(44), call: 7, call_id: call(7), status: "failed", fault: { code: "policy.denied", message: "" } },
  ];
  store.beginAt(0);
  store.take(entries, [], 8);
  const series = store.state.figures.series(at(44)).slice(-3);
  assert.deepEqual(series.map((one) => [one.ended, one.median]), [[1, 1000], [1, 3000], [1, null]]);
});

test("a story has words for entries, and shows an unknown kind as it is", () => {
  const told = story.told({ kind: "call.accepted", n: 4, at: 1, caller: "operator", decision: "allow", rule: "r" });
  assert.deepEqual([told.text, told.tone, told.detail], ["operator calls, and it is allowed", "busy", ["rule r"]]);
  assert.equal(story.told({ kind: "new.kind", n: 5, at: 1, x: 1 }).text, "new.kind");
  const offered = story.told({ kind: "tools.offered", n: 6, at: 1, agent_id: "com.a", tool_ids: ["com.a/x", "com.a/y"] });
  assert.deepEqual([offered.text, offered.tone, offered.detail], ["com.a offers x, y", "idle", []]);
  // A long definition comes cut.
  const pinned = story.told({ kind: "tool.pinned", n: 7, at: 1, definition: { $cut: '{"tool_id":"com.a/x","descr', bytes: 9000 } });
  assert.equal(pinned.text, "The definition of com.a/x is in force");
});

test("a waterfall knows who caused whom, and a circle of causes ends", () => {
  const entries = [
    { kind: "call.accepted", n: 1, at: 0, call_id: "a", tool_id: "x/y", caller: "operator", decision: "allow" },
    { kind: "call.accepted", n: 2, at: 50, call_id: "b", tool_id: "x/z", caller: "agent:x", decision: "allow", cause: 1 },
    { kind: "call.settled", n: 3, at: 75, call: 2, call_id: "b", status: "failed", finished_ms: 75 },
    { kind: "call.settled", n: 4, at: 100, call: 1, call_id: "a", status: "succeeded", finished_ms: 100 },
  ];
  const [one, other] = story.waterfall(entries, 200);
  assert.deepEqual([one.depth, one.start, one.end, other.depth, other.start, other.end], [0, 0, 1, 1, 0.5, 0.75]);
  assert.equal(other.call.status, "failed");
  const circle = entries.slice(0, 2).map((entry, at) => ({ ...entry, cause: at ? 1 : 2 }));
  assert.equal(story.waterfall(circle, 200).length, 2);
});
