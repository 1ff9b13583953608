"""Agents that are killed with -9 in the middle of a call, and what becomes of it (P-B11, P-B12).

Each agent is a process of its own that kills itself once it was given a call, and has written down that it was. The
next process of the same name finds what is left. ``make soak`` goes on with other seeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tests.running import RawAgent, Running, leash, running, started, wait_until

TOOLS: dict[str, dict[str, Any]] = {
    "read": {"side_effects": False},
    "known": {"side_effects": True, "capabilities": ["idempotency"]},
    "write": {"side_effects": True},
    "keyed": {"side_effects": True},
    "poison": {"side_effects": False},
}
# Calls that run at the same time; each agent has one.
AT_ONCE = 20


class _Address:
    """As much of an exchange as a raw agent in another process needs."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.ready = ready
        self.peers: list[object] = []


def live(ready: dict[str, Any], agent_id: str, token: str, diary: str, told: int, *, dies: bool) -> None:
    """An agent's life: to write each call down, and to die of it or to answer."""
    agent = RawAgent(_Address(ready), agent_id, token)  # type: ignore[arg-type]
    agent.hello()
    agent.register(*({"name": name, **terms} for name, terms in TOOLS.items()))
    agent.socket.settimeout(60)
    _tell(told, agent_id, "ready")
    while (message := agent.receive()) is not None:
        if message["type"] != "core.tool.call":
            continue
        file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{message['payload']['call_id']} {message['payload'].get('idempotency_key')}\n".encode())
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(file)
        agent.result(message, output={"by": os.getpid()})


def _tell(told: int, agent_id: str, what: object) -> None:
    os.write(told, json.dumps([agent_id, what]).encode() + b"\n")


def nurse() -> None:
    """Fork an agent for each line of standard input; say when it is ready, and how it ended. Ends all at the end."""
    children: dict[int, str] = {}
    unread = b""
    while True:
        readable = select.select([0], [], [], 0.01)[0]
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _tell(1, children.pop(ended[0]), os.waitstatus_to_exitcode(ended[1]))
        if not readable:
            continue
        more = os.read(0, 65536)
        if not more:
            break
        *lines, unread = (unread + more).split(b"\n")
        for wanted in map(json.loads, lines):
            child = os.fork()
            if child == 0:
                try:
                    live(**wanted, told=1)
                finally:
                    os._exit(0)
            children[child] = wanted["agent_id"]
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Nursery:
    """The process that has the agents: it forks them, so that each costs a millisecond and no thread is forked."""

    def __init__(self) -> None:
        command = [*leash(), sys.executable, "-c", "import tests.delivery.lost as lost; lost.nurse()"]
        self._process = started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._heard: dict[str, queue.Queue[object]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            agent_id, what = json.loads(line)
            self._heard[agent_id].put(what)

    def start(self, agent_id: str, **terms: Any) -> None:
        """A process of this agent, admitted and registered."""
        self._heard.setdefault(agent_id, queue.Queue())
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"agent_id": agent_id, **terms}).encode() + b"\n")
            self._process.stdin.flush()
        assert self.heard(agent_id) == "ready"

    def heard(self, agent_id: str) -> object:
        """The next thing that is told of an agent: ``ready``, its exit code, or nothing for 20 s."""
        with contextlib.suppress(queue.Empty):
            return self._heard[agent_id].get(timeout=20)
        return "nothing"


class Case:
    """One agent, one call, and the deaths on its way."""

    def __init__(self, exchange: Running, nursery: Nursery, folder: Path, number: int, kind: str) -> None:
        self.exchange = exchange
        self.nursery = nursery
        self.kind = kind
        # Who recognises repeats is given a key of ours if the caller gave none: tried both ways.
        self.gives_key = kind == "keyed" or (kind == "known" and number % 2 == 0)
        self.agent_id = f"lost.{number}"
        self.tool_id = f"{self.agent_id}/{kind}"
        self.token = exchange.new_token(self.agent_id)
        self.diary = folder / f"{number}.diary"

    def start(self, *, dies: bool) -> None:
        terms = {"ready": self.exchange.ready, "token": self.token, "diary": str(self.diary), "dies": dies}
        self.nursery.start(self.agent_id, **terms)

    def lines(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    def run(self) -> int:
        """Play it; how many agents were killed."""
        deaths = 3 if self.kind == "poison" else 1
        key = self.agent_id if self.gives_key else None
        self.start(dies=True)
        fields = {} if key is None else {"idempotency_key": key}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.exchange.call, self.tool_id, {"n": 1}, **fields)
            for death in range(deaths):
                ended = self.nursery.heard(self.agent_id)
                assert ended == -signal.SIGKILL, f"{self.tool_id}: {ended}, {asked}, {self.lines()}"
                self.start(dies=death + 1 < deaths)
            answer = asked.result(40)
        self.judge(answer, key)
        return deaths

    def judge(self, answer: dict[str, Any], key: str | None) -> None:
        said, names = answer["status"], self.lines()
        if self.kind in {"read", "known"}:
            # Sent again, under the same id and the same key.
            assert said == "succeeded", answer
            key = answer["call_id"] if key is None and self.kind == "known" else key
            assert names == [f"{answer['call_id']} {key}"] * 2
            return
        assert (said, answer["error"]["code"], answer["error"]["retryable"]) == ("unknown", "agent.lost", False), answer
        assert names == [f"{answer['call_id']} {key}"] * (3 if self.kind == "poison" else 1)
        if self.kind == "poison":
            assert self.exchange.tools()[self.tool_id]["status"] == "quarantined"
            refused = self.exchange.call(self.tool_id, {"n": 2})
            assert (refused["http"], refused["error"]["code"]) == (503, "tool.unavailable")
            # Only this tool rests.
            assert self.exchange.call(f"{self.agent_id}/read")["status"] == "succeeded"
        elif self.kind == "keyed":
            again = self.exchange.call(self.tool_id, {"n": 1}, idempotency_key=key)
            assert (again["call_id"], again["status"]) == (answer["call_id"], "unknown")
        assert sum(line.startswith(answer["call_id"]) for line in self.lines()) == len(names), "it ran again"


def trial(folder: Path, seed: int, kinds: dict[str, int]) -> int:
    """Play so many cases of each kind on one exchange, in a random order; how many agents were killed."""
    order = [kind for kind, count in kinds.items() for _ in range(count)]
    random.Random(seed).shuffle(order)
    with running(folder / "home") as exchange, Nursery() as nursery, ThreadPoolExecutor(AT_ONCE) as pool:
        cases = [Case(exchange, nursery, folder, number, kind) for number, kind in enumerate(order)]
        killed = sum(pool.map(Case.run, cases))
        wait_until(lambda: not exchange.request("GET", "/v1/status")[1]["open_calls"], "no call is left open")

        def called(kind: str) -> list[str]:
            return sorted(entry["call_id"] for entry in exchange.entries(kind=kind))

        # What only reads is answered before it is on disk.
        wait_until(lambda: called("call.accepted") == called("call.settled"), "each call has one outcome")
    return killed
