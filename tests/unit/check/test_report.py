"""The report for programs: its names, its counts, and when a run as a whole has passed."""

from __future__ import annotations

import dataclasses
import json

from trunkline.check.report import Report, Tally
from trunkline.check.suite import Result


def result(case_id: str, status: str = "passed", seen: str = "") -> Result:
    category = case_id.partition(".")[0]
    return Result(case_id, category, "core", ("OSSA-001",), "It must be so.", status, 0.0124, seen, "Mend it.")


def report(*results: Result) -> Report:
    return Report("OSSA 1.0.0", "https://127.0.0.1:7413", "ab" * 32, "advanced", 0.0, 1.5, 7, results)


def test_the_report_has_a_summary_and_one_row_for_each_category() -> None:
    made = report(result("a.one"), result("b.two", "failed", "HTTP 200"), result("a.three", "skipped", "no key"))
    value = json.loads(json.dumps(made.as_json()))
    assert value["summary"] == {
        "protocol": "OSSA 1.0.0",
        "endpoint": "https://127.0.0.1:7413",
        "certificateSha256": "ab" * 32,
        "level": "advanced",
        "startedAt": "1970-01-01T00:00:00Z",
        "durationMs": 1500,
        "messagesSeen": 7,
        "total": 3,
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "overallStatus": "failed",
        "score": 50.0,
    }
    assert [(one["category"], one["passRate"], len(one["tests"])) for one in value["results"]] == [
        ("a", 100.0, 2),
        ("b", 0.0, 1),
    ]
    assert value["results"][1]["failures"] == [
        {
            "id": "b.two",
            "requirements": ["OSSA-001"],
            "expected": "It must be so.",
            "actual": "HTTP 200",
            "advice": "Mend it.",
        }
    ]
    assert value["results"][0]["tests"][1] == {
        "id": "a.three",
        "level": "core",
        "requirements": ["OSSA-001"],
        "description": "It must be so.",
        "status": "skipped",
        "durationMs": 12,
        "reason": "no key",
    }


def test_failures_that_were_seen_and_are_mended_alike_have_one_cause() -> None:
    alike = [result("a.one", "failed", "no WebSocket"), result("b.two", "failed", "no WebSocket")]
    other = dataclasses.replace(alike[0], id="b.three", mend="Mend something else.")
    made = report(alike[0], result("a.four"), other, alike[1])
    assert [[one.id for one in cases] for cases in made.causes] == [["a.one", "b.two"], ["b.three"]]


def test_what_was_skipped_counts_neither_way() -> None:
    made = report(result("a.one"), result("a.two", "skipped"))
    assert made.tally == Tally(1, 0, 1)
    assert made.as_json()["summary"]["score"] == 100.0
    assert made.as_json()["summary"]["overallStatus"] == "passed"


def test_a_run_in_which_nothing_could_be_tried_has_not_passed() -> None:
    made = report(result("a.one", "skipped"))
    assert not made.is_passed
    assert made.as_json()["summary"]["score"] == 0.0
