"""Events as calls of an agent's tool: taken when it succeeds, tried again when it fails, never twice at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from trunkline import Agent, ToolFailed
from trunkline.config import BUILTIN_RULES, Config, OpenSentience
from trunkline.edges.opensentience import told
from trunkline.edges.opensentience.edge import OPENSENTIENCE
from trunkline.edges.opensentience.told import ToldEvents
from trunkline.edges.topics.edge import TOPICS
from trunkline.effects import Answer, Notify, StopTelling
from trunkline.entries import CallAccepted, EventTaken
from trunkline.events import CallRequested, Event, EventGivenUp, SubscriberArrived
from trunkline.events import EventTaken as Taken
from trunkline.model import EVENT_TOOL, Circumstance, Now, Policy, Principal, Status, fault
from trunkline.sdk.topic_events import TopicEvent
from trunkline.testing.memory import MemoryExchange

BOUND_S = 10
AT = 1_800_000_000_000


def notify(event: int, qos: int = 1, **terms: Any) -> Notify:
    return Notify(7, 0, "sub", event, f"e-{event}", "http:bob", "a.b", Raw(b'{"x":1}'), qos, AT, **terms)


class Agentless:
    """The part alone: what it says, and answers to its calls."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.told = ToldEvents(7, self.said.append)
        self.told.agent_id = "com.bot"
        self.mono = 100.0
        self.wall = AT / 1000

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def calls(self) -> list[CallRequested]:
        return [event for event in self.said if isinstance(event, CallRequested)]

    def answer(self, call: CallRequested, status: Status = Status.SUCCEEDED) -> None:
        problem = None if status is Status.SUCCEEDED else fault("tool.failed")
        self.told.answered(Answer(7, 0, call.ref, "c", status, fault=problem), self.now)

    def advance(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds
        self.told.wake(self.now)


def test_an_event_is_a_call_by_the_exchange_and_its_success_takes_it() -> None:
    kit = Agentless()
    kit.told.notify(notify(5, correlation_id="c-1", circumstances=(Circumstance.UNTRUSTED,)), kit.now)
    (call,) = kit.calls()
    assert (call.caller.identity, call.tool_id) == ("trunkline:trunkline.events", "com.bot/a2a_handle_event")
    assert json.loads(bytes(call.input)) == {
        "topic": "a.b",
        "payload": {"x": 1},
        "publisher": "http:bob",
        "event_id": "e-5",
    }
    assert call.correlation_id == "c-1"
    assert call.on_behalf_of.circumstances == (Circumstance.UNTRUSTED,)
    kit.answer(call)
    assert kit.said[1:] == [Taken(7, "sub", 5)]
    assert kit.told.wake_at() is None


def test_the_call_for_a_sensitive_event_is_sensitive() -> None:
    kit = Agentless()
    kit.told.notify(notify(5), kit.now)
    kit.told.notify(notify(6, sensitive=True), kit.now)
    assert [call.sensitive for call in kit.calls()] == [False, True]


def test_a_call_that_failed_is_made_again_after_1_2_4_and_at_most_30_seconds() -> None:
    kit = Agentless()
    kit.told.notify(notify(5), kit.now)
    waits = []
    for _ in range(8):
        kit.answer(kit.calls()[-1], Status.FAILED)
        due = kit.told.wake_at()
        assert due is not None
        waits.append(due - kit.mono)
        kit.advance(waits[-1] - 0.01)
        before = len(kit.calls())
        kit.advance(0.02)
        assert len(kit.calls()) == before + 1
    assert [round(wait) for wait in waits] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_events_of_a_subscription_that_was_ended_are_not_tried_again() -> None:
    kit = Agentless()
    for number in range(told.MAX_AT_ONCE + 2):
        kit.told.notify(notify(number), kit.now)
    kit.answer(kit.calls()[0], Status.FAILED)
    kit.told.stop(StopTelling(7, 0, "sub"), kit.now)
    made = len(kit.calls())
    for call in kit.calls()[1:]:
        kit.answer(call, Status.FAILED)
    kit.advance(60)
    assert len(kit.calls()) == made
    assert kit.told.wake_at() is None
    kit.told.notify(Notify(7, 0, "other", 99, "e", "http:bob", "a.b", Raw(b"{}"), 1, AT), kit.now)
    assert len(kit.calls()) == made + 1


@pytest.mark.parametrize("terms", [{}, {"expires_ms": AT + 60_000}])
def test_what_is_too_old_is_given_up(terms: dict[str, int]) -> None:
    kit = Agentless()
    kit.told.notify(notify(5, **terms), kit.now)
    kit.answer(kit.calls()[-1], Status.FAILED)
    kit.advance(61 if terms else 86_401)
    kit.answer(kit.calls()[-1], Status.FAILED)
    assert kit.said[-1] == EventGivenUp(7, "sub", 5, "tool.failed")
    assert kit.told.wake_at() is None
    assert kit.told.open == {}


def test_an_event_of_the_lowest_quality_is_tried_once() -> None:
    kit = Agentless()
    kit.told.notify(notify(5, qos=0), kit.now)
    kit.answer(kit.calls()[0], Status.FAILED)
    assert len(kit.said) == 1
    assert kit.told.wake_at() is None


def test_what_is_told_again_while_it_is_under_way_is_one_call() -> None:
    kit = Agentless()
    kit.told.notify(notify(5), kit.now)
    kit.told.notify(notify(5), kit.now)
    assert len(kit.calls()) == 1
    kit.answer(kit.calls()[0], Status.FAILED)
    kit.told.notify(notify(5), kit.now)
    assert len(kit.calls()) == 1


def test_so_many_are_under_way_at_once_and_what_is_owed_to_nobody_waits_up_to_a_bound() -> None:
    kit = Agentless()
    for number in range(told.MAX_AT_ONCE + told.MAX_WAITING + 5):
        kit.told.notify(notify(number, qos=0), kit.now)
    assert len(kit.calls()) == told.MAX_AT_ONCE
    while len(kit.told.open):
        kit.answer(next(call for call in kit.calls() if call.ref in kit.told.open))
    assert len(kit.calls()) == told.MAX_AT_ONCE + told.MAX_WAITING


def test_an_agent_is_there_for_events_once_it_has_the_tool() -> None:
    kit = Agentless()
    who = Principal("opensentience:com.bot")
    kit.told.tools_confirmed(("com.bot/other",), who)
    assert kit.said == []
    kit.told.tools_confirmed(("com.bot/other", f"com.bot/{EVENT_TOOL}"), who)
    assert kit.said == [SubscriberArrived(7, who)]


# -- agents on a real socket -------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[MemoryExchange]:
    config = Config(opensentience=OpenSentience(socket=str(folder / "agents.sock")))
    exchange = MemoryExchange(
        Policy(BUILTIN_RULES, "builtin"),
        edges=(TOPICS, OPENSENTIENCE),
        config=config,
        live=asyncio.get_running_loop(),
        home=folder,
    )
    await exchange.edges.start()
    try:
        async with asyncio.timeout(BOUND_S):
            yield exchange
    finally:
        await exchange.edges.stop()
        assert exchange.died is None


def attached(exchange: MemoryExchange, agent: Agent) -> Any:
    token = exchange.token("opensentience", agent.agent_id)
    return agent.connected(socket=str(exchange.home / "agents.sock"), token=token, grace_s=0.2)


async def test_one_agent_is_told_of_what_another_publishes_and_nobody_is_asked(short_path: Path) -> None:
    heard: asyncio.Queue[TopicEvent] = asyncio.Queue()
    bot = Agent("com.bot")

    @bot.on_event("build.*", qos=1)
    async def told_of(event: TopicEvent) -> None:
        """Builds."""
        heard.put_nowait(event)

    async with serving(short_path) as exchange, attached(exchange, bot), attached(exchange, Agent("com.ci")) as ci:
        while not exchange.hub.topics.figures()["subscriptions"]:  # noqa: ASYNC110  subscribing is the agent's own affair
            await asyncio.sleep(0.001)
        event_id = await ci.publish("build.done", {"ok": True}, qos=1)
        event = await heard.get()
        assert event == TopicEvent("build.done", {"ok": True}, "opensentience:com.ci", event_id)
        while exchange.hub.topics.figures()["owed_events"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_handler_that_fails_is_told_again_and_a_durable_one_after_it_was_away(short_path: Path) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    failures = iter([True, False, False])

    def made() -> Agent:
        bot = Agent("com.bot")

        @bot.on_event("a", qos=1, durable=True)
        def told_of(event: TopicEvent) -> None:
            if next(failures):
                raise RuntimeError("not yet")
            loop.call_soon_threadsafe(heard.put_nowait, event.payload)

        return bot

    loop = asyncio.get_running_loop()
    async with serving(short_path) as exchange, attached(exchange, Agent("com.ci")) as ci:
        async with attached(exchange, made()):
            while not exchange.hub.topics.figures()["subscriptions"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await ci.publish("a", 1, qos=1)
            assert await heard.get() == 1
            while exchange.hub.topics.figures()["owed_events"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await ci.publish("a", 2, qos=1)
        async with attached(exchange, made()):
            assert await heard.get() == 2
            while exchange.hub.topics.figures()["owed_events"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    calls = [entry for entry in exchange.recorded(CallAccepted) if entry.tool_id == f"com.bot/{EVENT_TOOL}"]
    assert [entry.rule for entry in calls] == ["builtin-told"] * 3
    assert len(exchange.recorded(EventTaken)) == 2


async def test_an_agent_that_cannot_be_told_learns_what_to_offer(short_path: Path) -> None:
    async with serving(short_path) as exchange, attached(exchange, Agent("com.bot")) as bot:
        with pytest.raises(ToolFailed, match="a2a_handle_event"):
            await bot.subscribe("a")


async def test_nobody_else_tells_an_agent_of_events_without_being_asked_about(short_path: Path) -> None:
    bot = Agent("com.bot")

    @bot.on_event()
    def told_of(event: TopicEvent) -> None:
        raise AssertionError(event)

    forged = {"topic": "a", "payload": 1, "publisher": "x", "event_id": "e"}
    async with serving(short_path) as exchange, attached(exchange, bot):
        made = exchange.call(f"com.bot/{EVENT_TOOL}", forged, by=Principal("http:eve"))
        assert made.approval_id
