"""Publishing and subscribing as calls: who is told, what is on disk when, what policy and keys mean for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.edges.topics.kit import Listening, running
from trunkline.config import BUILTIN_RULES
from trunkline.edges.topics.agent import KEPT_S
from trunkline.edges.topics.messages import PIECE_BYTES
from trunkline.effects import Answer, Deliver, Reply
from trunkline.entries import EventPublished, TopicSubscribed
from trunkline.model import Decision, Policy, Principal, Rule, Status
from trunkline.testing.memory import MemoryExchange

ALICE, BOB = Principal("ossa:alice"), Principal("http:bob")
BUILTIN = Policy(BUILTIN_RULES, "builtin")


@pytest.fixture
async def exchange() -> AsyncIterator[MemoryExchange]:
    made = await running()
    yield made
    assert made.died in {None, "killed"}
    made.close()


def publish(exchange: MemoryExchange, topic: str, payload: object = None, **terms: Any) -> Any:
    by = terms.pop("by", BOB)
    more = {name: terms.pop(name) for name in ("key", "context", "correlation_id") if name in terms}
    return exchange.call("trunkline/publish", {"topic": topic, "payload": payload, **terms}, by=by, **more)


def subscribe(exchange: MemoryExchange, topic: str, *, by: Principal = ALICE, **terms: Any) -> Any:
    return exchange.call("trunkline/subscribe", {"topic": topic, **terms}, by=by)


async def test_who_subscribed_is_told_of_what_another_publishes(exchange: MemoryExchange) -> None:
    alice = Listening(exchange, ALICE)
    name = subscribe(exchange, "build.*").output["subscription"]
    event = publish(exchange, "build.done", {"ok": True}).output["event"]
    (told,) = alice.told
    assert (told.subscription_id, told.event_id, told.publisher, told.topic) == (
        name,
        event,
        "http:bob",
        "build.done",
    )
    assert alice.bodies() == [{"ok": True}]


async def test_who_ends_his_subscription_hears_no_more_and_nobody_ends_it_for_him(exchange: MemoryExchange) -> None:
    alice = Listening(exchange, ALICE)
    name = subscribe(exchange, "a").output["subscription"]
    assert exchange.call("trunkline/unsubscribe", {"subscription": name}, by=BOB).code == "not_found"
    assert exchange.call("trunkline/unsubscribe", {"subscription": name}, by=ALICE).output == {}
    publish(exchange, "a")
    assert alice.told == []


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_whoever_published_hears_of_it_when_the_event_is_on_disk_and_waits_for_the_disk_once(
    exchange: MemoryExchange, qos: int
) -> None:
    assert publish(exchange, "a", qos=qos).outcome.status is Status.SUCCEEDED
    (event,) = exchange.recorded(EventPublished)
    (answer,) = [effect for effect in exchange.effects if isinstance(effect, Answer) and effect.after]
    assert answer.after > event.n
    before = [effect for effect in exchange.effects if isinstance(effect, Deliver | Reply)]
    assert [effect.after for effect in before] == [0, 0]


async def test_the_key_of_a_call_makes_publishing_once_of_many_tries(exchange: MemoryExchange) -> None:
    first = publish(exchange, "a", 1, key="k", qos=1).output
    assert publish(exchange, "a", 1, key="k", qos=1).output == first
    assert len(exchange.recorded(EventPublished)) == 1
    assert publish(exchange, "a", 2, key="k", qos=1).code == "idempotency.conflict"


async def test_what_a_protocol_says_beside_a_call_goes_with_its_event(exchange: MemoryExchange) -> None:
    alice = Listening(exchange, ALICE)
    subscribe(exchange, "a")
    publish(exchange, "a", context=Raw(b'{"priority":2}'), correlation_id="c-1")
    assert bytes(alice.told[0].context or b"") == b'{"priority":2}'
    assert alice.told[0].correlation_id == "c-1"


async def test_a_durable_subscription_needs_no_new_call_after_a_restart(exchange: MemoryExchange) -> None:
    subscribe(exchange, "a", qos=1, durable=True)
    publish(exchange, "a", 1, qos=1)
    after = exchange.restarted()
    await after.edges.start()
    publish(after, "a", 2, qos=1)
    alice = Listening(after, ALICE, takes=True)
    assert alice.bodies() == [1, 2]
    assert Listening(after, ALICE).told == []
    after.close()


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("publish", {"topic": "a"}),
        ("publish", {"payload": 1}),
        ("publish", {"topic": "a", "payload": 1, "qos": 3}),
        ("publish", {"topic": "a", "payload": 1, "qos": "1"}),
        ("publish", {"topic": "a", "payload": 1, "more": 1}),
        ("publish", {"topic": "a.*", "payload": 1}),
        ("publish", {"topic": "a..b", "payload": 1}),
        ("publish", {"topic": 7, "payload": 1}),
        ("publish", {"topic": "a", "payload": 1, "expires_ms": -1}),
        ("subscribe", {"topic": "a.#.b"}),
        ("subscribe", {"topic": "a", "durable": 1}),
        ("unsubscribe", {"subscription": ""}),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_leaves_nothing(
    exchange: MemoryExchange, tool: str, value: dict[str, Any]
) -> None:
    Listening(exchange, ALICE)
    assert exchange.call(f"trunkline/{tool}", value, by=ALICE).code == "tool.invalid_input"
    assert exchange.recorded(EventPublished) + exchange.recorded(TopicSubscribed) == []


async def test_null_is_a_payload(exchange: MemoryExchange) -> None:
    alice = Listening(exchange, ALICE)
    subscribe(exchange, "a")
    publish(exchange, "a", None)
    assert alice.bodies() == [None]


# -- policy ------------------------------------------------------------------------------------------------------------


async def test_by_the_built_in_rules_agents_publish_and_subscribe_and_nobody_is_asked() -> None:
    exchange = await running(BUILTIN)
    alice = Listening(exchange, ALICE)
    assert subscribe(exchange, "a").outcome.status is Status.SUCCEEDED
    assert publish(exchange, "a", 1).outcome.status is Status.SUCCEEDED
    assert alice.bodies() == [1]
    exchange.close()


async def test_a_rule_for_a_topic_keeps_an_agent_from_publishing_and_from_hearing() -> None:
    denied = Rule("no", "http:bob", "topic/secret.*", Decision.DENY, "not for him")
    exchange = await running(Policy((denied, *BUILTIN_RULES), "with-deny"))
    bob = Listening(exchange, BOB)
    assert publish(exchange, "secret.plan").code == "policy.denied"
    assert subscribe(exchange, "#", by=BOB).outcome.status is Status.SUCCEEDED
    publish(exchange, "secret.plan", 1, by=ALICE)
    publish(exchange, "open.plan", 2, by=ALICE)
    assert bob.bodies() == [2]
    exchange.close()


async def test_a_rule_that_asks_about_publishing_asks_once_for_the_call_and_not_for_who_is_told() -> None:
    asks = Rule("ask", "http:bob", "trunkline/publish", Decision.ASK)
    exchange = await running(Policy((asks, *BUILTIN_RULES), "with-ask"))
    alice = Listening(exchange, ALICE)
    subscribe(exchange, "a")
    made = publish(exchange, "a", 1)
    assert alice.told == []
    exchange.answer(made.approval_id)
    assert alice.bodies() == [1]
    exchange.close()


# -- agents that are told by a call ------------------------------------------------------------------------------------


async def test_an_agent_without_the_tool_by_which_it_is_told_learns_what_to_offer(exchange: MemoryExchange) -> None:
    exchange.attach("com.bot", "work")
    bot = Principal("opensentience:com.bot")
    for durable in (False, True):
        made = subscribe(exchange, "a", by=bot, durable=durable)
        assert made.outcome.fault is not None
        assert "a2a_handle_event" in made.outcome.fault.message
    assert exchange.recorded(TopicSubscribed) == []


async def test_nobody_else_can_be_the_exchange(exchange: MemoryExchange) -> None:
    for name in ("trunkline", "Trunkline", "trunkline.events"):
        exchange.attach(name, "publish")
    assert [tool.tool_id for tool in exchange.views.tools_named("publish")] == ["trunkline/publish"]
    assert publish(exchange, "a").outcome.status is Status.SUCCEEDED


async def test_a_defect_costs_the_calls_that_were_open_and_not_the_place(exchange: MemoryExchange) -> None:
    exchange.feed.failed(exchange.hub.registry.agents["trunkline"].session, RuntimeError("x"))
    assert publish(exchange, "a").code == "tool.unavailable"
    exchange.advance(2.0)
    await asyncio.sleep(0)
    assert publish(exchange, "a").outcome.status is Status.SUCCEEDED


async def test_a_large_output_is_read_piece_by_piece_by_who_made_the_call_and_by_nobody_else(
    exchange: MemoryExchange,
) -> None:
    # Characters of two bytes, none of which may be cut.
    body = {"text": "x" + "ü" * 600_000}
    exchange.attach("com.big", "read", deliver=lambda agent, _: agent.finish(body))
    large = exchange.call("com.big/read", by=ALICE).outcome.large
    assert large is not None
    asked: dict[str, Any] = {"ref": f"sha256:{large.sha256}", "offset": 0}
    pieces = []
    while asked["offset"] is not None:
        answer = exchange.call("trunkline/read_output", asked, by=ALICE).output
        pieces.append(answer["text"])
        asked["offset"] = answer["next"]
    assert len(pieces) == 5
    assert json.loads("".join(pieces)) == body
    assert exchange.call("trunkline/read_output", {**asked, "offset": 0}, by=BOB).code == "not_found"


async def test_what_is_read_of_a_large_output_is_not_held_for_ever(exchange: MemoryExchange) -> None:
    exchange.attach("com.big", "read", deliver=lambda agent, _: agent.finish({"text": "x" * 2_000_000}))
    large = exchange.call("com.big/read", by=ALICE).outcome.large
    assert large is not None
    asked = {"ref": f"sha256:{large.sha256}"}
    assert exchange.call("trunkline/read_output", asked, by=ALICE).output["next"] == PIECE_BYTES
    agent = exchange.edges._running["trunkline"].agent  # type: ignore[attr-defined]
    assert agent._read is not None
    exchange.advance(KEPT_S + 1)
    assert agent._read is None
