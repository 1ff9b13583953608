"""How many messages an agent may send in a minute."""

from __future__ import annotations

import pytest

from tests.unit.edges.ossa.kit import refusal
from trunkline.edges.ossa.messages import TYPES
from trunkline.edges.ossa.rates import BURST_BYTES, BYTES_PER_S, DEFAULT_LIMIT, LEAST_BYTES, WINDOW_S, Pace, Rate


def test_a_hundred_pass_and_the_next_is_429_until_the_first_is_a_minute_old() -> None:
    rate = Rate({})
    for n in range(DEFAULT_LIMIT):
        rate.count("request", "worker", n / 10)
    refused = refusal(rate.count, "command", "worker", 30.0)
    assert (refused.error_code, refused.details["retryAfterMs"]) == (429, 30_001)
    assert refusal(rate.count, "request", "worker", 59.9).error_code == 429
    rate.count("request", "worker", WINDOW_S)
    assert refusal(rate.count, "request", "worker", WINDOW_S).error_code == 429


def test_what_is_refused_does_not_count() -> None:
    rate = Rate({"worker": 1})
    rate.count("request", "worker", 0.0)
    for second in range(1, 60):
        refusal(rate.count, "request", "worker", float(second))
    rate.count("request", "worker", WINDOW_S)


def test_events_are_counted_by_themselves_and_everything_else_not_at_all() -> None:
    rate = Rate({"worker": 1})
    rate.count("request", "worker", 0.0)
    rate.count("event", "worker", 0.0)
    assert refusal(rate.count, "event", "worker", 0.0).error_code == 429
    for kind in set(TYPES) - {"request", "command", "event"}:
        for _ in range(200):
            rate.count(kind, "worker", 0.0)


@pytest.mark.parametrize(("kind", "limit"), [("governor", 3), ("worker", DEFAULT_LIMIT), ("", DEFAULT_LIMIT)])
def test_each_class_has_its_own_limit(kind: str, limit: int) -> None:
    rate = Rate({"governor": 3})
    for _ in range(limit):
        rate.count("request", kind, 0.0)
    assert refusal(rate.count, "request", kind, 0.0).error_code == 429


def test_who_sends_more_than_is_checked_for_one_waits_until_it_is() -> None:
    pace = Pace()
    assert pace.wait_s(BURST_BYTES, 10.0) == 0
    assert pace.wait_s(2 * BYTES_PER_S, 10.0) == 2.0
    assert pace.wait_s(0, 12.0) == pytest.approx(LEAST_BYTES / BYTES_PER_S)
    assert pace.wait_s(BURST_BYTES - LEAST_BYTES, 1000.0) == 0
