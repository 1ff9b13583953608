"""Commands in a fresh folder inside a sandbox: ``oa.sandbox_run.v1``.

Owns what the inputs mean for the sandbox of the workspace (limits, network, folders), the order of commands, and the
outputs: exit codes, hashes of what was printed, and the files that are new or changed. Does not own the sandbox itself
(``workspace.sandbox``), nor what is in the folder before (``sources``).

A command that fails ends the list unless it says ``continue_on_fail`` (decision 74). ``timeout_secs`` is for all
commands together. ``cpus`` bounds processor time: one process has ``cpus`` × ``timeout_secs`` seconds of it.

Invariant: a command sees its folder and the machine's programs and nothing else of the machine; when a job has ended,
nothing that it started is alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import posixpath
import shlex
import stat
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import JobRefused, WorkspaceError
from trunkline.jobs.sources import ROOT, folder_names, read_ref, read_source
from trunkline.model import Decision
from trunkline.workspace.folder import Quota, Workspace
from trunkline.workspace.paths import open_folder
from trunkline.workspace.policy import (
    VARIABLE,
    CommandLimits,
    FilesystemPolicy,
    NetworkPolicy,
    ShellPolicy,
    SpacePolicy,
    judge_command,
)
from trunkline.workspace.sandbox import EXIT_TIMED_OUT, CommandResult, Sandbox

MEBIBYTE: Final = 1_048_576
# What an answer shows of an output; its hash is over all of it.
PREVIEW_CHARACTERS: Final = 2048
# Beyond this a list of artifacts says nothing to anybody: pack them into one.
MAX_ARTIFACTS: Final = 20_000
MAX_DEPTH: Final = 100
READ_BYTES: Final = 1_048_576

# Types by suffix: our own table, since the machine's would give other outputs elsewhere.
_TYPES: Final = {
    ".css": "text/css", ".csv": "text/csv", ".gz": "application/gzip", ".html": "text/html", ".js": "text/javascript",
    ".json": "application/json", ".log": "text/plain", ".md": "text/markdown", ".pdf": "application/pdf",
    ".png": "image/png", ".py": "text/x-python", ".svg": "image/svg+xml", ".tar": "application/x-tar",
    ".toml": "application/toml", ".txt": "text/plain", ".wasm": "application/wasm", ".whl": "application/zip",
    ".xml": "application/xml", ".yaml": "application/yaml", ".yml": "application/yaml", ".zip": "application/zip",
}  # fmt: skip

# Programs that become somebody else; inside they could not, and whoever asks for them is mistaken about where he is.
_SHELL: Final = ShellPolicy(asked=(), unclear=Decision.ALLOW)

# Told of what a running job prints: the channel (``stdout``, ``stderr``, ``status``) and the text.
Show = Callable[[str, str], None]


class Bounds(Struct, frozen=True):
    """What one job may ask for at most; the operator's."""

    memory_mb: int = 2048
    disk_mb: int = 2048
    timeout_s: float = 600.0
    network: bool = False


class Plan(Struct, frozen=True):
    """A job as the sandbox runs it; made from inputs that are valid and have their defaults."""

    policy: SpacePolicy
    timeout_s: float
    mount: tuple[str, ...]
    # The folder of each command.
    workdirs: tuple[tuple[str, ...], ...]
    git_ref: str


def plan(inputs: Mapping[str, Any], bounds: Bounds, sandbox: Sandbox) -> Plan:
    """What the inputs mean here; ``JobRefused`` names the field that cannot be had."""
    wanted = inputs["sandbox"]
    resources, network = wanted["resources"], wanted["network_policy"]
    if wanted.get("image_digest"):
        raise JobRefused("inputs.sandbox.image_digest: there are no images here; leave it out")
    for name, most in (
        ("memory_mb", bounds.memory_mb),
        ("disk_mb", bounds.disk_mb),
        ("timeout_secs", bounds.timeout_s),
    ):
        if (resources.get(name) or 0) > most:
            raise JobRefused(f"inputs.sandbox.resources.{name}: at most {most:g} here")
    if network == "full" and not bounds.network:
        raise JobRefused("inputs.sandbox.network_policy: full is off here; `network = true` in [jobs] allows it")
    if network == "localhost" and sandbox.kind != "bubblewrap":
        raise JobRefused("inputs.sandbox.network_policy: localhost needs bubblewrap, which is not here")
    for name in inputs.get("env", {}):
        if VARIABLE.fullmatch(name) is None:
            raise JobRefused("inputs.env: a name is none of a variable")
    repo = inputs.get("repo") or {}
    if repo:
        read_source(repo["source"], network)
    mount = folder_names(repo.get("mount_path"), "inputs.repo.mount_path")
    workdirs = tuple(
        folder_names(command.get("workdir"), f"inputs.commands[{index}].workdir", mount)
        for index, command in enumerate(inputs["commands"])
    )
    return Plan(
        _policy(resources, network, bounds), resources["timeout_secs"], mount, workdirs, read_ref(repo.get("git_ref"))
    )


def _policy(resources: Mapping[str, Any], network: str, bounds: Bounds) -> SpacePolicy:
    memory = resources["memory_mb"] * MEBIBYTE
    disk = (resources.get("disk_mb") or bounds.disk_mb) * MEBIBYTE
    return SpacePolicy(
        filesystem=FilesystemPolicy(protected=()),
        shell=_SHELL,
        network=NetworkPolicy(allowed=network == "full"),
        limits=CommandLimits(
            memory_bytes=memory,
            temporary_bytes=max(MEBIBYTE, min(memory, disk)),
            file_bytes=disk,
            cpu_s=max(1, math.ceil(resources["cpus"] * resources["timeout_secs"])),
        ),
        quota=Quota(max_bytes=disk),
    )


def denied_command(inputs: Mapping[str, Any]) -> str:
    """Why one of the commands is not run at all; empty if all are."""
    policy = SpacePolicy(shell=_SHELL)
    for index, command in enumerate(inputs["commands"]):
        verdict = judge_command(policy, command["cmd"])
        if verdict.decision is Decision.DENY:
            return f"inputs.commands[{index}].cmd: {verdict.reason}"
    return ""


async def run(
    inputs: Mapping[str, Any],
    prepared: Plan,
    sandbox: Sandbox,
    workspace: Workspace,
    show: Show,
    clone: str = "",
) -> dict[str, Any]:
    """Run the commands in a folder that holds what the job starts from, or in which ``clone`` is fetched first."""
    job = _Running(inputs, prepared, sandbox, workspace, show)
    error = await job.prepare(clone)
    room = prepared.policy.quota.max_bytes
    before = await asyncio.to_thread(scan, workspace, room) if not error else {}
    if error:
        job.status, job.error = ("timeout", "") if job.status == "timeout" else ("error", error)
    else:
        await job.run_all()
    artifacts: list[dict[str, Any]] = []
    try:
        after = await asyncio.to_thread(scan, workspace, room) if not error else {}
        artifacts = [_artifact(path, *after[path]) for path in sorted(after) if before.get(path) != after[path]]
    except WorkspaceError as failure:
        job.status, job.error = "error", failure.message
    outputs: dict[str, Any] = {
        "env_info": _env_info(inputs, prepared, sandbox),
        "runs": job.runs,
        "artifacts": artifacts,
        "status": job.status,
    }
    return outputs | ({"error": job.error} if job.error else {})


class _Running:
    """The commands of one job, one after the other."""

    def __init__(
        self, inputs: Mapping[str, Any], prepared: Plan, sandbox: Sandbox, workspace: Workspace, show: Show
    ) -> None:
        self._commands = inputs["commands"]
        self._env = inputs.get("env", {})
        self._plan = prepared
        self._sandbox = sandbox
        self._workspace = workspace
        self._show = show
        self._ends_at = time.monotonic() + prepared.timeout_s
        self.runs: list[dict[str, Any]] = []
        self.status = "success"
        self.error = ""

    async def prepare(self, clone: str) -> str:
        """Fetch a repository, and take out what ``git_ref`` names; why that cannot be, or nothing."""
        folder = shlex.quote(posixpath.join(".", *self._plan.mount))
        steps = [f"git clone --quiet --no-tags -- {shlex.quote(clone)} {folder}"] if clone else []
        if self._plan.git_ref:
            steps.append(f"git -C {folder} checkout --quiet --detach {shlex.quote(self._plan.git_ref)} --")
        for step in steps:
            self._show("status", step.partition(" -- ")[0])
            ran = await self._execute(step, ())
            if ran.timed_out:
                self.status = "timeout"
                return "timeout"
            if ran.exit_code:
                return "repo: " + (ran.stderr.text.strip()[:500] or f"git ended with {ran.exit_code}")
        if self._plan.mount:
            with self._workspace.acting(), open_folder(self._workspace.fd, self._plan.mount, make=True):
                pass
        return ""

    async def run_all(self) -> None:
        """Until all ran, one fails that others depend on, or time is over."""
        for index, command in enumerate(self._commands):
            if time.monotonic() >= self._ends_at:
                self.status = "timeout"
                return
            self._show("status", f"command {index + 1} of {len(self._commands)}: {command['cmd'][:200]}")
            try:
                ran = await self._execute(command["cmd"], self._plan.workdirs[index])
            except WorkspaceError as failure:
                self.status, self.error = "error", f"commands[{index}]: {failure.message}"
                return
            self.runs.append(_run(command["cmd"], ran))
            if ran.timed_out:
                self.status = "timeout"
                return
            if ran.ended_by is not None:
                self.error = f"commands[{index}]: was ended, as it used more {ran.ended_by} than it may"
            if ran.exit_code:
                self.status = "failed"
                if not command["continue_on_fail"]:
                    return

    async def _execute(self, command: str, folder: tuple[str, ...]) -> CommandResult:
        return await self._sandbox.run(
            self._workspace,
            command,
            policy=self._plan.policy,
            cwd="/".join(folder) or None,
            timeout_ms=max(1, round((self._ends_at - time.monotonic()) * 1000)),
            env=self._env,
            on_output=self._show,
        )


def _run(command: str, ran: CommandResult) -> dict[str, Any]:
    return {
        "cmd": command,
        "exit_code": EXIT_TIMED_OUT if ran.timed_out else ran.exit_code,
        "duration_ms": ran.duration_ms,
        "stdout_sha256": ran.stdout.sha256,
        "stderr_sha256": ran.stderr.sha256,
        "stdout_preview": ran.stdout.text[:PREVIEW_CHARACTERS],
        "stderr_preview": ran.stderr.text[:PREVIEW_CHARACTERS],
    }


def _env_info(inputs: Mapping[str, Any], prepared: Plan, sandbox: Sandbox) -> dict[str, Any]:
    limits = prepared.policy.limits
    return {
        "sandbox": sandbox.kind,
        "machine": os.uname().machine,
        "root": ROOT,
        "network_policy": inputs["sandbox"]["network_policy"],
        "memory_mb": limits.memory_bytes // MEBIBYTE,
        "disk_mb": prepared.policy.quota.max_bytes // MEBIBYTE,
        "timeout_secs": prepared.timeout_s,
        "image_digest": None,
    }


def _artifact(path: str, sha256: str, size: int) -> dict[str, Any]:
    kind = _TYPES.get(posixpath.splitext(path)[1].lower())
    found: dict[str, Any] = {"path": path, "sha256": sha256, "size_bytes": size}
    return found if kind is None else found | {"mime_type": kind}


def scan(workspace: Workspace, max_bytes: int) -> dict[str, tuple[str, int]]:
    """The hash and the size of each file that its owner can read, by path. Links are not followed.

    ``WorkspaceError`` if they have more bytes: a file with holes has more than the disk, and takes as long to read.
    """
    found: dict[str, tuple[str, int]] = {}
    waiting: list[tuple[str, ...]] = [()]
    room = _Room(max_bytes)
    with workspace.acting():
        while waiting:
            names = waiting.pop()
            try:
                with open_folder(workspace.fd, names) as folder:
                    waiting += [(*names, name) for name in _scan_folder(folder, names, found, room)]
            except WorkspaceError:
                continue  # closed to its owner, or gone
            if room.left < 0:
                raise WorkspaceError("execution", f"The files have more than {max_bytes} bytes")
            if len(found) > MAX_ARTIFACTS:
                raise WorkspaceError("execution", f"There are more than {MAX_ARTIFACTS} files: pack them into one")
    return found


class _Room(Struct):
    """How many bytes may still be read; below 0 there were more."""

    left: int


def _scan_folder(folder: int, names: tuple[str, ...], found: dict[str, tuple[str, int]], room: _Room) -> list[str]:
    """Take in the files of one folder; the names of the folders inside it."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # What is no UTF-8 cannot be named in JSON, what is deeper in no path that a file tool takes.
            if not _is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                if len(names) < MAX_DEPTH:
                    inner.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                hashed = _hashed(folder, entry.name, room)
                if hashed is not None:
                    found["/".join((*names, entry.name))] = hashed
    return inner


def _hashed(folder: int, name: str, room: _Room) -> tuple[str, int] | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        room.left -= status.st_size
        if not stat.S_ISREG(status.st_mode) or room.left < 0:
            return None
        digest, size = hashlib.sha256(), 0
        while part := file.read(READ_BYTES):
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
