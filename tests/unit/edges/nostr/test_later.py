"""What did not work is tried again later and later, within bounds, and each thing by itself."""

from __future__ import annotations

from trunkline.edges.nostr.later import FIRST_AGAIN_S, LAST_AGAIN_S, Later


class Clock:
    now = 100.0


def waited(later: Later, clock: Clock) -> float:
    """How long until it is due, in quarters of a second."""
    began = clock.now
    while not later.is_due("a"):
        clock.now += 0.25
    return clock.now - began


def test_each_wait_is_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    clock = Clock()
    later = Later(lambda: clock.now)
    assert later.is_due("a")
    waits = []
    for _ in range(12):
        later.failed("a")
        waits.append(waited(later, clock))
    assert waits[:4] == [FIRST_AGAIN_S, 2 * FIRST_AGAIN_S, 4 * FIRST_AGAIN_S, 8 * FIRST_AGAIN_S]
    assert waits[-2:] == [LAST_AGAIN_S, LAST_AGAIN_S]
    later.forget("a")
    later.failed("a", 1.5)
    assert [waited(later, clock), later.failed("a", 1.5), waited(later, clock)] == [1.0, None, 1.5]


def test_what_rests_is_due_after_that_and_others_are_due_meanwhile() -> None:
    clock = Clock()
    later = Later(lambda: clock.now)
    later.rest("a", 600.0)
    assert ("a" in later, later.is_due("a"), later.is_due("b")) == (True, False, True)
    assert waited(later, clock) == 600.0
    later.failed("a")
    later.forget_all()
    assert ("a" in later, later.is_due("a")) == (False, True)
