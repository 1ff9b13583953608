"""What a result is worth: whether it is what it claims to be, which of several counts, and who is to be paid for it.

Pure. Owns the checks that a buyer makes of one result (who signed it, its hash, its provenance, whether its outputs
answer the inputs, a second run of ours where that is cheap), and the verdict on all results of a job. The arithmetic
and the agreement are ``trunkline.jobs.verification``'s. Does not own asking providers (``buyer``) or paying them.

Invariant: only results that are what they claim to be are counted, and only those of the verdict's ``agreed`` are to be
paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.messages import BadMessage, Decrypt
from trunkline.edges.nostr.remote_tools import PROVENANCE, VERIFICATION
from trunkline.jobs import embedding, models, verification
from trunkline.jobs.schemas import EMBEDDING, JobType
from trunkline.jobs.verification import JobVerdict, Judge, Result

# Of the texts of an embedding job so much is embedded again here to see whether the provider did: about 20 ms.
RERUN_CHARS: Final = 20_000


class _Judged(Struct, frozen=True):
    groups: list[int | None]


_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Received(Struct, frozen=True):
    """A result that is what it claims to be. ``provider`` is an npub in ``result``, a public key here."""

    provider: str
    event_id: str
    result: Result
    # What is only a pity.
    warnings: tuple[str, ...] = ()


class Finding(Struct, frozen=True):
    """What became of a job, as it is put on record and told to the caller. Providers are npubs."""

    state: str
    mode: str
    # How many were to do the job, how many of them had to agree, and how many were asked.
    wanted: int
    quorum: int
    asked: int
    reasons: tuple[str, ...] = ()
    agreed: tuple[str, ...] = ()
    # Who gave another result, and who gave one that is not what it claims to be.
    dissented: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    # Who did not do it, and who said nothing.
    failed: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    to_be_paid: tuple[str, ...] = ()
    job_hash: str = ""
    output_hash: str = ""


def receive(
    job: JobType, inputs: Mapping[str, Any], event: Event, *, is_private: bool, decrypt: Decrypt, chance: Random
) -> Received:
    """The result in an event of the provider that was asked; ``BadMessage`` says why it does not count."""
    found = messages.read_result(event, decrypt)
    if is_private and not found.is_private:
        raise BadMessage("the job is private, and its result stands in the clear")
    npub = npub_of(event.pubkey)
    if found.provenance.provider_id != npub:
        raise BadMessage("provenance.provider_id: is not its signer")
    try:
        outputs, provenance = _object(found.outputs), _object(msgspec.json.encode(found.provenance))
        result = Result(npub, outputs, provenance, found.output_hash)
        problem = verification.claim_problem(job, inputs, result) or _name_problem(outputs)
        problem = problem or _rerun_problem(job, inputs, result, chance)
    except (strictjson.NotStrictJson, msgspec.DecodeError, RecursionError, OverflowError):
        raise BadMessage("outputs: cannot be hashed") from None
    if problem:
        raise BadMessage(problem)
    return Received(event.pubkey, event.id, result, job.check_provenance(provenance).warnings)


def _name_problem(outputs: Mapping[str, Any]) -> str:
    """Outputs of a type that we do not know may have the names that stand beside them in an answer."""
    taken = [name for name in (PROVENANCE, VERIFICATION) if name in outputs]
    return f"outputs.{taken[0]}: this name is needed for what stands beside the outputs" if taken else ""


def _rerun_problem(job: JobType, inputs: Mapping[str, Any], result: Result, chance: Random) -> str:
    """Whether some of the texts, embedded here, give other numbers. Only of the model that is always here."""
    if job.schema_id != EMBEDDING or not models.is_deterministic(inputs["model"]):
        return ""
    texts: list[str] = inputs["texts"]
    order = list(range(len(texts)))
    chance.shuffle(order)
    picked: list[int] = []
    chars = 0
    for index in order:
        if chars + len(texts[index]) <= RERUN_CHARS:
            picked.append(index)
            chars += len(texts[index])
    if not picked:
        return ""
    some = {**inputs, "texts": [texts[index] for index in picked]}
    claimed = {**result.outputs, "embeddings": [result.outputs["embeddings"][index] for index in picked]}
    again = embedding.embed(
        some["texts"], inputs["model"], dimensions=inputs.get("dimensions"), normalize=inputs["normalize"]
    )
    verdict = verification.objective(
        job, some, Result(result.provider, claimed, result.provenance), rerun=again, is_deterministic=True
    )
    return "" if verdict.state == "verified" else verdict.reasons[0]


def judged(
    job: JobType, inputs: Mapping[str, Any], results: Sequence[Received], wanted: int, judge: Judge | None = None
) -> JobVerdict:
    """The verdict on what was received: ``more`` if one more has to be asked."""
    given = [one.result for one in results]
    if wanted == 1 and len(given) == 1 and job.schema.verification_mode == "objective":
        return verification.objective(job, inputs, given[0])
    verdict = verification.subjective(job, inputs, given, wanted=wanted, judge=judge)
    if verdict.state != "verified" or job.schema.verification_mode != "objective":
        return verdict
    # All say the same, and what they say may be that the job failed.
    checked = verification.objective(job, inputs, next(one for one in given if one.provider == verdict.agreed[0]))
    if checked.state == "verified":
        return verdict
    return msgspec.structs.replace(verdict, state="failed", reasons=(*verdict.reasons, *checked.reasons))


def answer(chosen: Received, finding: Finding) -> bytes:
    """What the caller gets."""
    told = {**chosen.result.outputs, PROVENANCE: chosen.result.provenance, VERIFICATION: finding}
    return msgspec.json.encode(told)


def groups_of(output: Raw | None, count: int) -> list[int | None] | None:
    """What a judge says, ``{"groups": [0, 0, 1]}``: a number for each result, equal where they mean the same, null for
    one that is of no use. None if it says nothing of the kind.
    """
    try:
        found = msgspec.json.decode(bytes(output or b""), type=_Judged)
    except msgspec.DecodeError:
        return None
    return found.groups if len(found.groups) == count else None
