"""Ecash at one mint by both sides: locked, handed over, taken, redeemed or had back, whatever is lost on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.mints import MintServer, listening
from tests.unit.edges.nostr.ecash_sides import NOW, Side, locked, token_of, verify, wanted
from tests.unit.money.cashu.toy_mint import PAYEE_SECRET, PAYER, PAYER_SECRET, ToyMint
from tests.unit.money.paid import JOB_HASH
from trunkline.edges.nostr.cashu_rail import LOCK_S
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money.cashu import mint
from trunkline.money.cashu.locks import JOB_TAG, lock_secret
from trunkline.money.cashu.purse import Locked, Purse
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Token
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused


@pytest.fixture
async def server() -> AsyncIterator[MintServer]:
    found = MintServer(ToyMint(fee_ppk=100))
    found.wall = lambda: float(NOW)
    async with listening(found):
        yield found


async def test_what_is_locked_is_taken_redeemed_and_proves_the_payment_to_both(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    found = await locked(payer, wish)
    assert (payer.rail.purse.amount, payer.rail.purse.amount_locked) == (100 - 13 - 1, 13)
    assert (await payer.rail.standing(found)).proven is None
    await payee.rail.check(token_of(found, server), wish.invoice)
    payee.rail.take(wish, token_of(found, server))
    assert payee.rail.purse.amount == 0
    [taken] = payee.rail.purse.taken
    proven = await payee.rail.redeem(taken)
    verify(proven, wish)
    assert payee.rail.purse.amount == 12
    assert await payee.rail.redeem(taken) == proven
    assert payee.rail.purse.amount == 12
    # What the mint tells the payer proves the same.
    shown = (await payer.rail.standing(found)).proven
    assert shown is not None
    verify(shown, wish)
    payer.rail.ended(wish.payment_hash)
    assert (payer.rail.purse.amount, payer.rail.purse.amount_locked) == (86, 0)
    for side in (payer, payee):
        assert side.disk[-1] == side.rail.purse


async def test_a_token_is_taken_once(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    token = token_of(await locked(payer, wish), server)
    payee.rail.take(wish, token)
    again = payee.started(payee.disk[-1])
    await again.look()
    for rail in (payee.rail, again):
        with pytest.raises(ProofRefused) as error:
            await rail.check(token, wish.invoice)
        assert error.value.reason == "pending"
    await payee.rail.redeem(payee.rail.purse.taken[0])
    payee.rail.give_up(wish.payment_hash)
    with pytest.raises(ProofRefused) as error:
        await payee.rail.check(token, wish.invoice)
    assert error.value.reason == "spent"


async def test_what_is_offered_instead_is_refused_with_its_reason_before_the_mint_is_asked(server: MintServer) -> None:
    payee = Side(server, PAYEE_SECRET)
    wish = await wanted(payee)

    def offered(mint: ToyMint = server.mint, **changed: Any) -> Token:
        lock = {"job_hash": JOB_HASH, "locktime": NOW + LOCK_S} | changed
        token = mint.locked(lock.pop("amount", 13), **lock)
        return msgspec.structs.replace(token, mint=server.url)

    def long_lock(nonce: str) -> str:
        # The mint would sign and redeem it, and no receipt could hold it.
        return lock_secret(nonce, payee.rail.key, locktime=NOW + LOCK_S, refund_key=PAYER, tags=[["note", "x" * 2500]])

    await payee.rail.check(offered(), wish.invoice)
    before = len(server.asked)
    for token, reason in (
        (offered(amount=12), "wrong_amount"),
        (offered(amount=14), "wrong_amount"),
        (offered(locktime=NOW + 60), "lock_too_short"),
        (offered(lock_hash="ab" * 32), "other_hash"),
        (offered(job_hash="sha256:" + "00" * 32), "other_job"),
        (offered(job_hash=""), "other_job"),
        (offered(key=Side(server, PAYER_SECRET).rail.key), "other_lock"),
        (offered(ToyMint("another")), "unknown_keyset"),
        (Token(server.url, "sat", server.mint.proofs(13)), "not_locked"),
        (Token(server.url, "sat", server.mint.proofs(2047, long_lock)), "too_large"),
        (server.mint.locked(13, job_hash=JOB_HASH), "other_mint"),
    ):
        with pytest.raises(ProofRefused) as error:
            await payee.rail.check(token, wish.invoice)
        assert error.value.reason == reason
    assert len(server.asked) == before


async def test_who_has_not_enough_or_not_at_this_mint_locks_nothing(server: MintServer) -> None:
    payee = Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    for amount in (0, 12, 13):  # the fee is one more
        poor = Side(server, PAYER_SECRET, amount)
        await poor.rail.look()
        with pytest.raises(RailFailed, match="not enough"):
            poor.rail.need_ready(wish, 1)
        with pytest.raises(RailFailed, match="not enough"):
            await locked(poor, wish)
        assert (poor.rail.purse.amount, poor.disk) == (amount, [])
    rich = Side(server, PAYER_SECRET, 100)
    with pytest.raises(RailFailed, match="another mint"):
        rich.rail.need_ready(await wanted(payee, mints=("https://mint.example",)), 1)
    with pytest.raises(RailFailed, match="does not name the keys"):
        await rich.rail.lock(wish, lambda _tag: False, 1)
    assert rich.disk == []


async def test_at_a_mint_that_enforces_no_locks_nothing_is_asked_for_or_locked(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    assert payee.rail.can_ask(13)
    server.instead["/v1/info"] = (200, b'{"nuts":{}}')
    with pytest.raises(RailFailed, match="NUT"):
        await payee.rail.look()
    assert not payee.rail.can_ask(13)
    with pytest.raises(RailFailed, match="NUT"):
        await locked(payer, wish)
    assert payer.disk == []


async def test_what_the_mints_fee_would_eat_and_what_its_keys_cannot_make_is_not_asked_for(server: MintServer) -> None:
    payee = Side(server, PAYEE_SECRET)
    await payee.rail.look()
    assert [payee.rail.can_ask(amount) for amount in (1, 2, 2**62)] == [False, True, False]


async def test_what_was_not_redeemed_is_had_back_once_its_lock_has_ended_and_not_before(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    found = await locked(payer, wish)
    assert not payer.rail.is_over(found)
    with pytest.raises(ProofRefused) as error:
        await payer.rail.reclaim(found, found.proofs)
    assert error.value.reason == "refused_by_mint"
    assert (payer.rail.purse.amount, payer.rail.purse.amount_locked) == (86, 13)
    server.wall = lambda: float(NOW + LOCK_S + 61)
    later = payer.started(payer.disk[-1])
    assert later.is_over(found)
    await later.reclaim(found, found.proofs)
    assert (later.purse.amount, later.purse.amount_locked) == (98, 0)
    assert [(one.proofs, one.back) for one in later.purse.locked] == [((), 13)]
    # Its payee comes too late.
    late = payee.started(Purse())
    late.take(wish, token_of(found, server))
    with pytest.raises(ProofRefused) as error:
        await late.redeem(late.purse.taken[0])
    assert error.value.reason == "spent"


async def test_nothing_is_redeemed_that_its_payer_may_just_have_back(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    found = await locked(payer, wish)
    server.wall = lambda: float(NOW + LOCK_S - 30)
    late = payee.started(Purse())
    late.take(wish, token_of(found, server))
    with pytest.raises(ProofRefused) as error:
        await late.redeem(late.purse.taken[0])
    assert error.value.reason == "lock_too_short"


@pytest.mark.parametrize("step", ["lock", "redeem", "reclaim", "fund"])
@pytest.mark.parametrize("heard", [True, False])
async def test_a_kill_before_the_mints_answer_is_on_disk_neither_loses_nor_makes_money(
    server: MintServer, step: str, heard: bool
) -> None:
    server.mint = ToyMint()  # without fees: each satoshi is counted
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    side, rail = payer, payer.rail
    found: Locked | None = None
    if step != "lock":
        found = await locked(payer, wish)
    if step == "redeem":
        assert found is not None
        side, rail = payee, payee.rail
        rail.take(wish, token_of(found, server))
    if step == "fund":
        await rail.fund(7)
        server.pay_all()
    if step == "reclaim":
        server.wall = lambda: float(NOW + LOCK_S + 61)
        rail = payer.started(payer.disk[-1])
    path = "/v1/mint/bolt11" if step == "fund" else "/v1/swap"
    if heard:
        server.is_deaf.add(path)
    else:
        server.instead[path] = (500, b"")
    asked = {
        "lock": lambda: locked(rail, wish),
        "redeem": lambda: rail.redeem(rail.purse.taken[0]),
        "reclaim": lambda: rail.reclaim(rail.purse.locked[0], rail.purse.locked[0].proofs),
        "fund": rail.collect,
    }
    with pytest.raises(RailFailed) as failed:
        await asked[step]()
    assert failed.value.is_unknown
    assert rail.purse.begun
    server.is_deaf.clear()
    server.instead.clear()
    again = side.started(side.disk[-1])
    undone = await again.finish_begun()
    assert again.purse.begun == ()
    own = (again.purse.amount, again.purse.amount_locked)
    match step:
        case "lock":
            # What the mint signed is locked and was never told; what it did not sign is ours again at once.
            assert own == ((87, 13) if heard else (100, 0))
            assert undone == ([] if heard else [wish])
            assert [one.nutzap for one in again.purse.locked] == ([""] if heard else [])
        case "redeem":
            assert own == (13, 0)
            verify(await again.redeem(again.purse.taken[0]), wish)
            assert again.purse.amount == 13
        case "reclaim":
            assert again.purse.amount == 100
        case _:
            assert own == (94, 13)
    assert await again.finish_begun() == []


async def test_of_a_lock_and_its_undoing_one_is_signed_however_late_the_mint_hears_of_it(server: MintServer) -> None:
    server.mint = ToyMint()
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    server.instead["/v1/swap"] = (500, b"")
    with pytest.raises(RailFailed):
        await locked(payer, wish)
    [begun] = payer.rail.purse.begun
    # The undoing is begun and not answered either; then the first request arrives after all.
    again = payer.started(payer.disk[-1])
    with pytest.raises(RailFailed):
        await again.finish_begun()
    assert len(again.purse.begun) == 2
    server.instead.clear()
    await MintClient(server.url).swap(begun.inputs, begun.outputs, server.mint.keyset)
    third = payer.started(payer.disk[-1])
    assert await third.finish_begun() == []
    assert (third.purse.amount, third.purse.amount_locked, third.purse.begun) == (87, 13, ())


async def test_proofs_that_were_spent_before_are_dropped_and_the_others_kept(server: MintServer) -> None:
    server.mint = ToyMint()
    payer, payee = Side(server, PAYER_SECRET, 7), Side(server, PAYEE_SECRET)
    wish = await wanted(payee, 6)
    old = payer.rail.purse
    keyset = server.mint.keyset
    # An older copy of the purse was brought back: its 4 were spent since.
    spent = [one for one in old.proofs if one.amount == 4]
    await MintClient(server.url).swap(spent, outputs_of(4, keyset, str, server.mint.chance), keyset)
    with pytest.raises(ProofRefused) as error:
        await locked(payer, wish)
    assert error.value.reason == "spent"
    assert (payer.rail.purse.amount, payer.rail.purse.begun) == (3, ())


async def test_what_a_mint_was_paid_for_is_had_once_and_what_nobody_paid_is_forgotten(server: MintServer) -> None:
    side = Side(server, PAYER_SECRET)
    invoice, expires_s = await side.rail.fund(21)
    assert invoice.startswith("lnbcrt")
    assert not await side.rail.collect()
    assert side.rail.purse.amount == 0
    server.pay_all()
    assert await side.rail.collect()
    assert not await side.rail.collect()
    assert (side.rail.purse.amount, side.rail.purse.funding) == (21, ())
    await side.rail.fund(5)
    server.wall = lambda: float(expires_s + 4000)
    await side.started(side.disk[-1]).collect()
    assert side.disk[-1].funding == ()


@pytest.mark.parametrize(
    "tags",
    [
        ((JOB_TAG, JOB_HASH), (JOB_TAG, JOB_HASH)),
        ((JOB_TAG, JOB_HASH), ("note", "x" * 300)),
        ((JOB_TAG, JOB_HASH, "x"),),
    ],
)
async def test_nothing_is_locked_in_a_way_that_a_mint_might_never_open(server: MintServer, tags: Any) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    payer.rail.need_ready(await wanted(payee), 1)
    with pytest.raises(RailFailed, match="never open"):
        payer.rail.need_ready(await wanted(payee, tags=tags), 1)


async def test_what_a_swap_from_before_a_crash_redeemed_meanwhile_is_ours(server: MintServer) -> None:
    server.mint = ToyMint()
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    payee.rail.take(wish, token_of(await locked(payer, wish), server))
    server.instead["/v1/swap"] = (500, b"")
    with pytest.raises(RailFailed):
        await payee.rail.redeem(payee.rail.purse.taken[0])
    [begun] = payee.rail.purse.begun
    server.instead.clear()
    again = payee.started(payee.disk[-1])

    def arrives(path: str, _body: Any) -> None:
        if path == "/v1/swap":
            server.before = lambda _path, _body: None
            server._value("/v1/swap", msgspec.json.decode(mint.swap_body(begun.inputs, begun.outputs)))

    server.before = arrives
    verify(await again.redeem(again.purse.taken[0]), wish)
    assert await again.finish_begun() == []
    assert (again.purse.amount, again.purse.begun) == (13, ())
