"""Chiffon's HTTP routes for machines: writes ``docs/chiffon.openapi.json`` from the types that the edge itself reads.

``python -m tools.chiffon_openapi`` writes it, ``--check`` says whether the file is what the code says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from trunkline.edges.chiffon import messages, serve
from trunkline.edges.chiffon.messages import (
    AGENT_TYPES,
    CODES,
    MESSAGE_TYPES,
    VERSION,
    Capacity,
    ErrorPayload,
    Hints,
    Registration,
    Resources,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)

PAGE: Final = Path(__file__).parents[1] / "docs" / "chiffon.openapi.json"
PAYLOADS: Final = (WorkRequest, WorkStatus, WorkResult, ErrorPayload)
OTHERS: Final = (Hints, Step, Resources, Registration, Capacity)

_UUID: Final = {"type": "string", "format": "uuid"}


def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chiffon Agent Protocol, as Trunkline speaks it",
            "version": VERSION,
            "description": "docs/protocols/chiffon.md says what the messages mean.",
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "security": [{"token": []}],
        "paths": {
            f"{serve.PREFIX}/register": {"post": _register()},
            f"{serve.PREFIX}/message": {"post": _message()},
            f"{serve.PREFIX}/messages": {"get": _messages()},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
        },
    }


def _register() -> dict[str, Any]:
    answer = {
        "type": "object",
        "required": ["registered", "agent_id", "agent_type", "protocol_version", "work_types"],
        "properties": {
            "registered": {"const": True},
            "agent_id": {"type": "string"},
            "agent_type": {"enum": list(AGENT_TYPES)},
            "protocol_version": {"const": VERSION},
            "work_types": {"type": "array", "items": {"type": "string"}},
            "rejected": {"type": "object", "additionalProperties": {"type": "string"}},
            "heartbeat_interval_seconds": {"type": "integer"},
            "orchestrator_token": {"type": "string"},
        },
    }
    return {
        "summary": "Say who one is and what one does",
        "operationId": "register",
        "requestBody": _body("Registration"),
        "responses": {"200": _answer("Registered", answer), **_errors()},
    }


def _message() -> dict[str, Any]:
    accepted = {
        "type": "object",
        "required": ["accepted", "message_id"],
        "properties": {"accepted": {"const": True}, "message_id": _UUID},
    }
    return {
        "summary": "One message",
        "operationId": "message",
        "requestBody": _body("Envelope"),
        "responses": {
            "200": _answer("The reply, if there is one at once", _ref("Envelope")),
            "202": _answer("Accepted", accepted),
            **_errors(),
        },
    }


def _messages() -> dict[str, Any]:
    found = {
        "type": "object",
        "required": ["messages"],
        "properties": {"messages": {"type": "array", "items": _ref("Envelope")}},
    }
    wait = {
        "name": "wait",
        "in": "query",
        "description": "Seconds to wait for a message if there is none",
        "schema": {"type": "integer", "minimum": 0, "maximum": int(serve.MAX_WAIT_S), "default": 0},
    }
    return {
        "summary": "What there is to fetch",
        "operationId": "messages",
        "parameters": [wait],
        "responses": {"200": _answer("Messages, in order", found), **_errors()},
    }


def _errors() -> dict[str, Any]:
    by_status = {str(code.http): f"{number} {code.name}" for number, code in CODES.items()}
    by_status |= {
        "405": "5003 Invalid Message: another method",
        "408": "5003 Invalid Message: too slow",
        "413": "5003 Invalid Message: too large",
        "415": "5003 Invalid Message: not application/json",
    }
    return {status: _answer(text, _ref("Envelope")) for status, text in sorted(by_status.items())}


def _schemas() -> dict[str, Any]:
    _, found = msgspec.json.schema_components((*PAYLOADS[1:], *OTHERS), ref_template="#/components/schemas/{name}")
    # Its parameters are bytes that pass through, for which msgspec has no schema.
    work_request: dict[str, Any] = {
        "type": "object",
        "required": ["task_id", "work_type"],
        "properties": {
            "task_id": {},
            "work_type": {"type": "string", "minLength": 1, "maxLength": messages.MAX_NAME_CHARS},
            "parameters": {"type": "object", "default": {}},
            "hints": _ref("Hints"),
        },
    }
    assert list(work_request["properties"]) == list(WorkRequest.__struct_fields__)
    found = {**found, "WorkRequest": work_request}
    schemas: dict[str, Any] = {name: found[name] for name in sorted(found)}
    for schema in schemas.values():
        schema.pop("title", None)
    _narrow(schemas)
    schemas["Envelope"] = {
        "type": "object",
        "required": list(messages.Envelope.__struct_fields__[:-1]),
        "properties": {
            "protocol_version": {"type": "string", "default": VERSION},
            "message_id": _UUID,
            "from_agent": {"enum": list(AGENT_TYPES)},
            "to_agent": {"enum": list(AGENT_TYPES)},
            "timestamp": {"type": "string", "format": "date-time"},
            "trace_id": _UUID,
            "request_id": _UUID,
            "type": {"enum": list(MESSAGE_TYPES)},
            "payload": {"anyOf": [_ref(kind.__name__) for kind in PAYLOADS]},
            "x_custom_fields": {"type": "object"},
        },
    }
    return schemas


def _narrow(schemas: dict[str, Any]) -> None:
    """What the edge checks beyond the types of its fields."""
    for name in ("WorkRequest", "WorkStatus", "WorkResult"):
        schemas[name]["properties"]["task_id"] = _UUID
    schemas["WorkStatus"]["properties"]["progress_percent"] |= {"minimum": 0, "maximum": 100}
    schemas["WorkResult"]["properties"]["exit_code"]["minimum"] = 0
    schemas["ErrorPayload"]["properties"]["error_code"] |= {
        "minimum": messages.MIN_CODE,
        "maximum": messages.MAX_CODE,
    }
    for hint in schemas["Hints"]["properties"].values():
        hint["exclusiveMinimum"] = 0
    for used in schemas["Resources"]["properties"].values():
        used["minimum"] = 0
    schemas["Registration"]["properties"]["agent_type"] = {"enum": list(AGENT_TYPES)}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def text() -> str:
    """The document as it stands in the file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the file, or check it."""
    if "--check" in arguments:
        if PAGE.read_text(encoding="utf-8") == text():
            return 0
        print(f"{PAGE} is not what the code says: python -m tools.chiffon_openapi")
        return 1
    PAGE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
