"""P-A10: told to stop under load. No new calls, what runs may finish, everybody hears goodbye, no process is left."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import psutil
import pytest
from websockets.sync.client import connect

from tests.crash.crowd import CONFIG, Crowd
from tests.running import RawAgent, Running, wait_until
from trunkline.host.up import DRAIN_S
from trunkline.ledger.verify import verify

RUNS = 5
# The drain ends as soon as nothing runs; then goodbyes, agents' processes, and the ledger's last commit.
STOPPED_WITHIN_S = DRAIN_S + 10
# A launched agent with a child that does not want to end.
FAMILY = """
import subprocess, sys
from trunkline import Agent
deaf = "import signal as s, time; s.signal(15, s.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
agent = Agent("com.test.family", version="1.0.0")

@agent.tool(side_effects=False)
def count() -> dict:
    '''A tool.'''
    return {}

agent.run()
"""


@pytest.mark.timeout(180)
def test_a_stop_under_load_loses_nothing_and_leaves_nobody(short_path: Path) -> None:
    assert clean_stops(short_path, 7, RUNS) == RUNS


def clean_stops(folder: Path, seed: int, runs: int) -> int:
    """Start, load and stop one exchange so many times."""
    rng = Random(seed)
    script = folder / "family.py"
    script.write_text(FAMILY)
    launched = (
        f'\n[[agent]]\nid = "com.test.family"\ncommand = ["python", {json.dumps(str(script))}]\nstop_grace_s = 0.5\n'
    )
    exchange = Running(folder / "home", CONFIG + launched)
    crowd: Crowd | None = None
    for _ in range(runs):
        exchange.start()
        exchange.wait_tool("com.test.family/count")
        crowd = crowd or Crowd(exchange, rng, workers=4, callers=8, clients=2)
        family = wait_until(lambda: _family(exchange, 4), "writer, keeper, agent and its child")
        taken = asyncio.run(stop_under_load(exchange, crowd, rng.uniform(0.2, 1.0)))
        assert taken < STOPPED_WITHIN_S
        orphans = [psutil.Process(pid).name() for pid in family if psutil.pid_exists(pid)]
        assert not orphans
        unheard = [a.agent_id for a in (*crowd.workers, *crowd.callers) if a.is_welcome and not a.heard_goodbye]
        assert not unheard, "no goodbye"
        judge(exchange, crowd)
    assert crowd is not None
    assert len(crowd.answers) > 20 * runs
    assert crowd.refused.keys() <= {"hub.unavailable", "tool.not_found", "tool.unavailable"}
    return runs


def _family(exchange: Running, least: int) -> list[int]:
    assert exchange.process is not None
    found = psutil.Process(exchange.process.pid).children(recursive=True)
    return [process.pid for process in found] if len(found) >= least else []


async def stop_under_load(exchange: Running, crowd: Crowd, seconds: float) -> float:
    crowd.start(interval_s=0.04)
    await asyncio.sleep(seconds)
    started = time.monotonic()
    assert await asyncio.to_thread(exchange.stop) == 0
    taken = time.monotonic() - started
    await crowd.wait_gone()
    return taken


def judge(exchange: Running, crowd: Crowd) -> None:
    verify(exchange.home / "ledger.sqlite")
    assert exchange.entries()[-1]["kind"] == "exchange.stopped"
    assert "open_calls" not in exchange.entries()[-1], "calls were left"
    accepted = {entry["call_id"] for entry in exchange.entries(kind="call.accepted")}
    settled = {entry["call_id"]: entry for entry in exchange.entries(kind="call.settled")}
    assert accepted == settled.keys()
    told = {answer.call_id: answer for answer in crowd.answers}
    assert told.keys() <= settled.keys(), "acknowledged and lost"
    silent = [entry for call_id, entry in settled.items() if call_id not in told]
    assert not silent, f"{len(silent)} calls ended and nobody was told, such as {silent[0]}"


def test_a_call_that_does_not_end_holds_the_stop_for_ten_seconds_and_no_longer(short_path: Path) -> None:
    exchange = Running(short_path / "home").start()
    agent = RawAgent(exchange, "com.test.slow")
    agent.hello()
    agent.register({"name": "sleep"})
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(exchange.call, "com.test.slow/sleep")
        call = agent.wait_for("core.tool.call")
        started = time.monotonic()
        stopping = pool.submit(exchange.stop)
        # Whether calls are taken at all is judged before whether there is such a tool.
        wait_until(
            lambda: exchange.call("com.test.slow/nothing")["error"]["code"] == "hub.unavailable", "calls are refused"
        )
        goodbye = agent.wait_for("core.goodbye")
        assert goodbye["payload"]["reason"] == "shutdown"
        assert time.monotonic() - started >= DRAIN_S
        assert stopping.result(20) == 0
        assert time.monotonic() - started < STOPPED_WITHIN_S
        # The agent was told to go, so nobody can say whether it took effect.
        answer = asked.result(20)
    agent.close()
    assert answer["call_id"] == call["payload"]["call_id"]
    assert (answer["status"], answer["error"]["code"]) == ("unknown", "agent.lost")
    (settled,) = exchange.entries(kind="call.settled")
    assert (settled["call_id"], settled["status"]) == (answer["call_id"], "unknown")
    assert "open_calls" not in exchange.entries()[-1]


def test_peers_that_do_not_read_do_not_hold_the_stop(short_path: Path) -> None:
    """An agent that closed its side, and a WebSocket, with more on the way to each than its socket takes."""
    exchange = Running(short_path / "home").start()
    agent = RawAgent(exchange, "com.test.half")
    agent.hello()
    agent.register({"name": "t", "side_effects": False})
    status, made = exchange.request("POST", "/v1/tokens", {"edge": "chiffon", "agent": "infra-1", "type": "infra"})
    assert status == 201
    address = exchange.ready["http"].replace("http://", "ws://")
    headers = {"authorization": f"Bearer {made['token']}"}
    # Nothing is read ahead: what is not received here stays in the sockets' buffers, and then in the exchange.
    with connect(f"{address}/api/agent/ws", additional_headers=headers, max_queue=1, close_timeout=0.1) as deaf:
        registration = {"agent_id": "infra-1", "agent_type": "infra", "work_types": ["greet"]}
        deaf.send(json.dumps({**registration, "supported_versions": ["1.0"]}))
        assert json.loads(deaf.recv(timeout=20))["registered"]
        for _ in range(12):
            for tool in ("com.test.half/t", "infra-1/greet"):
                exchange.call(tool, {"x": "y" * 900_000}, wait=False, timeout_ms=500)
        agent.socket.shutdown(socket.SHUT_WR)
        started = time.monotonic()
        assert exchange.stop() == 0
        assert time.monotonic() - started < STOPPED_WITHIN_S
    agent.close()
    assert exchange.entries()[-1]["kind"] == "exchange.stopped"
