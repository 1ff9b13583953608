"""Events on topics: who is told of what, and to whom something is owed until he took it.

A topic is segments between dots; in a pattern ``*`` stands for one segment and ``#`` for all that follow. An event goes
out with the lower of two qualities, the publisher's and the subscription's: with 0 it is told once, to who is there;
above that it is owed until its subscriber says that he took it. What is owed to a durable subscription is on record and
survives a restart; what is owed to another one ends with the conversation.

A subscription belongs to an identity. Where that identity can be told is what ``SubscriberArrived`` said last, until
that conversation ends.

Owns subscriptions and what is owed. Does not own who may publish or subscribe: both are calls of the exchange's own
tools, judged as any call. But whoever is denied the tool ``topic/<topic>``, himself or through those he subscribed for,
is not told of its events, whatever he has subscribed to, and does not publish there; nor on the
topic of its dead letters. Who has no key at the moment, since his last one was revoked, is owed what his durable
subscriptions fit. Does not own how often somebody is told until he answers (an edge), nor what the body means.

Who is told of an untrusted event (decision 14) is labelled as who receives an untrusted result is, on record before he
is told.

Invariant: an event of quality 1 or 2 is taken by each durable subscription that it is owed to, or there is an entry
that says why not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw, Struct

from trunkline import entries, events
from trunkline.effects import Notify, StopTelling
from trunkline.entries import EventPublished, TopicSubscribed
from trunkline.hub.in_force import InForce
from trunkline.hub.journal import Journal
from trunkline.hub.labels import Labels
from trunkline.hub.limits import ENTRY_BYTES, Loads
from trunkline.hub.policy import REVOKED, Judge
from trunkline.hub.state import body_size
from trunkline.model import EXCHANGE, OPERATOR, Circumstance, Decision, Fault, Now, Verdict, fault, stamp
from trunkline.shown import SubscriptionView
from trunkline.topic_names import MAX_TOPIC_CHARS, is_pattern, is_topic, matches

# What one identity may have; somebody with more is broken or hostile.
MAX_SUBSCRIPTIONS: Final = 1000
# What is owed to one subscription at most, and to all of one identity; beyond it events are dropped, on record if the
# subscription is durable, and go to its dead letters. An event counts with its body, its context and an entry.
MAX_OWED: Final = 10_000
MAX_OWED_BYTES: Final = 67_108_864
# An event that nobody took for so long is not owed any more.
OWED_MS: Final = 86_400_000
# Where events go that could not be handed over, below their own topic.
DEAD_LETTERS: Final = "dlq"
# How many topics are remembered with who is told of them.
MAX_REMEMBERED: Final = 1024


def topic_problem(topic: str) -> Fault | None:
    """Why nothing can be published on this."""
    if is_topic(topic):
        return None
    text = f"a topic is segments between dots, at most {MAX_TOPIC_CHARS} characters, without `*`, `#` and blanks"
    return fault("tool.invalid_input", text)


def pattern_problem(pattern: str) -> Fault | None:
    """Why nobody can subscribe to this."""
    if is_pattern(pattern):
        return None
    text = "a pattern is segments between dots; `*` stands for one segment, `#` at the end for all that follow"
    return fault("tool.invalid_input", text)


class Subscriber(Struct, eq=False):
    """One identity that subscribed or can be told of events."""

    identity: str
    # The conversation in which it is told; 0 is none.
    session: int = 0
    subscriptions: dict[str, Subscription] = {}
    owed_bytes: int = 0


class Subscription(Struct, eq=False):
    """One subscription."""

    entry: TopicSubscribed
    subscriber: Subscriber
    # What it has not taken yet: the number of each event, and its size.
    owed: dict[int, int] = {}

    @property
    def id(self) -> str:
        """Its name."""
        return self.entry.subscription_id


class Topics:
    """One method for each event about topics."""

    def __init__(
        self,
        journal: Journal,
        judge: Judge,
        loads: Loads,
        in_force: InForce,
        new_id: Callable[[], str],
        labels: Labels,
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._judge = judge
        self._loads = loads
        self._labels = labels
        self._in_force = in_force
        self._new_id = new_id
        self._by_id: dict[str, Subscription] = {}
        self._subscribers: dict[str, Subscriber] = {}
        self._by_session: dict[int, Subscriber] = {}
        # Events that are owed to subscriptions that are not durable, by number, with how many they are.
        self._passing: dict[int, tuple[EventPublished, int]] = {}
        # By topic: who is told of it, who is owed it until he has a key again, and when that was found out
        # (``Judge.epoch``).
        self._told: dict[str, tuple[int, list[Subscription], list[Subscription]]] = {}
        # By topic and those who ask, under the same rules: what policy says.
        self._verdicts: dict[tuple[str, tuple[str, ...]], tuple[int, Verdict]] = {}
        self._counts = {"published": 0, "told": 0, "taken": 0, "dropped": 0}

    def __len__(self) -> int:
        return len(self._by_id)

    def figures(self) -> dict[str, object]:
        """For a person and for ``/metrics``: what there is, and what happened since the start."""
        return {
            "subscriptions": len(self._by_id),
            "owed_events": sum(len(found.owed) for found in self._by_id.values()),
            "owed_event_bytes": sum(one.owed_bytes for one in self._subscribers.values()),
            "events": dict(self._counts),
        }

    def listed(self, limit: int, after: int) -> list[SubscriptionView]:
        """The first so many subscriptions made after the one with this number, oldest first."""
        found = (one for one in self._by_id.values() if one.entry.n > after)
        return [_view(one) for one in itertools.islice(found, limit)]

    def take_up(self) -> None:
        """After a restart: durable subscriptions wait for their subscribers."""
        for entry in self._state.subscriptions.values():
            self._add(entry)
        for number, event in self._state.owed.items():
            for name in event.to:
                self._owe(self._by_id[name], number, _size(event.entry.body, event.entry.context))

    def owed_to_durable(self) -> set[tuple[int, str]]:
        """By number and subscription: what is owed and has to survive."""
        durable = (found for found in self._by_id.values() if found.entry.durable)
        return {(number, found.id) for found in durable for number in found.owed}

    # -- who is told ---------------------------------------------------------------------------------------------------

    def subscribed(self, event: events.SubscriptionRequested, now: Now) -> None:
        """Somebody wants to be told. The same one again is the one he has; what is owed to it is told again."""
        identity = event.subscriber.identity
        chain, _ = self._cause(event.call_id, identity)
        known = self._subscribers.get(identity)
        own = {} if known is None else known.subscriptions
        same = next((found for found in own.values() if _is_same(found.entry, event, chain)), None)
        if same is not None:
            self._journal.reply(event.session, event.ref, same.entry.n if event.durable else 0, named=same.id)
            self._tell_owed([same], now)
            return
        problem = self._subscribe_problem(event, known, now)
        if problem is not None:
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        entry = TopicSubscribed(
            n=self._journal.next,
            at=now.ms,
            subscription_id=self._new_id(),
            subscriber=identity,
            pattern=event.pattern,
            qos=event.qos,
            durable=event.durable,
            chain=chain,
        )
        self._journal.write(entry)
        self._add(entry)
        # A durable one is promised to be there after a restart.
        self._journal.reply(event.session, event.ref, entry.n if event.durable else 0, named=entry.subscription_id)

    def _subscribe_problem(
        self, event: events.SubscriptionRequested, known: Subscriber | None, now: Now
    ) -> Fault | None:
        identity = event.subscriber.identity
        if self._in_force.closed is not None:
            return self._in_force.closed
        problem = pattern_problem(event.pattern)
        if problem is None and not event.durable and (known is None or not known.session):
            text = (
                "a subscription that is not durable lasts as long as a conversation in which you are told of events, "
                "and you have none: open one first, or ask for a durable subscription"
            )
            problem = fault("state.conflict", text)
        if problem is None and known is not None and len(known.subscriptions) >= MAX_SUBSCRIPTIONS:
            problem = fault("limit.resource", f"{identity} has {MAX_SUBSCRIPTIONS} subscriptions", retryable=False)
        # One entry when it begins, one when it ends.
        return problem or self._loads.try_note(identity, 2, now.mono)

    def unsubscribed(self, event: events.SubscriptionEnded, now: Now) -> None:
        """A subscriber wants to hear no more. But for the operator, nobody ends a subscription of somebody else."""
        found = self._by_id.get(event.subscription_id)
        is_his = found is not None and found.subscriber.identity == event.by.identity
        if found is None or not (is_his or event.by.is_operator):
            text = "no such subscription" if event.by.is_operator else "you have no such subscription"
            self._journal.reply(event.session, event.ref, 0, problem=fault("not_found", text))
            return
        number = self._end(found, "" if is_his else OPERATOR, now)
        if event.by.is_operator and found.subscriber.session not in {0, event.session}:
            self._journal.say(StopTelling(found.subscriber.session, 0, found.id))
        self._forget_if_idle(found.subscriber)
        self._journal.reply(event.session, event.ref, number if found.entry.durable else 0, named=found.id)

    def arrived(self, event: events.SubscriberArrived, now: Now) -> None:
        """A subscriber is told of events in this conversation from here on: what is owed to him follows."""
        subscriber = self._subscriber(event.subscriber.identity)
        self._by_session.pop(subscriber.session, None)
        subscriber.session = event.session
        self._by_session[event.session] = subscriber
        self._tell_owed(list(subscriber.subscriptions.values()), now)

    def left(self, session: int, now: Now) -> None:
        """A conversation ended: what is not durable of whoever was told in it ends, too."""
        subscriber = self._by_session.pop(session, None)
        if subscriber is None:
            return
        subscriber.session = 0
        for found in list(subscriber.subscriptions.values()):
            if not found.entry.durable:
                self._end(found, "left", now)
        self._forget_if_idle(subscriber)

    def _subscriber(self, identity: str) -> Subscriber:
        found = self._subscribers.get(identity)
        if found is None:
            found = self._subscribers[identity] = Subscriber(identity)
        return found

    def _forget_if_idle(self, subscriber: Subscriber) -> None:
        if not subscriber.session and not subscriber.subscriptions:
            del self._subscribers[subscriber.identity]

    def _add(self, entry: TopicSubscribed) -> None:
        subscriber = self._subscriber(entry.subscriber)
        self._by_id[entry.subscription_id] = found = Subscription(entry, subscriber)
        subscriber.subscriptions[found.id] = found
        self._told.clear()

    def _end(self, found: Subscription, reason: str, now: Now) -> int:
        released = tuple(number for number in found.owed if self._is_last(found, number))
        for number in list(found.owed):
            self._not_owed(found, number)
        del self._by_id[found.id], found.subscriber.subscriptions[found.id]
        self._told.clear()
        return self._journal.write(
            entries.TopicUnsubscribed(
                n=self._journal.next, at=now.ms, subscription_id=found.id, reason=reason, released=released
            )
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def published(self, event: events.EventPublished, now: Now) -> None:
        """Tell all who subscribed, once what is owed to them is on disk."""
        chain, circumstances = self._cause(event.call_id, event.publisher)
        problem = self._in_force.closed or topic_problem(event.topic)
        if problem is None:
            problem = self._verdict(event.topic, (*chain, event.publisher)).fault
        if problem is None:
            size, limits = _size(event.body, event.context), self._in_force.settings.limits
            problem = self._loads.try_write(event.publisher, limits, now.mono, size)
        if problem is not None:
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        if self._labels.is_untrusted(event.publisher, now):
            # Its events may hold what strangers wrote, as its results may.
            circumstances = tuple(sorted({*circumstances, Circumstance.UNTRUSTED}))
        entry = self._publish(event, circumstances, event.publisher, now)
        # The outcome of the call by which it was published comes behind it on the disk, and waits for that.
        is_awaited = event.qos > 0 and event.call_id is None
        self._journal.reply(event.session, event.ref, entry.n if is_awaited else 0, named=entry.event_id)

    def _cause(self, call_id: str | None, identity: str) -> tuple[tuple[str, ...], tuple[Circumstance, ...]]:
        """For whom, and under which circumstances, this identity asks: those of his call of the exchange's own tool."""
        call = self._state.calls.get(call_id or "")
        if call is None or call.entry.caller != identity:
            return (), ()
        return call.entry.chain, call.entry.circumstances

    def _publish(
        self, event: events.EventPublished, circumstances: tuple[Circumstance, ...], paid_by: str, now: Now
    ) -> EventPublished:
        """``paid_by`` is for whom it is written, and all that follows from it."""
        told, keyless = self._told_of(event.topic)
        owing = [found for found in (*told, *keyless) if found.entry.qos] if event.qos else []
        size = _size(event.body, event.context)
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
            context=event.context,
            circumstances=circumstances,
            sensitive=event.sensitive,
        )
        self._journal.write(entry)
        # Each durable subscription will write one more, when it takes the event.
        self._loads.wrote(paid_by, size + ENTRY_BYTES * len(entry.owed))
        self._counts["published"] += 1
        full: list[Subscription] = []
        for found in owing:
            if _is_full(found, size):
                full.append(found)
                continue
            self._owe(found, entry.n, size)
            if not found.entry.durable:
                _, count = self._passing.get(entry.n, (entry, 0))
                self._passing[entry.n] = (entry, count + 1)
        self._tell([(found, entry) for found in told if found.subscriber.session and found not in full], paid_by, now)
        for found in full:
            self._drop(found, entry, "full", paid_by, now)
        return entry

    def taken(self, event: events.EventTaken, now: Now) -> None:
        """A subscriber has it. Whoever says so of what is not owed to him, says nothing."""
        found = self._own(event.session, event.subscription_id, event.event)
        if found is None:
            return
        self._counts["taken"] += 1
        self._not_owed(found, event.event)
        if found.entry.durable:
            self._journal.write(
                entries.EventTaken(
                    n=self._journal.next,
                    at=now.ms,
                    event=event.event,
                    subscription_id=found.id,
                    released=self._is_last(found, event.event),
                )
            )

    def given_up(self, event: events.EventGivenUp, now: Now) -> None:
        """An edge tried long enough."""
        found = self._own(event.session, event.subscription_id, event.event)
        if found is not None:
            entry = self._entry(event.event)
            self._drop(found, entry, event.reason, entry.publisher, now)

    def _own(self, session: int, subscription_id: str, number: int) -> Subscription | None:
        """What is owed to whom this conversation tells; one that told somebody before has no word any more."""
        found = self._by_id.get(subscription_id)
        is_his = found is not None and found.subscriber.session == session and number in found.owed
        return found if is_his else None

    def _entry(self, number: int) -> EventPublished:
        durable = self._state.owed.get(number)
        return self._passing[number][0] if durable is None else durable.entry

    def _drop(self, found: Subscription, entry: EventPublished, reason: str, paid_by: str, now: Now) -> None:
        """It is not owed any more, and goes to the dead letters of its topic; those have none of their own."""
        self._not_owed(found, entry.n)
        self._counts["dropped"] += 1
        if found.entry.durable:
            self._journal.write(
                entries.EventDropped(
                    n=self._journal.next,
                    at=now.ms,
                    event=entry.n,
                    subscription_id=found.id,
                    reason=reason,
                    released=self._is_last(found, entry.n),
                )
            )
        topic = f"{entry.topic}.{DEAD_LETTERS}"
        is_letter = entry.topic.rpartition(".")[2] == DEAD_LETTERS
        if not is_letter and not entry.hashed and topic_problem(topic) is None:
            letter = events.EventPublished(
                0,
                "",
                EXCHANGE,
                topic,
                entry.body,
                entry.qos,
                entry.correlation_id,
                context=entry.context,
                sensitive=entry.sensitive,
            )
            self._publish(letter, entry.circumstances, paid_by, now)

    def _is_last(self, found: Subscription, number: int) -> bool:
        """Whether this is a sensitive event that only this durable subscription has not taken."""
        event = self._state.owed.get(number)
        return event is not None and event.entry.sensitive and event.to.keys() == {found.id}

    def _owe(self, found: Subscription, number: int, size: int) -> None:
        found.owed[number] = size
        found.subscriber.owed_bytes += size

    def _not_owed(self, found: Subscription, number: int) -> None:
        size = found.owed.pop(number, None)
        if size is None:
            return
        found.subscriber.owed_bytes -= size
        if not found.entry.durable:
            entry, count = self._passing.pop(number)
            if count > 1:
                self._passing[number] = (entry, count - 1)

    def _tell_owed(self, subscriptions: Sequence[Subscription], now: Now) -> None:
        """All that is owed to these of one subscriber, oldest first; what is too old or of no use is dropped."""
        owed: list[tuple[Subscription, EventPublished]] = []
        for found, number in [(one, number) for one in subscriptions for number in one.owed]:
            entry = self._entry(number)
            is_late = entry.expires_ms is not None and entry.expires_ms <= now.ms
            if is_late or self._state.age_ms(entry.at, now.ms) >= OWED_MS:
                self._drop(found, entry, "expired", entry.publisher, now)
            elif self._is_denied(found, entry.topic):
                self._drop(found, entry, "denied", entry.publisher, now)
            elif entry.hashed:  # its original is not part of this copy of the record
                self._drop(found, entry, "gone", entry.publisher, now)
            elif found.subscriber.session:
                owed.append((found, entry))
        if owed:
            self._tell(owed, owed[0][0].subscriber.identity, now)

    def _tell(self, told: Sequence[tuple[Subscription, EventPublished]], paid_by: str, now: Now) -> None:
        """Tell each of these now. The agents among them that are told of untrusted events are labelled first."""
        untrusted: dict[str, list[str]] = {}
        for found, entry in told:
            if Circumstance.UNTRUSTED in entry.circumstances:
                correlations = untrusted.setdefault(found.subscriber.identity, [])
                if entry.correlation_id is not None:
                    correlations.append(entry.correlation_id)
        label = self._labels.label(untrusted, paid_by, now)
        for found, entry in told:
            is_labelled = Circumstance.UNTRUSTED in entry.circumstances
            self._notify(found, entry, label if is_labelled else 0)

    def _notify(self, found: Subscription, entry: EventPublished, label: int) -> None:
        """``label`` is the entry that has to be on disk before, beside the event's own if that is owed."""
        qos = min(entry.qos, found.entry.qos)
        self._counts["told"] += 1
        self._journal.say(
            Notify(
                found.subscriber.session,
                max(label, entry.n if qos else 0),
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
                entry.context,
                entry.circumstances,
                entry.sensitive,
            )
        )

    def _told_of(self, topic: str) -> tuple[list[Subscription], list[Subscription]]:
        """Whose pattern matches and who is not denied the topic; and durable ones that only wait for a new key.

        Remembered until either may be otherwise.
        """
        epoch, told, keyless = self._told.get(topic, (-1, [], []))
        if epoch != self._judge.epoch:
            if len(self._told) >= MAX_REMEMBERED:
                self._told.clear()
            told, keyless = [], []
            for one in self._by_id.values():
                if matches(one.entry.pattern, topic):
                    verdict = self._verdict(topic, (*one.entry.chain, one.entry.subscriber))
                    if verdict.decision is not Decision.DENY:
                        told.append(one)
                    elif verdict.rule == REVOKED and one.entry.durable:
                        keyless.append(one)
            self._told[topic] = (self._judge.epoch, told, keyless)
        return told, keyless

    def _is_denied(self, found: Subscription, topic: str) -> bool:
        return self._verdict(topic, (*found.entry.chain, found.entry.subscriber)).decision is Decision.DENY

    def _verdict(self, topic: str, callers: tuple[str, ...]) -> Verdict:
        """What policy says to a topic; to one of dead letters, what it says to where they come from if that is no."""
        origin, _, last = topic.rpartition(".")
        if origin and last == DEAD_LETTERS:
            verdict = self._own_verdict(origin, callers)
            if verdict.decision is Decision.DENY:
                return verdict
        return self._own_verdict(topic, callers)

    def _own_verdict(self, topic: str, callers: tuple[str, ...]) -> Verdict:
        epoch, verdict = self._verdicts.get((topic, callers), (-1, None))
        if verdict is None or epoch != self._judge.epoch:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.clear()
            verdict = self._judge.judge_name(f"topic/{topic}", callers, frozenset())
            self._verdicts[topic, callers] = (self._judge.epoch, verdict)
        return verdict


def _view(found: Subscription) -> SubscriptionView:
    entry = found.entry
    return SubscriptionView(
        number=entry.n,
        subscription=entry.subscription_id,
        subscriber=entry.subscriber,
        topic=entry.pattern,
        qos=entry.qos,
        durable=entry.durable,
        since=stamp(entry.at),
        owed_events=len(found.owed),
        owed_bytes=sum(found.owed.values()),
        connected=bool(found.subscriber.session),
    )


def _is_full(found: Subscription, size: int) -> bool:
    return len(found.owed) >= MAX_OWED or found.subscriber.owed_bytes + size > MAX_OWED_BYTES


def _size(body: Raw, context: Raw | None) -> int:
    """What an event counts while it is owed, and on record."""
    return ENTRY_BYTES + len(body) + body_size(context)


def _is_same(entry: TopicSubscribed, event: events.SubscriptionRequested, chain: tuple[str, ...]) -> bool:
    wanted = (event.pattern, event.qos, event.durable, chain)
    return (entry.pattern, entry.qos, entry.durable, entry.chain) == wanted
