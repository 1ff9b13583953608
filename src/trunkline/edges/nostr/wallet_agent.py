"""The agent ``nostr.wallet``: paying for a job is a call like any other, so it is asked about, recorded and ends once.

Owns the tools ``pay`` (hold money of the exchange in the embedded wallet, or pay at once by a wallet elsewhere or in
ecash), ``new`` and ``fund`` (accounts, regtest money), ``mint`` (an invoice for ecash), and the guard: budgets, which
nobody can approve away, and invoices that name no job, which a person is always asked about. What is held is released
or refunded when the job has its verdict (``settling``). Does not own the fold (``payments``), ecash (``ecash``) or the
tools that take ecash out and in (``wallet_tokens``).

Invariant: an invoice is paid by one call at most, a provider once for a job, and nothing is held for a job that is
over. What is judged to be within the budgets counts as spent in the same step, so calls that are made together stay
within them, too. A payment whose end nobody knows is *unknown*, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.config import NostrWallet
from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed
from trunkline.edges.nostr import wallet_tokens
from trunkline.edges.nostr.ecash import Ecash
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.payments import Invoiced, Payments
from trunkline.edges.nostr.till import Till
from trunkline.edges.nostr.wallet_tokens import WalletTokens
from trunkline.edges.resident import Resident
from trunkline.effects import Cancel, Deliver
from trunkline.events import CancelAcknowledged
from trunkline.model import Decision, Fault, Now, ProcessIdentity, Status, ToolDefinition, Verdict, fault
from trunkline.money import budget, demands, signed_events, wallet
from trunkline.money.budget import BUDGET_RULE, UNTIED_RULE, Budget
from trunkline.money.demands import Demand, NotADemand
from trunkline.money.job_names import salt_of
from trunkline.money.rail import MAX_MSATS, Msats, Payer, RailFailed, RailName, Way
from trunkline.money.wallet import OWN, Held, Paid, Refused

EDGE: Final = "nostr"
AGENT: Final = "nostr.wallet"
PAY, NEW, FUND, MINT = f"{AGENT}/pay", f"{AGENT}/new", f"{AGENT}/fund", f"{AGENT}/mint"
NOBODY_KNOWS: Final = "nobody can say whether it was paid"
# How long a payment without an end of its own is known after it was sent: longer than ecash is locked.
OPEN_MS: Final = 4 * 3_600_000
_NO_WAY: Final[dict[RailName, str]] = {
    "lightning": "the embedded wallet reaches nobody elsewhere; [nostr.wallet] connection and prepay = true do",
    "cashu": "none of its mints is listed in [nostr.wallet] mints",
}
_NO_PREPAY: Final[dict[RailName, str]] = {
    "lightning": _NO_WAY["lightning"],
    "cashu": "ecash that is handed over can be taken before the job is done; [nostr.wallet] prepay = true lets it be",
}
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
    # Whose ecash it is paid with, where ``invoice`` asks for ecash.
    mint: Annotated[str, Meta(max_length=2048)] = ""
    # The most that this mint may take for it, beside the amount.
    fee_msats: Annotated[int, Meta(ge=0, le=MAX_MSATS)] = 0


class _New(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    client: Hex32


class _Fund(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    msats: Msats


class _Mint(Struct, frozen=True, forbid_unknown_fields=True):
    mint: Annotated[str, Meta(min_length=1, max_length=2048)]
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
        "Pay for a job: hold the money until its result is verified, or pay at once (ecash, a wallet elsewhere).",
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
                    "description": "A signed invoice (BOLT 11) over the amount, or a request for ecash (NUT-18).",
                    "maxLength": 8192,
                },
                "mint": {
                    "type": "string",
                    "description": "The mint whose ecash it is paid with, if it is asked for in ecash.",
                    "maxLength": 2048,
                },
                "fee_msats": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_MSATS,
                    "description": "The most that this mint may take for it, beside the amount.",
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
    ToolDefinition(
        MINT,
        "An invoice of a listed mint: once somebody paid it, the exchange has so much ecash of it.",
        _schema({"mint": {"type": "string", "minLength": 1, "maxLength": 2048}, "msats": _MSATS}, ("mint", "msats")),
        Raw(b'{"type":"object"}'),
        side_effects=True,
        tags=("money", "nostr"),
    ),
)


class WalletAgent(Resident):
    """The agent. ``is_open`` says whether a call has no outcome yet, ``relay`` where the embedded relay is, for
    connections; ``payers`` pay at once: a wallet elsewhere, ecash.
    """

    def __init__(
        self,
        feed: Feed,
        settings: NostrWallet,
        payments: Payments,
        till: Till,
        is_open: Callable[[str], bool],
        public: str,
        payers: Sequence[Payer],
        ecash: Ecash | None,
        relay: Callable[[], str],
        background: Background,
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
        tokens: WalletTokens | None = None,
    ) -> None:
        super().__init__(feed, EDGE, AGENT, version, process, entropy)
        self._tokens = tokens
        self._budget = Budget(settings.max_msats_per_job, settings.max_msats_per_day)
        self._prepay = settings.prepay
        self._mints = frozenset(mint.rstrip("/") for mint in settings.mints)
        self._payments = payments
        self._till = till
        self._is_open = is_open
        self._public = public
        self._payers = payers
        self._ecash = ecash
        self._relay = relay
        self._background = background

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Its tools."""
        return DEFINITIONS if self._tokens is None else (*DEFINITIONS, *wallet_tokens.DEFINITIONS)

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
        if problem is None:
            return self._misfit(payment)
        too_much = self._too_much(payment, self._feed.now())
        return msgspec.structs.replace(_denied(BUDGET_RULE, problem), for_record=too_much)

    def _misfit(self, payment: Payment) -> Verdict | None:
        """What a person would be shown wrongly is denied, and what does not name its job is always asked about."""
        if payment.mint and payment.mint.rstrip("/") not in self._mints:
            return _denied("input", fault("tool.invalid_input", "mint: is not listed in [nostr.wallet] mints"))
        return _untied(payment)

    def _too_much(self, payment: Payment, now: Now) -> str:
        """The amount, the limit and the setting; empty if so much may be paid."""
        own = self._payments.wallet
        msats = payment.amount_msats + payment.fee_msats
        problem = budget.problem(self._budget, own, msats, payment.job.order, now.ms)
        return f"{problem} in [nostr.wallet]" if problem else ""

    def _beyond_budget(self, payment: Payment, now: Now) -> Fault | None:
        claimed = budget.claim_problem(self._payments.wallet, payment.payee, payment.paid_before)
        problem = self._too_much(payment, now) or claimed
        return fault("policy.denied", problem, details={"policy": BUDGET_RULE}) if problem else None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver, now: Now) -> None:
        """Carry out a call. What is refused by the wallet has changed nothing."""
        try:
            match effect.tool_id:
                case _ if effect.tool_id == PAY:
                    self._pay(effect, msgspec.json.decode(bytes(effect.input), type=Payment), now)
                case _ if effect.tool_id == MINT:
                    self._background.spawn(self._mint(effect, msgspec.json.decode(bytes(effect.input), type=_Mint)))
                case _ if effect.tool_id in wallet_tokens.TOOLS and self._tokens is not None:
                    self._background.spawn(self._token(effect, self._tokens))
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
            demand = demands.read(payment.invoice, payment.job.job_hash, salt_of(bytes(payment.asked)))
        except NotADemand as error:
            raise Refused("OTHER", f"invoice: {error}") from None
        if demand.amount_msats != payment.amount_msats:
            raise Refused("OTHER", f"amount_msats: the invoice is over {demand.amount_msats}")
        _need_asked(payment)
        self._need_first(payment, demand.payment_hash)
        # Once more, and in one step with what counts as spent from here on: others were judged and sent meanwhile.
        problem = self._beyond_budget(payment, now)
        if problem is not None:
            self._failed(effect, problem)
        elif demand.rail == "lightning" and demand.node == self._payments.node:
            self._hold(effect, payment, self._payments.issued(payment.invoice, now), now)
        else:
            self._send(effect, payment, demand, now)

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
            # What is paid by hand is for no call whose verdict we know: the provider, who is ourselves, judges it.
            judge = "buyer" if order else "provider"
            self._till.pay(payment_hash, OWN, judge, now, order=order, call_id=effect.call_id, then=stored)
            return
        if self._till.request_of(payment_hash):
            raise Refused("PAYMENT_FAILED", "the job of this invoice is not waiting for a payment")
        if not order:
            raise Refused("PAYMENT_FAILED", "no call waits for this job (order), so nobody would say when it is paid")
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

    def _send(self, effect: Deliver, payment: Payment, demand: Demand, now: Now) -> None:
        """Have it paid at once. That it was sent counts from here on, and is on record before it is."""
        payer = next((one for one in self._payers if one.reaches(payment.invoice)), None)
        if payer is None:
            raise Refused("PAYMENT_FAILED", _NO_WAY[demand.rail])
        if not self._prepay:
            raise Refused("PAYMENT_FAILED", _NO_PREPAY[demand.rail])
        wish = Held(
            payment_hash=demand.payment_hash,
            payer=OWN,
            payee=payment.payee,
            msats=payment.amount_msats,
            invoice=payment.invoice,
            asked=payment.asked,
            quote_id="",
            request_id=payment.job.request_id,
            schema_id=payment.job.schema_id,
            job_hash=payment.job.job_hash,
            provider=payment.payee,
            at_ms=now.ms,
            judge="buyer",
            order=payment.job.order,
            call_id=effect.call_id,
        )
        way = Way(payment.mint.rstrip("/"), payment.fee_msats)
        payer.need_ready(wish, way)
        sent = wallet.Sent(
            wish.payment_hash, wish.provider, wish.msats, wish.job_hash, wish.order, wish.call_id, now.ms,
            demand.expires_s * 1000 or now.ms + OPEN_MS, way.fee_msats,
        )  # fmt: skip

        def stored() -> None:
            self._background.spawn(self._sent(effect, wish, demand.rail, payer, way))

        self._payments.take(self._payments.wallet.try_send(sent), stored)

    async def _sent(self, effect: Deliver, wish: Held, rail: RailName, payer: Payer, way: Way) -> None:
        """Pay, and wait for what is known of it."""
        try:
            preimage = await payer.pay(wish, way)
        except RailFailed as failed:
            if failed.is_unknown:
                self.finish(effect.call_id, Status.UNKNOWN, fault("tool.failed", failed.why))
                return
            await self._stored(wallet.Settled(wish.payment_hash))
            self._failed(effect, fault("tool.failed", failed.why))
            return
        except BaseException:
            # A defect, or the end of the exchange: the request may have left.
            if self.number:
                self.finish(effect.call_id, Status.UNKNOWN, fault("tool.failed", NOBODY_KNOWS))
            raise
        told = {"state": "handed_over", "rail": rail, "payment_hash": wish.payment_hash}
        if preimage:
            await self._stored(wallet.Settled(wish.payment_hash, preimage))
            told |= {"state": "paid", "preimage": preimage}
        self._done(effect, told)

    async def _mint(self, effect: Deliver, wish: _Mint) -> None:
        """Have a mint write an invoice. Nothing is lost if that is never paid."""
        try:
            if self._ecash is None:
                raise RailFailed("no mint is listed in [nostr.wallet] mints")
            invoice, expires_s = await self._ecash.fund(wish.mint, wish.msats)
        except RailFailed as failed:
            self._failed(effect, fault("tool.failed", failed.why))
            return
        self._done(effect, {"mint": wish.mint, "msats": wish.msats, "invoice": invoice, "expires_s": expires_s})

    async def _token(self, effect: Deliver, tokens: WalletTokens) -> None:
        """Take ecash out or in."""
        try:
            told = await tokens.carried_out(effect)
        except msgspec.DecodeError:
            self._failed(effect, fault("tool.invalid_input"))
        except RailFailed as failed:
            status = Status.UNKNOWN if failed.is_unknown else Status.FAILED
            self.finish(effect.call_id, status, fault("tool.failed", failed.why))
        else:
            # What is on record of it is there before anybody is told.
            self._feed.when_stored(lambda: self._done(effect, told))

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
        demand = demands.read(payment.invoice, payment.job.job_hash, salt_of(bytes(payment.asked)))
    except NotADemand:
        return None  # it is refused when it is to be paid, with the reason
    if demand.names_job is False:
        return _denied("input", fault("tool.invalid_input", "invoice: is for another job"))
    if payment.invoice_names_job not in {None, bool(demand.names_job)}:
        return _denied("input", fault("tool.invalid_input", "invoice_names_job: is not what the invoice says"))
    if (payment.mint.rstrip("/") not in demand.mints) if demand.rail == "cashu" else bool(payment.mint):
        return _denied("input", fault("tool.invalid_input", "mint: is none whose ecash the invoice asks for"))
    if demand.rail != "cashu" and payment.fee_msats:
        return _denied("input", fault("tool.invalid_input", "fee_msats: is what a mint takes, and there is none"))
    if demand.rail == "cashu" and demand.names_job is None:
        return _denied("input", fault("tool.invalid_input", "invoice: names no job, so no receipt of it would hold"))
    reason = "the invoice does not say which job it is for: only the payee's word ties it to this one"
    return None if demand.names_job else Verdict(Decision.ASK, UNTIED_RULE, reason, AGENT)


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
