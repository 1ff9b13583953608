"""What stands before the embedded relay: lets programs in, and pages of a browser only where they are allowed.

The relay is nostr-sdk's, which asks nobody where he comes from, so that any page that somebody opens on this machine
could read and publish there. A browser says with each WebSocket from which page it comes (``Origin``); programs do not.
Owns that look at the head of a connection; behind it bytes go both ways unread. The relay itself listens at an address
of 127.0.0.0/8 that is drawn anew at each start, so that no page finds it without passing here.

Invariant: no byte reaches the relay before the whole head was read and let through.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

# What a client may say before it is known whether it comes in, and how long it may take for that.
MAX_HEAD_BYTES: Final = 16_384
HEAD_S: Final = 10.0
PIECE_BYTES: Final = 65_536

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


class Front:
    """Listens for the relay at ``inner``. ``most`` connections at a time; who comes beyond that is hung up on."""

    def __init__(self, inner: tuple[str, int], allowed: Sequence[str], most: int) -> None:
        self._inner = inner
        self._allowed = allowed
        self._most = most
        # Connections that are open.
        self.count = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._connection, host, port, limit=MAX_HEAD_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        try:
            # It may leave, say nothing, or too much.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if self.count <= self._most:
                    await self._let_in(reader, writer)
        finally:
            self.count -= 1
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        answer = refusal(head, self._allowed)
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            return
        inward, outward = await asyncio.open_connection(*self._inner)
        outward.write(head)
        ways = [asyncio.create_task(_carry(reader, outward)), asyncio.create_task(_carry(inward, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            outward.close()


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(PIECE_BYTES):
            target.write(data)
            await target.drain()
