from __future__ import annotations

from typing import Any

import pytest

from tests.unit.ledger.made import accepted, settled
from tests.unit.trajectory.made import failed, foreign, raw, trajectory, written
from trunkline.model import Status
from trunkline.trajectory.diff import Difference, difference, first_change, run_of


def parted(a: list[bytes], b: list[bytes]) -> Difference | None:
    return difference(run_of(a), run_of(b))


CALL = (accepted(1, b'{"x":1}'), settled(2, 1, b'{"y":1}'))


def test_two_runs_with_the_same_calls_are_the_same_whenever_they_were() -> None:
    other = trajectory(accepted(5, b'{ "x": 1 }'), settled(9, 5, b'{"y":1}', started_ms=0), session_id="d")
    assert parted(trajectory(*CALL), other) is None


@pytest.mark.parametrize(
    ("entries", "what", "lines"),
    [
        ((accepted(1, b'{"x":1}', tool_id="a/b"), settled(2, 1, b'{"y":1}')), "call", (4, 4)),
        ((accepted(1, b'{"x":2}'), settled(2, 1, b'{"y":1}')), "params", (4, 4)),
        ((accepted(1, b'{"x":1.0}'), settled(2, 1, b'{"y":1}')), "params", (4, 4)),
        ((accepted(1, b'{"x":1}'), settled(2, 1, b'{"y":2}')), "output", (5, 5)),
        ((accepted(1, b'{"x":1}'), failed(2, 1)), "outcome", (5, 5)),
        ((accepted(1, b'{"x":1}'), failed(2, 1, status=Status.CANCELED)), "outcome", (5, 5)),
        ((*CALL, accepted(3), settled(4, 3)), "call", (8, 6)),
    ],
)
def test_the_first_difference_is_named(entries: Any, what: str, lines: tuple[int, int]) -> None:
    found = parted(trajectory(*CALL), trajectory(*entries))
    assert found is not None
    assert (found.what, found.a.line, found.b.line) == (what, *lines)
    back = parted(trajectory(*entries), trajectory(*CALL))
    assert back is not None
    assert (back.what, back.a, back.b) == (found.what, found.b, found.a)


def test_a_run_that_ends_earlier_parts_at_the_call_that_it_does_not_make() -> None:
    found = parted(trajectory(*CALL), trajectory(*CALL, accepted(3), settled(4, 3)))
    assert found is not None
    assert (found.call, found.a.tool, found.b.tool) == (2, "", "com.example.echo/echo")


def test_an_output_that_differs_before_a_call_does_is_where_they_part() -> None:
    def run(inner: bytes, after: bytes) -> list[bytes]:
        return trajectory(
            accepted(1), accepted(2, cause=1), settled(3, 2, inner), accepted(4, after, cause=1), settled(5, 4),
            settled(6, 1),
        )  # fmt: skip

    found = parted(run(b"{}", b"{}"), run(b'{"z":1}', b'{"z":1}'))
    assert found is not None
    assert (found.what, found.call) == ("output", 2)
    # The output of the first call was written after the call that differs.
    found = parted(run(b"{}", b"{}"), run(b"{}", b'{"z":1}'))
    assert found is not None
    assert (found.what, found.call) == ("params", 3)


def test_sessions_may_differ_in_their_end_alone_and_have_events_of_somebodys_own() -> None:
    a = foreign()
    a.insert(3, {"event": "Thought"})
    assert parted(written(a), written(foreign())) is None
    found = parted(written(foreign()), written(foreign(SessionEnd={"status": "Failed"})))
    assert found is not None
    assert (found.what, found.call, found.a.shown, found.b.shown) == ("end", 0, "Success", "Failed")


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        ({"x": 1}, {"x": 2}, ("$.x", 1, 2)),
        ({"x": [1, {"y": "a"}]}, {"x": [1, {"y": "b"}]}, ("$.x[1].y", "a", "b")),
        ({"x": [1]}, {"x": [1, 2]}, ("$.x[1]", "(nothing)", 2)),
        ({"x": 1}, {"y": 1}, ("$.x", 1, "(nothing)")),
        ({"x": 1}, {"x": 1.0}, ("$.x", 1, 1.0)),
        ({"x": [True]}, {"x": [1]}, ("$.x[0]", True, 1)),
        ({"x": {}}, {"x": []}, ("$.x", {}, [])),
        ([], [], ("$", [], [])),
        ({}, {}, ("$", {}, {})),
    ],
)
def test_the_first_member_that_differs_is_found(a: Any, b: Any, change: Any) -> None:
    assert first_change(raw(a), raw(b)) == change
    assert first_change(None, raw(1)) == ("$", "(nothing)", 1)
