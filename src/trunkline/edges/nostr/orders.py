"""One job that is being bought: what was asked of whom, what came back, and what is told of it in the end.

Pure data and its arithmetic; what is done about it is ``buyer``'s, and what of it is on record ``order_record``'s.

Invariant: a request is one signed event, told to relays as it is however often that happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.config import Nostr
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.discovery import Need
from trunkline.edges.nostr.events import Draft, Event, encoded
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.messages import JobFeedback, Status, TooLarge
from trunkline.edges.nostr.provider_records import Fate
from trunkline.edges.nostr.remote_tools import HARMLESS, OPTIONS, Options, job_type
from trunkline.edges.nostr.results import Finding, Received
from trunkline.effects import Deliver
from trunkline.jobs import consistency
from trunkline.jobs.schemas import SANDBOX, JobType, count_tokens
from trunkline.jobs.verification import JobVerdict, quorum_of
from trunkline.model import Fault, fault
from trunkline.money.job_names import with_salt
from trunkline.money.wallet import Paid

# How long a job may take whose caller does not say; one of a sandbox has its own time beside it.
DEFAULT_S: Final = 600.0
# The longest: providers take no request that is older than an hour.
LONGEST_S: Final = 3000.0
# Before the caller's own limit, so that the answer is ours and not that he waited in vain.
MARGIN_S: Final = 2.0
# What most relays carry: a whole event.
MAX_SENT_BYTES: Final = 65_536
TOO_LARGE: Final = f"the job is larger than relays carry, {MAX_SENT_BYTES} bytes with everything around it"
# Providers that are asked for one job, whatever becomes of them.
MAX_ASKED: Final = 12
# How much of a provider's own words about a failure is kept.
MAX_REASON_CHARS: Final = 200
# Payments told of in one fault.
MAX_NOT_PAID: Final = 3
# What of one word of a provider's is shown.
MAX_SHOWN_CHARS: Final = 4096
# The setting that lets an exchange be its own provider.
FROM_OURSELVES: Final = "from_ourselves = true in [nostr.buyer]"
FAILED: Final = "it says that it failed"

# ``recording``: not told to anybody yet. ``posted``: told. ``working``: it has said a word. ``answered``: its result
# counts. ``over``: it will not do it, or has lied.
State = Literal["recording", "posted", "working", "answered", "over"]


class BadOrder(ValueError):
    """A call that cannot be a job; the text begins with the place."""


class Request(Struct, eq=False):
    """A job as it was asked of one provider."""

    event: Event
    provider: str
    state: State
    # When it has to have said something.
    due: float
    posted_at: float = 0.0
    took_ms: int = 0
    # It said nothing in its time: another one is asked, and what it still says counts.
    is_silent: bool = False
    # It said that it failed; of a sandbox the result that says how still follows.
    has_failed: bool = False
    fate: Fate | None = None
    reason: str = ""
    shown: int = 0
    paying: Paying | None = None

    @property
    def is_open(self) -> bool:
        """Whether something may still come of it."""
        return self.state in {"recording", "posted", "working"}

    @property
    def may_be_done(self) -> bool:
        """Whether its provider may still do it: it was told, or it may have been paid, and there is no result."""
        is_maybe_paid = self.paying is not None and self.paying.is_unknown
        return self.state in {"posted", "working"} or (self.state == "over" and is_maybe_paid)


class Paying(Struct, eq=False):
    """What a provider asks to be paid, and how the payment stands."""

    msats: int
    invoice: str
    payment_hash: str
    # The provider's signed event that asks for it.
    asked: Event
    # Whether the invoice itself says which job it is for; of a private one, with which salt.
    names_job: bool = False
    salt: str = ""
    # What the payee was paid before, as whoever is asked to pay is shown it.
    paid_before: Paid = Paid()
    # ``asked``: a call pays it, or waits for a person. ``done``: it is held, or paid. ``over``: it will not be.
    state: Literal["asked", "done", "over"] = "asked"
    call_id: str = ""
    # From before a restart: its payee may have been restarted, too, and ask by another invoice.
    is_taken_up: bool = False
    # Paid at once: whatever becomes of the job, nobody here can take it back.
    is_prepaid: bool = False
    # Of what was paid at once.
    preimage: str = ""
    # Whose ecash it is to be paid with; empty for Lightning.
    mint: str = ""
    # The most that this mint takes for it.
    fee_msats: int = 0
    # Why it was not paid; or that nobody knows whether it was.
    why: str = ""
    is_unknown: bool = False

    def not_paid(self) -> str:
        """What is told of a payment that was not made: how much it was over, why, and the call that has the rest."""
        where = f" (call {self.call_id})" if self.call_id else ""
        if self.is_unknown:
            return f"whether {self.msats} msats asked for it were paid is unknown: {self.why}{where}"
        return f"{self.msats} msats asked for it were not paid: {self.why}{where}"

    def not_returned(self) -> str:
        """What is told of a payment that was made first, for a job that came to nothing; empty if it comes back."""
        if not self.is_prepaid:
            return ""
        paid = f"{self.msats} msats were paid for it first (call {self.call_id})"
        if self.mint:
            return f"{paid} in ecash of {self.mint}: what is not redeemed comes back when its lock ends"
        return f"{paid}, and do not come back"


class EndPayments(Struct, frozen=True):
    """An order has its verdict: what is held for it is released to those who are to be paid, the rest is refunded."""

    order: str
    # npubs; None: the buyer does not know the outcome, which is on record.
    to_be_paid: tuple[str, ...] | None
    # By npub: why somebody is not paid.
    reasons: dict[str, str] = {}
    # What was paid at once to those who were right: the receipt is left to make.
    prepaid: tuple[Prepaid, ...] = ()


class Prepaid(Struct, frozen=True):
    """What a wallet elsewhere paid for a job."""

    payment_hash: str
    order: str
    call_id: str
    request_id: str
    schema_id: str
    job_hash: str
    # An npub.
    provider: str
    msats: int
    invoice: str
    asked: Raw
    preimage: str


class Order(Struct, eq=False):
    """One call, as a job that others do."""

    call: Deliver
    job: JobType
    # With all defaults.
    inputs: dict[str, Any]
    options: Options
    # What it asks of a provider, and what names it.
    need: Need
    job_hash: str
    # Only this one is asked, if it is given.
    named: str
    deadline: float
    # How long a provider may be silent.
    patience_s: float
    # Until then announcements may still come in.
    look_until: float
    # Taken up after its time was over: what relays kept of it is still heard, and nothing new is begun.
    is_late: bool = False
    wanted: int = 1
    # How many results there have to be before they are judged.
    goal: int = 1
    # By the id of the event.
    requests: dict[str, Request] = {}
    # By the provider's public key.
    results: dict[str, Received] = {}
    shown: int = 0
    # What a judge said: of which providers, and which of their results mean the same. Empty while it is asked.
    judged_of: tuple[str, ...] = ()
    groups: list[int | None] | None = None
    is_judging: bool = False

    @property
    def call_id(self) -> str:
        """Its call."""
        return self.call.call_id

    @property
    def is_private(self) -> bool:
        """Whether nobody but the provider may read it: as the caller says, and always if the call is sensitive."""
        return self.options.private or self.call.sensitive

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is left of the job but its result."""
        return self.job.schema_id in HARMLESS

    @property
    def quorum(self) -> int:
        """How many results have to agree."""
        return quorum_of(self.wanted)

    @property
    def payload(self) -> Raw:
        """The inputs as they are sent: complete, so that every way of hashing them gives the same."""
        return Raw(msgspec.json.encode(self.inputs))

    def open_requests(self) -> list[Request]:
        """Those of which something may still come."""
        return [request for request in self.requests.values() if request.is_open]

    @property
    def is_paying(self) -> bool:
        """Whether a payment for a result that is there has not ended: the verdict would not know what to do with it."""
        return any(
            request.state == "answered" and request.paying is not None and request.paying.state == "asked"
            for request in self.requests.values()
        )

    def payments(self) -> list[Paying]:
        """All that providers asked to be paid."""
        return [request.paying for request in self.requests.values() if request.paying is not None]

    def live(self) -> int:
        """How many results there are, or may be soon."""
        return len(self.results) + sum(not request.is_silent for request in self.open_requests())


def order_of(call: Deliver, silence_s: float, look_s: float, mono: float) -> Order:
    """A call as an order; ``BadOrder`` if it is no job."""
    job = job_type(call.tool_id.partition("/")[2])
    try:
        given = strictjson.load(bytes(call.input), strictjson.CARRIED_DEPTH, strictjson.CARRIED_CONTAINERS)
        inputs = dict(given) if isinstance(given, dict) else {}
        options = msgspec.convert(inputs.pop(OPTIONS, None) or {}, Options)
    except strictjson.NotStrictJson:
        raise BadOrder("inputs: expected an object") from None
    except msgspec.ValidationError as error:
        raise BadOrder(f"{OPTIONS}: {error}") from None
    try:
        named = options.public
    except ValueError:
        raise BadOrder(f"{OPTIONS}.provider: expected an npub") from None
    problem = job.input_problem(inputs)
    inputs = job.filled(inputs)
    problem = problem or consistency.input_problem(job.schema_id, inputs)
    if problem:
        raise BadOrder(problem)
    try:
        job_hash = job.job_hash(inputs)
    except strictjson.NotStrictJson:
        raise BadOrder("inputs: cannot be hashed: an integer has more than 64 bits, or a text is no Unicode") from None
    budget = _budget_s(call, job, inputs)
    wanted = options.providers or (1 if named else job.detail.redundancy)
    return Order(
        call,
        job,
        inputs,
        options,
        _need(job, inputs, options),
        job_hash,
        named,
        deadline=mono + budget,
        patience_s=min(silence_s, max(budget / 4, 1.0)),
        look_until=0.0 if named else mono + min(look_s, budget / 4),
        wanted=1 if named else wanted,
        goal=1 if named else wanted,
    )


def _need(job: JobType, inputs: dict[str, Any], options: Options) -> Need:
    minutes = _sandbox_s(job, inputs) / 60
    return Need(job.schema_id, count_tokens(inputs), minutes, str(inputs.get("model", "")), options.bid_msats)


def _budget_s(call: Deliver, job: JobType, inputs: dict[str, Any]) -> float:
    if call.timeout_ms is None:
        return min(DEFAULT_S + _sandbox_s(job, inputs), LONGEST_S)
    given = call.timeout_ms / 1000
    return min(given - min(MARGIN_S, given / 10), LONGEST_S)


def _sandbox_s(job: JobType, inputs: dict[str, Any]) -> float:
    if job.schema_id != SANDBOX:
        return 0.0
    return float(inputs.get("sandbox", {}).get("resources", {}).get("timeout_secs", 60))


def draft_of(order: Order, provider: str, settings: Nostr, signer: Signer, nonce: str, at: int) -> Draft:
    """The request for one provider; ``TooLarge`` if relays do not carry it."""
    try:
        draft = messages.request_draft(
            settings.kinds,
            order.job.schema_id,
            order.payload,
            order.job_hash,
            created_at=at,
            nonce=nonce,
            provider=provider,
            bid_msats=order.options.bid_msats,
            relays=settings.relays,
            encrypt=signer.encrypt if order.is_private else None,
        )
    except ValueError:  # more than NIP-44 carries
        raise TooLarge(TOO_LARGE) from None
    if _size(draft) > MAX_SENT_BYTES:
        # The envelope has the inputs, too, and it wins over the tag.
        draft = msgspec.structs.replace(draft, tags=tuple(tag for tag in draft.tags if tag[:1] != ("i",)))
    if _size(draft) > MAX_SENT_BYTES:
        raise TooLarge(TOO_LARGE)
    return draft


def _size(draft: Draft) -> int:
    return len(msgspec.json.encode(draft)) + messages.SIGNED_BYTES


def finding_of(order: Order, verdict: JobVerdict | None) -> Finding:
    """What became of an order: the verdict on its results, if there were any, and those who gave none."""
    fates: dict[str, list[str]] = {"lied": [], "failed": [], "silent": []}
    reasons = [] if verdict is None else list(verdict.reasons)
    for request in order.requests.values():
        npub = npub_of(request.provider)
        if request.state == "over" and request.fate is not None:
            fates[request.fate].append(npub)
            reasons.append(f"{npub}: {request.reason}")
        elif request.is_open and request.is_silent:
            fates["silent"].append(npub)
    reasons += [f"{one.result.provider}: {text}" for one in order.results.values() for text in one.warnings]
    found = JobVerdict("failed") if verdict is None else verdict
    return Finding(
        state="verified" if found.state == "verified" else "failed",
        mode=order.job.schema.verification_mode,
        wanted=order.wanted,
        quorum=order.quorum,
        asked=len(order.requests),
        reasons=tuple(reasons),
        agreed=found.agreed,
        dissented=found.dissented,
        rejected=tuple(fates["lied"]),
        failed=tuple(fates["failed"]),
        silent=tuple(fates["silent"]),
        to_be_paid=found.to_be_paid,
        job_hash=order.job_hash,
        output_hash=found.output_hash,
    )


def failed(finding: Finding) -> Finding:
    """Of a call that has no result: whatever some of them agree on, nobody is paid."""
    return msgspec.structs.replace(finding, state="failed", to_be_paid=())


def payments_end(order: Order, finding: Finding) -> EndPayments:
    """What becomes of the payments of a job: only who was right is paid (OA-063). The wallet knows what is held
    for it: after a restart no provider need ask again.
    """
    otherwise = f"the job ended as {finding.state} without this result"
    reasons = {npub_of(one.provider): one.reason or otherwise for one in order.requests.values()}
    return EndPayments(order.call_id, tuple(finding.to_be_paid), reasons, tuple(_prepaid(order, finding)))


def _prepaid(order: Order, finding: Finding) -> Iterator[Prepaid]:
    for request in order.requests.values():
        paying, npub = request.paying, npub_of(request.provider)
        if paying is None or not paying.preimage or npub not in finding.to_be_paid:
            continue
        yield Prepaid(
            payment_hash=paying.payment_hash,
            order=order.call_id,
            call_id=paying.call_id,
            request_id=request.event.id,
            schema_id=order.job.schema_id,
            job_hash=order.job_hash,
            provider=npub,
            msats=paying.msats,
            invoice=paying.invoice,
            asked=with_salt(encoded(paying.asked), paying.salt),
            preimage=paying.preimage,
        )


def fates_of(order: Order, finding: Finding) -> Iterator[tuple[Request, Fate]]:
    """How each provider did that was asked; nothing of those that were not given the time."""
    for request in order.requests.values():
        if request.state == "answered":
            # A result that nobody agrees with is somebody's fault only if others agree with each other.
            is_alone = bool(finding.agreed) and npub_of(request.provider) in finding.dissented
            yield request, "disagreed" if is_alone else "succeeded"
        elif request.is_open and request.is_silent:
            yield request, "silent"
        elif request.fate is not None:
            yield request, request.fate


def no_agreement(order: Order, verdict: JobVerdict) -> Fault:
    """Why a call failed whose results do not agree."""
    most = len(verdict.agreed)
    text = f"{len(order.results)} providers gave a result, and too few agree"
    return fault("tool.failed", f"{text} ({most} of {order.quorum})" if most else text)


def nobody_left(order: Order, verdict: JobVerdict | None, can_be_asked: int, *, is_ours: bool) -> Fault:
    """Why a call failed for which nobody is left to ask. ``is_ours``: only this exchange itself could be."""
    if verdict is not None:
        return no_agreement(order, verdict)
    name = order.job.schema_id
    if order.requests:
        count = len(order.requests)
        asked = "1 provider was" if count == 1 else f"{count} providers were"
        text = f"{asked} asked for {name}, and none gave a result that counts"
        refused = [one.not_paid() for one in order.payments() if one.state == "over" and not one.is_unknown]
        return fault("tool.failed", "; ".join((text, *refused[:MAX_NOT_PAID])), retryable=True)
    if can_be_asked:
        text = f"{order.quorum} providers of {name} have to agree, and {can_be_asked} can be asked"
        return fault("tool.unavailable", f"{text}; `remote.providers` 1 trusts one")
    if is_ours:
        text = f"only this exchange itself offers {name}, and it does not buy from itself"
        return fault("tool.unavailable", f"{text}: submit it without --remote, or set {FROM_OURSELVES}")
    return fault("tool.unavailable", f"no provider announces {name} at this size and price")


def shown(request: Request, said: JobFeedback) -> tuple[str, Raw]:
    """What a caller is shown of a provider's word: the channel and the data."""
    told: dict[str, object] = {"provider": npub_of(request.provider), "status": said.status.value}
    if said.text:
        told["text"] = said.text
    if said.content:
        told["content"] = said.content[:MAX_SHOWN_CHARS]
    channel = "partial_result" if said.status is Status.PARTIAL else "status"
    return channel, Raw(msgspec.json.encode({"json": told}))


def too_late(order: Order) -> str:
    """Why a call ends whose time is over; nobody may have answered whether to pay."""
    asked = [f"nobody let {one.msats} msats be paid for it" for one in order.payments() if one.state == "asked"]
    return "; ".join(("no result that counts came in time", *asked[:MAX_NOT_PAID]))


def with_money(problem: Fault, order: Order) -> Fault:
    """The same, and what became of money that is gone or may be: then trying again could pay twice."""
    told = [one.not_paid() for one in order.payments() if one.is_unknown]
    told += [text for one in order.payments() if one.state == "done" and (text := one.not_returned())]
    if not told:
        return problem
    text = "; ".join((problem.message, *told[:MAX_NOT_PAID]))
    return Fault(problem.code, text, False, problem.details)


def words_of(order: Order, said: JobFeedback) -> str:
    """Why a provider failed, in its own words: one line of printable characters. Nothing of a private job."""
    if order.is_private:
        return FAILED
    text = "".join(sign if sign.isprintable() else " " for sign in said.text or said.content)
    return text[:MAX_REASON_CHARS].strip() or FAILED
