"""Pages at Pylon and app-servers behind it that say anything: valid words made wrong, in any order, by a seed.

The edge is the real one on an exchange in memory; clients are handed their messages without a socket, and programs are
played. What must hold: nothing of ours raises, what a client is told is Pusher's, and when all have left nothing of
them is left: no client, workspace, member or open call.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz.mutations import Mutator
from tests.unit.edges.pylon.kit import OPEN, Kit, started
from trunkline.edges.pusher.session import PusherSession, signature
from trunkline.edges.pylon import messages
from trunkline.edges.pylon.client import Client
from trunkline.edges.pylon.serve import MAX_WAITING_BYTES

STEPS: Final = 600
KEY: Final = "local-key"
# A client may send 30 events at once: who has sent fewer is not only told that it is too fast.
WORDS: Final = 28
MAX_CLIENTS: Final = 4
LEFT_S: Final = 20.0

_CODEX: Final = {"channel": messages.CODEX}
CLIENT_WORDS: Final[list[Any]] = [
    {"event": "pusher:ping", "data": {}},
    {"event": "pusher:subscribe", "data": {"channel": messages.SYSTEM}},
    {"event": "pusher:subscribe", "data": {"channel": messages.CODEX}},
    {"event": "pusher:unsubscribe", "data": {"channel": messages.CODEX}},
    {"event": messages.SYSTEM_PING, "channel": messages.SYSTEM, "data": {}},
    {"event": messages.DISCOVER, "channel": messages.SYSTEM, "data": ""},
    {"event": messages.CONNECT, **_CODEX, "data": {"workspaceId": "w", "cwd": "/w"}},
    {"event": messages.CONNECT, **_CODEX, "data": '{"workspace_id": "v", "cwd": "/v"}'},
    {"event": messages.REQUEST, **_CODEX, "data": {"workspaceId": "w", "requestId": 1, "method": "m", "params": {}}},
    {"event": messages.REQUEST, **_CODEX, "data": {"workspaceId": "w", "message": {"id": "r", "method": "m"}}},
    {"event": messages.RESPOND, **_CODEX, "data": {"workspaceId": "w", "requestId": 0, "result": {"decision": "x"}}},
    {"event": messages.DISCONNECT, **_CODEX, "data": {"workspaceId": "w"}},
]
PROGRAM_WORDS: Final[list[Any]] = [
    {"method": "turn/started", "params": {"turn": {"id": "t"}}},
    {"id": 0, "method": "item/commandExecution/requestApproval", "params": {"command": "ls", "reason": "to look"}},
    {"id": "q", "method": "item/fileChange/requestApproval", "params": {}},
    {"id": 1, "result": {"thread": {"id": "t"}}},
    {"id": 2, "error": {"code": -32601, "message": "no such method"}},
]


class Page:
    """One client, and what it was told."""

    def __init__(self, kit: Kit, number: int) -> None:
        server = kit.edge.server
        self._server = server
        now = server.feed.now()
        session = PusherSession(messages.CHANNELS, f"{number}.1", KEY, server.secret, now, MAX_WAITING_BYTES)
        # Places are told apart, so that none has used up its questions.
        self.client = Client(server, session, lambda: None, f"http://localhost:{number}")
        server.clients[self.client.socket_id] = self.client
        self.words = 0

    def join(self, channel: str, member: str) -> None:
        """A presence channel, as a program of this machine signs it."""
        data = json.dumps({"user_id": member})
        auth = signature(self._server.secret, KEY, self.client.socket_id, channel, data)
        told = {"event": "pusher:subscribe", "data": {"channel": channel, "auth": auth, "channel_data": data}}
        self.say(json.dumps(told).encode())

    def say(self, data: bytes) -> None:
        self.words += 1
        self.client.receive(data)

    def hear(self, seen: Counter[str]) -> None:
        """Everything that it was told is a frame of Pusher's."""
        while (data := self.client.session.take_output()) is not None:
            frame = json.loads(data)
            assert isinstance(frame["event"], str)
            if frame["event"] == "pusher:error":
                assert isinstance(frame["data"], dict)
            else:
                json.loads(frame["data"])
            seen[frame["event"]] += 1

    @property
    def is_done(self) -> bool:
        return self.words >= WORDS or self.client.session.code is not None

    def leave(self) -> None:
        del self._server.clients[self.client.socket_id]
        self.client.leave()


async def _story(seed: int, steps: int, folder: Path) -> Counter[str]:
    chance, seen = Random(seed), Counter[str]()
    pages_say, programs_say = Mutator(seed, CLIENT_WORDS), Mutator(seed + 1, PROGRAM_WORDS)
    pages: list[Page] = []
    async with started(folder, OPEN, listen="127.0.0.1:0") as kit:
        kit.exchange.attach("com.example.echo", "echo")
        for step in range(steps):
            if len(pages) < MAX_CLIENTS:
                pages.append(Page(kit, step + 1))
                if chance.random() < 0.2:
                    pages[-1].join(f"presence-{messages.CODEX}", chance.choice("ab"))
            page, way = chance.choice(pages), chance.random()
            if way < 0.35:
                page.say(json.dumps(chance.choice(CLIENT_WORDS)).encode())
            elif way < 0.8:
                page.say(pages_say.body())
            elif kit.programs and way < 0.97:
                said = programs_say.body() if chance.random() < 0.6 else json.dumps(chance.choice(PROGRAM_WORDS))
                kit.programs[-1].say((said if isinstance(said, bytes) else said.encode()) + b"\n")
            elif kit.programs:
                kit.programs[-1].end("ended with 1")
            await asyncio.sleep(0)
            for one in pages:
                one.hear(seen)
            for one in [one for one in pages if one.is_done]:
                pages.remove(one)
                one.leave()
        for one in pages:
            one.leave()
        server = kit.edge.server
        async with asyncio.timeout(LEFT_S):
            while server.agent.count or server.agent._leaving:  # noqa: ASYNC110  nothing calls back when the last program has ended
                await asyncio.sleep(0.005)
        assert not server.clients
        rosters = [json.loads(json.dumps(members.roster())) for members in server._members.values()]
        assert not any(roster["presence"]["count"] for roster in rosters)
        assert not kit.exchange.hub.state.calls, "a call is open that nobody waits for"
        seen["programs"] = len(kit.programs)
    return seen


def fuzz(seed: int, steps: int) -> Counter[str]:
    """One story; what clients were told, counted."""
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        return asyncio.run(_story(seed, steps, Path(folder)))
