"""A real exchange in its own process, and small clients for it: what end-to-end tests stand on.

Every wait is bounded; nothing here sleeps to make an order come true.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.forked import Forked, can_start

WAIT_S = 20.0
# An exchange that starts on a machine with other things to do: a second or two where it has none.
READY_S = 60.0
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def contents(*places: Path) -> dict[Path, bytes]:
    """What is in these files and in those below these folders. The exchange may run: what it took away meanwhile is
    left out. Nor is what it sets aside for a full disk, 16 MiB of zeros.
    """
    found: dict[Path, bytes] = {}
    for path in (one for place in places for one in (place, *place.rglob("*"))):
        with suppress(FileNotFoundError):
            if path.is_file() and path.name != "ledger.reserve":
                found[path] = path.read_bytes()
    return found


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Ask again and again, for a bounded time, until the answer is true; the answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for: {what}")
        time.sleep(0.01)


def leash() -> tuple[str, ...]:
    """Words before a command: the same process, but killed as soon as the thread that started it ends, whatever ends
    it. A test that is stopped from outside has no chance to clean up.
    """
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9)\n"
        "if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return (sys.executable, "-E", "-S", "-c", code, str(os.getpid()))


# The thread that starts leashed processes: it lives as long as we do, whoever calls.
_starter = ThreadPoolExecutor(1)


def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    return _starter.submit(start).result()


# Listeners with a default port, which only one exchange at a time could have.
LISTENERS = {"ossa": "listen", "nostr": "relay", "pylon": "listen"}


# The same for whoever starts one by hand, with a free port for HTTP.
NO_DEFAULT_PORTS = {
    "TRUNKLINE_HTTP_LISTEN": "127.0.0.1:0",
    **{f"TRUNKLINE_{name}_{key}".upper(): "" for name, key in LISTENERS.items()},
}


def _without_default_ports(config: str) -> str:
    """What turns off each of them that this configuration does not mention."""
    return "".join(f'\n[{name}]\n{key} = ""\n' for name, key in LISTENERS.items() if f"[{name}" not in config)


class Running:
    """One exchange process in its own home folder."""

    def __init__(
        self, home: Path, config: str = "", *, env: dict[str, str] | None = None, under: tuple[str, ...] = ()
    ) -> None:
        self.home = home
        # A command that runs the rest of its line in the same process: `strace -D …`, `nice …`.
        self.under = under
        home.mkdir(mode=0o700, exist_ok=True)
        self.config_file = home / "trunkline.toml"
        self.config_file.write_text('[http]\nlisten = "127.0.0.1:0"\n' + config + _without_default_ports(config))
        self.env = {**os.environ, **(env or {})}
        # Of `up`, besides the home.
        self.flags: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.ready: dict[str, Any] = {}
        self.output = home.parent / f"{home.name}.stderr"
        # Raw agents' sockets; closed when the block ends.
        self.peers: list[socket.socket] = []

    def __del__(self) -> None:
        """Where no block ends: a socket that is left open would fail whichever test runs when it is found."""
        for peer in getattr(self, "peers", ()):
            peer.close()

    def start(self) -> Running:
        """Up and ready."""
        words = ["up", "--home", str(self.home), *self.flags]
        with self.output.open("ab") as output:
            if not self.under and can_start(self.env):
                self.process = Forked(words, self.env, output.fileno())
            else:
                self.process = started(
                    [*leash(), *self.under, sys.executable, "-m", "trunkline", *words],
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
        self.ready = wait_until(self._ready, f"ready.json of {self.home}; it said: {self.said()}", READY_S)
        return self

    def _ready(self) -> dict[str, Any] | None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the exchange ended with {self.process.returncode}: {self.said()}")
        try:
            found: dict[str, Any] = json.loads((self.home / "ready.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found if found["pid"] == self.process.pid else None

    def said(self) -> str:
        """What it printed so far."""
        return self.output.read_text() if self.output.exists() else ""

    def stop(self) -> int:
        """Told to stop; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S + 10)

    def kill(self) -> None:
        """Killed with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)

    @property
    def token(self) -> str:
        """The operator's bearer token."""
        return (self.home / "operator.token").read_text().strip()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One HTTP request: status and decoded body."""
        address = self.ready["http"].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=WAIT_S + 40)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={
                    "Authorization": f"Bearer {self.token if token is None else token}",
                    "Content-Type": "application/json",
                    **(headers or {}),
                },
            )
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get("content-type", "").partition(";")[0]
        return answer.status, json.loads(data) if kind == "application/json" and data else data.decode()

    def call(self, tool_id: str, value: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """One call by the operator; the answer, whatever its HTTP status (under ``http``)."""
        status, answer = self.request("POST", "/v1/calls", {"tool_id": tool_id, "input": value or {}, **fields})
        return {"http": status, **answer}

    def tools(self) -> dict[str, dict[str, Any]]:
        """All tools by id."""
        return {tool["tool_id"]: tool for tool in self.request("GET", "/v1/tools")[1]["tools"]}

    def wait_tool(self, tool_id: str, status: str = "available") -> dict[str, Any]:
        """Bounded wait for a tool to have this status."""
        found: dict[str, Any] = wait_until(
            lambda: (tool := self.tools().get(tool_id)) and tool["status"] == status and tool, f"{tool_id} {status}"
        )
        return found

    def wait_no_tool(self, tool_id: str) -> None:
        """Bounded wait for a tool not to be callable."""
        wait_until(lambda: self.tools().get(tool_id, {}).get("status") != "available", f"{tool_id} gone")

    def new_token(self, agent: str, edge: str = "opensentience", permissions: tuple[str, ...] = ()) -> str:
        """A standing token for an agent."""
        status, answer = self.request(
            "POST", "/v1/tokens", {"edge": edge, "agent": agent, "permissions": list(permissions)}
        )
        assert status in (200, 201), answer
        return str(answer["token"])

    def entries(self, **query: str) -> list[dict[str, Any]]:
        """All entries on disk, read with nothing of ours but the file. What is on its way there is waited for."""
        import apsw

        if self.process is not None and self.process.poll() is None:
            # One that cannot answer, or whose disk has failed, has nothing on its way.
            with contextlib.suppress(OSError, http.client.HTTPException, KeyError, AssertionError):
                wait_until(lambda: self.request("GET", "/v1/status")[1]["backlog"] == 0, "the disk", 5.0)
        connection = apsw.Connection(str(self.home / "ledger.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = connection.execute("select data from entries where data is not null order by n").fetchall()
        finally:
            connection.close()
        found = [json.loads(bytes(row[0])) for row in rows]  # type: ignore[arg-type]
        return [entry for entry in found if all(entry.get(name) == value for name, value in query.items())]

    def wait_entry(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Bounded wait for an entry on disk."""

        def find() -> dict[str, Any] | None:
            matching = [e for e in self.entries(kind=kind) if all(e.get(k) == v for k, v in fields.items())]
            return matching[-1] if matching else None

        found: dict[str, Any] = wait_until(find, f"entry {kind} {fields}")
        return found


def running(home: Path, config: str = "", **options: Any) -> AbstractContextManager[Running]:
    """An exchange for the length of a block; stopped at the end if it still runs."""
    return running_one(Running(home, config, **options))


@contextmanager
def running_one(exchange: Running) -> Iterator[Running]:
    """The same for one that is made already."""
    try:
        yield exchange.start()
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.stop()
        for peer in exchange.peers:
            peer.close()


class RawAgent:
    """An agent made of a socket and the specification: no code of ours between it and the wire."""

    def __init__(self, exchange: Running, agent_id: str, token: str | None = None, *, tcp: bool = False) -> None:
        self.agent_id = agent_id
        self.token = exchange.new_token(agent_id) if token is None else token
        if tcp:
            host, _, port = exchange.ready["tcp"].rpartition(":")
            self.socket = socket.create_connection((host.removeprefix("tcp://"), int(port)), timeout=WAIT_S)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(WAIT_S)
            self.socket.connect(exchange.ready["socket"])
        exchange.peers.append(self.socket)
        self.buffer = b""
        self.session_id = ""

    def send(self, kind: str, payload: dict[str, Any], **envelope: Any) -> str:
        """One message; its id."""
        message_id = str(uuid.uuid4())
        message = {
            "v": 1,
            "type": kind,
            "id": message_id,
            "ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "payload": payload,
            **envelope,
        }
        self.send_bytes(json.dumps(message).encode())
        return message_id

    def send_bytes(self, data: bytes) -> None:
        """One frame of these bytes."""
        self.socket.sendall(struct.pack(">I", len(data)) + data)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the peer closed."""
        while True:
            if len(self.buffer) >= 4:
                size = struct.unpack(">I", self.buffer[:4])[0]
                if len(self.buffer) >= 4 + size:
                    data, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
                    found: dict[str, Any] = json.loads(data)
                    return found
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self.buffer += more

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next message of this type; others on the way are dropped."""
        while True:
            message = self.receive()
            assert message is not None, f"closed while waiting for {kind}"
            if message["type"] == kind:
                return message

    def hello(self, *capabilities: str, **payload: Any) -> dict[str, Any]:
        """The handshake; the welcome."""
        self.send(
            "agent.hello",
            {
                "session_token": self.token,
                "agent_id": self.agent_id,
                "agent_version": "1.0.0",
                "protocol": {"supported_versions": [1], "capabilities": list(capabilities or ("tools",))},
                **payload,
            },
        )
        welcome = self.wait_for("core.welcome")
        self.session_id = welcome["payload"].get("session_id", "")
        return welcome

    def register(self, *tools: dict[str, Any], **payload: Any) -> dict[str, Any]:
        """Announce tools, each given by at least its name; the confirmation."""
        self.send("agent.tools.register", {"tools": [self.tool(**tool) for tool in tools], **payload})
        return self.wait_for("core.tools.registered")

    def tool(self, name: str, **fields: Any) -> dict[str, Any]:
        """A tool definition with defaults."""
        return {
            "tool_id": f"{self.agent_id}/{name}",
            "name": name,
            "description": f"The tool {name}.",
            "input_schema": {"type": "object"},
            **fields,
        }

    def result(self, call: dict[str, Any], status: str = "succeeded", **payload: Any) -> None:
        """Answer a ``core.tool.call``, echoing what has to be echoed."""
        echoed = {name: call[name] for name in ("request_id", "correlation_id", "causation_id") if name in call}
        self.send("agent.tool.result", {"call_id": call["payload"]["call_id"], "status": status, **payload}, **echoed)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def attached(exchange: Running, *capabilities: str, tcp: bool = False) -> RawAgent:
    """An admitted agent with a name that nobody else has."""
    agent = RawAgent(exchange, f"raw.{uuid.uuid4().hex[:12]}", tcp=tcp)
    welcome = agent.hello(*capabilities)
    assert "error" not in welcome, welcome
    return agent


def calling(exchange: Running, tool_id: str, value: dict[str, Any] | None = None, **fields: Any) -> Future[Any]:
    """A call by the operator that runs while the test goes on."""
    answer: Future[Any] = Future()

    def call() -> None:
        try:
            answer.set_result(exchange.call(tool_id, value, **fields))
        except BaseException as error:  # noqa: BLE001  (whoever waits is told)
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return answer


def asked_over_http(exchange: Running, value: bytes) -> socket.socket:
    """A request to call, under way on a connection that can be cut."""
    host, _, port = exchange.ready["http"].removeprefix("http://").rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=20)
    exchange.peers.append(peer)
    head = f"POST /v1/calls HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {exchange.token}\r\n"
    peer.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(value)}\r\n\r\n".encode() + value)
    return peer
