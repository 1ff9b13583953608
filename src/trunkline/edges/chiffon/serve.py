"""Chiffon over HTTP: messages, registration and the long poll, behind ``http.listen`` with a gate of its own.

Owns the token in the header, sizes, media types and the status of each answer (silent point 1); every answer is a
Chiffon envelope, also those to strangers. Does not own what a message leads to (``peers``).

Invariant: nothing of a request's body is read before its token is known.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import Raw
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from trunkline.edges.answers import json_answer
from trunkline.edges.background import Background
from trunkline.edges.bearer import Throttle, bearer_token
from trunkline.edges.bodies import BadRequest, read_body
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.messages import MAX_MESSAGE_BYTES, Fields, Refused, invalid
from trunkline.edges.chiffon.peers import AnyConversation, Caller, Peers
from trunkline.edges.chiffon.push import Callback
from trunkline.edges.chiffon.session import Probe
from trunkline.edges.chiffon.sockets import Sockets
from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.doors import Door
from trunkline.edges.request_scope import address_of, when_closed
from trunkline.edges.shares import SHARE, Share, Shares

PREFIX: Final = "/api/agent"
# Below the 30 s after which an agent counts as silent.
MAX_WAIT_S: Final = 25.0


class ChiffonDoor:
    """The routes under ``/api/agent``."""

    def __init__(self, peers: Peers, background: Background) -> None:
        self._peers = peers
        self._background = background
        self.sockets = Sockets(peers, background)
        self._throttle = Throttle(peers.feed, EDGE)
        # Bodies and messages on their way in.
        self._incoming = Shares()
        app = Starlette(
            routes=[
                Route(f"{PREFIX}/message", self.message, methods=["POST"]),
                Route(f"{PREFIX}/register", self.register, methods=["POST"]),
                Route(f"{PREFIX}/messages", self.messages, methods=["GET"]),
                WebSocketRoute(f"{PREFIX}/ws", self.socket),
            ],
            exception_handlers={Refused: self._on_refused, HTTPException: self._on_http, Exception: self._on_defect},
        )
        app.router.redirect_slashes = False
        self.door = Door((PREFIX,), app, gate_of=EDGE)

    # -- routes --------------------------------------------------------------------------------------------------------

    async def message(self, request: Request) -> Response:
        """``POST /api/agent/message`` (CH-105)."""
        caller = await self._caller(request)
        fields = request.state.fields = await _read(request)
        envelope, conversation = self._peers.receive(caller, fields)
        reply = conversation.session.outbox.take_answer(envelope.message_id)
        if reply is None:
            return json_answer({"accepted": True, "message_id": envelope.message_id}, 202)
        said = messages.read_payload(messages.read_envelope(messages.read_object(reply.data)))
        status = messages.CODES[said.error_code].http if isinstance(said, messages.ErrorPayload) else 200
        return Response(reply.data, status, media_type="application/json")

    async def register(self, request: Request) -> Response:
        """``POST /api/agent/register`` (silent point 3)."""
        caller = await self._caller(request)
        fields = await _read(request)
        answer = await self._peers.register(caller, fields, address_of(request.scope))
        conversation, url = self._peers.conversation_of(caller), messages.read_registration(fields).callback_url
        if url is None:
            conversation.carry(None)
            conversation.probe_by(Probe.NONE)
        else:
            Callback(self._background, conversation, url, caller.orchestrator_token).start()
        return json_answer(answer)

    async def messages(self, request: Request) -> Response:
        """``GET /api/agent/messages?wait=S``: what there is, or the first that comes within the time."""
        caller = await self._caller(request)
        wait_s = _wait(request)
        if request.method == "HEAD":  # it would take messages and drop them
            return Response()
        conversation = self._peers.heard(caller)
        if wait_s and not len(conversation.session.outbox):
            await _wait_for_output(conversation, request, wait_s)
            # Its silence ended with its poll; it may have been sent away meanwhile.
            conversation = self._peers.heard(caller)
        if await request.is_disconnected():
            return Response()  # nobody reads it: what is there stays for the next poll
        return json_answer({"messages": [Raw(message.data) for message in conversation.session.take_output()]})

    async def socket(self, websocket: WebSocket) -> None:
        """``/api/agent/ws``: the same messages, one in each frame, both ways."""
        try:
            await self._caller(websocket)
        except Refused as refused:
            await websocket.send_denial_response(self._refusal(refused, None))
            return
        await self.sockets.serve(websocket, _token(websocket), address_of(websocket.scope))

    async def _caller(self, request: HTTPConnection) -> Caller:
        """Who sends this (CH-102); a guesser's refusals take longer and longer."""
        try:
            caller = self._peers.identify(_token(request))
        except Refused:
            await self._throttle.refused(address_of(request.scope))
            raise
        request.scope[SHARE] = Share(self._incoming, caller.principal.identity)
        # To whom a refusal is addressed, also where nothing of the message can be read.
        request.state.caller_type = caller.principal.type
        return caller

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def _on_refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        to = getattr(request.state, "caller_type", "")
        return self._refusal(error, getattr(request.state, "fields", None), to)

    def _refusal(self, refused: Refused, fields: Fields | None, to: str = "") -> Response:
        headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
        body = messages.encode(self._peers.refusal(refused, fields, to))
        return Response(body, refused.status, headers, media_type="application/json")

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: "no such route", 405: "this route takes another method"}.get(error.status_code, error.detail)
        answer = await self._on_refused(request, invalid(text, status=error.status_code))
        answer.headers.update(error.headers or {})
        return answer

    async def _on_defect(self, request: Request, error: Exception) -> Response:
        self._peers.feed.failed(0, error)
        return await self._on_refused(request, messages.defect())


def _token(request: HTTPConnection) -> bytes | None:
    return bearer_token([value for name, value in request.scope["headers"] if name == b"authorization"])


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    if not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 8):
        raise invalid("expected a number of seconds", "wait")
    return min(float(text), MAX_WAIT_S)


async def _wait_for_output(conversation: AnyConversation, request: Request, wait_s: float) -> None:
    """Until there is something, the time is over, or nobody listens any more."""
    bell = asyncio.Event()
    with conversation.listening(bell.set), when_closed(request.scope, bell.set), suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await bell.wait()


async def _read(request: Request) -> Fields:
    """The body: its size, then its type, then its JSON."""
    try:
        data = await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)
    except BadRequest as refused:
        raise invalid(refused.text, "Content-Type" if refused.status == 415 else None, refused.status) from None
    return messages.read_object(data)
