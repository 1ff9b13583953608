"""The least HTTP client: loopback only, bounded, and silent about everything but an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from trunkline.edges import client
from trunkline.edges.client import Answer, Unreachable


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers everybody with these bytes; its address, and what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}/hook", heard


async def test_a_request_and_its_answer() -> None:
    async with answering(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok") as (url, heard):
        answer = await client.request(url, "POST", body=b"{}", token="secret", timeout_s=10)
    assert answer == Answer(202, b"ok")
    assert heard[0].startswith(b"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer secret\r\n" in heard[0]


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nall of it") as (url, _):
        assert await client.request(url, "GET", path="/health", timeout_s=10) == Answer(200, b"all of it")


@pytest.mark.parametrize(
    "data", [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"HTTP/1.1 2\r\n"]
)
async def test_what_is_no_answer_is_nobody_there(data: bytes) -> None:
    async with answering(data) as (url, _):
        with pytest.raises(Unreachable):
            await client.request(url, "GET", timeout_s=10)


async def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 100)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000) as (url, _):
        with pytest.raises(Unreachable):
            await client.request(url, "GET", timeout_s=10)


async def test_nobody_there_is_said_without_a_stack() -> None:
    with pytest.raises(Unreachable):
        await client.request("http://127.0.0.1:1/", "GET", timeout_s=10)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "http://example.com/",
        "http://10.0.0.1/",
        "http://u:p@127.0.0.1/",
        "127.0.0.1",
        "http:///x",
        # What would be more, or less, than the one word of a request's first line.
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a HTTP/1.1\x0bX",
        "http://127.0.0.1/\u00e9",
        "http://127.0.0.1/\u2028",
    ],
)
def test_only_plain_loopback_addresses_are_taken(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected|only loopback|only printable"):
        client.loopback_place(url)


def test_loopback_has_several_names() -> None:
    assert client.loopback_place("http://localhost:8080/a/b") == ("localhost", 8080, "/a/b")
    assert client.loopback_place("http://[::1]") == ("::1", 80, "/")


# --- answers of servers that we did not write -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n7;x=y\r\n of it!\r\n0\r\n\r\n",
            b"all of it!",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_a_body_in_pieces_or_none_is_an_answer_too(data: bytes, answer: bytes) -> None:
    async with answering(data) as (url, _):
        assert (await client.request(url, "GET", timeout_s=10)).body == answer


@pytest.mark.parametrize(
    "pieces", [b"3\r\nall", b"3\r\nallx\r\n", b"-1\r\n", b"FFFFFFFFFF\r\n", b"zz\r\n", b"3\r\nall\r\n" * 40]
)
async def test_pieces_that_do_not_fit_are_no_answer(pieces: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 100)
    async with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces) as (url, _):
        with pytest.raises(Unreachable):
            await client.request(url, "GET", timeout_s=10)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://w.example/m?x=1", client.Endpoint("w.example", 443, "/m?x=1", is_tls=True)),
        ("https://[::1]:8443", client.Endpoint("::1", 8443, "/", is_tls=True)),
        ("http://localhost/x", client.Endpoint("localhost", 80, "/x", is_tls=False)),
    ],
)
def test_where_a_url_leads(url: str, found: client.Endpoint) -> None:
    assert client.endpoint_of(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "http://w.example/",
        "https://u@w.example/",
        "https://w.example/#x",
        "https://w.example:0/",
        "https://w.example/\u00e9",
        "https://w\u00e9.example/",
        "https://w.example/a b",
        "ws://w.example/",
        "https://" + "w" * 3000,
        "",
    ],
)
def test_urls_that_lead_nowhere_we_go(url: str) -> None:
    with pytest.raises(ValueError, match="expected https"):
        client.endpoint_of(url)
