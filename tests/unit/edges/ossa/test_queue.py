"""What waits for one agent: by priority with ageing, in order within a correlation."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline.edges.ossa.queue import AGEING_S, SendQueue, Waiting

pytestmark = pytest.mark.slow


def test_the_lower_number_leaves_first_and_of_equals_the_older_one() -> None:
    queue: SendQueue[str] = SendQueue()
    for at, (name, priority) in enumerate([("late", 9), ("first", 3), ("urgent", 0), ("second", 3)]):
        queue.put(name, "", priority, float(at))
    assert [queue.take(4.0) for _ in range(5)] == ["urgent", "first", "second", "late", None]


def test_whoever_waits_for_30_s_rises_by_one_level() -> None:
    queue: SendQueue[str] = SendQueue()
    queue.put("patient", "", 5, 0.0)
    queue.put("new", "", 4, AGEING_S)
    assert queue.take(AGEING_S) == "patient"


def test_one_that_was_held_back_by_its_correlation_has_waited_all_the_while() -> None:
    queue: SendQueue[str] = SendQueue()
    queue.put("before", "c", 5, 0.0)
    queue.put("held", "c", 5, 0.0)
    assert queue.take(0.0) == "before"
    queue.put("younger", "", 5, 50.0)
    queue.done("c")
    assert [queue.take(60.0), queue.take(60.0)] == ["held", "younger"]


def test_priority_never_breaks_the_order_within_a_correlation() -> None:
    queue: SendQueue[str] = SendQueue()
    queue.put("slow", "c", 9, 0.0)
    queue.put("urgent", "c", 0, 0.0)
    queue.put("other", "", 5, 0.0)
    assert [queue.take(1.0), queue.take(1.0), queue.take(1.0)] == ["other", "slow", None]
    queue.done("c")
    assert queue.take(1.0) == "urgent"


def test_one_that_is_taken_back_lets_the_next_of_its_correlation_leave() -> None:
    queue: SendQueue[str] = SendQueue()
    first, second, third = "first", "second", "third"
    for item in (first, second, third):
        queue.put(item, "c", 5, 0.0)
    assert queue.remove(second)
    assert queue.remove(first)
    assert queue.take(0.0) == third
    assert not queue.remove(third)
    assert len(queue) == 0


class Machine(RuleBasedStateMachine):
    """The queue beside a list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: SendQueue[object] = SendQueue()
        self.waiting: list[Waiting[object]] = []
        self.out: dict[str, object] = {}
        self.now = 0.0

    @rule(correlation=st.sampled_from(["", "a", "b"]), priority=st.integers(0, 9))
    def put(self, correlation: str, priority: int) -> None:
        item = object()
        self.queue.put(item, correlation, priority, self.now)
        self.waiting.append(Waiting(item, correlation, priority, self.now))

    @rule(seconds=st.sampled_from([0.0, 0.5, 10.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _leaves_next(self) -> Waiting[object] | None:
        seen = set(self.out)
        free = []
        for one in self.waiting:
            if not one.correlation or one.correlation not in seen:
                free.append(one)
            if one.correlation:
                seen.add(one.correlation)
        return min(
            free, key=lambda one: (one.priority - (self.now - one.since) // AGEING_S, one.since, one.priority),
            default=None,
        )  # fmt: skip

    @rule()
    def take(self) -> None:
        expected = self._leaves_next()
        taken = self.queue.take(self.now)
        if expected is None:
            assert taken is None
            return
        # Of those that are equal in everything any may leave.
        found = next(one for one in self.waiting if one.item is taken)
        assert (found.since, found.priority) == (expected.since, expected.priority)
        assert found.correlation not in self.out
        self.waiting.remove(found)
        if found.correlation:
            self.out[found.correlation] = taken

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        correlation = data.draw(st.sampled_from(sorted(self.out)))
        del self.out[correlation]
        self.queue.done(correlation)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(one.item)
        assert not self.queue.remove(one.item)
        self.waiting.remove(one)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == len(self.waiting)

    def teardown(self) -> None:
        for correlation in self.out:
            self.queue.done(correlation)
        while self.waiting:
            item = self.queue.take(self.now)
            assert item is not None, "something never leaves"
            found = next(one for one in self.waiting if one.item is item)
            self.waiting.remove(found)
            self.queue.done(found.correlation)
        assert len(self.queue) == 0
        assert not self.queue._correlations


Machine.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestQueue = Machine.TestCase
