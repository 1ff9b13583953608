from __future__ import annotations

import asyncio

import msgspec
import pytest

from bench.loads import LARGE, SMALL, Load, Measured, Meter, Run, Texts, closed_loop, percentile

TOOLS = ("bench.provider/echo",)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_body_is_an_object_with_a_text_of_the_size_asked_for(size: int, fresh: bool) -> None:
    texts = Texts()
    texts.use(Load(1, size, fresh))
    for _ in range(3):
        (text,) = msgspec.json.decode(texts.body(), type=dict[str, str]).values()
        assert len(text.encode()) == size
        assert len(texts.text()) == size


def test_new_bodies_are_new_for_the_whole_run_and_repeated_ones_are_one() -> None:
    texts = Texts()
    seen: list[bytes] = []
    for load in (Load(1, SMALL), Load(64, SMALL)):
        texts.use(load)
        seen += [texts.body() for _ in range(100)]
    assert len(set(seen)) == 200
    texts.use(Load(1, SMALL, fresh=False))
    assert len({texts.body() for _ in range(100)}) == 1
    assert len({texts.text() for _ in range(100)}) == 1


def test_a_column_says_whether_its_large_bodies_are_new() -> None:
    titles = [load.title for load in (Load(1, SMALL), Load(64, LARGE, fresh=False), Load(64, LARGE))]
    assert titles == ["1 × 200 B", "64 × 64 KiB, repeated", "64 × 64 KiB, new"]


def test_only_what_ends_after_the_warm_up_is_counted_and_the_window_is_one_of_whole_calls() -> None:
    meter = Meter(Run(Load(1, SMALL), warm_s=1.0, measure_s=2.0, tools=TOOLS), now=10.0)
    assert [meter.count(now) for now in (10.5, 11.25, 12.0, 13.0)] == [True] * 4
    # The window opened at 11.25, when the first call after the warm-up ended, and closes with this one.
    assert meter.count(13.75) is False
    assert meter.measured(total=5) == Measured(3, 2.5, 5)


def test_what_ends_after_the_window_is_not_counted() -> None:
    meter = Meter(Run(Load(2, SMALL), warm_s=0.0, measure_s=1.0, tools=TOOLS), now=0.0)
    assert [meter.count(now) for now in (0.0, 1.0, 1.5)] == [True, False, False]
    assert meter.measured(total=3) == Measured(1, 1.0, 3)


def test_calls_are_timed_within_the_window_where_the_caller_says_when_they_began() -> None:
    meter = Meter(Run(Load(1, SMALL), warm_s=1.0, measure_s=4.0, tools=TOOLS), now=10.0)
    # The first two are the warm-up: the window opens with the end of the second.
    for began, ended in ((10.0, 10.5), (10.5, 11.0), (11.0, 12.0), (12.0, 12.25), (12.25, 14.25)):
        assert meter.count(ended, began)
    assert not meter.count(15.0, began=14.25)
    measured = meter.measured(total=6)
    assert (measured.calls, measured.median_us, measured.p99_us) == (4, 1_000_000.0, 2_000_000.0)


def test_so_many_of_a_hundred_ended_within_the_percentile() -> None:
    times = [float(number) for number in range(1000, 0, -1)]
    assert [percentile(times, percent) for percent in (0, 50, 99, 100)] == [1.0, 501.0, 991.0, 1000.0]
    assert (percentile([7.0], 99), percentile([], 99)) == (7.0, 0.0)


async def test_a_closed_loop_keeps_so_many_calls_in_flight_and_waits_for_the_last() -> None:
    in_flight = most = ended = 0

    async def call(texts: Texts) -> None:
        nonlocal in_flight, most, ended
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        ended += 1

    async with asyncio.timeout(20):
        measured = await closed_loop(Run(Load(7, SMALL), 0.0, 0.01, TOOLS), Texts(), call)
    assert (most, in_flight, ended) == (7, 0, measured.total)
    assert 0 < measured.calls < measured.total
    assert measured.rate == measured.calls / measured.seconds
    assert 0 < measured.median_us <= measured.p99_us < 20_000_000
