"""The part of JSON Schema that is taken from strangers, and how much work a schema of it can make.

Owns the walk through a schema, what it refuses, and the counting. It does not own the compiled form, nor the limits on
a body's work (``schemas``).

Invariant: what comes out of ``walk`` has local references only, ends, and every rule of it is counted: ``weight_of`` is
how many rules can meet at one place of a body, with all references followed, at any depth; ``met_by_patterns`` tells by
the key under which a text stands which expressions it can meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct

from trunkline import strictjson
from trunkline.schema_words import path_of

# Schemas within a schema: 5 µs each. The largest text has about half of it, if its fields have types and names.
MAX_PARTS: Final = 4_000
# Steps of counting the weight, 0.5 µs each: every part once for each level that differs from those above it.
MAX_STEPS: Final = 50_000
# Longer ones are generated, and nobody can see what they accept.
MAX_PATTERN_CHARS: Final = 512
MAX_PATTERNS: Final = 32
# Rules that may meet at one place. A union of 100 objects with 20 required fields has 2,100.
MAX_WEIGHT: Final = 10_000

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


class BadSchema(ValueError):
    """A schema outside the safe subset. The text names the place."""


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


class Node(Struct):
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


def walk(root: dict[str, Any]) -> tuple[list[Node], int]:
    """All schema objects that can be reached, the root first, and how many patterns they have.

    ``BadSchema`` for what the subset does not have.
    """
    nodes: list[Node] = []
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
            nodes.append(Node(1, [], [], []))
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
                raise BadSchema(f"{_shown_place(place)}: {word} is not supported")
        if "$id" in schema and schema is not root:
            raise BadSchema(f"{_shown_place(place)}: $id is only supported at the root")
        here.patterns, here.name_patterns = _patterns(schema, place)
        patterns += here.patterns + here.name_patterns
    if patterns > MAX_PATTERNS:
        raise BadSchema(f"$: more than {MAX_PATTERNS} patterns")
    return nodes, patterns


def _shown_place(place: _Place) -> str:
    steps: list[str | int] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return path_of(steps[::-1])


def met_by_patterns(nodes: list[Node]) -> tuple[dict[str, int], int]:
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
        raise BadSchema(f"{_shown_place(place)}: a pattern longer than {MAX_PATTERN_CHARS} characters")
    for_texts = int(isinstance(pattern, str))
    return for_texts, len(patterns) - for_texts


def _target(root: dict[str, Any], reference: Any, place: _Place) -> Any:
    """What a local reference points to."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise BadSchema(f"{_shown_place(place)}: $ref must be local, like #/$defs/name")
    target: Any = root
    for step in reference[2:].split("/") if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            raise BadSchema(f"{_shown_place(place)}: $ref points to nothing")
    return target


def texts_of(value: Any) -> Iterator[str]:
    """All texts of a schema, names included."""
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


def weight_of(nodes: list[Node]) -> int:
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


def _children_first(nodes: list[Node]) -> list[int]:
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
