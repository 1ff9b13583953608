"""What an OSSA agent asks, on a script whose clock jumps, and commands on the real edge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.ossa_messages import new_identity
from tests.unit.sdk.ossa_kit import US, ScriptedExchange, in_no_time, settled, until, world
from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import Identity, Message
from trunkline.sdk import OssaAgent, OssaError, OssaMessage


def answer_second(exchange: ScriptedExchange, message: Message) -> None:
    """Hang up on the first request; answer those that follow."""
    if message.type == messages.REQUEST:
        if len(exchange.of(messages.REQUEST)) == 1:
            exchange.hang_up()
        else:
            exchange.reply(message, {"ok": True})


def test_a_request_that_was_under_way_when_the_connection_ended_is_sent_again_with_the_same_id() -> None:
    exchange = ScriptedExchange(answer_second)

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            assert (await alice.request("bob", "echo")).payload == {"ok": True}

    in_no_time(main())
    first, second = exchange.of(messages.REQUEST)
    assert (first.message_id, first.payload) == (second.message_id, second.payload)
    assert len(exchange.sockets) == 2


def test_with_quality_0_nothing_is_sent_again_after_the_connection_ended() -> None:
    exchange = ScriptedExchange(answer_second)

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "echo", qos=0)
            assert caught.value.code == 503

    in_no_time(main())
    assert len(exchange.of(messages.REQUEST)) == 1


def test_of_one_correlation_the_next_leaves_when_the_one_before_has_its_reply() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            first = asyncio.create_task(alice.request("bob", "echo", {"n": 1}, correlation_id="c"))
            second = asyncio.create_task(alice.request("bob", "echo", {"n": 2}, correlation_id="c"))
            other = asyncio.create_task(alice.request("bob", "echo", {"n": 3}, correlation_id="d"))
            await settled()
            [one, three] = exchange.of(messages.REQUEST)
            exchange.reply(three, "three")
            assert (await other).payload == "three"
            exchange.reply(one, "one")
            assert (await first).payload == "one"
            await settled()
            exchange.reply(exchange.of(messages.REQUEST)[-1], "two")
            assert (await second).payload == "two"

    in_no_time(main())


def test_each_of_several_recipients_has_its_own_answer() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == messages.REQUEST:
            exchange.reply(message, "from carol", sender=Identity("carol", "worker"))
            info = messages.ErrorInfo(404, "no", message.timestamp)
            exchange.reply(message, kind="error", sender=Identity("bob", "worker"), error=info)

    exchange = ScriptedExchange(script)

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            bob, carol = await alice.request(["bob", "carol"], "echo")
            assert (bob.code, carol.payload) == (404, "from carol")

    in_no_time(main())
    [sent] = exchange.of(messages.REQUEST)
    assert [one.agent_id for one in sent.recipients] == ["bob", "carol"]


def test_a_response_that_carries_an_error_is_a_failure() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == messages.REQUEST:
            exchange.reply(message, error=messages.ErrorInfo(403, "no", message.timestamp, trace_id="t-1"))

    async def main() -> None:
        async with ScriptedExchange(script).agent().connected() as alice:
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "echo")
            assert (caught.value.code, caught.value.trace_id) == (403, "t-1")

    in_no_time(main())


def test_a_reply_can_be_asked_for_again_until_it_was_fetched() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            name = await alice.send_request("bob", "echo")
            with pytest.raises(OssaError, match="408"):
                await alice.await_response(name, 1)
            exchange.reply(exchange.of(messages.REQUEST)[0], "late")
            assert (await alice.await_response(name, 1)).payload == "late"
            with pytest.raises(OssaError, match="404"):
                await alice.await_response(name)

    in_no_time(main())


def test_a_message_that_cannot_be_sent_at_all_is_refused_at_once() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            for payload in ({"n": 2**53}, "x" * 1_100_000):
                with pytest.raises(OssaError, match="400"):
                    await alice.request("bob", "echo", payload)
            with pytest.raises(OssaError, match="400"):
                await alice.publish("news.*", 1)

    in_no_time(main())
    assert exchange.of(messages.REQUEST) == exchange.of(messages.EVENT) == []


def test_an_event_that_was_not_taken_is_an_error_and_one_that_was_not_acknowledged_a_timeout() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == messages.EVENT and message.topic == "closed":
            info = messages.ErrorInfo(403, "no", message.timestamp)
            exchange.receipt(message, messages.NACK, error=info, sender=US)

    async def main() -> None:
        async with ScriptedExchange(script).agent().connected() as alice:
            with pytest.raises(OssaError, match="403"):
                await alice.publish("closed", qos=2)
            with pytest.raises(OssaError, match="408"):
                await alice.publish("silent", qos=1)
            await alice.publish("silent")

    in_no_time(main())


# --- commands ---------------------------------------------------------------------------------------------------------


async def test_a_command_is_taken_at_once_and_its_result_follows(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob, go_on = here.agent("bob"), asyncio.Event()

        @bob.handle("build")
        async def _build(request: OssaMessage) -> dict[str, Any]:
            await go_on.wait()
            if request.payload.get("broken"):
                raise OssaError(507, "no room")
            return {"built": request.payload["what"]}

        async with bob.connected(), here.agent("alice").connected() as alice:
            name = await alice.send_command("bob", "build", {"what": "a house"})
            broken = await alice.send_command("bob", "build", {"broken": True})
            go_on.set()
            found = await alice.await_response(name)
            assert (found.type, found.payload) == ("command_result", {"built": "a house"})
            with pytest.raises(OssaError, match="507"):
                await alice.await_response(broken)
            with pytest.raises(OssaError, match="404"):
                await alice.send_command("bob", "no-such-action")


async def test_a_result_that_came_while_its_sender_was_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob, go_on = here.agent("bob"), asyncio.Event()

        @bob.handle("build")
        async def _build(_: OssaMessage) -> dict[str, Any]:
            await go_on.wait()
            return {"built": True}

        keys = new_identity(here.exchange, "alice")
        async with bob.connected():
            async with OssaAgent(keys, url=here.url, home=here.home).connected() as alice:
                name = await alice.send_command("bob", "build")
            go_on.set()
            again, told = OssaAgent(keys, url=here.url, home=here.home), []
            again.handle_result(told.append)
            async with again.connected():
                await until(lambda: told, "the result comes")
            assert (told[0].correlation_id, told[0].payload) == (name, {"built": True})
            third, more = OssaAgent(keys, url=here.url, home=here.home), []
            third.handle_result(more.append)
            async with third.connected():
                await third.publish("t", qos=1)
            assert not more, "it was acknowledged"
