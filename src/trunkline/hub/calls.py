"""The life of a call after it was accepted: sent, shown, ended; lost and sent again; timed out; canceled.

Owns slots, queues, alarms and the one outcome. Does not decide whether a call may be made (``hub``, ``policy``) or
whether a lost one is sent again (``retry``).

Invariant: a call in state RUNNING is in ``agent.running`` of the agent whose session it was sent to, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from trunkline import effects, entries
from trunkline.events import CallFinished, CallProgressed
from trunkline.hub.book import Book
from trunkline.hub.lifecycle import step
from trunkline.hub.limits import Loads
from trunkline.hub.registry import MAX_QUEUED, Agent, Registry, Tool
from trunkline.hub.retry import PATIENCE_S, QUARANTINE_S, may_resend, next_delay_s
from trunkline.hub.state import Call, Stream, body_size
from trunkline.hub.timers import Timers
from trunkline.model import INLINE_OUTPUT_BYTES, RESEND, Fault, Now, Status, fault

# How long an agent has to stop after it was asked to (silent point 9 of the protocol's page).
GRACE_S: Final = 5.0
# A caller whose connection broke is usually back within this time (decision 5).
CALLER_GONE_S: Final = 10.0
# What is kept of a stream's end (decision 27).
TAIL_BYTES: Final = 65_536
# How much of a large output its reference shows.
HEAD_BYTES: Final = 1024


class Calls:
    """All open calls and where they are on their way."""

    def __init__(self, book: Book, registry: Registry, loads: Loads, timers: Timers[int | str]) -> None:
        self._book = book
        self._registry = registry
        self._loads = loads
        self._timers = timers
        # Accepted calls whose agent is away, by tool.
        self._parked: dict[str, dict[int, None]] = {}
        self.untrusted_agents: frozenset[str] = frozenset()
        self.settled: dict[Status, int] = dict.fromkeys((Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.UNKNOWN), 0)
        self.resent = 0

    # -- on the way out ------------------------------------------------------------------------------------------------

    def deliver(self, call: Call, agent: Agent, tool: Tool, after: int, now: Now) -> None:
        """Hand a call, whose sending is written, to its agent."""
        entry = call.entry
        call.session = agent.session
        call.started_ms = now.ms
        agent.running[entry.n] = None
        timeout_ms = entry.timeout_ms
        if timeout_ms is None and agent.timeout_s is not None:
            timeout_ms = int(agent.timeout_s * 1000)
        if timeout_ms is not None:
            call.deadline = now.mono + timeout_ms / 1000
            self.rearm(call)
        self._book.effects.append(
            effects.Deliver(
                agent.session,
                after if entry.side_effects else 0,
                entry.call_id,
                entry.tool_id,
                entry.input,
                entry.caller,
                entry.correlation_id or entry.call_id,
                timeout_ms,
                entry.key,
                entry.causation_id,
                call.actor,
                call.context,
                call.attempt,
            )
        )

    def send_or_wait(self, call: Call, now: Now) -> None:
        """Send a queued call if its tool is there and has a free slot; else let it wait for that."""
        tool = self._registry.tools.get(call.entry.tool_id)
        agent = tool.agent if tool is not None else None
        if tool is not None and tool.fingerprint != call.entry.fingerprint:
            self.settle(call, Status.FAILED, now, fault=fault("policy.denied", "the tool's definition changed since the call"))
        elif tool is None or agent is None or tool.suspended or not agent.is_usable or call.not_before > now.mono:
            self._park(call, now)
        elif len(agent.running) < agent.max_inflight:
            self._unpark(call)
            n = self._book.write(
                entries.CallSent(n=self._book.next, at=now.ms, call=call.entry.n, attempt=call.attempt + 1)
            )
            self.deliver(call, agent, tool, n, now)
        elif len(agent.queue) < MAX_QUEUED:
            self._unpark(call)
            call.give_up_at = 0.0
            agent.queue.append(call.entry.n)
            self.rearm(call)
        else:
            self.settle(call, Status.FAILED, now, fault=fault("limit.inflight", "the agent's queue is full"))

    def fill_slots(self, agent: Agent, now: Now) -> None:
        """Send what waits for this agent's slots."""
        while agent.queue and len(agent.running) < agent.max_inflight and agent.is_usable:
            call = self._book.state.by_number.get(agent.queue.popleft())
            if call is not None and call.status is Status.QUEUED:
                self.send_or_wait(call, now)

    def tool_is_back(self, tool_id: str, now: Now) -> None:
        """Send what waited for this tool."""
        for number in list(self._parked.get(tool_id, ())):
            self.send_or_wait(self._book.state.by_number[number], now)

    def _park(self, call: Call, now: Now) -> None:
        self._parked.setdefault(call.entry.tool_id, {})[call.entry.n] = None
        if call.give_up_at == 0.0:
            call.give_up_at = max(now.mono, call.not_before) + PATIENCE_S
        self.rearm(call)

    def _unpark(self, call: Call) -> None:
        parked = self._parked.get(call.entry.tool_id)
        if parked is not None:
            parked.pop(call.entry.n, None)
            if not parked:
                del self._parked[call.entry.tool_id]

    # -- on the way back -----------------------------------------------------------------------------------------------

    def progressed(self, call: Call, event: CallProgressed) -> None:
        """Show what a running call has to show, and keep count of it."""
        stream = call.stream
        if stream is None:
            stream = call.stream = Stream(hashlib.sha256())
        data = bytes(event.data)
        stream.hasher.update(data)
        stream.chunks += 1
        stream.size += len(data)
        stream.gaps += max(0, event.seq - stream.last_seq - 1)
        stream.last_seq = event.seq
        stream.tail = (stream.tail + _shown(data))[-TAIL_BYTES:]
        entry = call.entry
        for session, ref in call.waiters:
            self._book.say(
                effects.Progress(
                    session, 0, ref, entry.call_id, event.seq, event.channel, event.data, event.done, entry.correlation_id
                )
            )

    def finished(self, call: Call, event: CallFinished, now: Now) -> None:
        """The agent says how it ended; what it says is checked before it counts."""
        status, output, problem = event.status, event.output, event.fault
        tool = self._registry.tools.get(call.entry.tool_id)
        if status is Status.SUCCEEDED:
            if output is None:
                output = Raw(b"{}")
            problem = None if tool is None else _output_fault(tool, output)
            if problem is not None:
                status, output = Status.FAILED, None
        else:
            output = None
            if status is Status.CANCELED and call.ending == "timeout":
                status, problem = Status.FAILED, self._timeout_fault(call)
            elif problem is None:
                problem = fault("tool.canceled" if status is Status.CANCELED else "tool.failed")
        if tool is not None:
            if status is Status.SUCCEEDED:
                tool.succeeded += 1
            elif status is Status.FAILED:
                tool.failed += 1
        self.settle(call, status, now, output=output, fault=problem, metrics=event.metrics)

    def settle(
        self,
        call: Call,
        status: Status,
        now: Now,
        *,
        output: Raw | None = None,
        fault: Fault | None = None,
        metrics: Raw | None = None,
    ) -> int:
        """The one outcome of a call; everything it held is given back, everybody who waits is told."""
        entry, book, ms = call.entry, self._book, now.ms
        waiters, session = call.waiters, call.session
        if call.wake_at:
            self._timers.disarm(entry.n, call.wake_at)
        if call.status is Status.QUEUED:
            self._unpark(call)
        number = book.write(
            entries.CallSettled(
                n=book.next,
                at=ms,
                call=entry.n,
                call_id=entry.call_id,
                status=status,
                output=output,
                fault=fault,
                started_ms=call.started_ms,
                finished_ms=ms,
                stream=None if call.stream is None else _summary(call.stream),
                untrusted=entry.tool_id.partition("/")[0] in self.untrusted_agents,
                metrics=metrics,
            )
        )
        self.settled[status] += 1
        self._loads.give_back(entry.caller, body_size(entry.input))
        if waiters:
            shown = output if output is None or body_size(output) <= INLINE_OUTPUT_BYTES else reference(output)
            after = number if entry.side_effects or call.approval_id is not None or len(waiters) > 1 else 0
            for waiting, ref in waiters:
                book.effects.append(
                    effects.Answer(
                        waiting, after, ref, entry.call_id, status, shown, fault, call.started_ms, ms, entry.correlation_id
                    )
                )
        agent = self._registry.by_session.get(session)
        if agent is not None and agent.running.pop(entry.n, 0) is None and agent.queue:
            self.fill_slots(agent, now)
        return number

    # -- when things go wrong ------------------------------------------------------------------------------------------

    def lost(self, call: Call, now: Now) -> None:
        """The agent, or the exchange, went away while this call ran (decision 1)."""
        agent = self._registry.by_session.get(call.session)
        if agent is not None:
            agent.running.pop(call.entry.n, None)
        call.session = 0
        delay = next_delay_s(call, RESEND)
        if delay is not None:
            call.status = step(call.status, Status.QUEUED)
            call.not_before = now.mono + delay
            call.deadline = call.give_up_at = 0.0
            self.resent += 1
            self.send_or_wait(call, now)
        elif call.ending is not None:
            self._end(call, now)
        else:
            tool = self._registry.tools.get(call.entry.tool_id)
            if may_resend(call) and tool is not None:
                tool.quarantined_until = now.mono + QUARANTINE_S
            self.settle(call, Status.UNKNOWN, now, fault=fault("agent.lost"))

    def cancel(self, call: Call, reason: str, now: Now) -> None:
        """End a call on request. What was not sent ends at once; what runs is asked to stop, if it can be asked."""
        if call.status is not Status.RUNNING:
            self.settle(call, Status.CANCELED, now, fault=fault("tool.canceled"))
            return
        if call.ending is not None:
            return
        call.ending = reason
        call.gone_at = 0.0
        tool = self._registry.tools.get(call.entry.tool_id)
        if tool is None or not tool.is_cancelable:
            self._end(call, now)
            return
        call.deadline = now.mono + GRACE_S
        self.rearm(call)
        after = call.trail[-1] if call.trail else call.entry.n
        self._book.say(
            effects.Cancel(
                call.session, after if call.entry.side_effects else 0, call.entry.call_id, reason, int(GRACE_S * 1000)
            )
        )

    def _end(self, call: Call, now: Now) -> None:
        """The agent did not say how it ended in the time it had. With side effects nobody knows what it did."""
        timed_out = call.ending == "timeout"
        problem = self._timeout_fault(call) if timed_out else fault("tool.canceled")
        if call.entry.side_effects:
            text = f"{problem.message}; whether it took effect is not known"
            self.settle(call, Status.UNKNOWN, now, fault=fault(problem.code, text, retryable=False))
        else:
            self.settle(call, Status.FAILED if timed_out else Status.CANCELED, now, fault=problem)

    @staticmethod
    def _timeout_fault(call: Call) -> Fault:
        return fault("tool.timeout", retryable=not call.entry.side_effects)

    def caller_left(self, session: int, ref: str | None, now: Now) -> None:
        """Nobody waits under this name any more; what may be canceled for that gets its alarm (decision 5)."""
        for call in list(self._book.state.calls.values()):
            kept = tuple(w for w in call.waiters if w[0] != session or (ref is not None and w[1] != ref))
            if len(kept) == len(call.waiters):
                continue
            call.waiters = kept
            tool = self._registry.tools.get(call.entry.tool_id)
            if not kept and call.entry.key_id is None and tool is not None and tool.is_cancelable:
                call.gone_at = now.mono + CALLER_GONE_S
                self.rearm(call)

    # -- time ----------------------------------------------------------------------------------------------------------

    def rearm(self, call: Call) -> None:
        """Set the call's one alarm to the next moment that matters to it."""
        moments: tuple[float, ...]
        if call.status is Status.QUEUED:
            moments = (call.not_before, call.give_up_at, call.expires_at, call.gone_at)
        else:
            moments = (call.deadline, call.gone_at)
        at = min((moment for moment in moments if moment), default=0.0)
        if at != call.wake_at:
            if call.wake_at:
                self._timers.disarm(call.entry.n, call.wake_at)
            call.wake_at = at
            if at:
                self._timers.arm(call.entry.n, at)

    def woke(self, number: int, now: Now) -> None:
        """A call's alarm."""
        call = self._book.state.by_number.get(number)
        if call is None:
            return
        call.wake_at = 0.0
        mono = now.mono
        if call.gone_at and mono >= call.gone_at:
            call.gone_at = 0.0
            self.cancel(call, "caller_gone", now)
        elif call.status is Status.QUEUED:
            if call.expires_at and mono >= call.expires_at:
                self.settle(call, Status.FAILED, now, fault=fault("call.expired"))
            elif call.give_up_at and mono >= call.give_up_at:
                lost = call.attempt > 0
                self.settle(
                    call,
                    Status.UNKNOWN if lost and call.entry.side_effects else Status.FAILED,
                    now,
                    fault=fault("agent.lost" if lost else "tool.unavailable"),
                )
            elif call.not_before and mono >= call.not_before:
                call.not_before = 0.0
                self.send_or_wait(call, now)
        elif call.status is Status.RUNNING and call.deadline and mono >= call.deadline:
            if call.ending is None:
                self.cancel(call, "timeout", now)
            else:
                self._end(call, now)
        if call.wake_at == 0.0 and number in self._book.state.by_number:
            self.rearm(call)


def _output_fault(tool: Tool, output: Raw) -> Fault | None:
    size = body_size(output)
    if size > tool.definition.max_output_bytes:
        return fault("tool.output_too_large", f"{size} bytes; the limit is {tool.definition.max_output_bytes}")
    if tool.output_validator is None:
        return None
    problem = tool.output_validator.error(bytes(output))
    return None if problem is None else fault("tool.invalid_output", f"the result does not match the tool's schema: {problem}")


def reference(output: Raw) -> Raw:
    """A large output as its hash, its size and its beginning (decision 8)."""
    data = bytes(output)
    head = data[:HEAD_BYTES].decode("utf-8", "ignore")
    return Raw(
        msgspec.json.encode({"$ref": f"sha256:{hashlib.sha256(data).hexdigest()}", "bytes": len(data), "head": head})
    )


def _summary(stream: Stream) -> entries.StreamSummary:
    return entries.StreamSummary(
        stream.chunks, stream.size, stream.hasher.hexdigest(), stream.tail.decode("utf-8", "replace"), stream.gaps
    )


_decode_shown: Callable[[bytes], dict[str, object]] = msgspec.json.Decoder(dict[str, object]).decode


def _shown(data: bytes) -> bytes:
    """The text of a chunk, so that the kept end reads as it was printed and a secret cut in two is whole again."""
    text = _decode_shown(data).get("text")
    return text.encode("utf-8", "replace") if isinstance(text, str) else data + b"\n"
