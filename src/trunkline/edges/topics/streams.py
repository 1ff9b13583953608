"""Who reads events over HTTP: one conversation for each identity, however many streams it has open.

The hub tells an identity in one conversation, the newest. Two windows of one person are two streams, so they share that
conversation, and each gets the events of the subscription it asked for. Owns which stream reads which subscription, and
what a slow reader may have unread. Does not own whether somebody may subscribe (a call decides).

An event counts as taken when it was handed to the connection. What was dropped for a slow reader was not: the stream
ends, and whoever opens it again with the same durable subscription is told from there.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.edges.exchange import BaseSink, Feed
from trunkline.edges.waiting import FAILED, Waiting, size_of
from trunkline.effects import Notify, StopTelling, ToSession
from trunkline.events import EventTaken, SubscriberArrived, SubscriberLeft, SubscriptionEnded
from trunkline.model import Now, Principal


class Reader(Struct, eq=False):
    """One stream of one subscription."""

    subscription_id: str
    waiting: Waiting
    # Numbers of events on their way to it that are owed: they may be told again before they are taken.
    pending: set[int] = set()


class IdentityReaders(BaseSink):
    """All streams of one identity, and the conversation in which it is told."""

    def __init__(self, feed: Feed, who: Principal) -> None:
        self._feed = feed
        self._who = who
        self._readers: dict[str, list[Reader]] = {}
        # Requests that read, or are about to.
        self.count = 0
        self.is_over = False
        self.number = feed.open_session(self)
        feed.feed([SubscriberArrived(self.number, who)])

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  (a reader sees when it was published)
        """An event for those who read its subscription; one that nobody reads is owed until somebody does."""
        if isinstance(effect, StopTelling):
            for reader in self._readers.get(effect.subscription_id, ()):
                reader.waiting.put(effect)
        elif isinstance(effect, Notify):
            for reader in self._readers.get(effect.subscription_id, ()):
                if effect.event not in reader.pending:
                    if effect.qos:
                        reader.pending.add(effect.event)
                    reader.waiting.put(effect, size_of(effect))

    def abort(self) -> None:
        """A defect ended this conversation: the streams end with it, and whoever comes next begins another."""
        self.is_over = True
        for readers in self._readers.values():
            for reader in readers:
                reader.waiting.put(FAILED)

    def add(self, reader: Reader) -> None:
        """A stream reads from here on; what was told while nobody read is told again, to it alone."""
        self._readers.setdefault(reader.subscription_id, []).append(reader)
        self._feed.feed([SubscriberArrived(self.number, self._who)])

    def taken(self, reader: Reader, told: Notify) -> None:
        """An event was handed to the reader's connection."""
        if told.qos:
            reader.pending.discard(told.event)
            self._feed.feed([EventTaken(self.number, told.subscription_id, told.event)])

    def discard(self, reader: Reader, *, durable: bool) -> None:
        """A stream ended; a subscription that is not durable ends with its last one."""
        readers = self._readers[reader.subscription_id]
        readers.remove(reader)
        if not readers:
            del self._readers[reader.subscription_id]
            if not durable:
                self._feed.feed([SubscriptionEnded(self.number, "", self._who, reader.subscription_id)])

    def leave(self) -> None:
        """Nobody reads any more."""
        self._feed.feed([SubscriberLeft(self.number)])
        self._feed.close_session(self.number)


class Readers:
    """The streams of all identities."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._by_identity: dict[str, IdentityReaders] = {}

    def __len__(self) -> int:
        return sum(found.count for found in self._by_identity.values())

    def enter(self, who: Principal) -> IdentityReaders:
        """One more request of this identity wants to read."""
        found = self._by_identity.get(who.identity)
        if found is None or found.is_over:
            found = self._by_identity[who.identity] = IdentityReaders(self._feed, who)
        found.count += 1
        return found

    def leave(self, who: Principal, found: IdentityReaders) -> None:
        """One less."""
        found.count -= 1
        if not found.count:
            if self._by_identity.get(who.identity) is found:
                del self._by_identity[who.identity]
            found.leave()
