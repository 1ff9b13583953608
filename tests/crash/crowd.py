"""Many agents and callers in one process: sockets and JSON written from the protocol, no code of the exchange.

They outlive the exchange, so what they saw can be held against what it remembers. ``Crowd`` knows what was
acknowledged to whom (``answers``) and what really ran (``Worker.ran``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any, NamedTuple

from tests.running import Running

# A net below every wait.
WAIT_S = 20.0
TOOLS: dict[str, dict[str, Any]] = {
    "read": {"side_effects": False},
    "write": {},
    # Promises to recognise a key it has seen.
    "pay": {"capabilities": ["idempotency"]},
}
# Everybody may call everything: what needs a person's word is judged elsewhere.
CONFIG = """
[[policy.rule]]
caller = "*"
tool = "*"
decision = "allow"
"""


# A tool id, a name that no other job has, and perhaps a key.
Job = tuple[str, str, str | None]


class Answered(NamedTuple):
    """What a caller was told of a call: acknowledged, and so never to be lost."""

    call_id: str
    tool: str
    job: str
    key: str | None
    status: str
    output: Any


class Agent:
    """One connection that speaks the protocol."""

    def __init__(self, agent_id: str, token: str) -> None:
        self.agent_id = agent_id
        self._token = token
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.is_welcome = False
        self.heard_goodbye = False

    async def connect(self, address: str) -> None:
        """Greet."""
        self.is_welcome = self.heard_goodbye = False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, address)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket.dup())
        self.send(
            "agent.hello",
            {
                "session_token": self._token,
                "agent_id": self.agent_id,
                "agent_version": "1.0.0",
                "protocol": {"supported_versions": [1], "capabilities": ["tools", "calls"]},
            },
        )
        welcome = await self.hear("core.welcome")
        assert "error" not in welcome, welcome
        self.is_welcome = True

    def send(self, kind: str, payload: dict[str, Any], **envelope: Any) -> None:
        """One message."""
        message = {
            "v": 1,
            "type": kind,
            "id": str(uuid.uuid4()),
            "ts": "2026-01-16T12:00:00Z",
            "payload": payload,
            **envelope,
        }
        data = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(data)) + data)

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """All that comes, until the connection ends."""
        while True:
            try:
                (size,) = struct.unpack(">I", await self._reader.readexactly(4))
                message: dict[str, Any] = json.loads(await self._reader.readexactly(size))
            except asyncio.IncompleteReadError:
                return
            except ConnectionError:
                for message in self._last_messages():
                    self.heard_goodbye = self.heard_goodbye or message["type"] == "core.goodbye"
                    yield message
                return
            self.heard_goodbye = self.heard_goodbye or message["type"] == "core.goodbye"
            yield message

    def _last_messages(self) -> Iterator[dict[str, Any]]:
        """What had arrived when the other side closed: asyncio drops it once a write has failed."""
        data = bytes(self._reader._buffer)  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            while more := self._socket.recv(65536):
                data += more
        while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack(">I", data[:4])[0]):
            yield json.loads(data[4 : 4 + size])
            data = data[4 + size :]

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        async with asyncio.timeout(WAIT_S):
            async for message in self.messages():
                if message["type"] == kind:
                    return message
        raise ConnectionResetError(f"closed before {kind}")

    def close(self) -> None:
        """Hang up."""
        if hasattr(self, "_writer"):
            self._writer.close()
            self._socket.close()


class Worker(Agent):
    """Offers the tools, and counts what they did."""

    def __init__(self, agent_id: str, token: str, rng: Random) -> None:
        super().__init__(agent_id, token)
        self._rng = rng
        # Runs of each call and of each job, and by tool those calls that came at all.
        self.ran: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.harmful: set[str] = set()
        self._paid: dict[str, Any] = {}
        self.is_ready = asyncio.Event()

    async def work(self, address: str) -> None:
        """Serve calls until the connection ends."""
        self.is_ready.clear()
        await self.connect(address)
        tools = [
            {
                "tool_id": f"{self.agent_id}/{name}",
                "name": name,
                "description": "A tool.",
                "input_schema": {"type": "object"},
                **terms,
            }
            for name, terms in TOOLS.items()
        ]
        self.send("agent.tools.register", {"tools": tools})
        loop = asyncio.get_running_loop()
        async for message in self.messages():
            if message["type"] == "core.tools.registered":
                self.is_ready.set()
            elif message["type"] == "core.tool.call":
                output = self._run(message["payload"])
                loop.call_later(self._rng.random() * 0.02, self._answer, message, output)

    def _run(self, call: dict[str, Any]) -> Any:
        tool = call["tool_id"].rpartition("/")[2]
        key = call.get("idempotency_key")
        if tool == "pay" and key in self._paid:
            return self._paid[key]
        self.ran[call["call_id"]] += 1
        self.jobs[call["input"]["job"]] += 1
        if tool != "read":
            self.harmful.add(call["call_id"])
        output = {"job": call["input"]["job"], "run": self.ran.total()}
        if tool == "pay" and key is not None:
            self._paid[key] = output
        return output

    def _answer(self, call: dict[str, Any], output: Any) -> None:
        echoed = {name: call[name] for name in ("request_id", "correlation_id", "causation_id") if name in call}
        result = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": output}
        self.send("agent.tool.result", result, **echoed)


class Crowd:
    """Workers, and callers over both protocols, against one exchange that may go away at any moment."""

    def __init__(self, exchange: Running, rng: Random, *, workers: int, callers: int, clients: int) -> None:
        self._exchange = exchange
        self._rng = rng
        self.workers = [Worker(name, exchange.new_token(name), rng) for name in _names("worker", workers)]
        self.callers = [Agent(name, exchange.new_token(name)) for name in _names("caller", callers)]
        self._clients = clients
        self.answers: list[Answered] = []
        # Keyed requests that nobody answered, by who asked; the operator, over HTTP, is None.
        self.unanswered: dict[Agent | None, list[Job]] = {}
        self.asked = 0
        self.refused: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, interval_s: float) -> None:
        """Everybody connects and works; each caller asks about every ``interval_s`` seconds."""
        address, http = self._exchange.ready["socket"], self._exchange.ready["http"]
        self._tasks = [
            *(asyncio.create_task(_until_cut(worker.work(address))) for worker in self.workers),
            *(asyncio.create_task(_until_cut(self._call(caller, address, interval_s))) for caller in self.callers),
            *(asyncio.create_task(_until_cut(self._post(http, interval_s))) for _ in range(self._clients)),
        ]

    async def wait_gone(self) -> None:
        """The exchange is gone: every connection ends by itself."""
        done, pending = await asyncio.wait(self._tasks, timeout=WAIT_S)
        for task in pending:
            task.cancel()
        for agent in (*self.workers, *self.callers):
            agent.close()
        for task in done:
            task.result()
        assert not pending, "a connection outlives the exchange"

    def _job(self) -> Job:
        """A tool, a job of its own, and perhaps a key."""
        self.asked += 1
        job = f"job-{self.asked}"
        tool_id = f"{self._rng.choice(self.workers).agent_id}/{self._rng.choice(sorted(TOOLS))}"
        return tool_id, job, f"key-{job}" if self._rng.random() < 0.5 else None

    def _told(self, job: Job, result: dict[str, Any], call_id: str) -> None:
        tool_id, name, key = job
        tool = tool_id.rpartition("/")[2]
        # The agents' protocol has no word for it but in the details of a failure.
        unknown = (result.get("error") or {}).get("details", {}).get("outcome") == "unknown"
        status = "unknown" if unknown else result["status"]
        self.answers.append(Answered(call_id, tool, name, key, status, result.get("output")))

    # -- callers over the agents' socket -------------------------------------------------------------------------------

    async def _call(self, caller: Agent, address: str, interval_s: float) -> None:
        await caller.connect(address)
        waiting: dict[str, Job] = {}
        asking = asyncio.create_task(self._ask(caller, waiting, interval_s))
        try:
            async for message in caller.messages():
                if message["type"] == "core.tool.result":
                    result = message["payload"]
                    job = waiting.pop(result["call_id"])
                    code = result.get("error", {}).get("code", "")
                    if code in {"tool.unavailable", "tool.not_found", "hub.unavailable", "limit.resource"}:
                        self.refused[code] += 1
                    else:
                        self._told(job, result, result["exchange_call_id"])
        finally:
            asking.cancel()
            self.unanswered[caller] = [job for job in waiting.values() if job[2] is not None]

    async def _ask(self, caller: Agent, waiting: dict[str, Job], interval_s: float) -> None:
        while True:
            await asyncio.sleep(self._rng.random() * 2 * interval_s)
            job = self._job()
            waiting[job[1]] = job
            _send_call(caller, job)

    # -- callers over HTTP ---------------------------------------------------------------------------------------------

    async def _post(self, address: str, interval_s: float) -> None:
        client = await HttpClient.connect(address, self._exchange.token)
        job: Job | None = None
        try:
            while True:
                await asyncio.sleep(self._rng.random() * 2 * interval_s)
                job = self._job()
                status, answer = await client.call(job)
                if status == 200:
                    self._told(job, answer, answer["call_id"])
                elif status != 202:
                    self.refused[answer["error"]["code"]] += 1
                job = None
        finally:
            client.close()
            if job is not None and job[2] is not None:
                self.unanswered.setdefault(None, []).append(job)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def repeat_unanswered(self) -> int:
        """Everybody asks again, with the same keys, for what was not answered; how many that were."""
        repeated = 0
        for caller, jobs in self.unanswered.items():
            repeated += len(jobs)
            if caller is None:
                client = await HttpClient.connect(self._exchange.ready["http"], self._exchange.token)
                try:
                    for job in jobs:
                        status, answer = await client.call(job)
                        assert status == 200, answer
                        self._told(job, answer, answer["call_id"])
                finally:
                    client.close()
            elif jobs:
                await caller.connect(self._exchange.ready["socket"])
                for job in jobs:
                    _send_call(caller, job)
                    result = (await caller.hear("core.tool.result"))["payload"]
                    self._told(job, result, result["exchange_call_id"])
                caller.close()
        self.unanswered.clear()
        return repeated


class HttpClient:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self._reader, self._writer, self._head = reader, writer, head

    @classmethod
    async def connect(cls, address: str, token: str) -> HttpClient:
        place = address.removeprefix("http://")
        host, _, port = place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        return cls(reader, writer, f"Host: {place}\r\nAuthorization: Bearer {token}\r\n")

    async def call(self, job: Job) -> tuple[int, dict[str, Any]]:
        """One call; HTTP status and answer."""
        key = {} if job[2] is None else {"idempotency_key": job[2]}
        data = json.dumps({"tool_id": job[0], "input": {"job": job[1]}, **key})
        about = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(f"POST /v1/calls HTTP/1.1\r\n{self._head}{about}{data}".encode())
        async with asyncio.timeout(WAIT_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            size = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
            answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return int(lines[0].split()[1]), answer

    def close(self) -> None:
        self._writer.close()


def _send_call(caller: Agent, job: Job) -> None:
    key = {} if job[2] is None else {"idempotency_key": job[2]}
    call = {"call_id": job[1], "tool_id": job[0], "input": {"job": job[1]}, **key}
    caller.send("agent.tool.call", call, request_id=job[1])


def _names(kind: str, count: int) -> list[str]:
    return [f"com.test.{kind}{number}" for number in range(count)]


async def _until_cut(work: Any) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, FileNotFoundError):
        await work
