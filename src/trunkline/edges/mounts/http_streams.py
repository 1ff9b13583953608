"""HTTP/1.1 as a client: requests whose answers are read as they arrive, over connections that are used again.

Owns connections and bounds, and the reading of server-sent events. Does not own what is asked (``remote``).

Invariant: plain HTTP leaves for this machine only, everything else is TLS. A connection is used again only after an
answer that was read to its end, and not when it has rested longer than servers let one rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final

import httptools
from msgspec import Struct

from trunkline.addresses import shown
from trunkline.edges.client import Endpoint, Unreachable
from trunkline.edges.framing.lines import Lines
from trunkline.edges.shares import Share
from trunkline.error_words import in_words

# A host that does not answer, and a handshake of TLS.
CONNECT_S: Final = 10.0
# As large as other clients let one be.
MAX_HEAD_BYTES: Final = 65_536
READ_BYTES: Final = 65_536
# uvicorn closes after 5 s, others later.
MAX_REST_S: Final = 2.0
# As many as calls are usually under way at once: one that is closed is a handshake for a later call.
MAX_RESTING: Final = 32
# Of a server-sent event: what names one that can be asked for again, and its kind, of which we know one.
MAX_EVENT_ID_BYTES: Final = 1024
MAX_EVENT_NAME_BYTES: Final = 64


class NotConnected(Unreachable):
    """There is no connection: nothing of the request was sent."""


class Answer:
    """The head of an answer; ``pieces`` is its body, as it arrives."""

    def __init__(self, reader: asyncio.StreamReader, share: Share) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self.is_over = False
        # Whether the connection can be used again.
        self.is_reusable = False
        self._reader = reader
        self._share = share
        self._has_head = False
        self._read: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def kind(self) -> str:
        """The media type."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def head(self) -> None:
        """Read until the body begins."""
        size = 0
        while not self._has_head:
            if size > MAX_HEAD_BYTES:
                raise Unreachable("the head of an answer is too long")
            size += await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body; it ends where the answer does, or where the connection broke: see ``is_over``."""
        while True:
            ready, self._read = self._read, []
            for piece in ready:
                yield piece
            if self.is_over:
                return
            try:
                await self._more()
            except Unreachable:
                return

    async def body(self, max_bytes: int) -> bytes:
        """The whole body; ``Unreachable`` if it is too long, or broke off."""
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > max_bytes:
                raise Unreachable("an answer is too long")
            self.keep(size)
            parts.append(piece)
        if not self.is_over:
            raise Unreachable("an answer broke off")
        return b"".join(parts)

    def keep(self, size: int) -> None:
        """Count what is kept of it; ``Unreachable`` if that is more than is kept of this server, or of all."""
        if not self._share.try_set_size(size):
            raise Unreachable("more of its answers is on its way than is kept")

    async def _more(self) -> int:
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise Unreachable(in_words(error)) from None
        if not data:
            # A body without a length ends with its connection; the parser alone cannot know.
            if self._has_head and "content-length" not in self.headers and "transfer-encoding" not in self.headers:
                self.is_over = True
                return 0
            raise Unreachable("the connection was closed")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, UnicodeDecodeError) as error:
            raise Unreachable(in_words(error)) from None
        return len(data)

    # -- what the parser calls -----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """The head is read; one that says "wait" is not the answer."""
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:
            self.headers.clear()
        else:
            self._has_head = True

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        self._read.append(data)

    def on_message_complete(self) -> None:
        """All of it."""
        if self._has_head:
            self.is_over = True
            # Asked here: afterwards the parser is at the next answer.
            self.is_reusable = bool(self._parser.should_keep_alive())


class _Resting(Struct):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float


class Connections:
    """All connections to one server."""

    def __init__(self, place: Endpoint, tls: ssl.SSLContext | None, share: Share, address: str = "") -> None:
        """``address`` is where the host was found, if that was looked at before; its name is what counts for TLS.

        ``share`` is the server's, of what is kept of answers that have not ended.
        """
        self._place = place
        self._share = share
        self._address = address or place.host
        self._tls = tls if place.is_tls else None
        self._resting: list[_Resting] = []

    @contextlib.asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
        """Ask; the answer can be read inside. ``Unreachable`` if there is none (``NotConnected``: nothing was sent)."""
        reader, writer = await self._connection()
        share = self._share.beside()
        answer = Answer(reader, share)
        try:
            try:
                writer.write(self._head(method, headers, body) + body)
                await writer.drain()
            except OSError as error:
                raise Unreachable(in_words(error)) from None
            await answer.head()
            yield answer
        finally:
            share.end()
            if answer.is_reusable and len(self._resting) < MAX_RESTING:
                self._resting.append(_Resting(reader, writer, asyncio.get_running_loop().time()))
            else:
                writer.transport.abort()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._resting:
            found = self._resting.pop()
            is_fresh = asyncio.get_running_loop().time() - found.since < MAX_REST_S
            if is_fresh and not found.reader.at_eof() and not found.writer.is_closing():
                return found.reader, found.writer
            found.writer.transport.abort()
        host = self._place.host
        try:
            async with asyncio.timeout(CONNECT_S):
                name = host if self._tls is not None else None
                return await asyncio.open_connection(
                    self._address, self._place.port, ssl=self._tls, server_hostname=name
                )
        except (OSError, TimeoutError, ssl.SSLError, ssl.CertificateError) as error:
            raise NotConnected(f"{in_words(error)} ({shown(host)}:{self._place.port})") from None

    def _head(self, method: str, headers: Mapping[str, str], body: bytes) -> bytes:
        lines = [f"{method} {self._place.target} HTTP/1.1", f"Host: {shown(self._place.host)}:{self._place.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def close(self) -> None:
        """Let go of those that rest."""
        for found in self._resting:
            found.writer.transport.abort()
        self._resting.clear()


class SentEvent(Struct, frozen=True):
    """One server-sent event: what a client calls a message."""

    data: bytes
    event_id: str = ""


class EventReader:
    """Server-sent events out of pieces of a body. ``is_broken`` once one was too long."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines = Lines(max_bytes)
        # One after the other, each with a line break behind it: a stranger may send a million of them.
        self._data = bytearray()
        self._event = b""
        self._id = ""
        self.is_broken = False

    def receive(self, piece: bytes) -> list[SentEvent]:
        """The events that end in this piece."""
        if self.is_broken:
            return []
        read = (self._line(line.removesuffix(b"\r")) for line in self._lines.receive(piece))
        found = [event for event in read if event is not None]
        self.is_broken = self._lines.is_broken or len(self._data) > self._max_bytes
        return found

    @property
    def kept(self) -> int:
        """Bytes of the event that has not ended."""
        return len(self._data) + self._lines.kept

    def _line(self, line: bytes) -> SentEvent | None:
        if not line:
            data, name = bytes(self._data[:-1]), self._event
            had_data = bool(self._data)
            self._data.clear()
            self._event = b""
            if not had_data and not self._id:
                return None
            return SentEvent(data if name in {b"", b"message"} else b"", self._id)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value
            self._data += b"\n"
        elif field == b"event":
            self._event = value[:MAX_EVENT_NAME_BYTES]
        elif (
            field == b"id"
            and len(value) <= MAX_EVENT_ID_BYTES
            and value.isascii()
            and b"\0" not in value
            and b"\r" not in value
        ):
            self._id = value.decode()
        return None
