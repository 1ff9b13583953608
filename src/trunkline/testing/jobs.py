"""Typed jobs in a simulation: the real agent ``trunkline.jobs``, whose work is done here instead of in processes.

What a job gives is real (an embedding without a model); how long it takes and whether its process dies is chance.
Sandboxes, endpoints and everything that needs a model or a parser are left out.

Owns how long work takes and what befalls it. Does not own what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from trunkline.edges.edge import RunningEdge, Surroundings
from trunkline.edges.jobs import tools
from trunkline.edges.jobs.agent import JobsAgent
from trunkline.edges.jobs.sandboxes import Sandboxes
from trunkline.edges.jobs.workers import Workers
from trunkline.effects import Deliver
from trunkline.errors import JobFailed
from trunkline.jobs.consistency import Sealed, seal
from trunkline.jobs.embedding import local_models
from trunkline.jobs.sandbox import Bounds
from trunkline.jobs.schemas import EMBEDDING, JobType
from trunkline.jobs.worker import work
from trunkline.model import ToolDefinition
from trunkline.testing.witness import Witness

OFFERED: Final = (EMBEDDING,)
WORK_S: Final = (0.0, 3.0)
# How often the process that does the work ends before it has done it.
DEATHS: Final = 0.1


def definitions() -> dict[str, ToolDefinition]:
    """What the agent offers."""
    return {tool.tool_id: tool for tool in tools.definitions(OFFERED)}


def inputs(number: int) -> dict[str, Any]:
    """Those of a job that no other one has."""
    return {"texts": [f"this is text number {number}"], "model": local_models()[0]}


class WorkersInMemory(Workers):
    """No processes. In the end none of them dies (``is_quiet``)."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self.is_quiet = False

    async def run(self, schema_id: str, inputs: Mapping[str, Any], timeout_s: float) -> Sealed:
        """The outputs of a job, some time after it was asked for."""
        del timeout_s
        await asyncio.sleep(self._rng.uniform(*WORK_S))
        if not self.is_quiet and self._rng.random() < DEATHS:
            raise JobFailed("the process that did the work ended")
        return seal(schema_id, inputs, work(schema_id, inputs))

    async def stop(self) -> None:
        """There is nothing to end."""


class WitnessedJobs(JobsAgent):
    """The agent, whose work is seen. ``witness`` is set after it was made."""

    witness: Witness

    async def _work(self, call: Deliver, job: JobType, inputs: Mapping[str, Any]) -> tuple[Sealed, dict[str, int]]:
        tool = definitions()[call.tool_id]
        self.witness.executed(self.agent_id, call.call_id, tool, call.caller, call.key, bytes(call.input))
        return await super()._work(call, job, inputs)


class JobsInMemory(RunningEdge):
    """The edge of jobs in a simulation."""

    def __init__(self, given: Surroundings, workers: WorkersInMemory, witness: Witness) -> None:
        settings = given.config.jobs
        bounds = Bounds(settings.memory_mb, settings.disk_mb, settings.timeout_s, settings.network)
        sandboxes = Sandboxes(given.home, given.views, bounds)
        self._agent = WitnessedJobs(given.feed, settings, sandboxes, given.process, given.version, given.entropy)
        self._agent.witness, self._agent.workers = witness, workers
        self._agent.offered = OFFERED

    async def start(self) -> None:
        """Offer what can run here."""
        await self._agent.attach()

    async def stop(self) -> None:
        """End what still runs."""
        await self._agent.detach("stopping")
