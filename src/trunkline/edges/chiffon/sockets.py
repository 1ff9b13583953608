"""Chiffon over a WebSocket: one message in each frame, both ways; the first frame may be a registration.

Owns the frames. An open socket is a sign of life (the listener pings it); a lost one is not yet the end of anything:
the timers of the tasks decide. The token is judged again for every message: it may be revoked meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import MAX_MESSAGE_BYTES, Fields, Refused, invalid
from trunkline.edges.chiffon.session import AgentSession
from trunkline.edges.chiffon.switchboard import Switchboard

POLICY_VIOLATION: Final = 1008
GOING_AWAY: Final = 1001


class Sockets:
    """The open ones."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._open: set[WebSocket] = set()

    async def serve(self, socket: WebSocket, token: bytes | None, origin: str) -> None:
        """One socket, until it ends."""
        await socket.accept()
        self._open.add(socket)
        sender: asyncio.Task[None] | None = None
        try:
            while True:
                data = await socket.receive_text()
                with contextlib.suppress(Refused):
                    await self._take(socket, token, origin, data.encode("utf-8", "surrogatepass"))
                if not self._is_known(token):
                    await socket.close(POLICY_VIOLATION)
                    return
                if sender is None:
                    sender = self._start_sending(socket, token)
        except (WebSocketDisconnect, KeyError):
            return  # gone, or a binary frame: Chiffon's messages are text
        finally:
            self._open.discard(socket)
            if sender is not None:
                sender.cancel()

    async def _take(self, socket: WebSocket, token: bytes | None, origin: str, data: bytes) -> None:
        fields: Fields | None = None
        try:
            caller = self._switchboard.identify(token)
            if len(data) > MAX_MESSAGE_BYTES:
                raise invalid(f"larger than {MAX_MESSAGE_BYTES} bytes", status=413)
            fields = messages.read_object(data)
            if "supported_versions" in fields and "payload" not in fields:
                answer = await self._switchboard.register(caller, fields, origin)
                await socket.send_text(msgspec.json.encode(answer).decode())
                return
            reply = self._switchboard.receive(caller, fields)
        except Refused as refused:
            error = messages.error_reply(refused.error, "", fields, self._switchboard.exchange.now().ms)
            await socket.send_text(messages.encode(error).decode())
            raise
        if reply is not None:
            await socket.send_text(messages.encode(reply).decode())

    def _is_known(self, token: bytes | None) -> bool:
        try:
            self._switchboard.identify(token)
        except Refused:
            return False
        return True

    def _start_sending(self, socket: WebSocket, token: bytes | None) -> asyncio.Task[None] | None:
        """From the first message of somebody who is known: whatever comes for them."""
        try:
            session = self._switchboard.session_of(self._switchboard.identify(token))
        except Refused:
            return None
        if isinstance(session, AgentSession):
            session.probe = lambda: session.probed(self._switchboard.exchange.now(), is_well=socket in self._open)
        return asyncio.get_running_loop().create_task(self._send_all(socket, token, session.mailbox))

    async def _send_all(self, socket: WebSocket, token: bytes | None, mailbox: Mailbox) -> None:
        bell = asyncio.Event()
        wake = bell.set
        mailbox.listeners.append(wake)
        try:
            while True:
                # What is there may be for another token of the same agent by now.
                if not self._is_known(token):
                    await socket.close(POLICY_VIOLATION)
                    return
                letters = mailbox.take()
                for letter in letters:
                    await socket.send_text(letter.data.decode())
                if not letters:
                    await bell.wait()
                bell.clear()
        except (WebSocketDisconnect, RuntimeError):
            return  # the socket is gone; the next attempt goes another way
        finally:
            mailbox.listeners.remove(wake)

    async def stop(self) -> None:
        """Say goodbye."""
        for socket in list(self._open):
            with contextlib.suppress(RuntimeError):
                await socket.close(GOING_AWAY)
