"""Who pays in ecash and who is paid, each with a purse of his own at a mint of tests."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Raw

from tests.mints import MintServer
from tests.unit.money.paid import JOB_HASH, NPUB, signed_event
from trunkline.edges.nostr.cashu_rail import AtMint
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money.cashu import proof
from trunkline.money.cashu.locks import JOB_TAG
from trunkline.money.cashu.purse import Locked, Purse
from trunkline.money.cashu.requests import PaymentRequest, write_request
from trunkline.money.cashu.tokens import Token
from trunkline.money.rail import Due, Proven
from trunkline.money.wallet import Held

NOW = 1_700_000_000


class Side:
    """One who pays or is paid, with what he has on disk."""

    def __init__(self, server: MintServer, secret: bytes, amount: int = 0) -> None:
        self.disk: list[Purse] = []
        self.server = server
        self.secret = secret
        self.rail = self.started(Purse(server.mint.proofs(amount)) if amount else Purse())

    def started(self, purse: Purse) -> AtMint:
        """The same after a kill, with this on disk."""
        mint = MintClient(self.server.url, timeout_s=5)
        count = iter(range(10_000))

        def chance(size: int) -> bytes:
            return hashlib.sha256(self.secret + str(next(count)).encode() + bytes(len(self.disk))).digest()[:size]

        return AtMint(mint, self.secret, purse, self.disk.append, self.server.wall, chance)


async def wanted(payee: Side, amount: int = 13, **changed: Any) -> Held:
    """What the payee asks for, in an event that he signed."""
    await payee.rail.learn_keyset()
    usual = {"mints": (payee.server.url,), "tags": ((JOB_TAG, JOB_HASH),)}
    request = write_request(PaymentRequest(amount, "sat", key=payee.rail.key.hex(), **(usual | changed)))
    asked = signed_event([("amount", str(amount * 1000), request), payee.rail.keyset_tag()])
    return Held(
        payment_hash=hashlib.sha256(request.encode()).hexdigest(), payer="exchange", payee=NPUB, msats=amount * 1000,
        invoice=request, asked=Raw(asked), quote_id="q", request_id="00" * 32, schema_id="s", job_hash=JOB_HASH,
        provider=NPUB, at_ms=NOW * 1000, judge="buyer", order="o", call_id="c",
    )  # fmt: skip


async def locked(payer: Side | AtMint, wish: Held, most_fee: int = 1) -> Locked:
    rail = payer if isinstance(payer, AtMint) else payer.rail
    return await rail.lock(wish, lambda _tag: True, most_fee)


def token_of(one: Locked, server: MintServer) -> Token:
    return Token(server.url, "sat", one.proofs)


def verify(proven: Proven, held: Held) -> None:
    evidence = bytes(proven.evidence).decode()
    proof.verify(proven.proof, Due(held.msats, held.provider, proven.asset_id, held.invoice, held.job_hash, evidence))
