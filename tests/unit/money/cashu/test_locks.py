from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.cashu.toy_mint import PAYEE, PAYEE_SECRET, PAYER, PAYER_SECRET
from trunkline.money.cashu.locks import (
    LAST_SECOND,
    MAX_KEYS,
    Lock,
    Witness,
    check_released,
    is_preimage,
    lock_secret,
    read_lock,
    read_witness,
    signed_witness,
)
from trunkline.money.refusals import ProofRefused

# NUT-11, test vectors: a signature by one key, and two by two of three.
ONE_KEY = (
    '["P2PK",{"nonce":"859d4935c4907062a6297cf4e663e2835d90d97ecdd510745d32f6816323a41f",'
    '"data":"0249098aa8b9d2fbec49ff8598feb17b592b986e62319a4fa488a3dc36387157a7","tags":[["sigflag","SIG_INPUTS"]]}]'
)
ITS_SIGNATURE = (
    "60f3c9b766770b46caac1d27e1ae6b77c8866ebaeba0b9489fe6a15a837eaa6f"
    "cd6eaa825499c72ac342983983fd3ba3a8a41f56677cc99ffd73da68b59e1383"
)
TWO_OF_THREE = (
    '["P2PK",{"nonce":"0ed3fcb22c649dd7bbbdcca36e0c52d4f0187dd3b6a19efcc2bfbebb5f85b2a1",'
    '"data":"0249098aa8b9d2fbec49ff8598feb17b592b986e62319a4fa488a3dc36387157a7","tags":[["pubkeys",'
    '"0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",'
    '"02142715675faf8da1ecc4d51e0b9e539fa0d52fdd96ed60dbe99adb15d6b05ad9"],["n_sigs","2"],["sigflag","SIG_INPUTS"]]}]'
)
FIRST = (
    "83564aca48c668f50d022a426ce0ed19d3a9bdcffeeaee0dc1e7ea7e98e9eff1"
    "840fcc821724f623468c94f72a8b0a7280fa9ef5a54a1b130ef3055217f467b3"
)
SECOND = (
    "9a72ca2d4d5075be5b511ee48dbc5e45f259bcf4a4e8bf18587f433098a9cd61"
    "ff9737dc6e8022de57c76560214c4568377792d4c2c6432886cc7050487a1f22"
)
# NUT-14: a hash and its preimage.
HASH = "ec4916dd28fc4c10d78e287ca5d9cc51ee1ae73cbfde08c6b37324cbfaac8bc5"
PREIMAGE = "0000000000000000000000000000000000000000000000000000000000000001"
KEY, OTHER = PAYEE.hex(), PAYER.hex()


def secret_of(*tags: list[str], kind: str = "P2PK", data: str = KEY) -> str:
    return json.dumps([kind, {"nonce": "n", "data": data, "tags": tags}])


def witness_of(*signatures: str, **rest: Any) -> Witness:
    return read_witness(json.dumps({"signatures": signatures} | rest))


def lock_of(secret: str) -> Lock:
    lock = read_lock(secret)
    assert lock is not None
    return lock


def test_the_signature_of_the_specification_opens_its_lock() -> None:
    check_released(ONE_KEY, lock_of(ONE_KEY), witness_of(ITS_SIGNATURE))


@pytest.mark.parametrize("signatures", [[], [FIRST], ["00" * 64], ["00"]])
def test_a_signature_over_something_else_does_not(signatures: list[str]) -> None:
    with pytest.raises(ProofRefused) as refused:
        check_released(ONE_KEY, lock_of(ONE_KEY), witness_of(*signatures))
    assert refused.value.reason == "not_released"


def test_as_many_keys_have_to_sign_as_the_lock_says() -> None:
    lock = lock_of(TWO_OF_THREE)
    check_released(TWO_OF_THREE, lock, witness_of(FIRST, SECOND))
    for too_few in ([FIRST], [FIRST, FIRST], [SECOND, ITS_SIGNATURE]):
        with pytest.raises(ProofRefused) as refused:
            check_released(TWO_OF_THREE, lock, witness_of(*too_few))
        assert refused.value.reason == "not_released"


def test_a_lock_to_a_hash_wants_the_preimage_and_the_signature() -> None:
    secret = lock_secret("n", PAYEE, locktime=7, refund_key=PAYER, lock_hash=HASH)
    lock = lock_of(secret)
    assert lock == Lock((PAYEE,), 1, HASH, 7, (PAYER,))
    check_released(secret, lock, read_witness(signed_witness(secret, PAYEE_SECRET, bytes(32), PREIMAGE)))
    for witness, reason in (
        (signed_witness(secret, PAYEE_SECRET, bytes(32)), "wrong_preimage"),
        (signed_witness(secret, PAYEE_SECRET, bytes(32), HASH), "wrong_preimage"),
        (signed_witness(secret, PAYEE_SECRET, bytes(32), PREIMAGE + "00"), "wrong_preimage"),
        (signed_witness(secret, PAYER_SECRET, bytes(32), PREIMAGE), "not_released"),
        ("", "wrong_preimage"),
    ):
        with pytest.raises(ProofRefused) as refused:
            check_released(secret, lock, read_witness(witness))
        assert refused.value.reason == reason


def test_the_preimage_of_the_specification_hashes_to_its_hash_and_is_32_bytes() -> None:
    assert is_preimage(PREIMAGE, HASH)
    assert not is_preimage(PREIMAGE[:-1] + "2", HASH)
    short = "00" * 31
    assert not is_preimage(short, hashlib.sha256(bytes.fromhex(short)).hexdigest())


def test_the_job_stands_in_the_lock_once() -> None:
    secret = lock_secret("n", PAYEE, locktime=7, refund_key=PAYER, tags=[["job_hash", "sha256:ab"]])
    assert lock_of(secret).job_hash == "sha256:ab"
    with pytest.raises(ProofRefused):
        read_lock(secret_of(["job_hash", "a"], ["job_hash", "b"]))


def test_a_lock_that_we_make_is_read_as_it_was_meant() -> None:
    secret = lock_secret("n", PAYEE, locktime=1_700_000_000, refund_key=PAYER)
    assert read_lock(secret) == Lock((PAYEE,), 1, "", 1_700_000_000, (PAYER,))


@given(st.text(max_size=60), st.integers(1, LAST_SECOND // 2), st.booleans())
def test_every_lock_that_can_be_made_is_read_back(nonce: str, locktime: int, hashed: bool) -> None:
    lock_hash = HASH if hashed else ""
    secret = lock_secret(nonce, PAYEE, locktime=locktime, refund_key=PAYER, lock_hash=lock_hash)
    assert read_lock(secret) == Lock((PAYEE,), 1, lock_hash, locktime, (PAYER,))


@pytest.mark.parametrize("secret", ["9a6dbb847bd232ba76db0df197216b29", "x", "{}", '"[]"', "7"])
def test_a_secret_that_is_only_that_is_no_lock(secret: str) -> None:
    assert read_lock(secret) is None


@pytest.mark.parametrize(("value", "locktime"), [("21", 21), ("1700000000", 1_700_000_000), (str(2**53), LAST_SECOND)])
def test_a_time_is_read_as_the_second_that_it_says(value: str, locktime: int) -> None:
    assert lock_of(secret_of(["locktime", value])).locktime == locktime


@pytest.mark.parametrize(
    "tag",
    [
        # Nutshell reads the first four as 1,700,000,000 and others leave the lock closed for ever.
        *(["locktime", text] for text in (" 1700000000", "01700000000", "1_700_000_000", "+1700000000")),
        *(["locktime", text] for text in ("0", "-1", "soon", "1e9", "99999999999999999999", "1700000000 ", "१७")),
        ["locktime", "1700000000", "1800000000"], ["locktime"], ["sigflag"], ["refund"], ["pubkeys"],
        ["sigflag", "SIG_INPUTS", "SIG_ALL"], ["refund", f" {OTHER}"], ["refund", OTHER.upper()],
        ["refund", f"{OTHER[:2]} {OTHER[2:]}"], ["job_hash", "a", "b"], ["job_hash"], ["payment_id", "a", "b"],
        ["payment_id"], ["n_sigs", "01"], ["n_sigs", "+1"],
    ],
)  # fmt: skip
def test_a_tag_that_two_mints_could_read_differently_is_refused(tag: list[str]) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_lock(secret_of(tag))
    assert refused.value.reason == "malformed"


def test_a_lock_to_a_hash_names_it_in_lower_case_and_wants_no_signatures_that_it_has_no_keys_for() -> None:
    for secret in (secret_of(kind="HTLC", data=HASH.upper()), secret_of(["n_sigs", "1"], kind="HTLC", data=HASH)):
        with pytest.raises(ProofRefused):
            read_lock(secret)


def test_signatures_over_a_whole_swap_are_noticed() -> None:
    assert lock_of(secret_of(["sigflag", "SIG_ALL"])).signs_all


@pytest.mark.parametrize(
    "secret",
    [
        "[", "[]", '["P2PK"]', '["P2PK",{}]', '["NEW",{"nonce":"n","data":"d"}]', secret_of(["sigflag", "SIG_NONE"]),
        secret_of(["n_sigs", "2"]), secret_of(["n_sigs", "0"]), secret_of(["n_sigs", "1", "1"]), secret_of(["n_sigs"]),
        secret_of(["pubkeys", KEY]), secret_of(["pubkeys", "03" + KEY[2:]]), secret_of(["pubkeys", "02" + "ff" * 32]),
        secret_of(["refund", OTHER, OTHER]), secret_of(["locktime", "1"], ["locktime", "2"]), secret_of([]),
        secret_of(["locktime", ""]), secret_of(data="x"), secret_of(data="04" + KEY[2:]), secret_of(kind="HTLC"),
        secret_of(["pubkeys", *([OTHER] * (MAX_KEYS + 1))]), secret_of(["n_sigs_refund", "2"], ["refund", OTHER]),
        f'["P2PK",{{"nonce":"n","nonce":"m","data":"{KEY}"}}]', f'["P2PK",{{"nonce":1,"data":"{KEY}"}}]',
        secret_of(kind="HTLC", data=HASH[:-2]), ' ["P2PK"]',
    ],
)  # fmt: skip
def test_a_lock_that_no_mint_would_open_or_that_could_mean_something_else_is_refused(secret: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_lock(secret)
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"signatures":7}', '{"signatures":["x"]}', '{"preimage":7}', '{"a":1,"a":1}', "\ud800"]
)
def test_a_witness_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_witness(text)
    assert refused.value.reason == "malformed"


def test_more_signatures_than_there_can_be_keys_are_refused() -> None:
    with pytest.raises(ProofRefused):
        witness_of(*([ITS_SIGNATURE] * (MAX_KEYS + 1)))
