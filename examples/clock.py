"""Streaming and cancellation. Try: trunkline call --follow com.example.clock/countdown '{"start": 5}', and Ctrl-C."""

from __future__ import annotations

import asyncio
import datetime as dt
import zoneinfo
from typing import Annotated

from msgspec import Meta

from trunkline import Agent, ToolError

agent = Agent("com.example.clock", version="1.0.0")


@agent.tool(side_effects=False, tags=["time"])
async def now(zone: str = "UTC") -> dict[str, str]:
    """The time, to the second.

    Args:
        zone: A name like Europe/Rome.

    """
    try:
        moment = dt.datetime.now(zoneinfo.ZoneInfo(zone))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise ToolError("there is no such time zone here; names look like Europe/Rome") from None
    return {"time": moment.isoformat(timespec="seconds"), "zone": zone}


@agent.tool(side_effects=False, tags=["time"])
async def countdown(
    start: Annotated[int, Meta(ge=1, le=100, description="Where to begin.")] = 5,
    pause_s: Annotated[float, Meta(ge=0, le=10, description="Seconds between two numbers.")] = 1.0,
) -> dict[str, int]:
    """Counts down to zero and shows each number on the way. A cancel ends it between two numbers."""
    for number in range(start, 0, -1):
        agent.progress(f"{number} …", percent=round(100 * (start - number) / start))
        agent.partial({"number": number})
        await asyncio.sleep(pause_s)
    return {"counted": start}


if __name__ == "__main__":
    agent.run()
