"""``edges.patience``: slow readers stay, readers who take nothing are cut off, also after a goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

from trunkline.edges.patience import WRITE_TIMEOUT_S, LastWords, Patience
from trunkline.testing.memory import MemoryExchange


class Draining:
    """A transport whose write buffer has these sizes, one look after the other, and a connection that has it."""

    def __init__(self, *sizes: int, closing: bool = False) -> None:
        self._sizes = iter(sizes)
        self._is_closing = closing
        self.aborted = False

    @property
    def transport(self) -> Any:
        return self

    def get_write_buffer_size(self) -> int:
        return next(self._sizes)

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.aborted = True


def patience_with(transport: Draining) -> tuple[MemoryExchange, Patience]:
    exchange = MemoryExchange()
    loop: Any = exchange.loop
    return exchange, Patience(loop, transport.transport)


def test_a_slow_reader_is_not_cut_off_while_it_reads() -> None:
    transport = Draining(1000, 999, 999, 10, 10, 10)
    exchange, patience = patience_with(transport)
    patience.begin()
    for _ in range(2):
        exchange.advance(WRITE_TIMEOUT_S)
        assert not transport.aborted, "it took something since the last look"
    exchange.advance(WRITE_TIMEOUT_S)
    assert transport.aborted, "it took nothing"


def test_a_reader_who_takes_nothing_is_cut_off_in_time() -> None:
    transport = Draining(1000, 1000)
    exchange, patience = patience_with(transport)
    patience.begin()
    exchange.advance(WRITE_TIMEOUT_S - 0.1)
    assert not transport.aborted
    exchange.advance(0.2)
    assert transport.aborted


def test_who_reads_again_has_no_deadline() -> None:
    transport = Draining(1000)
    exchange, patience = patience_with(transport)
    patience.begin()
    patience.end()
    exchange.advance(2 * WRITE_TIMEOUT_S)
    assert not transport.aborted


def test_of_closed_connections_the_one_that_takes_nothing_is_cut_off() -> None:
    exchange = MemoryExchange()
    deaf, slow, served = Draining(9, 9, closing=True), Draining(9, 8, 7, closing=True), Draining()
    loop: Any = exchange.loop
    last_words = LastWords(loop)
    connections: set[Any] = {deaf, slow, served}
    last_words.watch(connections)
    exchange.advance(WRITE_TIMEOUT_S)
    assert not deaf.aborted, "it may have been closed a moment ago"
    exchange.advance(WRITE_TIMEOUT_S)
    assert (deaf.aborted, slow.aborted, served.aborted) == (True, False, False)
    connections.discard(deaf)
    last_words.stop()
    last_words.stop()
    exchange.advance(2 * WRITE_TIMEOUT_S)
    assert not slow.aborted


async def test_closed_connections_are_looked_at_on_a_real_loop_too() -> None:
    last_words = LastWords(asyncio.get_running_loop())
    gone = Draining(9, 9, closing=True)
    last_words.look([gone])
    last_words.look([gone])
    last_words.stop()
    assert gone.aborted
