"""What people decide: answers to questions, directives, tokens, rules.

Owns what follows from an answer: the call goes on or ends, the definition is in force or stays held back. Does not own
the questions themselves (``approvals``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline import entries, events
from trunkline.effects import Close
from trunkline.entries import QuestionOpened
from trunkline.hub.approvals import Approvals
from trunkline.hub.calls import Calls
from trunkline.hub.credentials import Credentials
from trunkline.hub.idempotency import Fingerprints
from trunkline.hub.in_force import InForce
from trunkline.hub.journal import Journal
from trunkline.hub.policy import Judge
from trunkline.hub.registry import Registry, Tool
from trunkline.hub.state import BY_POLICY, Call, OpenQuestion
from trunkline.hub.timers import seconds_left
from trunkline.model import Decision, Fault, Manifest, Now, Status, Verdict, fault, reserved_prefix, tool_agent

# Decision 13: long enough to type the call, short enough that a forgotten intent is worth nothing tomorrow.
DIRECTIVE_LIFE_S: Final = 3600.0
# What the id of a directive begins with; what caused a call may also be another call.
_DIRECTIVE: Final = "d-"
_UNKNOWN: Final = "there is no such directive: never stated here, or long ago"
_NO_DIRECTIVE: Final = "needs a directive, and what it names is none: their ids begin with d-"
_USED: Final = "the directive was used: each is good for one call"
# Keys of one agent on one edge that are good at the same time: the one in use, and the one that takes its place.
MAX_KEYS_EACH: Final = 2


class Control:
    """One method for each event that a person causes; and what a change of the rules means for open questions."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        calls: Calls,
        approvals: Approvals,
        credentials: Credentials,
        fingerprints: Fingerprints,
        judge: Judge,
        in_force: InForce,
        new_id: Callable[[], str],
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._registry = registry
        self._calls = calls
        self._approvals = approvals
        self._credentials = credentials
        self._fingerprints = fingerprints
        self._judge = judge
        self._in_force = in_force
        self._new_id = new_id
        # The monotonic moment each directive expires.
        self._directives_until: dict[str, float] = {}

    def take_up(self, now: Now) -> None:
        """After a restart: clocks go on, and what was asked under other rules is judged by these."""
        for directive in self._state.directives.values():
            left_s = seconds_left(directive.at, directive.expires_ms, now)
            self._directives_until[directive.directive_id] = now.mono + left_s
        self._approvals.take_up(now)
        self.judge_questions_anew(now)
        # The crash came between the call and its question, or between an answer and what follows from it.
        waiting = (call for call in self._state.calls.values() if call.status is Status.WAITING_APPROVAL)
        self._judge_anew([call for call in waiting if call.approval_id is None], now)

    # -- answers -------------------------------------------------------------------------------------------------------

    def approval_answered(self, event: events.ApprovalAnswered, now: Now) -> None:
        """A person answers a question."""
        question = self._approvals.try_answer(event, now)
        if isinstance(question, Fault):
            self._journal.reply(event.session, event.ref, 0, problem=question)
            return
        if event.approved:
            self._approved(question, now)
        else:
            self._turned_down(question, fault("policy.denied", event.reason or "a person said no"), now)
        # Told only when what follows from the answer is on disk as well: a crash between the two asks again.
        self._journal.reply(
            event.session,
            event.ref,
            self._state.last,
            named=question.entry.approval_id,
            status="approved" if event.approved else "denied",
        )

    def question_due(self, approval_id: str, now: Now) -> None:
        """Nobody answered in time."""
        question = self._approvals.is_due(approval_id, now)
        if question is not None:
            self._approvals.close(question, "expired", now)
            self._turned_down(question, fault("approval.expired"), now)
            self._ask_again(question.entry, now)

    def _ask_again(self, entry: QuestionOpened, now: Now) -> None:
        """What an agent still waits for would else be open to nobody's answer until the agent comes anew."""
        if entry.definition is not None and entry.fingerprint is not None:
            tool = self._registry.tools.get(entry.definition.tool_id)
            if tool is not None and tool.agent is not None and tool.suspended and tool.fingerprint == entry.fingerprint:
                self._approvals.ask_definition(entry.asked_by, entry.definition, entry.fingerprint, now, entry)
        elif entry.agent_id is not None and entry.manifest_sha256 is not None:
            agent = self._registry.agents.get(entry.agent_id)
            if agent is not None and agent.manifest_sha256 == entry.manifest_sha256:
                manifest = Manifest(entry.manifest_sha256, entry.permissions)
                self._approvals.ask_manifest(entry.asked_by, entry.agent_id, manifest, now, entry)

    def _approved(self, question: OpenQuestion, now: Now) -> None:
        entry = question.entry
        match entry.subject:
            case "call":
                first, *rest = [self._state.by_number[number] for number in question.calls]
                # The answer covered one call; those behind it are asked about anew, each for its own reason: in an
                # older record they may have been identical in less than what is shown.
                self._judge_anew(rest, now)
                if entry.beside is not None and first.context is None and first.actor is None:
                    problem = fault("call.expired", "what came with its sensitive input is not on record any more")
                    self._calls.settle(first, Status.FAILED, now, fault=problem)
                else:
                    self._calls.send_or_wait(first, now)
            case "definition":
                self._definition_approved(entry, now)
            case "manifest":
                self._permissions_approved(entry, now)
            case _:
                assert entry.tool_id is not None
                directive_id = self._write_directive(entry.tool_id, entry.asked_by, entry.reason, entry.input_mac, now)
                self._tell_waiter(entry.approval_id, directive_id=directive_id)

    def _ask(
        self, call: Call, verdict: Verdict, provider: Tool | None, now: Now, before: QuestionOpened | None = None
    ) -> None:
        policy = self._in_force.settings.policy.version
        question = self._approvals.ask_call(
            call, policy, verdict.reason, now, rule=verdict.rule, provider=provider, before=before
        )
        self._approvals.say_waiting(call, question, call.waiters)

    def _turned_down(self, question: OpenQuestion, problem: Fault, now: Now) -> None:
        for number in list(question.calls):
            call = self._state.by_number.get(number)
            if call is not None:
                self._calls.settle(call, Status.FAILED, now, fault=problem)
        self._tell_waiter(question.entry.approval_id, problem=problem)

    def _tell_waiter(self, approval_id: str, *, directive_id: str | None = None, problem: Fault | None = None) -> None:
        waiter = self._approvals.take_waiter(approval_id)
        if waiter is not None:
            self._journal.reply(*waiter, self._state.last, problem=problem, named=directive_id, status="stated")

    def _definition_approved(self, entry: QuestionOpened, now: Now) -> None:
        definition, fingerprint = entry.definition, entry.fingerprint
        assert definition is not None
        assert fingerprint is not None
        self._journal.write(
            entries.ToolPinned(
                n=self._journal.next,
                at=now.ms,
                definition=definition,
                fingerprint=fingerprint,
                approval_id=entry.approval_id,
            )
        )
        tool = self._registry.tools.get(definition.tool_id)
        if tool is not None and tool.fingerprint == fingerprint:
            self._let_be_called(tool, now)

    def _let_be_called(self, tool: Tool, now: Now) -> None:
        tool.suspended = False
        self._registry.version += 1
        self._judge.forget()
        self._calls.tools_are_back((tool.definition.tool_id,), now)

    def release_unpinned(self, now: Now) -> None:
        """Put in force what was held back of agents whose definitions are not pinned by now: nobody is asked any more.

        Of one that is away nothing is held: its tools are looked at when it offers them.
        """
        unpinned = self._in_force.settings.unpinned_agents
        for tool in list(self._registry.tools.values()):
            agent = tool.agent
            if agent is None or not tool.suspended or agent.agent_id not in unpinned:
                continue
            definition = tool.definition
            why = "definitions of this agent are not pinned any more"
            self._approvals.definition_settled(agent.identity, definition.tool_id, why, now)
            self._journal.write(
                entries.ToolPinned(n=self._journal.next, at=now.ms, definition=definition, fingerprint=tool.fingerprint)
            )
            self._let_be_called(tool, now)

    def _permissions_approved(self, entry: QuestionOpened, now: Now) -> None:
        assert entry.agent_id is not None
        assert entry.manifest_sha256 is not None
        self._journal.write(
            entries.PermissionsGranted(
                n=self._journal.next,
                at=now.ms,
                agent_id=entry.agent_id,
                manifest_sha256=entry.manifest_sha256,
                permissions=entry.permissions,
            )
        )
        agent = self._registry.agents.get(entry.agent_id)
        if agent is not None and agent.manifest_sha256 == entry.manifest_sha256:
            agent.permissions = entry.permissions
        self._judge.forget()

    # -- rules ---------------------------------------------------------------------------------------------------------

    def policy_in_force(self, now: Now) -> None:
        """Write down the rules that hold from here on."""
        self._judge.forget()
        rules = self._in_force.settings.policy
        self._journal.write(
            entries.PolicyChanged(
                n=self._journal.next,
                at=now.ms,
                version=rules.version,
                rules=rules.rules,
                policy_bundle_id=rules.policy_bundle_id,
            )
        )

    def judge_questions_anew(self, now: Now) -> None:
        """An answer is bound to the rules it was asked under; with other rules each waiting call is judged again."""
        version = self._in_force.settings.policy.version
        for question in list(self._state.questions.values()):
            if question.entry.subject != "call" or question.entry.policy == version:
                continue
            calls = [self._state.by_number[number] for number in question.calls]
            self._approvals.close(question, "withdrawn", now, by=BY_POLICY, reason="the rules changed")
            self._judge_anew(calls, now, question.entry)

    def _judge_anew(self, calls: list[Call], now: Now, before: QuestionOpened | None = None) -> None:
        """Calls that were behind one question: each goes on, ends, or is asked about by the rules of now."""
        version = self._in_force.settings.policy.version
        to_ask: list[tuple[Call, Verdict, Tool | None]] = []
        for call in calls:
            entry = call.entry
            pin = self._state.pins.get(entry.tool_id)
            if pin is None or pin.fingerprint != entry.fingerprint:
                problem = fault("policy.denied", "the tool's definition changed")
                self._calls.settle(call, Status.FAILED, now, fault=problem)
                continue
            verdict, provider = self._calls.with_provider(self._judge.verdict_now(pin.definition, entry), call, now)
            if verdict.fault is not None:
                self._calls.settle(call, Status.FAILED, now, fault=verdict.fault)
            elif verdict.decision is Decision.ASK:
                to_ask.append((call, verdict, provider))
            else:
                self._approvals.answer_by_policy(call, version, verdict.rule, now)
                self._calls.send_or_wait(call, now)
        # Last: what policy answers is a question for a moment, and takes the place of the one that was closed.
        for call, verdict, provider in to_ask:
            self._ask(call, verdict, provider, now, before)

    # -- intents and credentials ---------------------------------------------------------------------------------------

    def directive_for(self, event: events.CallRequested, now: Now) -> str | Fault:
        """The unused directive that this call names (decision 13), or why it is none."""
        named = event.causation_id or ""
        how = f"`trunkline directive new {event.tool_id} --reason WHY` states one"
        stated = self._state.directives.get(named)
        if stated is None:
            if named in self._directives_until:
                return fault("policy.directive_required", f"{_USED}; {how}")
            why = _UNKNOWN if named.startswith(_DIRECTIVE) else _NO_DIRECTIVE if named else "needs a directive"
            return fault("policy.directive_required", f"{why}; {how}")
        if stated.tool_id != event.tool_id:
            return fault("policy.directive_required", f"the directive was stated for {stated.tool_id}")
        if now.mono >= self._directives_until[stated.directive_id]:
            return fault("policy.directive_required", f"the directive has expired; {how}")
        mac = stated.input_mac
        if mac is not None and mac != self._fingerprints.input_mac(event.tool_id, event.input):
            return fault("policy.directive_required", "the directive was stated for another input")
        return stated.directive_id

    def directive_stated(self, event: events.DirectiveStated, now: Now) -> None:
        """A person states an intent for one call."""
        if not event.by.is_operator:
            problem = fault("not_allowed", "only the operator states directives")
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        if event.tool_id not in self._registry.tools and event.tool_id not in self._state.pins:
            self._journal.reply(event.session, event.ref, 0, problem=fault("tool.not_found"))
            return
        mac = None if event.input is None else self._fingerprints.input_mac(event.tool_id, event.input)
        directive_id = self._write_directive(event.tool_id, event.by.identity, event.reason, mac, now)
        self._journal.reply(event.session, event.ref, self._state.last, named=directive_id, status="stated")

    def directive_requested(self, event: events.DirectiveRequested, now: Now) -> None:
        """An agent would like one; a person decides (OS-158)."""
        problem = self._approvals.refusal(event.by.identity)
        if problem is not None:
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        mac = None if event.input is None else self._fingerprints.input_mac(event.tool_id, event.input)
        question = self._approvals.ask_directive(event.by.identity, event.tool_id, event.input, mac, event.reason, now)
        self._approvals.await_answer(question, (event.session, event.ref))

    def _write_directive(self, tool_id: str, by: str, reason: str, mac: str | None, now: Now) -> str:
        directive_id = f"{_DIRECTIVE}{self._new_id()}"
        self._journal.write(
            entries.DirectiveStated(
                n=self._journal.next,
                at=now.ms,
                directive_id=directive_id,
                by=by,
                tool_id=tool_id,
                reason=reason,
                expires_ms=now.ms + int(DIRECTIVE_LIFE_S * 1000),
                input_mac=mac,
            )
        )
        unused = self._state.directives
        # Of a used one it is remembered for as long as it would have been good.
        self._directives_until = {
            known: at for known, at in self._directives_until.items() if known in unused or now.mono < at
        }
        self._directives_until[directive_id] = now.mono + DIRECTIVE_LIFE_S
        return directive_id

    def token_issued(self, event: events.TokenIssued, now: Now) -> None:
        """The operator makes a standing credential."""
        if not event.by.is_operator:
            problem = fault("not_allowed", "only the operator makes tokens")
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        prefix = reserved_prefix(event.agent)
        if prefix:
            problem = fault("message.malformed", f"agent: ids of {prefix} are the exchange's own")
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        standing = self._credentials.standing_of(f"{event.edge}:{event.agent}")
        keys = [token.token_id for token in standing if token.public is not None]
        if event.public is not None and len(keys) >= MAX_KEYS_EACH:
            text = f"{event.agent} has {' and '.join(keys)} already; `trunkline token revoke {keys[0]}` ends the oldest"
            problem = fault("state.conflict", text)
            self._journal.reply(event.session, event.ref, standing[-1].n, problem=problem)
            return
        token_id = f"t{self._journal.next}"
        number = self._journal.write(
            entries.TokenIssued(
                n=self._journal.next,
                at=now.ms,
                token_id=token_id,
                edge=event.edge,
                agent=event.agent,
                sha256=event.token_sha256,
                permissions=event.permissions,
                type=event.type,
                public=event.public,
            )
        )
        self._credentials.index()
        self._judge.forget()
        self._journal.reply(event.session, event.ref, number, named=token_id, status="issued")

    def token_revoked(self, event: events.TokenRevoked, now: Now) -> None:
        """The operator takes one back; a session that came in with it ends."""
        if not event.by.is_operator:
            problem = fault("not_allowed", "only the operator revokes tokens")
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        token = self._state.tokens.get(event.token_id)
        # One that is not on disk was shown to nobody (decision 135).
        if token is None or token.n > self._state.stored or event.token_id in self._state.revoked:
            problem = fault("not_found", "there is no such token; `trunkline token list` shows them")
            self._journal.reply(event.session, event.ref, 0, problem=problem)
            return
        number = self._journal.write(entries.TokenRevoked(n=self._journal.next, at=now.ms, token_id=event.token_id))
        self._credentials.index()
        self._judge.forget()
        for agent in self._registry.agents.values():
            if agent.credential == event.token_id:
                self._journal.say(Close(agent.session, number, "protocol.unauthorized"))
        identity = f"{token.edge}:{token.agent}"
        if self._credentials.is_revoked(identity):
            self._let_go_of(identity, now)
        self._journal.reply(event.session, event.ref, self._state.last, named=event.token_id, status="revoked")

    def _let_go_of(self, identity: str, now: Now) -> None:
        """The last token of an identity is gone: what waits on its behalf ends. What runs was sent, and goes on."""
        problem = fault("policy.denied", f"the token of {identity} was revoked")
        for call in list(self._state.calls.values()):
            if call.status is not Status.RUNNING and identity in (*call.entry.chain, call.entry.caller):
                self._calls.deny(call, problem, now)
        for question in self._approvals.withdraw_all(identity, "the token was revoked", now):
            self._tell_waiter(question.entry.approval_id, problem=problem)

    def agent_removed(self, event: events.AgentRemoved, now: Now) -> None:
        """A person takes away an agent of the exchange's own: what waits for it ends, and is told why.

        An agent that gets the same name later is another one: nothing that was asked of this one is done by it.
        """
        problem = fault("tool.not_found", event.reason)
        for call in list(self._state.calls.values()):
            if call.status is not Status.RUNNING and tool_agent(call.entry.tool_id) == event.agent_id:
                self._calls.deny(call, problem, now)
        for question in self._approvals.withdraw_about(event.agent_id, event.reason, now):
            self._tell_waiter(question.entry.approval_id, problem=problem)
        self._registry.forget(event.agent_id)
