"""An exchange in memory with spaces and jobs, on a real loop: jobs are processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from trunkline.config import Config, Jobs
from trunkline.edges.jobs.edge import JOBS, JobsEdge
from trunkline.edges.spaces.edge import SPACES
from trunkline.model import Policy
from trunkline.testing.memory import ALLOW_ALL, MadeCall, MemoryExchange

WAIT_S = 30.0


class JobsWorld:
    """The exchange, and a caller who waits."""

    def __init__(self, home: Path, settings: Jobs, policy: Policy) -> None:
        config = Config(jobs=settings)
        loop = asyncio.get_running_loop()
        self.exchange = MemoryExchange(policy, edges=(SPACES, JOBS), config=config, home=home, live=loop)
        self.home = home

    @property
    def edge(self) -> JobsEdge:
        found = self.exchange.edges._running["jobs"]
        assert isinstance(found, JobsEdge)
        return found

    async def start(self) -> None:
        self.exchange.edges.prepare()
        await self.exchange.edges.start()

    async def until(self, condition: Callable[[], object]) -> None:
        ends = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < ends, "it never came true"
            await asyncio.sleep(0.005)

    def begin(self, schema_id: str, inputs: Any, **terms: Any) -> MadeCall:
        return self.exchange.call(f"trunkline.jobs/{schema_id}", inputs, **terms)

    async def done(self, schema_id: str, inputs: Any, **terms: Any) -> MadeCall:
        call = self.begin(schema_id, inputs, **terms)
        await self.until(lambda: call.answer is not None)
        return call

    async def run(self, *commands: str | dict[str, Any], **more: Any) -> dict[str, Any]:
        """The outputs of a sandbox job."""
        given = [{"cmd": one} if isinstance(one, str) else one for one in commands]
        call = await self.done("oa.sandbox_run.v1", {"commands": given, **more})
        assert call.code is None, call.outcome.fault
        outputs: dict[str, Any] = call.output
        return outputs

    async def refusal(self, **inputs: Any) -> str:
        """What is said to a sandbox job that is refused."""
        call = await self.done("oa.sandbox_run.v1", {"commands": [{"cmd": "true"}], **inputs})
        assert call.outcome.fault is not None
        return f"{call.code}: {call.outcome.fault.message}"

    def folders(self) -> list[str]:
        """Of sandbox jobs, that are there now."""
        folder = self.home / "jobs"
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []


@asynccontextmanager
async def jobs_world(home: Path, settings: Jobs | None = None, policy: Policy = ALLOW_ALL) -> AsyncIterator[JobsWorld]:
    """A started one; afterwards no defect was met and nothing is left."""
    home.mkdir(mode=0o700, exist_ok=True)  # noqa: ASYNC240  (before anything runs)
    world = JobsWorld(home, settings or Jobs(), policy)
    await world.start()
    try:
        yield world
    finally:
        await world.exchange.edges.stop()
        world.exchange.close()
    assert world.exchange.died in {None, "closed", "killed"}
    assert [code for code in world.exchange.notices() if "defect" in code] == []
    assert world.folders() == []
