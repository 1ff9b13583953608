"""Agent Spaces 1.0: operations in, events out, on a workspace of their own (docs/protocols/spaces.md).

Read in this order: ``messages`` (the wire), ``translate`` (wire to our words and back), ``process`` (runs), ``store``
and ``agent`` (a space on disk and in the exchange), ``serve`` (all of them), ``routes`` and ``sockets`` (how they are
asked), ``edge`` (the edge as the host knows it).

The validators are public: ``from trunkline.edges.spaces import validate_operation``. The camelCase names are those of
the specification and mean the same.
"""

from __future__ import annotations

from trunkline.edges.spaces.messages import (
    parse_operation,
    parseOperation,
    validate_event,
    validate_events_message,
    validate_operation,
    validate_operations_message,
    validateOperation,
    validateOperationsMessage,
)

__all__ = [
    "parseOperation",
    "parse_operation",
    "validateOperation",
    "validateOperationsMessage",
    "validate_event",
    "validate_events_message",
    "validate_operation",
    "validate_operations_message",
]
