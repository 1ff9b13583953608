"""The tools of the agent ``nostr.jobs``: one for each job type, done by somebody else.

Owns what a call of such a tool holds: the job's inputs, beside them ``remote`` with what is said to the market and not
to the provider (``Options``); and what it gives: the job's outputs, beside them ``provenance`` and ``verification``. A
type that does not ship with us is taken as its announcement leaves it: any object in, any object out. One more tool,
``nostr.jobs/providers``, says who announces what.

Invariant: a tool of this agent that has a job done acts. What is asked leaves this machine, so it is asked about or
denied as other acting tools are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.edges.nostr import keys
from trunkline.edges.nostr.discovery import Book
from trunkline.edges.nostr.messages import MAX_MSATS, Announced, is_schema_id
from trunkline.edges.nostr.provider_records import Record, Records
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK, Detail, JobSchema, JobType, job_types
from trunkline.model import MAX_INPUT_BYTES, TOOL_NAME, ToolDefinition

AGENT: Final = "nostr.jobs"
OPTIONS: Final = "remote"
# What an answer has beside the job's outputs.
PROVENANCE: Final = "provenance"
VERIFICATION: Final = "verification"
MAX_PROVIDERS: Final = 9
# Types that are offered because somebody announces them. They are strangers' words, so they are few.
MAX_ANNOUNCED: Final = 64
# Types of which nothing is left but their result: one that was not done, or done twice, has done no harm.
HARMLESS: Final = frozenset({EMBEDDING, RERANK, ANALYSIS})


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller says of how a job is to be bought."""

    # Only this one is asked (an npub); it need not have announced itself.
    provider: str = ""
    bid_msats: Annotated[int, Meta(ge=0, le=MAX_MSATS)] | None = None
    # Encrypted to the provider.
    private: bool = False
    # How many have to do the job; the job type's own number if it is not said.
    providers: Annotated[int, Meta(ge=1, le=MAX_PROVIDERS)] | None = None

    @property
    def public(self) -> str:
        """The key of the provider that is named; ``ValueError`` if the text is no npub."""
        return keys.public_of(self.provider) if self.provider else ""


_OPTIONS_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "How the job is bought; not part of the job.",
    "properties": {
        "provider": {"type": "string", "description": "Ask only this provider, an npub."},
        "bid_msats": {"type": "integer", "minimum": 0, "maximum": MAX_MSATS, "description": "What it may cost."},
        "private": {"type": "boolean", "description": "Encrypt the job to its provider (NIP-44)."},
        "providers": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_PROVIDERS,
            "description": "How many providers do the job, of which more than half have to agree.",
        },
    },
    "additionalProperties": False,
}


def tool_id(schema_id: str) -> str:
    """The tool that has jobs of a type done elsewhere."""
    return f"{AGENT}/{schema_id}"


@functools.lru_cache(maxsize=4 * MAX_ANNOUNCED)
def job_type(schema_id: str) -> JobType:
    """The type with this id; one that we know nothing of takes and gives any object."""
    shipped = job_types().get(schema_id)
    if shipped is not None:
        return shipped
    anything: dict[str, Any] = {"type": "object"}
    detail = Detail(f"A job of the type {schema_id}, as providers announce it.", anything, anything)
    return JobType(JobSchema(schema_id, {}, {}, "subjective"), detail)


def offered(announced: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """The types that are offered: those that ship with us, and what most providers announce beside them."""
    shipped = tuple(job_types())
    usable = [
        (-count, schema_id)
        for schema_id, count in announced
        if schema_id not in shipped and is_schema_id(schema_id) and TOOL_NAME.fullmatch(schema_id)
    ]
    return (*shipped, *sorted(schema_id for _, schema_id in sorted(usable)[:MAX_ANNOUNCED]))


@functools.lru_cache(maxsize=4 * MAX_ANNOUNCED)
def definition(schema_id: str) -> ToolDefinition:
    """The tool for jobs of a type."""
    job = job_type(schema_id)
    inputs, outputs = dict(job.detail.inputs), dict(job.detail.outputs)
    inputs["properties"] = {**inputs.get("properties", {}), OPTIONS: _OPTIONS_SCHEMA}
    beside: dict[str, Any] = {"type": "object"}
    outputs["properties"] = {**outputs.get("properties", {}), PROVENANCE: beside, VERIFICATION: beside}
    return ToolDefinition(
        tool_id(schema_id),
        f"{job.detail.title} Done by providers on Nostr.",
        Raw(msgspec.json.encode(inputs)),
        Raw(msgspec.json.encode(outputs)),
        capabilities=("cancellation", "streaming", "idempotency"),
        side_effects=True,
        tags=("jobs", "nostr", "network", job.schema.verification_mode),
        max_input_bytes=MAX_INPUT_BYTES,
    )


# --- who there is -----------------------------------------------------------------------------------------------------

PROVIDERS_TOOL: Final = f"{AGENT}/providers"
# In one answer; the count says how many there are.
MAX_LISTED: Final = 500
# Of one announcement: schema ids and models.
MAX_NAMED: Final = 100

LIST: Final = ToolDefinition(
    PROVIDERS_TOOL,
    "Who announces which jobs on Nostr, at which price, and how they did for us.",
    Raw(
        msgspec.json.encode(
            {
                "type": "object",
                "properties": {"schema_id": {"type": "string", "description": "Only who does jobs of this type."}},
                "additionalProperties": False,
            }
        )
    ),
    Raw(
        msgspec.json.encode(
            {
                "type": "object",
                "properties": {"providers": {"type": "array"}, "count": {"type": "integer"}},
                "required": ["providers", "count"],
            }
        )
    ),
    side_effects=False,
    tags=("jobs", "nostr"),
)


class _Wish(Struct):
    schema_id: str = ""


def listed(wish: Raw, book: Book, records: Records) -> Raw:
    """The output of ``nostr.jobs/providers``."""
    schema_id = msgspec.json.decode(wish, type=_Wish).schema_id
    found = [
        one for one in book.announced() if not schema_id or schema_id in one.announcement.capabilities.supported_jobs
    ]
    rows = [_row(one, records.of(one.provider)) for one in found[:MAX_LISTED]]
    return Raw(msgspec.json.encode({"providers": rows, "count": len(found)}))


def _row(one: Announced, record: Record) -> dict[str, object]:
    said = one.announcement
    return {
        "provider": keys.npub_of(one.provider),
        "name": one.name,
        "created_at": one.created_at,
        "supply_class": said.supply_class,
        "supported_jobs": said.capabilities.supported_jobs[:MAX_NAMED],
        "models": said.capabilities.models[:MAX_NAMED],
        "pricing": said.pricing,
        "capacity": said.capacity,
        "stability": said.stability,
        "record": record,
    }
