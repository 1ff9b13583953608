"""Cases and how they are run: what one case is, which are selected, and how many run at once.

A case is a function that uses the endpoint and raises ``Failed`` with what it saw, or ``Skipped`` when it cannot tell.
Does not own any protocol, nor what is shown (``report``).

Invariant: every selected case ends, within the time that is left, as passed, failed or skipped; whatever a case raises
is its own result and nobody else's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

LEVELS: Final = ("core", "standard", "advanced")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Enough to hide the waits of one case behind the others, few enough that a slow endpoint answers each in time.
AT_ONCE: Final = 16

Bench = TypeVar("Bench")


class Failed(Exception):
    """The endpoint does not do what the case asks for. ``seen`` is what it did; ``mend`` if this needs other advice."""

    def __init__(self, seen: str, mend: str = "") -> None:
        super().__init__(seen)
        self.seen = seen
        self.mend = mend


class Skipped(Exception):
    """The case cannot be tried; the text says what it would need."""


@dataclass(frozen=True)
class Case(Generic[Bench]):
    """One thing that must be true of an endpoint. ``must`` is that sentence, ``mend`` what to do when it is not."""

    id: str
    category: str
    level: str
    rows: tuple[str, ...]
    must: str
    mend: str
    run: Callable[[Bench], Awaitable[None]]
    # Waits for most of its time: starts first, and takes no place from the others.
    is_long: bool = False
    # Looks at what all other cases saw, so it runs after them.
    is_last: bool = False


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    id: str
    category: str
    level: str
    rows: tuple[str, ...]
    must: str
    status: str
    duration_s: float
    seen: str = ""
    mend: str = ""


@dataclass
class Book(Generic[Bench]):
    """All cases of a suite, in the order in which they are told."""

    cases: list[Case[Bench]] = field(default_factory=list)

    def case(
        self,
        case_id: str,
        level: str,
        rows: str,
        must: str,
        mend: str,
        *,
        is_long: bool = False,
        is_last: bool = False,
    ) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
        """Add a function as a case. Its category is what stands before the dot of its id; ``rows`` between spaces."""

        def add(run: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
            category = case_id.partition(".")[0]
            case = Case(case_id, category, level, tuple(rows.split()), must, mend, run, is_long, is_last)
            assert level in LEVELS, level
            assert all(known.id != case_id for known in self.cases), case_id
            self.cases.append(case)
            return run

        return add

    def selected(self, level: str, only: Iterable[str] = ()) -> list[Case[Bench]]:
        """The cases up to a level; of these the ones that ``only`` names by id or category. ``KeyError`` if none is."""
        wanted = list(only)
        for name in wanted:
            if not any(name in {case.id, case.category} for case in self.cases):
                raise KeyError(name)
        levels = LEVELS[: LEVELS.index(level) + 1]
        return [
            case
            for case in self.cases
            if (wanted and (case.id in wanted or case.category in wanted)) or (not wanted and case.level in levels)
        ]


async def run(
    cases: Sequence[Case[Bench]],
    bench: Bench,
    *,
    limit_s: float,
    told: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run the cases, at most ``limit_s`` in all, and tell of each as it ends; the results in the order of the cases."""
    until = time.monotonic() + limit_s
    places = asyncio.Semaphore(AT_ONCE)
    found: dict[str, Result] = {}

    async def one(case: Case[Bench]) -> None:
        if case.is_long:
            result = await _run_one(case, bench, until)
        else:
            async with places:
                result = await _run_one(case, bench, until)
        found[case.id] = result
        told(result)

    first = [case for case in cases if not case.is_last]
    await asyncio.gather(*(one(case) for case in sorted(first, key=lambda case: not case.is_long)))
    for case in cases:
        if case.is_last:
            await one(case)
    return [found[case.id] for case in cases]


async def _run_one(case: Case[Bench], bench: Bench, until: float) -> Result:
    started = time.monotonic()
    status, seen, mend = PASSED, "", ""
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(until - started, 0.1)):
            await case.run(bench)
    except Failed as failed:
        status, seen, mend = FAILED, failed.seen, failed.mend or case.mend
    except Skipped as skipped:
        status, seen = SKIPPED, str(skipped)
    except TimeoutError:
        status, seen, mend = FAILED, "nothing came before the time of the whole check was over", case.mend
    except Exception as error:  # noqa: BLE001 - an endpoint may answer anything, and the other cases go on
        status, seen, mend = FAILED, f"the answer could not be used ({type(error).__name__}: {error})", case.mend
    took = time.monotonic() - started
    return Result(case.id, case.category, case.level, case.rows, case.must, status, took, seen, mend)
