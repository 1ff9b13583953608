"""Ecash survives what a mint, a proxy before it or a payee makes of a swap: nothing that may be money is dropped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from tests.mints import NUTS, MintServer, listening
from tests.unit.edges.nostr.ecash_sides import NOW, Side, locked, token_of, verify, wanted
from tests.unit.money.cashu.toy_mint import PAYEE_SECRET, PAYER_SECRET, ToyMint
from trunkline.edges.nostr.cashu_rail import LOCK_S, SWAPPED_AT_ONCE, CashuRail
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money import bolt11
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.locks import signed_witness
from trunkline.money.cashu.purse import MANY_PROOFS, MAX_PROOFS, Locked, Purse
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Proof
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused

Garbled = Callable[[int, bytes], tuple[int, bytes]]


@pytest.fixture
async def server() -> AsyncIterator[MintServer]:
    found = MintServer(ToyMint())  # without fees: each satoshi is counted
    found.wall = lambda: float(NOW)
    async with listening(found):
        yield found


def without_dleq(status: int, data: bytes) -> tuple[int, bytes]:
    value = json.loads(data)
    for one in value["signatures"]:
        del one["dleq"]
    return status, json.dumps(value).encode()


ON_THE_WAY: dict[str, Garbled] = {
    "cut off": lambda status, data: (status, data[: len(data) // 2]),
    "without DLEQ": without_dleq,
    "a page": lambda status, _data: (status, b"<html>please log in</html>"),
    "nothing": lambda status, _data: (status, b""),
    "408": lambda _status, _data: (408, b""),
    "429": lambda _status, _data: (429, b"slow down"),
    "asked twice": lambda _status, _data: (400, b'{"code":11003,"detail":"outputs have been signed"}'),
    "no number": lambda _status, _data: (400, b'{"detail":"no"}'),
}


def unspent(proofs: tuple[Proof, ...], server: MintServer) -> int:
    """What the mint would take of these."""
    return sum(one.amount for one in proofs if hash_to_curve(one.secret.encode()).hex() not in server.spent)


@pytest.mark.parametrize("step", ["lock", "redeem", "reclaim", "fund"])
@pytest.mark.parametrize("garbled", ON_THE_WAY.values(), ids=ON_THE_WAY.keys())
async def test_a_swap_that_was_done_is_had_whatever_its_answer_looks_like(
    server: MintServer, step: str, garbled: Garbled
) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    rail = payer.rail
    if step not in {"lock", "fund"}:
        found = await locked(payer, wish)
    if step == "redeem":
        rail = payee.rail
        rail.take(wish, token_of(found, server))
    if step == "reclaim":
        server.wall = lambda: float(NOW + LOCK_S + 61)
        rail = payer.started(payer.disk[-1])
    if step == "fund":
        await rail.fund(7)
        server.pay_all()
    server.garbled["/v1/mint/bolt11" if step == "fund" else "/v1/swap"] = garbled
    asked = {
        "lock": lambda: locked(rail, wish),
        "redeem": lambda: rail.redeem(rail.purse.taken[0]),
        "reclaim": lambda: rail.reclaim(found, found.proofs),
        "fund": rail.collect,
    }
    with pytest.raises(RailFailed) as failed:
        await asked[step]()
    assert failed.value.is_unknown
    assert rail.purse.begun
    assert await rail.finish_begun() == []
    assert rail.purse.begun == ()
    has = (rail.purse.amount, rail.purse.amount_locked)
    assert has == {"lock": (87, 13), "redeem": (13, 0), "reclaim": (100, 0), "fund": (107, 0)}[step]
    assert unspent(rail.purse.proofs, server) == rail.purse.amount
    if step == "redeem":
        verify(await rail.redeem(rail.purse.taken[0]), wish)


async def test_a_swap_that_somebody_on_the_way_asked_for_twice_is_had(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    # The second one hears that all is spent, and so do we.
    server.garbled["/v1/swap"] = lambda _status, _data: (400, b'{"code":11001,"detail":"spent"}')
    await locked(payer, wish)
    assert (payer.rail.purse.amount, payer.rail.purse.amount_locked, payer.rail.purse.begun) == (87, 13, ())


async def redeem(server: MintServer, proofs: tuple[Proof, ...]) -> None:
    """The payee has these."""
    keyset = server.mint.keyset
    opened = [
        msgspec.structs.replace(one, witness=signed_witness(one.secret, PAYEE_SECRET, bytes(32))) for one in proofs
    ]
    amount = sum(one.amount for one in proofs)
    await MintClient(server.url).swap(opened, outputs_of(amount, keyset, str, server.mint.chance), keyset)


async def over(payer: Side, server: MintServer) -> tuple[CashuRail, Locked]:
    """The payer when the lock of his one payment has ended."""
    server.wall = lambda: float(NOW + LOCK_S + 61)
    rail = payer.started(payer.disk[-1])
    return rail, rail.purse.locked[0]


async def test_what_the_payee_left_of_a_payment_comes_back_and_the_rest_is_known_to_be_his(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    found = await locked(payer, await wanted(payee))
    [part] = [one for one in found.proofs if one.amount == 8]
    await redeem(server, (part,))
    rail, found = await over(payer, server)
    standing = await rail.standing(found)
    assert (standing.paid, sum(one.amount for one in standing.unspent), standing.proven) == (8, 5, None)
    await rail.reclaim(found, standing.unspent)
    [left] = rail.purse.locked
    assert (rail.purse.amount, left.proofs, left.back) == (92, (part,), 5)
    standing = await rail.standing(left)
    assert (standing.paid, standing.unspent, standing.proven) == (8, (), None)


async def test_a_refund_whose_answer_was_lost_is_ours_and_not_the_payees(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    await locked(payer, await wanted(payee))
    rail, found = await over(payer, server)
    server.is_deaf.add("/v1/swap")
    with pytest.raises(RailFailed):
        await rail.reclaim(found, found.proofs)
    standing = await rail.standing(found)
    assert (standing.paid, standing.back, standing.unproven) == (0, found.proofs, 0)
    # It is not begun a second time while nobody knows of the first.
    with pytest.raises(RailFailed, match="last try"):
        await rail.reclaim(found, found.proofs)
    server.is_deaf.clear()
    assert await rail.finish_begun() == []
    [left] = rail.purse.locked
    assert (rail.purse.amount, left.proofs, left.back) == (100, (), 13)


async def test_a_lock_that_its_own_fee_would_eat_is_not_made_and_what_is_left_of_one_is_given_up(
    server: MintServer,
) -> None:
    server.mint = ToyMint(fee_ppk=100)
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    with pytest.raises(RailFailed, match="fee"):
        await locked(payer, await wanted(payee, 1))
    assert payer.disk == []
    found = await locked(payer, await wanted(payee))
    keyset = server.mint.keyset
    opened = [
        msgspec.structs.replace(one, witness=signed_witness(one.secret, PAYEE_SECRET, bytes(32)))
        for one in found.proofs
        if one.amount > 1
    ]
    await MintClient(server.url).swap(opened, outputs_of(11, keyset, str, server.mint.chance), keyset)
    rail, found = await over(payer, server)
    before = rail.purse.amount
    await rail.reclaim(found, (await rail.standing(found)).unspent)
    assert (rail.purse.amount, rail.purse.locked[0].amount) == (before, 12)


@pytest.mark.parametrize("step", ["lock", "reclaim", "redeem"])
async def test_a_mint_that_comes_back_with_other_keys_is_asked_for_outputs_of_these(
    server: MintServer, step: str
) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    rail = payer.rail
    if step != "lock":
        found = await locked(payer, wish)
    if step == "reclaim":
        rail, found = await over(payer, server)
    if step == "redeem":
        rail = payee.rail
        rail.take(wish, token_of(found, server))
    server.instead["/v1/swap"] = (503, b"")
    with pytest.raises(RailFailed):
        await {
            "lock": lambda: locked(rail, wish),
            "reclaim": lambda: rail.reclaim(found, found.proofs),
            "redeem": lambda: rail.redeem(rail.purse.taken[0]),
        }[step]()
    # Once more before it is well, so that an undoing with the old keys is begun too.
    with pytest.raises(RailFailed):
        await rail.finish_begun()
    server.instead.clear()
    server.rotate(ToyMint("new"))
    assert await rail.finish_begun() == ([wish] if step == "lock" else [])
    has = (rail.purse.amount, rail.purse.amount_locked, rail.purse.begun)
    assert has == ((13 if step == "redeem" else 100), 0, ())
    assert unspent(rail.purse.proofs, server) == rail.purse.amount


async def test_an_undoing_ends_when_one_of_its_proofs_was_spent_before(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 7), Side(server, PAYEE_SECRET)
    wish = await wanted(payee, 6)
    keyset = server.mint.keyset
    # An older copy of the purse was brought back: its 4 were spent since.
    spent = [one for one in payer.rail.purse.proofs if one.amount == 4]
    await MintClient(server.url).swap(spent, outputs_of(4, keyset, str, server.mint.chance), keyset)
    server.instead["/v1/swap"] = (502, b"")
    with pytest.raises(RailFailed):
        await locked(payer, wish)
    server.instead.clear()
    assert await payer.rail.finish_begun() == [wish]
    assert (payer.rail.purse.amount, payer.rail.purse.begun) == (3, ())


async def test_a_swap_that_cannot_be_ended_does_not_hold_up_the_next(server: MintServer) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wishes = [await wanted(payee, 3, payment_id=name) for name in ("a", "b")]
    server.instead["/v1/swap"] = (500, b"")
    for wish in wishes:
        with pytest.raises(RailFailed):
            await locked(payer, wish)
    server.instead.clear()
    first = payer.rail.purse.begun[0].outputs[0].blinded.hex()

    def forgetful(path: str, body: Any) -> None:
        if path == "/v1/restore" and body["outputs"][0]["B_"] == first:
            server.garbled[path] = lambda status, _data: (status, b"<html>")

    server.before = forgetful
    assert await payer.rail.finish_begun() == [wishes[1]]
    with pytest.raises(ProofRefused):
        await payer.rail.finish_begun()
    server.before = lambda _path, _body: None
    assert await payer.rail.finish_begun() == [wishes[0]]
    assert (payer.rail.purse.amount, payer.rail.purse.begun) == (100, ())


def invoice(server: MintServer, text: str) -> None:
    """The next quote of the mint has this invoice."""

    def other(status: int, data: bytes) -> tuple[int, bytes]:
        return status, json.dumps(json.loads(data) | {"request": text}).encode()

    server.garbled["/v1/mint/quote/bolt11"] = other


async def test_no_ecash_is_bought_by_an_invoice_that_is_none_or_over_another_amount(server: MintServer) -> None:
    side = Side(server, PAYER_SECRET)
    for msats in (100_000_000_000, 21_001, 20_999):
        invoice(server, bolt11.written(b"\x05" * 32, msats, "ab" * 32, "", NOW, 600))
        with pytest.raises(RailFailed, match="not asked for"):
            await side.rail.fund(21)
    invoice(server, "\x1b[2J rm -rf ~")
    with pytest.raises(RailFailed, match="no invoice"):
        await side.rail.fund(21)
    assert side.disk == []
    assert (await side.rail.fund(21))[0].startswith("lnbcrt")


@pytest.mark.parametrize("missing", ["7", "9", "11", "12"])
async def test_no_ecash_is_bought_of_or_locked_at_a_mint_that_could_not_be_used(
    server: MintServer, missing: str
) -> None:
    payer, payee = Side(server, PAYER_SECRET, 100), Side(server, PAYEE_SECRET)
    wish = await wanted(payee)
    nuts = {name: one for name, one in NUTS.items() if name != missing}
    server.instead["/v1/info"] = (200, json.dumps({"nuts": nuts}).encode())
    with pytest.raises(RailFailed, match=f"NUT {missing}"):
        await payer.rail.fund(21)
    with pytest.raises(RailFailed, match=f"NUT {missing}"):
        await locked(payer, wish)
    assert (payer.disk, server.quotes) == ([], {})


async def test_a_mint_takes_no_more_for_a_payment_than_was_agreed_to(server: MintServer) -> None:
    server.mint = ToyMint(fee_ppk=20_000)
    payer, payee = Side(server, PAYER_SECRET, 2000), Side(server, PAYEE_SECRET)
    wish = await wanted(payee, 100)
    await payer.rail.look()
    assert payer.rail.cost(100) == 20
    with pytest.raises(RailFailed, match="takes 20 satoshis"):
        payer.rail.need_ready(wish, 19)
    with pytest.raises(RailFailed, match="takes 20 satoshis"):
        await locked(payer, wish, 19)
    assert payer.disk == []
    payer.rail.need_ready(wish, 20)
    await locked(payer, wish, 20)
    assert payer.rail.purse.amount + payer.rail.purse.amount_locked == 1980


@pytest.mark.slow
async def test_of_many_small_proofs_few_large_ones_are_made_while_there_is_room(server: MintServer) -> None:
    side = Side(server, PAYER_SECRET)
    rail = side.started(Purse(tuple(one for _ in range(MANY_PROOFS) for one in server.mint.proofs(1))))
    assert await rail.consolidate()
    assert (rail.purse.amount, len(rail.purse.proofs)) == (MANY_PROOFS, MANY_PROOFS - SWAPPED_AT_ONCE + 1)
    assert unspent(rail.purse.proofs, server) == MANY_PROOFS
    assert not await rail.consolidate()
    full = side.started(Purse(rail.purse.proofs * (MAX_PROOFS // len(rail.purse.proofs) + 1)))
    with pytest.raises(RailFailed, match="the most"):
        await full.fund(21)
    await full.look()
    assert not full.can_ask(13)


async def test_what_a_swap_for_fewer_proofs_would_not_make_fewer_is_left_alone(server: MintServer) -> None:
    side = Side(server, PAYER_SECRET)
    rail = side.started(Purse(server.mint.proofs(2048) * MANY_PROOFS))  # the largest that it signs
    assert not await rail.consolidate()
    assert side.disk == []
