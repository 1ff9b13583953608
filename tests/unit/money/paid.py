"""Payments as receipts have them, of Cashu and on the chain: what was due, the proof, and a whole receipt as a file.

The provider's keys, the mint and the chain are those of tests; every signature, hash and header is real.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import orjson
from coincurve import PrivateKey

from tests.unit.ledger.made import accepted, settled
from tests.unit.money.cashu.toy_mint import PAYEE, PAYEE_SECRET, URL, ToyMint, released
from tests.unit.money.onchain.chain import Chain, transaction
from trunkline.canonical import openagents_hash
from trunkline.entries import AnyEntry
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.money import bolt11, lightning
from trunkline.money.bech32 import encoded, to_words
from trunkline.money.cashu import proof as cashu
from trunkline.money.cashu.keysets import Keyset, second_version_id
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG
from trunkline.money.cashu.requests import PaymentRequest, payment_hash_of, write_request
from trunkline.money.cashu.tokens import Token, write_token
from trunkline.money.onchain import proof as onchain
from trunkline.money.onchain.payments import Evidence as Found
from trunkline.money.onchain.scripts import job_script
from trunkline.money.rail import Due, PaymentProof
from trunkline.money.receipts import receipt_id_of
from trunkline.money.refusals import ProofRefused
from trunkline.trajectory.build import Origin, Recorded, lines
from trunkline.trajectory.check import check

NPUB = encoded("npub", to_words(PAYEE[1:]))
PAYMENT_ID = "5e" * 16
RULES = [{"id": "r1", "decision": "allow"}]
MINT = ToyMint()
TOOL, INPUTS = "com.example.echo/echo", {"text": "hello"}
JOB_HASH = openagents_hash(json.dumps({"schema_id": schema_id_of(TOOL), "inputs": INPUTS}).encode())


def job_locked(amount: int, mint: ToyMint = MINT, **lock: Any) -> Token:
    """A token that is locked to the payee, for the job."""
    return mint.locked(amount, job_hash=JOB_HASH, **({"payment_id": PAYMENT_ID} | lock))


class Paid(NamedTuple):
    """A proof, and what it is to prove."""

    proof: PaymentProof
    due: Due


def signed_event(tags: Sequence[Sequence[str]], secret: bytes = PAYEE_SECRET) -> bytes:
    """An event of Nostr by somebody."""
    key = PrivateKey(secret)
    public = key.public_key_xonly.format().hex()
    named = hashlib.sha256(orjson.dumps([0, public, 1_700_000_000, 7000, tags, ""])).digest()
    event = {
        "id": named.hex(),
        "pubkey": public,
        "created_at": 1_700_000_000,
        "kind": 7000,
        "tags": tags,
        "content": "",
    }
    return orjson.dumps(event | {"sig": key.sign_schnorr(named, bytes(32)).hex()})


def cashu_paid(
    token: Token | None = None,
    *,
    keysets: Sequence[Keyset] = (MINT.keyset,),
    named: Sequence[Keyset] = (MINT.keyset,),
    signer: bytes = PAYEE_SECRET,
    tags: Any = lambda tags: tags,
    lock_tags: Any = ((JOB_TAG, JOB_HASH), (PAYMENT_TAG, PAYMENT_ID)),
    **wanted: Any,
) -> Paid:
    """Thirteen satoshis in ecash; ``wanted`` is what the payee's request says instead of the usual."""
    usual = {"amount": 13, "unit": "sat", "mints": (URL,), "key": PAYEE.hex(), "tags": lock_tags}
    request = write_request(PaymentRequest(**(usual | wanted)))
    asked = tags([["amount", "13000", request], *([cashu.KEYSET_TAG, second_version_id(one)] for one in named)])
    evidence = cashu.evidence_of(signed_event(asked, signer), keysets)
    due = Due(13_000, NPUB, cashu.asset_of(URL), request, JOB_HASH, evidence)
    return Paid(PaymentProof(cashu.TYPE, write_token(released(job_locked(13)) if token is None else token)), due)


def onchain_paid(amount: int = 13, script: bytes = b"", *, request: str = "", asked: bytes = b"null") -> Paid:
    """Satoshis on a chain of a test; to the script that follows from payee and job unless another is given."""
    own = job_script(PAYEE[1:], bytes.fromhex(JOB_HASH.removeprefix("sha256:")))
    chain = chain_of(amount, script or own)
    evidence = onchain_evidence(chain.evidence, asked)
    due = Due(13_000, NPUB, onchain.ASSET, request or own.hex(), JOB_HASH, evidence)
    return Paid(PaymentProof(onchain.TYPE, chain.txid), due)


def onchain_evidence(found: Found, asked: bytes = b"null") -> str:
    """What a payment on the chain is judged by, as a receipt has it."""
    return msgspec.json.encode(onchain.Evidence(found, msgspec.Raw(asked))).decode()


def lightning_paid(preimage: str = "00" * 32, *, names: str = JOB_HASH, job_hash: str = JOB_HASH) -> Paid:
    """Thirteen satoshis over Lightning, by an invoice whose description is ``names``."""
    paid_hash = lightning.payment_hash_of(preimage)
    invoice = bolt11.written(b"\x07" * 32, 13_000, paid_hash, names, 1_700_000_000, 600)
    evidence = signed_event([["amount", "13000", invoice]]).decode()
    due = Due(13_000, NPUB, lightning.ASSET, invoice, job_hash, evidence)
    return Paid(PaymentProof(lightning.TYPE, preimage), due)


def tied_id(paid: Paid) -> str:
    """The id that a receipt of a payment over Lightning has."""
    return receipt_id_of(lightning.payment_hash_of(paid.proof.value), paid.due.job_hash)


def _own_id(paid: Paid) -> str:
    """The id that a receipt of ecash has; any other if its request cannot be read."""
    try:
        return receipt_id_of(payment_hash_of(paid.due.request), paid.due.job_hash)
    except ProofRefused:
        return "rcpt_1"


def chain_of(amount: int, script: bytes) -> Chain:
    return Chain(transaction((amount, script), (5, b"\x6a\x01\x07")))


def checkpoint() -> str:
    """The block that all chains of tests start with."""
    found = chain_of(1, b"\x6a\x01\x07").checkpoint
    return f"{found.height}:{found.hash}"


def receipt_file(
    paid: Paid, rail: str, *, tool: str = TOOL, inputs: dict[str, Any] = INPUTS, **changed: Any
) -> dict[str, Any]:
    """A receipt with everything that it points to, as ``receipts export`` writes it."""
    policy = msgspec.json.encode(RULES)
    entries: list[AnyEntry] = [accepted(1, json.dumps(inputs).encode(), tool_id=tool), settled(2, 1)]
    origin = Origin("trunkline@1.2.3", openagents_hash(policy))
    trajectory = list(lines("c", lambda: [Recorded(one) for one in entries], origin))
    receipt = {
        "receipt_id": _own_id(paid) if rail == "cashu" else "rcpt_1",
        "session_id": "c",
        "trajectory_hash": check(iter(trajectory)).trajectory_hash,
        "policy_bundle_id": openagents_hash(policy),
        "job_hash": paid.due.job_hash,
        "payment_proof": msgspec.to_builtins(paid.proof),
        "rail": rail,
        "asset_id": paid.due.asset_id,
        "amount_msats": paid.due.amount_msats,
        "provider_id": paid.due.payee,
        "approval_rule_id": "r1",
        "timestamp": "2026-11-17T09:00:00Z",
    } | changed
    return {
        "format": "trunkline-receipt-1",
        "receipt": receipt,
        "receipt_hash": openagents_hash(json.dumps(receipt).encode()),
        "request": paid.due.request,
        "evidence": json.loads(paid.due.evidence),
        "policy": RULES,
        "trajectory": [line.decode() for line in trajectory],
    }
