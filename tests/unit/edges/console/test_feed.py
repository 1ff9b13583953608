from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.console import feed
from trunkline.edges.console.feed import MAX_OUTPUT_BYTES, MAX_VALUE_BYTES, Follower, Recent, read_lines
from trunkline.edges.console.messages import Follow

CALL = "00000000-0000-8000-a000-000000000002"


def entry(n: int, kind: str = "notice", **fields: object) -> bytes:
    return json.dumps({"kind": kind, "n": n, "at": n, **fields}).encode()


def told(frame: bytes | None) -> Any:
    assert frame is not None
    return json.loads(json.loads(frame)["data"])


def recent(*lines: bytes) -> Recent:
    found = Recent()
    for line in lines:
        found.take(line)
    return found


def follower(at: int, wanted: Follow | None = None) -> Follower:
    found = Follower()
    found.follow(wanted or Follow(), at)
    return found


def test_a_batch_holds_what_lies_between_its_two_numbers() -> None:
    lines = recent(*(entry(n) for n in range(5, 11)))
    assert [one["n"] for one in told(lines.frame(follower(6), 9))["entries"]] == [7, 8, 9]
    assert [one["n"] for one in told(lines.frame(follower(4), 10))["entries"]] == [5, 6, 7, 8, 9, 10]
    assert lines.has(4, 10)
    assert not lines.has(3, 10)
    assert lines.frame(follower(10), 10) is None


def test_what_came_before_a_gap_is_not_kept() -> None:
    """Who begins to watch is also shown what was recorded before and reached the disk only then: not all of it."""
    lines = recent(entry(5), entry(6), entry(8), entry(9))
    assert not lines.has(4, 9)
    assert lines.has(7, 9)
    assert [one["n"] for one in told(lines.frame(follower(7), 9))["entries"]] == [8, 9]


def test_pages_at_the_same_place_get_the_same_bytes() -> None:
    lines = recent(entry(1), entry(2, "call.accepted"))
    first, second = follower(0, Follow(kinds=frozenset({"notice"}))), follower(0, Follow(kinds=frozenset({"notice"})))
    assert lines.frame(first, 2) is lines.frame(second, 2)
    assert told(lines.frame(follower(0), 2)) != told(lines.frame(first, 2))


def test_a_call_is_told_by_its_id_and_by_the_number_of_its_first_entry() -> None:
    lines = recent(
        entry(2, "call.accepted", call_id=CALL),
        entry(3, "call.sent", call=2),
        entry(4, "call.sent", call=1),
        entry(5, "question.opened", call=2),
        entry(6, "call.settled", call=2, call_id=CALL),
    )
    found = told(lines.frame(follower(1, Follow(call_id=CALL)), 6))
    assert [one["n"] for one in found["entries"]] == [2, 3, 5, 6]
    assert told(lines.frame(follower(1, Follow(call_id="zzz")), 6))["entries"] == []


def test_pieces_of_output_are_told_once_and_only_to_those_who_want_them() -> None:
    lines = recent(entry(1), b'{"kind":"progress","call_id":"c","seq":1,"channel":"stdout","data":{"a":1}}')
    assert told(lines.frame(follower(1), 1))["output"][0]["data"] == {"a": 1}
    assert lines.frame(follower(1, Follow(wants_output=False)), 1) is None
    assert lines.frame(follower(1, Follow(call_id="d")), 1) is None
    lines.end_round()
    assert lines.frame(follower(1), 1) is None


def test_a_program_that_prints_without_end_takes_no_more_than_its_share_of_a_batch() -> None:
    piece = json.dumps({"kind": "progress", "call_id": "c", "seq": 1, "data": "x" * 900}).encode()
    lines = recent(*[piece] * 1000)
    assert sum(len(data) for _, data in lines.output) <= MAX_OUTPUT_BYTES + len(piece)


def test_long_values_are_cut_and_say_how_long_they_were() -> None:
    (line,) = read_lines([entry(1, "call.accepted", call_id="c", input={"text": "é" * 5000}, rule="r")])
    found = json.loads(line.data)
    assert found["rule"] == "r"
    assert found["input"]["bytes"] > 5000
    assert found["input"]["$cut"].startswith('{"text": "')
    assert len(line.data) < MAX_VALUE_BYTES


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_whatever_is_cut_is_json_afterwards(first: str, second: str) -> None:
    raw = json.dumps({"kind": "call.accepted", "n": 1, "input": {first: second}}, ensure_ascii=False)
    try:
        line = raw.encode()
    except UnicodeEncodeError:
        return
    found = json.loads(feed.read_lines([line])[0].data)
    assert found["n"] == 1


def test_what_is_kept_is_bounded() -> None:
    lines = recent(*(entry(n) for n in range(1, feed.MAX_RECENT + 10)))
    assert (lines.first, lines.last) == (10, feed.MAX_RECENT + 9)
    assert not lines.has(8, 20)
    assert lines.has(9, 20)
