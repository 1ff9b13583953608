from __future__ import annotations

import pytest

from trunkline.testing.clock import ManualClock, ManualLoop, ProcessLoop


def test_time_stands_still_until_it_is_told_to_pass() -> None:
    clock = ManualClock(mono=5.0, wall=100.0)
    assert clock.now() == clock.now()
    clock.advance(1.5)
    assert (clock.mono, clock.wall) == (6.5, 101.5)


def test_only_the_wall_clock_jumps() -> None:
    clock = ManualClock(mono=5.0, wall=100.0)
    clock.jump(-3600.0)
    assert (clock.mono, clock.wall) == (5.0, -3500.0)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1.0)


def test_what_is_due_first_is_done_first_and_at_its_time() -> None:
    loop = ManualLoop()
    start = loop.time()
    done: list[tuple[str, float]] = []

    def do(name: str) -> None:
        done.append((name, loop.time() - start))

    loop.call_later(2.0, do, "late")
    loop.call_later(1.0, do, "early")
    loop.call_later(1.0, do, "early too")
    loop.call_soon(do, "now")
    loop.run_for(1.5)
    assert done == [("now", 0.0), ("early", 1.0), ("early too", 1.0)]
    loop.run_for(0.5)
    assert done[-1] == ("late", 2.0)
    assert loop.time() == start + 2.0


def test_what_is_called_off_is_not_done() -> None:
    loop = ManualLoop()
    done: list[str] = []
    timer = loop.call_later(1.0, done.append, "x")
    timer.cancel()
    loop.run_for(5.0)
    assert done == []
    assert timer.cancelled()


def test_a_delay_too_small_for_a_float_does_not_stop_the_clock() -> None:
    loop = ManualLoop(ManualClock(mono=1e9))
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        loop.call_later(1e-13, again)

    loop.call_soon(again)
    loop.run_for(0.00001)
    assert count >= 2


def test_nothing_of_a_dead_process_is_done() -> None:
    loop = ManualLoop()
    first, second = ProcessLoop(loop), ProcessLoop(loop)
    done: list[str] = []
    first.call_later(1.0, done.append, "first")
    second.call_soon(done.append, "second")
    second.call_at(loop.time() + 1.0, done.append, "second too")
    first.kill()
    loop.run_for(2.0)
    assert done == ["second", "second too"]
