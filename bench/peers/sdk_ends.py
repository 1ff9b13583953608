"""Two agents written with the SDK, joined by the exchange: what the code of a user gets, as with the other clients.

``python -m bench.peers.sdk_ends provider`` or ``caller``; where to attach, and as whom, comes on standard input, for a
token has no place in a list of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import uvloop

from bench.loads import Attach, Attached, Done, Run, Texts, answer, closed_loop, commands
from trunkline import Agent

TOOL: Final = "bench.sdk/echo"


async def provide() -> None:
    """Answer each call with what it was given."""
    agent = Agent("bench.sdk", version="1.0.0")

    @agent.tool(side_effects=False)
    async def echo(text: str) -> dict[str, str]:
        """Returns what it is given."""
        return {"text": text}

    answer(Done())
    asked = commands()
    attach = await anext(asked)
    assert isinstance(attach, Attach)
    async with _connected(agent, attach):
        answer(Attached(0.0, 0.0))
        async for _ in asked:
            raise AssertionError("a provider is asked for nothing")


async def call() -> None:
    """Make the calls that are asked for."""
    agent = Agent("bench.sdk.caller", version="1.0.0")

    async def one(texts: Texts) -> None:
        text = texts.text()
        assert await agent.call(TOOL, {"text": text}) == {"text": text}

    answer(Done())
    asked = commands()
    attach = await anext(asked)
    assert isinstance(attach, Attach)
    texts = Texts()
    async with _connected(agent, attach):
        answer(Attached(0.0, 0.0))
        async for run in asked:
            assert isinstance(run, Run)
            answer(await closed_loop(run, texts, one))


def _connected(agent: Agent, attach: Attach) -> AbstractAsyncContextManager[Agent]:
    (identity,) = attach.identities
    return agent.connected(socket=attach.socket, token=identity.token)


ROLES: Final[dict[str, Callable[[], Coroutine[Any, Any, None]]]] = {"provider": provide, "caller": call}

if __name__ == "__main__":
    uvloop.run(ROLES[sys.argv[1]]())
