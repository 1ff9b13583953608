"""``edges.http.edge``: HTTP as the host starts and stops it."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tests.inhabited import Inhabited
from tests.unit.edges.http.conftest import Server
from trunkline.config import Config, Http
from trunkline.edges.http.edge import HTTP, HttpEdge
from trunkline.edges.waiting import Waiting
from trunkline.errors import ConfigError


async def test_the_address_in_use_is_told_while_it_runs(server: Server) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", server.edge.ready()["http"] or "")
    assert set(server.edge.ready()) == set(HTTP.ready_keys)


@pytest.mark.parametrize("given", [frozenset(), frozenset({("http", "listen")})], ids=["default", "chosen"])
async def test_a_taken_address_is_an_error_and_leaves_no_conversation(
    server: Server, given: frozenset[tuple[str, str]]
) -> None:
    """Chosen or not: without it nobody could ask the exchange anything."""
    exchange = Inhabited()
    config = Config(http=Http(listen=f"127.0.0.1:{server.port}"), given=given)
    second = HttpEdge(replace(exchange.surroundings(), config=config))
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:.*in use; choose another address in \[http\] listen"):
        await second.start()
    await second.stop()
    assert not [sink for sink in exchange.feed._sinks.values() if isinstance(sink, Waiting)]


async def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    edge = HttpEdge(Inhabited().surroundings())
    await edge.stop()
    await edge.start()
    await edge.stop()
    await edge.stop()
