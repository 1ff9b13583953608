"""``edges.bearer``: which headers hold a token, and what a guesser's refusals cost."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from trunkline.edges import bearer
from trunkline.edges.bearer import Throttle, bearer_token, token_sha256
from trunkline.entries import Noticed
from trunkline.testing.memory import MemoryExchange


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


@pytest.fixture
def throttle(exchange: MemoryExchange) -> Throttle:
    return Throttle(exchange.feed, "http")


@pytest.mark.parametrize(
    ("values", "token"),
    [
        ([b"Bearer abc"], b"abc"),
        ([b"bearer  abc "], b"abc"),
        ([b"Basic abc"], b""),
        ([b"Bearer"], b""),
        ([b"Bearer "], b""),
        ([b"abc"], b""),
        ([], None),
        ([b"Bearer abc", b"Bearer abc"], b""),
    ],
)
def test_a_token_is_read_from_exactly_one_bearer_header(values: list[bytes], token: bytes | None) -> None:
    assert bearer_token(values) == token


def test_a_missing_token_is_hashed_like_any_other() -> None:
    assert token_sha256(None) == token_sha256(b"") == hashlib.sha256(b"").hexdigest()
    assert token_sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_failures_are_counted_for_each_address_and_forgotten_after_a_quiet_minute(
    exchange: MemoryExchange, throttle: Throttle
) -> None:
    assert [throttle.count("a") for _ in range(3)] == [1, 2, 3]
    assert throttle.count("b") == 1
    exchange.advance(bearer.FORGET_AFTER_S - 0.001)
    assert throttle.count("a") == 4
    exchange.advance(bearer.FORGET_AFTER_S)
    assert throttle.count("a") == 1


def test_only_so_many_addresses_are_remembered(throttle: Throttle) -> None:
    for number in range(bearer.MAX_ADDRESSES + 1):
        throttle.count(str(number))
    assert throttle.count("0") == 1
    assert throttle.count(str(bearer.MAX_ADDRESSES)) == 2


def test_the_record_hears_of_the_first_and_tenth_failure_but_not_of_each(
    exchange: MemoryExchange, throttle: Throttle
) -> None:
    for _ in range(25):
        throttle.count("127.0.0.1")
    throttle.count("::1")
    noticed = exchange.recorded(Noticed)
    assert [(notice.code, notice.place, notice.who, notice.detail) for notice in noticed] == [
        ("auth.failed", "http", "127.0.0.1", "1 in a row"),
        ("auth.failed", "http", "127.0.0.1", "10 in a row"),
        ("auth.failed", "http", "::1", "1 in a row"),
    ]


async def test_a_refusal_waits_longer_each_time_up_to_a_bound(
    throttle: Throttle, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(bearer.asyncio, "sleep", note)
    for _ in range(40):
        await throttle.refused("a")
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == bearer.MAX_DELAY_S
    assert len(waits) == 39, "a mistyped token costs nothing"


async def test_when_too_many_refusals_wait_the_next_is_answered_at_once(
    throttle: Throttle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer, "MAX_WAITING", 2)
    throttle.count("a")
    patient = [asyncio.create_task(throttle.refused("a")) for _ in range(2)]
    await asyncio.sleep(0)
    done = asyncio.create_task(throttle.refused("a"))
    await asyncio.sleep(0)
    assert done.done()
    assert not any(task.done() for task in patient)
    for task in patient:
        task.cancel()
    await asyncio.gather(*patient, return_exceptions=True)
    # Those who gave up have made room.
    later = asyncio.create_task(throttle.refused("a"))
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
