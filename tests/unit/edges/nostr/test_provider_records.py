"""How providers did for us: counted, on record in few steps, and taken up again."""

from __future__ import annotations

from collections import defaultdict

import pytest

from trunkline.edges.nostr import provider_records
from trunkline.edges.nostr.provider_records import MAX_STEPS, PROVIDERS, Record, Records
from trunkline.entries import ProcessStep
from trunkline.events import ProcessStepped


def on_record(stepped: list[ProcessStepped]) -> dict[str, list[ProcessStep]]:
    """The steps that are open after these."""
    found: dict[str, list[ProcessStep]] = defaultdict(list)
    for n, one in enumerate(stepped, start=1):
        if one.done:
            found.pop(one.subject, None)
        else:
            found[one.subject].append(ProcessStep(n, 0, one.process, one.subject, one.step, one.data))
    return found


def test_what_was_counted_is_known_after_a_restart_and_goes_on() -> None:
    records, stepped = Records(), []
    for _ in range(3):
        stepped += records.count("anna", "succeeded", 10)
    stepped += records.count("bert", "lied", 5)
    again = Records()
    again.take_up(on_record(stepped))
    assert again.of("anna") == Record(succeeded=3, total_ms=30)
    assert again.of("bert") == Record(lied=1)
    stepped += again.count("anna", "silent", 0)
    last = Records()
    last.take_up(on_record(stepped))
    assert last.of("anna") == Record(succeeded=3, silent=1, total_ms=30)


def test_however_many_jobs_a_provider_has_few_open_steps_and_the_last_has_the_sums() -> None:
    records, stepped = Records(), []
    for number in range(1, 10 * MAX_STEPS):
        stepped += records.count("anna", "failed", 0)
        steps = on_record(stepped)["anna"]
        assert 1 <= len(steps) <= MAX_STEPS
        again = Records()
        again.take_up({"anna": steps})
        assert again.of("anna").failed == number
    assert {one.process for one in stepped} == {PROVIDERS}


def test_steps_from_before_a_restart_count_towards_the_bound() -> None:
    records, stepped = Records(), []
    for _ in range(4 * MAX_STEPS):
        stepped += records.count("anna", "failed", 0)
        records = Records()
        records.take_up(on_record(stepped))
        assert len(on_record(stepped)["anna"]) <= MAX_STEPS


def test_who_is_forgotten_has_no_step_left_on_record_and_is_who_was_asked_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_records, "MAX_RECORDS", 3)
    records, stepped = Records(), []
    for name in ("anna", "bert", "cleo", "anna", "dora", "emil"):
        stepped += records.count(name, "succeeded", 1)
    assert list(records.all()) == ["anna", "dora", "emil"]
    assert set(on_record(stepped)) == {"anna", "dora", "emil"}
    # Who comes back begins anew.
    stepped += records.count("bert", "failed", 0)
    assert records.of("bert") == Record(failed=1)
    assert set(on_record(stepped)) == {"dora", "emil", "bert"}


def test_steps_of_more_providers_than_are_remembered_are_closed_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    records, stepped = Records(), []
    for name in ("anna", "bert", "cleo", "anna"):
        stepped += records.count(name, "succeeded", 1)
    monkeypatch.setattr(provider_records, "MAX_RECORDS", 2)
    again = Records()
    stepped += again.take_up(on_record(stepped))
    assert list(again.all()) == ["cleo", "anna"]
    assert set(on_record(stepped)) == {"anna", "cleo"}
    assert Records().take_up(on_record(stepped)) == []
