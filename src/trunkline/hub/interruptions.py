"""What keeps a call from simply ending: an attempt fails, its agent or its caller goes, time is over, somebody cancels.

Owns what is done then: the call is sent again, goes to another provider, is asked to stop, or ends; and the moments at
which that is due (``woke``). Does not own sending and settling (``calls``) or whether a call may be sent again
(``retry``).

Invariant: a call that may have had its effect and cannot be sent again without harm ends as *unknown*, never as failed
or canceled.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec.structs import replace

from trunkline import effects, entries
from trunkline.hub.alarms import Alarms
from trunkline.hub.calls import Calls, not_agreed, not_known, waits_for_disk
from trunkline.hub.journal import Journal
from trunkline.hub.lifecycle import step
from trunkline.hub.policy import Judge
from trunkline.hub.registry import Agent, Registry
from trunkline.hub.retry import QUARANTINE_S, may_move, may_resend, next_attempt_s, next_delay_s
from trunkline.hub.routing import Routing
from trunkline.hub.state import Call
from trunkline.model import RESEND, Fault, Now, Status, fault, tool_agent

# A look into an enum takes 70 ns.
QUEUED: Final = Status.QUEUED
RUNNING: Final = Status.RUNNING
# How long an agent has to stop after it was asked to.
GRACE_S: Final = 5.0
# A caller whose connection broke is usually back within this time (decision 5).
CALLER_GONE_S: Final = 10.0


class Interruptions:
    """One method for each thing that can happen to an open call besides its result."""

    def __init__(
        self, journal: Journal, registry: Registry, calls: Calls, alarms: Alarms, judge: Judge, routing: Routing
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._registry = registry
        self._calls = calls
        self._alarms = alarms
        self._judge = judge
        self._routing = routing
        self.resent = 0

    # -- agents that fail or go ----------------------------------------------------------------------------------------

    def attempt_failed(self, call: Call, problem: Fault, now: Now) -> None:
        """One delivery led to nothing. The call runs on, to be sent again: a late result still counts (decision 4)."""
        agent = self._registry.by_session[call.session]
        self._journal.write(
            entries.CallNoted(
                n=self._journal.next,
                at=now.ms,
                call_id=call.entry.call_id,
                note="attempt.failed",
                by=agent.identity,
                detail=f"attempt {call.attempt}: {problem.code}",
            )
        )
        if call.ending is not None:
            return  # it was asked to stop; its grace decides
        delay = next_attempt_s(call, problem, agent.retry, now.mono)
        if delay is not None:
            call.resend_at = now.mono + delay
            self._alarms.set(call)
            self._calls.show(call, f"attempt {call.attempt} failed ({problem.code}); the next one in {delay:g} s")
            return
        if may_move(problem) and self._may_be_served_elsewhere(call, now):
            self._return(call, agent, problem, now)
            return
        tool = self._registry.tools.get(call.served_by)
        if tool is not None:
            tool.failed += 1
        status = Status.FAILED
        if problem.code == "tool.timeout":
            agent.abandon(call, now.mono)
            agent.unanswered += 1
            if call.entry.side_effects:
                status, problem = Status.UNKNOWN, not_known(problem)
        self._calls.settle(call, status, now, fault=problem)

    def _may_be_served_elsewhere(self, call: Call, now: Now) -> bool:
        if not self._routing.is_routed(call.entry.tool_id):
            return False
        other = self._routing.provider_of(call, now, is_other=True)
        return other is not None and not_agreed(self._judge.verdict_now(other, call.entry), call) is None

    def _return(self, call: Call, agent: Agent, problem: Fault, now: Now) -> None:
        """The provider did not take the call on: it goes to another one, as if it had not been sent."""
        number = call.entry.n
        self._journal.write(
            entries.CallReturned(
                n=self._journal.next, at=now.ms, call=number, provider=call.served_by, code=problem.code
            )
        )
        del agent.running[number]
        self._leave_agent(call)
        self._calls.send_or_wait(call, now)
        self._calls.fill_slots(agent, now)

    def _leave_agent(self, call: Call) -> None:
        """It is at nobody now, and what was true of it there is over."""
        call.session = 0
        call.resend_at = call.deadline = call.give_up_at = 0.0
        if call.stream is not None:
            # An agent that is sent the call again counts from one; who reads along sees the numbers go on.
            call.shown_before += call.stream.last_seq
            call.stream = None

    def _send_again(self, call: Call, now: Now) -> None:
        """The next attempt, at the same agent. When it has to be done stays as it was."""
        agent = self._registry.by_session[call.session]
        problem = self._calls.denial(call)
        if problem is not None:
            agent.abandon(call, now.mono)
            self._calls.deny(call, problem, now)
            return
        kept = call.deadline, call.sent_at, call.started_ms
        number = self._calls.write_sent(call, now)
        self.resent += 1
        self._calls.deliver(call, agent, number, now)
        call.deadline, call.sent_at, call.started_ms = kept
        self._alarms.set(call)

    def lost(self, call: Call, now: Now) -> None:
        """The agent, or the exchange, went away while this call ran (decision 1)."""
        self._leave_agent(call)
        delay = next_delay_s(call, RESEND)
        if delay is not None:
            call.status = step(call.status, QUEUED)
            call.not_before = now.mono + delay
            self.resent += 1
            self._calls.send_or_wait(call, now)
        elif call.ending is not None:
            self._end(call, now)
        else:
            tool = self._registry.tools.get(call.served_by)
            if may_resend(call) and tool is not None:
                tool.quarantined_until = now.mono + QUARANTINE_S
            why = self._registry.why_stopping(tool_agent(call.served_by))
            problem = fault("agent.lost")
            if why:
                problem = replace(problem, message=f"{problem.message}; {why}")
            self._calls.settle(call, Status.UNKNOWN, now, fault=problem)

    # -- callers that cancel or go -------------------------------------------------------------------------------------

    def cancel(self, call: Call, reason: str, now: Now) -> None:
        """End a call on request. What was not sent ends at once; what runs is asked to stop, if it can be asked."""
        if call.status is not RUNNING:
            self._calls.give_up(call, Status.CANCELED, fault("tool.canceled"), now)
        elif call.ending is None:
            self._stop(call, "canceled", reason, now)

    def _stop(self, call: Call, ending: Literal["timeout", "canceled"], reason: str, now: Now) -> None:
        call.ending = ending
        call.gone_at = call.resend_at = 0.0
        tool = self._registry.tools.get(call.served_by)
        if tool is None or not tool.is_cancelable:
            self._end(call, now)
            return
        call.deadline = now.mono + GRACE_S
        self._alarms.set(call)
        after = call.trail[-1] if call.trail else call.entry.n
        self._journal.say(
            effects.Cancel(
                call.session, after if waits_for_disk(call) else 0, call.entry.call_id, reason, int(GRACE_S * 1000)
            )
        )

    def _end(self, call: Call, now: Now) -> None:
        """The agent did not say how it ended in the time it had. With side effects nobody knows what it did."""
        agent = self._registry.by_session.get(call.session)
        timed_out = call.ending == "timeout"
        if agent is not None:
            agent.abandon(call, now.mono)
            agent.unanswered += timed_out
        problem = self._calls.timeout_fault(call) if timed_out else fault("tool.canceled")
        if call.entry.side_effects:
            self._calls.settle(call, Status.UNKNOWN, now, fault=not_known(problem))
        else:
            self._calls.settle(call, Status.FAILED if timed_out else Status.CANCELED, now, fault=problem)

    def caller_left(self, session: int, ref: str | None, now: Now) -> None:
        """Nobody waits under this name any more; what may be canceled for that gets its alarm (decision 5).

        A call that waits for a person goes on waiting, also through one that it caused: it holds no connection
        (decisions 11, 12).
        """
        asked: dict[int, str] | None = None
        for call in self._state.calls.values():
            kept = tuple(w for w in call.waiters if w[0] != session or (ref is not None and w[1] != ref))
            if len(kept) == len(call.waiters):
                continue
            call.waiters = kept
            if kept or call.entry.key_id is not None or call.status is Status.WAITING_APPROVAL:
                continue
            tool = self._registry.tools.get(call.served_by)
            if tool is None or not tool.is_cancelable:
                continue
            asked = self._state.questions_inside() if asked is None else asked
            if call.entry.n not in asked:
                call.gone_at = now.mono + CALLER_GONE_S
                self._alarms.set(call)

    # -- time ----------------------------------------------------------------------------------------------------------

    def woke(self, number: int, now: Now) -> None:
        """The moment that a call's alarm was set for has come: do what is due, and set the next one."""
        call = self._state.by_number.get(number)
        if call is None:
            return
        call.wake_at = 0.0
        if call.status is RUNNING:
            self._running_due(call, now)
        else:
            self._waiting_due(call, now)
        if call.wake_at == 0.0 and number in self._state.by_number:
            self._alarms.set(call)

    def _running_due(self, call: Call, now: Now) -> None:
        if call.deadline and now.mono >= call.deadline:
            if call.ending is None and call.entry.n in self._state.questions_inside():
                # Its time starts anew: it cannot help that nobody has answered yet.
                call.deadline = now.mono + (call.deadline - call.sent_at)
                call.sent_at = now.mono
            elif call.ending is None:
                self._stop(call, "timeout", "timeout", now)
            else:
                self._end(call, now)
        elif call.gone_at and now.mono >= call.gone_at:
            call.gone_at = 0.0
            self.cancel(call, "caller_gone", now)
        elif call.resend_at and now.mono >= call.resend_at:
            call.resend_at = 0.0
            self._send_again(call, now)

    def _waiting_due(self, call: Call, now: Now) -> None:
        mono = now.mono
        if call.expires_at and mono >= call.expires_at:
            self._calls.give_up(call, Status.FAILED, fault("call.expired"), now)
        elif call.gone_at and mono >= call.gone_at:
            self.cancel(call, "caller_gone", now)
        elif call.give_up_at and mono >= call.give_up_at:
            if call.attempt > 0:
                self._calls.settle(call, Status.UNKNOWN, now, fault=fault("agent.lost"))
            else:
                text = f"it waited in vain: {self._registry.why_away(tool_agent(call.entry.tool_id))}"
                self._calls.settle(call, Status.FAILED, now, fault=fault("tool.unavailable", text))
        elif call.not_before and mono >= call.not_before:
            call.not_before = 0.0
            self._calls.send_or_wait(call, now)
