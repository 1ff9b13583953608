"""What a run of a suite found, as a value and as JSON.

Owns the counts and their names in the report; does not own how it is shown to people (``page``, and the command line).

Invariant: a case that was skipped is neither passed nor failed, and counts for no rate.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trunkline.check.suite import FAILED, PASSED, SKIPPED, Result


@dataclass(frozen=True)
class Tally:
    """How many cases ended how."""

    passed: int
    failed: int
    skipped: int

    @classmethod
    def of(cls, results: Iterable[Result]) -> Tally:
        """Count some results."""
        found = [one.status for one in results]
        return cls(found.count(PASSED), found.count(FAILED), found.count(SKIPPED))

    @property
    def rate(self) -> float:
        """Passed of those that were tried, in percent; nothing tried is nothing passed."""
        tried = self.passed + self.failed
        return round(100 * self.passed / tried, 1) if tried else 0.0


@dataclass(frozen=True)
class Report:
    """One run."""

    protocol: str
    endpoint: str
    fingerprint: str
    level: str
    started_at: float
    duration_s: float
    # Messages of the endpoint that were looked at.
    messages: int
    results: tuple[Result, ...]

    @property
    def tally(self) -> Tally:
        """Of all cases."""
        return Tally.of(self.results)

    @property
    def is_passed(self) -> bool:
        """Whether all that was tried passed, and something was."""
        return not self.tally.failed and self.tally.passed > 0

    @property
    def categories(self) -> dict[str, list[Result]]:
        """The results of each category, in the order in which they are told."""
        found: dict[str, list[Result]] = {}
        for one in self.results:
            found.setdefault(one.category, []).append(one)
        return found

    @property
    def failures(self) -> list[Result]:
        """The cases that failed."""
        return [one for one in self.results if one.status == FAILED]

    @property
    def causes(self) -> list[list[Result]]:
        """The failures, those together that were seen for the same reason and are mended the same way."""
        found: dict[tuple[str, str], list[Result]] = {}
        for one in self.failures:
            found.setdefault((one.seen, one.mend), []).append(one)
        return list(found.values())

    @property
    def skipped(self) -> list[Result]:
        """The cases that could not be tried."""
        return [one for one in self.results if one.status == SKIPPED]

    @property
    def when(self) -> str:
        """When it began."""
        return dt.datetime.fromtimestamp(self.started_at, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        tally = self.tally
        return {
            "summary": {
                "protocol": self.protocol,
                "endpoint": self.endpoint,
                "certificateSha256": self.fingerprint,
                "level": self.level,
                "startedAt": self.when,
                "durationMs": round(self.duration_s * 1000),
                "messagesSeen": self.messages,
                "total": len(self.results),
                "passed": tally.passed,
                "failed": tally.failed,
                "skipped": tally.skipped,
                "overallStatus": PASSED if self.is_passed else FAILED,
                "score": tally.rate,
            },
            "results": [
                {
                    "category": category,
                    "tests": [_test(one) for one in results],
                    "passRate": Tally.of(results).rate,
                    "failures": [_failure(one) for one in results if one.status == FAILED],
                }
                for category, results in self.categories.items()
            ],
        }


def _test(result: Result) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": result.id,
        "level": result.level,
        "requirements": list(result.rows),
        "description": result.must,
        "status": result.status,
        "durationMs": round(result.duration_s * 1000),
    }
    if result.status == SKIPPED:
        told["reason"] = result.seen
    return told


def _failure(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "requirements": list(result.rows),
        "expected": result.must,
        "actual": result.seen,
        "advice": result.mend,
    }
