"""``edges.mcp.listening``: there is a timer if, and only if, somebody listens."""

from __future__ import annotations

import pytest

from tests.unit.edges.mcp.conftest import Timers
from trunkline.edges.mcp.listening import LOOK_S, Listening
from trunkline.edges.waiting import Requests, Waiting
from trunkline.testing.memory import MemoryExchange


class Counting(Listening[str]):
    """What is new is how often it was looked."""

    looked = ""

    def listen(self, listener: Waiting, name: str) -> None:
        self._add(listener, name)

    def _look_for(self, listener: Waiting, kept: str) -> None:
        self.looked += kept
        if kept == "b":
            self.leave(listener)


def test_there_is_one_timer_while_somebody_listens_and_none_else(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = MemoryExchange(edges=())
    timers, requests, counting = Timers(exchange, monkeypatch), Requests(exchange.feed), Counting(exchange.feed)

    def is_set() -> int:
        return timers.of("Listening._look")

    with requests.waiting() as first, requests.waiting() as second:
        assert is_set() == 0
        counting.listen(first, "a")
        counting.listen(second, "b")
        assert is_set() == 1
        exchange.advance(LOOK_S)
        assert (counting.looked, len(counting), is_set()) == ("ab", 1, 1), "it goes on for the one who stayed"
        exchange.advance(LOOK_S)
        counting.leave(first)
        assert (counting.looked, len(counting), is_set()) == ("aba", 0, 0)
        exchange.advance(10 * LOOK_S)
        assert counting.looked == "aba"
        counting.listen(first, "b")
        exchange.advance(LOOK_S)
        assert (counting.looked, is_set()) == ("abab", 0), "the last one left while it was looked"
        counting.leave(first)
        assert is_set() == 0
