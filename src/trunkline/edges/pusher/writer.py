"""What waits for one client of a Pusher session, written to its WebSocket as fast as it reads.

Owns the task that writes and the goodbye. Does not own what is said (``session``), nor who reads from the socket.

Invariant: after the session has ended the socket is closed within ``GOODBYE_S``, whether or not the client reads.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from trunkline.edges.background import Background
from trunkline.edges.pusher.session import PusherSession
from trunkline.edges.websocket import GOODBYE_S


class Writer:
    """Writes what waits for one client, as fast as it reads, and closes after the last words."""

    def __init__(self, socket: WebSocket, session: PusherSession, background: Background) -> None:
        self._socket = socket
        self._session = session
        self._background = background
        self._news = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There is something to write, or it is over."""
        self._news.set()
        if self._session.code is not None and self._closing is None:
            # Not in the task that writes: that one may wait for a client that does not read.
            self._closing = self._background.spawn(self._close())

    async def wait_closed(self) -> None:
        """Until the last words were said, or could not be."""
        self.wake()
        if self._closing is not None:
            await asyncio.wait((self._closing,))

    async def run(self) -> None:
        """Until it is over."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                while (data := self._session.take_output()) is not None:
                    await self._socket.send_text(data.decode())
                if self._session.code is not None:
                    return
                await self._news.wait()
                self._news.clear()

    async def _close(self) -> None:
        code, reason = self._session.code, self._session.reason
        assert code is not None
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await self.run()
            except TimeoutError:
                pass
            if self._socket.application_state is WebSocketState.CONNECTED:
                await self._socket.close(code, reason[:100])
