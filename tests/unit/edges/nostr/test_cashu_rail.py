"""A payment in ecash from the quote to the receipt, by both sides, at a mint of a few lines over a real socket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.unit.edges.nostr.test_mint_client import Server
from tests.unit.money.cashu.toy_mint import PAYEE_SECRET, PAYER_SECRET, ToyMint
from tests.unit.money.paid import JOB_HASH, signed_event
from trunkline.edges.nostr.cashu_rail import CashuRail
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money.cashu.purse import Purse
from trunkline.money.cashu.tokens import Token, read_token, write_token
from trunkline.money.rail import NotPaid, PaymentProof, Quote, Rail, RailFailed
from trunkline.money.refusals import ProofRefused

NOW = 1_700_000_000


class Side:
    """One who pays or is paid, with what he has on disk."""

    def __init__(self, server: Server, secret: bytes, amount: int = 0) -> None:
        self.disk: list[Purse] = []
        self.server = server
        self.secret = secret
        purse = Purse(server.mint.proofs(amount)) if amount else Purse()
        self.rail = self.started(purse)

    def started(self, purse: Purse) -> CashuRail:
        mint = MintClient(self.server.url, timeout_s=5)
        count = iter(range(10_000))

        def chance(size: int) -> bytes:
            return hashlib.sha256(self.secret + str(next(count)).encode() + bytes(len(self.disk))).digest()[:size]

        return CashuRail(mint, self.secret, purse, self.disk.append, lambda: NOW, chance)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server(ToyMint(fee_ppk=100))
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield found
    listening.close()


async def quoted(payee: Side, msats: int = 12_001) -> Quote:
    due = await payee.rail.quote(msats, payee.rail.npub, JOB_HASH, NOW * 1000)
    event = signed_event(await payee.rail.asking_tags(due))
    due = await payee.rail.evidence(due, event)
    return Quote("q1", "k1", JOB_HASH, "cashu", due, NOW * 1000)


def refused(error: pytest.ExceptionInfo[ProofRefused]) -> str:
    return error.value.reason


async def test_what_is_held_is_released_to_its_payee_and_proves_the_payment(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    rail: Rail = payee.rail
    quote = await quoted(payee)
    assert quote.due.amount_msats == 13_000  # whole satoshis
    hold = await payer.rail.hold(quote, payer.rail.npub)
    assert payer.rail.purse.amount == 100 - 13 - 1
    accepted = await payee.rail.accept(quote, hold.reference)
    assert payee.rail.purse.amount == 0
    with pytest.raises(NotPaid):
        rail.verify(PaymentProof("cashu_proof", accepted.reference), quote.due)
    proof = await rail.release(accepted)
    rail.verify(proof, quote.due)
    assert payee.rail.purse.amount == 12
    assert await rail.release(accepted) == proof
    assert payee.rail.purse.amount == 12
    assert payee.disk[-1] == payee.rail.purse


async def test_a_token_can_be_accepted_once(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    quote = await quoted(payee)
    hold = await payer.rail.hold(quote, payer.rail.npub)
    await payee.rail.release(await payee.rail.accept(quote, hold.reference))
    with pytest.raises(ProofRefused) as error:
        await payee.rail.accept(quote, hold.reference)
    assert refused(error) == "spent"


async def test_a_token_that_is_held_for_one_quote_is_not_taken_for_another(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    quote = await quoted(payee)
    hold = await payee.rail.accept(quote, (await payer.rail.hold(quote, payer.rail.npub)).reference)
    again = payee.started(payee.rail.purse)
    await again.take_up([hold])
    for rail in (payee.rail, again):
        with pytest.raises(ProofRefused) as error:
            await rail.accept(quote, hold.reference)
        assert refused(error) == "pending"


async def test_what_is_offered_instead_of_a_hold_is_refused_with_its_reason(server: Server) -> None:
    payee = Side(server, PAYEE_SECRET)
    quote = await quoted(payee)

    def offered(**changed: Any) -> str:
        token = server.mint.locked(changed.pop("amount", 13), **({"job_hash": JOB_HASH} | changed))
        return write_token(msgspec.structs.replace(token, mint=server.url))

    await payee.rail.accept(quote, offered())
    for text, reason in (
        (offered(amount=12), "wrong_amount"),
        (offered(locktime=NOW + 60), "lock_too_short"),
        (offered(lock_hash="ab" * 32), "other_hash"),
        (offered(job_hash="sha256:" + "00" * 32), "other_job"),
        (offered(job_hash=""), "other_job"),
        (write_token(Token(server.url, "sat", server.mint.proofs(13))), "not_locked"),
        (write_token(server.mint.locked(13)), "other_mint"),
        ("cashuBx", "malformed"),
    ):
        with pytest.raises(ProofRefused) as error:
            await payee.rail.accept(quote, text)
        assert refused(error) == reason


async def test_who_has_not_enough_or_not_at_this_mint_holds_nothing(server: Server) -> None:
    payee = Side(server, PAYEE_SECRET)
    quote = await quoted(payee)
    for amount in (0, 12, 13):
        poor = Side(server, PAYER_SECRET, amount)
        with pytest.raises(RailFailed, match="not enough"):
            await poor.rail.hold(quote, poor.rail.npub)
        assert poor.rail.purse.amount == amount
    rich = Side(server, PAYER_SECRET, 100)
    with pytest.raises(RailFailed, match="our own"):
        await rich.rail.hold(quote, payee.rail.npub)
    elsewhere = msgspec.structs.replace(quote, due=msgspec.structs.replace(quote.due, request=_request_elsewhere()))
    with pytest.raises(RailFailed, match="another mint"):
        await rich.rail.hold(elsewhere, rich.rail.npub)
    assert rich.rail.purse.amount == 100


def _request_elsewhere() -> str:
    from tests.unit.money.paid import cashu_paid

    return cashu_paid().due.request


async def test_at_a_mint_that_enforces_no_locks_nothing_is_asked_for_or_held(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    quote = await quoted(payee)
    server.instead["/v1/info"] = (200, b'{"nuts":{}}')
    with pytest.raises(RailFailed, match="locks"):
        await quoted(payee)
    with pytest.raises(RailFailed, match="locks"):
        await payer.rail.hold(quote, payer.rail.npub)
    assert payer.disk == []


async def test_what_was_not_redeemed_goes_back_to_its_payer(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    hold = await payer.rail.hold(await quoted(payee), payer.rail.npub)
    server.instead["/v1/swap"] = (400, b'{"code":0}')
    with pytest.raises(RailFailed, match="still locked"):
        await payer.rail.refund(hold)
    del server.instead["/v1/swap"]
    await payer.rail.refund(hold)
    assert payer.rail.purse.amount == 100 - 1 - 1
    with pytest.raises(ProofRefused) as error:
        await payer.rail.refund(hold)
    assert refused(error) == "spent"


async def test_a_crash_before_the_mint_answers_loses_nothing(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    quote = await quoted(payee)
    # The mint never heard of it.
    server.instead["/v1/swap"] = (500, b"")
    with pytest.raises(RailFailed) as failed:
        await payer.rail.hold(quote, payer.rail.npub)
    assert failed.value.is_unknown
    del server.instead["/v1/swap"]
    again = payer.started(payer.disk[-1])
    assert again.purse.amount < 100
    assert await again.take_up() == []
    assert (again.purse.amount, again.purse.begun) == (100, ())
    # The mint did it, and nobody heard its answer: what is on disk is from before.
    hold = await again.hold(quote, again.npub)
    before = payer.disk[-2]
    assert before.begun
    third = payer.started(before)
    [untold] = await third.take_up()
    assert untold.proofs == read_token(hold.reference).proofs
    assert third.purse == again.purse


async def test_what_the_mints_fee_would_eat_is_not_asked_for(server: Server) -> None:
    payee = Side(server, PAYEE_SECRET)
    with pytest.raises(RailFailed, match="fee"):
        await quoted(payee, 1000)
    assert (await quoted(payee, 1001)).due.amount_msats == 2000


async def test_only_for_ourselves_can_be_asked(server: Server) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    with pytest.raises(RailFailed, match="ourselves"):
        await payee.rail.quote(13_000, payer.rail.npub, JOB_HASH, 0)
