"""An exchange that does what a test tells it: no hub, no ledger, the real ``Exchange`` protocol."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw

from trunkline.edges.exchange import Sink, Watcher
from trunkline.effects import Answer, Progress, Reply, ToSession, Wait
from trunkline.errors import ConfigError
from trunkline.events import CallRequested, Event, TokenIssued
from trunkline.model import (
    AgentView,
    CallView,
    Decision,
    Now,
    Peer,
    Policy,
    Principal,
    Question,
    Rule,
    Status,
    TokenView,
    ToolView,
    Verdict,
    fault,
)

OPERATOR_TOKEN = "tlk_operator"
ALICE_TOKEN = "tlk_alice"
APPROVER_TOKEN = "tlk_approver"
CALL_ID = "00000000-0000-8000-8000-00000000002a"
BOBS_CALL_ID = "00000000-0000-8000-8000-00000000002b"
SHA256 = "ab" * 32

Script = Callable[[Any], list[ToSession]]


def view(call_id: str, caller: str, status: Status = Status.SUCCEEDED, **more: Any) -> CallView:
    return CallView(call_id, "com.example.echo/say", caller, status, "2026-11-15T10:00:00.000Z", "chat:1", **more)


class ScriptedExchange:
    """Answers a call with its own input, unless ``script`` says otherwise for that event."""

    instance = "test"

    def __init__(self) -> None:
        self.fed: list[Event] = []
        self.script: dict[type[Event], Script] = {}
        self.sinks: dict[int, Sink] = {}
        self.watchers: list[Watcher] = []
        self.on_fed: Callable[[Event], None] = lambda _: None
        self.principals = {
            hashlib.sha256(OPERATOR_TOKEN.encode()).hexdigest(): Principal("operator"),
            hashlib.sha256(ALICE_TOKEN.encode()).hexdigest(): Principal("http:alice"),
            hashlib.sha256(APPROVER_TOKEN.encode()).hexdigest(): Principal("http:carol", ("approve",)),
        }
        self.known_calls = [
            view(BOBS_CALL_ID, "http:bob"),
            view(CALL_ID, "http:alice", output=Raw(b'{"n": 12345678901234567890}')),
        ]
        self.open_questions = [
            Question("a42", "call", "http:alice", "2026-11-15T10:00:00.000Z", "2026-11-15T11:00:00.000Z", "a rule asks")
        ]
        self.blobs = {SHA256: b'"' + b"x" * 2_000_000 + b'"'}
        self.reload_error: ConfigError | None = None
        self.figures: dict[str, object] = {"uptime_s": 1.5, "settled_calls": {"succeeded": 3, 'we"ird\n': 1}}
        self.break_down = False

    # -- events ----

    def now(self) -> Now:
        return Now(time.monotonic(), time.time())

    def open_session(self, sink: Sink) -> int:
        number = len(self.sinks) + 1
        self.sinks[number] = sink
        return number

    def close_session(self, session: int) -> None:
        del self.sinks[session]

    def feed(self, events: Sequence[Event]) -> None:
        for event in events:
            self.fed.append(event)
            for effect in self.script.get(type(event), self.default)(event):
                self.say(effect)
            self.on_fed(event)

    def say(self, effect: ToSession) -> None:
        sink = self.sinks[effect.session]
        sink.send(effect, self.now())
        sink.flush()

    def default(self, event: Any) -> list[ToSession]:
        if isinstance(event, CallRequested):
            return [accepted(event), answered(event, output=event.input)]
        if isinstance(event, TokenIssued):
            return [Reply(event.session, 0, event.ref, id="t17")]
        if hasattr(event, "ref"):
            return [Reply(event.session, 0, event.ref, id="d-1")]
        return []

    def peer_of(self, pid: int, uid: int) -> Peer:
        raise AssertionError("HTTP has no peer process")

    # -- reading ----

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        assert edge == "http"
        return self.principals.get(token_sha256)

    def agents(self) -> list[AgentView]:
        if self.break_down:
            raise RuntimeError("canary-in-the-exception")
        return [AgentView("com.example.echo", "opensentience", "ready", health="ok", tools=1)]

    def tools(self) -> list[ToolView]:
        schema = Raw(b'{"type": "object"}')
        return [ToolView("com.example.echo/say", "available", "Says it.", schema, side_effects=False)]

    def call(self, call_id: str) -> CallView | None:
        return next((item for item in self.known_calls if item.call_id == call_id), None)

    def calls(
        self, limit: int, before: int | None, correlation_id: str | None = None
    ) -> tuple[list[CallView], int | None]:
        start = 0 if before is None else before
        found = [item for item in self.known_calls if correlation_id in {None, item.correlation_id}]
        page = found[start : start + limit]
        return page, start + limit if start + limit < len(found) else None

    def questions(self) -> list[Question]:
        return self.open_questions

    def tokens(self) -> list[TokenView]:
        return [TokenView("t17", "http", "alice", "2026-11-15T10:00:00.000Z")]

    def policy(self) -> Policy:
        return Policy((Rule("builtin:1", "operator", "*", Decision.ALLOW),), "v1")

    def check(self, caller: str, tool_id: str, body: Raw | None) -> Verdict:
        return Verdict(
            Decision.ASK, "builtin:3", f"{caller} {tool_id} {'-' if body is None else bytes(body)!r}", caller
        )

    def blob(self, sha256: str) -> bytes | None:
        return self.blobs.get(sha256)

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        known = call_id == CALL_ID or correlation_id in {"chat:1", "a/b"}
        return [b'{"kind":"call.accepted","n":42}', b'{"kind":"call.settled","n":43}'] if known else []

    def status(self) -> dict[str, object]:
        return self.figures

    def reload(self) -> None:
        if self.reload_error is not None:
            raise self.reload_error

    def watch(self, sink: Watcher) -> None:
        self.watchers.append(sink)

    def unwatch(self, sink: Watcher) -> None:
        self.watchers.remove(sink)


def accepted(event: CallRequested, status: Status = Status.RUNNING) -> Wait:
    return Wait(event.session, 0, event.ref, CALL_ID, status, correlation_id="chat:1")


def asks(event: CallRequested) -> Wait:
    return Wait(event.session, 0, event.ref, CALL_ID, Status.WAITING_APPROVAL, "a42", 1_794_742_800_000, "chat:1")


def answered(event: CallRequested, status: Status = Status.SUCCEEDED, **more: Any) -> Answer:
    times = {"started_ms": 1_794_736_800_000, "finished_ms": 1_794_736_800_250}
    return Answer(event.session, 0, event.ref, CALL_ID, status, correlation_id="chat:1", **{**times, **more})


def refused(event: CallRequested, code: str, **more: Any) -> Answer:
    return Answer(event.session, 0, event.ref, CALL_ID, Status.FAILED, fault=fault(code, **more), refused=True)


def progressed(event: CallRequested, seq: int, data: bytes, channel: str = "stdout") -> Progress:
    return Progress(event.session, 0, event.ref, CALL_ID, seq, channel, Raw(data))
