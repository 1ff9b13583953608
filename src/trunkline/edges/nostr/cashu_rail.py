"""Ecash as a way to pay (``money.rail``): a token locked to its payee, redeemed by him or taken back by its payer.

Owns the order of disk and mint in each step. Does not own what a token proves (``money.cashu``) or the mint's words.
Both sides are here: ``hold`` and ``refund`` are the payer's, ``accept`` and ``release`` the payee's. Nobody but the
mint moves the money, so no step can be taken back by a crash: what was begun is asked for again (``take_up``).

Invariant: the outputs of a swap are on disk before the mint hears of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money.bech32 import encoded, to_words
from trunkline.money.cashu import proof as proofs
from trunkline.money.cashu.checking import Asked, check_hold
from trunkline.money.cashu.curve import public_key
from trunkline.money.cashu.keysets import Keyset, fee, find_keyset, second_version_id
from trunkline.money.cashu.locks import JOB_TAG, lock_secret, signed_witness
from trunkline.money.cashu.mint import check_unspent
from trunkline.money.cashu.purse import Begun, Purse
from trunkline.money.cashu.requests import PaymentRequest, read_request, write_request
from trunkline.money.cashu.swaps import Output, outputs_of, split
from trunkline.money.cashu.tokens import Proof, Token, read_token, write_token
from trunkline.money.rail import Due, Hold, PaymentProof, Quote, RailFailed, RailName
from trunkline.money.refusals import ProofRefused

# Between the end of a quote and that of a lock: the job, its verification, and a mint that does not answer for a while.
LOCK_S: Final = 24 * 3600
# What is left of a lock when a token is taken: enough to do the job and redeem it.
LEAST_LOCK_S: Final = 3600
UNIT: Final = "sat"


class CashuRail:
    """Payments at one mint. ``private_key`` is that of the Nostr identity; ``keep`` puts the purse on disk."""

    name: RailName = "cashu"
    can_hold = True

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
        self._private_key = private_key
        self._key = public_key(private_key)
        self.npub = encoded("npub", to_words(self._key[1:]))
        self.purse = purse
        self._keep = keep
        self._wall = wall
        self._random_bytes = random_bytes
        # Secrets of tokens that were accepted: the mint does not know yet that they are taken.
        self._held: set[str] = set()

    def verify(self, proof: PaymentProof, due: Due) -> None:
        """``NotPaid`` unless the token shows that it was paid."""
        proofs.verify(proof, due)

    # -- the payee -----------------------------------------------------------------------------------------------------

    async def quote(self, amount_msats: int, payee: str, job_hash: str, expires_ms: int) -> Due:  # noqa: ARG002  (no invoice ends)
        """Ask to be paid, in whole satoshis. What it is judged by follows when we signed an event that says so."""
        if payee != self.npub:
            raise RailFailed("only for ourselves can a token be asked for")
        if not await self._mint.enforces_locks():
            raise RailFailed("the mint does not enforce locks: whoever sees a token could spend it")
        amount = -(-amount_msats // proofs.MSATS[UNIT])
        active = await self._mint.active_keyset(UNIT)
        if amount <= fee([active] * len(split(amount, active))):
            raise RailFailed("the mint's fee for redeeming it is as much as that")
        request = PaymentRequest(amount, UNIT, (self._mint.url,), self._key.hex(), tags=((JOB_TAG, job_hash),))
        asset = proofs.asset_of(self._mint.url)
        return Due(amount * proofs.MSATS[UNIT], payee, asset, write_request(request), job_hash)

    async def asking_tags(self, due: Due) -> list[tuple[str, ...]]:
        """What our event says when it asks for this: the amount, and the keys that we take."""
        keyset = await self._mint.active_keyset(UNIT)
        named = (proofs.KEYSET_TAG, second_version_id(keyset))
        return [("amount", str(due.amount_msats), due.request), named]

    async def evidence(self, due: Due, asked: bytes) -> Due:
        """What is due, with our event and the mint's keys: what a proof of it is judged by."""
        keyset = await self._mint.active_keyset(UNIT)
        return msgspec.structs.replace(due, evidence=proofs.evidence_of(asked, [keyset]))

    async def accept(self, quote: Quote, text: str) -> Hold:
        """Take a payer's token for a hold; ``ProofRefused`` says what is wrong with it."""
        token = read_token(text)
        request = read_request(quote.due.request)
        asked = Asked(self._mint.url, request.unit, request.amount, self._key[1:], request.hash, request.job_hash)
        check_hold(token, asked, await self._mint.keysets_of(token.proofs), int(self._wall()) + LEAST_LOCK_S)
        check_unspent(await self._mint.states(token.proofs))
        secrets = {proof.secret for proof in token.proofs}
        if secrets & self._held:
            raise ProofRefused("pending", "it is held for another quote")
        self._held |= secrets
        return Hold(quote.quote_id, self.name, quote.due.amount_msats, write_token(token))

    async def release(self, hold: Hold) -> PaymentProof:
        """Redeem a token that was held for us. What we show the mint is the proof, the same each time."""
        token = read_token(hold.reference)
        keysets = await self._mint.keysets_of(token.proofs)
        opened = tuple(self._opened(proof, keysets) for proof in token.proofs)
        states = await self._mint.states(opened)
        if [state.witness for state in states] != [proof.witness for proof in opened]:
            # By us it was not redeemed yet; whoever else did it before, had no key of ours.
            check_unspent(states)
            await self._swap(opened, keysets)
        # From here on the mint knows.
        self._held -= {proof.secret for proof in opened}
        return PaymentProof(proofs.TYPE, write_token(msgspec.structs.replace(token, proofs=opened)))

    # -- the payer -----------------------------------------------------------------------------------------------------

    async def hold(self, quote: Quote, payer: str) -> Hold:
        """Lock ecash of ours to the payee, until a day after the quote's end. ``RailFailed`` if there is not enough."""
        if payer != self.npub:
            raise RailFailed("only our own ecash can be held")
        request = read_request(quote.due.request)
        if self._mint.url not in request.mints or request.unit != UNIT:
            raise RailFailed("the payee wants ecash of another mint")
        if not await self._mint.enforces_locks():
            raise RailFailed("the mint does not enforce locks: whoever sees a token could spend it")
        active = await self._mint.active_keyset(UNIT)
        locktime = quote.expires_ms // 1000 + LOCK_S

        def locked(nonce: str) -> str:
            key = bytes.fromhex(request.key)
            return lock_secret(
                nonce, key, locktime=locktime, refund_key=self._key, lock_hash=request.hash, tags=request.tags
            )

        inputs = self.purse.enough(request.amount, active.input_fee_ppk)
        keysets = await self._mint.keysets_of(inputs)
        held = await self._swap(inputs, keysets, outputs_of(request.amount, active, locked, self._random_bytes))
        return Hold(quote.quote_id, self.name, quote.due.amount_msats, write_token(Token(self._mint.url, UNIT, held)))

    async def refund(self, hold: Hold) -> None:
        """Take a token back that its payee did not redeem. Before its lock ends the mint does not let us."""
        token = read_token(hold.reference)
        keysets = await self._mint.keysets_of(token.proofs)
        check_unspent(await self._mint.states(token.proofs))
        try:
            await self._swap(tuple(self._opened(proof, keysets) for proof in token.proofs), keysets)
        except ProofRefused as refused:
            if refused.reason != "refused_by_mint":
                raise
            raise RailFailed("it is still locked to its payee") from None

    # -- both ----------------------------------------------------------------------------------------------------------

    async def take_up(self, holds: Sequence[Hold] = ()) -> list[Token]:
        """After a restart: what is held, and swaps that were begun: had from the mint, or their inputs are ours again.

        Gives tokens that were locked to somebody who never heard of them: they can be refunded when their time is over.
        """
        self._held |= {proof.secret for hold in holds for proof in read_token(hold.reference).proofs}
        untold = []
        for begun in self.purse.begun:
            [keyset] = await self._mint.keysets_of(_as_proofs(begun.outputs))
            made = await self._mint.restored(begun.outputs, keyset)
            if not made:
                states = zip(begun.inputs, await self._mint.states(begun.inputs), strict=True)
                self._end(begun, [proof for proof, state in states if state.state == "UNSPENT" and not proof.witness])
                continue
            if begun.locked:
                untold.append(Token(self._mint.url, UNIT, made[: begun.locked]))
            self._end(begun, made[begun.locked :])
        return untold

    async def _swap(
        self, inputs: Sequence[Proof], keysets: Sequence[Keyset], locked: Sequence[Output] = ()
    ) -> tuple[Proof, ...]:
        """Have proofs swapped: for these outputs, and what is left over is ours. Gives the proofs of those outputs."""
        named = [find_keyset(proof.keyset_id, keysets) for proof in inputs]
        whole = tuple(
            msgspec.structs.replace(proof, keyset_id=keyset.id) for proof, keyset in zip(inputs, named, strict=True)
        )
        active = await self._mint.active_keyset(UNIT)
        rest = sum(proof.amount for proof in inputs) - fee(named) - sum(output.amount for output in locked)
        if rest < 0 or not (rest or locked):
            raise RailFailed("the mint's fee is more than what is left")
        ours = outputs_of(rest, active, str, self._random_bytes)
        begun = Begun(whole, (*locked, *ours), len(locked))
        self.purse = self.purse.begin(begun)
        self._keep(self.purse)
        try:
            made = await self._mint.swap(whole, begun.outputs, active)
        except ProofRefused as refused:
            # Refused as a whole: nothing was spent. Our own are ours again, unless they were spent before.
            self._end(begun, () if refused.reason == "spent" else [proof for proof in whole if not proof.witness])
            raise
        self._end(begun, made[len(locked) :])
        return made[: len(locked)]

    def _end(self, begun: Begun, made: Sequence[Proof]) -> None:
        self.purse = self.purse.end(begun, made)
        self._keep(self.purse)

    def _opened(self, proof: Proof, keysets: Sequence[Keyset]) -> Proof:
        # What would be chance follows from the secret: the same token gives the same proof.
        randomness = hashlib.sha256(self._private_key + proof.secret.encode()).digest()
        witness = signed_witness(proof.secret, self._private_key, randomness)
        return msgspec.structs.replace(proof, keyset_id=find_keyset(proof.keyset_id, keysets).id, witness=witness)


def _as_proofs(outputs: Sequence[Output]) -> list[Proof]:
    """Outputs where only the names of their keysets matter."""
    return [Proof(output.keyset_id, output.amount, output.secret, b"") for output in outputs]
