"""OSSA over HTTPS and WebSocket: ``POST /ossa/v1/messages``, ``/ossa/v1/ws`` and ``GET /ossa/v1/keys``.

Owns status codes, frames, and how many requests of one agent wait for a reply. There is no token: every message is
signed, and ``peers`` judges it. Every answer but the keys is an OSSA message, also one to strangers.

Invariant: a request that was read is answered once; a socket speaks for the agent of its first valid message only, and
is used for it once that agent said something new there (``openings``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.frames import CloseCode

from trunkline.edges.background import Background
from trunkline.edges.bearer import Throttle
from trunkline.edges.bodies import BadRequest, read_body
from trunkline.edges.ossa.identity import Known
from trunkline.edges.ossa.messages import (
    ACK,
    BAD_REQUEST,
    INSUFFICIENT,
    INTERNAL_ERROR,
    MAX_MESSAGE_BYTES,
    NOT_FOUND,
    RATE_LIMITED,
    TIMEOUT,
    UNAUTHORIZED,
    Message,
    Refused,
)
from trunkline.edges.ossa.peer import DISCONNECTED, OssaPeer
from trunkline.edges.ossa.peers import OssaPeers
from trunkline.edges.ossa.providing import Sending
from trunkline.edges.ossa.translate import EDGE
from trunkline.edges.request_scope import SAY, Say, address_of, when_closed
from trunkline.edges.shares import SHARE, Share, Shares
from trunkline.edges.websocket import GOODBYE_S, close_quietly

PREFIX: Final = "/ossa/v1"
# Silent point 23: after so many messages in a row that are none, a socket is closed.
MAX_BAD: Final = 3
# What may wait in one socket before more is sent to it.
ROOM_BYTES: Final = 1_048_576
# What may wait at all: an agent that does not read so much of its own replies is cut off.
MAX_WAITING_BYTES: Final = 16_777_216
# Requests of one agent that wait for their replies at once.
MAX_POSTS: Final = 256
# Sockets of one agent, and of all who have said nothing good yet; and how long one may say nothing good.
MAX_SOCKETS: Final = 4
MAX_UNKNOWN: Final = 128
KNOWN_WITHIN_S: Final = 10.0
# How long a socket whose agent sends too much is not read at a time.
MAX_PAUSE_S: Final = 5.0

NOTHING_GOOD: Final = "no message of a known agent came in time"
NOTHING_NEW: Final = "nothing new came in time: what was said here came before, or is older than five minutes"

Replies = list[tuple[Message, bytes]]


class OssaServer:
    """The application, and the sockets that are open."""

    def __init__(self, peers: OssaPeers, background: Background) -> None:
        self._peers = peers
        self._background = background
        self._incoming = Shares()
        self._throttle = Throttle(peers.feed, EDGE)
        self._posts: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._sockets: set[SocketWay] = set()
        routes = [
            Route(f"{PREFIX}/messages", self.message, methods=["POST"]),
            Route(f"{PREFIX}/keys", self.keys, methods=["GET"]),
            WebSocketRoute(f"{PREFIX}/ws", self.connection),
        ]
        handlers = {Refused: self._on_refused, HTTPException: self._on_http, Exception: self._on_defect}
        self.app = Starlette(routes=routes, exception_handlers=handlers)
        self.app.router.redirect_slashes = False

    # -- routes --------------------------------------------------------------------------------------------------------

    async def keys(self, _: Request) -> Response:
        """``GET /ossa/v1/keys``: our public keys, for everybody."""
        return Response(bytes(self._peers.own.jwks), media_type="application/json")

    async def message(self, request: Request) -> Response:
        """``POST /ossa/v1/messages``: one message, answered by its reply."""
        # Nobody is known yet: what is on its way counts for the address.
        request.scope[SHARE] = Share(self._incoming, address_of(request.scope))
        try:
            data = await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)
        except BadRequest as error:
            code = TIMEOUT if error.status == 408 else RATE_LIMITED if error.status == 429 else BAD_REQUEST
            raise Refused(code, error.text) from None
        try:
            known = await self._peers.identities.read(data)
        except Refused as refused:
            if refused.error_code == UNAUTHORIZED:
                await self._throttle.refused(address_of(request.scope))
            raise
        self._peers.openings.is_new(known.message, self._peers.feed.now())  # it opens no socket any more
        agent_id = known.message.sender.agent_id
        if self._posts.get(agent_id, 0) >= MAX_POSTS:
            raise _about(known, Refused(INSUFFICIENT, f"{MAX_POSTS} requests of yours wait for replies"))
        wait_s = self._peers.peer(known).pace.wait_s(max(known.weight, len(data)), self._peers.feed.now().mono)
        if wait_s:
            text = "more than is checked for one agent; send less at a time"
            raise _about(known, Refused(RATE_LIMITED, text, retryAfterMs=int(wait_s * 1000) + 1))
        self._posts[agent_id] = self._posts.get(agent_id, 0) + 1
        try:
            told = await self._told(request, known)
        finally:
            self._posts[agent_id] -= 1
            if not self._posts[agent_id]:
                del self._posts[agent_id]
        return _answer(known.message, told)

    async def _told(self, request: Request, known: Known) -> Replies:
        """The replies to a message; nothing if there are none, or nobody waits for them any more."""
        bell: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        ticket = self._peers.receive(known, lambda told: None if bell.done() else bell.set_result(told))
        if not ticket:
            return []
        try:
            with when_closed(request.scope, lambda: None if bell.done() else bell.set_result([])):
                return await bell
        finally:
            self._peers.drop(ticket)

    # -- refusals ------------------------------------------------------------------------------------------------------

    async def _on_refused(self, request: HTTPConnection, refused: Exception) -> Response:
        assert isinstance(refused, Refused)
        data = self._peers.refusal(refused, address_of(request.scope))
        if refused.is_of_error:
            return Response(None, refused.error_code)
        return Response(data, refused.error_code, _headers(refused.details), "application/json")

    async def _on_http(self, request: HTTPConnection, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            code, text = NOT_FOUND, "no such route"
        else:
            code, text = BAD_REQUEST, "use GET" if request.url.path == f"{PREFIX}/keys" else "use POST"
        answer = await self._on_refused(request, Refused(code, text))
        answer.status_code = error.status_code
        answer.headers.update(error.headers or {})
        return answer

    async def _on_defect(self, request: HTTPConnection, error: Exception) -> Response:
        self._peers.feed.failed(0, error)
        return await self._on_refused(request, Refused(INTERNAL_ERROR, "a defect of the exchange; it is on record"))

    # -- sockets -------------------------------------------------------------------------------------------------------

    async def connection(self, socket: WebSocket) -> None:
        """``/ossa/v1/ws``: one message in each text frame, both ways."""
        socket.scope[SHARE] = Share(self._incoming, address_of(socket.scope))
        if sum(not way.is_proven for way in self._sockets) >= MAX_UNKNOWN:
            oldest = min((way for way in self._sockets if not way.is_proven), key=lambda one: one.number)
            self._background.spawn(oldest.finish(CloseCode.TRY_AGAIN_LATER))
        await socket.accept()
        known_by = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
        way = SocketWay(socket, next(self._numbers), known_by, self.send_away)
        self._sockets.add(way)
        sender = self._background.spawn(way.run())
        bad = 0
        try:
            while (data := await self._text(way)) is not None:
                way.weight = len(data)
                bad = 0 if await self._take(way, data) else bad + 1
                if bad >= MAX_BAD:
                    await way.finish(CloseCode.POLICY_VIOLATION, f"{MAX_BAD} frames in a row that were no messages")
                    return
                await self._slow_down(way)
            if way.is_open and way.sent_bytes:
                await way.finish(CloseCode.UNSUPPORTED_DATA, "one message in each text frame")
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._peers.feed.failed(0 if way.peer is None else way.peer.number, error)
            await way.finish(CloseCode.INTERNAL_ERROR)
        finally:
            self._sockets.discard(way)
            way.close()
            sender.cancel()
            if way.peer is not None:
                way.peer.detach(way, DISCONNECTED)

    async def _text(self, way: SocketWay) -> bytes | None:
        """The next message; whoever says nothing good and new for so long has no place to keep."""
        if way.is_proven:
            return await _text(way)
        try:
            async with asyncio.timeout_at(way.known_by):
                return await _text(way)
        except TimeoutError:
            await way.finish(CloseCode.POLICY_VIOLATION, NOTHING_GOOD if way.peer is None else NOTHING_NEW)
            return None

    async def _slow_down(self, way: SocketWay) -> None:
        """Who sends more than is checked for one agent is read more slowly, on all of its sockets together."""
        if way.peer is None:
            await asyncio.sleep(0)
            return
        wait_s = way.peer.pace.wait_s(way.weight, self._peers.feed.now().mono)
        if wait_s:
            await asyncio.sleep(min(wait_s, MAX_PAUSE_S))

    def _close_oldest(self, peer: OssaPeer) -> None:
        """An agent has a few sockets: the newest is used, and one that it lost may not be known to be."""
        own = [way for way in self._sockets if way.peer is peer and way.is_proven]
        for way in sorted(own, key=lambda one: one.number)[:-MAX_SOCKETS]:
            self._background.spawn(way.finish(CloseCode.POLICY_VIOLATION, "replaced by newer connections"))

    async def _take(self, way: SocketWay, data: bytes) -> bool:
        """One frame; whether it was a message of the agent that this socket belongs to."""
        try:
            known = await self._peers.identities.read(data)
            way.weight = max(way.weight, known.weight)
            peer = self._peers.peer(known)
            if way.peer is not None and way.agent_id != known.message.sender.agent_id:
                raise _about(known, Refused(UNAUTHORIZED, f"this connection belongs to {way.agent_id}"))
            is_new = self._peers.openings.is_new(known.message, self._peers.feed.now())
            was_attached = way.is_proven and way.peer is peer
            way.peer, way.is_proven = peer, way.is_proven or is_new
            if way.is_proven and not was_attached:
                peer.attach(way, way.origin)
                self._close_oldest(peer)
        except Refused as refused:
            if refused.error_code == UNAUTHORIZED and not way.is_proven:
                await self._throttle.refused(way.origin)
            self._refuse(way, refused)
            return False
        try:
            self._peers.receive(known, way.replied)
        except Refused as refused:
            self._refuse(way, refused)
        return True

    def _refuse(self, way: SocketWay, refused: Refused) -> None:
        data = self._peers.refusal(refused, way.origin)
        if not refused.is_of_error:
            way.say(data)

    def send_away(self, way: object) -> None:
        """End this way, if it is one of our sockets."""
        if isinstance(way, SocketWay):
            self._background.spawn(self._end(way))

    async def _end(self, way: SocketWay) -> None:
        if way.peer is not None:
            way.peer.detach(way, "sent away")
        is_revoked = way.peer is not None and self._peers.feed.identify(EDGE, way.peer.token_sha256) is None
        await way.finish(CloseCode.POLICY_VIOLATION, "the key was revoked" if is_revoked else "")

    async def stop(self) -> None:
        """Say goodbye to all at the same time."""
        await asyncio.gather(*(way.finish(CloseCode.GOING_AWAY) for way in list(self._sockets)))


class SocketWay:
    """One socket, as the way to an agent. ``on_unread`` hears of it when more waits than an agent may leave unread."""

    def __init__(self, socket: WebSocket, number: int, known_by: float, on_unread: Callable[[SocketWay], None]) -> None:
        self.socket = socket
        self.number = number
        # Until when it may be nobody's, by the loop's clock.
        self.known_by = known_by
        self.peer: OssaPeer | None = None
        # Whether its agent said something new on it: only then is it sent what is for the agent.
        self.is_proven = False
        self.is_open = True
        # Whether the agent sent a frame that is not text.
        self.sent_bytes = False
        # What its last message counts as, in bytes.
        self.weight = 0
        self._on_unread = on_unread
        self._try_say: Say = socket.scope.get("extensions", {}).get(SAY, _says_nothing)
        # What waits to be said, and the size of that and of what is being said.
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._bell, self._written = asyncio.Event(), asyncio.Event()

    @property
    def agent_id(self) -> str:
        """Whose it is; empty before its first valid message."""
        return "" if self.peer is None else self.peer.agent_id

    @property
    def origin(self) -> str:
        """Where it comes from."""
        return address_of(self.socket.scope)

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now."""
        return self.is_open and self._bytes < ROOM_BYTES

    def send(self, data: bytes, _sending: Sending) -> None:
        """What the exchange asks the agent."""
        self.say(data)

    def replied(self, replies: Replies) -> None:
        """Replies to what the agent asked here."""
        for _, data in replies:
            self.say(data)

    def say(self, data: bytes) -> None:
        """Send this. An agent that reads nothing is cut off."""
        if not self.is_open or (not self._bytes and self._try_say(data)):
            return
        self._waiting.append(data)
        self._bytes += len(data)
        self._bell.set()
        if self._bytes > MAX_WAITING_BYTES:
            self._waiting.clear()
            self.close()
            self._on_unread(self)

    async def run(self) -> None:
        """Write what there is, as fast as it is read."""
        try:
            while self.is_open or self._waiting:
                while self._waiting:
                    data = self._waiting.popleft()
                    await self.socket.send_text(data.decode())
                    had_room, self._bytes = self.has_room, self._bytes - len(data)
                    if not had_room and self.has_room and self.peer is not None:
                        self.peer.flush()
                self._bell.clear()
                if self.is_open:
                    await self._bell.wait()
        except (WebSocketDisconnect, RuntimeError):
            self.close()
        finally:
            self._written.set()

    def close(self) -> None:
        """Nothing more is sent."""
        self.is_open = False
        self._bell.set()

    async def finish(self, code: CloseCode, reason: str = "") -> None:
        """Say goodbye, after what was said before if it is read."""
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._written.wait()
        await close_quietly(self.socket, code, reason)


def _says_nothing(_text: bytes) -> bool:
    """Of a server that has no such extension."""
    return False


async def _text(way: SocketWay) -> bytes | None:
    """The next message; None when there is none any more: the agent is gone, or sent bytes."""
    if not way.is_open:
        return None
    try:
        return (await way.socket.receive_text()).encode("utf-8", "surrogatepass")
    except KeyError:
        way.sent_bytes = True
        return None
    except (WebSocketDisconnect, RuntimeError):
        return None


def _answer(message: Message, told: Replies) -> Response:
    """The HTTP answer."""
    if not told:
        return Response(status_code=202)
    if message.is_to_list:
        return Response(b"[%b]" % b",".join(data for _, data in told), 200, media_type="application/json")
    reply, data = told[0]
    if reply.error is None:
        return Response(data, 202 if reply.type == ACK else 200, media_type="application/json")
    given = {} if isinstance(reply.error.details, msgspec.UnsetType) else msgspec.json.decode(reply.error.details)
    return Response(data, reply.error.code, _headers(given), "application/json")


def _headers(details: object) -> dict[str, str] | None:
    wait_ms = details.get("retryAfterMs") if isinstance(details, dict) else None
    return {"retry-after": str(-(-wait_ms // 1000))} if isinstance(wait_ms, int) else None


def _about(known: Known, refused: Refused) -> Refused:
    refused.to, refused.correlation = known.message.sender, known.message.correlation
    refused.proven = known.principal.identity
    return refused
