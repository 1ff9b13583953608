"""Any tool as a job type: ``oa.trunkline.<tool>.v1``, and back.

Owns how a tool's id becomes part of a schema id, and the job schema that is made from a tool's definition. Does not own
which tools are offered to whom.

A schema id has lower-case letters, digits and underscores between its dots, a tool id has more. Lower-case letters and
digits stand for themselves; everything else is an underscore and one more letter:

    .  _p      /  _s      -  _h      _  _u      A  _ca

An id that does not begin with a lower-case letter gets ``x__`` in front, which nothing else can begin with.

Invariant: ``tool_of(schema_id_of(x)) == x``, so no two tools have one schema id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.jobs.schemas import Detail, InputField, JobSchema, JobType, JsonType, OutputField
from trunkline.model import AGENT_ID, TOOL_NAME

PREFIX: Final = "oa.trunkline."
_SUFFIX: Final = ".v1"
_SIGNS: Final = {".": "_p", "/": "_s", "-": "_h", "_": "_u"}
_LETTERS: Final = {code[1]: sign for sign, code in _SIGNS.items()}
_OTHER_BEGINNING: Final = "x__"
_ESCAPE: Final = re.compile(r"_(c[a-z]|.)", re.DOTALL)
_JSON_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def schema_id_of(tool_id: str) -> str:
    """The schema id under which a tool is a job type; ``ValueError`` if this is no tool's id."""
    agent, slash, name = tool_id.partition("/")
    if not slash or AGENT_ID.fullmatch(agent) is None or TOOL_NAME.fullmatch(name) is None:
        raise ValueError("expected the id of a tool, 'agent_id/tool_name'")
    written = "".join(_SIGNS.get(sign) or (f"_c{sign.lower()}" if sign.isupper() else sign) for sign in tool_id)
    return f"{PREFIX}{written if written[0].isalpha() else _OTHER_BEGINNING + written}{_SUFFIX}"


def tool_of(schema_id: str) -> str | None:
    """The tool that a schema id stands for; None if it stands for none."""
    if not schema_id.startswith(PREFIX) or not schema_id.endswith(_SUFFIX):
        return None
    written = schema_id[len(PREFIX) : -len(_SUFFIX)].removeprefix(_OTHER_BEGINNING)

    def sign(found: re.Match[str]) -> str:
        code = found[1]
        return code[1].upper() if len(code) == 2 else _LETTERS.get(code, "")

    tool_id = _ESCAPE.sub(sign, written)
    try:
        # Only what we would write ourselves: another spelling of the same tool is another id, and stands for nothing.
        return tool_id if schema_id_of(tool_id) == schema_id else None
    except ValueError:
        return None


def job_type_of(tool_id: str, description: str, input_schema: Raw, output_schema: Raw | None) -> JobType:
    """A tool as a job type. What it does nobody can check by arithmetic, so its results are judged."""
    inputs = _read(input_schema)
    outputs = _read(output_schema) if output_schema is not None else {}
    required = inputs.get("required", ())
    schema = JobSchema(
        schema_id_of(tool_id),
        {name: InputField(_type(of), name in required, _text(of)) for name, of in _properties(inputs)},
        {name: OutputField(_type(of), _text(of)) for name, of in _properties(outputs)},
        "subjective",
    )
    left_out = tuple(name for name in schema.outputs if name not in outputs.get("required", ()))
    return JobType(schema, Detail(description, inputs, outputs, redundancy=1, optional_outputs=left_out))


def _read(schema: Raw) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(schema, type=dict[str, Any])
    return found


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    properties = schema.get("properties")
    return list(properties.items()) if isinstance(properties, dict) else []


def _type(schema: object) -> JsonType:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) and kind in _JSON_TYPES else "any"  # type: ignore[return-value]


def _text(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    return text if isinstance(text, str) else ""
