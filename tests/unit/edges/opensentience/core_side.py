"""What the tests of Core's session share: messages written by hand, and a session to tell them to.

Messages are made with the standard library, so that our own writer never vouches for our own reader.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from trunkline.edges.offers import JudgingBudget
from trunkline.edges.opensentience.session import CoreSession
from trunkline.edges.opensentience.settings import Settings
from trunkline.effects import Admit, ConfirmTools, Deliver, ToSession
from trunkline.events import AgentArrived, Event, Noticed
from trunkline.model import Now, Peer

NOW = Now(1000.0, 1_768_564_800.0)
SESSION = 7
AGENT = "com.example.echo"
TOOL = f"{AGENT}/echo"
TOKEN = "s3cr3t-launch-token"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
CALL = "0197b1a0-0000-8000-8000-00000000002a"


def later(seconds: float) -> Now:
    return Now(NOW.mono + seconds, NOW.wall + seconds)


def envelope(type_: str, payload: Any = None, **fields: Any) -> dict[str, Any]:
    """A message with everything an envelope needs; a field given as ``...`` is left out."""
    message = {
        "v": 1,
        "type": type_,
        "id": f"id-of-{type_}",
        "ts": "2026-01-16T12:00:00Z",
        "payload": {} if payload is None else payload,
        **fields,
    }
    return {name: value for name, value in message.items() if value is not ...}


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def frame(message: Any) -> bytes:
    return framed(json.dumps(message).encode())


def hello(**fields: Any) -> dict[str, Any]:
    """A payload of ``agent.hello``; ``...`` leaves a field out."""
    payload = {
        "session_token": TOKEN,
        "agent_id": AGENT,
        "agent_version": "1.0.0",
        "protocol": {"supported_versions": [1], "capabilities": ["tools", "streaming", "calls", "directives"]},
        **fields,
    }
    return {name: value for name, value in payload.items() if value is not ...}


def tool(name: str = "echo", **fields: Any) -> dict[str, Any]:
    described = {
        "tool_id": f"{AGENT}/{name}",
        "name": name,
        "description": "says it again",
        "input_schema": SCHEMA,
        **fields,
    }
    return {name: value for name, value in described.items() if value is not ...}


def deliver(call_id: str = CALL, **fields: Any) -> Deliver:
    given: dict[str, Any] = {
        "session": SESSION,
        "after": 0,
        "call_id": call_id,
        "tool_id": TOOL,
        "input": Raw(b'{"text":"hi"}'),
        "caller": "operator",
        "correlation_id": "chat:1",
        **fields,
    }
    return Deliver(**given)


class Talk:
    """One session, what happened and what it said."""

    def __init__(self, *, seed: bytes = bytes(10), judging: JudgingBudget | None = None, **settings: Any) -> None:
        chosen = Settings("0.1.0", "i-1", **settings)
        self.session = CoreSession(SESSION, chosen, Peer("pid:42"), seed=seed, now=NOW, judging=judging)
        self.events: list[Event] = []
        self.now = NOW

    @property
    def state(self) -> str:
        return self.session.state.value

    def receive(self, data: bytes) -> list[Event]:
        """Bytes arrive; everything that follows at once happens too."""
        events = self.session.receive(data, self.now) + self.settle()
        self.events += events
        return events

    def settle(self) -> list[Event]:
        """What the session wants to do at once."""
        events: list[Event] = []
        while self.session.wake_at() == 0.0:
            events += self.session.wake(self.now)
        return events

    def tell(self, type_: str, payload: Any = None, **fields: Any) -> list[Event]:
        """The agent says this."""
        return self.receive(frame(envelope(type_, payload, **fields)))

    def send(self, effect: ToSession) -> list[dict[str, Any]]:
        """The hub wants this said; what was said."""
        self.session.send(effect, self.now)
        self.events += self.settle()
        return self.said()

    def said(self) -> list[dict[str, Any]]:
        """Everything the session wrote since the last time."""
        return messages(self.session.take_output())

    def wake(self, seconds: float) -> list[Event]:
        """So much time after the start, the session's timer rings."""
        self.now = later(seconds)
        events = self.session.wake(self.now)
        self.events += events
        return events

    def arrive(self, **fields: Any) -> AgentArrived:
        events = self.tell("agent.hello", hello(**fields))
        assert isinstance(events[0], AgentArrived), events
        return events[0]

    def admit(self, **fields: Any) -> dict[str, Any]:
        """Through the handshake; the welcome."""
        (welcome,) = self.send(Admit(SESSION, 0, self.arrive(**fields).ref))
        return welcome

    def register(self, *names: str, **fields: Any) -> None:
        self.tell("agent.tools.register", {"tools": [tool(name, **fields) for name in names]}, id="r")
        self.send(ConfirmTools(SESSION, 0, "r", tuple(f"{AGENT}/{name}" for name in names)))

    def notes(self) -> list[str]:
        return [event.code for event in self.events if isinstance(event, Noticed)]


def ready(**settings: Any) -> Talk:
    """A conversation past its handshake."""
    talk = Talk(**settings)
    talk.admit()
    talk.events.clear()
    return talk


def messages(output: bytes) -> list[dict[str, Any]]:
    found = []
    while output:
        size = int.from_bytes(output[:4], "big")
        found.append(json.loads(output[4 : 4 + size]))
        output = output[4 + size :]
    return found


def result(call_id: str = CALL, **fields: Any) -> dict[str, Any]:
    payload = {"call_id": call_id, "status": "succeeded", "output": {"ok": True}, **fields}
    return {name: value for name, value in payload.items() if value is not ...}


def chunk(seq: Any = 1, call_id: str = CALL, **fields: Any) -> dict[str, Any]:
    payload = {"call_id": call_id, "seq": seq, "channel": "stdout", "data": {"text": "x"}, **fields}
    return {name: value for name, value in payload.items() if value is not ...}


# What an agent has to echo in its messages about CALL as `deliver` makes it.
ECHO = {"request_id": CALL, "correlation_id": "chat:1"}
