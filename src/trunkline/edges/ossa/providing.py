"""One agent while it can be reached: the calls it is given, the events it is told, and what it says to them. Sans-IO.

Theory of operation::

    made ──attach──> SUBSCRIBER ──register──> ARRIVING ──Admit──> READY ──leave──> over
                                                  └──Refuse──> SUBSCRIBER

A call goes out as a request whose id follows from the call, so that a repeat of it is recognised (QoS 2), and ends with
the response, result or error of its correlation. An event of quality 1 or 2 is told again after 1, 2, 4 … 30 s until it
is acknowledged, expired or a day old (decision 64). Retries of calls are the hub's: an attempt that cannot be handed
over is ``AttemptFailed``.

Owns what is under way to this agent. Does not own the order in which it leaves (``queue``), streams (``streams``), keys
or sockets.

Invariant: what was answered is never sent again, and each delivery ends with one event.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.ossa import messages, translate
from trunkline.edges.ossa.earlier import EarlyAnswers
from trunkline.edges.ossa.messages import (
    COMMAND_RESULT,
    ERROR,
    EVENT,
    NACK,
    REQUEST,
    RESPONSE,
    UNAUTHORIZED,
    UNAVAILABLE,
    ErrorInfo,
    Identity,
    Message,
)
from trunkline.edges.ossa.queue import SendQueue
from trunkline.edges.ossa.translate import EDGE, RETRY, derived_id, extras_of, fault_of
from trunkline.effects import (
    Admit,
    Cancel,
    CheckHealth,
    Close,
    ConfirmTools,
    Deliver,
    Notify,
    Refuse,
    StopTelling,
    ToSession,
)
from trunkline.events import (
    AgentArrived,
    AgentLeft,
    AttemptFailed,
    CallFinished,
    CallProgressed,
    Event,
    EventGivenUp,
    EventTaken,
    HealthReported,
    SubscriberArrived,
    SubscriberLeft,
    ToolsOffered,
)
from trunkline.model import LATEST_MS, Fault, Health, Now, Peer, Principal, Status, ToolDefinition, fault, stamp

# Requests that the agent works on, and events that it has not acknowledged, at once; the rest waits in its order.
MAX_REQUESTS: Final = 16
MAX_EVENTS: Final = 256
# Silent point 25.
SILENT_S: Final = 90.0
# Decision 64: events are told again after these waits, then every so often.
FIRST_DELAY_S: Final = 1.0
MAX_DELAY_S: Final = 30.0
EVENT_LIVES_MS: Final = 86_400_000
# The field of an event's header that names the subscription which it is for.
SUBSCRIPTION: Final = "subscription"
# Answers that ended a call are known again by their ids: a repeat must not answer the next call of its correlation.
MAX_USED: Final = 4096
# Calls without an answer whose late ones are still told apart from those of others.
MAX_LATE: Final = 256
# Pieces of streams and the like that wait for an agent that reads slowly; more is not taken.
MAX_PLAIN: Final = 1024
MAX_PLAIN_BYTES: Final = 8_388_608
# A call whose time is over is looked at so often: whether it still runs (a person may have been asked meanwhile).
LOOK_S: Final = 5.0


class Sending(Struct, eq=False):
    """One message that is to be sent, or was and is not answered."""

    message: Message
    is_sealed: bool = False
    call_id: str = ""
    # Of an event: whose it is, and its number.
    subscription_id: str = ""
    event: int = 0
    attempts: int = 0
    published_ms: int = 0
    expires_ms: int | None = None
    correlation: str = ""
    # A result of a command: told again like an event, until it is acknowledged.
    is_owed: bool = False
    # A call whose correlation may be that of an answer to another one: it has its own.
    is_apart: bool = False


class Provider:
    """One attachment. ``on_registered`` hears what became of what the agent offers, by the ref of its message.

    ``is_open`` says whether a call has no outcome yet; ``used`` are ids of answers that ended one, also by earlier
    attachments of the agent. ``late`` are correlations of requests that it was sent and has not answered, each with its
    call: it may still be at them. ``may_answer`` says of an agent, a call and its correlation whether it may be at one
    of before a restart.
    """

    def __init__(
        self,
        number: int,
        principal: Principal,
        token_sha256: str,
        key: bytes,
        origin: str,
        *,
        on_registered: Callable[[ConfirmTools | str, Now], list[Event]],
        is_open: Callable[[str], bool],
        may_answer: Callable[[str, str, str, Now], bool],
        used: dict[str, None],
        late: dict[str, str],
        now: Now,
    ) -> None:
        self.number = number
        self.principal = principal
        self.is_over = False
        self._token_sha256 = token_sha256
        self._key = key
        self._origin = origin
        self._told_registered = on_registered
        self._is_open = is_open
        self._may_answer = may_answer
        self._used = used
        # Two, so that an agent that waits for a result or an event inside its work gets it however much it works on.
        self._calls_waiting: SendQueue[Sending] = SendQueue()
        self._events_waiting: SendQueue[Sending] = SendQueue()
        # What is not answered, and waits for nothing.
        self._plain: deque[Sending] = deque()
        self._plain_bytes = 0
        # Sent and not answered, by the id of the message.
        self._requests: dict[str, Sending] = {}
        self._events: dict[str, Sending] = {}
        # Events and results that wait to be sent, by the id of the message.
        self._waiting_by_id: dict[str, Sending] = {}
        self._by_correlation: dict[str, Sending] = {}
        self._by_call: dict[str, Sending] = {}
        self._late = late
        self._early = EarlyAnswers()
        # When the time of a call is over, in order.
        self._ends: list[tuple[float, int, Sending]] = []
        self._again: list[tuple[float, int, str]] = []
        self._count = 0
        self._offers: list[tuple[str, tuple[ToolDefinition, ...], bool]] = []
        self._is_arriving = self.is_ready = False
        self._heard_at = now.mono
        self._is_silent = False

    @property
    def agent_id(self) -> str:
        """Who it is."""
        return self.principal.identity.partition(":")[2]

    def __len__(self) -> int:
        return len(self._calls_waiting) + len(self._events_waiting) + len(self._plain)

    @property
    def has_room(self) -> bool:
        """Whether one more piece of a stream is taken."""
        return len(self._plain) < MAX_PLAIN and self._plain_bytes < MAX_PLAIN_BYTES

    # -- coming and going ----------------------------------------------------------------------------------------------

    def attach(self) -> list[Event]:
        """The agent can be reached from here on."""
        return [SubscriberArrived(self.number, self.principal)]

    def register(self, ref: str, tools: tuple[ToolDefinition, ...], replace: bool) -> list[Event]:
        """The agent says what it does; ``on_registered`` hears what was taken."""
        if self.is_ready:
            return [ToolsOffered(self.number, ref, tools, replace=replace)]
        self._offers.append((ref, tools, replace))
        if self._is_arriving:
            return []
        self._is_arriving = True
        arrived = AgentArrived(
            self.number,
            ref,
            EDGE,
            self.agent_id,
            messages.VERSION,
            self._token_sha256,
            Peer(self._origin),
            timeout_s=30.0,
            dedupes=True,
            retry=RETRY,
        )
        return [arrived]

    def leave(self, reason: str) -> list[Event]:
        """It cannot be reached any more; what it was sent, the hub sends again when it is back."""
        if self.is_over:
            return []
        self.is_over = True
        for sending in self._requests.values():
            self._keep_late(sending)
        left: list[Event] = [AgentLeft(self.number, reason)] if self.is_ready or self._is_arriving else []
        return [*left, SubscriberLeft(self.number)]

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> list[Event]:
        """The exchange asks for something."""
        match effect:
            case Deliver():
                return self._deliver(effect, now)
            case Notify():
                self._notify(effect, now)
            case StopTelling():
                self._stop_telling(effect.subscription_id)
            case Cancel():
                return self._cancel(effect)
            case CheckHealth():
                return [HealthReported(self.number, Health.SILENT if self._is_silent else Health.OK)]
            case Admit():
                self._is_arriving, self.is_ready = False, True
                offers, self._offers = self._offers, []
                return [ToolsOffered(self.number, ref, tools, replace=replace) for ref, tools, replace in offers]
            case Refuse():
                self._is_arriving = False
                offers, self._offers = self._offers, []
                return [event for ref, _, _ in offers for event in self._told_registered(ref, now)]
            case ConfirmTools():
                return self._told_registered(effect, now)
            case Close():
                return self.leave(effect.reason)
            case _:
                pass
        return []

    def _deliver(self, effect: Deliver, now: Now) -> list[Event]:
        extras = extras_of(effect.context)
        # In a circle (it is asked, for something that it asked for, under the same correlation) it would wait for
        # itself: such a call has a correlation of its own.
        is_circle = self.principal.identity in effect.chain or effect.caller == self.principal.identity
        correlation = effect.call_id if is_circle else effect.correlation_id
        is_apart = self._may_answer(self.agent_id, effect.call_id, correlation, now)
        is_early_apart = is_apart or self._is_late(correlation, effect.call_id)
        early = self._early.pop(effect.call_id if is_early_apart else correlation)
        if early is not None and effect.attempt > 1 and self._is_new(early):
            return [self._ended(effect.call_id, early)]
        if effect.call_id in self._by_call:
            return []  # sent again before the first was answered
        message = Message(
            derived_id(self._key, REQUEST, self.agent_id, effect.call_id),
            REQUEST,
            translate.identity_of(effect.caller, extras),
            (self._identity(),),
            stamp(now.ms),
            effect.tool_id.partition("/")[2],
            effect.input,
            correlation_id=correlation,
            priority=extras.priority if extras.priority != messages.DEFAULT_PRIORITY else None,
            qos=2,
            others=extras.header,
        )
        if len(effect.input) > messages.MAX_MESSAGE_BYTES - messages.HEADER_ROOM:
            problem = fault("tool.invalid_input", f"larger than a message of {messages.MAX_MESSAGE_BYTES} bytes")
            return [CallFinished(self.number, effect.call_id, Status.FAILED, fault=problem)]
        sending = Sending(
            message,
            call_id=effect.call_id,
            correlation=correlation,
            is_sealed=extras.is_sealed or effect.sensitive,
            expires_ms=extras.expires_ms,
            is_apart=is_apart,
        )
        self._by_call[effect.call_id] = sending
        self._calls_waiting.put(sending, correlation, extras.priority, now.mono)
        if effect.timeout_ms is not None:
            self._look_at(sending, now.mono + effect.timeout_ms / 1000)
        return []

    def _is_late(self, correlation: str, call_id: str) -> bool:
        """Whether a call comes after another of its correlation that was not answered in time: the late answer would be
        taken for this one's, so it is asked under a correlation of its own.
        """
        return self._late.get(correlation, call_id) != call_id

    def _look_at(self, sending: Sending, at: float) -> None:
        self._count += 1
        heapq.heappush(self._ends, (at, self._count, sending))

    def _cancel(self, effect: Cancel) -> list[Event]:
        """OSSA has no word for it: only what was not sent can be stopped."""
        sending = self._by_call.get(effect.call_id)
        if sending is None or not self._calls_waiting.remove(sending):
            return []
        del self._by_call[effect.call_id]
        return [CallFinished(self.number, effect.call_id, Status.CANCELED, fault=fault("tool.canceled"))]

    def _notify(self, effect: Notify, now: Now) -> None:
        extras = extras_of(effect.context)
        message = Message(
            derived_id(self._key, EVENT, effect.subscription_id, effect.event_id),
            EVENT,
            translate.identity_of(effect.publisher, extras),
            (self._identity(),),
            stamp(effect.published_ms),
            extras.action or "event",
            effect.body,
            correlation_id=effect.correlation_id,
            priority=extras.priority if extras.priority != messages.DEFAULT_PRIORITY else None,
            expires_at=None if effect.expires_ms is None else stamp(min(effect.expires_ms, LATEST_MS)),
            topic=effect.topic,
            qos=effect.qos,
            # One event comes once for each subscription that it fits: the subscriber is told for which.
            others={**extras.header, SUBSCRIPTION: Raw(msgspec.json.encode(effect.subscription_id))},
        )
        if message.message_id in self._events or message.message_id in self._waiting_by_id:
            return
        sending = Sending(
            message,
            is_sealed=extras.is_sealed or effect.sensitive,
            subscription_id=effect.subscription_id,
            event=effect.event,
            published_ms=effect.published_ms,
            expires_ms=effect.expires_ms,
            correlation=f"event {effect.correlation_id}" if effect.correlation_id and effect.qos else "",
        )
        self._tell(sending, extras.priority, now)

    def _stop_telling(self, subscription_id: str) -> None:
        """A subscription was ended by somebody else: its events are neither sent nor told again."""
        for message_id, sending in list(self._waiting_by_id.items()):
            if sending.subscription_id == subscription_id:
                del self._waiting_by_id[message_id]
                self._events_waiting.remove(sending)
        for message_id, sending in list(self._events.items()):
            if sending.subscription_id == subscription_id:
                del self._events[message_id]
                self._events_waiting.done(sending.correlation)

    def _tell(self, sending: Sending, priority: int, now: Now) -> None:
        self._waiting_by_id[sending.message.message_id] = sending
        self._events_waiting.put(sending, sending.correlation, priority, now.mono)

    def say(self, message: Message, *, is_sealed: bool = False) -> None:
        """Something that is not answered, a piece of a stream for one: of use now, or not at all."""
        if self.has_room:
            self._plain.append(Sending(message, is_sealed))
            self._plain_bytes += message.size

    def owe(self, message: Message, *, is_sealed: bool, now: Now) -> None:
        """A result, which is told again until it is acknowledged."""
        if message.message_id not in self._events and message.message_id not in self._waiting_by_id:
            self._tell(Sending(message, is_sealed, is_owed=True, published_ms=now.ms), message.urgency, now)

    def _identity(self) -> Identity:
        return Identity(self.agent_id, self.principal.type or translate.OTHER_TYPE)

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def next(self, now: Now) -> Sending | None:
        """What is to be sent next; from here on it counts as sent."""
        if self._plain:
            plain = self._plain.popleft()
            self._plain_bytes -= plain.message.size
            return plain
        queue = self._next_queue(now)
        sending = None if queue is None else queue.take(now.mono)
        if sending is None:
            return None
        if sending.call_id:
            if sending.is_apart or self._is_late(sending.correlation, sending.call_id):
                sending.message = msgspec.structs.replace(sending.message, correlation_id=sending.call_id)
            self._requests[sending.message.message_id] = sending
            self._by_correlation[str(sending.message.correlation_id)] = sending
            return sending
        self._waiting_by_id.pop(sending.message.message_id, None)
        if sending.is_owed or sending.message.qos:
            self._events[sending.message.message_id] = sending
            self._sent_event(sending, now)
        return sending

    def _next_queue(self, now: Now) -> SendQueue[Sending] | None:
        """Where the most urgent one is that may leave."""
        calls = self._calls_waiting.rank(now.mono) if len(self._requests) < MAX_REQUESTS else None
        told = self._events_waiting.rank(now.mono) if len(self._events) < MAX_EVENTS else None
        if calls is None or (told is not None and told < calls):
            return None if told is None else self._events_waiting
        return self._calls_waiting

    def _sent_event(self, sending: Sending, now: Now) -> None:
        wait_s = min(FIRST_DELAY_S * 2.0 ** min(sending.attempts, 16), MAX_DELAY_S)
        sending.attempts += 1
        self._count += 1
        heapq.heappush(self._again, (now.mono + wait_s, self._count, sending.message.message_id))

    def not_sent(self, sending: Sending, why: str) -> list[Event]:
        """A transport could not hand this over."""
        if not sending.call_id or self._requests.pop(sending.message.message_id, None) is None:
            return []  # an event is told again by its timer
        self._keep_late(sending)
        self._forget(sending)
        return [AttemptFailed(self.number, sending.call_id, fault("tool.unavailable", why, retryable=True))]

    def _keep_late(self, sending: Sending) -> None:
        if sending.message.correlation_id != sending.call_id:
            self._late[sending.correlation] = sending.call_id
            if len(self._late) > MAX_LATE:
                del self._late[next(iter(self._late))]

    def unfit(self, sending: Sending, why: str) -> list[Event]:
        """What cannot be said on this wire at all is not tried again."""
        return self._not_to_be_sent(sending, fault("tool.invalid_input", why), "unfit")

    def expired(self, sending: Sending) -> list[Event]:
        """Nobody wants it any more: its time was over before it was its turn (OSSA-015)."""
        return self._not_to_be_sent(sending, fault("call.expired"), "expired")

    def _not_to_be_sent(self, sending: Sending, problem: Fault, reason: str) -> list[Event]:
        message_id = sending.message.message_id
        if self._requests.pop(message_id, None) is not None:
            self._forget(sending)
            return [CallFinished(self.number, sending.call_id, Status.FAILED, fault=problem)]
        if self._events.pop(message_id, None) is None or sending.is_owed:
            return []
        self._events_waiting.done(sending.correlation)
        return [EventGivenUp(self.number, sending.subscription_id, sending.event, reason)]

    # -- what it says --------------------------------------------------------------------------------------------------

    def heard(self, now: Now) -> list[Event]:
        """A sign of life: any message."""
        self._heard_at = now.mono
        if not self._is_silent:
            return []
        self._is_silent = False
        return [HealthReported(self.number, Health.OK)] if self.is_ready else []

    def receive(self, message: Message) -> list[Event]:
        """An answer to something that it was sent: response, result, error, acknowledgment or its opposite."""
        if message.type in {RESPONSE, COMMAND_RESULT, ERROR}:
            return self._answered(message)
        message_id = messages.about(message.payload)
        if message.type == NACK:
            return self._refused(message_id, message)
        return self._taken(message_id)

    def acknowledged(self, sending: Sending) -> list[Event]:
        """A transport says that the agent took this: it answered the request that carried it."""
        return self._taken(sending.message.message_id)

    def _taken(self, message_id: str) -> list[Event]:
        sending = self._events.pop(message_id, None)
        if sending is None:
            return []
        self._events_waiting.done(sending.correlation)
        return [] if sending.is_owed else [EventTaken(self.number, sending.subscription_id, sending.event)]

    def _answered(self, message: Message) -> list[Event]:
        correlation = message.correlation_id or ""
        if not self._is_new(message):
            return []
        sending = self._by_correlation.get(correlation)
        named = self._by_call.get(correlation)
        if sending is None and named is not None and named.message.message_id in self._requests:
            sending = named  # sent under this correlation before a restart of ours
        if sending is None:
            if correlation and not any(one.correlation == correlation for one in self._by_call.values()):
                self._early.keep(correlation, message)
            return []
        return self._end(sending, message)

    def _is_new(self, message: Message) -> bool:
        return message.message_id not in self._used

    def _end(self, sending: Sending, message: Message) -> list[Event]:
        self._requests.pop(sending.message.message_id, None)
        if self._late.get(sending.correlation) == sending.call_id:
            del self._late[sending.correlation]
        self._forget(sending)
        return [self._ended(sending.call_id, message)]

    def _forget(self, sending: Sending) -> None:
        self._by_call.pop(sending.call_id, None)
        correlation = str(sending.message.correlation_id)
        if self._by_correlation.get(correlation) is sending:
            del self._by_correlation[correlation]
        self._calls_waiting.done(sending.correlation)

    def _ended(self, call_id: str, message: Message) -> Event:
        found = None if message.error is None else fault_of(message.error)
        if found is not None and found.retryable:
            return AttemptFailed(self.number, call_id, found)
        self._used[message.message_id] = None
        if len(self._used) > MAX_USED:
            del self._used[next(iter(self._used))]
        if found is None:
            return CallFinished(self.number, call_id, Status.SUCCEEDED, message.payload)
        return CallFinished(self.number, call_id, Status.FAILED, fault=found)

    def _refused(self, message_id: str, message: Message) -> list[Event]:
        sending = self._requests.get(message_id)
        if sending is None:
            return []  # an event: its timer tells it again
        if message.error is None:
            info = ErrorInfo(UNAVAILABLE, "not taken", message.timestamp)
            message = msgspec.structs.replace(message, error=info)
        return self._end(sending, message)

    def is_working_on(self, correlation: str) -> bool:
        """Whether it was sent a request of this correlation and has not answered."""
        return correlation in self._by_correlation

    def progressed(self, correlation: str, sequence: int, payload: Raw, *, done: bool) -> list[Event] | None:
        """A piece of a stream, if it belongs to a call that this agent works on."""
        sending = self._by_correlation.get(correlation)
        if sending is None:
            return None
        data = Raw(b'{"json":%b}' % bytes(payload))
        return [CallProgressed(self.number, sending.call_id, sequence + 1, "stream", data, done)]

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When ``wake`` is due."""
        times = [timers[0][0] for timers in (self._again, self._ends) if timers]
        if self.is_ready and not self._is_silent:
            times.append(self._heard_at + SILENT_S)
        return min(times, default=None)

    def _drop_ended(self, now: Now) -> None:
        """Calls that ended without the agent's word: the hub tells nobody, and their places are for others."""
        while self._ends and self._ends[0][0] <= now.mono:
            _, _, sending = heapq.heappop(self._ends)
            if self._by_call.get(sending.call_id) is not sending:
                continue
            if self._is_open(sending.call_id):
                self._look_at(sending, now.mono + LOOK_S)
            elif self._calls_waiting.remove(sending):
                del self._by_call[sending.call_id]
            else:
                self._requests.pop(sending.message.message_id, None)
                self._forget(sending)
                self._keep_late(sending)

    def wake(self, now: Now) -> tuple[list[Event], list[Sending]]:
        """Events that are told again, and whether the agent was silent for too long."""
        self._drop_ended(now)
        events: list[Event] = []
        again: list[Sending] = []
        while self._again and self._again[0][0] <= now.mono:
            _, _, message_id = heapq.heappop(self._again)
            sending = self._events.get(message_id)
            if sending is None:
                continue
            is_late = sending.expires_ms is not None and sending.expires_ms <= now.ms
            if is_late or now.ms - sending.published_ms >= EVENT_LIVES_MS:
                del self._events[message_id]
                self._events_waiting.done(sending.correlation)
                if sending.is_owed:
                    continue
                reason = "expired" if is_late else "not acknowledged"
                events.append(EventGivenUp(self.number, sending.subscription_id, sending.event, reason))
            else:
                self._sent_event(sending, now)
                again.append(sending)
        if self.is_ready and not self._is_silent and now.mono >= self._heard_at + SILENT_S:
            self._is_silent = True
            events.append(HealthReported(self.number, Health.SILENT))
        return events, again


# What an agent hears that was not let in: its key was revoked meanwhile.
NOT_ADMITTED: Final = (UNAUTHORIZED, "not admitted")
