"""Events for one agent: each is a call of its tool ``a2a_handle_event``, and the success of that call takes it.

OpenSentience has no message for events, but every agent can be called. Owns which events wait for their call, which
calls are open, and when one that failed is made again. Does not own which events there are (the hub), nor whether the
call may be made: the subscription was judged when it was made, and a built-in rule says so for each call.

Invariant: an event that is owed is in a call, waits for its moment, or the hub was told that it was taken or given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.effects import Answer, Notify, StopTelling
from trunkline.events import CallRequested, Event, EventGivenUp, EventTaken, SubscriberArrived
from trunkline.model import EVENT_TOOL, EVENTS_CALLER, MAX_NAME_CHARS, Behalf, Now, Principal, Status

# After a failure: 1, 2, 4 … seconds, and no more than this.
LONGEST_WAIT_S: Final = 30.0
# An event that nobody took for so long is given up, as the hub does with those that wait for an agent to come back.
GIVE_UP_MS: Final = 86_400_000
# Calls of one agent that tell it of events at the same time: its slots are for others, too.
MAX_AT_ONCE: Final = 16
# Events that are told once and no more wait up to so many; what is owed has its bound in the hub.
MAX_WAITING: Final = 1000
CALLER: Final = Principal(EVENTS_CALLER)
# How our calls are named in the conversation: longer than any name that an agent may give to one of its own.
PREFIX: Final = "event:".rjust(MAX_NAME_CHARS + 1, "-")


class Told(Struct, eq=False):
    """One event on its way to the agent."""

    effect: Notify
    failures: int = 0
    # When it is tried again; 0.0 is now.
    at: float = 0.0
    # Its subscription was ended: it is not tried again.
    is_over: bool = False


class ToldEvents:
    """The events of one conversation. ``say`` hands an event of ours to the hub."""

    def __init__(self, session: int, say: Callable[[Event], None]) -> None:
        self._session = session
        self._say = say
        self.agent_id = ""
        self._waiting: deque[Told] = deque()
        # Those that failed, until they are tried again.
        self._resting: list[Told] = []
        # By the name of their call.
        self.open: dict[str, Told] = {}
        # What is owed and on its way, so that what is told again is not told twice.
        self._known: set[tuple[str, int]] = set()

    def tools_confirmed(self, tool_ids: tuple[str, ...], principal: Principal) -> None:
        """Once the agent has the tool, it can be told."""
        if f"{self.agent_id}/{EVENT_TOOL}" in tool_ids:
            self._say(SubscriberArrived(self._session, principal))

    def notify(self, effect: Notify, _now: Now) -> None:
        """Tell the agent of an event."""
        if effect.qos:
            key = (effect.subscription_id, effect.event)
            if key in self._known:
                return
            self._known.add(key)
        elif len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(Told(effect))
        self._call_next()

    def stop(self, effect: StopTelling, _now: Now) -> None:
        """A subscription was ended by somebody else: its events are told no more, but for those in a call."""
        self._waiting = deque(told for told in self._waiting if told.effect.subscription_id != effect.subscription_id)
        self._resting = [told for told in self._resting if told.effect.subscription_id != effect.subscription_id]
        for told in self.open.values():
            told.is_over = told.is_over or told.effect.subscription_id == effect.subscription_id
        self._known = {key for key in self._known if key[0] != effect.subscription_id}

    def _call_next(self) -> None:
        while self._waiting and len(self.open) < MAX_AT_ONCE:
            told = self._waiting.popleft()
            effect = told.effect
            ref = f"{PREFIX}{effect.subscription_id}:{effect.event}"
            self.open[ref] = told
            self._say(
                CallRequested(
                    self._session,
                    ref,
                    CALLER,
                    f"{self.agent_id}/{EVENT_TOOL}",
                    _input(effect),
                    correlation_id=effect.correlation_id,
                    on_behalf_of=Behalf(circumstances=effect.circumstances),
                    sensitive=effect.sensitive,
                )
            )

    def answered(self, answer: Answer, now: Now) -> None:
        """A call of ours has its outcome."""
        told = self.open.pop(answer.ref)
        effect = told.effect
        if effect.qos and not told.is_over:
            told.failures += 1
            is_late = effect.expires_ms is not None and effect.expires_ms <= now.ms
            if answer.status is Status.SUCCEEDED:
                self._known.discard((effect.subscription_id, effect.event))
                self._say(EventTaken(self._session, effect.subscription_id, effect.event))
            elif is_late or now.ms - effect.published_ms >= GIVE_UP_MS:
                self._known.discard((effect.subscription_id, effect.event))
                reason = "expired" if answer.fault is None else answer.fault.code
                self._say(EventGivenUp(self._session, effect.subscription_id, effect.event, reason))
            else:
                told.at = now.mono + min(2.0 ** min(told.failures - 1, 10), LONGEST_WAIT_S)
                self._resting.append(told)
        self._call_next()

    def wake_at(self) -> float | None:
        """When the next one is tried again."""
        return min((told.at for told in self._resting), default=None) if self._resting else None

    def wake(self, now: Now) -> None:
        """Try again what has rested."""
        due = [told for told in self._resting if told.at <= now.mono]
        if due:
            self._resting = [told for told in self._resting if told.at > now.mono]
            # Before those that were never tried: they are older.
            self._waiting.extendleft(reversed(due))
            self._call_next()


def _input(effect: Notify) -> Raw:
    shape = {
        "topic": effect.topic,
        "payload": effect.body,
        "publisher": effect.publisher,
        "event_id": effect.event_id,
    }
    return Raw(msgspec.json.encode(shape))
