"""The rules that are in force in a simulation, one set after the other.

Owns the sets. Does not own when one takes the place of another (``simulation``), nor what the record is judged by
(``promises``, which has an evaluator of its own).
"""

from __future__ import annotations

from typing import Final

from trunkline.model import Circumstance, Decision, Policy, Rule


def _policy(version: str, *lines: tuple[str, str, str] | Rule) -> Policy:
    made = (
        line if isinstance(line, Rule) else Rule(f"{version}-{number}", line[0], line[1], Decision(line[2]))
        for number, line in enumerate(lines, start=1)
    )
    return Policy(tuple(made), version)


POLICIES: Final = (
    _policy(
        "builtin",
        Rule("builtin-untrusted", "*", "*", Decision.ASK, side_effects=True, when=Circumstance.UNTRUSTED),
        ("operator", "*", "allow"),
        Rule("builtin-read-only", "*", "*", Decision.ALLOW, side_effects=False),
        Rule("builtin-side-effects", "*", "*", Decision.ASK, side_effects=True),
    ),
    # Who may do little is not let through by those who may do everything.
    _policy(
        "narrow",
        ("http:script", "*/read", "allow"),
        ("http:script", "*/look", "allow"),
        ("http:script", "*", "deny"),
        ("*", "*", "allow"),
    ),
    _policy("careful", ("operator", "*/read", "allow"), ("*", "*", "ask")),
    _policy(
        "closed", ("*", "com.a/*", "deny"), ("http:*", "*/write", "deny"), ("operator", "*", "allow"), ("*", "*", "ask")
    ),
    _policy(
        "distrust",
        Rule("distrust-1", "*", "*", Decision.DENY, when=Circumstance.UNTRUSTED),
        ("opensentience:*", "*/once", "deny"),
        ("http:checker", "*/make", "ask"),
        ("*", "*", "allow"),
    ),
)
OPEN: Final = _policy("open", ("*", "*", "allow"))
