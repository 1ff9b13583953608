"""The conversation with one registered agent: Trunkline as orchestrator. Sans-IO.

Theory of operation::

    ARRIVING --Admit--> READY --30 s without a sign--> SILENT --no task left--> CLOSED
        |                 ^                              |                        ^
        |                 +-------- a sign of life ------+                        |
        +---- Refuse ---------------------- Close, or another token takes over ---+

An agent has no connection: it says things by one transport or another, and what it has to be sent waits in the
``outbox`` until one takes it. So only signs of life tell whether it is there; one that was quiet is asked for one, in
the way that its transport allows (``Probe``).

Owns who the agent is, what it is sent, what it may say and whether it is alive. Does not own timers of tasks
(``tasks``) or retries (the hub). Checks of a message come in this order, after token, size and JSON (``serve``,
``queue``), envelope, version and sender (``peers``): direction, whether the task is known, the rules of the payload.

Invariant: one agent id has one session; coming back under the same token goes on with it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from trunkline.edges.chiffon import messages, translate
from trunkline.edges.chiffon.messages import ORCHESTRATOR, VERSION, Envelope, ErrorPayload, Registration, invalid
from trunkline.edges.chiffon.outbox import POLL_BYTES, Outbox, Outgoing
from trunkline.edges.chiffon.tasks import RETRY, Task, Tasks
from trunkline.edges.chiffon.translate import EDGE
from trunkline.effects import Admit, CheckHealth, Close, ConfirmTools, Deliver, Refuse, ToSession
from trunkline.events import AgentArrived, AgentLeft, CallFinished, Event, HealthReported, ToolsOffered
from trunkline.model import BreakerPolicy, Health, Now, Peer, Status, fault, tool_agent
from trunkline.shown import CallView

# Silent point 15: a sign of life within this time is health.
HEARTBEAT_S: Final = 30.0
# Agents that do not poll are asked for a sign of life when they were quiet for half of it.
PROBE_S: Final = 15.0
HEALTH_CHECK: Final = "health_check"


class State(enum.Enum):
    """Where a conversation stands."""

    ARRIVING = "arriving"
    READY = "ready"
    SILENT = "silent"
    CLOSED = "closed"


class Probe(enum.Enum):
    """How an agent that was quiet is asked whether it lives."""

    # Not at all: it polls, and that is a sign.
    NONE = "none"
    # Its transport looks (a callback's health, an open socket) when ``take_probe`` says so, and tells ``probed``.
    BY_TRANSPORT = "by_transport"
    # By a piece of work that any reply answers.
    BY_WORK = "by_work"


class AgentSession:
    """One agent that does work for us. ``find_call`` answers what is known of a call, ``new_id`` makes a UUID."""

    def __init__(
        self,
        number: int,
        agent_id: str,
        agent_type: str,
        token_sha256: str,
        timeout_s: float,
        *,
        find_call: Callable[[str], CallView | None],
        new_id: Callable[[], str],
        now: Now,
    ) -> None:
        self.state = State.ARRIVING
        self.agent_id = agent_id
        self.agent_type = agent_type
        self.token_sha256 = token_sha256
        self.version = VERSION
        # What it said that it does, and what of that the exchange took.
        self._announced: tuple[str, ...] = ()
        self.work_types: tuple[str, ...] = ()
        self.capacity = messages.Capacity()
        self.outbox = Outbox()
        self.tasks = Tasks(number, f"{EDGE}:{agent_id}", timeout_s, self._is_open)
        self.probe = Probe.NONE
        self._number = number
        self._timeout_s = timeout_s
        self._find_call = find_call
        self._new_id = new_id
        # Registrations that are answered once the agent is admitted.
        self._offers: list[str] = []
        self._heard_at, self._heard_ms = now.mono, now.ms
        self._probed_at = now.mono
        self._is_probe_due = False
        # The request_id of the health check that was sent as work, and until when its reply is not missed.
        self._check, self._check_by = "", 0.0
        # Errors that were about nothing we know of.
        self._errors = 0

    # -- coming and going ----------------------------------------------------------------------------------------------

    def register(self, ref: str, registration: Registration, version: str, origin: str, now: Now) -> list[Event]:
        """The agent says (again) what it is; ``ConfirmTools`` or ``Refuse`` for ``ref`` is the answer.

        What it still works on is sent once more: it may have lost it, unless it has not fetched it yet.
        """
        self._announced, self.capacity, self.version = registration.work_types, registration.capacity, version
        unfetched = self.outbox.request_ids()
        for task in self.tasks.all():  # not another attempt: only the hub counts those (decision 24)
            self.tasks.restart_idle(task, now)
            if task.call_id not in unfetched:
                self._post(task, now)
        if self.state is not State.ARRIVING:
            return [*self.heard(now), self._offer(ref)]
        self._offers.append(ref)
        if len(self._offers) > 1:
            return []
        arrived = AgentArrived(
            self._number,
            ref,
            EDGE,
            self.agent_id,
            registration.version or VERSION,
            self.token_sha256,
            Peer(origin),
            timeout_s=None,
            dedupes=True,
            retry=RETRY,
            breaker=BreakerPolicy(),
        )
        return [arrived]

    def _offer(self, ref: str) -> ToolsOffered:
        tools = (translate.tool_definition(self.agent_id, each, self.agent_type) for each in self._announced)
        return ToolsOffered(self._number, ref, tuple(tools), replace=True)

    def leave(self, reason: str) -> list[Event]:
        """The conversation is over."""
        self.state = State.CLOSED
        return [AgentLeft(self._number, reason)]

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> list[Event]:
        """The exchange asks for something."""
        match effect:
            case Deliver():
                return self._deliver(effect, now)
            case CheckHealth():
                return self._check_health(now)
            case Admit():
                self.state = State.READY
                offers, self._offers = self._offers, []
                return [self._offer(ref) for ref in offers]
            case ConfirmTools():
                # What came too soon after other changes was not looked at, and nothing changed.
                if not any(problem.code == "limit.rate" for _, problem in effect.rejected):
                    self.work_types = tuple(tool_id.partition("/")[2] for tool_id in effect.registered)
            case Refuse():
                self.state = State.CLOSED
            case Close():
                return self.leave("token revoked")
            case _:
                pass
        return []

    def _deliver(self, effect: Deliver, now: Now) -> list[Event]:
        if self.tasks.is_answered(effect.call_id):
            return []  # the result of an earlier attempt came while this one waited for the disk
        call = self._find_call(effect.call_id)
        is_typed = call is not None and call.tool_id != effect.tool_id
        try:
            task = self.tasks.sent(effect, now, is_typed=is_typed)
        except (messages.Refused, msgspec.ValidationError) as refused:
            # Only where schemas are not enforced: an input that is no object, or hints that are none.
            problem = fault("tool.invalid_input", "expected an object; `$hints` is one too, `$agent_id` a text")
            if isinstance(refused, messages.Refused):
                problem = translate.fault_of(refused.error)
            return [CallFinished(self._number, effect.call_id, Status.FAILED, fault=problem)]
        unfit = self._unfit(task, now)
        if unfit:
            # The agent would refuse it, or drop its connection; told before anything is sent, and never tried again.
            self.tasks.end(task)
            problem = fault("tool.invalid_input", unfit)
            return [CallFinished(self._number, effect.call_id, Status.FAILED, fault=problem)]
        too_much = self._beyond_capacity(task.request.hints)
        if too_much is not None:
            # Silent point 24: it would not fit; told before anything starts, and tried again like any 5005.
            return self.tasks.error(task, too_much)
        self._post(task, now)
        return []

    def _unfit(self, task: Task, now: Now) -> str:
        """Why no agent would take this message, if it is so large."""
        custom = 0 if task.custom is None else len(task.custom)
        if custom > messages.MAX_CUSTOM_BYTES:  # silent point 29
            return f"the call's context has {custom} bytes; custom fields have at most {messages.MAX_CUSTOM_BYTES}"
        size = len(messages.encode(self._envelope(task.request, task.trace_id, task.call_id, now, task.custom)))
        if size > messages.MAX_MESSAGE_BYTES:  # silent point 26
            return f"the call is a message of {size} bytes; one has at most {messages.MAX_MESSAGE_BYTES}"
        return ""

    def _beyond_capacity(self, hints: messages.Hints) -> ErrorPayload | None:
        needed, there = hints.max_memory_mb, self.capacity.memory_mb
        if needed is None or there is None or needed <= there:
            return None
        return messages.over_limit("memory_mb", there, int(needed)).error  # CH-061

    def _post(self, task: Task, now: Now) -> None:
        self.outbox.put(self._envelope(task.request, task.trace_id, task.call_id, now, task.custom))

    def _envelope(
        self, request: messages.WorkRequest, trace_id: str, request_id: str, now: Now, custom: Raw | None = None
    ) -> Envelope:
        """Silent point 12: a new message_id for each attempt, everything else the same."""
        return messages.build(
            request,
            sender=ORCHESTRATOR,
            to=self.agent_type,
            trace_id=trace_id,
            request_id=request_id,
            now_ms=now.ms,
            message_id=self._new_id(),
            custom=custom,
            version=self.version,
        )

    def take_output(self, limit: int = POLL_BYTES) -> list[Outgoing]:
        """The messages that are to be sent next, together at most ``limit`` bytes; one, if there is one."""
        return self.outbox.take(limit)

    # -- what the agent says -------------------------------------------------------------------------------------------

    def heard(self, now: Now) -> list[Event]:
        """A sign of life (silent point 16): a poll, or any message, whatever becomes of it."""
        self._heard_at, self._heard_ms = now.mono, now.ms
        if self.state is not State.SILENT:
            return []
        self.state = State.READY
        return [HealthReported(self._number, Health.OK)]

    def receive(self, envelope: Envelope, now: Now) -> list[Event]:
        """A message whose envelope, version and sender were judged. ``Refused`` if it is not taken."""
        if envelope.type == "work_request":  # CH-019, silent point 27
            raise messages.unauthorized(self.agent_id, "mismatch")
        if envelope.to_agent != ORCHESTRATOR:  # CH-029, CH-038
            raise invalid("an agent's messages go to the orchestrator", "to_agent")
        if envelope.request_id.lower() == self._check:
            self._check, self._check_by = "", 0.0
            return [HealthReported(self._number, Health.OK)]
        if envelope.type == "error":
            return self._error(envelope)
        task_id = messages.task_id_of(envelope)
        task = None if task_id is None else self.tasks.get(task_id)
        if task is None and task_id is not None and self._own_call(task_id) is None:  # CH-031
            raise invalid("no such task of this agent", "payload.task_id")
        payload = messages.read_payload(envelope)
        if task is None and task_id is not None and self._is_open(task_id) and not self.tasks.is_answered(task_id):
            # After a restart of ours, before the work is sent again: only then it can be taken, and must not be lost.
            raise messages.unavailable(self.agent_id, self._heard_ms, "this task is sent again; answer it then")
        if isinstance(payload, messages.WorkStatus):
            if task is None:  # CH-040
                raise invalid("the task has ended", "payload.task_id")
            return self.tasks.status(task, payload, now)
        assert isinstance(payload, messages.WorkResult)
        if task is None:  # CH-039, silent point 9: the hub records it, and it goes nowhere
            status = Status.SUCCEEDED if payload.status == "success" else Status.FAILED
            return [CallFinished(self._number, payload.task_id.lower(), status)]
        self.outbox.forget(task.call_id)
        return self.tasks.result(task, payload, envelope.x_custom_fields)

    def _error(self, envelope: Envelope) -> list[Event]:
        payload = messages.read_payload(envelope)
        assert isinstance(payload, ErrorPayload)
        task = self.tasks.get(envelope.request_id.lower())
        if task is None:  # CH-051
            self._errors += 1
            return translate.error_noticed(self.agent_id, payload, self._errors)
        self.outbox.forget(task.call_id)
        return self.tasks.error(task, payload)

    def _own_call(self, call_id: str) -> CallView | None:
        """A call that this agent was given, as itself or as one of its type."""
        view = self._find_call(call_id)
        return view if view is not None and tool_agent(view.provider or view.tool_id) == self.agent_id else None

    def _is_open(self, call_id: str) -> bool:
        view = self._own_call(call_id)
        return view is not None and not view.status.is_outcome

    def unreachable(self, request_id: str, text: str) -> list[Event]:
        """A transport could not hand a request over: that attempt failed with 5002."""
        task = self.tasks.get(request_id)
        if task is None:
            return []
        return self.tasks.error(task, messages.unavailable(self.agent_id, self._heard_ms, text).error)

    # -- health and time -----------------------------------------------------------------------------------------------

    def is_alive(self, now: Now) -> bool:
        """Whether it was heard of lately."""
        return now.mono < self._heard_at + HEARTBEAT_S

    def _check_health(self, now: Now) -> list[Event]:
        """The breaker's one look (silent point 15)."""
        if self.probe is Probe.NONE:
            return [HealthReported(self._number, Health.OK if self.is_alive(now) else Health.SILENT)]
        self._ask(now)
        return []

    def _ask(self, now: Now) -> None:
        self._probed_at = now.mono
        if self.probe is Probe.BY_TRANSPORT:
            self._is_probe_due = True
        else:
            self._check, self._check_by = self._new_id(), now.mono + self._timeout_s
            request = messages.WorkRequest(self._new_id(), HEALTH_CHECK)
            self.outbox.put(self._envelope(request, self._new_id(), self._check, now))

    def take_probe(self) -> bool:
        """Whether the transport has to look now if the agent lives. Said once."""
        is_due, self._is_probe_due = self._is_probe_due, False
        return is_due

    def probed(self, now: Now, *, is_well: bool) -> list[Event]:
        """What the transport found."""
        if is_well:
            return [*self.heard(now), HealthReported(self._number, Health.OK)]
        return self._fell_silent()

    def _fell_silent(self) -> list[Event]:
        self.state = State.SILENT
        return [HealthReported(self._number, Health.SILENT)]

    def wake_at(self) -> float | None:
        """When time alone changes something (monotonic)."""
        if self.state in {State.ARRIVING, State.CLOSED}:
            return None
        moments = [self.tasks.wake_at(), self._check_by or None]
        gone_at, probe_at = self._heard_at + HEARTBEAT_S, max(self._heard_at, self._probed_at) + PROBE_S
        if self.state is State.READY or not self.tasks:
            moments.append(gone_at)
        if self.probe is not Probe.NONE and probe_at < gone_at:
            moments.append(probe_at)
        return min((moment for moment in moments if moment is not None), default=None)

    def wake(self, now: Now) -> list[Event]:
        """What follows from the time that passed."""
        events = self.tasks.wake(now)
        if self._check_by and now.mono >= self._check_by:
            self._check_by = 0.0
            events += self._fell_silent()
        if not self.is_alive(now):
            if self.state is State.READY:
                events += self._fell_silent()
            if not self.tasks:
                events += self.leave("silent")
        elif self.probe is not Probe.NONE and now.mono >= max(self._heard_at, self._probed_at) + PROBE_S:
            self._ask(now)
        return events
