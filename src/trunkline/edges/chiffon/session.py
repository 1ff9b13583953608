"""The conversation with one registered agent: Trunkline as orchestrator. Sans-IO.

Owns who the agent is, what it is sent, what it may say and whether it is alive. Its way out is a ``Mailbox``; which
transport empties it is not its business. Does not own timers of tasks (``process``) or retries (the hub).

Checks come in this order, after token, size and JSON (``serve``, ``queue``): required fields and types, version,
``from_agent`` against the token, direction, whether the task is known, the rules of the payload.

Invariant: one agent id has one session; coming back under the same token goes on with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.chiffon import messages, translate
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import (
    ORCHESTRATOR,
    Capacity,
    Envelope,
    ErrorPayload,
    Hints,
    Registration,
    WorkRequest,
    WorkResult,
    WorkStatus,
    build,
    invalid,
)
from trunkline.edges.chiffon.process import DEFAULT_TIMEOUT_S, Task, Tasks
from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.effects import CheckHealth, Close, Deliver, ToSession
from trunkline.events import AgentLeft, CallFinished, Event, HealthReported, Noticed
from trunkline.model import Health, Now, Status, ToolDefinition, fault, tool_agent

# Silent point 15: a sign of life within this time is health.
HEARTBEAT_S: Final = 30.0
# Agents that do not poll are asked for a sign of life when they were quiet for half of it.
PROBE_S: Final = 15.0
HEALTH_CHECK: Final = "health_check"

Feed = Callable[[Sequence[Event]], None]


class Settings(Struct, frozen=True):
    """What the configuration says."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    work: dict[str, str] = {}


class AgentSession(BaseSink):
    """One agent that does work for us."""

    def __init__(self, exchange: Exchange, registration: Registration, token_sha256: str, settings: Settings) -> None:
        self._exchange = exchange
        self.agent_id = registration.agent_id
        self.agent_type = registration.agent_type
        self.token_sha256 = token_sha256
        self.version = messages.VERSION
        self.work_types: tuple[str, ...] = ()
        self.capacity = Capacity()
        self.mailbox = Mailbox()
        self.number = exchange.open_session(self)
        self.tasks = Tasks(self.number, f"chiffon:{self.agent_id}", settings.timeout_s, self._is_open)
        self.is_admitted = False
        self.is_silent = False
        self.is_closed = False
        now = exchange.now()
        self.heard_at, self.heard_ms = now.mono, now.ms
        self._probed_at = now.mono
        # Health checks that were sent as work: their answers are about nothing else.
        self._checks: dict[str, None] = {}
        # Errors that were about nothing we know of.
        self._errors = 0
        # Whoever waits for the answer to a registration, by ref.
        self._waiters: dict[str, Callable[[ToSession], None]] = {}
        # A transport that can ask for a sign of life by itself; None: the agent polls, and that is one.
        self.probe: Callable[[], None] | None = None
        # The hub closed the session: its token was revoked.
        self.on_close: Callable[[], None] | None = None

    # -- coming in -----------------------------------------------------------------------------------------------------

    def expect(self, ref: str, answer: Callable[[ToSession], None]) -> None:
        """Hand the effect with this ref to ``answer``."""
        self._waiters[ref] = answer

    def registered(self, registration: Registration, version: str, now: Now) -> None:
        """The agent said (again) what it is. What it still works on is sent once more: it may have lost it."""
        self.work_types, self.capacity, self.version = registration.work_types, registration.capacity, version
        self.heard(now)
        for task in self.tasks.all():
            self.tasks.sent_again(task, now)
            self._post(task, now)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Its work types as tools."""
        return tuple(translate.tool_definition(self.agent_id, each, self.agent_type) for each in self.work_types)

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange asks for something."""
        match effect:
            case Deliver():
                self._deliver(effect, now)
            case CheckHealth():
                self._check_health(now)
            case Close():
                self.is_closed = True
                if self.on_close is not None:
                    self.on_close()
            case _:
                answer = self._waiters.pop(getattr(effect, "ref", ""), None)
                if answer is not None:
                    answer(effect)

    def _deliver(self, effect: Deliver, now: Now) -> None:
        try:
            task = self.tasks.sent(effect, now)
        except (messages.Refused, msgspec.ValidationError) as refused:
            # Only where schemas are not enforced: an input that is no object, or hints that are none.
            problem = fault("tool.invalid_input", "expected an object; `$hints`, if given, is one too")
            if isinstance(refused, messages.Refused):
                problem = translate.fault_of(refused.error)
            self._exchange.feed([CallFinished(self.number, effect.call_id, Status.FAILED, fault=problem)])
            return
        problem_at = self._beyond_capacity(task.request.hints)
        if problem_at is not None:
            # Silent point 24: it would not fit; told before anything starts, and tried again like any 5005.
            self._exchange.feed(self.tasks.error(task, problem_at))
            return
        self._post(task, now)

    def _beyond_capacity(self, hints: Hints) -> ErrorPayload | None:
        needed, there = hints.max_memory_mb, self.capacity.memory_mb
        if needed is None or there is None or needed <= there:
            return None
        return messages.over_limit("memory_mb", there, int(needed)).error  # CH-061

    def _post(self, task: Task, now: Now) -> None:
        custom = task.custom
        self.mailbox.put(self._envelope(task.request, task.trace_id, task.call_id, now, custom))

    def _envelope(
        self, request: WorkRequest, trace_id: str, request_id: str, now: Now, custom: Raw | None = None
    ) -> Envelope:
        """Silent point 12: a new message_id for each attempt, everything else the same."""
        return build(
            request,
            sender=ORCHESTRATOR,
            to=self.agent_type,
            trace_id=trace_id,
            request_id=request_id,
            now_ms=now.ms,
            custom=custom,
            version=self.version,
        )

    # -- what the agent says -------------------------------------------------------------------------------------------

    def heard(self, now: Now) -> None:
        """A sign of life (silent point 16)."""
        self.heard_at, self.heard_ms = now.mono, now.ms
        if self.is_silent and self.is_admitted:
            self.is_silent = False
            self._exchange.feed([HealthReported(self.number, Health.OK)])

    def receive(self, envelope: Envelope, now: Now) -> None:
        """A message whose envelope, version and sender were judged. ``Refused`` if it is not taken."""
        self.heard(now)
        if envelope.type == "work_request":  # CH-019, silent point 27
            raise messages.unauthorized(self.agent_id, "mismatch")
        if envelope.to_agent != ORCHESTRATOR:  # CH-029, CH-038
            raise invalid("an agent's messages go to the orchestrator", "to_agent")
        if envelope.request_id.lower() in self._checks:
            self._checks.pop(envelope.request_id.lower())
            self._exchange.feed([HealthReported(self.number, Health.OK)])
            return
        if envelope.type == "error":
            self._error(envelope)
            return
        task_id = messages.task_id_of(envelope)
        task = None if task_id is None else self.tasks.get(task_id)
        is_late = task is None and task_id is not None and self._was_its_task(task_id)
        if task is None and task_id is not None and not is_late:  # CH-031
            raise invalid("no such task of this agent", "payload.task_id")
        payload = messages.read_payload(envelope)
        if isinstance(payload, WorkStatus):
            if task is None:  # CH-040
                raise invalid("the task has ended", "payload.task_id")
            self._exchange.feed(self.tasks.status(task, payload, now))
        elif isinstance(payload, WorkResult):
            if task is not None:
                self.mailbox.forget(task.call_id)
                self._exchange.feed(self.tasks.result(task, payload, envelope.x_custom_fields))
            else:  # CH-039, silent point 9: the hub records it, and it goes nowhere
                status = Status.SUCCEEDED if payload.status == "success" else Status.FAILED
                self._exchange.feed([CallFinished(self.number, payload.task_id.lower(), status)])

    def _error(self, envelope: Envelope) -> None:
        payload = messages.read_payload(envelope)
        assert isinstance(payload, ErrorPayload)
        task = self.tasks.get(envelope.request_id.lower())
        if task is None:  # CH-051
            self._errors += 1
            # The record hears of the 1st, 10th, 100th … of them: an agent must not be able to fill the disk.
            if self._errors == 10 ** (len(str(self._errors)) - 1):
                who, code = f"chiffon:{self.agent_id}", f"{payload.error_code}"
                self._exchange.feed([Noticed("chiffon.error", "chiffon", who, code)])
        else:
            self.mailbox.forget(task.call_id)
            self._exchange.feed(self.tasks.error(task, payload))

    def _was_its_task(self, task_id: str) -> bool:
        view = self._exchange.call(task_id)
        return view is not None and tool_agent(view.tool_id) == self.agent_id

    def _is_open(self, call_id: str) -> bool:
        view = self._exchange.call(call_id)
        return view is not None and not view.status.is_outcome

    def unreachable(self, request_id: str, text: str) -> None:
        """A transport could not hand a request over: that attempt failed with 5002."""
        task = self.tasks.get(request_id)
        if task is not None:
            refused = messages.unavailable(self.agent_id, self.heard_ms, text)
            self._exchange.feed(self.tasks.error(task, refused.error))

    # -- health and time -----------------------------------------------------------------------------------------------

    def is_alive(self, now: Now) -> bool:
        """Whether it was heard of lately."""
        return now.mono - self.heard_at < HEARTBEAT_S

    def _check_health(self, now: Now) -> None:
        """The breaker's one look (silent point 15)."""
        if self.probe is None:
            self._exchange.feed([HealthReported(self.number, Health.OK if self.is_alive(now) else Health.SILENT)])
        else:
            self.probe()

    def probed(self, now: Now, *, is_well: bool) -> None:
        """What a transport's own check found."""
        if is_well:
            self.heard(now)
            self._exchange.feed([HealthReported(self.number, Health.OK)])
        else:
            self.is_silent = True
            self._exchange.feed([HealthReported(self.number, Health.SILENT)])

    def send_health_check(self, now: Now) -> str:
        """Ask by a work_request that any reply answers; its request_id."""
        request_id = str(uuid.uuid4())
        self._checks = {request_id: None}
        request = WorkRequest(str(uuid.uuid4()), HEALTH_CHECK)
        self.mailbox.put(self._envelope(request, str(uuid.uuid4()), request_id, now))
        return request_id

    def is_checking(self, request_id: str) -> bool:
        """Whether this health check is still without an answer."""
        return request_id in self._checks

    def due(self, now: Now) -> bool:
        """What follows from the time that passed; whether the conversation goes on."""
        self.tasks.sweep(now)
        events = self.tasks.due(now)
        if events:
            self._exchange.feed(events)
        if not self.is_alive(now):
            if not self.is_silent:
                self.is_silent = True
                self._exchange.feed([HealthReported(self.number, Health.SILENT)])
            if not self.tasks:
                self.leave("silent")
                return False
        elif self.probe is not None and now.mono - max(self.heard_at, self._probed_at) >= PROBE_S:
            self._probed_at = now.mono
            self.probe()
        return not self.is_closed

    def leave(self, reason: str) -> None:
        """The conversation is over."""
        self.is_closed = True
        self._exchange.feed([AgentLeft(self.number, reason)])
        self._exchange.close_session(self.number)
