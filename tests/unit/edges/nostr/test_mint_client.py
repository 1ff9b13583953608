"""The client of a mint at a mint of a few lines, which answers over a real socket what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.mints import MintServer, listening
from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.errors import ConfigError
from trunkline.money import bolt11
from trunkline.money.cashu.checking import check_signatures
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Token
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused


@pytest.fixture
async def server() -> AsyncIterator[MintServer]:
    async with listening(MintServer(ToyMint())) as found:
        yield found


def client(server: MintServer) -> MintClient:
    return MintClient(f"{server.url}/", timeout_s=5)


async def test_keysets_are_fetched_once_and_checked(server: MintServer) -> None:
    mint = client(server)
    assert await mint.active_keyset("sat") == server.mint.keyset
    proofs = server.mint.proofs(3)
    assert await mint.keysets_of(proofs) == [server.mint.keyset]
    assert len([path for path in server.asked if path.startswith("/v1/keys/")]) == 1
    with pytest.raises(RailFailed, match="usd"):
        await mint.active_keyset("usd")
    with pytest.raises(ProofRefused) as refused:
        await mint.keysets_of(ToyMint("another").proofs(3))
    assert refused.value.reason == "unknown_keyset"


async def test_a_swap_gives_proofs_that_the_mint_signed_and_what_was_spent_is_refused(server: MintServer) -> None:
    mint, keyset = client(server), server.mint.keyset
    old = server.mint.proofs(5)
    new = await mint.swap(old, outputs_of(5, keyset, str, server.mint.chance), keyset)
    check_signatures(Token(mint.url, "sat", new), [keyset])
    assert [state.state for state in await mint.states(old)] == ["SPENT", "SPENT"]
    assert [state.state for state in await mint.states(new)] == ["UNSPENT", "UNSPENT"]
    with pytest.raises(ProofRefused) as refused:
        await mint.swap(old, outputs_of(5, keyset, str, server.mint.chance), keyset)
    assert refused.value.reason == "spent"


async def test_a_swap_whose_answer_is_lost_is_unknown_until_it_is_asked_for_again(server: MintServer) -> None:
    mint, keyset = client(server), server.mint.keyset
    outputs = outputs_of(5, keyset, str, server.mint.chance)
    assert await mint.restored(outputs, keyset) == ()
    proofs = await mint.swap(server.mint.proofs(5), outputs, keyset)
    assert await mint.restored(outputs, keyset) == proofs
    server.instead["/v1/swap"] = None
    with pytest.raises(RailFailed) as failed:
        await mint.swap(server.mint.proofs(5), outputs, keyset)
    assert failed.value.is_unknown


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((400, b'{"code":11001}'), ProofRefused),
        ((400, b'{"code":12002,"detail":"inactive"}'), ProofRefused),
        # It may have done it: cut off, a proxy's, without a reason, or one for which it did it before.
        ((200, b"<html>"), RailFailed),
        ((200, b'{"signatures":[]}'), RailFailed),
        ((200, b'{"signatures":[{"id":"00'), RailFailed),
        ((400, b"{}"), RailFailed),
        ((400, b'{"code":11003}'), RailFailed),
        ((400, b'{"code":77777}'), RailFailed),
        ((404, b'{"code":0}'), RailFailed),
        ((422, b"x"), RailFailed),
        ((429, b"slow down"), RailFailed),
        ((500, b'{"signatures":[]}'), RailFailed),
        ((302, b""), RailFailed),
    ],
)
async def test_whatever_a_mint_answers_to_a_swap_is_proofs_a_refusal_or_unknown(
    server: MintServer, answer: tuple[int, bytes], error: type[Exception]
) -> None:
    server.instead["/v1/swap"] = answer
    keyset = server.mint.keyset
    with pytest.raises(error) as raised:
        await client(server).swap(server.mint.proofs(1), outputs_of(1, keyset, str, server.mint.chance), keyset)
    assert getattr(raised.value, "is_unknown", False) == (error is RailFailed)


async def test_a_mint_that_has_trouble_does_not_say_what_it_does(server: MintServer) -> None:
    assert await client(server).missing_nuts() == []
    server.instead["/v1/info"] = (500, b"")
    for asked in (client(server).missing_nuts(), MintClient("http://127.0.0.1:9").missing_nuts()):
        with pytest.raises(RailFailed):
            await asked


@pytest.mark.parametrize("url", ["http://mint.example", "https://user@mint.example", "https://mint.example/#x"])
def test_an_address_that_others_could_read_along_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="mint"):
        MintClient(url)


async def test_ecash_is_had_once_its_invoice_was_paid_and_once_only(server: MintServer) -> None:
    mint, keyset = client(server), server.mint.keyset
    quote = await mint.quote(21, "sat")
    assert (quote.state, bolt11.read(quote.request).amount_msats) == ("UNPAID", 21_000)
    outputs = outputs_of(21, keyset, str, server.mint.chance)
    with pytest.raises(ProofRefused):
        await mint.minted(quote.quote, outputs, keyset)
    server.pay_all()
    assert (await mint.quote_state(quote.quote)).state == "PAID"
    proofs = await mint.minted(quote.quote, outputs, keyset)
    check_signatures(Token(mint.url, "sat", proofs), [keyset])
    assert await mint.restored(outputs, keyset) == proofs
    with pytest.raises(ProofRefused):
        await mint.minted(quote.quote, outputs_of(21, keyset, str, server.mint.chance), keyset)


@pytest.mark.parametrize("quote", ["", "../../v1/swap", "a b", "x" * 129])
async def test_a_quote_whose_name_is_no_name_is_refused(server: MintServer, quote: str) -> None:
    answer = json.dumps({"quote": quote, "request": "lnbc1", "state": "UNPAID"}).encode()
    server.instead["/v1/mint/quote/bolt11"] = (200, answer)
    with pytest.raises(ProofRefused):
        await client(server).quote(21, "sat")
