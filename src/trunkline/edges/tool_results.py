"""Results of tools in the Model Context Protocol, as outputs of ours: for the edge that mounts servers and the one
that serves clients.

Owns the form: the output of a mounted tool is the result object as its server wrote it, ``{"content": […],
"structuredContent"?, "isError"?, …}``, so that it can be given to a client unchanged. Its schema is that of this
object; what the server says of ``structuredContent`` stands inside it. Pure.

Invariant: ``structured(enveloped(schema))`` is the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

# Where the server's own schema stands in that of the whole result, as its local references have to say it.
_INSIDE: Final = "#/properties/structuredContent"
# What stands under these is data, not a schema.
_DATA: Final = frozenset({"const", "enum", "default", "examples"})


def enveloped(schema: Any) -> dict[str, Any]:
    """The schema of a whole result whose ``structuredContent`` has this one."""
    return {
        "type": "object",
        "properties": {"content": {"type": "array"}, "structuredContent": _with_references(schema, _moved_in)},
        "required": ["content"],
    }


def structured(schema: Any) -> Any:
    """The other way: what the server itself said of ``structuredContent``; None if this is no such schema."""
    if not isinstance(schema, dict) or not isinstance(properties := schema.get("properties"), dict):
        return None
    inside = properties.get("structuredContent")
    return None if inside is None else _with_references(inside, _moved_out)


def _with_references(schema: Any, change: Callable[[str], str]) -> Any:
    if isinstance(schema, list):
        return [_with_references(one, change) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: change(value)
        if name == "$ref" and isinstance(value, str)
        else value
        if name in _DATA
        else _with_references(value, change)
        for name, value in schema.items()
    }


def _moved_in(reference: str) -> str:
    return f"{_INSIDE}{reference[1:]}" if reference == "#" or reference.startswith("#/") else reference


def _moved_out(reference: str) -> str:
    is_inside = reference == _INSIDE or reference.startswith(f"{_INSIDE}/")
    return f"#{reference.removeprefix(_INSIDE)}" if is_inside else reference
