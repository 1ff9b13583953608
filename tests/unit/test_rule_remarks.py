"""Rules that decide nothing: not reached, or about what is not here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from trunkline.input_conditions import compiled
from trunkline.model import Circumstance, Decision, Rule
from trunkline.rule_remarks import about_nothing, covers, never_reached

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY


def rule(caller: str = "*", tool: str = "*", decision: Decision = ASK, number: int = 1, **rest: Any) -> Rule:
    given = compiled(rest.pop("input")) if "input" in rest else ()
    return Rule(f"rule-{number}", caller, tool, decision, input=given, **rest)


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (rule("http:*", "a/*"), rule("http:bob", "a/b"), True),
        (rule("http:*", "a/*"), rule("http:b*", "a/b*"), True),
        (rule("http:bob", "a/b"), rule("http:*", "a/b"), False),
        (rule("http:a*", "*"), rule("http:*a", "*"), False),
        (rule(), rule(when=Circumstance.UNTRUSTED), True),
        (rule(when=Circumstance.UNTRUSTED), rule(), False),
        (rule(side_effects=True), rule(side_effects=False), False),
        (rule(), rule(input={"n": {">": 3}}), True),
        (rule(input={"n": {">": 3}}), rule(), False),
        (rule(input={"n": {">": 3}}), rule(input={"n": {">": 3}, "m": 1}), True),
        (rule(input={"n": 1}), rule(input={"n": True}), False),
        (rule(decision=ALLOW, input={"p": "docs/*"}), rule(decision=DENY, input={"p": "docs/*"}), False),
        (rule(decision=DENY, input={"p": "docs/*"}), rule(decision=ALLOW, input={"p": "docs/*"}), True),
    ],
)
def test_a_rule_covers_another_if_it_speaks_of_all_that_the_other_does(
    earlier: Rule, later: Rule, expected: bool
) -> None:
    assert covers(earlier, later) is expected


def test_a_rule_of_the_file_that_an_earlier_one_leaves_nothing_to_is_named_with_it() -> None:
    hidden = rule("*", "com.a/buy", ASK, 2, input={"qty": {">": 3}})
    builtin = msgspec.structs.replace(rule(), id="builtin-x")
    (said,) = never_reached([rule("*", "com.a/*", ALLOW), hidden, rule("*", "com.b/c", DENY, 3), builtin, builtin])
    assert said == ("rule-2 (ask * com.a/buy if /qty > 3) is never reached: rule-1 (allow * com.a/*) stands before it")


BUY = Raw(
    b'{"type": "object", "properties": {"qty": {"type": "integer"}, "at": {"type": "array", "items": '
    b'{"type": "object", "properties": {"city": {}}}}}}'
)
OPEN = Raw(b'{"type": "object", "properties": {"a": {}}, "additionalProperties": true}')


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (rule(tool="com.a/buy"), []),
        (rule(tool="com.a/byu"), ["rule-1: no tool here is called com.a/byu; did you mean `com.a/buy`?"]),
        (rule(tool="com.aa/b"),
            ["rule-1: no tool here is called com.aa/b, and no agent com.aa; did you mean `com.a`?"]),
        (rule(tool="org.b*/buy"), ["rule-1: no tool here is called like org.b*/buy"]),
        (rule(tool="com.later/x"), []),
        (rule(tool="com.later/*"), []),
        (rule(tool="com.lat*"), []),
        (rule(tool="com.la*er/x"), []),
        (rule(tool="topic/news"), []),
        (rule(tool="com.a/buy", input={"qyt": 1}), ["rule-1: com.a/buy has no field qyt; did you mean `qty`?"]),
        (rule(tool="com.a/buy", input={"/at/0/city": "x"}), []),
        (rule(tool="com.a/buy", input={"/at/0/ctiy": 1}),
            ["rule-1: com.a/buy has no field ctiy; did you mean `city`?"]),
        (rule(tool="com.a/open", input={"b": 1}), []),
        (rule(tool="com.a/*", input={"b": 1}), []),
        (rule(tool="com.a/b*", input={"b": 1}), ["rule-1: none of the tools it speaks of has a field b"]),
    ],
)  # fmt: skip
def test_a_rule_about_what_is_not_here_is_named_with_what_may_be_meant(one: Rule, said: list[str]) -> None:
    tools = {"com.a/buy": BUY, "com.a/buy2": BUY, "com.a/open": OPEN}
    assert list(about_nothing([one], tools, {"com.later", "com.a"})) == said
