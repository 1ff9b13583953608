"""A wallet elsewhere at scripted relays: once a request may have left, only the wallet's own word says how it ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.edges.nostr.test_client import Clock, ScriptedRelay, relay
from trunkline.edges.background import Background
from trunkline.edges.nostr import events, nip47
from trunkline.edges.nostr import nwc as module
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.nip47 import Connection, WalletError
from trunkline.edges.nostr.nwc import OutsideWallet
from trunkline.money import bolt11, lightning
from trunkline.money.rail import RailFailed
from trunkline.money.wallet import Held

WALLET, STRANGER = Signer(bytes(31) + b"\x77"), Signer(bytes(31) + b"\x78")
PREIMAGE = "07" * 32


class Elsewhere:
    """The wallet behind a relay. ``paid`` has each invoice that it was asked to pay."""

    def __init__(self, relay: ScriptedRelay) -> None:
        self.relay = relay
        self.paid: list[str] = []
        # What it answers with; None: nothing.
        self.says: Callable[[], dict[str, Any] | None] = lambda: {"result": {"preimage": PREIMAGE}}
        self.signer = WALLET
        self.is_taken = True
        relay.takes = self._takes

    def _takes(self, words: Any) -> list[Any]:
        request = events.read(json.dumps(words).encode())
        self.paid.append(nip47.read_request(request, WALLET).params["invoice"])
        said = self.says()
        if said is not None:
            asyncio.get_running_loop().create_task(self._tell(request, said))
        return ["OK", request.id, self.is_taken, "" if self.is_taken else "blocked: no"]

    async def _tell(self, request: Event, said: dict[str, Any]) -> None:
        draft = nip47.response_draft(
            WALLET, request.id, request.pubkey, nip47.NIP44, "pay_invoice", request.created_at, **said
        )
        event = events.signed(Draft(draft.kind, draft.content, draft.tags, draft.created_at), self.signer)
        for connection in list(self.relay.connections):
            await connection.send(
                b'["EVENT","%b",%b]' % (module.SUBSCRIPTION.encode(), events.encoded(event)), text=True
            )


@asynccontextmanager
async def outside(*relays: ScriptedRelay) -> AsyncIterator[OutsideWallet]:
    clock = Clock()
    background = Background(clock)  # type: ignore[arg-type]
    urls = tuple(one.url for one in relays)
    made = OutsideWallet(clock, background, Connection(WALLET.public, urls, "22" * 32), os.urandom)  # type: ignore[arg-type]
    made.start()
    try:
        yield made
    finally:
        made.stop()
        await background.stop()
    assert clock.failures == []


def invoice() -> str:
    now = Clock().now()
    return bolt11.written(b"\x09" * 32, 1000, lightning.payment_hash_of(PREIMAGE), "", int(now.wall), 600)


def wish(text: str) -> Held:
    """What is to be paid by this invoice."""
    return Held(
        payment_hash="", payer="exchange", payee="", msats=1000, invoice=text, asked=Raw(b"{}"), quote_id="",
        request_id="", schema_id="", job_hash="", provider="", at_ms=0, judge="buyer",
    )  # fmt: skip


async def test_a_preimage_of_the_invoice_is_what_counts_whatever_relays_say() -> None:
    for is_taken in (True, False):
        async with relay() as one, outside(one) as wallet:
            elsewhere = Elsewhere(one)
            elsewhere.is_taken = is_taken
            assert await asyncio.wait_for(wallet.pay(wish(invoice())), 20) == PREIMAGE
            assert len(elsewhere.paid) == 1


SILENT: dict[str, Any] = {"is_taken": True, "says": lambda: None}


@pytest.mark.parametrize(
    "change",
    [
        SILENT,
        {**SILENT, "is_taken": False},
        {"says": lambda: {"result": {"preimage": "08" * 32}}},
        {"says": lambda: {"result": {}}},
        {"says": lambda: {"result": {"preimage": "x"}}},
        {"says": lambda: {"error": WalletError("INTERNAL", "x")}},
        {"says": lambda: {"error": WalletError("OTHER", "x")}},
        {"says": lambda: {"error": WalletError("A_WORD_OF_ITS_OWN", "x")}},
        {"signer": STRANGER, "says": lambda: {"error": WalletError("PAYMENT_FAILED", "x")}},
    ],
)
async def test_whatever_is_no_signed_word_of_the_wallet_leaves_it_unknown(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSED_S", 0.2)
    async with relay() as one, outside(one) as wallet:
        elsewhere = Elsewhere(one)
        for name, value in change.items():
            setattr(elsewhere, name, value)
        with pytest.raises(RailFailed) as failed:
            await asyncio.wait_for(wallet.pay(wish(invoice()), timeout_s=1.0), 20)
        assert failed.value.is_unknown
        assert len(elsewhere.paid) == 1


@pytest.mark.parametrize("code", sorted(module.NOT_PAID))
async def test_what_the_wallet_says_it_did_not_pay_was_not_paid_and_its_words_are_not_repeated(code: str) -> None:
    async with relay() as one, outside(one) as wallet:
        Elsewhere(one).says = lambda: {"error": WalletError(code, "words of a stranger")}
        with pytest.raises(RailFailed) as failed:
            await asyncio.wait_for(wallet.pay(wish(invoice())), 20)
        assert not failed.value.is_unknown
        assert failed.value.why == f"the wallet elsewhere did not pay: {code}"


async def test_an_error_beside_a_preimage_does_not_undo_the_payment() -> None:
    async with relay() as one, outside(one) as wallet:
        said = {"error": WalletError("PAYMENT_FAILED", "x"), "result": {"preimage": PREIMAGE}}
        Elsewhere(one).says = lambda: said
        assert await asyncio.wait_for(wallet.pay(wish(invoice())), 20) == PREIMAGE


async def test_a_request_that_could_not_leave_was_not_paid_and_does_not_leave_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relay() as one:
        await one.stop()
        async with outside(one) as wallet:
            with monkeypatch.context() as patched:
                patched.setattr(module, "CONNECT_S", 0.2)
                with pytest.raises(RailFailed) as failed:
                    await asyncio.wait_for(wallet.pay(wish(invoice())), 20)
            assert not failed.value.is_unknown
            elsewhere = Elsewhere(one)
            await one.start()
            assert await asyncio.wait_for(wallet.pay(wish(invoice())), 20) == PREIMAGE
            assert len(elsewhere.paid) == 1


async def test_a_relay_that_comes_back_after_the_end_carries_nothing_to_the_wallet() -> None:
    async with relay() as one, relay() as two, outside(one, two) as wallet:
        elsewhere, late = Elsewhere(one), Elsewhere(two)
        both = [relay.is_up.wait() for relay in wallet._client._relays.values()]
        await asyncio.wait_for(asyncio.gather(*both), 10)
        elsewhere.says = lambda: {"error": WalletError("INSUFFICIENT_BALANCE", "x")}
        two.takes = lambda event: ["OK", event["id"], False, "rate-limited: later"]
        with pytest.raises(RailFailed):
            await asyncio.wait_for(wallet.pay(wish(invoice())), 20)
        assert [len(relay.session) for relay in wallet._client._relays.values()] == [0, 0]
        assert wallet._client.status()["unsent"] == 0
        assert late.paid == []
