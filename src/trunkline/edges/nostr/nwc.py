"""A wallet elsewhere that pays for us, over NIP-47: real Lightning, paid at once and never given back.

Owns one connection (``[nostr.wallet] connection``) and the requests that wait for its answer. What it says counts
only if the preimage hashes to the invoice's payment hash. Does not own budgets or
whether somebody agreed (``wallet_agent``).

Invariant: an invoice is sent once. Once the request may have left, nothing but the wallet's own signed answer says how
it ended: whatever relays say, the money may be gone, and nobody here may say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr.client import Client
from trunkline.edges.nostr.events import Event, signed
from trunkline.edges.nostr.keys import Entropy, Signer
from trunkline.edges.nostr.messages import BadMessage
from trunkline.edges.nostr.nip47 import Connection, WalletResponse
from trunkline.edges.nostr.session import Filter
from trunkline.model import Now
from trunkline.money import bolt11, demands, lightning
from trunkline.money.rail import RailFailed, Way
from trunkline.money.wallet import Held

SUBSCRIPTION: Final = "wallet-responses"
# A wallet that holds the money answers when the job is done.
ANSWER_S: Final = 900.0
OVERLAP_S: Final = 60
# A relay that is not reached by then is not there.
CONNECT_S: Final = 10.0
LIGHTNING: Final = Way()
# All relays said that they did not take the request: what they say is no proof, so an answer is still listened for.
REFUSED_S: Final = 30.0
# Errors of NIP-47 that say that nothing was paid. INTERNAL, OTHER and words that are not in it say nothing of that.
NOT_PAID: Final = frozenset({
    "RATE_LIMITED", "NOT_IMPLEMENTED", "INSUFFICIENT_BALANCE", "QUOTA_EXCEEDED", "RESTRICTED", "UNAUTHORIZED",
    "UNSUPPORTED_ENCRYPTION", "PAYMENT_FAILED",
})  # fmt: skip


class OutsideWallet:
    """The wallet of a connection."""

    def __init__(self, feed: Feed, background: Background, connection: Connection, entropy: Entropy) -> None:
        self._feed = feed
        self._wallet = connection.wallet
        self._relays = connection.relays
        self._signer = Signer(bytes.fromhex(connection.secret), entropy)
        self._client = Client(feed, background, self._signer)
        self._waiting: dict[str, asyncio.Future[WalletResponse]] = {}

    def start(self) -> None:
        """Connect, and listen for answers."""
        for url in self._relays:
            self._client.add(url)
        self._client.subscribe(SUBSCRIPTION, self._filters, self._heard)

    def stop(self) -> None:
        """Listen no more. What was sent and not answered stays unknown."""
        self._client.unsubscribe(SUBSCRIPTION)
        for waiting in self._waiting.values():
            waiting.cancel()

    def _filters(self, now: Now) -> Sequence[Filter]:
        since = int(now.wall) - OVERLAP_S
        return [Filter(kinds=(nip47.RESPONSE,), authors=(self._wallet,), p=(self._signer.public,), since=since)]

    def reaches(self, request: str) -> bool:
        """Whether this is an invoice: any wallet may pay it."""
        return not demands.is_ecash(request)

    def need_ready(self, wish: Held, way: Way = LIGHTNING) -> None:
        """What it has, the wallet alone knows."""

    async def pay(self, wish: Held, way: Way = LIGHTNING, timeout_s: float = ANSWER_S) -> str:  # noqa: ARG002  (there is one)
        """Have an invoice paid; the preimage. ``RailFailed`` says why it was not, or that nobody knows."""
        invoice = wish.invoice
        payment_hash = bolt11.read(invoice).payment_hash
        if not await self._client.wait_any_connected(CONNECT_S):
            raise RailFailed("no relay of the wallet elsewhere can be reached now")
        now = self._feed.now()
        expires_s = int(now.wall + timeout_s)
        draft = nip47.request_draft(
            self._signer, self._wallet, "pay_invoice", {"invoice": invoice}, int(now.wall), expires_s
        )
        event = signed(draft, self._signer)
        answered: asyncio.Future[WalletResponse] = asyncio.get_running_loop().create_future()
        self._waiting[event.id] = answered
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._answer(event, answered)
        except TimeoutError:
            raise RailFailed("the wallet elsewhere did not answer in time", is_unknown=True) from None
        finally:
            self._waiting.pop(event.id, None)
            # A relay that comes back must not carry it to the wallet after somebody was told how it ended.
            self._client.forget(event.id)
        return _proved(response, payment_hash)

    async def _answer(self, request: Event, answered: asyncio.Future[WalletResponse]) -> WalletResponse:
        """What the wallet says to a request, told by whatever relay. ``TimeoutError`` if none took it for long."""
        taken = self._client.say(request)
        either: set[asyncio.Future[Any]] = {taken, answered}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() and not taken.result():
            async with asyncio.timeout(REFUSED_S):
                return await answered
        return await answered

    def _heard(self, event: Event, _url: str) -> None:
        if event.kind != nip47.RESPONSE or event.pubkey != self._wallet:
            return
        try:
            response = nip47.read_response(event, self._signer)
        except BadMessage:
            return
        waiting = self._waiting.get(response.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)


def _proved(response: WalletResponse, payment_hash: str) -> str:
    """The preimage in an answer. ``RailFailed`` if there is none: for certain only where the wallet says so."""
    preimage = str(response.result.get("preimage", ""))
    # What is no preimage at all is no hexadecimal text.
    with suppress(ValueError):
        if lightning.payment_hash_of(preimage) == payment_hash:
            return preimage
    if response.error is None:
        raise RailFailed("what the wallet elsewhere gave is no preimage of the invoice", is_unknown=True)
    if response.error.code in NOT_PAID:
        raise RailFailed(f"the wallet elsewhere did not pay: {response.error.code}")
    raise RailFailed("the wallet elsewhere failed, and does not say whether it paid", is_unknown=True)
