"""Chiffon over HTTP: messages, registration and the long poll, behind ``http.listen`` with a gate of its own.

Owns the token in the header, sizes, media types and the status of each answer (silent point 1); every answer is a
Chiffon envelope, also those to strangers. Does not own what a message leads to (``switchboard``).

Invariant: nothing of a request's body is read before its token is known.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Final

import msgspec
from msgspec import Raw
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from trunkline.edges.bodies import BadRequest, read_body
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import MAX_MESSAGE_BYTES, Fields, Refused, invalid
from trunkline.edges.chiffon.push import Pushers
from trunkline.edges.chiffon.queue import Queue
from trunkline.edges.chiffon.session import Settings
from trunkline.edges.chiffon.sockets import Sockets
from trunkline.edges.chiffon.switchboard import Caller, Switchboard
from trunkline.edges.doors import Door
from trunkline.edges.exchange import Exchange
from trunkline.events import Noticed
from trunkline.model import ProcessIdentity

PREFIX: Final = "/api/agent"
# Below the 30 s after which an agent counts as silent.
MAX_WAIT_S: Final = 25.0
# As at the HTTP gate: a refusal waits while its address keeps failing, and only so many wait at the same time.
MAX_DELAY_S: Final = 5.0
MAX_WAITING: Final = 64
MAX_ADDRESSES: Final = 256
FORGET_AFTER_S: Final = 60.0


class ChiffonListener:
    """The edge as the host sees it. ``door`` goes to the HTTP listener; ``start`` once, ``stop`` once."""

    def __init__(self, exchange: Exchange, settings: Settings, process: ProcessIdentity, nats: str = "") -> None:
        self.switchboard = Switchboard(exchange, settings, process)
        self._routes = ChiffonDoor(self.switchboard)
        self.door = self._routes.door
        # Why there is no queue, though one is wanted.
        self.missing: str | None = None
        self.queue: Queue | None = None
        if nats and importlib.util.find_spec("nats") is None:
            self.missing = "nats-py is missing: pip install 'trunkline[nats]'"
        elif nats:
            self.queue = Queue(self.switchboard, nats)

    async def start(self) -> None:
        """Let the clock run, and look for the broker if there is one."""
        self.switchboard.start()
        if self.queue is not None:
            self.queue.start()

    async def stop(self) -> None:
        """Say nothing more; what is open stays on record and goes on after the next start."""
        self.switchboard.stop()
        if self.queue is not None:
            await self.queue.stop()
        await self._routes.stop()


class ChiffonDoor:
    """The routes under ``/api/agent``."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._pushers = Pushers(switchboard)
        self._sockets = Sockets(switchboard)
        self._failures: dict[str, tuple[int, float]] = {}
        self._waiting = 0
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
        self.door = Door((PREFIX,), app, own_gate=True)

    async def stop(self) -> None:
        """No more callbacks and sockets."""
        await self._pushers.stop()
        await self._sockets.stop()

    # -- routes --------------------------------------------------------------------------------------------------------

    async def message(self, request: Request) -> Response:
        """``POST /api/agent/message`` (CH-105)."""
        caller = await self._caller(request)
        fields = await _read(request)
        request.state.fields = fields
        reply = self._switchboard.receive(caller, fields)
        if reply is None:
            message_id = msgspec.json.decode(fields["message_id"])
            return _json({"accepted": True, "message_id": message_id}, 202)
        status = 200
        if reply.type == "error":
            error = messages.read_payload(reply)
            assert isinstance(error, messages.ErrorPayload)
            status = messages.CODES[error.error_code].http
        return Response(messages.encode(reply), status, media_type="application/json")

    async def register(self, request: Request) -> Response:
        """``POST /api/agent/register`` (silent point 3)."""
        caller = await self._caller(request)
        fields = await _read(request)
        answer = await self._switchboard.register(caller, fields, _address(request))
        callback = messages.read_registration(fields).callback_url
        self._pushers.callback(caller, callback)
        return _json(answer)

    async def messages(self, request: Request) -> Response:
        """``GET /api/agent/messages?wait=S``: what there is, or the first that comes within the time."""
        caller = await self._caller(request)
        wait_s = _wait(request)
        if request.method == "HEAD":  # it would take messages and drop them
            return Response()
        mailbox = self._switchboard.mailbox_of(caller)
        if not len(mailbox) and wait_s:
            await _wait_for_letter(mailbox, request, wait_s)
            # Its silence ended with its poll; it may have been sent away meanwhile.
            mailbox = self._switchboard.mailbox_of(caller)
        if await request.is_disconnected():
            return Response()  # nobody reads it: what is there stays for the next poll
        return _json({"messages": [Raw(letter.data) for letter in mailbox.take()]})

    async def socket(self, websocket: WebSocket) -> None:
        """``/api/agent/ws``: the same messages, one in each frame, both ways."""
        try:
            await self._caller(websocket)
        except Refused as refused:
            await websocket.send_denial_response(self._refusal(refused, None))
            return
        token = bearer_token(websocket.headers.getlist("authorization"))
        await self._sockets.serve(websocket, token, _address(websocket))

    # -- the gate ------------------------------------------------------------------------------------------------------

    async def _caller(self, request: HTTPConnection) -> Caller:
        """Who sends this (CH-102); a guesser's refusals take longer and longer."""
        try:
            return self._switchboard.identify(bearer_token(request.headers.getlist("authorization")))
        except Refused:
            await self._slow_down(_address(request))
            raise

    async def _slow_down(self, address: str) -> None:
        now = self._switchboard.exchange.now().mono
        earlier, at = self._failures.pop(address, (0, now))
        count = earlier + 1 if now - at < FORGET_AFTER_S else 1
        self._failures[address] = (count, now)
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        # The record hears of the 1st, 10th, 100th … failure: a stranger must not be able to fill the disk.
        if count == 10 ** (len(str(count)) - 1):
            noticed = Noticed("auth.failed", "chiffon", who=address, detail=f"{count} in a row")
            self._switchboard.exchange.feed([noticed])
        if count > 1 and self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(min(MAX_DELAY_S, 0.1 * 2.0 ** min(count - 2, 16)))
            finally:
                self._waiting -= 1

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def _on_refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return self._refusal(error, getattr(request.state, "fields", None))

    def _refusal(self, refused: Refused, fields: Fields | None) -> Response:
        reply = messages.error_reply(refused.error, "", fields, self._switchboard.exchange.now().ms)
        headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
        return Response(messages.encode(reply), refused.status, headers, media_type="application/json")

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: "no such route", 405: "this route takes another method"}.get(error.status_code, error.detail)
        answer = await self._on_refused(request, invalid(text, status=error.status_code))
        answer.headers.update(error.headers or {})
        return answer

    async def _on_defect(self, request: Request, _: Exception) -> Response:
        """A defect of ours: the listener's log has the stack."""
        refused = messages.unavailable("exchange", None, "the exchange failed; the operator's log says where")
        refused.status = 500
        return await self._on_refused(request, refused)


def bearer_token(values: list[str]) -> bytes | None:
    """The token of an ``Authorization: Bearer …`` header; None if there is no header."""
    if not values:
        return None
    scheme, _, token = values[0].partition(" ")
    # What is no bearer token is an invalid one, not a missing one.
    return token.strip().encode("latin-1") or b"-" if scheme.lower() == "bearer" and len(values) == 1 else b"-"


def _address(request: HTTPConnection) -> str:
    return request.client.host if request.client is not None else ""


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    if not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 8):
        raise invalid("expected a number of seconds", "wait")
    return min(float(text), MAX_WAIT_S)


async def _wait_for_letter(mailbox: Mailbox, request: Request, wait_s: float) -> None:
    """Until there is something, the time is over, or nobody listens any more."""
    bell = asyncio.Event()
    wake = bell.set
    mailbox.listeners.append(wake)
    gone = asyncio.create_task(_disconnected(request))
    rung = asyncio.create_task(bell.wait())
    try:
        await asyncio.wait({gone, rung}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        rung.cancel()
        mailbox.listeners.remove(wake)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request) -> Fields:
    """The body: its size, then its type, then its JSON."""
    try:
        data = await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)
    except BadRequest as refused:
        raise invalid(refused.text, "Content-Type" if refused.status == 415 else None, refused.status) from None
    return messages.read_object(data)


def _json(shape: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(shape), status, media_type="application/json")
