"""An agent with the tools that the conformance suite of MCP calls, as far as an agent of the exchange can have them."""

import time
from typing import Any

from trunkline import Agent

agent = Agent("com.example.conformance")


@agent.tool(side_effects=False)
def test_simple_text() -> str:
    """Says a sentence."""
    return "This is a simple text response for testing."


@agent.tool(side_effects=False)
def test_error_handling() -> dict[str, Any]:
    """Fails."""
    raise ValueError("This tool intentionally returns an error for testing")


@agent.tool(side_effects=False)
def test_tool_with_progress() -> dict[str, bool]:
    """Shows how far it is."""
    for percent in (0.5, 50, 100):
        agent.progress(f"Completed {percent:g} of 100", percent=percent)
        time.sleep(0.05)
    return {"done": True}


agent.run()
