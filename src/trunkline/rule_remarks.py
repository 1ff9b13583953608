"""What a person should know of rules that can be used: which of them never decide anything, and why.

Owns when a rule is never reached because of an earlier one, and when it speaks of a tool or of a field of an input that
nobody offers. Does not own what is wrong with a rule as it is written (``config_problems``): what is told here may be
meant, since an agent may come later, and is a warning. Only rules of the file are told of; the built-in ones are ours.

Invariant: a rule that is said to be never reached decides no call.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.input_conditions import matches, shown
from trunkline.model import Decision, Rule

OF_THE_FILE: Final = re.compile(r"rule-([0-9]+)")
# Names that rules judge and that are no tools: topics of events.
_NO_TOOLS: Final = ("topic/",)
# A schema with one of these may have fields that are not among its properties.
_MORE_FIELDS: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"})


def covers(earlier: Rule, later: Rule) -> bool:
    """Whether every call that the later rule speaks of is one that the earlier one speaks of.

    A pattern that matches another one as a text matches whatever that stands for: only a star takes a star.
    """
    if not matches(earlier.caller, later.caller) or not matches(earlier.tool, later.tool):
        return False
    if earlier.side_effects not in (None, later.side_effects) or earlier.when not in (None, later.when):
        return False
    if not _wanted(earlier) <= _wanted(later):
        return False
    # A pattern of a rule that allows takes fewer texts than the same one of another rule (``input_conditions``).
    takes_less = earlier.decision is Decision.ALLOW and later.decision is not Decision.ALLOW
    return not takes_less or all(one.compare != "like" for one in earlier.input)


def _wanted(rule: Rule) -> set[tuple[object, ...]]:
    """Its conditions; to Python ``True`` is 1, to a condition it is not."""
    return {(one.path, one.compare, isinstance(one.value, bool), one.value) for one in rule.input}


def described(rule: Rule) -> str:
    """One rule in a sentence."""
    conditions = [] if rule.when is None else [f"the call is {rule.when.value}"]
    conditions += map(shown, rule.input)
    about = f"{rule.id} ({rule.decision.value} {rule.caller} {rule.tool}"
    return f"{about} if {' and '.join(conditions)})" if conditions else f"{about})"


def never_reached(rules: Sequence[Rule]) -> Iterator[str]:
    """Of each rule of the file that an earlier one leaves nothing to."""
    for at, rule in enumerate(rules):
        earlier = next((one for one in rules[:at] if covers(one, rule)), None)
        if earlier is not None and OF_THE_FILE.fullmatch(rule.id):
            yield f"{described(rule)} is never reached: {described(earlier)} stands before it"


def about_nothing(rules: Sequence[Rule], tools: Mapping[str, Raw], awaited: Collection[str]) -> Iterator[str]:
    """Of each rule of the file that speaks of a tool, or of a field, that is not here.

    ``tools`` are the ids of tools and the schemas of their inputs, ``awaited`` agents that will come: nothing is said
    of tools that they may bring.
    """
    agents = {tool_id.partition("/")[0] for tool_id in tools}
    for rule in rules:
        if not OF_THE_FILE.fullmatch(rule.id) or rule.tool.startswith(_NO_TOOLS):
            continue
        spoken_of = [rule.tool] if rule.tool in tools else [one for one in tools if matches(rule.tool, one)]
        if spoken_of:
            for condition in rule.input:
                if (problem := _no_field(spoken_of, tools, condition.path)) is not None:
                    yield f"{rule.id}: {problem}"
        elif not any(_may_bring(agent, rule.tool) for agent in set(awaited) - agents):
            yield f"{rule.id}: {_no_tool(rule.tool, tools, agents)}"


def _may_bring(agent: str, pattern: str) -> bool:
    """Whether a tool of an agent may be what a pattern says: of its tools only the beginning is known."""
    beginning, star, _ = pattern.partition("*")
    return beginning.startswith(f"{agent}/") or (bool(star) and f"{agent}/".startswith(beginning))


def _no_tool(pattern: str, tools: Mapping[str, Raw], agents: Collection[str]) -> str:
    agent, _, _ = pattern.partition("/")
    if "*" in pattern:
        return f"no tool here is called like {pattern}" + _suggested(agent, agents)
    if agent in agents:
        return f"no tool here is called {pattern}" + _suggested(
            pattern, [t for t in tools if t.startswith(f"{agent}/")]
        )
    return f"no tool here is called {pattern}, and no agent {agent}" + _suggested(agent, agents)


def _suggested(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, [one for one in known if one != name], n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _no_field(spoken_of: Sequence[str], tools: Mapping[str, Raw], path: tuple[str, ...]) -> str | None:
    """What is missing, if none of these tools has a field at this path."""
    found: list[tuple[str, list[str]]] = []
    for tool_id in spoken_of:
        missing = _missing(msgspec.json.decode(tools[tool_id]), path)
        if missing is None:
            return None
        found.append(missing)
    name, fields = found[0]
    who = spoken_of[0] if len(spoken_of) == 1 else "none of the tools it speaks of"
    return f"{who} has {'no' if len(spoken_of) == 1 else 'a'} field {name}{_suggested(name, fields)}"


def _missing(schema: Any, path: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The part of a path that a schema has no field for, and the fields that it has; None if it may have one."""
    for part in path:
        if not isinstance(schema, dict) or not _MORE_FIELDS.isdisjoint(schema):
            return None
        if isinstance(schema.get("items"), dict):
            schema = schema["items"]
            continue
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return None
        if part not in properties:
            return None if schema.get("additionalProperties") not in (None, False) else (part, list(properties))
        schema = properties[part]
    return None
