"""Sandbox jobs: where they start from, what they may use, how they end."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import JobsWorld, jobs_world
from trunkline.config import Jobs
from trunkline.edges.spaces.edge import SpacesEdge
from trunkline.input_conditions import compiled
from trunkline.jobs.schemas import SANDBOX
from trunkline.model import Decision, Policy, Principal, Rule

pytestmark = pytest.mark.slow


async def space(world: JobsWorld, **files: str) -> None:
    edge = world.exchange.edges._running["space"]
    assert isinstance(edge, SpacesEdge)
    await edge.spaces.create("work", "standard", {})
    for path, content in files.items():
        call = world.exchange.call("space.work/create_file", {"path": path.replace("__", "/"), "content": content})
        await world.until(lambda call=call: call.answer is not None)
        assert call.code is None, call.outcome


async def test_a_job_begins_with_the_files_of_a_space_and_leaves_the_space_as_it_was(world: JobsWorld) -> None:
    await space(world, a="one", d__b="two")
    outputs = await world.run("cat a d/b; echo more > a; echo new > c", repo={"source": "space:work"})
    assert outputs["runs"][0]["stdout_preview"] == "onetwo"
    assert [one["path"] for one in outputs["artifacts"]] == ["a", "c"]
    assert (world.home / "spaces/work/files/a").read_text() == "one"
    assert not (world.home / "spaces/work/files/c").exists()


async def test_a_job_begins_with_the_files_of_a_space_that_works_in_a_folder_of_the_operators(
    world: JobsWorld, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "a").write_text("mine")
    if os.geteuid() == 0:  # a folder of root's is none to let agents work in
        for place in (folder, folder / "a"):
            os.chown(place, 12345, 12345)
    edge = world.exchange.edges._running["space"]
    assert isinstance(edge, SpacesEdge)
    await edge.spaces.create("work", "standard", {}, str(folder))
    outputs = await world.run("cat a; echo more > a", repo={"source": "space:work"})
    assert outputs["runs"][0]["stdout_preview"] == "mine"
    assert (folder / "a").read_text() == "mine"


async def test_mount_path_and_workdir_are_folders_of_the_job(world: JobsWorld) -> None:
    await space(world, d__b="two")
    repo = {"source": "space:work", "mount_path": "/workspace/src"}
    outputs = await world.run(
        "pwd", {"cmd": "cat b", "workdir": "d"}, {"cmd": "ls", "workdir": "/workspace"}, repo=repo
    )
    assert [one["stdout_preview"] for one in outputs["runs"]] == ["/workspace/src\n", "two", "src\n"]


async def test_who_may_not_read_a_space_gets_none_of_it_by_a_job(tmp_path: Path) -> None:
    rules = (
        Rule("secret", "agent:*", "space.work/*", Decision.DENY),
        Rule("all", "*", "*", Decision.ALLOW),
    )
    async with jobs_world(tmp_path / "home", policy=Policy(rules, "v")) as world:
        await space(world, a="one")
        inputs = {"commands": [{"cmd": "cat a"}], "repo": {"source": "space:work"}}
        call = await world.done(SANDBOX, inputs, by=Principal("agent:com.example.a"))
        assert call.code == "tool.invalid_input"
        assert call.outcome.fault is not None
        assert "do not let you read this space (secret)" in call.outcome.fault.message


async def test_a_rule_about_a_path_holds_for_a_job_too(tmp_path: Path) -> None:
    rules = (
        Rule("secret", "agent:*", "space.work/read_file", Decision.DENY, input=compiled({"path": "private/*"})),
        Rule("all", "*", "*", Decision.ALLOW),
    )
    async with jobs_world(tmp_path / "home", policy=Policy(rules, "v")) as world:
        await space(world, a="one")
        inputs = {"commands": [{"cmd": "cat *"}], "repo": {"source": "space:work"}}
        fine = await world.done(SANDBOX, inputs, by=Principal("agent:com.example.a"))
        assert fine.code is None
        call = world.exchange.call("space.work/create_file", {"path": "private/key", "content": "k"})
        await world.until(lambda: call.answer is not None)
        refused = await world.done(SANDBOX, inputs, by=Principal("agent:com.example.a"))
        assert refused.outcome.fault is not None
        assert "do not let you read every file of this space (secret)" in refused.outcome.fault.message


def tar(**files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content.encode()))
    return data.getvalue()


def zipped(**files: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return data.getvalue()


def told(data: bytes) -> bytes:
    """As a file tool tells it."""
    return json.dumps({"content": base64.b64encode(data).decode(), "encoding": "base64"}).encode()


@pytest.mark.parametrize("form", [tar, zipped])
async def test_a_blob_that_is_an_archive_is_unpacked(
    world: JobsWorld, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = told(form(run__it="#!/bin/sh\necho ran\n"))
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: data)
    outputs = await world.run("sh run/it", repo={"source": f"blob:sha256:{hashlib.sha256(data).hexdigest()}"})
    assert outputs["runs"][0]["stdout_preview"] == "ran\n"


async def test_any_other_blob_is_one_file(world: JobsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: b'{"a": 1}')
    outputs = await world.run("cat in/blob", repo={"source": "blob:sha256:" + "0" * 64, "mount_path": "in"})
    assert outputs["runs"][0]["exit_code"] != 0  # the folder of a command is that of the repository
    outputs = await world.run("cat blob", repo={"source": "blob:sha256:" + "0" * 64, "mount_path": "in"})
    assert outputs["runs"][0]["stdout_preview"] == '{"a": 1}'


async def test_a_command_that_fails_ends_the_list_unless_it_says_that_it_may(world: JobsWorld) -> None:
    outputs = await world.run("echo a", "exit 3", "echo never")
    assert [one["exit_code"] for one in outputs["runs"]] == [0, 3]
    assert outputs["status"] == "failed"
    going_on = await world.run({"cmd": "exit 3", "continue_on_fail": True}, "echo after")
    assert [one["exit_code"] for one in going_on["runs"]] == [3, 0]
    assert going_on["status"] == "failed"
    assert world.edge.agent.counts == {"succeeded": 0, "failed": 2, "canceled": 0}


async def test_time_is_for_all_commands_together(world: JobsWorld) -> None:
    outputs = await world.run("echo a", "sleep 30", "echo never", sandbox={"resources": {"timeout_secs": 0.8}})
    assert outputs["status"] == "timeout"
    assert [one["exit_code"] for one in outputs["runs"]] == [0, 124]


async def test_a_command_that_uses_too_much_memory_fails(world: JobsWorld) -> None:
    outputs = await world.run(
        "python3 -c 'x = bytearray(10**9)'", sandbox={"resources": {"memory_mb": 64, "timeout_secs": 20}}
    )
    assert outputs["status"] == "failed"


async def test_a_command_that_fills_its_disk_is_ended(world: JobsWorld) -> None:
    outputs = await world.run("yes > big", sandbox={"resources": {"disk_mb": 4, "timeout_secs": 20}})
    assert outputs["status"] == "failed"


async def test_variables_are_there_and_nothing_of_ours_is(world: JobsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "secret-1")
    outputs = await world.run("env", env={"COLOUR": "red"})
    text = outputs["runs"][0]["stdout_preview"]
    assert "COLOUR=red" in text
    assert "secret-1" not in text


async def test_a_repository_at_a_url_needs_the_network_and_the_network_needs_the_operator(tmp_path: Path) -> None:
    url = "https://example.invalid/a.git"
    async with jobs_world(tmp_path / "home") as world:
        assert await world.refusal(repo={"source": url}) == (
            "tool.invalid_input: inputs.repo.source: a URL needs network_policy full"
        )
        assert "`network = true` in [jobs]" in await world.refusal(
            repo={"source": url}, sandbox={"network_policy": "full"}
        )
    async with jobs_world(tmp_path / "home", Jobs(network=True)) as world:
        outputs = await world.run("true", repo={"source": url}, sandbox={"network_policy": "full"})
        assert (outputs["status"], outputs["runs"]) == ("error", [])
        assert outputs["error"].startswith("repo: ")


async def test_a_git_reference_is_taken_out_before_the_first_command(world: JobsWorld) -> None:
    commit = "git add -A && git -c user.name=a -c user.email=a@b commit -qm x"
    await space(world, make=f"git init -q . && {commit} && git tag v1 && echo two > b && {commit}")
    call = world.exchange.call("space.work/shell", {"command": "sh make"})
    await world.until(lambda: call.answer is not None)
    assert call.output["success"], call.output
    repo = {"source": "space:work", "mount_path": "src"}
    assert (await world.run("cat b", repo=repo))["status"] == "success"
    older = await world.run("ls", repo={**repo, "git_ref": "v1"})
    assert older["runs"][0]["stdout_preview"] == "make\n"
    missing = await world.run("true", repo={**repo, "git_ref": "v9"})
    assert (missing["status"], missing["runs"]) == ("error", [])


async def test_more_than_the_operator_allows_is_refused_by_name(tmp_path: Path) -> None:
    async with jobs_world(tmp_path / "home", Jobs(memory_mb=100, timeout_s=5, disk_mb=10)) as world:
        for name, value, most in (("memory_mb", 101, 100), ("timeout_secs", 6, 5), ("disk_mb", 11, 10)):
            resources = {"memory_mb": 50, "timeout_secs": 1, name: value}
            said = await world.refusal(sandbox={"resources": resources})
            assert said == f"tool.invalid_input: inputs.sandbox.resources.{name}: at most {most} here"


async def test_an_image_is_refused_since_there_are_none(world: JobsWorld) -> None:
    assert "inputs.sandbox.image_digest" in await world.refusal(sandbox={"image_digest": "sha256:1"})
