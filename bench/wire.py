"""The messages of the two raw ends, as bytes and as the few typed fields they read.

Written from the protocol's page (``docs/protocols/opensentience.md``), with none of the exchange's own code: the ends
must cost the same whether the exchange or the bare relay is between them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from bench.loads import Identity

# One time for all: making one costs an end 2 µs a call and says nothing.
_TS: Final = "2026-01-01T00:00:00Z"
_LENGTH: Final = struct.Struct(">I")

CALL: Final = (
    b'{"v":1,"type":"agent.tool.call","id":"m%d","ts":"2026-01-01T00:00:00Z","request_id":"q%d",'
    b'"payload":{"call_id":"c%d","tool_id":"%s","input":%s}}'
)
RESULT: Final = (
    b'{"v":1,"type":"agent.tool.result","id":"r%d","ts":"2026-01-01T00:00:00Z","request_id":"%s","correlation_id":"%s",'
    b'"payload":{"call_id":"%s","status":"succeeded","output":%s}}'
)
INPUT_SCHEMA: Final = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Envelope(Struct):
    """What every message has around it."""

    type: str
    payload: Raw = Raw(b"{}")
    request_id: str = ""
    correlation_id: str = ""


class ToolCall(Struct):
    """A call, as the provider reads it."""

    call_id: str
    input: Raw


class ToolResult(Struct):
    """A result, as the caller reads it."""

    call_id: str
    status: str


class Welcome(Struct):
    """What an end has to know of its session."""

    session_id: str


class Registered(Struct):
    """Which tools were taken."""

    registered: tuple[str, ...] = ()


envelope: Final = msgspec.json.Decoder(Envelope).decode
tool_call: Final = msgspec.json.Decoder(ToolCall).decode
tool_result: Final = msgspec.json.Decoder(ToolResult).decode
welcome: Final = msgspec.json.Decoder(Welcome).decode
registered: Final = msgspec.json.Decoder(Registered).decode


def frame(data: bytes) -> bytes:
    """Bytes with their length before them."""
    return _LENGTH.pack(len(data)) + data


def call(number: int, tool: bytes, body: bytes) -> bytes:
    """A call, without its length."""
    return CALL % (number, number, number, tool, body)


def result(number: int, message: Envelope, asked: ToolCall) -> bytes:
    """The result that returns what was given, without its length."""
    call_id = asked.call_id.encode()
    return RESULT % (number, message.request_id.encode(), message.correlation_id.encode(), call_id, bytes(asked.input))


def hello(identity: Identity) -> bytes:
    """Who we are."""
    return _message(
        "agent.hello",
        session_token=identity.token,
        agent_id=identity.agent,
        agent_version="1.0.0",
        protocol={"supported_versions": [1], "capabilities": ["tools", "calls"]},
    )


def register(agent: str, tool: str, *, side_effects: bool) -> bytes:
    """The one tool we offer."""
    offered = {
        "tool_id": f"{agent}/{tool}",
        "name": tool,
        "description": "Returns what it is given.",
        "side_effects": side_effects,
        "input_schema": INPUT_SCHEMA,
    }
    return _message("agent.tools.register", tools=[offered])


def heartbeat(session_id: str) -> bytes:
    """That we are still there."""
    return _message("agent.heartbeat", session_id=session_id, uptime_ms=1, inflight_calls=0, status="ok")


def _message(kind: str, **payload: Any) -> bytes:
    return frame(msgspec.json.encode({"v": 1, "type": kind, "id": kind, "ts": _TS, "payload": payload}))
