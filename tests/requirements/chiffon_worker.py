"""An agent for scenarios, a process of its own: each run is a line in a file, and waits until a file says go."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from trunkline.sdk import ChiffonAgent
from trunkline.sdk.chiffon import Task

FOLDER = Path(os.environ["WORKER_FOLDER"])
agent = ChiffonAgent(os.environ["WORKER_ID"], "infra", cache=FOLDER / "cache.sqlite", status_s=0.3)


@agent.work("count")
async def count(task: Task, name: str) -> str:
    """One line for each run."""
    with (FOLDER / "runs").open("a") as file:
        file.write(f"{name}\n")
    while not (FOLDER / f"go-{name}").exists():  # noqa: ASYNC110  (a file rings no bell)
        await asyncio.sleep(0.02)
    return f"ran {name}"


agent.run()
