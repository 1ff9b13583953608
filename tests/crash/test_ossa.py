"""P-A1 for OSSA: `kill -9` of the exchange with something of an agent's under way; and agents behind a bad network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash.ossa_agents import CONFIG, Speaker, address, speaking, until
from tests.crash.ossa_loss import qualities
from tests.ossa_messages import signed
from tests.running import Running, running

pytestmark = pytest.mark.timeout(180)


async def killed(exchange: Running) -> None:
    exchange.kill()
    exchange.start()


async def test_a_command_that_was_under_way_ends_after_kill_9_and_ran_once(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = (Speaker(exchange, name, address(exchange), *actions) for name, actions in
                      (("alice", ()), ("bob", ("work",))))  # fmt: skip
        bob.handle = lambda _: None
        async with speaking(alice, bob):
            exchange.wait_tool("bob/work")
            command = alice.message("command", "bob", "work", {"n": 1}, correlationId="c")
            receipt = await alice.ask(command, wanted="acknowledgment")
            await until(lambda: bob.handled, "the request at bob")
            await killed(exchange)
            bob.handle = lambda payload: {"done": payload["n"]}
            await until(lambda: "c" in alice.replies and alice.replies["c"]["header"]["type"] == "command_result", "it")
            assert alice.replies["c"]["body"]["payload"] == {"done": 1}
            assert len(bob.handled) == 1
            await alice.say(signed(command, alice.key))
            receipts = lambda: [one for one in alice.got if one["header"]["type"] == "acknowledgment"]  # noqa: E731
            await until(lambda: len(receipts()) > 1, "the second receipt")
            assert receipts()[-1] == receipt


async def test_a_result_that_was_owed_is_told_after_kill_9(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = Speaker(exchange, "alice", address(exchange)), Speaker(exchange, "bob", address(exchange), "work")
        async with speaking(bob):
            exchange.wait_tool("bob/work")
            alice.acknowledges = False
            async with speaking(alice):
                command = alice.message("command", "bob", "work", {"n": 1}, correlationId="c")
                first = await alice.ask(command, wanted="command_result")
            await killed(exchange)
            alice.replies.clear()
            alice.acknowledges = True
            async with speaking(alice):
                await until(lambda: "c" in alice.replies, "the result")
                assert alice.replies["c"] == first
                exchange.wait_entry("process.step", step="told")
    assert len(bob.handled) == 1


async def test_an_event_that_was_owed_is_told_after_kill_9_with_the_same_id(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = Speaker(exchange, "alice", address(exchange)), Speaker(exchange, "bob", address(exchange))
        async with speaking(alice, bob):
            wish = {"topic": "news.*", "qos": 1, "durable": True}
            await bob.ask(bob.message("request", "trunkline", "subscribe", wish), wanted="response")
            bob.acknowledges = False
            event = alice.message("event", "trunkline", "said", {"n": 1}, topic="news.today", qos=1)
            await alice.ask(event, wanted="acknowledgment")
            await until(lambda: bob.handled, "the event")
            before = len(bob.got)
            await killed(exchange)
            bob.acknowledges = True
            told = lambda: [one for one in bob.got[before:] if one["header"]["type"] == "event"]  # noqa: E731
            await until(told, "the event again")
            assert len(bob.handled) == 1, "another id"


async def test_a_request_in_flight_is_answered_to_whoever_asks_again_after_kill_9(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = Speaker(exchange, "alice", address(exchange)), Speaker(exchange, "bob", address(exchange), "work")
        bob.handle = lambda _: None
        async with speaking(alice, bob):
            exchange.wait_tool("bob/work")
            request = alice.message("request", "bob", "work", {"n": 1})
            await alice.say(signed(request, alice.key))
            await until(lambda: bob.handled, "the request at bob")
            await killed(exchange)
            bob.handle = lambda payload: {"done": payload["n"]}
            reply = await alice.ask(request)
            assert reply["body"]["payload"] == {"done": 1}
            assert json.dumps(await alice.ask(request)) == json.dumps(reply)
            assert len(bob.handled) == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("loss", "count"), [(0.0, 100), (0.2, 100), (0.5, 15)])
async def test_what_each_quality_of_service_promises_holds_behind_a_bad_network(
    short_path: Path, loss: float, count: int
) -> None:
    found = await qualities(short_path / "home", seed=int(loss * 10), count=count, loss=loss, kills=3 if loss else 1)
    assert found.passed > 2 * count
