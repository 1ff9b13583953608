"""Ecash taken out as a token and taken in: exact amounts, nothing lost or made whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.mints import MintServer
from tests.unit.edges.nostr.ecash_sides import NOW, Side
from tests.unit.money.cashu.toy_mint import PAYEE_SECRET, PAYER_SECRET, ToyMint, write_token_v3
from trunkline.edges.nostr.cashu_rail import CashuRail
from trunkline.money.cashu.purse import Purse
from trunkline.money.cashu.tokens import Token, read_token, write_token
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused

AMOUNT, SENT = 100, 13


@pytest.fixture
async def server() -> AsyncIterator[MintServer]:
    found = MintServer(ToyMint())
    found.wall = lambda: float(NOW)
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield found
    listening.close()


def token_of(rail: CashuRail, name: str = "one") -> Token:
    [sent] = [one for one in rail.purse.sent if one.name == name]
    return Token(rail.url, "sat", sent.proofs)


@pytest.mark.parametrize("write", [write_token, write_token_v3])
async def test_a_token_is_worth_exactly_what_was_asked_and_is_received_once(server: MintServer, write: Any) -> None:
    ours, theirs = Side(server, PAYER_SECRET, AMOUNT), Side(server, PAYEE_SECRET)
    await ours.rail.make_token("one", SENT)
    token = token_of(ours.rail)
    assert (token.amount, ours.rail.purse.amount, ours.rail.purse.amount_locked) == (SENT, AMOUNT - SENT, 0)
    text = write(token)
    assert await theirs.rail.receive(read_token(text)) == SENT
    assert theirs.rail.purse.amount == SENT
    with pytest.raises(ProofRefused) as refused:
        await theirs.rail.receive(read_token(text))
    assert refused.value.reason == "spent"
    assert (theirs.rail.purse.amount, theirs.rail.purse.begun) == (SENT, ())
    await ours.rail.forget_spent()
    assert ours.rail.purse.sent == ()
    for side in (ours, theirs):
        assert side.disk[-1] == side.rail.purse


async def test_a_token_that_nobody_has_received_stays_and_is_taken_back_by_receiving_it(server: MintServer) -> None:
    ours = Side(server, PAYER_SECRET, AMOUNT)
    await ours.rail.make_token("one", SENT)
    await ours.rail.make_token("two", 5)
    await ours.rail.forget_spent()
    assert [one.name for one in ours.rail.purse.sent] == ["one", "two"]
    assert await ours.rail.receive(token_of(ours.rail)) == SENT
    assert [one.name for one in ours.rail.purse.sent] == ["two"]
    assert ours.rail.purse.amount == AMOUNT - 5


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_kill_at_any_write_loses_nothing_and_the_token_can_be_had_under_its_name(
    server: MintServer, is_done: bool
) -> None:
    """``is_done``: the mint had carried it out by then."""
    ours = Side(server, PAYER_SECRET, AMOUNT)
    if is_done:
        await ours.rail.make_token("one", SENT)
    else:

        def never(path: str, _body: Any) -> None:
            if path == "/v1/swap":
                raise ConnectionError("the mint never hears of it")

        server.before = never
        with pytest.raises(RailFailed) as failed:
            await ours.rail.make_token("one", SENT)
        assert failed.value.is_unknown
        server.before = lambda _path, _body: None
    for on_disk in list(ours.disk):
        rail = ours.started(on_disk)
        await rail.finish_begun()
        assert token_of(rail).amount == SENT
        assert rail.purse.amount == AMOUNT - SENT
        assert (rail.purse.begun, rail.purse.amount_locked) == ((), 0)
    assert await Side(server, PAYEE_SECRET).rail.receive(token_of(rail)) == SENT


async def test_a_token_whose_swap_was_lost_and_the_keys_changed_is_not_made_and_costs_nothing(
    server: MintServer,
) -> None:
    ours = Side(server, PAYER_SECRET, AMOUNT)
    server.instead["/v1/swap"] = (503, b"")
    with pytest.raises(RailFailed):
        await ours.rail.make_token("one", SENT)
    server.instead.clear()
    server.rotate(ToyMint("other keys"))
    rail = ours.started(ours.disk[-1])
    await rail.finish_begun()
    assert (rail.purse.sent, rail.purse.amount, rail.purse.begun) == ((), AMOUNT, ())


@pytest.mark.parametrize("way", ["deaf", "never heard", "refused"])
async def test_what_is_received_is_ours_only_when_the_mint_gave_it(server: MintServer, way: str) -> None:
    theirs = Side(server, PAYEE_SECRET)
    token = Token(server.url, "sat", server.mint.proofs(SENT))
    if way == "deaf":
        server.is_deaf.add("/v1/swap")
    else:
        answer = b'{"detail":"no","code":11005}' if way == "refused" else b""
        server.instead["/v1/swap"] = (400 if way == "refused" else 503, answer)
    with pytest.raises((RailFailed, ProofRefused)):
        await theirs.rail.receive(token)
    # Whoever gave it has it, too: nothing counts yet.
    assert (theirs.rail.purse.amount, theirs.rail.purse.amount_locked) == (0, 0)
    server.is_deaf.clear()
    server.instead.clear()
    rail = theirs.started(theirs.disk[-1])
    await rail.finish_begun()
    assert rail.purse.amount == (0 if way == "refused" else SENT)
    assert rail.purse.begun == ()


async def test_of_a_token_that_its_giver_spent_meanwhile_nothing_is_kept(server: MintServer) -> None:
    theirs, giver = Side(server, PAYEE_SECRET), Side(server, PAYER_SECRET)
    token = Token(server.url, "sat", server.mint.proofs(SENT))
    server.instead["/v1/swap"] = (503, b"")
    with pytest.raises(RailFailed):
        await theirs.rail.receive(token)
    server.instead.clear()
    part = msgspec.structs.replace(token, proofs=token.proofs[:1])
    assert await giver.rail.receive(part) == part.amount
    rail = theirs.started(theirs.disk[-1])
    await rail.finish_begun()
    assert (rail.purse, rail.purse.amount) == (Purse(), 0)


async def test_what_cannot_be_ours_or_is_too_much_is_refused_before_the_mint_is_asked(
    server: MintServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Side(server, PAYER_SECRET, AMOUNT)
    locked = msgspec.structs.replace(server.mint.locked(SENT), mint=server.url)
    with pytest.raises(RailFailed, match="locked"):
        await ours.rail.receive(locked)
    with pytest.raises(RailFailed, match="satoshis"):
        await ours.rail.receive(Token(server.url, "usd", server.mint.proofs(1)))
    monkeypatch.setattr("trunkline.edges.nostr.cashu_rail.MAX_SENT", 0)
    with pytest.raises(RailFailed, match="take some of them back"):
        await ours.rail.make_token("one", 1)
    assert "/v1/swap" not in server.asked
    monkeypatch.undo()
    with pytest.raises(RailFailed, match="not enough"):
        await ours.rail.make_token("one", AMOUNT + 1)
    assert ours.disk == []
