"""Agents as processes: launched, watched, restarted; tokens that stay secret; nothing lost when the hub is killed."""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.requirement import requirement
from tests.running import RawAgent, Running, running, wait_until

AGENT = """
import os, sys, time, json
from trunkline import Agent

agent = Agent("com.test.worker", version="1.0.0")
LOG = os.environ.get("WORK_LOG", "")


@agent.tool(side_effects=False)
def whoami() -> dict:
    '''Who runs this.'''
    return {"pid": os.getpid(), "args": sys.argv, "env": sorted(os.environ), "ppid": os.getppid()}


@agent.tool(side_effects=False)
def die(code: int = 9) -> dict:
    '''End the whole process.'''
    os._exit(code)


@agent.tool(side_effects=True)
def write(n: int) -> dict:
    '''Write a line, once for each run of this tool.'''
    with open(LOG, "a") as file:
        file.write(f"{n}\\n")
    return {"n": n}


@agent.tool(side_effects=False)
def leak(text: str) -> dict:
    '''Print something, and give it back.'''
    print("printing", text, flush=True)
    return {"echo": text}


agent.run()
"""


def config(folder: Path, **env: str) -> str:
    script = folder / "worker.py"
    script.write_text(AGENT)
    return f"""
[[agent]]
id = "com.test.worker"
command = ["python", {json.dumps(str(script))}]
restart = "always"
isolation = "none"
env = {{ {", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())} }}
"""


@pytest.fixture
def worker(short_path: Path) -> Any:
    """An exchange with one launched agent."""
    with running(short_path / "home", config(short_path, WORK_LOG=str(short_path / "work.log"))) as exchange:
        exchange.wait_tool("com.test.worker/whoami")
        yield exchange


@requirement("OS-003", "OS-140", "OS-141")
def test_an_agent_is_a_process_of_its_own_and_gets_what_it_needs_by_environment(worker: Running) -> None:
    found = worker.call("com.test.worker/whoami")["output"]
    assert found["pid"] != worker.ready["pid"]
    assert not any("tlk_" in word for word in found["args"])
    assert "OPENSENTIENCE_SESSION_TOKEN" not in found["env"], "the SDK removes it once it is read"
    assert {
        "HOME",
        "LANG",
        "PATH",
        "OPENSENTIENCE_AGENT_ID",
        "OPENSENTIENCE_HOME",
        "OPENSENTIENCE_RUN_ID",
        "OPENSENTIENCE_SOCKET",
        "WORK_LOG",
    } >= set(found["env"]) - {"TZ", "LC_CTYPE"}
    for process in psutil.process_iter(["cmdline"]):
        assert not any("tlk_" in word for word in process.info["cmdline"] or ())


@requirement("OS-133", "OS-003")
def test_a_killed_agent_comes_back_and_the_exchange_stays_up(worker: Running) -> None:
    first = worker.call("com.test.worker/whoami")["output"]["pid"]
    os.kill(first, signal.SIGKILL)
    worker.wait_no_tool("com.test.worker/whoami")
    worker.wait_tool("com.test.worker/whoami")
    second = worker.call("com.test.worker/whoami")["output"]["pid"]
    assert second != first
    assert not psutil.pid_exists(first)


def test_a_read_only_call_that_kills_its_agent_ends_after_three_deliveries_and_the_tool_rests(worker: Running) -> None:
    answer = worker.call("com.test.worker/die")
    assert answer["status"] == "unknown"
    assert answer["error"]["code"] == "agent.lost"
    worker.wait_entry("call.settled", call_id=answer["call_id"])
    assert [entry["attempt"] for entry in worker.entries(kind="call.sent")] == [2, 3]
    worker.wait_tool("com.test.worker/whoami")
    assert worker.tools()["com.test.worker/die"]["status"] == "quarantined"
    assert worker.call("com.test.worker/die")["error"]["code"] == "tool.unavailable"


@requirement("OS-138", "OS-139")
def test_a_launch_token_is_worth_nothing_to_another_process(short_path: Path) -> None:
    thief = short_path / "thief.py"
    loot = short_path / "out" / "loot"
    loot.parent.mkdir()
    thief.write_text(
        f"import os, time\nopen({str(loot)!r}, 'w').write(os.environ['OPENSENTIENCE_SESSION_TOKEN'])\ntime.sleep(600)\n"
    )
    settings = f"""
[[agent]]
id = "com.test.victim"
command = ["python", {json.dumps(str(thief))}]
write = [{json.dumps(str(loot.parent))}]
"""
    with running(short_path / "home", settings) as exchange:
        token = wait_until(lambda: loot.exists() and loot.read_text(), "the stolen token")
        agent = RawAgent(exchange, "com.test.victim", token)
        assert agent.hello()["error"]["code"] == "protocol.unauthorized"
        refused = exchange.wait_entry("agent.refused", claimed="com.test.victim")
        assert "outside its run" in refused["reason"]
        assert token not in json.dumps(exchange.entries())


@requirement(
    "OS-002", "OS-066", "OS-136", "OS-137", "OS-142", "OS-143", "OS-150", "OS-113", "OS-115", "OS-102", "OS-151"
)
def test_no_secret_is_found_in_any_file(short_path: Path) -> None:
    planted = {
        "aws": "AKIA" + "Q3EGRPZ7VMXKD2TL",
        "github": "ghp_" + "a8Kd93jfQm20XnVb71LsPoTyRwEzUi45GhJc",
        "bearer": "Bearer " + "q7Gm2ZtXw9KcV4nB8sLd3RfYh6JpTe1U",
    }
    home = short_path / "home"
    with running(home, config(short_path)) as exchange:
        exchange.wait_tool("com.test.worker/leak")
        standing = exchange.new_token("com.test.other")
        operator = exchange.token
        secrets = [*planted.values(), standing, operator]
        for secret in secrets:
            answer = exchange.call("com.test.worker/leak", {"text": f"here: {secret}"}, correlation_id="talk")
            assert answer["output"] == {"echo": f"here: {secret}"}, "payloads are never altered on their way"
        raw = RawAgent(exchange, "com.test.other", standing)
        raw.hello("calls")
        raw.register({"name": "err", "side_effects": False})
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(exchange.call, "com.test.other/err", {"context": planted["github"]})
            call = raw.wait_for("core.tool.call")
            raw.send(
                "agent.tool.stream",
                {
                    "call_id": call["payload"]["call_id"],
                    "seq": 1,
                    "channel": "log",
                    "data": {"text": f"log {planted['aws']}"},
                },
                request_id=call["request_id"],
            )
            raw.result(call, "failed", error={"code": "tool.failed", "message": f"it said {planted['github']}"})
            asked.result(20)
        exchange.wait_entry("call.settled", status="failed")
        assert exchange.stop() == 0
    for path in [*home.rglob("*"), exchange.output]:
        if path.is_file() and path.name != "operator.token":
            data = path.read_bytes()
            for secret in secrets:
                assert secret.removeprefix("Bearer ").encode() not in data, f"{secret[:8]}… is in {path.name}"
    entries = json.dumps(exchange.entries())
    assert "[masked:" in entries


def _has(found: list[int], least: int) -> bool:
    return len(found) >= least


def test_after_kill_9_nothing_acknowledged_is_missing_and_nothing_ran_twice(short_path: Path) -> None:
    log = short_path / "work.log"
    log.touch()
    settings = config(short_path, WORK_LOG=str(log))
    exchange = Running(short_path / "home", settings)
    acknowledged: list[int] = []
    number = 0
    for _round in range(3):
        exchange.start()
        exchange.wait_tool("com.test.worker/write")

        def work(n: int) -> None:
            try:
                answer = exchange.call("com.test.worker/write", {"n": n}, idempotency_key=f"job-{n}")
            except (OSError, ValueError, http.client.HTTPException):  # the peer is gone
                return
            if answer.get("status") == "succeeded":
                acknowledged.append(n)

        with ThreadPoolExecutor(8) as pool:
            for n in range(number, number + 200):
                pool.submit(work, n)
            number += 200
            least = number - 150
            wait_until(functools.partial(_has, acknowledged, least), "some calls are acknowledged")
            exchange.kill()
    exchange.start()
    exchange.wait_tool("com.test.worker/write")
    settled = {e["call"]: e for e in exchange.entries(kind="call.settled")}
    by_key = {e["key"]: e for e in exchange.entries(kind="call.accepted")}
    for n in acknowledged:
        entry = by_key[f"job-{n}"]
        assert settled[entry["n"]]["status"] == "succeeded"
    lines = log.read_text().split()
    assert len(lines) == len(set(lines)), "a side effect ran twice"
    assert {str(n) for n in acknowledged} <= set(lines)
    # Whatever was open at the kill has its one outcome now; a repeat returns it and runs nothing.
    wait_until(lambda: not exchange.request("GET", "/v1/status")[1]["open_calls"], "every call has an outcome")
    for n in acknowledged[:20]:
        again = exchange.call("com.test.worker/write", {"n": n}, idempotency_key=f"job-{n}")
        assert again["status"] == "succeeded"
    assert len(log.read_text().split()) == len(lines)
    assert exchange.stop() == 0
    verified = subprocess.run(
        [sys.executable, "-m", "trunkline", "ledger", "verify", "--home", str(exchange.home)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr


class Family:
    """A launched agent with a child that left its session and does not want to end."""

    def __init__(self, folder: Path, isolation: str) -> None:
        script = folder / "family.py"
        script.write_text(
            "import subprocess, sys, time\n"
            "mark = sys.argv[1]\n"
            "deaf = 'import signal as s, time; s.signal(15, s.SIG_IGN); time.sleep(600)'\n"
            "subprocess.Popen([sys.executable, '-c', deaf, mark], start_new_session=True)\n"
            "time.sleep(600)\n"
        )
        self.mark = f"mark-{uuid.uuid4().hex}"
        command = json.dumps(["python", str(script), self.mark])
        settings = f'[[agent]]\nid = "com.test.family"\ncommand = {command}\n{isolation}\n'
        self.exchange = Running(folder / "home", settings).start()
        wait_until(lambda: len([words for words in self.living() if words[0] != "bwrap"]) == 2, "the child's child")

    def living(self) -> list[list[str]]:
        """Their command lines, those of a sandbox around them included."""
        found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        return [words for words in found if self.mark in words]


@pytest.mark.parametrize("isolation", ["", 'isolation = "none"'])
def test_no_process_is_left_after_kill_9_of_the_exchange(short_path: Path, isolation: str) -> None:
    family = Family(short_path, isolation)
    family.exchange.kill()
    wait_until(lambda: not family.living(), "nobody is left")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="only a namespace ends as a whole")
def test_no_process_of_a_sandbox_is_left_if_the_keeper_is_killed_in_the_same_blow(short_path: Path) -> None:
    family = Family(short_path, 'isolation = "sandbox"')
    assert family.exchange.process is not None
    exchange = psutil.Process(family.exchange.process.pid)
    (keeper,) = [child for child in exchange.children() if "trunkline.host.keeper" in child.cmdline()]
    for step in (signal.SIGSTOP, signal.SIGKILL):
        for process in (exchange, keeper):
            process.send_signal(step)
    family.exchange.process.wait(20)
    wait_until(lambda: not family.living(), "nobody is left")


def test_a_second_exchange_on_the_same_home_is_refused_at_once(worker: Running) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "trunkline", "up", "--home", str(worker.home)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 2
    assert "already" in second.stderr
    assert worker.call("com.test.worker/whoami")["status"] == "succeeded"


def test_a_bad_configuration_changes_nothing_and_says_why(worker: Running) -> None:
    good = worker.config_file.read_text()
    worker.config_file.write_text(good + "\n[htpp]\nlisten = 1\n")
    status, answer = worker.request("POST", "/v1/reload")
    assert status == 400
    assert "htpp" in answer["error"]["message"]
    assert worker.call("com.test.worker/whoami")["status"] == "succeeded"
    worker.config_file.write_text(good + '\n[[policy.rule]]\ncaller = "operator"\ntool = "*/leak"\ndecision = "deny"\n')
    assert worker.process is not None
    worker.process.send_signal(signal.SIGHUP)
    denied = wait_until(
        lambda: (a := worker.call("com.test.worker/leak", {"text": "x"}))["http"] == 403 and a, "the new rule"
    )
    assert denied["error"]["code"] == "policy.denied"
    assert "rule-1" in denied["error"]["message"]


def test_a_clean_stop_says_goodbye_and_leaves_no_process(worker: Running) -> None:
    raw = RawAgent(worker, "com.test.guest")
    raw.hello()
    pid = worker.call("com.test.worker/whoami")["output"]["pid"]
    assert worker.stop() == 0
    assert raw.wait_for("core.goodbye")["payload"]["reason"] == "shutdown"
    assert raw.receive() is None
    assert not psutil.pid_exists(pid)
    assert not (worker.home / "ready.json").exists()
    assert worker.entries()[-1]["kind"] == "exchange.stopped"
