"""Fuzzing of spaces: operations messages, runs, answers, WebSockets and policies; and of what they are read by.

``commands``, ``paths`` and ``values`` judge the pure readers: the shell's grammar, paths and edits, the validators.
``fuzz`` sends all of it to a whole exchange with spaces of real files (``all_edges``). Functions of their seed.
``test_spaces`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from tests.fuzz import all_edges
from tests.fuzz.all_edges import Town
from tests.fuzz.asgi import Request, Socket
from tests.fuzz.mutations import SPELLINGS, VALUES, Mutator
from trunkline.edges.spaces import messages
from trunkline.errors import RemoteProtocolError, WorkspaceError
from trunkline.workspace import paths as workspace_paths
from trunkline.workspace.commands import read_commands
from trunkline.workspace.edits import Edit, apply_edits
from trunkline.workspace.policy import PRESETS, judge_command, judge_file, make_policy
from trunkline.workspace.shell_grammar import MAX_COMMAND_CHARACTERS, parse
from trunkline.workspace.shell_words import NotUnderstood

STEPS: Final = 250
# A command is read five times here: by the grammar, for what it runs, and once for each preset. The longest takes a
# quarter of a second; a busy core three times that.
LONGEST_S: Final = 5 * 0.75

TOKENS: Final = (
    "ls", "rm", "-rf", "/", "sudo", "echo", "cat", "find", "-exec", "xargs", "env", "sh", "-c", "bash", "eval", "git",
    "push", "--force", "curl", "x=1", "A+=b", "$", "$x", "${x}", "${x:-$(ls)}", "$(", ")", "`", "`ls`", "$((1+2))",
    "((", "(", "{", "}", "if", "then", "else", "elif", "fi", "for", "in", "do", "done", "while",
    "until", "case", "esac",
    ";;", ";", "&", "&&", "|", "||", "|&", ">", ">>", "<", "<<", "<<-", "<<<", "<>", ">|", "2>&1",
    "&>", "EOF", "\n", "\\\n",
    "\\", '"', "'", "$'\\n'", "#", "!", "*", "?", "[a-z]", "~", "=", "\t", " ", "\0", "\r", "é", "\u2028", "\U0001f600",
    "function", "select", "f()", "[[", "]]", "time", "exec", "command", "--", "-", "nohup", "timeout", "5", "nice",
    "-n", "/usr/bin/env", "./x", "%", "@", "^", ",", ":", "python3", "awk", 'BEGIN{system("ls")}', "sed", "s/a/b/e",
    "\x7f",
)  # fmt: skip
NAMES: Final = (
    "a", "b.txt", ".", "..", "", ".git", "hooks", ".GIT", "...", " ", "\0", "a" * 255, "a" * 256, "é" * 127, "e\u0301",
    "\u202e", "-rf", "~", "c:", "\\", "con", "a\nb", "\ud800", ".env", "%2e%2e", "\ufeff", "dir", "dir2",
)  # fmt: skip


# --- the shell's grammar ----------------------------------------------------------------------------------------------


def command_line(rng: Random) -> str:
    """What somebody may send as a command."""
    kind = rng.random()
    if kind < 0.05:
        # One thing, as often as fits.
        token = rng.choice(TOKENS) + rng.choice(("", " ", "\n", rng.choice(TOKENS)))
        return (token * (MAX_COMMAND_CHARACTERS // len(token) + 2))[
            : rng.choice((5000, MAX_COMMAND_CHARACTERS, 70_000))
        ]
    if kind < 0.1:
        opening, closing = rng.choice(
            (("$(", ")"), ("(", ")"), ("{ ", "; }"), ("`", "`"), ('"$(', ')"'), ("if ", " fi"))
        )
        depth = rng.choice((5, 39, 40, 41, 2000))
        return opening * depth + "ls" + closing * rng.choice((depth, depth - 1, 0))
    if kind < 0.15:
        inner = command_line(rng)[:300]
        return f"sh -c {json.dumps(inner)}" if rng.random() < 0.5 else f"sh -c '{inner}'"
    joint = rng.choice((" ", " ", "", "\n"))
    return joint.join(rng.choices(TOKENS, k=rng.randrange(1, rng.choice((4, 12, 60)))))


def commands(seed: int, count: int) -> int:
    """So many command lines, parsed, read and judged; how many."""
    rng = Random(seed)
    policies = [make_policy(preset) for preset in PRESETS]
    for _ in range(count):
        text = command_line(rng)
        began = time.process_time()
        try:
            with contextlib.suppress(NotUnderstood):
                script = parse(text)
                assert all(command.words for command in script.commands)
            read_commands(text)
            for policy in policies:
                judge_command(policy, text, rng.choice(({}, {rng.choice(TOKENS): "x"})))
        except Exception as error:
            raise AssertionError(f"{error!r} of {text[:500]!r}, {len(text)} characters, seed {seed}") from error
        taken = time.process_time() - began
        assert taken < LONGEST_S, f"{taken:.1f} s for {text[:200]!r}, {len(text)} characters"
    return count


# --- paths and edits --------------------------------------------------------------------------------------------------


def path(rng: Random) -> str:
    """What somebody may send as a path."""
    if rng.random() < 0.05:
        return rng.choice(("a/" * 3000, "/" * 5000, "../" * 40 + "etc/passwd", "a" * 100_000))
    return rng.choice(("", "", "", "/", "./", "//")) + "/".join(rng.choices(NAMES, k=rng.randrange(1, 6)))


def paths(seed: int, count: int) -> int:
    """So many paths, and edits of texts; how many."""
    rng = Random(seed)
    policies = [make_policy(preset) for preset in PRESETS]
    for _ in range(count):
        given = path(rng)
        try:
            for check in (workspace_paths.check_path, workspace_paths.check_cwd):
                with contextlib.suppress(WorkspaceError):
                    names = check(given)
                    assert not {"..", ".", ""} & set(names)
            for policy in policies:
                with contextlib.suppress(WorkspaceError):
                    judge_file(policy, rng.choice(("create", "read", "edit", "delete")), given)
            with contextlib.suppress(WorkspaceError):
                _edit(rng)
        except Exception as error:
            raise AssertionError(f"{error!r} of {given[:300]!r}, seed {seed}") from error
    return count


def _edit(rng: Random) -> None:
    text = "".join(rng.choices("aab\n\u00e9\U0001f600", k=rng.choice((0, 3, 30, 3000))))
    edits = []
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        old = text[start : start + rng.randrange(5)] if rng.random() < 0.8 else "zz"
        edits.append(Edit(old, rng.choice(("", "aa", "x" * 10_000)), rng.random() < 0.5))
    apply_edits(text, edits)


# --- validators -------------------------------------------------------------------------------------------------------


def operation(rng: Random) -> dict[str, Any]:
    """One operation, mostly right."""
    kind = rng.choice(list(messages.OPERATIONS))
    found: dict[str, Any] = {"type": kind}
    if rng.random() < 0.3:
        found["id"] = rng.choice(("op-1", "op-2", "x" * 300, "\n"))
    for name in messages.OPERATIONS[kind]:
        if rng.random() < 0.9:
            found[name] = _field(rng, name)
    return found


def _field(rng: Random, name: str) -> Any:
    if rng.random() < 0.1:
        return rng.choice(VALUES)
    match name:
        case "path" | "cwd":
            return rng.choice(("a.txt", "dir/b.txt", "dir", path(rng)))
        case "command":
            return command_line(rng)
        case "content":
            return rng.choice(("x", "", "é\n" * 100, "eA==", "\0"))
        case "encoding":
            return rng.choice((*messages.ENCODINGS, "utf-16"))
        case "overwrite" | "replaceAll":
            return rng.random() < 0.8
        case "timeout":
            return rng.choice((1, 1000, 2**53, 2**53 + 1, 1e308, 0.5, -1, 10**400))
        case "env":
            return rng.choice(({}, {"A": "b"}, {"LD_PRELOAD": "x"}, {"": ""}, {"A": None}, {"a b": "c"}, {"A": "\0"}))
        case "edits":
            edit = {"oldContent": rng.choice(("x", "", "é")), "newContent": "y", "replaceAll": rng.random() < 0.5}
            return rng.choice(([edit], [edit] * 3, [], [{}], [None]))
    return rng.choice(VALUES)


def operations_message(rng: Random) -> dict[str, Any]:
    found: dict[str, Any] = {"protocolVersion": "1.0"}
    found["operations"] = [operation(rng) for _ in range(rng.choice((0, 1, 2, 5)))]
    if rng.random() < 0.3:
        found["stopOnError"] = rng.choice((True, False, None, 1))
    return found


def event(rng: Random) -> dict[str, Any]:
    kind = rng.choice(list(messages.EVENTS))
    fields = ("timestamp", "operationId", *messages.EVENTS[kind])
    found: dict[str, Any] = {"type": kind}
    for name in fields:
        found[name] = rng.choice((True, "2026-01-16T12:00:00Z", "x", 1, {}, rng.choice(VALUES)))
    return found


def values(seed: int, count: int) -> int:
    """So many values for the validators; how many."""
    mutator = Mutator(seed, [])
    rng = mutator.rng
    readers = (
        messages.validate_operation, messages.validate_operations_message, messages.validate_event,
        messages.validate_events_message,
    )  # fmt: skip
    for _ in range(count):
        told = {"protocolVersion": "1.0", "runId": "r", "status": "completed", "events": [event(rng) for _ in range(2)]}
        value: Any = rng.choice((operation(rng), operations_message(rng), event(rng), told, rng.choice(VALUES)))
        mutator._messages = [value]
        data = json.dumps(value).encode() if rng.random() < 0.5 else mutator.body()
        try:
            result = messages.read_operations_message(data)
            if result["success"]:
                again = messages.validate_operations_message(result["data"])
                assert again == result, "what was read reads differently the second time"
            # Python reads neither what is no JSON, nor numbers of more than 4,300 digits.
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(data)
            for read in readers:
                judged = read(value)
                assert judged["success"] is True or judged["error"]["message"]
                msgspec.json.encode(judged.get("error"))
            with contextlib.suppress(RemoteProtocolError):
                messages.parse_operation(value)
        except Exception as error:
            raise AssertionError(f"{error!r} of {data[:500]!r}, seed {seed}") from error
    return count


# --- spaces -----------------------------------------------------------------------------------------------------------


class Users:
    """People and programs who send anything to two spaces."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.rng = town.rng
        self.runs: list[str] = ["run_0"]
        self.asked: list[tuple[str, str]] = []
        self.open: list[Request] = []
        self.sockets: list[Socket] = []
        for name, preset in (("demo", "standard"), ("strict", "restrictive")):
            town.send("operator", "POST", "/v1/spaces", json.dumps({"name": name, "preset": preset}).encode())

    def space(self) -> str:
        return self.rng.choice(("demo", "demo", "demo", "strict", "strict", "other", self.rng.choice(("%00", "no"))))

    def body(self, message: Any) -> bytes:
        which = self.rng.random()
        if which < 0.7:
            return json.dumps(message).encode()
        self.town.mutator._messages = [message]
        return self.town.mutator.body() if which < 0.97 else self.rng.choice(SPELLINGS)

    def policy(self) -> dict[str, Any]:
        rng = self.rng
        fields = msgspec.to_builtins(PRESETS["standard"])
        sections = [*fields, "none"]
        found: dict[str, Any] = {}
        for section in rng.sample(sections, rng.randrange(3)):
            keys = [*fields[section]] if isinstance(fields.get(section), dict) else ["x"]
            found[section] = {
                key: rng.choice((["["], ["rm *"], [" "], "ask", True, *VALUES)) for key in rng.sample(keys, 1)
            }
        return found

    def send(self, method: str, target: str, body: bytes = b"") -> object:
        rng = self.rng
        who = rng.choice(("operator", "operator", "alice", "carol"))
        request = self.town.send(who, method, target, body, rng.choice((0, 0.5, 10)))
        if request.complete:
            self.learn(request)
        elif rng.random() < 0.3:
            request.give_up()
        else:
            self.open.append(request)
        return (who, method, target, body)

    def learn(self, request: Request) -> None:
        if request.headers.get(b"content-type") != b"application/json" or not request.content:
            return
        self.told(json.loads(request.content))

    def told(self, content: dict[str, Any]) -> None:
        """Every events message is one by its own rules."""
        if "events" not in content:
            return
        judged = messages.validate_events_message(content)
        assert judged["success"], f"{judged['error']} of {content!r:.1500}"
        if "runId" in content:
            self.runs = [*self.runs[-20:], content["runId"]]
            self.asked += [
                (content["runId"], event["operationId"])
                for event in content["events"]
                if event["type"] == "approvalRequired"
            ]

    def act(self) -> object:
        rng = self.rng
        which = rng.random()
        if which < 0.35:
            wait = rng.choice(("", "?wait=0", "?wait=5", "?wait=-1", "?wait=x", "?wait=1e3"))
            return self.send("POST", f"/v1/spaces/{self.space()}/runs{wait}", self.body(operations_message(rng)))
        if which < 0.45:
            return self.send("POST", f"/v1/spaces/{self.space()}/check", self.body(operations_message(rng)))
        if which < 0.55:
            query = rng.choice(("", "?wait=0&after=0", "?wait=5&after=1", "?after=99999999999", "?after=a"))
            return self.send("GET", f"/v1/runs/{rng.choice(self.runs[-3:])}{query}")
        if which < 0.7:
            run, named = rng.choice(self.asked) if self.asked else ("run_1", "op-0")
            if rng.random() < 0.1:
                return self.send("POST", f"/v1/runs/{run}/cancel")
            answer = {"approval": {"operationId": named, "decision": rng.choice(("approved", "denied")), "reason": "r"}}
            return self.send("POST", f"/v1/runs/{run}/resume", self.body(answer))
        if which < 0.75:
            name = rng.choice(("demo", "other", "strict", "x" * 64, "../x", "CON", "é"))
            given = {"name": name, "preset": rng.choice((*PRESETS, "x")), "policy": self.policy()}
            return self.send("POST", "/v1/spaces", self.body(given))
        if which < 0.77:
            force = rng.choice(("", "", "?force=1", "?force=x"))
            return self.send("DELETE", f"/v1/spaces/{rng.choice(('other', 'other', 'no', self.space()))}{force}")
        if which < 0.82:
            return self.send("GET", rng.choice(("/v1/spaces", f"/v1/spaces/{self.space()}")))
        if which < 0.87:
            tool = rng.choice(("create_file", "read_file", "edit_file", "delete_file", "shell", "message", "none"))
            given = operation(rng)
            body = {"tool_id": f"space.{self.space()}/{tool}", "input": rng.choice((given, rng.choice(VALUES)))}
            return self.send("POST", "/v1/calls", json.dumps(body).encode())
        return self.by_socket()

    def by_socket(self) -> object:
        rng = self.rng
        if len(self.sockets) < 4 and rng.random() < 0.3:
            self.sockets.append(self.town.open(f"/v1/spaces/{self.space()}/ws", rng.choice(("operator", "alice"))))
        if not self.sockets:
            return None
        socket = rng.choice(self.sockets)
        which = rng.random()
        if which < 0.05:
            socket.leave()
        elif which < 0.1:
            socket.say(rng.choice((b"\0", json.dumps(operations_message(rng)).encode())))
        else:
            socket.say(self.body(operations_message(rng)).decode("utf-8", "replace"))
        return "a socket"

    def step(self) -> None:
        about = self.act() if self.rng.random() < 0.95 else "time"
        if about == "time":
            self.town.exchange.advance(self.rng.choice((1, 30, 1000)))
        self.town.look(about)
        for socket in self.sockets:
            for text in socket.said:
                self.told(json.loads(text))
                self.town.counts["said"] += 1
            socket.said.clear()
        self.sockets = [each for each in self.sockets if not each.closed and not each.denied]
        for request in [each for each in self.open if each.complete]:
            self.open.remove(request)
            self.town.answered(request)
            self.learn(request)

    def end(self) -> None:
        for request in self.open:
            request.give_up()
        for socket in self.sockets:
            socket.leave()
        self.town.finish()
        spaces = self.town.spaces_edge.spaces
        assert not spaces.runs.open, "a run never ended"
        assert not spaces._followers


story = partial(all_edges.story, Users, STEPS)
fuzz = partial(all_edges.fuzz, Users, STEPS)
