"""Whether the inputs of a job make sense together, whether its outputs are an answer to them, and the seal on both.

Owns what JSON Schema cannot say: ids that stand twice, a count that must match, ranks that must follow each other.
Pure arithmetic on values that ``schemas`` found valid. Whether an answer is a *good* one is not asked here.

Invariant: what is said of the same inputs and outputs is always the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.errors import JobFailed
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK, SANDBOX, job_types

# A length of 1 after rounding to the digits that are sent.
NORM_TOLERANCE: Final = 1e-6

Values = Mapping[str, Any]


def input_problem(schema_id: str, inputs: Values) -> str:
    """Why these inputs, each valid by itself, make no job together; empty if they do."""
    return _INPUTS.get(schema_id, _nothing)(inputs)


def output_problem(schema_id: str, inputs: Values, outputs: Values) -> str:
    """Why these outputs are no answer to these inputs (which have their defaults); empty if they are."""
    found = _OUTPUTS.get(schema_id)
    return "" if found is None else found(inputs, outputs)


class Sealed(Struct, frozen=True):
    """Outputs as they travel, with the hashes that name the job and them."""

    outputs: Raw
    job_hash: str
    output_hash: str


def seal(schema_id: str, inputs: Values, outputs: Values) -> Sealed:
    """Check what was made, and hash it; ``JobFailed`` if it is no answer. Large outputs take some 100 ms."""
    job = job_types()[schema_id]
    problem = job.output_problem(outputs) or output_problem(schema_id, inputs, outputs)
    if problem:
        raise JobFailed(f"what was made is no result: {problem}")
    return Sealed(Raw(msgspec.json.encode(outputs)), job.job_hash(inputs), job.output_hash(outputs))


def _nothing(_: Values) -> str:
    return ""


def _candidates(inputs: Values) -> str:
    seen: set[str] = set()
    for index, candidate in enumerate(inputs["candidates"]):
        if candidate["id"] in seen:
            return f"inputs.candidates[{index}].id: stands twice"
        seen.add(candidate["id"])
    return ""


def _chunk(inputs: Values) -> str:
    chunk = inputs["chunk"]
    return "inputs.chunk.end_line: is before start_line" if chunk["end_line"] < chunk["start_line"] else ""


def _embeddings(inputs: Values, outputs: Values) -> str:
    embeddings, dimensions = outputs["embeddings"], outputs["dimensions"]
    if len(embeddings) != len(inputs["texts"]):
        return f"outputs.embeddings: {len(embeddings)} for {len(inputs['texts'])} texts"
    if outputs["model"] != inputs["model"]:
        return "outputs.model: is not the one that was asked for"
    if inputs.get("dimensions") not in {None, dimensions}:
        return f"outputs.dimensions: {dimensions} where {inputs['dimensions']} were asked for"
    for index, vector in enumerate(embeddings):
        if len(vector) != dimensions:
            return f"outputs.embeddings[{index}]: has {len(vector)} numbers and not {dimensions}"
        length = math.sqrt(math.fsum(number * number for number in vector))
        if not math.isfinite(length):
            return f"outputs.embeddings[{index}]: is not finite"
        if inputs["normalize"] and abs(length - 1) > NORM_TOLERANCE:
            return f"outputs.embeddings[{index}]: its length is not 1"
    return ""


def _topk(inputs: Values, outputs: Values) -> str:
    known = {candidate["id"] for candidate in inputs["candidates"]}
    wanted = min(inputs["k"], len(known))
    topk = outputs["topk"]
    if len(topk) > wanted:
        return f"outputs.topk: {len(topk)} where at most {wanted} are wanted"
    seen: set[str] = set()
    for index, item in enumerate(topk):
        place = f"outputs.topk[{index}]"
        if item["rank"] != index + 1:
            return f"{place}.rank: ranks go up from 1 by one"
        if item["id"] not in known:
            return f"{place}.id: is none of the candidates"
        if item["id"] in seen:
            return f"{place}.id: stands twice"
        if index and item["score"] > topk[index - 1]["score"]:
            return f"{place}.score: is higher than that of the rank before"
        seen.add(item["id"])
    return ""


_LIMITED: Final = {
    "symbols": "max_symbols",
    "suspected_faults": "max_faults",
    "recommended_next_probes": "max_next_probes",
}


def _findings(inputs: Values, outputs: Values) -> str:
    chunk, limits = inputs["chunk"], inputs.get("output_constraints") or {}
    longest = limits.get("max_summary_length")
    if longest is not None and len(outputs["summary"]) > longest:
        return f"outputs.summary: is longer than {longest} characters"
    for name, limit in _LIMITED.items():
        if limit in limits and len(outputs[name]) > limits[limit]:
            return f"outputs.{name}: {len(outputs[name])} where at most {limits[limit]} are wanted"
    for name in ("symbols", "suspected_faults"):
        for index, item in enumerate(outputs[name]):
            if not chunk["start_line"] <= item["line"] <= chunk["end_line"]:
                return f"outputs.{name}[{index}].line: is not a line of the chunk"
    return ""


def _runs(inputs: Values, outputs: Values) -> str:
    commands, runs, status = inputs["commands"], outputs["runs"], outputs["status"]
    if len(runs) > len(commands):
        return f"outputs.runs: {len(runs)} for {len(commands)} commands"
    failed = False
    for index, (command, run) in enumerate(zip(commands, runs, strict=False)):
        if run["cmd"] != command["cmd"]:
            return f"outputs.runs[{index}].cmd: is not the command that stands there"
        if failed:
            return f"outputs.runs[{index}]: ran after a command that ends the list"
        failed = run["exit_code"] != 0 and not command["continue_on_fail"]
    paths = [artifact["path"] for artifact in outputs["artifacts"]]
    if len(set(paths)) != len(paths):
        return "outputs.artifacts: a path stands twice"
    if status == "success" and (len(runs) != len(commands) or any(run["exit_code"] for run in runs)):
        return "outputs.status: is success although not every command ended with 0"
    return "outputs.status: is failed although every command ended with 0" if _fails_for_nothing(outputs) else ""


def _fails_for_nothing(outputs: Values) -> bool:
    return outputs["status"] == "failed" and not any(run["exit_code"] for run in outputs["runs"])


_INPUTS: Final[Mapping[str, Callable[[Values], str]]] = {RERANK: _candidates, ANALYSIS: _chunk}
_OUTPUTS: Final[Mapping[str, Callable[[Values, Values], str]]] = {
    ANALYSIS: _findings,
    RERANK: _topk,
    SANDBOX: _runs,
    EMBEDDING: _embeddings,
}
