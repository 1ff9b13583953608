"""What is known of a client by what it says to the relay, in whatever pieces its bytes come."""

from __future__ import annotations

from random import Random

import pytest
from websockets.frames import Frame, Opcode

from trunkline.edges.nostr.said_to_relay import KEPT_BYTES, MAX_SUBSCRIPTIONS, SaidToRelay


def frame(text: str, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, text.encode(), fin).serialize(mask=True)


def heard(*frames: bytes, sizes: Random | None = None) -> SaidToRelay:
    said, data = SaidToRelay(0.0), b"".join(frames)
    while data:
        size = len(data) if sizes is None else sizes.randint(1, 9)
        said.take(data[:size], 1.0)
        data = data[size:]
    return said


@pytest.mark.parametrize(
    ("texts", "names", "last"),
    [
        ([], set(), 0.0),
        (['["REQ","a",{}]'], {b"a"}, 1.0),
        ([' [ "REQ" , "a" , {} ]', '["REQ","a",{}]', '["REQ","b",{}]'], {b"a", b"b"}, 1.0),
        (['["REQ","a",{}]', '["CLOSE","a"]', '["CLOSE","never"]'], set(), 1.0),
        (['["EVENT",{}]'], set(), 1.0),
        (["", "[]", '["REQ"', "REQ", '["EVENTS"]', "\u2603"], set(), 0.0),
        (['["REQ",7,{}]'], set(), 1.0),
        (['["EVENT",{"content":"' + "x" * 70_000 + '"}]', '["REQ","a",{}]'], {b"a"}, 1.0),
    ],
)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_subscriptions_are_counted_by_their_names(
    texts: list[str], names: set[bytes], last: float, seed: int | None
) -> None:
    said = heard(*map(frame, texts), sizes=None if seed is None else Random(seed))
    assert (said.subscriptions, said.last) == (names, last)


def test_pings_say_nothing_and_a_message_in_parts_is_one() -> None:
    ping = frame("are you there", Opcode.PING)
    assert heard(ping, ping).last == 0.0
    parts = [frame('["RE', fin=False), ping, frame('Q","a"', Opcode.CONT, fin=False), frame(",{}]", Opcode.CONT)]
    assert heard(*parts, sizes=Random(3)).subscriptions == {b"a"}


def test_what_is_kept_is_bounded_whatever_is_said() -> None:
    many = heard(*(frame(f'["REQ","{number}",{{}}]') for number in range(MAX_SUBSCRIPTIONS + 10)))
    assert len(many.subscriptions) == MAX_SUBSCRIPTIONS
    long = heard(frame('["REQ","' + "x" * 100_000 + '",{}]', fin=False))
    assert len(long._message) == KEPT_BYTES
    for seed in range(50):
        noise = Random(seed).randbytes(2000)
        heard(noise, sizes=Random(seed))
