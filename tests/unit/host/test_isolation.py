"""Agents in their isolation, with real processes: the keeper sees, ends and reports them as it does others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import MISSING
from tests.running import running, wait_until
from tests.unit.host.conftest import Host, command_line, content, is_running
from trunkline.host import isolation, processes
from trunkline.host.isolation import Isolation, Sandbox, choose
from trunkline.host.launch import LaunchError
from trunkline.host.supervisor import AgentSpec

pytestmark = pytest.mark.slow

NOTHING = Sandbox(None, why_not="nothing works here")

# Writes what it is told to end by into its own folder, and takes its time.
POLITE = """
import os, signal, sys, time
own = os.environ["HOME"]
def leave(number, _):
    open(own + "/asked", "w").write(signal.Signals(number).name)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
open(own + "/ready", "w").write("ready")
time.sleep(600)
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, host: Host) -> Sandbox:
    """Both kinds, where they hold: the supervisor uses this one."""
    found = isolation.probe((request.param,))
    if found.kind is None:
        # Only a machine that has none may skip. One that was tried and has a hole is a failure.
        assert any(reason in found.why_not for reason in MISSING), found.why_not
        pytest.skip(found.why_not)
    host.supervisor.isolation.sandbox = found
    return found


async def launch(host: Host, *specs: AgentSpec) -> None:
    """Start them in the sandbox that the fixture chose, not in the one that the start would find."""
    await host.start()
    host.supervisor.reload(specs)


def python(agent_id: str, folder: Path, code: str, **options: object) -> AgentSpec:
    command = (sys.executable, "-I", "-S", "-c", code)
    return AgentSpec(agent_id, command, str(folder), isolation="sandbox", **options)  # type: ignore[arg-type]


def own(host: Host, agent_id: str, name: str) -> Path:
    return host.home / "agents" / agent_id / name


# --- which one --------------------------------------------------------------------------------------------------------


def test_a_sandbox_is_what_an_agent_gets_where_one_holds() -> None:
    assert choose(None, Sandbox("bubblewrap", "/bwrap")) == Isolation("sandbox (bubblewrap)", "sandbox")
    assert choose("sandbox", Sandbox("landlock")) == Isolation("sandbox (landlock)", "sandbox")
    assert choose("none", Sandbox("landlock")) == Isolation("none", "none")


def test_where_none_holds_an_agent_runs_without_unless_it_was_written_down() -> None:
    assert choose(None, NOTHING) == Isolation("none: nothing works here", "none", is_lacking=True)
    with pytest.raises(LaunchError, match='isolation = "sandbox" does not hold on this machine: nothing works here'):
        choose("sandbox", NOTHING)


def test_a_user_of_its_own_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LaunchError, match="needs an exchange that root runs"):
        choose("user", Sandbox("bubblewrap", "/bwrap"))


async def test_an_agent_whose_sandbox_does_not_hold_is_not_started_and_says_why(host: Host, tmp_path: Path) -> None:
    host.supervisor.isolation.sandbox = NOTHING
    await launch(host, python("a", tmp_path, "pass", restart="never"))
    assert host.state("a") == "crashed"
    assert "nothing works here" in host.view("a").note
    assert host.noticed("agent.not_launched")
    assert not host.supervisor.warnings()


async def test_a_folder_that_cannot_be_made_ends_that_agents_start_and_nothing_else(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    (host.home / "agents").write_text("in the way")
    await launch(host, python("a", tmp_path, "pass", restart="never"), AgentSpec("b", ("sleep", "600"), str(tmp_path)))
    await host.pid("b")
    assert (host.state("a"), "agents" in host.view("a").note) == ("crashed", True)


async def test_agents_that_run_without_are_named_in_one_warning(host: Host, tmp_path: Path) -> None:
    host.supervisor.isolation.sandbox = NOTHING
    specs = [AgentSpec(name, ("sleep", "600"), str(tmp_path), isolation=None) for name in ("a", "b")]
    await launch(host, *specs, AgentSpec("c", ("sleep", "600"), str(tmp_path), isolation="none"))
    await host.pid("a")
    (warning,) = host.supervisor.warnings()
    assert warning.startswith("a, b: ")
    assert "nothing works here" in warning
    assert (host.view("a").isolation, host.view("c").isolation) == ("none: nothing works here", "none")


def test_a_sandbox_with_a_hole_is_not_taken(tmp_path: Path) -> None:
    """A program that does what bubblewrap is asked to, but for the sandbox."""
    hole = tmp_path / "bwrap"
    hole.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    hole.chmod(0o755)
    assert "it reads files of the exchange" in isolation._try(Sandbox("bubblewrap", str(hole)))


# --- in it ------------------------------------------------------------------------------------------------------------


async def test_an_agent_is_asked_to_end_and_its_own_exit_code_is_reported(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    await launch(host, python("a", tmp_path, POLITE, stop_grace_s=10.0))
    await host.until(lambda: content(own(host, "a", "ready")), "the agent")
    host.supervisor.steer("a", "stop")
    assert (await host.exit_of("a")).exit_code == 7
    assert content(own(host, "a", "asked")) == "SIGTERM"


async def test_an_agent_that_does_not_listen_is_killed_after_its_grace(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    await launch(host, python("a", tmp_path, deaf, stop_grace_s=0.2))
    await host.pid("a")
    await host.until(lambda: "deaf" in host.log("a"), "the agent")
    host.supervisor.steer("a", "stop")
    assert (await host.exit_of("a")).exit_code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15), ("os.abort()", -6)]
)
async def test_the_exit_code_is_the_agents(
    host: Host, sandbox: Sandbox, tmp_path: Path, code: str, expected: int
) -> None:
    await launch(host, python("a", tmp_path, f"import os, sys; {code}", restart="never"))
    assert (await host.exit_of("a")).exit_code == expected


async def test_a_process_of_a_sandbox_is_known_by_its_run(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    await launch(host, python("a", tmp_path, "import time; time.sleep(600)"))
    root = await host.pid("a")
    known = processes.table()
    below = [root, *processes.descendants(known, [root])]
    assert {host.supervisor.run_of(pid, os.getuid()) for pid in below} == {host.view("a").run_id}
    assert host.supervisor.run_of(os.getpid(), os.getuid()) is None


async def test_an_agent_that_is_stopped_at_once_does_not_use_up_its_grace(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The sandbox may still be being set up: there is nobody to ask then."""
    await launch(host, python("a", tmp_path, "import time; time.sleep(600)", stop_grace_s=300.0))
    for _ in range(10):
        await host.until(lambda: host.state("a") == "running", "a run")
        host.supervisor.steer("a", "stop")
        await host.until(lambda: host.state("a") == "stopped", "its end")
        host.supervisor.steer("a", "start")


async def test_everything_of_a_sandbox_ends_with_the_keeper(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    family = "import os, time; os.fork() or os.setsid(); print('up', flush=True); time.sleep(600)"
    await launch(host, python("a", tmp_path, family))
    root = await host.pid("a")
    await host.until(lambda: host.log("a").count("up") == 2, "both processes")
    all_of_it = [root, *processes.descendants(processes.table(), [root])]
    os.kill(host.keeper_pid, signal.SIGKILL)
    await host.until(lambda: not any(is_running(pid) for pid in all_of_it), "the end of all")


async def test_no_process_list_shows_what_an_agent_is_given(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    await launch(host, python("a", tmp_path, "import time; time.sleep(600)", env={"API_KEY": "sk-hidden"}))
    root = await host.pid("a")
    token = processes.environment_of(root)[b"OPENSENTIENCE_SESSION_TOKEN"]
    lines = [command_line(pid) for pid in processes.table()]
    assert not [line for line in lines if token in line or b"sk-hidden" in line]


async def test_its_home_and_its_temporary_folder_are_its_own_and_stay(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    code = (
        "import os; names = ('HOME', 'TMPDIR', 'OPENSENTIENCE_HOME')\n"
        "print(*{os.environ[name] for name in names}, sep='\\n')\n"
        "open(os.environ['HOME'] + '/kept', 'a').write('x')"
    )
    await launch(host, python("a", tmp_path, code, restart="never"))
    assert (await host.exit_of("a")).exit_code == 0
    assert host.log("a") == f"{host.home}/agents/a\n"
    host.supervisor.steer("a", "start")
    await host.until(lambda: len(host.exited("a")) == 2, "its second run")
    assert content(own(host, "a", "kept")) == "xx"


async def test_what_is_named_to_write_can_be_written(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    code = f"open({str(tmp_path / 'out' / 'file')!r}, 'w').write('written')"
    await launch(host, python("a", tmp_path, code, restart="never", write=(str(tmp_path / "out"),)))
    assert (await host.exit_of("a")).exit_code == 0
    assert content(tmp_path / "out" / "file") == "written"


async def test_an_agent_without_a_network_reaches_no_port(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    code = "import _socket as s; c = s.socket(2, 1); c.connect(('127.0.0.1', {port}))"
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        specs = [
            python(name, tmp_path, code.format(port=port), restart="never", network=network)
            for name, network in (("open", True), ("closed", False))
        ]
        await launch(host, *specs)
        assert (await host.exit_of("open")).exit_code == 0
        assert (await host.exit_of("closed")).exit_code == 1


async def test_names_and_certificates_are_those_of_the_machine(host: Host, sandbox: Sandbox, tmp_path: Path) -> None:
    look = (
        "import socket, ssl\n"
        "print(socket.getaddrinfo('localhost', 80, type=socket.SOCK_STREAM)[0][4][0])\n"
        "print(ssl.create_default_context().cert_store_stats()['x509_ca'])\n"
    )
    await launch(host, python("a", tmp_path, look, restart="never"))
    assert (await host.exit_of("a")).exit_code == 0, host.log("a")
    free = AgentSpec("b", (sys.executable, "-I", "-S", "-c", look), str(tmp_path), restart="never")
    host.supervisor.reload([free])
    assert (await host.exit_of("b")).exit_code == 0
    assert host.log("a") == host.log("b")


async def test_an_agent_that_misses_a_file_is_told_which_key_to_add(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "data").write_text("x")
    work = tmp_path / "work"
    work.mkdir()
    reading, writing = f"open({str(outside / 'data')!r})", f"open({str(work / 'made')!r}, 'w')"
    await launch(host, python("a", work, reading, restart="never"), python("b", work, writing, restart="never"))
    await host.exit_of("a")
    await host.exit_of("b")
    expected = f'it named {outside}/data, which its sandbox does not show it: add read = ["{outside}"] to its [[agent]]'
    assert expected in host.view("a").note
    assert expected in host.exited("a")[0].note
    assert f'shows it to read only: add write = ["{work}"]' in host.view("b").note


# Prints what tools raise, and goes on.
RAISING = """
import time, traceback
try:
    open({path!r})
except OSError:
    traceback.print_exc()
time.sleep(600)
"""


async def test_an_agent_whose_tool_misses_a_file_is_told_which_key_to_add_and_goes_on(
    host: Host, sandbox: Sandbox, tmp_path: Path
) -> None:
    outside, work = tmp_path / "elsewhere", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    (outside / "data").write_text("x")
    hidden, missing = str(outside / "data"), str(work / "missing")
    raised = "FileNotFoundError" if sandbox.kind == "bubblewrap" else "PermissionError"
    specs = [python(name, work, RAISING.format(path=path)) for name, path in (("a", hidden), ("b", missing))]
    await launch(host, *specs)
    for agent_id, exception in (("a", raised), ("b", "FileNotFoundError"), ("nobody", raised)):
        await host.until(lambda: agent_id == "nobody" or host.state(agent_id) == "running", "it runs")  # noqa: B023
        host.supervisor.tool_raised(agent_id, exception)
    expected = f'it named {hidden}, which its sandbox does not show it: add read = ["{outside}"] to its [[agent]]'
    await host.until(lambda: f"[trunkline: {expected}]\n" in host.log("a"), "the hint in the log")
    assert (host.view("a").state, host.view("a").note) == ("running", expected)
    # Asked again it says nothing new, and of a file that is nowhere it has nothing to say.
    host.supervisor.tool_raised("a", raised)
    await host.until(lambda: not any(agent.run.is_looked_at for agent in host.supervisor._agents.values()), "all looks")  # type: ignore[union-attr]
    assert host.log("a").count(expected) == 1
    assert host.view("b").note == ""


READER = """
from trunkline import Agent
agent = Agent("com.test.reader")

@agent.tool
def read(path: str) -> str:
    "Read a file."
    return open(path).read()

agent.run()
"""


def test_the_note_of_an_agent_says_what_its_tool_missed(short_path: Path) -> None:
    work, outside = short_path / "work", short_path / "elsewhere"
    work.mkdir()
    outside.mkdir()
    (work / "reader.py").write_text(READER)
    (outside / "data").write_text("x")
    settings = f'[[agent]]\nid = "com.test.reader"\ncommand = ["python", "reader.py"]\ncwd = "{work}"\n'
    with running(short_path / "home", settings) as exchange:
        exchange.wait_tool("com.test.reader/read")
        answer = exchange.call("com.test.reader/read", {"path": str(outside / "data")})
        if answer["status"] == "succeeded":
            pytest.skip("no sandbox holds here")
        assert str(outside) not in answer["error"]["message"]

        def notes() -> str:
            return json.dumps(exchange.request("GET", "/v1/agents")[1])

        expected = json.dumps(f'which its sandbox does not show it: add read = ["{outside}"] to its [[agent]]')
        wait_until(lambda: expected[1:] in notes(), "the note")


# --- a user of its own ------------------------------------------------------------------------------------------------


async def test_an_agent_with_a_user_of_its_own_keeps_it_and_its_folder(host: Host) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give an agent a user of its own")
    script = "echo $(id -u) $(id -G); echo x >> $HOME/kept; sleep 600"
    spec = AgentSpec("a", ("/bin/sh", "-c", script), "/", isolation="user", stop_grace_s=0.2)
    await host.start(spec)
    root = await host.pid("a")
    await host.until(lambda: host.log("a"), "what it printed")
    uid = own(host, "a", "").stat().st_uid
    user, first_group, *groups = host.log("a").split()
    assert (user, first_group) == (str(uid), str(uid))
    assert len(groups) == 1
    assert "0" not in groups
    assert uid != 0
    assert host.supervisor.run_of(root, uid) == host.view("a").run_id
    assert host.supervisor.run_of(root, 0) is None
    host.supervisor.steer("a", "restart")
    await host.until(lambda: content(own(host, "a", "kept")) == "x\nx\n", "its second run")
    assert own(host, "a", "").stat().st_uid == uid
    await host.supervisor.stop_all()
    assert not os.path.exists(isolation.folder_of_users(host.home))  # noqa: PTH110, ASYNC240


async def test_what_a_user_of_its_own_may_not_reach_is_named_with_what_to_do(host: Host, short_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give an agent a user of its own")
    closed = short_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy("/bin/sh", closed / "program")
    await host.start(
        AgentSpec("a", ("/bin/sh", "-c", "exit 0"), str(closed), isolation="user"),
        AgentSpec("b", (str(closed / "program"), "-c", "exit 0"), "/", isolation="user"),
    )
    await host.until(lambda: host.view("a").note and host.view("b").note, "what hindered them")
    assert f"may not enter its folder {closed}: with isolation" in host.view("a").note
    assert f"may not run {closed}/program: with isolation" in host.view("b").note
    assert "open to everybody" in host.view("b").note


def test_a_folder_follows_when_an_agents_isolation_changes(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give an agent a user of its own")
    folder = isolation.agent_folder(tmp_path, "a")
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    (folder / "link").symlink_to("/etc/passwd")
    isolation.give_to(folder, 12345)
    found = {path.lstat().st_uid for path in (folder, folder / "deep", folder / "deep" / "file", folder / "link")}
    assert found == {12345}
    assert Path("/etc/passwd").stat().st_uid == 0


def test_two_agents_never_get_the_same_user(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root has users to give")
    folders = [isolation.agent_folder(tmp_path, f"a{n}") for n in range(20)]
    for folder in folders:
        isolation.give_to(folder, isolation.own_uid(folder))
    assert len({folder.stat().st_uid for folder in folders} | {0}) == 21
