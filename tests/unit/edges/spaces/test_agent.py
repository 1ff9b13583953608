"""A space as an agent: it comes in, offers its tools, and ends what it is given."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.spaces.conftest import Case
from trunkline.edges.spaces import agent as agent_module
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.effects import Deliver
from trunkline.entries import AgentAdmitted, AgentExited, AgentLaunched, AgentLeft, CallNoted, CallSettled, Noticed
from trunkline.errors import WorkspaceError
from trunkline.events import CallFinished, CancelRequested, Event
from trunkline.model import Status
from trunkline.testing.memory import BOSS, PROCESS
from trunkline.workspace import files


async def test_a_space_comes_in_with_a_token_of_this_process_and_offers_its_tools(case: Case) -> None:
    (launched,) = case.exchange.recorded(AgentLaunched)
    (admitted,) = case.exchange.recorded(AgentAdmitted)
    assert (launched.agent_id, launched.pid) == ("space.demo", PROCESS.pid)
    assert (admitted.edge, admitted.agent_id, admitted.credential) == ("space", "space.demo", f"run:{launched.run_id}")
    offered = {view.tool_id for view in case.exchange.views.tools()}
    assert offered == {
        f"space.demo/{name}" for name in ("create_file", "read_file", "edit_file", "delete_file", "message")
    }


async def test_it_leaves_as_it_came(case: Case) -> None:
    agent = case.spaces.agents["demo"]
    await agent.detach("removed")
    await agent.detach("again")
    assert [entry.reason for entry in case.exchange.recorded(AgentLeft)] == ["removed"]
    (launched,), (exited,) = case.exchange.recorded(AgentLaunched), case.exchange.recorded(AgentExited)
    assert exited.run_id == launched.run_id


async def test_files_are_made_and_their_hashes_are_for_the_record(case: Case) -> None:
    made = await case.call("create_file", {"path": "a.txt", "content": "abc"})
    assert made.status is Status.SUCCEEDED
    assert made.output is not None
    assert translate.decode(made.output) == {"bytesWritten": 3}
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (settled,) = case.exchange.recorded(CallSettled)
    assert translate.decode(settled.metrics) == {"sha256": digest, "snapshot": 1}
    read = await case.call("read_file", {"path": "a.txt", "encoding": "base64"})
    assert read.output is not None
    assert translate.decode(read.output) == {"content": "YWJj", "encoding": "base64", "size": 3}


@pytest.mark.parametrize(
    ("tool", "fields", "category"),
    [
        ("read_file", {"path": "missing"}, "execution"),
        ("create_file", {"path": "a", "content": "!", "encoding": "base64"}, "validation"),
    ],
)
async def test_a_failure_says_of_what_kind_it_is(case: Case, tool: str, fields: dict[str, Any], category: str) -> None:
    done = await case.call(tool, fields)
    assert done.status is Status.FAILED
    assert done.fault is not None
    assert (done.fault.code, (done.fault.details or {})["category"]) == ("tool.failed", category)


class Heard:
    """The feed of an exchange, and how calls ended that the exchange does not know."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.finished: asyncio.Future[CallFinished] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def feed(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CallFinished):
                self.finished.set_result(event)
        self._feed.feed(events)


@pytest.mark.parametrize(
    ("tool", "body"),
    [
        ("read_file", b'{"path": "../x"}'),
        ("edit_file", b'{"path": "a", "edits": []}'),
        ("message", b"[1]"),
        ("message", b"{"),
    ],
)
async def test_what_the_hub_should_not_have_let_through_fails_here_and_does_not_hang(
    case: Case, tool: str, body: bytes
) -> None:
    heard = Heard(case.exchange.feed)
    agent = SpaceAgent(heard, case.spaces.agents["demo"].space, PROCESS, "1.0.0", lambda _: None, os.urandom)
    agent.start(Deliver(0, 0, "c1", f"space.demo/{tool}", Raw(body), "operator", "r"))
    async with asyncio.timeout(10):
        done = await heard.finished
    assert (done.status, done.call_id) == (Status.FAILED, "c1")
    assert done.fault is not None
    assert done.fault.details == {"category": "validation"}
    await agent.detach("test")


@pytest.mark.parametrize(("tool", "other"), [("read_file", "shell"), ("create_file", "readFile"), ("message", "shell")])
async def test_an_input_cannot_say_that_it_is_another_operation(case: Case, tool: str, other: str) -> None:
    done = await case.call(tool, {"type": other, "path": "a", "command": "x", "content": "x"})
    expected = Status.FAILED if tool == "read_file" else Status.SUCCEEDED  # there is no file to read
    assert done.status is expected


@pytest.mark.parametrize("tool", ["read_file", "edit_file", "delete_file"])
async def test_a_file_that_is_not_there_is_named(case: Case, tool: str) -> None:
    edits = {"edits": [{"oldContent": "a", "newContent": "b"}]} if tool == "edit_file" else {}
    done = await case.call(tool, {"path": "src/nowhere.txt", **edits})
    assert done.fault is not None
    assert (done.fault.code, done.fault.message) == ("tool.failed", "File not found: src/nowhere.txt")


@requirement("SP-074")
async def test_a_disk_that_fails_is_a_fault_of_the_system(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error", "/secret/path")

    monkeypatch.setattr(os, "fsync", broken)
    done = await case.call("create_file", {"path": "a.txt", "content": "abc"})
    assert done.fault is not None
    assert done.fault.details == {"category": "system"}
    assert "secret" not in done.fault.message
    assert case.exchange.notices() == []


async def test_a_machine_without_descriptors_is_a_fault_of_the_system_too(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    for tool, fields in (("read_file", {"path": "a"}), ("delete_file", {"path": "a"})):
        done = await case.call(tool, fields)
        assert done.fault is not None
        assert (done.status, done.fault.details) == (Status.FAILED, {"category": "system"})
    assert case.exchange.notices() == []


# --- defects of ours --------------------------------------------------------------------------------------------------


async def test_a_defect_while_a_file_is_written_ends_that_call_as_not_known_is_on_record_and_nothing_else_happens(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(_descriptor: int) -> None:
        raise ZeroDivisionError("secret text")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", defective)
        done = await case.call("create_file", {"path": "a.txt", "content": "abc"})
    assert done.status is Status.UNKNOWN
    assert done.fault is not None
    assert (done.fault.code, done.fault.details) == ("tool.failed", {"category": "system"})
    assert "operator's record" in done.fault.message
    assert translate.NOT_KNOWN in done.fault.message
    assert "secret" not in done.fault.message
    (noticed,) = case.exchange.recorded(Noticed)
    assert (noticed.code, "ZeroDivisionError" in noticed.detail, "secret" in noticed.detail) == ("defect", True, False)
    after = await case.call("create_file", {"path": "a.txt", "content": "abc"})
    assert after.status is Status.SUCCEEDED
    assert not case.exchange.recorded(AgentLeft)


async def test_a_defect_while_a_command_runs_does_the_same(shell: Case) -> None:
    assert shell.commands is not None
    calling = asyncio.ensure_future(shell.call("shell", {"command": "one"}))
    other = asyncio.ensure_future(shell.call("shell", {"command": "two"}))
    await shell.commands.wait_begun("one")
    await shell.commands.wait_begun("two")
    shell.commands.fail("one", ZeroDivisionError("secret text"))
    done = await calling
    assert (done.status, done.fault is not None and done.fault.details) == (Status.UNKNOWN, {"category": "system"})
    assert shell.exchange.notices() == ["defect"]
    shell.commands.end("two")
    assert (await other).status is Status.SUCCEEDED


async def test_a_defect_where_nothing_was_begun_or_nothing_is_changed_is_a_failure(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(files, "check_path", defective)
        assert (await case.call("read_file", {"path": "a"})).status is Status.FAILED
    monkeypatch.setattr(agent_module, "validate_operation", defective)
    assert (await case.call("create_file", {"path": "a", "content": ""})).status is Status.FAILED
    assert case.exchange.notices() == ["defect"]


async def test_a_command_that_was_lost_sight_of_ends_as_not_known(shell: Case) -> None:
    assert shell.commands is not None
    calling = asyncio.ensure_future(shell.call("shell", {"command": "one"}))
    await shell.commands.wait_begun("one")
    shell.commands.fail("one", WorkspaceError("system", "The system failed (EIO)", in_doubt=True))
    done = await calling
    assert (done.status, done.fault is not None and translate.NOT_KNOWN in done.fault.message) == (Status.UNKNOWN, True)
    assert shell.exchange.notices() == []


# --- time and cancellation --------------------------------------------------------------------------------------------


async def test_a_command_has_its_own_timer_and_the_exchange_none_for_it(shell: Case) -> None:
    assert shell.commands is not None
    calling = asyncio.ensure_future(shell.call("shell", {"command": "long"}))
    await shell.commands.wait_begun("long")
    shell.exchange.advance(3600)
    assert not shell.exchange.recorded(CallSettled)
    shell.commands.end("long", 3)
    done = await calling
    assert done.output is not None
    assert translate.decode(done.output) == {
        "success": False,
        "exitCode": 3,
        "stdout": "",
        "stderr": "",
        "durationMs": 5,
    }


async def test_what_is_canceled_in_the_turn_in_which_it_was_started_is_canceled_and_does_not_hang(shell: Case) -> None:
    exchange = shell.exchange
    exchange.disk_rests = True
    made = exchange.call("space.demo/shell", {"command": "never"})
    call_id = exchange.views.calls(1, None)[0][0].call_id
    exchange.feed.feed([CancelRequested(0, "cancel", BOSS, call_id=call_id)])
    exchange.store()
    exchange.disk_rests = False
    await shell.spaces.agents["demo"].detach("test")
    assert made.outcome.status is Status.CANCELED
    assert [entry.note for entry in exchange.recorded(CallNoted)] == ["cancel.requested", "cancel.accepted"]
    assert shell.commands is not None
    assert shell.commands.begun == []


async def test_a_space_that_leaves_ends_its_commands_and_waits_for_its_files(shell: Case) -> None:
    assert shell.commands is not None
    calling = asyncio.ensure_future(shell.call("shell", {"command": "long"}))
    writing = asyncio.ensure_future(shell.call("create_file", {"path": "a", "content": "x"}))
    await shell.commands.wait_begun("long")
    await shell.spaces.agents["demo"].detach("test")
    assert ((await calling).status, (await writing).status) == (Status.CANCELED, Status.SUCCEEDED)
    assert shell.commands.ended == ["long"]
