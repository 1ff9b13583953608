"""A receipt's ``onchain_txid``: a transaction in a block that paid the provider for this job.

Owns which script counts as the provider's: the taproot output that follows from his Nostr key and the job's hash, which
everybody can compute, or an address or script that his own signed event names for this job. Does not own the proof that
the transaction is in a block (``payments``).

Invariant: a transaction counts for one job of one provider only, and only under a checkpoint of who verifies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw, Struct

from trunkline.money.asked import asked_by_payee, payee_key
from trunkline.money.evidence import read_evidence
from trunkline.money.onchain.headers import Checkpoint, Network
from trunkline.money.onchain.payments import MAX_EVIDENCE_BYTES as MAX_FOUND_BYTES
from trunkline.money.onchain.payments import Evidence as Found
from trunkline.money.onchain.payments import check_payment
from trunkline.money.onchain.scripts import address_script, job_script
from trunkline.money.rail import Due, PaymentProof
from trunkline.money.refusals import ProofRefused, about, malformed

TYPE: Final = "onchain_txid"
ASSET: Final = "BTC"
JOB_TAG: Final = "job_hash"
MAX_EVIDENCE_BYTES: Final = MAX_FOUND_BYTES + 65_536
_NONE: Final = b"null"
_TXID: Final = re.compile(r"[0-9a-f]{64}")
_JOB_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_SCRIPT: Final = re.compile(r"(?:[0-9a-f]{2}){1,256}")


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the payment is found; for a script that does not follow from the payee's key, his event that names it."""

    found: Found
    asked: Raw = Raw(_NONE)


def verifier(
    network: Network, checkpoints: Sequence[Checkpoint], confirmations: int
) -> Callable[[PaymentProof, Due], None]:
    """A judge of such proofs. Without a checkpoint it takes none."""

    def verify(proof: PaymentProof, due: Due) -> None:
        if proof.type != TYPE:
            raise ProofRefused("malformed", f"{proof.type} is no proof of a transaction", "payment_proof.type")
        if due.asset_id != ASSET:
            raise ProofRefused("other_asset", f"expected {ASSET}", "asset_id")
        if _TXID.fullmatch(proof.value) is None:
            raise ProofRefused("malformed", "an id has 64 hexadecimal digits", "payment_proof.value")
        with about("evidence"):
            evidence = read_evidence(due.evidence, Evidence, MAX_EVIDENCE_BYTES)
        with about("request"):
            script = _script_of(due, evidence, network)
        with about("payment_proof.value"):
            # A part of a satoshi cannot be paid: it is rounded up.
            amount = -(-due.amount_msats // 1000)
            check_payment(
                proof.value, script, amount, evidence.found, checkpoints, network, confirmations=confirmations
            )

    return verify


def job_script_of(due: Due) -> bytes:
    """The script that follows from the payee and the job."""
    found = _JOB_HASH.fullmatch(due.job_hash)
    if found is None:
        raise malformed("a job has a hash")
    return job_script(payee_key(due), bytes.fromhex(found[1]))


def _script_of(due: Due, evidence: Evidence, network: Network) -> bytes:
    script = bytes.fromhex(due.request) if _SCRIPT.fullmatch(due.request) else address_script(due.request, network)
    if script == job_script_of(due):
        return script
    if bytes(evidence.asked) == _NONE:
        raise ProofRefused("not_asked", "the script does not follow from the payee's key and the job")
    event = asked_by_payee(due, bytes(evidence.asked))
    if (JOB_TAG, due.job_hash) not in event.tags:
        raise ProofRefused("other_job")
    return script
