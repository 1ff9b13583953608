"""An edge written from ``docs/edges.md``, in a real exchange and in one in memory: the page is enough to write one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Raw

from tests.running import NO_DEFAULT_PORTS, leash, started
from tests.unit.edges.opensentience.core_side import envelope, frame, hello
from trunkline import strictjson
from trunkline.edges.bearer import Throttle, whose
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind
from trunkline.edges.waiting import call
from trunkline.entries import CallAccepted, Noticed
from trunkline.errors import ConfigError
from trunkline.events import CallRequested
from trunkline.home import Home
from trunkline.model import ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent, MemoryExchange

PAGE = Path(__file__).parents[2] / "docs" / "edges.md"
BOUND_S = 20
ECHO = "com.example.echo/echo"


class TinyEdge(RunningEdge):
    """``TOKEN CALL TOOL JSON`` in, one line with the outcome out; one call at a time on a connection."""

    def __init__(self, given: Surroundings) -> None:
        self._feed, self._throttle = given.feed, Throttle(given.feed, "tiny")
        self._talks: set[asyncio.Task[Any] | None] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        self._servers.append(await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=65_536))

    async def stop(self) -> None:
        for server in self._servers:  # none after a start that failed
            server.close()
        for talk in filter(None, self._talks):
            talk.cancel()

    def ready(self) -> Mapping[str, str | None]:
        return {"tiny": f"tcp://127.0.0.1:{self._servers[0].sockets[0].getsockname()[1]}"}

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talks.add(asyncio.current_task())
        try:
            while line := await reader.readuntil():
                writer.write(await self._answer(line.rstrip()) + b"\n")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the peer is gone, its line does not end, or the edge stops
        except Exception as error:  # noqa: BLE001  (a defect of ours ends this conversation, and is on record)
            self._feed.failed(0, error)
        self._talks.discard(asyncio.current_task())
        writer.close()

    async def _answer(self, line: bytes) -> bytes:
        token, verb, tool, body = [*line.split(b" ", 3), b"", b"", b""][:4]
        if (caller := whose(self._feed, "tiny", token)) is None:
            await self._throttle.refused("tiny")
            return b"refused auth.failed"
        try:
            strictjson.check(body if verb == b"CALL" else b"")
        except strictjson.NotStrictJson:
            return b"refused message.malformed"
        name = tool.decode("utf-8", "replace")
        answer = await call(self._feed, lambda session, ref: CallRequested(session, ref, caller, name, Raw(body)))
        shown = answer.output if answer.large is None else answer.large.reference()
        said = bytes(shown or b"null") if answer.fault is None else answer.fault.code.encode()
        return b"%b %b" % (answer.status.value.encode(), said.replace(b"\n", b" "))


TINY = Edge(name="tiny", make=TinyEdge, ready_keys=("tiny",), tokens=TokenKind())


# --- a client ---------------------------------------------------------------------------------------------------------


class Client:
    """Somebody who types lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token

    @classmethod
    async def connect(cls, place: str | None, token: str) -> Client:
        host, _, port = str(place).removeprefix("tcp://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)), token)

    async def say(self, line: bytes) -> str:
        """What is answered to a line; nothing if the connection ends."""
        self._writer.write(line + b"\n")
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(BOUND_S):
                return (await self._reader.readline()).decode().rstrip("\n")
        return ""

    async def call(self, tool_id: str, body: str = "{}") -> str:
        return await self.say(f"{self._token} CALL {tool_id} {body}".encode())

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


# --- in memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def exchange() -> AsyncIterator[MemoryExchange]:
    found = MemoryExchange(edges=(TINY,), live=asyncio.get_running_loop())
    await found.edges.start()
    echo = ToolDefinition(ECHO, "says it", ANY_OBJECT, side_effects=False)
    found.attach("com.example.echo", echo, deliver=lambda agent, effect: agent.finish(effect.input))
    yield found
    await found.edges.stop()
    await found.edges.stop_last()
    assert found.died is None


@pytest.fixture
async def client(exchange: MemoryExchange) -> AsyncIterator[Client]:
    found = await Client.connect(exchange.edges.ready()["tiny"], exchange.token("tiny", "me"))
    yield found
    await found.close()


async def test_a_call_is_one_line_and_its_outcome_another(exchange: MemoryExchange, client: Client) -> None:
    assert await client.call(ECHO, '{"text": "hi"}') == 'succeeded {"text": "hi"}'
    assert await client.call(ECHO, '{"n": 12345678901234567890}') == 'succeeded {"n": 12345678901234567890}'
    [first, _] = exchange.recorded(CallAccepted)
    assert (first.caller, first.tool_id) == ("tiny:me", ECHO)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{token} CALL no.such/tool {{}}", "failed tool.not_found"),
        ("{token} CALL com.example.echo/echo {{", "refused message.malformed"),
        ("{token} CALL com.example.echo/echo", "refused message.malformed"),
        ("{token} SING com.example.echo/echo {{}}", "refused message.malformed"),
        ("{token} CALL com.example.echo/echo []", "failed tool.invalid_input"),
        ("nobody CALL com.example.echo/echo {{}}", "refused auth.failed"),
        ("", "refused auth.failed"),
    ],
)
async def test_what_is_wrong_is_one_line_too(exchange: MemoryExchange, client: Client, line: str, says: str) -> None:
    assert await client.say(line.format(token=exchange.token("tiny", "me")).encode()) == says
    assert await client.call(ECHO) == "succeeded {}", "the conversation goes on"


async def test_a_token_of_another_edge_opens_nothing(exchange: MemoryExchange, client: Client) -> None:
    foreign = exchange.token("http", "me")
    assert await client.say(f"{foreign} CALL {ECHO} {{}}".encode()) == "refused auth.failed"


async def test_a_line_that_does_not_end_ends_the_connection(exchange: MemoryExchange, client: Client) -> None:
    assert await client.say(b"x" * 200_000) == ""


async def call_that_lasts(exchange: MemoryExchange, client: Client) -> tuple[AttachedAgent, asyncio.Task[str]]:
    """A call that was delivered to its agent."""
    was_delivered = asyncio.Event()
    agent = exchange.attach("com.x", "change", deliver=lambda *_: was_delivered.set())
    calling = asyncio.create_task(client.call("com.x/change"))
    async with asyncio.timeout(BOUND_S):
        await was_delivered.wait()
    return agent, calling


async def test_a_call_whose_agent_is_lost_has_its_outcome(exchange: MemoryExchange, client: Client) -> None:
    agent, calling = await call_that_lasts(exchange, client)
    agent.leave()
    assert await calling == "unknown agent.lost"


async def test_a_defect_ends_one_connection_and_is_on_record(
    exchange: MemoryExchange, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(strictjson, "check", None)
        assert await client.call(ECHO) == ""
    [noticed] = exchange.recorded(Noticed)
    assert (noticed.code, noticed.detail) == ("defect", "TypeError, 1 so far")
    other = await Client.connect(exchange.edges.ready()["tiny"], exchange.token("tiny", "me"))
    assert await other.call(ECHO) == "succeeded {}"
    await other.close()


async def test_stopping_ends_what_is_open(exchange: MemoryExchange, client: Client) -> None:
    _, calling = await call_that_lasts(exchange, client)
    await exchange.edges.stop_last()
    assert await calling == ""


# --- in a real exchange -----------------------------------------------------------------------------------------------


async def serve_echo(path: str, token: str) -> asyncio.Task[None]:
    """An agent on the OpenSentience edge that says everything again."""
    reader, writer = await asyncio.open_unix_connection(path)

    async def read() -> dict[str, Any]:
        size = int.from_bytes(await reader.readexactly(4), "big")
        message: dict[str, Any] = json.loads(await reader.readexactly(size))
        return message

    def tell(kind: str, payload: dict[str, Any], **ids: Any) -> None:
        writer.write(frame(envelope(kind, payload, **ids)))

    async def work() -> None:
        try:
            while True:
                message = await read()
                if message["type"] == "core.tool.call":
                    called = message["payload"]
                    done = {"call_id": called["call_id"], "status": "succeeded", "output": called["input"]}
                    ids = {name: message[name] for name in ("request_id", "correlation_id") if name in message}
                    tell("agent.tool.result", done, **ids)
        finally:
            writer.close()

    tell("agent.hello", hello(agent_id="com.example.echo", session_token=token))
    assert (await read())["type"] == "core.welcome"
    tool = {"tool_id": ECHO, "name": "echo", "description": "d", "input_schema": {"type": "object"}}
    tell("agent.tools.register", {"tools": [{**tool, "side_effects": False}]})
    assert (await read())["type"] == "core.tools.registered"
    return asyncio.create_task(work())


async def talk(home: Home) -> None:
    """What a person does with an exchange that has a tenth edge."""
    async with asyncio.timeout(BOUND_S):
        while not home.ready_file.exists():  # noqa: ASYNC110  (as any program waits for it)
            await asyncio.sleep(0.01)
    ready = json.loads(home.ready_file.read_text())
    headers = {"authorization": f"Bearer {home.operator_token_file.read_text().strip()}"}
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx.AsyncClient(base_url=ready["http"], headers=headers, verify=plain) as http:

        async def token(edge: str, agent: str) -> str:
            answer = await http.post("/v1/tokens", json={"edge": edge, "agent": agent})
            assert answer.status_code == 201, answer.text
            return str(answer.json()["token"])

        agent = await serve_echo(ready["socket"], await token("opensentience", "com.example.echo"))
        client = await Client.connect(ready["tiny"], await token("tiny", "me"))
        assert await client.call(ECHO, '{"text": "hi"}') == 'succeeded {"text": "hi"}'
        assert (await client.say(b"nobody CALL x {}")) == "refused auth.failed"
        [made] = (await http.get("/v1/calls")).json()["calls"]
        assert (made["caller"], made["tool_id"]) == ("tiny:me", ECHO)
        status = (await http.get("/v1/status")).json()
        assert (status["edges"]["tiny"], status["defects"]) == ({"state": "on"}, 0)
        await client.close()
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)


def test_the_two_files_of_the_page_are_an_exchange_with_an_edge_that_it_has_never_heard_of(short_path: Path) -> None:
    home = Home(short_path / "home")
    for name, code in zip(("tiny.py", "up_tiny.py"), shown_files(), strict=True):
        (short_path / name).write_text(code)
    process = started(
        [*leash(), sys.executable, "up_tiny.py", str(home.path)],
        cwd=short_path,
        env={**os.environ, **NO_DEFAULT_PORTS},
        stdin=subprocess.DEVNULL,
    )
    try:
        asyncio.run(talk(home))
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(BOUND_S)
    assert code == 0
    assert not home.ready_file.exists()


# --- the page ---------------------------------------------------------------------------------------------------------


def shown_files() -> list[str]:
    """The two files that the page shows whole: those that begin with imports."""
    return re.findall(r"```python\n(import .*?)```", PAGE.read_text(), re.DOTALL)


def test_the_edge_is_the_one_of_the_page_and_fits_on_a_screen() -> None:
    shown = "class TinyEdge" + shown_files()[0].partition("\nclass TinyEdge")[2]
    assert shown.partition("\nTINY = ")[0].rstrip() == inspect.getsource(TinyEdge).rstrip()
    assert len([line for line in shown.splitlines() if line.strip()]) <= 42


async def test_its_stop_is_fine_after_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def taken(*_: object, **__: object) -> None:
        raise ConfigError("taken")

    found = MemoryExchange(edges=(TINY,), live=asyncio.get_running_loop())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "start_server", taken)
        with pytest.raises(ConfigError):
            await found.edges.start()
    await found.edges.stop_last()
    assert found.recorded(Noticed) == []
