"""P-D1 for HTTP: wrong requests to the listener's connections and routes. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import requests
from tests.fuzz.kept import judge_memory
from tests.fuzz.mutations import Mutator
from tests.inhabited import Inhabited

SHARDS, SHARD_REQUESTS = 4, 5_000


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_request_is_answered_with_a_defect_left_open_or_kept(shard: int) -> None:
    judge_memory(requests.http, shard, SHARD_REQUESTS, SHARD_REQUESTS // 2)


def test_the_requests_reach_the_routes_and_are_wrong_in_many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[bytes] = Counter()
    judge = requests.judge

    def count(written: bytes, sent: bytes) -> None:
        seen[bytes(written[9:12])] += 1
        judge(written, sent)

    monkeypatch.setattr(requests, "judge", count)
    requests.http(1, 1500)
    assert seen.keys() >= {b"", b"200", b"202", b"400", b"401", b"403", b"404", b"405", b"415", b"431"}
    assert seen[b"200"] > 300


def test_the_same_seed_makes_the_same_requests() -> None:
    first, again = (Mutator(3, requests.messages(Inhabited())) for _ in range(2))
    assert [requests.request(first) for _ in range(200)] == [requests.request(again) for _ in range(200)]
