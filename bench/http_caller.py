"""The caller of the HTTP rows: ``python -m bench.http_caller``; everything else comes on standard input (``loads``).

Keeps one call in flight on each of its connections, HTTP/1.1 with keep-alive. It is the same for the exchange and for
the bare answer, and much cheaper than either: a request is prepared but for its body, and of an answer's head only the
status and the length are read, so what is measured is the server. It checks that each call succeeded and nothing else.

Invariant: a connection that closes, or an answer that is not a call that succeeded, ends the process and so the run.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, cast

import uvloop

from bench.ends import CONNECT_WITHIN_S, Broken, end_on_fault
from bench.loads import Done, Measured, Meter, Run, Target, Texts, answer, commands

HEAD: Final = (
    b"POST /v1/calls HTTP/1.1\r\n"
    b"host: %s\r\n"
    b"authorization: Bearer %s\r\n"
    b"content-type: application/json\r\n"
    b"content-length: %d\r\n"
    b"\r\n"
)
BODY_BEGIN: Final = b'{"tool_id":"%s","input":'
BODY_END: Final = b"}"

_OK: Final = b"HTTP/1.1 200 "
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_SUCCEEDED: Final = b'"status":"succeeded"'
# So much of an answer that should not be is shown.
_SHOWN_BYTES: Final = 300


def request_begin(target: Target, tool: str, input_bytes: int) -> bytes:
    """A request up to the tool's input, which has so many bytes; ``BODY_END`` follows the input."""
    body = BODY_BEGIN % tool.encode()
    size = len(body) + input_bytes + len(BODY_END)
    return HEAD % (target.address.encode(), target.token.encode(), size) + body


def answer_bytes(data: bytes) -> int:
    """The size of the answer that begins here, head and body; 0 while its head is not whole."""
    end = data.find(_HEAD_END)
    if end < 0:
        return 0
    # Names of fields are not case-sensitive.
    head = data[: end + 2].lower()
    at = head.find(_LENGTH)
    if at < 0 or not data.startswith(_OK):
        raise Broken(f"not an answer to a call: {data[:_SHOWN_BYTES]!r}")
    at += len(_LENGTH)
    return end + len(_HEAD_END) + int(head[at : head.index(b"\r\n", at)])


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller
        self._heard = b""
        self._is_closing = False
        self._transport: asyncio.Transport
        # When its request was written.
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait to be told what to ask."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Nothing that is measured closes a connection while it is."""
        if not self._is_closing:
            raise Broken("the connection was closed")

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        if self._heard:
            data = self._heard + data
        size = answer_bytes(data)
        if not size or len(data) < size:
            self._heard = data
            return
        if len(data) > size or _SUCCEEDED not in data:
            raise Broken(f"not the one answer of a call that succeeded: {data[:_SHOWN_BYTES]!r}")
        self._heard = b""
        self._caller.answered(self)

    def close(self) -> None:
        """End it."""
        self._is_closing = True
        self._transport.close()


class HttpCaller:
    """Keeps a call in flight on each connection of a load."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._texts = Texts()
        self._begin = b""
        self._calls = 0
        self._open = 0
        self._meter: Meter
        self._ended: asyncio.Future[None]

    async def run(self, run: Run) -> Measured:
        """One load, on new connections: the server would have closed those of the load before while they were idle."""
        (tool,) = run.tools
        self._texts.use(run.load)
        self._begin = request_begin(self._target, tool, len(self._texts.body()))
        connections = await self._connect(run.load.in_flight)
        before = self._calls
        self._ended = asyncio.get_running_loop().create_future()
        self._meter = meter = Meter(run, time.perf_counter())
        self._open = len(connections)
        for connection in connections:
            self._call(connection)
        await self._ended
        for connection in connections:
            connection.close()
        return meter.measured(self._calls - before)

    async def _connect(self, count: int) -> list[Connection]:
        loop = asyncio.get_running_loop()
        host, _, port = self._target.address.rpartition(":")
        async with asyncio.timeout(CONNECT_WITHIN_S):
            made = (loop.create_connection(lambda: Connection(self), host, int(port)) for _ in range(count))
            return [connection for _, connection in await asyncio.gather(*made)]

    def _call(self, connection: Connection) -> None:
        self._calls += 1
        connection.ask(self._begin + self._texts.body() + BODY_END)

    def answered(self, connection: Connection) -> None:
        """An answer makes room for the next call."""
        if self._meter.count(time.perf_counter(), connection.began):
            self._call(connection)
            return
        self._open -= 1
        if self._open == 0:
            self._ended.set_result(None)


async def main() -> None:
    """Do what is asked for until standard input is closed."""
    asyncio.get_running_loop().set_exception_handler(end_on_fault)
    answer(Done())
    asked = commands()
    target = await anext(asked)
    assert isinstance(target, Target)
    caller = HttpCaller(target)
    answer(Done())
    async for command in asked:
        assert isinstance(command, Run)
        answer(await caller.run(command))
    os._exit(0)


if __name__ == "__main__":
    uvloop.run(main())
