"""Publishers and subscribers of events in a simulation, of no particular protocol, and what must hold of them.

Each subscriber has one conversation at a time, takes what it is told at once, late or not before the end, goes away and
comes back. They speak to the runner as an edge does. ``breaches`` holds the record against what they were told.

Owns what subscribers do and what must hold of it. Does not own topics (``hub.topics``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final

from msgspec import Raw

from trunkline import entries, events
from trunkline.edges.exchange import BaseSink, Feed
from trunkline.effects import Notify, Reply, ToSession
from trunkline.errors import LedgerError
from trunkline.model import Now, Principal
from trunkline.testing.clock import ManualLoop
from trunkline.testing.promises import Breach, Record
from trunkline.testing.witness import Witness

SUBSCRIBERS: Final = ("ossa:alice", "http:script", "opensentience:com.a")
PUBLISHERS: Final = ("ossa:carol", "http:checker", "operator")
TOPICS: Final = ("news", "news.local", "alarm.fire.loud", "secret.plan")
# One event in so many is sensitive.
SENSITIVE_EACH: Final = 4
PATTERNS: Final = ("#", "news", "news.*", "*", "alarm.#", "secret.plan")


class Subscriber(BaseSink):
    """One who is told of events. ``session`` is 0 while it is away."""

    def __init__(self, users: TopicUsers, identity: str) -> None:
        self._users = users
        self.principal = Principal(identity)
        self.session = 0
        # What it was told and has not taken; a conversation that ended has no word about it any more.
        self.pending: list[Notify] = []
        self.subscriptions: list[str] = []

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        del now
        self._users.left()
        if isinstance(effect, Notify):
            self._users.was_told(self, effect)
        elif isinstance(effect, Reply) and effect.ref == "subscribe" and effect.id is not None:
            self._users.subscribed(self, effect.id)


class TopicUsers(BaseSink):
    """All of them; itself the conversation in which events are published."""

    def __init__(self, loop: ManualLoop, rng: Random, witness: Witness, left: Callable[[], None]) -> None:
        self._loop = loop
        self._rng = rng
        self._witness = witness
        self.left = left
        self._feed: Feed | None = None
        self._session = 0
        self._count = 0
        self._asked: dict[str, int] = {}
        self._subscribers = [Subscriber(self, identity) for identity in SUBSCRIBERS]
        # In the end everybody is there and takes everything.
        self.is_quiet = False
        # What they were told for sure: events, durable subscriptions, and which event by which subscription.
        self.acknowledged: set[str] = set()
        self.promised: dict[str, str] = {}
        self.told: list[tuple[str, str, str]] = []
        # Events of which somebody was told what only the record may say.
        self.hashed: set[str] = set()

    # -- the exchange comes and goes -----------------------------------------------------------------------------------

    def open(self, feed: Feed) -> None:
        """An exchange serves."""
        self._feed = feed
        self._session = feed.open_session(self)
        for subscriber in self._subscribers:
            if self.is_quiet or self._rng.random() < 0.7:
                self.arrive(subscriber)

    def close(self) -> None:
        """The exchange is gone."""
        self._feed = None
        for subscriber in self._subscribers:
            subscriber.session = 0
            subscriber.pending.clear()
        self._asked.clear()

    def _say(self, event: events.Event) -> None:
        if self._feed is not None:
            with suppress(LedgerError):
                self._feed.feed([event])

    def send(self, effect: ToSession, now: Now) -> None:
        """The answer to somebody who published."""
        del now
        self.left()
        if isinstance(effect, Reply) and self._asked.pop(effect.ref, 0) and effect.id is not None:
            self.acknowledged.add(effect.id)

    # -- what they do --------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Somebody has something to tell."""
        rng = self._rng
        self._count += 1
        ref, qos, topic = f"p{self._count}", rng.choice((0, 1, 1, 2)), rng.choice(TOPICS)
        self._asked[ref] = qos
        wall_ms = 0 if self._feed is None else self._feed.now().ms
        expires_ms = wall_ms + rng.choice((500, 20_000)) if rng.random() < 0.1 else None
        body = Raw(b'{"n":%d}' % self._count)
        publisher = rng.choice(PUBLISHERS)
        self._witness.note(publisher, f"publishes {ref} on {topic}, quality {qos}")
        context = Raw(b'{"priority":1}') if rng.random() < 0.3 else None
        asked = (self._session, ref, publisher, topic, body, qos, None, expires_ms, context, None)
        self._say(events.EventPublished(*asked, self._count % SENSITIVE_EACH == 0))

    def change(self) -> None:
        """A subscriber subscribes, ends a subscription, takes something, comes or goes."""
        rng = self._rng
        subscriber = rng.choice(self._subscribers)
        match rng.randrange(6):
            case 0 | 1:
                durable = rng.random() < 0.7
                pattern = rng.choice(PATTERNS)
                self._witness.note(subscriber.principal.identity, f"subscribes to {pattern}, durable: {durable}")
                if subscriber.session:
                    asked = (subscriber.session, "subscribe", subscriber.principal, pattern, rng.randrange(3), durable)
                    self._say(events.SubscriptionRequested(*asked))
            case 2 if subscriber.subscriptions and subscriber.session:
                name = rng.choice(subscriber.subscriptions)
                self._witness.note(subscriber.principal.identity, f"ends {name}")
                self._say(events.SubscriptionEnded(subscriber.session, "end", subscriber.principal, name))
            case 3 if subscriber.pending:
                self._take(subscriber, rng.choice(subscriber.pending), subscriber.session)
            case 4 if subscriber.pending and rng.random() < 0.3:
                given_up = rng.choice(subscriber.pending)
                subscriber.pending.remove(given_up)
                terms = (subscriber.session, given_up.subscription_id, given_up.event, "tried in vain")
                self._say(events.EventGivenUp(*terms))
            case _:
                if subscriber.session and rng.random() < 0.5:
                    self._leave(subscriber)
                else:
                    self.arrive(subscriber)

    def arrive(self, subscriber: Subscriber) -> None:
        """It is in a new conversation from here on."""
        if self._feed is None:
            return
        self._witness.note(subscriber.principal.identity, "is there for events")
        subscriber.pending.clear()
        before, subscriber.session = subscriber.session, self._feed.open_session(subscriber)
        self._say(events.SubscriberArrived(subscriber.session, subscriber.principal))
        if before and self._feed is not None:
            self._say(events.SubscriberLeft(before))
            if self._feed is not None:
                self._feed.close_session(before)

    def _leave(self, subscriber: Subscriber) -> None:
        self._witness.note(subscriber.principal.identity, "is not there for events")
        session, subscriber.session = subscriber.session, 0
        subscriber.pending.clear()
        self._say(events.SubscriberLeft(session))
        if self._feed is not None:
            self._feed.close_session(session)

    def fall_silent(self) -> None:
        """Everybody comes, and takes what is owed."""
        self.is_quiet = True
        for subscriber in self._subscribers:
            self.arrive(subscriber)

    # -- what they are told --------------------------------------------------------------------------------------------

    def was_told(self, subscriber: Subscriber, told: Notify) -> None:
        """One event, to be taken now, later, or when it is told again."""
        if not bytes(told.body).startswith(b'{"n":'):
            self.hashed.add(told.event_id)
        if not told.qos:
            return
        self.told.append((told.event_id, told.subscription_id, subscriber.principal.identity))
        subscriber.pending.append(told)
        if self.is_quiet or self._rng.random() < 0.4:
            self._take(subscriber, told, told.session)
        elif self._rng.random() < 0.5:
            self._loop.call_later(self._rng.uniform(0.0, 5.0), self._take, subscriber, told, told.session)

    def _take(self, subscriber: Subscriber, told: Notify, session: int) -> None:
        if subscriber.session == session and told in subscriber.pending:
            subscriber.pending.remove(told)
            self._say(events.EventTaken(session, told.subscription_id, told.event))

    def subscribed(self, subscriber: Subscriber, name: str) -> None:
        """It has a subscription."""
        self.promised[name] = subscriber.principal.identity
        if name not in subscriber.subscriptions:
            subscriber.subscriptions.append(name)


def breaches(users: TopicUsers, record: Record) -> Iterator[Breach]:
    """What is owed was taken or dropped, on record; and whatever anybody was told for sure is there, too."""
    published = {entry.n: entry for entry in record.topics if isinstance(entry, entries.EventPublished)}
    begun = {entry.subscription_id: entry for entry in record.topics if isinstance(entry, entries.TopicSubscribed)}
    ended = {entry.subscription_id for entry in record.topics if isinstance(entry, entries.TopicUnsubscribed)}
    ends: dict[tuple[int, str], int] = {}
    for entry in record.topics:
        if isinstance(entry, entries.EventTaken | entries.EventDropped):
            ends[entry.event, entry.subscription_id] = ends.get((entry.event, entry.subscription_id), 0) + 1
    for number, event in published.items():
        for name in event.owed:
            count = ends.get((number, name), 0)
            if count > 1 or (count == 0 and name not in ended):
                yield Breach(f"{event.event_id} is owed to {name}, and was taken or dropped {count} times")
    for event_id in sorted(users.hashed):
        yield Breach(f"somebody was told the hash of {event_id} and not what it says")
    by_id = {event.event_id for event in published.values()}
    for event_id in sorted(users.acknowledged - by_id):
        yield Breach(f"somebody was told that {event_id} is published, and it is not on record")
    for event_id, name, identity in users.told:
        if event_id not in by_id:
            yield Breach(f"{identity} was told of {event_id}, which is not on record")
        if name in begun and begun[name].subscriber != identity:
            yield Breach(f"{identity} was told by a subscription of {begun[name].subscriber}")
    for name, identity in users.promised.items():
        if name in begun and begun[name].subscriber != identity:
            yield Breach(f"{identity} was given the subscription {name} of {begun[name].subscriber}")
