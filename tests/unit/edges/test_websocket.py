"""``edges.websocket``: peers that do not read, messages that do not end, floods of small frames, text that is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.frames import CloseCode

from tests.unit.edges.web import BOUND_S, Server, wait_until
from trunkline.edges import patience, websocket
from trunkline.edges.request_scope import SAY
from trunkline.edges.shares import MAX_SHARE_BYTES, SHARE, Share, Shares
from trunkline.edges.websocket import MAX_FRAGMENTS, TURN_BYTES, close_quietly

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame, with a mask of zeros."""
    size = len(data)
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", size)
    return head + b"\0\0\0\0" + data


class Client:
    """An open socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def said(self) -> tuple[int, bytes]:
        """The next frame: its opcode and what is in it."""
        first, size = await self.reader.readexactly(2)
        if size == 126:
            [size] = struct.unpack(">H", await self.reader.readexactly(2))
        elif size == 127:
            [size] = struct.unpack(">Q", await self.reader.readexactly(8))
        return first & 15, await self.reader.readexactly(size)

    async def closed_with(self) -> int:
        """The code of the server's goodbye, 0 if it has none; what comes before is passed over."""
        while True:
            opcode, data = await self.said()
            if opcode == CLOSE:
                return int.from_bytes(data[:2])


@contextlib.asynccontextmanager
async def opened(server: Server) -> AsyncIterator[Client]:
    reader, writer = await server.connect()
    writer.write(server.head(path="/socket", more=UPGRADE))
    async with asyncio.timeout(BOUND_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        yield Client(reader, writer)
    writer.close()


class Writes:
    """A transport that counts what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport, self._writes = transport, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)


def deaf(server: Server) -> socket.socket:
    """A socket whose peer reads nothing after the handshake."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(server.head(path="/socket", more=UPGRADE))
    return sock


async def wait_stuck(server: Server) -> Any:
    """Until a peer that does not read is written to no more."""
    await wait_until(lambda: bool(server.pages.sockets))
    await wait_until(
        lambda: any(isinstance(c, websocket.Socket) and not c.writable.is_set() for c in server.connections.connections)
    )
    [connection] = server.connections.connections
    return connection


# --- talking ----------------------------------------------------------------------------------------------------------


async def test_what_is_said_in_pieces_with_pings_between_is_one_message(server: Server) -> None:
    async with opened(server) as client:
        client.writer.write(frame(TEXT, b"on", fin=False) + frame(PING, b"p") + frame(CONT, b"e"))
        assert await client.said() == (PONG, b"p")
        assert await client.said() == (TEXT, b"one")


async def test_many_messages_in_one_read_are_answered_in_order(server: Server) -> None:
    async with opened(server) as client:
        client.writer.write(b"".join(frame(TEXT, b"%d" % n) for n in range(5000)))
        assert [(await client.said())[1] for _ in range(5000)] == [b"%d" % n for n in range(5000)]


async def test_a_message_larger_than_a_turn_is_one_message(server: Server) -> None:
    async with opened(server) as client:
        client.writer.write(frame(TEXT, b"x" * 1_000_000))
        assert await client.said() == (TEXT, b"x" * 1_000_000)
        client.writer.write(frame(CLOSE))
        assert (await client.said())[0] == CLOSE


async def test_a_text_is_said_at_once_unless_a_goodbye_was_said_before(server: Server) -> None:
    async with opened(server) as client:
        say = server.pages.sockets[0].scope["extensions"][SAY]
        assert [say(text) for text in (b"first", "größer".encode(), b"x" * 70_000)] == [True] * 3
        assert [await client.said() for _ in range(2)] == [(TEXT, b"first"), (TEXT, "größer".encode())]
        assert await client.said() == (TEXT, b"x" * 70_000)
        await close_quietly(server.pages.sockets[0], CloseCode.NORMAL_CLOSURE)
        assert not say(b"late")
        assert await client.said() == (CLOSE, b"\x03\xe8")


async def test_what_is_said_in_one_turn_is_written_at_once_and_before_a_goodbye(server: Server) -> None:
    async with opened(server) as client:
        [connection] = server.connections.connections
        writes: list[bytes] = []
        connection.transport = Writes(connection.transport, writes)  # type: ignore[union-attr]
        say = server.pages.sockets[0].scope["extensions"][SAY]
        assert [say(b"one"), say(b"two")] == [True, True]
        assert [await client.said() for _ in range(2)] == [(TEXT, b"one"), (TEXT, b"two")]
        assert len(writes) == 1
        assert say(b"last")
        await close_quietly(server.pages.sockets[0], CloseCode.NORMAL_CLOSURE)
        assert [await client.said() for _ in range(2)] == [(TEXT, b"last"), (CLOSE, b"\x03\xe8")]


async def test_a_busy_application_is_read_for_no_further_than_one_read(server: Server) -> None:
    async with opened(server) as client:
        sock = client.writer.get_extra_info("socket").dup()
        sock.setblocking(False)
        client.writer.write(frame(TEXT, b"wait"))
        await wait_until(lambda: bool(server.pages.heard))
        pieces, sent, idle = frame(TEXT, b"x" * 1000) * 1000, 0, 0
        while idle < 100:
            try:
                sent += sock.send(pieces[sent % len(pieces) :])
                idle = 0
            except BlockingIOError:
                idle += 1
            await asyncio.sleep(0.001)
        sock.close()
        # What the two buffers of the kernel hold, and little more.
        [connection] = server.connections.connections
        assert sum(map(len, connection._unread)) <= 262_144  # type: ignore[union-attr]
        assert sent < 20_000_000
        server.pages.goes_on.set()
        assert await client.said() == (TEXT, b"wait")
        whole = sent // len(frame(TEXT, b"x" * 1000))
        assert {await client.said() for _ in range(whole)} == {(TEXT, b"x" * 1000)}


async def test_others_have_their_turn_while_small_frames_are_read(server: Server) -> None:
    async with opened(server) as client:
        [connection] = server.connections.connections
        turns: list[int] = []
        connection.data_received(frame(PONG) * (10 * TURN_BYTES // 6) + frame(TEXT, b"end"))  # type: ignore[union-attr]
        while not server.pages.heard:
            await asyncio.sleep(0)
            turns.append(0)
        assert len(turns) > 10
        assert await client.said() == (TEXT, b"end")


async def test_others_have_their_turn_while_an_application_takes_many_messages(server: Server) -> None:
    async with opened(server) as client:
        [connection] = server.connections.connections
        connection.data_received(frame(TEXT, b"x") * 1000)  # type: ignore[union-attr]
        most = before = 0
        while len(server.pages.heard) < 1000:
            await asyncio.sleep(0)
            most, before = max(most, len(server.pages.heard) - before), len(server.pages.heard)
        assert most <= websocket.TURN_MESSAGES
        assert [await client.said() for _ in range(1000)] == [(TEXT, b"x")] * 1000


async def test_who_talks_before_its_handshake_was_answered_is_cut_off(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/socket", more=UPGRADE))
    await wait_until(lambda: any(isinstance(c, websocket.Socket) for c in server.connections.connections))
    [connection] = server.connections.connections
    assert isinstance(connection, websocket.Socket)
    connection.handshake_complete = False
    connection.data_received(frame(TEXT, b"early"))
    async with asyncio.timeout(BOUND_S):
        await server.connections.gone.wait()
    assert server.pages.heard[:1] != [{"type": "websocket.receive", "text": "early"}]
    writer.close()
    del reader


# --- what cannot be taken ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xff") + frame(PING) * 500, 1007),
        (frame(TEXT, b"\xff") + frame(PING) * 500 + frame(CLOSE), 0),
        (frame(TEXT, b"\xe2\x82", fin=False) + frame(CONT, b"\xff"), 1007),
        (frame(3), 1002),
        (frame(PING, fin=False), 1002),
        (frame(CONT, b"x"), 1002),
        (b"\x81\x00", 1002),
        (frame(TEXT, fin=False) + frame(CONT, fin=False) * (MAX_FRAGMENTS + 1), 1009),
    ],
    ids=[
        "not UTF-8",
        "and pings",
        "and its own end",
        "in pieces",
        "opcode",
        "ping in pieces",
        "no beginning",
        "no mask",
        "empty pieces",
    ],
)
async def test_what_is_no_message_ends_the_socket_with_its_code_and_without_a_line_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture, data: bytes, code: int
) -> None:
    with caplog.at_level(logging.INFO):
        async with opened(server) as client:
            client.writer.write(data)
            assert await client.closed_with() == code
            await server.connections.gone.wait()
    assert [record.message for record in caplog.records] == []
    assert [message["type"] for message in server.pages.heard] == ["websocket.disconnect"]


async def test_what_is_kept_of_messages_counts_for_their_sender_until_the_socket_ends(server: Server) -> None:
    shares = Shares()
    async with opened(server) as client:
        [connection] = server.connections.connections
        connection.scope[SHARE] = Share(shares, "a")
        client.writer.write(frame(TEXT, bytes(1_000_000), fin=False))
        await wait_until(lambda: shares.held("a") > 900_000)
        client.writer.write(frame(CONT, b"."))
        assert (await client.said())[0] == TEXT
        assert shares.held("a") == 0
        others = Share(shares, "a")
        others.set_size(MAX_SHARE_BYTES)
        held = shares.held("a")
        client.writer.write(frame(TEXT, bytes(1_000_000), fin=False))
        assert await client.closed_with() == CloseCode.TRY_AGAIN_LATER
        assert shares.held("a") == held


@pytest.mark.parametrize("part", [frame(TEXT, b"x" * 200)[:50], frame(TEXT, b"x", fin=False), b"\x81"])
async def test_a_message_that_does_not_end_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(websocket, "MESSAGE_TIMEOUT_S", 0.05)
    async with opened(server) as client:
        client.writer.write(frame(TEXT, b"whole") + part)
        assert await client.said() == (TEXT, b"whole")
        assert await client.closed_with() == 1008


# --- who does not read ------------------------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WRITE_TIMEOUT_S", 0.05)
    sock = deaf(server)
    await wait_until(lambda: bool(server.pages.sockets))
    sock.sendall(frame(TEXT, b"many"))
    async with asyncio.timeout(BOUND_S):
        await server.pages.lost.wait()
        await server.connections.gone.wait()
    assert server.pages.answered < 500
    sock.close()


async def test_a_peer_that_pings_and_does_not_read_is_not_listened_to(server: Server) -> None:
    sock = deaf(server)
    sock.setblocking(False)
    sent, ping = 0, frame(PING, b"x" * 125) * 1000
    await wait_until(lambda: bool(server.pages.sockets))
    async with asyncio.timeout(BOUND_S):
        idle = 0
        while idle < 100:
            try:
                sent += sock.send(ping)
                idle = 0
            except BlockingIOError:
                idle += 1
            await asyncio.sleep(0.001)
    connection = await wait_stuck(server)
    assert connection.transport.get_write_buffer_size() < 1_000_000
    assert sent < 60_000_000
    sock.close()


async def test_nothing_is_said_at_once_to_a_peer_that_does_not_read(server: Server) -> None:
    sock = deaf(server)
    await wait_until(lambda: bool(server.pages.sockets))
    sock.sendall(frame(TEXT, b"many"))
    connection = await wait_stuck(server)
    assert not connection.try_say(b"more")
    sock.close()


async def test_a_peer_that_does_not_read_is_told_no_more_within_one_turn_than_in_many(server: Server) -> None:
    sock = deaf(server)
    await wait_until(lambda: bool(server.pages.sockets))
    say = server.pages.sockets[0].scope["extensions"][SAY]
    assert sum(say(b"x" * 1_000_000) for _ in range(50)) < 10
    assert sum(say(b"x" * 1000) for _ in range(50)) == 0
    [connection] = server.connections.connections
    assert connection.transport.get_write_buffer_size() < 10_000_000  # type: ignore[union-attr]
    sock.close()


async def test_a_goodbye_to_a_peer_that_does_not_read_does_not_wait_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "GOODBYE_S", 0.05)
    sock = deaf(server)
    await wait_until(lambda: bool(server.pages.sockets))
    sock.sendall(frame(TEXT, b"many"))
    await wait_stuck(server)
    async with asyncio.timeout(BOUND_S):
        await server.pages.sockets[0].close(1001)
        await server.connections.gone.wait()
    sock.close()


async def test_stopping_does_not_wait_for_a_peer_that_does_not_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.edges.listener.STOP_S", 0.05)
    sock = deaf(server)
    await wait_until(lambda: bool(server.pages.sockets))
    sock.sendall(frame(TEXT, b"many"))
    await wait_stuck(server)
    async with asyncio.timeout(BOUND_S):
        await server.listener.stop()
        await server.connections.gone.wait()
    sock.close()
