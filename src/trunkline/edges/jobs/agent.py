"""The agent ``trunkline.jobs``: a job as a call of the tool that has its schema id.

Owns the way from a delivery to the work and back to its outcome: inputs validated and completed with their defaults,
one place among those that run at once, progress, cancelling. Does not own the work (``workers``, ``remote``,
``sandboxes``).

Invariant: every delivery has exactly one outcome, and one that succeeded has outputs that are valid for its schema and
fit its inputs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.config import Jobs
from trunkline.edges.exchange import Feed
from trunkline.edges.jobs import tools
from trunkline.edges.jobs.remote import Remote
from trunkline.edges.jobs.sandboxes import Sandboxes
from trunkline.edges.jobs.workers import Workers
from trunkline.edges.resident import Resident
from trunkline.effects import Cancel, Deliver
from trunkline.errors import JobFailed, JobRefused, WorkspaceError
from trunkline.events import CallProgressed, CancelAcknowledged
from trunkline.jobs import consistency, endpoint, models
from trunkline.jobs.sandbox import denied_command
from trunkline.jobs.schemas import EMBEDDING, SANDBOX, JobType, count_tokens, job_types
from trunkline.model import (
    EXCHANGE,
    Decision,
    Fault,
    Now,
    ProcessIdentity,
    Status,
    ToolDefinition,
    Verdict,
    fault,
)
from trunkline.trajectory.commands import commands_of, failed_with

RULE: Final = "jobs"
DEFECT: Final = "a defect of the exchange ended this; the operator's record says where"


class JobsAgent(Resident):
    """The agent. ``offered`` is set before it comes in."""

    def __init__(
        self,
        feed: Feed,
        settings: Jobs,
        sandboxes: Sandboxes,
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(feed, EXCHANGE, tools.AGENT, version, process, entropy)
        self._settings = settings
        self._sandboxes = sandboxes
        self.workers = Workers()
        self.remote: Remote | None = None
        self.offered: tuple[str, ...] = ()
        self._places = asyncio.Semaphore(settings.running)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # What ended in which way since the start.
        self.counts = {"succeeded": 0, "failed": 0, "canceled": 0}

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What can run here."""
        return tools.definitions(self.offered)

    @property
    def open(self) -> int:
        """How many jobs run or wait for a place."""
        return len(self._tasks)

    def guard(self, tool_id: str, body: Raw) -> Verdict | None:
        """What is never run, whatever the rules say; the hub asks before anybody is let through."""
        if tool_id != tools.tool_id(SANDBOX):
            return None
        try:
            inputs = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return None
        job = job_types()[SANDBOX]
        # What is not valid is refused for that.
        reason = "" if job.input_problem(inputs) else denied_command(job.filled(inputs))
        if not reason:
            return None
        return Verdict(Decision.DENY, RULE, reason, "", fault("policy.denied", reason))

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver, now: Now) -> None:  # noqa: ARG002  (jobs have clocks of their own)
        """Begin a job."""
        task = asyncio.get_running_loop().create_task(self._carry_out(effect))
        self._tasks[effect.call_id] = task
        task.add_done_callback(lambda task: self._ended(effect, task))

    def cancel(self, effect: Cancel, now: Now) -> None:  # noqa: ARG002  (it stops as soon as it can)
        """Stop a job: what it started is ended."""
        task = self._tasks.get(effect.call_id)
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=task is not None)])
        if task is not None:
            task.cancel()

    async def detach(self, reason: str) -> None:
        """Go. What still runs is ended, with everything it started."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.workers.stop()
        self.leave(reason)

    def abort(self) -> None:
        """A defect ended the conversation: what was running has lost its caller."""
        for task in self._tasks.values():
            task.cancel()
        super().abort()

    def _ended(self, call: Deliver, task: asyncio.Task[None]) -> None:
        del self._tasks[call.call_id]
        if task.cancelled():
            self._finish(call, Status.CANCELED, fault("tool.canceled"))
        elif (error := task.exception()) is not None:
            self._feed.failed(0, error)
            # Of commands nobody knows how far they came; everything else only looked at what it was given.
            is_unknown = call.tool_id == tools.tool_id(SANDBOX)
            self._finish(call, Status.UNKNOWN if is_unknown else Status.FAILED, fault("tool.failed", DEFECT))

    def _finish(self, call: Deliver, status: Status, problem: Fault | None = None, **terms: Raw) -> None:
        key = {Status.SUCCEEDED: "succeeded", Status.CANCELED: "canceled"}.get(status, "failed")
        if failed_with(call.tool_id, terms.get("output"), terms.get("metrics")):
            # The call did what it was to do; the job's own word is that it failed.
            key = "failed"
        self.counts[key] += 1
        if self.number:
            self.finish(call.call_id, status, problem, **terms)

    async def _carry_out(self, call: Deliver) -> None:
        job = job_types()[call.tool_id.partition("/")[2]]
        try:
            inputs = self._inputs(job, call.input)
            async with self._places:
                sealed, token_counts = await self._work(call, job, inputs)
        except JobRefused as error:
            self._finish(call, Status.FAILED, fault("tool.invalid_input", str(error)))
        except JobFailed as error:
            self._finish(call, Status.FAILED, fault("tool.failed", str(error), retryable=error.retryable))
        except WorkspaceError as error:
            status = Status.UNKNOWN if error.in_doubt else Status.FAILED
            self._finish(call, status, fault("tool.failed", error.message))
        else:
            # For the record: what a result of this job would have to say of itself.
            made: dict[str, Any] = {
                "model": models.model_of(self._settings, job.schema_id, inputs),
                "token_counts": token_counts or {"input": count_tokens(inputs)},
                "job_hash": sealed.job_hash,
                "output_hash": sealed.output_hash,
            }
            if job.schema_id == SANDBOX:
                made["exit_codes"] = commands_of(call.tool_id, call.input, sealed.outputs)[1]
            self._finish(call, Status.SUCCEEDED, output=sealed.outputs, metrics=Raw(msgspec.json.encode(made)))

    def _inputs(self, job: JobType, body: Raw) -> dict[str, Any]:
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            raise JobRefused("inputs: expected an object") from None
        problem = job.input_problem(given)
        inputs = job.filled(given)
        problem = problem or consistency.input_problem(job.schema_id, inputs)
        if problem:
            raise JobRefused(problem)
        return inputs

    async def _work(
        self, call: Deliver, job: JobType, inputs: Mapping[str, Any]
    ) -> tuple[consistency.Sealed, dict[str, int]]:
        """What was made, and the tokens that somebody counted for it."""
        if job.schema_id == SANDBOX:
            outputs = await self._sandboxes.run(call, inputs, self._shower(call.call_id))
            return await asyncio.to_thread(consistency.seal, SANDBOX, inputs, outputs), {}
        if models.is_remote(self._settings, job.schema_id, inputs) and self.remote is not None:
            if job.schema_id == EMBEDDING:
                answered = await endpoint.embed(self.remote.post, self._settings.embedding_model, inputs)
            else:
                answered = await endpoint.judge(self.remote.post, self._settings.model, job.schema_id, inputs)
            sealed = await asyncio.to_thread(consistency.seal, job.schema_id, inputs, answered.outputs)
            return sealed, answered.token_counts
        known = models.embedding_models(self._settings)
        if job.schema_id == EMBEDDING and inputs["model"] not in known:
            raise JobRefused(f"inputs.model: is not here; there are {', '.join(known)}")
        return await self.workers.run(job.schema_id, inputs, tools.HEAVY_TIMEOUT_S), {}

    def _shower(self, call_id: str) -> Callable[[str, str], None]:
        numbers = itertools.count(1)

        def show(channel: str, text: str) -> None:
            if self.number:
                data = Raw(msgspec.json.encode({"text": text}))
                self._feed.feed([CallProgressed(self.number, call_id, next(numbers), channel, data)])

        return show
