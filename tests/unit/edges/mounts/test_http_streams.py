"""``edges.mounts.http_streams``: answers as they arrive, from servers that say whatever they like."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.client import Endpoint, Unreachable
from trunkline.edges.mcp_words import header_text, header_value
from trunkline.edges.mounts.http_streams import Connections, EventReader, NotConnected, SentEvent
from trunkline.edges.shares import FREE_BYTES, MAX_SHARE_BYTES, Share, Shares


class Server:
    """Answers each connection with these bytes, and keeps it open or not."""

    def __init__(self) -> None:
        self.says = [b""]
        self.stays = True
        self.shares = Shares()
        self.connections = 0
        self.requests = b""
        self._server: asyncio.Server
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> Connections:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return Connections(Endpoint("127.0.0.1", port, "/mcp", is_tls=False), None, Share(self.shares, "mcp.x"))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            while data := await reader.read(65_536):
                self.requests += data
                for piece in self.says:
                    writer.write(piece)
                    await writer.drain()
                if not self.stays:
                    break
        except (OSError, asyncio.CancelledError):
            pass
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def stop(self) -> None:
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    yield found
    await found.stop()


async def test_a_connection_is_used_again_after_an_answer_that_was_read_to_its_end(server: Server) -> None:
    connections = await server.start()
    server.says = [b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; x=y\r\nContent-Length: 2\r\n\r\n", b"{}"]
    for _ in range(3):
        async with asyncio.timeout(10), connections.request("POST", {"a": "b"}, b"x") as answer:
            assert (answer.status, answer.kind) == (200, "application/json")
            assert await answer.body(10) == b"{}"
    assert server.connections == 1
    whole, server.says = server.says, [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"{}"]
    async with asyncio.timeout(10), connections.request("POST", {}, b"x") as answer:
        server.says = whole
    async with asyncio.timeout(10), connections.request("POST", {}, b"x") as answer:
        assert await answer.body(10) == b"{}"
    assert server.connections == 2, "one that was not read is not used again"
    connections.close()


@pytest.mark.parametrize(
    "said",
    [
        [b"nonsense\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b""],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000],
    ],
)
async def test_what_is_no_answer_or_too_much_of_one_is_unreachable(server: Server, said: list[bytes]) -> None:
    connections = await server.start()
    server.says, server.stays = said, False
    with pytest.raises(Unreachable):
        async with asyncio.timeout(10), connections.request("POST", {}, b"x") as answer:
            await answer.body(1000)
    connections.close()


async def test_what_is_kept_of_all_answers_of_a_server_has_a_bound_and_is_given_back(server: Server) -> None:
    connections = await server.start()
    body = b"x" * 200_000
    server.says = [b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n", body]
    async with asyncio.timeout(10), connections.request("POST", {}, b"x") as answer:
        assert await answer.body(1_000_000) == body
        assert server.shares.held("mcp.x") == len(body) - FREE_BYTES
    assert server.shares.held("mcp.x") == 0
    server.shares.change("mcp.x", MAX_SHARE_BYTES)
    async with asyncio.timeout(10), connections.request("POST", {}, b"x") as answer:
        with pytest.raises(Unreachable, match="more of its answers is on its way than is kept"):
            await answer.body(1_000_000)
    assert server.shares.held("mcp.x") == MAX_SHARE_BYTES
    connections.close()


@pytest.mark.slow
def test_an_event_of_very_many_lines_takes_no_more_than_its_bytes() -> None:
    reader = EventReader(1_000_000)
    tracemalloc.start()
    try:
        for _ in range(900):
            assert reader.receive(b"data:\n" * 1000) == []
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()
    assert reader.kept == 900_000
    assert reader.receive(b"data: end\n\n") == [SentEvent(b"\n" * 900_000 + b"end")]


async def test_a_body_without_a_length_ends_with_its_connection(server: Server) -> None:
    connections = await server.start()
    server.says, server.stays = [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", b"all of it"], False
    async with asyncio.timeout(10), connections.request("GET", {}) as answer:
        assert await answer.body(1000) == b"all of it"
    assert b"Content-Length" not in server.requests


async def test_where_nobody_listens_nothing_was_sent(server: Server) -> None:
    connections = await server.start()
    await server.stop()
    await asyncio.sleep(0)
    with pytest.raises(NotConnected):
        async with asyncio.timeout(10), connections.request("POST", {}, b"x"):
            pass


@given(st.lists(st.integers(0, 80), max_size=6))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    text = b': ping\n\nid: 1\r\ndata: {"a":\r\ndata: 1}\r\n\r\nevent: other\ndata: x\n\ndata\n\nid: 2\n\ndata: end\n\n'
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    reader = EventReader(1000)
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    found = [event for piece in pieces for event in reader.receive(piece)]
    assert [event.data for event in found if event.data] == [b'{"a":\n1}', b"end"]
    assert found[0] == SentEvent(b'{"a":\n1}', "1")
    assert found[-1].event_id == "2"


def test_an_event_without_an_end_is_not_kept() -> None:
    line, lines = EventReader(1000), EventReader(1000)
    line.receive(b"data: " + b"x" * 2000)
    assert line.is_broken
    for _ in range(50):
        lines.receive(b"data: " + b"x" * 50 + b"\n")
    assert lines.is_broken
    assert lines.receive(b"\n") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("echo", "echo"),
        ("a b", "a b"),
        (" a", "=?base64?IGE=?="),
        ("ä", "=?base64?w6Q=?="),
        ("a\nb", "=?base64?YQpi?="),
    ],
)
def test_a_name_becomes_a_header(text: str, value: str) -> None:
    assert header_value(text) == value
    assert header_text(value.encode()) == text
