"""Which job types can run here, by which model, and why others cannot.

Owns the answer to that question for one configuration: for the tools that are offered, for announcements and for the
provenance of results. Looks for libraries without loading them. Does not own the work.

Invariant: what ``offered`` names can run; everything else of the current types stands in ``missing`` with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trunkline.config import Jobs
from trunkline.jobs import embedding, languages, rerank
from trunkline.jobs.chunks import MODEL as PARSER
from trunkline.jobs.schemas import ANALYSIS, CURRENT, EMBEDDING, RERANK, SANDBOX

INSTALL: Final = 'pip install "trunkline[jobs]"'
# What makes the outputs of a sandbox job, where a result has to name a model.
SHELL: Final = "trunkline-sandbox"


def not_installed(settings: Jobs) -> Mapping[str, str]:
    """The types whose optional libraries are not here, each with what brings them."""
    found: dict[str, str] = {}
    if not settings.model:
        if not languages.is_here():
            found[ANALYSIS] = f"needs tree-sitter ({INSTALL}) or a model ([jobs] endpoint and model)"
        if not rerank.is_here():
            found[RERANK] = f"needs bm25s ({INSTALL}) or a model ([jobs] endpoint and model)"
    return found


def missing(settings: Jobs, no_sandbox: str = "") -> Mapping[str, str]:
    """The types that cannot run here, each with the reason; ``no_sandbox`` says why there is no sandbox, if so."""
    return {**not_installed(settings), **({SANDBOX: no_sandbox} if no_sandbox else {})}


def offered(settings: Jobs, no_sandbox: str = "") -> tuple[str, ...]:
    """The types that can run here."""
    return tuple(schema_id for schema_id in CURRENT if schema_id not in missing(settings, no_sandbox))


def embedding_models(settings: Jobs) -> tuple[str, ...]:
    """The models that an embedding job may name."""
    remote = (settings.embedding_model,) if settings.embedding_model else ()
    return (*remote, *embedding.local_models())


def models(settings: Jobs) -> tuple[str, ...]:
    """All models by name, for an announcement."""
    remote = (settings.model,) if settings.model else ()
    return tuple(dict.fromkeys((*remote, *embedding_models(settings))))


def model_of(settings: Jobs, schema_id: str, inputs: Mapping[str, Any]) -> str:
    """The model that does such a job here, as the provenance of its result names it."""
    match schema_id:
        case "oa.embedding.v1":
            return str(inputs.get("model", ""))
        case "oa.retrieval_rerank.v1":
            return settings.model or rerank.model()
        case "oa.code_chunk_analysis.v1":
            return settings.model or PARSER
        case _:
            return SHELL


def is_deterministic(model: str) -> bool:
    """Whether two runs of an embedding model give the same numbers to the last digit."""
    return model in embedding.DETERMINISTIC


def is_remote(settings: Jobs, schema_id: str, inputs: Mapping[str, Any]) -> bool:
    """Whether a job of this type is done by the endpoint."""
    if schema_id == EMBEDDING:
        return bool(settings.embedding_model) and inputs.get("model") == settings.embedding_model
    return schema_id in {RERANK, ANALYSIS} and bool(settings.model)
