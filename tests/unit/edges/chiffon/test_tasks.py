"""Tasks of one agent by themselves: their timers, and the pieces of their outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from msgspec import Raw

from trunkline.edges.chiffon import chunks
from trunkline.edges.chiffon.messages import Refused, Step, WorkResult, WorkStatus
from trunkline.edges.chiffon.tasks import (
    LOOK_S,
    MAX_ANSWERED,
    MAX_HELD_BYTES,
    MAX_OPEN_STEPS,
    MAX_OPEN_STEPS_OF_AGENT,
    MAX_STEPS,
    Task,
    Tasks,
)
from trunkline.effects import Deliver
from trunkline.events import AttemptFailed, CallFinished, CallProgressed, Event, Noticed
from trunkline.model import Now, Status

TIMEOUT_S = 30.0
START = 1000.0


def at(seconds: float) -> Now:
    return Now(START + seconds, 1_800_000_000.0 + seconds)


class Case:
    """The tasks of one agent; ``open`` are the calls that the hub has."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.tasks = Tasks(7, "infra-1", TIMEOUT_S, lambda call_id: call_id in self.open)

    def send(self, call_id: str = "c1", seconds: float = 0.0, **terms: object) -> Task:
        self.open.add(call_id)
        hints = terms.pop("hints", None)
        body = {"x": 1} if hints is None else {"$hints": hints}
        effect = Deliver(7, 0, call_id, "infra-1/run", Raw(json.dumps(body).encode()), "operator", "k", **terms)  # type: ignore[arg-type]
        return self.tasks.sent(effect, at(seconds), is_typed=False)

    def status(
        self, task: Task, seconds: float = 0.0, word: str = "running", percent: int = 0, **step: object
    ) -> list[Event]:
        return self.tasks.status(task, WorkStatus(task.call_id, word, percent, Step(**step)), at(seconds))  # type: ignore[arg-type]


def kinds(events: Iterable[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


# --- time -------------------------------------------------------------------------------------------------------------


def test_an_agent_that_is_silent_about_a_task_for_too_long_has_failed_an_attempt_once() -> None:
    case = Case()
    case.send()
    assert case.tasks.wake_at() == START + TIMEOUT_S
    assert case.tasks.wake(at(TIMEOUT_S - 0.1)) == []
    assert kinds(case.tasks.wake(at(TIMEOUT_S))) == [AttemptFailed]
    assert case.tasks.wake(at(3 * TIMEOUT_S)) == []


def test_each_word_about_a_task_gives_it_all_of_its_time_again() -> None:
    case = Case()
    task = case.send()
    case.status(task, 20.0)
    assert case.tasks.wake(at(TIMEOUT_S)) == []
    assert kinds(case.tasks.wake(at(20.0 + TIMEOUT_S))) == [AttemptFailed]


@pytest.mark.parametrize("terms", [{"timeout_ms": 200_000}, {"hints": {"max_duration_seconds": 200}}])
def test_who_follows_a_call_with_a_limit_is_told_once_that_its_agent_is_silent(terms: dict[str, object]) -> None:
    case = Case()
    case.send(attempt=1, **terms)
    noticed, shown = case.tasks.wake(at(TIMEOUT_S))
    assert isinstance(noticed, Noticed)
    assert isinstance(shown, CallProgressed)
    assert (shown.channel, shown.seq) == ("status", 1)
    words = json.loads(bytes(shown.data))["text"]
    assert words.startswith(f"attempt 1 goes on: nothing heard from the agent for {TIMEOUT_S:g} s. It has 200 s in all")
    assert case.tasks.wake(at(2 * TIMEOUT_S)) == []


def test_a_task_that_is_paused_may_be_silent() -> None:
    case = Case()
    case.status(case.send(), 1.0, "paused")
    assert case.tasks.wake(at(100 * TIMEOUT_S)) == []
    assert len(case.tasks) == 1


def test_what_was_ended_elsewhere_is_forgotten_when_somebody_looks() -> None:
    case = Case()
    case.status(case.send(), 1.0, "paused")
    case.open.clear()
    assert case.tasks.wake(at(LOOK_S - 1)) == []
    assert len(case.tasks) == 1
    assert case.tasks.wake(at(LOOK_S)) == []
    assert len(case.tasks) == 0
    assert case.tasks.wake_at() is None


def test_another_attempt_of_a_failed_task_has_its_time_and_may_fail_again() -> None:
    case = Case()
    case.send()
    case.tasks.wake(at(TIMEOUT_S))
    again = case.send(seconds=TIMEOUT_S + 1, attempt=2)
    assert (again.attempt, len(case.tasks)) == (2, 1)
    assert kinds(case.tasks.wake(at(2 * TIMEOUT_S + 1))) == [AttemptFailed]


# --- what the agent says ----------------------------------------------------------------------------------------------


def test_progress_that_falls_is_noticed_once() -> None:
    case = Case()
    task = case.send()
    events = [event for percent in (50, 40, 60, 10) for event in case.status(task, percent=percent)]
    assert kinds(events).count(Noticed) == 1
    assert [event.seq for event in events if isinstance(event, CallProgressed)] == [1, 2, 3, 4]


def test_pieces_of_an_output_are_told_in_their_order_and_joined() -> None:
    case = Case()
    task = case.send()
    text = "".join(chr(97 + number % 26) for number in range(2 * chunks.CHUNK_BYTES + 1))
    pieces = chunks.split(text)
    assert len(pieces) > 1
    shown = ""
    for piece in pieces:
        for event in case.status(task, number=1, name="build", output=piece.text, output_chunk=piece.label):
            if isinstance(event, CallProgressed) and event.channel == "stdout":
                shown += json.loads(bytes(event.data))["text"]
    assert shown == text
    (finished,) = case.tasks.result(task, WorkResult("c1", "success", 0, "done"), None)
    assert isinstance(finished, CallFinished)
    assert finished.output is not None
    (step,) = json.loads(bytes(finished.output))["steps"]
    assert (step["number"], step["bytes"], step["sha256"]) == (1, len(text), chunks.sha256(text))


def test_a_result_says_what_is_missing_of_an_output() -> None:
    case = Case()
    task = case.send()
    first, *_ = chunks.split("x" * (chunks.CHUNK_BYTES + 1))
    case.status(task, number=3, output=first.text, output_chunk=first.label)
    (finished,) = case.tasks.result(task, WorkResult("c1", "success", 0, ""), None)
    assert isinstance(finished, CallFinished)
    assert finished.output is not None
    assert json.loads(bytes(finished.output))["steps"][0]["missing"]


def test_pieces_are_kept_up_to_a_bound_for_all_tasks_of_an_agent_together() -> None:
    case = Case()
    # The second half of an output waits for the first.
    size, sent = chunks.CHUNK_BYTES, 0
    label = f"bytes {size}-{2 * size} of {2 * size}"

    def send_one_more() -> None:
        number = sent // size
        case.status(case.send(f"c{number % 4}"), number=number, output="x" * size, output_chunk=label)

    while sent + sent // size * chunks.PIECE_BYTES <= MAX_HELD_BYTES:
        send_one_more()
        sent += size
    with pytest.raises(Refused):
        send_one_more()


def test_a_step_that_is_begun_counts_however_short_its_piece_and_a_task_may_begin_so_many() -> None:
    case = Case()
    for number in range(MAX_OPEN_STEPS):
        case.status(case.send(), number=number, output="x", output_chunk="bytes 0-1 of 2")
    with pytest.raises(Refused, match="open_steps"):
        case.status(case.send(), number=MAX_OPEN_STEPS, output="x", output_chunk="bytes 0-1 of 2")
    # What is begun can be completed, and makes room.
    case.status(case.send(), number=0, output="x", output_chunk="bytes 1-2 of 2")
    case.status(case.send(), number=MAX_OPEN_STEPS, output="x", output_chunk="bytes 0-1 of 2")


def test_the_tasks_of_an_agent_may_begin_so_many_steps_together_and_ended_ones_make_room() -> None:
    case = Case()
    for number in range(MAX_OPEN_STEPS_OF_AGENT):
        case.status(case.send(f"c{number // 500}"), number=number, output="x", output_chunk="bytes 0-1 of 2")
    with pytest.raises(Refused, match="open_steps"):
        case.status(case.send("other"), number=1, output="x", output_chunk="bytes 0-1 of 2")
    case.tasks.result(case.send("c0"), WorkResult("c0", "failed", 1), None)
    case.status(case.send("other"), number=1, output="x", output_chunk="bytes 0-1 of 2")


def test_a_piece_that_is_refused_begins_no_step() -> None:
    case = Case()
    task = case.send()
    with pytest.raises(Refused):
        case.status(task, number=1, output="x", output_chunk="bytes 0-2 of 2")
    assert not task.steps


def test_the_last_outputs_of_open_tasks_count_as_pieces_do() -> None:
    case = Case()
    text = "x" * 1_000_000
    fitting = MAX_HELD_BYTES // len(text) + 1
    for number in range(fitting):
        case.status(case.send(f"c{number}"), number=1, output=text)
    with pytest.raises(Refused, match="chunk_bytes"):
        case.status(case.send("other"), number=1, output=text)
    case.tasks.end(case.send("c0"))
    case.tasks.end(case.send("c1"))
    case.status(case.send("other"), number=1, output=text)


def test_of_many_steps_the_last_ones_are_told() -> None:
    case = Case()
    task = case.send()
    for number in range(MAX_STEPS + 5):
        case.status(task, number=number, output="x")
    assert list(task.finished) == list(range(5, MAX_STEPS + 5))


def test_what_was_answered_lately_is_remembered_and_the_oldest_goes() -> None:
    case = Case()
    for number in range(MAX_ANSWERED + 1):
        task = case.send(f"c{number}")
        (finished,) = case.tasks.result(task, WorkResult(f"c{number}", "failed", 1), None)
        assert isinstance(finished, CallFinished)
        assert finished.status is Status.FAILED
    assert not case.tasks.is_answered("c0")
    assert case.tasks.is_answered(f"c{MAX_ANSWERED}")
