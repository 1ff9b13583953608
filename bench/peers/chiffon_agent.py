"""A Chiffon agent for the run: ``python -m bench.peers.chiffon_agent FILE FOLDER``, FILE with its address and token."""

from __future__ import annotations

import sys
from pathlib import Path

from trunkline.sdk import ChiffonAgent
from trunkline.sdk.chiffon import Task

agent = ChiffonAgent("bench-worker", "infra", config=sys.argv[1], cache=Path(sys.argv[2]) / "cache.sqlite")


@agent.work("echo")
async def echo(_task: Task, text: str) -> str:
    """What it was given."""
    return text


@agent.work("print")
async def print_much(_task: Task, size: int) -> str:
    """So many bytes."""
    return "0123456789abcde\n" * (size // 16)


if __name__ == "__main__":
    agent.run()
