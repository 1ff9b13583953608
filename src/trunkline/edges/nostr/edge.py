"""OpenAgents over Nostr as an edge: an embedded relay, our client of it and of outside ones, and jobs for strangers.

Owns which parts there are, in which order they start and stop, and which subscriptions we have at relays. Does not own
jobs of strangers (``provider``), jobs for us (``jobs_agent``), payments (``money``) or connections (``client``).

Invariant: deletions are asked for before requests, so that what was taken back while we were away is not taken on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from trunkline.addresses import host_and_port
from trunkline.edges.address import Address
from trunkline.edges.background import Background
from trunkline.edges.edge import Edge, EdgeOff, RunningEdge, Surroundings
from trunkline.edges.nostr import messages, nip47, nutzaps
from trunkline.edges.nostr.announcing import Announcer, count_record
from trunkline.edges.nostr.client import OLDEST_S, Bad, Client
from trunkline.edges.nostr.events import MAX_CONTENT_BYTES, Draft, Event
from trunkline.edges.nostr.jobs_agent import RemoteJobs
from trunkline.edges.nostr.keys import own_signer
from trunkline.edges.nostr.money import Money
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.provider import Provider
from trunkline.edges.nostr.relay_process import RelayProcess
from trunkline.edges.nostr.relay_settings import Settings
from trunkline.edges.nostr.session import Filter
from trunkline.events import Noticed
from trunkline.model import Now

RELAY_FOLDER: Final = "relay"
REQUESTS: Final = "requests"
DELETIONS: Final = "deletions"
WALLET: Final = "wallet"
NUTZAPS: Final = "nutzaps"
# Kinds of Nostr Wallet Connect (NIP-47), which a buyer's wallet speaks beside his jobs.
WALLET_KINDS: Final = (nip47.INFO, nip47.REQUEST, nip47.RESPONSE)
# What is still to be told when the exchange stops is told for so long; the rest is on record.
LAST_WORDS_S: Final = 2.0
# Others who come to the embedded relay when it starts wait for so long at most, until it has what we said meanwhile.
FIRST_WORDS_S: Final = 2.0
# How long after a start an agent that brings a tool of the offer may take until it is missed.
PATIENCE_S: Final = 30.0


class NostrEdge(RunningEdge):
    """The embedded relay, and everything that is said on it and on others."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._made_at = given.feed.now().mono
        self._settings = given.config.nostr
        self.signer = own_signer(given.keys, given.entropy)
        self._background = Background(given.feed)
        self.client = Client(given.feed, self._background, self.signer)
        self.client.on_bad = self._bad
        self.offer = Offer(given.config, given.views)
        self.money = Money(given, self.signer, self._background, self.client.say, self._relay_url)
        self.provider = Provider(
            given.feed, given.views, self._settings, self.signer, self.offer, self.money.till, self._say
        )
        self._announcer = Announcer(given.feed, self._settings, self.offer, self.provider.tally, self._announce)
        self._relay: RelayProcess | None = None
        self.jobs = RemoteJobs(
            given.feed,
            given.views,
            self._settings,
            self.signer,
            self.client,
            self._say,
            given.process,
            given.version,
            given.entropy,
            self.money.settling,
        )

    def prepare(self) -> None:
        """Budgets hold for payments that were asked about before a restart."""
        self.money.prepare()

    def _relay_url(self) -> str:
        return "" if self._relay is None else self._relay.url

    # -- starting and stopping -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the relay and go on with what is on record. No relay is waited for: what is said meanwhile is kept."""
        settings = self._settings
        if settings.relay:
            relay = self._relay = self._embedded()
            await relay.start()
            self.client.add(relay.url, relay.reached, lambda: self._background.spawn(self._let_in(relay)))
        for url in settings.relays:
            self.client.add(url)
        count_record(self._given.views, self.provider.tally)
        self.provider.take_up()
        # Deletions first: a request that was taken back while we were away is then not taken on.
        self.client.subscribe(DELETIONS, self._deletions, self._deleted)
        self.client.subscribe(REQUESTS, self._requests, self._requested)
        self.client.subscribe(WALLET, self.money.service.filters, self._wallet_asked)
        # Also that nothing is offered: relays may still have what was said before.
        self._announcer.start()
        self.money.service.start(self._given.feed.now())
        if self.money.ecash.at_mints:
            self.client.subscribe(NUTZAPS, self._nutzaps, self._nutzapped)
            self.client.say(self.money.ecash.info(self.client.relays, int(self._given.feed.now().wall)))
        await self.money.start()
        await self.jobs.start()

    async def _let_in(self, relay: RelayProcess) -> None:
        """Our client has said what it listens for: others come in when the relay has what we said meanwhile, too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORDS_S):
                await self.client.wait_quiet()
        relay.let_in()

    def _embedded(self) -> RelayProcess:
        given, kinds = self._given, self._settings.kinds
        host, port = host_and_port(self._settings.relay)
        lasting = (
            kinds.announcement, kinds.agent_profile, kinds.agent_state, kinds.tick_request, kinds.tick_result,
            kinds.trajectory_session, kinds.trajectory_event, nip47.INFO, nutzaps.INFO,
        )  # fmt: skip
        jobs = (kinds.request, kinds.result, kinds.feedback, messages.DELETION, nutzaps.NUTZAP)
        carried = (*jobs, *WALLET_KINDS, *lasting)
        folder, origins = str(given.home / RELAY_FOLDER), self._settings.allowed_origins
        relay = Settings(host, port, folder, carried, lasting, MAX_CONTENT_BYTES, allowed_origins=origins)
        address = Address(host, port, EDGE, "relay", is_given=given.config.is_given(EDGE, "relay"))
        return RelayProcess(relay, address, self._background)

    async def stop(self) -> None:
        """Tell what is left to tell, and let go of all relays; what no relay has is on record."""
        self.jobs.stop()
        self.money.stop()
        self._announcer.stop()
        self.client.unsubscribe(WALLET)
        self.client.unsubscribe(NUTZAPS)
        self.client.unsubscribe(REQUESTS)
        self.client.unsubscribe(DELETIONS)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.client.wait_quiet()
        await self._background.stop()
        if self._relay is not None:
            await self._relay.stop()

    # -- what comes and goes -------------------------------------------------------------------------------------------

    def _requests(self, now: Now) -> Sequence[Filter]:
        return [Filter(kinds=(self._settings.kinds.request,), since=int(now.wall) - OLDEST_S)]

    def _deletions(self, now: Now) -> Sequence[Filter]:
        return [Filter(kinds=(messages.DELETION,), since=int(now.wall) - OLDEST_S)]

    def _nutzaps(self, now: Now) -> Sequence[Filter]:
        return [Filter(kinds=(nutzaps.NUTZAP,), p=(self.signer.public,), since=int(now.wall) - OLDEST_S)]

    def _nutzapped(self, event: Event, _url: str) -> None:
        self.money.till.nutzapped(event)

    def _requested(self, event: Event, _url: str) -> None:
        if event.kind == self._settings.kinds.request:  # a relay may send what nobody asked for
            self.provider.requested(event, self._given.feed.now())

    def _deleted(self, event: Event, _url: str) -> None:
        if event.kind == messages.DELETION:
            self.provider.deleted(event, self._given.feed.now())

    def _wallet_asked(self, event: Event, url: str) -> None:
        # Only on the relay that connections name: what strangers elsewhere say to the wallet is not looked at.
        if url == self._relay_url():
            self.money.service.heard(event, self._given.feed.now())

    def _say(self, event: Event, told: Callable[[bool], None]) -> None:
        self.client.say(event).add_done_callback(lambda done: None if done.cancelled() else told(done.result()))

    def _announce(self, draft: Draft) -> None:
        self.client.publish(draft)

    def _bad(self, bad: Bad) -> None:
        self._given.feed.feed([Noticed(bad.code, EDGE, "", bad.reason)])

    # -- what is told of it --------------------------------------------------------------------------------------------

    def ready(self) -> Mapping[str, str | None]:
        """Where the embedded relay is."""
        return {"relay": None if self._relay is None else self._relay.url}

    def status(self) -> Mapping[str, object]:
        """Relays, jobs, who we are and what we offer."""
        relay = self._relay
        embedded = {} if relay is None else {"relay": relay.state, "relay_restarts": relay.restarts}
        missing = self.offer.missing()
        offered = [name + (" (not here now)" if tool in missing else "") for name, tool in self.offer.tools.items()]
        return {
            "npub": self.signer.npub,
            "offer": ", ".join(offered) or "nothing",
            **self.client.status(),
            **self.provider.status(),
            **self.jobs.status(),
            **self.money.status(),
            **embedded,
        }

    def warnings(self) -> Sequence[str]:
        """A relay that does not start; tools of the offer that nobody has, once who brings them had time to come."""
        problem = "" if self._relay is None else self._relay.problem
        found = [f"[nostr] the embedded relay does not start: {problem}"] if problem else []
        if self._given.feed.now().mono - self._made_at < PATIENCE_S:
            return found
        return [*found, *(f"[nostr] offer: nobody offers {tool_id} here now" for tool_id in self.offer.missing())]


class WithoutRelays(RunningEdge):
    """Nobody can be reached: nothing is made, not even our keys."""

    async def start(self) -> None:
        """Off."""
        raise EdgeOff('[nostr] relay is "" and relays is empty', is_chosen=True)


def _made(given: Surroundings) -> RunningEdge:
    settings = given.config.nostr
    return NostrEdge(given) if settings.relay or settings.relays else WithoutRelays()


NOSTR: Final = Edge(name=EDGE, make=_made, section=EDGE, ready_keys=("relay",))
