from __future__ import annotations

import hashlib

import pytest
from coincurve import PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.cashu.toy_mint import proved
from trunkline.money.cashu import curve
from trunkline.money.refusals import ProofRefused

ONE = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
BLINDED = "02a9acc1e48c25eeeb9289b5031cc57da9fe72f3fe2861d264bdc074209b107ba2"
SCALARS = st.integers(1, curve.ORDER - 1).map(lambda number: number.to_bytes(32))


# NUT-00, test vectors.
@pytest.mark.parametrize(
    ("message", "point"),
    [
        ("00" * 32, "024cce997d3b518f739663b757deaec95bcd9473c30a14ac2fd04023a739d1a725"),
        ("00" * 31 + "01", "022e7158e11c9506f1aa4248bf531298daa7febd6194f003edcd9b93ade6253acf"),
        ("00" * 31 + "02", "026cdbe15362df59cd1dd3c9c11de8aedac2106eca69236ecd9fbe117af897be4f"),
    ],
)
def test_a_message_has_the_point_that_the_specification_gives_for_it(message: str, point: str) -> None:
    assert curve.hash_to_curve(bytes.fromhex(message)).hex() == point


@pytest.mark.parametrize(
    ("message", "factor", "point"),
    [
        (
            "d341ee4871f1f889041e63cf0d3823c713eea6aff01e80f1719f08f9e5be98f6",
            "99fce58439fc37412ab3468b73db0569322588f62fb3a49182d67e23d877824a",
            "033b1a9737a40cc3fd9b6af4b723632b76a67a36782596304612a6c2bfb5197e6d",
        ),
        (
            "f1aaf16c2239746f369572c0784d9dd3d032d952c2d992175873fb58fae31a60",
            "f78476ea7cc9ade20f9e05e58a804cf19533f03ea805ece5fee88c8e2874ba50",
            "029bdf2d716ee366eddf599ba252786c1033f47e230248a4612a5670ab931f1763",
        ),
    ],
)
def test_a_blinded_message_is_the_one_of_the_specification(message: str, factor: str, point: str) -> None:
    assert curve.blinded(bytes.fromhex(message), bytes.fromhex(factor)).hex() == point


# NUT-12, test vectors.
def test_the_challenge_is_the_one_of_the_specification() -> None:
    point = bytes.fromhex("020000000000000000000000000000000000000000000000000000000000000001")
    found = curve.challenge(point, point, point, bytes.fromhex(BLINDED))
    assert found.hex() == "a4dc034b74338c28c6bc3ea49731f2a24440fc7c4affc08b31a93fc9fbe6401e"


def test_the_proof_of_a_blind_signature_of_the_specification_holds_and_no_other_does() -> None:
    e = bytes.fromhex("9818e061ee51d5c8edc3342369a554998ff7b4381c8652d724cdf46429be73d9")
    s = bytes.fromhex("9818e061ee51d5c8edc3342369a554998ff7b4381c8652d724cdf46429be73da")
    key, blinded = bytes.fromhex(ONE), bytes.fromhex(BLINDED)
    assert curve.is_blindly_signed(key, blinded, blinded, e, s)
    assert not curve.is_blindly_signed(key, blinded, blinded, s, e)
    assert not curve.is_blindly_signed(key, blinded, blinded, e, bytes(31) + b"\x01")
    assert not curve.is_blindly_signed(key, blinded, key, e, s)
    assert not curve.is_blindly_signed(key, key, blinded, e, s)


def test_the_proof_that_is_derived_in_the_specification_holds() -> None:
    secret, blinded = bytes(31) + b"\x02", bytes.fromhex(BLINDED)
    signature = bytes.fromhex("0244eccfc7a348274458bb38044c7f3c389b3c2086c7ec18b5812d2877ab937787")
    e, s = proved(secret, blinded, signature)
    assert e.hex() == "2a16ffee280aff3c429045607f9b8e0bf8b35910c44c1b20b9dfaf01b263d7b3"
    assert s.hex() == "9df27731238334718d120d4f74611a7c668233f988e687ac3fb188f0a34a2dab"
    assert curve.is_blindly_signed(curve.public_key(secret), blinded, signature, e, s)


CAROLS = {
    "message": b"daf4dd00a2b68a0858a80450f52c8a7d2ccf87d375e43e216e0c571f089f63e9",
    "signature": bytes.fromhex("024369d2d22a80ecf78f3937da9d5f30c1b9f74f0c32684d583cca0fa6a61cdcfc"),
    "e": bytes.fromhex("b31e58ac6527f34975ffab13e70a48b6d2b0d35abc4b03f0151f09ee1a9763d4"),
    "s": bytes.fromhex("8fbae004c59e754d71df67e392b6ae4e29293113ddc2ec86592a0431d16306d8"),
    "factor": bytes.fromhex("a6d13fcd7a18442e6076f5e1e7c887ad5de40a019824bdfa9fe740d302e8d861"),
}


def test_the_proof_of_the_specification_convinces_whoever_is_given_it() -> None:
    assert curve.is_signed(bytes.fromhex(ONE), **CAROLS)


@pytest.mark.parametrize("part", CAROLS)
def test_a_proof_with_one_bit_changed_in_any_part_convinces_nobody(part: str) -> None:
    changed = CAROLS | {part: bytes([CAROLS[part][0] ^ 1]) + CAROLS[part][1:]}
    assert not curve.is_signed(bytes.fromhex(ONE), **changed)


@given(SCALARS, SCALARS, st.binary(max_size=40))
def test_what_a_mint_signed_blindly_is_its_signature_on_the_message(
    secret: bytes, factor: bytes, message: bytes
) -> None:
    blinded = curve.blinded(message, factor)
    promise = PublicKey(blinded).multiply(secret).format()
    signature = curve.unblinded(promise, factor, curve.public_key(secret))
    assert signature == PublicKey(curve.hash_to_curve(message)).multiply(secret).format()
    e, s = proved(secret, blinded, promise)
    assert curve.is_signed(curve.public_key(secret), message, signature, e, s, factor)


@pytest.mark.parametrize("scalar", [b"", bytes(32), b"\xff" * 32, curve.ORDER.to_bytes(32), b"\x01" * 31, b"\x01" * 33])
def test_what_is_no_number_of_the_curve_is_refused(scalar: bytes) -> None:
    for part in ("e", "s", "factor"):
        with pytest.raises(ProofRefused, match="no number of the curve"):
            curve.is_signed(bytes.fromhex(ONE), **(CAROLS | {part: scalar}))


@pytest.mark.parametrize("point", [b"", bytes(33), b"\x02" + b"\xff" * 32, b"\x04" + bytes(64), b"\x02" * 32])
def test_what_is_no_point_is_refused(point: bytes) -> None:
    with pytest.raises(ProofRefused, match="no point"):
        curve.is_signed(point, **CAROLS)
    with pytest.raises(ProofRefused, match="no point"):
        curve.unblinded(point, bytes(31) + b"\x01", bytes.fromhex(ONE))
    assert not curve.is_point(point)


def test_points_that_cancel_each_other_out_are_refused() -> None:
    minus_one = (curve.ORDER - 1).to_bytes(32)
    # s = e and a key of 1: R1 would be sG - eG.
    with pytest.raises(ProofRefused, match="cancel"):
        curve.is_blindly_signed(bytes.fromhex(ONE), bytes.fromhex(BLINDED), bytes.fromhex(ONE), minus_one, minus_one)


def test_a_signature_counts_for_its_key_whatever_its_sign_and_for_its_message_only() -> None:
    secret = hashlib.sha256(b"somebody").digest()
    key = curve.public_key(secret)
    signature = curve.schnorr_signature(secret, b"message", bytes(32))
    assert curve.is_schnorr_signed(key, b"message", signature)
    assert curve.is_schnorr_signed(bytes([key[0] ^ 1]) + key[1:], b"message", signature)
    assert not curve.is_schnorr_signed(key, b"massage", signature)
    assert not curve.is_schnorr_signed(bytes.fromhex(ONE), b"message", signature)
    assert not curve.is_schnorr_signed(key, b"message", signature[:-1])
    assert not curve.is_schnorr_signed(key[:-1], b"message", signature)
