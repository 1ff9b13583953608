"""A client of a wallet over NIP-47 for tests with a real exchange: one connection, and the answers to what it asked."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Self
from urllib.parse import quote

from tests.nostr import OnRelay
from trunkline.edges.nostr import events, nip47
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer

WAIT_S = 40.0


class WalletClient(OnRelay):
    """``connection`` is what ``trunkline wallet new`` printed."""

    def __init__(self, connection: str, *, is_old: bool = False) -> None:
        parts = nip47.read_connection(connection)
        self.wallet = parts.wallet
        signer = Signer(bytes.fromhex(parts.secret))
        super().__init__(parts.relays[0], signer, {"kinds": [nip47.RESPONSE], "#p": [signer.public]})
        self._is_old = is_old
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    def of(cls, relay: str, secret: bytes, wallet: str) -> Self:
        """A client whose key the test has: the relay may have moved since its account was made."""
        return cls(f"{nip47.SCHEME}://{wallet}?relay={quote(relay, safe='')}&secret={secret.hex()}")

    async def _heard(self, event: Event) -> None:
        if event.pubkey != self.wallet or event.kind != nip47.RESPONSE:
            return
        open_up = self.signer.decrypt_old if self._is_old else self.signer.decrypt
        waiting = self._waiting.get(event.value("e"))
        if waiting is not None and not waiting.done():
            waiting.set_result(json.loads(open_up(event.content, event.pubkey)))

    async def send(self, method: str, params: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Ask, and wait for nothing."""
        text = json.dumps({"method": method, "params": params})
        if self._is_old:
            content, tags = self.signer.encrypt_old(text, self.wallet), (("p", self.wallet),)
            draft = events.Draft(nip47.REQUEST, content, tags, int(time.time()))
        else:
            now = int(time.time())
            draft = nip47.request_draft(self.signer, self.wallet, method, params, now, now + 600)
        event = events.signed(draft, self.signer)
        waiting = self._waiting[event.id] = asyncio.get_running_loop().create_future()
        await self._connection.send(b'["EVENT",%b]' % events.encoded(event), text=True)
        return waiting

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        return await asyncio.wait_for(await self.send(method, params), WAIT_S)
