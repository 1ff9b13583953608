"""What a person is told of an undo before and after it."""

from __future__ import annotations

from trunkline.cli.space import changes

CHANGE = {
    "brought_back": 1,
    "changed_back": 0,
    "removed": 12,
    "first_brought_back": ["a"],
    "first_changed_back": [],
    "first_removed": ["b", "c"],
    "snapshot": {"taken_at": "2026-01-01T00:00:00.000Z", "run": "run_1", "number": 3},
    "undone": ["run_2", "run_1"],
}


def test_before_it_is_asked_what_would_be_done_is_not_told_as_done() -> None:
    planned, done = changes(CHANGE, is_done=False), changes(CHANGE, is_done=True)
    assert planned[0] == "would be undone: run_2, run_1"
    assert planned[2:] == [
        "  would be brought back: 1 (a)",
        "  would be changed back: 0",
        "  would be removed: 12 (b, c, and 10 more)",
    ]
    assert (done[0], done[2]) == ("undone: run_2, run_1", "  brought back: 1 (a)")
