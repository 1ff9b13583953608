"""Ecash at one mint: locked, taken, redeemed, had back, bought with Lightning, made into tokens and out of them.

Owns the order of disk and mint in each step. Does not own what a token proves (``money.cashu``), the mint's words, or
who is told (``ecash``). Nobody but the mint moves the money, so a crash takes nothing back: a swap that was begun is
asked about again (``finish_begun``), and what was never handed over stays in the purse until its lock ends.

Invariant: the outputs of a swap are on disk before the mint hears of it, and stay there until the mint gave what it
signed of them, said that it did not do it, or has spent the inputs for something else. One thing at a time is asked of
the mint that changes the purse.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.edges.nostr.mint_client import MintClient, NoAnswer
from trunkline.money import bolt11
from trunkline.money.cashu import proof as proofs
from trunkline.money.cashu.checking import Asked, check_hold
from trunkline.money.cashu.curve import public_key
from trunkline.money.cashu.keysets import Keyset, fee, find_keyset, second_version_id
from trunkline.money.cashu.locks import lock_secret, read_lock, signed_witness
from trunkline.money.cashu.mint import ProofState, check_unspent
from trunkline.money.cashu.opened import earliest_end, is_opened_by, is_signed_by
from trunkline.money.cashu.purse import (
    MANY_PROOFS,
    MAX_LOCKED,
    MAX_PROOFS,
    MAX_SENT,
    Begun,
    Funding,
    Locked,
    Purse,
    SentToken,
    Taken,
)
from trunkline.money.cashu.requests import PaymentRequest, read_request
from trunkline.money.cashu.spent import MAX_SPENT_CHARS, PROOF_CHARS, check_size, write_spent
from trunkline.money.cashu.swaps import Output, outputs_of, split
from trunkline.money.cashu.tokens import Proof, Token
from trunkline.money.rail import PaymentProof, Proven, RailFailed
from trunkline.money.refusals import ProofRefused
from trunkline.money.wallet import Held

# From a payment to the end of its lock: an hour that the payee wants to be left, the longest job, and a mint that does
# not answer for a while.
LOCK_S: Final = 3 * 3600
# What is left of a lock when a token is taken: enough to do the job and redeem it.
LEAST_LOCK_S: Final = 3600
# Before a lock ends nothing is begun with it any more: clocks differ, and a swap takes its time.
SPARE_S: Final = 60
UNIT: Final = "sat"
# Proofs that are swapped for fewer in one step: what every mint takes.
SWAPPED_AT_ONCE: Final = 64
# A secret with a lock: mints sign what they do not see, and some spend none that is longer. Ours have 400.
MAX_LOCK_CHARS: Final = 512
# In the place of one that is drawn, to see what a lock will be.
NONCE: Final = "00" * 32


class Standing(Struct, frozen=True):
    """How a payment of ours stands at its mint."""

    # What nobody has spent yet, and what is just being spent.
    unspent: tuple[Proof, ...]
    is_pending: bool
    # Spent by the payee, in satoshis; spent by us, after the lock had ended; and spent without a signature of either.
    paid: int
    back: tuple[Proof, ...]
    unproven: int
    # If the payee has all of it.
    proven: Proven | None


class CashuRail:
    """Ecash at one mint. ``private_key`` opens locks to us; ``keep`` puts the purse on disk."""

    def __init__(
        self,
        mint: MintClient,
        private_key: bytes,
        purse: Purse,
        keep: Callable[[Purse], None],
        wall: Callable[[], float],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._mint = mint
        self.url = mint.url
        self._private_key = private_key
        # Signatures have no sign of their key: whichever it has, locks name it with 02 (NIP-61).
        self.key = b"\x02" + public_key(private_key)[1:]
        self.purse = purse
        self._keep = keep
        self._wall = wall
        self._random_bytes = random_bytes
        self._turn = asyncio.Lock()
        # What the mint signs with, once it said that it enforces locks: without it nothing is asked for.
        self.terms: Keyset | None = None

    async def look(self) -> None:
        """Learn what the mint signs with now."""
        if missing := await self._mint.missing_nuts():
            self.terms = None
            raise RailFailed(f"the mint does not support what locks and refunds need: NUT {', '.join(missing)}")
        self.terms = await self._mint.active_keyset(UNIT)

    # -- the payee -----------------------------------------------------------------------------------------------------

    def can_ask(self, amount: int) -> bool:
        """Whether so many satoshis can be asked for: the mint is known, its fee for redeeming them is less, and a
        receipt holds their proofs.
        """
        if self.terms is None or len(self.purse.taken) >= MAX_LOCKED or len(self.purse.proofs) >= MAX_PROOFS:
            return False
        try:
            count = len(split(amount, self.terms))
            return amount > fee([self.terms] * count) and count * PROOF_CHARS <= MAX_SPENT_CHARS
        except ProofRefused:  # more than its keys can make
            return False

    def keyset_tag(self) -> tuple[str, str]:
        """What our event says of the keys that we take; only while ``terms`` are known."""
        assert self.terms is not None
        return (proofs.KEYSET_TAG, second_version_id(self.terms))

    async def check(self, token: Token, text: str) -> None:
        """``ProofRefused`` unless this token pays a request of ours; ``RailFailed`` if the mint does not say whether it
        is unspent, which is asked last.
        """
        check_size(token)
        request = read_request(text)
        asked = Asked(
            self.url, request.unit, request.amount, self.key[1:], request.hash, request.job_hash,
            request.secret_payment_id,
        )  # fmt: skip
        keysets = [] if self.terms is None else [self.terms]
        check_hold(token, asked, keysets, int(self._wall()) + LEAST_LOCK_S)
        self._need_new(token)
        check_unspent(await self._mint.states(token.proofs))
        self._need_new(token)

    def _need_new(self, token: Token) -> None:
        known = {proof.secret for one in self.purse.taken for proof in one.proofs}
        if known & {proof.secret for proof in token.proofs}:
            raise ProofRefused("pending", "it is held for another job")

    def take(self, held: Held, token: Token) -> None:
        """Hold a token that was checked, for a job."""
        self._put(self.purse.with_taken(Taken(held, token.proofs)))

    def give_up(self, payment_hash: str) -> None:
        """Leave a token to its payer, or know no more of one that was redeemed and receipted."""
        self._put(self.purse.without_taken(payment_hash))

    async def redeem(self, taken: Taken) -> Proven:
        """Have a token that was locked to us. What we show the mint is the proof, the same each time."""
        async with self._turn:
            keysets = await self._mint.keysets_of(taken.proofs)
            opened = tuple(self._opened(proof, keysets) for proof in taken.proofs)
            states = await self._mint.states(opened)
            if not is_opened_by(self.key, opened, states):
                check_unspent(states)
                if earliest_end(opened) and self._wall() > earliest_end(opened) - SPARE_S:
                    raise ProofRefused("lock_too_short", "it ended before the token was redeemed")
                try:
                    await self._swap(opened, keysets)
                except ProofRefused:
                    # A swap from before a crash may have come there first: then it was us.
                    if not is_opened_by(self.key, opened, await self._mint.states(opened)):
                        raise
        return self._proven(opened, keysets, taken.held)

    # -- the payer -----------------------------------------------------------------------------------------------------

    def cost(self, amount: int) -> int:
        """What the mint takes for a payment of so many satoshis. ``RailFailed`` if it cannot be made now."""
        if self.terms is None:
            raise RailFailed("nobody knows yet what the mint takes for it")
        return fee([self.terms] * len(self.purse.enough(amount, self.terms.input_fee_ppk)))

    def need_ready(self, wish: Held, most_fee: int) -> None:
        """``RailFailed`` if it is certain that this cannot be paid, or not for such a fee."""
        request = read_request(wish.invoice)
        if self.url not in request.mints or request.unit != UNIT:
            raise RailFailed("the payee wants ecash of another mint, or in another unit")
        _need_lockable(self._lock_secret(request, NONCE, 1), request)
        if len(self.purse.locked) >= MAX_LOCKED:
            raise RailFailed(f"{MAX_LOCKED} payments in ecash wait to be redeemed or to end")
        if self.terms is None:
            self.purse.enough(request.amount, 0)
        else:
            _need_cheap(self.cost(request.amount), most_fee)

    async def lock(self, wish: Held, named: Callable[[tuple[str, str]], bool], most_fee: int) -> Locked:
        """Lock ecash of ours to the payee. ``named`` says whether his event names a keyset. ``RailFailed`` if there is
        not enough, the mint takes more than ``most_fee``, or nobody knows; then it is in the purse as begun.
        """
        request = read_request(wish.invoice)
        async with self._turn:
            await self.look()
            assert self.terms is not None
            if not named(self.keyset_tag()):
                raise RailFailed("the payee does not name the keys that the mint signs with: no receipt would verify")
            locktime = int(self._wall()) + LOCK_S

            def locked(nonce: str) -> str:
                return self._lock_secret(request, nonce, locktime)

            inputs = self.purse.enough(request.amount, self.terms.input_fee_ppk)
            keysets = await self._mint.keysets_of(inputs)
            _need_cheap(fee(find_keyset(proof.keyset_id, keysets) for proof in inputs), most_fee)
            outputs = outputs_of(request.amount, self.terms, locked, self._random_bytes)
            if request.amount <= fee([self.terms] * len(outputs)):
                raise RailFailed("the mint's fee for redeeming it is not less than it is worth")
            await self._swap(inputs, keysets, outputs, wish, locktime)
        return next(one for one in self.purse.locked if one.held.payment_hash == wish.payment_hash)

    def _lock_secret(self, request: PaymentRequest, nonce: str, locktime: int) -> str:
        key = bytes.fromhex(request.key)
        return lock_secret(nonce, key, locktime=locktime, refund_key=self.key, tags=request.tags)

    def told(self, locked: Locked, nutzap: str) -> Locked:
        """The payee is about to be told, by this event."""
        changed = msgspec.structs.replace(locked, nutzap=nutzap)
        self._put(self.purse.with_locked(changed))
        return changed

    async def standing(self, locked: Locked) -> Standing:
        """Who has what of a payment of ours: the mint says it of each proof by itself."""
        states = await self._mint.states(locked.proofs) if locked.proofs else []
        key = bytes.fromhex(read_request(locked.held.invoice).key)
        unspent, paid, back, unproven = [], [], [], 0
        for proof, state in zip(locked.proofs, states, strict=True):
            if state.state != "SPENT":
                unspent += [proof]
            elif is_opened_by(key, [proof], [state]):
                paid += [msgspec.structs.replace(proof, witness=state.witness or "")]
            elif is_signed_by(self.key, proof, state):
                back += [proof]
            else:
                unproven += proof.amount
        proven = None
        if len(paid) == len(locked.proofs) and not locked.back:
            proven = self._proven(tuple(paid), await self._mint.keysets_of(paid), locked.held)
        is_pending = any(state.state == "PENDING" for state in states)
        amount = sum(proof.amount for proof in paid)
        return Standing(tuple(unspent), is_pending, amount, tuple(back), unproven, proven)

    def ended(self, payment_hash: str) -> None:
        """The payee has what was locked to him, and all that follows is on record."""
        self._put(self.purse.without_locked(payment_hash))

    def is_over(self, locked: Locked) -> bool:
        """Whether a lock has ended: from here on we can have it back."""
        return self._wall() > locked.locktime + SPARE_S

    async def reclaim(self, locked: Locked, unspent: Sequence[Proof]) -> None:
        """Have back what is unspent of a payment whose lock has ended. ``ProofRefused`` if its payee was faster, or the
        mint's clock is behind ours. What is worth no more than the mint's fee is given up.
        """
        name = locked.held.payment_hash
        async with self._turn:
            if any(one.reclaims == name for one in self.purse.begun):
                raise RailFailed("nobody knows yet what became of the last try", is_unknown=True)
            keysets = await self._mint.keysets_of(unspent)
            if sum(proof.amount for proof in unspent) <= fee(
                find_keyset(proof.keyset_id, keysets) for proof in unspent
            ):
                self._put(self.purse.with_back(name, unspent))
                return
            opened = tuple(self._opened(proof, keysets) for proof in unspent)
            await self._swap(opened, keysets, reclaims=name)

    # -- funding -------------------------------------------------------------------------------------------------------

    async def fund(self, amount: int) -> tuple[str, int]:
        """An invoice of the mint over so many satoshis, and until when it can be paid (0: it does not say).
        ``RailFailed`` if the mint could not be used, or wants something else.
        """
        if len(self.purse.proofs) >= MAX_PROOFS:
            raise RailFailed(f"there are {MAX_PROOFS} proofs of this mint, which is the most")
        await self.look()
        found = await self._mint.quote(amount, UNIT)
        try:
            asked = bolt11.read(found.request).amount_msats
        except bolt11.NotAnInvoice:
            raise RailFailed("the mint gave no invoice") from None
        if asked != amount * proofs.MSATS[UNIT]:
            raise RailFailed(f"the mint wants {asked or 'any number of'} msats, and so much was not asked for")
        self._put(self.purse.with_funding(Funding(found.quote, amount, found.expiry or 0)))
        return found.request, found.expiry or 0

    async def collect(self) -> bool:
        """Have what was paid; whether something was."""
        has_changed = False
        failed: RailFailed | ProofRefused | None = None
        for funding in self.purse.funding:
            try:
                state = (await self._mint.quote_state(funding.quote)).state
            except NoAnswer:
                raise
            except (RailFailed, ProofRefused) as error:
                failed = failed or error
                continue
            if state == "PAID":
                async with self._turn:
                    await self._have_paid(funding)
                has_changed = True
            elif state == "ISSUED" or (funding.expires_s and self._wall() > funding.expires_s + LEAST_LOCK_S):
                # Had before (a swap that was begun gives it), or never paid.
                self._put(self.purse.without_funding(funding.quote))
        if failed is not None and not has_changed:
            raise failed
        return has_changed

    async def _have_paid(self, funding: Funding) -> None:
        active = await self._mint.active_keyset(UNIT)
        outputs = outputs_of(funding.amount, active, str, self._random_bytes)
        begun = Begun(self._random_bytes(16).hex(), (), tuple(outputs), quote=funding.quote)
        self._put(self.purse.begin(begun).without_funding(funding.quote))
        await self._finish_mint(begun, active)

    async def _finish_mint(self, begun: Begun, keyset: Keyset) -> None:
        try:
            made = await self._mint.minted(begun.quote, begun.outputs, keyset)
        except ProofRefused:
            made = await self._mint.restored(begun.outputs, keyset)
            if not made:
                amount = sum(output.amount for output in begun.outputs)
                self._put(self.purse.end(begun, ()).with_funding(Funding(begun.quote, amount, 0)))
                return
        self._end(begun, made)

    async def consolidate(self) -> bool:
        """Have the smallest of many proofs swapped for fewer; whether something was."""
        async with self._turn:
            if len(self.purse.proofs) < MANY_PROOFS:
                return False
            small = sorted(self.purse.proofs, key=lambda proof: proof.amount)[:SWAPPED_AT_ONCE]
            keysets = await self._mint.keysets_of(small)
            rest = _amount(small) - fee(find_keyset(proof.keyset_id, keysets) for proof in small)
            if rest <= 0 or len(split(rest, await self._mint.active_keyset(UNIT))) >= len(small):
                return False
            await self._swap(small, keysets)
        return True

    # -- tokens --------------------------------------------------------------------------------------------------------

    async def make_token(self, name: str, amount: int) -> None:
        """Put ecash of so many satoshis aside, as a token under this name. ``RailFailed`` if there is not enough, or
        nobody knows; then it is in the purse as begun, and the token may still be made.
        """
        if len(self.purse.sent) >= MAX_SENT:
            raise RailFailed(f"{MAX_SENT} tokens were sent that nobody has received yet: take some of them back")
        async with self._turn:
            await self.look()
            assert self.terms is not None
            inputs = self.purse.enough(amount, self.terms.input_fee_ppk)
            keysets = await self._mint.keysets_of(inputs)
            outputs = outputs_of(amount, self.terms, str, self._random_bytes)
            await self._swap(inputs, keysets, outputs, token=name)

    async def receive(self, token: Token) -> int:
        """Have a token that somebody gave us, swapped so that nobody else can spend it any more; what it came to. One
        of our own is taken back in this way.
        """
        if token.unit != UNIT:
            raise RailFailed(f"the token is in {token.unit}, and satoshis ({UNIT}) are taken")
        if any(read_lock(proof.secret) is not None for proof in token.proofs):
            raise RailFailed("the token is locked to somebody's key")
        if len(self.purse.proofs) >= MAX_PROOFS:
            raise RailFailed(f"there are {MAX_PROOFS} proofs of this mint, which is the most")
        async with self._turn:
            await self.look()
            keysets = await self._mint.keysets_of(token.proofs)
            if any(keyset.unit != UNIT for keyset in keysets):
                raise RailFailed("its mint says that it is in another unit")
            before = self.purse.amount
            await self._swap(token.proofs, keysets, is_received=True)
            return self.purse.amount - before

    async def forget_spent(self) -> None:
        """Tokens that somebody has received need not be shown again."""
        proofs = [proof for one in self.purse.sent for proof in one.proofs]
        states = await self._mint.states(proofs)
        spent = {proof.secret for proof, state in zip(proofs, states, strict=True) if state.state == "SPENT"}
        changed = self.purse.without_sent(spent)
        if changed != self.purse:
            self._put(changed)

    # -- swaps ---------------------------------------------------------------------------------------------------------

    async def finish_begun(self) -> list[Held]:
        """Swaps of which nobody knows whether the mint heard of them: had from it, or made now. Gives the payments that
        were never locked: their ecash is ours again. Raises what is in the way of the first that has no end yet, if
        there is nothing to give.
        """
        undone: list[Held] = []
        failed: RailFailed | ProofRefused | None = None
        async with self._turn:
            for first in [one for one in self.purse.begun if not one.instead_of]:
                # Each by itself: one that cannot be ended does not hold up the others.
                try:
                    held = await self._finish(first)
                except NoAnswer:
                    raise
                except (RailFailed, ProofRefused) as error:
                    failed = failed or error
                else:
                    undone += [] if held is None else [held]
        if failed is not None and not undone:
            raise failed
        return undone

    async def _finish(self, first: Begun) -> Held | None:
        """End a swap, with all that were begun in its place; its payment, if that was not locked."""
        # Before it is asked what was signed: what is spent then, and not signed for, was spent for something else.
        states = await self._mint.states(first.inputs) if first.inputs else []
        tried = [first, *(one for one in self.purse.begun if one.instead_of == first.name)]
        for one in tried:
            if made := await self._mint.restored(one.outputs, await self._keyset_of(one)):
                self._end(one, made)
                return None if one is first else first.held
        if first.quote:
            await self._finish_mint(first, await self._keyset_of(first))
            return None
        if any(state.state == "SPENT" for state in states):
            # Swaps are done whole: none of these ever will be.
            self._put(self.purse.end(first, _own_unspent(first, states)))
            return first.held
        check_unspent(states)
        # The mint may still hear of what was asked before: so the same proofs are swapped to ourselves, and one of all
        # is signed. Again and for other outputs if the mint does not sign with those keys any more.
        active = await self._mint.active_keyset(UNIT)
        last = tried[-1]
        if last.held is not None or last.outputs[0].keyset_id != active.id:
            keysets = await self._mint.keysets_of(first.inputs)
            rest = _amount(first.inputs) - fee(find_keyset(proof.keyset_id, keysets) for proof in first.inputs)
            ours = tuple(outputs_of(rest, active, str, self._random_bytes))
            name = self._random_bytes(16).hex()
            last = Begun(
                name, first.inputs, ours, instead_of=first.name, reclaims=first.reclaims, is_received=first.is_received
            )
            self._put(self.purse.begin(last))
        self._end(last, await self._mint.swap(last.inputs, last.outputs, active))
        return first.held

    async def _keyset_of(self, begun: Begun) -> Keyset:
        """What all outputs of a swap are signed with."""
        [keyset] = await self._mint.keysets_of(_as_proofs(begun.outputs[:1]))
        return keyset

    async def _swap(
        self,
        inputs: Sequence[Proof],
        keysets: Sequence[Keyset],
        locked: Sequence[Output] = (),
        held: Held | None = None,
        locktime: int = 0,
        reclaims: str = "",
        token: str = "",
        is_received: bool = False,
    ) -> None:
        """Have proofs swapped: for these outputs, and what is left over is ours."""
        named = [find_keyset(proof.keyset_id, keysets) for proof in inputs]
        whole = tuple(
            msgspec.structs.replace(proof, keyset_id=keyset.id) for proof, keyset in zip(inputs, named, strict=True)
        )
        active = self.terms if locked and self.terms is not None else await self._mint.active_keyset(UNIT)
        rest = sum(proof.amount for proof in inputs) - fee(named) - sum(output.amount for output in locked)
        if rest < 0 or not (rest or locked):
            raise RailFailed("the mint's fee is more than what is left")
        ours = outputs_of(rest, active, str, self._random_bytes)
        name = self._random_bytes(16).hex()
        begun = Begun(
            name, whole, (*locked, *ours), len(locked), held, locktime, reclaims=reclaims, token=token,
            is_received=is_received,
        )  # fmt: skip
        self._put(self.purse.begin(begun))
        try:
            made = await self._mint.swap(whole, begun.outputs, active)
        except ProofRefused as refused:
            made = await self._refused(begun, refused, active)
            if not made:
                raise
        self._end(begun, made)

    async def _refused(self, begun: Begun, refused: ProofRefused, keyset: Keyset) -> tuple[Proof, ...]:
        """What the mint signed all the same, if somebody on the way asked it twice. Else nothing was spent by it: our
        own proofs are ours again, but for those that were spent before; what was locked stays where it is known.
        """
        states: Sequence[ProofState] = ()
        if refused.reason == "spent":
            states = await self._mint.states(begun.inputs)
            if made := await self._mint.restored(begun.outputs, keyset):
                return made
        self._put(self.purse.end(begun, _own_unspent(begun, states)))
        return ()

    def _end(self, begun: Begun, made: Sequence[Proof]) -> None:
        locked = sent = None
        if begun.held is not None:
            locked = Locked(begun.held, tuple(made[: begun.locked]), begun.locktime)
        elif begun.token:
            sent = SentToken(begun.token, tuple(made[: begun.locked]))
        purse = self.purse.end(begun, made[begun.locked :], locked, sent)
        if begun.is_received:
            # One of ours, perhaps.
            purse = purse.without_sent({proof.secret for proof in begun.inputs})
        self._put(purse.with_back(begun.reclaims, begun.inputs) if begun.reclaims else purse)

    def _put(self, purse: Purse) -> None:
        self._keep(purse)
        self.purse = purse

    # -- words ---------------------------------------------------------------------------------------------------------

    def _proven(self, opened: tuple[Proof, ...], keysets: Sequence[Keyset], held: Held) -> Proven:
        text = write_spent(Token(self.url, UNIT, opened))
        evidence = msgspec.Raw(proofs.evidence_of(bytes(held.asked), keysets).encode())
        return Proven("cashu", proofs.asset_of(self.url), PaymentProof(proofs.TYPE, text), evidence)

    def _opened(self, proof: Proof, keysets: Sequence[Keyset]) -> Proof:
        # What would be chance follows from the secret: the same token gives the same proof.
        randomness = hashlib.sha256(self._private_key + proof.secret.encode()).digest()
        witness = signed_witness(proof.secret, self._private_key, randomness)
        return msgspec.structs.replace(proof, keyset_id=find_keyset(proof.keyset_id, keysets).id, witness=witness)


def _own_unspent(begun: Begun, states: Sequence[ProofState]) -> list[Proof]:
    """Of the inputs of a swap that was not done, those that are ours to spend."""
    if begun.is_received:
        return []
    spent = [state.state == "SPENT" for state in states] or [False] * len(begun.inputs)
    return [proof for proof, is_spent in zip(begun.inputs, spent, strict=True) if not is_spent and not proof.witness]


def _amount(proofs: Sequence[Proof]) -> int:
    return sum(proof.amount for proof in proofs)


def _need_cheap(taken: int, most: int) -> None:
    if taken > most:
        raise RailFailed(f"the mint takes {taken} satoshis for it, and {most} were agreed to (fee_msats)")


def _need_lockable(secret: str, request: PaymentRequest) -> None:
    """``RailFailed`` for a lock that its mint might never open again, with what the payee wants to stand in it."""
    try:
        lock = read_lock(secret)
    except ProofRefused:
        lock = None
    if lock is None or len(secret) > MAX_LOCK_CHARS or lock.job_hash != request.job_hash:
        raise RailFailed("the payee wants a lock that its mint might never open")


def _as_proofs(outputs: Sequence[Output]) -> list[Proof]:
    """Outputs where only the names of their keysets matter."""
    return [Proof(output.keyset_id, output.amount, output.secret, b"") for output in outputs]
