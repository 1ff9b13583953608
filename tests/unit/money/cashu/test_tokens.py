from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.cashu.toy_mint import write_token_v3
from trunkline.money import cbor
from trunkline.money.cashu.tokens import (
    MAX_AMOUNT,
    MAX_PROOFS,
    MAX_TOKEN_CHARS,
    Dleq,
    Proof,
    Token,
    mint_url,
    proof_as_json,
    read_token,
    write_token,
)
from trunkline.money.refusals import ProofRefused

# NUT-00, test vectors.
V3 = (
    "cashuAeyJ0b2tlbiI6W3sibWludCI6Imh0dHBzOi8vODMzMy5zcGFjZTozMzM4IiwicHJvb2ZzIjpbeyJhbW91bnQiOjIsImlkIjoiMDA5YTFm"
    "MjkzMjUzZTQxZSIsInNlY3JldCI6IjQwNzkxNWJjMjEyYmU2MWE3N2UzZTZkMmFlYjRjNzI3OTgwYmRhNTFjZDA2YTZhZmMyOWUyODYxNzY4YT"
    "c4MzciLCJDIjoiMDJiYzkwOTc5OTdkODFhZmIyY2M3MzQ2YjVlNDM0NWE5MzQ2YmQyYTUwNmViNzk1ODU5OGE3MmYwY2Y4NTE2M2VhIn0seyJh"
    "bW91bnQiOjgsImlkIjoiMDA5YTFmMjkzMjUzZTQxZSIsInNlY3JldCI6ImZlMTUxMDkzMTRlNjFkNzc1NmIwZjhlZTBmMjNhNjI0YWNhYTNmNG"
    "UwNDJmNjE0MzNjNzI4YzcwNTdiOTMxYmUiLCJDIjoiMDI5ZThlNTA1MGI4OTBhN2Q2YzA5NjhkYjE2YmMxZDVkNWZhMDQwZWExZGUyODRmNmVj"
    "NjlkNjEyOTlmNjcxMDU5In1dfV0sInVuaXQiOiJzYXQiLCJtZW1vIjoiVGhhbmsgeW91LiJ9"
)
ONE_KEYSET = (
    "cashuBpGF0gaJhaUgArSaMTR9YJmFwgaNhYQFhc3hAOWE2ZGJiODQ3YmQyMzJiYTc2ZGIwZGYxOTcyMTZiMjlkM2I4Y2MxNDU1M2NkMjc4Mjdm"
    "YzFjYzk0MmZlZGI0ZWFjWCEDhhhUP_trhpXfStS6vN6So0qWvc2X3O4NfM-"
    "Y1HISZ5JhZGlUaGFuayB5b3VhbXVodHRwOi8vbG9jYWxob3N0OjMzMzhhdWNzYXQ="
)
TWO_KEYSETS = (
    "cashuBo2F0gqJhaUgA_9SLj17PgGFwgaNhYQFhc3hAYWNjMTI0MzVlN2I4NDg0YzNjZjE4NTAxNDkyMThhZjkwZjcxNmE1MmJmNGE1ZWQzNDdl"
    "NDhlY2MxM2Y3NzM4OGFjWCECRFODGd5IXVW-07KaZCvuWHk3WrnnpiDhHki6SCQh88-"
    "iYWlIAK0mjE0fWCZhcIKjYWECYXN4QDEzMjNkM2Q0NzA3YTU4YWQyZTIzYWRhNGU5ZjFmNDlmNWE1YjRhYzdiNzA4ZWIwZDYxZjczOGY0ODMwN"
    "2U4ZWVhY1ghAjRWqhENhLSsdHrr2Cw7AFrKUL9Ffr1XN6RBT6w659lNo2FhAWFzeEA1NmJjYmNiYjdjYzY0MDZiM2ZhNWQ1N2QyMTc0ZjRlZmY"
    "4YjQ0MDJiMTc2OTI2ZDNhNTdkM2MzZGNiYjU5ZDU3YWNYIQJzEpxXGeWZN5qXSmJjY8MzxWyvwObQGr5G1YCCgHicY2FtdWh0dHA6Ly9sb2Nhb"
    "Ghvc3Q6MzMzOGF1Y3NhdA"
)

HEX = "0123456789abcdef"
POINTS = st.binary(min_size=33, max_size=33)
SCALARS = st.binary(min_size=32, max_size=32)
IDS = st.text(HEX, min_size=16, max_size=16) | st.text(HEX, min_size=66, max_size=66)
PROOFS = st.builds(
    Proof,
    IDS,
    st.integers(1, 2**50),
    st.text(min_size=1, max_size=80),
    POINTS,
    st.none() | st.builds(Dleq, SCALARS, SCALARS, SCALARS),
    st.text(max_size=80),
)
TOKENS = st.builds(
    Token,
    st.sampled_from(["https://8333.space:3338", "http://localhost:3338/Bitcoin"]),
    st.sampled_from(["sat", "msat", "usd"]),
    st.lists(PROOFS, min_size=1, max_size=6).map(lambda found: tuple(sorted(found, key=lambda one: one.keyset_id))),
    st.text(max_size=20),
)


def v3_of(**changed: Any) -> str:
    value = json.loads(base64.urlsafe_b64decode(V3.removeprefix("cashuA") + "=="))
    return "cashuA" + base64.urlsafe_b64encode(json.dumps(value | changed).encode()).decode()


def v4_of(**changed: Any) -> str:
    value: Any = cbor.decode(base64.urlsafe_b64decode(ONE_KEYSET.removeprefix("cashuB")))
    value = {name: part for name, part in (value | changed).items() if part != "gone"}
    return "cashuB" + base64.urlsafe_b64encode(cbor.encode(value)).decode()


def proof_of(**changed: Any) -> str:
    value: Any = cbor.decode(base64.urlsafe_b64decode(ONE_KEYSET.removeprefix("cashuB")))
    value["t"][0]["p"][0] |= changed
    return "cashuB" + base64.urlsafe_b64encode(cbor.encode(value)).decode()


def test_the_token_of_version_3_of_the_specification_is_read_and_written() -> None:
    token = read_token(V3)
    assert (token.mint, token.unit, token.memo, token.amount) == ("https://8333.space:3338", "sat", "Thank you.", 10)
    first, second = token.proofs
    assert (first.amount, first.keyset_id) == (2, "009a1f293253e41e")
    assert second.secret == "fe15109314e61d7756b0f8ee0f23a624acaa3f4e042f61433c728c7057b931be"
    assert second.signature.hex() == "029e8e5050b890a7d6c0968db16bc1d5d5fa040ea1de284f6ec69d61299f671059"
    assert write_token_v3(token) == V3.rstrip("=")


def test_the_token_of_one_keyset_of_the_specification_is_read_and_written() -> None:
    token = read_token(ONE_KEYSET)
    (proof,) = token.proofs
    assert (token.mint, token.unit, token.memo) == ("http://localhost:3338", "sat", "Thank you")
    assert (proof.amount, proof.keyset_id, proof.dleq, proof.witness) == (1, "00ad268c4d1f5826", None, "")
    assert proof.secret == "9a6dbb847bd232ba76db0df197216b29d3b8cc14553cd27827fc1cc942fedb4e"
    assert write_token(token) == ONE_KEYSET.rstrip("=")


def test_the_token_of_two_keysets_of_the_specification_is_read_and_written() -> None:
    token = read_token(TWO_KEYSETS)
    assert [proof.keyset_id for proof in token.proofs] == ["00ffd48b8f5ecf80", "00ad268c4d1f5826", "00ad268c4d1f5826"]
    assert [proof.amount for proof in token.proofs] == [1, 2, 1]
    assert write_token(token) == TWO_KEYSETS.rstrip("=")


@pytest.mark.parametrize("text", [V3, V3 + "==", V3.rstrip("="), f"cashu:{V3}", ONE_KEYSET.rstrip("="), ONE_KEYSET])
def test_padding_and_the_scheme_of_a_link_may_be_there_or_not(text: str) -> None:
    assert read_token(text).proofs


@given(TOKENS)
def test_what_is_written_in_either_form_is_read_as_the_same_token(token: Token) -> None:
    assert read_token(write_token(token)) == token
    assert read_token(write_token_v3(token)) == token


def test_proofs_of_one_keyset_stand_side_by_side_however_they_came() -> None:
    shuffled = json.loads(base64.urlsafe_b64decode(V3.removeprefix("cashuA") + "=="))["token"][0]["proofs"]
    shuffled.insert(1, shuffled[0] | {"id": "00ffd48b8f5ecf80"})
    token = read_token(v3_of(token=[{"mint": "https://a.example/", "proofs": shuffled}]))
    assert [proof.keyset_id[:4] for proof in token.proofs] == ["009a", "009a", "00ff"]
    assert read_token(write_token(token)) == token


def test_unknown_fields_are_left_out() -> None:
    assert read_token(v4_of(x={"y": [1, b"2"]})) == read_token(ONE_KEYSET)
    assert read_token(v3_of(x={"y": [1, 2]})) == read_token(V3)


def test_the_mint_is_not_told_what_hid_a_secret() -> None:
    proof = Proof("00ad268c4d1f5826", 1, "x", bytes(33), Dleq(bytes(32), bytes(32), bytes(32)), "{}")
    assert "dleq" in proof_as_json(proof)
    assert "dleq" not in proof_as_json(proof, with_dleq=False)


@pytest.mark.parametrize(
    "text",
    [
        "", "cashu", "cashuA", "cashuB", "cashuC" + ONE_KEYSET[6:], "casshuA" + V3[6:], V3[6:], ONE_KEYSET[6:],
        "cashuB!!!!", "cashuB" + V3[6:], "cashuA" + ONE_KEYSET[6:], ONE_KEYSET[:-9], "cashuBo", "cashuB\u00fc",
        "cashuBgA",
        "cashuA" + base64.urlsafe_b64encode(b'{"token":[],"token":[]}').decode(), v3_of(token=[]), v3_of(token=7),
        v3_of(unit=7), v3_of(unit="SATS AND MORE"), v3_of(token=[{"mint": "https://a.example", "proofs": []}]),
        v4_of(t=[]), v4_of(t="gone"), v4_of(m="gone"), v4_of(m="ftp://x"), v4_of(m="http://" + "x" * 3000), v4_of(u=7),
        v4_of(u=""), v4_of(d=7), v4_of(t=[7]), v4_of(t=[{"i": b"", "p": []}]), proof_of(a=0), proof_of(a=True),
        proof_of(a=MAX_AMOUNT + 1), proof_of(a="1"), proof_of(s=b"x"), proof_of(s=""), proof_of(s="x" * 5000),
        proof_of(c=b"x"), proof_of(c="x"), proof_of(d=7), proof_of(w=b"x"), proof_of(d={"e": bytes(32)}),
        proof_of(d={"e": bytes(32), "s": bytes(32), "r": bytes(31)}), proof_of(w="x" * 5000),
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_token(text)
    assert refused.value.reason == "malformed"


def test_a_token_of_two_mints_is_refused() -> None:
    proofs = json.loads(base64.urlsafe_b64decode(V3.removeprefix("cashuA") + "=="))["token"][0]["proofs"]
    parts = [{"mint": "https://a.example", "proofs": proofs}, {"mint": "https://b.example", "proofs": proofs}]
    with pytest.raises(ProofRefused, match="several mints"):
        read_token(v3_of(token=parts))


def test_more_than_anybody_needs_is_refused() -> None:
    value: Any = cbor.decode(base64.urlsafe_b64decode(ONE_KEYSET.removeprefix("cashuB")))
    part = value["t"][0]["p"][0]
    assert read_token(v4_of(t=[{"i": bytes(8), "p": [part] * MAX_PROOFS}])).amount == MAX_PROOFS
    with pytest.raises(ProofRefused, match="proofs"):
        read_token(v4_of(t=[{"i": bytes(8), "p": [part] * (MAX_PROOFS + 1)}]))
    with pytest.raises(ProofRefused, match="count"):
        read_token(v4_of(t=[{"i": bytes(8), "p": [part | {"a": MAX_AMOUNT}] * 2}]))
    with pytest.raises(ProofRefused) as refused:
        read_token("cashuB" + "A" * MAX_TOKEN_CHARS)
    assert refused.value.reason == "too_large"


def test_a_slash_at_the_end_of_an_address_does_not_count() -> None:
    assert mint_url("https://mint.example/cashu/") == mint_url("https://mint.example/cashu")
