"""P-D1, P-D2, P-D3: wrong frames against both sides of an OpenSentience conversation. Deterministic by seed."""

from __future__ import annotations

import json
import struct

import pytest

from tests.fuzz import conversations
from tests.fuzz.kept import judge_memory
from tests.fuzz.mutations import CORPUS, Mutator, corpus
from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import Talk, framed, ready

# 10^5 frames over all shards.
CORE_SHARDS, AGENT_SHARDS, SHARD_FRAMES = 8, 2, 10_000
CUT_SHARDS, SHARD_STREAMS = 2, 750
# Caches of timestamps, interned strings: a few hundred objects. Whoever kept one of each frame would have 10,000.
SLACK_OBJECTS = 2_000


@requirement("OS-014", "OS-027", "OS-029")
@pytest.mark.parametrize("shard", range(CORE_SHARDS))
def test_no_frame_makes_core_raise_go_on_after_the_end_or_keep_what_it_read(shard: int) -> None:
    judge_memory(conversations.core, shard, SHARD_FRAMES, SLACK_OBJECTS)


@pytest.mark.parametrize("shard", range(AGENT_SHARDS))
def test_no_frame_makes_an_agent_raise_go_on_after_the_end_or_keep_what_it_read(shard: int) -> None:
    judge_memory(conversations.agent, shard, SHARD_FRAMES, SLACK_OBJECTS)


@requirement("OS-013", "OS-025")
@pytest.mark.parametrize("shard", range(CUT_SHARDS))
def test_whole_in_pieces_and_byte_by_byte_wrong_frames_give_the_same_events_and_words(shard: int) -> None:
    assert conversations.cuts(shard, SHARD_STREAMS) == SHARD_STREAMS


LIMITS = {"a stranger": 65_536, "an agent": 4_194_304}


@requirement("OS-022", "OS-023", "OS-024")
@pytest.mark.parametrize("who", LIMITS)
@pytest.mark.parametrize("about", ["0", "1", "limit", "limit + 1", "2**31", "2**32 - 1"])
def test_a_length_is_judged_by_its_four_bytes_before_anything_behind_it(who: str, about: str) -> None:
    limit = LIMITS[who]
    size = int(eval(about, {"limit": limit}))  # noqa: S307  a table's own words
    talk = Talk() if who == "a stranger" else ready()
    talk.receive(struct.pack(">I", size))
    said = talk.said()
    if size > limit:
        assert talk.state == "closed"
        assert said[-1]["payload"]["reason"] == "protocol.frame_too_large"
        assert str(size) in talk.events[0].detail  # type: ignore[union-attr]
        assert talk.receive(b"x" * 1000) == []
        assert talk.session._decoder.held <= 4
    elif size:
        # One that lies, and sends less: it has its time to send the rest, and nothing happens until then.
        talk.receive(b"{")
        assert talk.state == ("awaiting_hello" if who == "a stranger" else "ready") or size == 1
        assert talk.session._decoder.held <= 1
    else:
        assert talk.state == "closed"
        assert said[0]["error"]["code"] == "protocol.invalid_message"


@pytest.mark.parametrize("name", [name for name, _ in corpus("odd_frames.jsonl")])
def test_a_kept_frame_has_the_same_consequence_in_any_pieces(name: str) -> None:
    data = bytes.fromhex(dict(corpus("odd_frames.jsonl"))[name])
    for make in (Talk, ready):
        whole, parts = make(), make()
        whole.receive(data)
        for byte in data:
            parts.receive(bytes([byte]))
        assert whole.events == parts.events
        assert [said["type"] for said in whole.said()] == [said["type"] for said in parts.said()]
        assert whole.state == parts.state


def test_the_same_seed_makes_the_same_frames_and_most_of_them_are_wrong() -> None:
    messages = conversations.core_messages()
    first, again, other = (Mutator(seed, messages) for seed in (1, 1, 2))
    made = [first.body() for _ in range(300)]
    assert made == [again.body() for _ in range(300)]
    assert made != [other.body() for _ in range(300)]
    ended = 0
    for body in made:
        talk = ready()
        talk.receive(framed(body))
        talk.said()
        ended += talk.state == "closed"
    assert 60 < ended < 270, "neither all right nor all noise"


def test_what_is_kept_is_readable_and_right() -> None:
    for file in CORPUS.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            json.loads(line)
