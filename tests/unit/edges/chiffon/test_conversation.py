"""What drives a session: a defect ends one conversation alone, time passes only for those that go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.unit.edges.chiffon.kit import Kit, RawAgent, as_fields, envelope, request, tool
from trunkline.edges import client
from trunkline.edges.background import Background
from trunkline.edges.chiffon.messages import Refused
from trunkline.edges.chiffon.push import Callback
from trunkline.edges.chiffon.session import AgentSession
from trunkline.model import Health, Status

REGISTRATION = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"]}


def broken(*_: object, **__: object) -> NoReturn:
    raise LookupError


def error_of(told: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as caught:
        told()
    return caught.value


def assert_only_one_is_gone(kit: Kit, other: RawAgent) -> None:
    """The one whose session is broken is gone, and nobody else noticed."""
    assert set(kit.peers.agents) == {"infra-2"}
    assert "infra-1" not in kit.exchange.hub.registry.agents
    assert kit.notices() == ["defect"]
    assert kit.exchange.died is None
    called = kit.call("chiffon.infra/run")
    other.result(other.fetch_one())
    assert called.outcome.status is Status.SUCCEEDED


async def test_a_defect_in_what_is_received_ends_that_conversation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    monkeypatch.setattr(one.session, "receive", broken)
    refused = error_of(lambda: one.say(envelope("error", {"error_code": 5001, "error_message": "x"})))
    assert (refused.status, refused.error.error_code) == (500, 5002)
    assert error_of(one.fetch).status == 503, "it has to register again"
    assert_only_one_is_gone(kit, two)
    again = await kit.agent("infra-1")
    assert again.fetch() == []


async def test_a_defect_in_what_is_sent_ends_that_conversation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    monkeypatch.setattr(one.session, "send", broken)
    kit.call("infra-1/run")
    assert_only_one_is_gone(kit, two)


async def test_a_defect_at_the_alarm_ends_that_conversation_alone_and_is_not_met_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    monkeypatch.setattr(one.session, "wake", broken)
    gone = one.conversation
    kit.advance(40.0, two)
    assert gone.session.wake_at() is None
    assert_only_one_is_gone(kit, two)


async def test_a_defect_in_a_task_that_carries_messages_ends_that_conversation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    monkeypatch.setattr(client, "request", broken)
    background = Background(kit.exchange.feed)
    Callback(background, one.conversation, "http://127.0.0.1:1/", "token").start()
    gone = one.conversation
    kit.call("infra-1/run")
    async with asyncio.timeout(10):
        while not gone.is_over:  # noqa: ASYNC110  (its end rings no bell here)
            await asyncio.sleep(0)
    assert_only_one_is_gone(kit, two)
    await background.stop()


async def test_a_registration_during_which_its_conversation_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    monkeypatch.setattr(AgentSession, "send", broken)
    with pytest.raises(Refused) as caught:
        await kit.agent("infra-1")
    assert caught.value.error.error_code == 5002
    assert kit.notices() == ["defect"]


async def test_registrations_that_come_while_the_first_waits_for_the_disk_are_all_answered() -> None:
    kit = Kit()
    caller = kit.peers.identify(kit.token("infra-1", "infra"))
    kit.exchange.disk_rests = True
    work = (["run"], ["run", "build"])
    waiting = [
        asyncio.create_task(kit.peers.register(caller, as_fields({**REGISTRATION, "work_types": types}), "test"))
        for types in work
    ]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    kit.exchange.disk_rests = False
    kit.exchange.store()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*waiting)
    assert [answer["work_types"] for answer in answers] == list(work)
    assert kit.exchange.views.tool("infra-1/build") is not None


async def test_an_agent_whose_token_was_replaced_while_it_waited_is_told_to_come_again() -> None:
    kit = Kit()
    caller = kit.peers.identify(kit.token("infra-1", "infra"))
    other = kit.other_token("infra-1", "infra", b"o" * 32)
    kit.exchange.disk_rests = True
    first = asyncio.create_task(kit.peers.register(caller, as_fields(REGISTRATION), "test"))
    await asyncio.sleep(0)
    second = asyncio.create_task(kit.peers.register(other, as_fields(REGISTRATION), "test"))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        with pytest.raises(Refused) as caught:
            await first
        assert caught.value.error.error_code == 5002
        kit.exchange.disk_rests = False
        kit.exchange.store()
        assert (await second)["registered"] is True


async def test_a_message_that_is_refused_is_a_sign_of_life_all_the_same() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    kit.advance(30.5)
    assert kit.exchange.hub.registry.agents["infra-1"].health is Health.SILENT
    error_of(lambda: agent.say(envelope("work_status", {"task_id": "x"})))
    assert kit.exchange.hub.registry.agents["infra-1"].health is Health.OK


async def test_nothing_wakes_a_conversation_that_is_over() -> None:
    kit = Kit()
    boss = kit.orchestrator()
    conversation = kit.peers.heard(boss.caller)
    kit.advance(601.0)
    assert conversation.is_over
    assert conversation.session.wake_at() is None
    agent = await kit.agent()
    gone = agent.conversation
    kit.advance(31.0)
    assert (gone.is_over, gone.session.wake_at()) == (True, None)


async def test_whoever_sends_messages_is_replaced_by_the_next_and_loses_none() -> None:
    kit = Kit()
    kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    conversation = kit.peers.heard(boss.caller)
    taken: dict[str, list[str]] = {"first": [], "second": []}

    async def send(name: str) -> None:
        async for message in conversation.outgoing():
            taken[name].append(message.request_id)

    background = Background(kit.exchange.feed)
    asked = [request("deploy") for _ in range(4)]
    for name, works in (("first", asked[:2]), ("second", asked[2:])):
        conversation.carry(name, background.spawn(send(name)))
        await asyncio.sleep(0)
        for work in works:
            boss.say(work)
        async with asyncio.timeout(10):
            while len(taken[name]) < 2:  # noqa: ASYNC110  (a list rings no bell)
                await asyncio.sleep(0)
    assert [*taken["first"], *taken["second"]] == [work["request_id"] for work in asked]
    await background.stop()
