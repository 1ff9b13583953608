"""Length-prefixed frames: any cutting gives the same frames, and a length is judged before its bytes are kept."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.edges.framing.length_prefix import FrameDecoder, FrameTooLarge, frame, prefix


def take_all(decoder: FrameDecoder, at_most: int = 3) -> list[bytes]:
    frames = []
    while some := decoder.take(at_most):
        assert len(some) <= at_most
        frames += some
    return frames


def next_frame(decoder: FrameDecoder) -> bytes | None:
    frames = decoder.take(1)
    return frames[0] if frames else None


@requirement("OS-010", "OS-011")
def test_a_frame_is_four_big_endian_bytes_that_count_the_bytes_after_them() -> None:
    assert frame(b'{"v":1}') == b'\x00\x00\x00\x07{"v":1}'
    text = '{"a":"é😀"}'
    assert frame(text.encode())[:4] == len(text.encode()).to_bytes(4, "big") != len(text).to_bytes(4, "big")
    assert prefix(0x01020304) == b"\x01\x02\x03\x04"


@requirement("OS-013")
@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 30), max_size=40))
def test_any_cutting_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    decoder = FrameDecoder(100)
    found: list[bytes] = []
    at = 0
    for cut in [*cuts, len(stream) + 1]:
        decoder.feed(stream[at : at + cut])
        found += take_all(decoder)
        at += cut
    assert found == bodies
    assert decoder.held == 0
    assert not decoder.mid_frame


@requirement("OS-013")
def test_frames_may_be_fed_first_and_pulled_later() -> None:
    decoder = FrameDecoder(100)
    for byte in frame(b"abc") + frame(b"") + frame(b"de"):
        decoder.feed(bytes([byte]))
    assert take_all(decoder) == [b"abc", b"", b"de"]


@requirement("OS-016", "OS-022")
@pytest.mark.parametrize("limit", [0, 1, 65_536])
def test_a_frame_of_the_limit_passes_and_one_byte_more_does_not(limit: int) -> None:
    decoder = FrameDecoder(limit)
    decoder.feed(frame(bytes(limit)))
    assert next_frame(decoder) == bytes(limit)
    decoder.feed(prefix(limit + 1))
    with pytest.raises(FrameTooLarge) as caught:
        next_frame(decoder)
    assert (caught.value.size, caught.value.limit) == (limit + 1, limit)


@requirement("OS-023")
def test_the_largest_prefix_is_refused_without_reserving_memory() -> None:
    tracemalloc.start()
    try:
        decoder = FrameDecoder(4_194_304)
        decoder.feed(b"\xff\xff\xff\xff")
        with pytest.raises(FrameTooLarge):
            next_frame(decoder)
        assert tracemalloc.get_traced_memory()[1] < 65_536
    finally:
        tracemalloc.stop()


@requirement("OS-023")
def test_an_announced_frame_holds_only_what_arrived_of_it() -> None:
    tracemalloc.start()
    try:
        decoder = FrameDecoder(4_194_304)
        decoder.feed(prefix(4_194_304) + b"x" * 10)
        assert next_frame(decoder) is None
        assert decoder.held == 10
        assert decoder.mid_frame
        assert tracemalloc.get_traced_memory()[1] < 65_536
    finally:
        tracemalloc.stop()


def test_the_limit_may_change_between_two_frames() -> None:
    decoder = FrameDecoder(2)
    decoder.feed(frame(b"ab") + frame(b"abc"))
    assert next_frame(decoder) == b"ab"
    decoder.limit = 3
    assert next_frame(decoder) == b"abc"


def test_nothing_that_was_handed_out_is_kept() -> None:
    decoder = FrameDecoder(100_000)
    decoder.feed(frame(b"s3cr3t" * 10_000) + b"\x00\x00")
    next_frame(decoder)
    decoder.drop_consumed()
    assert decoder._chunk == b"\x00\x00"
    decoder.feed(b"\x00\x01x")
    assert take_all(decoder) == [b"x"]
    assert decoder._chunk == b""


def test_a_frame_is_bytes_of_its_own() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(frame(b"abc") + frame(b"def")[:5])
    first = next_frame(decoder)
    assert next_frame(decoder) is None
    decoder.feed(b"ef")
    assert (first, next_frame(decoder)) == (b"abc", b"def")
    assert type(first) is bytes


def test_many_small_frames_and_one_large_in_pieces_take_linear_time() -> None:
    # Quadratic copying would take minutes here.
    began = time.process_time()
    decoder = FrameDecoder(4_194_304)
    decoder.feed(frame(b"x" * 10) * 100_000)
    assert len(take_all(decoder)) == 100_000
    large = frame(bytes(4_194_304))
    for at in range(0, len(large), 100):
        decoder.feed(large[at : at + 100])
        body = next_frame(decoder)
    assert body == bytes(4_194_304)
    assert time.process_time() - began < 5.0


def test_whole_frames_before_one_that_is_too_large_are_handed_out_first() -> None:
    decoder = FrameDecoder(4)
    decoder.feed(frame(b"ab") + frame(b"cd") + prefix(5))
    assert decoder.take(10) == [b"ab", b"cd"]
    with pytest.raises(FrameTooLarge):
        decoder.take(10)


def test_no_more_frames_than_asked_for_are_handed_out() -> None:
    decoder = FrameDecoder(4)
    decoder.feed(b"".join(map(frame, (b"a", b"b", b"c"))))
    assert [decoder.take(2), decoder.take(2), decoder.take(2)] == [[b"a", b"b"], [b"c"], []]
