"""``edges.alarm``: its owner is woken when it wants to be, by one timer."""

from __future__ import annotations

import pytest

from trunkline.edges.alarm import Alarm
from trunkline.entries import Noticed
from trunkline.testing.memory import MemoryExchange


class Sleeper:
    """Wants to be woken at some moments, and notes when it was."""

    def __init__(self) -> None:
        self.exchange = MemoryExchange()
        self.wanted: list[float] = []
        self.woken: list[float] = []
        self.is_broken = False
        self.alarm = Alarm(self.exchange.feed, self.wake_at, self.wake)

    @property
    def now(self) -> float:
        return self.exchange.now().mono

    def want(self, *delays: float) -> None:
        self.wanted += [self.now + delay for delay in delays]
        self.alarm.set()

    def wake_at(self) -> float | None:
        return min(self.wanted, default=None)

    def wake(self) -> None:
        if self.is_broken:
            raise RuntimeError
        self.wanted = [at for at in self.wanted if at > self.now]
        self.woken.append(self.now)


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper()


def test_the_owner_is_woken_at_each_moment_it_wants(sleeper: Sleeper) -> None:
    start = sleeper.now
    sleeper.want(5, 1, 3)
    sleeper.exchange.advance(10)
    assert sleeper.woken == pytest.approx([start + 1, start + 3, start + 5])


def test_who_wants_nothing_is_left_alone(sleeper: Sleeper) -> None:
    sleeper.alarm.set()
    sleeper.exchange.advance(1000)
    assert sleeper.woken == []


def test_an_earlier_wish_comes_first_and_a_later_one_does_not_move_the_timer(sleeper: Sleeper) -> None:
    start = sleeper.now
    sleeper.want(5)
    sleeper.want(9)
    sleeper.want(2)
    sleeper.exchange.advance(20)
    assert sleeper.woken == pytest.approx([start + 2, start + 5, start + 9])


def test_a_timer_that_comes_too_early_wakes_nobody(sleeper: Sleeper) -> None:
    start = sleeper.now
    sleeper.want(2)
    sleeper.wanted = [start + 7]
    sleeper.exchange.advance(6)
    assert sleeper.woken == []
    sleeper.exchange.advance(6)
    assert sleeper.woken == pytest.approx([start + 7])


def test_a_moment_that_is_over_is_soon_and_what_is_due_together_is_done_together(sleeper: Sleeper) -> None:
    sleeper.want(-3, -2, -1, 0)
    assert sleeper.woken == []
    sleeper.exchange.advance(0.01)
    assert len(sleeper.woken) == 1


def test_after_cancel_nobody_is_woken_until_it_is_set_again(sleeper: Sleeper) -> None:
    sleeper.want(1)
    sleeper.alarm.cancel()
    sleeper.alarm.cancel()
    sleeper.exchange.advance(5)
    assert sleeper.woken == []
    sleeper.alarm.set()
    sleeper.exchange.advance(5)
    assert len(sleeper.woken) == 1


def test_a_defect_of_the_owner_is_on_record_and_the_next_set_starts_it_again(sleeper: Sleeper) -> None:
    sleeper.is_broken = True
    sleeper.want(1)
    sleeper.exchange.advance(5)
    [noticed] = sleeper.exchange.recorded(Noticed)
    assert (noticed.code, sleeper.exchange.died) == ("defect", None)
    sleeper.is_broken = False
    sleeper.alarm.set()
    sleeper.exchange.advance(5)
    assert len(sleeper.woken) == 1
