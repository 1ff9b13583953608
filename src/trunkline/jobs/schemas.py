"""Job types: what goes in, what comes out, how a result is verified, and the hashes that name both.

Owns the model of a job schema (the specification's Schema Structure), the registry of those that ship as data files,
the filling in of defaults, validation in both directions, and provenance. Does not own whether a result is right
(``verification``) nor the work itself.

Each type has two files in ``data/``: ``<schema_id>.json`` is the Schema Structure, as others are shown it;
``<schema_id>.detail.json`` holds what that has no room for: JSON Schemas of nested values with their defaults, how many
providers are asked, and which parts of the outputs differ between two honest runs.

Invariant: a problem is a text that begins with the place (``inputs.chunk.path``) and never quotes a value.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from trunkline import canonical, schemas

# Three parts as the current types have, or four as the structure says; new ones have four.
SCHEMA_ID: Final = re.compile(r"oa(\.[a-z][a-z0-9_]*){1,2}\.v[1-9][0-9]*")

ANALYSIS: Final = "oa.code_chunk_analysis.v1"
RERANK: Final = "oa.retrieval_rerank.v1"
SANDBOX: Final = "oa.sandbox_run.v1"
# What a sandbox job says of itself when a command of it went wrong, or did not end.
FAILED_RUNS: Final = frozenset({"failed", "timeout", "cancelled", "error"})
EMBEDDING: Final = "oa.embedding.v1"
CURRENT: Final = (ANALYSIS, RERANK, SANDBOX, EMBEDDING)

# ``any`` is ours: a field of a tool whose schema names no single type.
JsonType = Literal["string", "number", "integer", "boolean", "array", "object", "null", "any"]
Level = Literal["required", "recommended", "optional"]

# Words and single signs: near enough to what tokenizers count, and the same everywhere.
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")


class BadJobSchema(ValueError):
    """Not a job schema. The text names the place."""


class InputField(Struct, frozen=True):
    """One input."""

    type: JsonType
    required: bool
    description: str


class OutputField(Struct, frozen=True):
    """One output."""

    type: JsonType
    description: str


class HashRules(Struct, frozen=True):
    """How outputs are hashed. There is one way."""

    algorithm: Literal["sha256"] = "sha256"
    canonicalization: Literal["json_canonical"] = "json_canonical"
    scope: Literal["full_output"] = "full_output"


class ProvenanceRules(Struct, frozen=True):
    """What a result has to say of how it was made."""

    model: Level = "required"
    provider_id: Level = "required"
    token_counts: Level = "recommended"  # noqa: S105  (tokens of a text)
    sampling_params: Level = "optional"


class JobSchema(Struct, frozen=True):
    """One job type in the specification's Schema Structure."""

    schema_id: str
    inputs: dict[str, InputField]
    outputs: dict[str, OutputField]
    verification_mode: Literal["objective", "subjective"]
    hash_rules: HashRules = HashRules()
    provenance: ProvenanceRules = ProvenanceRules()


class Detail(Struct, frozen=True):
    """What the Schema Structure has no room for. ``inputs`` and ``outputs`` are JSON Schemas."""

    title: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    # How many providers are asked for a subjective job, and how their results become one.
    redundancy: int = 1
    adjudication: Literal["none", "majority", "judge"] = "none"
    # Parts of the outputs that two honest runs do not share: ``env_info``, ``runs[].duration_ms``.
    unhashed: tuple[str, ...] = ()
    # Outputs that need not be there.
    optional_outputs: tuple[str, ...] = ()


class ProvenanceCheck(Struct, frozen=True):
    """What is wrong with a result's provenance, and what is only a pity."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_schema(data: bytes | Raw) -> JobSchema:
    """A job schema as somebody sent it; ``BadJobSchema`` says what is wrong."""
    try:
        schema = msgspec.json.decode(data, type=JobSchema)
    except msgspec.DecodeError as error:
        raise BadJobSchema(str(error)) from None
    if SCHEMA_ID.fullmatch(schema.schema_id) is None:
        raise BadJobSchema("schema_id: expected oa.<domain>.<operation>.v<version>")
    return schema


class JobType:
    """A job schema with its details, ready to be used."""

    def __init__(self, schema: JobSchema, detail: Detail) -> None:
        self.schema = schema
        self.detail = detail

    @property
    def schema_id(self) -> str:
        """The name by which it is known everywhere."""
        return self.schema.schema_id

    @functools.cached_property
    def _inputs(self) -> schemas.Validator:
        return schemas.compile(msgspec.json.encode(self.detail.inputs))

    @functools.cached_property
    def _outputs(self) -> schemas.Validator:
        return schemas.compile(msgspec.json.encode(self.detail.outputs))

    def filled(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with all defaults, and integers as such. They need not be valid."""
        found = _filled(self.detail.inputs, dict(inputs), absent_objects=True)
        assert isinstance(found, dict)
        return found

    def input_problem(self, inputs: object) -> str:
        """Why these are no inputs of such a job; empty if they are."""
        if not isinstance(inputs, dict):
            return "inputs: expected an object"
        for name, field in self.schema.inputs.items():
            if name not in inputs:
                if field.required:
                    return f"inputs.{name}: is missing"
            elif not _is_of_type(inputs[name], field.type):
                return f"inputs.{name}: expected {field.type}"
        if not _can_be_hashed(inputs):
            return "inputs: a number is not finite or has more than 64 bits"
        found = self._inputs.error(_encoded(inputs), inputs)
        return "" if found is None else f"inputs{found.removeprefix('$')}"

    def output_problem(self, outputs: object) -> str:
        """Why these are no outputs of such a job; empty if they are."""
        if not isinstance(outputs, dict):
            return "outputs: expected an object"
        for name, field in self.schema.outputs.items():
            if name not in outputs:
                if name not in self.detail.optional_outputs:
                    return f"outputs.{name}: is missing"
            elif not _is_of_type(outputs[name], field.type):
                return f"outputs.{name}: expected {field.type}"
        if not _can_be_hashed(outputs):
            return "outputs: a number is not finite or has more than 64 bits"
        found = self._outputs.error(_encoded(outputs), outputs)
        return "" if found is None else f"outputs{found.removeprefix('$')}"

    def job_hash(self, inputs: Mapping[str, Any]) -> str:
        """The hash that names a job: over its schema id and its inputs with all defaults."""
        return self._hash_of(self.filled(inputs))

    def is_job_hash(self, claimed: str, inputs: Mapping[str, Any]) -> bool:
        """Whether a hash names this job.

        Who computes one may fill in all defaults as we do, only those of objects that are there, or none: the
        specification does not say, and no two different jobs meet by it.
        """
        partly = _filled(self.detail.inputs, dict(inputs), absent_objects=False)
        return claimed in {self.job_hash(inputs), self._hash_of(partly), self._hash_of(inputs)}

    def _hash_of(self, inputs: object) -> str:
        return canonical.openagents_hash(_encoded({"schema_id": self.schema_id, "inputs": inputs}))

    def output_hash(self, outputs: Mapping[str, Any]) -> str:
        """The hash that a result is compared by: all of the outputs but what two honest runs do not share."""
        kept = dict(outputs)
        for path in self.detail.unhashed:
            name, _, inner = path.partition("[].")
            if not inner:
                kept.pop(name, None)
            elif isinstance(kept.get(name), list):
                kept[name] = [_without(item, inner) for item in kept[name]]
        return canonical.openagents_hash(_encoded(kept))

    def check_provenance(self, provenance: object) -> ProvenanceCheck:
        """Whether a result says of itself what it has to."""
        given = provenance if isinstance(provenance, dict) else {}
        problems: list[str] = []
        warnings: list[str] = []
        for name, level in msgspec.structs.asdict(self.schema.provenance).items():
            value = given.get(name)
            if name in {"model", "provider_id"} and value is not None and not isinstance(value, str):
                problems.append(f"provenance.{name}: expected string")
            elif value is None or value in ("", {}):
                if level == "required":
                    problems.append(f"provenance.{name}: is missing")
                elif level == "recommended":
                    warnings.append(f"provenance.{name}: is missing")
        return ProvenanceCheck(tuple(problems), tuple(warnings))


@functools.cache
def job_types() -> Mapping[str, JobType]:
    """The types that ship with the project, by schema id."""
    folder = resources.files("trunkline.jobs") / "data"
    return {schema_id: _shipped(schema_id, folder) for schema_id in CURRENT}


def _shipped(schema_id: str, folder: Any) -> JobType:
    schema = read_schema((folder / f"{schema_id}.json").read_bytes())
    return JobType(schema, msgspec.json.decode((folder / f"{schema_id}.detail.json").read_bytes(), type=Detail))


def count_tokens(value: object) -> int:
    """How many tokens all texts of a value have, as prices and provenance count them: words and single signs."""
    return sum(sum(1 for _ in _TOKEN.finditer(text)) for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    return (item for item in _values(value) if isinstance(item, str))


def _can_be_hashed(value: object) -> bool:
    """Whether all numbers are such that everybody writes them the same way."""
    return all(
        math.isfinite(item) if isinstance(item, float) else -(2**63) <= item < 2**64
        for item in _values(value)
        if isinstance(item, int | float)
    )


def _values(value: object) -> Iterator[object]:
    """All that is in a value but objects and arrays themselves. Not recursive: it may be nested deeply."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        else:
            yield item


def _encoded(value: object) -> bytes:
    # Not msgspec: integers beyond 64 bits have to be named by the schema, not refused by an encoder.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _without(item: object, name: str) -> object:
    return {key: value for key, value in item.items() if key != name} if isinstance(item, dict) else item


def _is_of_type(value: object, kind: str) -> bool:
    match kind:
        case "any":
            return True
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return is_whole and not isinstance(value, bool)


def _filled(schema: Mapping[str, Any], value: Any, *, absent_objects: bool) -> Any:
    """A value with what its schema says for what it leaves out, at every depth."""
    if isinstance(value, dict) and "properties" in schema:
        made = dict(value)
        for name, inner in schema["properties"].items():
            if name in made:
                made[name] = _filled(inner, made[name], absent_objects=absent_objects)
            elif "default" in inner and (absent_objects or inner["default"] != {}):
                made[name] = _filled(inner, inner["default"], absent_objects=absent_objects)
        return made
    if isinstance(value, list) and "items" in schema:
        return [_filled(schema["items"], item, absent_objects=absent_objects) for item in value]
    # JSON knows one kind of number, so 10.0 is an integer to a schema; to whoever counts with it, it has to be one.
    if isinstance(value, float) and value.is_integer() and "integer" in schema.get("type", ()):
        return int(value)
    return value
