"""Runs without a world: what they ask for, when, and what becomes of the answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from trunkline.edges.spaces import process, translate, validate_events_message, validate_operations_message
from trunkline.edges.spaces.process import (
    MAX_OPEN,
    MAX_QUEUED,
    PROCESS,
    Changed,
    Drop,
    Ended,
    Output,
    Run,
    Runs,
    Start,
    Submission,
    Turn,
    time_of,
)
from trunkline.effects import Answer, Deliver, Reply, ToSession, Wait
from trunkline.entries import ProcessStep
from trunkline.errors import ScriptChanged
from trunkline.events import CallRequested, CancelRequested, ProcessStepped
from trunkline.model import NOBODY, Fault, Now, Principal, Status, fault

MESSAGE = {"type": "message", "content": "x"}
READ = {"type": "readFile", "path": "a"}
SHELL = {"type": "shell", "command": "ls", "timeout": 1000}


def written(*operations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    result = validate_operations_message({"protocolVersion": "1.0", "operations": list(operations), **fields})
    data: dict[str, Any] = result["data"]
    return data


class World:
    """Everything around the runs, and a clock that stands still until told."""

    no_shell = "install a sandbox"

    def __init__(self) -> None:
        self.runs = Runs(self)
        self.sessions = itertools.count(1)
        self.now = Now(100.0, 1_700_000_000.0)
        self.asked: list[CallRequested] = []
        self.steps: list[ProcessStepped] = []
        self.cancels: list[CancelRequested] = []
        self.started: list[str] = []
        self.dropped: list[str] = []
        self.changed: list[str] = []
        self.finished: list[Run] = []
        self.denied: Fault | None = None

    # -- Reasons ----

    def why_asked(self, run: Run, operation: Mapping[str, Any], wait: Wait) -> translate.Why:
        return translate.Why(
            "shell.approvalRequired", "a rule asks", "2026-01-01T00:00:00.000Z", wait.approval_id or ""
        )

    def why_refused(self, run: Run, operation: Mapping[str, Any]) -> Fault | None:
        return self.denied

    def why_denied(self, delivery: Deliver) -> Fault | None:
        return self.denied

    # -- driving ----

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case CallRequested():
                    self.asked.append(output)
                case ProcessStepped():
                    self.steps.append(output)
                case CancelRequested():
                    self.cancels.append(output)
                case Start():
                    self.started.append(output.delivery.call_id)
                case Drop():
                    self.dropped.append(output.delivery.call_id)
                case Turn():
                    self.take(self.runs.go_on(output.run, self.now))
                case Changed():
                    self.changed.append(output.run.run_id)
                case Ended():
                    self.finished.append(output.run)

    def submit(
        self, run_id: str, *operations: dict[str, Any], space: str = "s", by: str = "operator", **fields: Any
    ) -> Run:
        wanted = Submission.made(space, by, written(*operations, **fields), NOBODY)
        self.take(self.runs.submit(run_id, next(self.sessions), wanted))
        run = self.runs.open[run_id]
        self.record(run_id, "started")
        return run

    def refusal(self, space: str = "s", by: str = "operator", size: int = 1) -> str:
        """Why a run with a command of so many bytes is not taken on."""
        command = {**SHELL, "command": "x" * size}
        return self.runs.refusal(Submission.made(space, by, written(command), NOBODY))

    def record(self, run_id: str, step: str) -> None:
        """A step is on disk."""
        self.say(run_id, Reply(self.runs.open[run_id].session, 0, step, id=run_id))

    def say(self, run_id: str, effect: ToSession) -> None:
        self.take(self.runs.handle(run_id, effect, self.now))

    def answer(
        self,
        ref: str,
        output: object = None,
        status: Status = Status.SUCCEEDED,
        problem: Fault | None = None,
        **more: Any,
    ) -> None:
        body = None if output is None else Raw(translate.encode(output))
        run_id, _, index = ref.partition("/")
        answer = Answer(0, 0, index, f"call-{ref}", status, body, problem, finished_ms=self.now.ms, **more)
        self.say(run_id, answer)

    def refuse(self, ref: str, problem: Fault) -> None:
        self.answer(ref, status=Status.FAILED, problem=problem, refused=True)

    def wait(self, ref: str, approval_id: str = "a1") -> None:
        run_id, _, index = ref.partition("/")
        self.say(run_id, Wait(0, 0, index, f"call-{ref}", Status.WAITING_APPROVAL, approval_id))

    def deliver(self, key: str | None, caller: str = "operator", call_id: str = "") -> None:
        body = Raw(b"{}")
        self.take(
            self.runs.delivered(Deliver(9, 0, call_id or f"call-{key}", "space.s/shell", body, caller, "", key=key))
        )

    def wake(self) -> None:
        for run in self.runs.overdue(self.now):
            self.take(self.runs.time_over(run, self.now))

    def later(self, seconds: float) -> None:
        self.now = Now(self.now.mono + seconds, self.now.wall + seconds)

    @property
    def refs(self) -> list[str]:
        return [event.key or "" for event in self.asked]


@pytest.fixture
def world() -> World:
    return World()


# --- the order of things ----------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_the_run_is_on_record(world: World) -> None:
    world.take(world.runs.submit("run_1", 7, Submission.made("s", "http:alice", written(MESSAGE), NOBODY)))
    (step,) = world.steps
    assert (step.session, step.process, step.subject, step.step) == (7, PROCESS, "run_1", "started")
    assert step.done is False
    data = translate.decode(step.data)
    assert (data["space"], data["caller"], data["message"]["operations"][0]["type"]) == ("s", "http:alice", "message")
    assert world.asked == []
    world.record("run_1", "started")
    (asked,) = world.asked
    assert (asked.session, asked.ref, asked.key, asked.correlation_id) == (7, "0", "run_1/0", "run_1")
    assert (asked.caller.identity, asked.tool_id, bytes(asked.input)) == (
        "http:alice",
        "space.s/message",
        b'{"content":"x"}',
    )


@requirement("SP-008", "SP-041")
def test_each_operation_is_asked_for_when_the_one_before_has_its_outcome(world: World) -> None:
    run = world.submit("run_1", MESSAGE, READ, SHELL)
    assert world.refs == ["run_1/0"]
    world.answer("run_1/0", {})
    assert world.refs == ["run_1/0", "run_1/1"]
    world.answer("run_1/1", {"content": "", "encoding": "utf-8", "size": 0})
    world.answer("run_1/2", {"success": False, "exitCode": 2, "stdout": "", "stderr": "", "durationMs": 5})
    assert [event["type"] for event in run.events] == ["message", "readFile", "shell"]
    assert [event["success"] for event in run.events] == [True, True, False]
    end = world.steps[-1]
    assert (end.step, end.done, translate.decode(end.data)["status"]) == ("ended", True, "completed")
    assert translate.decode(end.data)["events"] == run.events
    assert run.state == "ending"
    world.record("run_1", "ended")
    assert (run.state, world.runs.open, world.finished) == ("done", {}, [run])


def test_a_run_that_is_done_does_not_keep_its_message(world: World) -> None:
    run = world.submit("run_1", MESSAGE)
    world.answer("run_1/0", {})
    world.record("run_1", "ended")
    assert (run.state, run.operations, len(run.events)) == ("done", [], 1)


def test_events_of_runs_that_wait_count_as_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_OPEN_BYTES", 100_000)
    monkeypatch.setattr(process, "RESERVED_BYTES", 0)
    world.submit("run_1", READ, SHELL)
    assert world.refusal("other") == ""
    world.answer("run_1/0", {"content": "x" * 100_000, "encoding": "utf-8", "size": 100_000})
    world.wait("run_1/1")
    assert "too much memory" in world.refusal("other")


def test_an_empty_message_is_done_at_once(world: World) -> None:
    run = world.submit("run_1")
    assert (run.state, run.events, world.asked) == ("ending", [], [])


@pytest.mark.parametrize("output", [{"$ref": "sha256:zz"}, {"$ref": 7}])
def test_an_output_that_looks_like_a_reference_is_told_as_it_is(world: World, output: dict[str, Any]) -> None:
    run = world.submit("run_1", READ)
    world.answer("run_1/0", output)
    assert (run.events[0]["type"], run.events[0]["$ref"]) == ("readFile", output["$ref"])


def test_an_answer_to_something_else_changes_nothing(world: World) -> None:
    run = world.submit("run_1", MESSAGE, MESSAGE)
    world.answer("run_1/1", {})
    world.answer("run_2/0", {})
    world.say("run_1", Reply(0, 0, "cancel", status="canceling"))
    assert (run.index, run.events) == (0, [])
    world.answer("run_1/0", {})
    world.answer("run_1/0", {})
    assert (run.index, len(run.events)) == (1, 1)


def test_a_failed_operation_stops_the_run_only_if_it_was_asked_to(world: World) -> None:
    problem = Fault("tool.failed", "File not found", details={"category": "execution"})
    going, stopping = (
        world.submit("run_1", READ, MESSAGE),
        world.submit("run_2", READ, MESSAGE, stopOnError=True, space="t"),
    )
    for run in (going, stopping):
        world.answer(f"{run.run_id}/0", status=Status.FAILED, problem=problem)
    assert world.refs[-1] == "run_1/1"
    assert (stopping.state, stopping.status, len(stopping.events)) == ("ending", "error", 1)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_one_run_of_a_space_at_a_time(world: World) -> None:
    for run_id in ("run_1", "run_2", "run_3"):
        world.submit(run_id, MESSAGE)
    other = world.submit("run_4", MESSAGE, space="other")
    assert world.refs == ["run_1/0", "run_4/0"]
    assert other.state == "active"
    world.answer("run_1/0", {})
    assert world.refs[-1] == "run_2/0"
    world.answer("run_2/0", {})
    assert world.refs[-1] == "run_3/0"


def test_one_caller_gets_half_of_the_waiting_places_that_others_leave_and_the_last_are_the_operators(
    world: World,
) -> None:
    world.submit("run_0", SHELL)
    taken: list[str] = []
    for who in ("http:a", "http:b", "http:c", "http:d", "http:e"):
        while not world.refusal(by=who):
            taken.append(who)
            world.submit(f"run_{len(taken)}", MESSAGE, by=who)
    assert [taken.count(who) for who in ("http:a", "http:b", "http:c", "http:d", "http:e")] == [7, 3, 2, 1, 1]
    assert "14 runs wait for their turn in this space, 7 of them yours" in world.refusal(by="http:a")
    assert world.refusal("t", by="http:a") == ""
    for number in range(MAX_QUEUED - len(taken)):
        assert world.refusal() == ""
        world.submit(f"own_{number}", MESSAGE)
    assert "16 runs wait" in world.refusal()
    world.answer("run_0/0", {"success": True, "exitCode": 0, "stdout": "", "stderr": "", "durationMs": 1})
    assert world.refusal() == ""


def test_one_caller_gets_half_of_the_runs_that_may_ask_and_the_last_are_the_operators(world: World) -> None:
    taken: list[str] = []
    for who in ("http:a", "http:b"):
        while not world.refusal(by=who):
            taken.append(who)
            world.submit(f"run_{len(taken)}", SHELL, by=who)
            world.wait(f"run_{len(taken)}/0", f"a{len(taken)}")
    assert (taken.count("http:a"), taken.count("http:b")) == (120, 60)
    assert "180 runs of this space are not done, 120 of them yours" in world.refusal(by="http:a")
    for number in range(MAX_OPEN - len(taken)):
        assert world.refusal() == ""
        world.submit(f"own_{number}", SHELL)
        world.wait(f"own_{number}/0", f"b{number}")
    assert "256 runs" in world.refusal()
    assert "256 runs" in world.refusal(by="http:c")


@pytest.mark.slow
def test_one_caller_gets_half_of_the_memory_in_whichever_space_and_the_last_is_the_operators(world: World) -> None:
    number, large = 0, {"type": "createFile", "path": "b", "content": "x" * 14_000_000}
    for space in ("s", "t"):
        while not world.refusal(space, "http:a", 14_000_000):
            world.submit(f"run_{number}", SHELL, large, space=space, by="http:a")
            world.wait(f"run_{number}/0", f"a{number}")
            number += 1
    assert number == 8  # of 14 MB each, in half of 224 MiB
    assert "memory" in world.refusal("u", "http:a", 14_000_000)
    assert world.refusal("u", "http:b", 14_000_000) == ""
    assert world.refusal("u", size=14_000_000) == ""


def test_what_others_hold_beyond_their_share_is_not_at_the_operators_cost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_OPEN_BYTES", 100_000)
    monkeypatch.setattr(process, "RESERVED_BYTES", 10_000)
    world.submit("run_1", READ, SHELL, by="http:a")
    world.answer("run_1/0", {"content": "x" * 200_000, "encoding": "utf-8", "size": 200_000})
    world.wait("run_1/1")
    assert "memory" in world.refusal(by="http:b")
    assert world.refusal(size=8_000) == ""
    assert "memory" in world.refusal(size=10_000)


@pytest.mark.parametrize("wanted", [1, 5_000])
def test_who_holds_nothing_gets_a_first_place_while_there_is_room(wanted: int) -> None:
    assert process.is_within_share("http:b", wanted, {"http:a": 4_000}, 10_000, 1_000)
    assert not process.is_within_share("http:b", wanted, {"http:a": 9_000}, 10_000, 1_000)


# --- ended by somebody ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["recording", "queued", "active", "paused"])
def test_a_run_is_ended_whatever_it_does_or_waits_for(world: World, state: str) -> None:
    if state == "queued":
        world.submit("run_0", SHELL)
    if state == "recording":
        wanted = Submission.made("s", "http:a", written(SHELL, MESSAGE), NOBODY)
        world.take(world.runs.submit("run_1", 7, wanted))
    else:
        world.submit("run_1", SHELL, MESSAGE, by="http:a")
    if state == "paused":
        world.wait("run_1/0")
    run = world.runs.open["run_1"]
    assert run.state == state
    world.take(world.runs.end(run, Principal("operator"), world.now))
    assert (run.state, run.status, run.events[-1]["category"]) == ("ending", "error", "system")
    assert run.events[-1]["details"]["endedBy"] == "operator"
    assert [(cancel.session, cancel.target) for cancel in world.cancels] == [(run.session, "0")]
    world.take(world.runs.end(run, Principal("operator"), world.now))
    if state == "recording":
        world.record("run_1", "started")
    world.record("run_1", "ended")
    assert (run.state, [step.step for step in world.steps if step.subject == "run_1"]) == ("done", ["started", "ended"])
    following = world.submit("run_2", MESSAGE)
    assert following.state == ("queued" if state == "queued" else "active")


@requirement("SP-061", "SP-062", "SP-063")
def test_a_run_that_asks_gives_its_turn_away(world: World) -> None:
    paused, other = world.submit("run_1", SHELL, MESSAGE), world.submit("run_2", MESSAGE)
    world.wait("run_1/0", "a9")
    assert (paused.state, paused.shown_status) == ("paused", "awaiting_approval")
    (event,) = paused.events
    assert (event["type"], event["operationId"], event["details"]["policy"]) == (
        "approvalRequired",
        "op-0",
        "shell.approvalRequired",
    )
    assert world.refs == ["run_1/0", "run_2/0"]
    world.wait("run_1/0", "a9")
    assert len(paused.events) == 1
    assert other.state == "active"


def test_an_approved_operation_waits_for_the_turn_of_its_run(world: World) -> None:
    paused = world.submit("run_1", SHELL, MESSAGE)
    world.submit("run_2", SHELL)
    world.submit("run_3", SHELL)
    world.wait("run_1/0")
    world.deliver("run_2/0")
    assert world.started == ["call-run_2/0"]
    world.deliver("run_1/0")
    assert (world.started, paused.state, paused.asked) == (["call-run_2/0"], "queued", None)
    world.answer("run_2/0", {"success": True, "exitCode": 0, "stdout": "", "stderr": "", "durationMs": 1})
    assert world.started == ["call-run_2/0", "call-run_1/0"]
    assert paused.state == "active"
    world.answer("run_1/0", {"success": True, "exitCode": 0, "stdout": "", "stderr": "", "durationMs": 1})
    assert world.refs[-1] == "run_1/1"


def test_an_approved_operation_that_policy_denies_when_its_turn_comes_is_not_started(world: World) -> None:
    world.submit("run_1", SHELL, MESSAGE)
    world.submit("run_2", SHELL)
    world.wait("run_1/0")
    world.deliver("run_2/0")
    world.deliver("run_1/0")
    world.denied = fault("policy.denied")
    world.answer("run_2/0", {"success": True, "exitCode": 0, "stdout": "", "stderr": "", "durationMs": 1})
    assert (world.started, world.dropped) == (["call-run_2/0"], ["call-run_1/0"])


def test_what_is_nobodys_operation_starts_at_once(world: World) -> None:
    world.submit("run_1", SHELL)
    world.wait("run_1/0")
    world.deliver(None, call_id="c1")
    world.deliver("run_1/0", "http:mallory", "c2")
    world.deliver("run_1/5", call_id="c3")
    assert world.started == ["c1", "c2", "c3"]


@pytest.mark.parametrize("code", ["policy.denied", "approval.expired"])
def test_a_no_or_no_answer_is_a_denial_and_the_run_goes_on(world: World, code: str) -> None:
    run = world.submit("run_1", SHELL, MESSAGE)
    world.wait("run_1/0")
    world.answer("run_1/0", status=Status.FAILED, problem=fault(code, "why not"))
    assert (run.events[-1]["type"], run.events[-1]["reason"]) == ("policyDenied", "why not")
    assert (run.state, world.refs[-1]) == ("active", "run_1/1")


def test_rules_that_change_ask_again(world: World) -> None:
    run = world.submit("run_1", SHELL)
    world.wait("run_1/0", "a1")
    world.wait("run_1/0", "a2")
    assert [event["details"]["approvalId"] for event in run.events] == ["a1", "a2"]
    assert run.asked is not None
    assert run.asked.approval_id == "a2"


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_runs_time_is_that_of_its_operations_and_five_seconds() -> None:
    assert time_of([]) == 5.0
    assert time_of([MESSAGE, SHELL, SHELL]) == 7.0
    assert time_of([{**SHELL, "timeout": 10**9}]) == 605.0
    assert time_of([READ]) == 35.0


@requirement("SP-073")
def test_a_run_whose_time_is_over_ends_with_a_timeout(world: World) -> None:
    run, following = world.submit("run_1", SHELL, MESSAGE), world.submit("run_2", MESSAGE)
    assert world.runs.wake_at() == 106.0
    world.later(5.9)
    world.wake()
    assert run.state == "active"
    world.later(0.2)
    world.wake()
    assert (run.state, run.status) == ("ending", "error")
    assert (run.events[0]["type"], run.events[0]["category"]) == ("error", "timeout")
    assert [(cancel.session, cancel.target) for cancel in world.cancels] == [(run.session, "0")]
    assert following.state == "active"
    world.answer("run_1/0", {})
    assert len(run.events) == 1


def test_time_stands_still_while_a_person_thinks(world: World) -> None:
    run = world.submit("run_1", SHELL)
    world.later(4.0)
    world.wait("run_1/0")
    assert world.runs.wake_at() is None
    world.later(3000.0)
    world.wake()
    world.deliver("run_1/0")
    assert (run.state, world.runs.wake_at()) == ("active", world.now.mono + 2.0)


# --- restarts ---------------------------------------------------------------------------------------------------------


def recorded(run_id: str, *operations: dict[str, Any]) -> ProcessStep:
    data = Raw(translate.encode({"space": "s", "caller": "operator", "message": written(*operations)}))
    return ProcessStep(n=1, at=0, process=PROCESS, subject=run_id, step="started", data=data)


def test_open_runs_are_taken_up_from_their_first_operation_one_after_the_other(world: World) -> None:
    for number, started in enumerate((recorded("run_a", MESSAGE, SHELL), recorded("run_b", MESSAGE))):
        world.take(world.runs.take_up(number, started, lambda _: {}))
    assert [event.session for event in world.asked] == [0]
    assert world.refs == ["run_a/0"]
    world.answer("run_a/0", {})
    assert world.refs[-1] == "run_a/1"
    world.answer("run_a/1", status=Status.UNKNOWN, problem=fault("agent.lost"))
    assert world.refs[-1] == "run_b/0"
    event = translate.decode(world.steps[0].data)["events"][1]
    assert (event["type"], event["category"]) == ("error", "execution")
    assert "not known" in event["message"]


def test_what_was_refused_before_a_restart_stays_refused(world: World) -> None:
    world.denied = fault("policy.denied", "Command 'sudo' is blocked", details={"policy": "shell.denied"})
    found = recorded("run_1", SHELL, MESSAGE, SHELL, MESSAGE)
    world.take(world.runs.take_up(4, found, lambda _: {"1": [], "3": []}))
    assert world.refs == ["run_1/1"]
    world.denied = None
    world.answer("run_1/1", {})
    assert world.refs == ["run_1/1", "run_1/3"]
    first, _, third = world.runs.open["run_1"].events
    assert (first["type"], first["reason"]) == ("policyDenied", "Command 'sudo' is blocked")
    assert "before the exchange was restarted" in third["reason"]


CHANGED = translate.failure(ScriptChanged())


def test_a_command_whose_script_changed_is_asked_for_once_more_in_its_place(world: World) -> None:
    run = world.submit("run_1", SHELL, MESSAGE)
    world.wait("run_1/0", "a1")
    world.deliver("run_1/0")
    world.answer("run_1/0", status=Status.FAILED, problem=CHANGED)
    assert world.refs == ["run_1/0", "run_1/0.2"]
    world.wait("run_1/0.2", "a2")
    assert (run.state, [event["type"] for event in run.events]) == ("paused", ["approvalRequired"] * 2)
    assert run.asked is not None
    assert (run.asked.approval_id, run.asked.operation_id) == ("a2", translate.operation_id(run.operations[0], 0))
    world.answer("run_1/0", {"success": True})
    assert len(run.events) == 2, "the first call has ended"
    world.deliver("run_1/0.2")
    assert world.started == ["call-run_1/0", "call-run_1/0.2"]
    world.answer("run_1/0.2", {"success": True, "exitCode": 0})
    assert (world.refs[-1], run.events[-1]["type"]) == ("run_1/1", "shell")


def test_a_command_whose_script_changes_again_is_not_asked_for_a_third_time(world: World) -> None:
    run = world.submit("run_1", SHELL, SHELL)
    for ref in ("run_1/0", "run_1/0.2"):
        world.wait(ref, f"question of {ref}")
        world.deliver(ref)
        world.answer(ref, status=Status.FAILED, problem=CHANGED)
    assert (world.refs[-1], run.events[-1]["type"], run.events[-1]["category"]) == ("run_1/1", "error", "policy")
    world.wait("run_1/1", "a3")
    world.deliver("run_1/1")
    world.answer("run_1/1", status=Status.FAILED, problem=CHANGED)
    assert world.refs[-1] == "run_1/1.2", "the next command has a second time of its own"


def test_what_was_asked_for_once_more_before_a_restart_goes_on_there(world: World) -> None:
    first, second = (translate.Why("rule", "why", "2027-01-15T08:00:00.000Z", f"a{number}") for number in (1, 2))
    found = recorded("run_1", SHELL, MESSAGE)
    world.take(world.runs.take_up(4, found, lambda _: {"0": [first], "0.2": [second]}))
    run = world.runs.open["run_1"]
    world.answer("run_1/0", status=Status.FAILED, problem=CHANGED)
    world.wait("run_1/0.2", "a2")
    assert world.refs == ["run_1/0", "run_1/0.2"]
    assert [event["details"]["approvalId"] for event in run.events] == ["a1", "a2"], "each question is told once"
    world.refuse("run_1/0.2", fault("policy.denied", "no"))
    assert world.refs[-1] == "run_1/1"


def test_what_was_refused_the_second_time_before_a_restart_stays_refused(world: World) -> None:
    found = recorded("run_1", SHELL, MESSAGE)
    world.take(world.runs.take_up(4, found, lambda _: {"0": [], "1": []}))
    world.answer("run_1/0", status=Status.FAILED, problem=CHANGED)
    assert world.refs == ["run_1/0", "run_1/1"]
    assert "before the exchange was restarted" in world.runs.open["run_1"].events[0]["reason"]


def test_what_a_person_was_asked_before_a_restart_is_told_again_in_its_place(world: World) -> None:
    """Found by the simulation: whoever had seen the question missed the event that came after it."""
    asked = [translate.Why("rule", "why", "2027-01-15T08:00:00.000Z", f"a{number}") for number in (1, 2)]
    found = recorded("run_1", MESSAGE, SHELL, MESSAGE)
    world.take(world.runs.take_up(4, found, lambda _: {"0": [], "1": asked}))
    world.answer("run_1/0", {})
    kinds = [(event["type"], event.get("details", {}).get("approvalId")) for event in world.runs.open["run_1"].events]
    assert kinds == [("message", None), ("approvalRequired", "a1"), ("approvalRequired", "a2")]
    world.wait("run_1/1", "a2")
    run = world.runs.open["run_1"]
    assert (run.state, len(run.events)) == ("paused", 3), "a question that is still open is told once"
    world.answer("run_1/1", {"success": True})
    assert [event["type"] for event in run.events[3:]] == ["shell"]


def test_a_stopping_exchange_leaves_the_run_as_it_is_on_record(world: World) -> None:
    run, other = world.submit("run_1", MESSAGE, MESSAGE), world.submit("run_2", MESSAGE)
    world.answer("run_1/0", {})
    world.refuse("run_1/1", fault("hub.unavailable", "the exchange is stopping"))
    assert (run.state, len(run.events)) == ("left", 1)
    world.refuse("run_2/0", fault("hub.unavailable"))
    assert other.state == "left"
    assert [step.step for step in world.steps] == ["started", "started"]
    assert world.changed[-1] == "run_2"


def test_a_run_in_a_space_that_is_gone_cannot_go_on(world: World) -> None:
    run = world.submit("run_1", READ, MESSAGE)
    world.refuse("run_1/0", fault("tool.not_found"))
    assert (run.state, run.status) == ("ending", "error")
    assert (run.events[0]["type"], run.events[0]["category"]) == ("error", "system")


@requirement("SP-072")
def test_without_a_sandbox_a_command_says_what_to_install_and_the_run_goes_on(world: World) -> None:
    run = world.submit("run_1", SHELL, MESSAGE)
    world.refuse("run_1/0", fault("tool.not_found"))
    assert (run.events[0]["category"], run.events[0]["message"]) == ("execution", "install a sandbox")
    assert world.refs[-1] == "run_1/1"


# --- defects ----------------------------------------------------------------------------------------------------------


def test_a_run_in_which_a_defect_was_met_ends_with_an_error_its_call_is_canceled_and_the_next_has_the_turn(
    world: World,
) -> None:
    run, following = world.submit("run_1", MESSAGE, SHELL), world.submit("run_2", MESSAGE)
    world.answer("run_1/0", {})
    world.say("run_1", Wait(0, 0, "1", "call-7", Status.RUNNING))
    world.take(world.runs.fail(run, 99, world.now))
    assert (run.state, run.status, run.session) == ("ending", "error", 99)
    assert (run.events[-1]["type"], run.events[-1]["category"]) == ("error", "system")
    assert [(cancel.session, cancel.call_id) for cancel in world.cancels] == [(99, "call-7")]
    assert (world.steps[-1].session, world.steps[-1].step, world.steps[-1].done) == (99, "ended", True)
    assert following.state == "active"
    world.record("run_1", "ended")
    assert (run.state, world.finished) == ("done", [run])


def test_a_run_that_asks_ends_by_a_defect_too_and_its_question_with_its_call(world: World) -> None:
    run = world.submit("run_1", SHELL)
    world.wait("run_1/0")
    world.take(world.runs.fail(run, 99, world.now))
    assert (run.state, [cancel.call_id for cancel in world.cancels]) == ("ending", ["call-run_1/0"])


def test_a_defect_at_the_very_end_of_a_run_leaves_its_outcome_as_it_is(world: World) -> None:
    run = world.submit("run_1", MESSAGE)
    world.answer("run_1/0", {})
    world.take(world.runs.fail(run, 99, world.now))
    assert (run.state, run.status, len(run.events)) == ("done", "completed", 1)
    assert [step.step for step in world.steps] == ["started", "ended"]
    world.take(world.runs.fail(run, 100, world.now))
    assert world.finished == [run]


def test_the_turn_of_a_run_that_failed_meanwhile_goes_to_the_next(world: World) -> None:
    first, second = world.submit("run_1", MESSAGE), world.submit("run_2", MESSAGE)
    third = world.submit("run_3", MESSAGE)
    outputs = world.runs.fail(first, 99, world.now)
    world.take(world.runs.fail(second, 98, world.now))
    world.take(outputs)
    assert (second.state, third.state) == ("ending", "active")
    assert world.refs == ["run_1/0", "run_3/0"]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_the_events_of_a_run_fit_into_one_message(world: World) -> None:
    run = world.submit("run_1", READ, READ, SHELL, MESSAGE)
    for index in (0, 1):
        world.answer(f"run_1/{index}", {"content": "x" * 9_000_000, "encoding": "utf-8", "size": 9_000_000})
    big = {"success": True, "exitCode": 0, "stdout": "y" * 8_000_000, "stderr": "", "durationMs": 1}
    world.answer("run_1/2", big)
    world.answer("run_1/3", {})
    first, second, third, fourth = run.events
    assert len(first["content"]) == 9_000_000
    assert (second["success"], "16777216" in second["error"], "content" in second) == (False, True, False)
    assert (third["success"], third["stdout"], third["stdoutTruncated"]) == (True, "", True)
    assert fourth["success"] is True
    assert validate_events_message(translate.events_message("run_1", "completed", run.events))["success"]
