"""What stands before the embedded relay: who is let in by the head of his connection."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.unit.edges.nostr.test_relay_process import draft, publish, running
from trunkline.edges.nostr.front import MAX_HEAD_BYTES, Front, refusal

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


async def test_a_head_without_end_or_one_client_too_many_is_hung_up_on() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        await writer.drain()
        await reader.read()
        writer.close()

    inner = await asyncio.start_server(echo, "127.0.0.1", 0)
    front = Front(inner.sockets[0].getsockname()[:2], (), 2)
    port = await front.start("127.0.0.1", 0)
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
