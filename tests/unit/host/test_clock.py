"""The runner notices that the wall clock was set, before anything is judged by it."""

from __future__ import annotations

import pytest

from trunkline.entries import Noticed
from trunkline.model import Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, MemoryExchange

DAY_S = 86_400.0


@pytest.mark.parametrize("seconds", [30 * DAY_S, -30 * DAY_S])
def test_a_key_outlives_a_clock_that_was_set(seconds: float) -> None:
    exchange = MemoryExchange()
    worker = exchange.attach("com.a", ToolDefinition("com.a/x", "a tool", ANY_OBJECT))
    asked = exchange.call("com.a/x", {}, key="k")
    worker.finish({"n": 1})
    exchange.clock.jump(seconds)
    again = exchange.call("com.a/x", {}, key="k")
    assert (again.call_id, again.outcome.status) == (asked.call_id, Status.SUCCEEDED)
    assert again.outcome.output == asked.outcome.output
    noticed = [entry.detail for entry in exchange.recorded(Noticed)]
    assert noticed == (["2592000000 ms ahead"] if seconds > 0 else [])


def test_the_record_is_told_how_much_of_the_time_does_not_count() -> None:
    exchange = MemoryExchange()
    exchange.clock.jump(2 * DAY_S)
    exchange.feed.feed(())
    assert exchange.ledger.unlived_ms == 2 * DAY_S * 1000
    exchange.advance(DAY_S + 1)
    exchange.feed.mind_the_clock(exchange.feed.now())
    assert exchange.ledger.unlived_ms == 0
