"""What a Chiffon agent does with a message: start its work, say that it runs, repeat how it ended, or refuse it. No IO.

The rules of an agent in one place: the order of checks, versions (CH-096), the cache of requests (CH-078 to CH-080),
limits (CH-061), and the form of what it sends, chunks included. Does not own transports or the author's functions.

Invariant: a request is in the cache before its job is handed out, so that a repeat is recognised, also after a crash.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import exact
from trunkline.edges.chiffon import chunks, messages, translate
from trunkline.edges.chiffon.messages import (
    INVALID,
    ORCHESTRATOR,
    UNAUTHORIZED,
    UNSUPPORTED,
    VERSION,
    Envelope,
    ErrorPayload,
    Fields,
    Payload,
    Refused,
    Resources,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from trunkline.sdk.chiffon_cache import RequestCache

# Silent point 11: what is worth remembering; the others are tried again.
CACHED_ERRORS: Final = (INVALID, UNAUTHORIZED, UNSUPPORTED)
INTERRUPTED: Final = "the agent was restarted while this ran; whether it took effect is not known"
# 128 + SIGKILL: what a shell says of a process that was ended from outside.
EXIT_INTERRUPTED: Final = 137


class JobOutcome(Struct, frozen=True):
    """How a job ended, with its whole output. ``custom`` are fields that go beside the result."""

    result: WorkResult
    custom: dict[str, object] = {}


class AcceptedJob(Struct):
    """A request for work that this agent took on, and how far it is."""

    envelope: Envelope
    request: WorkRequest
    percent: int = 0
    step: int = 0
    step_name: str = ""
    is_paused: bool = False


class AcceptedJobs:
    """The jobs of one agent, and the rules by which it takes them on and reports them.

    ``receive`` gives what is to be sent at once, and the job if there is a new one.
    """

    def __init__(
        self,
        agent_type: str,
        work_types: dict[str, bool],
        cache: RequestCache,
        *,
        memory_mb: int | None = None,
        orchestrator_token: str | None = None,
    ) -> None:
        self.agent_type = agent_type
        # Each with whether it may be run again after an interruption.
        self._work_types = work_types
        self._cache = cache
        self._memory_mb = memory_mb
        # What the orchestrator shows on transports where it comes to us (silent point 6).
        self.orchestrator_token = orchestrator_token
        self.running: dict[str, AcceptedJob] = {}

    def receive(
        self, data: bytes, now: float, *, with_token: bool = False
    ) -> tuple[list[Envelope], AcceptedJob | None]:
        """Judge one message. Nothing raises: a refusal is a message too."""
        fields: Fields | None = None
        try:
            fields = messages.read_object(data)
            if with_token:
                self._check_token(fields)
            envelope = messages.read_envelope(fields)
            if envelope.type == "error":
                messages.read_payload(envelope)
                return [], None
            return self._work_request(envelope, now)
        except Refused as refused:
            return [self._error(refused.error, fields, now)], None

    def _error(self, error: ErrorPayload, fields: Fields | None, now: float) -> Envelope:
        return messages.error_reply(error, ORCHESTRATOR, fields, int(now * 1000), _new_id, sender=self.agent_type)

    def _check_token(self, fields: Fields) -> None:
        raw = fields.pop("auth_token", None)
        if raw is None:
            raise messages.unauthorized(None, "missing")
        shown = bytes(raw).strip(b'"')
        if self.orchestrator_token is None or not hmac.compare_digest(shown, self.orchestrator_token.encode()):
            raise messages.unauthorized(None, "invalid")

    def _work_request(self, envelope: Envelope, now: float) -> tuple[list[Envelope], AcceptedJob | None]:
        names = tuple(sorted(self._work_types))
        if envelope.protocol_version != VERSION:  # CH-096
            work_type = messages.read_object(bytes(envelope.payload)).get("work_type")
            requested = envelope.type if work_type is None else bytes(work_type).decode().strip('"')
            raise messages.unsupported(requested, names, envelope.protocol_version)
        if envelope.type != "work_request" or envelope.from_agent != ORCHESTRATOR:
            raise messages.invalid("an agent takes work_request from the orchestrator", "type")
        if envelope.to_agent != self.agent_type:
            raise messages.invalid(f"this agent is of the type {self.agent_type}", "to_agent")
        request = messages.read_payload(envelope)
        assert isinstance(request, WorkRequest)
        sender, request_id = envelope.from_agent, envelope.request_id.lower()
        fingerprint = hashlib.sha256(exact(bytes(envelope.payload))).hexdigest()
        job = self.running.get(request_id)
        seen = self._cache.get(sender, request_id, now)  # CH-078
        if seen is not None and seen.fingerprint != fingerprint:  # silent point 11
            raise messages.invalid("was used before with another payload", "request_id")
        if job is not None:  # silent point 10
            return [self.status(job, now)], None
        job = AcceptedJob(envelope, request)
        if seen is not None and seen.final is not None:  # CH-080
            return self._repeated(job, seen.final, now), None
        if request.work_type not in self._work_types:  # CH-062
            error = messages.unsupported(request.work_type, names).error
            self._cache.start(sender, request_id, fingerprint, now)
            self._cache.finish(sender, request_id, error)
            return [self._envelope(job, error, now)], None
        needed = request.hints.max_memory_mb
        if needed is not None and self._memory_mb is not None and needed > self._memory_mb:  # CH-061
            error = messages.over_limit("memory_mb", self._memory_mb, int(needed)).error
            return [self._envelope(job, error, now)], None
        if seen is not None and not self._work_types[request.work_type]:
            return self.finished(job, _interrupted(request), now), None
        self._cache.start(sender, request_id, fingerprint, now)
        self.running[request_id] = job
        return [self.status(job, now)], job  # silent point 7

    def _repeated(self, job: AcceptedJob, stored: bytes, now: float) -> list[Envelope]:
        if b'"error_code"' in stored[:20]:
            return [self._envelope(job, msgspec.json.decode(stored, type=ErrorPayload), now)]
        return self._final(job, msgspec.json.decode(stored, type=JobOutcome), now)

    # -- what an agent sends -------------------------------------------------------------------------------------------

    def status(self, job: AcceptedJob, now: float) -> Envelope:
        """The message that a job goes on, and how far it is."""
        name = job.step_name or job.request.work_type[: messages.MAX_STEP_NAME_CHARS]  # silent point 20
        step = Step(job.step or 1, name)
        state = "paused" if job.is_paused else "running"
        return self._envelope(job, WorkStatus(job.request.task_id, state, job.percent, step), now)  # type: ignore[arg-type]

    def step_completed(self, job: AcceptedJob, output: str, now: float) -> list[Envelope]:
        """A step is done, with its whole output; a large one in chunks (CH-083)."""
        return [
            self._envelope(job, WorkStatus(job.request.task_id, "step_completed", job.percent, step), now)
            for step in _steps(job.step, job.step_name, output)
        ]

    def finished(self, job: AcceptedJob, final: JobOutcome, now: float) -> list[Envelope]:
        """Remember how it ended, then say so: the same words for every repeat."""
        request_id = job.envelope.request_id.lower()
        self._cache.finish(job.envelope.from_agent, request_id, final)
        self.running.pop(request_id, None)
        return self._final(job, final, now)

    def gave_up(self, job: AcceptedJob, error: ErrorPayload, now: float) -> list[Envelope]:
        """It cannot be done now (contradiction 14); what is tried again is not remembered."""
        sender, request_id = job.envelope.from_agent, job.envelope.request_id.lower()
        self.running.pop(request_id, None)
        if error.error_code in CACHED_ERRORS:
            self._cache.finish(sender, request_id, error)
        else:
            self._cache.forget(sender, request_id)
        return [self._envelope(job, error, now)]

    def _final(self, job: AcceptedJob, final: JobOutcome, now: float) -> list[Envelope]:
        result, cut = translate.shortened(final.result)
        found: list[Envelope] = []
        if cut:  # silent point 19
            number = job.step + 1
            found = [
                self._envelope(job, WorkStatus(result.task_id, "running", 100, step), now)
                for step in _steps(number, "output", final.result.output)
            ]
        found.append(self._envelope(job, result, now, {**final.custom, **cut}))
        return found

    def _envelope(
        self, job: AcceptedJob, payload: Payload, now: float, custom: dict[str, object] | None = None
    ) -> Envelope:
        """Silent point 13: the ids of the request; its custom fields unchanged (silent point 29)."""
        asked = job.envelope
        fields: Raw | None = asked.x_custom_fields
        if custom:
            given: dict[str, object] = {} if fields is None else msgspec.json.decode(fields)
            fields = messages.raw({**given, **custom})
        return messages.build(
            payload,
            sender=self.agent_type,
            to=asked.from_agent,
            trace_id=asked.trace_id,
            request_id=asked.request_id,
            now_ms=int(now * 1000),
            custom=fields,
            message_id=_new_id(),
        )


def _new_id() -> str:
    return str(uuid.uuid4())


def _steps(number: int, name: str, output: str) -> list[Step]:
    if len(output.encode()) <= messages.MAX_OUTPUT_BYTES:
        return [Step(number, name, output)]
    return [Step(number, name, chunk.text, chunk.label) for chunk in chunks.split(output)]


def _interrupted(request: WorkRequest) -> JobOutcome:
    result = WorkResult(request.task_id, "failed", EXIT_INTERRUPTED, INTERRUPTED, Resources())
    return JobOutcome(result, {"outcome": "unknown"})


def exit_code(code: int) -> int:
    """Silent point 21: a signal's number, given as a negative code, as shells write it."""
    return 128 - code if code < 0 else code
