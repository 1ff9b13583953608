"""One tool of an agent: a function, what the exchange is told of it, and how it wants to be run.

Owns the flags of ``@agent.tool`` and their defaults: a new flag is added here. The schemas come from ``signature``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.opensentience.agent_session import Offer
from trunkline.model import TOOL_NAME, ToolDefinition
from trunkline.sdk.signature import Signature, signature_of

# What the SDK does for every tool, plain or async: turning one into the other is no new definition.
CAPABILITIES: Final = ("streaming", "cancellation")
IDEMPOTENCY: Final = "idempotency"


class DeclaredTool(Struct, frozen=True):
    """A function declared with ``@agent.tool``, and all that is known of it."""

    definition: ToolDefinition
    signature: Signature
    function: Callable[..., Any]
    is_async: bool
    timeout_s: float | None = None

    @property
    def is_idempotent(self) -> bool:
        """Whether the exchange may send a call again after a loss (decision 1b)."""
        return IDEMPOTENCY in self.definition.capabilities

    @property
    def offer(self) -> Offer:
        """The tool as a session takes it."""
        return Offer(self.definition, self.signature.read)


def make_tool(
    agent_id: str,
    function: Callable[..., Any],
    *,
    name: str | None,
    description: str | None,
    side_effects: bool,
    requires_directive: bool,
    idempotent: bool,
    capabilities: Iterable[str],
    tags: Iterable[str],
    permissions: Iterable[str],
    timeout_s: float | None,
) -> DeclaredTool:
    """A tool from a function and its flags; ``TypeError`` or ``ValueError`` says what the author has to change."""
    name = function.__name__ if name is None else name
    if not TOOL_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a tool: letters, digits, `_`, `.` and `-`, at most 64; see `name=`")
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"tool {name!r}: timeout_s must be above 0")
    signature = signature_of(function, name)
    schema, output_schema = signature.input_schema, signature.output_schema
    declared = dict.fromkeys((*CAPABILITIES, *((IDEMPOTENCY,) if idempotent else ()), *capabilities))
    return DeclaredTool(
        ToolDefinition(
            tool_id=f"{agent_id}/{name}",
            description=signature.description if description is None else description,
            input_schema=Raw(msgspec.json.encode(schema)),
            output_schema=None if output_schema is None else Raw(msgspec.json.encode(output_schema)),
            capabilities=tuple(declared),
            side_effects=side_effects,
            requires_directive=requires_directive,
            tags=tuple(tags),
            required_permissions=tuple(permissions),
            timeout_ms=None if timeout_s is None else max(1, round(timeout_s * 1000)),
        ),
        signature,
        function,
        inspect.iscoroutinefunction(function),
        timeout_s,
    )
