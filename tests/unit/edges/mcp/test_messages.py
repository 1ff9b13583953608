"""The wire: what is a message, and what is not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.mcp import messages
from trunkline.edges.mcp.messages import BadMessage, Message

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"a": 1}}}


def read(value: Any) -> Message:
    return messages.read(json.dumps(value).encode())


def test_a_request_a_notification_and_an_answer_are_told_apart() -> None:
    assert read(CALL) == Message(1, "tools/call", CALL["params"])
    assert not read({"jsonrpc": "2.0", "method": "notifications/initialized"}).is_request
    assert read({"jsonrpc": "2.0", "id": "x", "result": {}}).method == ""


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"jsonrpc": "1.0"}, -32600),
        ({"id": None}, -32600),
        ({"id": True}, -32600),
        ({"id": 1.5}, -32600),
        ({"id": []}, -32600),
        ({"id": "x" * 257}, -32600),
        ({"method": 7}, -32600),
        ({"method": ""}, -32600),
        ({"params": []}, -32602),
        ({"params": "x"}, -32602),
    ],
)
def test_what_is_no_message_is_refused_with_the_protocols_code(change: dict[str, Any], code: int) -> None:
    with pytest.raises(BadMessage) as refused:
        read({**CALL, **change})
    assert refused.value.code == code


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"a":1,"a":2}', b"NaN", b"[" * 200 + b"]" * 200])
def test_what_is_not_strict_json_is_a_parse_error(data: bytes) -> None:
    with pytest.raises(BadMessage) as refused:
        messages.read(data)
    assert refused.value.code == -32700


def test_batches_are_not_taken() -> None:
    with pytest.raises(BadMessage) as refused:
        read([CALL])
    assert refused.value.code == -32600


def test_arguments_stay_the_bytes_they_arrived_as() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments": {"n": 1.10} }}'
    assert bytes(messages.arguments_of(data)) == b'{"n": 1.10}'
    for absent in (b'{"params":{}}', b'{"params":{"arguments":null}}'):
        assert bytes(messages.arguments_of(absent)) == b"{}"


@given(st.binary(max_size=200))
def test_reading_never_raises_anything_else(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        messages.read(data)


def test_keys_and_times_have_bounds() -> None:
    def meta(**fields: Any) -> dict[str, Any]:
        return {name.replace("__", "/"): value for name, value in fields.items()}

    assert messages.name_of(meta(trunkline__idempotency_key="k"), messages.IDEMPOTENCY_KEY) == "k"
    assert messages.name_of(meta(trunkline__idempotency_key=None), messages.IDEMPOTENCY_KEY) is None
    for wrong in ("", "x" * 129, 1, "a\nb"):
        with pytest.raises(BadMessage):
            messages.name_of(meta(trunkline__idempotency_key=wrong), messages.IDEMPOTENCY_KEY)
    assert messages.timeout_of(meta(trunkline__timeout_ms=5)) == 5
    for wrong in (0, -1, True, 1.5, "5", messages.MAX_TIMEOUT_MS + 1):
        with pytest.raises(BadMessage):
            messages.timeout_of(meta(trunkline__timeout_ms=wrong))
    assert messages.progress_token(meta(progressToken=0)) == 0
    for wrong in (True, 1.5, [], "x" * 257):
        with pytest.raises(BadMessage):
            messages.progress_token(meta(progressToken=wrong))
