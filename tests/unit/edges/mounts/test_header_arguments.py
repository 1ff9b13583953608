"""``edges.mounts.header_arguments``: held against what the official SDK says of the same schemas and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from tests.requirement import requirement
from trunkline.edges.mounts import header_arguments
from trunkline.edges.mounts.header_arguments import MAX_VALUE_BYTES, headers, places


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def text(name: Any = "Region", kind: Any = "string") -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": name}


SCHEMAS = [
    schema(),
    schema(a=text()),
    schema(a=text(kind="integer"), b=text("B", "boolean")),
    schema(a=schema(b=text())),
    schema(a=text(), b=text("region")),
    schema(a=text(kind="number")),
    schema(a=text(kind=["string", "null"])),
    schema(a=text("with space")),
    schema(a=text("")),
    schema(a=text(7)),
    {**schema(), "x-mcp-header": "Root"},
    schema(a={"type": "array", "items": text()}),
    {**schema(), "anyOf": [schema(a=text())]},
    {**schema(), "$defs": {"d": text()}},
    schema(**{"x-mcp-header": {"type": "string"}}),
]


@requirement("MCP-045")
@pytest.mark.parametrize("one", SCHEMAS, ids=json.dumps)
def test_a_schema_is_followed_if_the_sdk_would_follow_it(one: dict[str, Any]) -> None:
    found = places(json.dumps(one).encode())
    assert (found is None) == (inbound.find_invalid_x_mcp_header(one) is not None)
    if found is not None:
        expected = {path: f"mcp-param-{name}".lower() for path, name in inbound.x_mcp_header_map(one).items()}
        assert dict(found) == expected


VALUES = st.one_of(st.text(max_size=40), st.integers(-(2**53), 2**53), st.booleans(), st.none(), st.just([1]))


@requirement("MCP-045")
@given(a=VALUES, b=VALUES, has_b=st.booleans())
def test_a_call_has_the_headers_that_the_sdk_would_send(a: Any, b: Any, has_b: bool) -> None:
    one = schema(a=text("A"), deep=schema(b=text("B")))
    wanted = places(json.dumps(one).encode())
    assert wanted is not None
    arguments: dict[str, Any] = {"a": a, "deep": {"b": b} if has_b else 3}
    expected = inbound.mcp_param_headers(inbound.x_mcp_header_map(one), arguments)
    ours = headers(wanted, Raw(json.dumps(arguments).encode()))
    assert ours is not None
    decoded = {name: inbound.decode_header_value(value) for name, value in ours.items()}
    assert decoded == {name.lower(): inbound.decode_header_value(value) for name, value in expected.items()}
    assert all(value.isascii() and value.isprintable() for value in ours.values())


def test_what_is_too_long_for_a_header_is_not_sent() -> None:
    wanted = places(json.dumps(schema(a=text())).encode())
    assert wanted is not None
    assert headers(wanted, Raw(json.dumps({"a": "x" * MAX_VALUE_BYTES}).encode())) is not None
    assert headers(wanted, Raw(json.dumps({"a": "x" * (MAX_VALUE_BYTES + 1)}).encode())) is None


def test_a_call_without_such_arguments_is_not_read() -> None:
    assert header_arguments.headers((), Raw(b"not read")) == {}
