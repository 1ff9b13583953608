from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.edges.pusher.frames import encode
from trunkline.edges.pylon import messages
from trunkline.edges.pylon.messages import BadPayload, Connect, Disconnect, Request, Respond

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["workspaceId", "workspace_id", "requestId", "request_id", "cwd", "method", "params", "result"])


@pytest.mark.parametrize(
    ("channel", "base"),
    [
        ("pylon.system", "pylon.system"),
        ("private-pylon.codex", "pylon.codex"),
        ("presence-pylon.system", "pylon.system"),
        ("private-presence-pylon.system", ""),
        ("pylon.system ", ""),
        ("Pylon.system", ""),
        ("", ""),
    ],
)
def test_each_channel_has_a_private_and_a_presence_form(channel: str, base: str) -> None:
    assert messages.CHANNELS.base_of(channel) == base


@pytest.mark.parametrize(
    ("event", "data", "read"),
    [
        (messages.CONNECT, {"workspaceId": "w", "cwd": "/x"}, Connect("w", "/x")),
        (messages.CONNECT, {"workspace_id": "w", "cwd": "/x", "more": 1}, Connect("w", "/x")),
        (messages.DISCONNECT, {"workspace_id": "w"}, Disconnect("w")),
        (
            messages.REQUEST,
            {"workspaceId": "w", "requestId": 1, "method": "m", "params": [1]},
            Request("w", 1, "m", [1]),
        ),
        (messages.REQUEST, {"workspace_id": "w", "request_id": "1", "method": "m"}, Request("w", "1", "m", {})),
        (
            messages.REQUEST,
            {"workspace_id": "w", "message": {"id": 3, "method": "m", "params": {"a": 1}}},
            Request("w", 3, "m", {"a": 1}),
        ),
        (messages.RESPOND, {"workspaceId": "w", "requestId": 0, "result": None}, Respond("w", 0, None)),
        (messages.RESPOND, {"workspaceId": "w", "message": {"id": 0, "result": {}}}, Respond("w", 0, {})),
    ],
)
@requirement("OA-029", "OA-030", "OA-031", "OA-032")
def test_payloads_are_read_in_both_spellings(event: str, data: Any, read: object) -> None:
    assert messages.read_payload(event, data) == read


@pytest.mark.parametrize(
    ("event", "data", "word"),
    [
        (messages.CONNECT, [], "object"),
        (messages.CONNECT, "text", "object"),
        (messages.DISCONNECT, {}, "workspaceId"),
        (messages.REQUEST, {"workspaceId": "w", "method": "m"}, "requestId"),
        (messages.REQUEST, {"workspaceId": "w", "requestId": True, "method": "m"}, "requestId"),
        (messages.REQUEST, {"workspaceId": "w", "requestId": 2**64, "method": "m"}, "requestId"),
        (messages.REQUEST, {"workspaceId": "w", "requestId": 1, "method": 7}, "method"),
        (messages.RESPOND, {"workspaceId": "w", "requestId": 1}, "result"),
    ],
)
def test_a_payload_that_cannot_be_used_names_the_field(event: str, data: Any, word: str) -> None:
    with pytest.raises(BadPayload, match=word):
        messages.read_payload(event, data)


@given(st.sampled_from([*messages.CHANNELS.events[messages.CODEX]]), JSON | st.dictionaries(NAMES, JSON))
def test_reading_a_payload_raises_nothing_else(event: str, data: Any) -> None:
    try:
        found = messages.read_payload(event, data)
    except BadPayload:
        return
    assert 0 < len(found.workspace_id) <= 128


@requirement("OA-033", "OA-034")
def test_the_example_of_the_specification_is_what_we_write() -> None:
    text = """{
      "workspace_id": "ws_123",
      "message": {
        "method": "turn/started",
        "params": { "thread_id": "thread_1", "turn": { "id": "turn_1" } }
      }
    }"""
    example = json.loads(text)
    written = encode(messages.envelope(example["workspace_id"], example["message"]))
    assert json.loads(written) == example
    assert isinstance(example["workspace_id"], str)
    assert set(example["message"]) == {"method", "params"}
