"""JSON Schemas that strangers send us: which we take, and what they say about a body.

Owns the safe subset, the judging of a definition and the compiled validator. It does not own tools or
faults: it answers in texts that name the place and never quote a value, which may be a secret.

Invariant: no schema can make us fetch anything, run an expression in more than linear time, or do more work on one
body than ``MAX_WORK``. Work is bounded by counting: ``weight`` is how many rules can meet at one place of a body, with
all local references followed, at any depth; a body's places times the weight is the work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import orjson
from msgspec import Raw, Struct

from trunkline import strictjson

# A page of fields has 2 to 4 KiB.
MAX_SCHEMA_BYTES: Final = 65_536
MAX_SCHEMA_DEPTH: Final = 32
# Longer ones are generated, and nobody can see what they accept.
MAX_PATTERN_CHARS: Final = 512
MAX_PATTERNS: Final = 32
# One compiled expression. `^.{1,1000}$` just fits; `\p{L}{1,200}` does not.
MAX_PATTERN_BYTES: Final = 1_048_576
# Rules that may meet at one place. A union of 100 objects with 20 required fields has 2,100.
MAX_WEIGHT: Final = 10_000
# About 0.5 s at 10 ns a rule, for a body made to be slow; ordinary ones stay a thousand times below.
MAX_WORK: Final = 50_000_000
_LONGEST_TEXT: Final = 300

_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_MANY: Final = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_BELOW: Final = ("items", "additionalItems", "contains", "additionalProperties", "propertyNames")
_BELOW_MANY: Final = ("prefixItems", "patternProperties")
_OUTSIDE_SUBSET: Final = frozenset(
    {
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "$vocabulary",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
# What a person does not see, or sees in another order than it is: controls but tab and line ends, format characters
# (zero width, bidirectional, tags), fillers that look like nothing, variation selectors but the one of emoji.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ue000-\uf8ff]"
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.$-]{1,64}")


def hides_something(text: str) -> bool:
    """Whether a text has characters that a person reading it would not see."""
    return _HIDDEN.search(text) is not None


def judge(schema: bytes) -> str | None:
    """Why this schema is refused, or ``None``."""
    if len(schema) > MAX_SCHEMA_BYTES:
        return f"larger than {MAX_SCHEMA_BYTES} bytes"
    try:
        strictjson.check(schema, max_depth=MAX_SCHEMA_DEPTH, want_object=True)
    except strictjson.NotStrictJson as exc:
        return str(exc)
    try:
        compile(schema)
    except BadSchema as exc:
        return str(exc)
    return None


class BadSchema(ValueError):
    """A schema outside the safe subset. The text names the place."""


class Validator:
    """One compiled schema."""

    __slots__ = ("_is_valid", "_iter_errors", "_weight")

    def __init__(self, compiled: jsonschema_rs.Validator, weight: int) -> None:
        self._is_valid = compiled.is_valid
        self._iter_errors = compiled.iter_errors
        self._weight = weight

    def error(self, body: bytes | Raw) -> str | None:
        """The first thing that is wrong with this body, with its place, or ``None``."""
        data = bytes(body)
        if len(data) * self._weight > MAX_WORK:
            places = data.count(b",") + data.count(b"{") + data.count(b"[")
            if places * self._weight > MAX_WORK:
                return "$: too many values for a schema of this complexity"
        instance = orjson.loads(data)
        if self._is_valid(instance):
            return None
        return _text(next(iter(self._iter_errors(instance))))


def compile(schema: bytes) -> Validator:  # noqa: A001 - read as schemas.compile
    """The validator of a schema; ``BadSchema`` if ``judge`` would refuse it."""
    root = orjson.loads(schema)
    weight = _weight(_walk(root))
    try:
        compiled = jsonschema_rs.validator_for(
            root,
            mask="the value",
            offline=True,
            validate_formats=False,
            pattern_options=jsonschema_rs.RegexOptions(MAX_PATTERN_BYTES, MAX_PATTERN_BYTES),
        )
    except jsonschema_rs.ValidationError as exc:
        raise BadSchema(f"{_path(exc.instance_path)}: {exc.message[:_LONGEST_TEXT]}") from None
    except (jsonschema_rs.ReferencingError, ValueError):
        raise BadSchema("$: not a schema that can be used") from None
    return Validator(compiled, weight)


def _text(error: jsonschema_rs.ValidationError) -> str:
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        names = [name for name in kind.unexpected if _PLAIN_NAME.fullmatch(name)]
        reason = f"unexpected properties: {', '.join(names)}" if names else "unexpected properties"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
        reason = "a property has a name that is not allowed"
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        reason = "nothing is allowed here"
    else:
        reason = error.message
    return f"{_path(error.instance_path)}: {reason}"[:_LONGEST_TEXT]


def _path(steps: list[str | int]) -> str:
    """A place as ``$.rows[3].name``. A name that is not plain may be a value in the wrong position: it is not shown."""
    shown = ["$"]
    for step in steps:
        if isinstance(step, int):
            shown.append(f"[{step}]")
        else:
            shown.append(f".{step}" if _PLAIN_NAME.fullmatch(step) else ".*")
    return "".join(shown)


# --- the safe subset --------------------------------------------------------------------------------------------------


class _Node(Struct):
    """One schema object: what else applies at the same place, and what applies one level below."""

    own: int
    in_place: list[_Node]
    named: list[_Node]
    unnamed: list[_Node]


def _walk(root: dict[str, Any]) -> list[_Node]:
    """All schema objects that can be reached, the root first; ``BadSchema`` for what the subset does not have."""
    nodes: dict[int, _Node] = {}
    waiting: list[tuple[dict[str, Any], str]] = []
    patterns = 0

    def node(schema: Any, place: str) -> _Node:
        if not isinstance(schema, dict):
            return nodes.setdefault(id(schema), _Node(1, [], [], []))
        known = nodes.get(id(schema))
        if known is None:
            known = nodes[id(schema)] = _Node(1, [], [], [])
            waiting.append((schema, place))
        return known

    node(root, "$")
    while waiting:
        schema, place = waiting.pop()
        here = nodes[id(schema)]
        patterns += _patterns(schema, place)
        outside = _OUTSIDE_SUBSET.intersection(schema)
        if outside:
            raise BadSchema(f"{place}: {min(outside)} is not supported")
        if "$id" in schema and schema is not root:
            raise BadSchema(f"{place}: $id is only supported at the root")
        here.own += sum(len(_values(schema.get(word))) for word in ("enum", "required"))
        if "$ref" in schema:
            here.in_place.append(node(_target(root, schema["$ref"], place), place))
        for word in _IN_PLACE:
            here.in_place += [node(inner, f"{place}.{word}") for inner in _one(schema, word)]
        for word in _IN_PLACE_MANY:
            here.in_place += [node(inner, f"{place}.{word}") for inner in _values(schema.get(word))]
        for word in _BELOW:
            here.unnamed += [node(inner, f"{place}.{word}") for inner in _one(schema, word)]
        for word in _BELOW_MANY:
            here.unnamed += [node(inner, f"{place}.{word}") for inner in _values(schema.get(word))]
        properties = schema.get("properties")
        if isinstance(properties, dict):
            here.named = [node(inner, f"{place}{_path([name])[1:]}") for name, inner in properties.items()]
    if patterns > MAX_PATTERNS:
        raise BadSchema(f"$: more than {MAX_PATTERNS} patterns")
    if any(hides_something(text) for text in _texts(root)):
        raise BadSchema("$: a text with invisible or direction-changing characters")
    return list(nodes.values())


def _patterns(schema: dict[str, Any], place: str) -> int:
    """How many expressions this object has."""
    by_pattern = schema.get("patternProperties")
    patterns = list(by_pattern) if isinstance(by_pattern, dict) else []
    if isinstance(schema.get("pattern"), str):
        patterns.append(schema["pattern"])
    if any(len(pattern) > MAX_PATTERN_CHARS for pattern in patterns):
        raise BadSchema(f"{place}: a pattern longer than {MAX_PATTERN_CHARS} characters")
    return len(patterns)


def _one(schema: dict[str, Any], word: str) -> list[Any]:
    """The one schema of a keyword, or the many where older drafts allow them (``items``)."""
    part = schema.get(word)
    if isinstance(part, list):
        return part
    return [] if part is None else [part]


def _values(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return list(part.values())
    return part if isinstance(part, list) else []


def _target(root: dict[str, Any], reference: Any, place: str) -> Any:
    """What a local reference points to."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise BadSchema(f"{place}: $ref must be local, like #/$defs/name")
    target: Any = root
    for step in reference[2:].split("/") if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            raise BadSchema(f"{place}: $ref points to nothing")
    return target


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _weight(nodes: list[_Node]) -> int:
    """How many rules can meet at one place, at the root and at every depth that a body can have."""
    order = _children_first(nodes)
    # For each node: how many rules meet at a place ``depth`` levels below the one where the node applies.
    meeting = {id(node): 0 for node in order}
    heaviest = 0
    for depth in range(strictjson.MAX_DEPTH):
        above, meeting = meeting, {}
        for node in order:
            if depth == 0:
                here = node.own
            else:
                # A place below has one name: of the named ones only the heaviest can be there.
                here = sum(above[id(inner)] for inner in node.unnamed)
                here += max((above[id(inner)] for inner in node.named), default=0)
            meeting[id(node)] = here + sum(meeting[id(inner)] for inner in node.in_place)
        if max(meeting.values()) > MAX_WEIGHT:
            raise BadSchema(f"$: more than {MAX_WEIGHT} rules would meet at one place")
        heaviest = max(heaviest, meeting[id(nodes[0])])
        if meeting == above:
            break
    return heaviest


def _children_first(nodes: list[_Node]) -> list[_Node]:
    """All nodes, each after those that apply at its own place; a circle among these would never end."""
    order: list[_Node] = []
    finished: dict[int, bool] = {}
    waiting = nodes.copy()
    while waiting:
        node = waiting[-1]
        if id(node) not in finished:
            finished[id(node)] = False
            if any(finished.get(id(inner)) is False for inner in node.in_place):
                raise BadSchema("$: a $ref leads back to itself")
            waiting += node.in_place
            continue
        waiting.pop()
        if not finished[id(node)]:
            finished[id(node)] = True
            order.append(node)
    return order
