"""Fuzzing of the HTTP edge: wrong requests to the real listener's connections, routes and streams.

The bytes go straight into ``Connection``, as a loop would hand them over; the exchange behind it is in memory and
answers by rote, so that it keeps nothing. A function of its seed. ``test_http`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import httptools
from uvicorn.config import Config

from tests.fuzz.mutations import Mutator, corpus
from tests.inhabited import Inhabited
from trunkline.edges import bearer
from trunkline.edges.http.routes import Api
from trunkline.edges.waiting import Requests
from trunkline.edges.web_connection import Connection, Connections
from trunkline.model import FAULTS
from trunkline.testing.memory import OPERATOR_TOKEN

HOST: Final = "127.0.0.1:8081"
# Turns of the loop that any answer needs; a stream that lasts is left before its end.
TURNS: Final = 40
STATUSES: Final = frozenset(
    {200, 201, 202, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 413, 415, 422, 429, 431, 501, 503}
)
WORDS: Final = (
    b"", b"X", b"GET", b"POST", b"/%00%ff%2e%2e/", b"/v1/" + b"a" * 40000, b"http://evil/", b"HTTP/1.0", b"HTTP/9.9",
    b"/?%zz=\xc3\x28", b"/v1/calls?limit=-1",
)  # fmt: skip
HEADERS: Final = (
    (b"content-length", b"0"), (b"content-length", b"-1"), (b"content-length", b"1e3"), (b"content-length", b"5, 6"),
    (b"content-length", b"99999999999999999999"), (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"gzip"),
    (b"transfer-encoding", b"chunked, identity"), (b"expect", b"100-continue"), (b"connection", b"close"),
    (b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"host", b"evil.example"), (b"host", b""),
    (b"origin", b"null"), (b"origin", b"http://evil.example"), (b"authorization", b"Basic eA=="), (b"cookie", b"a=b"),
    (b"authorization", b"Bearer " + b"x" * 5000), (b"content-type", b"text/plain"), (b"content-encoding", b"gzip"),
    (b"content-type", b"application/json; charset=utf-16"), (b"accept", b"text/event-stream"),
    (b"x" * 300, b"y" * 40000),
    (b"x-a", b"a\x00b"), (b"x-a", b"\xff\xfe"), (b"x a", b"b"), (b"", b"b"), (b"x-http-method-override", b"DELETE"),
    (b"last-event-id", b"999"), (b"range", b"bytes=9-1"), (b"te", b"trailers"),
)  # fmt: skip


class Transport(asyncio.Transport):
    """Where an answer is written to."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8081)})
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        # A real one drops what comes after its end too.
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    resume_reading = pause_reading


class Response:
    """What an HTTP client's parser makes of an answer."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 0
        self.kind = ""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.kind = value.decode()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def messages(exchange: Inhabited) -> list[Any]:
    """The requests that are kept, about what is in this exchange."""
    found = corpus("http.jsonl")
    for message in found:
        message[1] = exchange.path(message[1])
    return found


def request(mutator: Mutator) -> bytes:
    """One request: as it should be, or wrong in its line, its headers, its body or its bytes."""
    rng = mutator.rng
    method, target, headers, body = mutator.message()
    words = [method.encode(), target.encode(), b"HTTP/1.1"]
    fields = [(b"host", HOST.encode()), (b"authorization", f"Bearer {OPERATOR_TOKEN}".encode())]
    fields += [(name.encode(), value.encode()) for name, value in headers]
    data = b""
    if body is not None:
        data = json.dumps(body).encode()
        if rng.random() < 0.7:
            data = Mutator(rng.randrange(2**32), [body]).body()
        fields.append((b"content-type", b"application/json"))
        if b"transfer-encoding" in dict(fields):
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        else:
            fields.append((b"content-length", b"%d" % len(data)))
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        kind = rng.randrange(6)
        if kind == 0:
            words[rng.randrange(3)] = rng.choice(WORDS)
        elif kind == 1 and fields:
            del fields[rng.randrange(len(fields))]
        else:
            fields.insert(rng.randrange(len(fields) + 1), rng.choice(HEADERS))
    whole = b" ".join(words) + b"\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n" + data
    if rng.random() < 0.2:
        whole = rng.choice(mutator._of_bytes)(whole)
    return whole


def judge(written: bytes, sent: bytes) -> None:
    """Everything that was written is answers, and none is a defect of ours."""
    rest = written
    while rest:
        answer = Response()
        parser = httptools.HttpResponseParser(answer)
        end = rest.find(b"HTTP/1.1 ", 9)
        # Of pipelined requests each has its answer; no body of ours holds a status line.
        one, rest = (rest, b"") if end < 0 else (rest[:end], rest[end:])
        try:
            parser.feed_data(one)
        except httptools.HttpParserError as problem:
            raise AssertionError(f"{problem}: {one[:200]!r} answered {sent[:300]!r}") from None
        status = parser.get_status_code()
        if status == 100:
            continue
        assert status in STATUSES, f"{status} answered {sent[:300]!r}: {answer.body[:300]!r}"
        if status >= 400 and answer.body:
            assert answer.kind == "application/json"
            error = json.loads(answer.body)["error"]
            assert error["code"] in FAULTS, error
            assert len(answer.body) < 2000


async def fuzz(seed: int, requests: int) -> int:
    """So many requests, each on its own connection; how many."""
    loop = asyncio.get_running_loop()
    defects: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: defects.append(context))
    exchange = Inhabited()
    exchange.rote()
    given = exchange.surroundings()
    waiting = Requests(given.feed)
    app = Api(given.feed, given.views, given.operator, waiting).app()
    config = Config(app, interface="asgi3", http=Connection, ws="none", lifespan="off", log_config=None,
                    log_level="critical", access_log=False, proxy_headers=False)  # fmt: skip
    config.load()
    mutator = Mutator(seed, messages(exchange))
    connections = Connections()
    for _ in range(requests):
        sent = request(mutator)
        transport = Transport()
        connection = Connection(config, connections, {})
        connection.connection_made(transport)
        for piece in mutator.pieces(sent, 3):
            if not transport.closed:
                connection.data_received(piece)
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if transport.closed or (transport.written and connection.is_idle):
                break
        judge(bytes(transport.written), sent)
        transport.closed = True
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert not defects, f"{defects} after {sent[:300]!r}"
        exchange.answering.fed.clear()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not connections.connections
    waiting.close()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"{len(left)} requests never ended"
    assert exchange.operator.status()["defects"] == 0
    exchange.close()
    return requests


def http(seed: int, requests: int) -> int:
    """So many requests; how many."""
    # The pause before a repeated refusal is not what is judged here.
    pause, bearer.MAX_DELAY_S = bearer.MAX_DELAY_S, 0.0  # type: ignore[misc]
    try:
        return asyncio.run(fuzz(seed, requests))
    finally:
        bearer.MAX_DELAY_S = pause  # type: ignore[misc]
