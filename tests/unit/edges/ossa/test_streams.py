"""Pieces of streams: in order, whatever order they come in, once, and within bounds."""

from __future__ import annotations

import uuid
from unittest.mock import patch

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Raw

from tests.unit.edges.ossa.kit import refusal
from trunkline.edges.ossa import streams
from trunkline.edges.ossa.messages import STREAM_DATA, STREAM_END, STREAM_START, Identity, Message
from trunkline.edges.ossa.streams import IDLE_S, MAX_STREAMS, OssaStreams

ALICE = Identity("alice", "worker")
COUNT = 5


def piece(kind: str, stream_id: str = "s", sequence: int | None = None, message_id: str = "") -> Message:
    return Message(
        message_id or str(uuid.uuid4()), kind, ALICE, (ALICE,), "2026-01-16T12:00:00Z", "feed",
        Raw(b"%d" % (sequence or 0)), stream_id=stream_id, sequence=sequence,
    )  # fmt: skip


def test_pieces_go_on_as_they_come() -> None:
    found = OssaStreams()
    for sequence, kind in ((None, STREAM_START), (0, STREAM_DATA), (1, STREAM_DATA), (2, STREAM_END)):
        one = piece(kind, sequence=sequence)
        assert found.receive(one, 0.0) == ([one], False)
    assert len(found) == 0


def test_nothing_beyond_a_gap_goes_on_until_it_is_filled() -> None:
    found = OssaStreams()
    found.receive(piece(STREAM_START), 0.0)
    end, third, second, first = (piece(STREAM_END, sequence=3), *(piece(STREAM_DATA, sequence=n) for n in (2, 1, 0)))
    assert [found.receive(one, 0.0) for one in (end, third, second)] == [([], True)] * 3
    assert found.receive(first, 0.0) == ([first, second, third, end], False)
    assert len(found) == 0
    assert (found._held, found._held_bytes) == (0, 0)


def test_a_repeat_goes_on_once() -> None:
    found = OssaStreams()
    start, data = piece(STREAM_START), piece(STREAM_DATA, sequence=0)
    assert found.receive(start, 0.0)[0] == [start]
    assert found.receive(start, 0.0)[0] == []
    assert found.receive(data, 0.0)[0] == [data]
    assert found.receive(data, 0.0) == ([], False)


def test_what_has_not_begun_or_has_ended_is_refused_and_so_is_an_end_before_what_came() -> None:
    found = OssaStreams()
    assert refusal(found.receive, piece(STREAM_DATA, sequence=0), 0.0).error_code == 400
    found.receive(piece(STREAM_START), 0.0)
    assert refusal(found.receive, piece(STREAM_START), 0.0).error_code == 400
    found.receive(piece(STREAM_DATA, sequence=0), 0.0)
    assert refusal(found.receive, piece(STREAM_END, sequence=0), 0.0).error_code == 400
    found.receive(piece(STREAM_END), 0.0)
    assert refusal(found.receive, piece(STREAM_DATA, sequence=1), 0.0).error_code == 400


def test_streams_and_what_they_hold_have_bounds() -> None:
    found = OssaStreams()
    for n in range(MAX_STREAMS):
        found.receive(piece(STREAM_START, f"s{n}"), 0.0)
    assert refusal(found.receive, piece(STREAM_START, "more"), 0.0).error_code == 507
    with patch.object(streams, "MAX_HELD", 3):
        for n in (1, 2, 3):
            found.receive(piece(STREAM_DATA, "s0", n), 0.0)
        assert refusal(found.receive, piece(STREAM_DATA, "s1", 9), 0.0).error_code == 507
    with patch.object(streams, "MAX_HELD_BYTES", 3):
        assert refusal(found.receive, piece(STREAM_DATA, "s1", 9), 0.0).error_code == 507


def test_an_idle_stream_is_closed_after_300_s() -> None:
    found = OssaStreams()
    start = piece(STREAM_START)
    found.receive(start, 0.0)
    found.receive(piece(STREAM_DATA, sequence=4), 100.0)
    assert found.wake_at() == 100.0 + IDLE_S
    assert found.wake(99.0 + IDLE_S) == []
    assert found.wake(100.0 + IDLE_S) == [start]
    assert (len(found), found._held, found._held_bytes, found.wake_at()) == (0, 0, 0, None)


class Machine(RuleBasedStateMachine):
    """Any pieces of three streams, in any order, with repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = OssaStreams()
        self.made = {
            name: [piece(STREAM_DATA, name, n) for n in range(COUNT)] + [piece(STREAM_END, name, COUNT)]
            for name in "abc"
        }
        self.arrived: dict[str, set[int]] = {name: set() for name in self.made}
        self.out: dict[str, list[Message]] = {name: [] for name in self.made}
        for name in self.made:
            self.streams.receive(piece(STREAM_START, name), 0.0)

    @rule(name=st.sampled_from("abc"), number=st.integers(0, COUNT))
    def arrive(self, name: str, number: int) -> None:
        message = self.made[name][number]
        if len(self.out[name]) > COUNT:
            assert refusal(self.streams.receive, message, 0.0).error_code == 400
            return
        expected = len(self.out[name])
        going, is_gap = self.streams.receive(message, 0.0)
        self.arrived[name].add(number)
        self.out[name] += going
        assert is_gap == (number > expected)

    @invariant()
    def exactly_what_has_no_gap_before_it_went_on_in_order(self) -> None:
        for name, out in self.out.items():
            count = next((n for n in range(COUNT + 1) if n not in self.arrived[name]), COUNT + 1)
            assert out == self.made[name][:count]

    @invariant()
    def what_is_held_is_counted(self) -> None:
        held = [one for stream in self.streams._open.values() for one in stream.held.values()]
        assert self.streams._held == len(held)
        assert self.streams._held_bytes == sum(len(one.payload) for one in held)
        assert len(self.streams) == sum(len(out) <= COUNT for out in self.out.values())


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestStreams = Machine.TestCase


def test_a_piece_goes_where_its_start_said_and_is_what_its_start_said() -> None:
    streams = OssaStreams()
    streams.receive(piece(STREAM_START), 0.0)
    other = msgspec.structs.replace(piece(STREAM_DATA, sequence=0), recipients=(Identity("eve", "worker"),))
    assert refusal(streams.receive, other, 0.0).error_code == 400
    going, _ = streams.receive(msgspec.structs.replace(piece(STREAM_DATA, sequence=0), action="wipe"), 0.0)
    assert [one.action for one in going] == [piece(STREAM_START).action]
