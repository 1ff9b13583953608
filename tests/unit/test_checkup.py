"""What ``trunkline doctor`` finds: each thing that is not well is named, with what to do."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.ledger.made import change, in_process, noticed
from trunkline import checkup
from trunkline.checkup import Finding, RunningExchange, findings
from trunkline.home import Home
from trunkline.host import isolation
from trunkline.host.isolation import Sandbox


@pytest.fixture
def home(short_path: Path) -> Home:
    made = Home(short_path)
    made.create()
    return made


@pytest.fixture
def recorded(home: Home) -> Home:
    """With three entries on record."""
    with in_process(home.path) as made:
        made.add(noticed, noticed, noticed)
    return home


@pytest.fixture(autouse=True)
def sandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a sandbox takes a second; what is made of its result is seen without one."""
    monkeypatch.setattr(isolation, "probe", lambda: Sandbox("bubblewrap"))


def found(home: Home, config: str = "", exchange: RunningExchange | None = None) -> dict[str, list[Finding]]:
    home.config_file.write_text(config or '[http]\nlisten = "127.0.0.1:0"\n[ossa]\nlisten = ""\n')
    by_name: dict[str, list[Finding]] = {}
    for finding in findings(home, None, {}, exchange, "not running"):
        by_name.setdefault(finding.name, []).append(finding)
    return by_name


def problems(all_found: dict[str, list[Finding]]) -> list[str]:
    return [one.name for several in all_found.values() for one in several if one.state == "problem"]


def test_a_fresh_home_has_no_problem(home: Home) -> None:
    all_found = found(home)
    assert problems(all_found) == []
    assert all_found["record"][0].state == "off"
    assert all_found["exchange"][0].text == "not running"


def test_a_home_that_is_not_there_is_no_problem_and_its_disk_is_looked_at(short_path: Path) -> None:
    missing = Home(short_path / "a" / "b")
    names = {one.name: one for one in findings(missing, None, {}, None, "")}
    assert names["home"].state == "off"
    assert names["disk"].state == "ok"


def test_a_home_that_others_can_write_to_is_a_problem(home: Home) -> None:
    home.path.chmod(0o777)
    assert "chmod 700" in found(home)["home"][0].text


def test_a_token_that_others_can_read_is_a_problem(home: Home) -> None:
    home.operator_token_file.write_text("tlk_" + "x" * 40)
    home.operator_token_file.chmod(0o644)
    assert problems(found(home)) == ["home"]


@pytest.mark.parametrize(("free", "state"), [(10, "problem"), (100_000_000, "warning"), (10**12, "ok")])
def test_the_room_on_the_disk_is_judged_by_what_the_exchange_needs(
    home: Home, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    usage = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=10**13, f_favail=5, f_files=9)
    monkeypatch.setattr(checkup.os, "statvfs", lambda _: usage)
    assert found(home)["disk"][0].state == state


def test_a_configuration_that_cannot_be_used_is_named_with_its_line_and_the_rest_is_still_looked_at(home: Home) -> None:
    all_found = found(home, "[http]\nlisten = 5\n")
    assert problems(all_found) == ["configuration"]
    assert "listen" in all_found["configuration"][0].text
    assert "sandbox" in all_found


def test_settings_of_the_environment_are_named_and_hold(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        environ = {"TRUNKLINE_HTTP_LISTEN": address, "TRUNKLINE_SERVICE_HOST": "x"}
        names = [(one.name, one) for one in findings(Home(short_path), None, environ, None, "")]
    configuration = next(one for name, one in names if name == "configuration")
    assert configuration.text == "TRUNKLINE_HTTP_LISTEN of the environment"
    assert any(one.state == "problem" and address in one.text for name, one in names if name == "port")


def test_a_port_that_is_taken_is_a_problem_where_it_was_asked_for(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        all_found = found(
            home, f'[http]\nlisten = "{address}"\n[ossa]\nlisten = ""\n[nostr]\nrelay = ""\n[pylon]\nlisten = ""\n'
        )
    [port] = all_found["port"]
    assert port.state == "problem"
    assert address in port.text


def test_an_agent_whose_program_is_missing_is_a_problem(home: Home) -> None:
    agent = '[http]\nlisten = "127.0.0.1:0"\n[[agent]]\nid = "com.x"\ncommand = ["no-such-program"]\n'
    [one] = found(home, agent)["agent"]
    assert one.state == "problem"
    assert "'no-such-program' is not in PATH" in one.text


def test_a_mounted_server_whose_program_or_secret_is_missing_is_a_problem(home: Home) -> None:
    config = (
        '[http]\nlisten = "127.0.0.1:0"\n[[mcp]]\nid = "a"\ncommand = ["no-such-program"]\n'
        '[[mcp]]\nid = "b"\nurl = "https://mcp.example/"\nheaders = {A = "env:NOBODY_SET_THIS"}\n'
        '[[mcp]]\nid = "c"\ncommand = ["sh"]\nenv = {A = "keyring:is-not-asked"}\n'
        '[[mcp]]\nid = "d"\nurl = "https://mcp.example/"\n'
    )
    told = found(home, config)["agent"]
    assert [one.state for one in told] == ["problem", "problem", "ok", "ok"]
    assert "mcp.a: the command 'no-such-program' is not in PATH" in told[0].text
    assert "mcp.b: a secret is missing: A: the variable NOBODY_SET_THIS is not set" in told[1].text


def test_a_broker_that_nobody_answers_for_is_a_problem_and_its_password_is_not_shown(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = f'[http]\nlisten = "127.0.0.1:0"\n[chiffon]\nnats = "nats://me:secret@127.0.0.1:{port}"\n'
    [broker] = found(home, config)["broker"]
    assert broker.state == "problem"
    assert f"127.0.0.1:{port}" in broker.text
    assert "secret" not in broker.text


def test_a_broker_that_listens_is_well(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        config = f'[http]\nlisten = "127.0.0.1:0"\n[chiffon]\nnats = "nats://127.0.0.1:{port}"\n'
        assert found(home, config)["broker"][0].state == "ok"


def test_a_record_that_is_whole_is_proved_and_counted(recorded: Home) -> None:
    [record] = found(recorded)["record"]
    assert record.state == "ok"
    assert record.text.startswith("whole: 3 entries, ")


def test_a_changed_entry_is_a_problem_that_names_the_entry_and_the_page(recorded: Home) -> None:
    change(recorded.ledger_file, "UPDATE entries SET data = CAST(replace(data, 'here', 'herf') AS BLOB) WHERE n = 2")
    [record] = found(recorded)["record"]
    assert record.state == "problem"
    assert record.text.startswith("entry 2")
    assert "docs/operations.md" in record.advice


def test_a_record_without_its_key_is_a_problem(recorded: Home) -> None:
    (recorded.keys_folder / "ledger.key").unlink()
    assert "keys" in problems(found(recorded))


def test_a_clock_behind_the_record_is_a_problem(home: Home) -> None:
    with in_process(home.path) as made:
        made.add(noticed(1, at=int(time.time() + 3600) * 1000))
    [clock] = found(home)["clock"]
    assert clock.state == "problem"
    assert "before the newest entry" in clock.text


def test_where_no_sandbox_holds_there_is_a_warning_with_the_reason(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "probe", lambda: Sandbox(None, why_not="bwrap is not installed"))
    agents = found(home)["sandbox"][0]
    assert agents.state == "warning"
    assert "bwrap is not installed" in agents.text


def test_a_running_exchange_is_asked_instead_of_its_ports(home: Home) -> None:
    figures = {
        "edges": {
            "ossa": {"state": "off", "note": "its port is taken"},
            "chiffon": {"state": "on", "broker": "away"},
            "jobs": {"state": "on", "note": "no sandbox", "not_installed": "an extra is missing"},
        },
        "warnings": ["[nostr] has no effect", "rule-3: no tool here is called x", "HTTP_PROXY is not followed"],
        "defects": 2,
    }
    agents = [{"agent_id": "com.x", "state": "crashed", "note": "ended with 1"}]
    agents.append({"agent_id": "mcp.by-address", "state": "backoff", "note": "nobody answers"})
    (home.logs_folder / "com.x").mkdir(parents=True)
    exchange = RunningExchange({"pid": os.getpid(), "http": "http://127.0.0.1:1"}, figures, agents)
    config = '[http]\nlisten = "127.0.0.1:0"\n[chiffon]\nnats = "nats://127.0.0.1:1"\n'
    all_found = found(home, config, exchange)
    assert "port" not in all_found
    assert all_found["ossa"][0] == Finding("ossa", "off", "its port is taken")
    assert all_found["broker"][0] == Finding("broker", "problem", "away: nats://127.0.0.1:1")
    assert all_found["agent"][0] == Finding("agent", "problem", "com.x: ended with 1", "`trunkline logs com.x`")
    assert all_found["agent"][1].advice == "", "it has no log"
    assert [one.state for one in all_found["jobs"]] == ["warning", "off"]
    assert all_found["policy"] == [Finding("policy", "warning", "rule-3: no tool here is called x")]
    assert all_found["configuration"][1] == Finding("configuration", "warning", "[nostr] has no effect")
    assert all_found["exchange"][1] == Finding("exchange", "warning", "HTTP_PROXY is not followed")
    assert "warning" not in all_found
    assert all_found["defects"][0].state == "warning"
