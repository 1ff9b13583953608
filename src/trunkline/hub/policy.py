"""Rules to allow, ask or deny. Deny unless a rule says otherwise.

The whole chain is judged: each caller in it must be allowed, and the strictest answer wins, so nobody gets through
another what they may not do themselves. What a rule denies an agent on one edge, or asks about, holds whichever of its
identities it uses (decision 59). Permissions that a tool requires are judged before the rules, and whose last
token was revoked is denied everything. Policy reads who calls, which tool, whether it has side effects and under which
circumstances; of a body only what a rule names (``input_conditions``).

Does not own approvals (``approvals``) or directives: a decision says *ask*, others do the asking. The functions are the
rules; ``Judge`` remembers their answers until something they depend on changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from trunkline.entries import CallAccepted
from trunkline.hub.credentials import Credentials
from trunkline.hub.in_force import InForce
from trunkline.hub.registry import Registry, Tool
from trunkline.input_conditions import fulfilled, matches, shown
from trunkline.model import (
    EMPTY_OBJECT,
    OPERATOR,
    Circumstances,
    Decision,
    Guard,
    Policy,
    Rule,
    ToolDefinition,
    Verdict,
    fault,
    tool_agent,
)

_STRICTNESS: Final = {Decision.ALLOW: 0, Decision.ASK: 1, Decision.DENY: 2}
# What stands for a rule in the verdict about somebody whose last token was revoked.
REVOKED: Final = "token"
# The same about somebody who lacks a permission.
LACKING: Final = "permissions"
# Verdicts remembered for one tool. Callers are few, but the chains that agents make of them are not.
MAX_VERDICTS: Final = 1024

# Which permissions an identity holds, and by which names rules may speak of it.
Permissions = Callable[[str], tuple[str, ...]]
Names = Callable[[str], tuple[str, ...]]
# Whether an identity had tokens and has none any more.
IsRevoked = Callable[[str], bool]


class GivenInput:
    """The input of a call that is judged, read when a rule wants to know."""

    __slots__ = ("_body", "_value")

    def __init__(self, body: Raw, value: Any = None) -> None:
        self._body = body
        self._value = value

    def fulfils(self, rule: Rule) -> bool:
        """Whether the input is what this rule speaks of."""
        if self._value is None:
            try:
                self._value = msgspec.json.decode(self._body)
            except msgspec.DecodeError:
                # Refused further on; until then it is nothing that a rule speaks of.
                self._value = ()
        return fulfilled(rule.input, self._value, allows=rule.decision is Decision.ALLOW)


def only_itself(caller: str) -> tuple[str, ...]:
    """The names of somebody who has no type."""
    return (caller,)


def nobody(_caller: str) -> bool:
    """Where no tokens are known, none was revoked."""
    return False


def first_match(
    policy: Policy,
    caller: str,
    definition: ToolDefinition,
    circumstances: Circumstances,
    names: Names = only_itself,
    given: GivenInput | None = None,
) -> Rule | None:
    """The first rule that speaks of this caller and tool. What has no input no rule speaks of that wants to see one."""
    known_as = names(caller)
    for rule in policy.rules:
        if rule.side_effects is not None and rule.side_effects is not definition.side_effects:
            continue
        if rule.when is not None and rule.when not in circumstances:
            continue
        if not any(matches(rule.caller, name) for name in known_as) or not matches(rule.tool, definition.tool_id):
            continue
        if not rule.input or (given is not None and given.fulfils(rule)):
            return rule
    return None


def names_an_agent(rule: Rule) -> bool:
    """Whether a rule speaks of some agents of one edge (``agent:com.d``), not of all that come by it (``agent:*``)."""
    edge, _, agents = rule.caller.partition(":")
    return "*" not in edge and agents.strip("*") != ""


def strictest_match(
    policy: Policy,
    caller: str,
    definition: ToolDefinition,
    circumstances: Circumstances,
    names: Names = only_itself,
    given: GivenInput | None = None,
) -> Rule | None:
    """The rule that decides for a caller: the first that speaks of it, unless one that speaks of the same agent under
    another of its identities is stricter. That one only ever takes away: what is allowed must be said of the caller.
    """
    found = first_match(policy, caller, definition, circumstances, names, given)
    edge, _, agent_id = caller.partition(":")
    if found is None or not agent_id:
        return found
    edges = dict.fromkeys(rule.caller.partition(":")[0] for rule in policy.rules if names_an_agent(rule))
    edges.pop(edge, None)
    for other in edges:
        rule = first_match(policy, f"{other}:{agent_id}", definition, circumstances, names, given)
        is_stricter = rule is not None and _STRICTNESS[rule.decision] > _STRICTNESS[found.decision]
        if rule is not None and is_stricter and names_an_agent(rule):
            found = rule
    return found


def missing_permission(required: tuple[str, ...], held: tuple[str, ...]) -> str | None:
    """The first required permission that no grant covers."""
    for permission in required:
        if not any(matches(grant, permission) for grant in held):
            return permission
    return None


def how_to_get(permission: str) -> str:
    """Where a permission comes from, for whoever was denied for the want of it (decision 15)."""
    return (
        "a launched agent gets it when its manifest (`manifest` in its [[agent]]) asks for it and a person approves, "
        f"others by their token: `trunkline token new EDGE --agent NAME --permission {permission}`"
    )


def judge_one(
    policy: Policy,
    caller: str,
    definition: ToolDefinition,
    *,
    circumstances: Circumstances,
    permissions: Permissions,
    names: Names = only_itself,
    is_revoked: IsRevoked = nobody,
    given: GivenInput | None = None,
) -> Verdict:
    """What policy says to one caller."""
    if is_revoked(caller):
        reason = f"the token of {caller} was revoked"
        return Verdict(Decision.DENY, REVOKED, reason, caller, fault("policy.denied", reason))
    lacking = None if caller == OPERATOR else missing_permission(definition.required_permissions, permissions(caller))
    if lacking is not None:
        reason = f"{caller} does not hold the permission {lacking}"
        text = f"{reason}; {how_to_get(lacking)}"
        return Verdict(Decision.DENY, LACKING, reason, caller, fault("policy.denied", text))
    rule = strictest_match(policy, caller, definition, circumstances, names, given)
    if rule is None:
        reason = "no rule allows it"
        return Verdict(Decision.DENY, "default", reason, caller, fault("policy.denied", f"{reason} ({caller})"))
    if rule.decision is Decision.DENY:
        text = f"denied by {rule.id}" + (f": {rule.reason}" if rule.reason else "")
        return Verdict(Decision.DENY, rule.id, rule.reason, caller, fault("policy.denied", text))
    return Verdict(rule.decision, rule.id, rule.reason, caller, sensitive=rule.sensitive)


def judge(
    policy: Policy,
    callers: tuple[str, ...],
    definition: ToolDefinition,
    *,
    circumstances: Circumstances,
    permissions: Permissions,
    names: Names = only_itself,
    is_revoked: IsRevoked = nobody,
    given: GivenInput | None = None,
) -> Verdict:
    """What policy says to a chain of callers: the strictest answer to any, of equal ones the first. What all
    may do is allowed by the rule for the last one, who makes the call. ``callers`` is never empty.
    """
    strictest: Verdict | None = None
    is_sensitive = False
    for caller in callers:
        verdict = judge_one(
            policy,
            caller,
            definition,
            circumstances=circumstances,
            permissions=permissions,
            names=names,
            is_revoked=is_revoked,
            given=given,
        )
        is_sensitive |= verdict.sensitive
        if strictest is not None and strictest.decision is verdict.decision is Decision.ASK:
            strictest = _with_reason(strictest, verdict.reason)
        elif (
            strictest is None
            or strictest.decision is Decision.ALLOW
            or _STRICTNESS[verdict.decision] > _STRICTNESS[strictest.decision]
        ):
            strictest = verdict
    assert strictest is not None
    return replace(strictest, sensitive=True) if is_sensitive else strictest


def _with_reason(verdict: Verdict, reason: str, *, first: bool = False) -> Verdict:
    """A person who is asked is told every reason, the most special first."""
    reasons = (reason, verdict.reason) if first else (verdict.reason, reason)
    return replace(verdict, reason="; ".join(dict.fromkeys(filter(None, reasons))))


class Judge:
    """The rules in force, applied to live agents and tools."""

    def __init__(self, in_force: InForce, registry: Registry, credentials: Credentials) -> None:
        self._in_force = in_force
        self._registry = registry
        self._credentials = credentials
        self._epoch = 0
        # By agent. Only agents that are part of the exchange have one: some judge each input by rules of their own.
        self.guards: dict[str, Guard] = {}

    def guarded(self, verdict: Verdict, tool_id: str, body: Raw) -> Verdict:
        """The stricter of policy's answer and that of the tool's guard: both must agree."""
        guard = self.guards.get(tool_agent(tool_id))
        own = None if guard is None else guard(tool_id, body)
        if own is not None and own.decision is verdict.decision is Decision.ASK:
            # What the guard says is about this input, and the more special.
            return _with_reason(verdict, own.reason, first=True)
        if own is None or _STRICTNESS[own.decision] <= _STRICTNESS[verdict.decision]:
            return verdict
        return replace(own, sensitive=True) if verdict.sensitive else own

    @property
    def epoch(self) -> int:
        """Another number each time that rules, permissions or agents changed: what was judged before may be wrong."""
        return self._epoch

    def forget(self) -> None:
        """Rules, permissions or agents changed: judge everything anew."""
        self._epoch += 1

    def looks_at_input(self, tool: Tool) -> bool:
        """Whether a rule that may speak of this tool wants to see each input."""
        if tool.verdicts_epoch != self._epoch:
            tool.verdicts = {}
            tool.verdicts_epoch = self._epoch
            rules = self._in_force.settings.policy.rules
            tool.is_judged_by_input = any(rule.input and matches(rule.tool, tool.definition.tool_id) for rule in rules)
        return tool.is_judged_by_input

    def depends_on_input(self, tool: Tool, caller: str, circumstances: Circumstances) -> tuple[str, ...]:
        """What would be decided for some inputs, before the rule is reached that decides without one."""
        policy, definition = self._in_force.settings.policy, tool.definition
        decides = first_match(policy, caller, definition, circumstances, self._credentials.names_of)
        found = []
        for rule in policy.rules:
            if rule is decides:
                break
            alone = Policy((replace(rule, input=()),), "")
            if rule.input and first_match(alone, caller, definition, circumstances, self._credentials.names_of):
                words = {Decision.ALLOW: "allows", Decision.ASK: "asks", Decision.DENY: "denies"}
                found.append(f"{rule.id} {words[rule.decision]} where {' and '.join(map(shown, rule.input))}")
        if (agent_id := tool_agent(definition.tool_id)) in self.guards:
            found.append(f"{agent_id} has rules of its own about each input")
        return tuple(found)

    def verdict(
        self, tool: Tool, callers: tuple[str, ...], circumstances: Circumstances, body: Raw, value: Any = None
    ) -> Verdict:
        """Policy's answer to a chain of callers about an offered tool; ``value`` is the body as read, if it was."""
        if self.looks_at_input(tool):
            return self.judge(tool.definition, callers, circumstances, GivenInput(body, value))
        key = (callers, circumstances)
        verdict = tool.verdicts.get(key)
        if verdict is None:
            if len(tool.verdicts) >= MAX_VERDICTS:
                tool.verdicts.clear()
            verdict = tool.verdicts[key] = self.judge(tool.definition, callers, circumstances)
        return verdict

    def judge(
        self,
        definition: ToolDefinition,
        callers: tuple[str, ...],
        circumstances: Circumstances,
        given: GivenInput | None = None,
    ) -> Verdict:
        """The same about any definition, offered now or not."""
        return judge(
            self._in_force.settings.policy,
            callers,
            definition,
            circumstances=circumstances,
            permissions=self.permissions_of,
            names=self._credentials.names_of,
            is_revoked=self._credentials.is_revoked,
            given=given,
        )

    def judge_name(self, name: str, callers: tuple[str, ...], circumstances: Circumstances) -> Verdict:
        """The same about a name that is no tool, such as that of a topic: it is judged as one without side effects."""
        return self.judge(ToolDefinition(name, "", EMPTY_OBJECT, side_effects=False), callers, circumstances)

    def verdict_now(self, tool: Tool | ToolDefinition, entry: CallAccepted) -> Verdict:
        """What policy and the tool's guard say by now to a call that was taken on, if it were sent to this tool."""
        callers, circumstances = (*entry.chain, entry.caller), frozenset(entry.circumstances)
        return self.whole_verdict(tool, callers, circumstances, entry.input)

    def whole_verdict(
        self, tool: Tool | ToolDefinition, callers: tuple[str, ...], circumstances: Circumstances, body: Raw
    ) -> Verdict:
        """What policy and the tool's guard together say to a chain of callers about a tool, offered now or not."""
        if isinstance(tool, Tool):
            verdict, tool_id = self.verdict(tool, callers, circumstances, body), tool.definition.tool_id
        else:
            verdict, tool_id = self.judge(tool, callers, circumstances, GivenInput(body)), tool.tool_id
        return self.guarded(verdict, tool_id, body)

    def permissions_of(self, identity: str) -> tuple[str, ...]:
        """What an identity holds: what a person granted its manifest, and what its tokens carry (decision 15)."""
        edge, _, name = identity.partition(":")
        agent = self._registry.agents.get(name)
        if agent is None:
            # What it asked for before it left may be judged while it is away.
            granted = self._credentials.granted(identity)
        else:
            granted = agent.permissions if agent.edge == edge else ()
        return granted + self._credentials.permissions_of_token(identity)
