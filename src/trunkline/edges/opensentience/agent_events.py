"""What can happen to an agent in one OpenSentience conversation: what ``agent_session`` hands to the SDK.

Values only; the counterpart, for the agent's side, of what ``trunkline.events`` is for the hub.

Owns these types. Does not own when one happens.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from trunkline.edges.opensentience.messages import Caller
from trunkline.model import Fault, Status
from trunkline.traces import traceparent


class AgentEvent(Struct, frozen=True):
    """The root, so that ``receive`` has a type."""


class Welcomed(AgentEvent, frozen=True):
    """Core took us in; the tools are being registered."""

    session_id: str
    core_version: str
    instance_id: str


class Refused(AgentEvent, frozen=True):
    """Core did not take us in, and the conversation is over."""

    code: str
    message: str


class ToolsConfirmed(AgentEvent, frozen=True):
    """Which tools Core took, and why not the others."""

    registered: tuple[str, ...]
    rejected: tuple[tuple[str, Fault], ...]


class ToolsWithdrawn(AgentEvent, frozen=True):
    """Which tools Core forgot on our wish, and why not the others."""

    unregistered: tuple[str, ...]
    rejected: tuple[tuple[str, Fault], ...]


class Called(AgentEvent, frozen=True):
    """Run this tool with these arguments, then ``finish``. ``input`` is what they were read from."""

    call_id: str
    tool_id: str
    arguments: dict[str, Any]
    input: Raw
    key: str | None = None
    timeout_ms: int | None = None
    caller: Caller | None = None
    correlation_id: str | None = None
    context: Raw | None = None

    @property
    def traceparent(self) -> str:
        """What to say to others so that what they do is part of this call's trace (W3C Trace Context)."""
        return traceparent(self.correlation_id or self.call_id, self.call_id)


class CancelAsked(AgentEvent, frozen=True):
    """Stop this call if you can; ``finish`` it either way. The acknowledgement is already on its way."""

    call_id: str
    reason: str | None
    deadline_ms: int | None


class Answered(AgentEvent, frozen=True):
    """The outcome of a call that we made, by the ``ref`` that ``call`` gave."""

    ref: str
    status: Status
    output: Raw | None = None
    fault: Fault | None = None
    exchange_call_id: str | None = None


class Progressed(AgentEvent, frozen=True):
    """Something of a call that we made."""

    ref: str
    channel: str
    data: Raw


class DirectiveAnswered(AgentEvent, frozen=True):
    """A person stated the directive that we asked for under ``ref``, or why there is none."""

    ref: str
    directive_id: str | None = None
    fault: Fault | None = None


class Complained(AgentEvent, frozen=True):
    """Core found fault with something we said that nobody waits for."""

    code: str
    message: str


class Dismissed(AgentEvent, frozen=True):
    """Core said goodbye and is about to close."""

    reason: str
    retry_after_ms: int | None


class Broken(AgentEvent, frozen=True):
    """The conversation is over: what Core sent cannot be read, or it never answered."""

    code: str
    message: str
