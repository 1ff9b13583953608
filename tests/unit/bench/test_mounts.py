from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bench.children import Failed
from bench.mounts import McpCaller, answer_end
from bench.peers import mcp_http_echo
from bench.report import lines
from bench.results import Middle, Mounts, Results
from tests.unit.bench.made import MACHINE

BESIDE = Mounts(
    (
        Middle("mcp", 16, (1000.0, 1200.0, 900.0), (250.0,)),
        Middle("contextforge", 16, (10.0, 10.0, 10.0), (45_000.0,)),
    )
)


def test_rates_stand_beside_those_of_the_same_round() -> None:
    told = "\n".join(lines(Results(MACHINE, "standard", contextforge=BESIDE)))
    row = next(line for line in told.splitlines() if line.startswith("| 16 under way"))
    assert [cell.strip() for cell in row.split("|")[2:6]] == [
        "1,000 to 10", "100.00 (90.00–120.00)", "at least 50", "250 µs to 45,000 µs",
    ]  # fmt: skip


def test_an_answer_ends_where_its_length_or_its_last_chunk_says() -> None:
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    assert (answer_end(sized), answer_end(sized[:-1]), answer_end(sized + b"HTTP/1.1")) == (len(sized), 0, len(sized))
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert (answer_end(chunked), answer_end(chunked[:-1])) == (len(chunked), 0)
    assert answer_end(b"HTTP/1.1 202 OK\r\n\r\n") == 19


class Server(mcp_http_echo.Connection):
    """Knows which connections are open."""

    def __init__(self, gone: dict[Server, asyncio.Event]) -> None:
        super().__init__()
        self._gone = gone[self] = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone.set()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[str]:
    gone: dict[Server, asyncio.Event] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Server(gone), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for event in gone.values():
        await event.wait()


async def test_a_caller_has_an_answer_to_each_of_its_requests() -> None:
    async with serving() as address:
        caller = McpCaller(address, {}, "echo")
        await caller.begin()
        assert await caller.called(20, 4) > 0


async def test_another_answer_than_to_a_call_ends_the_run_and_leaves_nothing_open() -> None:
    async with serving() as address:
        with pytest.raises(Failed, match="not the answer to a call"):
            await McpCaller(address, {}, "echo").rate([b"GET / HTTP/1.1\r\n\r\n"] * 3, 2, wanted=b"xxxxxxxx")
