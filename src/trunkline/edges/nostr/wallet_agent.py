"""The agent ``nostr.wallet``: paying for a job is a call like any other, so it is asked about, recorded and ends once.

Owns the tools ``pay`` (hold money of the exchange in the embedded wallet, or have a wallet elsewhere pay at once),
``new`` and ``fund`` (accounts, regtest money), and the guard: budgets, which nobody can approve away, and invoices that
name no job, which a person is always asked about. What is held is released or refunded when the job has its verdict
(``settling``). Does not own the fold (``payments``).

Invariant: an invoice is paid by one call at most, a provider once for a job, and nothing is held for a job that is
over. What is judged to be within the budgets counts as spent in the same step, so calls that are made together stay
within them, too. A payment whose end nobody knows is *unknown*, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.config import NostrWallet
from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.nwc import OutsideWallet
from trunkline.edges.nostr.payments import Invoiced, Payments
from trunkline.edges.nostr.till import Till
from trunkline.edges.resident import Resident
from trunkline.effects import Cancel, Deliver
from trunkline.events import CancelAcknowledged
from trunkline.model import Decision, Fault, Now, ProcessIdentity, Status, ToolDefinition, Verdict, fault
from trunkline.money import bolt11, budget, lightning, signed_events, wallet
from trunkline.money.budget import BUDGET_RULE, UNTIED_RULE, Budget
from trunkline.money.rail import MAX_MSATS, Msats, RailFailed
from trunkline.money.wallet import OWN, Held, Paid, Refused

EDGE: Final = "nostr"
AGENT: Final = "nostr.wallet"
PAY, NEW, FUND = f"{AGENT}/pay", f"{AGENT}/new", f"{AGENT}/fund"
NOBODY_KNOWS: Final = "nobody can say whether the wallet elsewhere paid"
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class PaidJob(Struct, frozen=True, forbid_unknown_fields=True):
    """The job that is paid for. ``order`` is the call that it is bought for, if it is one."""

    schema_id: Annotated[str, Meta(max_length=128)]
    job_hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    request_id: Hex32
    order: Annotated[str, Meta(max_length=128)] = ""


class Payment(Struct, frozen=True, forbid_unknown_fields=True):
    """The input of ``pay``: what a person is shown before it is paid."""

    amount_msats: Msats
    # An npub.
    payee: Annotated[str, Meta(min_length=63, max_length=63)]
    job: PaidJob
    invoice: Annotated[str, Meta(max_length=8192)]
    # The signed event in which the payee asks for it.
    asked: Raw
    paid_before: Paid = Paid()
    # Whether the invoice itself says that it is for this job; else only the payee's word does.
    invoice_names_job: bool | None = None


class _New(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    client: Hex32


class _Fund(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    msats: Msats


def _schema(properties: dict[str, Any], required: tuple[str, ...]) -> Raw:
    shape = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Raw(msgspec.json.encode(shape))


# What ``Payment``, ``_New`` and ``_Fund`` want stands here, too: so the exchange says which part of an input is wrong.
_MSATS: Final = {"type": "integer", "minimum": 1, "maximum": MAX_MSATS}
_HEX32: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_PAID_BEFORE: Final = {
    "type": "object",
    "description": "What this payee was paid by this exchange before.",
    "properties": {"count": {"type": "integer", "minimum": 0}, "msats": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}
_JOB: Final = {
    "type": "object",
    "description": "The job that is paid for.",
    "properties": {
        "schema_id": {"type": "string", "maxLength": 128},
        "job_hash": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
        "request_id": _HEX32,
        "order": {"type": "string", "maxLength": 128},
    },
    "required": ["schema_id", "job_hash", "request_id"],
    "additionalProperties": False,
}
DEFINITIONS: Final = (
    ToolDefinition(
        PAY,
        "Pay for a job: hold the money until its result is verified, or have the wallet elsewhere pay at once.",
        _schema(
            {
                "amount_msats": {**_MSATS, "description": "How much, in thousandths of a satoshi."},
                "payee": {
                    "type": "string",
                    "description": "Who gets it, an npub.",
                    "minLength": 63,
                    "maxLength": 63,
                },
                "job": _JOB,
                "paid_before": _PAID_BEFORE,
                "invoice": {
                    "type": "string",
                    "description": "A signed invoice (BOLT 11) over the amount.",
                    "maxLength": 8192,
                },
                "invoice_names_job": {
                    "type": "boolean",
                    "description": "Whether the invoice says that it is for this job; else only the payee's word does.",
                },
                "asked": {"type": "object", "description": "The payee's signed event that names the invoice."},
            },
            ("amount_msats", "payee", "job", "invoice", "asked"),
        ),
        Raw(b'{"type":"object"}'),
        side_effects=True,
        tags=("money", "nostr"),
    ),
    ToolDefinition(
        NEW,
        "A new account in the embedded wallet, for the holder of a public key (NIP-47).",
        _schema({"name": {"type": "string"}, "client": _HEX32}, ("name", "client")),
        Raw(b'{"type":"object"}'),
        side_effects=True,
        tags=("money", "nostr"),
    ),
    ToolDefinition(
        FUND,
        "Make money of the test network in an account of the embedded wallet.",
        _schema({"name": {"type": "string"}, "msats": _MSATS}, ("name", "msats")),
        Raw(b'{"type":"object"}'),
        side_effects=True,
        tags=("money", "nostr"),
    ),
)


class WalletAgent(Resident):
    """The agent. ``is_open`` says whether a call has no outcome yet, ``relay`` where the embedded relay is, for
    connections; ``outside`` is the wallet elsewhere.
    """

    def __init__(
        self,
        feed: Feed,
        settings: NostrWallet,
        payments: Payments,
        till: Till,
        is_open: Callable[[str], bool],
        public: str,
        outside: OutsideWallet | None,
        relay: Callable[[], str],
        background: Background,
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(feed, EDGE, AGENT, version, process, entropy)
        self._budget = Budget(settings.max_msats_per_job, settings.max_msats_per_day)
        self._prepay = settings.prepay
        self._payments = payments
        self._till = till
        self._is_open = is_open
        self._public = public
        self._outside = outside
        self._relay = relay
        self._background = background

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Its three tools."""
        return DEFINITIONS

    # -- before it is called -------------------------------------------------------------------------------------------

    def guard(self, tool_id: str, body: Raw) -> Verdict | None:
        """Budgets: what is beyond them is denied, whoever would approve it."""
        if tool_id != PAY:
            return None
        try:
            payment = msgspec.json.decode(bytes(body), type=Payment)
        except msgspec.DecodeError:
            return _denied("input", fault("tool.invalid_input"))
        problem = self._beyond_budget(payment, self._feed.now())
        return _untied(payment) if problem is None else _denied(BUDGET_RULE, problem)

    def _beyond_budget(self, payment: Payment, now: Now) -> Fault | None:
        own = self._payments.wallet
        problem = budget.problem(
            self._budget, own, payment.amount_msats, payment.job.order, now.ms
        ) or budget.claim_problem(own, payment.payee, payment.paid_before)
        return fault("policy.denied", problem, details={"policy": BUDGET_RULE}) if problem else None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver, now: Now) -> None:
        """Carry out a call. What is refused by the wallet has changed nothing."""
        try:
            match effect.tool_id:
                case _ if effect.tool_id == PAY:
                    self._pay(effect, msgspec.json.decode(bytes(effect.input), type=Payment), now)
                case _ if effect.tool_id == NEW:
                    self._new(effect, msgspec.json.decode(bytes(effect.input), type=_New))
                case _:
                    self._fund(effect, msgspec.json.decode(bytes(effect.input), type=_Fund))
        except msgspec.DecodeError:
            self._failed(effect, fault("tool.invalid_input"))
        except Refused as refused:
            self._failed(effect, fault("tool.failed", refused.why, details={"code": refused.code}))

    def cancel(self, effect: Cancel, now: Now) -> None:  # noqa: ARG002  (money that was sent cannot be called back)
        """What is held is given back by whoever judges the job; what was sent elsewhere is gone."""
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=False)])

    def _new(self, effect: Deliver, wish: _New) -> None:
        opened = self._payments.wallet.try_open(wish.name, wish.client)
        told = {"name": wish.name, "wallet": self._public, "relay": self._relay()}
        self._payments.take(opened, lambda: self._done(effect, told))

    def _fund(self, effect: Deliver, wish: _Fund) -> None:
        funded = self._payments.wallet.try_fund(wish.name, wish.msats)
        balances = self._payments.wallet.balances
        self._payments.take(funded, lambda: self._done(effect, {"name": wish.name, "balance": balances[wish.name]}))

    # -- paying --------------------------------------------------------------------------------------------------------

    def _pay(self, effect: Deliver, payment: Payment, now: Now) -> None:
        try:
            invoice = bolt11.read(payment.invoice)
        except bolt11.NotAnInvoice as error:
            raise Refused("OTHER", f"invoice: {error}") from None
        if invoice.amount_msats != payment.amount_msats:
            raise Refused("OTHER", f"amount_msats: the invoice is over {invoice.amount_msats}")
        _need_asked(payment)
        self._need_first(payment, invoice.payment_hash)
        # Once more, and in one step with what counts as spent from here on: others were judged and sent meanwhile.
        problem = self._beyond_budget(payment, now)
        if problem is not None:
            self._failed(effect, problem)
        elif invoice.node == self._payments.node:
            self._hold(effect, payment, self._payments.issued(payment.invoice, now), now)
        elif self._outside is not None and self._prepay:
            self._send(effect, payment, invoice, self._outside, now)
        else:
            raise Refused(
                "PAYMENT_FAILED",
                "the embedded wallet reaches nobody elsewhere; [nostr.wallet] connection and prepay = true do",
            )

    def _need_first(self, payment: Payment, payment_hash: str) -> None:
        """The job goes on, and this provider was not paid for it by another invoice."""
        order = payment.job.order
        if not order:
            return
        if not self._is_open(order):
            raise Refused("PAYMENT_FAILED", "the job is over")
        for spent in self._payments.wallet.spent.values():
            if (spent.order, spent.provider) == (order, payment.payee) and spent.payment_hash != payment_hash:
                raise Refused("PAYMENT_FAILED", "this provider was paid for this job by another invoice")

    def _hold(self, effect: Deliver, payment: Payment, invoiced: Invoiced, now: Now) -> None:
        payment_hash, order = invoiced.payment_hash, payment.job.order

        def stored() -> None:
            self._done(effect, {"state": "held", "rail": "lightning", "payment_hash": payment_hash})

        if self._till.is_offer(payment_hash):
            self._till.pay(payment_hash, OWN, "buyer", now, order=order, call_id=effect.call_id, then=stored)
            return
        if self._till.request_of(payment_hash):
            raise Refused("PAYMENT_FAILED", "the job of this invoice is not waiting for a payment")
        held = Held(
            payment_hash=payment_hash,
            payer=OWN,
            payee=invoiced.payee,
            msats=invoiced.msats,
            invoice=payment.invoice,
            asked=payment.asked,
            quote_id=invoiced.quote_id,
            request_id=payment.job.request_id,
            schema_id=payment.job.schema_id,
            job_hash=payment.job.job_hash,
            provider=payment.payee,
            at_ms=now.ms,
            judge="buyer",
            order=order,
            call_id=effect.call_id,
        )
        self._payments.hold(held, stored)

    def _send(
        self, effect: Deliver, payment: Payment, invoice: bolt11.Invoice, outside: OutsideWallet, now: Now
    ) -> None:
        """Have it paid elsewhere. That it was sent counts at once, and is on record before it is."""
        wish = wallet.Sent(
            invoice.payment_hash, payment.payee, payment.amount_msats, payment.job.job_hash, payment.job.order,
            effect.call_id, now.ms, invoice.expires_s * 1000,
        )  # fmt: skip

        def stored() -> None:
            self._background.spawn(self._sent(effect, payment, invoice.payment_hash, outside))

        self._payments.take(self._payments.wallet.try_send(wish), stored)

    async def _sent(self, effect: Deliver, payment: Payment, payment_hash: str, outside: OutsideWallet) -> None:
        """Ask the wallet elsewhere, and wait for what it says."""
        try:
            preimage = await outside.pay(payment.invoice)
        except RailFailed as failed:
            if failed.is_unknown:
                self.finish(effect.call_id, Status.UNKNOWN, fault("tool.failed", failed.why))
                return
            await self._stored(wallet.Settled(payment_hash))
            self._failed(effect, fault("tool.failed", failed.why))
            return
        except BaseException:
            # A defect, or the end of the exchange: the request may have left.
            if self.number:
                self.finish(effect.call_id, Status.UNKNOWN, fault("tool.failed", NOBODY_KNOWS))
            raise
        await self._stored(wallet.Settled(payment_hash, preimage))
        told = {"state": "paid", "rail": "lightning", "payment_hash": payment_hash, "preimage": preimage}
        self._done(effect, told)

    async def _stored(self, step: wallet.Step) -> None:
        import asyncio

        on_disk = asyncio.Event()
        self._payments.take(step, on_disk.set)
        await on_disk.wait()

    # -- words ---------------------------------------------------------------------------------------------------------

    def _done(self, effect: Deliver, told: dict[str, Any]) -> None:
        self.finish(effect.call_id, Status.SUCCEEDED, output=Raw(msgspec.json.encode(told)))

    def _failed(self, effect: Deliver, problem: Fault) -> None:
        self.finish(effect.call_id, Status.FAILED, problem)


def _denied(rule: str, problem: Fault) -> Verdict:
    return Verdict(Decision.DENY, rule, problem.message, AGENT, problem)


def _untied(payment: Payment) -> Verdict | None:
    """Nobody but a person lets an invoice through that does not say which job it is for."""
    try:
        invoice = bolt11.read(payment.invoice)
    except bolt11.NotAnInvoice:
        return None  # it is refused when it is to be paid, with the reason
    names_job = lightning.names_job(invoice.description, payment.job.job_hash)
    if names_job is False:
        return _denied("input", fault("tool.invalid_input", "invoice: is for another job"))
    if payment.invoice_names_job not in {None, bool(names_job)}:
        return _denied("input", fault("tool.invalid_input", "invoice_names_job: is not what the invoice says"))
    reason = "the invoice does not say which job it is for: only the payee's word ties it to this one"
    return None if names_job else Verdict(Decision.ASK, UNTIED_RULE, reason, AGENT)


def _need_asked(payment: Payment) -> None:
    """The payee himself asked for this, in an event that he signed, about this job."""
    try:
        event = signed_events.read(bytes(payment.asked))
    except signed_events.NotSigned as error:
        raise Refused("OTHER", f"asked: {error}") from None
    if npub_of(event.pubkey) != payment.payee:
        raise Refused("OTHER", "payee: did not sign the event that asks for the money")
    if ("amount", str(payment.amount_msats), payment.invoice) not in event.tags:
        raise Refused("OTHER", "asked: names another amount, or another invoice")
    if event.value("e") != payment.job.request_id:
        raise Refused("OTHER", "asked: is about another job")
