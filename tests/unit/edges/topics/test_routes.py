"""Topics over HTTP: publish with POST, read with GET, on a real socket."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from trunkline.config import BUILTIN_RULES, Config, Http
from trunkline.edges import waiting as waiting_module
from trunkline.edges.http.edge import HTTP
from trunkline.edges.topics import routes
from trunkline.edges.topics.edge import TOPICS, TopicsEdge
from trunkline.edges.waiting import Waiting
from trunkline.entries import EventPublished, EventTaken, TopicUnsubscribed
from trunkline.model import Decision, Policy, Rule
from trunkline.testing.memory import ALLOW_ALL, OPERATOR_TOKEN, MemoryExchange

BOUND_S = 10
ANY_PORT = Config(http=Http(listen="127.0.0.1:0"))


class Web:
    """An exchange with topics behind its HTTP listener, and a client."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self.exchange = exchange
        url = exchange.edges.ready()["http"]
        assert isinstance(url, str)
        # No TLS here; an empty context spares each test the 30 ms of loading certificates.
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client = httpx.AsyncClient(base_url=url, timeout=BOUND_S, verify=plain)

    async def publish(
        self, topic: str, payload: object = None, token: str = OPERATOR_TOKEN, **query: object
    ) -> httpx.Response:
        return await self.client.post(
            f"/v1/topics/{quote(topic, safe='')}", json=payload, params=query, headers=bearer(token)
        )

    @asynccontextmanager
    async def reading(self, pattern: str, token: str = OPERATOR_TOKEN, **query: object) -> AsyncIterator[Any]:
        path = f"/v1/topics/{quote(pattern, safe='')}"
        async with (
            asyncio.timeout(BOUND_S),
            self.client.stream("GET", path, params=query, headers=bearer(token)) as answer,
        ):
            yield heard(answer)

    @property
    def edge(self) -> TopicsEdge:
        (found,) = [edge for edge in self.exchange.edges._running.values() if isinstance(edge, TopicsEdge)]
        return found

    async def wait_no_streams(self) -> None:
        async with asyncio.timeout(BOUND_S):
            while self.edge.status()["streams"]:  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.001)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def heard(answer: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    """Name, id and data of each event, as a browser's EventSource hands them out."""
    assert answer.status_code == 200, await answer.aread()
    name, event_id, data = "message", "", []
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            event_id = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            yield name, event_id, json.loads("\n".join(data))
            name, event_id, data = "message", "", []


@asynccontextmanager
async def serving(policy: Policy = ALLOW_ALL, exchange: MemoryExchange | None = None) -> AsyncIterator[Web]:
    made = exchange or MemoryExchange(policy, edges=(TOPICS, HTTP), live=asyncio.get_running_loop(), config=ANY_PORT)
    await made.edges.start()
    web = Web(made)
    try:
        yield web
    finally:
        await web.client.aclose()
        await made.edges.stop()
        await made.edges.stop_last()
        assert not [sink for sink in made.feed._sinks.values() if isinstance(sink, Waiting)]
        assert made.died in {None, "killed"}


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serving() as made:
        yield made


async def test_who_reads_a_topic_is_told_of_what_is_published_there(web: Web) -> None:
    async with web.reading("build.#") as stream:
        assert (await anext(stream))[0] == "watching"
        answer = await web.publish("build.linux.done", {"ok": True, "n": 1.0}, qos=1)
        assert answer.status_code == 200
        name, event_id, data = await anext(stream)
    assert (name, event_id) == ("message", answer.json()["event"])
    assert data.pop("time").endswith("Z")
    assert data.pop("correlation_id") == answer.json()["call_id"]
    assert data == {
        "event": event_id,
        "topic": "build.linux.done",
        "payload": {"ok": True, "n": 1.0},
        "publisher": "operator",
        "qos": 0,
    }


async def test_two_windows_of_one_person_are_both_told(web: Web) -> None:
    async with web.reading("a") as first, web.reading("*") as second, web.reading("a") as third:
        for stream in (first, second, third):
            await anext(stream)
        await web.publish("a", 1)
        assert [(await anext(stream))[2]["payload"] for stream in (first, second, third)] == [1, 1, 1]


async def test_a_subscription_ends_with_its_last_stream(web: Web) -> None:
    async with web.reading("a") as first:
        await anext(first)
        async with web.reading("a") as second:
            await anext(second)
        await web.publish("a", 1)
        assert (await anext(first))[2]["payload"] == 1
        assert web.exchange.recorded(TopicUnsubscribed) == []
    await web.wait_no_streams()
    assert len(web.exchange.recorded(TopicUnsubscribed)) == 1
    assert web.exchange.hub.topics.figures()["subscriptions"] == 0


async def test_a_durable_stream_goes_on_where_it_was_left_also_after_a_restart(web: Web) -> None:
    async with web.reading("a", durable=1, qos=1) as stream:
        await anext(stream)
        await web.publish("a", 1, qos=1)
        assert (await anext(stream))[2]["payload"] == 1
    await web.wait_no_streams()
    await web.publish("a", 2, qos=1)
    async with web.reading("b", durable=1, qos=1) as other:
        await anext(other)
        async with web.reading("a", durable=1, qos=1) as stream:
            await anext(stream)
            assert (await anext(stream))[2]["payload"] == 2
            await web.publish("a", 3, qos=2)
            name, _, data = await anext(stream)
            assert (name, data["payload"], data["qos"]) == ("message", 3, 1)
    await web.wait_no_streams()
    assert len(web.exchange.recorded(EventTaken)) == 3
    await web.publish("a", 4, qos=1)
    async with serving(exchange=web.exchange.restarted()) as after, after.reading("a", durable=1, qos=1) as stream:
        await anext(stream)
        assert (await anext(stream))[2]["payload"] == 4


async def test_a_slow_reader_is_told_how_much_it_missed_and_comes_back_for_what_is_owed(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "MAX_WAITING_BYTES", 1000)
    seen: list[int] = []
    async with web.reading("a", durable=1, qos=1) as stream:
        await anext(stream)
        (readers,) = web.edge._api.readers._by_identity.values()
        # All at once, before the stream has a turn.
        for number in range(5):
            value = {"topic": "a", "payload": f"{number}" + "x" * 400, "qos": 1}
            web.exchange.call("trunkline/publish", value)
        assert readers.count == 1
        async for name, _, data in stream:
            if name == "dropped":
                assert data == {"dropped": 4}
            else:
                seen.append(int(data["payload"][0]))
    assert seen == [0]
    monkeypatch.undo()
    async with web.reading("a", durable=1, qos=1) as stream:
        await anext(stream)
        seen += [int((await anext(stream))[2]["payload"][0]) for _ in range(4)]
    assert seen == [0, 1, 2, 3, 4]


async def test_the_key_of_a_request_publishes_once(web: Web) -> None:
    first = await web.publish("a", 1, key="k")
    assert (await web.publish("a", 1, key="k")).json() == first.json()
    assert (await web.publish("a", 2, key="k")).status_code == 409
    assert len(web.exchange.recorded(EventPublished)) == 1


async def test_an_empty_body_is_null(web: Web) -> None:
    assert (await web.client.post("/v1/topics/a", headers=bearer(OPERATOR_TOKEN))).status_code == 200
    (entry,) = web.exchange.recorded(EventPublished)
    assert bytes(entry.body) == b"null"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/topics/a%20b", b"1", 400),
        ("POST", "/v1/topics/a.*", b"1", 400),
        ("POST", "/v1/topics/" + "x" * 300, b"1", 400),
        ("POST", "/v1/topics/a", b"{", 400),
        ("POST", "/v1/topics/a", b'{"a":1,"a":2}', 400),
        ("POST", "/v1/topics/a?qos=3", b"1", 400),
        ("POST", "/v1/topics/a?qos=x", b"1", 400),
        ("POST", "/v1/topics/a?key=", b"1", 400),
        ("POST", "/v1/topics/a?what=1", b"1", 400),
        ("POST", "/v1/topics/a", b"1" * 1_100_000, 413),
        ("POST", "/v1/topics/", b"1", 400),
        ("POST", "/v1/topics", b"1", 404),
        ("GET", "/v1/topics/a.%23.b", b"", 400),
        ("GET", "/v1/topics/a?durable=2", b"", 400),
        ("DELETE", "/v1/topics/a", b"", 405),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_our_form(
    web: Web, method: str, path: str, body: bytes, status: int
) -> None:
    headers = {**bearer(OPERATOR_TOKEN), "content-type": "application/json"}
    answer = await web.client.request(method, path, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"]
    assert web.exchange.recorded(EventPublished) == []


async def test_policy_holds_for_whose_token_it_is() -> None:
    rules = (
        Rule("quiet", "http:bob", "topic/secret", Decision.DENY),
        Rule("asked", "http:bob", "topic/x", Decision.ALLOW),
        Rule("nosub", "http:carol", "trunkline/*", Decision.DENY),
        Rule("ask", "http:dave", "trunkline/*", Decision.ASK),
        *BUILTIN_RULES,
    )
    async with serving(Policy(rules, "p")) as web:
        bob, carol, dave = (web.exchange.token("http", name) for name in ("bob", "carol", "dave"))
        assert (await web.publish("secret", 1, bob)).status_code == 403
        assert (await web.publish("open", 1, carol)).status_code == 403
        assert (await web.client.get("/v1/topics/a", headers=bearer(carol))).status_code == 403
        assert (await web.client.get("/v1/topics/a", headers=bearer("wrong"))).status_code == 401
        waits = await web.publish("open", 1, dave)
        assert (waits.status_code, waits.json()["status"]) == (202, "waiting_approval")
        async with web.reading("#", bob) as stream, web.reading("open", dave) as asked:
            await anext(stream)
            name, _, data = await anext(asked)
            assert name == "waiting_approval"
            web.exchange.answer(data["approval_id"])
            assert (await anext(asked))[0] == "watching"
            await web.publish("secret", 1)
            await web.publish("open", 2)
            assert (await anext(stream))[2]["payload"] == 2
            assert (await anext(asked))[2]["payload"] == 2


async def test_a_stream_ends_when_the_exchange_stops_and_when_a_defect_ends_its_conversation(web: Web) -> None:
    async with web.reading("a") as stream:
        await anext(stream)
        (readers,) = web.edge._api.readers._by_identity.values()
        web.exchange.feed.failed(readers.number, RuntimeError("planted"))
        assert [name async for name, _, _ in stream] == ["closing"]
    async with web.reading("a") as stream:
        await anext(stream)
        await web.publish("a", 1)
        assert (await anext(stream))[2]["payload"] == 1
        web.edge._api.requests.close()
        assert [name async for name, _, _ in stream] == ["closing"]


async def test_a_stream_whose_subscription_the_operator_ends_is_told_so_and_ends(web: Web) -> None:
    async with web.reading("a", qos=1) as stream, web.reading("b") as other:
        name = (await anext(stream))[2]["subscription"]
        await anext(other)
        answer = await web.client.delete(f"/v1/subscriptions/{name}", headers=bearer(OPERATOR_TOKEN))
        assert (answer.status_code, answer.json()) == (200, {"subscription": name, "ended": True})
        assert [(kind, data) async for kind, _, data in stream] == [
            ("closing", {"reason": "the operator ended this subscription"})
        ]
        await web.publish("b", 2)
        assert (await anext(other))[2]["payload"] == 2


def test_the_path_of_the_routes_is_that_of_the_door() -> None:
    assert routes.PATH.startswith(routes.PREFIXES[0] + "/")
