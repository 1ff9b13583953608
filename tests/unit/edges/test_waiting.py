"""``edges.waiting``: requests that wait for the exchange, slow readers, and the end of either."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from msgspec import Raw

from trunkline.edges import waiting as module
from trunkline.edges.waiting import (
    CLOSING,
    FAILED,
    LEFT,
    REF,
    Dropped,
    Requests,
    Waiting,
    ask,
    call,
    size_of,
    stored,
)
from trunkline.effects import Answer, Progress, Reply, Wait
from trunkline.events import CallerLeft, CallRequested, DirectiveStated, Event
from trunkline.model import Decision, LargeOutput, Policy, Rule, Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, BOSS, MemoryExchange

TOOL = "com.example.slow/wait"
BOUND_S = 5


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


def piece(seq: int, size: int, session: int = 1) -> Progress:
    return Progress(session, 0, REF, "c-1", seq, "stdout", Raw(b'"' + b"x" * size + b'"'))


def outcome(**more: Any) -> Answer:
    return Answer(1, 0, REF, "c-1", Status.SUCCEEDED, **more)


def asked(session: int, ref: str) -> CallRequested:
    return CallRequested(session, ref, BOSS, TOOL, Raw(b"{}"))


def sessions(exchange: MemoryExchange) -> object:
    return exchange.operator.status()["sessions"]


# --- what is still to be told -----------------------------------------------------------------------------------------


async def test_a_slow_reader_misses_pieces_hears_how_many_and_gets_the_outcome(
    exchange: MemoryExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1000)
    pieces = [piece(seq, 300) for seq in range(5)]
    end = outcome()
    with Waiting(exchange.feed, wants_progress=True) as waiting:
        for effect in (*pieces, end):
            waiting.send(effect, exchange.now())
        assert await waiting.next() is pieces[0]
        assert await waiting.next() is pieces[1]
        dropped = await waiting.next()
        assert isinstance(dropped, Dropped)
        assert dropped.count == 3
        assert await waiting.next() is end
        again = piece(9, 300)
        waiting.send(again, exchange.now())
        assert await waiting.next() is again, "what was read makes room again"


async def test_lines_count_and_make_room_as_pieces_do(
    exchange: MemoryExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 10)
    with Waiting(exchange.feed) as waiting:
        for _ in range(2):
            for line in (b"12345", b"67890", b"x"):
                waiting.put(line, len(line))
            assert [await waiting.next() for _ in range(2)] == [b"12345", b"67890"]
            assert isinstance(await waiting.next(), Dropped)


async def test_who_wants_no_progress_gets_none(exchange: MemoryExchange) -> None:
    end = outcome()
    with Waiting(exchange.feed) as waiting:
        waiting.send(piece(1, 300), exchange.now())
        waiting.send(end, exchange.now())
        assert await waiting.next() is end


async def test_leaving_comes_before_everything_and_closing_after(exchange: MemoryExchange) -> None:
    with Waiting(exchange.feed) as waiting:
        waiting.put(b"a", 1)
        waiting.put(CLOSING)
        waiting.leave()
        assert await waiting.next() is LEFT
        assert await waiting.next() == b"a"
        assert await waiting.next() is CLOSING
        assert await waiting.next(0.001) is None


async def test_who_waits_is_woken_by_what_comes(exchange: MemoryExchange) -> None:
    with Waiting(exchange.feed) as waiting:
        for timeout_s in (None, BOUND_S):
            reader = asyncio.create_task(waiting.next(timeout_s))
            await asyncio.sleep(0)
            assert not reader.done()
            waiting.put(b"a", 1)
            async with asyncio.timeout(BOUND_S):
                assert await reader == b"a"


async def test_something_that_came_before_anybody_waited_is_not_missed_after_an_empty_wait(
    exchange: MemoryExchange,
) -> None:
    with Waiting(exchange.feed) as waiting:
        assert await waiting.next(0.0) is None
        waiting.put(b"a", 1)
        assert await waiting.next() == b"a"


def test_a_piece_counts_its_envelope() -> None:
    assert size_of(piece(1, 0)) > 100


def test_a_large_output_is_let_go_of_at_once_by_who_shows_a_reference(exchange: MemoryExchange) -> None:
    data = b'"' + b"x" * 2_000_000 + b'"'
    large = LargeOutput.of(Raw(data))
    before = sys.getrefcount(data)
    with Waiting(exchange.feed, wants_large=False) as waiting:
        waiting.send(outcome(output=Raw(data), large=large), exchange.now())
        [kept] = waiting._items
        assert isinstance(kept, Answer)
        assert (kept.output, kept.large) == (None, large)
        assert sys.getrefcount(data) == before
    with Waiting(exchange.feed) as waiting:
        whole = outcome(output=Raw(data), large=large)
        waiting.send(whole, exchange.now())
        assert waiting._items[0] is whole


def test_an_output_that_is_not_large_is_kept_by_everybody(exchange: MemoryExchange) -> None:
    small = outcome(output=Raw(b"{}"))
    with Waiting(exchange.feed, wants_large=False) as waiting:
        waiting.send(small, exchange.now())
        assert waiting._items[0] is small


async def test_a_defect_in_this_conversation_is_told_to_who_waits(exchange: MemoryExchange) -> None:
    with Waiting(exchange.feed) as waiting:
        exchange.feed.failed(waiting.number, RuntimeError())
        assert await waiting.next() is FAILED
    assert exchange.notices() == ["defect"]


# --- all requests of an edge ------------------------------------------------------------------------------------------


async def test_closing_is_told_to_who_waits_and_to_who_comes_later(exchange: MemoryExchange) -> None:
    requests = Requests(exchange.feed)
    with requests.waiting() as gone:
        pass
    with requests.waiting(wants_progress=True) as early:
        requests.close()
        with requests.waiting(wants_large=False) as late:
            assert await early.next() is CLOSING
            assert await late.next() is CLOSING
            assert (early.wants_progress, early.wants_large) == (True, True)
            assert (late.wants_progress, late.wants_large) == (False, False)
    assert await gone.next(0.0) is None


def test_each_request_is_a_conversation_that_is_given_back(exchange: MemoryExchange) -> None:
    before = sessions(exchange)
    requests = Requests(exchange.feed)
    with requests.waiting() as one, requests.waiting() as other:
        assert one.number != other.number
        assert sessions(exchange) == before + 2  # type: ignore[operator]
    with pytest.raises(RuntimeError), requests.waiting():
        raise RuntimeError
    assert sessions(exchange) == before


# --- call, ask, stored ------------------------------------------------------------------------------------------------


async def test_a_call_waits_for_its_outcome_also_behind_a_question() -> None:
    exchange = MemoryExchange(Policy((Rule("ask", "*", "*", Decision.ASK),), "v1"))
    agent = exchange.attach("com.example.slow", "wait")
    waits = asyncio.create_task(call(exchange.feed, asked))
    await asyncio.sleep(0)
    [question] = exchange.views.questions()
    exchange.answer(question.approval_id)
    await asyncio.sleep(0)
    assert not waits.done()
    agent.finish({"n": 1})
    async with asyncio.timeout(BOUND_S):
        answer = await waits
    assert (answer.status, bytes(answer.output or b"")) == (Status.SUCCEEDED, b'{"n":1}')


async def test_a_call_goes_on_waiting_after_it_was_told_to_wait(exchange: MemoryExchange) -> None:
    agent = exchange.attach("com.example.slow", "wait")

    def announced(session: int, ref: str) -> CallRequested:
        return CallRequested(session, ref, BOSS, TOOL, Raw(b"{}"), announce=True)

    waits = asyncio.create_task(call(exchange.feed, announced))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    agent.finish({})
    async with asyncio.timeout(BOUND_S):
        assert (await waits).status is Status.SUCCEEDED


async def test_a_call_that_is_refused_says_so(exchange: MemoryExchange) -> None:
    answer = await call(exchange.feed, asked)
    assert answer.refused
    assert answer.fault is not None
    assert answer.fault.code == "tool.not_found"


async def test_a_call_whose_conversation_failed_ends_and_is_not_said_to_be_repeatable(
    exchange: MemoryExchange,
) -> None:
    exchange.attach("com.example.slow", "wait")
    numbers: list[int] = []

    def noted(session: int, ref: str) -> CallRequested:
        numbers.append(session)
        return asked(session, ref)

    waits = asyncio.create_task(call(exchange.feed, noted))
    await asyncio.sleep(0)
    exchange.feed.failed(numbers[0], RuntimeError())
    async with asyncio.timeout(BOUND_S):
        answer = await waits
    assert answer.fault is not None
    assert (answer.fault.code, answer.refused) == ("hub.unavailable", True)


async def test_who_gives_up_waiting_for_a_call_is_a_caller_who_left(exchange: MemoryExchange) -> None:
    before = sessions(exchange)
    stops = ToolDefinition(TOOL, "a tool", ANY_OBJECT, capabilities=("cancellation",))
    agent = exchange.attach("com.example.slow", stops)
    waits = asyncio.create_task(call(exchange.feed, asked))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert waits.cancelled()
    assert sessions(exchange) == before + 1, "the agent's is left"  # type: ignore[operator]
    # Decision 5: nobody waits any more, so it is stopped after a while.
    assert not agent.canceled
    exchange.advance(11)
    assert len(agent.canceled) == 1


async def test_leaving_is_told_under_the_name_of_the_request(exchange: MemoryExchange) -> None:
    fed: list[Event] = []
    with Waiting(exchange.feed) as waiting:
        exchange.feed.feed = fed.extend  # type: ignore[method-assign,assignment]
        waiting.tell_left()
        assert fed == [CallerLeft(waiting.number, REF)]


def stated(session: int, ref: str) -> DirectiveStated:
    return DirectiveStated(session, ref, BOSS, TOOL, None, "as agreed")


async def test_an_answer_to_what_is_no_call_comes_when_it_is_on_disk(exchange: MemoryExchange) -> None:
    exchange.attach("com.example.slow", "wait")
    exchange.disk_rests = True
    waits = asyncio.create_task(ask(exchange.feed, stated))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waits.done()
    exchange.store()
    async with asyncio.timeout(BOUND_S):
        reply = await waits
    assert isinstance(reply, Reply)
    assert (reply.fault, bool(reply.id)) == (None, True)


@pytest.mark.parametrize("how", ["too late", "failed"])
async def test_an_answer_that_does_not_come_is_said_to_be_unavailable(exchange: MemoryExchange, how: str) -> None:
    exchange.attach("com.example.slow", "wait")
    exchange.disk_rests = True
    numbers: list[int] = []

    def noted(session: int, ref: str) -> DirectiveStated:
        numbers.append(session)
        return stated(session, ref)

    waits = asyncio.create_task(ask(exchange.feed, noted, 0.01 if how == "too late" else BOUND_S))
    await asyncio.sleep(0)
    if how == "failed":
        exchange.feed.failed(numbers[0], RuntimeError())
    async with asyncio.timeout(BOUND_S):
        reply = await waits
    assert reply.fault is not None
    assert reply.fault.code == "hub.unavailable"
    exchange.store()


async def test_everything_that_was_fed_is_stored_before_somebody_who_waits_for_that_goes_on(
    exchange: MemoryExchange,
) -> None:
    async with asyncio.timeout(BOUND_S):
        await stored(exchange.feed)
    exchange.disk_rests = True
    exchange.token("http", "alice")
    waits = asyncio.create_task(stored(exchange.feed))
    gone = asyncio.create_task(stored(exchange.feed))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert not waits.done()
    exchange.store()
    async with asyncio.timeout(BOUND_S):
        await waits
    assert exchange.notices() == []


def test_waits_are_told_in_order(exchange: MemoryExchange) -> None:
    """What the hub says before an outcome comes before it."""
    agent = exchange.attach("com.example.slow", "wait")
    with Waiting(exchange.feed, wants_progress=True) as waiting:
        announced = CallRequested(waiting.number, REF, BOSS, TOOL, Raw(b"{}"), announce=True)
        exchange.feed.feed([announced])
        agent.show("stdout", {"text": "a"})
        agent.finish({})
        assert [type(item) for item in waiting._items] == [Wait, Progress, Answer]
