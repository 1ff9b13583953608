from __future__ import annotations

import re

import msgspec

from bench.contenders import CONTENDERS, HTTP_CONTENDERS
from bench.loads import Load
from bench.report import GOALS, HTTP_GOALS, TAILS, lines, ratio, table
from bench.results import Cell, Flat, Herd, Memory, Pieces, Printed, Results, Spread, Start, Starts, Step
from tests.unit.bench.made import MACHINE, SMALL_64, SPACES, results


def rows(made: Results, heading: str) -> list[list[str]]:
    """The table below a heading, without its head."""
    shown = list(lines(made))
    at = next(number for number, line in enumerate(shown) if line.startswith(heading))
    found: list[list[str]] = []
    for line in shown[at + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found[2:]


def test_a_table_is_markdown_whose_columns_stand_below_each_other() -> None:
    shown = list(table(["who", "calls/s"], [["relay", "1"], ["a longer name", "1,000"]]))
    assert shown == [
        "| who           | calls/s |",
        "|:--------------|--------:|",
        "| relay         |       1 |",
        "| a longer name |   1,000 |",
    ]


def test_a_ratio_shows_its_rounds_only_where_they_differ() -> None:
    assert ratio(Spread(0.5, 0.5, 0.5)) == "0.50"
    assert ratio(Spread(0.5, 0.41, 0.62)) == "0.50 (0.41–0.62)"
    assert ratio(None) == "–"


def test_a_small_ratio_keeps_two_digits_that_say_something() -> None:
    assert ratio(Spread(0.012, 0.012, 0.012)) == "0.012"
    assert ratio(Spread(0.1, 0.1, 0.1)) == "0.10"


def test_the_relay_is_1_in_every_round_and_others_are_beside_it() -> None:
    found = rows(results(relay=(1000.0, 2000.0), nats=(100.0, 400.0)), "Calls a second as a ratio")
    assert [(row[0], row[2]) for row in found] == [("Bare relay", "1.00"), ("NATS request-reply", "0.15 (0.10–0.20)")]
    assert {row[1] for row in found} == {"–"}, "one call in flight was not measured"


def test_rows_stand_in_the_order_of_the_contenders_whatever_order_they_ran_in() -> None:
    made = results(mcp_http=(1.0,), durable=(3.0,), relay=(9.0,), read_only=(5.0,))
    titles = [row[0] for row in rows(made, "Calls a second, medians")]
    order = [contender.title for contender in CONTENDERS]
    assert titles == sorted(titles, key=order.index)
    assert len(titles) == 4


def test_cpu_is_the_sum_of_a_contenders_processes() -> None:
    made = results(relay=(1.0,))
    (cell,) = made.cells
    made.cells = (msgspec.structs.replace(cell, cpu_us={"relay": 5.0, "caller": 4.0, "provider": 3.4}),)
    assert rows(made, "CPU µs for a call, all")[0][2] == "12"


def test_a_goal_is_reached_by_its_median() -> None:
    made = results(relay=(100.0, 100.0, 100.0), read_only=(49.0, 50.0, 90.0), durable=(34.0, 34.9, 90.0))
    assert {(row[0].split(",")[1].strip(), row[1]): row[3] for row in rows(made, "The goals")} == {
        ("read-only call", "≥ 0.50"): "yes",
        ("call with side effects", "≥ 0.35"): "no",
    }


def test_each_goal_names_contenders_that_exist() -> None:
    for goals, contenders in ((GOALS, CONTENDERS), (HTTP_GOALS, HTTP_CONTENDERS)):
        names = {contender.name for contender in contenders}
        assert {goal.contender for goal in goals} | {goal.to for goal in goals} <= names
    assert {name for name, _ in TAILS} <= {contender.name for contender in HTTP_CONTENDERS}


def over_http(*, calls: float, p99_us: float) -> Results:
    """64 calls in flight and one: 20,000 bare answers a second beside this many calls, with this tail."""
    one = Load(1, 200)
    return Results(
        MACHINE,
        "standard",
        http=(
            Cell("http-durable", SMALL_64, (2000.0,), {"exchange": 250.0, "caller": 25.0}, (1000.0,), (5010.0,)),
            Cell("http-read-only", SMALL_64, (calls,), {"exchange": 230.4, "caller": 24.0}, (1000.0,), (p99_us,)),
            Cell("bare-answer", SMALL_64, (20_000.0,), {"server": 30.0, "caller": 15.0}, (1850.0,), (3694.0,)),
            Cell("bare-answer", one, (10_000.0,), {"server": 67.0, "caller": 30.0}, (90.0,), (140.0,)),
            Cell("mcp-http", one, (700.0,)),
        ),
    )


def test_calls_over_http_stand_beside_the_bare_answer_with_their_times_and_cpu() -> None:
    assert rows(over_http(calls=10_000.0, p99_us=5000.0), "Over HTTP/1.1") == [
        ["Bare answer over HTTP", "1", "10,000", "1.00", "0.09", "0.14", "67", "30", "97"],
        ["Bare answer over HTTP", "64", "20,000", "1.00", "1.85", "3.69", "30", "15", "45"],
        ["Trunkline over HTTP, read-only call", "64", "10,000", "0.50", "1.00", "5.00", "230", "24", "254"],
        ["Trunkline over HTTP, call with side effects", "64", "2,000", "0.10", "1.00", "5.01", "250", "25", "275"],
        ["MCP SDK, streamable HTTP", "1", "700", "0.070", "–", "–", "–", "–", "–"],
    ]


def test_over_http_half_of_the_bare_answer_and_a_tail_of_five_medians_are_the_goals() -> None:
    assert [row[1:] for row in rows(over_http(calls=10_000.0, p99_us=5000.0), "The goals")] == [
        ["≥ 0.50", "0.50", "yes"],
        ["≤ 5.00", "5.00", "yes"],
        ["≤ 5.00", "5.01", "no"],
    ]
    found = rows(over_http(calls=9990.0, p99_us=5100.0), "The goals")
    assert [(row[0], row[3]) for row in found[:2]] == [
        ("Trunkline over HTTP, read-only call, 64 × 200 B, of Bare answer over HTTP", "no"),
        ("Trunkline over HTTP, read-only call, 64 × 200 B, 99 of 100 calls, of their median", "no"),
    ]


def test_spaces_have_their_tables_and_their_goals() -> None:
    made = Results(MACHINE, "standard", spaces=SPACES)
    assert rows(made, "The goals") == [
        ["A space's shell start, beyond a plain shell's", "≤ 25 ms", "25.0 ms", "yes"],
        ["A space's 1,000 file operations in one run, of a run for each", "≥ 5.00", "4.90", "no"],
        ["Memory while a command prints 1 GiB, beyond idle", "≤ 32 MiB", "32.0 MiB", "yes"],
    ]
    assert rows(made, "Milliseconds that a command's start") == [
        ["the sandbox itself", "20.0", "25.0", "29.0"],
        ["a shell operation over HTTP", "30.0", "30.0", "30.0"],
    ]
    assert [row[1:] for row in rows(made, "Seconds for small file operations")] == [
        ["2.00", "9.80", "4.9"],
        ["0.50", "5.00", "10.0"],
    ]
    assert list(lines(made))[-1].endswith("takes 2.5 s; the exchange has 50 MiB before and 82 MiB at the most.")


def test_a_space_that_is_too_slow_or_too_large_does_not_reach_its_goals() -> None:
    slow = Starts((1.0,), (26.1,))
    large = Printed(1024**3, 2.5, 50 * 1024**2, 83 * 1024**2)
    made = Results(MACHINE, "standard", spaces=msgspec.structs.replace(SPACES, room=slow, printed=large))
    assert [row[3] for row in rows(made, "The goals")] == ["no", "no", "no"]


def test_a_run_that_measured_nothing_shows_only_its_machine() -> None:
    (shown,) = lines(Results(MACHINE, "quick"))
    assert "load of the machine 0.1 before and 1.9 after" in shown
    assert "uvloop 1.0" in shown


def test_every_other_section_has_its_table() -> None:
    made = Results(
        MACHINE,
        "standard",
        pieces=(Pieces("read-only", SMALL_64, {"decode": 10.0, "hub": 15.04}, exchange=40.0, others={"writer": 9.0}),),
        memory=Memory(idle_connection=10_240, connection_with_tool=13_312, open_call=2048, empty=50 * 1024**2),
        starts=(Start(10_000, 6 * 1024**2, folded_s=0.5, snapshot_s=0.25),),
        by_agents=(Step(500, (900.0, 1000.0, 1100.0), (2000.0, 2000.0, 2000.0)),),
        by_entries={"read-only": (Step(0, (100.0,), (200.0,)),), "durable": (Step(0, (50.0,), (200.0,)),)},
        herd=Herd(500, welcomed_s=0.5, ready_s=0.75),
        flat=Flat((100_000, 200_000), (60 * 1024**2, 61 * 1024**2)),
    )
    title = "Trunkline, read-only call, 64 × 200 B"
    assert rows(made, "CPU µs for a call, by piece") == [[title, "10.0", "15.0", "15.0", "40.0", "9.0"]]
    assert [row[1] for row in rows(made, "Memory of")] == ["10.0 KiB", "13.0 KiB", "2.0 KiB", "50 MiB"]
    assert rows(made, "Memory as calls") == [["100,000", "60.0 MiB"], ["200,000", "61.0 MiB"]]
    assert rows(made, "Seconds from the start") == [["10,000", "6 MiB", "0.50", "0.25"]]
    assert rows(made, "Read-only calls a second as agents") == [["500", "1,000", "0.50 (0.45–0.55)"]]
    assert rows(made, "Calls a second as the ledger") == [["0", "100", "0.50", "50", "0.25"]]
    assert any(re.search(r"500 agents .* 0.50 s, .* 0.75 s", line) for line in lines(made))
