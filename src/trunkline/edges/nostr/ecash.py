"""Ecash of the mints that the configuration lists: paid with (``money.rail.Payer``) and taken for jobs (``Payee``).

Theory of operation, of one payment::

    payer   lock ──on disk──> nutzap ──> the payee redeems it: paid, and a receipt if the job was found right
              └── never told, or never redeemed: had back once the lock has ended
    payee   nutzap ──checked──> taken ──> the job ──> found right: redeemed, receipt, result
                                            └── else: left alone, so that it goes back to its payer

Owns which mint is asked what and when, and who is told. Does not own the steps at a mint (``cashu_rail``), quotes
(``till``), budgets (``wallet_agent``) or the form of a nutzap (``nutzaps``).

Invariant: no mint is asked anything that is not listed. Ecash that anybody could spend leaves the purse for nobody but
its own mint, and for who asks for a token that he had made of it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from trunkline.config import NostrKinds
from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.nostr import nutzaps
from trunkline.edges.nostr.cashu_rail import UNIT, CashuRail
from trunkline.edges.nostr.events import Event, Tag, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.mint_client import MintClient, NoAnswer
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.purse_file import PurseFile
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.settling import to_be_paid
from trunkline.events import Noticed
from trunkline.model import Status
from trunkline.money import demands, signed_events, wallet
from trunkline.money.bech32 import public_of
from trunkline.money.cashu import proof
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG
from trunkline.money.cashu.purse import MANY_PROOFS, Locked, Taken
from trunkline.money.cashu.requests import PaymentRequest, read_request, write_request
from trunkline.money.cashu.spent import spent_chars
from trunkline.money.cashu.tokens import Token, read_token, write_token
from trunkline.money.rail import Due, Proven, RailFailed, Way
from trunkline.money.receipts import Issued
from trunkline.money.refusals import ProofRefused
from trunkline.money.wallet import Held, Refused

log = logging.getLogger("trunkline")

EDGE: Final = "nostr"
_LABEL: Final = b"trunkline ecash locks 1"
# How often it is looked whether something is due, and how often a mint is asked what it signs with.
LOOK_S: Final = 1.0
TERMS_S: Final = 600.0
# After a mint that did not answer, and between two looks at a token that its payee has not redeemed.
FIRST_AGAIN_S: Final = 1.0
LAST_AGAIN_S: Final = 300.0
# The longest between two looks at an invoice that somebody is to pay: he waits for it.
FUNDING_AGAIN_S: Final = 30.0
# How long relays may take to take a nutzap before nobody knows whether one did.
TELL_S: Final = 60.0

Say = Callable[[Event], "asyncio.Future[bool]"]


class _Again(Struct):
    """When something is tried again, and how long after that the next time."""

    at: float
    wait_s: float = FIRST_AGAIN_S


class Ecash:
    """The purses of all mints. ``secret`` is the wallet's own, ``signer`` who we are; ``say`` tells relays."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        mints: Sequence[str],
        kinds: NostrKinds,
        signer: Signer,
        secret: bytes,
        payments: Payments,
        receipting: Receipting,
        background: Background,
        say: Say,
        files: Callable[[str], PurseFile],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._feed = feed
        self._views = views
        self._kinds = kinds
        self._signer = signer
        self._payments = payments
        self._receipting = receipting
        self._background = background
        self._say = say
        # Not the key that we are known by (NIP-61): that one signs what others say.
        key = hmac.digest(secret, _LABEL, "sha256")
        self.rails: dict[str, CashuRail] = {}
        for mint in mints:
            client = MintClient(mint)
            file = files(client.url)
            self.rails[client.url] = CashuRail(client, key, file.read(), file.write, lambda: feed.now().wall, entropy)
        self._timer: Timer | None = None
        self._is_looking = False
        self._looks_again = False
        self._again: dict[str, _Again] = {}
        # Payments whose receipt is being made.
        self._issuing: set[str] = set()

    # -- coming and going ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with what was begun, and look from here on."""
        if self.rails:
            self._tell_balances()
            self._wake()

    def stop(self) -> None:
        """Look at nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def info(self, relays: Sequence[str], at: int) -> Event:
        """What we say of how we take ecash."""
        key = next(iter(self.rails.values())).key.hex()
        return signed(nutzaps.info_draft(tuple(self.rails), key, relays, created_at=at), self._signer)

    def look_soon(self) -> None:
        """Something may be due now."""
        kept = {
            one
            for mint in self.rails
            for one in (mint, *(f"{what} {mint}" for what in ("terms", "begun", "funding", "many", "sent")))
        }
        self._again = {name: one for name, one in self._again.items() if name in kept}
        if self.rails:
            self._wake()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._feed.call_later(LOOK_S, self._wake)
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        self._background.spawn(self._look_at_all())

    async def _look_at_all(self) -> None:
        try:
            self._looks_again = True
            while self._looks_again:
                self._looks_again = False
                for rail in self.rails.values():
                    await self._look_at(rail)
        finally:
            self._is_looking = False

    async def _look_at(self, rail: CashuRail) -> None:
        """All that is due at one mint, each by itself; a mint that does not answer is left alone for a while."""
        if not self._is_due(rail.url):
            return
        try:
            await self._tried(rail, f"terms {rail.url}", self._look_at_terms(rail))
            if rail.purse.begun:
                await self._tried(rail, f"begun {rail.url}", self._look_at_begun(rail))
            if rail.purse.funding:
                await self._tried(rail, f"funding {rail.url}", self._look_at_funding(rail))
            if len(rail.purse.proofs) >= MANY_PROOFS:
                await self._tried(rail, f"many {rail.url}", self._look_at_many(rail))
            if rail.purse.sent:
                await self._tried(rail, f"sent {rail.url}", self._look_at_sent(rail))
            for locked in rail.purse.locked:
                await self._tried(rail, locked.held.payment_hash, self._look_at_locked(rail, locked))
            self._again.pop(rail.url, None)
        except NoAnswer as failed:
            if rail.url not in self._again:
                log.warning("nostr: ecash of %s: %s", rail.url, failed.why)
            self._later(rail.url)
        self._tell_balances()

    async def _tried(self, rail: CashuRail, name: str, look: Coroutine[None, None, None]) -> None:
        """Look at one thing, if that is due. What does not work is tried again later, and holds up nothing else."""
        if not self._is_due(name):
            look.close()
            return
        try:
            await look
        except NoAnswer:
            raise
        except (RailFailed, ProofRefused) as error:
            if name not in self._again:
                log.warning("nostr: ecash of %s: %s", rail.url, error)
            self._later(name)

    async def _look_at_terms(self, rail: CashuRail) -> None:
        await rail.look()
        self._again[f"terms {rail.url}"] = _Again(self._feed.now().mono + TERMS_S)

    async def _look_at_begun(self, rail: CashuRail) -> None:
        for held in await rail.finish_begun():
            self._payments.take(wallet.Settled(held.payment_hash))
        self._again.pop(f"begun {rail.url}", None)

    async def _look_at_funding(self, rail: CashuRail) -> None:
        if not await rail.collect():
            self._later(f"funding {rail.url}", FUNDING_AGAIN_S)

    async def _look_at_many(self, rail: CashuRail) -> None:
        if not await rail.consolidate():
            self._later(f"many {rail.url}")

    async def _look_at_sent(self, rail: CashuRail) -> None:
        await rail.forget_spent()
        self._later(f"sent {rail.url}")

    def _is_due(self, name: str) -> bool:
        again = self._again.get(name)
        return again is None or self._feed.now().mono >= again.at

    def _later(self, name: str, longest_s: float = LAST_AGAIN_S) -> None:
        again = self._again.setdefault(name, _Again(0.0))
        again.at = self._feed.now().mono + again.wait_s
        again.wait_s = min(2 * again.wait_s, longest_s)

    def _tell_balances(self) -> None:
        """Have the record say what there is, where it says something else."""
        for mint, rail in self.rails.items():
            has = (rail.purse.amount, rail.purse.amount_locked)
            told = self._payments.wallet.ecash.get(mint)
            if has != ((0, 0) if told is None else (told.sats, told.locked)):
                self._payments.take(wallet.Ecash(mint, *has, self._feed.now().ms))
            self._tell_tokens(rail)

    def _tell_tokens(self, rail: CashuRail) -> None:
        """The same of tokens: those that were made, and those that are over."""
        at_ms, told = self._feed.now().ms, self._payments.wallet.tokens
        has = {one.name: one for one in rail.purse.sent}
        for name, one in has.items():
            if name not in told:
                self._payments.take(wallet.TokenSent(name, rail.url, one.amount, at_ms))
        for step in [one for one in told.values() if one.mint == rail.url and one.name not in has]:
            self._payments.take(wallet.TokenOver(step.name, step.mint, step.sats, at_ms))

    def status(self) -> Mapping[str, object]:
        """Figures for ``trunkline status``."""
        if not self.rails:
            return {}
        return {
            "ecash_msats": sum(rail.purse.amount for rail in self.rails.values()) * proof.MSATS[UNIT],
            "ecash_locked_msats": sum(rail.purse.amount_locked for rail in self.rails.values()) * proof.MSATS[UNIT],
            "mints": f"{sum(rail.terms is not None for rail in self.rails.values())} of {len(self.rails)} known",
        }

    # -- paying --------------------------------------------------------------------------------------------------------

    def reaches(self, request: str) -> bool:
        """Whether this asks for ecash of a mint that is listed."""
        return demands.is_ecash(request) and bool(self._shared(request))

    def _shared(self, request: str) -> list[CashuRail]:
        """Of the mints that are asked for, those that are listed."""
        try:
            mints = read_request(request).mints
        except ProofRefused:
            return []
        return [self.rails[mint] for mint in mints if mint in self.rails]

    def way(self, request: str) -> Way | None:
        """The mint that takes least for paying this, of several the one of which we have most; None if there is not
        enough at any.
        """
        found = []
        for rail in self._shared(request):
            with suppress(RailFailed):
                cost = rail.cost(read_request(request).amount)
                found.append((cost, -rail.purse.amount, rail.url))
        return None if not found else Way(min(found)[2], min(found)[0] * proof.MSATS[UNIT])

    def need_ready(self, wish: Held, way: Way) -> None:
        """``Refused`` if there is not enough."""
        rail = self.rails.get(way.mint)
        try:
            if rail is None:
                raise RailFailed("none of its mints is listed in [nostr.wallet] mints")
            rail.need_ready(wish, way.fee_msats // proof.MSATS[UNIT])
        except RailFailed as failed:
            raise Refused("PAYMENT_FAILED", failed.why) from None

    async def pay(self, wish: Held, way: Way) -> str:
        """Lock the money to its payee, and tell him. Empty: what proves it is known when he has redeemed it."""
        rail = self.rails[way.mint]
        asked = signed_events.read(bytes(wish.asked))
        try:
            locked = await rail.lock(wish, lambda tag: tag in asked.tags, way.fee_msats // proof.MSATS[UNIT])
        except ProofRefused as refused:
            raise RailFailed(f"the mint did not do it: {refused}") from None
        finally:
            self._tell_balances()
        token = Token(rail.url, UNIT, locked.proofs)
        draft = nutzaps.nutzap_draft(
            token, public_of(wish.provider), wish.request_id, self._kinds.request, created_at=int(self._feed.now().wall)
        )
        event = signed(draft, self._signer)
        # On disk first: from here on the payee may have it.
        rail.told(locked, event.id)
        told = self._say(event)
        await asyncio.wait([told], timeout=TELL_S)
        if not told.done() or told.cancelled() or not told.result():
            raise RailFailed("no relay says that it took the nutzap; what the payee does not redeem comes back",
                             is_unknown=True)  # fmt: skip
        return ""

    def paid_by(self, payment_hash: str, order: str) -> str:
        """The call that handed ecash over for an order; empty if none did."""
        for rail in self.rails.values():
            for locked in rail.purse.locked:
                if locked.nutzap and (locked.held.payment_hash, locked.held.order) == (payment_hash, order):
                    return locked.held.call_id
        return ""

    async def _look_at_locked(self, rail: CashuRail, locked: Locked) -> None:
        """How a payment of ours stands: redeemed, to be had back, or neither yet."""
        held, name = locked.held, locked.held.payment_hash
        call = self._views.call(held.order) if held.order else None
        is_open = call is not None and not call.status.is_outcome
        if name in self._issuing or (is_open and not rail.is_over(locked)):
            return
        standing = await rail.standing(locked)
        if standing.unspent:
            if not rail.is_over(locked) or standing.is_pending:
                self._later(name)
                return
            await rail.reclaim(locked, standing.unspent)
            locked = next(one for one in rail.purse.locked if one.held.payment_hash == name)
        if standing.proven is not None:
            is_right = call is not None and call.status is Status.SUCCEEDED and held.provider in to_be_paid(call.output)
            if not is_right:
                self._notice(held, "it was redeemed for a job that has no result that counts")
            if not is_right or self._receipting.known(name, held.job_hash) is not None:
                self._settled(rail, locked, locked.amount)
                return
            self._issuing.add(name)

            def issued(_issued: Issued | None) -> None:
                self._issuing.discard(name)
                self._settled(rail, locked, locked.amount)

            self._receipting.issue(held, standing.proven, held.order, issued, rule_of=held.call_id, prepaid=True)
            return
        # Nothing of it is unspent, and the payee does not have all of it: there is no receipt.
        gone = standing.paid + standing.unproven
        if gone:
            whole = locked.amount + locked.back
            self._notice(held, f"{standing.paid} of {whole} satoshis are proven to be redeemed, {gone} are spent")
        self._settled(rail, locked, gone)

    def _notice(self, held: Held, text: str) -> None:
        self._feed.feed([Noticed("nostr.ecash", EDGE, held.provider, text)])

    def _settled(self, rail: CashuRail, locked: Locked, paid: int) -> None:
        """It is over: its payee has so many satoshis of it."""
        name = locked.held.payment_hash
        told = wallet.Settled(name)
        if paid:
            msats = 0 if paid == locked.amount + locked.back else paid * proof.MSATS[UNIT]
            told = wallet.Settled(name, locked.nutzap or "untold", msats)
        self._payments.take(told)
        rail.ended(name)
        self._again.pop(name, None)
        self._tell_balances()

    # -- being paid ----------------------------------------------------------------------------------------------------

    def asking(self, amount_msats: int, payee: str, job_hash: str, payment_id: str) -> Due | None:
        """What we ask to be paid in ecash, in whole satoshis; None if no mint can be asked for that now."""
        amount = -(-amount_msats // proof.MSATS[UNIT])
        mints = tuple(mint for mint, rail in self.rails.items() if rail.can_ask(amount))
        if not mints:
            return None
        key = self.rails[mints[0]].key.hex()
        tags = ((JOB_TAG, job_hash), (PAYMENT_TAG, payment_id))
        request = PaymentRequest(amount, UNIT, mints, key, payment_id=payment_id, tags=tags)
        # Which of the mints it will be, the payer says.
        return Due(amount * proof.MSATS[UNIT], payee, "", write_request(request), job_hash)

    def keyset_tags(self, request: str) -> tuple[Tag, ...]:
        """What our event says of the keys that we take for this."""
        mints = read_request(request).mints
        return tuple(self.rails[mint].keyset_tag() for mint in mints if self.rails[mint].terms is not None)

    async def check(self, token: Token, request: str) -> None:
        """``ProofRefused`` unless this pays a request of ours; ``RailFailed`` if its mint does not answer."""
        rail = self.rails.get(token.mint)
        if rail is None or token.mint not in read_request(request).mints:
            raise ProofRefused("other_mint")
        await rail.check(token, request)

    def take(self, held: Held, token: Token) -> None:
        """Hold a token that was checked, for a job."""
        self.rails[token.mint].take(held, token)

    def held_for(self, request_id: str) -> Held | None:
        """What is held for a job, or was redeemed for it and its result is not told yet."""
        return next((one.held for _, one in self._taken() if one.held.request_id == request_id), None)

    def all_held(self) -> list[Held]:
        """All that is held for jobs done here."""
        return [one.held for _, one in self._taken()]

    def _taken(self) -> list[tuple[CashuRail, Taken]]:
        return [(rail, taken) for rail in self.rails.values() for taken in rail.purse.taken]

    def proof_chars(self, held: Held) -> int:
        """How much of a receipt of this the proofs will be."""
        found = (one for _, one in self._taken() if one.held.payment_hash == held.payment_hash)
        return sum(spent_chars(Token("", UNIT, one.proofs)) for one in found)

    def release(self, held: Held, done: Callable[[Proven | None], None]) -> None:
        """Redeem it, however long its mint does not answer. None: its lock ended before."""
        for rail, taken in self._taken():
            if taken.held.payment_hash == held.payment_hash:
                self._background.spawn(self._redeem(rail, taken, done))
                return
        done(None)

    async def _redeem(self, rail: CashuRail, taken: Taken, done: Callable[[Proven | None], None]) -> None:
        again = _Again(0.0)
        while True:
            try:
                proven = await rail.redeem(taken)
            except RailFailed as failed:
                log.warning("nostr: ecash of %s is not redeemed yet: %s", rail.url, failed.why)
                await asyncio.sleep(again.wait_s)
                again.wait_s = min(2 * again.wait_s, LAST_AGAIN_S)
                continue
            except ProofRefused as refused:
                self._feed.feed([Noticed("nostr.ecash", EDGE, "", f"it could not be redeemed: {refused}")])
                self._feed.when_stored(partial(done, None))
                return
            self._tell_balances()
            # What the receipt points to has to be on disk before it.
            self._feed.when_stored(partial(done, proven))
            return

    def refund(self, held: Held, reason: str, done: Callable[[], None] | None = None) -> None:  # noqa: ARG002  (nobody is told: the lock ends by itself)
        """Leave it to its payer, who has it back when its lock ends."""
        self.forget(held)
        if done is not None:
            self._feed.when_stored(done)

    def forget(self, held: Held) -> None:
        """It is redeemed, receipted and told; or left alone."""
        for rail, taken in self._taken():
            if taken.held.payment_hash == held.payment_hash:
                rail.give_up(held.payment_hash)

    # -- funding -------------------------------------------------------------------------------------------------------

    async def fund(self, mint: str, msats: int) -> tuple[str, int]:
        """An invoice of a mint, and until which second since 1970 it can be paid. ``RailFailed`` says why not."""
        rail, sats = self._listed(mint), _sats(msats)
        self._again.pop(f"funding {rail.url}", None)
        try:
            return await rail.fund(sats)
        except ProofRefused as refused:
            raise RailFailed(str(refused)) from None

    def _listed(self, mint: str) -> CashuRail:
        rail = self.rails.get(mint.rstrip("/"))
        if rail is None:
            listed = ", ".join(self.rails) or "none is"
            raise RailFailed(f"this mint is not listed in [nostr.wallet] mints ({listed})")
        return rail

    # -- tokens --------------------------------------------------------------------------------------------------------

    async def send(self, name: str, msats: int, mint: str = "") -> str:
        """Put so much aside as a token under this name, at the mint with most if none is named; whose it is.
        ``RailFailed`` says why not, or that nobody knows yet.
        """
        sats = _sats(msats)
        if not self.rails:
            raise RailFailed("no mint is listed in [nostr.wallet] mints")
        rail = self._listed(mint) if mint else max(self.rails.values(), key=lambda one: one.purse.amount)
        try:
            await rail.make_token(name, sats)
        except ProofRefused as refused:
            raise RailFailed(f"the mint did not do it: {refused}") from None
        finally:
            self._tell_balances()
        return rail.url

    def token(self, name: str) -> str:
        """A token that was made and that nobody has received yet; whoever reads it has the money."""
        for rail in self.rails.values():
            for sent in rail.purse.sent:
                if sent.name == name:
                    return write_token(Token(rail.url, UNIT, sent.proofs))
        raise RailFailed("there is no such token here: it was received or taken back, or never made")

    async def receive(self, text: str) -> tuple[str, int]:
        """Have a token of a listed mint; which that is, and what it came to in satoshis. ``RailFailed`` says why not,
        or that nobody knows yet.
        """
        try:
            token = read_token(text)
            rail = self._listed(token.mint)
            sats = await rail.receive(token)
        except ProofRefused as refused:
            raise RailFailed(str(refused)) from None
        finally:
            self._tell_balances()
        self._payments.take(wallet.TokenReceived(rail.url, sats, self._feed.now().ms))
        return rail.url, sats


def _sats(msats: int) -> int:
    if msats % proof.MSATS[UNIT]:
        raise RailFailed("ecash is made in whole satoshis: a multiple of 1000 msats")
    return msats // proof.MSATS[UNIT]


def files_of(home: Path, key: bytes, entropy: Callable[[int], bytes]) -> Callable[[str], PurseFile]:
    """Where the purse of each mint is."""
    return lambda mint: PurseFile(home, key, mint, entropy)


def is_nutzap_due(event: Event, public: str) -> bool:
    """Whether an event is a nutzap for us."""
    return event.kind == nutzaps.NUTZAP and event.value("p") == public
