"""``hub.policy``: deny unless a rule says otherwise (P-F1), every caller in the chain judged (P-F2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.hub.kit import ALL, BOSS, Kit, rules, tool
from trunkline import entries
from trunkline.hub.policy import MAX_VERDICTS, judge, missing_permission
from trunkline.input_conditions import compiled, matches
from trunkline.model import (
    OPERATOR,
    Circumstance,
    Circumstances,
    Decision,
    Manifest,
    Policy,
    Principal,
    Rule,
    ToolDefinition,
)

GUEST = Principal("http:guest")


# --- a second opinion -------------------------------------------------------------------------------------------------


def plainly(pattern: str, text: str) -> bool:
    """``*`` by recursion."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return plainly(pattern[1:], text) or (text != "" and plainly(pattern, text[1:]))
    return text[:1] == pattern[0] and plainly(pattern[1:], text[1:])


def reference(
    policy: Policy, callers: list[str], asked: ToolDefinition, circumstances: Circumstances, held: list[str]
) -> Decision:
    """What policy means, as plainly as it can be said. Rules name whole edges or one agent, nothing between."""
    edges = {
        caller.partition(":")[0] for caller in (*callers, *(rule.caller for rule in policy.rules)) if ":" in caller
    }

    def first(caller: str) -> Rule | None:
        for rule in policy.rules:
            if not plainly(rule.caller, caller) or not plainly(rule.tool, asked.tool_id):
                continue
            if rule.side_effects in (None, asked.side_effects) and (rule.when is None or rule.when in circumstances):
                return rule
        return None

    answers = []
    for caller in callers:
        own = first(caller)
        answer = Decision.DENY if own is None else own.decision
        for edge in edges:
            other = first(f"{edge}:{caller.partition(':')[2]}") if ":" in caller else None
            if other is not None and "*" not in other.caller:
                answers.append(other.decision)
        for permission in asked.required_permissions:
            if caller != OPERATOR and not any(plainly(grant, permission) for grant in held):
                answer = Decision.DENY
        answers.append(answer)
    if Decision.DENY in answers:
        return Decision.DENY
    return Decision.ASK if Decision.ASK in answers else Decision.ALLOW


CALLERS = ["operator", "http:a", "http:com.a", "opensentience:com.a", "opensentience:com.b"]
TOOLS = ["com.a/read", "com.a/write", "com.b/x.y"]
caller_patterns = st.sampled_from([*CALLERS, "*", "http:*", "opensentience:*", "opensentience:com.?", "*a", ""])
tool_patterns = st.sampled_from([*TOOLS, "*", "com.a/*", "*/read", "com.*/*", "com.b/x?y", ""])
random_rules = st.lists(
    st.builds(
        Rule,
        st.just("r"),
        caller_patterns,
        tool_patterns,
        st.sampled_from(Decision),
        side_effects=st.sampled_from([None, None, True, False]),
        when=st.sampled_from([None, None, *Circumstance]),
    ),
    max_size=6,
)
permissions = st.lists(st.sampled_from(["files:read", "files:write", "net:*", "*", "files:*", "files"]), max_size=2)


@pytest.mark.slow
@requirement("OS-103", "OS-104")
@settings(max_examples=300)
@given(
    random_rules,
    st.lists(st.sampled_from(CALLERS), min_size=1, max_size=3),
    st.sampled_from(TOOLS),
    st.booleans(),
    st.frozensets(st.sampled_from(Circumstance)),
    permissions,
    permissions,
)
def test_policy_agrees_with_its_plain_reading(
    lines: list[Rule],
    callers: list[str],
    tool_id: str,
    side_effects: bool,
    circumstances: Circumstances,
    required: list[str],
    held: list[str],
) -> None:
    policy = Policy(tuple(lines), "v")
    asked = tool(tool_id, side_effects=side_effects, required_permissions=tuple(required))
    verdict = judge(policy, tuple(callers), asked, circumstances=circumstances, permissions=lambda _: tuple(held))
    assert verdict.decision is reference(policy, callers, asked, circumstances, held)
    assert (verdict.fault is not None) == (verdict.decision is Decision.DENY)


@settings(max_examples=200)
@given(st.text("ab**?.[", max_size=7), st.text("ab?.[\n", max_size=7))
def test_in_a_pattern_only_the_star_is_special(pattern: str, text: str) -> None:
    assert matches(pattern, text) == plainly(pattern, text)


@pytest.mark.timeout(5)
def test_a_pattern_of_a_hundred_stars_is_judged_at_once() -> None:
    """With an expression this runs for longer than anybody waits."""
    assert not matches("*a" * 100 + "*b", "a" * 30_000)
    assert matches("*a" * 100 + "*", "a" * 30_000)


@pytest.mark.parametrize(
    ("required", "held", "missing"),
    [
        ((), (), None),
        (("files:read",), (), "files:read"),
        (("files:read",), ("files:read",), None),
        (("files:read:/a",), ("files:read:*",), None),
        (("a", "b"), ("a",), "b"),
        (("a*",), ("a",), "a*"),
    ],
)
def test_a_required_permission_must_be_covered_by_a_grant(
    required: tuple[str, ...], held: tuple[str, ...], missing: str | None
) -> None:
    assert missing_permission(required, held) == missing


# --- in the hub -------------------------------------------------------------------------------------------------------


def test_without_a_rule_nothing_is_allowed_not_even_to_the_operator() -> None:
    kit = Kit(rules())
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    assert (asked.code, asked.refused) == ("policy.denied", True)
    assert kit.log_of(entries.CallRefused)[-1].rule == "default"


@requirement("OS-103")
def test_a_denied_call_sends_nothing_and_its_record_names_the_rule() -> None:
    kit = Kit(rules(("http:guest", "com.a/*", "deny"), ("*", "*", "allow")))
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=GUEST)
    assert asked.code == "policy.denied"
    assert kit.deliveries == []
    (entry,) = kit.log_of(entries.CallRefused)
    assert (entry.rule, entry.caller) == ("rule-1", "http:guest")
    assert len(kit.call("com.a/x").deliveries) == 1


def test_the_reason_of_a_rule_is_told() -> None:
    kit = Kit(rules(Rule("no-guests", "http:*", "*", Decision.DENY, "ask the boss")))
    kit.attach("com.a", "x")
    fault = kit.call("com.a/x", by=GUEST).outcome.fault
    assert fault is not None
    assert fault.message == "denied by no-guests: ask the boss"


@requirement("OS-104")
def test_a_caller_without_a_permission_that_the_tool_requires_is_denied(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", required_permissions=("files:write",)))
    kit.attach("com.b")
    kit.token("http", "guest", "secret", permissions=("files:read",))
    kit.token("http", "clerk", "other", permissions=("files:*",))
    denied = kit.call("com.a/x", by=GUEST)
    assert denied.code == "policy.denied"
    assert denied.outcome.fault is not None
    assert denied.outcome.fault.message == (
        "http:guest does not hold the permission files:write; a launched agent gets it when its manifest "
        "(`manifest` in its [[agent]]) asks for it and a person approves, others by their token: "
        "`trunkline token new EDGE --agent NAME --permission files:write`"
    )
    assert kit.call("com.a/x", by="com.b").code == "policy.denied"
    assert kit.log_of(entries.CallRefused)[-1].rule == "permissions"
    assert len(kit.call("com.a/x", by=Principal("http:clerk")).deliveries) == 1
    assert len(kit.call("com.a/x", by=BOSS).deliveries) == 1


@requirement("OS-104")
def test_an_agent_holds_what_a_person_approved_of_its_manifest(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", required_permissions=("files:write",)))
    kit.attach("com.b", manifest=Manifest("m" * 64, ("files:write",)))
    assert kit.call("com.a/x", by="com.b").code == "policy.denied"
    (question,) = kit.questions("manifest")
    kit.answer(question)
    assert len(kit.call("com.a/x", by="com.b").deliveries) == 1


def test_permissions_of_a_principal_do_not_come_from_what_it_claims(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", required_permissions=("files:write",)))
    asked = kit.call("com.a/x", by=Principal("http:guest", ("files:write",)))
    assert asked.code == "policy.denied"


def test_a_revoked_token_takes_its_permissions_with_it(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", required_permissions=("p",)))
    token_id = kit.token("http", "guest", "secret", permissions=("p",))
    assert len(kit.call("com.a/x", by=GUEST).deliveries) == 1
    kit.revoke(token_id)
    assert kit.call("com.a/x", by=GUEST).code == "policy.denied"


def test_new_rules_hold_from_the_next_call_on_and_are_recorded(kit: Kit) -> None:
    kit.attach("com.a", "x")
    running = kit.call("com.a/x", by=GUEST)
    kit.in_force(rules(("operator", "*", "allow"), version="v2"))
    assert kit.log_of(entries.PolicyChanged)[-1].version == "v2"
    assert kit.call("com.a/x", by=GUEST).code == "policy.denied"
    kit.finish(running, {})
    assert running.outcome.fault is None


def test_equal_rules_are_not_recorded_again(kit: Kit) -> None:
    before = len(kit.log_of(entries.PolicyChanged))
    kit.in_force(ALL)
    assert len(kit.log_of(entries.PolicyChanged)) == before


def test_verdicts_are_remembered_within_a_bound(kit: Kit) -> None:
    kit.attach("com.a", "x")
    with kit.in_bulk():
        for number in range(MAX_VERDICTS + 10):
            kit.finish(kit.call("com.a/x", by=Principal(f"http:{number}")), {})
    assert 0 < len(kit.hub.registry.tools["com.a/x"].verdicts) <= MAX_VERDICTS


# --- one agent, several identities (decision 59) ---------------------------------------------------------------------

HTTP, SOCKET, TYPED = "http:com.d", "opensentience:com.d", "chiffon:com.d"


@pytest.mark.parametrize(
    ("lines", "caller", "decision"),
    [
        # What is denied to one identity, or asked, is so for all of them.
        ([(SOCKET, "*", "deny"), ("*", "*", "allow")], HTTP, "deny"),
        ([(SOCKET, "*", "ask"), ("*", "*", "allow")], HTTP, "ask"),
        ([(HTTP, "*", "deny"), ("*", "*", "allow")], SOCKET, "deny"),
        ([("opensentience:com.*", "*", "deny"), ("*", "*", "allow")], HTTP, "deny"),
        ([(HTTP, "*", "ask"), (SOCKET, "*", "deny"), ("*", "*", "allow")], HTTP, "deny"),
        ([(HTTP, "*", "allow"), (SOCKET, "*", "deny")], HTTP, "deny"),
        ([(HTTP, "*", "deny"), (SOCKET, "*", "allow")], HTTP, "deny"),
        ([("chiffon:type=infra", "*", "deny"), ("*", "*", "allow")], HTTP, "deny"),
        # What is allowed must be said of the identity itself.
        ([(SOCKET, "*", "allow")], HTTP, "deny"),
        # No rule at all about another identity takes nothing away.
        ([(HTTP, "*", "allow")], HTTP, "allow"),
        # Of each identity the first rule counts.
        ([(SOCKET, "*", "allow"), ("opensentience:com.*", "*", "deny"), ("*", "*", "allow")], HTTP, "allow"),
        # A rule about all who come by one edge is about that edge; and other agents are others.
        ([("opensentience:*", "*", "deny"), ("*", "*", "allow")], HTTP, "allow"),
        ([("opensentience:com.dd", "*", "deny"), ("*", "*", "allow")], HTTP, "allow"),
        ([(SOCKET, "com.other/*", "deny"), ("*", "*", "allow")], HTTP, "allow"),
        ([("opensentience:operator", "*", "deny"), ("*", "*", "allow")], OPERATOR, "allow"),
    ],
)
def test_what_is_denied_or_asked_of_an_agent_holds_whichever_of_its_identities_it_uses(
    lines: list[tuple[str, str, str]], caller: str, decision: str
) -> None:
    verdict = judge(
        rules(*lines),
        (caller,),
        tool("com.t/x"),
        circumstances=frozenset(),
        permissions=lambda _: (),
        names=lambda identity: (identity, "chiffon:type=infra") if identity == TYPED else (identity,),
    )
    assert verdict.decision is Decision(decision)


def test_an_agent_that_is_denied_a_tool_does_not_get_to_it_by_another_token() -> None:
    kit = Kit(rules((SOCKET, "com.t/*", "deny"), ("*", "*", "allow")))
    kit.attach("com.t", "x")
    refused = kit.call("com.t/x", by=Principal(HTTP))
    assert (refused.code, kit.log_of(entries.CallRefused)[-1].rule) == ("policy.denied", "rule-1")
    assert len(kit.call("com.t/x", by=GUEST).deliveries) == 1


# --- rules that look at the input -------------------------------------------------------------------------------------


def looking(decision: str, **wanted: object) -> Rule:
    return Rule("looks", "*", "com.a/*", Decision(decision), input=compiled(wanted))


def test_a_rule_that_looks_at_the_input_speaks_only_of_calls_that_have_it() -> None:
    kit = Kit(rules(looking("allow", path="docs/*"), ("*", "com.a/x", "deny"), ("*", "*", "ask")))
    kit.attach("com.a", "x", "y")
    for _ in range(2):
        assert len(kit.call("com.a/x", {"path": "docs/a"}, by=GUEST).deliveries) == 1
        assert kit.call("com.a/x", {"path": "src/a"}, by=GUEST).code == "policy.denied"
        assert kit.call("com.a/x", {}, by=GUEST).code == "policy.denied"
    assert kit.call("com.a/y", {"path": "src/a"}, by=GUEST).waits


def test_a_rule_for_other_tools_leaves_the_ordinary_way_to_this_one() -> None:
    kit = Kit(rules(Rule("looks", "*", "com.b/*", Decision.DENY, input=compiled({"path": "*"})), ("*", "*", "allow")))
    kit.attach("com.a", "x")
    kit.attach("com.b", "x")
    assert not kit.hub.judge.looks_at_input(kit.hub.registry.tools["com.a/x"])
    assert kit.hub.judge.looks_at_input(kit.hub.registry.tools["com.b/x"])
    assert len(kit.call("com.a/x", {"path": "a"}, by=GUEST).deliveries) == 1
    assert kit.call("com.b/x", {"path": "a"}, by=GUEST).code == "policy.denied"


def test_a_call_that_waited_is_judged_by_its_input_once_more_when_rules_change() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "x")
    docs, src = (kit.call("com.a/x", {"path": path}, by=GUEST) for path in ("docs/a", "src/a"))
    kit.in_force(rules(looking("allow", path="docs/*"), looking("deny", path="src/*"), version="v2"))
    assert len(docs.deliveries) == 1
    assert (src.code, src.deliveries) == ("policy.denied", [])


def test_a_chain_is_let_through_only_if_the_input_is_allowed_to_everybody_in_it() -> None:
    deny = Rule("d", "http:guest", "com.a/x", Decision.DENY, input=compiled({"n": {">": 10}}))
    kit = Kit(rules(deny, ("*", "*", "allow")))
    kit.attach("com.a", "x")
    kit.attach("com.b", "go")
    outer = kit.call("com.b/go", by=GUEST)
    inner = Principal("opensentience:com.b")
    assert kit.call("com.a/x", {"n": 11}, by=inner, causation_id=outer.call_id).code == "policy.denied"
    assert len(kit.call("com.a/x", {"n": 10}, by=inner, causation_id=outer.call_id).deliveries) == 1


@pytest.mark.parametrize(
    ("decisions", "rule"),
    [
        (("allow", "allow", "allow"), "rule-3"),
        (("allow", "ask", "ask"), "rule-2"),
        (("ask", "allow", "allow"), "rule-1"),
        (("ask", "deny", "deny"), "rule-2"),
    ],
)
def test_the_rule_that_is_named_is_the_first_that_hinders_a_chain_or_the_one_for_who_calls(
    decisions: tuple[str, ...], rule: str
) -> None:
    callers = ("operator", "http:guest", "opensentience:com.a")
    policy = rules(*((caller, "*", decision) for caller, decision in zip(callers, decisions, strict=True)))
    verdict = judge(policy, callers, tool("com.b/x"), circumstances=frozenset(), permissions=lambda _: ())
    assert verdict.rule == rule
