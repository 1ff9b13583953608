"""The Pylon edge on an exchange in memory, and programs that are played by a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.pylon import CODEX, Pusher, pusher
from trunkline.config import BUILTIN_RULES, Config, Pylon
from trunkline.edges.piped import PipedOwner, PipedProcess, PipedSpec
from trunkline.edges.pylon.edge import PYLON, PylonEdge
from trunkline.model import Decision, Policy, Rule
from trunkline.shown import Question
from trunkline.testing.memory import MemoryExchange

WAIT_S = 20.0
LETS_IN = Rule("in", "pylon:*", "pylon.codex/connect", Decision.ALLOW)
BUILTIN = Policy(BUILTIN_RULES, "builtin")
OPEN = Policy((LETS_IN, *BUILTIN_RULES), "open")


class Program:
    """An app-server whose words are the test's. It answers ``initialize`` by itself unless it is ``mute``."""

    def __init__(self, spec: PipedSpec, owner: PipedOwner, *, mute: bool) -> None:
        self.spec = spec
        self._owner = owner
        self._mute = mute
        self._changed = asyncio.Event()
        self.heard: list[dict[str, Any]] = []
        self.is_stopped = False
        self.is_full = False
        self.is_over = False

    # What the edge does.

    def write(self, data: bytes) -> bool:
        if self.is_over or self.is_full:
            return False
        for line in data.splitlines():
            message = json.loads(line)
            if message.get("method") == "initialize" and not self._mute:
                answer = {"id": message["id"], "result": {"userAgent": "played"}}
                asyncio.get_running_loop().call_soon(self.say, answer)
            elif message.get("method") not in {"initialize", "initialized"}:
                self.heard.append(message)
        self._changed.set()
        return True

    def pause_reading(self) -> None:
        raise AssertionError("nobody asks for that")

    def resume_reading(self) -> None:
        raise AssertionError("nobody asks for that")

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            asyncio.get_running_loop().call_soon(self.end, "killed by SIGTERM")

    # What the test does.

    def say(self, *said: object) -> None:
        for message in said:
            line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            if not self.is_over:
                self._owner.received(line)

    def end(self, reason: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._owner.ended(reason)
            self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (found := condition()):
                self._changed.clear()
                await self._changed.wait()
        return found

    async def next(self) -> dict[str, Any]:
        await self.until(lambda: self.heard)
        return self.heard.pop(0)


class Kit:
    """The edge, its programs in the order in which they were started, and its clients."""

    def __init__(self, home: Path, policy: Policy, **pylon: Any) -> None:
        self.home = home
        self.programs: list[Program] = []
        self.mute = False
        # How many the test has planted.
        self.defects = 0
        terms = {"tls": False, "codex": (sys.executable,), **pylon}
        self.exchange = MemoryExchange(
            policy,
            edges=(PYLON,),
            config=Config(pylon=Pylon(**terms)),
            live=asyncio.get_running_loop(),
            home=home,
            start_piped=self._start,
        )

    def _start(self, spec: PipedSpec, owner: PipedOwner) -> PipedProcess:
        self.programs.append(Program(spec, owner, mute=self.mute))
        return self.programs[-1]

    @property
    def edge(self) -> PylonEdge:
        found = self.exchange.edges._running["pylon"]
        assert isinstance(found, PylonEdge)
        return found

    @property
    def url(self) -> str:
        return str(self.edge.ready()["pylon"])

    @contextlib.asynccontextmanager
    async def client(self, *channels: str, **options: Any) -> AsyncIterator[Pusher]:
        async with pusher(self.url, **options) as client:
            for channel in channels:
                await client.subscribe(channel)
            yield client

    @contextlib.asynccontextmanager
    async def connected(self, workspace: str = "ws_1", cwd: str = "/w") -> AsyncIterator[tuple[Pusher, Program]]:
        """A client that listens to codex, with a workspace."""
        async with self.client(CODEX) as client:
            await client.codex("connect", workspaceId=workspace, cwd=cwd)
            await client.next("pylon.codex.status", status="connected")
            yield client, self.programs[-1]

    async def question(self, tool_id: str) -> Question:
        """The question about such a call, once it is asked."""
        asked = await self.until(lambda: [q for q in self.exchange.views.questions() if q.tool_id == tool_id])
        found: Question = asked[0]
        return found

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT_S):
            # Nothing in the hub calls back.
            while not (found := condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return found


@contextlib.asynccontextmanager
async def started(home: Path, policy: Policy = BUILTIN, **pylon: Any) -> AsyncIterator[Kit]:
    """An exchange with the edge, up."""
    kit = Kit(home, policy, **pylon)
    await kit.exchange.edges.start()
    try:
        yield kit
    finally:
        await kit.exchange.edges.stop()
        assert kit.exchange.died is None
        assert kit.exchange.operator.status()["defects"] == kit.defects
        kit.exchange.close()
