"""Who a command is, and which processes it can reach, leave behind or pile up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import STANDARD, Host, Run, processes_of, python
from tests.requirement import requirement
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy
from trunkline.workspace.sandbox import Sandbox

# --- identity


def test_a_command_is_never_root_in_the_hosts_terms(run_either: Run, workspace: Workspace) -> None:
    assert run_either("touch made; [ $(id -u) != 0 ] && [ $(id -g) != 0 ]").exit_code == 0
    owner = (workspace.root / "made").stat()
    assert (owner.st_uid, owner.st_gid) == (workspace.uid, workspace.gid)
    assert 0 not in {owner.st_uid, owner.st_gid}


def test_a_command_has_no_rights_and_cannot_gain_any(run: Run) -> None:
    ran = run("grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups|Uid)' /proc/self/status")
    facts = dict(line.split(":\t", 1) for line in ran.stdout.text.splitlines())
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert not set(facts["Groups"].split()) & {"0"}


def test_a_set_uid_program_gives_nothing(run_either: Run) -> None:
    programs = [path for path in ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/newgrp") if Path(path).exists()]
    assert programs
    ran = run_either(python(f"import os, subprocess\nprint([os.stat(p).st_mode & 0o4000 for p in {programs!r}])"))
    ran = run_either("su -c id </dev/null; echo x | su root -c id; /usr/bin/newgrp root; id -u")
    assert "uid=0" not in ran.stdout.text
    assert ran.stdout.text.splitlines()[-1] != "0"


@pytest.mark.parametrize("call", ["setuid(0)", "setgid(0)", "setresuid(0, 0, 0)", "setgroups([0])"])
def test_a_command_cannot_become_root(run_either: Run, call: str) -> None:
    assert run_either(python(f"import os\nos.{call}")).exit_code != 0


def test_a_file_of_roots_group_is_not_readable(run_either: Run, host: Host) -> None:
    ran = run_either("cat /etc/shadow /etc/gshadow /etc/sudoers /root/.bashrc; true")
    assert ran.stdout.text == ""
    assert run_either("sudo -n id").exit_code != 0


def test_a_command_has_none_of_the_exchanges_groups(run_either: Run) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can join a group")
    before = os.getgroups()
    os.setgroups([0, 4])
    try:
        ran = run_either(python("import os\nprint(os.getgroups())"))
    finally:
        os.setgroups(before)
    assert ran.stdout.text == "[]\n"


def test_the_launcher_refuses_to_go_on_as_root(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the drop to another user were forgotten, nothing would run."""
    if os.geteuid() != 0:
        pytest.skip("only root can forget it")
    from trunkline.workspace import plan, sandbox

    real = plan.bubblewrap_plan

    def broken(*arguments: object) -> dict[str, object]:
        return real(*arguments) | {"owner": (0, 0)}  # type: ignore[arg-type]

    monkeypatch.setattr(sandbox, "bubblewrap_plan", broken)
    with pytest.raises(sandbox.WorkspaceError, match="could not be set up"):
        asyncio.run(Sandbox("bubblewrap", "/usr/bin/bwrap").run(workspace, "touch made", policy=STANDARD))
    assert not (workspace.root / "made").exists()


# --- processes


def left_over(workspace: Workspace, mark: str) -> list[bytes]:
    found = []
    for pid in processes_of(workspace.uid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(line)
    return found


DAEMON = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(4711)"


@requirement("SP-059")
@pytest.mark.parametrize(
    "command",
    [
        "sleep 4711 &",
        "(sleep 4711 &) & setsid sleep 4711 &",
        "nohup sleep 4711 >/dev/null 2>&1 &",
        python(DAEMON),
        "sleep 4711",
        "trap '' TERM HUP INT; sleep 4711; sleep 4711",
        python("import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(4711)"),
    ],
)
def test_nothing_outlives_a_command_or_its_timeout(run_either: Run, workspace: Workspace, command: str) -> None:
    run_either(command, timeout_ms=400)
    assert left_over(workspace, "4711") == []


@requirement("SP-058")
def test_a_timeout_asks_first_and_then_kills(run_either: Run) -> None:
    # Long enough for the shell to get to its trap on a busy machine; it is killed two seconds later.
    timeout_ms = 1500
    polite = run_either("trap 'echo asked; exit 0' TERM; sleep 30 & wait", timeout_ms=timeout_ms)
    assert (polite.exit_code, polite.timed_out, polite.stdout.text) == (124, True, "asked\n")
    assert polite.duration_ms < timeout_ms + 1900
    deaf = run_either("trap '' TERM; echo deaf; while :; do sleep 1; done", timeout_ms=timeout_ms)
    assert (deaf.exit_code, deaf.timed_out, deaf.stdout.text) == (124, True, "deaf\n")
    assert timeout_ms + 1900 <= deaf.duration_ms < 15_000


def test_a_fork_bomb_hits_its_limit_and_leaves_nothing(run_either: Run, workspace: Workspace) -> None:
    policy = make_policy("standard", {"limits": {"processes": 50}})
    bomb = python(
        "import os, time\nn = 0\n"
        "try:\n    while n < 5000:\n        if os.fork() == 0: time.sleep(4711)\n        n += 1\n"
        "except OSError: print('limit', n)"
    )
    ran = run_either(bomb, policy=policy, timeout_ms=10_000)
    assert ran.stdout.text.startswith("limit ")
    assert int(ran.stdout.text.split()[1]) <= 60
    assert left_over(workspace, "4711") == []
    classic = run_either("b() { b | b & }; b; sleep 1", policy=policy, timeout_ms=3000)
    assert classic.exit_code is not None
    assert run_either("echo fine").stdout.text == "fine\n"


def test_a_command_neither_sees_nor_signals_other_processes(run_either: Run, workspace: Workspace) -> None:
    other = subprocess.Popen(["/bin/sleep", "60"])
    try:
        ran = run_either(
            f"kill -9 {other.pid}; kill -9 {os.getpid()}; kill -TERM -- -{os.getpgid(0)};"
            f"cat /proc/{os.getpid()}/environ /proc/{os.getpid()}/cmdline; ls /proc | grep -c '^[0-9]'"
        )
        assert other.poll() is None
        assert "python" not in ran.stdout.text
        assert int(ran.stdout.text.split()[-1] if ran.stdout.text.split() else 0) <= 10
    finally:
        other.kill()
        other.wait(10)


def test_everybody_is_killed_from_inside_and_nobody_outside_notices(run_either: Run) -> None:
    other = subprocess.Popen(["/bin/sleep", "60"])
    try:
        run_either("kill -9 -1; sleep 1")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


VICTIM = """
import asyncio, sys
from pathlib import Path
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy
from trunkline.workspace.sandbox import Sandbox
async def main():
    sandbox = Sandbox(sys.argv[2], sys.argv[3])
    with Workspace.open(Path(sys.argv[1])) as workspace:
        command = "setsid sleep 4712 & nohup sleep 4712 >/dev/null 2>&1 & touch started; sleep 4712"
        await sandbox.run(workspace, command, policy=make_policy("standard"), timeout_ms=60_000)
asyncio.run(main())
"""


def test_nothing_is_left_when_the_exchange_is_killed(either: Sandbox, workspace: Workspace) -> None:
    arguments = [str(workspace.root), either.kind, either.program]
    exchange = subprocess.Popen([sys.executable, "-c", VICTIM, *arguments])
    try:
        wait_until(lambda: (workspace.root / "started").exists() and bool(left_over(workspace, "4712")))
    finally:
        exchange.send_signal(signal.SIGKILL)
        exchange.wait(10)
    wait_until(lambda: not left_over(workspace, "4712"))


def wait_until(condition: object, timeout_s: float = 5.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_cancelled_run_ends_everything_before_the_cancellation_goes_on(
    either: Sandbox, workspace: Workspace
) -> None:
    started = asyncio.Event()
    command = "echo ready; sleep 4713 & sleep 4713"
    running = asyncio.create_task(either.run(workspace, command, policy=STANDARD, on_output=lambda *_: started.set()))
    await asyncio.wait_for(started.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    assert left_over(workspace, "4713") == []


REAPER = """
import asyncio, ctypes, os, sys
from pathlib import Path
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy
from trunkline.workspace.sandbox import Sandbox
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
async def main():
    sandbox, policy = Sandbox("bubblewrap", sys.argv[2]), make_policy("standard")
    with Workspace.open(Path(sys.argv[1])) as workspace:
        for command in ("true", "sleep 9 & exit 3", "sleep 9"):
            await sandbox.run(workspace, command, policy=policy, timeout_ms=500)
asyncio.run(main())
try:
    sys.exit(f"left: {os.waitpid(-1, os.WNOHANG)}")
except ChildProcessError:
    pass
"""


def test_an_exchange_that_is_the_first_process_of_a_container_leaves_no_zombie(
    sandbox: Sandbox, workspace: Workspace
) -> None:
    arguments = [str(workspace.root), sandbox.program]
    subprocess.run([sys.executable, "-c", REAPER, *arguments], check=True, timeout=30)


async def test_two_commands_in_one_workspace_wait_for_each_other(sandbox: Sandbox, workspace: Workspace) -> None:
    command = "[ ! -e busy ] && touch busy && sleep 0.2 && rm busy"
    both = [sandbox.run(workspace, command, policy=STANDARD) for _ in range(2)]
    assert [ran.exit_code for ran in await asyncio.gather(*both)] == [0, 0]
