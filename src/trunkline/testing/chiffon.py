"""Scripted peers that speak Chiffon by its HTTP door: workers that do what they are sent, and orchestrators that ask.

A ``Worker`` registers, fetches, and answers work in time, late, twice, in pieces, with an error or never; it is silent,
dies and comes back, and remembers what it has done, as the protocol wants it. An ``Orchestrator`` gives work and
repeats a request until it has its end. Both register again, or get another token, when they are told that they have to.

Invariant: what a worker does is done once for each request_id, however often it is sent.
"""

from __future__ import annotations

import abc
import enum
import uuid
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.chiffon import chunks, messages, translate
from trunkline.edges.chiffon.messages import ORCHESTRATOR, Envelope, ErrorPayload, Step, WorkRequest, WorkResult
from trunkline.testing.clock import ManualLoop, ProcessLoop
from trunkline.testing.web import Web, WebAnswer, WebRequest
from trunkline.testing.witness import Witness, Work

# How long a peer waits before it tries again.
AGAIN_S: Final = (0.05, 2.0)
# How long it lets the exchange wait for something to say: a whole number of seconds, and below its limit of 25.
POLLS_S: Final = (0, 5, 20, 20, 20)
# An orchestrator that was told nothing for so long, while it should hear every 10 s, asks again.
IMPATIENT_S: Final = 25.0
# After so many refusals of the kind "later" an orchestrator gives a request up.
MAX_TRIES: Final = 4
LATER: Final = frozenset({messages.TIMEOUT, messages.UNAVAILABLE, messages.LIMIT})


class Deed(enum.Enum):
    """What a worker does with a piece of work."""

    SUCCEED = "has done it"
    FAIL = "could not do it"
    ERROR = "says that it cannot"
    TWO_RESULTS = "says twice that it has done it"
    IN_PIECES = "shows its output in pieces"
    NEVER = "never says anything of it"
    SILENT = "does it and falls silent"
    DIE = "dies of it"


class Plan(Struct, frozen=True):
    """How a worker treats one piece of work."""

    deed: Deed
    after_s: float
    output: str = ""
    error: ErrorPayload | None = None


Planner = Callable[["Worker", WorkRequest], Plan]


class ChiffonPeer(abc.ABC):
    """What workers and orchestrators have in common: a token, a process, requests, a poll that never ends."""

    def __init__(
        self,
        agent_id: str,
        kind: str,
        *,
        loop: ManualLoop,
        web: Web,
        rng: Random,
        witness: Witness,
        needs_token: Callable[[ChiffonPeer], None],
        died: Callable[[ChiffonPeer], None],
    ) -> None:
        self.agent_id = agent_id
        self.kind = kind
        self.token = ""
        self._loop = loop
        self._web = web
        self._rng = rng
        self._witness = witness
        self._needs_token = needs_token
        self._died = died
        self._process = ProcessLoop(loop)
        self._is_alive = False
        self._is_revoked = False
        self._loses_next = False
        self._poll_request: WebRequest | None = None
        # Until when it neither asks nor answers.
        self._silent_until = 0.0

    # -- its process ---------------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether a process of it runs."""
        return self._is_alive

    def start(self) -> None:
        """A process of it starts, if it has a token."""
        if self.token and not self._is_alive:
            self._is_alive = True
            self._process = ProcessLoop(self._loop)
            self._process.call_later(self._rng.uniform(*AGAIN_S), self.begin)

    @abc.abstractmethod
    def begin(self) -> None:
        """The first thing that it does."""

    def kill(self) -> None:
        """Its process dies."""
        if self._is_alive:
            self._witness.note(self.agent_id, "dies")
            self._is_alive = False
            self._process.kill()
            self.cut()

    def cut(self) -> None:
        """Its poll is cut off: what was on its way to it is lost."""
        if self._poll_request is not None:
            request, self._poll_request = self._poll_request, None
            self._web.give_up(request)

    def lose_next(self) -> None:
        """The next messages for it are lost, after the exchange has handed them out."""
        self._loses_next = True

    def fall_silent(self, seconds: float) -> None:
        """It stands still."""
        self._witness.note(self.agent_id, f"is silent for {seconds:.1f} s")
        self._silent_until = max(self._silent_until, self._loop.time() + seconds)

    def wake_up(self) -> None:
        """It goes on, and nothing for it is lost any more."""
        self._silent_until = 0.0
        self._loses_next = False

    def _when_awake(self, callback: Callable[..., None], *args: object) -> bool:
        """Whether it is awake; if not, it does this when it is."""
        if self._silent_until <= self._loop.time():
            return True
        self._process.call_at(self._silent_until, callback, *args)
        return False

    def _again(self, callback: Callable[..., None], *args: object) -> None:
        self._process.call_later(self._rng.uniform(*AGAIN_S), callback, *args)

    # -- its requests --------------------------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, then: Callable[[WebAnswer | None], None], body: bytes = b""
    ) -> WebRequest | None:
        process = self._process

        def heard(answer: WebAnswer | None) -> None:
            # In its own process, or in none.
            process.call_soon(then, answer)

        return self._web.ask(method, f"/api/agent/{path}", heard, body=body, token=self.token)

    def _unknown(self) -> None:
        """Its token is not good any more: it ends, and is started with another one."""
        self._witness.note(self.agent_id, "is told that its token is not valid")
        if not self._is_revoked:
            self._witness.defect(f"the token of {self.agent_id} was not taken, and it is good")
        self.kill()
        self.token, self._is_revoked = "", False
        self._needs_token(self)

    def token_is_revoked(self) -> None:
        """The operator has another one for it as soon as it asks."""
        self._is_revoked = True

    def poll(self) -> None:
        """Fetch what there is, for ever."""
        if self._when_awake(self.poll):
            self._poll_request = self._ask("GET", f"messages?wait={self._rng.choice(POLLS_S)}", self._fetched)

    def _fetched(self, answer: WebAnswer | None) -> None:
        self._poll_request = None
        if answer is None:
            self._again(self.poll)
        elif answer.status == 401:
            self._unknown()
        elif answer.status != 200:
            self._again(self.begin)
        elif self._loses_next:
            self._loses_next = False
            self._again(self.poll)
        else:
            found: dict[str, list[Raw]] = msgspec.json.decode(answer.body, type=dict[str, list[Raw]])
            for data in found["messages"]:
                self.take(messages.read_envelope(messages.read_object(bytes(data))), answer.order)
            self._again(self.poll)

    @abc.abstractmethod
    def take(self, envelope: Envelope, order: int) -> None:
        """A message for it, and when it left the exchange."""

    def _send(self, envelope: Envelope, then: Callable[[WebAnswer | None], None]) -> None:
        self._ask("POST", "message", then, messages.encode(envelope))

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=self._rng.randbytes(16), version=4))


class Worker(ChiffonPeer):
    """An agent that does work. What it did outlives its process."""

    def __init__(self, agent_id: str, kind: str, work_types: tuple[str, ...], planner: Planner, **terms: Any) -> None:
        super().__init__(agent_id, kind, **terms)
        self.work_types = work_types
        self._planner = planner
        # Results by request_id: of work that was done, whether or not anybody was told.
        self._done: dict[str, WorkResult] = {}
        # Work that its process is busy with.
        self._busy: set[str] = set()

    def begin(self) -> None:
        """Register."""
        if self._when_awake(self.begin):
            body = {
                "agent_id": self.agent_id,
                "agent_type": self.kind,
                "supported_versions": ["1.0"],
                "work_types": self.work_types,
                "capacity": {"memory_mb": 1000},
            }
            self._ask("POST", "register", self._registered, msgspec.json.encode(body))

    def _registered(self, answer: WebAnswer | None) -> None:
        if answer is None or answer.status >= 500:
            self._again(self.begin)
        elif answer.status == 401:
            self._unknown()
        elif answer.status == 200:
            self._witness.note(self.agent_id, "is registered")
            self.poll()
        else:
            self._witness.defect(f"{self.agent_id} was refused with {answer.status}: {answer.body[:200]!r}")

    def kill(self) -> None:
        """Its process dies."""
        super().kill()
        self._busy.clear()

    # -- work ----------------------------------------------------------------------------------------------------------

    def take(self, envelope: Envelope, order: int) -> None:
        """A piece of work."""
        request = messages.read_payload(envelope)
        if not isinstance(request, WorkRequest):
            self._witness.note(self.agent_id, f"is told {envelope.type}: {bytes(envelope.payload)[:200]!r}")
            return
        call_id = envelope.request_id
        self._witness.given_work(self.agent_id, call_id, order)
        if call_id in self._busy:
            self._say(envelope, messages.WorkStatus(request.task_id, "running", 10))
            return
        known = self._done.get(call_id)
        if known is not None:
            self._say(envelope, known)
            return
        plan = self._planner(self, request)
        self._busy.add(call_id)
        if plan.deed not in {Deed.ERROR, Deed.NEVER}:
            self._do(envelope, request, plan)
        self._process.call_later(plan.after_s, self._carry_on, envelope, request, plan)

    def _do(self, envelope: Envelope, request: WorkRequest, plan: Plan) -> None:
        """The effect takes place, and is remembered."""
        call_id = envelope.request_id
        tool = translate.tool_definition(self.agent_id, request.work_type, self.kind)
        self._witness.executed(self.agent_id, call_id, tool, "", None, bytes(request.parameters))
        failed = plan.deed is Deed.FAIL
        self._done[call_id] = WorkResult(request.task_id, "failed" if failed else "success", int(failed), plan.output)

    def _carry_on(self, envelope: Envelope, request: WorkRequest, plan: Plan) -> None:
        call_id = envelope.request_id
        if not self._when_awake(self._carry_on, envelope, request, plan):
            return
        self._witness.note(self.agent_id, plan.deed.value, call_id)
        self._busy.discard(call_id)
        match plan.deed:
            case Deed.SUCCEED | Deed.FAIL:
                self._say(envelope, self._done[call_id])
            case Deed.TWO_RESULTS:
                self._say(envelope, self._done[call_id])
                self._say(envelope, msgspec.structs.replace(self._done[call_id], output="something else"))
            case Deed.IN_PIECES:
                self._show_in_pieces(envelope, request, self._done[call_id])
            case Deed.ERROR:
                assert plan.error is not None
                self._say(envelope, plan.error)
            case Deed.SILENT:
                self.fall_silent(self._rng.uniform(1.0, 60.0))
                self._process.call_at(self._silent_until, self._say, envelope, self._done[call_id])
            case Deed.DIE:
                self._died(self)
            case Deed.NEVER:
                pass

    def _show_in_pieces(self, envelope: Envelope, request: WorkRequest, result: WorkResult) -> None:
        """Its output in two chunks, the second first, one of them twice; then the result."""
        data = result.output.encode()
        middle = len(data) // 2
        pieces = [
            chunks.Chunk(middle, len(data), len(data), data[middle:].decode()),
            chunks.Chunk(0, middle, len(data), data[:middle].decode()),
            chunks.Chunk(0, middle, len(data), data[:middle].decode()),
        ]
        for piece in pieces:
            step = Step(1, "output", piece.text, piece.label)
            self._say(envelope, messages.WorkStatus(request.task_id, "running", 50, step))
        self._process.call_later(self._rng.uniform(0.01, 1.0), self._say, envelope, result)

    def _say(self, about: Envelope, payload: messages.Payload) -> None:
        if not self._when_awake(self._say, about, payload):
            return
        said = messages.build(
            payload,
            sender=self.kind,
            to=ORCHESTRATOR,
            trace_id=about.trace_id,
            request_id=about.request_id,
            now_ms=self._loop.clock.now().ms,
            message_id=self._new_id(),
        )

        def heard(answer: WebAnswer | None) -> None:
            if answer is not None and answer.status == 202 and isinstance(payload, WorkResult):
                self._witness.gave_result(self.agent_id, about.request_id, answer.order)
            elif answer is not None and answer.status == 401 and self._is_alive:
                self._unknown()

        self._send(said, heard)


class Orchestrator(ChiffonPeer):
    """One that gives work."""

    def __init__(self, agent_id: str, **terms: Any) -> None:
        super().__init__(agent_id, ORCHESTRATOR, **terms)
        self.works: dict[str, Work] = {}
        # When it heard last of each piece of work that is not done.
        self._heard_at: dict[str, float] = {}

    def begin(self) -> None:
        """Look after what was asked for, and fetch."""
        for work in self.works.values():
            if work.is_waiting:
                self._look_after(work)
        self.poll()

    def give(self, to: str, work_type: str, parameters: bytes, pinned: str = "") -> Work:
        """Ask for a piece of work."""
        custom = Raw(msgspec.json.encode({"agent_id": pinned})) if pinned else None
        request = WorkRequest(self._new_id(), work_type, Raw(parameters))
        work = Work(self._new_id(), f"chiffon:{self.agent_id}", request, to, custom)
        self.works[work.request_id] = self._witness.work_asked(work)
        self.repeat(work)
        self._look_after(work)
        return work

    def repeat(self, work: Work) -> None:
        """Send a request, for the first time or again."""
        if not self._is_alive or not self._when_awake(self.repeat, work):
            return
        work.asked += 1
        self._heard_at[work.request_id] = self._loop.time()
        said = messages.build(
            work.request,
            sender=ORCHESTRATOR,
            to=work.to,
            trace_id=work.request.task_id,
            request_id=work.request_id,
            now_ms=self._loop.clock.now().ms,
            message_id=self._new_id(),
            custom=work.custom,
        )
        self._send(said, self._answered)

    def _answered(self, answer: WebAnswer | None) -> None:
        if answer is not None and answer.status == 401:
            self._unknown()
        elif answer is not None and answer.status != 202:
            self.take(messages.read_envelope(messages.read_object(answer.body)), answer.order)

    def _look_after(self, work: Work) -> None:
        """Ask again while nothing is heard of it."""
        if not work.is_waiting:
            return
        if self._loop.time() >= self._heard_at.get(work.request_id, 0.0) + IMPATIENT_S:
            self.repeat(work)
        self._process.call_later(self._rng.uniform(5.0, IMPATIENT_S), self._look_after, work)

    def take(self, envelope: Envelope, order: int) -> None:
        """News of a piece of work."""
        del order
        work = self.works.get(envelope.request_id)
        if work is None:
            self._witness.defect(f"{self.agent_id} was told of {envelope.request_id}, which it did not ask for")
            return
        self._heard_at[work.request_id] = self._loop.time()
        payload = messages.read_payload(envelope)
        if isinstance(payload, WorkResult):
            self._witness.work_ended(work, payload, is_refusal=payload.exit_code == translate.EXIT_REFUSED)
        elif isinstance(payload, ErrorPayload):
            work.refusals += 1
            is_last = payload.error_code not in LATER or work.refusals >= MAX_TRIES
            self._witness.work_refused(work, payload.error_code, is_last=is_last)
            if not is_last:
                self._again(self.repeat, work)
