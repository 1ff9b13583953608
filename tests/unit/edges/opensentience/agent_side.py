"""What tests of the agent's side are made of: a Core's frames as bytes, and sessions in each state."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
from msgspec import Raw

from trunkline.edges.opensentience.agent_session import AgentSession, Offer
from trunkline.model import Fault, Now, ToolDefinition, fault

TOKEN = "tok-8b1f-planted-secret"
NOW = Now(1000.0, 1_780_000_000.0)
ECHO = "com.example.echo/echo"
IDS = {"request_id": "r-1", "correlation_id": "chat_session:abc", "causation_id": "c-0"}


class EchoInput(msgspec.Struct, forbid_unknown_fields=True):
    text: str


def read_echo(body: Raw) -> dict[str, Any] | Fault:
    try:
        return msgspec.structs.asdict(msgspec.json.decode(body, type=EchoInput))
    except msgspec.ValidationError:
        return fault("tool.invalid_input", "text is missing or no string")


def definition(tool_id: str = ECHO) -> ToolDefinition:
    return ToolDefinition(tool_id, "Says it back.", Raw(b'{"type":"object"}'), side_effects=False)


def fresh(now: Now = NOW) -> AgentSession:
    return AgentSession(
        "com.example.echo", "1.2.3", TOKEN, [Offer(definition(), read_echo)], now, bytes(10), manifest_hash="ab" * 32
    )


def later(seconds: float) -> Now:
    return Now(NOW.mono + seconds, NOW.wall + seconds)


def core(type_: str, payload: object = None, **envelope: object) -> bytes:
    body = json.dumps(
        {
            "v": 1,
            "type": type_,
            "id": f"core-{type_}",
            "ts": "2026-01-16T12:00:00Z",
            "payload": {} if payload is None else payload,
            **envelope,
        }
    ).encode()
    return struct.pack(">I", len(body)) + body


def welcome(**payload: object) -> bytes:
    return core(
        "core.welcome",
        {
            "accepted_version": 1,
            "session_id": "s-1",
            "heartbeat_interval_ms": 10_000,
            "max_frame_bytes": 4_194_304,
            "server": {"core_version": "0.1.0", "instance_id": "i-1"},
            "capabilities": ["calls", "directives"],
            **payload,
        },
    )


def call(call_id: str = "c-1", body: object = None, tool_id: str = ECHO, **payload: object) -> bytes:
    given = {"call_id": call_id, "tool_id": tool_id, "input": {"text": "hi"} if body is None else body, **payload}
    return core("core.tool.call", given, **IDS)


def spoken(session: AgentSession) -> list[dict[str, Any]]:
    """What the session wrote, frame by frame."""
    data, frames = session.take_output(), []
    while data:
        (size,) = struct.unpack(">I", data[:4])
        frames.append(json.loads(data[4 : 4 + size]))
        data = data[4 + size :]
    return frames


def ready(**payload: object) -> AgentSession:
    session = fresh()
    session.receive(welcome(**payload), NOW)
    session.take_output()
    return session


def running(**payload: object) -> AgentSession:
    session = ready(**payload)
    session.receive(call(), NOW)
    return session
