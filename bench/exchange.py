"""A real exchange for the run: ``trunkline up`` in a home of its own, with all checks on.

Owns the home and the exchange's process; speaks HTTP with it as the operator. Two rules let the run's own callers call
tools with side effects, on the socket and over HTTP; everything else is as it comes.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.children import START_S, Child, Children, Failed, child_of
from bench.loads import Identity

# An exchange that folds a million entries without a snapshot, on a busy machine.
READY_S: Final = 180.0
QUIET_S: Final = 60.0
_POLL_S: Final = 0.005

_CONFIG: Final = """\
[http]
listen = "127.0.0.1:0"

[[policy.rule]]
caller = "agent:bench.*"
tool = "bench.*"
decision = "allow"

[[policy.rule]]
caller = "http:bench.*"
tool = "bench.*"
decision = "allow"
"""


class Exchange:
    """One running exchange."""

    def __init__(
        self, children: Children, home: Path, name: str = "exchange", config: str = "", program: str = "trunkline"
    ) -> None:
        self.home = home
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "trunkline.toml").write_text(_CONFIG + config)
        begun = time.monotonic()
        self.child: Child = children.start(name, sys.executable, "-m", program, "up", "--home", str(home))
        self._ready = self._wait_ready()
        # From the start of the process until it can be called.
        self.start_s: Final = time.monotonic() - begun
        self.writer_pid: Final = child_of(self.pid, "trunkline.ledger.writer_process")

    def _wait_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + READY_S
        file = self.home / "ready.json"
        while not file.exists():
            if self.child.has_ended() or time.monotonic() > deadline:
                raise self.child.failure("it did not come up")
            time.sleep(_POLL_S)
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    @property
    def pid(self) -> int:
        """The exchange's process, without its writer."""
        return self.child.pid

    @property
    def socket(self) -> str:
        """Where agents connect."""
        return str(self._ready["socket"])

    @property
    def address(self) -> str:
        """Host and port of its HTTP."""
        return str(self._ready["http"]).removeprefix("http://")

    def ready(self, name: str) -> str:
        """What it says of itself in ``ready.json``."""
        return str(self._ready[name])

    def identities(self, *agents: str) -> tuple[Identity, ...]:
        """Standing tokens for agents of these names."""
        with self.operator() as operator:
            return tuple(Identity(agent, operator.token("opensentience", agent)) for agent in agents)

    def http_token(self, caller: str) -> str:
        """A standing token for a caller of this name over HTTP."""
        with self.operator() as operator:
            return operator.token("http", caller)

    def status(self) -> dict[str, Any]:
        """Its own figures."""
        with self.operator() as operator:
            return operator.ask("GET", "/v1/status")

    def wait_quiet(self) -> float:
        """Wait until everything is on the disk; for how long."""
        begun = time.monotonic()
        if not self.status()["backlog"]:
            return 0.0
        while self.status()["backlog"]:
            if time.monotonic() > begun + QUIET_S:
                raise self.child.failure("its entries do not reach the disk")
            time.sleep(_POLL_S)
        return time.monotonic() - begun

    def wait_open_calls(self, count: int) -> None:
        """Wait until so many calls are in flight."""
        deadline = time.monotonic() + START_S
        while (found := sum(self.status()["open_calls"].values())) != count:
            if time.monotonic() > deadline:
                raise self.child.failure(f"{found} calls are open instead of {count}")
            time.sleep(_POLL_S)

    @contextmanager
    def operator(self, within_s: float = START_S) -> Iterator[Operator]:
        """A connection as the operator; each answer has to come within this."""
        connection = http.client.HTTPConnection(self.address, timeout=within_s)
        try:
            yield Operator(self.child, connection, (self.home / "operator.token").read_text().strip())
        finally:
            connection.close()


class Operator:
    """Asks one thing after the other."""

    def __init__(self, exchange: Child, connection: http.client.HTTPConnection, token: str) -> None:
        self._exchange = exchange
        self._connection = connection
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer; anything but a good one ends the run."""
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise self.failure(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        found: dict[str, Any] = json.loads(text)
        return found

    def token(self, edge: str, agent: str) -> str:
        """A new standing token."""
        made = self.ask("POST", "/v1/tokens", {"edge": edge, "agent": agent})
        return str(made["token"])

    def failure(self, why: str) -> Failed:
        """What to raise, with the last that the exchange printed."""
        return self._exchange.failure(why)
