"""What a command can use up, whom it can talk to, and what it can learn."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import STANDARD, Host, Run, python
from tests.requirement import requirement
from trunkline.errors import WorkspaceError
from trunkline.workspace import folder as folders
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy
from trunkline.workspace.sandbox import Sandbox, landlock_version, probe

# --- resources


async def test_a_spinning_command_ends_at_its_timeout_and_the_loop_goes_on(
    sandbox: Sandbox, workspace: Workspace
) -> None:
    late: list[float] = []

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(time.monotonic() - before - 0.01)

    beating = asyncio.create_task(beat())
    ran = await sandbox.run(workspace, "while :; do :; done & while :; do :; done", policy=STANDARD, timeout_ms=1000)
    beating.cancel()
    assert ran.timed_out
    assert sorted(late)[len(late) // 2] < 0.1


def test_processor_time_is_bounded_beside_the_timeout(run_either: Run) -> None:
    policy = make_policy("standard", {"limits": {"cpu_s": 1}})
    ran = run_either("while :; do :; done", policy=policy)
    assert (ran.exit_code, ran.timed_out) == (128 + 9, False)


MANY = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        x = b"x" * 100 * 2**20
        time.sleep(1.5)
        os._exit(0)
if all(os.wait()[1] == 0 for _ in range(10)):
    print("got")
"""


@pytest.mark.parametrize(
    "attack",
    [
        "x = bytearray(8 * 2**30)\nprint('got')",
        "x = []\nwhile len(x) < 800: x.append(bytearray(b'x' * 10 * 2**20))\nprint('got')",
        "import mmap\nx = mmap.mmap(-1, 8 * 2**30)\nfor at in range(0, len(x), 4096): x[at] = 1\nprint('got')",
        MANY,
    ],
)
def test_eight_gigabytes_of_memory_are_not_given_to_one_or_to_many(run: Run, attack: str) -> None:
    policy = make_policy("standard", {"limits": {"memory_bytes": 300 * 2**20}})
    ran = run(python(attack), policy=policy)
    assert "got" not in ran.stdout.text
    assert not ran.timed_out


def test_without_a_control_group_the_sum_is_watched(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.workspace import sandbox

    monkeypatch.setattr(sandbox, "make_group", lambda *_: None)
    policy = make_policy("standard", {"limits": {"memory_bytes": 200 * 2**20}})
    ran = run(python(MANY), policy=policy)
    assert (ran.ended_by, ran.exit_code) == ("memory", 137)


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_temporary_folders_are_bounded(run: Run, place: str) -> None:
    policy = make_policy("standard", {"limits": {"temporary_bytes": 8 * 2**20}})
    ran = run(f"head -c 100000000 /dev/zero > {place}/x; wc -c < {place}/x", policy=policy)
    assert int(ran.stdout.text) <= 8 * 2**20


@pytest.mark.parametrize("place", ["/", "/dev", "/etc", "/usr", "/proc", "/run", "/var/tmp", "/workspace/.."])
def test_nothing_else_can_be_written(run: Run, place: str) -> None:
    assert run(f"touch {place}/x").exit_code != 0


def test_one_gibibyte_of_output_leaves_memory_flat(run: Run) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 2**30
    ran = run(f"head -c {size} /dev/zero", timeout_ms=60_000)
    assert (ran.exit_code, ran.stdout.size, ran.stdout.truncated) == (0, size, True)
    assert len(ran.stdout.text) == 2**20
    digest = hashlib.sha256()
    for _ in range(1024):
        digest.update(bytes(2**20))
    assert ran.stdout.sha256 == digest.hexdigest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_open_files_are_bounded(run_either: Run) -> None:
    ran = run_either(python("x = []\ntry:\n  while True: x.append(open('/dev/null'))\nexcept OSError: print(len(x))"))
    assert int(ran.stdout.text) < 4096


def test_filling_the_disk_is_stopped_near_the_quota(run: Run, workspace: Workspace) -> None:
    policy = make_policy("standard", {"quota": {"max_bytes": 50 * 2**20}})
    fill = "i=0; while :; do head -c 20000000 /dev/zero > f$i; i=$((i+1)); done"
    ran = run(fill, policy=policy)
    assert (ran.ended_by, ran.exit_code) == ("disk", 137)
    assert sum(path.stat().st_blocks * 512 for path in workspace.root.iterdir()) < 20 * 50 * 2**20
    assert run("echo still full", policy=policy).ended_by in {"disk", None}
    for path in list(workspace.root.iterdir()):
        path.unlink()
    assert run("echo fine", policy=policy).stdout.text == "fine\n"


IN_FOLDERS = "i=0; while :; do mkdir $i; head -c 20000000 /dev/zero > $i/f; chmod {} $i; i=$((i+1)); done"
HIDDEN = {
    "closed": IN_FOLDERS.format("000"),
    "only_listed": IN_FOLDERS.format("400"),
    "unlinked": python(
        "import os\nheld = []\nwhile True:\n  held.append(open('f', 'wb')); os.unlink('f')\n"
        "  held[-1].write(bytes(20_000_000)); held[-1].flush()"
    ),
    "of_children": (
        "for i in 1 2 3 4 5 6 7 8 9; do (exec 3>f$i; rm f$i; head -c 20000000 /dev/zero >&3; sleep 60) & done; wait"
    ),
}


@pytest.mark.parametrize("fill", HIDDEN.values(), ids=list(HIDDEN))
def test_what_cannot_be_listed_counts_while_a_command_runs(run: Run, workspace: Workspace, fill: str) -> None:
    policy = make_policy("standard", {"quota": {"max_bytes": 50 * 2**20}})
    free = shutil.disk_usage(workspace.root).free
    ran = run(fill, policy=policy, timeout_ms=30_000)
    assert (ran.ended_by, ran.exit_code) == ("disk", 137)
    assert free - shutil.disk_usage(workspace.root).free < 20 * 50 * 2**20


def test_a_command_that_would_take_the_last_of_the_disk_is_ended_whatever_its_quota(
    run: Run, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(workspace.root).free
    monkeypatch.setattr(folders, "KEPT_FREE_BYTES", free + 2**30)
    assert run("echo nothing written").ended_by is None
    ran = run("i=0; while :; do head -c 20000000 /dev/zero > f$i; i=$((i+1)); done")
    assert (ran.ended_by, ran.exit_code) == ("disk", 137)


def test_a_single_file_is_bounded(run_either: Run, workspace: Workspace) -> None:
    policy = make_policy("standard", {"limits": {"file_bytes": 2**20}})
    run_either("head -c 10000000 /dev/zero > big", policy=policy)
    assert (workspace.root / "big").stat().st_size <= 2**20


# --- network


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of the machine itself, as the exchange has one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server.getsockname()[1]


def connects(family: str, kind: str, address: str) -> str:
    return python(
        "import socket\n"
        f"s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(2)\n"
        f"s.connect({address}); s.send(b'x') if {kind!r} == 'SOCK_DGRAM' else None\nprint('connected')"
    )


@pytest.mark.parametrize(
    ("family", "kind", "address"),
    [
        ("AF_INET", "SOCK_STREAM", "('127.0.0.1', {port})"),
        ("AF_INET", "SOCK_STREAM", "('1.1.1.1', 443)"),
        ("AF_INET", "SOCK_DGRAM", "('8.8.8.8', 53)"),
        ("AF_INET", "SOCK_STREAM", "('169.254.169.254', 80)"),
        ("AF_INET6", "SOCK_STREAM", "('::ffff:127.0.0.1', {port})"),
        ("AF_INET6", "SOCK_DGRAM", "('2001:4860:4860::8888', 53)"),
    ],
)
def test_no_address_can_be_reached(run_either: Run, listener: int, family: str, kind: str, address: str) -> None:
    ran = run_either(connects(family, kind, address.format(port=listener)))
    assert ran.exit_code != 0
    assert "connected" not in ran.stdout.text


def test_names_are_not_resolved(run_either: Run) -> None:
    assert run_either(python("import socket\nsocket.getaddrinfo('example.com', 80)")).exit_code != 0


@pytest.mark.parametrize("network", [False, True])
def test_sockets_of_the_machine_are_out_of_reach(run_either: Run, host: Host, network: bool) -> None:
    if network and landlock_version() < 6:
        pytest.skip("sockets without a file come with the network where the kernel cannot tell them apart")
    policy = make_policy("standard", {"network": {"allowed": network}})
    path = str(host.folder / "open" / "hub.sock")
    abstract = f"\0trunkline-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as unnamed:
        named.bind(path)
        Path(path).chmod(0o777)
        named.listen()
        unnamed.bind(abstract)
        unnamed.listen()
        for address in (path, abstract, "/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private"):
            ran = run_either(connects("AF_UNIX", "SOCK_STREAM", repr(address)), policy=policy)
            assert "Error" in ran.stderr.text
            assert "connected" not in ran.stdout.text
    Path(path).unlink()


def test_the_network_is_there_only_if_the_space_says_so(run_either: Run, listener: int) -> None:
    policy = make_policy("standard", {"network": {"allowed": True}})
    ran = run_either(connects("AF_INET", "SOCK_STREAM", f"('127.0.0.1', {listener})"), policy=policy)
    assert ran.stdout.text == "connected\n", ran.stderr.text


# --- leaks


@requirement("SP-037")
def test_the_environment_is_empty_but_for_what_is_named(run_either: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_SECRET", "hunter2")
    ran = run_either("env", env={"DEBUG": "true"})
    names = {line.split("=", 1)[0] for line in ran.stdout.text.splitlines()}
    assert names == {"PATH", "HOME", "LANG", "TMPDIR", "PYTHONDONTWRITEBYTECODE", "PWD", "DEBUG"}
    assert "hunter2" not in ran.stdout.text


def test_no_descriptor_of_the_exchange_is_inherited(run: Run, host: Host) -> None:
    fd = os.open(host.secret, os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        ran = run("ls -l /proc/self/fd; cat <&3")
    finally:
        os.close(fd)
    # Standard streams, and the folder that `ls` itself has open.
    assert len([line for line in ran.stdout.text.splitlines() if "->" in line]) == 4
    assert "/dev/null" in ran.stdout.text
    assert str(host.folder) not in ran.stdout.text


def test_landlock_inherits_no_descriptor_either(
    found_sandboxes: dict[str, Sandbox | str], workspace: Workspace
) -> None:
    sandbox = found_sandboxes["landlock"]
    if isinstance(sandbox, str):
        pytest.skip(sandbox)
    code = python("import os\nprint([fd for fd in range(3, 200) if os.path.lexists(f'/proc/self/fd/{fd}')])\n"
                  "import fcntl\nopen_ = []\nfor fd in range(3, 200):\n  try: fcntl.fcntl(fd, 1); open_.append(fd)\n"
                  "  except OSError: pass\nprint(open_)")  # fmt: skip
    ran = asyncio.run(sandbox.run(workspace, code, policy=STANDARD))
    assert ran.stdout.text.splitlines()[-1] == "[]"


def test_other_processes_say_nothing(run_either: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [f"/proc/{pid}/environ" for pid in (1, os.getpid(), os.getppid())]
    ran = run_either(f"cat {' '.join(files)} /proc/1/cmdline | tr '\\0' '\\n'; true")
    assert "PATH=" not in ran.stdout.text.replace("PATH=/usr/local/sbin", "")
    assert "pytest" not in ran.stdout.text


def test_values_of_variables_are_in_no_argument_list(sandbox: Sandbox, workspace: Workspace) -> None:
    seen: list[bytes] = []
    started = threading.Event()

    def look(*_: object) -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    seen.append((entry / "cmdline").read_bytes())
                except OSError:
                    continue
        started.set()

    asyncio.run(sandbox.run(workspace, "echo go; sleep 0.2", policy=STANDARD, env={"TOKEN": "hunter2"}, on_output=look))
    assert started.is_set()
    assert any(b"bwrap" in line for line in seen)
    assert not any(b"hunter2" in line for line in seen)


@pytest.mark.parametrize("value", ["x\0--bind\0/\0/host", "x\0--share-net"])
def test_a_null_byte_in_a_variable_does_not_become_an_option(run_either: Run, value: str) -> None:
    for env in ({"A": value}, {f"A{value}": "x"}):
        with pytest.raises(WorkspaceError, match="null byte"):
            run_either("ls /host", env=env)


def test_nothing_can_be_typed_into_a_terminal(run_either: Run) -> None:
    """The command has no terminal, cannot get that of the exchange, and the filter refuses the request as such."""
    ran = run_either(python(
        "import fcntl, os, pty\n"
        "try: os.open('/dev/tty', os.O_RDWR); print('terminal')\nexcept OSError: pass\n"
        "fd = 0\n"
        "try: fd = pty.openpty()[1]\nexcept OSError: pass\n"
        "try: fcntl.ioctl(fd, 0x5412, b'x'); print('typed')\nexcept OSError as e: print(e.errno)"
    ))  # fmt: skip
    assert ran.stdout.text == "1\n"


def test_the_machine_has_another_name_inside(run: Run) -> None:
    assert run("uname -n; cat /etc/passwd; ls /home /root /boot /srv /mnt /sys").stdout.text.splitlines()[0] == "space"


# --- no sandbox, no shell


@requirement("SP-072")
async def test_where_nothing_holds_there_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.workspace import sandbox

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    with pytest.raises(WorkspaceError, match="no shell: install bubblewrap") as refused:
        await probe()
    assert refused.value.kind == "execution"
    assert "bwrap is not installed" in refused.value.message


@pytest.mark.parametrize(
    "script",
    ["exec sh -c 'exit 1'", "exit 0", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'],
)
async def test_a_bubblewrap_that_does_not_hold_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """The last one runs the command without any sandbox at all."""
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(WorkspaceError, match="No sandbox holds"):
        await probe(("bubblewrap",))
