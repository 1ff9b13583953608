"""Pages at Pylon and the codex behind it in a simulation: who connects, asks and leaves, and what became of that.

Everything behind the WebSocket is the real edge (``edges.pylon``). The listener, TLS, and the app-server's process are
left out: programs are played here, which answer late, ask a person, or die. That each request runs once, only if it was
allowed, and ends once, ``promises`` holds for them as for all calls.

Owns what pages and programs do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from trunkline.config import Pylon
from trunkline.edges.background import Background
from trunkline.edges.edge import RunningEdge, Surroundings
from trunkline.edges.piped import PipedOwner, PipedProcess, PipedSpec
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Frame
from trunkline.edges.pylon import messages, translate
from trunkline.edges.pylon.agent import CodexAgent
from trunkline.edges.pylon.serve import PREFIX, PylonServer
from trunkline.effects import Deliver
from trunkline.model import Now, ToolDefinition
from trunkline.testing.pusher import PusherPage
from trunkline.testing.witness import Witness

PAGES: Final = 2
# Any program that is there: none is started.
SETTINGS: Final = Pylon(codex=(sys.executable,), tls=False)
ANSWER_S: Final = (0.0, 3.0)
# How often a program asks a person before it answers, and dies instead of it.
ASKS: Final = 0.2
DEATHS: Final = 0.1


def definitions() -> dict[str, ToolDefinition]:
    """What the agent offers."""
    return {tool.tool_id: tool for tool in translate.definitions()}


class PlayedCodex:
    """An app-server without a process (``edges.piped.PipedProcess``)."""

    def __init__(self, users: PylonPages, owner: PipedOwner) -> None:
        self._users = users
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._asked = 0
        self._is_over = False

    def write(self, data: bytes) -> bool:
        """It reads."""
        for line in data.splitlines():
            message = json.loads(line)
            if message.get("method") == "initialize":
                self._loop.call_soon(self._say, {"id": message["id"], "result": {}})
            elif "id" in message and "method" in message:
                self._work(message["id"])
        return not self._is_over

    def _work(self, number: int) -> None:
        rng, after_s = self._users.rng, self._users.rng.uniform(*ANSWER_S)
        if not self._users.is_quiet and rng.random() < DEATHS:
            self._loop.call_later(after_s, self._end, "killed by SIGKILL")
            return
        if rng.random() < ASKS:
            self._asked += 1
            asked = {"id": f"q{self._asked}", "method": "item/commandExecution/requestApproval", "params": {}}
            self._loop.call_later(after_s / 2, self._say, asked)
        self._loop.call_later(after_s, self._say, {"id": number, "result": {"done": number}})

    def _say(self, message: dict[str, Any]) -> None:
        if not self._is_over:
            self._owner.received(json.dumps(message).encode() + b"\n")

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.ended(reason)

    def stop(self) -> None:
        """It obeys."""
        self._loop.call_soon(self._end, "killed by SIGTERM")

    def pause_reading(self) -> None:
        """What it says comes at once."""

    def resume_reading(self) -> None:
        """What it says comes at once."""


class PylonPage(PusherPage):
    """One page, and which of its requests wait."""

    def __init__(self, workspace_id: str, left_exchange: Callable[[], None]) -> None:
        super().__init__(left_exchange)
        self.workspace_id = workspace_id
        self.has_workspace = False
        self.waiting: set[int] = set()

    def connected(self, socket_id: str) -> None:
        """Listen to codex."""
        del socket_id
        self.say(frames.SUBSCRIBE, {"channel": messages.CODEX})

    def told(self, frame: Frame) -> None:
        """Ask for a workspace, and take answers."""
        match frame.event:
            case frames.SUBSCRIBED:
                self.want_workspace()
            case messages.CODEX_STATUS:
                self.has_workspace = frame.data["status"] == translate.CONNECTED
            case messages.CODEX_RESPONSE:
                self.waiting.remove(frame.data["request_id"])

    def want_workspace(self) -> None:
        """Ask for a folder."""
        self.say(messages.CONNECT, {"workspaceId": self.workspace_id, "cwd": "/w"}, messages.CODEX)

    def ask(self, number: int) -> None:
        """Ask codex for something."""
        self.waiting.add(number)
        asked = {"workspaceId": self.workspace_id, "requestId": number, "method": "turn/start", "params": {"n": number}}
        self.say(messages.REQUEST, asked, messages.CODEX)

    def lose(self) -> None:
        """Nobody waits any more."""
        super().lose()
        self.has_workspace = False
        self.waiting.clear()


class PylonPages:
    """All of them. In the end nobody dies, and nobody waits (``is_quiet``)."""

    def __init__(self, rng: Random, witness: Witness, left_exchange: Callable[[], None]) -> None:
        self.rng = rng
        self.witness = witness
        self.is_quiet = False
        self.pages = [PylonPage(f"w{number}", left_exchange) for number in range(1, PAGES + 1)]
        self._server: PylonServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.count = 0

    def open(self, server: PylonServer, loop: asyncio.AbstractEventLoop) -> None:
        """An exchange serves."""
        self._server, self._loop = server, loop

    def close(self) -> None:
        """It does not any more."""
        self._server = self._loop = None
        for page in self.pages:
            page.lose()

    def ask(self) -> None:
        """A page asks codex for something, or for a folder to ask in; one that is closed is opened."""
        page = self.rng.choice(self.pages)
        if page.socket is None:
            self._arrive(page)
        elif page.has_workspace:
            self.count += 1
            self.witness.note(page.workspace_id, f"asks codex for {self.count}")
            page.ask(self.count)
        else:
            page.want_workspace()

    def leave(self) -> None:
        """Somebody closes a page."""
        page = self.rng.choice(self.pages)
        self.witness.note(page.workspace_id, "is closed")
        page.leave()

    def _arrive(self, page: PylonPage) -> None:
        if self._server is not None and self._loop is not None:
            self.witness.note(page.workspace_id, "is opened")
            page.open(self._server, f"{PREFIX}{SETTINGS.app_key}", self._loop)


class WitnessedCodex(CodexAgent):
    """The agent, whose calls are seen. ``witness`` is set after it was made."""

    witness: Witness

    def deliver(self, effect: Deliver, now: Now) -> None:
        """Carry out a call."""
        tool = definitions()[effect.tool_id]
        self.witness.executed(self.agent_id, effect.call_id, tool, effect.caller, effect.key, bytes(effect.input))
        super().deliver(effect, now)


class PylonOnWires(RunningEdge):
    """Pylon, whose pages and programs are those of the simulation."""

    def __init__(self, given: Surroundings, pages: PylonPages) -> None:
        self._pages = pages
        self._background = Background(given.feed)
        given = replace(given, entropy=pages.rng.randbytes, start_piped=self._start_piped)
        self._server = PylonServer(given, self._background)
        agent = WitnessedCodex(given, self._server.clients.get)
        agent.witness = pages.witness
        self._server.agent = agent

    def _start_piped(self, spec: PipedSpec, owner: PipedOwner) -> PipedProcess:
        del spec
        return PlayedCodex(self._pages, owner)

    async def start(self) -> None:
        """Offer the tools, and let pages in."""
        await self._server.agent.attach()
        self._pages.open(self._server, asyncio.get_running_loop())

    async def stop(self) -> None:
        """End the workspaces, and let go of everybody."""
        await self._server.stop()
        self._server.agent.leave("stopping")
        self._pages.close()
        await self._background.stop()


def waiting(pages: PylonPages) -> list[str]:
    """Pages that still wait for an answer."""
    return [f"{page.workspace_id} waits for {sorted(page.waiting)}" for page in pages.pages if page.waiting]
