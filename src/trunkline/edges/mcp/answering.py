"""The answer to one HTTP request of MCP: one JSON message, or a stream that ends with it.

Owns when an answer becomes a stream: with the first thing there is to tell before the result, or after some silence, if
the client takes streams. Owns each caller's share of answers that are not read yet. Does not own what is said.

Invariant: one request has one result, the last thing that is said.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Scope, Send

from trunkline.edges.request_scope import ANSWER
from trunkline.edges.server_events import PING, event, finish_stream, write
from trunkline.edges.shares import FREE_BYTES, Share

STREAM: Final = b"text/event-stream"
JSON: Final = b"application/json"
Header = tuple[bytes, bytes]


class Answering:
    """What is said to one request."""

    def __init__(self, scope: Scope, accepted: bytes, unread: Share, send: Send | None = None) -> None:
        """Without ``send`` it has no task yet: until it is ``attended``, others say what is said in one write."""
        self._scope = scope
        self._unread = unread
        self._send: Send = send or _nobody_sends
        self._is_stream = False
        accepted = accepted.lower()
        self.takes_stream = STREAM in accepted or b"*/*" in accepted
        takes_json = JSON in accepted or b"*/*" in accepted or b"application/*" in accepted
        # As a client has to.
        self.takes_both = self.takes_stream and takes_json

    def attended(self, send: Send) -> None:
        """A task says what there is to say."""
        self._send = send

    async def say(self, line: bytes, status: int = 200, *headers: Header) -> None:
        """The result."""
        try:
            self._unread.set_size(len(line))
            if self._is_stream:
                await self._in_pieces(event("message", line), more=True)
                await finish_stream(self._send)
            elif not headers and len(line) <= FREE_BYTES:
                self._scope["extensions"][ANSWER](status, line)
            else:
                start = [(b"content-type", JSON), (b"content-length", b"%d" % len(line)), *headers]
                await self._send({"type": "http.response.start", "status": status, "headers": start})
                await self._in_pieces(line)
        finally:
            self._unread.end()

    async def say_nothing(self, status: int, *headers: Header) -> None:
        """An answer without a message."""
        start = [(b"content-length", b"0"), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": start})
        await self._send({"type": "http.response.body", "body": b""})

    async def tell(self, line: bytes) -> None:
        """Something before the result; nothing to a client that takes no streams."""
        if self.takes_stream:
            await self.start()
            await write(self._send, event("message", line))

    async def live(self) -> None:
        """A sign of life, for clients and proxies that give up a silent connection."""
        if self.takes_stream:
            await self.start()
            await write(self._send, PING)

    async def start(self) -> None:
        """From here on it is a stream."""
        if not self._is_stream:
            self._is_stream = True
            headers = [(b"content-type", STREAM)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def finish(self) -> None:
        """End a stream that has no result."""
        await finish_stream(self._send)

    async def _in_pieces(self, data: bytes, *, more: bool = False) -> None:
        """As they are taken."""
        whole = memoryview(data)
        for at in range(0, len(data), FREE_BYTES):
            is_last = at + FREE_BYTES >= len(data)
            piece: Message = {"type": "http.response.body", "body": bytes(whole[at : at + FREE_BYTES])}
            await self._send({**piece, "more_body": more or not is_last})


async def _nobody_sends(_: Message) -> None:
    raise AssertionError
