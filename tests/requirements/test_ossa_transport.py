"""OSSA on real sockets: TLS 1.3 and nothing older, a certificate that stays, pins, and agents reached by a URL."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from websockets.asyncio.client import connect

from tests.ossa import EXCHANGE, JSON, Keyed, check_signature
from tests.requirement import requirement
from trunkline.config import Config, Ossa
from trunkline.edges import client, tls
from trunkline.edges.address import Address
from trunkline.edges.edge import KeyTerms
from trunkline.edges.listener import WebListener
from trunkline.edges.ossa.edge import OSSA
from trunkline.edges.ossa.keys import new_pair
from trunkline.edges.topics.edge import TOPICS
from trunkline.entries import EventTaken
from trunkline.events import TokenIssued
from trunkline.testing.memory import BOSS, MemoryExchange

WAIT_S = 10.0


class Listening:
    """An exchange whose listener is real."""

    def __init__(self, home: Path) -> None:
        (home / "keys").mkdir(mode=0o700, exist_ok=True)
        self._home = home
        config = Config(ossa=Ossa(listen="127.0.0.1:0"))
        loop = asyncio.get_running_loop()
        self.exchange = MemoryExchange(edges=(TOPICS, OSSA), config=config, home=home, live=loop)

    async def start(self) -> None:
        await self.exchange.edges.start()
        self.url = str(self.exchange.edges.ready()["ossa"])

    async def stop(self) -> None:
        await self.exchange.edges.stop()
        self.exchange.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def certificate(self) -> Path:
        return self._home / "keys" / tls.OWN_FILE

    def trust(self) -> ssl.SSLContext:
        """Those who know our certificate."""
        shown = tls.shown_certificate(self.certificate).decode()
        return ssl.create_default_context(cadata=shown)

    def agent(self, agent_id: str, url: str = "", pin: str = "") -> Keyed:
        pair = new_pair(KeyTerms(agent_id, "worker", url, pin))
        digest = hashlib.sha256(pair.kid.encode()).hexdigest()
        issued = TokenIssued(0, "key", BOSS, "ossa", agent_id, digest, (), "worker", pair.public)
        self.exchange.feed.feed([issued])
        return Keyed({"agent": agent_id, **pair.shown}, "worker", lambda: time.time_ns() // 1_000_000)

    async def post(self, agent: Keyed, message: JSON) -> tuple[int, JSON]:
        body = json.dumps(agent.signed(message)).encode()
        url = f"{self.url}/ossa/v1/messages"
        answer = await client.request(url, "POST", body=body, timeout_s=WAIT_S, tls=self.trust())
        return answer.status, json.loads(answer.body) if answer.body else {}


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[Listening]:
    made = Listening(tmp_path)
    await made.start()
    yield made
    await made.stop()


@requirement("OSSA-074", "OSSA-089")
async def test_a_client_that_speaks_tls_1_2_only_is_refused(listening: Listening) -> None:
    old = listening.trust()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):  # an alert, or the end of the connection
        await asyncio.open_connection("127.0.0.1", listening.port, ssl=old)
    _, writer = await asyncio.open_connection("127.0.0.1", listening.port, ssl=listening.trust())
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.close()


@requirement("OSSA-074")
async def test_without_tls_nothing_is_answered(listening: Listening) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    writer.write(b"GET /ossa/v1/keys HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP/" not in await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()


@requirement("OSSA-075")
async def test_certificate_and_keys_are_the_same_after_a_restart(listening: Listening, tmp_path: Path) -> None:
    async def shown(one: Listening) -> tuple[bytes, bytes]:
        keys = await client.request(f"{one.url}/ossa/v1/keys", "GET", timeout_s=WAIT_S, tls=one.trust())
        return one.certificate.read_bytes(), keys.body

    before = await shown(listening)
    again = Listening(tmp_path)
    await again.start()
    try:
        assert await shown(again) == before
    finally:
        await again.stop()
    uses = {key["use"]: key["crv"] for key in json.loads(before[1])["keys"]}
    assert uses == {"sig": "Ed25519", "enc": "X25519"}


@requirement("OSSA-023", "OSSA-069")
async def test_a_request_by_post_is_answered_by_an_agent_on_a_socket(listening: Listening) -> None:
    alice, bob = listening.agent("alice"), listening.agent("bob")
    keys = await client.request(f"{listening.url}/ossa/v1/keys", "GET", timeout_s=WAIT_S, tls=listening.trust())
    published = json.loads(keys.body)["keys"]
    where = f"{listening.url.replace('https', 'wss')}/ossa/v1/ws"
    async with asyncio.timeout(WAIT_S), connect(where, ssl=listening.trust()) as socket:

        async def say(message: JSON) -> None:
            await socket.send(json.dumps(bob.signed(message)))

        await say(bob.message("request", EXCHANGE, "register", {"actions": [{"name": "do", "side_effects": False}]}))
        registered = json.loads(await socket.recv())
        assert registered["body"]["payload"]["registered"] == ["do"]
        asking = asyncio.create_task(listening.post(alice, alice.message("request", "bob", payload={"n": 1})))
        request = json.loads(await socket.recv())
        check_signature(request, published)
        await say(bob.reply(request, payload={"n": 2}))
        status, reply = await asking
    check_signature(reply, published)
    assert (status, reply["body"]["payload"]) == (200, {"n": 2})


@requirement("OSSA-048")
async def test_a_socket_with_three_messages_in_a_row_that_are_none_is_closed(listening: Listening) -> None:
    where = f"{listening.url.replace('https', 'wss')}/ossa/v1/ws"
    async with asyncio.timeout(WAIT_S), connect(where, ssl=listening.trust()) as socket:
        for _ in range(3):
            await socket.send("{")
            error = json.loads(await socket.recv())
            assert error["body"]["error"]["code"] == 400
        await socket.wait_closed()
        assert socket.close_code == 1008


# --- agents that are reached by a URL ---------------------------------------------------------------------------------

Answering = Callable[[JSON], Awaitable[JSON | None]]


class Server:
    """An agent's own HTTPS endpoint."""

    def __init__(self, folder: Path, answers: Answering) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._certificate = tls.own_certificate(folder, time.time())
        self._answers = answers
        self.heard: list[JSON] = []
        self.was_told = asyncio.Event()
        app = Starlette(routes=[Route("/inbox", self._take, methods=["POST"])])
        context = tls.server_context(self._certificate)
        self._listener = WebListener(app, Address("127.0.0.1", 0, "test", is_given=True), context)

    async def _take(self, request: Request) -> Response:
        message = json.loads(await request.body())
        self.heard.append(message)
        self.was_told.set()
        reply = await self._answers(message)
        return Response(status_code=202) if reply is None else Response(json.dumps(reply))

    @property
    def pin(self) -> str:
        return tls.pin_of(ssl.PEM_cert_to_DER_cert(tls.shown_certificate(self._certificate).decode()))

    @property
    def url(self) -> str:
        return f"{self._listener.url}/inbox"

    async def start(self) -> None:
        await self._listener.start()

    async def stop(self) -> None:
        self._listener.close()
        await self._listener.stop()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Server, dict[str, Keyed]]]:
    """A server, and a place for the keys of the agent that it is."""
    who: dict[str, Keyed] = {}

    async def answer(message: JSON) -> JSON | None:
        bob = who["bob"]
        if message["header"]["type"] != "request":
            return None
        return bob.signed(bob.reply(message, payload={"by": "url"}))

    server = Server(tmp_path / "theirs", answer)
    await server.start()
    yield server, who
    await server.stop()


async def registered(listening: Listening, bob: Keyed) -> None:
    offered: Any = {"actions": [{"name": "do", "side_effects": False}]}
    status, reply = await listening.post(bob, bob.message("request", EXCHANGE, "register", offered))
    assert (status, reply["body"]["payload"]["registered"]) == (200, ["do"])


@requirement("OSSA-075")
async def test_an_agent_with_a_pin_is_reached_by_its_url(
    listening: Listening, served: tuple[Server, dict[str, Keyed]]
) -> None:
    server, who = served
    alice, bob = listening.agent("alice"), listening.agent("bob", server.url, server.pin)
    who["bob"] = bob
    await registered(listening, bob)
    status, reply = await listening.post(alice, alice.message("request", "bob", payload={"n": 1}))
    assert (status, reply["body"]["payload"]) == (200, {"by": "url"})
    assert [message["body"]["payload"] for message in server.heard] == [{"n": 1}]


@requirement("OSSA-075")
async def test_an_agent_whose_certificate_is_another_than_the_pinned_one_is_told_nothing(
    listening: Listening, served: tuple[Server, dict[str, Keyed]]
) -> None:
    server, who = served
    other = tls.pin_of(ssl.PEM_cert_to_DER_cert(tls.shown_certificate(listening.certificate).decode()))
    alice, bob = listening.agent("alice"), listening.agent("bob", server.url, other)
    who["bob"] = bob
    await registered(listening, bob)
    status, reply = await listening.post(alice, alice.message("request", "bob", payload={"n": 1}))
    assert (status, reply["body"]["error"]["code"]) == (503, 503)
    assert server.heard == []


@requirement("OSSA-079", "OSSA-080")
async def test_an_event_for_a_url_is_taken_when_its_server_says_so(
    listening: Listening, served: tuple[Server, dict[str, Keyed]]
) -> None:
    server, who = served
    alice, bob = listening.agent("alice"), listening.agent("bob", server.url, server.pin)
    who["bob"] = bob
    subscribed: Any = {"topic": "news", "qos": 1, "durable": True}
    await listening.post(bob, bob.message("request", EXCHANGE, "subscribe", subscribed))
    status, reply = await listening.post(alice, alice.message("event", EXCHANGE, "e", {"n": 1}, topic="news", qos=1))
    assert (status, reply["header"]["type"]) == (202, "acknowledgment")
    await asyncio.wait_for(server.was_told.wait(), WAIT_S)
    assert [message["body"]["payload"] for message in server.heard] == [{"n": 1}]
    async with asyncio.timeout(WAIT_S):
        while not listening.exchange.recorded(EventTaken):  # noqa: ASYNC110  (nothing rings for it)
            await asyncio.sleep(0.01)
