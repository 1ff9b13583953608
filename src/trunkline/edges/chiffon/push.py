"""Push to callback URLs: an agent that listens gets its messages by POST instead of asking for them.

Owns one sender for each callback. Loopback only (``client.place_of``). A message that cannot be handed over is a
failed attempt (5002); the hub decides whether it is sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trunkline.edges.chiffon import client
from trunkline.edges.chiffon.mailbox import Letter
from trunkline.edges.chiffon.messages import ORCHESTRATOR
from trunkline.edges.chiffon.session import AgentSession
from trunkline.edges.chiffon.switchboard import Caller, Switchboard, orchestrator_token

PUSH_TIMEOUT_S: Final = 10.0
HEALTH_PATH: Final = "/health"


class Pushers:
    """The senders, by agent."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._tasks: dict[str, asyncio.Task[None]] = {}
        switchboard.on_left.append(self._drop)

    def callback(self, caller: Caller, url: str | None) -> None:
        """From here on send to this URL; None: the agent asks for its messages."""
        self._drop(caller.agent_id)
        session = self._switchboard.session_of(caller)
        if url is None:
            if isinstance(session, AgentSession):
                session.probe = None
            return
        pusher = Pusher(self._switchboard, caller, url)
        self._tasks[caller.agent_id] = asyncio.get_running_loop().create_task(pusher.run())
        if isinstance(session, AgentSession):
            session.probe = pusher.probe

    def _drop(self, agent_id: str) -> None:
        task = self._tasks.pop(agent_id, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """End them all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pusher:
    """Sends what one peer has in its mailbox, in order."""

    def __init__(self, switchboard: Switchboard, caller: Caller, url: str) -> None:
        self._switchboard = switchboard
        self._session = switchboard.session_of(caller)
        self._url = url
        # An orchestrator knows us by its own token's counterpart just as an agent does (silent point 6).
        self._token = orchestrator_token(caller.token_sha256)
        self._probes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the peer is gone."""
        bell = asyncio.Event()
        wake = bell.set
        self._session.mailbox.listeners.append(wake)
        try:
            while True:
                for letter in self._session.mailbox.take():
                    await self._push(letter)
                if not len(self._session.mailbox):
                    await bell.wait()
                bell.clear()
        finally:
            self._session.mailbox.listeners.remove(wake)

    async def _push(self, letter: Letter) -> None:
        try:
            answer = await client.request(
                self._url, "POST", body=letter.data, token=self._token, timeout_s=PUSH_TIMEOUT_S
            )
        except client.Unreachable as error:
            self._failed(letter.request_id, f"the callback did not answer: {error}")
            return
        if answer.status >= 300:
            self._failed(letter.request_id, f"the callback answered {answer.status}")
        else:
            self._session.heard(self._switchboard.exchange.now())

    def _failed(self, request_id: str, text: str) -> None:
        if self._session.agent_type != ORCHESTRATOR:
            assert isinstance(self._session, AgentSession)
            self._session.unreachable(request_id, text)

    def probe(self) -> None:
        """``GET /health`` beside the callback (silent point 15)."""
        task = asyncio.get_running_loop().create_task(self._probe())
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _probe(self) -> None:
        assert isinstance(self._session, AgentSession)
        try:
            answer = await client.request(
                self._url, "GET", path=HEALTH_PATH, token=self._token, timeout_s=PUSH_TIMEOUT_S
            )
            is_well = answer.status < 300
        except client.Unreachable:
            is_well = False
        if not self._session.is_closed:
            self._session.probed(self._switchboard.exchange.now(), is_well=is_well)
