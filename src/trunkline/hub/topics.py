"""Events on topics: who is told of what, and to whom something is owed until he took it.

A topic is segments between dots; in a pattern ``*`` stands for one segment and ``#`` for all that follow. An event goes
out with the lower of two qualities, the publisher's and the subscription's: with 0 it is told once, to who is there;
above that it is owed until its subscriber says that he took it. What is owed to a durable subscription is on record and
survives a restart; what is owed to another one ends with the conversation.

Owns subscriptions and what is owed. Does not own who may publish or subscribe: both are calls of the exchange's own
tools, judged as any call. But whoever is denied the tool ``topic/<topic>`` is not told of its events, whatever he has
subscribed to. Does not own how often somebody is told until he answers (an edge), nor what the body means.

Invariant: an event of quality 1 or 2 is taken by each durable subscription that it is owed to, or there is an entry
that says why not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trunkline import entries, events
from trunkline.effects import Notify
from trunkline.entries import EventPublished, TopicSubscribed
from trunkline.hub.journal import Journal
from trunkline.hub.policy import Judge
from trunkline.model import EMPTY_OBJECT, Decision, Fault, Now, ToolDefinition, fault

MAX_TOPIC_CHARS: Final = 255
# What one identity may have; somebody with more is broken or hostile.
MAX_SUBSCRIPTIONS: Final = 1000
# What is owed to one durable subscription at most; beyond it events are dropped, on record, and go to its dead letters.
MAX_OWED: Final = 10_000
MAX_OWED_BYTES: Final = 67_108_864
# An event that nobody took for so long is not owed any more.
OWED_MS: Final = 86_400_000
# Where events go that could not be handed over, below their own topic.
DEAD_LETTERS: Final = "dlq"
EXCHANGE: Final = "trunkline"
# How many topics are remembered with who is told of them.
MAX_REMEMBERED: Final = 1024

_SEGMENT: Final = r"[^\s.*#\x00-\x1f\x7f]+"
TOPIC: Final = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
PATTERN: Final = re.compile(rf"(?:#|(?:{_SEGMENT}|\*)(?:\.(?:{_SEGMENT}|\*))*(?:\.#)?)")


def topic_problem(topic: str) -> Fault | None:
    """Why nothing can be published on this."""
    if len(topic) <= MAX_TOPIC_CHARS and TOPIC.fullmatch(topic):
        return None
    return fault("tool.invalid_input", f"a topic is segments between dots, at most {MAX_TOPIC_CHARS} characters")


def pattern_problem(pattern: str) -> Fault | None:
    """Why nobody can subscribe to this."""
    if len(pattern) <= MAX_TOPIC_CHARS and PATTERN.fullmatch(pattern):
        return None
    text = "a pattern is segments between dots; `*` stands for one segment, `#` at the end for all that follow"
    return fault("tool.invalid_input", text)


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to a pattern is told of a topic."""
    wanted, given = pattern.split("."), topic.split(".")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(one in {"*", other} for one, other in zip(wanted, given, strict=True))


class Subscription(Struct, eq=False):
    """One subscription, and where its subscriber is now (0: nowhere)."""

    entry: TopicSubscribed
    session: int
    # What it has not taken yet: the number of each event, and its size.
    owed: dict[int, int] = {}
    owed_bytes: int = 0

    @property
    def id(self) -> str:
        """Its name."""
        return self.entry.subscription_id


class Topics:
    """One method for each event about topics."""

    def __init__(self, journal: Journal, judge: Judge, new_id: Callable[[], str]) -> None:
        self._journal = journal
        self._state = journal.state
        self._judge = judge
        self._new_id = new_id
        self._by_id: dict[str, Subscription] = {}
        self._by_session: dict[int, dict[str, None]] = {}
        # Events that are owed to subscriptions that are not durable, by number, with how many they are.
        self._passing: dict[int, tuple[EventPublished, int]] = {}
        self._told: dict[str, list[Subscription]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def take_up(self) -> None:
        """After a restart: durable subscriptions wait for their subscribers."""
        for entry in self._state.subscriptions.values():
            self._by_id[entry.subscription_id] = Subscription(entry, 0)
        for number, event in self._state.owed.items():
            for name in event.to:
                self._owe(self._by_id[name], number, len(event.entry.body))

    def owed_to_durable(self) -> set[tuple[int, str]]:
        """By number and subscription: what is owed and has to survive."""
        durable = (found for found in self._by_id.values() if found.entry.durable)
        return {(number, found.id) for found in durable for number in found.owed}

    # -- who is told ---------------------------------------------------------------------------------------------------

    def subscribed(self, event: events.SubscriptionRequested, now: Now) -> None:
        """Somebody wants to be told. The same durable one again is the one he has."""
        subscriber = event.subscriber.identity
        problem = pattern_problem(event.pattern)
        own = [found for found in self._by_id.values() if found.entry.subscriber == subscriber]
        same = next((found for found in own if _is_same(found.entry, event)), None)
        if same is not None:
            self._attach(same, event.session)
            self._journal.reply(event.session, event.ref, same.entry.n, named=same.id)
            self._tell_owed(same, now)
            return
        if problem is None and len(own) >= MAX_SUBSCRIPTIONS:
            problem = fault("limit.resource", f"{subscriber} has {MAX_SUBSCRIPTIONS} subscriptions")
        if problem is not None:
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        entry = TopicSubscribed(
            n=self._journal.next,
            at=now.ms,
            subscription_id=self._new_id(),
            subscriber=subscriber,
            pattern=event.pattern,
            qos=event.qos,
            durable=event.durable,
        )
        self._journal.write(entry)
        self._by_id[entry.subscription_id] = made = Subscription(entry, 0)
        self._attach(made, event.session)
        self._told.clear()
        # A durable one is promised to be there after a restart.
        self._journal.reply(event.session, event.ref, entry.n if event.durable else 0, named=made.id)

    def unsubscribed(self, event: events.SubscriptionEnded, now: Now) -> None:
        """A subscriber wants to hear no more. Nobody ends a subscription of somebody else."""
        found = self._by_id.get(event.subscription_id)
        if found is None or found.entry.subscriber != event.subscriber.identity:
            self._journal.reply(
                event.session, event.ref, 0, problem=fault("not_found", "you have no such subscription")
            )
            return
        number = self._end(found, "", now)
        self._journal.reply(event.session, event.ref, number, named=found.id)

    def arrived(self, event: events.SubscriberArrived, now: Now) -> None:
        """A subscriber is back: his durable subscriptions speak to this conversation, and what is owed follows."""
        own = [found for found in self._by_id.values() if found.entry.subscriber == event.subscriber.identity]
        for found in own:
            if found.entry.durable:
                self._attach(found, event.session)
                self._tell_owed(found, now)

    def left(self, event: events.SubscriberLeft, now: Now) -> None:
        """A conversation ended: what is not durable ends with it."""
        for name in self._by_session.pop(event.session, {}):
            found = self._by_id[name]
            found.session = 0
            if not found.entry.durable:
                self._end(found, "left", now)

    def _attach(self, found: Subscription, session: int) -> None:
        if found.session:
            self._by_session.get(found.session, {}).pop(found.id, None)
        found.session = session
        self._by_session.setdefault(session, {})[found.id] = None

    def _end(self, found: Subscription, reason: str, now: Now) -> int:
        for number in list(found.owed):
            self._not_owed(found, number)
        del self._by_id[found.id]
        if found.session:
            self._by_session.get(found.session, {}).pop(found.id, None)
        self._told.clear()
        return self._journal.write(
            entries.TopicUnsubscribed(n=self._journal.next, at=now.ms, subscription_id=found.id, reason=reason)
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def published(self, event: events.EventPublished, now: Now) -> None:
        """Tell all who subscribed, once what is owed to them is on disk."""
        problem = topic_problem(event.topic)
        if problem is not None:
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        entry = self._publish(event, now)
        self._journal.reply(event.session, event.ref, entry.n if event.qos else 0, named=entry.event_id)

    def _publish(self, event: events.EventPublished, now: Now) -> EventPublished:
        told = [found for found in self._subscribers(event.topic) if not self._is_denied(found, event.topic)]
        owing = [found for found in told if min(event.qos, found.entry.qos)]
        size = len(event.body)
        full = [found for found in owing if len(found.owed) >= MAX_OWED or found.owed_bytes + size > MAX_OWED_BYTES]
        entry = EventPublished(
            n=self._journal.next,
            at=now.ms,
            event_id=self._new_id(),
            publisher=event.publisher,
            topic=event.topic,
            body=event.body,
            qos=event.qos,
            owed=tuple(found.id for found in owing if found.entry.durable),
            correlation_id=event.correlation_id,
            expires_ms=event.expires_ms,
        )
        self._journal.write(entry)
        for found in owing:
            self._owe(found, entry.n, size)
            if not found.entry.durable:
                _, count = self._passing.get(entry.n, (entry, 0))
                self._passing[entry.n] = (entry, count + 1)
        for found in full:
            self._drop(found, entry, "full", now)
        for found in told:
            if found.session and found not in full:
                self._notify(found, entry)
        return entry

    def taken(self, event: events.EventTaken, now: Now) -> None:
        """A subscriber has it. Whoever says so of what is not owed to him, says nothing."""
        found = self._own(event.session, event.subscription_id, event.event)
        if found is None:
            return
        self._not_owed(found, event.event)
        if found.entry.durable:
            self._journal.write(
                entries.EventTaken(n=self._journal.next, at=now.ms, event=event.event, subscription_id=found.id)
            )

    def given_up(self, event: events.EventGivenUp, now: Now) -> None:
        """An edge tried long enough."""
        found = self._own(event.session, event.subscription_id, event.event)
        if found is not None:
            self._drop(found, self._entry(event.event), event.reason, now)

    def _own(self, session: int, subscription_id: str, number: int) -> Subscription | None:
        found = self._by_id.get(subscription_id)
        return found if found is not None and found.session == session and number in found.owed else None

    def _entry(self, number: int) -> EventPublished:
        durable = self._state.owed.get(number)
        return self._passing[number][0] if durable is None else durable.entry

    def _drop(self, found: Subscription, entry: EventPublished, reason: str, now: Now) -> None:
        """It is not owed any more, and goes to the dead letters of its topic; those have none of their own."""
        self._not_owed(found, entry.n)
        if found.entry.durable:
            self._journal.write(
                entries.EventDropped(
                    n=self._journal.next, at=now.ms, event=entry.n, subscription_id=found.id, reason=reason
                )
            )
        topic = f"{entry.topic}.{DEAD_LETTERS}"
        if entry.topic.rpartition(".")[2] != DEAD_LETTERS and topic_problem(topic) is None:
            letter = events.EventPublished(0, "", EXCHANGE, topic, entry.body, entry.qos, entry.correlation_id)
            self._publish(letter, now)

    def _owe(self, found: Subscription, number: int, size: int) -> None:
        found.owed[number] = size
        found.owed_bytes += size

    def _not_owed(self, found: Subscription, number: int) -> None:
        size = found.owed.pop(number, None)
        if size is None:
            return
        found.owed_bytes -= size
        if not found.entry.durable:
            entry, count = self._passing.pop(number)
            if count > 1:
                self._passing[number] = (entry, count - 1)

    def _tell_owed(self, found: Subscription, now: Now) -> None:
        """All that is owed, oldest first; what is too old or of no use any more is dropped."""
        for number in list(found.owed):
            entry = self._entry(number)
            is_late = entry.expires_ms is not None and entry.expires_ms <= now.ms
            if is_late or self._state.age_ms(entry.at, now.ms) >= OWED_MS:
                self._drop(found, entry, "expired", now)
            elif self._is_denied(found, entry.topic):
                self._drop(found, entry, "denied", now)
            else:
                self._notify(found, entry)

    def _notify(self, found: Subscription, entry: EventPublished) -> None:
        qos = min(entry.qos, found.entry.qos)
        self._journal.say(
            Notify(
                found.session,
                entry.n if qos else 0,
                found.id,
                entry.n,
                entry.event_id,
                entry.publisher,
                entry.topic,
                entry.body,
                qos,
                entry.at,
                entry.correlation_id,
                entry.expires_ms,
            )
        )

    def _subscribers(self, topic: str) -> list[Subscription]:
        found = self._told.get(topic)
        if found is None:
            if len(self._told) >= MAX_REMEMBERED:
                self._told.clear()
            found = [one for one in self._by_id.values() if matches(one.entry.pattern, topic)]
            self._told[topic] = found
        return found

    def _is_denied(self, found: Subscription, topic: str) -> bool:
        definition = ToolDefinition(f"topic/{topic}", "", EMPTY_OBJECT, side_effects=False)
        return self._judge.judge(definition, (found.entry.subscriber,), frozenset()).decision is Decision.DENY


def _is_same(entry: TopicSubscribed, event: events.SubscriptionRequested) -> bool:
    return event.durable and entry.durable and (entry.pattern, entry.qos) == (event.pattern, event.qos)
