"""Stand-ins: agents whose tools answer recorded calls from a trajectory, attached to a running exchange like any agent.

Owns how a recording is offered as tools. What is answered is the recording's (``trajectory.standin``); under which ids
and with whose tokens stand-ins attach is decided by who starts them (``trunkline replay FILE --serve``).

Invariant: a stand-in never does anything. Its tools read a recording, so all of them are declared without side effects
unless the definition that they stand in for says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.errors import ToolError
from trunkline.model import Fault, ToolDefinition
from trunkline.sdk.agent import Agent
from trunkline.sdk.signature import Signature
from trunkline.sdk.tool import DeclaredTool
from trunkline.trajectory.standin import Recording

NOT_RECORDED: Final = "replay.not_recorded"
_ANY_OBJECT: Final = Raw(b'{"type":"object"}')


class _NoArguments(Struct):
    """A recorded tool has no parameters of its own: its input is compared as a whole."""


class _WholeInput(Signature, frozen=True):
    """Hands the input over as it came."""

    def read(self, body: Raw | bytes) -> dict[str, Any] | Fault:
        """The whole input, as the one argument."""
        return {"params": bytes(body)}


_SIGNATURE: Final = _WholeInput("", {}, None, _NoArguments, msgspec.json.Decoder(_NoArguments), None)


def definition_of(tool_id: str, recorded: str, answers: int) -> ToolDefinition:
    """What is offered for a recorded tool of which nothing but its name is known."""
    return ToolDefinition(
        tool_id=tool_id,
        description=f"Answers from a recording of {recorded}, for {answers} different inputs.",
        input_schema=_ANY_OBJECT,
        side_effects=False,
    )


def stand_in(agent_id: str, recording: Recording, tools: Mapping[str, ToolDefinition]) -> Agent:
    """An agent that answers for recorded tools; ``tools`` has the definition under which each is offered."""
    agent = Agent(agent_id)
    for recorded, definition in tools.items():
        answer = _answering(recording, recorded)
        agent.tools[definition.tool_id] = DeclaredTool(definition, _SIGNATURE, answer, is_async=True)
    return agent


def _answering(recording: Recording, tool: str) -> Callable[..., Any]:
    async def answer(params: bytes) -> Raw | None:
        found = recording.answer(tool, params)
        if found is None:
            raise ToolError(f"no call of {tool} with this input is recorded", code=NOT_RECORDED)
        if found.fault is not None:
            told = found.fault
            raise ToolError(told.message, code=told.code, retryable=told.retryable, details=told.details)
        return found.output

    return answer


async def serve(
    agents: Mapping[Agent, str], socket: str | Path, home: str | Path, attached: Callable[[], None]
) -> None:
    """Attach all of them, each with its token; stay until cancelled. ``attached`` is called when all are there."""
    async with AsyncExitStack() as stack:
        for agent, token in agents.items():
            await stack.enter_async_context(agent.connected(socket=socket, token=token, home=home))
        attached()
        await asyncio.Event().wait()
