from __future__ import annotations

import json

import pytest

from tests.requirement import requirement
from tests.unit.trajectory.made import foreign, written
from trunkline.trajectory import events


@requirement("OA-093")
@pytest.mark.parametrize("line", written(foreign()), ids=lambda line: json.loads(line)["event"])
def test_each_line_of_the_specification_round_trips(line: bytes) -> None:
    assert json.loads(events.encode(events.decode(line))) == json.loads(line)


def test_the_names_are_those_of_the_types() -> None:
    assert {type(events.decode(line)).__name__ for line in written(foreign())} == events.KNOWN


def test_a_value_is_kept_as_it_was_written() -> None:
    line = written(foreign())[3].replace(b'{"path": "src/main.rs"}', b'{"a": 1.0, "b": 18446744073709551615}')
    assert b'{"a": 1.0, "b": 18446744073709551615}' in events.encode(events.decode(line))


def test_where_both_names_stand_the_formats_own_count() -> None:
    step = b'"event": "StepComplete", "step_id": "s", "status": "Failed", "iterations": 1'
    line = b'{"type": "x", "t": "now", "ts": "then", %b}' % step
    found = events.decode(events.named_as_written(line))
    assert isinstance(found, events.StepComplete)
    assert found.t == "now"
    assert events.named_as_written(b'{"a": 1}') == b'{"a": 1}'
