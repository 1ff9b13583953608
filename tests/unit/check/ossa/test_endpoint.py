"""Where an endpoint is, and what is said of answers and of endpoints that are not there."""

from __future__ import annotations

import socket

import pytest

from tests.unit.check.ossa.honest_server import HonestServer
from trunkline.check.ossa.endpoint import Answer, Endpoint, Unreachable


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://127.0.0.1:7413", "https://127.0.0.1:7413"),
        ("127.0.0.1:7413", "https://127.0.0.1:7413"),
        ("https://127.0.0.1:7413/ossa/v1/messages", "https://127.0.0.1:7413"),
        ("wss://127.0.0.1:7413/ossa/v1/ws", "https://127.0.0.1:7413"),
        ("https://agents.example/below/", "https://agents.example:443/below"),
        ("https://[::1]:7413", "https://[::1]:7413"),
    ],
)
def test_an_endpoint_is_named_in_any_of_its_forms(given: str, url: str) -> None:
    assert Endpoint(given).url == url


@pytest.mark.parametrize("given", ["http://127.0.0.1:7413", "https://", "ftp://x"])
def test_an_address_without_tls_is_none(given: str) -> None:
    with pytest.raises(ValueError, match="https"):
        Endpoint(given)


async def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"https://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unreachable, match="nobody listens there"):
            await endpoint.reach()
        endpoint.close()


async def test_the_certificate_that_is_shown_is_known_by_its_fingerprint() -> None:
    async with HonestServer() as server:
        endpoint = Endpoint(server.url)
        await endpoint.reach()
        assert len(endpoint.fingerprint) == 64
        assert endpoint.tls_version == "TLSv1.3"
        endpoint.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(202, b""), "HTTP 202, an empty body"),
        (Answer(500, b"<html>"), "HTTP 500, <html>"),
        (Answer(200, b'{"header":{"type":"response"},"body":{"payload":{"a":1}}}'), 'response with payload {"a": 1}'),
        (Answer(404, b'{"header":{"type":"error"},"body":{"error":{"code":404,"message":"no"}}}'), "error 404 (no)"),
        (Answer(200, b"[" * 100_000), "…"),
    ],
)
def test_an_answer_is_told_in_a_few_words(answer: Answer, text: str) -> None:
    assert text in str(answer)
    assert len(str(answer)) < 300
