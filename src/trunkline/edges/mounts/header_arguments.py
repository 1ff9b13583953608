"""Arguments of a call that its request repeats in headers: ``Mcp-Param-…`` (2026-07-28, streamable HTTP); pure.

A tool's schema says with ``x-mcp-header`` which of its properties a server, or a proxy before it, wants to see there.
Owns which of these say something that can be followed, and what the headers hold. A tool that says it wrongly is not
used, as the protocol wants of clients: its server would refuse what it gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges import mcp_words

KEYWORD: Final = "x-mcp-header"
PREFIX: Final = "mcp-param-"
# Servers take heads of 8 to 64 KiB; one that is too long may be closed without a word, and nobody knows what was done.
MAX_VALUE_BYTES: Final = 4096
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
# No set: a schema's type may be anything.
_TYPES: Final = ("string", "integer", "boolean")

# By the path of a property from the root: the name of its header.
Places = tuple[tuple[tuple[str, ...], str], ...]


def places(schema: bytes) -> Places | None:
    """Which arguments are repeated where; None if the schema says it in a way that cannot be followed."""
    if KEYWORD.encode() not in schema:
        return ()
    try:
        root = msgspec.json.decode(schema)
    except msgspec.DecodeError:
        return None
    found: list[tuple[tuple[str, ...], str]] = []
    for path, node in _properties(root, ()):
        if KEYWORD not in node:
            continue
        name = node[KEYWORD]
        if not isinstance(name, str) or _NAME.fullmatch(name) is None or node.get("type") not in _TYPES:
            return None
        found.append((path, PREFIX + name.lower()))
    # One that stands anywhere else cannot be found in a call's arguments.
    is_everywhere = len(found) == _count(root)
    is_unique = len({name for _, name in found}) == len(found)
    return tuple(found) if is_everywhere and is_unique else None


def _properties(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    below = node.get("properties") if isinstance(node, dict) else None
    for name, one in below.items() if isinstance(below, dict) else ():
        if isinstance(one, dict):
            yield (*path, name), one
            yield from _properties(one, (*path, name))


def _count(node: object) -> int:
    """How often the keyword stands in a schema. In an example or a default it counts too: nobody writes it there."""
    if isinstance(node, dict):
        return sum((name == KEYWORD and not isinstance(one, dict)) + _count(one) for name, one in node.items())
    return sum(map(_count, node)) if isinstance(node, list) else 0


def headers(wanted: Places, body: Raw) -> dict[str, str] | None:
    """The headers of a call with these arguments; None if one is too long for a header."""
    arguments = msgspec.json.decode(body) if wanted else {}
    found: dict[str, str] = {}
    for path, name in wanted:
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        text = _text(value)
        if text is None:
            continue
        found[name] = mcp_words.header_value(text)
        if len(found[name]) > MAX_VALUE_BYTES:
            return None
    return found


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else None
