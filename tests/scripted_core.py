"""A Core that does what a test tells it, on a real Unix socket: written against the wire, not against our own code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

# A net below every wait; nothing here takes a fraction of it.
WAIT_S = 10.0
WELCOME: dict[str, Any] = {
    "accepted_version": 1,
    "session_id": "s-1",
    "heartbeat_interval_ms": 10_000,
    "max_frame_bytes": 4_194_304,
    "server": {"core_version": "0.1.0", "instance_id": "scripted"},
    "capabilities": ["calls", "directives"],
}
_ids = itertools.count(1)


class Conversation:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.heard: list[dict[str, Any]] = []

    def send(self, type_: str, payload: object = None, **envelope: object) -> str:
        """One message; returns its id."""
        name = f"m-{next(_ids)}"
        message = {
            "v": 1,
            "type": type_,
            "id": name,
            "ts": "2026-01-16T12:00:00Z",
            "payload": payload or {},
            **envelope,
        }
        body = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(body)) + body)
        return name

    async def hear(self) -> dict[str, Any]:
        """The next message, whatever it is."""
        async with asyncio.timeout(WAIT_S):
            (size,) = struct.unpack(">I", await self._reader.readexactly(4))
            message: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        self.heard.append(message)
        return message

    async def expect(self, type_: str) -> dict[str, Any]:
        """The next message that is no heartbeat, which must be of this type."""
        while True:
            message = await self.hear()
            if message["type"] != "agent.heartbeat" or type_ == "agent.heartbeat":
                assert message["type"] == type_, message
                return message

    async def greet(self, **welcome: object) -> dict[str, Any]:
        """Take the agent in, and its tools; returns the hello."""
        hello = await self.expect("agent.hello")
        self.send("core.welcome", {**WELCOME, **welcome}, in_reply_to=hello["id"])
        return hello

    async def take_tools(self) -> dict[str, dict[str, Any]]:
        """Confirm the registration; returns the tools by name."""
        register = await self.expect("agent.tools.register")
        tools = {tool["name"]: tool for tool in register["payload"]["tools"]}
        names = [tool["tool_id"] for tool in tools.values()]
        self.send("core.tools.registered", {"registered": names}, in_reply_to=register["id"])
        return tools

    def call(self, tool_id: str, body: object = None, call_id: str = "c-1", **payload: object) -> None:
        """Ask for one run."""
        self.send(
            "core.tool.call",
            {"call_id": call_id, "tool_id": tool_id, "input": body or {}, **payload},
            request_id=f"r-{call_id}",
            correlation_id="k-1",
            causation_id="cause-1",
        )

    async def result(self, call_id: str = "c-1") -> dict[str, Any]:
        """The payload of the next message, which must be this call's result."""
        result: dict[str, Any] = (await self.expect("agent.tool.result"))["payload"]
        assert result["call_id"] == call_id
        return result

    async def closed(self) -> None:
        """Wait until the agent hung up, reading past what it still says."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                await self.hear()

    def hang_up(self) -> None:
        """Close from this side."""
        self._writer.close()


class ScriptedCore:
    """Listens; each connection comes out of ``accept``."""

    def __init__(self, path: Path) -> None:
        self.address = str(path / "core.sock")
        self._arrived: asyncio.Queue[Conversation] = asyncio.Queue()
        self._all: list[Conversation] = []

    async def accept(self) -> Conversation:
        """The next connection."""
        async with asyncio.timeout(WAIT_S):
            return await self._arrived.get()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(reader, writer)
        self._all.append(conversation)
        self._arrived.put_nowait(conversation)

    @contextlib.asynccontextmanager
    async def listening(self, *, tcp: bool = False) -> AsyncIterator[ScriptedCore]:
        """Listen inside the block."""
        if tcp:
            server: asyncio.Server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        else:
            server = await asyncio.start_unix_server(self._connected, self.address)
        try:
            yield self
        finally:
            server.close()
            for conversation in self._all:
                conversation.hang_up()
