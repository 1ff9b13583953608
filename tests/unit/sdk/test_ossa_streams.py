"""Streams of an OSSA agent: gaps, refusals, and the progress of a request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.sdk.ossa_kit import US, ScriptedExchange, in_no_time, settled, until, world
from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import STREAM_DATA, STREAM_END, STREAM_START, Message
from trunkline.sdk import IncomingStream, OssaError, OssaMessage


def test_who_reports_a_gap_gets_again_what_came_before_it() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == STREAM_DATA and message.sequence == 2 and len(exchange.of(STREAM_DATA)) == 3:
            exchange.receipt(message, messages.NACK, stream_id=message.stream_id, sender=US)

    exchange = ScriptedExchange(script)

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            stream = await alice.start_stream("s", to="bob")
            for number in range(3):
                await alice.send_data(stream, number)
            await asyncio.sleep(1)

    in_no_time(main())
    found = exchange.of(STREAM_DATA)
    assert [one.sequence for one in found] == [0, 1, 2, 0, 1]
    assert [one.message_id for one in found[3:]] == [one.message_id for one in found[:2]]


def test_a_piece_waits_for_the_next_connection_and_a_stream_that_got_none_in_time_is_over() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            stream = await alice.start_stream("s", to="bob")
            exchange.hang_up()
            await settled()
            await alice.send_data(stream, "late")
            assert len(exchange.sockets) == 2
            exchange.hang_up()
            exchange.is_away = True
            await settled()
            for _ in range(2):
                with pytest.raises(OssaError, match="503"):
                    await alice.send_data(stream, "never")

    in_no_time(main())
    assert [msgspec.json.decode(one.payload) for one in exchange.of(STREAM_DATA)] == ["late"]


def test_a_stream_that_nobody_takes_fails_with_the_next_piece() -> None:
    def script(exchange: ScriptedExchange, message: Message) -> None:
        if message.type == STREAM_START:
            exchange.fail(message, 503)

    async def main() -> None:
        async with ScriptedExchange(script).agent().connected() as alice:
            stream = await alice.start_stream("s", to="bob")
            await asyncio.sleep(1)
            with pytest.raises(OssaError, match="503"):
                await alice.send_data(stream, 1)

    in_no_time(main())


def test_an_id_that_is_in_use_cannot_begin_another_stream() -> None:
    async def main() -> None:
        async with ScriptedExchange().agent().connected() as alice:
            stream = await alice.start_stream("s", to="bob")
            with pytest.raises(OssaError, match="has begun"):
                await alice.start_stream("s", to="bob")
            await alice.end_stream(stream)
            await alice.start_stream("s", to="bob")

    in_no_time(main())


@pytest.mark.parametrize("how", ["gap", "hang up"])
def test_a_handler_is_told_when_pieces_are_missing(how: str) -> None:
    exchange, seen = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle_stream
        async def _take(stream: IncomingStream) -> None:
            try:
                async for data in stream:
                    seen.append(data)  # noqa: PERF401  (what came before the failure counts)
            except OssaError as error:
                seen.append(error.code)

        async with alice.connected():
            exchange.send(STREAM_START, "tail", stream_id="s")
            exchange.send(STREAM_DATA, "tail", "a", stream_id="s", sequence=0)
            exchange.send(STREAM_DATA, "tail", "a", stream_id="s", sequence=0)
            if how == "gap":
                exchange.send(STREAM_END, "tail", stream_id="s", sequence=2)
            else:
                exchange.hang_up()
            await asyncio.sleep(5)

    in_no_time(main())
    assert seen == ["a", 500 if how == "gap" else 503]


def test_streams_go_to_the_handler_of_their_action_or_to_the_one_for_all() -> None:
    exchange, seen = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent()

        async def one(stream: IncomingStream) -> None:
            seen.append(("tail", stream.action))

        async def other(stream: IncomingStream) -> None:
            seen.append(("all", stream.action))

        alice.handle_stream(one, action="tail")
        alice.handle_stream(other)
        with pytest.raises(TypeError, match="async"):
            alice.handle_stream(lambda _: None)  # type: ignore[arg-type, return-value]
        async with alice.connected():
            exchange.send(STREAM_START, "tail", stream_id="s")
            exchange.send(STREAM_START, "head", stream_id="t")
            await asyncio.sleep(1)

    in_no_time(main())
    assert seen == [("tail", "tail"), ("all", "head")]


async def test_a_stream_with_a_requests_correlation_shows_its_caller_how_far_it_is(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob")

        @bob.handle("count", side_effects=False)
        async def _count(request: OssaMessage) -> str:
            stream = await bob.start_stream(
                request.message_id, to=request.sender, action=request.action, correlation_id=request.correlation_id
            )
            for number in range(3):
                await bob.send_data(stream, {"number": number})
            await bob.end_stream(stream)
            return "counted"

        shown: list[Any] = []
        async with bob.connected(), here.agent("alice").connected() as alice:
            found = await alice.request("bob", "count", on_progress=shown.append)
        assert found.payload == "counted"
        assert shown == [{"number": number} for number in range(3)]


async def test_a_sensitive_stream_is_encrypted_on_both_hops(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob, seen, sealed = here.agent("bob"), [], []

        @bob.handle_stream
        async def _take(stream: IncomingStream) -> None:
            seen.extend([data async for data in stream])
            seen.append("end")

        received = bob._received

        def spy(message: Message, is_sealed: bool) -> None:
            sealed.append((message.type, is_sealed, msgspec.json.decode(message.payload)))
            received(message, is_sealed)

        bob._received = spy  # type: ignore[method-assign]
        async with bob.connected(), here.agent("alice").connected() as alice:
            stream = await alice.start_stream("s", to="bob", sensitive=True)
            await alice.send_data(stream, "planted-4711")
            await alice.end_stream(stream)
            await until(lambda: "end" in seen, "the stream ends")
    assert seen == ["planted-4711", "end"]
    assert (STREAM_DATA, True, "planted-4711") in sealed
