"""Messages for the tests of OSSA: the two that the specification prints, and any of them changed."""

from __future__ import annotations

import copy
import json
from typing import Any

# 9.1
REQUEST: dict[str, Any] = {
    "header": {
        "messageId": "550e8400-e29b-41d4-a716-446655440000",
        "type": "request",
        "version": "1.0.0",
        "timestamp": "2024-09-26T10:30:00Z",
        "sender": {"agentId": "agent-001", "agentType": "worker"},
        "recipient": {"agentId": "agent-002", "agentType": "governor"},
        "correlationId": "correlation-123",
        "priority": 5,
    },
    "body": {
        "action": "validate_compliance",
        "payload": {"resource": "deployment-config", "standards": ["ossa-security", "ossa-lifecycle"]},
    },
}
# 9.2
ERROR: dict[str, Any] = {
    "header": {
        "messageId": "660e8400-e29b-41d4-a716-446655440001",
        "type": "error",
        "version": "1.0.0",
        "timestamp": "2024-09-26T10:30:01Z",
        "sender": {"agentId": "agent-002", "agentType": "governor"},
        "recipient": {"agentId": "agent-001", "agentType": "worker"},
        "correlationId": "correlation-123",
    },
    "body": {
        "action": "error",
        "payload": {},
        "error": {
            "code": 404,
            "message": "Resource not found",
            "details": {"resource": "deployment-config"},
            "timestamp": "2024-09-26T10:30:01Z",
        },
    },
}
MISSING = object()


def changed(path: str, value: object, base: dict[str, Any] = REQUEST) -> bytes:
    """A message with another value at this place, or without one."""
    made: dict[str, Any] = copy.deepcopy(base)
    *above, last = path.split(".")
    place = made
    for name in above:
        place = place[name]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return json.dumps(made).encode()
