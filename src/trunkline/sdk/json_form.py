"""Values of an author's code as JSON and back, beyond what ``msgspec`` knows: paths, models of pydantic, ``object``.

Owns the hooks for both directions and for schemas. A model is known by its methods (``model_validate``, ``model_dump``,
``model_json_schema``), so that pydantic need not be installed. Does not own what a signature means (``signature``).

Invariant: what is written as JSON is the same value when it is read. ``NaN`` and infinity, which JSON does not have,
are an error and not ``null``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final, Literal

import msgspec

SchemaMode = Literal["validation", "serialization"]

# msgspec knows ``Any``. ``object`` says the same, but a hook may not give an empty schema: marked, then unmarked.
_MARK: Final = ("$comment", "anything")
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Before the place of a value that a model does not take. ``signature`` lets such words through to a caller.
MODEL_COMPLAINT: Final = "Not what its model takes"


class NotJson(ValueError):
    """Raised for a number that JSON does not have."""


def encode(value: object) -> bytes:
    """A value as JSON; ``NotJson`` for NaN and infinity, ``TypeError`` for what has no JSON form."""
    encoded = msgspec.json.encode(value, enc_hook=_plain)
    # msgspec writes them as null: only where there is one may they be.
    if b"null" in encoded and _has_no_number(msgspec.to_builtins(value, enc_hook=_plain)):
        raise NotJson("NaN and infinity have no JSON form")
    return encoded


def _has_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_number, value))


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decoded(kind: type, value: Any) -> Any:
    """The hook of a decoder: a value of a type that ``msgspec`` does not know, from what stands in the JSON."""
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise TypeError("Expected `str`")
        return kind(value)
    return _model_of(kind, value) if is_model(kind) else value


def is_model(kind: type) -> bool:
    """Whether a class has what models of pydantic have."""
    return all(callable(getattr(kind, name, None)) for name in ("model_validate", "model_dump", "model_json_schema"))


def _model_of(kind: Any, value: Any) -> Any:
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise ValueError(_model_complaint(error)) from None


def _model_complaint(error: Any) -> str:
    """What a model says against a value: where, and the kind of mistake; never its text, which may quote the value."""
    listed = getattr(error, "errors", None)
    found = listed() if callable(listed) else ()
    for one in found:
        place = ".".join(str(part) for part in one.get("loc", ()) if _FIELD_NAME.fullmatch(str(part)))
        kind = str(one.get("type", ""))
        if place and _FIELD_NAME.fullmatch(kind):
            return f"{MODEL_COMPLAINT}: `{place}`, {kind.replace('_', ' ')}"
    return MODEL_COMPLAINT


# -- schemas -----------------------------------------------------------------------------------------------------------


def schema_of(kind: Any, mode: SchemaMode) -> dict[str, Any]:
    """A schema whose outermost level is the type itself, with what it refers to under ``$defs``."""

    def hook(custom: type) -> dict[str, Any]:
        return _schema_of_custom(custom, mode)

    (outer,), definitions = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}", schema_hook=hook)
    definitions = dict(definitions)
    outer = _lifted(_unmarked(outer), definitions)
    for name in tuple(definitions):
        definitions[name] = _lifted(_unmarked(definitions[name]), definitions)
    reference = outer.get("$ref", "")
    name = reference.removeprefix("#/$defs/")
    if name in definitions:
        outer = {**definitions[name], **{key: part for key, part in outer.items() if key != "$ref"}}
        # A recursive type keeps its definition as well: something inside refers to it.
        if msgspec.json.encode(reference) not in msgspec.json.encode((definitions, outer)):
            del definitions[name]
    return {**outer, "$defs": definitions} if definitions else outer


def _schema_of_custom(kind: Any, mode: SchemaMode) -> dict[str, Any]:
    if kind is object:
        return dict([_MARK])
    if issubclass(kind, PurePath):
        return {"type": "string"}
    if not is_model(kind):
        raise TypeError("no JSON form")
    # Two models may each have an inner one of the same name.
    prefix = f"{kind.__name__}."
    schema = dict(kind.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}", mode=mode, by_alias=True))
    if "$defs" in schema:
        schema["$defs"] = {f"{prefix}{name}": part for name, part in schema["$defs"].items()}
    return schema


def _unmarked(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _unmarked(part) for name, part in schema.items() if (name, part) != _MARK}
    return [_unmarked(part) for part in schema] if isinstance(schema, list) else schema


def _lifted(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema whose inner ``$defs`` are among the outermost ones, where references look for them."""
    if isinstance(schema, list):
        return [_lifted(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = schema.get("$defs")
    if isinstance(inner, dict):
        definitions.update({name: _lifted(part, definitions) for name, part in inner.items()})
        schema = {name: part for name, part in schema.items() if name != "$defs"}
    return {name: _lifted(part, definitions) for name, part in schema.items()}


def closed(schema: Any) -> Any:
    """The same schema, in which objects with named fields have no others."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {name: part if name in {"default", "enum", "const"} else closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
        shut.setdefault("additionalProperties", False)
    return shut


def default_shown(value: object) -> object | None:
    """What a schema shows of a default that ``msgspec`` cannot show."""
    return str(value) if isinstance(value, Path) else None
