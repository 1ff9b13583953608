"""Events of Nostr: ids, bounds, and bytes that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.nostr import events
from trunkline.edges.nostr.events import Draft, NotAnEvent
from trunkline.edges.nostr.keys import Signer

SIGNER = Signer(bytes(31) + b"\x03")
EVENT = events.signed(Draft(5050, 'hé\x01\u2028\n\t"\\', (("p", SIGNER.public), ("x",)), 1_700_000_000), SIGNER)
DATA = events.encoded(EVENT)


def altered(**fields: Any) -> bytes:
    return json.dumps({**json.loads(DATA), **fields}).encode()


def test_what_was_signed_is_read_as_it_was() -> None:
    assert events.read(DATA) == EVENT
    assert events.read(json.dumps(json.loads(DATA), indent=1).encode()) == EVENT


def test_the_id_is_that_of_nip_01_for_an_event_that_others_published() -> None:
    # The first event of its author, from the network.
    event = {
        "id": "4376c65d2f232afbe9b882a35baa4f6fe8667c4e684749af565f981833ed6a65",
        "pubkey": "6e468422dfb74a5738702a8823b9b28168abab8655faacb6853cd0ee15deee93",
        "created_at": 1673347337,
        "kind": 1,
        "tags": [
            ["e", "3da979448d9ba263864c4d6f14984c423a3838364ec255f03c7904b1ae77f206"],
            ["p", "bf2376e17ba4ec269d10fcc996a4746b451152be9031fa48e74553dde5526bce"],
        ],
        "content": "Walled gardens became prisons, and nostr is the first step towards tearing down the prison walls.",
        "sig": "908a15e46fb4d8675bab026fc230a0e3542bfade63da02d542fb78b2a8513fcd"
        "0092619a2c8c1221e581946e0191f2af505dfdf8657a414dbca329186f009262",
    }
    assert events.read(json.dumps(event).encode()).id == event["id"]


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "another"},
        {"created_at": 1_700_000_001},
        {"kind": 5051},
        {"tags": []},
        {"pubkey": Signer(bytes(31) + b"\x04").public},
        {"sig": "0" * 128},
        {"sig": EVENT.sig[:-1] + ("0" if EVENT.sig[-1] != "0" else "1")},
        {"id": "0" * 64},
    ],
)
def test_an_event_with_any_part_changed_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(NotAnEvent):
        events.read(altered(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": -1},
        {"kind": 65_536},
        {"kind": 1.5},
        {"created_at": -1},
        {"created_at": 2**60},
        {"tags": [["a"] * 65]},
        {"tags": [["a"]] * 257},
        {"tags": [[["a"]]]},
        {"tags": [[1]]},
        {"content": None},
        {"content": "a" * 262_145},
        {"content": "é" * 131_073},
        {"id": EVENT.id.upper()},
        {"pubkey": EVENT.pubkey + "\n"},
    ],
)
def test_what_is_out_of_bounds_is_refused_before_a_signature_is_looked_at(fields: dict[str, Any]) -> None:
    with pytest.raises(NotAnEvent):
        events.read_unchecked(altered(**fields))


def test_an_event_with_a_key_twice_is_refused() -> None:
    with pytest.raises(NotAnEvent, match="twice"):
        events.read(DATA[:-1] + b',"kind":1}')


def test_an_event_of_the_largest_content_is_read() -> None:
    event = events.signed(Draft(1, "\x01" * 262_144, (), 0), SIGNER)
    assert events.read(events.encoded(event)) == event


@given(st.binary(max_size=200) | st.binary(max_size=20).map(lambda cut: DATA[: len(cut) * 20] + cut))
def test_any_bytes_are_an_event_or_refused(data: bytes) -> None:
    with pytest.raises(NotAnEvent):
        events.read(data)


def test_tags_are_found_by_their_names() -> None:
    event = events.signed(Draft(1, "", (("p", "1"), (), ("p",), ("e", "2", "x"), ("p", "3")), 0), SIGNER)
    assert event.values("p") == ["1", "3"]
    assert event.tag("e") == ("e", "2", "x")
    assert (event.value("e"), event.value("none"), event.tag("none")) == ("2", "", ())
