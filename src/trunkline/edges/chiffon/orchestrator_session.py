"""The conversation with one orchestrator that gives us work: Trunkline as agent. Sans-IO.

Owns how a call looks from outside: work_status while it goes on, one work_result at its end, or an error where it never
started. A request is a call under the key ``request_id`` in the sender's scope, so that a repeat joins the running call
or gets the recorded outcome; there is no second cache. Which tool serves a work type, ``work_types`` knows.

Invariant: a work_request is answered at once, or by a work_status; a taken one ends in exactly one work_result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import exact
from trunkline.edges.chiffon import chunks, messages, translate
from trunkline.edges.chiffon.messages import MAX_DURATION_S, Envelope, Payload, Step, WorkRequest, WorkStatus, invalid
from trunkline.edges.chiffon.outbox import POLL_BYTES, Outbox, Outgoing
from trunkline.edges.chiffon.session import Probe, State
from trunkline.effects import Answer, Progress, ToSession, Wait
from trunkline.events import CallRequested, Event
from trunkline.model import EMPTY_OBJECT, Now, Principal, Status
from trunkline.shown import CallView, ToolView

# CH-030: between 5 and 30 seconds; a third of the time after which an orchestrator takes us as hung.
STATUS_S: Final = 10.0
# An orchestrator that was not heard of for so long, and has nothing open, is forgotten.
FORGET_S: Final = 600.0


class Work(Struct):
    """One request that runs as a call."""

    envelope: Envelope
    request: WorkRequest
    fingerprint: str
    told_at: float
    percent: int = 0
    is_paused: bool = False
    step: int = 0
    step_name: str = ""


class OrchestratorSession:
    """One orchestrator, whatever transport it uses.

    ``find_keyed`` answers which call a caller's key stands for; ``tool_for`` which tool serves a work type for an agent
    type, or for the agent whose id is given; ``supported`` which work types there are; ``new_id`` makes a UUID.
    """

    def __init__(
        self,
        number: int,
        principal: Principal,
        *,
        find_keyed: Callable[[str, str], CallView | None],
        tool_for: Callable[[str, str, str | None], ToolView | None],
        supported: Callable[[], tuple[str, ...]],
        new_id: Callable[[], str],
        now: Now,
    ) -> None:
        self.state = State.READY
        self.probe = Probe.NONE
        self.agent_id = principal.identity.partition(":")[2]
        # In whose name it asks: that of the token of its last message.
        self.principal = principal
        self.outbox = Outbox()
        self._number = number
        self._find_keyed = find_keyed
        self._tool_for = tool_for
        self._supported = supported
        self._new_id = new_id
        # By request_id.
        self._works: dict[str, Work] = {}
        self._errors = 0
        self._heard_at = now.mono

    # -- what the orchestrator says ------------------------------------------------------------------------------------

    def heard(self, now: Now) -> list[Event]:
        """A sign of life."""
        self._heard_at = now.mono
        return []

    def receive(self, envelope: Envelope, now: Now) -> list[Event]:
        """A message whose envelope, version and sender were judged. ``Refused`` if it is not taken."""
        if envelope.type in {"work_status", "work_result"}:  # CH-029, CH-038
            raise invalid(f"an orchestrator does not send {envelope.type}", "type")
        if envelope.type == "error":  # CH-050
            payload = messages.read_payload(envelope)
            assert isinstance(payload, messages.ErrorPayload)
            self._errors += 1
            return translate.error_noticed(self.agent_id, payload, self._errors)
        if envelope.to_agent == messages.ORCHESTRATOR:
            raise invalid("work goes to an agent", "to_agent")
        request = messages.read_payload(envelope)
        assert isinstance(request, WorkRequest)
        fingerprint = hashlib.sha256(exact(bytes(envelope.payload))).hexdigest()
        running = self._works.get(envelope.request_id.lower())
        if running is not None:
            if running.fingerprint != fingerprint:  # silent point 11
                raise invalid("was used before with another payload", "request_id")
            self._tell(running, self._status(running), now, answers=envelope.message_id)  # silent point 10
            return []
        return [self._start(envelope, request, fingerprint, now)]

    def _start(self, envelope: Envelope, request: WorkRequest, fingerprint: str, now: Now) -> CallRequested:
        pinned = _custom_text(envelope.x_custom_fields, "agent_id")
        key, duration_s = envelope.request_id.lower(), request.hints.max_duration_seconds
        tool = self._tool_for(request.work_type, envelope.to_agent, pinned)
        known = self._find_keyed(self.principal.identity, key)
        if known is not None:
            # A repeat is about the tool that it was about before, also if nobody offers that now, or another one would
            # serve this work type by now.
            tool_id = known.tool_id
        elif tool is not None:
            tool_id = tool.tool_id
        else:  # CH-062
            raise messages.unsupported(request.work_type, self._supported())
        takes_hints = pinned is not None or tool_id == f"{translate.EDGE}.{envelope.to_agent}/{request.work_type}"
        if tool is not None and tool.tool_id == tool_id:
            takes_hints = translate.EDGE in tool.tags
        self._works[key] = Work(envelope, request, fingerprint, now.mono)
        return CallRequested(
            self._number,
            key,
            self.principal,
            tool_id,
            _input(request, takes_hints=takes_hints),
            key=key,
            timeout_ms=None if duration_s is None else max(1, int(min(duration_s, MAX_DURATION_S) * 1000)),
            correlation_id=envelope.trace_id,
            context=envelope.x_custom_fields,
            announce=True,
        )

    def is_working_on(self, request_id: str) -> bool:
        """Whether a request, by its id in small letters, is a call without an outcome, or not yet told of."""
        return request_id in self._works or self.outbox.holds(request_id)

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> list[Event]:
        """Something happened to a request."""
        work = self._works.get(getattr(effect, "ref", ""))
        if work is None:
            return []
        if isinstance(effect, Wait):
            work.is_paused = effect.status is Status.WAITING_APPROVAL
            self._tell(work, self._status(work), now)
        elif isinstance(effect, Progress):
            for status in _shown(work, effect):
                self._tell(work, status, now)
        elif isinstance(effect, Answer):
            del self._works[effect.ref]
            self._answer(work, effect, now)
        return []

    def _answer(self, work: Work, answer: Answer, now: Now) -> None:
        asked_in = work.envelope.message_id
        if answer.refused and answer.fault is not None:
            error = translate.refusal(answer.fault, work.request, self._supported, self.agent_id, now.ms)
            if error is not None:
                self._tell(work, error, now, answers=asked_in)
                return
        body = b"{}" if answer.output is None else bytes(answer.output)
        whole, custom = translate.work_result(answer, body, work.request.task_id)
        result, cut = translate.shortened(whole)
        if cut:  # silent point 19: an output that is too large for a result goes before it, in chunks
            for step in _steps(work.step + 1, "output", whole.output):
                self._tell(work, WorkStatus(work.request.task_id, "running", work.percent, step), now)
        self._tell(work, result, now, (custom, cut), answers=asked_in)

    def _status(self, work: Work) -> WorkStatus:
        # Silent point 20: the authors' own models take no step without a number and a name.
        name = (
            "waiting for a person's approval"
            if work.is_paused
            else work.step_name or work.request.work_type[: messages.MAX_STEP_NAME_CHARS]
        )
        step = Step(work.step or 1, name)
        return WorkStatus(work.request.task_id, "paused" if work.is_paused else "running", work.percent, step)

    def _tell(
        self,
        work: Work,
        payload: Payload,
        now: Now,
        custom: tuple[dict[str, object], dict[str, object]] = ({}, {}),
        answers: str = "",
    ) -> None:
        """Silent point 13: the ids of the request, and its custom fields (silent point 29)."""
        work.told_at = now.mono
        asked = work.envelope
        fields = _joined(asked.x_custom_fields, *custom) if any(custom) else asked.x_custom_fields
        envelope = messages.build(
            payload,
            sender=asked.to_agent,
            to=asked.from_agent,
            trace_id=asked.trace_id,
            request_id=asked.request_id,
            now_ms=now.ms,
            message_id=self._new_id(),
            custom=fields,
        )
        self.outbox.put(envelope, answers)

    def take_output(self, limit: int = POLL_BYTES) -> list[Outgoing]:
        """The messages that are to be sent next, together at most ``limit`` bytes; one, if there is one."""
        return self.outbox.take(limit)

    # -- what a transport tells a session; it matters to agents, which are given work ----------------------------------

    def take_probe(self) -> bool:
        """Nobody asks an orchestrator whether it lives: one that was quiet for long is forgotten."""
        return False

    def probed(self, _now: Now, *, is_well: bool) -> list[Event]:  # noqa: ARG002  (as ``AgentSession`` has it)
        """Its transport looked all the same."""
        return []

    def unreachable(self, _request_id: str, _text: str) -> list[Event]:
        """A message did not reach it. It asks again under the request_id, if it still wants to know."""
        return []

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When time alone changes something (monotonic)."""
        if self.state is State.CLOSED:
            return None
        if self._works:
            return min(work.told_at for work in self._works.values()) + STATUS_S
        return self._heard_at + FORGET_S

    def wake(self, now: Now) -> list[Event]:
        """Say that work goes on. One that has none, and was not heard of for long, is forgotten; its calls are not."""
        for work in self._works.values():
            if now.mono >= work.told_at + STATUS_S:  # CH-030
                self._tell(work, self._status(work), now)
        if not self._works and now.mono >= self._heard_at + FORGET_S:
            self.state = State.CLOSED
        return []


def _input(request: WorkRequest, *, takes_hints: bool) -> Raw:
    """The parameters; hints travel on to agents that know them."""
    memory = request.hints.max_memory_mb
    if memory is None or not takes_hints:
        return request.parameters
    given = msgspec.json.decode(request.parameters, type=dict[str, Raw])
    given.setdefault(translate.HINTS_KEY, messages.raw({"max_memory_mb": memory}))
    return messages.raw(given)


def _custom_text(custom: Raw | None, name: str) -> str | None:
    given: dict[str, object] = msgspec.json.decode(custom or EMPTY_OBJECT)
    found = given.get(name)
    return found if isinstance(found, str) else None


def _joined(asked: Raw | None, told: dict[str, object], cut: dict[str, object]) -> Raw:
    """The custom fields of a request, what its outcome adds, and what was cut off; as much as may be sent (CH-016)."""
    given: dict[str, object] = {} if asked is None else msgspec.json.decode(asked)
    for fields in ({**given, **told, **cut}, {**told, **cut}, {**given, **cut}):
        found = messages.raw(fields)
        if len(bytes(found)) <= messages.MAX_CUSTOM_BYTES:
            return found
    return messages.raw(cut)


def _shown(work: Work, effect: Progress) -> list[WorkStatus]:
    """A piece of a call's stream as work_status."""
    data: dict[str, Any] = msgspec.json.decode(effect.data)
    told = data.get("json")
    facts: dict[str, Any] = told if isinstance(told, dict) else data
    percent = facts.get("progress_percent", facts.get("percent"))
    if isinstance(percent, int | float) and not isinstance(percent, bool) and 0 <= percent <= 100:
        work.percent = int(percent)
    step = facts.get("step")
    number, name = (step.get("number"), step.get("name")) if isinstance(step, dict) else (None, None)
    if isinstance(number, int) and not isinstance(number, bool):
        work.step = number
    work.step = work.step or 1
    text = data.get("text")
    output = text if isinstance(text, str) else None
    if told is not None and effect.channel == "partial_result":
        output = msgspec.json.encode(told).decode()
    # Whatever an agent shows: it need not be a text.
    status: Any = next((word for word in ("paused", "step_completed") if facts.get("status") == word), "running")
    work.is_paused = status == "paused"
    work.step_name = (name if isinstance(name, str) else effect.channel)[: messages.MAX_STEP_NAME_CHARS]
    steps = _steps(work.step, work.step_name, output)
    return [WorkStatus(work.request.task_id, status, work.percent, step) for step in steps]


def _steps(number: int, name: str, output: str | None) -> list[Step]:
    """A step with its output, in chunks if that is too large for one message (CH-083)."""
    if output is None or len(output.encode()) <= messages.MAX_OUTPUT_BYTES:
        return [Step(number, name, output)]
    return [Step(number, name, chunk.text, chunk.label) for chunk in chunks.split(output)]
