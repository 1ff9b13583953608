"""The conversation with one orchestrator that gives us work: Trunkline as agent. Sans-IO.

Owns which tool serves a work type, and how a call looks from outside: work_status while it goes on, one work_result at
its end, or an error where it never started. A request is a call under the key ``request_id`` in the sender's scope, so
that a repeat joins the running call or gets the recorded outcome; there is no second cache.

Invariant: a work_request is answered at once, or by a work_status; a taken one ends in exactly one work_result.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import canonical
from trunkline.edges.chiffon import chunks, messages, translate
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import (
    MAX_DURATION_S,
    ORCHESTRATOR,
    Envelope,
    ErrorPayload,
    Payload,
    Step,
    WorkRequest,
    WorkStatus,
    build,
    invalid,
)
from trunkline.edges.chiffon.session import Settings
from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.effects import Answer, Progress, ToSession, Wait
from trunkline.events import CallRequested, Noticed
from trunkline.model import EMPTY_OBJECT, Now, Principal, Status, ToolView

# CH-030: between 5 and 30 seconds; a third of the time after which an orchestrator takes us as hung.
STATUS_S: Final = 10.0
# An orchestrator that was not heard of for so long, and has nothing open, is forgotten.
FORGET_S: Final = 600.0
# Names in a refusal; more help nobody.
MAX_SUPPORTED: Final = 200


class Work(Struct):
    """One request that runs as a call."""

    envelope: Envelope
    request: WorkRequest
    fingerprint: str
    told_at: float
    percent: int = 0
    is_paused: bool = False
    step: int = 0
    on_end: list[Callable[[], None]] = []


class OrchestratorSession(BaseSink):
    """One orchestrator, whatever transport it uses."""

    def __init__(self, exchange: Exchange, principal: Principal, settings: Settings) -> None:
        self._exchange = exchange
        self.agent_id = principal.identity.partition(":")[2]
        self.agent_type = ORCHESTRATOR
        self._settings = settings
        self.mailbox = Mailbox()
        self.number = exchange.open_session(self)
        self._works: dict[str, Work] = {}
        self._refs = itertools.count(1)
        self._errors = 0
        # The request that is being received, and its answer if there is one at once.
        self._receiving = ""
        self._at_once: Envelope | None = None
        self.heard_at = exchange.now().mono

    def heard(self, now: Now) -> None:
        """A sign of life."""
        self.heard_at = now.mono

    # -- what the orchestrator says ------------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, principal: Principal, now: Now) -> Envelope | None:
        """A message whose envelope, version and sender were judged; the reply, if there is one at once."""
        self.heard(now)
        if envelope.type in {"work_status", "work_result"}:  # CH-029, CH-038
            raise invalid(f"an orchestrator does not send {envelope.type}", "type")
        if envelope.type == "error":  # CH-050
            payload = messages.read_payload(envelope)
            assert isinstance(payload, ErrorPayload)
            self._errors += 1
            # As of an agent: the 1st, 10th, 100th … of them is on record.
            if self._errors == 10 ** (len(str(self._errors)) - 1):
                who, code = f"chiffon:{self.agent_id}", f"{payload.error_code}"
                self._exchange.feed([Noticed("chiffon.error", "chiffon", who, code)])
            return None
        if envelope.to_agent == ORCHESTRATOR:
            raise invalid("work goes to an agent", "to_agent")
        request = messages.read_payload(envelope)
        assert isinstance(request, WorkRequest)
        fingerprint = hashlib.sha256(canonical(bytes(envelope.payload))).hexdigest()
        running = self._running(envelope.request_id)
        if running is not None:
            if running.fingerprint != fingerprint:  # silent point 11
                raise invalid("was used before with another payload", "request_id")
            running.told_at = now.mono
            return self._envelope(running, self._status(running), now)  # silent point 10
        return self._start(envelope, request, fingerprint, principal, now)

    def is_working_on(self, request_id: str) -> bool:
        """Whether this request is a call without an outcome."""
        return self._running(request_id) is not None

    def on_end(self, request_id: str, told: Callable[[], None]) -> None:
        """Say so when it has its outcome."""
        work = self._running(request_id)
        if work is None:
            told()
        else:
            work.on_end.append(told)

    def _running(self, request_id: str) -> Work | None:
        wanted = request_id.lower()
        return next((work for work in self._works.values() if work.envelope.request_id.lower() == wanted), None)

    def _start(
        self, envelope: Envelope, request: WorkRequest, fingerprint: str, principal: Principal, now: Now
    ) -> Envelope | None:
        tools = self._exchange.tools()
        tool = tool_for(request.work_type, envelope, tools, self._settings.work)
        if tool is None:  # CH-062
            raise messages.unsupported(request.work_type, supported(tools, self._settings.work))
        ref = f"c{next(self._refs)}"
        self._works[ref] = Work(envelope, request, fingerprint, now.mono)
        duration_s = request.hints.max_duration_seconds
        self._receiving, self._at_once = ref, None
        self._exchange.feed(
            [
                CallRequested(
                    self.number,
                    ref,
                    principal,
                    tool.tool_id,
                    _input(request, tool),
                    key=envelope.request_id.lower(),
                    timeout_ms=None if duration_s is None else max(1, int(min(duration_s, MAX_DURATION_S) * 1000)),
                    correlation_id=envelope.trace_id,
                    context=envelope.x_custom_fields,
                    announce=True,
                )
            ]
        )
        self._receiving = ""
        return self._at_once

    # -- effects -------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """Something happened to a request."""
        ref: str = getattr(effect, "ref", "")
        work = self._works.get(ref)
        if work is None:
            return
        if isinstance(effect, Wait):
            work.is_paused = effect.status is Status.WAITING_APPROVAL
            self._tell(ref, work, self._status(work), now)
        elif isinstance(effect, Progress):
            for status in _shown(work, effect):
                self._tell(ref, work, status, now)
        elif isinstance(effect, Answer):
            del self._works[ref]
            self._answer(ref, work, effect, now)
            for told in work.on_end:
                told()

    def _answer(self, ref: str, work: Work, answer: Answer, now: Now) -> None:
        problem = answer.fault
        if answer.refused and problem is not None:
            known = supported(self._exchange.tools(), self._settings.work)
            error = translate.refusal(problem, work.request, known, self.agent_id, now.ms)
            if error is not None:
                self._tell(ref, work, error, now)
                return
        body = b"{}" if answer.output is None else bytes(answer.output)
        whole, custom = translate.work_result(answer, body, work.request.task_id)
        result, cut = translate.shortened(whole)
        if cut:
            self._tell_output(ref, work, whole.output, now)
        self._tell(ref, work, result, now, {**custom, **cut})

    def _tell_output(self, ref: str, work: Work, output: str, now: Now) -> None:
        """Silent point 19: an output that is too large for a result goes before it, in chunks."""
        work.step += 1
        for chunk in chunks.split(output):
            step = Step(work.step, "output", chunk.text, chunk.label)
            self._tell(ref, work, WorkStatus(work.request.task_id, "running", work.percent, step), now)

    def _status(self, work: Work) -> WorkStatus:
        step = Step(work.step or 1, "waiting for a person's approval") if work.is_paused else Step()
        return WorkStatus(work.request.task_id, "paused" if work.is_paused else "running", work.percent, step)

    def _tell(self, ref: str, work: Work, payload: Payload, now: Now, custom: dict[str, object] | None = None) -> None:
        work.told_at = now.mono
        envelope = self._envelope(work, payload, now, custom)
        is_last = not isinstance(payload, WorkStatus)
        if ref == self._receiving and is_last and self._at_once is None and not len(self.mailbox):
            self._at_once = envelope
        else:
            self.mailbox.put(envelope)

    def _envelope(self, work: Work, payload: Payload, now: Now, custom: dict[str, object] | None = None) -> Envelope:
        """Silent point 13: the ids of the request, and its custom fields (silent point 29)."""
        asked = work.envelope
        fields = asked.x_custom_fields
        if custom:
            given: dict[str, Any] = {} if fields is None else msgspec.json.decode(fields)
            fields = messages.raw({**given, **custom})
        return build(
            payload,
            sender=asked.to_agent,
            to=asked.from_agent,
            trace_id=asked.trace_id,
            request_id=asked.request_id,
            now_ms=now.ms,
            custom=fields,
        )

    # -- time ----------------------------------------------------------------------------------------------------------

    def due(self, now: Now) -> bool:
        """Say that work goes on; whether the conversation does."""
        for work in self._works.values():
            if now.mono - work.told_at >= STATUS_S:  # CH-030
                work.told_at = now.mono
                self.mailbox.put(self._envelope(work, self._status(work), now))
        if not self._works and now.mono - self.heard_at > FORGET_S:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Forget the conversation; its calls go on, and a repeat of a request finds them."""
        self._exchange.close_session(self.number)


def tool_for(work_type: str, envelope: Envelope, tools: Iterable[ToolView], mapped: dict[str, str]) -> ToolView | None:
    """The tool that serves a work type: as configured, else the one of the instance or of the type that is addressed,
    else the one tool of that name (decision 24, silent point 25).
    """
    by_id = {tool.tool_id: tool for tool in tools}
    if work_type in mapped:
        return by_id.get(mapped[work_type])
    pinned = _custom_text(envelope.x_custom_fields, "agent_id")
    if pinned is not None:
        return by_id.get(f"{pinned}/{work_type}")
    of_type = by_id.get(f"chiffon.{envelope.to_agent}/{work_type}")
    if of_type is not None:
        return of_type
    # Chiffon's own are addressed by their type, or pinned; they do not make a name ambiguous.
    others = (tool for tool in by_id.values() if "chiffon" not in tool.tags)
    named = [tool for tool in others if tool.tool_id.partition("/")[2] == work_type]
    return named[0] if len(named) == 1 else None


def supported(tools: Iterable[ToolView], mapped: dict[str, str]) -> tuple[str, ...]:
    """The work types that could be asked for."""
    names = {tool.tool_id.partition("/")[2] for tool in tools} | set(mapped)
    return tuple(sorted(names)[:MAX_SUPPORTED])


def _input(request: WorkRequest, tool: ToolView) -> Raw:
    """The parameters; hints travel on to agents that know them."""
    memory = request.hints.max_memory_mb
    if memory is None or "chiffon" not in tool.tags:
        return request.parameters
    given = msgspec.json.decode(request.parameters, type=dict[str, Raw])
    given.setdefault(translate.HINTS_KEY, messages.raw({"max_memory_mb": memory}))
    return messages.raw(given)


def _custom_text(custom: Raw | None, name: str) -> str | None:
    given: dict[str, object] = msgspec.json.decode(custom or EMPTY_OBJECT)
    found = given.get(name)
    return found if isinstance(found, str) else None


def _shown(work: Work, effect: Progress) -> list[WorkStatus]:
    """A piece of a call's stream as work_status; what is too large for one goes in chunks (CH-083)."""
    data: dict[str, Any] = msgspec.json.decode(effect.data)
    told = data.get("json")
    facts: dict[str, Any] = told if isinstance(told, dict) else data
    percent = facts.get("progress_percent", facts.get("percent"))
    if isinstance(percent, int | float) and 0 <= percent <= 100:
        work.percent = int(percent)
    step = facts.get("step")
    number, name = (step.get("number"), step.get("name")) if isinstance(step, dict) else (None, None)
    if isinstance(number, int):
        work.step = number
    work.step = work.step or 1
    text = data.get("text")
    output = text if isinstance(text, str) else None
    if told is not None and effect.channel == "partial_result":
        output = msgspec.json.encode(told).decode()
    status = "paused" if facts.get("status") == "paused" else "running"
    if facts.get("status") == "step_completed":
        status = "step_completed"
    work.is_paused = status == "paused"
    shown_name = name if isinstance(name, str) else effect.channel
    if output is not None and len(output.encode()) > messages.MAX_OUTPUT_BYTES:
        pieces = [Step(work.step, shown_name, chunk.text, chunk.label) for chunk in chunks.split(output)]
    else:
        pieces = [Step(work.step, shown_name, output)]
    return [
        WorkStatus(work.request.task_id, status, work.percent, piece)  # type: ignore[arg-type]  # one of the three
        for piece in pieces
    ]
