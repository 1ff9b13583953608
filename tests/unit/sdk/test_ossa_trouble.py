"""Why there is no connection: told in a bounded time, with what was seen and what to do."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from tests.ossa_messages import new_identity
from tests.unit.sdk.ossa_kit import ScriptedExchange, in_no_time, world
from trunkline.edges import client, tls
from trunkline.errors import ExchangeUnreachable
from trunkline.sdk import OssaAgent
from trunkline.sdk.ossa_trouble import Distrusted, explained

URL = "https://exchange.example:7413"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] x"), "does not speak TLS 1.3"),
        (socket.gaierror(), "there is no host of this name"),
        (TimeoutError(), "did not answer within 10 s"),
        (ConnectionRefusedError(), f"nobody listens at {URL}: does the exchange run there?"),
        (ConnectionResetError(), "ended the attempt to connect (the connection was closed"),
        (InvalidStatus(Response(404, "Not Found", Headers())), "has no WebSocket for OSSA: HTTP 404"),
        (InvalidHandshake(), "ended the attempt to connect (invalid handshake)"),
    ],
)
def test_what_was_met_on_the_way_is_a_sentence(error: Exception, says: str) -> None:
    found = explained(error, URL, open_s=10)
    assert type(found) is ExchangeUnreachable
    assert says in str(found)


def test_the_cause_of_a_request_that_failed_is_what_is_told() -> None:
    error = client.Unreachable("ConnectionRefusedError")
    error.__cause__ = ConnectionRefusedError()
    assert "nobody listens" in str(explained(error, URL, open_s=10))


async def test_another_key_than_the_pinned_one_is_told_at_once_with_both_ways_out(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        own = ssl.PEM_cert_to_DER_cert(tls.shown_certificate(tmp_path / "keys" / tls.OWN_FILE).decode())
        alice = OssaAgent(new_identity(here.exchange, "alice"), url=here.url, pin="A" * 43 + "=")
        async with asyncio.timeout(10):
            with pytest.raises(ExchangeUnreachable, match="not the pinned one") as caught:
                async with alice.connected():
                    raise AssertionError
        assert f"{here.url} shows the key {tls.pin_of(own)}" in str(caught.value)
        async with OssaAgent(new_identity(here.exchange, "bob"), url=here.url, pin=tls.pin_of(own)).connected():
            pass


async def test_a_certificate_that_nobody_vouches_for_is_told_at_once_with_what_to_give(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        alice = OssaAgent(new_identity(here.exchange, "alice"), url=here.url)
        async with asyncio.timeout(10):
            with pytest.raises(ExchangeUnreachable, match=r"nobody vouches for here .*self.signed.*`pin`"):
                async with alice.connected():
                    raise AssertionError


def test_an_exchange_that_is_not_there_is_waited_for_in_a_bounded_time_and_then_told() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        exchange.is_away = True
        loop = asyncio.get_running_loop()
        for terms, bound_s in (({}, 30.0), ({"timeout_s": 2.0}, 2.0)):
            begun = loop.time()
            with pytest.raises(ExchangeUnreachable, match="alice is not connected: nobody listens there"):
                async with exchange.agent().connected(**terms):  # type: ignore[arg-type]
                    raise AssertionError
            assert bound_s <= loop.time() - begun < bound_s + 1

    in_no_time(main())


def test_who_asks_for_no_bound_waits_until_the_exchange_is_there() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        exchange.is_away = True
        asyncio.get_running_loop().call_later(3600, setattr, exchange, "is_away", False)
        async with exchange.agent().connected(timeout_s=None):
            pass

    in_no_time(main())


def test_a_server_that_nobody_vouches_for_is_a_kind_of_unreachable() -> None:
    found = explained(tls.WrongPin("seen"), URL, open_s=10)
    assert isinstance(found, Distrusted)
