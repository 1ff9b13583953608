"""The calls that a job being bought leads to: a judge who says which results mean the same, and paying a provider.

Pure. Owns what each is asked, for whom and under which key, and which demands for money are not even asked about. Does
not own what is done with the answers (``buyer``).

Invariant: a call for an order is made for those for whom the job is done, under the circumstance that strangers wrote
what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.config import NostrWallet
from trunkline.edges.nostr.events import Event, encoded
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.messages import JobFeedback
from trunkline.edges.nostr.orders import MAX_REASON_CHARS, Order, Paying, Request
from trunkline.edges.nostr.results import Received
from trunkline.effects import Answer
from trunkline.events import CallRequested, CancelRequested
from trunkline.model import (
    Behalf,
    Circumstance,
    Principal,
    Status,
)
from trunkline.money import demands
from trunkline.money.demands import NotADemand
from trunkline.money.job_names import with_salt
from trunkline.money.rail import Way
from trunkline.money.wallet import Paid
from trunkline.shown import CallView

# What the references of these calls begin with.
JUDGE: Final = "judge "
PAY: Final = "pay "
PAY_TOOL: Final = "nostr.wallet/pay"
JOB_OVER: Final = "the job is over"
# States of a payment that nobody here can take back (``wallet_agent``).
PREPAID: Final = frozenset({"paid", "handed_over"})


class BadDemand(ValueError):
    """Money that is not even asked about; the text says why."""


def demanded(
    order: Order,
    said: JobFeedback,
    event: Event,
    wallet: NostrWallet,
    signer: Signer,
    way_of: Callable[[str], Way | None],
    paid_before: Paid,
) -> Paying:
    """What a provider wants to be paid; ``BadDemand`` if that is no honest request, or more than was bid.

    Of several ways to pay it is the cheapest, with the mint's fee, of those that we can pay (``way_of``) and that are
    within the bid. If none is, it is what we could pay with other money: ecash of a mint that is listed, or the first.
    """
    mints = wallet.mints if wallet.prepay else ()
    bid = order.options.bid_msats
    salt = signer.job_salt(event.pubkey, order.job_hash) if order.is_private else ""
    amount, text, way = _cheapest([(said.amount_msats, said.invoice), *said.others], bid, wallet, way_of)
    try:
        demand = demands.read(text, order.job_hash, salt)
    except NotADemand as error:
        raise BadDemand(f"it asks to be paid by what is no invoice: {error}") from None
    msats, mint = demand.amount_msats, way.mint or _mint_of(text, mints)
    if msats is None or amount != msats:
        raise BadDemand("it asks for another amount than its invoice")
    if bid is not None and msats > bid:
        raise BadDemand(f"it asks for {msats} msats, and {bid} are bid")
    if demand.names_job is False:
        raise BadDemand("its invoice is for another job")
    if demand.rail == "cashu" and not mint:
        why = "of other mints than [nostr.wallet] mints lists" if wallet.prepay else "and prepay = true is not set"
        raise BadDemand(f"it wants ecash, {why}")
    if demand.rail == "cashu" and demand.names_job is None:
        raise BadDemand("its request for ecash names no job, so no receipt of it would hold")
    return Paying(
        msats,
        text,
        demand.payment_hash,
        event,
        names_job=bool(demand.names_job),
        mint=mint,
        salt=salt,
        fee_msats=way.fee_msats,
        paid_before=paid_before,
    )


def _cheapest(
    asked: Sequence[tuple[int | None, str]],
    bid: int | None,
    wallet: NostrWallet,
    way_of: Callable[[str], Way | None],
) -> tuple[int | None, str, Way]:
    """Amount, text and way of what is paid, of several that a provider lets us choose of."""
    mints = wallet.mints if wallet.prepay else ()
    found = []
    for place, (amount, text) in enumerate(asked):
        is_ecash = demands.is_ecash(text)
        way = way_of(text) if not is_ecash or _mint_of(text, mints) else None
        if way is None and not is_ecash and wallet.prepay and wallet.connection:
            way = Way()
        if way is not None and amount is not None:
            is_above = bid is not None and amount > bid
            # Of two that cost the same, ecash: a wallet elsewhere may take a fee that nobody here knows.
            found.append((is_above, amount + way.fee_msats, not is_ecash, place, way))
    if found:
        *_, place, way = min(found, key=lambda one: one[:4])
        return (*asked[place], way)
    listed = (one for one in asked if demands.is_ecash(one[1]) and _mint_of(one[1], mints))
    return (*next(listed, asked[0]), Way())


def _mint_of(text: str, mints: Sequence[str]) -> str:
    """The first of these mints whose ecash is asked for; empty if there is none."""
    if not demands.is_ecash(text):
        return ""
    try:
        asked = demands.read(text, "").mints
    except NotADemand:
        return ""
    return next((mint for mint in map(str, mints) if mint.rstrip("/") in asked), "").rstrip("/")


def pay_call(session: int, order: Order, request: Request, paying: Paying) -> CallRequested:
    """Pay a provider. The key is the invoice's and the input that on record, so after a restart it is the same call:
    it is paid once.
    """
    job = {"schema_id": order.job.schema_id, "job_hash": order.job_hash, "request_id": request.event.id}
    wish = {
        "amount_msats": paying.msats,
        "payee": npub_of(request.provider),
        "job": {**job, "order": order.call_id},
        "paid_before": paying.paid_before,
        "invoice": paying.invoice,
        "invoice_names_job": paying.names_job,
        "asked": with_salt(encoded(paying.asked), paying.salt),
    }
    if paying.mint:
        wish |= {"mint": paying.mint, "fee_msats": paying.fee_msats}
    key = pay_key(order.call_id, paying.payment_hash)
    return _call(session, order, pay_ref(request, paying), PAY_TOOL, wish, key, sensitive=False)


def pay_key(order: str, payment_hash: str) -> str:
    """The key of a payment for an order."""
    return f"{order}/pay/{payment_hash}"


def pay_ref(request: Request, paying: Paying) -> str:
    """By what the answer to a payment is known: the request, and what it is paid by."""
    return f"{PAY}{request.event.id} {paying.payment_hash}"


def unpaid_call_ends(session: int, order: Order, request: Request, paying: Paying) -> CancelRequested:
    """Nobody is asked any more whether to pay this."""
    target = pay_ref(request, paying)
    by = Principal(order.call.caller)
    return CancelRequested(session, f"cancel {target}", by, target=target, reason=JOB_OVER)


def unpaid_calls_end(session: int, order: Order) -> Iterator[CancelRequested]:
    """The job is over: nobody is asked any more whether to pay for it."""
    for request in order.requests.values():
        if request.paying is not None and request.paying.state == "asked":
            yield unpaid_call_ends(session, order, request, request.paying)


def lost_call_ends(session: int, call: CallView) -> CancelRequested:
    """The same of a job that ended without us: its payment is known by its call."""
    by = Principal(call.caller)
    return CancelRequested(session, f"cancel {call.call_id}", by, call_id=call.call_id, reason=JOB_OVER)


def judge_call(session: int, order: Order, given: Sequence[Received], judge: str) -> CallRequested:
    """A tool says which results mean the same."""
    told: dict[str, object] = {
        "schema_id": order.job.schema_id,
        "inputs": order.inputs,
        "results": [one.result.outputs for one in given],
    }
    key = f"{order.call_id}/{JUDGE.strip()}/{len(given)}"
    return _call(session, order, f"{JUDGE}{order.call_id}", judge, told, key, sensitive=order.is_private)


def _call(
    session: int, order: Order, ref: str, tool: str, wish: dict[str, object], key: str, *, sensitive: bool
) -> CallRequested:
    call = order.call
    return CallRequested(
        session,
        ref,
        Principal(call.caller),
        tool,
        Raw(msgspec.json.encode(wish)),
        key=key,
        correlation_id=call.correlation_id,
        causation_id=call.call_id,
        on_behalf_of=Behalf(call.chain, len(call.chain), (Circumstance.UNTRUSTED,)),
        sensitive=sensitive,
    )


def pay_answered(paying: Paying, answer: Answer) -> None:
    """How a payment stands after its call has ended; where nobody knows, it is not tried again."""
    paying.call_id = answer.call_id or ""
    if answer.status is not Status.SUCCEEDED:
        paying.state, paying.why = "over", why_not_paid(answer)
        paying.is_unknown = answer.status is Status.UNKNOWN
        return
    made = _made(answer.output)
    paying.state, paying.preimage, paying.is_prepaid = "done", made.preimage, made.state in PREPAID


def look_at_payment(paying: Paying, made: CallView | None) -> None:
    """The job ends: what is being paid at this moment nobody knows the end of."""
    if paying.state == "asked" and made is not None and made.status is Status.RUNNING:
        paying.call_id, paying.is_unknown = made.call_id, True
        paying.why = "it was being paid when the job ended"


def why_not_paid(answer: Answer) -> str:
    """Why a payment was not made, in the wallet's words, or those of whoever was asked; that it is unknown comes first:
    then nobody can say that it was not.
    """
    why = answer.status.value if answer.fault is None else answer.fault.message
    return (f"unknown: {why}" if answer.status is Status.UNKNOWN else why)[:MAX_REASON_CHARS]


class _Made(Struct):
    """What the wallet says of a payment; a preimage only if it was made at once."""

    state: str = ""
    preimage: str = ""


def _made(output: Raw | None) -> _Made:
    try:
        return msgspec.json.decode(bytes(output or b"{}"), type=_Made)
    except msgspec.DecodeError:
        return _Made()
