from __future__ import annotations

from msgspec import Raw

from tests.unit.ledger.made import accepted, settled
from tests.unit.trajectory.made import failed, foreign, trajectory, written
from trunkline.model import Fault, Status
from trunkline.trajectory.standin import RecordedAnswer, Recording

ECHO = "com.example.echo/echo"


def test_the_same_params_in_any_spelling_get_the_recorded_output() -> None:
    recording = Recording.of(trajectory(accepted(1, b'{"a": 1, "b": 2.0}'), settled(2, 1, b'{"y": 1.0}')))
    assert recording.tools == {ECHO: 1}
    assert recording.answer(ECHO, b'{"b":2.0,"a":1}') == RecordedAnswer(output=Raw(b'{"y": 1.0}'))


def test_what_was_never_recorded_has_no_answer() -> None:
    recording = Recording.of(trajectory(accepted(1, b'{"a":1}'), settled(2, 1)))
    for params in (b'{"a":1.0}', b'{"a":2}', b"{}", b"not json", b'{"a":1,"a":1}'):
        assert recording.answer(ECHO, params) is None
    assert recording.answer("other/tool", b'{"a":1}') is None


def test_repeated_calls_are_answered_in_the_recorded_order_and_then_with_the_last() -> None:
    recording = Recording.of(
        trajectory(accepted(1, b"{}"), settled(2, 1, b'{"n":1}'), accepted(3, b"{}"), settled(4, 3, b'{"n":2}'))
    )
    answers = [recording.answer(ECHO, b"{}") for _ in range(3)]
    assert [bytes(answer.output or b"") for answer in answers if answer] == [b'{"n":1}', b'{"n":2}', b'{"n":2}']


def test_a_call_that_did_not_succeed_is_answered_with_its_fault() -> None:
    recording = Recording.of(trajectory(accepted(1, b"{}"), failed(2, 1, "tool.broken")))
    assert recording.answer(ECHO, b"{}") == RecordedAnswer(fault=Fault("tool.broken", "no"))
    unknown = Recording.of(trajectory(accepted(1, b"{}"), failed(2, 1, "agent.lost", Status.UNKNOWN)))
    answer = unknown.answer(ECHO, b"{}")
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.details == {"recorded_status": "unknown"}


def test_calls_without_an_output_in_the_file_are_left_out_and_foreign_files_are_read() -> None:
    lines = written(foreign())
    assert (Recording.of(lines).tools, Recording.of(lines).left_out) == ({}, 1)
    known = Recording.of([b'{"event":"Thought"}', *written(foreign(ToolResult={"output": "full"}))])
    assert known.answer("file_read", b'{"path":"src/main.rs"}') == RecordedAnswer(output=Raw(b'"full"'))
    bad = Recording.of(written(foreign(ToolResult={"output": "full", "step_utility": -1})))
    answer = bad.answer("file_read", b'{"path":"src/main.rs"}')
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.code == "tool.failed"
