"""The rim, on real sockets: who may connect, slow readers, many frames, the end. The exchange is in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.descriptors import open_descriptors
from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import AGENT, TOOL, chunk, envelope, frame, hello, result, tool
from trunkline.edges import driver
from trunkline.edges.exchange import Sink
from trunkline.edges.opensentience import serve
from trunkline.edges.opensentience.serve import OpenSentienceListener
from trunkline.edges.opensentience.session import FRAMES_A_TURN
from trunkline.edges.opensentience.settings import Settings
from trunkline.edges.opensentience.translate import EDGE
from trunkline.entries import Noticed as NoticedEntry
from trunkline.errors import ConfigError
from trunkline.events import AgentArrived, AgentLeft, Event, HealthReported, Noticed, ToolsOffered
from trunkline.testing.memory import MadeCall, MemoryExchange

PATIENCE_S = 10.0


class Spy:
    """The feed of an exchange, and what the rim told it."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self._feed = exchange.feed
        self.happened: list[Event] = []
        self.opened = 0
        self._news = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def feed(self, events: Sequence[Event]) -> None:
        self.happened += events
        self._feed.feed(events)
        self._news.set()

    def open_session(self, sink: Sink) -> int:
        self.opened += 1
        self._news.set()
        return self._feed.open_session(sink)

    def close_session(self, session: int) -> None:
        self._feed.close_session(session)
        self._news.set()

    def count(self, kind: type[Event]) -> int:
        return sum(type(event) is kind for event in self.happened)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()


class Client:
    """An agent's end of a socket."""

    def __init__(self, exchange: MemoryExchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.exchange = exchange
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
        self.tell("agent.hello", hello(agent_id=agent_id, session_token=self.exchange.token(EDGE, agent_id)))
        return await self.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Rig:
    """A listener, its exchange, and those who connected."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.exchange = MemoryExchange(live=asyncio.get_running_loop())
        self.feed = Spy(self.exchange)
        self.listener = OpenSentienceListener(
            self.feed,  # type: ignore[arg-type]
            settings,
            path=folder / "s",
            entropy=os.urandom,
            tcp=("127.0.0.1", 0),
        )
        self.clients: list[Client] = []

    @property
    def sinks(self) -> list[Sink]:
        """The conversations of this edge."""
        return [sink for sink in self.exchange.feed._sinks.values() if isinstance(sink, driver.Driver)]

    @property
    def connection(self) -> driver.Driver:
        """The only one."""
        (found,) = self.listener.connections.open
        return found

    async def provider(self) -> Client:
        """An agent with one tool."""
        client = await self.connect()
        await client.greet()
        client.tell("agent.tools.register", {"tools": [tool(side_effects=False)]})
        await client.read()
        return client

    def call(self, times: int = 1) -> list[MadeCall]:
        """Somebody calls it, with a megabyte each time."""
        body = Raw(b'{"text":"' + b"x" * 1_000_000 + b'"}')
        return [self.exchange.call(TOOL, body) for _ in range(times)]

    async def connect(self, *, over: str = "unix") -> Client:
        if over == "unix":
            client = Client(self.exchange, *await asyncio.open_unix_connection(str(self.listener.path)))
        else:
            assert self.listener.tcp is not None
            client = Client(self.exchange, *await asyncio.open_connection(*self.listener.tcp))
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
    assert rig.sinks == []
    assert (rig.exchange.died, rig.exchange.operator.status()["defects"]) == (None, 0)


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
        await rig.feed.until(lambda: not rig.sinks)
    assert heard[0] == heard[1]
    origins = [event.peer.origin for event in rig.feed.happened if isinstance(event, AgentArrived)]
    assert origins == [f"process {os.getpid()} of {os.geteuid()}", "tcp:127.0.0.1"]


@requirement("OS-004")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_only_loopback_addresses_are_listened_on(host: str, short_path: Path) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        OpenSentienceListener(None, Settings("0", "i"), path=short_path / "s", entropy=os.urandom, tcp=(host, 0))  # type: ignore[arg-type]


@requirement("OS-004")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_taken(host: str, short_path: Path) -> None:
    feed = MemoryExchange().feed
    OpenSentienceListener(feed, Settings("0", "i"), path=short_path / "s", entropy=os.urandom, tcp=(host, 0))


async def test_a_port_that_is_taken_is_named_with_its_key_and_leaves_no_socket_behind(short_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = OpenSentienceListener(
            MemoryExchange().feed,
            Settings("0", "i"),
            path=short_path / "s",
            entropy=os.urandom,
            tcp=taken.getsockname(),
        )
        text = "cannot listen here: Address already in use; choose another address in [opensentience] tcp"
        with pytest.raises(ConfigError, match=f": {re.escape(text)}; `trunkline doctor` shows each that is taken$"):
            await listener.start()
    assert not (short_path / "s").exists()


@requirement("OS-006")
async def test_another_users_process_is_cut_off_and_on_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.os, "geteuid", lambda: 4242)
    client = await rig.connect()
    assert await client.ended()
    (noticed,) = rig.feed.happened
    assert noticed == Noticed("peer.refused", "opensentience", f"uid:{os.getuid()}", "another user's process")
    assert rig.feed.opened == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@requirement("OS-006")
async def test_another_user_does_not_even_reach_the_socket(rig: Rig) -> None:
    code = f"import os,socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(rig.listener.path)!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    assert b"PermissionError" in errors


@pytest.mark.slow
async def test_three_hundred_agents_connect_at_once(rig: Rig) -> None:
    clients = await asyncio.gather(*(rig.connect() for _ in range(300)))
    for n, client in enumerate(clients):
        token = rig.exchange.token(EDGE, f"agent-{n}")
        client.tell("agent.hello", hello(agent_id=f"agent-{n}", session_token=token))
    welcomes = await asyncio.gather(*(client.read() for client in clients))
    assert {message["type"] for message in welcomes} == {"core.welcome"}
    assert len({message["payload"]["session_id"] for message in welcomes}) == 300


async def test_more_connections_than_allowed_are_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAX_CONNECTIONS", 2)
    for n in range(2):
        await (await rig.connect()).greet(f"agent-{n}")
    assert await (await rig.connect()).ended()


# --- talking ----------------------------------------------------------------------------------------------------------


@requirement("OS-026")
async def test_a_call_travels_from_one_agent_to_another_and_back(rig: Rig) -> None:
    provider, caller = await rig.provider(), await rig.connect()
    await caller.greet("com.example.caller")
    for n in range(3):
        payload = {"call_id": f"mine-{n}", "tool_id": TOOL, "input": {"text": str(n)}}
        caller.tell("agent.tool.call", payload, request_id=f"r-{n}")
    calls = [await provider.read() for _ in range(3)]
    for call in reversed(calls):
        echoed = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": call["payload"]["input"]}
        echoes = {name: call[name] for name in ("request_id", "correlation_id") if name in call}
        provider.tell("agent.tool.result", echoed, **echoes)
    answers = [await caller.read() for _ in range(3)]
    assert [answer["request_id"] for answer in answers] == ["r-2", "r-1", "r-0"]
    assert [answer["payload"]["output"] for answer in answers] == [{"text": "2"}, {"text": "1"}, {"text": "0"}]


@requirement("OS-073", "OS-074")
async def test_a_refused_agent_reads_why_and_then_the_end(rig: Rig) -> None:
    client = await rig.connect()
    client.tell("agent.hello", hello(session_token="nobody's"))
    assert (await client.read())["error"]["code"] == "protocol.unauthorized"
    assert await client.ended()
    assert rig.feed.count(AgentLeft) == 0


@requirement("OS-022")
async def test_an_oversize_frame_is_answered_with_goodbye_and_the_end(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    client.writer.write(b"\xff\xff\xff\xff" + b"x" * 1000)
    assert (await client.read())["payload"] == {"reason": "protocol.frame_too_large"}
    assert await client.ended()
    await rig.feed.until(lambda: rig.feed.count(AgentLeft))


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
    client = await rig.provider()
    made = rig.exchange.call(TOOL)
    call = await client.read()
    client.tell("agent.tool.result", result(call["payload"]["call_id"], output={"text": "é" * 600_000}))
    await rig.feed.until(lambda: made.answer)
    assert made.output == {"text": "é" * 600_000}


# --- silence and slowness ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [Settings("0.1.0", "i-1", heartbeat_interval_ms=20)])
@requirement("OS-132")
async def test_a_silent_agent_is_pinged_reported_and_dismissed_in_time(rig: Rig, settings: Settings) -> None:
    client = await rig.connect()
    await client.greet()
    heard = [(await client.read())["type"] for _ in range(2)]
    assert heard == ["core.ping", "core.goodbye"]
    assert await client.ended()
    await rig.feed.until(lambda: rig.feed.count(AgentLeft))
    kinds = [type(event) for event in rig.feed.happened]
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
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", 0.1)
    await rig.provider()
    rig.call(12)
    await rig.feed.until(lambda: rig.feed.count(AgentLeft))
    [noticed] = rig.exchange.recorded(NoticedEntry)
    assert (noticed.code, noticed.place, noticed.who) == ("output.stuck", EDGE, f"{EDGE}:{AGENT}")
    assert noticed.detail == "not read within 0.1 s"


async def test_a_slow_reader_is_not_listened_to_until_it_has_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAX_OUTPUT_BYTES", 65_536)
    client = await rig.provider()
    made = rig.call(6)
    connection = rig.connection
    assert connection._pauses == {"output"}
    client.tell("agent.tool.stream", chunk(1, made[0].call_id))
    heard = len(rig.feed.happened)
    for _ in range(6):
        assert (await client.read())["type"] == "core.tool.call"
        assert len(rig.feed.happened) == heard or not connection._pauses
    await rig.feed.until(lambda: made[0].progress)
    assert connection._pauses == set()


async def test_the_runner_can_pause_and_resume_reading(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    sink = rig.connection
    sink.pause_reading()
    for _ in range(3):
        client.tell("agent.tools.register", {"tools": []})
    await client.writer.drain()
    # A whole conversation of somebody else goes by, and nothing of this one.
    other = await rig.connect()
    await other.greet("com.example.other")
    assert rig.feed.count(ToolsOffered) == 0
    sink.resume_reading()
    await rig.feed.until(lambda: rig.feed.count(ToolsOffered) == 3)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_an_agent_that_closes_has_left(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    client.tell("agent.tools.register", {"tools": []})
    await client.close()
    await rig.feed.until(lambda: not rig.sinks)
    assert [type(event) for event in rig.feed.happened] == [AgentArrived, ToolsOffered, AgentLeft]


@requirement("OS-075")
async def test_a_close_of_the_hub_is_said_and_done(rig: Rig) -> None:
    client = await rig.connect()
    await client.greet()
    again = await rig.connect()
    assert (await again.greet())["type"] == "core.welcome"
    assert (await client.read())["payload"] == {"reason": "replaced"}
    assert await client.ended()
    await rig.feed.until(lambda: rig.feed.count(AgentLeft))


@requirement("OS-075")
async def test_stop_says_goodbye_to_everybody_and_removes_the_socket(rig: Rig) -> None:
    clients = [await rig.connect(), await rig.connect(over="tcp")]
    for n, client in enumerate(clients):
        await client.greet(f"agent-{n}")
    silent = await rig.connect()
    await rig.feed.until(lambda: rig.feed.opened == 3)
    async with asyncio.timeout(PATIENCE_S):
        await rig.listener.stop("shutdown")
    for client in (*clients, silent):
        assert (await client.read())["payload"] == {"reason": "shutdown"}
        assert await client.ended()
    assert not rig.listener.path.exists()
    assert rig.sinks == []
    with pytest.raises(OSError):
        await rig.connect()


async def test_one_who_is_accepted_while_the_listener_stops_is_cut_off(rig: Rig) -> None:
    rig.listener.connections.is_stopping = True
    assert await (await rig.connect()).ended()
    assert rig.feed.opened == 0


async def test_stop_does_not_wait_for_one_who_does_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CLOSE_WITHIN_S", 0.05)
    await rig.provider()
    rig.call(4)
    async with asyncio.timeout(PATIENCE_S):
        await rig.listener.stop("shutdown")
    assert rig.sinks == []


@pytest.mark.slow
async def test_connections_leave_nothing_behind(rig: Rig) -> None:
    before = open_descriptors()
    for n in range(50):
        client = await rig.connect()
        if n % 2:
            await client.greet()
        await client.close()
    rig.clients.clear()
    await rig.feed.until(lambda: not rig.sinks)
    assert rig.listener.connections.open == set()
    assert open_descriptors() <= before
    assert len(asyncio.all_tasks()) == 1


# --- tools again and again --------------------------------------------------------------------------------------------


async def test_an_agent_whose_changes_are_used_up_has_no_schema_judged(rig: Rig) -> None:
    client = await rig.provider()
    rejected: list[str] = []
    while not rejected:
        client.tell("agent.tools.register", {"tools": [tool(f"t{n}") for n in range(500)]})
        rejected = [one["error"]["code"] for one in (await client.read())["payload"].get("rejected", ())]
    assert set(rejected) == {"protocol.throttled"}
    # Judged, these would be called invalid. A hundred more entries than there were just now take ten seconds.
    client.tell("agent.tools.register", {"tools": [tool(f"b{n}", input_schema={"type": 5}) for n in range(600)]})
    told = (await client.read())["payload"]["rejected"]
    assert {one["error"]["code"] for one in told} == {"protocol.throttled"}
    assert rig.feed.count(ToolsOffered) < 6
