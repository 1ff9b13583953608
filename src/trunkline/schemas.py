"""JSON Schemas that strangers send us: which we take, and what they say about a body.

Owns the safe subset, the judging of a definition and the compiled validator. It does not own tools or
faults: it answers in texts that name the place and never quote a value, which may be a secret.

Invariant: no schema can make us fetch anything, run an expression in more than linear time, hold more than it is
counted for (``held_bytes``), or do more work on one body than ``MAX_WORK`` and ``MAX_PATTERN_WORK``. Work is bounded by
counting: ``weight`` is how many rules can meet at one place of a body, with all local references followed, at any
depth; a body's places times the weight is the work. An expression's work is its size times the length of the text, and
which texts it can meet is told by the key under which they stand (``_met_by_patterns``).
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
# Schemas within a schema: 5 µs each. The largest text has about half of it, if its fields have types and names.
MAX_PARTS: Final = 4_000
# Steps of counting the weight, 0.5 µs each: every part once for each level that differs from those above it.
MAX_STEPS: Final = 50_000
# Longer ones are generated, and nobody can see what they accept.
MAX_PATTERN_CHARS: Final = 512
MAX_PATTERNS: Final = 32
# All compiled expressions of one schema. `^.{1,1000}$` alone just fits; `\p{L}{1,200}` does not.
MAX_PATTERN_BYTES: Final = 1_048_576
# What one expression may have, tried in this order: most need the first, and are counted for no more.
_PATTERN_BYTES: Final = (1_024, 4_096, 8_192, 65_536, MAX_PATTERN_BYTES)
# Less than this for what an expression remembers while it runs makes ordinary ones slow.
_MIN_CACHE_BYTES: Final = 8_192
# What an expression holds once it was used, measured: 5 times what it may have, and this.
_PATTERN_FACTOR: Final = 5
_PATTERN_BASE_BYTES: Final = 10_240
# Rules that may meet at one place. A union of 100 objects with 20 required fields has 2,100.
MAX_WEIGHT: Final = 10_000
# About 0.5 s at 10 ns a rule, for a body made to be slow; ordinary ones stay a thousand times below.
MAX_WORK: Final = 50_000_000
# Bytes of an expression times bytes of text. The slowest that were found take 0.4 ns for each: half a second. Texts of
# 1.1 MiB for an ordinary expression, of 140 KiB for `[01]*1[01]{90}[^01]`, of 1,100 characters for `^.{1,1000}$`.
MAX_PATTERN_WORK: Final = 1_200_000_000
# Above this part of it what is wrong is not looked for: that would take the same time again.
_QUICK_PART: Final = 8
_LONGEST_TEXT: Final = 300
# What is judged good is compiled by then, and soon asked for by whoever takes the tool: so much waits for that.
_MAX_WAITING_BYTES: Final = 16_777_216
# A compiled schema's memory for each byte of its text, measured: 77 at most.
_BYTES_A_CHARACTER: Final = 80

# Compiled schemas take far more memory than their text, those with expressions most: all of one agent's tools together.
# A thousand tools with a kilobyte of schema each, or with four ordinary expressions each, have about half of it.
MAX_TOGETHER_BYTES: Final = 134_217_728

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
_ARTICLES: Final = dict.fromkeys(("array", "integer", "object"), "an")
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
        _waiting.put(schema, _compiled(schema))
    except BadSchema as exc:
        return str(exc)
    return None


def judged_bytes(schema: bytes) -> int:
    """What a schema that was just judged good takes when it is compiled."""
    return _waiting.size(schema)


def value_of(body: bytes | Raw) -> Any:
    """A body as plain JSON, read like its schema and like ``strictjson.load``: integers beyond 64 bits are floats.

    Read otherwise, such a number would not be the same number that its schema names.
    """
    return orjson.loads(bytes(body))


class BadSchema(ValueError):
    """A schema outside the safe subset. The text names the place."""


class Validator:
    """One compiled schema."""

    __slots__ = ("_heaviest", "_iter_errors", "_patterns", "_weight", "held_bytes", "is_valid")

    def __init__(
        self, compiled: jsonschema_rs.Validator, weight: int, patterns: _Patterns | None, held_bytes: int
    ) -> None:
        # Of a decoded body that has no more than ``quick_bytes``.
        self.is_valid = compiled.is_valid
        self._iter_errors = compiled.iter_errors
        self._weight = weight
        self._patterns = patterns
        # Bytes of all expressions that one text can meet.
        self._heaviest = 0 if patterns is None else patterns.heaviest
        # What it takes of memory, at most.
        self.held_bytes = held_bytes

    @property
    def quick_bytes(self) -> int:
        """Bodies up to this size have too few values to be too many, and too little text to be too much."""
        by_values = MAX_WORK // self._weight
        return min(by_values, MAX_PATTERN_WORK // self._heaviest) if self._heaviest else by_values

    def error(self, body: bytes | Raw, value: Any = None, *, for_record: bool = False) -> str | None:
        """The first thing that is wrong with this body, with its place, or ``None``; ``value`` is the body as read.

        ``for_record``: in the schema's words only; a name that the body alone has may be a secret in a wrong place.
        """
        if len(body) * self._weight > MAX_WORK:
            data = bytes(body)
            places = data.count(b",") + data.count(b"{") + data.count(b"[")
            if places * self._weight > MAX_WORK:
                return "$: too many values for a schema of this complexity"
        instance = value_of(body) if value is None else value
        pattern_work = len(body) * self._heaviest
        if pattern_work > MAX_PATTERN_WORK and self._patterns is not None:
            pattern_work = self._patterns.work(instance)
            if pattern_work > MAX_PATTERN_WORK:
                return "$: a text is too long for the patterns of this schema"
        if self.is_valid(instance):
            return None
        if pattern_work > MAX_PATTERN_WORK // _QUICK_PART:
            return "$: does not match the schema"
        return _text(next(iter(self._iter_errors(instance))), for_record=for_record)


class _Patterns(Struct, frozen=True):
    """How many expressions a text can meet under a certain key, and how many anywhere; and how large each may be."""

    each_bytes: int
    by_key: dict[str, int]
    anywhere: int

    @property
    def heaviest(self) -> int:
        return self.each_bytes * (self.anywhere + max(self.by_key.values(), default=0))

    def work(self, instance: Any) -> int:
        """Bytes of expressions times bytes of text, for all texts of a body."""
        met = 0
        waiting: list[tuple[str, Any]] = [("", instance)]
        while waiting:
            key, part = waiting.pop()
            if isinstance(part, str):
                met += _utf8_size(part) * (self.anywhere + self.by_key.get(key, 0))
            elif isinstance(part, dict):
                waiting += part.items()
                if self.anywhere:
                    met += self.anywhere * sum(map(_utf8_size, part))
            elif isinstance(part, list):
                waiting += [(key, inner) for inner in part]
        return met * self.each_bytes


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class _Waiting:
    """Validators of schemas that were judged and are about to be asked for, the oldest first; each is given once."""

    def __init__(self) -> None:
        self._found: dict[bytes, Validator] = {}
        self._bytes = 0

    def put(self, schema: bytes, validator: Validator) -> None:
        self.take(schema)
        self._found[schema] = validator
        self._bytes += validator.held_bytes
        while self._bytes > _MAX_WAITING_BYTES:
            self.take(next(iter(self._found)))

    def size(self, schema: bytes) -> int:
        found = self._found.get(schema)
        return 0 if found is None else found.held_bytes

    def take(self, schema: bytes) -> Validator | None:
        validator = self._found.pop(schema, None)
        if validator is not None:
            self._bytes -= validator.held_bytes
        return validator


_waiting: Final = _Waiting()


def compile(schema: bytes) -> Validator:  # noqa: A001 - read as schemas.compile
    """The validator of a schema; ``BadSchema`` if ``judge`` would refuse it."""
    return _waiting.take(schema) or _compiled(schema)


def _compiled(schema: bytes) -> Validator:
    root = orjson.loads(schema)
    nodes, patterns = _walk(root)
    if any(hides_something(text) for text in _texts(root)):
        raise BadSchema("$: a text with invisible or direction-changing characters")
    weight = _weight(nodes)
    for each in _PATTERN_BYTES:
        limit = min(each, MAX_PATTERN_BYTES // max(1, patterns))
        try:
            compiled = jsonschema_rs.validator_for(
                root,
                mask="the value",
                offline=True,
                validate_formats=False,
                pattern_options=jsonschema_rs.RegexOptions(limit, max(limit, _MIN_CACHE_BYTES)),
            )
        except jsonschema_rs.ValidationError as exc:
            if patterns and each != MAX_PATTERN_BYTES:
                continue
            raise BadSchema(f"{_path(exc.instance_path)}: {exc.message[:_LONGEST_TEXT]}") from None
        except (jsonschema_rs.ReferencingError, ValueError):
            break
        held_bytes = len(schema) * _BYTES_A_CHARACTER
        if not patterns:
            return Validator(compiled, weight, None, held_bytes)
        held_bytes += patterns * (_PATTERN_BASE_BYTES + _PATTERN_FACTOR * limit)
        return Validator(compiled, weight, _Patterns(limit, *_met_by_patterns(nodes)), held_bytes)
    raise BadSchema("$: not a schema that can be used")


def _text(error: jsonschema_rs.ValidationError, *, for_record: bool) -> str:
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
    return f"{_path(steps)}: {reason}"[:_LONGEST_TEXT]


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


def _one(part: Any) -> list[Any]:
    """The one schema of a keyword, or the many where older drafts allow them (``items``)."""
    if isinstance(part, list):
        return part
    return [] if part is None else [part]


def _values(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return list(part.values())
    return part if isinstance(part, list) else []


# Keywords whose schemas apply to the same value, and those whose schemas apply one level below; how each lists them.
_IN_PLACE: Final = dict.fromkeys(("not", "if", "then", "else"), _one) | dict.fromkeys(
    ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"), _values
)
_BELOW: Final = dict.fromkeys(
    ("items", "additionalItems", "contains", "additionalProperties", "propertyNames"), _one
) | dict.fromkeys(("prefixItems", "patternProperties"), _values)


_OF_ARRAYS: Final = frozenset({"items", "additionalItems", "contains", "prefixItems"})


class _Node(Struct):
    """One schema object: what else applies at the same place, and what applies one level below, by their numbers."""

    own: int
    in_place: list[int]
    named: list[int]
    unnamed: list[int]
    # The names of ``named``; those of ``unnamed`` that are about what is in an array; expressions for texts, for names.
    names: list[str] = []
    in_arrays: list[int] = []
    patterns: int = 0
    name_patterns: int = 0


# Where in the schema something stands: its last step, and where that begins. Shown only if it is refused.
_Place = tuple["_Place", str] | None


def _walk(root: dict[str, Any]) -> tuple[list[_Node], int]:
    """All schema objects that can be reached, the root first, and how many patterns they have.

    ``BadSchema`` for what the subset does not have.
    """
    nodes: list[_Node] = []
    numbers: dict[int, int] = {}
    waiting: list[tuple[dict[str, Any], _Place]] = []
    patterns = 0

    def number(schema: Any, place: _Place) -> int:
        # True and false are alike here, and there is one of each.
        known = numbers.get(id(schema))
        if known is None:
            known = numbers[id(schema)] = len(nodes)
            if known == MAX_PARTS:
                raise BadSchema(f"$: more than {MAX_PARTS} schemas within it")
            nodes.append(_Node(1, [], [], []))
            if isinstance(schema, dict):
                waiting.append((schema, place))
        return known

    number(root, None)
    while waiting:
        schema, place = waiting.pop()
        here = nodes[numbers[id(schema)]]
        for word, part in schema.items():
            if word == "properties":
                names = part if isinstance(part, dict) else {}
                here.named += [number(inner, (place, name)) for name, inner in names.items()]
                here.names += names
            elif word in _IN_PLACE:
                here.in_place += [number(inner, (place, word)) for inner in _IN_PLACE[word](part)]
            elif word in _BELOW:
                below = [number(inner, (place, word)) for inner in _BELOW[word](part)]
                here.unnamed += below
                here.in_arrays += below if word in _OF_ARRAYS else ()
            elif word == "$ref":
                here.in_place.append(number(_target(root, part, place), place))
            elif word in {"enum", "required"}:
                here.own += len(_values(part))
            elif word in _OUTSIDE_SUBSET:
                raise BadSchema(f"{_shown(place)}: {word} is not supported")
        if "$id" in schema and schema is not root:
            raise BadSchema(f"{_shown(place)}: $id is only supported at the root")
        here.patterns, here.name_patterns = _patterns(schema, place)
        patterns += here.patterns + here.name_patterns
    if patterns > MAX_PATTERNS:
        raise BadSchema(f"$: more than {MAX_PATTERNS} patterns")
    return nodes, patterns


def _shown(place: _Place) -> str:
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return _path(steps[::-1])


def _met_by_patterns(nodes: list[_Node]) -> tuple[dict[str, int], int]:
    """How many expressions a text can meet under each key, and how many under any.

    An expression belongs to the nearest ``properties`` above it if only words about the same value, or about what is in
    an array, stand between; what is in an array stands under the array's key. Anything else may be met anywhere.
    """
    found: dict[str, int] = {}
    anywhere = sum(node.name_patterns for node in nodes)
    # None stands for any key.
    waiting: list[tuple[int, str | None]] = [(0, "")]
    seen: set[tuple[int, str | None]] = set(waiting)
    while waiting:
        number, key = waiting.pop()
        node = nodes[number]
        if key is None:
            anywhere += node.patterns
        elif node.patterns:
            found[key] = found.get(key, 0) + node.patterns
        arrays = set(node.in_arrays)
        reached: list[tuple[int, str | None]] = [(inner, key) for inner in (*node.in_place, *node.in_arrays)]
        reached += zip(node.named, node.names, strict=True)
        reached += [(inner, None) for inner in node.unnamed if inner not in arrays]
        for step in reached:
            if step not in seen:
                seen.add(step)
                waiting.append(step)
        if len(seen) > MAX_STEPS:
            return {}, sum(node.patterns + node.name_patterns for node in nodes)
    return found, anywhere


def _patterns(schema: dict[str, Any], place: _Place) -> tuple[int, int]:
    """How many expressions this object has: for texts, and for names."""
    if "pattern" not in schema and "patternProperties" not in schema:
        return 0, 0
    by_pattern, pattern = schema.get("patternProperties"), schema.get("pattern")
    patterns = [*(by_pattern if isinstance(by_pattern, dict) else ()), *([pattern] if isinstance(pattern, str) else ())]
    if any(len(text) > MAX_PATTERN_CHARS for text in patterns):
        raise BadSchema(f"{_shown(place)}: a pattern longer than {MAX_PATTERN_CHARS} characters")
    for_texts = int(isinstance(pattern, str))
    return for_texts, len(patterns) - for_texts


def _target(root: dict[str, Any], reference: Any, place: _Place) -> Any:
    """What a local reference points to."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise BadSchema(f"{_shown(place)}: $ref must be local, like #/$defs/name")
    target: Any = root
    for step in reference[2:].split("/") if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            raise BadSchema(f"{_shown(place)}: $ref points to nothing")
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
    # For each node: how many rules meet at the place where it applies, then one level below that, and so on.
    meeting = [0] * len(nodes)
    for number in order:
        node = nodes[number]
        meeting[number] = node.own + sum([meeting[inner] for inner in node.in_place])
    seen: list[list[int]] = []
    # Each level follows from the one above, so when one comes again there is nothing new below.
    while meeting not in seen and len(seen) < strictjson.MAX_DEPTH:
        if max(meeting) > MAX_WEIGHT:
            raise BadSchema(f"$: more than {MAX_WEIGHT} rules would meet at one place")
        seen.append(meeting)
        if len(seen) * len(nodes) > MAX_STEPS:
            raise BadSchema("$: too many schemas within it that refer to each other")
        above, meeting = meeting, [0] * len(nodes)
        for number in order:
            node = nodes[number]
            here = 0
            for inner in node.unnamed:
                here += above[inner]
            if node.named:
                # A place below has one name: of the named ones only the heaviest can be there.
                here += max([above[inner] for inner in node.named])
            for inner in node.in_place:
                here += meeting[inner]
            meeting[number] = here
    return max(level[0] for level in seen)


def _children_first(nodes: list[_Node]) -> list[int]:
    """All nodes, each after those that apply at its own place; a circle among these would never end."""
    order: list[int] = []
    finished: dict[int, bool] = {}
    waiting = list(range(len(nodes)))
    while waiting:
        number = waiting[-1]
        if number not in finished:
            finished[number] = False
            in_place = nodes[number].in_place
            if any(finished.get(inner) is False for inner in in_place):
                raise BadSchema("$: a $ref leads back to itself")
            waiting += in_place
            continue
        waiting.pop()
        if not finished[number]:
            finished[number] = True
            order.append(number)
    return order
