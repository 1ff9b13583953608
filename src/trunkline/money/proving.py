"""Whether a receipt proves what it says: payment, job, trajectory, policy, each link followed and each hash computed.

Pure: whoever has the receipt and what it points to comes to the same, with or without an exchange, for receipts of ours
and of others. Owns the order of the links and what is compared. Does not own finding what a receipt points to.

Invariant: ``prove`` gives all links or raises ``Broken`` with the name of the first that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.canonical import openagents_hash
from trunkline.jobs.schemas import job_types
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.money import bolt11, lightning, receipts
from trunkline.money.cashu import requests
from trunkline.money.rail import Due, NotPaid, PaymentProof, RailName
from trunkline.money.receipts import NotAReceipt, Receipt
from trunkline.trajectory import check, events

Link = Literal["receipt", "ledger", "payment", "job", "trajectory", "policy"]
LINKS: Final[tuple[Link, ...]] = ("receipt", "payment", "job", "trajectory", "policy")
Verify = Callable[[PaymentProof, Due], None]
# How the proof of each rail is judged, as far as that needs no more than the receipt; the others: ``verifying``.
VERIFIERS: Final[dict[RailName, Verify]] = {"lightning": lightning.verify}
# What of a payment in ecash is not arithmetic.
MINT_BY_WORD: Final = (
    "asset_id: that the keys are this mint's is the payee's word; --mint-keys compares them with the mint's own answer"
)
# Tools whose name after the slash is the schema of the job that they do.
_JOB_AGENTS: Final = ("trunkline.jobs/", "nostr.jobs/")


class Broken(ValueError):
    """A link does not hold; the text says why."""

    def __init__(self, link: Link, why: str) -> None:
        super().__init__(why)
        self.link = link


class Evidence(Struct, frozen=True):
    """A receipt and what it points to, from a record or from somebody's files."""

    receipt: Raw
    # As it was put on record, or as its author says it.
    receipt_hash: str
    # What was to be paid by, and what that is judged by (``Due``).
    request: str
    evidence: Raw
    # Lines of REPLAY.jsonl v1, without line ends.
    trajectory: tuple[bytes, ...]
    # The rules as JSON, in the form in which they are hashed.
    policy: Raw
    # The call that was paid for; if nobody says, the session's first.
    call_id: str = ""


class Proved(Struct, frozen=True):
    """A receipt that holds, and what of it is not proved: content that is not on record, a payee's mere word."""

    receipt: Receipt
    links: tuple[str, ...]
    unproved: tuple[str, ...] = ()
    # Why the payment, which was made, may have been made for something else. With any of these it is not whole.
    untied: tuple[str, ...] = ()


def prove(given: Evidence, verifiers: Mapping[RailName, Verify] = VERIFIERS, *, knows_mint: bool = False) -> Proved:
    """Follow every link; ``Broken`` names the first that does not hold.

    ``verifiers`` judge the proof of each rail. Some know more than the receipt says: which blocks are of the chain, and
    which keys are a mint's (``knows_mint``).
    """
    receipt = _receipt(given)
    _payment(receipt, given, verifiers)
    # Before the session that names it: where the rules were changed, that is what is said.
    _policy(receipt, given)
    call = _trajectory(receipt, given.trajectory, given.call_id)
    unproved = _job(receipt, call)
    if receipt.rail == "cashu" and not knows_mint:
        unproved = (*unproved, MINT_BY_WORD)
    return Proved(receipt, LINKS, unproved, _untied(receipt, given))


def _receipt(given: Evidence) -> Receipt:
    try:
        computed = receipts.receipt_hash(given.receipt)
        found = receipts.read(given.receipt)
    except strictjson.NotStrictJson as error:
        raise Broken("receipt", f"not strict JSON: {error}") from None
    except NotAReceipt as error:
        raise Broken("receipt", str(error)) from None
    if computed != given.receipt_hash:
        raise Broken("receipt", f"its hash is on record as {given.receipt_hash}, and computes to {computed}")
    return found


def _payment(receipt: Receipt, given: Evidence, verifiers: Mapping[RailName, Verify]) -> None:
    verify = verifiers.get(receipt.rail)
    if verify is None:
        raise Broken("payment", f"rail: proofs of {receipt.rail} cannot be checked here")
    evidence = bytes(given.evidence).decode("utf-8", "replace")
    due = Due(receipt.amount_msats, receipt.provider_id, receipt.asset_id, given.request, receipt.job_hash, evidence)
    try:
        verify(receipt.payment_proof, due)
    except NotPaid as error:
        raise Broken("payment", str(error)) from None


def _untied(receipt: Receipt, given: Evidence) -> tuple[str, ...]:
    """What of a receipt would be the same for another job, or for another payment. A payment on the chain has a script
    of its own for each job.
    """
    if receipt.rail == "lightning":
        payment_hash = lightning.payment_hash_of(receipt.payment_proof.value)
    elif receipt.rail == "cashu":
        payment_hash = requests.payment_hash_of(given.request)
    else:
        return ()
    found = []
    expected = receipts.receipt_id_of(payment_hash, receipt.job_hash)
    if receipt.receipt_id != expected:
        found.append(f"receipt_id: is not {expected}, the one of this payment for this job")
    if receipt.rail == "cashu":
        if not requests.read_request(given.request).secret_payment_id:
            found.append("request: it names no payment, so the same proofs could be shown for another of the same job")
    elif lightning.names_job(bolt11.read(given.request).description, receipt.job_hash) is None:
        found.append("invoice: it names no job, so the same payment could be shown for any other of this price")
    return tuple(found)


def _trajectory(receipt: Receipt, lines: Sequence[bytes], call_id: str) -> events.ToolCall:
    try:
        found = check.check(iter(lines))
    except check.NotATrajectory as error:
        raise Broken("trajectory", f"line {error.line}: {error.fault}") from None
    if found.session_id != receipt.session_id:
        raise Broken("trajectory", f"it is that of the session {found.session_id}, not {receipt.session_id}")
    if found.trajectory_hash != receipt.trajectory_hash:
        _differs("trajectory", receipt.trajectory_hash, found.trajectory_hash)
    if found.policy_bundle_id != receipt.policy_bundle_id:
        raise Broken("policy", f"the session began under {found.policy_bundle_id}, not {receipt.policy_bundle_id}")
    calls = (line for line in _events(lines) if isinstance(line, events.ToolCall))
    call = next((line for line in calls if call_id in ("", line.id)), None)
    if call is None:
        raise Broken("job", f"the session has no call {call_id}" if call_id else "nothing was called in the session")
    return call


def _events(lines: Iterable[bytes]) -> Iterable[events.AnyLine]:
    for line in lines:
        try:
            yield events.decode(line)
        except msgspec.DecodeError:
            continue  # an event of somebody's own


def _job(receipt: Receipt, call: events.ToolCall) -> tuple[str, ...]:
    """That the hash is the one of what was called; of content that is not on record it cannot be computed."""
    if call.masked:
        return ("job_hash: the job's inputs are on record as hashes only",)
    try:
        schema_id = _schema_of(call.tool)
    except ValueError:
        raise Broken("job", "what was called has no name of a tool") from None
    try:
        inputs: Any = strictjson.load(bytes(call.params), strictjson.CARRIED_DEPTH, strictjson.CARRIED_CONTAINERS)
    except strictjson.NotStrictJson as error:
        raise Broken("job", f"its inputs: {error}") from None
    if not isinstance(inputs, dict):
        raise Broken("job", "its inputs are no object")
    if call.tool.startswith("nostr.jobs/"):
        inputs = {name: value for name, value in inputs.items() if name != "remote"}
    job = job_types().get(schema_id)
    if job is not None and job.is_job_hash(receipt.job_hash, inputs):
        return ()
    computed = openagents_hash(msgspec.json.encode({"schema_id": schema_id, "inputs": inputs}))
    if computed != receipt.job_hash:
        _differs("job", receipt.job_hash, computed if job is None else job.job_hash(inputs))
    return ()


def _schema_of(tool: str) -> str:
    agent = next((one for one in _JOB_AGENTS if tool.startswith(one)), None)
    return schema_id_of(tool) if agent is None else tool.removeprefix(agent)


def _policy(receipt: Receipt, given: Evidence) -> None:
    try:
        computed = openagents_hash(bytes(given.policy))
        rules = msgspec.json.decode(bytes(given.policy), type=list[dict[str, Any]])
    except (strictjson.NotStrictJson, msgspec.DecodeError):
        raise Broken("policy", "the rules cannot be read") from None
    if computed != receipt.policy_bundle_id:
        _differs("policy", receipt.policy_bundle_id, computed)
    names = [rule.get("id") for rule in rules]
    if receipt.approval_rule_id is not None and receipt.approval_rule_id not in names:
        raise Broken("policy", f"approval_rule_id: no rule {receipt.approval_rule_id} was in force")


def _differs(link: Link, named: str, computed: str) -> NoReturn:
    raise Broken(link, f"its hash is {named}, and computes to {computed}")


def invoice_named(event: bytes) -> str:
    """The invoice that a provider's event names beside the amount; empty if it names none."""
    try:
        strictjson.check(event)
        found = msgspec.json.decode(event, type=_Tagged)
    except (strictjson.NotStrictJson, msgspec.DecodeError):
        return ""
    return next((tag[2] for tag in found.tags if tag[:1] == ("amount",) and len(tag) > 2), "")


class _Tagged(Struct):
    tags: tuple[tuple[str, ...], ...] = ()
