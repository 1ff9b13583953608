"""Random policies and calls against a reading of policy that is as plain as it can be (P-F1).

The reading is the one of the hub's unit tests; here it meets the hub itself, by its front door, and many more policies.
Callers are those of every edge that there is: those of two at a time, so that rules and callers meet.
``make soak`` goes on with other seeds.
"""

from __future__ import annotations

import random
from typing import Any

from tests.unit.hub.kit import Kit, tool
from tests.unit.hub.test_policy import TOOLS, reference
from trunkline.edges.known import EDGES
from trunkline.hub.policy import judge
from trunkline.model import OPERATOR, Circumstance, Decision, Policy, Principal, Rule

NAMES = tuple(edge.name for edge in EDGES)
TOOL_PATTERNS = (*TOOLS, "*", "com.a/*", "*/read", "com.*/*", "COM.A/read", "com.a", "*write*", "")
PERMISSIONS = ("files:read", "files:write", "net:*", "*", "files:*", "files")


def some_callers(choice: random.Random) -> list[str]:
    """The operator, and callers of two edges."""
    one, other = choice.sample(NAMES, 2)
    return [OPERATOR, f"{one}:a", f"{one}:com.a", f"{other}:com.a", f"{other}:com.b"]


def some_rules(choice: random.Random, callers: list[str]) -> Policy:
    """Up to six rules."""
    one, other = (caller.partition(":")[0] for caller in (callers[1], callers[-1]))
    patterns = (*callers, "*", f"{one}:*", f"{other}:*", "*a", f"{other}:com.?", "Operator", "operator*", "")
    rules = tuple(
        Rule(
            f"r{number}",
            choice.choice(patterns),
            choice.choice(TOOL_PATTERNS),
            choice.choice(list(Decision)),
            side_effects=choice.choice([None, None, True, False]),
            when=choice.choice([None, None, None, *Circumstance]),
        )
        for number in range(choice.randrange(7))
    )
    return Policy(rules, f"v{choice.getrandbits(64)}")


def some_terms(choice: random.Random) -> dict[str, Any]:
    """What the tool says of itself."""
    return {
        "side_effects": choice.random() < 0.5,
        "required_permissions": tuple(choice.sample(PERMISSIONS, choice.choice([0, 0, 0, 1, 2]))),
    }


class Holds:
    """Everybody holds these."""

    def __init__(self, held: list[str]) -> None:
        self._held = tuple(held)

    def __call__(self, _identity: str) -> tuple[str, ...]:
        return self._held


def judge_many(seed: int, count: int) -> int:
    """The evaluator against the plain reading."""
    choice = random.Random(seed)
    for _ in range(count):
        known = some_callers(choice)
        policy, asked = some_rules(choice, known), tool(choice.choice(TOOLS), **some_terms(choice))
        callers = choice.choices(known, k=choice.randrange(1, 5))
        circumstances = frozenset(one for one in Circumstance if choice.random() < 0.5)
        held = choice.sample(PERMISSIONS, choice.randrange(3))
        verdict = judge(policy, tuple(callers), asked, circumstances=circumstances, permissions=Holds(held))
        expected = reference(policy, callers, asked, circumstances, held)
        assert verdict.decision is expected, (policy, callers, asked)
        assert (verdict.fault is not None) is (expected is Decision.DENY)
    return count


def call_many(seed: int, count: int) -> int:
    """The hub against the plain reading: nothing is delivered that was not allowed explicitly."""
    choice = random.Random(seed)
    for _ in range(count):
        known = some_callers(choice)
        policy, terms = some_rules(choice, known), some_terms(choice)
        held = choice.sample(PERMISSIONS, choice.randrange(3))
        kit = Kit(policy)
        kit.attach("com.x", tool("com.x/read", **terms))
        asked = tool("com.x/read", **terms)
        who = choice.choice(known[:2])
        if who != OPERATOR:
            kit.token(who.partition(":")[0], "a", "secret", permissions=tuple(held))
        expected = reference(policy, [who], asked, frozenset(), held)
        call = kit.call("com.x/read", by=Principal(who))
        if expected is Decision.DENY:
            assert (call.code, call.refused) == ("policy.denied", True), policy
        elif expected is Decision.ASK:
            assert call.approval_id
        assert bool(kit.deliveries) is (expected is Decision.ALLOW), policy
    return count
