"""What stands before the embedded relay: who is let in by the head of his connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Self

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode

from tests.unit.edges.nostr.test_relay_process import draft, publish, running
from trunkline.edges.nostr.front import MAX_HEAD_BYTES, Front, refusal
from trunkline.edges.nostr.relay import CONNECTIONS, RESERVED

UPGRADE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:7414\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"", None),
        (b"Origin: https://app.example\r\n", None),
        (b"ORIGIN:https://APP.example\r\n", None),
        (b"Origin: https://evil.example\r\n", b"403"),
        (b"Origin: null\r\n", b"403"),
        (b"Origin: http://127.0.0.1:7414\r\n", b"403"),
        (b"Origin: https://app.example\r\nOrigin: https://evil.example\r\n", b"403"),
        (b"origin : https://evil.example\r\n", b"403"),
    ],
)
def test_programs_come_in_and_pages_only_where_they_are_allowed(more: bytes, status: bytes | None) -> None:
    answer = refusal(UPGRADE + more + b"\r\n", ("https://app.example",))
    assert (None if answer is None else answer.split(b" ")[1]) == status


def test_what_is_no_websocket_is_told_so() -> None:
    for head in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"\r\n\r\n"):
        answer = refusal(head, ())
        assert answer is not None
        assert b" 426 " in answer


async def test_a_page_is_refused_by_a_real_relay_and_a_program_publishes(tmp_path: Path) -> None:
    async with running(tmp_path, allowed_origins=("https://app.example",)) as relay:
        with pytest.raises(InvalidStatus, match="403"):
            await connect(relay.url, origin="https://evil.example")  # type: ignore[arg-type]
        for options in ({}, {"origin": "https://app.example"}):
            async with connect(relay.url, **options) as connection:  # type: ignore[arg-type]
                assert await publish(connection, draft(content=str(options))) == (True, "")


class Echo:
    """A front with little room before a server that says every head back, and then nothing."""

    async def __aenter__(self) -> Self:
        self.inner = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._writers: list[asyncio.StreamWriter] = []
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        async with asyncio.timeout(10):
            while self.front.count:  # noqa: ASYNC110  (connections that are gone are told of by nobody)
                await asyncio.sleep(0.01)
        self.front.close()
        self.inner.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await reader.readuntil(b"\r\n\r\n"))
            await writer.drain()
            while data := await reader.read(4096):
                writer.write(data)
        writer.close()

    async def open(self, most: int, *, idle_s: float = 600.0, grace_s: float = 600.0) -> None:
        self.front = Front(self.inner.sockets[0].getsockname()[:2], (), most, idle_s=idle_s, grace_s=grace_s)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await self.front.start(listener)

    async def come(self, *said: str) -> asyncio.StreamReader | None:
        """A client that was let in and said this, which the relay has heard; None if it was hung up on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        frames = b"".join(Frame(Opcode.TEXT, text.encode()).serialize(mask=True) for text in said)
        expected = UPGRADE + b"\r\n" + frames
        writer.write(expected)
        try:
            async with asyncio.timeout(10):
                assert await reader.readexactly(len(expected)) == expected
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        return reader


async def is_ended(reader: asyncio.StreamReader | None) -> bool:
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            return reader is None or await reader.read() in (b"", b"\x88\x02\x03\xe9")
    return True


async def test_who_has_no_subscription_and_is_silent_is_ended_and_who_has_one_is_not() -> None:
    async with Echo() as echo:
        await echo.open(8, idle_s=0.2)
        subscribed = await echo.come('["REQ","a",{}]')
        silent = await echo.come()
        published = await echo.come('["EVENT",{}]')
        unsubscribed = await echo.come('["REQ","a",{}]', '["CLOSE","a"]')
        nonsense = await echo.come("hello")
        for one in (silent, published, unsubscribed, nonsense):
            assert await is_ended(one)
        assert subscribed is not None
        assert not subscribed.at_eof()
        assert echo.front.count == 1


async def test_a_newcomer_has_the_place_of_who_was_idle_longest_and_none_of_who_listens() -> None:
    async with Echo() as echo:
        await echo.open(3, grace_s=0.0)
        listening = await echo.come('["REQ","a",{}]')
        first, second = await echo.come(), await echo.come('["EVENT",{}]')
        another = await echo.come('["REQ","b",{}]')
        assert another is not None
        assert await is_ended(first)
        assert second is not None
        assert not second.at_eof()
        # Now it goes, and then all that are here listen.
        assert await echo.come('["REQ","c",{}]') is not None
        assert await is_ended(second)
        assert await echo.come() is None
        assert listening is not None
        assert not listening.at_eof()


async def test_who_has_just_come_keeps_his_place() -> None:
    async with Echo() as echo:
        await echo.open(1, grace_s=600.0)
        first = await echo.come()
        assert await echo.come() is None
        assert first is not None
        assert not first.at_eof()


@pytest.mark.slow
async def test_the_exchange_reaches_its_relay_when_strangers_have_every_place(tmp_path: Path) -> None:
    async with running(tmp_path) as relay, contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS - RESERVED):
            connection = await stack.enter_async_context(connect(relay.url, ping_interval=None))
            await connection.send('["REQ","a",{"kinds":[5050],"limit":1}]')
            assert "EOSE" in str(await asyncio.wait_for(connection.recv(), 20))
        with pytest.raises((InvalidHandshake, OSError)):
            await connect(relay.url)
        async with connect(await relay.reached()) as own:
            assert await publish(own, draft(content="ours")) == (True, "")


async def test_a_head_without_end_or_one_client_too_many_is_hung_up_on() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        await writer.drain()
        await reader.read()
        writer.close()

    inner = await asyncio.start_server(echo, "127.0.0.1", 0)
    front = Front(inner.sockets[0].getsockname()[:2], (), 2)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await front.start(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES + 10))
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    head = UPGRADE + b"\r\n"
    here = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    for one_reader, one_writer in here:
        one_writer.write(head)
        assert await asyncio.wait_for(one_reader.readexactly(len(head)), 10) == head
    third, third_writer = await asyncio.open_connection("127.0.0.1", port)
    third_writer.write(head)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(third.read(), 10) == b""
    for _, one_writer in (*here, (reader, writer), (third, third_writer)):
        one_writer.close()
    async with asyncio.timeout(10):
        while front.count:  # noqa: ASYNC110  (connections that are gone are told of by nobody)
            await asyncio.sleep(0.01)
    front.close()
    inner.close()
