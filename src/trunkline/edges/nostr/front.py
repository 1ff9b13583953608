"""What stands before the embedded relay: lets programs in, and pages of a browser only where they are allowed.

The relay is nostr-sdk's, which asks nobody where he comes from, so that any page that somebody opens on this machine
could read and publish there. A browser says with each WebSocket from which page it comes (``Origin``); programs do not.
Owns that look at the head of a connection; behind it bytes go both ways unchanged. The relay itself listens at an
address of 127.0.0.0/8 that is drawn anew at each start, so that no page finds it without passing here.

Who neither has a subscription nor says anything for a while is ended, and at once if somebody else needs the place.

Invariant: no byte reaches the relay before the whole head was read and let through. Whoever comes finds a place, unless
all are taken by clients with a subscription, or by such that have just come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from trunkline.edges.nostr.said_to_relay import SaidToRelay

# What a client may say before it is known whether it comes in, and how long it may take for that.
MAX_HEAD_BYTES: Final = 16_384
HEAD_S: Final = 10.0
PIECE_BYTES: Final = 65_536
# How long a client without a subscription may be silent; and how long it may be if its place is wanted: time enough to
# say what it came for.
IDLE_S: Final = 60.0
GRACE_S: Final = 5.0
# A WebSocket's end by the server: it goes away (1001).
_GOING_AWAY: Final = b"\x88\x02\x03\xe9"

_NO_PAGES: Final = "pages of this origin are refused; [nostr] allowed_origins names those that may connect"
_NO_SOCKET: Final = "connect a WebSocket"


def refusal(head: bytes, allowed: Sequence[str]) -> bytes | None:
    """The answer to a head that is not let through; None for one that is."""
    fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    values = [(name.strip().lower(), value.strip().lower()) for name, _, value in fields]
    origins = [value.decode("latin-1") for name, value in values if name == b"origin"]
    if any(origin not in (one.lower() for one in allowed) for origin in origins):
        return _answer("403 Forbidden", _NO_PAGES)
    if not head.startswith(b"GET ") or (b"upgrade", b"websocket") not in values:
        return _answer("426 Upgrade Required", _NO_SOCKET)
    return None


def _answer(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
    return (head + text).encode()


class _Guest(Struct, eq=False):
    """One connection, and what came of it."""

    writer: asyncio.StreamWriter
    said: SaidToRelay

    def is_idle(self, now: float, silent_s: float) -> bool:
        return not self.said.subscriptions and now - self.said.last >= silent_s


class Front:
    """Listens for the relay at ``inner``. ``most`` connections at a time; who comes beyond that takes the place of the
    one that has been silent longest without a subscription, or is hung up on.
    """

    def __init__(
        self, inner: tuple[str, int], allowed: Sequence[str], most: int, *,
        idle_s: float = IDLE_S, grace_s: float = GRACE_S,
    ) -> None:  # fmt: skip
        self._inner = inner
        self._allowed = allowed
        self._most = most
        self._idle_s = idle_s
        self._grace_s = grace_s
        self._guests: list[_Guest] = []
        self._server: asyncio.Server | None = None

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._guests)

    async def start(self, listener: socket.socket) -> None:
        """Let in who connects there."""
        self._server = await asyncio.start_server(self._connection, sock=listener, limit=MAX_HEAD_BYTES)

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time()
        guest = _Guest(writer, SaidToRelay(now))
        try:
            # It may leave, say nothing, or too much.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if self._has_place(now):
                    self._guests.append(guest)
                    await self._let_in(reader, guest)
        finally:
            self._leave(guest)
            writer.close()

    def _has_place(self, now: float) -> bool:
        """Whether one more may come; somebody idle goes for it."""
        if len(self._guests) < self._most:
            return True
        idle = [one for one in self._guests if one.is_idle(now, self._grace_s)]
        if not idle:
            return False
        longest = min(idle, key=lambda one: one.said.last)
        longest.writer.transport.abort()
        self._leave(longest)
        return True

    def _leave(self, guest: _Guest) -> None:
        if guest in self._guests:
            self._guests.remove(guest)

    async def _let_in(self, reader: asyncio.StreamReader, guest: _Guest) -> None:
        writer = guest.writer
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        answer = refusal(head, self._allowed)
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            return
        inward, outward = await asyncio.open_connection(*self._inner)
        outward.write(head)
        clock = asyncio.get_running_loop().time
        guest.said.last = clock()
        ways = [
            asyncio.create_task(_carry(reader, outward, lambda data: guest.said.take(data, clock()))),
            asyncio.create_task(_carry(inward, writer, _unread)),
        ]
        try:
            while True:
                silent_s = 0.0 if guest.said.subscriptions else clock() - guest.said.last
                left_s = max(self._idle_s - silent_s, 0.01)
                done, _ = await asyncio.wait(ways, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
                if guest.is_idle(clock(), self._idle_s):
                    writer.write(_GOING_AWAY)
                    break
        finally:
            for way in ways:
                way.cancel()
            outward.close()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, look: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(PIECE_BYTES):
            look(data)
            target.write(data)
            await target.drain()


def _unread(_data: bytes) -> None:
    """What the relay says is its client's affair."""
