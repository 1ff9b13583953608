"""Who may come in: Host, Origin and bearer token, judged before anything else of a request is read.

Owns the refusals 401 and 403 of strangers. Does not own what somebody who came in may do (``routes``) or whose token
it is (the exchange). Host and Origin are checked because a browser can be made to send requests to a loopback address
by any page (DNS rebinding); a name that is not ours, or a page that is not ours, is turned away before the token is
looked at.

Invariant: a missing, malformed, unknown, revoked and foreign token get equal bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.edges.doors import Door
from trunkline.edges.exchange import Exchange
from trunkline.edges.http import translate
from trunkline.events import Noticed
from trunkline.model import Principal, fault

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
# Open to everybody: whether we serve, and a page that says what this is.
PUBLIC_PATHS: Final = frozenset({"/healthz", "/"})

# A refusal waits 0.1 s, doubling up to this, while its address keeps failing: a mistyped token costs nothing.
MAX_DELAY_S: Final = 5.0
# An address that was quiet for so long starts anew; on one machine everybody shares an address.
FORGET_AFTER_S: Final = 60.0
# Addresses whose failures are remembered, and refusals that wait at the same time; above it they are answered at once.
MAX_ADDRESSES: Final = 256
MAX_WAITING: Final = 64

UNAUTHORIZED: Final = translate.error(fault("auth.failed"))


def is_our_host(host: str, server: tuple[str, int]) -> bool:
    """Whether a Host header names this listener by a loopback name or by the address that was connected to."""
    address, port = server
    names = (*LOOPBACK_NAMES, f"[{address}]" if ":" in address else address)
    host = host.lower()
    return any(host == f"{name}:{port}" or (port == 80 and host == name) for name in names)


def bearer_token(values: list[bytes]) -> bytes | None:
    """The token of exactly one ``Authorization: Bearer …`` header."""
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    token = token.strip()
    return token if scheme.lower() == b"bearer" and token else None


def principal_of(scope: Scope) -> Principal:
    """Who sent this request; the gate put it there."""
    principal = scope["principal"]
    assert isinstance(principal, Principal)
    return principal


class Failures:
    """Failed attempts for each address.

    They slow that address's next refusal, never anybody's success (decision 17).
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self.waiting = 0

    def count(self, address: str, now: float) -> int:
        """How many failures in a row this is."""
        earlier, at = self._seen.pop(address, (0, now))
        count = earlier + 1 if now - at < FORGET_AFTER_S else 1
        self._seen[address] = (count, now)
        if len(self._seen) > MAX_ADDRESSES:
            del self._seen[next(iter(self._seen))]
        return count


class Gate:
    """The first thing a request meets."""

    def __init__(self, app: ASGIApp, exchange: Exchange, doors: Sequence[Door] = ()) -> None:
        self._app = app
        self._exchange = exchange
        self._doors = doors
        self._failures = Failures()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, with its ``principal``, or answer it."""
        door = next((door for door in self._doors if door.leads_to(scope["path"])), None)
        app = self._app if door is None else door.app
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if not is_our_host(host, scope["server"]):
            text = "the Host header must be localhost or this machine's loopback address, with our port"
            await _answer(scope, send, 403, translate.error(fault("not_allowed", text)))
        elif origins and [origin.lower() for origin in origins] != [f"http://{host}".lower().encode("latin-1")]:
            text = "requests from pages of another origin are refused"
            await _answer(scope, send, 403, translate.error(fault("not_allowed", text)))
        elif scope["path"] in PUBLIC_PATHS or (door is not None and door.own_gate):
            await app(scope, receive, send)
        else:
            token = bearer_token([value for name, value in headers if name == b"authorization"])
            # Without a token the same work is done, so that time says nothing either.
            principal = self._exchange.identify("http", hashlib.sha256(token or b"").hexdigest())
            if principal is None or token is None:
                await self._refuse(scope, send)
            else:
                scope["principal"] = principal
                await app(scope, receive, send)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        client = scope["client"]
        address = client[0] if client else ""
        failures = self._failures
        count = failures.count(address, self._exchange.now().mono)
        # The record hears of the 1st, 10th, 100th … failure: a stranger must not be able to fill the disk.
        if count == 10 ** (len(str(count)) - 1):
            self._exchange.feed([Noticed("auth.failed", "http", who=address, detail=f"{count} in a row")])
        if count > 1 and failures.waiting < MAX_WAITING:
            failures.waiting += 1
            try:
                await asyncio.sleep(min(MAX_DELAY_S, 0.1 * 2.0 ** min(count - 2, 16)))
            finally:
                failures.waiting -= 1
        await _answer(scope, send, 401, UNAUTHORIZED, (b"www-authenticate", b"Bearer"))


async def _answer(scope: Scope, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    # A WebSocket that is not opened is answered like any other request.
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": [*start, *headers]})
    await send({"type": f"{kind}.body", "body": body})
