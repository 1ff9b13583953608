"""The embedded wallet for those who have an account in it, over NIP-47 on the embedded relay.

Owns what each method does and who may ask: a public key that ``trunkline wallet new`` was given, for its own account
and no other. ``pay_invoice`` of a job's invoice holds the money and is answered when the job was verified (the
preimage) or the money went back (an error); of any other invoice it pays at once. Does not own money (``payments``) or
jobs (``till``).

Invariant: a client never spends more than its account has, and one invoice is paid once, however often it is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trunkline.edges.exchange import Feed
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr.events import Draft, Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import BadMessage
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.nip47 import WalletError, WalletRequest
from trunkline.edges.nostr.pace import Pace
from trunkline.edges.nostr.payments import Invoiced, Payments
from trunkline.edges.nostr.session import Filter
from trunkline.edges.nostr.till import Till
from trunkline.events import Noticed
from trunkline.model import Now
from trunkline.money.bolt11 import MAX_DESCRIPTION_BYTES
from trunkline.money.rail import MAX_MSATS
from trunkline.money.wallet import Held, Over, Refused

SUBSCRIPTION: Final = "wallet"
# Requests that are looked at in a minute: of each account, and of all strangers together, as a new key costs nothing.
REQUESTS_PER_MINUTE: Final = 300
STRANGERS_PER_MINUTE: Final = 60
# Payments of each account: about as many as a person or a program needs, and few enough for the record.
PAYMENTS_PER_MINUTE: Final = 30
# Clocks differ; what is older was sent for somebody who waits no more.
OLDEST_S: Final = 600
MAX_EXPIRY_S: Final = 86_400
DEFAULT_EXPIRY_S: Final = 3600


class WalletService:
    """Answers requests. ``say`` tells the relay of an event."""

    def __init__(
        self, feed: Feed, signer: Signer, payments: Payments, till: Till, say: Callable[[Event], object]
    ) -> None:
        self._feed = feed
        self._signer = signer
        self._payments = payments
        self._till = till
        self._say = say
        # By account, and under "" for strangers.
        self._requests: dict[str, Pace] = {}
        self._payments_made: dict[str, Pace] = {}
        self.counts = dict.fromkeys(("requests", "refused"), 0)

    @property
    def public(self) -> str:
        """The wallet's public key."""
        return self._signer.public

    def start(self, now: Now) -> None:
        """Say what the wallet can do, and go on with payments that somebody waits for."""
        self._tell(nip47.info_draft(int(now.wall)))
        for held in self._payments.wallet.held.values():
            if held.nip47[0]:
                self._answer_when_over(held)

    def filters(self, now: Now) -> Sequence[Filter]:
        """What it listens to."""
        return [Filter(kinds=(nip47.REQUEST,), p=(self.public,), since=int(now.wall) - OLDEST_S)]

    # -- requests ------------------------------------------------------------------------------------------------------

    def heard(self, event: Event, now: Now) -> None:
        """A request, whose id and signature were checked."""
        if event.kind != nip47.REQUEST or self.public not in event.values("p"):
            return
        # Whoever signed it: each account has its own share, which no stranger and no other account can use up.
        account = self._payments.wallet.account_of(event.pubkey)
        most = STRANGERS_PER_MINUTE if account is None else REQUESTS_PER_MINUTE
        if not self._requests.setdefault(account or "", Pace(most)).try_take(now):
            self._note("nostr.wallet_too_many", "requests to the wallet came faster than they are looked at")
            return
        try:
            request = nip47.read_request(event, self._signer)
        except BadMessage as error:
            self._note("nostr.wallet_malformed", str(error))
            return
        self.counts["requests"] += 1
        if request.expires_s is not None and now.wall >= request.expires_s:
            return
        try:
            if account is None:
                raise Refused("UNAUTHORIZED", "this key has no wallet here")
            method = self._methods().get(request.method)
            if method is None:
                raise Refused("NOT_IMPLEMENTED", f"this wallet knows {', '.join(nip47.METHODS)}")
            result = method(request, account, now)
        except Refused as error:
            self.counts["refused"] += 1
            self._fail(request, error.code, str(error), now)
            return
        if result is not None:
            self._answer(request, result, now)

    def _methods(self) -> Mapping[str, Callable[[WalletRequest, str, Now], dict[str, Any] | None]]:
        """None as a result: it is answered later."""
        return {
            "pay_invoice": self._pay,
            "get_balance": self._balance,
            "make_invoice": self._invoice,
            "lookup_invoice": self._lookup,
            "get_info": self._info,
        }

    def _balance(self, _request: WalletRequest, account: str, _now: Now) -> dict[str, Any]:
        return {"balance": self._payments.wallet.balances[account]}

    def _info(self, _request: WalletRequest, account: str, _now: Now) -> dict[str, Any]:
        return {"alias": account, "pubkey": self._payments.node, "network": "regtest", "methods": nip47.METHODS}

    def _pay(self, request: WalletRequest, account: str, now: Now) -> dict[str, Any] | None:
        text = request.params.get("invoice")
        if not isinstance(text, str):
            raise Refused("OTHER", "invoice: expected a text")
        invoiced = self._payments.issued(text, now)
        amount = request.params.get("amount", invoiced.msats)
        if amount != invoiced.msats:
            raise Refused("OTHER", f"amount: the invoice is over {invoiced.msats}")
        payment_hash, wallet = invoiced.payment_hash, self._payments.wallet
        before = wallet.held.get(payment_hash) or wallet.unreceipted.get(payment_hash)
        over = wallet.over.get(payment_hash)
        payer = before.payer if before is not None else over.payer if over is not None else account
        if payer != account:
            raise Refused("PAYMENT_FAILED", "this invoice was used already")
        waiting = (request.id, request.client, request.encryption)
        if before is None and over is None:
            self._begin(invoiced, account, waiting, now)
        self._payments.when_over(payment_hash, lambda ended: self._tell_outcome(waiting, ended))
        return None

    def _begin(self, invoiced: Invoiced, account: str, waiting: tuple[str, str, str], now: Now) -> None:
        self._payments.need_open(account)
        if not self._payments_made.setdefault(account, Pace(PAYMENTS_PER_MINUTE)).try_take(now):
            raise Refused("RATE_LIMITED", f"more than {PAYMENTS_PER_MINUTE} payments in a minute; try again later")
        if self._till.is_offer(invoiced.payment_hash):
            self._till.pay(invoiced.payment_hash, account, "provider", now, nip47=waiting)
        elif self._till.request_of(invoiced.payment_hash):
            raise Refused("PAYMENT_FAILED", "the job of this invoice is not waiting for a payment")
        else:
            self._payments.move(invoiced, account, now)

    def _answer_when_over(self, held: Held) -> None:
        waiting = held.nip47
        self._payments.when_over(held.payment_hash, lambda ended: self._tell_outcome(waiting, ended))

    def _tell_outcome(self, waiting: tuple[str, str, str], over: Over) -> None:
        """How a payment ended, for who asked for it."""
        request_id, client, encryption = waiting
        request = WalletRequest(request_id, client, "pay_invoice", {}, encryption)
        now = self._feed.now()
        if over.preimage:
            self._answer(request, {"preimage": over.preimage, "fees_paid": 0}, now)
        else:
            self._fail(request, "PAYMENT_FAILED", over.reason or "it was refunded", now)

    def _invoice(self, request: WalletRequest, account: str, now: Now) -> dict[str, Any]:
        self._payments.need_open(account)
        msats, text = request.params.get("amount"), request.params.get("description", "")
        expiry_s = request.params.get("expiry", DEFAULT_EXPIRY_S)
        if type(msats) is not int or not 1 <= msats <= MAX_MSATS:
            raise Refused("OTHER", "amount: expected millisatoshis")
        if not isinstance(text, str) or len(text.encode()) > MAX_DESCRIPTION_BYTES:
            raise Refused("OTHER", f"description: expected a text of {MAX_DESCRIPTION_BYTES} bytes at most")
        if type(expiry_s) is not int or not 1 <= expiry_s <= MAX_EXPIRY_S:
            raise Refused("OTHER", f"expiry: expected 1 to {MAX_EXPIRY_S} seconds")
        # With the moment: a request that is told again after a restart is another invoice, which was never paid.
        quote_id = hashlib.sha256(f"{account} {request.id} {now.ms}".encode()).hexdigest()
        return self._shown(self._payments.invoice(account, msats, quote_id, text, now, expiry_s), account, now)

    def _lookup(self, request: WalletRequest, account: str, now: Now) -> dict[str, Any]:
        found: Invoiced | None = None
        if isinstance(name := request.params.get("payment_hash"), str):
            found = self._payments.invoice_of(name)
        elif isinstance(text := request.params.get("invoice"), str):
            found = self._payments.issued(text, now)
        if found is None or found.payee != account:
            raise Refused("NOT_FOUND", "no invoice of yours is known by this")
        return self._shown(found, account, now)

    def _shown(self, one: Invoiced, account: str, now: Now) -> dict[str, Any]:
        wallet = self._payments.wallet
        over = wallet.over.get(one.payment_hash)
        state = "pending"
        if one.payment_hash in wallet.held:
            state = "accepted"
        elif over is not None:
            state = "settled" if over.preimage else "failed"
        elif now.wall >= one.expires_s:
            state = "expired"
        shown: dict[str, Any] = {
            "type": "incoming", "state": state, "invoice": one.text, "description": one.description,
            "payment_hash": one.payment_hash, "amount": one.msats, "fees_paid": 0,
            "created_at": one.created_s, "expires_at": one.expires_s,
        }  # fmt: skip
        if over is not None and over.preimage and one.payee == account:
            shown |= {"preimage": over.preimage, "settled_at": over.at_ms // 1000}
        return shown

    # -- words ---------------------------------------------------------------------------------------------------------

    def _answer(self, request: WalletRequest, result: dict[str, Any], now: Now) -> None:
        self._respond(request, now, result=result)

    def _fail(self, request: WalletRequest, code: str, why: str, now: Now) -> None:
        self._respond(request, now, error=WalletError(code, why))

    def _respond(
        self,
        request: WalletRequest,
        now: Now,
        *,
        result: dict[str, Any] | None = None,
        error: WalletError | None = None,
    ) -> None:
        draft = nip47.response_draft(
            self._signer, request.id, request.client, request.encryption, request.method, int(now.wall),
            result=result, error=error,
        )  # fmt: skip
        self._tell(draft)

    def _tell(self, draft: Draft) -> None:
        self._say(signed(draft, self._signer))

    def _note(self, code: str, detail: str) -> None:
        self._feed.feed([Noticed(code, EDGE, "", detail)])
