"""Why something in a space is as it is: why a person is asked, why it is refused, and what was said of it before.

Reads the exchange's views and the rules of the spaces; changes nothing and remembers nothing. Runs ask it
(``process.Reasons``), and so do the spaces' agents before they begin what a person approved (``shown_before``).

Owns the words of these answers. Does not own the decisions: those are ``workspace.policy``'s and the hub's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges.exchange import Feed, Views
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.edges.spaces.process import AGAIN, Run, index_of
from trunkline.effects import Deliver, Wait
from trunkline.model import Decision, Fault, Verdict, stamp

# Entries that say that a call waits for a person.
QUESTIONS: Final = frozenset({"question.opened", "question.joined"})


class Reasons:
    """Of all spaces. ``agents`` are those that are there, by the names of their spaces."""

    def __init__(self, feed: Feed, views: Views, agents: Mapping[str, SpaceAgent]) -> None:
        self._feed = feed
        self._views = views
        self._agents = agents
        # Why there is no shell here; empty if there is one.
        self.no_shell = ""

    def shown_before(self, delivery: Deliver) -> list[str]:
        """With which reasons a person was asked about this call, by what is on record."""
        recorded = [_read_recorded(line) for line in self._views.entries(call_id=delivery.call_id)]
        return [entry.reason for entry in recorded if entry.kind == "question.opened"]

    def why_asked(self, run: Run, operation: Mapping[str, Any], wait: Wait) -> translate.Why:
        """Why a person is asked: by the space's rules, or else by those of the exchange."""
        question = self._views.question(wait.approval_id or "")
        return self._why(
            run,
            operation,
            wait.approval_id or "",
            "" if question is None else question.reason,
            stamp(self._feed.now().ms) if question is None else question.asked_at,
            wait.expires_ms,
            "" if question is None else question.rule,
        )

    def _why(
        self,
        run: Run,
        operation: Mapping[str, Any],
        approval_id: str,
        reason: str,
        asked_at: str,
        expires_ms: int | None,
        asked_by_rule: str = "",
    ) -> translate.Why:
        tool_id, body = translate.tool_id(run.space, operation["type"]), translate.tool_input(operation)
        agent = self._agents.get(run.space)
        own = None if agent is None else agent.judge(tool_id, body)
        if own is not None and own.decision is Decision.ASK:
            # As it was asked, if by this rule: there the hashes of scripts are in it.
            reason = reason if reason.startswith(own.reason) else own.reason
            rule, suggestion = own.rule, own.suggestion
        else:
            rule, suggestion = asked_by_rule or self._check(run, tool_id, None).rule, None
        expires_at = None if expires_ms is None else stamp(expires_ms)
        return translate.Why(rule, reason, asked_at, approval_id, expires_at, suggestion)

    def why_refused(self, run: Run, operation: Mapping[str, Any]) -> Fault | None:
        """Why such an operation would be refused now, if it would."""
        tool_id = translate.tool_id(run.space, operation["type"])
        return self._check(run, tool_id, translate.tool_input(operation)).fault

    def _check(self, run: Run, tool_id: str, body: Raw | None) -> Verdict:
        return self._views.check(run.caller, tool_id, body, run.on_behalf_of)

    def why_denied(self, delivery: Deliver) -> Fault | None:
        """Why a delivery that waited for its turn must not be carried out any more, if it must not."""
        return self._views.denied(delivery.call_id)

    def on_record(self, run: Run) -> dict[str, list[translate.Why]]:
        """Which operations of a run became calls, and what a person was asked about each, by what is on record."""
        found: dict[str, list[translate.Why]] = {}
        calls: dict[int, str] = {}
        recorded = [_read_recorded(line) for line in self._views.entries(correlation_id=run.run_id)]
        # Changed rules may say yes to a call that waits: nobody was asked that.
        by_rules = {entry.approval_id for entry in recorded if entry.how == "approved" and entry.by == "policy"}
        for entry in recorded:
            owner, _, ref = (entry.key or "").rpartition("/")
            # Correlations and keys are the callers' to choose: somebody else's say nothing about this run.
            if owner == run.run_id and entry.caller == run.caller and ref.removesuffix(AGAIN).isdecimal():
                calls[entry.n] = ref
                found[ref] = []
            elif entry.kind in QUESTIONS and entry.call in calls and entry.approval_id not in by_rules:
                ref = calls[entry.call]
                operation = run.operations[index_of(ref)]
                # Of a question that another call opened, only that one's entry says until when it is open.
                found[ref].append(
                    self._why(run, operation, entry.approval_id, entry.reason, stamp(entry.at), entry.expires_ms)
                )
        return found


class _Recorded(msgspec.Struct):
    """Of an entry, the key of a call and whose it is, or the question that a call waited for."""

    kind: str
    n: int
    at: int
    key: str | None = None
    caller: str = ""
    call: int | None = None
    approval_id: str = ""
    reason: str = ""
    expires_ms: int | None = None
    how: str = ""
    by: str = ""


_read_recorded: Final = msgspec.json.Decoder(_Recorded).decode
