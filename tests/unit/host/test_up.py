from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.running import LISTENERS, NO_DEFAULT_PORTS, RawAgent, calling, running, wait_until
from trunkline.edges.known import EDGES
from trunkline.errors import ConfigError
from trunkline.home import Home
from trunkline.host.up import _operator_token, _own_command

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.create()
    return made


def test_the_operators_token_is_made_once_and_for_the_owner_only(home: Home) -> None:
    token = _operator_token(home)
    assert token.startswith("tlk_")
    assert _operator_token(home) == token
    assert home.operator_token_file.read_text() == token + "\n"
    assert stat.S_IMODE(home.operator_token_file.stat().st_mode) == 0o600
    assert [path.name for path in home.path.iterdir() if "token" in path.name] == ["operator.token"]


def test_a_token_that_somebody_else_made_meanwhile_is_the_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def slow(source: Path, target: Path) -> None:
        target.write_text("tlk_" + "another-exchange" * 2)
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    assert _operator_token(home) == "tlk_" + "another-exchange" * 2


@pytest.mark.parametrize("left", ["", "\n", "tlk_cut"])
def test_a_token_file_that_was_cut_off_lets_nobody_in(home: Home, left: str) -> None:
    home.operator_token_file.write_text(left)
    with pytest.raises(ConfigError, match=r"operator\.token: is damaged: remove it"):
        _operator_token(home)


def test_a_home_that_cannot_be_written_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        _operator_token(home)
    assert not home.operator_token_file.exists()


def test_a_stop_says_why_and_what_it_waits_for(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        agent = RawAgent(exchange, "com.x")
        agent.hello()
        agent.register({"name": "slow"})
        answer = calling(exchange, "com.x/slow")
        call = agent.wait_for("core.tool.call")
        assert exchange.process is not None
        exchange.process.send_signal(signal.SIGTERM)
        expected = "stopping: SIGTERM; waiting up to 10 s for 1 call to end\n"
        wait_until(lambda: expected in exchange.said(), "the reason and what is waited for")
        exchange.process.send_signal(signal.SIGTERM)
        agent.result(call, output={})
        assert answer.result(20)["status"] == "succeeded"
        assert exchange.process.wait(20) == 0
        said = exchange.said()
        assert said.count("stopping") == 1
        assert said.endswith("stopped\n")


@pytest.mark.parametrize("is_on_path", [True, False])
def test_the_command_that_is_told_to_others_can_be_typed_in_any_folder(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    program = short_path / "my bin" / "trunkline"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(short_path)
    monkeypatch.setattr(sys, "argv", ["my bin/trunkline", "up"])
    monkeypatch.setenv("PATH", str(program.parent) if is_on_path else "/usr/bin")
    assert _own_command() == ("trunkline" if is_on_path else f"'{program}'")


def test_ctrl_c_with_nothing_to_wait_for_says_just_that(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        assert exchange.process is not None
        exchange.process.send_signal(signal.SIGINT)
        assert exchange.process.wait(20) == 0
        assert exchange.said().splitlines()[-2:] == ["stopping: Ctrl-C", "stopped"]


def test_an_address_that_is_taken_is_all_that_is_said(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = subprocess.run(
            [sys.executable, "-m", "trunkline", "up", "--home", str(short_path / "home")],
            env={**os.environ, **NO_DEFAULT_PORTS, "TRUNKLINE_HTTP_LISTEN": address},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"config.invalid: {address}: cannot listen here")
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.endswith(f"; `trunkline doctor --home {short_path / 'home'}` shows each that is taken\n")


def test_an_agent_that_cannot_start_is_named_with_the_reason_at_the_start_and_by_a_reload(short_path: Path) -> None:
    text = '[[agent]]\nid = "com.x"\ncommand = ["true"]\nmanifest = "opensentience.agent.json"\n'
    with running(short_path / "home", text) as exchange:
        reason = f"{exchange.config_file.parent}/opensentience.agent.json: cannot be read: No such file or directory"
        wait_until(lambda: f"com.x does not run: {reason}" in exchange.said(), "the warning at the start")
        answer = exchange.request("POST", "/v1/reload")[1]
        assert (answer["started"], answer["cannot_start"]) == ([], [f"com.x: {reason}"])


CHANGING = """
from pathlib import Path
from trunkline import Agent

agent = Agent("com.x", version="1.0.0")
says = Path(__file__).with_name("says").read_text()


def look() -> dict[str, str]:
    return {"says": says}


look.__doc__ = says
agent.tool(side_effects=False)(look)
agent.run()
"""


def test_a_reload_says_what_it_changed_and_releases_what_was_held_of_an_agent_that_is_not_pinned_any_more(
    short_path: Path,
) -> None:
    (short_path / "agent.py").write_text(CHANGING)
    says = short_path / "says"
    says.write_text("first")
    table = f'[[agent]]\nid = "com.x"\ncommand = [{sys.executable!r}, "{short_path}/agent.py"]\nisolation = "none"\n'
    rule = '[[policy.rule]]\ncaller = "*"\ntool = "com.y/z"\ndecision = "deny"\n'
    with running(short_path / "home", table) as exchange:
        exchange.wait_tool("com.x/look")
        own = exchange.config_file.read_text()
        says.write_text("second")
        exchange.request("POST", "/v1/agents/com.x/restart")
        exchange.wait_tool("com.x/look", "suspended")
        unpinned = own.replace('isolation = "none"\n', 'isolation = "none"\npin_definitions = false\n')
        exchange.config_file.write_text(unpinned + rule)
        done = exchange.request("POST", "/v1/reload")[1]
        assert (done["restarted"], done["released"]) == ([], ["com.x/look"])
        assert done["changed"] == ["rules: 1, were 0", "com.x: pin_definitions: false, was true"]
        assert exchange.call("com.x/look", {})["output"] == {"says": "second"}
        done = exchange.request("POST", "/v1/reload")[1]
        assert (done["released"], done["changed"]) == ([], [])


def test_what_of_the_configuration_has_no_effect_is_said_at_the_start_in_status_and_after_a_reload(
    short_path: Path,
) -> None:
    cluster = "[cluster] has no effect: this release does not have it"
    with running(short_path / "home", '[cluster]\nnats = "nats://127.0.0.1:1"\n') as exchange:
        wait_until(lambda: f"WARNING {cluster}\n" in exchange.said(), "the warning at the start")
        assert exchange.request("GET", "/v1/status")[1]["warnings"] == [cluster]
        own = exchange.config_file.read_text()
        status, reloaded = exchange.request("POST", "/v1/reload")
        assert (status, reloaded["status"]) == (200, "reloaded")
        assert exchange.said().count(f"WARNING {cluster}\n") == 2
        status = exchange.request("GET", "/v1/status")[1]
        assert (status["warnings"], status["defects"]) == ([cluster], 0)
        assert {name: edge["state"] for name, edge in status["edges"].items()} == {
            edge.name: "off" if edge.name in LISTENERS else "on" for edge in EDGES
        }
        exchange.config_file.write_text(own.replace("127.0.0.1:0", "127.0.0.1:1"))
        code, answer = exchange.request("POST", "/v1/reload")
        assert (code, answer["error"]["code"]) == (400, "config.invalid")
        assert "nothing changed: a change of [http] needs a restart" in answer["error"]["message"]
        assert exchange.request("GET", "/v1/status")[1]["warnings"] == [cluster], "nothing changed"


def test_an_exchange_whose_terminal_is_closed_stops(short_path: Path) -> None:
    """SIGHUP reloads otherwise; here it would leave a process that nobody sees."""
    ours, its = pty.openpty()

    def on_terminal() -> None:
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    home = short_path / "home"
    process = subprocess.Popen(
        [sys.executable, "-m", "trunkline", "up", "--home", str(home)],
        env={**os.environ, **NO_DEFAULT_PORTS},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=on_terminal,  # noqa: PLW1509  (this test has no other threads)
    )
    try:
        os.close(its)
        wait_until((home / "ready.json").exists, "ready")
        process.send_signal(signal.SIGHUP)
        said = b""
        while b"configuration read again" not in said:
            said += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
    assert not (home / "ready.json").exists()


def test_a_token_that_was_removed_is_replaced_at_the_next_start_and_opens_nothing_any_more(short_path: Path) -> None:
    with running(short_path / "home", '[ossa]\nlisten = ""\n') as exchange:
        old = exchange.token
        exchange.stop()
        (exchange.home / "operator.token").unlink()
        exchange.start()
        assert exchange.token != old
        assert exchange.request("GET", "/v1/status")[0] == 200
        assert exchange.request("GET", "/v1/status", token=old)[0] == 401
