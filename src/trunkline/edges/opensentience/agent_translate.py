"""The agent's side between the wire and our words: ``translate`` is Core's."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import UNSET

from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.messages import ErrorObject
from trunkline.model import Fault, ToolDefinition


class _Ids(Protocol):
    """What every message about a request echoes."""

    @property
    def request_id(self) -> str | None: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def causation_id(self) -> str | None: ...


def echo(ids: _Ids) -> dict[str, Any]:
    """Those of one message, for those about the same request."""
    return {"request_id": ids.request_id, "correlation_id": ids.correlation_id, "causation_id": ids.causation_id}


def wire_tool(tool: ToolDefinition) -> messages.Tool:
    """A definition as an agent announces it."""
    return messages.Tool(
        tool.tool_id,
        tool.name,
        tool.description,
        tool.input_schema,
        UNSET if tool.output_schema is None else tool.output_schema,
        tool.capabilities or None,
        tool.side_effects,
        tool.requires_directive or None,
        tool.tags or None,
        tool.required_permissions or None,
        tool.timeout_ms,
    )


def fault_of(error: ErrorObject | None) -> Fault | None:
    """Why something failed, in our words."""
    return None if error is None else Fault(error.code, error.message, bool(error.retryable), error.details)


def rejections(rejected: tuple[messages.Rejection, ...] | None) -> tuple[tuple[str, Fault], ...]:
    """Which tools were not taken, and why."""
    return tuple(
        (one.tool_id, Fault(one.error.code, one.error.message, bool(one.error.retryable))) for one in rejected or ()
    )
