"""Scripted agents: programs that speak OpenSentience over a fake network, well or badly.

A ``ScriptedAgent`` is one agent across all its processes. Most of what it says comes from the real ``AgentSession``;
what no honest session would say (a second result, a result of another day, a frame of garbage) is written beside it.
What it does with a call is a ``Job``, chosen by the script it is given. As a caller it asks, repeats and cancels.

Invariant: the witness hears of each call that an agent is given, and of each time a tool really runs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.framing.length_prefix import frame
from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.agent_events import (
    AgentEvent,
    Answered,
    Called,
    CancelAsked,
    DirectiveAnswered,
    Progressed,
    Welcomed,
)
from trunkline.edges.opensentience.agent_session import AgentSession, HealthWord, Offer, State
from trunkline.model import Fault, Status, ToolDefinition, fault
from trunkline.testing.clock import ManualLoop, ProcessLoop, Timer
from trunkline.testing.network import Network, Wire
from trunkline.testing.witness import Request, Witness

# How long a program waits before it connects again.
RECONNECT_S: Final = (0.05, 2.0)
# Frames that no session may take: not JSON, not an object, not an envelope, cut short, absurdly long.
GARBAGE: Final = (
    frame(b"hello"),
    frame(b"[]"),
    frame(b'{"v":1}'),
    frame(b'{"v":2,"type":"agent.pong","id":"x","ts":"2027-01-15T08:00:00Z","payload":{}}'),
    b"\xff\xff\xff\xff",
    frame(b"\x80\x81"),
)


# What a call that was taken on can end with, and a refusal cannot.
OF_CALLS_THAT_RAN: Final = frozenset({"tool.failed", "tool.timeout", "tool.invalid_output", "tool.output_too_large"})


FORGED: Final = b'{"forged":true}'


class Deed(enum.Enum):
    """What a scripted agent does with a call once its time has come: answer, or one of the ways to misbehave."""

    ANSWER = "answers"
    FAIL = "says that it failed"
    BAD_RESULT = "sends a result that cannot be read"
    TWO_RESULTS = "sends two results"
    GARBAGE = "sends garbage"
    CRASH = "dies"
    HANG = "hangs"
    NEVER = "never answers"
    CHAIN = "calls another tool first"
    FORGE = "sends a result of somebody else's call"


class Job(Struct, frozen=True):
    """How a scripted agent treats one call: what it does, after how long, and what it shows on the way."""

    deed: Deed
    after_s: float
    output: bytes = b"{}"
    chunks: tuple[str, ...] = ()
    obeys_cancel: bool = True
    # For CHAIN: the tool to call and whether to say for which call.
    other: str = ""
    names_cause: bool = True


class _Work(Struct):
    """A call that an agent is busy with."""

    called: Called
    job: Job
    session: AgentSession
    timer: Timer | None = None


Script = Callable[["ScriptedAgent", Called], Job]


class ScriptedAgent:
    """One agent of a simulation: its processes come and go, what it promised to remember stays."""

    def __init__(
        self,
        agent_id: str,
        tools: list[ToolDefinition],
        script: Script,
        *,
        loop: ManualLoop,
        network: Network,
        rng: Random,
        witness: Witness,
        died: Callable[[ScriptedAgent], None],
        can_cancel: bool = True,
    ) -> None:
        self.agent_id = agent_id
        self.tools = {tool.tool_id: tool for tool in tools}
        self.pid = 0
        self.requests: list[Request] = []
        self._script = script
        self._loop = loop
        self._network = network
        self._rng = rng
        self._witness = witness
        self._died = died
        self._can_cancel = can_cancel
        self.token = ""
        self._session: AgentSession | None = None
        self._wire: Wire | None = None
        self._unread: list[bytes] | None = None
        self._lost_meanwhile = False
        self._process = ProcessLoop(loop)
        self._wake: Timer | None = None
        self._work: dict[str, _Work] = {}
        self._by_ref: dict[str, Request] = {}
        self._chained: dict[str, str] = {}
        # Results by call, for tools that promised to recognise a call they have seen: this outlives a process.
        self._done: dict[str, bytes] = {}

    # -- its process ---------------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether a process of it runs."""
        return self.pid != 0

    @property
    def is_ready(self) -> bool:
        """Whether it could make a call now."""
        return self._session is not None and self._session.state is State.READY and self._unread is None

    def start(self, pid: int, token: str) -> None:
        """A process of it starts."""
        self.pid = pid
        self.token = token
        self._process = ProcessLoop(self._loop)
        self._process.call_later(self._rng.uniform(0.0, 0.2), self._connect)

    def kill(self) -> None:
        """Its process dies. What it had written may still arrive."""
        if not self.is_alive:
            return
        self._witness.note(self.agent_id, "dies")
        self.pid = 0
        self._process.kill()
        self._work.clear()
        self._unread = None
        self._lost_meanwhile = False
        if self._wire is not None:
            self._wire.close(abruptly=self._rng.random() < 0.5)
        self._forget_connection()
        self._died(self)

    def hang(self, seconds: float) -> None:
        """Its process stands still: it neither reads nor writes nor says how it is."""
        if self.is_alive and self._unread is None:
            self._witness.note(self.agent_id, f"hangs for {seconds:.1f} s")
            self._unread = []
            self._process.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        unread, self._unread = self._unread or [], None
        for data in unread:
            self.received(data)
        if self._lost_meanwhile:
            self.lost()
        self._set_alarm()

    # -- its connection ------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.is_alive or self._session is not None:
            return
        self._wire = self._network.connect(self, self.pid)
        if self._wire is None:
            self._process.call_later(self._rng.uniform(*RECONNECT_S), self._connect)
            return
        offers = [Offer(tool, _arguments) for tool in self.tools.values()]
        seed = self._rng.randbytes(messages.ID_SEED_BYTES)
        self._session = AgentSession(self.agent_id, "1.0.0", self.token, offers, self._loop.clock.now(), seed)
        if not self._can_cancel:
            self._session.take_output()
            protocol = messages.HelloProtocol((messages.VERSION,), ("tools", "streaming", "calls", "directives"))
            self._say_raw("agent.hello", messages.Hello(self.agent_id, "1.0.0", protocol, self.token))
        self._flush()

    def cut(self, *, up: bool, down: bool, notice_after_s: float) -> None:
        """Its connection breaks without a word; after a while its own end notices."""
        if self._wire is not None:
            self._witness.note(self.agent_id, "is cut off without a word")
            self._wire.vanish(up=up, down=down)
            self._process.call_later(notice_after_s, self._give_up, self._wire)

    def _give_up(self, wire: Wire) -> None:
        if wire is self._wire:
            wire.close()
            self.lost()

    def reset(self) -> None:
        """Its connection is reset."""
        if self._wire is not None:
            self._witness.note(self.agent_id, "loses its connection")
            self._wire.reset()

    def received(self, data: bytes) -> None:
        """Bytes from the exchange."""
        if self._unread is not None:
            self._unread.append(data)
        elif self._session is not None:
            session = self._session
            for event in session.receive(data, self._loop.clock.now()):
                self._happened(session, event)
            if session is self._session:
                self._flush()
                if session.is_closed():
                    self._hang_up()

    def lost(self) -> None:
        """The connection is gone. What is being worked on goes on; its result may go nowhere."""
        if self._unread is not None:
            self._lost_meanwhile = True
            return
        self._lost_meanwhile = False
        if self._session is not None:
            self._session.receive(b"", self._loop.clock.now())
            self._forget_connection()
            if self.is_alive:
                self._process.call_later(self._rng.uniform(*RECONNECT_S), self._connect)

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self.lost()

    def _forget_connection(self) -> None:
        self._session = self._wire = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        for request in self._by_ref.values():
            request.is_waiting = False
        self._by_ref.clear()
        self._chained.clear()

    def _flush(self) -> None:
        if self._session is not None and self._wire is not None:
            output = self._session.take_output()
            if output:
                self._wire.send(output)
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        at = self._session.wake_at() if self._session is not None else None
        if at is not None:
            self._wake = self._process.call_at(at, self._woke)

    def _woke(self) -> None:
        self._wake = None
        session = self._session
        if session is not None and self._unread is None:
            for event in session.wake(self._loop.clock.now()):
                self._happened(session, event)
            self._flush()
            if session.is_closed():
                self._hang_up()

    def _say_raw(self, type_: str, payload: Struct, call_id: str | None = None) -> None:
        """Say something beside what the session says."""
        if self._wire is not None:
            writer = messages.Writer(self._rng.randbytes(messages.ID_SEED_BYTES))
            self._wire.send(frame(writer.write(self._loop.clock.now(), type_, payload, None, call_id, call_id)))

    # -- what it hears -------------------------------------------------------------------------------------------------

    def _happened(self, session: AgentSession, event: AgentEvent) -> None:
        match event:
            case Called():
                self._take(session, event)
            case CancelAsked():
                self._stop(session, event)
            case Answered():
                self._hear(event)
            case Progressed():
                self._hear_progress(event)
            case DirectiveAnswered() if event.directive_id is not None:
                self._witness.confirm(self.agent_id, "stated", event.directive_id)
            case Welcomed():
                self._witness.welcomed(self.agent_id)
            case _:
                self._witness.note(self.agent_id, f"hears {type(event).__name__} {getattr(event, 'code', '')}".rstrip())

    def _hear(self, answer: Answered) -> None:
        request = self._by_ref.pop(answer.ref, None)
        if request is None:
            return
        code = answer.fault.code if answer.fault is not None else ""
        output = None if answer.output is None else bytes(answer.output)
        # This wire says in the same words that a call failed and that it was not taken on.
        doubtful = answer.status is Status.FAILED and code not in OF_CALLS_THAT_RAN
        self._witness.answered(
            request, answer.exchange_call_id or "", answer.status, code, output, refused=None if doubtful else False
        )
        cause = self._chained.pop(answer.ref, None)
        work = self._work.get(cause or "")
        if work is not None:
            self._finish(work, Status.SUCCEEDED, output=b'{"inner":"%s"}' % answer.status.value.encode())

    def _hear_progress(self, progress: Progressed) -> None:
        request = self._by_ref.get(progress.ref)
        approval_id = msgspec.json.decode(progress.data).get("approval_id") if progress.channel == "status" else None
        if request is not None and approval_id is not None:
            self._witness.waits_for(request, request.call_id, approval_id)

    # -- what it is given ----------------------------------------------------------------------------------------------

    def _take(self, session: AgentSession, called: Called) -> None:
        call_id = called.call_id
        tool = self.tools[called.tool_id]
        self._witness.delivered(self.agent_id, call_id)
        remembers = "idempotency" in tool.capabilities
        if remembers and call_id in self._done:
            session.finish(call_id, Status.SUCCEEDED, self._loop.clock.now(), output=self._done[call_id])
            return
        job = self._script(self, called)
        caller = called.caller.id if called.caller is not None else ""
        self._witness.executed(self.agent_id, call_id, tool, caller, called.key, bytes(called.input))
        if remembers:
            self._done[call_id] = job.output
        work = self._work[call_id] = _Work(called, job, session)
        for number, text in enumerate(job.chunks, start=1):
            delay = job.after_s * number / (len(job.chunks) + 1)
            self._process.call_later(delay, self._show, work, text)
        work.timer = self._process.call_later(job.after_s, self._do, work)

    def _show(self, work: _Work, text: str) -> None:
        if work.session is self._session and work.session.is_open(work.called.call_id) and self._unread is None:
            data = msgspec.json.encode({"text": text})
            work.session.stream(work.called.call_id, "stdout", data, self._loop.clock.now())
            self._flush()

    def _do(self, work: _Work) -> None:
        call_id, job = work.called.call_id, work.job
        if self._unread is not None:
            work.timer = self._process.call_later(1.0, self._do, work)
            return
        self._witness.note(self.agent_id, job.deed.value, call_id)
        match job.deed:
            case Deed.ANSWER:
                self._finish(work, Status.SUCCEEDED, output=job.output)
            case Deed.FAIL:
                self._finish(work, Status.FAILED, error=fault("tool.failed", "on purpose"))
            case Deed.TWO_RESULTS:
                self._finish(work, Status.SUCCEEDED, output=job.output)
                self._say_result(call_id, b'{"second":true}')
            case Deed.BAD_RESULT:
                self._say_result(call_id, b"[1]")
                self._work.pop(call_id, None)
            case Deed.GARBAGE:
                if self._wire is not None:
                    self._wire.send(self._rng.choice(GARBAGE))
            case Deed.CRASH:
                self.kill()
            case Deed.HANG:
                self.hang(self._rng.uniform(1.0, 90.0))
            case Deed.CHAIN:
                self._chain(work)
            case Deed.FORGE:
                overheard = [known for known, by in self._witness.under_way.items() if by != self.agent_id]
                if overheard:
                    self._say_result(self._rng.choice(overheard[-3:]), FORGED)
            case Deed.NEVER:
                pass

    def _finish(self, work: _Work, status: Status, *, output: bytes | None = None, error: Fault | None = None) -> None:
        call_id = work.called.call_id
        self._work.pop(call_id, None)
        self._witness.under_way.pop(call_id, None)
        session = self._session
        if session is not None and session.is_open(call_id):
            session.finish(call_id, status, self._loop.clock.now(), output=output, error=error)
            self._flush()
        elif status is Status.SUCCEEDED and output is not None and self._rng.random() < 0.5:
            # Of an earlier connection: a careless program says it anyway.
            self._say_result(call_id, output)

    def _say_result(self, call_id: str, output: bytes) -> None:
        if self._session is not None and self._session.state is State.READY:
            self._say_raw("agent.tool.result", messages.ToolResult(call_id, "succeeded", Raw(output)), call_id)

    def _stop(self, session: AgentSession, asked: CancelAsked) -> None:
        work = self._work.get(asked.call_id)
        self._witness.note(self.agent_id, f"is asked to stop: {asked.reason}", asked.call_id)
        if work is not None and work.job.obeys_cancel and work.session is session:
            if work.timer is not None:
                work.timer.cancel()
            self._finish(work, Status.CANCELED, error=fault("tool.canceled"))

    def _chain(self, work: _Work) -> None:
        call_id = work.called.call_id
        cause = call_id if work.job.names_cause else None
        request = self.ask(work.job.other, b'{"for":"%s"}' % call_id[-4:].encode(), cause=cause)
        if request is None:
            self._finish(work, Status.FAILED, error=fault("tool.failed", "cannot ask"))
        else:
            self._chained[request.ref] = call_id

    # -- what it says on its own ---------------------------------------------------------------------------------------

    def ask(
        self,
        tool_id: str,
        body: bytes,
        *,
        key: str | None = None,
        timeout_ms: int | None = None,
        correlation_id: str | None = None,
        cause: str | None = None,
    ) -> Request | None:
        """Call somebody's tool; None if it cannot speak now."""
        session = self._session
        if session is None or not self.is_ready:
            return None
        ref = session.call(
            tool_id,
            body,
            self._loop.clock.now(),
            key=key,
            timeout_ms=timeout_ms,
            correlation_id=correlation_id,
            causation_id=cause,
        )
        request = Request(ref, f"opensentience:{self.agent_id}", tool_id, body, key, cause=cause or "")
        self._by_ref[ref] = self._witness.asked(request)
        self.requests.append(request)
        self._flush()
        return request

    def cancel(self, request: Request) -> None:
        """Ask for the end of a call of its own."""
        if self._session is not None and self.is_ready and request.is_waiting:
            self._witness.note(self.agent_id, f"cancels {request.ref}", request.call_id)
            self._session.cancel(request.ref, "changed its mind", self._loop.clock.now())
            self._flush()

    def wish(self, tool_id: str) -> None:
        """Ask a person for a directive."""
        if self._session is not None and self.is_ready:
            self._session.request_directive(tool_id, None, "it would like to", self._loop.clock.now())
            self._flush()

    def report(self, health: HealthWord) -> None:
        """Say how it is."""
        if self._session is not None and self.is_ready:
            self._witness.note(self.agent_id, f"says it is {health}")
            self._session.report(health, self._loop.clock.now())
            self._flush()

    def withdraw(self, tool_id: str) -> None:
        """Take a tool back."""
        if self._session is not None and self.is_ready:
            self._witness.note(self.agent_id, f"withdraws {tool_id}")
            self._session.unregister([tool_id], self._loop.clock.now())
            self._flush()

    def offer(self, tools: list[ToolDefinition], *, replace: bool = False) -> None:
        """Offer tools, known ones or changed ones."""
        self.tools.update((tool.tool_id, tool) for tool in tools)
        if self._session is not None and self.is_ready:
            self._witness.note(self.agent_id, f"offers {', '.join(tool.name for tool in tools)}")
            self._session.register([Offer(tool, _arguments) for tool in tools], self._loop.clock.now(), replace=replace)
            self._flush()


class Thief:
    """Somebody who connects with a token that is not theirs, says hello, and must not be let in."""

    def __init__(
        self, agent_id: str, token: str, pid: int, *, loop: ManualLoop, network: Network, witness: Witness
    ) -> None:
        self._loop = loop
        self._witness = witness
        self._session = AgentSession(agent_id, "1.0.0", token, (), loop.clock.now(), bytes(messages.ID_SEED_BYTES))
        self._wire = network.connect(self, pid)
        if self._wire is not None:
            witness.note("a thief", f"says that it is {agent_id}")
            self._wire.send(self._session.take_output())

    def received(self, data: bytes) -> None:
        """Bytes from the exchange."""
        for event in self._session.receive(data, self._loop.clock.now()):
            if isinstance(event, Welcomed):
                self._witness.defect(f"somebody came in with the token of {self._session.agent_id}")

    def lost(self) -> None:
        """The exchange closed the connection, as it should."""


def _arguments(body: Raw) -> dict[str, object]:
    """The arguments in an input: any object will do."""
    found: dict[str, object] = msgspec.json.decode(body)
    return found
