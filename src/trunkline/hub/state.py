"""What survives a crash: the fold of the ledger.

``State.apply`` is the only code that changes durable state. The hub calls it for each entry it writes, recovery calls
it for each entry it reads; so a past run and a restart give what the live run had, by construction.

Owns open calls, questions, directives, tokens, grants, pins, tainted correlations and agents, each with the numbers of
the entries it stands on (``open_entries``: what a snapshot has to name). Does not own sessions, timers or counters:
those are gone after a crash, and the hub rebuilds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from trunkline import entries
from trunkline.entries import CallAccepted, CallSettled, Entry, QuestionOpened, ToolPinned
from trunkline.hub.lifecycle import step
from trunkline.hub.streams import Stream
from trunkline.model import Actor, Decision, OptionalRaw, Status

# A look into an enum takes 70 ns.
ASK: Final = Decision.ASK
QUEUED: Final = Status.QUEUED
RUNNING: Final = Status.RUNNING
WAITING_APPROVAL: Final = Status.WAITING_APPROVAL
# Settled calls kept for a repeat of a key or a look at a call. What is not on disk stays whatever its number; the rest
# is read from there. 256 are 10 ms of full load, one commit: more would only push each other out of the cache.
RECENT_CALLS: Final = 256
RECENT_BYTES: Final = 33_554_432
# How long correlations and agents count as touched by untrusted text unless the settings say otherwise; and how many
# correlations are remembered for each agent that received such text. A share for each, or one agent that reads in ten
# thousand conversations would have those of all others forgotten.
TAINT_MS: Final = 86_400_000
TAINTED: Final = 1000
# Jumps of the wall clock are put on record under this code, as "<milliseconds> ms …". Those of less than a few hours,
# such as a wrong time zone, are only remembered while the exchange runs; what is shorter than a minute changes no age.
CLOCK_JUMPED: Final = "clock.jumped"
JUMP_MS: Final = 60_000
RECORDED_JUMP_MS: Final = 7_200_000
# Nothing whose age is counted lives longer; and so many jumps within that time are a broken clock.
LONGEST_LIFE_MS: Final = 86_400_000
MAX_JUMPS: Final = 1000
# Who closed a question, where that was no person but other rules.
BY_POLICY: Final = "policy"


# The number of an entry and when it was written.
Mark = tuple[int, int]


class Route(Struct, frozen=True, gc=False):
    """Who serves a call of a tool that stands for others (``routing``)."""

    # The tool that it was last sent to or, before that, the one for whose slot it waits; "" is nobody yet.
    provider: str = ""
    # Whether that one promised not to run the same call twice.
    dedupes: bool = False
    # Those that did not take it on.
    tried: tuple[str, ...] = ()


class Call(Struct, gc=False):
    """An open call: its entry, where it stands, and what is only true while this process lives."""

    entry: CallAccepted
    status: Status
    attempt: int = 0
    approval_id: str | None = None
    # Numbers of later entries without which a fold would not bring the call here.
    trail: tuple[int, ...] = ()
    # Of its input, in bytes.
    size: int = 0
    # -- live only; moments are monotonic seconds, 0.0 is none --
    session: int = 0
    waiters: tuple[tuple[int, str], ...] = ()
    started_ms: int | None = None
    # While it runs: when it has to be done.
    deadline: float = 0.0
    sent_at: float = 0.0
    actor: Actor | None = None
    context: Raw | None = None
    # Somebody else than the one who asked first waits, or waited, for it.
    joined: bool = False
    # While it is queued: not before this moment, and not after the other.
    not_before: float = 0.0
    give_up_at: float = 0.0
    # While it runs, after an attempt that failed: when it is sent again.
    resend_at: float = 0.0
    expires_at: float = 0.0
    # When nobody waits for it any more and it may be canceled for that.
    gone_at: float = 0.0
    # The moment its own alarm is set for; without one, that of its agent watches over its deadline.
    wake_at: float = 0.0
    # Why it should end, once its agent was asked to stop.
    ending: Literal["timeout", "canceled"] | None = None
    stream: Stream | None = None
    # Of a routed tool's call, once somebody was found to serve it.
    route: Route | None = None
    # The last number under which readers were shown something of earlier deliveries.
    shown_before: int = 0
    # Bytes that it holds beside its input (``held_beside``); on record with a question only, else gone after a crash.
    beside: int = 0
    # A person was asked about it, and said yes; on record, as the answer.
    is_answered: bool = False
    # What that person was shown.
    answered: QuestionOpened | None = None

    @property
    def served_by(self) -> str:
        """The tool that serves it: the one that was asked for, unless that one stands for others."""
        return self.entry.tool_id if self.route is None else self.route.provider or self.entry.tool_id

    @property
    def provider(self) -> str | None:
        """The tool that it was sent to, as the record names it: None if to nobody yet, or to the one asked for."""
        if self.route is None or not self.attempt or self.route.provider == self.entry.tool_id:
            return None
        return self.route.provider or None

    @property
    def dedupes(self) -> bool:
        """Whether the one it was sent to promised not to run the same call twice (decision 1b)."""
        return self.entry.dedupes if self.route is None else self.route.dedupes

    @property
    def correlation_id(self) -> str:
        """What a call that this one causes belongs to; a call that nobody correlated starts its own."""
        return self.entry.correlation_id or self.entry.call_id


class Settled(Struct, frozen=True, gc=False):
    """A call that has its outcome, while it is still worth remembering."""

    accepted: CallAccepted
    settled: CallSettled
    # Of both bodies, in bytes.
    size: int


class OpenQuestion(Struct):
    """A question without an answer. ``calls`` are the numbers of the calls behind it; an answer covers the first."""

    entry: QuestionOpened
    calls: deque[int]
    trail: list[int]


class OwedEvent(Struct):
    """An event that durable subscriptions have not taken yet."""

    entry: entries.EventPublished
    # The subscriptions, in the order in which they were found.
    to: dict[str, None]
    trail: list[int]


class Jump(Struct, frozen=True, gc=False):
    """A stretch of wall time that the exchange did not live through; the number of its entry, 0 if it has none."""

    n: int
    from_ms: int
    to_ms: int


class State:
    """The fold. Read its attributes; change it through ``apply``, or through ``open`` and ``settle``, its parts."""

    def __init__(self) -> None:
        self.last = 0
        self.calls: dict[str, Call] = {}
        self.by_number: dict[int, Call] = {}
        self.keys: dict[str, str] = {}
        self.recent: dict[str, Settled] = {}
        self._recent_bytes = 0
        # Entries up to this one are on disk.
        self.stored = 0
        self.questions: dict[str, OpenQuestion] = {}
        self.directives: dict[str, entries.DirectiveStated] = {}
        self.tokens: dict[str, entries.TokenIssued] = {}
        self.revoked: dict[str, entries.TokenRevoked] = {}
        self.grants: dict[str, entries.PermissionsGranted] = {}
        self.pins: dict[str, ToolPinned] = {}
        # What edges keep of their runs and tasks that are not done, by process and subject.
        self.processes: dict[tuple[str, str], list[entries.ProcessStep]] = {}
        # Durable subscriptions, and the events that are owed to any of them, by number: the oldest first.
        self.subscriptions: dict[str, entries.TopicSubscribed] = {}
        self.owed: dict[int, OwedEvent] = {}
        self.jumps: list[Jump] = []
        # When the last entry that was folded was written.
        self.last_at = 0
        # Correlation → the number and time of the entry that tainted it last.
        self.tainted: dict[str, Mark] = {}
        # The same of agents, by their ids: who received such a result or event. Each has a token: they are not many.
        self.tainted_agents: dict[str, Mark] = {}
        # The correlations by the agent that received the result ("" is the operator), the oldest mark first; and of
        # those agents that received more than are remembered, the last mark that was forgotten.
        self._tainted_by: dict[str, dict[str, Mark]] = {}
        self._forgotten: dict[str, Mark] = {}
        self._appliers: dict[type[Entry], Callable[[Any], None]] = {
            entries.CallAccepted: self._call_accepted,
            entries.CallSent: self._call_sent,
            entries.CallReturned: self._call_returned,
            entries.CallSettled: self._call_settled,
            entries.QuestionOpened: self._question_opened,
            entries.QuestionJoined: self._question_joined,
            entries.QuestionClosed: self._question_closed,
            entries.DirectiveStated: self._directive_stated,
            entries.TokenIssued: self._token_issued,
            entries.TokenRevoked: self._token_revoked,
            entries.PermissionsGranted: self._permissions_granted,
            entries.ToolPinned: self._tool_pinned,
            entries.ProcessStep: self._process_step,
            entries.Noticed: self._noticed,
            entries.TopicSubscribed: self._topic_subscribed,
            entries.TopicUnsubscribed: self._topic_unsubscribed,
            entries.EventPublished: self._event_published,
            entries.EventTaken: self._event_taken,
            entries.EventDropped: self._event_taken,
            entries.AgentsLabelled: self._agents_labelled,
        }

    def apply(self, entry: Entry) -> None:
        """Fold one entry in. Entries that change no state only move ``last``."""
        self.last = entry.n
        applier = self._appliers.get(type(entry))
        if applier is not None:
            applier(entry)

    def open(self, call: Call) -> None:
        """Fold in the entry of a call that was just accepted, where the call is made already."""
        entry = call.entry
        self.last = number = entry.n
        self.calls[entry.call_id] = self.by_number[number] = call
        if entry.key_id is not None:
            self.keys[entry.key_id] = entry.call_id

    def settle(self, call: Call, entry: CallSettled) -> None:
        """Fold in the one outcome of an open call."""
        accepted = call.entry
        call_id = accepted.call_id
        self.last = entry.n
        del self.by_number[accepted.n], self.calls[call_id]
        output = entry.output
        size = call.size if output is None else call.size + len(output)
        self.recent[call_id] = Settled(accepted, entry, size)
        self._recent_bytes += size

    def on_disk(self, number: int) -> None:
        """Entries up to this one are on disk: there the older settled calls are found from here on."""
        self.stored = number
        more = len(self.recent) - RECENT_CALLS
        if more > 0 or self._recent_bytes > RECENT_BYTES:
            self._forget(more)

    def _forget(self, more: int) -> None:
        """Drop the oldest, but never one that is not on disk yet: a repeat of its key would run it again."""
        stored, held = self.stored, self._recent_bytes
        dropped: list[str] = []
        for call_id, old in self.recent.items():
            if old.settled.n > stored or (more <= 0 and held <= RECENT_BYTES):
                break
            more -= 1
            held -= old.size
            dropped.append(call_id)
            key_id = old.accepted.key_id
            if key_id is not None and self.keys.get(key_id) == call_id:
                del self.keys[key_id]
        for call_id in dropped:
            del self.recent[call_id]
        self._recent_bytes = held

    def open_entries(self, now_ms: int, taint_ms: int = TAINT_MS) -> list[int]:
        """The numbers of all entries that a fold needs to come to this state again."""
        numbers: set[int] = set()
        for call in self.calls.values():
            numbers.add(call.entry.n)
            numbers.update(call.trail)
        for question in self.questions.values():
            numbers.add(question.entry.n)
            numbers.update(question.trail)
        for directive in self.directives.values():
            if directive.expires_ms > now_ms:
                numbers.add(directive.n)
        for event in self.owed.values():
            numbers.add(event.entry.n)
            numbers.update(event.trail)
        for group in (self.tokens, self.revoked, self.grants, self.pins, self.subscriptions):
            numbers.update(item.n for item in group.values())
        numbers.update(step.n for steps in self.processes.values() for step in steps)
        for marks in (self.tainted_agents, self._forgotten, *self._tainted_by.values()):
            numbers.update(number for number, at in marks.values() if self.age_ms(at, now_ms) < taint_ms)
        longest = max(LONGEST_LIFE_MS, taint_ms)
        numbers.update(jump.n for jump in self.jumps if jump.n and self.age_ms(jump.to_ms, now_ms) < longest)
        return sorted(numbers)

    def age_ms(self, at_ms: int, now_ms: int) -> int:
        """How much of the time since then the exchange lived through (decision 52): jumps of the clock do not count."""
        age = now_ms - at_ms
        for jump in self.jumps:
            age -= max(0, min(jump.to_ms, now_ms) - max(jump.from_ms, at_ms))
        return age

    def unlived_ms(self, now_ms: int) -> int:
        """How much of the last stretch of time that matters to an age the exchange did not live through."""
        lately = (jump for jump in self.jumps if self.age_ms(jump.to_ms, now_ms) < LONGEST_LIFE_MS)
        return sum(jump.to_ms - jump.from_ms for jump in lately)

    def is_shown(self, question: OpenQuestion) -> bool:
        """Whether a question may be told of: its name is that of its entry, so it has to be on disk (decision 135)."""
        return question.entry.n <= self.stored

    def question_of(self, call: Call) -> str | None:
        """The open question that a call waits for, once it may be told of."""
        question = self.questions.get(call.approval_id or "")
        return call.approval_id if question is not None and self.is_shown(question) else None

    def questions_inside(self) -> dict[int, str]:
        """Calls (by number) that wait for a person because a call that they caused does: the open question's id.

        Who makes a call may also name an earlier one of his own, which this one is for.
        """
        found: dict[int, str] = {}
        for question in self.questions.values():
            if not self.is_shown(question):
                continue
            for number in question.calls:
                call = self.by_number.get(number)
                while call is not None and (call := self._part_of(call)) is not None:
                    found.setdefault(call.entry.n, question.entry.approval_id)
        return found

    def _part_of(self, call: Call) -> Call | None:
        """The open call that this one is for."""
        entry = call.entry
        if entry.cause is not None:
            return self.by_number.get(entry.cause)
        named = self.calls.get(entry.causation_id or "")
        is_own = named is not None and named.entry.n < entry.n and named.entry.caller == entry.caller
        return named if is_own else None

    def is_tainted(self, correlation_id: str, now_ms: int, taint_ms: int = TAINT_MS) -> bool:
        """Whether a result of an agent that reads untrusted text is part of this correlation."""
        found = self.tainted.get(correlation_id)
        return found is not None and self.age_ms(found[1], now_ms) < taint_ms

    def is_tainted_agent(self, agent_id: str, now_ms: int, taint_ms: int = TAINT_MS) -> bool:
        """Whether this agent received such a result."""
        found = self.tainted_agents.get(agent_id)
        return found is not None and self.age_ms(found[1], now_ms) < taint_ms

    def forgotten_taint(self, agent_id: str, now_ms: int, taint_ms: int = TAINT_MS) -> int:
        """The number of the last entry that tainted a correlation by what this agent ("" is the operator) received, and
        that would still count if there were room to remember it; 0 if nothing was forgotten.

        What an older correlation of this agent holds is then not known, and counts as tainted.
        """
        found = self._forgotten.get(agent_id)
        return found[0] if found is not None and self.age_ms(found[1], now_ms) < taint_ms else 0

    # -- one method for each entry that changes something --------------------------------------------------------------

    def _call_accepted(self, entry: CallAccepted) -> None:
        if entry.sent:
            call = Call(entry, RUNNING, 1)
        else:
            call = Call(entry, WAITING_APPROVAL if entry.decision is ASK else QUEUED)
        call.size = body_size(entry.input)
        if entry.provider is not None:
            call.route = Route(entry.provider, entry.dedupes)
        self.open(call)
        if entry.directive_id is not None:
            self.directives.pop(entry.directive_id, None)

    def _call_sent(self, entry: entries.CallSent) -> None:
        call = self.by_number.get(entry.call)
        if call is None:  # a fold from a snapshot may meet the end of a call that was settled before it
            return
        call.status = step(QUEUED if call.status is RUNNING else call.status, RUNNING)
        call.attempt = entry.attempt
        call.trail = (*call.trail, entry.n)
        if entry.provider is not None or call.route is not None:
            tried = () if call.route is None else call.route.tried
            call.route = Route(entry.provider or "", entry.dedupes, tried)

    def _call_returned(self, entry: entries.CallReturned) -> None:
        call = self.by_number.get(entry.call)
        if call is None:
            return
        call.status = step(call.status, QUEUED)
        call.attempt = 0
        call.trail = (*call.trail, entry.n)
        call.route = Route(tried=(*(() if call.route is None else call.route.tried), entry.provider))

    def _call_settled(self, entry: CallSettled) -> None:
        for correlation_id in entry.taints:
            self._taint(correlation_id, entry.receivers[0] if entry.receivers else "", (entry.n, entry.at))
        for agent_id in entry.receivers:
            self.tainted_agents[agent_id] = (entry.n, entry.at)
        call = self.by_number.get(entry.call)
        if call is None:
            return
        step(call.status, entry.status)
        if call.approval_id is not None:
            question = self.questions.get(call.approval_id)
            if question is not None:
                question.calls.remove(entry.call)
        self.settle(call, entry)

    def _taint(self, correlation_id: str, receiver: str, mark: Mark) -> None:
        """Taint a correlation, or do so anew. Who has more than its share has its own oldest mark forgotten."""
        marks = self._tainted_by.setdefault(receiver, {})
        marks.pop(correlation_id, None)
        marks[correlation_id] = self.tainted[correlation_id] = mark
        if len(marks) > TAINTED:
            oldest = next(iter(marks))
            self._forgotten[receiver] = marks.pop(oldest)
            others = [others[oldest] for others in self._tainted_by.values() if oldest in others]
            if others:
                self.tainted[oldest] = max(others)
            else:
                self.tainted.pop(oldest, None)

    def _question_opened(self, entry: QuestionOpened) -> None:
        question = OpenQuestion(entry, deque(), [])
        self.questions[entry.approval_id] = question
        if entry.call is not None:
            self._wait_behind(question, entry.call)

    def _question_joined(self, entry: entries.QuestionJoined) -> None:
        question = self.questions.get(entry.approval_id)
        if question is not None:
            question.trail.append(entry.n)
            self._wait_behind(question, entry.call)

    def _wait_behind(self, question: OpenQuestion, number: int) -> None:
        call = self.by_number.get(number)
        if call is not None:
            call.status = step(call.status, WAITING_APPROVAL)
            call.approval_id = question.entry.approval_id
            call.is_answered, call.answered = False, None
            question.calls.append(number)
            if question.entry.beside is not None and call.context is None and call.actor is None:
                told = _read_beside(question.entry.beside)
                call.context, call.actor = told.context, told.actor
                call.beside = held_beside(told.context, told.actor)

    def _question_closed(self, entry: entries.QuestionClosed) -> None:
        question = self.questions.pop(entry.approval_id, None)
        if question is None:
            return
        for number in question.calls:
            call = self.by_number.get(number)
            if call is not None:
                call.approval_id = None
        if entry.how == "approved" and question.calls:
            call = self.by_number.get(question.calls[0])
            if call is not None:
                call.status = step(call.status, QUEUED)
                call.is_answered = entry.by != BY_POLICY
                call.answered = question.entry if call.is_answered else None
                # A fold needs the question as well as its answer.
                call.trail = (*call.trail, question.entry.n, *question.trail, entry.n)

    def _directive_stated(self, entry: entries.DirectiveStated) -> None:
        self.directives[entry.directive_id] = entry

    def _token_issued(self, entry: entries.TokenIssued) -> None:
        self.tokens[entry.token_id] = entry

    def _token_revoked(self, entry: entries.TokenRevoked) -> None:
        self.revoked[entry.token_id] = entry

    def _permissions_granted(self, entry: entries.PermissionsGranted) -> None:
        self.grants[entry.agent_id] = entry

    def _tool_pinned(self, entry: ToolPinned) -> None:
        self.pins[entry.definition.tool_id] = entry

    def _topic_subscribed(self, entry: entries.TopicSubscribed) -> None:
        if entry.durable:
            self.subscriptions[entry.subscription_id] = entry

    def _topic_unsubscribed(self, entry: entries.TopicUnsubscribed) -> None:
        if self.subscriptions.pop(entry.subscription_id, None) is not None:
            for number in [number for number, event in self.owed.items() if entry.subscription_id in event.to]:
                self._not_owed(number, entry.subscription_id, entry.n)

    def _event_published(self, entry: entries.EventPublished) -> None:
        # A fold from a snapshot may not know a subscription that ended before it.
        owed = {name: None for name in entry.owed if name in self.subscriptions}
        if owed:
            self.owed[entry.n] = OwedEvent(entry, owed, [])

    def _agents_labelled(self, entry: entries.AgentsLabelled) -> None:
        mark = (entry.n, entry.at)
        for agent_id, correlations in entry.agents.items():
            self.tainted_agents[agent_id] = mark
            for correlation_id in correlations:
                self._taint(correlation_id, agent_id, mark)

    def _event_taken(self, entry: entries.EventTaken | entries.EventDropped) -> None:
        self._not_owed(entry.event, entry.subscription_id, entry.n)

    def _not_owed(self, number: int, subscription_id: str, by: int) -> None:
        event = self.owed.get(number)
        if event is not None and subscription_id in event.to:
            del event.to[subscription_id]
            event.trail.append(by)
            if not event.to:
                del self.owed[number]

    def _noticed(self, entry: entries.Noticed) -> None:
        if entry.code == CLOCK_JUMPED:
            self.jumped(int(entry.detail.partition(" ")[0]), entry.at, entry.n)

    def jumped(self, ahead_ms: int, at_ms: int, n: int = 0) -> None:
        """The clock went ahead by so much and stands here now. Without an entry it is true while this process lives."""
        self.jumps = [*self.jumps[1 - MAX_JUMPS :], Jump(n, at_ms - ahead_ms, at_ms)]

    def _process_step(self, entry: entries.ProcessStep) -> None:
        key = (entry.process, entry.subject)
        if entry.done:
            self.processes.pop(key, None)
        else:
            self.processes.setdefault(key, []).append(entry)


class Beside(Struct, omit_defaults=True):
    """What a call hands to its provider beside the input."""

    context: OptionalRaw = None
    actor: Actor | None = None


_read_beside = msgspec.json.Decoder(Beside).decode


def held_beside(context: Raw | None, actor: Actor | None) -> int:
    """How many bytes a call holds beside its input while it is open."""
    size = 0 if context is None else len(context)
    return size if actor is None else size + len(actor.id) + len(actor.display or "")


def body_size(body: Raw | None) -> int:
    """How many bytes a body has."""
    return 0 if body is None else len(body)
