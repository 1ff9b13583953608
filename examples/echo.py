"""The smallest agent: two tools that only read. Try: trunkline call com.example.echo/echo '{"text": "hello"}'."""

from __future__ import annotations

from trunkline import Agent

agent = Agent("com.example.echo", version="1.0.0")


@agent.tool(side_effects=False, tags=["text"])
async def echo(text: str) -> dict[str, str]:
    """Says it back."""
    return {"text": text}


@agent.tool(side_effects=False, tags=["text"])
def reverse(text: str) -> dict[str, str]:
    """Says it backwards. A plain function: it runs in a thread of its own."""
    return {"text": text[::-1]}


if __name__ == "__main__":
    agent.run()
