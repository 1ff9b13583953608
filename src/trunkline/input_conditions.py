"""What a rule may want of a call's input: ``when.input`` of a ``[[policy.rule]]``, compiled once, judged without code.

Owns the form in the file (a JSON pointer and a pattern, a value or a comparison) and what it means for one input. Does
not own rules (``config``, ``hub.policy``).

Invariant: what is not there, or of another type, fulfils no condition.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trunkline.model import Comparison, InputCondition, Scalar

COMPARISONS: Final[tuple[Comparison, ...]] = ("==", "!=", "<", "<=", ">", ">=")
# A rule is read by people; an input is looked at with each call.
MAX_CONDITIONS: Final = 16
MAX_DEPTH: Final = 16
_PLAIN_NAME: Final = re.compile(r"[^/~]+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_PARENT: Final = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
_MISSING: Final = object()


def compiled(table: Mapping[str, object]) -> tuple[InputCondition, ...]:
    """The conditions of a table; ``ValueError`` says what of it cannot be used."""
    if not table:
        raise ValueError("expected at least one pointer and what its value is to be")
    if len(table) > MAX_CONDITIONS:
        raise ValueError(f"{len(table)} conditions; at most {MAX_CONDITIONS}")
    return tuple(condition for pointer, wanted in table.items() for condition in _conditions(pointer, wanted))


def _conditions(pointer: str, wanted: object) -> list[InputCondition]:
    path = _path(pointer)
    if isinstance(wanted, str):
        return [InputCondition(path, "like", wanted)]
    if isinstance(wanted, bool | int | float):
        return [InputCondition(path, "==", wanted)]
    if not isinstance(wanted, dict) or not wanted:
        raise ValueError(f"{pointer}: expected a pattern, a number, true or false, or a table such as {{'<=' = 10}}")
    found = []
    for comparison in wanted:
        value = wanted[comparison]
        if comparison not in COMPARISONS:
            raise ValueError(f"{pointer}: {comparison!r} is no comparison: {' '.join(COMPARISONS)}")
        if not isinstance(value, str | bool | int | float):
            problem = f"{pointer}: expected a text, a number, true or false after {comparison}"
            raise ValueError(problem)  # noqa: TRY004  (a value of the file, not of a program)
        if comparison[0] in "<>" and isinstance(value, bool):
            raise ValueError(f"{pointer}: {comparison} compares numbers, or texts")
        found.append(InputCondition(path, comparison, value))
    return found


def _path(pointer: str) -> tuple[str, ...]:
    """A JSON pointer (RFC 6901) split; a plain name is short for a pointer to a field."""
    if _PLAIN_NAME.fullmatch(pointer):
        return (pointer,)
    if not pointer.startswith("/") or re.search("~(?![01])", pointer):
        raise ValueError(f"{pointer!r} is no JSON pointer such as '/path' or '/files/0/name'")
    parts = pointer[1:].split("/")
    if len(parts) > MAX_DEPTH:
        raise ValueError(f"{pointer!r} is deeper than {MAX_DEPTH}")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def fulfilled(conditions: tuple[InputCondition, ...], value: Any, *, allows: bool) -> bool:
    """Whether an input, as decoded JSON, is what all conditions say; ``allows`` if their rule allows."""
    return all(_is_fulfilled(one, _at(value, one.path), allows=allows) for one in conditions)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part, _MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _is_fulfilled(condition: InputCondition, found: Any, *, allows: bool) -> bool:
    wanted = condition.value
    if condition.compare == "like":
        return isinstance(found, str) and _is_like(str(wanted), found, allows=allows)
    return _is_alike(found, wanted) and _compares(condition.compare, found, wanted)


def _is_like(pattern: str, found: str, *, allows: bool) -> bool:
    """A text may be a path, and "./docs/a" is the path "docs/a" to whoever opens it. A rule that allows means the text
    as it stands, and never a way out ("docs/../x"); one that asks or denies means whatever it may stand for.
    """
    if allows:
        return _PARENT.search(found) is None and matches(pattern, found)
    return matches(pattern, found) or matches(pattern, posixpath.normpath(found.replace("\\", "/")))


def _is_alike(found: Any, wanted: Scalar) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return isinstance(wanted, bool) and isinstance(found, bool)
    if isinstance(wanted, str):
        return isinstance(found, str)
    return isinstance(found, int | float)


def _compares(compare: str, found: Any, wanted: Any) -> bool:
    match compare:
        case "==":
            return bool(found == wanted)
        case "!=":
            return bool(found != wanted)
        case "<":
            return bool(found < wanted)
        case "<=":
            return bool(found <= wanted)
        case ">":
            return bool(found > wanted)
        case _:
            return bool(found >= wanted)


def matches(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern says, in which ``*`` stands for any characters and nothing else is special.

    Each part is looked for once, from left to right: a manifest may ask for a permission with a hundred stars, and an
    expression would try them all.
    """
    head, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, tail = rest
    at, end = len(head), len(text) - len(tail)
    if end < at or not text.startswith(head) or not text.endswith(tail):
        return False
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def written(conditions: Sequence[InputCondition]) -> str:
    """The table of the file that means these, in one line; ``ValueError`` if one table cannot."""
    wanted: dict[tuple[str, ...], list[InputCondition]] = {}
    for one in conditions:
        wanted.setdefault(one.path, []).append(one)
    parts = []
    for path, same in wanted.items():
        if len({one.compare for one in same}) < len(same) or (len(same) > 1 and any(o.compare == "like" for o in same)):
            raise ValueError(pointer(path))
        values = [f"{json.dumps(one.compare)} = {_toml(one.value)}" for one in same]
        table = _toml(same[0].value) if same[0].compare == "like" else f"{{ {', '.join(values)} }}"
        parts.append(f"{json.dumps(pointer(path), ensure_ascii=False)} = {table}")
    return f"{{ {', '.join(parts)} }}"


def _toml(value: Scalar) -> str:
    # DEL is the one character that JSON takes as it is and TOML does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def pointer(path: Sequence[str]) -> str:
    """A path as a JSON pointer."""
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def shown(condition: InputCondition) -> str:
    """One condition for a person."""
    value = f"{condition.value!r}" if isinstance(condition.value, str) else str(condition.value).lower()
    return f"{pointer(condition.path)} {condition.compare} {value}"
