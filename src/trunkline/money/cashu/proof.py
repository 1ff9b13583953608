"""A receipt's ``cashu_proof``: a token that the mint signed, that was locked to the payee, and that he opened.

Owns what stands beside the token so that everybody can check it: the payee's signed event, which names the payment
request and the mint's keysets (tags ``keyset``), and the keys of those keysets. The request names the job, which then
stands in each secret of the token. Does not own the checks of the token (``checking``).

Invariant: ``verify`` needs nothing but the proof and what is due, and takes a token only of keys that the payee named.
That they are the mint's is his word, unless the mint's own answer is given too (``verifier``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.money.asked import asked_by_payee
from trunkline.money.cashu.checking import Asked, check_payment
from trunkline.money.cashu.keysets import Keyset, read_keyset, second_version_id
from trunkline.money.cashu.known_keys import KnownKeys, check_known
from trunkline.money.cashu.requests import PaymentRequest, read_request
from trunkline.money.cashu.spent import PREFIX, read_spent
from trunkline.money.cashu.tokens import mint_url, read_token
from trunkline.money.evidence import read_evidence
from trunkline.money.job_names import names_of, salt_of
from trunkline.money.rail import Due, PaymentProof
from trunkline.money.refusals import ProofRefused, about
from trunkline.money.signed_events import SignedEvent

TYPE: Final = "cashu_proof"
KEYSET_TAG: Final = "keyset"
# Those that one token can name; the keys of one are 5 KB.
MAX_KEYSETS: Final = 8
MAX_EVIDENCE_BYTES: Final = 1_048_576
# Thousandths of a satoshi in one unit. What is not Bitcoin has no fixed worth in it.
MSATS: Final = {"sat": 1000, "msat": 1}
_ASSET: Final = re.compile(r"BTC_CASHU\((.+)\)")


class KeysetEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """A keyset with its keys, as mints write it."""

    id: str
    unit: str
    keys: dict[str, str]
    input_fee_ppk: int = 0
    final_expiry: int = 0


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """What a token is judged by."""

    asked: Raw
    keysets: Annotated[tuple[KeysetEvidence, ...], Meta(min_length=1, max_length=MAX_KEYSETS)]


def asset_of(mint: str) -> str:
    """The name of bitcoin at a mint (OA-072)."""
    return f"BTC_CASHU({mint})"


def evidence_of(asked: bytes, keysets: Sequence[Keyset]) -> str:
    """The text of evidence."""
    lines = tuple(
        KeysetEvidence(
            keyset.id,
            keyset.unit,
            {str(amount): key.hex() for amount, key in keyset.keys.items()},
            keyset.input_fee_ppk,
            keyset.final_expiry,
        )
        for keyset in keysets
    )
    return msgspec.json.encode(Evidence(Raw(asked), lines)).decode()


def verifier(known: Sequence[KnownKeys]) -> Callable[[PaymentProof, Due], None]:
    """``verify``, for one who knows the mint's keys himself."""

    def verify_known(proof: PaymentProof, due: Due) -> None:
        verify(proof, due)
        with about("evidence"):
            for one in read_evidence(due.evidence, Evidence, MAX_EVIDENCE_BYTES).keysets:
                check_known(_keyset(one), known)

    return verify_known


def verify(proof: PaymentProof, due: Due) -> None:
    """``NotPaid`` unless the token paid what was due, to whom it was due, for the job that it was due for."""
    if proof.type != TYPE:
        raise ProofRefused("malformed", f"{proof.type} is no proof of ecash", "payment_proof.type")
    with about("evidence"):
        evidence = read_evidence(due.evidence, Evidence, MAX_EVIDENCE_BYTES)
        event = asked_by_payee(due, bytes(evidence.asked))
        keysets = [_named_by(event, one) for one in evidence.keysets]
    with about("request"):
        request = read_request(due.request)
        if request.job_hash not in names_of(due.job_hash, salt_of(bytes(evidence.asked))):
            raise ProofRefused("other_job")
    with about("asset_id"):
        mint = _mint_of(due, request)
    with about("amount_msats"):
        if request.unit not in MSATS or request.amount * MSATS[request.unit] != due.amount_msats:
            raise ProofRefused("wrong_amount", "the payee's request is over another one")
    key = bytes.fromhex(request.key)[1:]
    with about("payment_proof.value"):
        asked = Asked(
            mint, request.unit, request.amount, key, request.hash, request.job_hash, request.secret_payment_id
        )
        found = read_spent(proof.value) if proof.value.startswith(PREFIX) else read_token(proof.value)
        check_payment(found, asked, keysets)


def _named_by(event: SignedEvent, line: KeysetEvidence) -> Keyset:
    """A keyset, if the payee named it. By the long hash: of the short ids of older mints one could find a second."""
    keyset = _keyset(line)
    if (KEYSET_TAG, second_version_id(keyset)) not in event.tags:
        raise ProofRefused("unknown_keyset", "the payee's event does not name it")
    return keyset


def _keyset(line: KeysetEvidence) -> Keyset:
    return read_keyset(line.id, line.unit, line.keys, input_fee_ppk=line.input_fee_ppk, final_expiry=line.final_expiry)


def _mint_of(due: Due, request: PaymentRequest) -> str:
    found = _ASSET.fullmatch(due.asset_id)
    if found is None:
        raise ProofRefused("other_asset", "expected BTC_CASHU(<mint>)")
    mint = mint_url(found[1])
    if mint not in request.mints:
        raise ProofRefused("other_mint")
    return mint
