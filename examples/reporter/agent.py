"""An agent that calls others, with a manifest that asks for the permission it needs.

Try: trunkline call com.example.reporter/when '{"zone": "UTC"}'. Then `trunkline approvals`: approve the permission its
manifest asks for, call com.example.reporter/minute '{"text": "all is well"}', and approve what it wants to write.
"""

from __future__ import annotations

from pathlib import Path

from trunkline import Agent, ToolFailed

agent = Agent("com.example.reporter", version="1.0.0", manifest=Path(__file__).with_name("opensentience.agent.json"))


@agent.tool(side_effects=False, tags=["chain"])
async def when(zone: str = "UTC") -> str:
    """The time in a sentence; the clock is somebody else's tool, and the call is part of this one's chain."""
    answer = await agent.call("com.example.clock/now", {"zone": zone})
    return f"It is {answer['time']} in {zone}."


@agent.tool(tags=["chain"])
def minute(text: str) -> dict[str, object]:
    """Keeps a note with the time. A plain function calls with call_sync; a refusal comes as an exception."""
    time = agent.call_sync("com.example.clock/now")["time"]
    agent.progress("asking for the note to be kept")
    try:
        kept = agent.call_sync("com.example.notes/append", {"text": f"{time} {text}"})
    except ToolFailed as refusal:
        return {"kept": False, "why": f"{refusal.fault.code}: {refusal.fault.message}"}
    return {"kept": True, **kept}


if __name__ == "__main__":
    agent.run()
