"""P-D1 for every route of every edge: wrong paths, queries and bodies, field by field. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import routes
from tests.fuzz.all_edges import Town
from tests.fuzz.kept import judge_memory

SHARDS, SHARD_STEPS = 3, 3_000
# Caches of patterns, times and schemas. A request that was kept would be a dozen objects of its own.
SLACK_OBJECTS = SHARD_STEPS


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_is_asked_is_fatal_unanswered_or_kept(shard: int) -> None:
    routes.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(routes.fuzz, shard, SHARD_STEPS, SLACK_OBJECTS)


def test_every_route_is_asked_with_every_body_that_it_reads() -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += routes.story(seed)
    with Town(0) as town:
        table = routes.table(town)
    assert {f"{route.method} {route.path}" for route in table} - seen.keys() <= {"GET /v1/watch"}
    # Those of the edges that are here: two edges may call theirs by one name.
    kinds = {body for route in table for body in route.bodies}
    assert {kind.__module__.split(".")[-2] for kind in kinds} <= {"http", "spaces", "chiffon", "topics"}
    read = {kind.__name__ for kind in kinds}
    assert read >= {
        "CallBody",
        "CancelBody",
        "AnswerBody",
        "DirectiveBody",
        "TokenBody",
        "CheckBody",
        "NewSpace",
        "Resume",
    }
    assert {word for route in table for word in route.words} >= {"limit", "before", "after", "correlation_id", "wait"}
    assert seen.keys() >= {"200", "201", "202", "400", "401", "403", "404", "405", "409"}
