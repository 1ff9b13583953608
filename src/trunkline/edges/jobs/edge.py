"""Jobs as an edge of the exchange: an agent that lives in it, and nothing that listens.

Owns which parts there are, and when they start. Does not own what can be asked for (``tools``), nor the work
(``workers``, ``sandboxes``, ``remote``).

Invariant: types that cannot be done here are not offered, and ``status`` says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final

from trunkline.edges.edge import Edge, EdgeOff, RunningEdge, Surroundings
from trunkline.edges.jobs import tools
from trunkline.edges.jobs.agent import JobsAgent
from trunkline.edges.jobs.remote import Remote, key_of
from trunkline.edges.jobs.sandboxes import Sandboxes
from trunkline.jobs import models
from trunkline.jobs.sandbox import Bounds


class JobsEdge(RunningEdge):
    """The agent ``trunkline.jobs``."""

    def __init__(self, given: Surroundings) -> None:
        self._feed = given.feed
        self._settings = given.config.jobs
        self._know_secret = given.know_secret
        settings = self._settings
        bounds = Bounds(settings.memory_mb, settings.disk_mb, settings.timeout_s, settings.network)
        self.sandboxes = Sandboxes(given.home, given.views, bounds)
        self.agent = JobsAgent(given.feed, settings, self.sandboxes, given.process, given.version, given.entropy)

    def prepare(self) -> None:
        """Set the guard: what was asked of a person before a restart is judged by it."""
        if self._settings.enabled:
            self._feed.guard(tools.AGENT, self.agent.guard)

    async def start(self) -> None:
        """Find out what can run here, and offer it."""
        if not self._settings.enabled:
            raise EdgeOff("off in trunkline.toml (`enabled` in [jobs])", is_chosen=True)
        if self._settings.endpoint:
            key = await asyncio.to_thread(key_of, self._settings.key, os.environ)
            if key:
                self._know_secret("jobs.key", key)
            self.agent.remote = Remote(self._settings, key)
        await self.sandboxes.start()
        self.agent.offered = models.offered(self._settings, self.sandboxes.missing)
        await self.agent.attach()

    async def stop(self) -> None:
        """End what still runs."""
        await self.agent.detach("stopping")

    def status(self) -> Mapping[str, object]:
        """What is offered and what is not, what runs, and how jobs ended since the start."""
        found: dict[str, object] = {
            "types": len(self.agent.offered),
            "open": self.agent.open,
            **self.agent.counts,
            "workers": self.agent.workers.count,
        }
        optional = models.not_installed(self._settings)
        missing = models.missing(self._settings, self.sandboxes.missing)
        if optional:
            found["not_installed"] = _not_offered(optional)
        if len(missing) > len(optional):
            found["note"] = _not_offered({name: missing[name] for name in missing if name not in optional})
        return found


def _not_offered(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{schema_id} is not offered: {reason}" for schema_id, reason in reasons.items())


JOBS: Final = Edge(name="jobs", make=JobsEdge, section="jobs")
