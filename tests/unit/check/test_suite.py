"""How cases are selected and run, whatever protocol they are about."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.check.suite import Book, Failed, Result, Skipped, run


def book() -> Book[list[str]]:
    made: Book[list[str]] = Book()

    @made.case("first.good", "core", "X-001 X-002", "It is good.", "Make it good.")
    async def good(bench: list[str]) -> None:
        bench.append("good")

    @made.case("first.bad", "standard", "X-003", "It is not bad.", "Make it better.")
    async def bad(bench: list[str]) -> None:
        bench.append("bad")
        raise Failed("it was bad")

    @made.case("second.unknown", "advanced", "X-004", "It is known.", "Ask.")
    async def unknown(bench: list[str]) -> None:
        raise Skipped("nobody to ask")

    @made.case("second.defect", "advanced", "X-005", "It works.", "Repair it.", is_last=True)
    async def defect(bench: list[str]) -> None:
        bench.append("last")
        raise KeyError("header")

    return made


@pytest.mark.parametrize(
    ("level", "only", "ids"),
    [
        ("core", (), ["first.good"]),
        ("standard", (), ["first.good", "first.bad"]),
        ("advanced", (), ["first.good", "first.bad", "second.unknown", "second.defect"]),
        ("core", ("second",), ["second.unknown", "second.defect"]),
        ("core", ("first.bad", "second.defect"), ["first.bad", "second.defect"]),
    ],
)
def test_a_level_has_those_below_it_and_a_name_counts_whatever_its_level(
    level: str, only: tuple[str, ...], ids: list[str]
) -> None:
    assert [case.id for case in book().selected(level, only)] == ids


def test_a_name_that_does_not_exist_is_an_error_and_not_an_empty_run() -> None:
    with pytest.raises(KeyError, match="third"):
        book().selected("core", ["third"])


async def test_each_case_ends_in_its_own_result_and_the_last_ones_run_last() -> None:
    told: list[Result] = []
    bench: list[str] = []
    results = await run(book().cases, bench, limit_s=5, told=told.append)
    assert [(one.id, one.status, one.seen, one.mend) for one in results] == [
        ("first.good", "passed", "", ""),
        ("first.bad", "failed", "it was bad", "Make it better."),
        ("second.unknown", "skipped", "nobody to ask", ""),
        ("second.defect", "failed", "the answer could not be used (KeyError: 'header')", "Repair it."),
    ]
    assert bench[-1] == "last"
    assert {one.id for one in told} == {one.id for one in results}


async def test_advice_of_the_moment_stands_before_that_of_the_case() -> None:
    made: Book[None] = Book()

    @made.case("one.case", "core", "", "It is allowed.", "The usual advice.")
    async def denied(_: None) -> None:
        raise Failed("403", "Add a rule.")

    (result,) = await run(made.cases, None, limit_s=5)
    assert result.mend == "Add a rule."


async def test_a_case_that_waits_for_ever_fails_when_the_time_is_over_and_the_others_are_told() -> None:
    made: Book[None] = Book()

    @made.case("one.endless", "core", "", "It ends.", "End it.", is_long=True)
    async def endless(_: None) -> None:
        await asyncio.Event().wait()

    @made.case("one.good", "core", "", "It is good.", "")
    async def good(_: None) -> None:
        pass

    results = await run(made.cases, None, limit_s=0.05)
    assert [one.status for one in results] == ["failed", "passed"]
    assert "time of the whole check" in results[0].seen
