"""What strangers may ask for: ``[nostr] offer``, as schema ids that stand for tools.

Owns which job type is served by which tool, and how its inputs are judged, completed and named by hashes. Does not own
who is served (``provider``): the rules of ``config`` allow the same tools to strangers, and nothing else.

Invariant: the ids that are announced are those of the setting, one for one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.config import Config, tool_of_offer
from trunkline.edges.exchange import Views
from trunkline.edges.nostr.till import Priced
from trunkline.jobs import models, verification
from trunkline.jobs.schemas import EMBEDDING, FAILED_RUNS, SANDBOX, JobType, count_tokens, job_types
from trunkline.jobs.tool_schemas import job_type_of, schema_id_of
from trunkline.jobs.verification import Result
from trunkline.money import quotes
from trunkline.money.quotes import Prices
from trunkline.shown import ToolView

_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class NotServed(ValueError):
    """A job that is not done here as it was asked for; the text may be told to the buyer."""


class Made(Struct, frozen=True):
    """What came of a job, as its result says it."""

    outputs: Raw
    output_hash: str
    model: str
    token_counts: Raw
    is_success: bool


class Offer:
    """The job types of the setting. ``tools`` has the tool that serves each, by schema id, in the setting's order."""

    def __init__(self, config: Config, views: Views) -> None:
        self._settings = config.jobs
        self._views = views
        self.tools = {
            line if "/" not in line else schema_id_of(line): tool_of_offer(line) for line in config.nostr.offer
        }

    @property
    def ids(self) -> tuple[str, ...]:
        """What is announced."""
        return tuple(self.tools)

    def models(self) -> tuple[str, ...]:
        """The models that do the work, by the names that results give them; tools that are no jobs stand for one."""
        own = [tool_id for schema_id, tool_id in self.tools.items() if schema_id not in job_types()]
        shipped = models.models(self._settings) if EMBEDDING in self.tools or len(own) < len(self.tools) else ()
        return (*shipped, *own)

    def missing(self) -> tuple[str, ...]:
        """Tools of the setting that nobody offers here now."""
        return tuple(tool_id for tool_id in self.tools.values() if self._views.tool(tool_id) is None)

    def _type(self, schema_id: str) -> JobType:
        shipped = job_types().get(schema_id)
        if shipped is not None:
            return shipped
        tool = self._views.tool(self.tools[schema_id])
        if tool is None:
            raise NotServed("this job is not available at the moment")
        return _type_of(tool)

    def check(self, schema_id: str, inputs: Raw, job_hash: str) -> None:
        """``NotServed`` if these are no inputs of such a job, or the buyer's hash does not name it."""
        job_type, given = self._type(schema_id), _object(inputs)
        problem = job_type.input_problem(given)
        if problem:
            raise NotServed(problem)
        try:
            is_named = not job_hash or job_type.is_job_hash(job_hash, given)
        except strictjson.NotStrictJson as error:
            raise NotServed(f"inputs: {error.fault}") from None
        if not is_named:
            raise NotServed("job_hash does not compute: it is that of {schema_id, inputs} with all defaults filled in")

    def priced(self, schema_id: str, inputs: Raw, prices: Prices) -> Priced:
        """What a job costs by these prices, and its hash. Its inputs were checked."""
        job_type = self._type(schema_id)
        filled = job_type.filled(_object(inputs))
        return Priced(schema_id, quotes.price_of(prices, schema_id, filled), job_type.job_hash(filled))

    def problem(self, schema_id: str, inputs: Raw, made: Made, npub: str) -> str:
        """Why a result of ours is not to be paid; empty if it is right (OA-056 to OA-058)."""
        job_type = job_types().get(schema_id)
        if job_type is None:
            return ""
        filled = job_type.filled(_object(inputs))
        result = Result(npub, _object(made.outputs), {"model": made.model, "provider_id": npub}, made.output_hash)
        if job_type.schema.verification_mode == "objective":
            return next(iter(verification.objective(job_type, filled, result).reasons), "")
        return verification.claim_problem(job_type, filled, result)

    def unpaid(self, schema_id: str, inputs: Raw, made: Made) -> Made | None:
        """What is told of a job that did not succeed and so is not paid; None: nothing (decision 121)."""
        if schema_id != SANDBOX:
            return None
        told = verification.failure_alone(_object(made.outputs))
        return self.made(schema_id, inputs, Raw(msgspec.json.encode(told)))

    def made(self, schema_id: str, inputs: Raw, output: Raw) -> Made:
        """What a finished call gives as the result of a job."""
        job_type, given = self._type(schema_id), _object(inputs)
        outputs = output if bytes(output).lstrip().startswith(b"{") else Raw(b'{"value":%b}' % bytes(output))
        found = _object(outputs)
        is_shipped = schema_id in job_types()
        model = models.model_of(self._settings, schema_id, job_type.filled(given)) if is_shipped else ""
        counts = {"input": count_tokens(given), "output": count_tokens(found)}
        try:
            output_hash = job_type.output_hash(found)
        except strictjson.NotStrictJson as error:
            raise NotServed(f"the outputs have no hash: {error.fault}") from None
        return Made(
            outputs=outputs,
            output_hash=output_hash,
            model=model or self.tools[schema_id],
            token_counts=Raw(msgspec.json.encode(counts)),
            is_success=schema_id != SANDBOX or found.get("status") not in FAILED_RUNS,
        )


def _type_of(tool: ToolView) -> JobType:
    return job_type_of(tool.tool_id, tool.description, tool.input_schema, tool.output_schema)
