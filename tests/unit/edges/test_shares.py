"""``edges.shares``: what is kept for each identity, and for all."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.edges.bodies import BadRequest, read_body
from trunkline.edges.shares import FREE_BYTES, MAX_SHARE_BYTES, MAX_SUM_BYTES, SHARE, Share, Shares

LIMIT = 16_777_216


def test_an_identity_has_its_share_and_gets_it_back() -> None:
    shares = Shares()
    first, second = Share(shares, "a"), Share(shares, "a")
    assert first.try_set_size(MAX_SHARE_BYTES)
    assert not second.try_set_size(2 * FREE_BYTES + 1)
    assert Share(shares, "b").try_set_size(MAX_SHARE_BYTES)
    first.end()
    first.end()
    assert shares.held("a") == 0
    assert second.try_set_size(MAX_SHARE_BYTES)


def test_what_is_short_always_gets_through_also_when_all_together_have_no_room() -> None:
    shares = Shares()
    count = MAX_SUM_BYTES // MAX_SHARE_BYTES
    assert all(Share(shares, f"a{n}").try_set_size(MAX_SHARE_BYTES + FREE_BYTES) for n in range(count))
    assert not Share(shares, "b").try_set_size(FREE_BYTES + 1)
    assert Share(shares, "b").try_set_size(FREE_BYTES)


async def test_a_body_counts_while_it_arrives_and_no_longer() -> None:
    shares = Shares()
    piece = bytes(1_000_000)
    scope: dict[str, Any] = {
        "type": "http",
        "headers": [(b"content-type", b"application/json")],
        SHARE: Share(shares, "a"),
    }
    seen: list[int] = []

    def arriving(pieces: int) -> Any:
        left = [pieces]

        async def receive() -> dict[str, Any]:
            seen.append(shares.held("a"))
            left[0] -= 1
            return {"type": "http.request", "body": piece, "more_body": left[0] > 0}

        return receive

    assert len(await read_body(scope, arriving(10), LIMIT)) == 10_000_000
    assert seen == sorted(seen)
    assert seen[-1] == 9_000_000 - FREE_BYTES
    assert shares.held("a") == 0
    # Somebody who has others on their way gets as far as there is room.
    others = Share(shares, "a")
    assert others.try_set_size(MAX_SHARE_BYTES - 2_000_000)
    with pytest.raises(BadRequest) as refused:
        await read_body(scope, arriving(10), LIMIT)
    assert (refused.value.status, refused.value.code) == (429, "limit.inflight")
    others.end()
    assert shares.held("a") == 0
