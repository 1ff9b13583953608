"""Every door behind the HTTP listener treats bearer tokens alike: one refusal for all that is wrong, which takes longer
the more of them an address had, and never costs somebody with a good token anything.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from trunkline.config import Config
from trunkline.edges import bearer
from trunkline.edges.chiffon.edge import CHIFFON
from trunkline.edges.console.edge import CONSOLE
from trunkline.edges.http.edge import HTTP
from trunkline.edges.known import EDGES
from trunkline.edges.mcp.edge import MCP
from trunkline.entries import Noticed
from trunkline.testing.memory import MemoryExchange, on_any_port

# By the edge whose tokens open it: what is asked there.
DOORS = {
    "http": ("GET", "/v1/tools"),
    "chiffon": ("GET", "/api/agent/messages"),
    "mcp": ("POST", "/mcp"),
}
WRONG = ["", "Bearer", "Bearer wrong", "Basic {good}", "Bearer {good}x", "Bearer {other}", "Bearer {revoked}"]


class Doors:
    """An exchange whose edges have doors, a client, and how long refusals waited."""

    def __init__(self, exchange: MemoryExchange, client: httpx.AsyncClient, waits: list[float]) -> None:
        self.exchange = exchange
        self.client = client
        self.waits = waits

    async def ask(self, edge: str, authorization: str | None) -> httpx.Response:
        method, path = DOORS[edge]
        headers = {} if authorization is None else {"authorization": authorization}
        return await self.client.request(method, path, headers=headers)


@asynccontextmanager
async def opened(home: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Doors]:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    exchange = MemoryExchange(
        edges=(HTTP, CHIFFON, MCP, CONSOLE),
        config=on_any_port(Config()),
        live=asyncio.get_running_loop(),
        home=home,
    )
    await exchange.edges.start()
    patch.setattr(bearer.asyncio, "sleep", note)
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx.AsyncClient(base_url=str(exchange.edges.ready()["http"]), timeout=10, verify=plain) as client:
        yield Doors(exchange, client, waits)
    patch.undo()
    await exchange.edges.stop()
    await exchange.edges.stop_last()
    assert exchange.died is None
    exchange.close()


@pytest.fixture
async def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Doors]:
    async with opened(tmp_path, monkeypatch) as found:
        yield found


def test_each_door_that_tokens_open_is_tried_here(tmp_path: Path) -> None:
    exchange = MemoryExchange(edges=EDGES, home=tmp_path)
    own = {door.gate_of for door in exchange.surroundings().doors() if door.gate_of}
    # The console takes codes, and the way back from a sign-in at a mounted server a state: both no tokens.
    assert own - {"console", "mounts"} | {"http"} == set(DOORS)
    exchange.close()


def test_one_function_asks_the_exchange_about_a_token() -> None:
    """What stands for a token in a protocol of keys is known by its hash from the start: OSSA asks with that."""
    folder = Path(bearer.__file__).parent
    asks = [file for file in folder.rglob("*.py") if re.search(r"identify\([^)]*token_sha256\(", file.read_text())]
    assert [file.name for file in asks] == ["bearer.py"]


@pytest.mark.parametrize("edge", DOORS)
async def test_everything_wrong_is_told_the_same(doors: Doors, edge: str) -> None:
    names = {
        "good": doors.exchange.token(edge, "alice"),
        "other": doors.exchange.token("http" if edge != "http" else "mcp", "alice"),
        "revoked": doors.exchange.token(edge, "mallory"),
    }
    doors.exchange.revoke(edge, "mallory")
    told = [await doors.ask(edge, text.format(**names)) for text in WRONG]
    assert {answer.status_code for answer in told} == {401}
    assert len({_without_ids(answer) for answer in told}) == 1
    assert all(answer.headers["www-authenticate"].startswith("Bearer") for answer in told)


def _without_ids(answer: httpx.Response) -> str:
    """What a refusal says, without the ids and the time of its own that a message of Chiffon has."""
    own = {"message_id", "trace_id", "request_id", "timestamp"}
    return repr({name: value for name, value in answer.json().items() if name not in own})


@pytest.mark.parametrize("edge", DOORS)
async def test_a_guesser_waits_and_nobody_else_does(doors: Doors, edge: str) -> None:
    for _ in range(12):
        assert (await doors.ask(edge, "Bearer wrong")).status_code == 401
    assert doors.waits[:3] == [0.1, 0.2, 0.4]
    assert doors.waits[-1] == bearer.MAX_DELAY_S
    waited = len(doors.waits)
    assert (await doors.ask(edge, f"Bearer {doors.exchange.token(edge, 'alice')}")).status_code != 401
    assert len(doors.waits) == waited
    notices = [entry for entry in doors.exchange.recorded(Noticed) if entry.code == "auth.failed"]
    assert [(entry.place, entry.who, entry.detail) for entry in notices] == [
        (edge, "127.0.0.1", "1 in a row"),
        (edge, "127.0.0.1", "10 in a row"),
    ]


async def test_who_guesses_codes_of_the_console_waits_too(doors: Doors) -> None:
    for _ in range(4):
        assert (await doors.client.get("/?code=wrong")).status_code == 403
    assert doors.waits == [0.1, 0.2, 0.4]
    assert (await doors.ask("http", f"Bearer {doors.exchange.token('http', 'alice')}")).status_code == 200
    assert doors.waits == [0.1, 0.2, 0.4]
