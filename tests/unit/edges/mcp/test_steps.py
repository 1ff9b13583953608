"""What a message means: each method of each era, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trunkline.edges.mcp import messages, steps
from trunkline.edges.mcp.messages import BadMessage
from trunkline.edges.mcp.steps import Client, Step, step_of
from trunkline.edges.mcp.translate import Wording
from trunkline.model import Principal

CLIENTS = {
    "handshake": Client(Principal("mcp:me"), "2025-11-25", Wording("1", is_modern=False), session_id="s"),
    "modern": Client(Principal("mcp:me"), "2026-07-28", Wording("1", is_modern=True)),
}


def step(era: str, method: str, params: Any = None, request_id: Any = 1) -> Step:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    if request_id is not None:
        body["id"] = request_id
    data = json.dumps(body).encode()
    return step_of(messages.read(data), data, CLIENTS[era])


def code(era: str, method: str, params: Any = None) -> int:
    with pytest.raises(BadMessage) as refused:
        step(era, method, params)
    assert refused.value.request_id == 1
    return refused.value.code


def test_each_era_has_methods_of_its_own() -> None:
    for method in (
        "server/discover",
        "subscriptions/listen",
        "prompts/list",
        "logging/setLevel",
        "completion/complete",
    ):
        assert code("handshake", method) == -32601
    for method in ("initialize", "ping", "prompts/list", "resources/subscribe"):
        assert code("modern", method) == -32601


@pytest.mark.parametrize("era", list(CLIENTS))
def test_parameters_are_checked_before_anything_happens(era: str) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {}),
        ("tools/call", {"name": 1}),
        ("tools/call", {"name": ""}),
        ("tools/call", {"name": "x", "arguments": []}),
        ("tools/call", {"name": "x", "arguments": "{}"}),
        ("tools/call", {"name": "x", "inputResponses": []}),
        ("tools/call", {"name": "x", "requestState": 1}),
        ("tools/call", {"name": "x", "_meta": {"progressToken": []}}),
        ("tools/list", {"cursor": 1}),
        ("tools/list", {"cursor": ""}),
        ("resources/read", {}),
        ("resources/read", {"uri": "x" * 3000}),
    ]
    for method, params in wrong:
        assert code(era, method, params) == -32602, (method, params)


@pytest.mark.parametrize("era", list(CLIENTS))
def test_null_is_the_same_as_absent(era: str) -> None:
    found = step(era, "tools/call", {"name": "x", "arguments": None, "requestState": None, "_meta": None})
    assert isinstance(found, steps.CallTool)
    assert (bytes(found.arguments), found.value, found.state) == (b"{}", {}, None)
    assert step(era, "tools/list", {"cursor": None}) == steps.ListTools(None)


def test_a_cancellation_names_a_request_of_its_session() -> None:
    assert step("handshake", "notifications/cancelled", {"requestId": 7}, None) == steps.Cancel(7)
    for wrong in ({}, {"requestId": None}, {"requestId": True}, {"requestId": []}):
        assert step("handshake", "notifications/cancelled", wrong, None) == steps.NOTHING
    assert step("modern", "notifications/cancelled", {"requestId": 7}, None) == steps.NOTHING


def test_what_the_clients_person_did_is_not_an_approval() -> None:
    for action, is_declined in (("accept", False), ("decline", True), ("cancel", True), (None, False), (1, False)):
        found = step("modern", "tools/call", {"name": "x", "inputResponses": {"approval": {"action": action}}})
        assert isinstance(found, steps.CallTool)
        assert found.is_declined == is_declined


def test_only_a_client_that_says_so_is_sent_to_addresses() -> None:
    def begun(version: str, capabilities: Any) -> bool:
        found = step("handshake", "initialize", {"protocolVersion": version, "capabilities": capabilities})
        assert isinstance(found, steps.Begun)
        return found.opens_urls

    assert begun("2025-11-25", {"elicitation": {"url": {}}})
    assert not begun("2025-11-25", {"elicitation": {}})
    assert not begun("2025-11-25", {"elicitation": {"form": {}}})
    assert not begun("2025-06-18", {"elicitation": {"url": {}}})
    assert not begun("2025-11-25", None)
