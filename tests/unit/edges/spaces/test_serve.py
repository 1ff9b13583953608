"""Spaces joined to an exchange: what is kept, what is looked up, and a machine without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from trunkline.edges.exchange import Sink
from trunkline.edges.spaces import serve, translate, validate_operations_message
from trunkline.edges.spaces.process import PROCESS, Run
from trunkline.edges.spaces.provider import Space
from trunkline.edges.spaces.serve import KEPT_RUNS, Spaces
from trunkline.effects import Admit, Answer, ConfirmTools, Reply, ToSession, Wait
from trunkline.entries import ProcessStep
from trunkline.errors import WorkspaceError
from trunkline.events import AgentArrived, CallRequested, Event, ProcessStepped, ToolsOffered
from trunkline.model import Decision, Guard, Now, Policy, ProcessIdentity, Question, Status, Verdict, fault
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy

READ = {"type": "readFile", "path": "a"}
SHELL = {"type": "shell", "command": "rm -r a"}


class Exchange:
    """An exchange that takes everything on and answers when a test says so."""

    instance = "test"

    def __init__(self) -> None:
        self.sinks: dict[int, Sink] = {}
        self.fed: list[Event] = []
        self.guards: dict[str, Guard | None] = {}
        self.recorded: list[ProcessStep] = []
        self.blobs: dict[str, bytes] = {}
        self.asked: list[Question] = []
        self.lines: list[bytes] = []
        self.verdict = Verdict(Decision.ALLOW, "rule-1", "", "operator")

    def now(self) -> Now:
        return Now(10.0, 1_700_000_000.0)

    def open_session(self, sink: Sink) -> int:
        self.sinks[len(self.sinks) + 1] = sink
        return len(self.sinks)

    def close_session(self, session: int) -> None:
        del self.sinks[session]

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        self.guards[agent_id] = guard

    def feed(self, events: Sequence[Event]) -> None:
        for event in events:
            self.fed.append(event)
            match event:
                case AgentArrived():
                    self.say(Admit(event.session, 0, event.ref))
                case ToolsOffered():
                    self.say(ConfirmTools(event.session, 0, event.ref, tuple(tool.tool_id for tool in event.tools)))
                case ProcessStepped():
                    self.recorded.append(
                        ProcessStep(
                            n=len(self.recorded) + 1,
                            at=0,
                            process=event.process,
                            subject=event.subject,
                            step=event.step,
                            data=event.data,
                            done=event.done,
                        )
                    )
                    self.say(Reply(event.session, 0, event.ref, id=event.subject, status=event.step))
                case _:
                    pass

    def say(self, effect: ToSession) -> None:
        self.sinks[effect.session].send(effect, self.now())

    def check(self, _caller: str, _tool_id: str, _body: Raw | None) -> Verdict:
        return self.verdict

    def questions(self) -> list[Question]:
        return self.asked

    def blob(self, sha256: str) -> bytes | None:
        return self.blobs.get(sha256)

    def entries(self, **_: str) -> list[bytes]:
        return self.lines

    def open_steps(self, process: str) -> dict[str, list[ProcessStep]]:
        done = {step.subject for step in self.recorded if step.done}
        return {step.subject: [step] for step in self.recorded if step.process == process and step.subject not in done}

    def steps(self, process: str, subject: str) -> list[ProcessStep]:
        return [step for step in self.recorded if (step.process, step.subject) == (process, subject)]

    def policy(self) -> Policy:
        raise AssertionError("not asked for")


class Store:
    """One folder for each space."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str, preset: str, overrides: Mapping[str, Any]) -> Space:
        folder = self.path / name
        folder.mkdir()
        workspace = Workspace.create(folder / "files")
        return Space(name, preset, make_policy(preset, overrides), workspace, folder)

    def remove(self, space: Space) -> None:
        space.workspace.close()


class Case:
    def __init__(self, path: Path, exchange: Exchange | None = None) -> None:
        self.exchange = exchange or Exchange()
        self.spaces = Spaces(self.exchange, Store(path), ProcessIdentity(1, 2), "1.0.0")  # type: ignore[arg-type]

    def submit(self, *operations: dict[str, Any]) -> Run:
        message = validate_operations_message({"protocolVersion": "1.0", "operations": list(operations)})["data"]
        return self.spaces.submit("demo", "operator", message)

    def answer(self, run: Run, output: object, index: int = 0) -> None:
        body = Raw(translate.encode(output))
        self.exchange.say(Answer(1, 0, f"{run.run_id}/{index}", "c", Status.SUCCEEDED, body, finished_ms=1))


@pytest.fixture
async def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def nothing_holds() -> None:
        raise WorkspaceError("execution", "no sandbox holds here: install bubblewrap")

    monkeypatch.setattr(serve, "probe", nothing_holds)
    found = Case(tmp_path)
    await found.spaces.create("demo", "standard", {})
    yield found
    await found.spaces.stop()
    for agent in found.spaces.agents.values():
        agent.space.workspace.close()


@requirement("SP-072")
async def test_without_a_sandbox_no_shell_is_offered_and_the_error_says_what_to_install(case: Case) -> None:
    (offered,) = [event for event in case.exchange.fed if isinstance(event, ToolsOffered)]
    assert "space.demo/shell" not in {tool.tool_id for tool in offered.tools}
    run = case.submit(SHELL)
    refused = fault("tool.not_found")
    case.exchange.say(Answer(1, 0, f"{run.run_id}/0", "c", Status.FAILED, fault=refused, finished_ms=1, refused=True))
    assert (run.events[0]["category"], "install bubblewrap" in run.events[0]["message"]) == ("execution", True)


async def test_a_guard_is_there_as_long_as_its_space(case: Case) -> None:
    assert case.exchange.guards["space.demo"] is not None
    await case.spaces.remove("demo")
    assert case.exchange.guards["space.demo"] is None


@pytest.mark.parametrize("content", [{"$ref": "sha256:zz"}, {"$ref": 7}])
async def test_an_output_that_looks_like_a_reference_is_not_looked_up(case: Case, content: dict[str, Any]) -> None:
    run = case.submit(READ)
    case.answer(run, content)
    assert run.events[0]["type"] == "readFile"


async def test_a_file_that_looks_like_a_reference_is_none(case: Case) -> None:
    run = case.submit(READ)
    case.answer(run, {"content": '{"$ref": "sha256:00"}', "encoding": "utf-8", "size": 21})
    assert run.events[0]["content"] == '{"$ref": "sha256:00"}'


async def test_a_finished_run_is_forgotten_in_time_and_then_comes_from_the_record(case: Case) -> None:
    first = case.submit()
    assert case.spaces.find(first.run_id) is first
    for _ in range(KEPT_RUNS):
        case.submit()
    found = case.spaces.find(first.run_id)
    assert found is not None
    assert found is not first
    assert (found.state, found.status, found.events, found.caller) == ("done", "completed", [], "operator")
    assert case.spaces.find("run_unknown") is None


async def test_calls_of_somebody_else_say_nothing_about_a_run(case: Case) -> None:
    run = case.submit(READ, READ, READ)
    key = f"{run.run_id}/2"
    case.exchange.lines = [translate.encode({"kind": "call.accepted", "key": key, "caller": "http:mallory"})]
    again = Case(case.spaces.agents["demo"].space.folder, case.exchange)
    await again.spaces.start()
    assert again.spaces.runs.open[run.run_id].refused_before == frozenset()
    case.exchange.lines = [translate.encode({"kind": "call.accepted", "key": key, "caller": "operator"})]
    again = Case(case.spaces.agents["demo"].space.folder, case.exchange)
    await again.spaces.start()
    assert again.spaces.runs.open[run.run_id].refused_before == {0, 1}


async def test_what_is_asked_says_by_which_rule(case: Case) -> None:
    case.exchange.asked = [Question("a7", "call", "operator", "2026-01-01T00:00:00.000Z", "", "the rules ask")]
    own, exchanges = case.submit(SHELL), case.submit(READ)
    case.exchange.say(Wait(1, 0, f"{own.run_id}/0", "c", Status.WAITING_APPROVAL, "a7", 1_700_000_000_000))
    assert own.events[0]["details"] == {
        "command": "rm -r a",
        "policy": "shell.approvalRequired",
        "approvalId": "a7",
        "expiresAt": "2023-11-14T22:13:20.000Z",
    }
    case.exchange.say(Wait(1, 0, f"{exchanges.run_id}/0", "c", Status.WAITING_APPROVAL, "a7"))
    assert exchanges.events[0]["reason"] == "the rules ask"
    assert exchanges.events[0]["details"]["policy"] == "rule-1"


async def test_open_runs_are_taken_up_and_know_what_was_refused(case: Case, tmp_path: Path) -> None:
    run = case.submit(READ, READ, READ)
    key = f"{run.run_id}/1"
    case.exchange.lines = [
        translate.encode({"kind": "call.refused", "n": 1}),
        translate.encode({"kind": "call.accepted", "n": 2, "key": key, "caller": "operator"}),
        translate.encode({"kind": "call.accepted", "n": 3, "key": "somebody's", "caller": "operator"}),
    ]
    (tmp_path / "again").mkdir()
    again = Case(tmp_path / "again", case.exchange)
    await again.spaces.start()
    asked = [event for event in case.exchange.fed if isinstance(event, CallRequested)][-1]
    assert (asked.key, again.spaces.runs.open[run.run_id].events[0]["type"]) == (key, "policyDenied")
    await again.spaces.stop()


async def test_whoever_waits_is_told_when_the_exchange_stops(case: Case) -> None:
    run = case.submit(READ)
    news = case.spaces.news(run)
    assert not news.is_set()
    await case.spaces.stop()
    assert news.is_set()
    async with asyncio.timeout(1):
        await case.spaces.news(run).wait()


async def test_a_run_is_refused_as_a_whole_only_if_everything_in_it_is(case: Case) -> None:
    message = validate_operations_message({"protocolVersion": "1.0", "operations": [READ]})["data"]
    assert case.spaces.refusal("demo", "http:x", message) is None
    case.exchange.verdict = Verdict(Decision.DENY, "rule-2", "", "http:x", fault("policy.denied", "not you"))
    assert case.spaces.refusal("demo", "http:x", message) == ("policy", "not you")
    empty = {**message, "operations": []}
    assert case.spaces.refusal("demo", "http:x", empty) is None


def test_the_process_has_its_own_name() -> None:
    assert PROCESS == "spaces.run"
