"""Doors with a gate of their own, of every edge: whose bodies are counted, and for whom (``edges.doors``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from trunkline.edges.console.edge import ConsoleEdge
from trunkline.edges.doors import Door
from trunkline.edges.known import EDGES
from trunkline.edges.request_scope import ANSWER, CLOSED, LOST
from trunkline.edges.shares import FREE_BYTES, SHARE, Share
from trunkline.testing.memory import MemoryExchange

PORT = 4700


def all_doors(exchange: MemoryExchange) -> list[tuple[str, Door]]:
    return [(name, door) for name, running in exchange.edges._running.items() for door in running.doors()]


def scope(kind: str, path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": kind,
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:%d" % PORT), (b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", PORT),
        "subprotocols": [],
        "extensions": {LOST: [], CLOSED: [], ANSWER: lambda *_: None, "websocket.http.response": {}},
        "state": {},
    }


def with_token(edge: str, path: str, *headers: tuple[bytes, bytes], kind: str = "") -> Callable[..., dict[str, Any]]:
    def asked(exchange: MemoryExchange) -> dict[str, Any]:
        token = exchange.token(edge, "me", kind)
        return scope("http", path, (b"authorization", b"Bearer " + token.encode()), *headers)

    return asked


def of_a_page(exchange: MemoryExchange) -> dict[str, Any]:
    console = exchange.edges._running["console"]
    assert isinstance(console, ConsoleEdge)
    cookie = b"trunkline_%d=%b" % (PORT, console.sign_ins.begin(exchange.feed.now()).cookie.encode())
    return scope("websocket", "/console/live", (b"cookie", cookie), (b"origin", b"http://127.0.0.1:%d" % PORT))


# By the first path of each door: a request of somebody who is let in there, with a body of whatever size he likes, and
# for whom that body counts.
LET_IN: dict[str, tuple[Callable[[MemoryExchange], dict[str, Any]], str]] = {
    "/mcp": (
        with_token("mcp", "/mcp", (b"accept", b"application/json, text/event-stream")),
        "mcp:me",
    ),
    "/api/agent": (with_token("chiffon", "/api/agent/message", kind="infra"), "chiffon:me"),
    "/console/live": (of_a_page, "console"),
}
# Why nothing has to be counted.
NOT_COUNTED = {
    "/": "a body there has 4,096 bytes at most, which are free",
    "/oauth/callback": "it reads no body",
}


@pytest.fixture
async def exchange(tmp_path: Path) -> MemoryExchange:
    return MemoryExchange(edges=EDGES, live=asyncio.get_running_loop(), home=tmp_path)


async def test_a_door_with_a_gate_of_its_own_says_whose_it_is(exchange: MemoryExchange) -> None:
    """Under the name of another edge, or of none, all of its callers would count as one stranger."""
    assert {(name, door.gate_of) for name, door in all_doors(exchange) if door.gate_of} == {
        (name, name) for name in ("mcp", "chiffon", "console", "mounts")
    }


async def test_every_door_with_a_gate_of_its_own_counts_what_its_callers_send(exchange: MemoryExchange) -> None:
    own = {door.prefixes[0]: door for _, door in all_doors(exchange) if door.gate_of}
    assert own.keys() == LET_IN.keys() | NOT_COUNTED.keys(), "say who is let in, or why nothing has to be counted"
    for prefix, (asked, who) in LET_IN.items():
        given = asked(exchange)
        counted: list[Share | None] = []

        async def receive(given: dict[str, Any] = given, counted: list[Share | None] = counted) -> Message:
            counted.append(given.get(SHARE))
            is_first, kind = len(counted) == 1, given["type"]
            if kind == "websocket":
                return {"type": "websocket.connect"} if is_first else {"type": "websocket.disconnect", "code": 1000}
            if is_first:
                return {"type": "http.request", "body": b" " * (FREE_BYTES + 1), "more_body": True}
            return {"type": "http.disconnect"}

        async def send(_message: Message) -> None:
            pass

        await own[prefix].app(given, receive, send)
        assert len(counted) == 2, f"{prefix}: nobody was let in"
        assert [share and share._who for share in counted[1:]] == [who], prefix
