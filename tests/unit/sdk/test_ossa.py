"""``OssaAgent`` as its author uses it, on the real edge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline.sdk
from tests.ossa_messages import new_identity
from tests.unit.sdk.ossa_kit import ScriptedExchange, until, world
from trunkline.errors import ExchangeUnreachable
from trunkline.sdk import OssaAgent, OssaError, OssaMessage
from trunkline.testing.memory import MadeCall
from trunkline.topic_names import matches


def test_everything_that_is_exported_can_be_imported() -> None:
    for name in trunkline.sdk.__all__:
        assert getattr(trunkline.sdk, name) is not None
    with pytest.raises(AttributeError):
        trunkline.sdk.NoSuchName  # noqa: B018


async def test_what_needs_a_connection_says_so_without_one() -> None:
    alice = ScriptedExchange().agent()
    assert repr(alice) == "OssaAgent('alice', 'worker')"
    for asking in (alice.request("bob", "echo"), alice.publish("t"), alice.start_stream("s", to="bob")):
        with pytest.raises(ExchangeUnreachable, match="connected"):
            await asking
    alice.stop()


async def test_an_action_is_a_tool_for_callers_of_every_protocol_and_may_call_their_tools(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.exchange.attach("com.example.echo", "echo", deliver=lambda agent, effect: agent.finish(effect.input))
        bob = here.agent("bob")

        @bob.handle("relay", input_schema={"type": "object", "required": ["n"]}, side_effects=False)
        async def _relay(request: OssaMessage) -> Any:
            return (await bob.request("trunkline", "com.example.echo/echo", request.payload)).payload

        async with bob.connected():
            with pytest.raises(RuntimeError, match="before"):
                bob.handle("late")
            made: MadeCall = here.exchange.call("bob/relay", {"n": 1})
            await until(lambda: made.answer, "it is answered")
            assert made.output == {"n": 1}
            assert here.exchange.call("bob/relay", {}).code == "tool.invalid_input"
        assert here.exchange.call("bob/relay", {"n": 1}).code == "tool.unavailable"


async def test_what_was_published_while_a_durable_subscriber_was_away_waits_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        keys, heard = new_identity(here.exchange, "bob"), []

        def bob() -> OssaAgent:
            agent = OssaAgent(keys, url=here.url, home=here.home)
            agent.subscribe("news.*", lambda event: heard.append(event.payload), qos=2, durable=True)
            return agent

        async with here.agent("alice").connected() as alice:
            async with bob().connected():
                await alice.publish("news.one", 1, qos=2)
                await until(lambda: heard == [1], "it hears")
                await until(lambda: not here.exchange.hub.topics.owed_to_durable(), "it is acknowledged")
            await alice.publish("news.two", 2, qos=1)
            async with bob().connected():
                await until(lambda: heard == [1, 2], "it hears of what it missed")


async def test_each_of_two_subscriptions_that_fit_gets_an_event_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.agent("bob").connected() as bob:
        heard: list[str] = []
        for pattern in ("news.*", "news.#", "#"):
            await bob.subscribe(pattern, lambda _, pattern=pattern: heard.append(pattern), qos=1)
        await bob.publish("news.one", 1, qos=1)
        await until(lambda: len(heard) >= 3, "all hear")
        await bob.request("trunkline", "publish", {"topic": "other", "payload": 1})
        await until(lambda: len(heard) >= 4, "one hears")
    assert sorted(heard) == ["#", "#", "news.#", "news.*"]


async def test_a_subscription_that_is_refused_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.agent("bob").connected() as bob:
        with pytest.raises(OssaError) as caught:
            await bob.subscribe("a..b", lambda _: None)
        assert caught.value.code == 400
        assert list(bob._subscriptions) == []


async def test_above_the_rate_a_request_waits_as_long_as_the_exchange_says(tmp_path: Path) -> None:
    async with world(tmp_path, worker=2) as here, here.agent("alice").connected() as alice:
        here.exchange.attach("com.example.echo", "echo", deliver=lambda agent, effect: agent.finish(effect.input))
        for _ in range(2):
            await alice.request("trunkline", "com.example.echo/echo", {})
        with pytest.raises(OssaError) as caught:
            await alice.request("trunkline", "com.example.echo/echo", {}, timeout_s=2)
        assert caught.value.code == 429
        assert caught.value.retry_after_ms > 2000


async def test_stopping_lets_a_handler_finish(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob, began = here.agent("bob"), asyncio.Event()

        @bob.handle("slow")
        async def _slow(_: OssaMessage) -> str:
            began.set()
            await asyncio.sleep(0.05)
            return "done"

        async with here.agent("alice").connected() as alice:
            async with bob.connected():
                asking = asyncio.create_task(alice.request("bob", "slow"))
                await began.wait()
            assert (await asking).payload == "done"


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "a.b", True),
        ("b.#", "a.b", False),
    ],
)
def test_a_pattern_means_these_topics(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits
