"""What a person is told of an undo before and after it, and which events are of operations that succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.cli.space import changes, went_well
from trunkline.edges.spaces.messages import EVENTS
from trunkline.edges.spaces.translate import failed

# Of each type of event that there is: what it says of an operation that did not succeed, and of one that did.
ENDS: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "message": (None, {"success": True}),
    "createFile": ({"success": False, "error": "exists"}, {"success": True}),
    "readFile": ({"success": False, "error": "missing"}, {"success": True, "content": ""}),
    "editFile": ({"success": False, "error": "no match"}, {"success": True, "editsApplied": 1}),
    "deleteFile": ({"success": False, "error": "missing"}, {"success": True}),
    "shell": ({"success": False, "exitCode": 1}, {"success": True, "exitCode": 0}),
    # It waits: its end is another event.
    "approvalRequired": (None, {"operationId": "op-0", "reason": "a rule asks"}),
    "policyDenied": ({"operationType": "shell", "reason": "sudo"}, None),
    "error": ({"category": "execution", "message": "cwd is missing"}, None),
}

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


@pytest.mark.parametrize("kind", EVENTS)
def test_a_run_ends_well_only_if_every_event_tells_of_success(kind: str) -> None:
    bad, good = ENDS[kind]
    assert bad is None or (not went_well({"type": kind, **bad}) and failed({"type": kind, **bad}))
    assert good is None or (went_well({"type": kind, **good}) and not failed({"type": kind, **good}))


def test_a_type_of_event_that_nobody_knows_is_no_success() -> None:
    assert not went_well({"type": "postponed"})
