"""What an author of an OSSA agent sees of messages: one that came in, and an error. Values, no behaviour.

Owns the form in which payloads are handed over (read JSON). Does not own the wire (``edges.ossa.messages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import CODES, ErrorInfo, Message
from trunkline.errors import TrunklineError
from trunkline.model import stamp


class OssaError(TrunklineError):
    """What an OSSA peer answered instead of a result, or what a handler raises to answer so.

    ``code`` is one of the ten of the specification (400, 401, 403, 404, 408, 429, 500, 501, 503, 507).
    """

    def __init__(self, code: int, message: str, details: Any = None, *, trace_id: str | None = None) -> None:
        if code not in CODES:
            raise ValueError(f"{code} is no error code of OSSA: {', '.join(map(str, CODES))}")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details
        self.trace_id = trace_id

    @property
    def retry_after_ms(self) -> float:
        """When to come back at the earliest, if the peer said so; else 0."""
        found = self.details.get("retryAfterMs") if isinstance(self.details, dict) else None
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else 0.0


class ConnectionLost(OssaError):
    """The exchange cannot be reached, or went away before it answered: 503, and what of it was done is not known."""

    def __init__(self) -> None:
        super().__init__(messages.UNAVAILABLE, "the exchange cannot be reached")


def error_of(info: ErrorInfo) -> OssaError:
    """An error as it came."""
    details = None if isinstance(info.details, msgspec.UnsetType) else msgspec.json.decode(info.details)
    return OssaError(info.code, info.message, details, trace_id=info.trace_id)


def info_of(error: OssaError, now_ms: int) -> ErrorInfo:
    """An error as it goes on the wire."""
    details = msgspec.UNSET if error.details is None else Raw(msgspec.json.encode(error.details))
    return ErrorInfo(error.code, error.message, stamp(now_ms), details, error.trace_id)


class OssaMessage(Struct, frozen=True):
    """A message that came in. ``header`` has the fields that its sender added and that mean nothing to the protocol."""

    message_id: str
    type: str
    sender: str
    sender_type: str
    action: str
    payload: Any
    correlation_id: str
    topic: str | None = None
    qos: int = 0
    priority: int = messages.DEFAULT_PRIORITY
    # It came encrypted, so its reply goes encrypted.
    is_sealed: bool = False
    header: Mapping[str, Any] = {}
    statements: list[tuple[str, tuple[Any, ...]]] = []

    def also(self, statement: str, *parameters: Any) -> None:
        """Inside a handler: run this SQL in the file of the agent's inbox, in the transaction that marks this message
        as handled. With quality 2 such an effect happens exactly once, also around a crash.
        """
        self.statements.append((statement, parameters))


def message_of(message: Message, *, is_sealed: bool) -> OssaMessage:
    """A message as its author sees it."""
    return OssaMessage(
        message.message_id,
        message.type,
        message.sender.agent_id,
        message.sender.agent_type,
        message.action,
        msgspec.json.decode(message.payload),
        message.correlation,
        message.topic,
        message.level,
        message.urgency,
        is_sealed,
        {name: msgspec.json.decode(value) for name, value in message.others.items()},
        [],
    )
