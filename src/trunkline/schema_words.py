"""What a compiled schema finds wrong with a body, in words for whoever sent it.

Owns which of several findings is told, and how a place in a body is written. It does not own the finding
(``schemas.Validator``).

Invariant: no value of a body is quoted, and no name that is not plain: either may be a secret. What is for the record
is said in the schema's words only.
"""

from __future__ import annotations

import re
from typing import Final

import jsonschema_rs
import orjson

# Characters of one finding, its place included.
LONGEST_TEXT: Final = 300
_ARTICLES: Final = dict.fromkeys(("array", "integer", "object"), "an")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.$-]{1,64}")


def text_of(error: jsonschema_rs.ValidationError, *, for_record: bool) -> str:
    """Where it is, and what is wrong there; ``for_record`` leaves out names that only the body has."""
    error = _deepest(error)
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        names = [] if for_record else [name for name in kind.unexpected if _PLAIN_NAME.fullmatch(name)]
        reason = f"unexpected properties: {', '.join(names)}" if names else "unexpected properties"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
        reason = "a property has a name that is not allowed"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        reason = "nothing is allowed here"
    else:
        reason = _candidates(error) or error.message
    steps = error.instance_path
    if for_record:
        steps = [step if isinstance(step, int) or step in error.schema_path else "" for step in steps]
    return f"{path_of(steps)}: {reason}"[:LONGEST_TEXT]


def _branches(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError]:
    """What is first wrong with each of several alternatives; none if there is only one."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        return [errors[0] for errors in kind.context if errors]
    return []


def _deepest(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Of alternatives that are all wrong, the one that was meant: it fits further down than the others.

    ``{"anyOf": [{"type": "object", …}, {"type": "null"}]}`` is how an optional object is written.
    """
    while branches := _branches(error):
        by_depth = sorted(branches, key=lambda one: len(one.instance_path))
        if len(by_depth[-1].instance_path) > len(error.instance_path):
            error = by_depth[-1]
            continue
        # At the same place: that one which is not about another type, if it is the only one.
        others = [one for one in branches if not isinstance(one.kind, jsonschema_rs.ValidationErrorKind.Type)]
        if len(others) != 1 or _named(others[0]) is not None:
            return error
        error = others[0]
    return error


def _candidates(error: jsonschema_rs.ValidationError) -> str:
    """What could stand there, if each alternative says so by value or type; else empty."""
    found: dict[str, None] = {}
    for branch in _branches(error):
        named = _named(branch)
        if named is None:
            return ""
        found |= dict.fromkeys(named)
    return f"the value is none of: {', '.join(found)}" if found else ""


def _named(error: jsonschema_rs.ValidationError) -> list[str] | None:
    """The values or types that one alternative allows; None if it asks for something else."""
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Enum() as kind:
            return [orjson.dumps(value).decode() for value in kind.options]
        case jsonschema_rs.ValidationErrorKind.Constant() as kind:
            return [orjson.dumps(kind.expected_value).decode()]
        case jsonschema_rs.ValidationErrorKind.Type() as kind:
            return ["null" if name == "null" else f"{_ARTICLES.get(name, 'a')} {name}" for name in kind.types]
        case _:
            return None


def path_of(steps: list[str | int]) -> str:
    """A place as ``$.rows[3].name``. A name that is not plain may be a value in the wrong position: it is not shown."""
    shown = ["$"]
    for step in steps:
        if isinstance(step, int):
            shown.append(f"[{step}]")
        else:
            shown.append(f".{step}" if _PLAIN_NAME.fullmatch(step) else ".*")
    return "".join(shown)
