"""Rows of OSSA about whoever sends and handles messages: the agent of the SDK, on the real edge or on a script."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.requirement import requirement
from tests.unit.sdk.ossa_kit import ScriptedExchange, in_no_time, until, world
from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import CODES, Message
from trunkline.sdk import (
    DEFAULT_RETRY_POLICY,
    IncomingStream,
    OssaError,
    OssaMessage,
    RetryPolicy,
    Stream,
    Subscription,
)


def echo(exchange: ScriptedExchange, message: Message) -> None:
    """An exchange that answers each request with its own payload."""
    if message.type == messages.REQUEST:
        exchange.reply(message, msgspec.json.decode(message.payload))


# --- requests ---------------------------------------------------------------------------------------------------------


@requirement("OSSA-035")
async def test_send_request_resolves_to_a_string_by_which_the_reply_is_fetched(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob")

        @bob.handle("echo", side_effects=False)
        async def _echo(request: OssaMessage) -> Any:
            return request.payload

        async with bob.connected(), here.agent("alice").connected() as alice:
            first = await alice.send_request("bob", "echo", {"n": 1})
            second = await alice.send_request("bob", "echo", {"n": 2}, correlation_id="mine")
            assert (type(first), second) == (str, "mine")
            assert (await alice.await_response(second)).payload == {"n": 2}
            assert (await alice.await_response(first)).payload == {"n": 1}


@requirement("OSSA-036")
async def test_what_a_handler_returns_is_sent_back_whether_it_is_async_or_plain(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob", "governor")

        @bob.handle("add", side_effects=False)
        async def _add(request: OssaMessage) -> dict[str, int]:
            return {"sum": sum(request.payload["numbers"])}

        @bob.handle("who", side_effects=False)
        def _who(request: OssaMessage) -> dict[str, str]:
            return {"sender": request.sender, "type": request.sender_type}

        async with bob.connected(), here.agent("alice").connected() as alice:
            found = await alice.request("bob", "add", {"numbers": [1, 2, 3]}, correlation_id="c-1")
            assert (found.type, found.correlation_id, found.payload) == ("response", "c-1", {"sum": 6})
            assert (await alice.request("bob", "who")).payload == {"sender": "alice", "type": "worker"}


@requirement("OSSA-037", "OSSA-038")
def test_a_request_without_a_reply_fails_after_30_seconds_with_408() -> None:
    async def main() -> None:
        async with ScriptedExchange().agent().connected() as alice:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "echo")
            assert (caught.value.code, round(loop.time() - began, 3)) == (408, 30.0)
            began = loop.time()
            with pytest.raises(OssaError, match="408"):
                await alice.request("bob", "echo", timeout_s=2)
            assert round(loop.time() - began, 3) == 2.0

    in_no_time(main())


@requirement("OSSA-032", "OSSA-059", "OSSA-060")
async def test_an_error_reply_is_an_exception_with_code_message_and_details(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob")

        @bob.handle("find", side_effects=False)
        async def _find(request: OssaMessage) -> None:
            if request.payload.get("defect"):
                raise KeyError("planted-secret")
            raise OssaError(507, "no room", {"room": 0})

        async with bob.connected(), here.agent("alice").connected() as alice:
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "find")
            assert (caught.value.code, caught.value.message) == (507, "no room")
            assert caught.value.details["details"] == {"room": 0}
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "find", {"defect": True})
            assert caught.value.code == 500
            assert "planted-secret" not in str(caught.value)
            with pytest.raises(OssaError) as caught:
                await alice.request("bob", "nothing")
            assert caught.value.code == 404


# --- retries ----------------------------------------------------------------------------------------------------------


def sent_again(policy: RetryPolicy | None, *codes: int, timeout_s: float = 30.0, **details: Any) -> list[float]:
    """When a request was sent, in seconds, if it fails with these codes one after the other, and then goes well."""
    exchange, remaining = ScriptedExchange(), list(codes)

    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == messages.REQUEST and remaining:
            exchange.fail(message, remaining.pop(0), **details)
        else:
            echo(exchange, message)

    exchange.script = script

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            try:
                await alice.request("bob", "echo", retry=policy, timeout_s=timeout_s)
            except OssaError as error:
                assert error.code == codes[-1 - len(remaining)]  # noqa: PT017  (either end is right)

    in_no_time(main())
    assert len({message.message_id for message in exchange.of(messages.REQUEST)}) == 1, "the same id on every attempt"
    return exchange.times(messages.REQUEST)


@requirement("OSSA-062")
def test_a_retry_policy_is_five_values() -> None:
    assert msgspec.to_builtins(RetryPolicy(max_attempts=5)) == {
        "maxAttempts": 5,
        "initialDelay": 1000,
        "maxDelay": 30_000,
        "backoffMultiplier": 2,
        "retryableErrors": (503, 408, 429),
    }
    text = b'{"maxAttempts":1,"initialDelay":5,"maxDelay":6,"backoffMultiplier":1.5,"retryableErrors":[500]}'
    assert msgspec.json.decode(text, type=RetryPolicy).retryable_errors == (500,)
    with pytest.raises(ValueError, match="at least one attempt"):
        RetryPolicy(max_attempts=0)


@requirement("OSSA-063", "OSSA-064", "OSSA-066")
def test_by_default_there_are_three_attempts_after_0_1_and_3_seconds() -> None:
    assert sent_again(None, 503, 503, 503, 503) == [0.0, 1.0, 3.0]
    assert (DEFAULT_RETRY_POLICY.max_attempts, DEFAULT_RETRY_POLICY.initial_delay) == (3, 1000)
    assert (DEFAULT_RETRY_POLICY.backoff_multiplier, DEFAULT_RETRY_POLICY.max_delay) == (2, 30_000)


@requirement("OSSA-065")
def test_no_delay_is_longer_than_30_seconds() -> None:
    times = sent_again(RetryPolicy(max_attempts=9), *[503] * 9, timeout_s=1000.0)
    delays = [round(after - before, 3) for before, after in itertools.pairwise(times)]
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]
    assert DEFAULT_RETRY_POLICY.delay_ms(100_000) == 30_000


@requirement("OSSA-067")
@pytest.mark.parametrize("code", CODES)
def test_only_503_408_and_429_are_tried_again(code: int) -> None:
    assert len(sent_again(None, code)) == (2 if code in {503, 408, 429} else 1)


@requirement("OSSA-039")
def test_the_policy_can_be_another_for_each_pattern_and_each_message() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type in {messages.REQUEST, messages.COMMAND, messages.EVENT}:
            exchange.fail(message, 503)

    exchange = ScriptedExchange(script)

    async def main() -> None:
        once, twice = RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=2, initial_delay=10)
        async with exchange.agent(retry=once, publish_retry=twice).connected() as alice:
            for asking in (
                alice.request("bob", "a"),
                alice.request("bob", "b", retry=RetryPolicy(max_attempts=3)),
                alice.send_command("bob", "c"),
                alice.publish("d", qos=1, action="d"),
            ):
                with pytest.raises(OssaError, match="503"):
                    await asking

    in_no_time(main())
    sent = [message.action for _, message in exchange.received if message.type != messages.HEARTBEAT]
    assert [sent.count(action) for action in "abcd"] == [1, 3, 1, 2]


def test_who_limits_our_rate_says_when_to_come_back() -> None:
    assert sent_again(None, 429, retryAfterMs=4200) == [0.0, 4.2]
    assert sent_again(None, 429, retryAfterMs=10) == [0.0, 1.0]
    assert sent_again(None, 429, retryAfterMs=31_000) == [0.0], "that is beyond the request's own time"


# --- topics -----------------------------------------------------------------------------------------------------------


@requirement("OSSA-040", "OSSA-041", "OSSA-042")
async def test_an_event_reaches_all_subscribers_of_its_topic_and_no_other(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.agent("bob").connected() as bob, here.agent("carol").connected() as carol:
        heard: list[tuple[str, str | None, Any]] = []
        made = bob.subscribe("news.*", lambda event: heard.append(("bob", event.topic, event.payload)))
        assert isinstance(made, Subscription)
        await made
        await carol.subscribe("news.#", lambda event: heard.append(("carol", event.topic, event.payload)), qos=1)
        await carol.subscribe("weather", lambda event: heard.append(("carol weather", event.topic, event.payload)))
        async with here.agent("alice").connected() as alice:
            await alice.publish("news.today", {"n": 1}, qos=1)
            await until(lambda: len(heard) == 2, "both hear of it")
            await alice.publish("weather", "rain", qos=1)
            await until(lambda: len(heard) == 3, "one hears of the weather")
    assert sorted(heard, key=str) == [
        ("bob", "news.today", {"n": 1}),
        ("carol weather", "weather", "rain"),
        ("carol", "news.today", {"n": 1}),
    ]


@requirement("OSSA-043")
async def test_after_unsubscribe_nothing_is_delivered(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.agent("bob").connected() as bob:
        heard: list[Any] = []
        kept = await bob.subscribe("t", lambda event: heard.append(("kept", event.payload)), qos=1)
        ended = await bob.subscribe("#", lambda event: heard.append(("ended", event.payload)), qos=1)
        assert kept.id != ended.id
        await bob.unsubscribe(ended)
        await bob.publish("t", 1, qos=1)
        await until(lambda: heard, "the other one hears of it")
    assert heard == [("kept", 1)]


# --- streams ----------------------------------------------------------------------------------------------------------


@requirement("OSSA-030", "OSSA-044", "OSSA-045", "OSSA-046")
def test_a_stream_is_start_data_and_end_on_the_wire_and_nothing_follows_its_end() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            stream = await alice.start_stream("s-1", {"contentType": "text/plain"}, to="bob", action="tail")
            assert isinstance(stream, Stream)
            for piece in ({"line": 1}, [2], "three", None):
                await alice.send_data(stream, piece)
            await alice.end_stream(stream)
            for late in (alice.send_data(stream, "late"), alice.end_stream(stream)):
                with pytest.raises(OssaError, match="ended"):
                    await late

    in_no_time(main())
    pieces = [message for _, message in exchange.received if message.type in messages.STREAM_TYPES]
    assert {(one.stream_id, one.recipients[0].agent_id, one.action) for one in pieces} == {("s-1", "bob", "tail")}
    assert [(one.type, one.sequence, msgspec.json.decode(one.payload)) for one in pieces] == [
        ("stream_start", None, {"contentType": "text/plain"}),
        ("stream_data", 0, {"line": 1}),
        ("stream_data", 1, [2]),
        ("stream_data", 2, "three"),
        ("stream_data", 3, None),
        ("stream_end", 4, {}),
    ]


@requirement("OSSA-047")
async def test_a_stream_handler_gets_start_data_and_end_in_this_order(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob, seen = here.agent("bob"), []

        @bob.handle_stream
        async def _tail(stream: IncomingStream) -> None:
            seen.append(("start", stream.sender, stream.stream_id, stream.metadata))
            seen.extend([("data", data) async for data in stream])
            seen.append(("end",))

        async with bob.connected(), here.agent("alice").connected() as alice:
            stream = await alice.start_stream("s-1", {"description": "d"}, to="bob", action="tail")
            for number in range(3):
                await alice.send_data(stream, number)
            await alice.end_stream(stream)
            await until(lambda: seen and seen[-1] == ("end",), "the stream ends")
    assert seen == [("start", "alice", "s-1", {"description": "d"}), *(("data", n) for n in range(3)), ("end",)]


# --- control messages -------------------------------------------------------------------------------------------------


@requirement("OSSA-031")
def test_a_heartbeat_is_sent_every_30_seconds() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected():
            await asyncio.sleep(91)

    in_no_time(main())
    assert exchange.times(messages.HEARTBEAT) == [0.0, 30.0, 60.0, 90.0]


@requirement("OSSA-033", "OSSA-034")
def test_an_event_is_acknowledged_after_it_was_handled_and_refused_if_that_failed() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        alice, handled = exchange.agent(), []

        async def handle(event: OssaMessage) -> None:
            assert not exchange.of("acknowledgment"), "not before it was handled"
            if not handled:
                handled.append(event)
                raise OssaError(503, "not now")

        alice.subscribe("t", handle, qos=1)
        async with alice.connected():
            sent = exchange.send(messages.EVENT, "event", 1, topic="t", qos=1)
            await asyncio.sleep(1)
            [nack] = exchange.of("negative_acknowledgment")
            assert (nack.error is not None and nack.error.code, messages.about(nack.payload)) == (503, sent.message_id)
            exchange.say(sent)
            await asyncio.sleep(1)
            [ack] = exchange.of("acknowledgment")
            assert messages.about(ack.payload) == sent.message_id

    in_no_time(main())
