"""The agent ``nostr.jobs``: every job type as a tool that providers on Nostr serve.

Owns the rim around ``buyer``: what the exchange says to the agent goes to it, what it wants done is done (events are
fed, requests told to relays), its timer, what it listens for, and which types are offered as announcements come in.
Does not own any decision about a job.

Invariant: whatever relays send, orders are looked through at most once in ``GATHER_S``, and the exchange is told of
other tools, which is an entry, at most once in ``OFFER_S``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

from trunkline.config import Nostr
from trunkline.edges.alarm import Alarm
from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.nostr import remote_tools
from trunkline.edges.nostr.buyer import EDGE, Buyer, ListenAgain, Output, Say
from trunkline.edges.nostr.client import OLDEST_S, Told
from trunkline.edges.nostr.discovery import Book
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.lookups import Lookups
from trunkline.edges.nostr.messages import BadMessage
from trunkline.edges.nostr.order_record import PROCESS
from trunkline.edges.nostr.orders import EndPayments
from trunkline.edges.nostr.provider_records import PROVIDERS, Records
from trunkline.edges.nostr.session import Filter
from trunkline.edges.nostr.settling import is_open
from trunkline.edges.resident import Resident
from trunkline.effects import Answer, Cancel, Deliver, Reply, ToSession
from trunkline.entries import ProcessStep
from trunkline.events import Event as Happened
from trunkline.events import Noticed
from trunkline.model import (
    Now,
    ProcessIdentity,
    Status,
    ToolDefinition,
)
from trunkline.money.rail import Way
from trunkline.money.wallet import Paid
from trunkline.shown import CallView

ANSWERS: Final = "answers"
ANNOUNCEMENTS: Final = "announcements"
# New announcements are acted upon together.
GATHER_S: Final = 0.25
# Somebody who announces other types all the time must not fill the disk: 64 names a minute are 5 MB a day.
OFFER_S: Final = 60.0
# New events are wanted from a little before a connection was made; what belongs to open requests, from any time.
OVERLAP_S: Final = 60
MAX_LISTENED: Final = 1000


class Relays(Protocol):
    """All relays, as far as this agent listens to them."""

    def subscribe(
        self, name: str, filters: Callable[[Now], Sequence[Filter]], told: Told, *, has_window: bool = True
    ) -> None:
        """Be told of events that fit, also of those that were told before."""

    def unsubscribe(self, name: str) -> None:
        """Be told no more."""


class Ending(Protocol):
    """Whoever ends payments for jobs that we buy."""

    def end(self, payments: EndPayments) -> None:
        """A job has its verdict."""

    def paid_before(self, provider: str) -> Paid:
        """What a provider, an npub, was paid before."""

    def held_by(self, payment_hash: str, order: str) -> str:
        """The call that had the money of an invoice held, handed over or paid for an order; empty if none did."""

    def preimage_of(self, payment_hash: str) -> str:
        """What proves that an invoice was paid at once; empty if that is not known."""

    def way(self, text: str) -> Way | None:
        """How what somebody asks to be paid by would be paid with the money that is here; None if it cannot be."""


class RemoteJobs(Resident):
    """The agent, and everything that it needs to buy jobs. ``say`` tells relays of an event and hears whether one took
    it.
    """

    # Each holds its results until it ends; more wait in the exchange's queue.
    max_inflight = 64

    def __init__(
        self,
        feed: Feed,
        views: Views,
        settings: Nostr,
        signer: Signer,
        relays: Relays,
        say: Callable[[Event, Callable[[bool], None]], None],
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
        settling: Ending,
    ) -> None:
        super().__init__(feed, EDGE, remote_tools.AGENT, version, process, entropy)
        self._views = views
        self._settings = settings
        self._public = signer.public
        self._relays = relays
        self._tell = say
        chance = Random(entropy(16))
        self.records = Records()
        self.book = Book(settings.kinds, chance, self.records)
        self._settling = settling
        lookups = Lookups(
            self._steps, partial(is_open, views), views.denied, self._made_by, settling.paid_before, settling.held_by,
            settling.preimage_of, settling.way,
        )  # fmt: skip
        self.buyer = Buyer(settings, signer, self.book, self.records, lookups, entropy, chance)
        self._alarm = Alarm(feed, self.buyer.wake_at, self._wake)
        self._offered: tuple[str, ...] = remote_tools.offered(())
        self._gathering: Timer | None = None
        self._offering: Timer | None = None
        self._offered_at = float("-inf")

    def _steps(self, call_id: str) -> Sequence[ProcessStep]:
        return self._views.open_steps(PROCESS).get(call_id, [])

    def _made_by(self, order: str, key: str) -> CallView | None:
        made_for = self._views.call(order)
        return None if made_for is None else self._views.keyed(made_for.caller, key)

    # -- coming and going ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin, and wait until the tools are there."""
        self.begin()
        await self.wait_ready()

    def begin(self) -> None:
        """Go on with what is on record, listen, and come in."""
        views, now = self._views, self._feed.now()
        self._do(self.buyer.take_up(views.open_steps(PROCESS), views.open_steps(PROVIDERS), now))
        self._listen()
        self._relays.subscribe(ANNOUNCEMENTS, self._announcement_filters, self._announced, has_window=False)
        self.arrive()

    def stop(self) -> None:
        """Leave. Requests that are under way stay on record; the next start goes on with them."""
        self._relays.unsubscribe(ANSWERS)
        self._relays.unsubscribe(ANNOUNCEMENTS)
        self._alarm.cancel()
        for timer in (self._gathering, self._offering):
            if timer is not None:
                timer.cancel()
        self.leave("stopping")

    def arrive(self) -> None:
        """Come in; what the process says from here on is said in this conversation."""
        super().arrive()
        self.buyer.session = self.number

    def abort(self) -> None:
        """A defect ended the conversation: all calls are delivered again, and go on from the record."""
        self.buyer.forget_all()
        super().abort()

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """One tool for each type that is offered now."""
        return (remote_tools.LIST, *map(remote_tools.definition, self._offered))

    def status(self) -> Mapping[str, object]:
        """Figures for ``trunkline status``."""
        return {"bought": self.buyer.counts["succeeded"], "buying": len(self.buyer), "announcements": len(self.book)}

    # -- the exchange --------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to this agent."""
        if isinstance(effect, Reply | Answer):
            self._do(self.buyer.handle(effect, now))
        else:
            super().send(effect, now)

    def deliver(self, effect: Deliver, now: Now) -> None:
        """Buy a job, or say who does which."""
        if effect.tool_id == remote_tools.PROVIDERS_TOOL:
            self.finish(
                effect.call_id, Status.SUCCEEDED, output=remote_tools.listed(effect.input, self.book, self.records)
            )
            return
        self._do(self.buyer.handle(effect, now))

    def cancel(self, effect: Cancel, now: Now) -> None:
        """Take its requests back."""
        self._do(self.buyer.handle(effect, now))

    def _do(self, outputs: Sequence[Output]) -> None:
        """What the process wants: events in their order, then what is told to relays."""
        happened = [one for one in outputs if isinstance(one, Happened)]
        if happened:
            self._feed.feed(happened)
        for one in outputs:
            if isinstance(one, Say):
                self._say(one.event)
            elif isinstance(one, ListenAgain):
                self._listen()
            elif isinstance(one, EndPayments):
                self._settling.end(one)
        self._alarm.set()

    def _say(self, event: Event) -> None:
        def told(is_taken: bool) -> None:
            if not is_taken:
                self._do(self.buyer.not_taken(event.id, self._feed.now()))

        self._tell(event, told)

    def _wake(self) -> None:
        self._do(self.buyer.wake(self._feed.now()))

    # -- relays --------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._relays.subscribe(ANSWERS, self._answer_filters, self._answered)

    def _answer_filters(self, now: Now) -> Sequence[Filter]:
        kinds = (self._settings.kinds.result, self._settings.kinds.feedback)
        filters = [Filter(kinds=kinds, p=(self._public,), since=int(now.wall) - OVERLAP_S)]
        names = tuple(self.buyer.request_ids()[:MAX_LISTENED])
        if names:
            filters.append(Filter(kinds=kinds, e=names, since=int(now.wall) - OLDEST_S))
        return filters

    def _announcement_filters(self, _now: Now) -> Sequence[Filter]:
        return [Filter(kinds=(self._settings.kinds.announcement,))]

    def _answered(self, event: Event, _url: str) -> None:
        self._do(self.buyer.heard(event, self._feed.now()))

    def _announced(self, event: Event, _url: str) -> None:
        try:
            is_news = self.book.heard(event, self._feed.now())
        except BadMessage as error:
            # Without a name: of the same the exchange writes down only some, and names cost nothing.
            self._feed.feed([Noticed("nostr.announcement", EDGE, "", str(error))])
            return
        if is_news and self._gathering is None:
            self._gathering = self._feed.call_later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        """Offer what is announced now, and ask those who came."""
        self._gathering = None
        now = self._feed.now()
        wait_s = self._offered_at + OFFER_S - now.mono
        if wait_s <= 0:
            self._offer_announced()
        elif self._offering is None:
            self._offering = self._feed.call_later(wait_s, self._offer_announced)
        self._do(self.buyer.announced(now))

    def _offer_announced(self) -> None:
        self._offering = None
        offered = remote_tools.offered(self.book.types().items())
        if offered != self._offered:
            self._offered, self._offered_at = offered, self._feed.now().mono
            if self.number:
                self.offer()
