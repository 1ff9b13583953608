"""Open questions to a person: who may answer, until when, and that an answer is used once.

Four subjects share one flow: a call that policy says to ask about, a tool definition that changed, the permissions a
manifest asks for, and a directive an agent would like to have. A question about a call is bound to caller, chain, tool,
definition, input and policy version, and to all else that is shown of it (``Shown``); identical calls wait behind one
question, and its answer covers the first of them. A question is told of once it is on disk. Under another policy it is
asked anew, and its earlier names answer it where the same is shown (decision 129).

Does not own what follows from an answer (``control``). Invariant: one agent has at most five questions open, after
each entry; a call that would be the sixth is refused, and what an agent raises by what it is (definitions, manifest) is
held until an event is over that left it fewer (``open_held``): what follows from the end of a question may ask again.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline import entries
from trunkline.effects import Wait
from trunkline.entries import QuestionOpened
from trunkline.events import ApprovalAnswered
from trunkline.hub.in_force import InForce
from trunkline.hub.journal import Journal
from trunkline.hub.registry import Tool
from trunkline.hub.state import BY_POLICY, Beside, Call, OpenQuestion
from trunkline.hub.timers import AlarmKey, OfQuestion, Timers, seconds_left
from trunkline.model import (
    OPERATOR,
    Actor,
    Circumstance,
    Fault,
    Manifest,
    Now,
    ToolDefinition,
    agent_of,
    fault,
    share_of,
    stamp,
    tool_agent,
)
from trunkline.shown import Question

# Decision 11: a person who is asked a hundred times stops reading.
MAX_OPEN_BY_ONE: Final = 5
APPROVE: Final = "approve"
# Names of one question, from when it was asked before: as many as somebody has on a screen.
MAX_NAMES: Final = 16


class Shown(Struct, frozen=True, kw_only=True):
    """All that a person is shown of a call. What differs in any of it is another question (decision 135).

    Made of a call that may be asked about (``judging``) and of one that is (``_shown_of``): neither can leave one out.
    """

    caller: str
    chain: tuple[str, ...]
    input_mac: str | None
    policy: str | None
    fingerprint: str | None
    circumstances: tuple[Circumstance, ...]
    rule: str
    reason: str
    context: Raw | None
    actor: Actor | None
    provider: str | None


class Approvals:
    """Asks, tells those who wait, takes answers and lets questions expire; the same for all four subjects."""

    def __init__(self, journal: Journal, timers: Timers[AlarmKey], in_force: InForce) -> None:
        self._journal = journal
        self._in_force = in_force
        self._timers = timers
        # The monotonic moment each question expires, and who waits for an answer that is not a call's.
        self._expires_at: dict[str, float] = {}
        self._waiters: dict[str, tuple[int, str]] = {}
        # Questions that wait until their agent has fewer open ones: by agent, then by subject and tool.
        self._held: dict[str, dict[tuple[str, str | None], QuestionOpened]] = {}
        # Those of them who had a question closed since ``open_held`` looked; in order.
        self.freed: dict[str, None] = {}

    # -- asking --------------------------------------------------------------------------------------------------------

    def refusal(self, asked_by: str) -> Fault | None:
        """Why this one may not ask anything more now."""
        if asked_by == OPERATOR:
            return None
        who = share_of(asked_by)
        count = sum(1 for q in self._journal.state.questions.values() if share_of(q.entry.asked_by) == who)
        if count < MAX_OPEN_BY_ONE:
            return None
        return fault("policy.denied", f"{asked_by} has {count} open questions already, the most one agent may have")

    def same_question(self, wanted: Shown) -> OpenQuestion | None:
        """An open question that shows exactly this."""
        state = self._journal.state
        for question in state.questions.values():
            entry = question.entry
            # Most differ in this already.
            if entry.subject == "call" and entry.input_mac == wanted.input_mac and question.calls:
                first = state.by_number[question.calls[0]]
                if _shown_of(replace(entry, rule=entry.rule or first.entry.rule), first) == wanted:
                    return question
        return None

    def ask_call(
        self,
        call: Call,
        policy: str,
        reason: str,
        now: Now,
        *,
        rule: str = "",
        provider: Tool | None = None,
        before: QuestionOpened | None = None,
    ) -> OpenQuestion:
        """Ask about an accepted call, or let it wait behind the same question.

        ``rule`` asks about it by now, if it is not the one of its acceptance; ``provider`` would serve it, if that is
        another tool; ``before`` is how it was asked so far.
        """
        entry, journal = call.entry, self._journal
        draft = _about_call(call, policy, reason)
        if provider is not None and provider.definition.tool_id != entry.tool_id:
            draft = replace(draft, provider=provider.definition.tool_id, provider_fingerprint=provider.fingerprint)
        same = self.same_question(_shown_of(replace(draft, rule=rule or entry.rule), call))
        if same is None:
            rule = "" if rule == entry.rule else rule
            return self._open(_named_after(before, replace(draft, rule=rule)), now)
        journal.write(
            entries.QuestionJoined(n=journal.next, at=now.ms, approval_id=same.entry.approval_id, call=entry.n)
        )
        return same

    def answer_by_policy(self, call: Call, policy: str, rule: str, now: Now) -> None:
        """Let go of a waiting call that new rules allow. A question of its own: others like it may have to wait on."""
        question = self._open(_about_call(call, policy, "the rules changed"), now)
        self.close(question, "approved", now, by=BY_POLICY, reason=f"allowed by {rule}")

    def ask_definition(
        self,
        agent: str,
        definition: ToolDefinition,
        fingerprint: str,
        now: Now,
        before: QuestionOpened | None = None,
    ) -> None:
        """Ask whether a changed definition is in force; once for each change."""
        question = self._about_definition(definition.tool_id)
        if question is not None and question.entry.fingerprint == fingerprint:
            return
        self.definition_settled(agent, definition.tool_id, "the definition changed again", now)
        draft = _draft("definition", agent, "the tool's definition changed since it was first seen or last approved")
        draft = replace(
            draft,
            tool_id=definition.tool_id,
            agent_id=definition.agent_id,
            fingerprint=fingerprint,
            definition=definition,
        )
        self._open_or_hold(_named_after(before, draft), now)

    def definition_settled(self, agent: str, tool_id: str, why: str, now: Now) -> None:
        """What was asked about this tool's definition is no longer the question."""
        self._held.get(agent, {}).pop(("definition", tool_id), None)
        question = self._about_definition(tool_id)
        if question is not None:
            self.close(question, "withdrawn", now, reason=why)

    def _about_definition(self, tool_id: str) -> OpenQuestion | None:
        for question in self._journal.state.questions.values():
            if question.entry.subject == "definition" and question.entry.tool_id == tool_id:
                return question
        return None

    def ask_manifest(
        self, agent: str, agent_id: str, manifest: Manifest, now: Now, before: QuestionOpened | None = None
    ) -> None:
        """Ask whether an agent gets the permissions of its manifest; once for each manifest."""
        for question in list(self._journal.state.questions.values()):
            entry = question.entry
            if entry.subject == "manifest" and entry.agent_id == agent_id:
                if entry.manifest_sha256 == manifest.sha256:
                    return
                self.close(question, "withdrawn", now, reason="the manifest changed again")
        draft = _draft("manifest", agent, "the agent's manifest asks for permissions")
        draft = replace(draft, agent_id=agent_id, manifest_sha256=manifest.sha256, permissions=manifest.permissions)
        self._open_or_hold(_named_after(before, draft), now)

    def about_permissions(self, agent_id: str) -> str | None:
        """The open question whether an agent gets the permissions of its manifest, once it may be told of."""
        for question in self.shown():
            if question.entry.subject == "manifest" and question.entry.agent_id == agent_id:
                return question.entry.approval_id
        return None

    def ask_directive(
        self, asked_by: str, tool_id: str, body: Raw | None, mac: str | None, reason: str, now: Now
    ) -> OpenQuestion:
        """Ask whether an agent's wish becomes a directive."""
        draft = _draft("directive", asked_by, reason)
        return self._open(replace(draft, tool_id=tool_id, input_mac=mac, input=body), now)

    def _open_or_hold(self, draft: QuestionOpened, now: Now) -> None:
        held = self._held.get(draft.asked_by)
        # Behind those that wait: one that nobody answers is asked again each time, and they would never be asked.
        if not held and self.refusal(draft.asked_by) is None:
            self._open(draft, now)
        else:
            self._held.setdefault(draft.asked_by, {})[draft.subject, draft.tool_id] = draft

    def open_held(self, now: Now) -> None:
        """The last thing of each event: ask what was held, of those who have fewer questions open by now."""
        freed, self.freed = self.freed, {}
        for asked_by in freed:
            held = self._held.get(asked_by, {})
            while held and self.refusal(asked_by) is None:
                self._open(held.pop(next(iter(held))), now)
            if not held:
                self._held.pop(asked_by, None)

    def _open(self, draft: QuestionOpened, now: Now) -> OpenQuestion:
        number = self._journal.next
        approval_id = f"a{number}"
        expires_ms = now.ms + int(self._in_force.settings.approval_expire_s * 1000)
        self._journal.write(replace(draft, n=number, at=now.ms, approval_id=approval_id, expires_ms=expires_ms))
        question = self._journal.state.questions[approval_id]
        self._set_alarm(question, now)
        return question

    def take_up(self, now: Now) -> None:
        """After a restart: the clocks go on. A question whose last call ended with the crash is withdrawn."""
        for question in list(self._journal.state.questions.values()):
            self._set_alarm(question, now)
            if question.entry.subject == "call":
                self.call_ended(question.entry.approval_id, now)

    def _set_alarm(self, question: OpenQuestion, now: Now) -> None:
        """Start the question's clock; after a restart, with what is left of it."""
        at = now.mono + seconds_left(question.entry.at, question.entry.expires_ms, now)
        self._expires_at[question.entry.approval_id] = at
        self._timers.arm(OfQuestion(question.entry.approval_id), at)

    # -- telling -------------------------------------------------------------------------------------------------------

    def say_waiting(self, call: Call, question: OpenQuestion, waiters: tuple[tuple[int, str], ...]) -> None:
        """Tell those who wait for a call that it waits for a person."""
        entry = question.entry
        after = question.trail[-1] if question.trail else entry.n
        for session, ref in waiters:
            self._journal.say(
                Wait(
                    session,
                    after,
                    ref,
                    call.entry.call_id,
                    call.status,
                    entry.approval_id,
                    _expires_ms(question, call),
                    call.entry.correlation_id,
                )
            )

    def await_answer(self, question: OpenQuestion, waiter: tuple[int, str]) -> None:
        """Somebody wants to hear the end of a question that is not about a call."""
        self._waiters[question.entry.approval_id] = waiter

    def take_waiter(self, approval_id: str) -> tuple[int, str] | None:
        """Who wanted to hear the end of a question that is not about a call."""
        return self._waiters.pop(approval_id, None)

    # -- answering -----------------------------------------------------------------------------------------------------

    def find(self, approval_id: str) -> OpenQuestion | None:
        """An open question by its name, or by one under which the same was asked before."""
        questions = self._journal.state.questions
        if (named := questions.get(approval_id)) is not None:
            return named
        return next((one for one in questions.values() if approval_id in one.entry.earlier), None)

    def try_answer(self, event: ApprovalAnswered, now: Now) -> OpenQuestion | Fault:
        """The question that is now closed by this answer, or why it is not (decision 10)."""
        question = self.find(event.approval_id)
        # What is not on disk was shown to nobody: who names it saw another one, which a crash took away.
        if question is None or not self._journal.state.is_shown(question):
            return fault("not_found", "there is no such open question; it may have been answered or have expired")
        by = event.by
        is_part = agent_of(by.identity) in map(agent_of, (question.entry.asked_by, *question.entry.chain))
        if not by.is_operator:
            if APPROVE not in by.permissions:
                return fault("not_allowed", f"{by.identity} may not answer questions")
            if is_part:
                return fault("not_allowed", "nobody answers a question that they are part of")
        if now.mono >= self._expires_at[question.entry.approval_id]:
            return fault("approval.expired")
        # A no is a no for whatever reason it is asked; a yes is to what was shown (decision 129).
        if event.approved and (changed := _what_changed(question.entry, event.approval_id)):
            name = question.entry.approval_id
            text = f"it is asked again as {name}, {changed}; `trunkline approve {name}` answers that"
            return fault("state.conflict", text, details={"approval_id": name})
        how = "approved" if event.approved else "denied"
        self.close(question, how, now, by=by.identity, reason=event.reason, same_person=is_part)
        return question

    def close(
        self, question: OpenQuestion, how: str, now: Now, *, by: str = "", reason: str = "", same_person: bool = False
    ) -> None:
        """Write the end of a question. What it held up is asked when all that follows from this is done."""
        approval_id, asked_by = question.entry.approval_id, question.entry.asked_by
        self._journal.write(
            entries.QuestionClosed(
                n=self._journal.next,
                at=now.ms,
                approval_id=approval_id,
                how=how,
                by=by,
                reason=reason,
                same_person=same_person,
            )
        )
        at = self._expires_at.pop(approval_id, None)
        if at is not None:
            self._timers.disarm(OfQuestion(approval_id), at)
        if asked_by in self._held:
            self.freed[asked_by] = None

    def is_due(self, approval_id: str, now: Now) -> OpenQuestion | None:
        """The question whose time is over, if it is."""
        question = self._journal.state.questions.get(approval_id)
        return question if question is not None and now.mono >= self._expires_at[approval_id] else None

    def withdraw_all(self, asked_by: str, reason: str, now: Now) -> list[OpenQuestion]:
        """Nobody answers what this one asked any more, whatever it was about; what it would have asked next is dropped.

        The questions that were withdrawn. Those about calls end with their calls.
        """
        self._held.pop(asked_by, None)
        own = [question for question in self._not_about_calls() if question.entry.asked_by == asked_by]
        return self._withdraw(own, BY_POLICY, reason, now)

    def withdraw_about(self, agent_id: str, reason: str, now: Now) -> list[OpenQuestion]:
        """The same of what was asked about an agent that is gone for good, and about its tools."""
        self._held = {
            asked_by: {named: draft for named, draft in held.items() if draft.agent_id != agent_id}
            for asked_by, held in self._held.items()
        }
        about = [
            question
            for question in self._not_about_calls()
            if agent_id in (question.entry.agent_id, tool_agent(question.entry.tool_id or ""))
        ]
        return self._withdraw(about, "", reason, now)

    def _not_about_calls(self) -> list[OpenQuestion]:
        return [question for question in self._journal.state.questions.values() if question.entry.subject != "call"]

    def _withdraw(self, questions: list[OpenQuestion], by: str, reason: str, now: Now) -> list[OpenQuestion]:
        for question in questions:
            self.close(question, "withdrawn", now, by=by, reason=reason)
        return questions

    def call_ended(self, approval_id: str, now: Now) -> None:
        """A call behind a question ended otherwise; a question with no call behind it is withdrawn."""
        question = self._journal.state.questions.get(approval_id)
        if question is not None and not question.calls:
            self.close(question, "withdrawn", now, reason="the call ended")

    # -- showing -------------------------------------------------------------------------------------------------------

    def shown(self) -> list[OpenQuestion]:
        """The open questions that are on disk, oldest first: a crash would give the name of another one to the next."""
        state = self._journal.state
        return [question for question in state.questions.values() if state.is_shown(question)]

    def shown_ids(self) -> list[str]:
        """Their names."""
        return [question.entry.approval_id for question in self.shown()]

    def views(self) -> list[Question]:
        """All open questions as a person is shown them, oldest first."""
        state = self._journal.state
        found: list[Question] = []
        for question in self.shown():
            entry = question.entry
            call = state.by_number.get(question.calls[0]) if question.calls else None
            pin = state.pins.get(entry.tool_id) if entry.tool_id and entry.subject == "definition" else None
            found.append(
                Question(
                    approval_id=entry.approval_id,
                    subject=entry.subject,
                    asked_by=entry.asked_by,
                    asked_at=stamp(entry.at),
                    expires_at=stamp(_expires_ms(question, call)),
                    reason=entry.reason,
                    tool_id=entry.tool_id,
                    agent_id=entry.agent_id,
                    call_id=None if call is None else call.entry.call_id,
                    chain=entry.chain,
                    input=entry.input if call is None else call.entry.input,
                    before=None if pin is None else _spelled_out(pin.definition),
                    after=None if entry.definition is None else _spelled_out(entry.definition),
                    permissions=entry.permissions,
                    waiting=max(1, len(question.calls)),
                    rule="" if call is None else entry.rule or call.entry.rule,
                    context=None if call is None else call.context,
                    actor=None if call is None else call.actor,
                    provider=entry.provider,
                )
            )
        return found


def _spelled_out(definition: ToolDefinition) -> Raw:
    """A definition for a person. The flags are spelled out: else a tool that begins to have side effects would only
    have one line less.
    """
    flags = {"side_effects": definition.side_effects, "requires_directive": definition.requires_directive}
    said = msgspec.json.decode(entries.encode(definition), type=dict[str, Raw])
    return Raw(msgspec.json.encode({**said, **flags}))


def _draft(subject: str, asked_by: str, reason: str) -> QuestionOpened:
    """A question without its terms; number, id and times come when it is opened."""
    return QuestionOpened(n=0, at=0, approval_id="", subject=subject, asked_by=asked_by, expires_ms=0, reason=reason)


def _about_call(call: Call, policy: str, reason: str) -> QuestionOpened:
    entry = call.entry
    return replace(
        _draft("call", entry.caller, reason),
        call=entry.n,
        tool_id=entry.tool_id,
        chain=entry.chain,
        input_mac=entry.input_mac,
        policy=policy,
        fingerprint=entry.fingerprint,
        beside=_beside(call),
    )


def _beside(call: Call) -> Raw | None:
    """What a call hands on beside its input, for the record: of a sensitive one only that there is something."""
    if call.context is None and call.actor is None:
        return None
    told = Beside() if call.entry.sensitive else Beside(call.context, call.actor)
    return Raw(msgspec.json.encode(told))


def _shown_of(entry: QuestionOpened, call: Call) -> Shown:
    """What is shown of a call, in a question whose rule is filled in."""
    return Shown(
        caller=entry.asked_by,
        chain=entry.chain,
        input_mac=entry.input_mac,
        policy=entry.policy,
        fingerprint=entry.fingerprint,
        circumstances=call.entry.circumstances,
        rule=entry.rule,
        reason=entry.reason,
        context=call.context,
        actor=call.actor,
        provider=entry.provider,
    )


def _said(entry: QuestionOpened) -> str:
    """The reason of a question and who would serve its call: what can be another when the same is asked again."""
    return entry.reason if entry.provider is None else f"{entry.reason} (served by {entry.provider})"


def _named_after(before: QuestionOpened | None, draft: QuestionOpened) -> QuestionOpened:
    """The draft of a question that was asked ``before``, with the names and the reasons that it had."""
    if before is None:
        return draft
    names, reasons = (*before.earlier, before.approval_id), (*before.earlier_reasons, _said(before))
    return replace(draft, earlier=names[-MAX_NAMES:], earlier_reasons=reasons[-MAX_NAMES:])


def _what_changed(entry: QuestionOpened, name: str) -> str:
    """How a question differs from what was shown under ``name``; empty if it does not.

    Whatever else it shows is what it is bound to: with another caller, tool, definition or input it is another one.
    """
    if name == entry.approval_id:
        return ""
    reasons = dict(zip(reversed(entry.earlier), reversed(entry.earlier_reasons), strict=False))
    if name not in reasons:
        return "and the rules have changed"
    said = _said(entry)
    if reasons[name] == said:
        return ""
    return f"for another reason: {said or 'none is given'} (before: {reasons[name] or 'none was given'})"


def _expires_ms(question: OpenQuestion, call: Call | None) -> int:
    """Until when an answer helps: a call ends with its own time, if that comes sooner (decision 11)."""
    own_ms = None if call is None else call.entry.expires_ms
    return question.entry.expires_ms if own_ms is None else min(own_ms, question.entry.expires_ms)
