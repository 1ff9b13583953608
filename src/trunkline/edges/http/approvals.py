"""``/v1/approvals``: a person looks at questions, answers one, or has the rule written that answers it from now on.

Owns these routes. Does not own who may ask (``routes`` and its gate), what an answer is bound to (the hub), nor which
rule fits a question (``standing_rules``).

Invariant: a rule is written only if it is, word for word, the one that the person says was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trunkline.edges.answers import Handler, Refused, json_answer, principal_of, refusal
from trunkline.edges.bodies import clip, read_as
from trunkline.edges.exchange import Feed, Operator, Views
from trunkline.edges.http import absent, messages
from trunkline.edges.http.translate import plain
from trunkline.edges.waiting import ask
from trunkline.errors import ConfigError
from trunkline.events import ApprovalAnswered
from trunkline.model import NOBODY, Behalf, Circumstance, Principal, fault
from trunkline.rule_remarks import described
from trunkline.shown import Question
from trunkline.standing_rules import NoStandingRule, StandingRule, also_let_go, rule_for

_NO_RULE: Final = "the call is approved, and no rule was written"


class ApprovalRoutes:
    """Questions and their answers, over one exchange."""

    def __init__(self, feed: Feed, views: Views, operator: Operator) -> None:
        self._feed = feed
        self._views = views
        self._operator = operator

    def table(self, approver: str, operator: str) -> dict[str, dict[str, tuple[str, Handler]]]:
        """The routes: who has the first permission may answer, who has the second may write rules."""
        return {
            "/v1/approvals": {"GET": (approver, self.approvals)},
            "/v1/approvals/{approval_id}": {"GET": (approver, self.approval), "POST": (approver, self.answer)},
            "/v1/approvals/{approval_id}/rule": {"GET": (operator, self.rule), "POST": (operator, self.allow)},
        }

    async def approvals(self, _: Request) -> Response:
        """``GET /v1/approvals``: the open questions, with everything their answer would be about."""
        return json_answer({"approvals": self._views.questions()})

    async def approval(self, request: Request) -> Response:
        """``GET /v1/approvals/{id}``."""
        return json_answer(self._question(request.path_params["approval_id"]))

    def _question(self, approval_id: str) -> Question:
        question = self._views.question(approval_id)
        if question is None:
            raise Refused(absent.question(approval_id, self._views.last_entry()))
        return question

    async def answer(self, request: Request) -> Response:
        """``POST /v1/approvals/{id}``."""
        body = await read_as(request, messages.AnswerBody, messages.MAX_BODY_BYTES)
        approval_id: str = request.path_params["approval_id"]
        question = self._question(approval_id)
        by, approved, reason = principal_of(request), body.decision == "approved", body.reason or ""
        await self._answered(by, approval_id, approved=approved, reason=reason)
        shape: dict[str, object] = {
            "approval_id": question.approval_id,
            "decision": body.decision,
            "subject": question.subject,
        }
        if question.approval_id != approval_id:
            shape["earlier_id"] = approval_id
        if question.call_id is not None:
            shape["call_id"] = question.call_id
        if question.waiting > 1:
            shape["still_waiting"] = question.waiting - 1
        return json_answer(shape)

    async def _answered(self, by: Principal, approval_id: str, *, approved: bool, reason: str = "") -> None:
        reply = await ask(
            self._feed, lambda session, ref: ApprovalAnswered(session, ref, by, approval_id, approved, reason)
        )
        if reply.fault is not None:
            raise Refused(reply.fault)

    async def rule(self, request: Request) -> Response:
        """``GET /v1/approvals/{id}/rule``: the rules that would allow from now on what is asked. Nothing changes."""
        question = self._question(request.path_params["approval_id"])
        rule = self._rule_for(question, request.query_params.get("also_untrusted") == "true")
        also = also_let_go(rule, question, self._views.questions())
        passed_over = [described(one) for one in rule.passed_over(self._operator.policy().rules)]
        shown = {"rule": rule.text, "also": also, "passed_over": passed_over, "approval_id": question.approval_id}
        return json_answer(shown)

    async def allow(self, request: Request) -> Response:
        """``POST /v1/approvals/{id}/rule``: the same, written; what was shown has to be said. The call may go on."""
        body = await read_as(request, messages.RuleBody, messages.MAX_BODY_BYTES)
        approval_id: str = request.path_params["approval_id"]
        question = self._question(approval_id)
        rule = self._rule_for(question, body.also_untrusted)
        if rule.text != body.rule:
            return refusal(fault("state.conflict", "the rules have changed since this one was shown; look again"))
        also = also_let_go(rule, question, self._views.questions())
        try:
            self._operator.check_rule(rule)
        except NoStandingRule as none:
            return refusal(fault("state.conflict", clip(str(none)), details={"rule": none.rule}))
        # First the answer to this question, which is this person's; the others are let go by the rules.
        # By the name that he has seen: what was asked under it may have been another reason (decision 129).
        await self._answered(principal_of(request), approval_id, approved=True, reason=body.reason or "")
        try:
            self._operator.put_in_force(rule)
        except NoStandingRule as none:
            return refusal(fault("state.conflict", clip(f"{_NO_RULE}: {none}"), details={"rule": none.rule}))
        except ConfigError as error:
            return refusal(fault("config.invalid", clip(f"{_NO_RULE}: {error}")))
        shape = {"approval_id": question.approval_id, "call_id": question.call_id, "rule": rule.text, "also": also}
        if question.approval_id != approval_id:
            shape["earlier_id"] = approval_id
        return json_answer(shape)

    def _rule_for(self, question: Question, also_untrusted: bool) -> StandingRule:
        behalf = Behalf(circumstances=(Circumstance.UNTRUSTED,)) if also_untrusted else NOBODY

        def check(caller: str) -> Mapping[str, Any]:
            return plain(self._views.check(caller, question.tool_id or "", question.input, behalf))

        rules = plain(self._operator.policy())["rules"]
        try:
            return rule_for(plain(question), rules, check, also_untrusted=also_untrusted)
        except NoStandingRule as none:
            raise Refused(fault("state.conflict", clip(str(none)))) from None
