from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import LOCKTIME, PAYEE, PAYER, PAYER_SECRET, URL, ToyMint, released
from trunkline.money.cashu.checking import Asked, check_hold, check_payment, check_signatures
from trunkline.money.cashu.locks import lock_secret
from trunkline.money.cashu.tokens import Dleq, Token, read_token, write_token
from trunkline.money.refusals import ProofRefused

MINT, OTHER = ToyMint(), ToyMint("another")
PREIMAGE = "07" * 32
HASH = hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest()
ASKED = Asked(URL, "sat", 13, PAYEE[1:])
HELD = MINT.locked(13)
PAID = released(HELD)


def changed(token: Token, at: int = 0, **parts: Any) -> Token:
    proofs = list(token.proofs)
    proofs[at] = msgspec.structs.replace(proofs[at], **parts)
    return msgspec.structs.replace(token, proofs=tuple(proofs))


def reason(token: Token, asked: Asked = ASKED, keysets: Any = (MINT.keyset,)) -> str:
    with pytest.raises(ProofRefused) as refused:
        check_payment(token, asked, keysets)
    return refused.value.reason


def test_a_token_that_is_locked_to_the_payee_is_a_hold_and_opened_by_him_a_payment() -> None:
    check_hold(HELD, ASKED, [MINT.keyset], LOCKTIME)
    check_payment(PAID, ASKED, [OTHER.keyset, MINT.keyset])
    check_payment(read_token(write_token(PAID)), ASKED, [MINT.keyset])


def test_a_hold_that_nobody_opened_is_no_payment() -> None:
    assert reason(HELD) == "not_released"


def test_a_token_that_the_payer_opened_himself_is_no_payment() -> None:
    assert reason(released(HELD, PAYER_SECRET)) == "not_released"


def test_a_token_of_another_mint_is_refused_by_its_name_and_by_its_keys() -> None:
    assert reason(msgspec.structs.replace(PAID, mint="https://other.example")) == "other_mint"
    assert reason(released(OTHER.locked(13))) == "unknown_keyset"
    under_our_id = [msgspec.structs.replace(proof, keyset_id=MINT.keyset.id) for proof in OTHER.locked(13).proofs]
    assert reason(released(Token(URL, "sat", tuple(under_our_id)))) == "forged"


@pytest.mark.parametrize("amount", [12, 14, 26])
def test_an_amount_that_is_off_is_refused(amount: int) -> None:
    assert reason(released(MINT.locked(amount))) == "wrong_amount"


def test_an_amount_that_was_not_signed_is_refused() -> None:
    # 1 + 4 + 8 was signed; as 13 it stands there still if a proof says another amount than it was signed for.
    small = released(MINT.locked(5))
    assert reason(changed(small, 1, amount=8), Asked(URL, "sat", 9, PAYEE[1:])) == "forged"
    assert reason(changed(small, 1, amount=12)) == "forged"


def test_a_token_in_another_unit_is_refused_by_its_name_and_by_its_keys() -> None:
    assert reason(msgspec.structs.replace(PAID, unit="usd")) == "other_unit"
    dollars = ToyMint(unit="usd")
    token = released(dollars.locked(13))
    assert reason(msgspec.structs.replace(token, unit="sat"), keysets=[dollars.keyset]) == "other_unit"


def test_a_token_that_is_locked_to_somebody_else_is_refused() -> None:
    assert reason(released(MINT.locked(13, key=PAYER), PAYER_SECRET)) == "other_lock"
    mixed = Token(URL, "sat", (*MINT.locked(8).proofs, *MINT.locked(5, key=PAYER).proofs))
    assert reason(released(mixed)) == "other_lock"


def test_a_token_that_others_can_spend_too_is_refused() -> None:
    def secret(nonce: str) -> str:
        mine = lock_secret(nonce, PAYEE, locktime=LOCKTIME, refund_key=PAYER)
        return mine.replace('"tags":[', f'"tags":[["pubkeys","{PAYER.hex()}"],')

    assert reason(released(MINT.token(13, secret))) == "other_lock"


def test_a_token_without_a_lock_is_refused() -> None:
    assert reason(MINT.token(13)) == "not_locked"


def test_signatures_over_a_whole_swap_prove_nothing_to_others() -> None:
    def secret(nonce: str) -> str:
        return lock_secret(nonce, PAYEE, locktime=LOCKTIME, refund_key=PAYER).replace("SIG_INPUTS", "SIG_ALL")

    assert reason(released(MINT.token(13, secret))) == "other_lock"


def test_a_lock_to_a_hash_is_opened_by_its_preimage_only() -> None:
    asked = msgspec.structs.replace(ASKED, hash=HASH)
    held = MINT.locked(13, lock_hash=HASH)
    check_hold(held, asked, [MINT.keyset], LOCKTIME)
    check_payment(released(held, preimage=PREIMAGE), asked, [MINT.keyset])
    assert reason(released(held, preimage="08" * 32), asked) == "wrong_preimage"
    assert reason(released(held), asked) == "wrong_preimage"
    assert reason(released(held, preimage=PREIMAGE)) == "other_hash"
    assert reason(PAID, asked) == "other_hash"


def test_a_token_for_another_job_or_for_none_is_refused() -> None:
    asked = msgspec.structs.replace(ASKED, job_hash="sha256:ab")
    check_payment(released(MINT.locked(13, job_hash="sha256:ab")), asked, [MINT.keyset])
    assert reason(released(MINT.locked(13, job_hash="sha256:cd")), asked) == "other_job"
    assert reason(PAID, asked) == "other_job"


def test_a_token_for_another_payment_pays_nothing() -> None:
    asked = msgspec.structs.replace(ASKED, payment_id="ab")
    check_payment(released(MINT.locked(13, payment_id="ab")), asked, [MINT.keyset])
    assert reason(released(MINT.locked(13, payment_id="cd")), asked) == "other_payment"
    assert reason(released(MINT.locked(13)), asked) == "other_payment"


def test_a_proof_that_stands_there_twice_counts_for_nothing() -> None:
    four = released(MINT.locked(4))
    doubled = Token(URL, "sat", four.proofs * 2)
    assert reason(doubled, Asked(URL, "sat", 8, PAYEE[1:])) == "counted_twice"


def test_a_token_whose_signatures_cannot_be_checked_is_refused() -> None:
    assert reason(changed(PAID, dleq=None)) == "unsigned"


@pytest.mark.parametrize("part", ["e", "s", "r"])
def test_a_forged_proof_of_the_signature_is_refused(part: str) -> None:
    dleq = PAID.proofs[1].dleq
    assert dleq is not None
    flipped = bytes([getattr(dleq, part)[0] ^ 1]) + getattr(dleq, part)[1:]
    assert reason(changed(PAID, 1, dleq=msgspec.structs.replace(dleq, **{part: flipped}))) == "forged"


def test_the_proof_of_one_signature_is_none_of_another() -> None:
    first, second = PAID.proofs[0], PAID.proofs[1]
    assert reason(changed(PAID, 1, dleq=first.dleq)) == "forged"
    assert reason(changed(PAID, 1, signature=first.signature)) == "forged"
    assert isinstance(second.dleq, Dleq)


def test_a_lock_that_ends_before_the_job_can_is_no_hold() -> None:
    with pytest.raises(ProofRefused) as refused:
        check_hold(HELD, ASKED, [MINT.keyset], LOCKTIME + 1)
    assert refused.value.reason == "lock_too_short"


def test_a_lock_without_an_end_holds_as_long_as_one_likes() -> None:
    for_ever = MINT.token(13, lambda nonce: f'["P2PK",{{"nonce":"{nonce}","data":"{PAYEE.hex()}"}}]')
    check_hold(for_ever, ASKED, [MINT.keyset], 2**50)


def test_signatures_are_checked_for_every_proof() -> None:
    for at in range(len(PAID.proofs)):
        with pytest.raises(ProofRefused, match=f"proof {at}"):
            check_signatures(changed(PAID, at, secret="another"), [MINT.keyset])
