"""Signatures of OSSA: what fits, and everything that must not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from nacl.signing import VerifyKey

from tests.unit.edges.ossa.examples import REQUEST, changed
from trunkline.edges.ossa import messages, reading, signing
from trunkline.edges.ossa.messages import Refused

KEY = signing.key_of(b"k" * 32)
OTHER = signing.key_of(b"o" * 32)


def signed(data: bytes | None = None) -> dict[str, Any]:
    data = json.dumps(REQUEST).encode() if data is None else data
    made: dict[str, Any] = json.loads(signing.sign(reading.read(data), KEY))
    return made


def judge(fields: dict[str, Any], key: VerifyKey = KEY.public) -> None:
    signing.check(json.dumps(fields).encode(), signing.read_claim(fields["signature"]), key)


def part(header: object) -> str:
    return signing.encoded(json.dumps(header).encode())


def refused_with(code: int, fields: dict[str, Any], key: VerifyKey = KEY.public) -> None:
    with pytest.raises(Refused) as refused:
        judge(fields, key)
    assert refused.value.error_code == code


def test_what_was_signed_is_accepted_in_whatever_order_and_spacing_it_comes() -> None:
    fields = signed()
    judge(fields)
    turned = json.loads(json.dumps(fields), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    signing.check(json.dumps(turned, indent=3).encode(), signing.read_claim(fields["signature"]), KEY.public)


def test_a_signature_is_a_detached_jws_with_three_words_in_its_header() -> None:
    header, payload, _ = signed()["signature"].split(".")
    assert payload == ""
    assert json.loads(signing.decoded(header)) == {"alg": "EdDSA", "kid": KEY.kid, "typ": "ossa+jws"}


def test_numbers_are_signed_as_javascript_writes_them() -> None:
    fields = signed(changed("body.payload", {"a": 1.0, "b": 1e21, "c": 0.000001, "d": 333333333.33333329}))
    assert signing.signed_form(json.dumps(fields).encode()).startswith(
        b'{"body":{"action":"validate_compliance","payload":{"a":1,"b":1e+21,"c":0.000001,"d":333333333.3333333}}'
    )


@pytest.mark.parametrize("path", ["body.payload.resource", "header.messageId", "header.sender.agentId", "header.type"])
def test_a_changed_message_does_not_fit_its_signature(path: str) -> None:
    fields = signed()
    *above, last = path.split(".")
    place = fields
    for name in above:
        place = place[name]
    place[last] = f"{place[last]}x"
    refused_with(messages.UNAUTHORIZED, fields)


def test_a_key_of_another_does_not_fit() -> None:
    refused_with(messages.UNAUTHORIZED, signed(), OTHER.public)


def test_a_key_of_small_order_fits_nothing() -> None:
    """With the neutral element as a key, this signature fits every message for whoever checks the equation alone."""
    neutral = bytes([1, *bytes(31)])
    header = part({"alg": "EdDSA", "kid": KEY.kid, "typ": signing.TYPE})
    fields = {**signed(), "signature": f"{header}..{signing.encoded(neutral + bytes(32))}"}
    refused_with(messages.UNAUTHORIZED, fields, VerifyKey(neutral))


def test_an_added_field_does_not_fit() -> None:
    refused_with(messages.UNAUTHORIZED, {**signed(), "extra": 1})


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none", "kid": KEY.kid, "typ": "ossa+jws"},
        {"alg": "HS256", "kid": KEY.kid, "typ": "ossa+jws"},
        {"alg": "ES256", "kid": KEY.kid, "typ": "ossa+jws"},
        {"alg": "EdDSA", "typ": "ossa+jws"},
        {"alg": "EdDSA", "kid": 5, "typ": "ossa+jws"},
        {"alg": "EdDSA", "kid": "\ud800", "typ": "ossa+jws"},
        {"alg": ["EdDSA"], "kid": KEY.kid, "typ": "ossa+jws"},
        {"alg": {}, "kid": KEY.kid, "typ": "ossa+jws"},
        {"alg": "EdDSA", "kid": KEY.kid, "typ": ["ossa+jws"]},
        {"alg": "EdDSA", "kid": KEY.kid, "typ": "JWT"},
        {"alg": "EdDSA", "kid": KEY.kid, "typ": "ossa+jws", "crit": ["b64"], "b64": False},
        {"alg": "EdDSA", "kid": KEY.kid, "jwk": {}},
        {"alg": "EdDSA", "kid": KEY.kid, "jku": "https://example.com"},
        ["EdDSA"],
        "EdDSA",
    ],
    ids=str,
)
def test_another_algorithm_or_a_header_to_be_understood_is_refused(header: object) -> None:
    fields = signed()
    fields["signature"] = f"{part(header)}..{fields['signature'].rpartition('.')[2]}"
    refused_with(messages.UNAUTHORIZED, fields)


def test_the_newer_name_of_the_algorithm_is_taken() -> None:
    fields = signed()
    fields.pop("signature")
    header = part({"alg": "Ed25519", "kid": KEY.kid, "typ": "ossa+jws"})
    payload = signing.encoded(signing.signed_form(json.dumps(fields).encode()))
    made = signing.encoded(KEY.private.sign(f"{header}.{payload}".encode()).signature)
    judge({**fields, "signature": f"{header}..{made}"})


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "..", "e30..AAAA", "x" * 5000, "ÿ..ÿ", "e30.e30." + "A" * 86, "e30..A\n"]
)
def test_what_is_no_detached_jws_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        signing.read_claim(text)
    assert refused.value.error_code == messages.UNAUTHORIZED


def test_a_header_with_a_word_twice_is_refused() -> None:
    twice = base64.urlsafe_b64encode(b'{"alg":"none","alg":"EdDSA","kid":"k","typ":"ossa+jws"}').rstrip(b"=").decode()
    with pytest.raises(Refused):
        signing.read_claim(f"{twice}..{'A' * 86}")


def test_another_spelling_of_the_same_signature_is_refused() -> None:
    fields = signed()
    last = fields["signature"][-1]
    other = chr(ord(last) + 1) if last not in "zZ9_" else chr(ord(last) - 1)
    fields["signature"] = fields["signature"][:-1] + other
    refused_with(messages.UNAUTHORIZED, fields)


@pytest.mark.parametrize("last", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
def test_a_signature_that_ends_in_any_way_is_refused_and_no_defect(last: str) -> None:
    fields = signed()
    if fields["signature"][-1] != last:
        fields["signature"] = fields["signature"][:-1] + last
        refused_with(messages.UNAUTHORIZED, fields)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("9007199254740991.4", b"9007199254740991.0"),
        ("0.49999999999999999999", b"0.5"),
        ("1e-999", b"0.0"),
        ("0.10000000000000001", b"0.1"),
    ],
)
def test_a_number_that_is_written_as_another_one_is_read_as_it_was_signed(written: str, read: bytes) -> None:
    rounded = checked(b'{"n":%b,"large":1e20,"whole":1.0}' % written.encode()).rounded
    assert rounded is not None
    # What is large or whole stays the number that it was written as: an integer of that size could not be signed.
    assert rounded.startswith(b'{"n":%b,"large":1e+20,"whole":1.0,"signature":' % read)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":0.5,"b":-12.25,"c":1700000000000}',
        b'{"a":1.0,"b":1E2,"c":1.50e1,"d":0.1}',
        # Digits before an e, and many of them, that are no numbers.
        b'{"id":"550e8400-e29b-41d4-a716-446655440000","card":"1234567890123456789","n":1}',
    ],
)
def test_a_message_with_ordinary_numbers_is_read_once(data: bytes) -> None:
    assert checked(data).rounded is None


@pytest.mark.parametrize(("number", "has_floats"), [("1", False), ("1.0", True), ("1e3", True), ('"1.0"', False)])
def test_it_is_told_whether_there_are_numbers_that_take_long(number: str, has_floats: bool) -> None:
    assert checked(b'{"n":%b}' % number.encode()).has_floats is has_floats


def checked(data: bytes) -> signing.Checked:
    """What the check of these bytes says, signed by us."""
    header = part({"alg": "EdDSA", "kid": KEY.kid, "typ": "ossa+jws"})
    made = KEY.private.sign(f"{header}.{signing.encoded(signing.signed_form(data))}".encode()).signature
    whole = b'%b,"signature":"%b"}' % (data[:-1], f"{header}..{signing.encoded(made)}".encode())
    return signing.check(whole, signing.read_claim(json.loads(whole)["signature"]), KEY.public)


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**30])
def test_an_integer_that_has_no_canonical_form_cannot_be_signed(number: int) -> None:
    fields = json.loads(changed("body.payload", {"n": number}))
    with pytest.raises(Refused) as refused:
        signing.signed_form(json.dumps(fields).encode())
    assert refused.value.error_code == messages.BAD_REQUEST


def test_a_long_number_in_a_text_or_after_a_point_is_no_such_integer() -> None:
    signing.signed_form(changed("body.payload", {"card": "1234567890123456789", "part": 0.1234567890123456}))


def test_a_public_key_is_read_from_a_jwk_and_nothing_else() -> None:
    jwk = signing.public_jwk(KEY.public)
    assert signing.read_public(jwk) == KEY.public
    for wrong in (None, [], {}, {**jwk, "crv": "X25519"}, {**jwk, "kty": "EC"}, {**jwk, "x": "AAAA"}, {**jwk, "x": 5}):
        with pytest.raises(ValueError, match=r"expected|not a public key"):
            signing.read_public(wrong)


def test_the_thumbprint_is_that_of_rfc_8037() -> None:
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    assert signing.thumbprint(jwk) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
