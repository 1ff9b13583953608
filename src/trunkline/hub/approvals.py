"""Open questions to a person: who may answer, until when, and that an answer is used once.

Four subjects share one flow: a call that policy says to ask about, a tool definition that changed, the permissions a manifest
asks for, and a directive an agent would like to have. A question about a call is bound to caller, chain, tool, definition, input
and policy version; identical calls wait behind one question, and its answer covers the first of them.

Does not own what follows from an answer: the hub goes on from ``answer``'s verdict.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from trunkline import entries
from trunkline.entries import QuestionOpened
from trunkline.events import ApprovalAnswered
from trunkline.hub.book import Book
from trunkline.hub.state import Call, OpenQuestion
from trunkline.hub.timers import Timers
from trunkline.model import OPERATOR, Fault, Manifest, Now, Question, ToolDefinition, fault, stamp

# Decision 11: a person who is asked a hundred times stops reading.
MAX_OPEN_BY_ONE: Final = 5
APPROVE: Final = "approve"


class Approvals:
    """The open questions."""

    def __init__(self, book: Book, timers: Timers[int | str]) -> None:
        self._book = book
        self._timers = timers
        self.expire_s = 3600.0
        # The monotonic moment each question expires, and who waits for an answer that is not a call's.
        self._expires_at: dict[str, float] = {}
        self._waiters: dict[str, tuple[int, str]] = {}

    # -- asking --------------------------------------------------------------------------------------------------------

    def refusal(self, asked_by: str) -> Fault | None:
        """Why this one may not ask anything more now."""
        if asked_by == OPERATOR:
            return None
        count = sum(1 for q in self._book.state.questions.values() if q.entry.asked_by == asked_by)
        if count < MAX_OPEN_BY_ONE:
            return None
        return fault("policy.denied", f"{asked_by} has {count} open questions already, the most one agent may have")

    def same_question(self, caller: str, chain: tuple[str, ...], mac: str, policy: str, fingerprint: str) -> OpenQuestion | None:
        """An open question with exactly these terms."""
        for question in self._book.state.questions.values():
            entry = question.entry
            if (
                entry.subject == "call"
                and entry.input_mac == mac
                and entry.asked_by == caller
                and entry.chain == chain
                and entry.policy == policy
                and entry.fingerprint == fingerprint
            ):
                return question
        return None

    def ask_call(self, call: Call, policy: str, reason: str, now: Now) -> OpenQuestion:
        """Ask about an accepted call, or let it wait behind the same question."""
        entry, book = call.entry, self._book
        mac = entry.input_mac
        assert mac is not None
        same = self.same_question(entry.caller, entry.chain, mac, policy, entry.fingerprint)
        if same is not None:
            book.write(
                entries.QuestionJoined(n=book.next, at=now.ms, approval_id=same.entry.approval_id, call=entry.n)
            )
            return same
        expires_ms = now.ms + int(self.expire_s * 1000)
        if entry.expires_ms is not None:
            expires_ms = min(expires_ms, entry.expires_ms)
        return self._open(
            QuestionOpened(
                n=book.next,
                at=now.ms,
                approval_id=f"a{book.next}",
                subject="call",
                asked_by=entry.caller,
                expires_ms=expires_ms,
                reason=reason,
                call=entry.n,
                tool_id=entry.tool_id,
                chain=entry.chain,
                input_mac=mac,
                policy=policy,
                fingerprint=entry.fingerprint,
            ),
            now,
        )

    def ask_definition(self, agent: str, definition: ToolDefinition, fingerprint: str, now: Now) -> None:
        """Ask whether a changed definition is in force; once for each change."""
        for question in list(self._book.state.questions.values()):
            entry = question.entry
            if entry.subject == "definition" and entry.tool_id == definition.tool_id:
                if entry.fingerprint == fingerprint:
                    return
                self.close(question, "withdrawn", now, reason="the definition changed again")
        self._open(
            QuestionOpened(
                n=self._book.next,
                at=now.ms,
                approval_id=f"a{self._book.next}",
                subject="definition",
                asked_by=agent,
                expires_ms=now.ms + int(self.expire_s * 1000),
                reason="the tool's definition changed after it was approved",
                tool_id=definition.tool_id,
                agent_id=definition.agent_id,
                fingerprint=fingerprint,
                definition=definition,
            ),
            now,
        )

    def ask_manifest(self, agent: str, agent_id: str, manifest: Manifest, now: Now) -> None:
        """Ask whether an agent gets the permissions of its manifest; once for each manifest."""
        for question in list(self._book.state.questions.values()):
            entry = question.entry
            if entry.subject == "manifest" and entry.agent_id == agent_id:
                if entry.manifest_sha256 == manifest.sha256:
                    return
                self.close(question, "withdrawn", now, reason="the manifest changed again")
        self._open(
            QuestionOpened(
                n=self._book.next,
                at=now.ms,
                approval_id=f"a{self._book.next}",
                subject="manifest",
                asked_by=agent,
                expires_ms=now.ms + int(self.expire_s * 1000),
                reason="the agent's manifest asks for permissions",
                agent_id=agent_id,
                manifest_sha256=manifest.sha256,
                permissions=manifest.permissions,
            ),
            now,
        )

    def ask_directive(self, entry: QuestionOpened, waiter: tuple[int, str], now: Now) -> None:
        """Ask whether an agent's wish becomes a directive; ``waiter`` hears of it."""
        self._open(entry, now)
        self._waiters[entry.approval_id] = waiter

    def _open(self, entry: QuestionOpened, now: Now) -> OpenQuestion:
        self._book.write(entry)
        question = self._book.state.questions[entry.approval_id]
        self.set_alarm(question, now)
        return question

    def set_alarm(self, question: OpenQuestion, now: Now) -> None:
        """Start the question's clock; after a restart, with what is left of it."""
        at = now.mono + max(0.0, question.entry.expires_ms / 1000 - now.wall)
        self._expires_at[question.entry.approval_id] = at
        self._timers.arm(question.entry.approval_id, at)

    # -- answering -----------------------------------------------------------------------------------------------------

    def try_answer(self, event: ApprovalAnswered, now: Now) -> OpenQuestion | Fault:
        """The question that is now closed by this answer, or why it is not (decision 10)."""
        question = self._book.state.questions.get(event.approval_id)
        if question is None:
            return fault("not_found", "there is no such open question; it may have been answered or have expired")
        by = event.by
        if not by.is_operator:
            if APPROVE not in by.permissions:
                return fault("not_allowed", f"{by.identity} may not answer questions")
            if by.identity == question.entry.asked_by or by.identity in question.entry.chain:
                return fault("not_allowed", "nobody answers a question that they are part of")
        if now.mono >= self._expires_at[event.approval_id]:
            return fault("approval.expired")
        same_person = by.identity == question.entry.asked_by or by.identity in question.entry.chain
        self.close(
            question,
            "approved" if event.approved else "denied",
            now,
            by=by.identity,
            reason=event.reason,
            same_person=same_person,
        )
        return question

    def close(
        self, question: OpenQuestion, how: str, now: Now, *, by: str = "", reason: str = "", same_person: bool = False
    ) -> None:
        """Write the end of a question."""
        approval_id = question.entry.approval_id
        self._book.write(
            entries.QuestionClosed(
                n=self._book.next,
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
            self._timers.disarm(approval_id, at)

    def is_due(self, approval_id: str, now: Now) -> OpenQuestion | None:
        """The question whose time is over, if it is."""
        question = self._book.state.questions.get(approval_id)
        return question if question is not None and now.mono >= self._expires_at[approval_id] else None

    def take_waiter(self, approval_id: str) -> tuple[int, str] | None:
        """Who wanted to hear the end of a question that is not about a call."""
        return self._waiters.pop(approval_id, None)

    def call_ended(self, approval_id: str, now: Now) -> None:
        """A call behind a question ended otherwise; a question with no call behind it is withdrawn."""
        question = self._book.state.questions.get(approval_id)
        if question is not None and not question.calls:
            self.close(question, "withdrawn", now, reason="the call ended")

    # -- showing -------------------------------------------------------------------------------------------------------

    def views(self) -> list[Question]:
        """All open questions as a person is shown them, oldest first."""
        state = self._book.state
        found: list[Question] = []
        for question in state.questions.values():
            entry = question.entry
            call = state.by_number.get(question.calls[0]) if question.calls else None
            pin = state.pins.get(entry.tool_id) if entry.tool_id and entry.subject == "definition" else None
            found.append(
                Question(
                    approval_id=entry.approval_id,
                    subject=entry.subject,
                    asked_by=entry.asked_by,
                    asked_at=stamp(entry.at),
                    expires_at=stamp(entry.expires_ms),
                    reason=entry.reason,
                    tool_id=entry.tool_id,
                    agent_id=entry.agent_id,
                    call_id=None if call is None else call.entry.call_id,
                    chain=entry.chain,
                    input=entry.input if call is None else call.entry.input,
                    before=None if pin is None else Raw(entries.encode(pin.definition)),
                    after=None if entry.definition is None else Raw(entries.encode(entry.definition)),
                    permissions=entry.permissions,
                    waiting=max(1, len(question.calls)),
                )
            )
        return found
