"""Spaces over a WebSocket: operations messages in, an events message out for each event as it happens.

Owns one socket and the runs that are told on it. A run goes on when its socket is lost; its events can be had over
HTTP. The token is judged again for every message and before every run's news: a socket stays open for days, and the
token it came with may be revoked meanwhile.

Invariant: a defect met here ends the socket and nothing else; the client knows the ids of its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

from trunkline.edges.answers import Refused, principal_of, refusal
from trunkline.edges.exchange import Feed
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.serve import NEWS, NotTaken, Spaces
from trunkline.edges.waiting import Waiting
from trunkline.edges.websocket import close_quietly


class SpaceSocket:
    """One socket."""

    def __init__(self, feed: Feed, spaces: Spaces, websocket: WebSocket) -> None:
        self._feed = feed
        self._spaces = spaces
        self._websocket = websocket
        # One message at a time is written; several runs may be followed.
        self._turn = asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until it ends."""
        try:
            space = self._spaces.agent(self._websocket.path_params["space"]).space.name
        except Refused as refused:
            await self._websocket.send_denial_response(refusal(refused.fault, refused.status))
            return
        await self._websocket.accept()
        try:
            async with self._guarded():
                await self._listen(space, principal_of(self._websocket).identity)
        finally:
            for task in self._telling:
                task.cancel()

    async def _listen(self, space: str, caller: str) -> None:
        async for data in self._messages():
            if not await self._is_known():
                return
            try:
                run = self._spaces.submit(space, caller, self._spaces.read(data))
            except NotTaken as refused:
                await self._say(refused.message)
            else:
                task = asyncio.get_running_loop().create_task(self._follow(run))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def _messages(self) -> AsyncIterator[bytes]:
        """What the client sends, until it leaves."""
        while (event := await self._websocket.receive())["type"] == "websocket.receive":
            text, data = event.get("text"), event.get("bytes")
            yield text.encode() if text is not None else bytes(data or b"")

    async def _is_known(self) -> bool:
        """Whether the token is still valid; if not, the socket is closed."""
        if self._websocket.scope["is_known"]():
            return True
        await close_quietly(self._websocket, CloseCode.POLICY_VIOLATION)
        return False

    async def _follow(self, run: Run) -> None:
        async with self._guarded():
            with self._spaces.following(run) as follower:
                await self._tell(run, follower)

    async def _tell(self, run: Run, follower: Waiting) -> None:
        """Tell each event of a run as it happens, and then how it stands; after a pause, go on."""
        told = 0
        while await self._is_known():
            while told < len(run.events):
                told += 1
                # The question itself is the end of what is told for now.
                paused = run.state == "paused" and told == len(run.events)
                status = "awaiting_approval" if paused else "completed"
                events = run.events[told - 1 : told]
                await self._say(translate.events_message(run.run_id, status, events, more=not paused))
            if run.state == "done":
                await self._say(translate.events_message(run.run_id, run.status, []))
            if run.state in {"done", "left"} or await follower.next() is not NEWS:
                return

    async def _say(self, message: dict[str, Any]) -> None:
        async with self._turn:
            try:
                await self._websocket.send_text(translate.encode(message).decode())
            except RuntimeError:  # it was closed meanwhile, by us
                raise WebSocketDisconnect from None

    @contextlib.asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Around everything that happens here: a client that is gone is no defect, anything else is one."""
        try:
            yield
        except WebSocketDisconnect:
            pass
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(0, error)
            await close_quietly(self._websocket, CloseCode.INTERNAL_ERROR)
