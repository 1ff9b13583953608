"""What must hold after a simulation: the record against what was seen from outside, one function for each promise.

Everything here is judged from the ledger as it is on the disk and from ``witness``; nothing from the exchange's memory.
Each function gives the breaches it found, with the calls they are about. ``P-…`` are the ids of docs/promises.md.

Owns these functions and how the record is read for them. Does not own what was seen (``witness``).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from trunkline import entries
from trunkline.entries import CallAccepted, CallSettled
from trunkline.ledger.reader import Reader, call_number
from trunkline.model import RESEND, Circumstance, Decision, Policy, Rule, Status, ToolDefinition
from trunkline.testing.agents import FORGED
from trunkline.testing.witness import ToldOutcome, Witness, digest, run_of

OF_TOPICS: Final = (
    entries.TopicSubscribed,
    entries.TopicUnsubscribed,
    entries.EventPublished,
    entries.EventTaken,
    entries.EventDropped,
)
_STRICTNESS: Final = (Decision.ALLOW, Decision.ASK, Decision.DENY)


class Breach(Struct, frozen=True):
    """A promise that was not kept, and the calls it was not kept to."""

    what: str
    calls: tuple[str, ...] = ()


class Record:
    """Everything in the ledger, read from the disk and ordered for the promises."""

    def __init__(self, reader: Reader) -> None:
        self.last = reader.head()[0]
        self.accepted: dict[int, CallAccepted] = {}
        self.starts: list[int] = []
        self.sent: set[int] = set()
        self.settled: dict[int, list[CallSettled]] = {}
        self.refused: set[str] = set()
        self.opened: dict[str, entries.QuestionOpened] = {}
        # The calls that ever waited behind a question, and the questions with a yes.
        self.behind: dict[int, list[str]] = {}
        self.closed: dict[str, str] = {}
        self.noted: set[tuple[str, str]] = set()
        self.directives: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.revoked: set[str] = set()
        self.admitted: dict[str, int] = {}
        self.masked: set[int] = set()
        self.steps: list[entries.ProcessStep] = []
        self.topics: list[entries.Entry] = []
        for number in range(1, self.last + 1):
            entry = reader.entry(number)
            if isinstance(entry, entries.ExchangeStarted):
                self.starts.append(number)
            elif isinstance(entry, entries.ProcessStep):
                self.steps.append(entry)
            elif isinstance(entry, OF_TOPICS):
                self.topics.append(entry)
            elif entry is not None:
                self._take(entry)
                if b'"masked_mac":' in (reader.line(number) or b""):
                    self.masked.add(number)

    def _take(self, entry: entries.AnyEntry) -> None:
        match entry:
            case CallAccepted():
                self.accepted[entry.n] = entry
                if entry.sent:
                    self.sent.add(entry.n)
            case entries.CallSent():
                self.sent.add(entry.call)
            case CallSettled():
                self.settled.setdefault(entry.call, []).append(entry)
            case entries.CallRefused():
                self.refused.add(entry.call_id)
            case entries.QuestionOpened():
                self.opened[entry.approval_id] = entry
                if entry.call is not None:
                    self.behind.setdefault(entry.call, []).append(entry.approval_id)
            case entries.QuestionJoined():
                self.behind.setdefault(entry.call, []).append(entry.approval_id)
            case entries.QuestionClosed():
                self.closed[entry.approval_id] = entry.how
            case entries.CallNoted():
                self.noted.add((entry.call_id, entry.note))
            case entries.DirectiveStated():
                self.directives[entry.directive_id] = entry.tool_id
            case entries.TokenIssued():
                self.tokens.add(entry.token_id)
            case entries.TokenRevoked():
                self.revoked.add(entry.token_id)
            case entries.AgentAdmitted():
                self.admitted[entry.agent_id] = self.admitted.get(entry.agent_id, 0) + 1
            case _:
                pass

    def call(self, call_id: str) -> CallAccepted | None:
        """A call by its id. Its number may be another one's: a crash may take what nobody was promised."""
        found = self.accepted.get(call_number(call_id) or 0)
        return found if found is not None and found.call_id == call_id else None

    def outcome(self, accepted: CallAccepted) -> CallSettled | None:
        """How a call ended."""
        return next(iter(self.settled.get(accepted.n, ())), None)


class Promises:
    """The promises, checked for one simulation: ``breaches`` gives what was not kept."""

    def __init__(
        self, witness: Witness, record: Record, policies: dict[str, Policy], tools: dict[str, ToolDefinition]
    ) -> None:
        self._witness = witness
        self._record = record
        self._policies = policies
        self._tools = tools

    def breaches(self) -> Iterator[Breach]:
        """Everything that was not kept."""
        yield from self.every_call_has_one_outcome()
        yield from self.what_was_told_is_on_record()
        yield from self.what_waits_or_was_taken_on_is_on_record()
        yield from self.what_people_did_is_on_record()
        yield from self.an_outcome_has_a_cause()
        yield from self.nobody_ends_anothers_call()
        yield from self.whoever_waits_is_answered()
        yield from self.what_could_do_harm_twice_runs_once()
        yield from self.a_key_names_one_call()
        yield from self.bodies_arrive_as_they_were_sent()
        yield from self.what_runs_was_allowed()
        yield from self.a_person_said_yes_to_each_call()
        yield from self.a_chain_keeps_all_its_callers()

    def every_call_has_one_outcome(self) -> Iterator[Breach]:
        """P-A1, and that nothing stays open for ever."""
        for number, accepted in self._record.accepted.items():
            ends = self._record.settled.get(number, ())
            if len(ends) != 1:
                yield Breach(f"a call has {len(ends)} outcomes", (accepted.call_id,))

    def what_was_told_is_on_record(self) -> Iterator[Breach]:
        """P-A1: an outcome that somebody was told is the one on record, but for a read-only call before a crash."""
        for outcome in self._witness.outcomes:
            problem = self._contradiction(outcome)
            if problem is None:
                continue
            if self._is_bound(outcome.call_id, outcome.tool_id):
                yield Breach(f"somebody was told {outcome.status.value}, {problem}", (outcome.call_id,))

    def _contradiction(self, outcome: ToldOutcome) -> str | None:
        accepted = self._record.call(outcome.call_id)
        if accepted is None:
            # This may have been a refusal, which is told without waiting.
            return None if outcome.refused is None else "and the call is not on record"
        settled = self._record.outcome(accepted)
        if settled is None:
            return "and no outcome is on record"
        if settled.status is not outcome.status:
            return f"and the record says {settled.status.value}"
        output = None if settled.output is None else bytes(settled.output)
        if outcome.output_sha256 and settled.n not in self._record.masked and digest(output) != outcome.output_sha256:
            return "with another output than the one on record"
        return None

    def _is_bound(self, call_id: str, tool_id: str) -> bool:
        """Whether what was said of a call must be on record: a read-only one may be missing after a crash."""
        return self._is_at_stake(call_id, tool_id) or run_of(call_id) > self._witness.crashed_run

    def _is_at_stake(self, call_id: str, tool_id: str) -> bool:
        accepted = self._record.call(call_id)
        if accepted is not None and accepted.decision is Decision.ASK:
            return True
        tool = self._tools.get(tool_id)
        return tool is not None and (tool.side_effects or tool.requires_directive)

    def what_waits_or_was_taken_on_is_on_record(self) -> Iterator[Breach]:
        """Somebody who was told to wait waits for something."""
        record = self._record
        for call_id, approval_id in self._witness.waits:
            accepted = record.call(call_id)
            if approval_id not in record.opened:
                yield Breach(f"somebody was told to wait for {approval_id}, which is not on record", (call_id,))
            elif call_id and (accepted is None or approval_id not in record.behind.get(accepted.n, ())):
                yield Breach(f"somebody was told to wait for {approval_id}, which is about another call", (call_id,))
        for name, asked_by, tool in self._witness.questions:
            opened = record.opened.get(name)
            if opened is None:
                yield Breach(f"somebody was shown {name}, which is not on record")
            elif (opened.asked_by, opened.tool_id) != (asked_by, tool):
                yield Breach(f"somebody was shown {name}, which asks something else on record")
        for call_id, tool_id in self._witness.taken_on:
            if self._is_bound(call_id, tool_id) and record.call(call_id) is None:
                yield Breach("somebody was told that a call was taken on, and it is not on record", (call_id,))

    def what_people_did_is_on_record(self) -> Iterator[Breach]:
        """An answer, a directive, a token, a cancel, an agent's welcome: confirmed means recorded."""
        record = self._record
        for what, named in self._witness.confirmed:
            match what:
                case "approved" | "denied":
                    kept = record.closed.get(named) == what
                case "stated":
                    kept = named in record.directives
                case "issued":
                    kept = named in record.tokens
                case "revoked":
                    kept = named in record.revoked
                case "canceling":
                    kept = (named, "cancel.requested") in record.noted
                case _:
                    kept = True
            if not kept:
                calls = (named,) if call_number(named) is not None else ()
                yield Breach(f"somebody was told that {named} is {what}, and it is not on record", calls)
        for agent_id, count in self._witness.welcomes.items():
            if count > record.admitted.get(agent_id, 0):
                yield Breach(f"{agent_id} was welcomed {count} times, admitted {record.admitted.get(agent_id, 0)}")

    def an_outcome_has_a_cause(self) -> Iterator[Breach]:
        """What succeeded ran, and what nobody knows the end of was sent."""
        ran = {execution.call_id for execution in self._witness.executions}
        for settled in (end for ends in self._record.settled.values() for end in ends):
            if settled.status is Status.SUCCEEDED and settled.call_id not in ran:
                yield Breach("a call succeeded that never ran", (settled.call_id,))
            if settled.status is Status.UNKNOWN and settled.call not in self._record.sent:
                yield Breach("the end of a call is not known, and it was never sent", (settled.call_id,))

    def nobody_ends_anothers_call(self) -> Iterator[Breach]:
        """P-B4: what an agent says of a call that it was not given goes nowhere."""
        for settled in (end for ends in self._record.settled.values() for end in ends):
            if settled.output is not None and bytes(settled.output) == FORGED:
                yield Breach("a forged result is on record", (settled.call_id,))

    def whoever_waits_is_answered(self) -> Iterator[Breach]:
        """In the end nobody waits."""
        for request in self._witness.requests:
            if request.is_waiting:
                yield Breach(f"{request.caller} still waits for {request.ref}", (request.call_id,))

    def what_could_do_harm_twice_runs_once(self) -> Iterator[Breach]:
        """P-B11 and decision 1: an effect takes place at most once, and never for a call that is not on record."""
        runs: dict[str, int] = {}
        for execution in self._witness.executions:
            if not execution.side_effects:
                continue
            call_id = execution.call_id
            runs[call_id] = runs.get(call_id, 0) + 1
            if runs[call_id] == 2:
                yield Breach(f"{execution.tool_id} ran twice for one call", (call_id,))
            if self._record.call(call_id) is None:
                yield Breach(f"{execution.tool_id} ran for a call that is not on record", (call_id,))
        for call_id, count in self._witness.deliveries.items():
            accepted = self._record.call(call_id)
            if accepted is not None and accepted.side_effects and count > RESEND.deliveries:
                yield Breach(f"a call was sent {count} times", (call_id,))

    def a_key_names_one_call(self) -> Iterator[Breach]:
        """P-B1: one execution for a caller's key, and one outcome."""
        ran: dict[tuple[str, str], set[str]] = {}
        for execution in self._witness.executions:
            if execution.key is not None and execution.side_effects:
                ran.setdefault((execution.caller, execution.key), set()).add(execution.call_id)
        told: dict[tuple[str, str], set[str]] = {}
        for request in self._witness.requests:
            outcome = request.outcome
            if request.key is None or outcome is None or outcome.refused:
                continue
            if self._is_at_stake(outcome.call_id, request.tool_id) and self._record.call(outcome.call_id) is not None:
                told.setdefault((request.caller, request.key), set()).add(outcome.call_id)
        for what, groups in (("ran as", ran), ("was answered with", told)):
            for (caller, key), calls in groups.items():
                if len(calls) > 1:
                    yield Breach(f"the key {key} of {caller} {what} {len(calls)} calls", tuple(sorted(calls)))

    def bodies_arrive_as_they_were_sent(self) -> Iterator[Breach]:
        """Decision 28: what is masked on record is never masked on its way, also after a restart."""
        given = {execution.call_id: execution.input_sha256 for execution in self._witness.executions}
        told: dict[str, str] = {}
        for request in self._witness.requests:
            call_id, outcome = request.call_id, request.outcome
            # What is not a parameter of the work is taken out of it.
            is_whole = b'"$' not in request.input
            if call_id in given and is_whole and given[call_id] != digest(request.input):
                yield Breach("an agent was given another input than was asked for", (call_id,))
            if outcome is None or outcome.refused or not self._is_bound(call_id, request.tool_id):
                continue
            if told.setdefault(call_id, outcome.output_sha256) != outcome.output_sha256:
                yield Breach("two who asked were told different outputs", (call_id,))

    def what_runs_was_allowed(self) -> Iterator[Breach]:
        """P-F1, P-F2: what policy says to every caller of the chain, by another evaluator than the hub's."""
        for call_id in sorted({execution.call_id for execution in self._witness.executions}):
            accepted = self._record.call(call_id)
            if accepted is None:
                continue
            tool = self._tools[accepted.tool_id]
            policy = self._policies[accepted.policy]
            said = max(
                (_says(policy.rules, caller, tool, accepted.circumstances) for caller in _callers(accepted)),
                key=_STRICTNESS.index,
            )
            # A space has rules of its own besides: they may be stricter.
            is_stricter = "space" in tool.tags and _STRICTNESS.index(accepted.decision) > _STRICTNESS.index(said)
            if said is not accepted.decision and not is_stricter:
                yield Breach(f"policy says {said.value} and the record {accepted.decision.value}", (call_id,))
            if said is Decision.DENY:
                yield Breach("a denied call ran", (call_id,))

    def a_person_said_yes_to_each_call(self) -> Iterator[Breach]:
        """P-F3: one answer, one call; one directive, one call."""
        ran = sorted({execution.call_id for execution in self._witness.executions}, key=lambda c: call_number(c) or 0)
        used: set[str] = set()
        for call_id in ran:
            accepted = self._record.call(call_id)
            if accepted is None:
                continue
            if accepted.decision is Decision.ASK:
                asked = self._record.behind.get(accepted.n, ())
                free = [name for name in asked if self._record.closed.get(name) == "approved" and name not in used]
                if free:
                    used.add(free[0])
                else:
                    yield Breach("a call ran that nobody said yes to, or by an answer that was used before", (call_id,))
            if self._tools[accepted.tool_id].requires_directive:
                directive = accepted.directive_id or ""
                if self._record.directives.get(directive) != accepted.tool_id or directive in used:
                    yield Breach("a call ran without a directive, or with a used one", (call_id,))
                used.add(directive)

    def a_chain_keeps_all_its_callers(self) -> Iterator[Breach]:
        """Decision 7: whoever calls for somebody acts for all who stand behind that somebody."""
        for request in self._witness.requests:
            accepted = self._record.call(request.call_id)
            cause = self._record.call(request.cause)
            if accepted is None or cause is None or request.key is not None:
                continue
            missing = set(_callers(cause)) - set(accepted.chain)
            if missing and self._works_on(cause, accepted.n):
                yield Breach(f"a call hides {', '.join(sorted(missing))}", (request.call_id, request.cause))

    def _works_on(self, cause: CallAccepted, number: int) -> bool:
        """Whether an agent was at work on a call at entry ``number``, as far as the exchange could know then.

        It has ended once its agent said so. One that ended without its agent's word is remembered until a restart.
        """
        ended = self._record.outcome(cause)
        if ended is None or ended.n > number:
            return True
        started = max(start for start in self._record.starts if start < number)
        return ended.status is Status.UNKNOWN and ended.n > started


def _callers(accepted: CallAccepted) -> tuple[str, ...]:
    return (*accepted.chain, accepted.caller)


def _says(rules: tuple[Rule, ...], caller: str, tool: ToolDefinition, under: Container[Circumstance]) -> Decision:
    for rule in rules:
        if rule.side_effects is not None and rule.side_effects is not tool.side_effects:
            continue
        if rule.when is not None and rule.when not in under:
            continue
        if _fits(rule.caller, caller) and _fits(rule.tool, tool.tool_id):
            return rule.decision
    return Decision.DENY


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), text, re.DOTALL) is not None


def secrets_in(folder: Path, canaries: list[str]) -> list[str]:
    """P-H1: the planted secrets that can be read in the files of a folder."""
    data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return [canary for canary in canaries if canary.encode() in data]
