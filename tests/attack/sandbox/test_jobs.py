"""Sandbox jobs of somebody hostile: paths, links, archives, variables, processes that want to stay."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import JobsWorld, jobs_world
from trunkline.edges.spaces.edge import SpacesEdge

SECRET = "outside-7f3a"
# The processes of another run of these tests are not ours.
MARK = f"4712{os.getpid()}"


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[JobsWorld]:
    async with jobs_world(short_path / "home") as made:
        (short_path / "home" / "secret").write_text(SECRET)
        yield made


@pytest.mark.parametrize(
    "source",
    [
        "space:../..", "space:", "space:a/b", "space:A", "space:none", "blob:sha256:..", "blob:md5:" + "0" * 64,
        "blob:sha256:" + "0" * 64, "/etc", "file:///etc/passwd", "http://127.0.0.1/a", "git://a/b", "ssh://a/b",
        "https://a b/c", "https://user:pass@a/b", "https:///x", "https://a/$(id)'`", "--upload-pack=x", "ext::sh -c id",
    ],
)  # fmt: skip
async def test_a_source_that_is_none_is_refused_by_name(world: JobsWorld, source: str) -> None:
    assert "tool.invalid_input: inputs.repo.source: " in await world.refusal(repo={"source": source})


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../../x", "/etc", "/workspace/../etc", "/workspacex", "a\\b", "a\n", "C:x"]
)
async def test_a_folder_outside_the_job_is_refused_by_name(world: JobsWorld, path: str) -> None:
    repo = {"source": "space:none", "mount_path": path}
    assert "inputs.repo.mount_path: " in await world.refusal(repo=repo)
    commands = [{"cmd": "true", "workdir": path}]
    assert "inputs.commands[0].workdir: " in await world.refusal(commands=commands)


@pytest.mark.parametrize("ref", ["--upload-pack=x", "-b", "a..b", "a b", "$(id)", "a;b", "a\nb"])
async def test_a_git_reference_that_could_be_an_option_or_a_command_is_refused(world: JobsWorld, ref: str) -> None:
    assert "inputs.repo.git_ref: " in await world.refusal(repo={"source": "space:none", "git_ref": ref})


@pytest.mark.parametrize("name", ["A=B", "", "a b", "1A", "A\n"])
async def test_a_variable_without_a_proper_name_is_refused(world: JobsWorld, name: str) -> None:
    assert "inputs.env: " in await world.refusal(env={name: "x"})


async def test_variables_reach_the_commands_and_not_what_starts_them(world: JobsWorld) -> None:
    env = {
        "LD_PRELOAD": "/workspace/x.so",
        "PYTHONPATH": "/workspace",
        "PATH": "/bin:/usr/bin",
        "BASH_ENV": "/workspace/x",
    }
    outputs = await world.run("echo $PYTHONPATH", env=env)
    assert outputs["runs"][0]["stdout_preview"] == "/workspace\n"


async def test_a_workdir_that_a_command_made_a_link_is_not_followed(world: JobsWorld) -> None:
    outputs = await world.run("ln -s / out", {"cmd": "cat etc/hostname", "workdir": "out"})
    assert outputs["status"] == "error"
    assert outputs["error"] == "commands[1]: cwd out: Path contains a symbolic link"


async def test_links_are_no_artifacts_and_lead_nowhere(world: JobsWorld) -> None:
    target = world.home / "secret"
    outputs = await world.run(f"ln -s {target} a; ln -s / b; mkfifo c; cat a; echo x > d", {"cmd": "chmod 0 d"})
    assert [one["path"] for one in outputs["artifacts"]] == []
    assert SECRET not in str(outputs)


async def test_a_job_sees_neither_the_home_nor_other_jobs(world: JobsWorld) -> None:
    first = world.begin("oa.sandbox_run.v1", {"commands": [{"cmd": "echo mine > file; echo up; sleep 30"}]})
    await world.until(lambda: any(b"up" in bytes(one.data) for one in first.progress if one.channel == "stdout"))
    outputs = await world.run(f"cat {world.home}/jobs/*/file {world.home}/secret; ls /proc | grep -c '^[0-9]'")
    (run,) = outputs["runs"]
    assert "mine" not in run["stdout_preview"]
    assert SECRET not in run["stdout_preview"]
    assert int(run["stdout_preview"].split()[-1]) < 9


async def test_a_link_in_a_space_is_copied_as_a_link_and_shows_nothing(world: JobsWorld) -> None:
    edge = world.exchange.edges._running["space"]
    assert isinstance(edge, SpacesEdge)
    await edge.spaces.create("work", "standard", {})
    (world.home / "spaces/work/files/out").symlink_to(world.home / "secret")
    (world.home / "spaces/work/files/up").symlink_to("/")
    outputs = await world.run("cat out; ls up/root", repo={"source": "space:work"})
    assert SECRET not in str(outputs)
    assert outputs["status"] == "failed"


def hostile_tar(*members: tuple[str, bytes, str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            body = b"x" if kind == tarfile.REGTYPE else b""
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return data.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "")],
        [("/tmp/evil", tarfile.REGTYPE, "")],
        [("a/../../evil", tarfile.REGTYPE, "")],
    ],
)
async def test_a_path_in_an_archive_that_leads_out_is_refused(
    world: JobsWorld, members: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: hostile_tar(*members))
    assert "cannot be used" in await world.refusal(repo={"source": "blob:sha256:" + "0" * 64})


async def test_a_link_in_an_archive_is_left_out_so_nothing_is_written_through_it(
    world: JobsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [("out", tarfile.SYMTYPE, "/tmp"), ("out/evil-4711", tarfile.REGTYPE, ""), ("dev", tarfile.CHRTYPE, "")]
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: hostile_tar(*members))
    outputs = await world.run("cat out/evil-4711; ls", repo={"source": "blob:sha256:" + "0" * 64})
    assert outputs["runs"][0]["stdout_preview"] == "xout\n"
    assert not os.path.exists("/tmp/evil-4711")  # noqa: ASYNC240, PTH110


async def test_an_archive_that_unpacks_to_more_than_the_disk_is_refused(
    world: JobsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 30_000_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: data.getvalue())
    said = await world.refusal(repo={"source": "blob:sha256:" + "0" * 64}, sandbox={"resources": {"disk_mb": 5}})
    assert "may hold" in said


async def test_what_is_packed_small_is_unpacked_in_pieces(world: JobsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(64 << 20))
    monkeypatch.setattr(world.edge.sandboxes._views, "blob", lambda sha256, by: data.getvalue())
    tracemalloc.start()
    outputs = await world.run("wc -c < zeros", repo={"source": "blob:sha256:" + "0" * 64})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outputs["runs"][0]["stdout_preview"].strip() == str(64 << 20)
    assert peak < 16 << 20


async def test_a_file_with_holes_does_not_keep_a_job_busy_after_its_commands(world: JobsWorld) -> None:
    outputs = await world.run("truncate -s 90M a b", sandbox={"resources": {"disk_mb": 100}})
    assert outputs["status"] == "error"
    assert outputs["error"] == "The files have more than 104857600 bytes"


async def test_a_command_that_outlives_its_job_does_not(world: JobsWorld) -> None:
    outputs = await world.run(f"(setsid sh -c 'sleep {MARK}; echo x > late' &) ; nohup sleep {MARK} & echo done")
    assert outputs["status"] == "success"
    assert not [line for line in _sleeping() if MARK in line]


def _sleeping() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found


def _processes_of(uid: int) -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += entry.stat().st_uid == uid
            except OSError:
                continue
    return found


async def test_a_fork_bomb_is_bounded_and_ends_with_its_job(world: JobsWorld) -> None:
    if os.geteuid() != 0:
        pytest.skip("only as root a job has a user of its own, whose processes can be counted")
    inputs = {"commands": [{"cmd": "f() { f | f & }; f; sleep 30"}], "sandbox": {"resources": {"timeout_secs": 2}}}
    call = world.begin("oa.sandbox_run.v1", inputs)
    await world.until(world.folders)
    (folder,) = (world.home / "jobs").iterdir()
    uid, most = folder.stat().st_uid, 0
    while call.answer is None:
        most = max(most, _processes_of(uid))
        await asyncio.sleep(0.02)
    assert 2 <= most <= 256 + 8
    await world.until(lambda: _processes_of(uid) == 0)
    assert (await world.run("echo well"))["status"] == "success"


@pytest.mark.parametrize("command", ["sudo id", "su -c id", "doas id", "true; sudo id"])
async def test_a_command_that_becomes_somebody_else_is_denied(world: JobsWorld, command: str) -> None:
    call = await world.done("oa.sandbox_run.v1", {"commands": [{"cmd": command}]})
    assert call.code == "policy.denied"
