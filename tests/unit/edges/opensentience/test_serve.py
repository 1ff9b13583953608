"""The rim, on real sockets: who may connect, slow readers, many frames, the end. The exchange is a small one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import AGENT, ECHO, TOOL, chunk, envelope, frame, hello, result, tool
from trunkline.edges.exchange import Sink
from trunkline.edges.opensentience import serve
from trunkline.edges.opensentience.serve import OpenSentienceListener
from trunkline.edges.opensentience.session import FRAMES_A_TURN, Settings
from trunkline.effects import Admit, Answer, Close, ConfirmTools, Deliver, Refuse, ToSession
from trunkline.errors import ConfigError
from trunkline.events import (
    AgentArrived,
    AgentLeft,
    CallFinished,
    CallRequested,
    Event,
    HealthReported,
    Noticed,
    ToolsOffered,
)
from trunkline.model import EMPTY_OBJECT, Now, Peer

PATIENCE_S = 10.0


class SmallExchange:
    """Takes everybody in, calls whom it is asked to call, and remembers what happened."""

    instance = "i-1"

    def __init__(self) -> None:
        self.happened: list[Event] = []
        self.sinks: dict[int, Sink] = {}
        self.opened = 0
        self.peers: list[tuple[int, int]] = []
        self.admits = True
        self.tools: dict[str, int] = {}
        self.callers: dict[str, tuple[int, str]] = {}
        self.news = asyncio.Event()

    def now(self) -> Now:
        return Now(time.monotonic(), time.time())

    def open_session(self, sink: Sink) -> int:
        self.opened += 1
        self.sinks[self.opened] = sink
        self.news.set()
        return self.opened

    def close_session(self, session: int) -> None:
        del self.sinks[session]
        self.news.set()

    def peer_of(self, pid: int, uid: int) -> Peer:
        self.peers.append((pid, uid))
        return Peer(f"pid:{pid}")

    def feed(self, events: Sequence[Event]) -> None:
        now = self.now()
        for event in events:
            self.happened.append(event)
            match event:
                case AgentArrived(session, ref):
                    self.say(Admit(session, 0, ref) if self.admits else Refuse(session, 0, ref), now)
                case ToolsOffered(session, ref, tools, rejected):
                    self.tools |= {definition.tool_id: session for definition in tools}
                    names = tuple(definition.tool_id for definition in tools)
                    self.say(ConfirmTools(session, 0, ref, names, rejected), now)
                case CallRequested(session, ref):
                    call_id = f"x-{len(self.callers)}"
                    self.callers[call_id] = (session, ref)
                    self.call(self.tools[event.tool_id], call_id, event.input)
                case CallFinished(_, call_id) if call_id in self.callers:
                    caller, ref = self.callers[call_id]
                    self.say(Answer(caller, 0, ref, call_id, event.status, event.output, event.fault), now)
        self.news.set()

    def say(self, effect: ToSession, now: Now) -> None:
        sink = self.sinks.get(effect.session)
        if sink is not None:
            sink.send(effect, now)
            sink.flush()

    def call(self, session: int, call_id: str, body: Raw = EMPTY_OBJECT) -> None:
        self.say(Deliver(session, 0, call_id, TOOL, body, "operator", "chat:1"), self.now())

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.news.clear()
                await self.news.wait()

    def count(self, kind: type[Event]) -> int:
        return sum(type(event) is kind for event in self.happened)


class Client:
    """An agent's end of a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            message: dict[str, Any] = json.loads(await self.reader.readexactly(size))
            return message

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    def tell(self, type_: str, payload: Any = None, **fields: Any) -> None:
        self.writer.write(frame(envelope(type_, payload, **fields)))

    async def greet(self, agent_id: str = AGENT) -> dict[str, Any]:
        self.tell("agent.hello", hello(agent_id=agent_id))
        return await self.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Rig:
    """A listener, its exchange, and those who connected."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.exchange = SmallExchange()
        self.listener = OpenSentienceListener(self.exchange, settings, path=folder / "s", tcp=("127.0.0.1", 0))  # type: ignore[arg-type]
        self.clients: list[Client] = []

    async def connect(self, *, over: str = "unix") -> Client:
        if over == "unix":
            client = Client(*await asyncio.open_unix_connection(str(self.listener.path)))
        else:
            assert self.listener.tcp is not None
            client = Client(*await asyncio.open_connection(*self.listener.tcp))
        self.clients.append(client)
        return client


@pytest.fixture
def settings() -> Settings:
    return Settings("0.1.0", "i-1")


@pytest.fixture
async def rig(short_path: Path, settings: Settings) -> AsyncIterator[Rig]:
    rig = Rig(short_path, settings)
    await rig.listener.start()
    yield rig
    for client in rig.clients:
        await client.close()
    async with asyncio.timeout(PATIENCE_S):
        await rig.listener.stop("shutdown")
    assert rig.exchange.sinks == {}


# --- connecting -------------------------------------------------------------------------------------------------------


@requirement("OS-005", "OS-007", "OS-009")
async def test_the_same_conversation_works_on_both_transports(rig: Rig) -> None:
    heard = []
    for over in ("unix", "tcp"):
        client = await rig.connect(over=over)
        welcome = await client.greet()
        client.tell("agent.tools.register", {"tools": [tool()]})
        registered = await client.read()
        heard.append(
            [{**m, "id": "", "ts": "", "payload": {**m["payload"], "session_id": ""}} for m in (welcome, registered)]
        )
        await client.close()
        await rig.exchange.until(lambda: not rig.exchange.sinks)
    assert heard[0] == heard[1]
    assert rig.exchange.peers == [(os.getpid(), os.geteuid())]
    origins = [event.peer.origin for event in rig.exchange.happened if isinstance(event, AgentArrived)]
    assert origins == [f"pid:{os.getpid()}", "tcp:127.0.0.1"]


@requirement("OS-004")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_only_loopback_addresses_are_listened_on(host: str, short_path: Path) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        OpenSentienceListener(None, Settings("0", "i"), path=short_path / "s", tcp=(host, 0))  # type: ignore[arg-type]


@requirement("OS-004")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_taken(host: str, short_path: Path) -> None:
    OpenSentienceListener(None, Settings("0", "i"), path=short_path / "s", tcp=(host, 0))  # type: ignore[arg-type]


async def test_a_port_that_is_taken_leaves_no_socket_behind(short_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = OpenSentienceListener(
            SmallExchange(),  # type: ignore[arg-type]
            Settings("0", "i"),
            path=short_path / "s",
            tcp=taken.getsockname(),
        )
        with pytest.raises(ConfigError, match="cannot listen"):
            await listener.start()
    assert not (short_path / "s").exists()


@requirement("OS-006")
async def test_another_users_process_is_cut_off_and_on_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.os, "geteuid", lambda: 4242)
    client = await rig.connect()
    assert await client.ended()
    (noticed,) = rig.exchange.happened
    assert noticed == Noticed("peer.refused", "opensentience", f"uid:{os.getuid()}", "another user's process")
    assert rig.exchange.opened == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@requirement("OS-006")
async def test_another_user_does_not_even_reach_the_socket(rig: Rig) -> None:
    code = f"import os,socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(rig.listener.path)!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    assert b"PermissionError" in errors


async def test_three_hundred_agents_connect_at_once(rig: Rig) -> None:
    clients = await asyncio.gather(*(rig.connect() for _ in range(300)))
    for n, client in enumerate(clients):
        client.tell("agent.hello", hello(agent_id=f"agent-{n}"))
    welcomes = await asyncio.gather(*(client.read() for client in clients))
    assert {message["type"] for message in welcomes} == {"core.welcome"}
    assert len({message["payload"]["session_id"] for message in welcomes}) == 300


async def test_more_connections_than_allowed_are_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 2)
    for _ in range(2):
        await (await rig.connect()).greet()
    assert await (await rig.connect()).ended()


# --- talking ----------------------------------------------------------------------------------------------------------


@requirement("OS-026")
async def test_a_call_travels_from_one_agent_to_another_and_back(rig: Rig) -> None:
    provider, caller = await rig.connect(), await rig.connect()
    await provider.greet()
    await caller.greet("com.example.caller")
    provider.tell("agent.tools.register", {"tools": [tool()]})
    await provider.read()
    for n in range(3):
        payload = {"call_id": f"mine-{n}", "tool_id": TOOL, "input": {"text": str(n)}}
        caller.tell("agent.tool.call", payload, request_id=f"r-{n}")
    calls = [await provider.read() for _ in range(3)]
    for call in reversed(calls):
        echoed = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": call["payload"]["input"]}
        provider.tell("agent.tool.result", echoed, request_id=call["request_id"], correlation_id="chat:1")
    answers = [await caller.read() for _ in range(3)]
    assert [answer["request_id"] for answer in answers] == ["r-2", "r-1", "r-0"]
    assert [answer["payload"]["output"] for answer in answers] == [{"text": "2"}, {"text": "1"}, {"text": "0"}]


@requirement("OS-073", "OS-074")
async def test_a_refused_agent_reads_why_and_then_the_end(rig: Rig) -> None:
    rig.exchange.admits = False
    client = await rig.connect()
    assert (await client.greet())["error"]["code"] == "protocol.unauthorized"
    assert await client.ended()
    assert rig.exchange.count(AgentLeft) == 0


@requirement("OS-022")
async def test_an_oversize_frame_is_answered_with_goodbye_and_the_end(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    client.writer.write(b"\xff\xff\xff\xff" + b"x" * 1000)
    assert (await client.read())["payload"] == {"reason": "protocol.frame_too_large"}
    assert await client.ended()
    await rig.exchange.until(lambda: rig.exchange.count(AgentLeft))


async def test_many_frames_in_one_write_are_all_taken_in_order(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    many = 20 * FRAMES_A_TURN
    client.writer.write(
        b"".join(frame(envelope("agent.tools.register", {"tools": []}, id=f"m-{n}")) for n in range(many))
    )
    replies = [(await client.read())["in_reply_to"] for _ in range(many)]
    assert replies == [f"m-{n}" for n in range(many)]


async def test_a_large_frame_arrives_whole(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    rig.exchange.call(1, "c-1")
    await client.read()
    client.tell("agent.tool.result", result("c-1", output={"text": "é" * 600_000}))
    await rig.exchange.until(lambda: rig.exchange.count(CallFinished))
    finished = next(event for event in rig.exchange.happened if isinstance(event, CallFinished))
    assert finished.output is not None
    assert json.loads(bytes(finished.output)) == {"text": "é" * 600_000}


# --- silence and slowness ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [Settings("0.1.0", "i-1", heartbeat_interval_ms=20)])
@requirement("OS-132")
async def test_a_silent_agent_is_pinged_reported_and_dismissed_in_time(rig: Rig, settings: Settings) -> None:
    client = await rig.connect()
    await client.greet()
    heard = [(await client.read())["type"] for _ in range(2)]
    assert heard == ["core.ping", "core.goodbye"]
    assert await client.ended()
    await rig.exchange.until(lambda: rig.exchange.count(AgentLeft))
    kinds = [type(event) for event in rig.exchange.happened]
    assert kinds == [AgentArrived, HealthReported, Noticed, AgentLeft]


@pytest.mark.parametrize("settings", [Settings("0.1.0", "i-1", heartbeat_interval_ms=50)])
async def test_an_agent_that_falls_silent_after_many_frames_at_once_is_noticed_too(
    rig: Rig, settings: Settings
) -> None:
    client = await rig.connect()
    await client.greet()
    client.writer.write(3 * FRAMES_A_TURN * frame(envelope("agent.pong")))
    # The loop finds the frames and the end of the silence before them at once.
    time.sleep(2.5 * settings.heartbeat_interval_ms / 1000)  # noqa: ASYNC251 - nothing else may happen meanwhile
    heard = [(await client.read())["type"] for _ in range(2)]
    assert heard == ["core.ping", "core.goodbye"]
    assert await client.ended()


async def test_one_who_says_nothing_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.edges.opensentience.session.HELLO_WITHIN_S", 0.05)
    client = await rig.connect()
    assert (await client.read())["payload"] == {"reason": "hello_timeout"}
    assert await client.ended()


async def test_a_reader_that_does_not_read_is_cut_off_after_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "WRITE_WITHIN_S", 0.1)
    client = await rig.connect()
    await client.greet()
    body = Raw(b'{"text":"' + b"x" * 1_000_000 + b'"}')
    for n in range(12):
        rig.exchange.call(1, f"c-{n}", body)
    await rig.exchange.until(lambda: rig.exchange.count(AgentLeft))
    codes = [event.code for event in rig.exchange.happened if isinstance(event, Noticed)]
    assert codes == ["output.stuck"]


async def test_a_slow_reader_is_not_listened_to_until_it_has_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_OUTPUT_BYTES", 65_536)
    client = await rig.connect()
    await client.greet()
    body = Raw(b'{"text":"' + b"x" * 1_000_000 + b'"}')
    for n in range(6):
        rig.exchange.call(1, f"c-{n}", body)
    (connection,) = rig.listener.connections
    assert connection._pauses == {"output"}
    client.tell("agent.tool.stream", chunk(1, "c-0"), **ECHO)
    for _ in range(6):
        assert (await client.read())["type"] == "core.tool.call"
    await rig.exchange.until(lambda: len(rig.exchange.happened) > 1)
    assert connection._pauses == set()


async def test_the_runner_can_pause_and_resume_reading(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    sink = rig.exchange.sinks[1]
    sink.pause_reading()
    for _ in range(3):
        client.tell("agent.tools.register", {"tools": []})
    await client.writer.drain()
    # A whole conversation of somebody else goes by, and nothing of this one.
    other = await rig.connect()
    await other.greet("com.example.other")
    assert rig.exchange.count(ToolsOffered) == 0
    sink.resume_reading()
    await rig.exchange.until(lambda: rig.exchange.count(ToolsOffered) == 3)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_an_agent_that_closes_has_left(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    client.tell("agent.tools.register", {"tools": []})
    await client.close()
    await rig.exchange.until(lambda: not rig.exchange.sinks)
    assert [type(event) for event in rig.exchange.happened] == [AgentArrived, ToolsOffered, AgentLeft]


@requirement("OS-075")
async def test_a_close_of_the_hub_is_said_and_done(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    rig.exchange.say(Close(1, 0, "replaced"), rig.exchange.now())
    assert (await client.read())["payload"] == {"reason": "replaced"}
    assert await client.ended()
    await rig.exchange.until(lambda: rig.exchange.count(AgentLeft))


@requirement("OS-075")
async def test_stop_says_goodbye_to_everybody_and_removes_the_socket(rig: Rig) -> None:
    clients = [await rig.connect(), await rig.connect(over="tcp")]
    for n, client in enumerate(clients):
        await client.greet(f"agent-{n}")
    silent = await rig.connect()
    await rig.exchange.until(lambda: rig.exchange.opened == 3)
    async with asyncio.timeout(PATIENCE_S):
        await rig.listener.stop("shutdown")
    for client in (*clients, silent):
        assert (await client.read())["payload"] == {"reason": "shutdown"}
        assert await client.ended()
    assert not rig.listener.path.exists()
    assert rig.exchange.sinks == {}
    with pytest.raises(OSError):
        await rig.connect()


async def test_one_who_is_accepted_while_the_listener_stops_is_cut_off(rig: Rig) -> None:
    rig.listener.is_stopping = True
    assert await (await rig.connect()).ended()
    assert rig.exchange.opened == 0


async def test_stop_does_not_wait_for_one_who_does_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "CLOSE_WITHIN_S", 0.05)
    client = await rig.connect()
    await client.greet()
    for n in range(4):
        rig.exchange.call(1, f"c-{n}", Raw(b'{"text":"' + b"x" * 1_000_000 + b'"}'))
    async with asyncio.timeout(PATIENCE_S):
        await rig.listener.stop("shutdown")
    assert rig.exchange.sinks == {}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_connections_leave_nothing_behind(rig: Rig) -> None:
    before = open_files()
    for n in range(50):
        client = await rig.connect()
        if n % 2:
            await client.greet()
        await client.close()
    rig.clients.clear()
    await rig.exchange.until(lambda: not rig.exchange.sinks)
    assert rig.listener.connections == set()
    assert open_files() <= before
    assert len(asyncio.all_tasks()) == 1
