"""Ecash on its way over relays (NIP-61): a nutzap (kind 9321), and what its payee takes (kind 10019).

Pure. Owns the form of both events. A nutzap holds proofs that are locked to its payee: no secret, since nobody else can
open them. Does not own what proofs are worth (``money.cashu.checking``) or which are wanted (``till``).

Invariant: a nutzap that is written is read as the same token; an unlocked proof is neither written nor read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.nostr.events import Draft, Event, is_id
from trunkline.edges.nostr.messages import BadMessage
from trunkline.money.cashu.locks import read_lock
from trunkline.money.cashu.tokens import MAX_PROOFS, MAX_SECRET_CHARS, UNIT, Proof, Token, proof_as_json, proof_of_json
from trunkline.money.cashu.tokens import token as checked_token
from trunkline.money.refusals import ProofRefused

NUTZAP: Final = 9321
INFO: Final = 10_019
# A proof as JSON: a secret, escaped once more, and what proves the mint's signature.
MAX_PROOF_CHARS: Final = 4 * MAX_SECRET_CHARS


class Nutzap(Struct, frozen=True):
    """Proofs for somebody, and the request that they pay for."""

    id: str
    sender: str
    payee: str
    request_id: str
    token: Token


def nutzap_draft(token: Token, payee: str, request_id: str, request_kind: int, *, created_at: int) -> Draft:
    """The event that hands a token over. ``ValueError`` for one that anybody could spend."""
    if any(read_lock(proof.secret) is None for proof in token.proofs):
        raise ValueError("a proof that is not locked is handed to nobody")
    proofs = [("proof", msgspec.json.encode(proof_as_json(proof)).decode()) for proof in token.proofs]
    about = (("e", request_id), ("k", str(request_kind)), ("p", payee))
    return Draft(NUTZAP, "", (*proofs, ("unit", token.unit), ("u", token.mint), *about), created_at)


def is_for(event: Event, public: str) -> bool:
    """Whether an event is a nutzap for the holder of this key; a relay may send what nobody asked for."""
    return event.kind == NUTZAP and event.value("p") == public


def read_nutzap(event: Event) -> Nutzap:
    """What this event hands over; ``BadMessage`` if it is no nutzap. Whether it is worth anything is not looked at."""
    if event.kind != NUTZAP:
        raise BadMessage("no nutzap: another kind")
    payee, request_id, texts = event.value("p"), event.value("e"), event.values("proof")
    if not is_id(payee) or not is_id(request_id):
        raise BadMessage("a nutzap for a job names its payee (p) and its request (e)")
    if not 0 < len(texts) <= MAX_PROOFS or any(len(text) > MAX_PROOF_CHARS for text in texts):
        raise BadMessage(f"a nutzap has 1 to {MAX_PROOFS} proofs")
    try:
        token = checked_token(event.value("u"), event.value("unit") or UNIT, [_proof(text) for text in texts], "")
        if any(read_lock(proof.secret) is None for proof in token.proofs):
            raise BadMessage("its proofs are not locked: whoever sees it first can spend them")
    except ProofRefused as refused:
        raise BadMessage(str(refused)) from None
    return Nutzap(event.id, event.pubkey, payee, request_id, token)


def _proof(text: str) -> Proof:
    data = text.encode("utf-8", "surrogatepass")
    try:
        strictjson.check(data, want_object=True)
    except strictjson.NotStrictJson:
        raise BadMessage("a proof is a JSON object") from None
    return proof_of_json(data)


def info_draft(mints: Sequence[str], key: str, relays: Sequence[str], *, created_at: int) -> Draft:
    """The event that says how we take ecash."""
    tags = [("relay", relay) for relay in relays] + [("mint", mint, UNIT) for mint in mints]
    return Draft(INFO, "", (*tags, ("pubkey", key)), created_at)
