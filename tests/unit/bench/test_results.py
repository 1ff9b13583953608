from __future__ import annotations

import msgspec
import pytest

from bench.loads import Load
from bench.ratios import Window, cell
from bench.results import Cell, FileRuns, Pieces, Printed, Results, Spread, Starts, ratio_of
from tests.unit.bench.made import SMALL_64, SPACES, results


def test_a_spread_is_the_median_with_the_lowest_and_the_highest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine was ten times slower in the second round: for both.
    found = results(relay=(1000.0, 100.0, 1000.0), nats=(500.0, 50.0, 400.0)).ratio("nats", SMALL_64)
    assert found == Spread(0.5, 0.4, 0.5)


def test_a_ratio_to_another_than_the_relay() -> None:
    found = results(relay=(100.0,), read_only=(60.0,), nats=(20.0,)).ratio("read-only", SMALL_64, to="nats")
    assert found == Spread.of([3.0])


@pytest.mark.parametrize(("contender", "load"), [("grpc", SMALL_64), ("nats", Load(1, 200))])
def test_what_was_not_measured_has_no_ratio(contender: str, load: Load) -> None:
    assert results(relay=(1.0,), nats=(1.0,)).ratio(contender, load) is None


def test_the_times_of_a_call_are_kept_round_by_round_and_cpu_as_the_median_of_the_rounds() -> None:
    rounds = [Window(100.0, {"server": 4.0}, 10.0, 30.0), Window(200.0, {"server": 6.0}, 20.0, 50.0)]
    assert cell("http-read-only", SMALL_64, rounds) == Cell(
        "http-read-only", SMALL_64, (100.0, 200.0), {"server": 5.0}, (10.0, 20.0), (30.0, 50.0)
    )


def test_a_caller_that_does_not_time_its_calls_leaves_no_times() -> None:
    found = cell("relay", SMALL_64, [Window(100.0, {}, 0.0, 0.0)])
    assert (found.median_us, found.p99_us, found.tail()) == ((), (), None)


def test_the_tail_is_taken_within_each_round() -> None:
    # The machine was ten times slower in the second round, for all calls of it.
    found = Cell("http-read-only", SMALL_64, (1.0, 1.0, 1.0), {}, (10.0, 100.0, 10.0), (30.0, 300.0, 40.0))
    assert found.tail() == Spread(3.0, 3.0, 4.0)


def test_a_ratio_is_taken_among_the_cells_of_one_table() -> None:
    table = (Cell("bare-answer", SMALL_64, (100.0, 50.0)), Cell("http-read-only", SMALL_64, (50.0, 10.0)))
    assert ratio_of(table, "http-read-only", SMALL_64, "bare-answer") == Spread.of([0.5, 0.2])
    assert ratio_of(table[1:], "http-read-only", SMALL_64, "bare-answer") is None


def test_what_the_pure_pieces_do_not_explain_is_sockets_and_the_loop() -> None:
    found = Pieces("read-only", SMALL_64, {"decode": 10.0, "hub": 15.0}, exchange=40.0, others={})
    assert found.rest == 15.0
    assert msgspec.structs.replace(found, exchange=20.0).rest == 0.0


def test_the_overhead_of_a_start_is_taken_within_each_pair() -> None:
    # The machine was slow for one pair: for both of it.
    found = Starts((1.0, 1.0, 50.0), (21.0, 23.0, 72.0))
    assert [found.overhead(percent) for percent in (0, 50, 90)] == [20.0, 22.0, 22.0]
    hundred = Starts((0.0,) * 101, tuple(map(float, range(101))))
    assert hundred.overhead(90) == 90.0


def test_one_run_is_so_many_times_as_fast_as_a_run_for_each() -> None:
    assert FileRuns(1000, together_s=2.0, apart_s=10.0).ratio == 5.0


def test_memory_is_counted_beyond_idle() -> None:
    assert Printed(1024**3, 2.0, idle_rss=50, peak_rss=79).more_bytes == 29


def test_a_saved_run_is_the_run() -> None:
    made = results(relay=(1.0, 2.0), read_only=(0.5, 1.5))
    made.spaces = SPACES
    made.http = (Cell("http-read-only", SMALL_64, (1.0,), {"exchange": 2.0}, (3.0,), (4.0,)),)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Results) == made
