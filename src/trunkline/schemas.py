"""JSON Schemas that strangers send us: which we take, and what they say about a body.

Owns the judging of a definition, the compiled validator and the bounds of its work. It does not own which part of JSON
Schema is taken (``schema_subset``), the words for what is wrong (``schema_words``), tools or faults.

Invariant: no schema can make us fetch anything, run an expression in more than linear time, hold more than it is
counted for (``held_bytes``), or do more work on one body than ``MAX_WORK`` and ``MAX_PATTERN_WORK``. Work is bounded by
counting: a body's places times the schema's weight; and for each expression its size times the length of the texts that
it can meet.
"""

from __future__ import annotations

import re
from typing import Any, Final

import jsonschema_rs
import orjson
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.schema_subset import BadSchema, met_by_patterns, texts_of, walk, weight_of
from trunkline.schema_words import LONGEST_TEXT, path_of, text_of

# A page of fields has 2 to 4 KiB.
MAX_SCHEMA_BYTES: Final = 65_536
MAX_SCHEMA_DEPTH: Final = 32
# All compiled expressions of one schema. `^.{1,1000}$` alone just fits; `\p{L}{1,200}` does not.
MAX_PATTERN_BYTES: Final = 1_048_576
# What one expression may have, tried in this order: most need the first, and are counted for no more.
_PATTERN_BYTES: Final = (1_024, 4_096, 8_192, 65_536, MAX_PATTERN_BYTES)
# Less than this for what an expression remembers while it runs makes ordinary ones slow.
_MIN_CACHE_BYTES: Final = 8_192
# What an expression holds once it was used, measured: 5 times what it may have, and this.
_PATTERN_FACTOR: Final = 5
_PATTERN_BASE_BYTES: Final = 10_240
# About 0.5 s at 10 ns a rule, for a body made to be slow; ordinary ones stay a thousand times below.
MAX_WORK: Final = 50_000_000
# Bytes of an expression times bytes of text. The slowest that were found take 0.4 ns for each: half a second. Texts of
# 1.1 MiB for an ordinary expression, of 140 KiB for `[01]*1[01]{90}[^01]`, of 1,100 characters for `^.{1,1000}$`.
MAX_PATTERN_WORK: Final = 1_200_000_000
# Above this part of it what is wrong is not looked for: that would take the same time again.
_QUICK_PART: Final = 8
# What is judged good is compiled by then, and soon asked for by whoever takes the tool: so much waits for that.
_MAX_WAITING_BYTES: Final = 16_777_216
# A compiled schema's memory for each byte of its text, measured: 77 at most.
_BYTES_A_CHARACTER: Final = 80

# Compiled schemas take far more memory than their text, those with expressions most: all of one agent's tools together.
# A thousand tools with a kilobyte of schema each, or with four ordinary expressions each, have about half of it.
MAX_TOGETHER_BYTES: Final = 134_217_728

# What a person does not see, or sees in another order than it is: controls but tab and line ends, format characters
# (zero width, bidirectional, tags), fillers that look like nothing, variation selectors but the one of emoji.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ue000-\uf8ff]"
)


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
        return text_of(next(iter(self._iter_errors(instance))), for_record=for_record)


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
    nodes, patterns = walk(root)
    if any(hides_something(text) for text in texts_of(root)):
        raise BadSchema("$: a text with invisible or direction-changing characters")
    weight = weight_of(nodes)
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
            raise BadSchema(f"{path_of(exc.instance_path)}: {exc.message[:LONGEST_TEXT]}") from None
        except (jsonschema_rs.ReferencingError, ValueError):
            break
        held_bytes = len(schema) * _BYTES_A_CHARACTER
        if not patterns:
            return Validator(compiled, weight, None, held_bytes)
        held_bytes += patterns * (_PATTERN_BASE_BYTES + _PATTERN_FACTOR * limit)
        return Validator(compiled, weight, _Patterns(limit, *met_by_patterns(nodes)), held_bytes)
    raise BadSchema("$: not a schema that can be used")
