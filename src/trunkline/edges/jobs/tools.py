"""The tools of the agent ``trunkline.jobs``: one for each job type that can run here, under its schema id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from trunkline.jobs.schemas import SANDBOX, job_types
from trunkline.model import EXCHANGE, MAX_INPUT_BYTES, ToolDefinition

AGENT: Final = f"{EXCHANGE}.jobs"
# Embedding, reranking and analysis end within this; a sandbox job says itself how long it may take.
HEAVY_TIMEOUT_S: Final = 120.0


def tool_id(schema_id: str) -> str:
    """The tool that does jobs of a type."""
    return f"{AGENT}/{schema_id}"


def definitions(offered: Iterable[str]) -> tuple[ToolDefinition, ...]:
    """The tools. A sandbox job acts, if only in a folder of its own; the others look at what they are given."""
    return tuple(_definition(schema_id) for schema_id in offered)


def _definition(schema_id: str) -> ToolDefinition:
    job = job_types()[schema_id]
    return ToolDefinition(
        tool_id(schema_id),
        job.detail.title,
        Raw(msgspec.json.encode(job.detail.inputs)),
        Raw(msgspec.json.encode(job.detail.outputs)),
        capabilities=("cancellation", "streaming") if schema_id == SANDBOX else ("cancellation",),
        side_effects=schema_id == SANDBOX,
        tags=("jobs", job.schema.verification_mode),
        max_input_bytes=MAX_INPUT_BYTES,
    )
