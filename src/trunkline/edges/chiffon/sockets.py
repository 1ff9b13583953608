"""Chiffon over a WebSocket: one message in each frame, both ways; the first frame may be a registration.

Owns the frames. An open socket is a sign of life (the listener pings it); a lost one is not yet the end of anything:
the timers of the tasks decide. The token is judged again for every message: it may be revoked meanwhile.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

from trunkline.edges.background import Background
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.messages import MAX_MESSAGE_BYTES, Fields, Refused, invalid
from trunkline.edges.chiffon.peers import AnyConversation, Peers
from trunkline.edges.chiffon.session import Probe
from trunkline.edges.websocket import close_quietly


class Sockets:
    """The open ones."""

    def __init__(self, peers: Peers, background: Background) -> None:
        self._peers = peers
        self._background = background
        self._open: set[WebSocket] = set()

    async def serve(self, socket: WebSocket, token: bytes | None, origin: str) -> None:
        """One socket, until it ends."""
        await socket.accept()
        self._open.add(socket)
        conversation: AnyConversation | None = None
        try:
            while True:
                data = await socket.receive_text()
                await self._take(socket, token, origin, data.encode("utf-8", "surrogatepass"))
                if not self._is_known(token):
                    await close_quietly(socket, CloseCode.POLICY_VIOLATION)
                    return
                if conversation is None or conversation.carrier is not socket:
                    conversation = self._carry(socket, token)
        except (WebSocketDisconnect, KeyError):
            return  # gone, or a binary frame: Chiffon's messages are text
        finally:
            self._open.discard(socket)
            if conversation is not None and conversation.carrier is socket:
                conversation.carry(None)

    async def _take(self, socket: WebSocket, token: bytes | None, origin: str, data: bytes) -> None:
        """One frame, and what is said to it at once."""
        fields: Fields | None = None
        answer: bytes | None = None
        to = ""
        try:
            caller = self._peers.identify(token)
            to = caller.principal.type
            if len(data) > MAX_MESSAGE_BYTES:
                raise invalid(f"larger than {MAX_MESSAGE_BYTES} bytes", status=413)
            fields = messages.read_object(data)
            if "supported_versions" in fields and "payload" not in fields:
                answer = msgspec.json.encode(await self._peers.register(caller, fields, origin))
                self._peers.conversation_of(caller).carry(None)
            else:
                envelope, conversation = self._peers.receive(caller, fields)
                reply = conversation.session.outbox.take_answer(envelope.message_id)
                answer = None if reply is None else reply.data
        except Refused as refused:
            answer = messages.encode(self._peers.refusal(refused, fields, to))
        if answer is not None:
            await socket.send_text(answer.decode())

    def _is_known(self, token: bytes | None) -> bool:
        try:
            self._peers.identify(token)
        except Refused:
            return False
        return True

    def _carry(self, socket: WebSocket, token: bytes | None) -> AnyConversation | None:
        """From the first message of somebody who is known: whatever comes for them, by this socket and no other way."""
        try:
            conversation = self._peers.conversation_of(self._peers.identify(token))
        except Refused:
            return None
        conversation.probe_by(Probe.BY_TRANSPORT, lambda: conversation.looked(is_well=socket in self._open))
        task = self._background.spawn(self._send_all(socket, token, conversation), conversation.number)
        conversation.carry(socket, task)
        return conversation

    async def _send_all(self, socket: WebSocket, token: bytes | None, conversation: AnyConversation) -> None:
        try:
            # What there is may be for another token of the same agent by now.
            async for message in conversation.outgoing(lambda: self._is_known(token)):
                await socket.send_text(message.data.decode())
        except (WebSocketDisconnect, RuntimeError):
            return  # the socket is gone; the next attempt goes another way
        except asyncio.CancelledError:
            # Another way carries on from here; for another token, if this one is not known any more.
            if not self._is_known(token):
                self._background.spawn(close_quietly(socket, CloseCode.POLICY_VIOLATION))
            raise
        if not conversation.is_over:
            await close_quietly(socket, CloseCode.POLICY_VIOLATION)

    async def stop(self) -> None:
        """Say goodbye to all at the same time: one that does not read takes its time."""
        await asyncio.gather(*(close_quietly(socket, CloseCode.GOING_AWAY) for socket in self._open))
