"""A whole exchange without a world: a real hub and the real edge on a clock that stands still until told.

Every entry is on disk at once. ``Kit.advance`` lets time pass for the hub's alarms and the edge's timers alike.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from trunkline import effects, entries, events
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.messages import Envelope
from trunkline.edges.chiffon.session import AgentSession, Settings
from trunkline.edges.chiffon.switchboard import TICK_S, Caller, Switchboard
from trunkline.effects import Answer, Effect, Progress, ToSession, Wait
from trunkline.hub import invariants, views
from trunkline.hub.hub import Hub
from trunkline.model import (
    OPERATOR,
    Decision,
    HubSettings,
    Now,
    Policy,
    Principal,
    ProcessIdentity,
    Rule,
    ToolDefinition,
    Verdict,
)

ALL = Policy((Rule("all", "*", "*", Decision.ALLOW),), "all")
BOSS = Principal(OPERATOR)


class Desk:
    """Whoever calls: keeps what is said."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.waits: dict[str, Wait] = {}
        self.progress: list[Progress] = []

    def send(self, effect: ToSession, now: Now) -> None:
        match effect:
            case Answer():
                assert effect.ref not in self.answers, "answered twice"
                self.answers[effect.ref] = effect
            case Wait():
                self.waits[effect.ref] = effect
            case Progress():
                self.progress.append(effect)

    def flush(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FakeExchange:
    """What an edge asks of the host, over a real hub."""

    instance = "test"

    def __init__(self, policy: Policy, log: list[entries.Entry] | None = None) -> None:
        self.mono, self.wall = 1000.0, 1_800_000_000.0
        self.log: list[entries.Entry] = log if log is not None else []
        self.sinks: dict[int, Any] = {}
        self._sessions = itertools.count(1)
        self._waiting: deque[events.Event] = deque()
        self._is_feeding = False
        self.effects: list[Effect] = []
        self.blobs: dict[str, bytes] = {}
        ids = itertools.count(1)
        self.hub = Hub(
            mac_key=b"k" * 32,
            call_prefix="12345678-1234-8234-a234-",
            new_id=lambda: str(uuid.UUID(int=next(ids))),
            operator_sha256="operator-token",
            launch_edge="opensentience",
            operator_edge="http",
            settings=HubSettings(policy),
        )
        self.hub.fold([entries.decode(entries.encode(entry)) for entry in self.log])
        self.feed([events.ExchangeStarted("1.0", "here")])

    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def open_session(self, sink: Any) -> int:
        number = next(self._sessions)
        self.sinks[number] = sink
        return number

    def close_session(self, session: int) -> None:
        self.sinks.pop(session, None)

    def feed(self, happened: Sequence[events.Event]) -> None:
        self._waiting.extend(happened)
        if self._is_feeding:
            return
        self._is_feeding = True
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, events.CallRequested):
                event = self._with_earlier(event)
            for effect in self.hub.handle(event, self.now()):
                if isinstance(effect, entries.Entry):
                    self.log.append(effect)
                    self.hub.stored(effect.n)
                    if isinstance(effect, entries.CallSettled) and effect.output is not None:
                        data = bytes(effect.output)
                        self.blobs[hashlib.sha256(data).hexdigest()] = data
                else:
                    assert isinstance(effect, ToSession)
                    self.effects.append(effect)
                    if effect.session in self.sinks:
                        self.sinks[effect.session].send(effect, self.now())
            invariants.check(self.hub)
        self._is_feeding = False

    def _with_earlier(self, event: events.CallRequested) -> events.CallRequested:
        key_id = self.hub.key_to_look_up(event)
        settled = {entry.call: entry for entry in self.log if isinstance(entry, entries.CallSettled)}
        for entry in reversed(self.log):
            if key_id and isinstance(entry, entries.CallAccepted) and entry.key_id == key_id and entry.n in settled:
                return msgspec.structs.replace(event, earlier=events.Earlier(entry, settled[entry.n]))
        return event

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        return self.hub.credentials.identify(edge, token_sha256)

    def agents(self) -> list[Any]:
        return [views.agent(self.hub, agent) for agent in self.hub.registry.agents.values()]

    def tools(self) -> list[Any]:
        return views.tools(self.hub, self.now())

    def call(self, call_id: str) -> Any:
        return views.call(self.hub, call_id)

    def check(self, caller: str, tool_id: str, body: Raw | None) -> Verdict:
        return views.dry_run(self.hub, caller, tool_id, body, self.now())

    def blob(self, sha256: str) -> bytes | None:
        return self.blobs.get(sha256)

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        calls = {
            entry.n
            for entry in self.log
            if isinstance(entry, entries.CallAccepted) and correlation_id in (entry.correlation_id, entry.call_id)
        }
        found = [entry for entry in self.log if entry.n in calls or getattr(entry, "call", 0) in calls]
        return [entries.encode(entry) for entry in found]


class Kit:
    """The edge, from outside: tokens, agents that speak raw messages, calls, time."""

    def __init__(
        self, policy: Policy = ALL, *, timeout_s: float = 30.0, log: list[entries.Entry] | None = None, **work: str
    ) -> None:
        self.exchange = FakeExchange(policy, log)
        self.policy = policy
        self.settings = Settings(timeout_s, work)
        self.switchboard = Switchboard(self.exchange, self.settings, ProcessIdentity(1, 1))  # type: ignore[arg-type]
        self.desk = Desk()
        self.session = self.exchange.open_session(self.desk)
        self._refs = itertools.count(1)

    def restarted(self) -> Kit:
        """Another process on the same record; nobody is connected."""
        return Kit(self.policy, timeout_s=self.settings.timeout_s, log=self.exchange.log, **self.settings.work)

    # -- people --------------------------------------------------------------------------------------------------------

    def token(self, agent: str, kind: str) -> bytes:
        """A token, made by the operator."""
        secret = hashlib.md5(f"{agent}:{kind}".encode(), usedforsecurity=False).hexdigest().encode()
        digest = hashlib.sha256(secret).hexdigest()
        if self.exchange.identify("chiffon", digest) is None:
            self.exchange.feed([events.TokenIssued(self.session, "t", BOSS, "chiffon", agent, digest, (), kind)])
        return secret

    def call(self, tool_id: str, value: object = None, *, by: Principal = BOSS, **terms: Any) -> Called:
        """A call; what came of it so far."""
        ref = f"call-{next(self._refs)}"
        body = Raw(msgspec.json.encode({} if value is None else value))
        self.exchange.feed([events.CallRequested(self.session, ref, by, tool_id, body, announce=True, **terms)])
        return Called(self, ref)

    # -- agents --------------------------------------------------------------------------------------------------------

    async def agent(
        self, agent_id: str = "infra-1", kind: str = "infra", work: Sequence[str] = ("run",), **terms: Any
    ) -> RawAgent:
        """An agent that registered."""
        caller = self.switchboard.identify(self.token(agent_id, kind))
        fields = {"agent_id": agent_id, "agent_type": kind, "supported_versions": ["1.0"], "work_types": list(work)}
        answer = await self.switchboard.register(caller, as_fields({**fields, **terms}), "test")
        return RawAgent(self, caller, kind, answer)

    def offer(self, agent_id: str, *definitions: ToolDefinition) -> Worker:
        """An agent of another edge, with tools of its own."""
        worker = Worker(self)
        digest, run_id = f"launch-{agent_id}", f"run-{agent_id}"
        process = ProcessIdentity(7, 7)
        self.exchange.feed(
            [
                events.AgentLaunched(agent_id, run_id, process, digest),
                events.AgentArrived(
                    worker.session,
                    "a",
                    "opensentience",
                    agent_id,
                    "1.0.0",
                    digest,
                    events.Peer("test", process, run_id),
                ),
                events.ToolsOffered(worker.session, "o", definitions),
            ]
        )
        return worker

    def orchestrator(self, agent_id: str = "boss") -> RawAgent:
        """Another orchestrator, known by its token."""
        caller = self.switchboard.identify(self.token(agent_id, "orchestrator"))
        return RawAgent(self, caller, "orchestrator", {})

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float, *alive: RawAgent) -> None:
        """Let time pass. Agents that are named give a sign of life all the while."""
        exchange = self.exchange
        until = exchange.mono + seconds
        while exchange.mono < until - 1e-9:
            step = min(TICK_S, until - exchange.mono)
            exchange.mono += step
            exchange.wall += step
            for agent in alive:
                agent.beat()
            if (at := exchange.hub.wake_at()) is not None and at <= exchange.mono:
                exchange.feed([events.Woke()])
            self.switchboard.due(exchange.now())

    def notices(self) -> list[str]:
        """The codes of what was noticed."""
        return [entry.code for entry in self.exchange.log if isinstance(entry, entries.Noticed)]

    def notes(self) -> list[str]:
        """What was noted about calls."""
        return [entry.note for entry in self.exchange.log if isinstance(entry, entries.CallNoted)]


class Called:
    """A call by the operator."""

    def __init__(self, kit: Kit, ref: str) -> None:
        self._kit = kit
        self.ref = ref

    @property
    def answer(self) -> Answer | None:
        return self._kit.desk.answers.get(self.ref)

    @property
    def outcome(self) -> Answer:
        found = self.answer
        assert found is not None, "no answer yet"
        return found

    @property
    def code(self) -> str | None:
        return None if self.outcome.fault is None else self.outcome.fault.code

    @property
    def details(self) -> dict[str, Any]:
        assert self.outcome.fault is not None
        return dict(self.outcome.fault.details or {})

    @property
    def output(self) -> Any:
        assert self.outcome.output is not None
        return json.loads(bytes(self.outcome.output))

    @property
    def call_id(self) -> str:
        return self.outcome.call_id if self.answer is not None else self._kit.desk.waits[self.ref].call_id


class Worker:
    """An agent of another edge: keeps what it is sent."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.delivered: list[effects.Deliver] = []
        self.session = kit.exchange.open_session(self)

    def send(self, effect: ToSession, now: Now) -> None:
        if isinstance(effect, effects.Deliver):
            self.delivered.append(effect)

    def flush(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def finish(self, value: object = None, status: Any = None, fault: Any = None, at: int = -1) -> None:
        output = None if value is None else Raw(msgspec.json.encode(value))
        status = status or messages_status("succeeded")
        self.kit.exchange.feed([events.CallFinished(self.session, self.delivered[at].call_id, status, output, fault)])

    def show(self, channel: str, data: object, seq: int = 1) -> None:
        body = Raw(msgspec.json.encode(data))
        self.kit.exchange.feed([events.CallProgressed(self.session, self.delivered[-1].call_id, seq, channel, body)])


def messages_status(word: str) -> Any:
    from trunkline.model import Status

    return Status(word)


class RawAgent:
    """A peer that speaks raw messages. ``fetch`` is its poll."""

    def __init__(self, kit: Kit, caller: Caller, kind: str, answer: dict[str, Any]) -> None:
        self.kit = kit
        self.caller = caller
        self.kind = kind
        self.answer = answer

    @property
    def session(self) -> AgentSession:
        found = self.kit.switchboard.session_of(self.caller)
        assert isinstance(found, AgentSession)
        return found

    def beat(self) -> None:
        """A sign of life."""
        self.kit.switchboard.session_of(self.caller).heard(self.kit.exchange.now())

    def fetch(self) -> list[dict[str, Any]]:
        """What there is to fetch, every message judged by the rules of the wire."""
        return [valid(json.loads(letter.data)) for letter in self.kit.switchboard.mailbox_of(self.caller).take()]

    def fetch_one(self) -> dict[str, Any]:
        """The one message that is there."""
        (found,) = self.fetch()
        return found

    def say(self, message: dict[str, Any]) -> Envelope | None:
        """One message in; the reply if there is one at once."""
        reply = self.kit.switchboard.receive(self.caller, as_fields(message))
        if reply is not None:
            valid(json.loads(messages.encode(reply)))
        return reply

    def status(self, request: dict[str, Any], percent: int = 10, status: str = "running", **step: Any) -> None:
        payload = {"task_id": request["payload"]["task_id"], "status": status, "progress_percent": percent}
        self.say(reply_to(request, "work_status", {**payload, **({"step": step} if step else {})}, self.kind))

    def result(self, request: dict[str, Any], output: str = "done", exit_code: int = 0, **fields: Any) -> None:
        payload = {
            "task_id": request["payload"]["task_id"],
            "status": "failed" if exit_code else "success",
            "exit_code": exit_code,
            "output": output,
            "resources_used": {"duration_seconds": 1, "gpu_vram_mb": 0, "cpu_time_ms": 5},
        }
        self.say(reply_to(request, "work_result", payload, self.kind, **fields))

    def error(self, request: dict[str, Any], code: int, text: str = "no", **context: Any) -> None:
        payload = {"error_code": code, "error_message": text, "error_context": context}
        self.say(reply_to(request, "error", payload, self.kind))


def as_fields(message: dict[str, Any]) -> messages.Fields:
    """A message as a rim hands it on."""
    return messages.read_object(json.dumps(message).encode())


def envelope(kind: str, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message with an envelope around it."""
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "orchestrator" if kind == "work_request" else "infra",
        "to_agent": "infra" if kind == "work_request" else "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": str(uuid.uuid4()),
        "type": kind,
        "payload": payload,
        **fields,
    }


def request(work_type: str = "run", parameters: object = None, **fields: Any) -> dict[str, Any]:
    """A work_request of another orchestrator."""
    payload: dict[str, Any] = {"task_id": str(uuid.uuid4()), "work_type": work_type, "parameters": parameters or {}}
    hints = fields.pop("hints", None)
    if hints is not None:
        payload["hints"] = hints
    return envelope("work_request", payload, **fields)


def reply_to(request: dict[str, Any], kind: str, payload: dict[str, Any], sender: str, **fields: Any) -> dict[str, Any]:
    """A message about a request, with its ids."""
    ids = {"trace_id": request["trace_id"], "request_id": request["request_id"]}
    return envelope(kind, payload, from_agent=sender, to_agent="orchestrator", **{**ids, **fields})


EMITTED: list[dict[str, Any]] = []


def valid(message: dict[str, Any]) -> dict[str, Any]:
    """A message of ours; it has to read back by its own rules."""
    read = messages.read_envelope(as_fields(message))
    messages.read_payload(read)
    assert message["timestamp"].endswith("Z")
    EMITTED.append(message)
    return message
