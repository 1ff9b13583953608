"""Undo: when a snapshot is taken, who may bring one back, what is on record, and what a restart finishes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.edges.spaces.conftest import Case, Commands
from tests.unit.edges.spaces.test_routes import LONG, MESSAGE, Served, served
from trunkline.edges.answers import Refused
from trunkline.edges.spaces import undo
from trunkline.edges.spaces.messages import Undo
from trunkline.edges.spaces.process import Run
from trunkline.entries import ProcessStep

__all__ = ["served"]


def create(path: str, content: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "createFile", "path": path, "content": content, **fields}


DELETE = {"type": "deleteFile", "path": "a"}
SNAPSHOTS, UNDO = "/v1/spaces/demo/snapshots", "/v1/spaces/demo/undo"


def steps_of(case: Case) -> list[tuple[str, dict[str, Any]]]:
    """What is on record of undos."""
    found = case.exchange.recorded(ProcessStep)
    return [(entry.step, json.loads(bytes(entry.data))) for entry in found if entry.process == undo.PROCESS]


async def runs_before(served: Served) -> list[str]:
    return [one["run"] for one in (await served.client.get(SNAPSHOTS)).json()["snapshots"]]


async def test_one_snapshot_is_taken_before_the_first_change_of_a_run(served: Served) -> None:
    first = await served.run(MESSAGE, create("a"), create("b"), create("a", "y", overwrite=True))
    second = await served.run(DELETE)
    await served.run(MESSAGE, {"type": "readFile", "path": "b"})
    assert await runs_before(served) == [second.run_id, first.run_id]


async def test_a_command_that_a_person_was_asked_about_has_one_of_its_own(served: Served) -> None:
    run = served.submit(create("a"), {"type": "shell", "id": "rm", "command": "rm -r a"}, create("b"))
    await served.until(run, lambda: run.state == "paused")
    assert await runs_before(served) == [run.run_id]
    answering = asyncio.ensure_future(
        served.post(f"/v1/runs/{run.run_id}/resume", {"approval": {"operationId": "rm", "decision": "approved"}})
    )
    await served.commands.wait_begun("rm -r a")
    served.commands.end("rm -r a")
    await answering
    await served.end_of(run)
    assert await runs_before(served) == [run.run_id, run.run_id]


async def test_an_undo_brings_back_what_a_run_removed_and_can_be_undone(served: Served) -> None:
    root = served.spaces.agents["demo"].space.workspace.root
    await served.run(create("a", "precious"), create("b"))
    run = await served.run(DELETE, create("new"))
    seen = (await served.post(UNDO, {"dry_run": True})).json()
    assert (seen["done"], seen["brought_back"], seen["removed"]) == (False, 1, 1)
    assert (seen["first_brought_back"], seen["first_removed"]) == (["a"], ["new"])
    assert not (root / "a").exists()
    done = (await served.post(UNDO, {"run": run.run_id})).json()
    assert (done["done"], done["snapshot"]["run"]) == (True, run.run_id)
    assert (root / "a").read_text() == "precious"
    assert not (root / "new").exists()
    again = await served.post(UNDO, {"run": done["undo_with"]})
    assert again.status_code == 200
    assert not (root / "a").exists()
    assert (root / "new").exists()
    recorded = steps_of(served)
    assert [step for step, _ in recorded] == ["started", "ended"] * 2
    assert (recorded[0][1]["space"], recorded[0][1]["by"], recorded[0][1]["run"]) == ("demo", "operator", run.run_id)


async def test_without_a_run_the_last_one_that_changed_something_is_undone_as_a_whole(served: Served) -> None:
    root = served.spaces.agents["demo"].space.workspace.root
    await served.run(create("a"))
    asked = served.submit(create("b"), {"type": "shell", "id": "rm", "command": "rm -r a"}, create("c"))
    await served.until(asked, lambda: asked.state == "paused")
    body = {"approval": {"operationId": "rm", "decision": "approved"}}
    answering = asyncio.ensure_future(served.post(f"/v1/runs/{asked.run_id}/resume", body))
    await served.commands.wait_begun("rm -r a")
    served.commands.end("rm -r a")
    await answering
    await served.end_of(asked)
    looking = served.submit({"type": "shell", "id": "ls", "command": "ls"})
    await served.commands.wait_begun("ls")
    served.commands.end("ls")
    await served.end_of(looking)
    assert (await runs_before(served))[:3] == [looking.run_id, asked.run_id, asked.run_id]
    seen = (await served.post(UNDO, {"dry_run": True})).json()
    done = (await served.post(UNDO, {})).json()
    assert seen["snapshot"]["run"] == done["snapshot"]["run"] == asked.run_id
    assert seen["undone"] == done["undone"] == [looking.run_id, asked.run_id]
    assert sorted(one.name for one in root.iterdir()) == ["a"]


async def made_and_removed(served: Served) -> Run:
    """A run that makes a file and, after a person said yes, removes it again."""
    root = served.spaces.agents["demo"].space.workspace.root
    run = served.submit(create("data"), {"type": "shell", "id": "rm", "command": "rm -r data"})
    await served.until(run, lambda: run.state == "paused")
    body = {"approval": {"operationId": "rm", "decision": "approved"}}
    answering = asyncio.ensure_future(served.post(f"/v1/runs/{run.run_id}/resume", body))
    await served.commands.wait_begun("rm -r data")
    (root / "data").unlink()
    served.commands.end("rm -r data")
    await answering
    await served.end_of(run)
    return run


async def test_of_a_run_that_made_what_it_removed_the_command_that_was_asked_about_is_undone(served: Served) -> None:
    root = served.spaces.agents["demo"].space.workspace.root
    run = await made_and_removed(served)
    done = (await served.post(UNDO, {})).json()
    assert (done["snapshot"]["run"], done["snapshot"]["number"]) == (run.run_id, 2)
    assert (root / "data").exists()
    assert (await served.post(UNDO, {})).json()["snapshot"]["number"] == 1
    assert not (root / "data").exists()


async def test_each_snapshot_that_is_listed_is_reached_by_its_number(served: Served) -> None:
    root = served.spaces.agents["demo"].space.workspace.root
    await made_and_removed(served)
    for number, is_there in ((2, True), (1, False)):
        done = (await served.post(UNDO, {"run": str(number)})).json()
        assert done["snapshot"]["number"] == number
        assert (root / "data").exists() is is_there
    assert "There is no snapshot 99" in (await served.post(UNDO, {"run": "99"})).text


async def test_each_undo_goes_back_one_run_more_and_each_redo_one_undo(served: Served) -> None:
    root = served.spaces.agents["demo"].space.workspace.root

    async def names_after(**body: Any) -> list[str]:
        assert (await served.post(UNDO, body)).status_code == 200
        return sorted(one.name for one in root.iterdir())

    runs = [await served.run(create(name)) for name in "abc"]
    assert await names_after() == ["a", "b"]
    assert await names_after() == ["a"]
    assert await names_after(redo=True) == ["a", "b"]
    assert await names_after() == ["a"]
    assert await names_after(redo=True) == ["a", "b"]
    assert await names_after(redo=True) == ["a", "b", "c"]
    refused = await served.post(UNDO, {"redo": True})
    assert (refused.status_code, "nothing to bring back" in refused.text) == (404, True)
    assert await names_after(run=runs[0].run_id) == []
    assert (await served.post(UNDO, {})).status_code == 404
    await served.run(create("d"))
    assert (await served.post(UNDO, {"redo": True})).status_code == 404, "it would remove what was made since"
    assert await names_after() == []


async def test_a_run_and_a_redo_are_not_both_taken(served: Served) -> None:
    await served.run(create("a"))
    assert (await served.post(UNDO, {"run": "1", "redo": True})).status_code == 400


async def test_an_undo_is_refused_while_a_run_is_active(served: Served) -> None:
    await served.run(create("a"))
    run = served.submit(LONG)
    await served.commands.wait_begun("long")
    refused = await served.post(UNDO, {})
    assert refused.status_code == 409
    assert f"the run {run.run_id} is not done" in refused.json()["error"]["message"]
    served.commands.end("long")
    await served.end_of(run)
    assert (await served.post(UNDO, {})).status_code == 200


async def test_a_call_outside_of_runs_refuses_an_undo_too_and_has_a_snapshot(served: Served) -> None:
    calling = asyncio.ensure_future(served.call("shell", {"command": "long"}))
    await served.commands.wait_begun("long")
    refused = await served.post(UNDO, {})
    assert (refused.status_code, "something is being done" in refused.text) == (409, True)
    served.commands.end("long")
    answer = await calling
    assert await runs_before(served) == [answer.call_id]


async def test_a_run_that_was_never_there_and_a_space_without_snapshots_are_told_so(served: Served) -> None:
    assert (await served.post(UNDO, {})).status_code == 404
    await served.run(create("a"))
    refused = await served.post(UNDO, {"run": "run_x"})
    assert (refused.status_code, "no snapshot from before run_x" in refused.text) == (404, True)


async def test_only_the_operator_undoes(served: Served) -> None:
    token = served.exchange.token("http", "somebody")
    headers = {"authorization": f"Bearer {token}"}
    for method, path in (("GET", SNAPSHOTS), ("POST", UNDO)):
        answer = await served.client.request(method, path, headers=headers, json={})
        assert (answer.status_code, "only the operator" in answer.text) == (403, True)


async def test_why_a_snapshot_was_not_taken_is_told_and_on_record(served: Served) -> None:
    await served.spaces.create("small", "standard", {"snapshots": {"largest_space_bytes": 1}})
    run = await served.run(create("a"), space="small")
    assert run.events[0]["success"]
    told = (await served.client.get("/v1/spaces/small/snapshots")).json()
    assert told["snapshots"] == []
    assert "more than 1 bytes" in told["skipped"]


BUILD = {"type": "shell", "id": "build", "command": "sh build.sh && rm -r out"}


async def asked_to_build(served: Served) -> Run:
    await served.run(create("build.sh", "make"))
    run = served.submit(BUILD)
    await served.until(run, lambda: run.state == "paused")
    digest = hashlib.sha256(b"make").hexdigest()
    assert run.events[-1]["reason"].endswith(f"'rm -r out'; it reads build.sh (sha256 {digest})")
    return run


async def approve(served: Served, run: Run) -> asyncio.Task[Any]:
    body = {"approval": {"operationId": "build", "decision": "approved"}}
    return asyncio.create_task(served.post(f"/v1/runs/{run.run_id}/resume", body))


async def test_a_script_that_was_approved_runs_as_it_was_shown(served: Served) -> None:
    run = await asked_to_build(served)
    answering = await approve(served, run)
    await served.commands.wait_begun(BUILD["command"])
    served.commands.end(BUILD["command"])
    await answering
    await served.end_of(run)
    assert run.events[-1]["success"]


async def test_a_script_that_changed_after_it_was_shown_is_asked_about_again_with_its_new_hash(served: Served) -> None:
    run = await asked_to_build(served)
    await served.run(create("build.sh", "make twice", overwrite=True))
    await (await approve(served, run))
    await served.until(run, lambda: run.state == "paused" and len(run.events) == 2)
    digest = hashlib.sha256(b"make twice").hexdigest()
    assert run.events[-1]["type"] == "approvalRequired"
    assert run.events[-1]["reason"].endswith(f"it reads build.sh (sha256 {digest})")
    assert served.commands.begun == []
    answering = await approve(served, run)
    await served.commands.wait_begun(BUILD["command"])
    served.commands.end(BUILD["command"])
    await answering
    await served.end_of(run)
    assert ([event["type"] for event in run.events], run.events[-1]["success"]) == (
        ["approvalRequired", "approvalRequired", "shell"],
        True,
    )


async def test_a_script_that_changes_each_time_is_asked_about_twice_and_not_run(served: Served) -> None:
    run = await asked_to_build(served)
    for number in (1, 2):
        await served.run(create("build.sh", f"rm -rf /{number}", overwrite=True))
        await (await approve(served, run))
        if number == 1:
            await served.until(run, lambda: run.state == "paused" and len(run.events) == 2)
    await served.end_of(run)
    assert [event["type"] for event in run.events] == ["approvalRequired", "approvalRequired", "error"]
    assert run.events[-1]["category"] == "policy"
    assert "is another than was shown" in run.events[-1]["message"]
    assert served.commands.begun == []


@pytest.fixture
async def case(tmp_path: Path, machine: list[Commands]) -> AsyncIterator[Case]:
    machine.append(Commands())
    found = Case(tmp_path, machine[-1])
    await found.start()
    await found.spaces.create("demo", "standard", {})
    yield found
    await found.stop()


async def test_an_undo_that_was_interrupted_is_finished_at_the_next_start(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    await case.run(create("a", "precious"))
    await case.run(DELETE)
    agent = case.spaces.agents["demo"]

    class Killed(BaseException):
        pass

    def kill(step: str) -> None:
        if step == "put":
            raise Killed

    monkeypatch.setattr(agent.snapshots._restoring, "_step", kill)
    with pytest.raises(Killed):
        await case.spaces.undo("demo", "operator", Undo())
    assert [step for step, _ in steps_of(case)] == ["started"]
    await case.restart()
    await case.start()
    root = case.spaces.agents["demo"].space.workspace.root
    assert (root / "a").read_text() == "precious"
    assert [step for step, _ in steps_of(case)] == ["started", "ended"]
    with pytest.raises(Refused):
        await case.spaces.undo("nowhere", "operator", Undo())
