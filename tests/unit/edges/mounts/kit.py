"""A server that a test speaks for, and an exchange in memory that has mounted it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from trunkline.config import AgentProgram, Config, McpServer
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.edges.mounts.session import Said, Session
from trunkline.edges.piped import KeptOwner
from trunkline.events import AgentExited, AgentLaunched
from trunkline.model import ProcessIdentity
from trunkline.shown import AgentView
from trunkline.testing.memory import MemoryExchange

WAIT_S = 20.0
SCHEMA = {"type": "object"}
ECHO = {"name": "echo", "description": "Echo.", "inputSchema": SCHEMA}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s"}}


def line(message: object) -> bytes:
    return json.dumps(message).encode()


class HasMounted:
    """Who has an exchange in memory that runs, with one server in it: `mcp.x`."""

    exchange: MemoryExchange

    @property
    def view(self) -> AgentView:
        return next(view for view in self.exchange.views.agents() if view.agent_id == "mcp.x")

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110  (nothing calls back for this)
                await asyncio.sleep(0.01)


class Talk:
    """One session, and what it has said."""

    def __init__(self) -> None:
        self.session = Session("0.0.0")
        self.session.begin()

    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in self.session.take_output()]

    def one(self) -> dict[str, Any]:
        [message] = self.sent()
        return message

    def says(self, message: object) -> list[Said]:
        return self.session.hear(line(message))

    def answers(self, request: dict[str, Any], result: object) -> list[Said]:
        return self.says({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def refuses(self, request: dict[str, Any], code: int, **more: object) -> list[Said]:
        return self.says({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": "no", **more}})


def ready(*tools: object, era: str = "2026-07-28", capabilities: dict[str, Any] | None = None) -> Talk:
    """A session whose server has these tools."""
    talk = Talk()
    found = {"tools": {}} if capabilities is None else capabilities
    if era == "2026-07-28":
        talk.answers(talk.one(), {"supportedVersions": [era], "capabilities": found})
    else:
        talk.refuses(talk.one(), -32601)
        talk.answers(talk.one(), {"protocolVersion": era, "capabilities": found, "serverInfo": {}})
        assert talk.session.take_output()[0].method == "notifications/initialized"
        talk.session.relist()
    return talk


class Run:
    """One run of a server: what it was written, and whether it was ended."""

    def __init__(self, number: int) -> None:
        self.run_id = f"run-{number}"
        self.identity = ProcessIdentity(1000 + number, 7)
        self.token_sha256 = f"{number:064x}"
        self.written = b""
        self.endings: list[str] = []
        self.reads = True

    def write(self, data: bytes) -> bool:
        self.written += data
        return self.reads

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def stop(self) -> None:
        self.endings.append("")

    def hung(self, reason: str) -> None:
        self.endings.append(reason)


class Programs:
    """The host's side, moved by hand."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[AgentProgram, KeptOwner]] = {}
        # Why one of them cannot start.
        self.problems: dict[str, str] = {}

    def keep(self, program: AgentProgram, owner: KeptOwner, *, edge: str, table: str) -> str:
        assert (edge, table) == ("mcp", "[[mcp]]")
        self.kept[program.id] = program, owner
        return self.problems.get(program.id, "")

    def release(self, agent_id: str) -> None:
        del self.kept[agent_id]


class Server:
    """A mounted server on pipes, whose lines a test writes."""

    def __init__(self, exchange: MemoryExchange, programs: Programs, name: str = "x") -> None:
        self.agent_id = f"mcp.{name}"
        self._exchange = exchange
        self._programs = programs
        self._runs = 0
        self.run: Run

    @property
    def owner(self) -> KeptOwner:
        return self._programs.kept[self.agent_id][1]

    def begin(self) -> Run:
        self._runs += 1
        self.run = Run(self._runs)
        launched = AgentLaunched(self.agent_id, self.run.run_id, self.run.identity, self.run.token_sha256)
        self._exchange.feed.feed([launched])
        self.owner.began(self.run)
        return self.run

    def end(self) -> None:
        self.owner.ended("exit code 1")
        self._exchange.feed.feed([AgentExited(self.agent_id, self.run.run_id, exit_code=1)])

    def read(self) -> list[dict[str, Any]]:
        data, self.run.written = self.run.written, b""
        return [json.loads(one) for one in data.splitlines()]

    def one(self) -> dict[str, Any]:
        [message] = self.read()
        return message

    def says(self, *messages: object) -> None:
        for message in messages:
            self.owner.received(message + b"\n" if isinstance(message, bytes) else line(message) + b"\n")

    def answers(self, request: dict[str, Any], result: object) -> None:
        self.says({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def comes_in(self, *tools: object) -> None:
        """Up to the list of its tools."""
        self.begin()
        self.answers(self.one(), {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
        self.answers(self.one(), {"tools": list(tools)})


async def mounted(*servers: McpServer, **options: Any) -> tuple[MemoryExchange, Server]:
    """An exchange, and its first server."""
    programs = Programs()
    found = servers or (McpServer(id="x", command=("x",)),)
    exchange = MemoryExchange(edges=(MOUNTS,), config=Config(mcp_servers=found), programs=programs, **options)
    await exchange.edges.start()
    return exchange, Server(exchange, programs, found[0].id)
