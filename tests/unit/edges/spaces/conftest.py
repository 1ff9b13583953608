"""Spaces in a whole exchange in memory: real hub, record and files. Commands are the tests' own, or there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from trunkline.edges.edge import Edge, Surroundings
from trunkline.edges.spaces import serve, validate_events_message, validate_operations_message
from trunkline.edges.spaces.edge import SPACES, SpacesEdge
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.serve import NEWS, Spaces
from trunkline.edges.spaces.translate import encode, events_message
from trunkline.edges.waiting import call
from trunkline.effects import Answer
from trunkline.errors import WorkspaceError
from trunkline.events import CallRequested
from trunkline.model import Principal
from trunkline.testing.memory import ALLOW_ALL, BOSS, MemoryExchange
from trunkline.workspace.output import Capture
from trunkline.workspace.sandbox import CommandResult

NO_SANDBOX = "no sandbox holds here: install bubblewrap"


class Breakable:
    """A part of the exchange with defects: the methods in ``broken`` raise what none of them should."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.broken: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if name in self.broken:

            def defective(*_: Any, **__: Any) -> Any:
                raise ZeroDivisionError("secret text")

            return defective
        return found


class Commands:
    """A sandbox in which nothing runs: a command lasts until the test says how it ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._running: dict[str, asyncio.Future[CommandResult]] = {}
        self._news = asyncio.Event()

    async def run(self, _workspace: object, command: str, **_: object) -> CommandResult:
        self.begun.append(command)
        self._news.set()
        self._running[command] = asyncio.get_running_loop().create_future()
        try:
            return await self._running[command]
        finally:
            self.ended.append(command)

    async def wait_begun(self, command: str) -> None:
        async with asyncio.timeout(10):
            while command not in self.begun:
                self._news.clear()
                await self._news.wait()

    def end(self, command: str, exit_code: int = 0) -> None:
        nothing = Capture().finish()
        self._running[command].set_result(CommandResult(exit_code, False, None, nothing, nothing, 5))

    def fail(self, command: str, error: Exception) -> None:
        self._running[command].set_exception(error)


class Case:
    """An exchange with spaces. ``others`` are edges beside them; ``commands`` their sandbox, if there is one."""

    edge: SpacesEdge

    def __init__(self, home: Path, commands: Commands | None, others: Sequence[Edge] = (), **terms: Any) -> None:
        self.commands = commands
        self._others = others
        self.exchange = MemoryExchange(**{"policy": ALLOW_ALL, **terms, "edges": self._edges(), "home": home})

    def _edges(self) -> tuple[Edge, ...]:
        return (replace(SPACES, make=self._make), *self._others)

    def _make(self, given: Surroundings) -> SpacesEdge:
        self.views = Breakable(given.views)
        self.feed = Breakable(given.feed)
        self.edge = SpacesEdge(replace(given, views=self.views, feed=self.feed))
        return self.edge

    @property
    def spaces(self) -> Spaces:
        return self.edge.spaces

    async def start(self) -> None:
        await self.exchange.edges.start()

    async def stop(self) -> None:
        await self.exchange.edges.stop_last()
        self.close()

    def close(self) -> None:
        for agent in self.spaces.agents.values():
            agent.space.workspace.close()

    async def restart(self, **changes: Any) -> None:
        """Killed, and started again."""
        self.close()
        self.exchange = self.exchange.restarted(edges=self._edges(), **changes)

    def read(self, *operations: dict[str, Any], **fields: Any) -> dict[str, Any]:
        result = validate_operations_message({"protocolVersion": "1.0", "operations": list(operations), **fields})
        data: dict[str, Any] = result["data"]
        return data

    def submit(self, *operations: dict[str, Any], caller: str = "operator", space: str = "demo", **fields: Any) -> Run:
        return self.spaces.submit(space, caller, self.read(*operations, **fields))

    async def until(self, run: Run, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            with self.spaces.following(run) as follower:
                while not is_so():
                    assert await follower.next() is NEWS

    async def run(self, *operations: dict[str, Any], **fields: Any) -> Run:
        """A run, to its end."""
        run = self.submit(*operations, **fields)
        await self.end_of(run)
        return run

    async def end_of(self, run: Run) -> None:
        await self.until(run, lambda: run.state == "done")
        checked = validate_events_message(events_message(run.run_id, run.status, run.events))
        assert checked["success"], checked

    async def call(self, tool: str, value: Any, *, by: Principal = BOSS, **terms: Any) -> Answer:
        """One call of a tool of the space, to its end."""
        body = Raw(encode(value))

        def request(session: int, ref: str) -> CallRequested:
            return CallRequested(session, ref, by, f"space.demo/{tool}", body, **terms)

        async with asyncio.timeout(10):
            return await call(self.exchange.feed, request)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Commands]:
    """Which sandbox there is, if any."""
    found: list[Commands] = []

    async def probe() -> Commands:
        if not found:
            raise WorkspaceError("execution", NO_SANDBOX)
        return found[0]

    monkeypatch.setattr(serve, "probe", probe)
    return found


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    """One space, ``demo``, on a machine without a sandbox."""
    found = Case(tmp_path, None)
    await found.start()
    await found.spaces.create("demo", "standard", {})
    yield found
    await found.stop()
    assert found.exchange.died is None


@pytest.fixture
async def shell(tmp_path: Path, machine: list[Commands]) -> AsyncIterator[Case]:
    """One space, ``demo``, whose commands are the test's own."""
    commands = Commands()
    machine.append(commands)
    found = Case(tmp_path, commands)
    await found.start()
    await found.spaces.create("demo", "standard", {})
    yield found
    await found.stop()
    assert found.exchange.died is None
