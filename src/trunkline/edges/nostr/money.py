"""Everything about money in this edge, put together: the wallet, its service and agent, the till, receipts.

Owns the order in which they are made, started and taken up, and the wallet's key. Does not own any decision.

Invariant: nothing is paid, and no job is priced, before what is on record of the wallet was taken up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial

from trunkline.edges.background import Background
from trunkline.edges.edge import Surroundings
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr.ecash import Ecash, files_of
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer, kept_secret
from trunkline.edges.nostr.nwc import OutsideWallet
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.settling import Settling, is_open
from trunkline.edges.nostr.till import Till
from trunkline.edges.nostr.wallet_agent import AGENT, WalletAgent
from trunkline.edges.nostr.wallet_service import WalletService
from trunkline.edges.nostr.wallet_tokens import WalletTokens
from trunkline.errors import ConfigError, SecretMissing
from trunkline.money.cashu.sealing import WALLET_FILE
from trunkline.secret_references import look_up


class Money:
    """The parts. ``say`` tells relays of an event, ``relay`` is the address of the embedded one."""

    def __init__(
        self,
        given: Surroundings,
        identity: Signer,
        background: Background,
        say: Callable[[Event], asyncio.Future[bool]],
        relay: Callable[[], str],
    ) -> None:
        settings = given.config.nostr
        secret = kept_secret(given.keys / WALLET_FILE, given.entropy)
        self._feed = given.feed
        self.payments = Payments(given.feed, given.views, secret)
        self.receipting = Receipting(given.feed, given.views, self.payments)
        self.ecash = Ecash(
            given.feed, given.views, settings.wallet.mints, settings.kinds, identity, secret, self.payments,
            self.receipting, background, say, files_of(given.home, given.key, given.entropy), given.entropy,
        )  # fmt: skip
        self.till = Till(given.feed, settings, identity.public, self.payments, self.receipting, self.ecash, background)
        self.settling = Settling(given.feed, given.views, self.payments, self.receipting, self.ecash)
        signer = Signer(secret)
        self.service = WalletService(given.feed, signer, self.payments, self.till, say)
        connection = connection_of(settings.wallet.connection, os.environ)
        if connection is not None:
            given.know_secret("nostr.wallet.connection", connection.secret)
        self.outside = None if connection is None else OutsideWallet(given.feed, background, connection)
        self.agent = WalletAgent(
            given.feed,
            settings.wallet,
            self.payments,
            self.till,
            partial(is_open, given.views),
            signer.public,
            (self.ecash,) if self.outside is None else (self.outside, self.ecash),
            self.ecash,
            relay,
            background,
            given.process,
            given.version,
            given.entropy,
            WalletTokens(self.ecash, secret, given.entropy) if settings.wallet.mints else None,
        )

    def prepare(self) -> None:
        """Before the record is taken up: budgets hold for what was asked before a restart."""
        self.payments.take_up()
        self._feed.guard(AGENT, self.agent.guard)

    async def start(self) -> None:
        """Offer the tools, go on with payments, and reach the wallet elsewhere."""
        self.payments.close_older()
        if self.outside is not None:
            self.outside.start()
        self.settling.take_up(self._feed.now())
        self.ecash.start()
        await self.agent.attach()

    def stop(self) -> None:
        """Leave; what is held is on record."""
        self.agent.leave("stopping")
        self.till.stop()
        self.ecash.stop()
        if self.outside is not None:
            self.outside.stop()

    def status(self) -> Mapping[str, object]:
        """Figures for ``trunkline status``."""
        wallet = self.payments.wallet
        return {
            "wallets": len(wallet.balances),
            "quotes": len(self.till.quotes),
            "held_msats": sum(one.msats for one in wallet.held.values()),
            "own_msats": wallet.balances["exchange"],
            **self.ecash.status(),
        }


def connection_of(reference: str, environ: Mapping[str, str]) -> nip47.Connection | None:
    """The connection that a reference names, if there is one; ``ConfigError`` if it names nothing."""
    if not reference:
        return None
    place = "nostr.wallet.connection"
    try:
        return nip47.read_connection(look_up(reference, environ))
    except SecretMissing as missing:
        raise ConfigError(str(missing), place) from None
    except ValueError as error:
        raise ConfigError(f"what it names is no connection: {error}", place) from None
