"""``edges.background``: tasks that die are heard of, tasks that are cancelled are not."""

from __future__ import annotations

import asyncio

from trunkline.edges.background import Background
from trunkline.edges.exchange import BaseSink
from trunkline.effects import ToSession
from trunkline.model import Now
from trunkline.testing.memory import MemoryExchange


class Sink(BaseSink):
    """A conversation that only knows whether it was ended."""

    def __init__(self) -> None:
        self.is_aborted = False

    def send(self, effect: ToSession, now: Now) -> None:
        raise AssertionError(effect, now)

    def abort(self) -> None:
        self.is_aborted = True


async def fail() -> None:
    raise LookupError


async def test_a_task_that_fails_ends_its_conversation_and_is_on_record() -> None:
    exchange = MemoryExchange()
    mine, other = Sink(), Sink()
    number = exchange.feed.open_session(mine)
    exchange.feed.open_session(other)
    await asyncio.wait([Background(exchange.feed).spawn(fail(), number)])
    assert (mine.is_aborted, other.is_aborted) == (True, False)
    assert exchange.notices() == ["defect"]
    assert exchange.died is None


async def test_stopping_ends_what_runs_and_is_no_defect() -> None:
    exchange = MemoryExchange()
    background = Background(exchange.feed)
    task = background.spawn(asyncio.Event().wait())  # type: ignore[arg-type]  # what it returns is of no interest
    await background.stop()
    assert task.cancelled()
    assert exchange.notices() == []
