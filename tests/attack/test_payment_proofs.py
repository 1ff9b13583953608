"""Proofs of payment that somebody made up, in receipts that are otherwise whole: each is refused by `receipts verify`.

One row for each way to be paid without paying: what is handed in, and the reason that is named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.requirement import requirement
from tests.unit.cli.conftest import Said, trunkline
from tests.unit.money.cashu.toy_mint import PAYER, PAYER_SECRET, URL, ToyMint, released
from tests.unit.money.onchain.chain import OTHER_SCRIPT, SCRIPT
from tests.unit.money.paid import (
    JOB_HASH,
    MINT,
    Paid,
    cashu_paid,
    chain_of,
    checkpoint,
    job_locked,
    lightning_paid,
    onchain_evidence,
    onchain_paid,
    receipt_file,
    tied_id,
)
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG
from trunkline.money.cashu.tokens import Token, write_token
from trunkline.money.rail import PaymentProof

OTHER = ToyMint("another")
PREIMAGE = "07" * 32
HASH = hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest()


def ecash(token: Token, **wanted: Any) -> dict[str, Any]:
    return receipt_file(cashu_paid(token, **wanted), "cashu")


def of_another_mint_under_our_keyset() -> Token:
    proofs = [msgspec.structs.replace(proof, keyset_id=MINT.keyset.id) for proof in job_locked(13, OTHER).proofs]
    return released(Token(URL, "sat", tuple(proofs)))


def one_proof_twice() -> Token:
    once = released(job_locked(4)).proofs
    return Token(URL, "sat", (*once, *once, *released(job_locked(5)).proofs))


def worth_more_than_was_signed() -> Token:
    small = released(job_locked(5))
    return Token(URL, "sat", (small.proofs[0], msgspec.structs.replace(small.proofs[1], amount=12)))


def without_a_dleq_proof() -> Token:
    token = released(job_locked(13))
    return msgspec.structs.replace(token, proofs=tuple(msgspec.structs.replace(one, dleq=None) for one in token.proofs))


def mined_elsewhere() -> Paid:
    paid = onchain_paid()
    other = chain_of(13, SCRIPT)
    return Paid(paid.proof, msgspec.structs.replace(paid.due, evidence=onchain_evidence(other.evidence)))


def never_mined() -> Paid:
    paid, real = onchain_paid(), onchain_paid(20)
    evidence = json.loads(paid.due.evidence)
    evidence["found"]["transaction"] = json.loads(real.due.evidence)["found"]["transaction"]
    due = msgspec.structs.replace(paid.due, evidence=json.dumps(evidence))
    return Paid(PaymentProof("onchain_txid", real.proof.value), due)


def without_work() -> Paid:
    paid = onchain_paid()
    evidence = json.loads(paid.due.evidence)
    headers = bytearray.fromhex(evidence["found"]["headers"])
    headers[-5] = 0x1D  # as hard as the real chain once was, and not mined as such
    evidence["found"]["headers"] = headers.hex()
    return Paid(paid.proof, msgspec.structs.replace(paid.due, evidence=json.dumps(evidence)))


ROWS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a forged preimage": (
        lambda: ecash(released(job_locked(13, lock_hash=HASH), preimage="08" * 32), hash=HASH),
        "The preimage does not hash to what the payment is locked to",
    ),
    "no preimage at all": (
        lambda: ecash(released(job_locked(13, lock_hash=HASH)), hash=HASH),
        "The preimage does not hash to what the payment is locked to",
    ),
    "a proof that is spent twice in one token": (
        lambda: ecash(one_proof_twice()),
        "One proof stands in the token twice",
    ),
    "a token of another mint": (lambda: ecash(released(job_locked(13, OTHER))), "names a keyset that is not known"),
    "a token of another mint under our mint's name": (
        lambda: ecash(of_another_mint_under_our_keyset()),
        "The mint did not sign this",
    ),
    "a mint that the forger is himself": (
        lambda: receipt_file(cashu_paid(released(job_locked(13, OTHER)), keysets=[OTHER.keyset]), "cashu"),
        "the payee's event does not name it",
    ),
    "a proof that says more than was signed": (
        lambda: ecash(worth_more_than_was_signed()),
        "The mint did not sign this",
    ),
    "a token that nobody can check": (lambda: ecash(without_a_dleq_proof()), "there is no DLEQ proof"),
    "one satoshi less in ecash": (
        lambda: ecash(released(job_locked(12))),
        "The amount is not the one that was asked for",
    ),
    "one satoshi more in ecash": (
        lambda: ecash(released(job_locked(14))),
        "The amount is not the one that was asked for",
    ),
    "a token that is locked to the payer": (
        lambda: ecash(released(job_locked(13, key=PAYER), PAYER_SECRET)),
        "The token is locked to somebody else",
    ),
    "a token that is locked to nobody": (lambda: ecash(MINT.token(13)), "The token is locked to nobody"),
    "a hold that the payee never opened": (lambda: ecash(job_locked(13)), "The lock was not opened"),
    "a hold that the payer opened": (lambda: ecash(released(job_locked(13), PAYER_SECRET)), "The lock was not opened"),
    "a token that paid for another job": (
        lambda: ecash(released(MINT.locked(13, job_hash="sha256:" + "00" * 32))),
        "The payee asked for it for another job",
    ),
    "a request that the payer wrote himself": (
        lambda: receipt_file(cashu_paid(signer=PAYER_SECRET), "cashu"),
        "somebody else signed the event",
    ),
    "a transaction that pays another": (
        lambda: receipt_file(onchain_paid(13, OTHER_SCRIPT), "onchain"),
        "The transaction pays somebody else",
    ),
    "one satoshi less on the chain": (
        lambda: receipt_file(onchain_paid(12), "onchain"),
        "The amount is not the one that was asked for",
    ),
    "a script that the payer chose": (
        lambda: receipt_file(onchain_paid(13, SCRIPT, request=SCRIPT.hex()), "onchain"),
        "The payee did not ask for this",
    ),
    "a transaction that is in no block": (lambda: receipt_file(never_mined(), "onchain"), "is not in this block"),
    "the evidence of another payment": (lambda: receipt_file(mined_elsewhere(), "onchain"), "has another id"),
    "a header without work": (lambda: receipt_file(without_work(), "onchain"), "does not have the work"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier") / "home"
    folder.mkdir(mode=0o700)
    chain = f'[nostr.chain]\nnetwork = "regtest"\ncheckpoints = ["{checkpoint()}"]\nconfirmations = 3\n'
    (folder / "trunkline.toml").write_text(chain)
    return folder


def verified(home: Path, folder: Path, file: dict[str, Any], *options: str) -> Said:
    named = folder / "receipt.json"
    named.write_text(json.dumps(file))
    return trunkline("--home", str(home), "receipts", "verify", str(named), *options)


@requirement("OA-072", "OA-082")
@pytest.mark.parametrize(("paid", "rail"), [(cashu_paid(), "cashu"), (onchain_paid(), "onchain")])
def test_a_payment_that_was_made_is_proven(home: Path, tmp_path: Path, paid: Paid, rail: str) -> None:
    said = verified(home, tmp_path, receipt_file(paid, rail))
    assert said.code == 0, said.err
    assert f"payment: {paid.proof.type} proves it" in said.out


@pytest.mark.parametrize("row", ROWS)
def test_a_payment_that_was_made_up_is_refused_with_its_reason(home: Path, tmp_path: Path, row: str) -> None:
    make, reason = ROWS[row]
    said = verified(home, tmp_path, make())
    assert said.code == 1
    assert "payment: " in said.err
    assert reason in said.err


@pytest.mark.parametrize(("paid", "rail"), [(cashu_paid(), "cashu"), (onchain_paid(), "onchain")])
def test_one_character_changed_in_the_proof_or_what_it_is_judged_by_is_found(
    home: Path, tmp_path: Path, paid: Paid, rail: str
) -> None:
    whole = json.dumps(receipt_file(paid, rail))
    for part in ("proof", "request", "evidence"):
        file = json.loads(whole)
        if part == "proof":
            value = file["receipt"]["payment_proof"]["value"]
            file["receipt"]["payment_proof"]["value"] = value[:40] + ("A" if value[40] != "A" else "B") + value[41:]
        elif part == "request":
            file["request"] = file["request"][:20] + ("0" if file["request"][20] != "0" else "1") + file["request"][21:]
        else:
            text = json.dumps(file["evidence"])
            at = text.index('"id": "') + 12 if rail == "cashu" else text.index('"headers": "') + 40
            file["evidence"] = json.loads(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
        said = verified(home, tmp_path, file)
        assert said.code == 1, part


def test_a_token_that_pays_one_job_pays_no_other(home: Path, tmp_path: Path) -> None:
    for paid, rail in ((cashu_paid(), "cashu"), (onchain_paid(), "onchain")):
        said = verified(home, tmp_path, receipt_file(paid, rail, job_hash="sha256:" + "00" * 32))
        assert said.code == 1
        assert "payment: " in said.err


def test_a_payment_over_lightning_that_names_its_job_is_proven_for_it_and_for_no_other(
    home: Path, tmp_path: Path
) -> None:
    paid = lightning_paid()
    said = verified(home, tmp_path, receipt_file(paid, "lightning", receipt_id=tied_id(paid)))
    assert (said.code, said.out.split(":")[0]) == (0, "whole")
    elsewhere = "sha256:" + "00" * 32
    for names in (elsewhere, f"{JOB_HASH} {elsewhere}"):
        paid = lightning_paid(names=names)
        said = verified(home, tmp_path, receipt_file(paid, "lightning", receipt_id=tied_id(paid)))
        assert said.code == 1
        assert "payment: job_hash: the invoice is for another job" in said.err


@pytest.mark.parametrize(("names", "receipt_id"), [("", None), (JOB_HASH, "rcpt_2"), ("", "rcpt_2")])
def test_a_receipt_that_nothing_ties_to_its_job_is_not_whole(
    home: Path, tmp_path: Path, names: str, receipt_id: str | None
) -> None:
    paid = lightning_paid(names=names)
    file = receipt_file(paid, "lightning", receipt_id=receipt_id or tied_id(paid))
    said = verified(home, tmp_path, file)
    assert said.code == 1
    assert said.err.startswith("untied: ")
    assert ("receipt_id: " in said.err, "names no job" in said.err) == (receipt_id is not None, not names)
    accepted = verified(home, tmp_path, file, "--accept-untied")
    assert (accepted.code, accepted.out.split(":")[0]) == (0, "untied")
    assert "whole" not in accepted.out
    told = verified(home, tmp_path, file, "--accept-untied", "--json").json
    assert (told["status"], len(told["untied"])) == ("untied", (receipt_id is not None) + (not names))


def test_of_one_token_and_two_quotes_for_the_same_job_one_is_proven(home: Path, tmp_path: Path) -> None:
    token = released(job_locked(13))
    assert verified(home, tmp_path, ecash(token)).code == 0
    second = ecash(token, lock_tags=((JOB_TAG, JOB_HASH), (PAYMENT_TAG, "0f" * 16)))
    said = verified(home, tmp_path, second)
    assert (said.code, "another payment" in said.err) == (1, True)
    # A request that wants no payment named, and one that is written in another way and has the same id.
    said = verified(home, tmp_path, ecash(token, lock_tags=((JOB_TAG, JOB_HASH),)))
    assert (said.code, said.err.startswith("untied: request: ")) == (1, True)
    again = ecash(token, mints=(URL, "https://b.example"))
    assert verified(home, tmp_path, again).code == 0
    assert again["receipt"]["receipt_id"] == ecash(token)["receipt"]["receipt_id"]


def test_a_receipt_in_ecash_has_the_one_id_that_follows_from_payment_and_job(home: Path, tmp_path: Path) -> None:
    said = verified(home, tmp_path, receipt_file(cashu_paid(), "cashu", receipt_id="rcpt_" + "f" * 32))
    assert (said.code, said.err.startswith("untied: receipt_id: ")) == (1, True)


def test_whose_word_the_keys_of_a_mint_are_is_said_and_the_mints_own_answer_is_compared(
    home: Path, tmp_path: Path
) -> None:
    forged = cashu_paid(released(job_locked(13, OTHER)), keysets=[OTHER.keyset], named=[OTHER.keyset])
    said = verified(home, tmp_path, receipt_file(forged, "cashu"))
    assert "by keys that the payee says are the mint's" in said.out
    assert "not computed: asset_id: " in said.out

    def keys_of(mint: ToyMint) -> str:
        keys = {str(amount): key.hex() for amount, key in mint.keyset.keys.items()}
        file = tmp_path / "keys.json"
        file.write_text(json.dumps({"keysets": [{"id": mint.keyset.id, "unit": "sat", "active": True, "keys": keys}]}))
        return str(file)

    said = verified(home, tmp_path, receipt_file(forged, "cashu"), "--mint-keys", keys_of(MINT))
    assert (said.code, "the mint's own answer does not have it" in said.err) == (1, True)
    said = verified(home, tmp_path, ecash(released(job_locked(13))), "--mint-keys", keys_of(MINT))
    assert said.code == 0
    assert "payee says" not in said.out
    assert "not computed" not in said.out
    (tmp_path / "keys.json").write_text('{"keysets": 7}')
    said = verified(home, tmp_path, receipt_file(forged, "cashu"), "--mint-keys", str(tmp_path / "keys.json"))
    assert (said.code, "--mint-keys" in said.err) == (2, True)


def test_a_chain_that_the_verifier_does_not_know_proves_nothing(tmp_path: Path) -> None:
    said = verified(tmp_path / "elsewhere", tmp_path, receipt_file(onchain_paid(), "onchain"))
    assert said.code == 1
    assert "checkpoint" in said.err


def test_the_token_of_a_receipt_is_read_as_text_and_not_as_a_file(home: Path, tmp_path: Path) -> None:
    file = receipt_file(cashu_paid(), "cashu")
    file["receipt"]["payment_proof"]["value"] = write_token(MINT.token(13)) + "\u202e"
    said = verified(home, tmp_path, file)
    assert said.code == 1
    assert "\u202e" not in said.err
