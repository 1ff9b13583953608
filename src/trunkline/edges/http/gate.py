"""Who may come in: Host, Origin and bearer token, judged before anything else of a request is read.

Owns the refusals 401 and 403 of strangers, and which application a request is for. Does not own what somebody who came
in may do (``routes``) or whose token it is (the exchange). Host and Origin are checked because a browser can be made to
send requests to a loopback address by any page (DNS rebinding); a name that is not ours, or a page that is not ours, is
turned away before the token is looked at.

Owns each caller's share of the listener, too: how many requests of one are answered at the same time, and that the last
connections are the operator's alone; how much of what they send is kept before it is complete, and how much of what
they asked for is kept until they read it.

Invariant: a missing, malformed, unknown, revoked and foreign token get equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.edges.answers import error_body
from trunkline.edges.bearer import Throttle, bearer_token, whose
from trunkline.edges.doors import Door, TakingApp
from trunkline.edges.exchange import Feed
from trunkline.edges.hosts import is_our_host
from trunkline.edges.request_scope import RESERVED, Serve, address_of
from trunkline.edges.shares import FREE_BYTES, MAX_SHARE_BYTES, SHARE, Share, Shares
from trunkline.edges.web_connection import MAX_CONNECTIONS
from trunkline.model import Principal, fault

EDGE: Final = "http"
# Open to everybody: whether we serve, and a page that says what this is.
PUBLIC_PATHS: Final = frozenset({"/healthz", "/"})
# Host headers that were judged; strangers make up others.
MAX_HOSTS: Final = 64
# Requests of one caller that are answered at the same time: half of the connections. The operator has no such bound.
MAX_REQUESTS: Final = MAX_CONNECTIONS // 2


class Refusal(Struct, frozen=True):
    """An answer to somebody who is not let in, or not now."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _refusal(status: int, code: str, text: str = "", *headers: tuple[bytes, bytes]) -> Refusal:
    return Refusal(status, error_body(fault(code, text)), headers)


RETRY_AFTER: Final = (b"retry-after", b"1")
TOO_MANY: Final = _refusal(
    429, "limit.inflight", f"{MAX_REQUESTS} requests of one caller are being answered", RETRY_AFTER
)
TOO_MUCH_UNREAD: Final = _refusal(
    429,
    "limit.inflight",
    f"answers that one caller has not read may have {MAX_SHARE_BYTES} bytes together",
    RETRY_AFTER,
)
ONLY_OPERATOR: Final = _refusal(
    503, "limit.resource", "too many connections; the last are kept for the operator", RETRY_AFTER
)
UNAUTHORIZED: Final = _refusal(401, "auth.failed", "", (b"www-authenticate", b"Bearer"))
OTHER_HOST: Final = _refusal(
    403, "not_allowed", "the Host header must be localhost or this machine's loopback address, with our port"
)
OTHER_ORIGIN: Final = _refusal(403, "not_allowed", "requests from pages of another origin are refused")


class Gate:
    """The first thing a request meets. ``routes`` are single methods of single paths that go past the router."""

    def __init__(
        self,
        feed: Feed,
        app: ASGIApp,
        doors: Sequence[Door] = (),
        routes: Mapping[tuple[str, str], TakingApp] | None = None,
    ) -> None:
        self._feed = feed
        self._app = app
        self._doors = doors
        # The first that leads there, for the paths that they name themselves.
        self._doors_at = {prefix: _door_to(prefix, doors) for door in doors for prefix in door.prefixes}
        self._routes = routes or {}
        # What may be taken without a task: of these, and of doors.
        self._taking = dict(self._routes)
        for door in doors:
            self._taking.update(door.taking)
        self._throttle = Throttle(feed, EDGE)
        self._hosts: dict[tuple[bytes, tuple[str, int]], bool] = {}
        # Requests that are being answered, by who asks. Strangers before a door with its own gate are one.
        self._answering: dict[str, int] = {}
        # Bodies and messages on their way in, and answers that wait to be read.
        self._incoming = Shares()
        self._unread = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, with its ``principal``, unless its caller has too many at the same time."""
        judged = self._judged(scope)
        if isinstance(judged, Refusal):
            if judged is UNAUTHORIZED:
                await self._throttle.refused(address_of(scope))
            await _answer(scope, send, judged)
            return
        app, who = judged
        if who is None:
            await app(scope, receive, send)
            return
        # A door with a gate of its own knows whose a request is, and what waits for them.
        is_counted = "principal" in scope
        refusal = self._try_begin(who, is_counted=is_counted)
        if refusal is not None:
            await _answer(scope, send, refusal)
            return
        unread = None
        try:
            if is_counted:
                scope[SHARE] = Share(self._incoming, who)
                if scope["type"] == "http":
                    unread = Share(self._unread, who)
                    send = Counted(unread, send, may_refuse=scope["method"] == "GET").send
            await app(scope, receive, send)
        finally:
            if unread is not None:
                unread.end()
            self._end(who)

    def try_take(self, scope: Scope, data: bytes, serve: Serve) -> bool:
        """Let a request through to a route that needs no task for it. All that is to be refused is left to a task."""
        route = self._taking.get((scope["method"], scope["path"]))
        if route is None or len(data) > FREE_BYTES:
            return False
        judged = self._judged(scope)
        if isinstance(judged, Refusal):
            return False
        who = judged[1]
        if who is not None and self._try_begin(who, is_counted="principal" in scope) is not None:
            return False
        is_taken = route.try_take(scope, data, serve, partial(self._end, who))
        if not is_taken:
            self._end(who)
        return is_taken

    def _try_begin(self, who: str, *, is_counted: bool) -> Refusal | None:
        """Count one more request of a caller, or say why he has to wait."""
        count = self._answering.get(who, 0)
        if count >= MAX_REQUESTS:
            return TOO_MANY
        if is_counted and self._unread.held(who) >= MAX_SHARE_BYTES - FREE_BYTES:
            return TOO_MUCH_UNREAD
        self._answering[who] = count + 1
        return None

    def _end(self, who: str | None) -> None:
        if who is None:
            return
        left = self._answering[who] - 1
        if left:
            self._answering[who] = left
        else:
            del self._answering[who]

    def _judged(self, scope: Scope) -> tuple[ASGIApp, str | None] | Refusal:
        """Which application a request is for and for whom it counts (the operator's for nobody), or a refusal."""
        path: str = scope["path"]
        hosts: list[bytes] = []
        origins: list[bytes] = []
        tokens: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"authorization":
                tokens.append(value)
            elif name == b"origin":
                origins.append(value)
        host = hosts[0] if len(hosts) == 1 else b""
        if not self._is_ours(host, scope["server"]):
            return OTHER_HOST
        if origins and [origin.lower() for origin in origins] != [b"http://" + host.lower()]:
            return OTHER_ORIGIN
        app: ASGIApp | None = self._routes.get((scope.get("method", ""), path))
        door = None
        if app is None:
            door = self._doors_at.get(path) or _door_to(path, self._doors)
            app = self._app if door is None else door.app
        is_reserved = RESERVED in scope.get("extensions", ())
        who = ""
        if path in PUBLIC_PATHS:
            pass
        elif door is not None and door.gate_of:
            who = self._who_at(door, tokens)
        else:
            principal = self._identified(scope, tokens)
            if principal is not None:
                if principal.is_operator:
                    return app, None
                who = principal.identity
            elif not is_reserved:
                return UNAUTHORIZED
        # At once, and whoever it is: a guesser's refusal, which takes its time, would hold the place.
        return ONLY_OPERATOR if is_reserved else (app, who)

    def _identified(self, scope: Scope, tokens: list[bytes]) -> Principal | None:
        """Who asks, by a token of this edge or by other means if none is shown; the scope says it to who answers."""
        token = bearer_token(tokens)
        principal = self._admitted(scope) if token is None else whose(self._feed, EDGE, token)
        if principal is None:
            return None
        scope["principal"] = principal
        if scope["type"] == "websocket":
            # It stays open for days; the token it came with may be revoked meanwhile.
            scope["is_known"] = (
                (lambda: whose(self._feed, EDGE, token) is not None)
                if token
                else (lambda: self._admitted(scope) is not None)
            )
        return principal

    def _admitted(self, scope: Scope) -> Principal | None:
        """Who shows by other means than a token who he is."""
        found = (door.admits(scope) for door in self._doors if door.admits is not None)
        return next((principal for principal in found if principal is not None), None)

    def _who_at(self, door: Door, tokens: list[bytes]) -> str:
        """For whom a request before a door with its own gate counts: whose token it shows there, or all strangers."""
        principal = whose(self._feed, door.gate_of, bearer_token(tokens))
        return door.prefixes[0] if principal is None else principal.identity

    def _is_ours(self, host: bytes, server: tuple[str, int]) -> bool:
        known = self._hosts.get((host, server))
        if known is None:
            if len(self._hosts) >= MAX_HOSTS:
                self._hosts.clear()
            known = self._hosts[host, server] = is_our_host(host.decode("latin-1"), server)
        return known


class Counted:
    """An answer that counts for who asked until it was read, and is handed to the connection in pieces.

    One that was only looked up and for which there is no room is refused in its place; one that tells what was done is
    always told. A stream has no size, and waits for its reader by itself.
    """

    __slots__ = ("_is_refused", "_may_refuse", "_send", "_share")

    def __init__(self, share: Share, send: Send, *, may_refuse: bool) -> None:
        self._share = share
        self._send = send
        self._is_refused = False
        self._may_refuse = may_refuse

    async def send(self, message: Message) -> None:
        """Something of the answer, as soon as what was said before is read."""
        if self._is_refused:
            return
        body: bytes = message.get("body", b"")
        if message["type"] == "http.response.start":
            size = next((int(value) for name, value in message["headers"] if name == b"content-length"), 0)
            if not self._share.try_set_size(size):
                if self._may_refuse:
                    self._is_refused = True
                    await _answer({"type": "http"}, self._send, TOO_MUCH_UNREAD)
                    return
                self._share.set_size(size)
        elif len(body) > FREE_BYTES:
            whole, more = memoryview(body), message.get("more_body", False)
            last = (len(body) - 1) // FREE_BYTES * FREE_BYTES
            for at in range(0, last, FREE_BYTES):
                piece = bytes(whole[at : at + FREE_BYTES])
                await self._send({"type": message["type"], "body": piece, "more_body": True})
            message = {"type": message["type"], "body": bytes(whole[last:]), "more_body": more}
        await self._send(message)


def _door_to(path: str, doors: Sequence[Door]) -> Door | None:
    return next((door for door in doors if door.leads_to(path)), None)


async def _answer(scope: Scope, send: Send, refusal: Refusal) -> None:
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(refusal.body))]
    # A WebSocket that is not opened is answered like any other request.
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": [*start, *refusal.headers]})
    await send({"type": f"{kind}.body", "body": refusal.body})
