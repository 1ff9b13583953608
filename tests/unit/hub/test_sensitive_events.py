"""Events whose content is not for the record: what is stored, who is told, and when the original is destroyed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.edges.topics.kit import Listening, running
from trunkline.entries import EventDropped, EventPublished, EventTaken, TopicUnsubscribed
from trunkline.hub import topics
from trunkline.model import Decision, Policy, Principal, Rule
from trunkline.testing.memory import MemoryExchange

ALICE, BOB, CAROL = Principal("ossa:alice"), Principal("http:bob"), Principal("http:carol")
WORD = "Alice Lidell 1865"
BESIDE = Raw(b'{"x":{"for":"%b"}}' % WORD.encode())


@pytest.fixture
async def exchange() -> AsyncIterator[MemoryExchange]:
    made = await running()
    yield made
    assert made.died in {None, "killed"}
    made.close()


def subscribe(exchange: MemoryExchange, who: Principal, topic: str = "news", **terms: Any) -> str:
    given = {"topic": topic, "qos": 1, "durable": True, **terms}
    name: str = exchange.call("trunkline/subscribe", given, by=who).output["subscription"]
    return name


def publish(exchange: MemoryExchange, **terms: Any) -> None:
    given = {"topic": "news", "payload": {"who": WORD}, "qos": 1, **terms}
    exchange.call("trunkline/publish", given, by=BOB, context=BESIDE, sensitive=True)


def stored(exchange: MemoryExchange) -> list[dict[str, Any]]:
    """The events on record, as they are stored."""
    read = [json.loads(line) for line in exchange.ledger.reader.lines(1, exchange.ledger.last)]
    assert WORD not in json.dumps(read)
    return [line for line in read if line["kind"] == "event.published"]


def held(exchange: MemoryExchange, at: int = 0) -> bool:
    """Whether the original of an event can still be read."""
    return exchange.ledger.reader.original(stored(exchange)[at]["n"], "body") is not None


async def test_the_record_and_onlookers_have_hashes_of_body_and_context(exchange: MemoryExchange) -> None:
    seen: list[bytes] = []
    exchange.operator.watch(seen.append)
    alice = Listening(exchange, ALICE, takes=True)
    subscribe(exchange, ALICE)
    publish(exchange)
    (told,) = alice.told
    assert (told.sensitive, told.context, alice.bodies()) == (True, BESIDE, [{"who": WORD}])
    (event,) = stored(exchange)
    body = b'{"who":"%b"}' % WORD.encode()
    assert event["body"] == {"$sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    assert event["context"] == {"$sha256": hashlib.sha256(BESIDE).hexdigest(), "bytes": len(BESIDE)}
    assert (event["topic"], event["publisher"], event["hashed"]) == ("news", "http:bob", True)
    assert any(b'"event.published"' in line for line in seen)
    assert not any(WORD.encode() in line for line in seen)


async def test_a_rule_makes_an_event_sensitive_and_without_one_it_is_as_ever() -> None:
    rules = (
        Rule("r1", "http:carol", "trunkline/publish", Decision.ALLOW, sensitive=True),
        Rule("r2", "*", "*", Decision.ALLOW),
    )
    exchange = await running(Policy(rules, "v"))
    alice = Listening(exchange, ALICE, takes=True)
    subscribe(exchange, ALICE)
    for who in (CAROL, BOB):
        exchange.call("trunkline/publish", {"topic": "news", "payload": 1, "qos": 1}, by=who)
    assert [told.sensitive for told in alice.told] == [True, False]
    assert ["hashed" in event for event in stored(exchange)] == [True, False]
    assert [entry.released for entry in exchange.recorded(EventTaken)] == [True, False]
    exchange.close()


async def test_the_original_lives_until_the_last_durable_subscription_took_it(exchange: MemoryExchange) -> None:
    alice, carol = Listening(exchange, ALICE), Listening(exchange, CAROL)
    subscribe(exchange, ALICE)
    subscribe(exchange, CAROL)
    publish(exchange)
    assert held(exchange)
    alice.take(alice.told[0])
    assert held(exchange)
    carol.take(carol.told[0])
    assert not held(exchange)
    assert exchange.ledger.reader._value("SELECT count(*) FROM held") == 0


async def test_nothing_is_held_of_an_event_that_is_owed_to_nobody_after_a_restart(exchange: MemoryExchange) -> None:
    alice = Listening(exchange, ALICE)
    subscribe(exchange, ALICE, durable=False)
    publish(exchange)
    assert alice.bodies() == [{"who": WORD}]
    assert not held(exchange)


async def test_what_is_owed_survives_a_restart_and_is_told_in_full(exchange: MemoryExchange) -> None:
    subscribe(exchange, ALICE)
    publish(exchange)
    again = exchange.restarted()
    alice = Listening(again, ALICE)
    (told,) = alice.told
    assert (told.sensitive, told.context, alice.bodies()) == (True, BESIDE, [{"who": WORD}])
    alice.take(told)
    assert not held(again)
    assert again.restarted().hub.state.owed == {}


async def test_the_end_of_a_subscription_destroys_what_was_owed_to_it_alone(exchange: MemoryExchange) -> None:
    mine = subscribe(exchange, ALICE)
    publish(exchange)
    subscribe(exchange, CAROL)
    publish(exchange)
    exchange.call("trunkline/unsubscribe", {"subscription": mine}, by=ALICE)
    assert (held(exchange, 0), held(exchange, 1)) == (False, True)
    first = exchange.recorded(EventPublished)[0]
    assert [entry.released for entry in exchange.recorded(TopicUnsubscribed)] == [(first.n,)]


async def test_a_dead_letter_of_a_sensitive_event_is_sensitive(
    exchange: MemoryExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_OWED", 0)
    dead = Listening(exchange, CAROL)
    subscribe(exchange, CAROL, "news.dlq", durable=False, qos=0)
    subscribe(exchange, ALICE)
    publish(exchange)
    assert dead.bodies() == [{"who": WORD}]
    assert [told.sensitive for told in dead.told] == [True]
    assert [event["topic"] for event in stored(exchange) if event["hashed"]] == ["news", "news.dlq"]
    assert [entry.released for entry in exchange.recorded(EventDropped)] == [True]
    assert not held(exchange)


async def test_a_copy_of_the_record_without_the_originals_tells_nobody_a_hash(exchange: MemoryExchange) -> None:
    subscribe(exchange, ALICE)
    publish(exchange)
    exchange.ledger._link._writer._execute("DELETE FROM held")  # type: ignore[attr-defined]
    again = exchange.restarted()
    alice = Listening(again, ALICE)
    assert alice.told == []
    assert len(stored(again)) == 1, "no dead letter either"
    assert [entry.reason for entry in again.recorded(EventDropped)] == ["gone"]
    again.close()
