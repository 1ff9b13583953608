"""A space as an agent: it comes in, offers its tools, and finishes what it is given."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from trunkline.edges.exchange import Sink
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.provider import Space, SpaceAgent
from trunkline.effects import Admit, Cancel, ConfirmTools, Deliver, ToSession
from trunkline.events import (
    AgentArrived,
    AgentExited,
    AgentLaunched,
    AgentLeft,
    CallFinished,
    CancelAcknowledged,
    Event,
    ToolsOffered,
)
from trunkline.model import Now, ProcessIdentity, Status
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy

SELF = ProcessIdentity(4711, 99)
NOW = Now(1.0, 2.0)


class Desk:
    """As much of an exchange as a space needs: it admits, confirms, and remembers what it was told."""

    def __init__(self) -> None:
        self.fed: list[Event] = []
        self.sink: Sink | None = None
        self.told = asyncio.Event()

    def open_session(self, sink: Sink) -> int:
        self.sink = sink
        return 5

    def close_session(self, session: int) -> None:
        assert session == 5
        self.sink = None

    def now(self) -> Now:
        return NOW

    def feed(self, events: Sequence[Event]) -> None:
        self.fed += events
        self.told.set()
        for event in events:
            if isinstance(event, AgentArrived):
                self.say(Admit(5, 0, event.ref))
            elif isinstance(event, ToolsOffered):
                self.say(ConfirmTools(5, 0, event.ref, tuple(tool.tool_id for tool in event.tools)))

    def say(self, effect: ToSession) -> None:
        assert self.sink is not None
        self.sink.send(effect, NOW)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.fed if isinstance(event, kind)]

    async def finished(self) -> CallFinished:
        async with asyncio.timeout(10):
            while not (found := self.of(CallFinished)):
                self.told.clear()
                await self.told.wait()
        self.fed = [event for event in self.fed if not isinstance(event, CallFinished)]
        (one,) = found
        assert isinstance(one, CallFinished)
        return one


class Case:
    def __init__(self, folder: Path) -> None:
        self.desk = Desk()
        space = Space("demo", "standard", make_policy("standard"), Workspace.create(folder / "files"), folder)
        self.agent = SpaceAgent(self.desk, space, SELF, "1.0.0", gate=self.gate)  # type: ignore[arg-type]
        self.holds = False

    def gate(self, deliver: Deliver) -> None:
        if not self.holds:
            self.agent.start(deliver.call_id)

    async def call(self, tool: str, **fields: Any) -> CallFinished:
        self.deliver(tool, **fields)
        return await self.desk.finished()

    def deliver(self, tool: str, **fields: Any) -> None:
        body = Raw(translate.encode(fields))
        self.desk.say(Deliver(5, 0, "c1", f"space.demo/{tool}", body, "operator", "r"))


@pytest.fixture
async def case(tmp_path: Path) -> Any:
    found = Case(tmp_path)
    await found.agent.attach(None)
    yield found
    await found.agent.detach("test")
    found.agent.space.workspace.close()


async def test_a_space_comes_in_with_a_token_of_this_process_and_offers_its_tools(case: Case) -> None:
    launched, arrived, offered = case.desk.fed
    assert isinstance(launched, AgentLaunched)
    assert isinstance(arrived, AgentArrived)
    assert (launched.agent_id, launched.process, launched.token_sha256) == ("space.demo", SELF, arrived.token_sha256)
    assert (arrived.edge, arrived.agent_id, arrived.timeout_s) == ("space", "space.demo", None)
    assert (arrived.peer.process, arrived.peer.run_id) == (SELF, launched.run_id)
    assert isinstance(offered, ToolsOffered)
    names = {tool.name for tool in offered.tools}
    assert names == {"create_file", "read_file", "edit_file", "delete_file", "message"}


async def test_it_leaves_as_it_came(case: Case) -> None:
    await case.agent.detach("removed")
    assert case.desk.of(AgentLeft)[0].reason == "removed"
    assert case.desk.of(AgentExited)[0].run_id == case.desk.of(AgentLaunched)[0].run_id
    await case.agent.detach("again")
    assert len(case.desk.of(AgentLeft)) == 1


async def test_files_are_made_and_their_hashes_are_for_the_record(case: Case) -> None:
    made = await case.call("create_file", path="a.txt", content="abc")
    assert made.status is Status.SUCCEEDED
    assert made.output is not None
    assert made.metrics is not None
    assert translate.decode(made.output) == {"bytesWritten": 3}
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert translate.decode(made.metrics) == {"sha256": digest}
    read = await case.call("read_file", path="a.txt", encoding="base64")
    assert read.output is not None
    assert translate.decode(read.output) == {"content": "YWJj", "encoding": "base64", "size": 3}


@pytest.mark.parametrize(
    ("tool", "fields", "category"),
    [
        ("read_file", {"path": "missing"}, "execution"),
        ("read_file", {"path": "../x"}, "validation"),
        ("create_file", {"path": "a", "content": "!", "encoding": "base64"}, "validation"),
        ("edit_file", {"path": "a", "edits": []}, "validation"),
    ],
)
async def test_a_failure_says_of_what_kind_it_is(case: Case, tool: str, fields: dict[str, Any], category: str) -> None:
    done = await case.call(tool, **fields)
    assert done.status is Status.FAILED
    assert done.fault is not None
    assert (done.fault.code, done.fault.details) == ("tool.failed", {"category": category})


@pytest.mark.parametrize(("tool", "other"), [("read_file", "shell"), ("create_file", "readFile"), ("message", "shell")])
async def test_an_input_cannot_say_that_it_is_another_operation(case: Case, tool: str, other: str) -> None:
    done = await case.call(tool, type=other, path="a", command="x", content="x")
    expected = Status.FAILED if tool == "read_file" else Status.SUCCEEDED  # there is no file to read
    assert done.status is expected


async def test_an_input_that_is_no_object_fails_and_does_not_hang(case: Case) -> None:
    case.desk.say(Deliver(5, 0, "c1", "space.demo/message", Raw(b"[1]"), "operator", "r"))
    done = await case.desk.finished()
    assert done.fault is not None
    assert done.fault.details == {"category": "validation"}


@requirement("SP-074")
async def test_a_disk_that_fails_is_a_fault_of_the_system(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error", "/secret/path")

    monkeypatch.setattr(os, "fsync", broken)
    done = await case.call("create_file", path="a.txt", content="abc")
    assert done.fault is not None
    assert done.fault.details == {"category": "system"}
    assert "secret" not in done.fault.message


async def test_what_is_canceled_before_its_turn_never_starts(case: Case) -> None:
    case.holds = True
    case.deliver("create_file", path="a", content="x")
    case.desk.say(Cancel(5, 0, "c1", "changed my mind", 5000))
    assert (await case.desk.finished()).status is Status.CANCELED
    assert case.desk.of(CancelAcknowledged)[0].accepted
    case.agent.start("c1")
    assert not (case.agent.space.workspace.root / "a").exists()
