"""A wallet elsewhere that pays for us, over NIP-47: real Lightning, paid at once and never given back.

Owns one connection (``[nostr.wallet] connection``) and the requests that wait for its answer. What it says counts
only if the preimage hashes to the invoice's payment hash. Does not own budgets or
whether somebody agreed (``wallet_agent``).

Invariant: an invoice is sent once. No answer is no outcome: the money may be gone, and nobody here may say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr.client import Client
from trunkline.edges.nostr.events import Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import BadMessage
from trunkline.edges.nostr.nip47 import Connection, WalletResponse
from trunkline.edges.nostr.session import Filter
from trunkline.model import Now
from trunkline.money import bolt11, lightning
from trunkline.money.rail import RailFailed

SUBSCRIPTION: Final = "wallet-responses"
# A wallet that holds the money answers when the job is done.
ANSWER_S: Final = 900.0
OVERLAP_S: Final = 60


class OutsideWallet:
    """The wallet of a connection."""

    def __init__(self, feed: Feed, background: Background, connection: Connection) -> None:
        self._feed = feed
        self._wallet = connection.wallet
        self._relays = connection.relays
        self._signer = Signer(bytes.fromhex(connection.secret))
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

    async def pay(self, invoice: str, timeout_s: float = ANSWER_S) -> str:
        """Have an invoice paid; the preimage. ``RailFailed`` says why it was not, or that nobody knows."""
        payment_hash = bolt11.read(invoice).payment_hash
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
                if not await self._client.say(event):
                    raise RailFailed("no relay of the wallet took the request")
                response = await answered
        except TimeoutError:
            raise RailFailed("the wallet did not answer in time", is_unknown=True) from None
        finally:
            self._waiting.pop(event.id, None)
        if response.error is not None:
            # Some of NIP-47's errors come after the money went; these say that it did not.
            is_unknown = response.error.code in {"INTERNAL", "OTHER"}
            raise RailFailed(f"{response.error.code}: {response.error.message}"[:200], is_unknown=is_unknown)
        preimage = str(response.result.get("preimage", ""))
        try:
            is_proof = lightning.payment_hash_of(preimage) == payment_hash
        except ValueError:
            is_proof = False
        if not is_proof:
            raise RailFailed("what the wallet gave is no preimage of the invoice", is_unknown=True)
        return preimage

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
