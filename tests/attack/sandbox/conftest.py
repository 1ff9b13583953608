"""A workspace with a host around it, and a sandbox of each kind that this machine has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trunkline.errors import WorkspaceError
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import SpacePolicy, make_policy
from trunkline.workspace.sandbox import CommandResult, Sandbox, probe

SECRET = "outside-7f3a"

Run = Callable[..., CommandResult]

# Not installed; no system call numbers; an old kernel; user namespaces that the machine does not give to us.
MISSING = (
    "bwrap is not installed", "no filter of system calls", "the kernel has version", "No permissions to create",
    "Creating new namespace failed", "setting up uid map",
)  # fmt: skip


class Host:
    """What must not be seen or changed: a file and a folder beside the workspace, open to everybody on the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.secret = folder / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o666)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        self.before = self.state()

    def state(self) -> list[tuple[str, int, bytes]]:
        found = []
        for path in sorted(self.folder.rglob("*")):
            if path.relative_to(self.folder).parts[0] != "workspace":
                info = path.lstat()
                found.append((str(path), info.st_mode, path.read_bytes() if path.is_file() else b""))
        return found

    def check_unharmed(self) -> None:
        assert self.state() == self.before


@pytest.fixture
def host(short_path: Path) -> Iterator[Host]:
    made = Host(short_path)
    yield made
    made.check_unharmed()


@pytest.fixture
def workspace(host: Host) -> Iterator[Workspace]:
    with Workspace.create(host.folder / "workspace") as opened:
        yield opened


@pytest.fixture(scope="session")
def found_sandboxes() -> dict[str, Sandbox | str]:
    found: dict[str, Sandbox | str] = {}
    for kind in ("bubblewrap", "landlock"):
        try:
            found[kind] = asyncio.run(probe((kind,)))
        except WorkspaceError as reason:
            found[kind] = reason.message
    return found


def pick(found: dict[str, Sandbox | str], kind: str) -> Sandbox:
    sandbox = found[kind]
    if isinstance(sandbox, str):
        # Only a machine that has none may skip. One that was tried and has a hole is a failure.
        if any(reason in sandbox for reason in MISSING):
            pytest.skip(f"no {kind} here, so there would be no shell: {sandbox}")
        pytest.fail(sandbox)
    return sandbox


@pytest.fixture
def sandbox(found_sandboxes: dict[str, Sandbox | str]) -> Sandbox:
    """Bubblewrap: the one that is promised."""
    return pick(found_sandboxes, "bubblewrap")


@pytest.fixture(params=["bubblewrap", "landlock"])
def either(request: pytest.FixtureRequest, found_sandboxes: dict[str, Sandbox | str]) -> Sandbox:
    return pick(found_sandboxes, request.param)


STANDARD = make_policy("standard")


def runner(sandbox: Sandbox, workspace: Workspace) -> Run:
    def run(command: str, policy: SpacePolicy = STANDARD, timeout_ms: int = 20_000, **more: object) -> CommandResult:
        return asyncio.run(sandbox.run(workspace, command, policy=policy, timeout_ms=timeout_ms, **more))  # type: ignore[arg-type]

    return run


@pytest.fixture
def run(sandbox: Sandbox, workspace: Workspace) -> Run:
    return runner(sandbox, workspace)


@pytest.fixture
def run_either(either: Sandbox, workspace: Workspace) -> Run:
    return runner(either, workspace)


def python(code: str) -> str:
    """A command line that runs this code with the machine's own Python."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("the attack is written in Python, and /usr/bin/python3 is not there")
    return f"/usr/bin/python3 -I - <<'END'\n{code}\nEND"


def processes_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
