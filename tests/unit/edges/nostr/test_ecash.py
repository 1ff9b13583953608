"""Ecash in an exchange: handed over, redeemed or had back in the end; and no mint is asked that is not listed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.mints import MintServer, listening
from tests.unit.edges.nostr.kit import OURS
from tests.unit.edges.nostr.market import WALLET_SECRET
from tests.unit.money.cashu.toy_mint import PAYEE_SECRET, ToyMint
from tests.unit.money.paid import JOB_HASH, NPUB, signed_event
from trunkline.config import Nostr, NostrKinds, NostrWallet
from trunkline.edges.background import Background
from trunkline.edges.nostr import nutzaps
from trunkline.edges.nostr.cashu_rail import LOCK_S, CashuRail
from trunkline.edges.nostr.ecash import LAST_AGAIN_S, TERMS_S, Ecash, files_of
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.till import Till
from trunkline.edges.nostr.wallet_agent import WalletAgent
from trunkline.edges.nostr.wallet_tokens import WalletTokens
from trunkline.ledger import wallets
from trunkline.model import Status
from trunkline.money import wallet
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.locks import JOB_TAG, signed_witness
from trunkline.money.cashu.purse import Purse
from trunkline.money.cashu.requests import PaymentRequest, read_request, write_request
from trunkline.money.cashu.sealing import sealed, unsealed
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Token, read_token, write_token
from trunkline.money.rail import RailFailed, Way
from trunkline.money.refusals import ProofRefused
from trunkline.money.wallet import Held, Refused
from trunkline.testing.memory import MadeCall, MemoryExchange

FUNDED = 100


class House:
    """One exchange with ecash of one mint; ``said`` are its nutzaps, which relays take unless ``takes`` is False."""

    def __init__(self, server: MintServer, home: Path, *, before: House | None = None) -> None:
        self.server, self.home = server, home
        self.exchange = MemoryExchange() if before is None else before.exchange.restarted()
        server.wall = lambda: self.exchange.now().wall
        given = self.exchange.surroundings()
        self.payments = Payments(given.feed, given.views, WALLET_SECRET)
        self.payments.take_up()
        self.background = Background(given.feed)
        self.said: list[Event] = []
        self.takes = True
        self.ecash = Ecash(
            given.feed, given.views, (server.url,), NostrKinds(), OURS, WALLET_SECRET, self.payments,
            Receipting(given.feed, given.views, self.payments), self.background, self._say,
            files_of(home, given.key, os.urandom), os.urandom,
        )  # fmt: skip
        self.ecash.start()

    def _say(self, event: Event) -> asyncio.Future[bool]:
        self.said.append(event)
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        told.set_result(self.takes)
        return told

    async def until(self, condition: Callable[[], Any]) -> None:
        """Until what was spawned has done it; its mint answers over a real socket."""
        deadline = asyncio.get_running_loop().time() + 20
        while not condition():
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.005)

    async def funded(self) -> None:
        await self.ecash.fund(self.server.url + "/", FUNDED * 1000)
        self.server.pay_all()
        self.ecash.look_soon()
        await self.until(lambda: self.money() == (FUNDED, 0))

    def money(self) -> tuple[int, int]:
        """What the record says."""
        found = self.payments.wallet.ecash.get(self.server.url)
        return (0, 0) if found is None else (found.sats, found.locked)

    def sent(self, wish: Held) -> None:
        """As the wallet's agent puts it on record before it pays."""
        at_ms = self.exchange.now().ms
        self.payments.take(wallet.Sent(wish.payment_hash, wish.provider, wish.msats, JOB_HASH, "", "c", at_ms, at_ms))


@pytest.fixture
async def server() -> AsyncIterator[MintServer]:
    async with listening(MintServer(ToyMint())) as found:
        yield found


@pytest.fixture
async def house(server: MintServer, tmp_path: Path) -> AsyncIterator[House]:
    found = House(server, tmp_path)
    await found.until(lambda: found.ecash.rails[server.url].terms is not None)
    await found.funded()
    yield found
    found.ecash.stop()
    await found.background.stop()
    found.exchange.close()


def payee(server: MintServer) -> CashuRail:
    return CashuRail(MintClient(server.url), PAYEE_SECRET, Purse(), lambda _purse: None, server.wall, os.urandom)


async def wanted(server: MintServer, amount: int = 13, **changed: Any) -> Held:
    rail = payee(server)
    await rail.look()
    usual = {"mints": (server.url,), "tags": ((JOB_TAG, JOB_HASH),)}
    request = write_request(PaymentRequest(amount, "sat", key=rail.key.hex(), **(usual | changed)))
    asked = signed_event([("amount", str(amount * 1000), request), rail.keyset_tag()])
    return Held(
        payment_hash=hashlib.sha256(request.encode()).hexdigest(), payer="exchange", payee=NPUB, msats=amount * 1000,
        invoice=request, asked=Raw(asked), quote_id="", request_id="ab" * 32, schema_id="s", job_hash=JOB_HASH,
        provider=NPUB, at_ms=0, judge="buyer", call_id="c",
    )  # fmt: skip


async def test_what_its_payee_redeemed_is_paid_and_without_a_result_that_counts_there_is_no_receipt(
    house: House, server: MintServer
) -> None:
    wish = await wanted(server)
    house.sent(wish)
    assert house.ecash.reaches(wish.invoice)
    house.ecash.need_ready(wish, Way(server.url))
    assert await house.ecash.pay(wish, Way(server.url)) == ""
    assert house.money() == (87, 13)
    zap = nutzaps.read_nutzap(house.said[-1])
    assert (zap.request_id, zap.token.amount) == (wish.request_id, 13)
    rail = payee(server)
    rail.take(wish, zap.token)
    await rail.redeem(rail.purse.taken[0])
    house.ecash.look_soon()
    await house.until(lambda: house.money() == (87, 0))
    assert house.payments.wallet.paid[NPUB] == wallet.Paid(1, 13_000)
    assert wish.payment_hash in house.payments.wallet.spent
    assert house.exchange.notices() == ["nostr.ecash"]
    assert house.exchange.views.receipts(10, None)[0] == []


async def test_what_its_payee_never_redeemed_is_had_back_when_its_lock_has_ended(
    house: House, server: MintServer
) -> None:
    wish = await wanted(server)
    house.sent(wish)
    await house.ecash.pay(wish, Way(server.url))
    house.exchange.advance(LOCK_S - 3600)
    house.ecash.look_soon()
    await asyncio.sleep(0.1)
    assert house.money() == (87, 13)
    house.exchange.advance(3600 + 61)
    await house.until(lambda: house.money() == (FUNDED, 0))
    assert wish.payment_hash not in house.payments.wallet.spent
    assert house.payments.wallet.paid == {}


async def paid(house: House, server: MintServer, amount: int) -> Held:
    """A payment that its payee was told of."""
    wish = await wanted(server, amount)
    house.sent(wish)
    await house.ecash.pay(wish, Way(server.url))
    return wish


async def test_a_payee_who_redeems_a_part_holds_up_nothing_and_is_recorded_with_that_part(
    house: House, server: MintServer
) -> None:
    first = await paid(house, server, 3)
    [part] = [one for one in nutzaps.read_nutzap(house.said[-1]).token.proofs if one.amount == 2]
    opened = msgspec.structs.replace(part, witness=signed_witness(part.secret, PAYEE_SECRET, bytes(32)))
    keyset = server.mint.keyset
    await MintClient(server.url).swap([opened], outputs_of(2, keyset, str, server.mint.chance), keyset)
    second = await paid(house, server, 20)
    house.exchange.advance(LOCK_S + 61)
    await house.until(lambda: house.money() == (FUNDED - 2, 0))
    await house.until(lambda: not house.ecash.rails[server.url].purse.locked)
    own = house.payments.wallet
    assert own.paid == {NPUB: wallet.Paid(1, 2_000)}
    assert second.payment_hash not in own.spent
    assert own.spent[first.payment_hash].msats == 2_000
    assert house.exchange.notices() == ["nostr.ecash"]
    assert house.exchange.views.receipts(10, None)[0] == []


async def test_what_a_mint_does_not_say_of_one_payment_holds_up_no_other(house: House, server: MintServer) -> None:
    await paid(house, server, 3)
    first = {hash_to_curve(one.secret.encode()).hex() for one in house.ecash.rails[server.url].purse.locked[0].proofs}
    await paid(house, server, 20)

    def fails(path: str, body: Any) -> None:
        if path == "/v1/checkstate" and first & set(body["Ys"]):
            server.garbled[path] = lambda _status, _data: (500, b"")

    server.before = fails
    house.exchange.advance(LOCK_S + 61)
    await house.until(lambda: house.money() == (FUNDED - 3, 3))


async def test_a_refund_whose_answer_was_lost_is_no_payment(house: House, server: MintServer) -> None:
    wish = await paid(house, server, 13)
    server.is_deaf.add("/v1/swap")
    house.exchange.advance(LOCK_S + 61)
    await house.until(lambda: house.ecash.rails[server.url].purse.begun)
    server.is_deaf.clear()

    def is_back() -> bool:
        # When the look that failed is over, the next one comes after its time, whenever that is.
        house.exchange.advance(LAST_AGAIN_S + 1)
        return house.money() == (FUNDED, 0)

    await house.until(is_back)
    await house.until(lambda: wish.payment_hash not in house.payments.wallet.spent)
    assert house.payments.wallet.paid == {}
    assert house.exchange.notices() == []


async def test_a_nutzap_that_no_relay_takes_is_unknown_and_comes_back(house: House, server: MintServer) -> None:
    house.takes = False
    wish = await wanted(server)
    house.sent(wish)
    with pytest.raises(RailFailed) as failed:
        await house.ecash.pay(wish, Way(server.url))
    assert failed.value.is_unknown
    house.exchange.advance(LOCK_S + 61)
    await house.until(lambda: house.money() == (FUNDED, 0))


async def test_after_a_restart_the_call_that_handed_ecash_over_is_known_and_the_record_says_the_same(
    house: House, server: MintServer
) -> None:
    wish = msgspec.structs.replace(await wanted(server), order="o")
    house.sent(wish)
    await house.ecash.pay(wish, Way(server.url))
    await house.background.stop()
    again = House(server, house.home, before=house)
    assert again.money() == (87, 13)
    assert again.ecash.paid_by(wish.payment_hash, "o") == "c"
    assert again.ecash.paid_by(wish.payment_hash, "p") == ""
    again.ecash.stop()
    await again.background.stop()


async def test_ecash_of_a_mint_that_is_not_listed_is_neither_paid_taken_nor_bought(
    house: House, server: MintServer
) -> None:
    other = await wanted(server, mints=("https://mint.example",))
    assert not house.ecash.reaches(other.invoice)
    assert not house.ecash.reaches("lnbcrt1")
    assert not house.ecash.reaches("creqAxx")
    with pytest.raises(Refused, match="listed"):
        house.ecash.need_ready(other, Way("https://mint.example"))
    with pytest.raises(RailFailed, match="not listed"):
        await house.ecash.fund("https://mint.example", 1000)
    token = msgspec.structs.replace(ToyMint("x").locked(13), mint="https://mint.example")
    with pytest.raises(ProofRefused) as refused:
        await house.ecash.check(token, (await wanted(server)).invoice)
    assert refused.value.reason == "other_mint"
    assert {path.split("/")[2] for path in server.asked} <= {"info", "keysets", "keys", "mint"}


async def test_what_we_ask_for_is_in_whole_satoshis_for_our_key_and_names_the_job(
    house: House, server: MintServer
) -> None:
    due = house.ecash.asking(12_001, OURS.npub, JOB_HASH, "id")
    assert due is not None
    request = read_request(due.request)
    assert (due.amount_msats, request.amount, request.mints) == (13_000, 13, (server.url,))
    assert request.job_hash == JOB_HASH
    assert request.key == house.ecash.rails[server.url].key.hex()
    assert house.ecash.keyset_tags(due.request) == (house.ecash.rails[server.url].keyset_tag(),)
    info = house.ecash.info(["ws://x"], 5)
    assert (info.kind, info.value("mint"), info.value("pubkey")) == (10_019, server.url, request.key)


async def test_a_mint_that_does_not_answer_is_left_alone_for_a_while_and_asked_for_nothing_new(
    house: House, server: MintServer
) -> None:
    server.instead["/v1/info"] = (200, b'{"nuts":{}}')
    house.exchange.advance(TERMS_S + 1)
    await house.until(lambda: house.ecash.asking(13_000, OURS.npub, JOB_HASH, "id") is None)
    with pytest.raises(RailFailed, match="NUT"):
        await house.ecash.pay(await wanted_of(server), Way(server.url))
    count = len(server.asked)
    house.ecash.look_soon()
    await asyncio.sleep(0.05)
    assert len(server.asked) == count
    server.instead.clear()
    house.exchange.advance(LAST_AGAIN_S + 1)
    await house.until(lambda: house.ecash.asking(13_000, OURS.npub, JOB_HASH, "id") is not None)


async def wanted_of(server: MintServer) -> Held:
    """A wish that was made while the mint was well."""
    kept = server.instead
    server.instead = {}
    try:
        return await wanted(server)
    finally:
        server.instead = kept


@pytest.mark.parametrize("msats", [1, 999, 1001])
async def test_ecash_is_bought_in_whole_satoshis(house: House, server: MintServer, msats: int) -> None:
    with pytest.raises(RailFailed, match="whole satoshis"):
        await house.ecash.fund(server.url, msats)


def history(house: House) -> list[tuple[str, int]]:
    house.exchange.store()
    found = [told for _, told in wallets.history(house.exchange.ledger.reader, "", 50)]
    return [(told["step"], told["msats"]) for told in found if told["step"].startswith("token")]


async def test_a_token_that_is_sent_stands_in_the_history_until_it_was_received_and_after(
    house: House, server: MintServer
) -> None:
    assert await house.ecash.send("name", 13_000) == server.url
    assert house.money() == (FUNDED - 13, 0)
    token = read_token(house.ecash.token("name"))
    assert (token.amount, token.mint) == (13, server.url)
    assert history(house) == [("token_sent", 13_000)]
    await payee(server).receive(token)
    house.exchange.advance(LAST_AGAIN_S + 1)
    await house.until(lambda: len(history(house)) == 2)
    assert history(house)[0] == ("token_over", 13_000)
    with pytest.raises(RailFailed, match="no such token"):
        house.ecash.token("name")


async def test_what_the_record_says_of_tokens_is_mended_at_the_next_start(house: House, server: MintServer) -> None:
    rail = house.ecash.rails[server.url]
    await rail.make_token("killed", 13)  # before it was told to the record
    await house.background.stop()
    house.ecash.stop()
    again = House(server, house.home, before=house)
    assert history(again) == [("token_sent", 13_000)]
    assert read_token(again.ecash.token("killed")).amount == 13
    again.ecash.stop()
    await again.background.stop()


async def test_a_token_is_received_from_a_listed_mint_only_and_one_of_ours_is_taken_back(
    house: House, server: MintServer
) -> None:
    text = write_token(Token(server.url, "sat", server.mint.proofs(5)))
    assert await house.ecash.receive(text) == (server.url, 5)
    assert (house.money(), history(house)) == ((FUNDED + 5, 0), [("token_received", 5_000)])
    await house.ecash.send("back", 7_000, server.url)
    assert await house.ecash.receive(house.ecash.token("back")) == (server.url, 7)
    assert [step for step, _ in history(house)] == ["token_received", "token_over", "token_sent", "token_received"]
    for bad, why in (
        (write_token(Token("https://mint.example", "sat", server.mint.proofs(5))), "not listed"),
        ("cashuBxx", "."), ("hello", "."), (text, "spent"),
    ):  # fmt: skip
        with pytest.raises(RailFailed, match=why) as refused:
            await house.ecash.receive(bad)
        # A sentence of ours: what was given is not in it.
        assert bad not in refused.value.why
        assert "mint.example" not in refused.value.why
    for msats, mint, why in ((999, "", "whole satoshis"), (1000, "https://mint.example", "not listed")):
        with pytest.raises(RailFailed, match=why):
            await house.ecash.send("x", msats, mint)
    assert house.money() == (FUNDED + 5, 0)


async def test_calls_that_take_ecash_out_and_in_have_nothing_on_record_that_could_be_spent(
    house: House, server: MintServer
) -> None:
    exchange = house.exchange
    given = exchange.surroundings()
    till = Till(given.feed, Nostr(), OURS.public, house.payments, Receipting(given.feed, given.views, house.payments))
    agent = WalletAgent(
        given.feed, NostrWallet(), house.payments, till, lambda _: True, "", (), house.ecash, lambda: "",
        house.background, given.process, "0", os.urandom, WalletTokens(house.ecash, WALLET_SECRET, os.urandom),
    )  # fmt: skip
    agent.arrive()

    async def called(tool: str, wish: dict[str, Any]) -> MadeCall:
        call = exchange.call(f"nostr.wallet/{tool}", wish)
        await house.until(lambda: call.answer)
        return call

    made = (await called("send", {"msats": 13_000})).output
    assert (made["mint"], made["msats"]) == (server.url, 13_000)
    token = unsealed(WALLET_SECRET, (await called("token", {"id": made["id"]})).output["sealed"])
    assert read_token(token).amount == 13
    box = sealed(WALLET_SECRET, token, bytes(12))
    assert (await called("receive", {"sealed": box})).output == {"mint": server.url, "msats": 13_000}
    # The same once more is spent; what is not sealed, or with another key, is not looked at.
    asked = len(server.asked)
    for wrong in (sealed(b"x" * 32, token, bytes(12)), box[:-4], "cashuB"):
        assert "not sealed" in str((await called("receive", {"sealed": wrong})).outcome.fault)
    assert len(server.asked) == asked
    assert "spent" in str((await called("receive", {"sealed": box})).outcome.fault)
    assert "no such token" in str((await called("token", {"id": made["id"]})).outcome.fault)
    assert (await called("send", {"msats": 13_000, "mint": "x", "more": 1})).outcome.fault is not None
    server.is_deaf.add("/v1/swap")
    unknown = (await called("send", {"msats": 2_000})).outcome
    assert (unknown.status, "wallet send --again" in str(unknown.fault)) == (Status.UNKNOWN, True)
    recorded = b"".join(msgspec.json.encode(entry) for entry in exchange.log)
    secrets = [one.secret for one in (*read_token(token).proofs, *house.ecash.rails[server.url].purse.proofs)]
    assert [secret for secret in (token, *secrets) if secret.encode() in recorded] == []
