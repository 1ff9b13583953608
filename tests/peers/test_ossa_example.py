"""The example that keeps stock, as a user starts it: what it was told holds across kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.running import EXAMPLES, WAIT_S, Running, leash, running, wait_until

CONFIG = '[ossa]\nlisten = "127.0.0.1:0"\n'


def started(exchange: Running, folder: Path) -> subprocess.Popen[bytes]:
    variables = {
        **os.environ,
        "TRUNKLINE_HOME": str(exchange.home),
        "OSSA_IDENTITY": str(folder / "stock.json"),
        "STOCK": str(folder / "stock.sqlite"),
    }
    command = [*leash(), sys.executable, str(EXAMPLES / "ossa_stock.py")]
    return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)


def deliver(exchange: Running, count: int) -> None:
    event = {"topic": "stock.delivered", "payload": {"item": "tea", "count": count}, "qos": 2}
    assert exchange.call("trunkline/publish", event)["status"] == "succeeded"


def count(exchange: Running) -> Any:
    answer = exchange.call("stock/count", {"item": "tea"})
    return answer["output"]["count"] if answer.get("status") == "succeeded" else None


def test_what_the_example_was_told_happens_once_though_it_was_killed(tmp_path: Path) -> None:
    with running(tmp_path / "home", CONFIG) as exchange:
        status, keys = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": "stock", "type": "worker"})
        assert status == 201
        (tmp_path / "stock.json").touch(0o600)
        (tmp_path / "stock.json").write_text(json.dumps(keys))
        agent = started(exchange, tmp_path)
        try:
            exchange.wait_tool("stock/count")
            # It subscribes after it has registered: what is published before is not for it.
            wait_until(lambda: exchange.entries(kind="topic.subscribed"), "it has subscribed")
            deliver(exchange, 5)
            wait_until(lambda: count(exchange) == 5, "it knows of the delivery")
            assert exchange.call("stock/reserve", {"item": "tea", "count": 2})["output"] == {"item": "tea", "left": 3}
            agent.kill()
            agent.wait(WAIT_S)
            deliver(exchange, 4)
            agent = started(exchange, tmp_path)
            wait_until(lambda: count(exchange) == 7, "it knows of the delivery that it missed")
            refused = exchange.call("stock/reserve", {"item": "tea", "count": 8})
            assert (refused["status"], refused["error"]["message"]) == ("failed", "there are 7")
            agent.terminate()
            assert agent.wait(WAIT_S) == 0
        finally:
            agent.kill()
            agent.wait()
