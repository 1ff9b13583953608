from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import URL, ToyMint
from trunkline.edges.nostr import nutzaps
from trunkline.edges.nostr.events import Draft, Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import BadMessage

MINT = ToyMint()
SENDER, PAYEE = Signer(bytes(31) + b"\x01"), Signer(bytes(31) + b"\x02")
REQUEST = "ab" * 32
TOKEN = MINT.locked(13, job_hash="sha256:" + "00" * 32)


def zapped(draft: Draft) -> Event:
    return signed(draft, SENDER)


def good() -> Draft:
    return nutzaps.nutzap_draft(TOKEN, PAYEE.public, REQUEST, 5050, created_at=5)


def test_a_nutzap_is_read_as_the_token_that_it_was_written_for() -> None:
    draft = good()
    assert draft.kind == 9321
    assert draft.tags[-5:] == (("unit", "sat"), ("u", URL), ("e", REQUEST), ("k", "5050"), ("p", PAYEE.public))
    found = nutzaps.read_nutzap(zapped(draft))
    assert found.token == TOKEN
    assert (found.sender, found.payee, found.request_id) == (SENDER.public, PAYEE.public, REQUEST)


def test_the_example_of_the_specification_is_read() -> None:
    # NIP-61's own proof, with the id of an event and of a payee that are some: it has no DLEQ, and no tags.
    secret = json.dumps(["P2PK", {
        "nonce": "b00bdd0467b0090a25bdf2d2f0d45ac4e355c482c1418350f273a04fedaaee83",
        "data": "02eaee8939e3565e48cc62967e2fde9d8e2a4b3ec0081f29eceff5c64ef10ac1ed",
    }])  # fmt: skip
    proof = {
        "amount": 1, "C": "02277c66191736eb72fce9d975d08e3191f8f96afb73ab1eec37e4465683066d3f",
        "id": "000a93d6f8a1d2c4", "secret": secret,
    }  # fmt: skip
    tags = (
        ("proof", json.dumps(proof)), ("u", "https://stablenut.umint.cash"), ("e", REQUEST), ("p", PAYEE.public),
    )  # fmt: skip
    found = nutzaps.read_nutzap(zapped(Draft(9321, "Thanks for this great idea.", tags, 5)))
    assert (found.token.amount, found.token.unit, found.token.mint) == (1, "sat", "https://stablenut.umint.cash")


def test_what_anybody_could_spend_is_neither_written_nor_read() -> None:
    unlocked = MINT.token(13)
    with pytest.raises(ValueError, match="not locked"):
        nutzaps.nutzap_draft(unlocked, PAYEE.public, REQUEST, 5050, created_at=5)
    draft = good()
    proof = {"amount": 1, "id": "00" * 8, "secret": "plain", "C": "02" * 33}
    changed = msgspec.structs.replace(draft, tags=(("proof", json.dumps(proof)), *draft.tags))
    with pytest.raises(BadMessage, match="not locked"):
        nutzaps.read_nutzap(zapped(changed))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tags: [tag for tag in tags if tag[0] != "proof"], "1 to 128 proofs"),
        (lambda tags: [tags[0]] * 129 + tags[1:], "1 to 128 proofs"),
        (lambda tags: [("proof", "x" * 100_000), *tags], "1 to 128 proofs"),
        (lambda tags: [("proof", "[]"), *tags], "JSON object"),
        (lambda tags: [("proof", '{"amount":1,"amount":2}'), *tags], "JSON object"),
        (lambda tags: [("proof", "{}"), *tags], "cannot be read"),
        (lambda tags: [tag for tag in tags if tag[0] != "p"], "names its payee"),
        (lambda tags: [tag for tag in tags if tag[0] != "e"], "names its payee"),
        (lambda tags: [("u", "ftp://x") if tag[0] == "u" else tag for tag in tags], "no URL"),
        (lambda tags: [("unit", "S A T") if tag[0] == "unit" else tag for tag in tags], "unit"),
    ],
)
def test_what_is_no_nutzap_is_refused_with_a_reason(change: Any, why: str) -> None:
    draft = good()
    with pytest.raises(BadMessage, match=why):
        nutzaps.read_nutzap(zapped(msgspec.structs.replace(draft, tags=tuple(change(list(draft.tags))))))


def test_another_kind_is_no_nutzap() -> None:
    with pytest.raises(BadMessage, match="another kind"):
        nutzaps.read_nutzap(zapped(msgspec.structs.replace(good(), kind=1)))


def test_what_we_take_is_said_with_mints_relays_and_a_key() -> None:
    draft = nutzaps.info_draft([URL], "02" * 33, ["ws://x"], created_at=5)
    assert draft.kind == 10_019
    assert draft.tags == (("relay", "ws://x"), ("mint", URL, "sat"), ("pubkey", "02" * 33))


def test_a_nutzap_is_for_the_payee_that_it_names_and_nothing_else_is_one() -> None:
    draft = good()
    assert nutzaps.is_for(zapped(draft), PAYEE.public)
    assert not nutzaps.is_for(zapped(draft), SENDER.public)
    assert not nutzaps.is_for(zapped(msgspec.structs.replace(draft, kind=1)), PAYEE.public)
