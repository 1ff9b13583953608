"""A function's annotations as a tool's schemas, and the reader and writer that go with them.

Owns what a signature means: the parameters become one ``msgspec`` struct, and that same struct makes the input schema
*and* reads each input, so the two cannot disagree. Does not own the tool's flags or its name (``tool``).

Invariant: what ``Signature.read`` returns can be passed to the function; a fault names the parameter, never a value.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.model import Fault, fault
from trunkline.sdk import json_form

# What msgspec says of a value without quoting it. Anything else is replaced: "Invalid enum value 'hunter2'".
_SAFE_COMPLAINTS: Final = (
    "Expected ",
    "Object missing required field ",
    "Invalid RFC3339 ",
    "Invalid ISO8601 ",
    "Invalid UUID",
    "Invalid base64 ",
    "Invalid decimal ",
    "Integer value out of range",
    "Number out of range",
    json_form.MODEL_COMPLAINT,
)
_NOT_ALLOWED: Final = "a value is not one that the schema allows"
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `([A-Za-z0-9_.-]{1,64})`$")
_SECTION: Final = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Example|Examples|Note|Notes):\s*$", re.MULTILINE
)
_PARAMETER_LINE: Final = re.compile(r"(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_EMPTY: Final = inspect.Parameter.empty
_IMMUTABLE: Final = (str, bytes, int, float, bool, tuple, frozenset, type(None))


class Signature(Struct, frozen=True):
    """What a function's annotations and docstring say, made once: schemas, and how to read inputs and write results."""

    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    arguments: type[Struct]
    decoder: msgspec.json.Decoder[Any]
    # Whether a result is given as {"result": …}. None: decided by each value.
    wrapped: bool | None
    # Of the input schema: whether what the decoder took has to be looked at for fields that nobody declared.
    has_inner_fields: bool

    def read(self, body: Raw | bytes) -> dict[str, Any] | Fault:
        """The function's keyword arguments, or why the input is refused (OS-105)."""
        try:
            arguments = msgspec.structs.asdict(self.decoder.decode(body))
        except msgspec.DecodeError as error:
            said = _complaint(str(error), self.arguments.__struct_fields__)
            # Of a value that is none of a few, the schema says which there are; without quoting it either.
            return fault("tool.invalid_input", said or self._schema_problem(body) or _NOT_ALLOWED)
        problem = self._schema_problem(body) if self.has_inner_fields else None
        return arguments if problem is None else fault("tool.invalid_input", problem)

    def _schema_problem(self, body: Raw | bytes) -> str | None:
        return _checker(msgspec.json.encode(self.input_schema))(body)

    def write(self, value: object) -> bytes:
        """A returned value as a JSON object. Raises what the encoder raises if it has no JSON form."""
        encoded = json_form.encode(value)
        if self.wrapped is None:
            if encoded[:1] == b"{":
                return encoded
            return b"{}" if value is None else b'{"result":%b}' % encoded
        return b'{"result":%b}' % encoded if self.wrapped else encoded


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """The signature of a tool. ``TypeError`` names the tool and the parameter that cannot be used, and what to do."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"tool {name!r} is a generator; return the result, and stream with agent.partial() or agent.log()"
        )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name!r}: the annotation `{error.name}` is not known at module level; define it there"
        ) from error
    text, notes = _docstring(function)
    arguments = _arguments(function, name, hints, notes)
    output_schema, wrapped = _output(hints.get("return", Any), name)
    input_schema = _input_schema(function, arguments, name)
    return Signature(
        description=text or name.replace("_", " "),
        input_schema=input_schema,
        output_schema=output_schema,
        arguments=arguments,
        decoder=msgspec.json.Decoder(arguments, dec_hook=json_form.decoded),
        wrapped=wrapped,
        has_inner_fields=_has_inner_fields(input_schema),
    )


def _arguments(function: Callable[..., Any], name: str, hints: dict[str, Any], notes: dict[str, str]) -> type[Struct]:
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        place = f"tool {name!r}: parameter `{parameter.name}`"
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise TypeError(f"{place} must be one that can be given by name; `*`, `**` and positional-only ones cannot")
        kind = hints.get(parameter.name, Any)
        if parameter.name in notes and not _has_description(kind):
            kind = Annotated[kind, msgspec.Meta(description=notes[parameter.name])]
        _check_type(kind, place)
        if parameter.default is _EMPTY:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    # A wrong key is refused, not ignored: a caller's typo in an optional parameter would otherwise go unseen.
    return msgspec.defstruct(f"{name}_input", fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: object) -> Any:
    if isinstance(value, _IMMUTABLE):
        return value
    return msgspec.field(default_factory=lambda: copy.deepcopy(value))


def _has_description(kind: Any) -> bool:
    return any(isinstance(note, msgspec.Meta) and note.description for note in getattr(kind, "__metadata__", ()))


def _check_type(kind: Any, place: str) -> None:
    try:
        msgspec.json.Decoder(kind, dec_hook=json_form.decoded)
        json_form.schema_of(kind, "validation")
    except TypeError as error:
        name = getattr(kind, "__name__", str(kind))
        raise TypeError(
            f"{place} has the type `{name}`, which has no JSON form: "
            "use built-in types, a dataclass, a TypedDict, a model of pydantic"
        ) from error


def _input_schema(function: Callable[..., Any], arguments: type[Struct], name: str) -> dict[str, Any]:
    try:
        schema = json_form.schema_of(arguments, "validation")
    except TypeError as error:
        raise TypeError(f"tool {name!r}: a default value has no JSON form ({error})") from error
    del schema["title"]
    for parameter in inspect.signature(function).parameters.values():
        shown = json_form.default_shown(parameter.default)
        if shown is not None:
            schema["properties"][parameter.name]["default"] = shown
    closed: dict[str, Any] = json_form.closed(schema)
    return closed


def _has_inner_fields(schema: dict[str, Any]) -> bool:
    """Whether an object with named fields stands inside."""
    inner = [*schema["properties"].values(), *schema.get("$defs", {}).values()]
    return b'"properties":' in msgspec.json.encode(inner)


@functools.lru_cache(maxsize=256)
def _checker(schema: bytes) -> Callable[[Raw | bytes], str | None]:
    """What a schema has against a body. Nothing, of one that is too heavy to be checked: no exchange takes it."""
    from trunkline import schemas
    from trunkline.schema_subset import BadSchema

    try:
        return schemas.compile(schema).error
    except BadSchema:
        return lambda _body: None


def _output(kind: Any, name: str) -> tuple[dict[str, Any] | None, bool | None]:
    """The output schema, where the annotation says more than "an object", and whether results are wrapped."""
    if kind in {Any, object, None, type(None)}:
        return None, None
    _check_type(kind, f"tool {name!r}: the result")
    schema = json_form.schema_of(kind, "serialization")
    if schema.get("type") != "object":
        definitions = schema.pop("$defs", None)
        outer: dict[str, Any] = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
        return ({**outer, "$defs": definitions} if definitions else outer), True
    if not schema.get("properties") and not schema.get("additionalProperties"):
        return None, None
    return schema, False


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description, and what an ``Args:`` section says about each parameter."""
    document = inspect.getdoc(function) or ""
    parts = _SECTION.split(document)
    notes: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in {"Args", "Arguments", "Parameters"}:
            continue
        indent, current = None, ""
        for line in body.splitlines():
            match = _PARAMETER_LINE.fullmatch(line)
            if match and indent in {None, match[1]}:
                indent, current = match[1], match[2]
                notes[current] = match[3].strip()
            elif current and line.strip():
                notes[current] = f"{notes[current]} {line.strip()}".strip()
    return parts[0].strip(), notes


def _complaint(said: str, parameters: tuple[str, ...]) -> str | None:
    """What to tell a caller about an input; ``said`` is msgspec's text. None if that may quote a value."""
    what, _, place = said.partition(" - at ")
    unknown = _UNKNOWN_FIELD.match(what)
    if unknown:
        near = difflib.get_close_matches(unknown[1], parameters, 1)
        hint = (
            f"did you mean `{near[0]}`?"
            if near
            else "it takes " + (", ".join(f"`{one}`" for one in parameters) or "none")
        )
        return f"there is no parameter `{unknown[1]}`; {hint}"
    if not what.startswith(_SAFE_COMPLAINTS):
        return None
    return f"{what} at {place}" if place else what
