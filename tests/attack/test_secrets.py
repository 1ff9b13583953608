"""No token of ours is found anywhere that lasts (P-H1), and no text of an exception on the wire (P-H5)."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from tests.attack.defects import CANARY, broken_exchange
from tests.attack.secrets import plant
from tests.running import RawAgent, Running, asked_over_http, running_one


def test_fifty_tokens_planted_in_every_field_of_five_hundred_calls_are_in_no_file(short_path: Path) -> None:
    assert plant(short_path, 1, canaries=50, calls=500) == 500


# --- defects of ours tell nothing of themselves (P-H5) ----------------------------------------------------------------


def speak(agent: RawAgent, kind: str, payload: dict[str, Any], **envelope: Any) -> str:
    """Say this, and hear everything until the answer, the end, or nothing more."""
    agent.send(kind, payload, **envelope)
    return listen(agent)


def listen(agent: RawAgent) -> str:
    heard = []
    agent.socket.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        while (message := agent.receive()) is not None:
            heard.append(message)
    return json.dumps(heard)


def told_by_http(exchange: Running, method: str, path: str, body: Any = None) -> str:
    """Whatever comes, also from one that is just ending."""
    try:
        return json.dumps(exchange.request(method, path, body))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return type(error).__name__


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/v1/agents", None),
    ("GET", "/v1/tools", None),
    ("GET", "/v1/calls", None),
    ("POST", "/v1/calls", {"tool_id": "a/b", "input": {"x": "y"}}),
    ("GET", "/v1/calls/c", None),
    ("POST", "/v1/calls/c/cancel", {"reason": "r"}),
    ("GET", "/v1/approvals", None),
    ("GET", "/v1/approvals/a1", None),
    ("POST", "/v1/approvals/a1", {"decision": "approved"}),
    ("POST", "/v1/directives", {"tool_id": "a/b", "reason": "r"}),
    ("GET", "/v1/tokens", None),
    ("POST", "/v1/tokens", {"edge": "http", "agent": "x"}),
    ("DELETE", "/v1/tokens/t1", None),
    ("GET", "/v1/policy", None),
    ("POST", "/v1/policy/check", {"caller": "operator", "tool_id": "a/b"}),
    ("POST", "/v1/reload", None),
    ("GET", "/v1/watch", None),
    ("GET", "/v1/ledger?call_id=c", None),
    ("GET", "/v1/ledger/c/replay.jsonl", None),
    ("GET", "/v1/status", None),
    ("GET", "/metrics", None),
    ("GET", f"/v1/blobs/{'0' * 64}", None),
]


def test_a_route_that_raises_answers_in_the_words_of_the_table(short_path: Path) -> None:
    with running_one(broken_exchange(short_path, "http:")) as exchange:
        for method, path, body in ROUTES:
            status, answer = exchange.request(method, path, body)
            assert status == 500, path
            assert answer["error"]["code"] == "hub.unavailable"
            assert CANARY not in json.dumps(answer)
        assert exchange.request("GET", "/healthz")[0] == 200
    assert CANARY not in exchange.said()
    # The 1st and the 10th of a kind; each is counted.
    assert exchange.said().count("a defect: ValueError at") == 2


HANDLERS = [
    "_take_first",
    "requested",
    "cancel_requested",
    "finished",
    "progressed",
    "_take_cancel_ack",
    "_take_heartbeat",
    "_take_pong",
    "offered",
    "withdrawn",
    "_take_directive",
    "_take_error",
]


def test_a_session_that_raises_is_closed_without_a_word_and_the_others_go_on(short_path: Path) -> None:
    """All of them at once: each message on a connection of its own."""
    said = {
        "agent.tool.call": {"call_id": "c", "tool_id": "a/b", "input": {}},
        "agent.tool.cancel": {"call_id": "c"},
        "agent.tool.result": {"call_id": "c", "status": "succeeded", "output": {}},
        "agent.tool.stream": {"call_id": "c", "seq": 1, "channel": "stdout", "data": {"text": "x"}},
        "agent.tool.cancel_ack": {"call_id": "c", "accepted": True},
        "agent.heartbeat": {"session_id": "s", "uptime_ms": 1, "inflight_calls": 0, "status": "ok"},
        "agent.pong": {},
        "agent.tools.register": {"tools": []},
        "agent.tools.unregister": {"tool_ids": []},
        "agent.directive.request": {"tool_id": "a/b", "reason": "r"},
        "agent.error": {},
    }
    names = ",".join(name for name in HANDLERS if name != "_take_first")
    with running_one(broken_exchange(short_path, f"session:{names}")) as exchange:
        for number, (kind, payload) in enumerate(said.items()):
            agent = RawAgent(exchange, f"raw.{number}")
            agent.hello("tools", "calls", "directives")
            assert CANARY not in speak(agent, kind, payload, request_id="r")
        assert exchange.request("GET", "/v1/tools")[0] == 200
        assert exchange.request("GET", "/v1/status")[1]["defects"] == len(said)
    assert CANARY not in exchange.said()
    assert exchange.said().count("a defect: ValueError at") == 2, "the 1st and the 10th of a kind"
    with running_one(broken_exchange(short_path, "session:_take_first")) as exchange:
        agent = RawAgent(exchange, "raw.first")
        assert CANARY not in speak(agent, "agent.hello", {"session_token": agent.token})
        # The record of its end is an error of the peer's, never our exception's text.
        assert CANARY not in json.dumps(exchange.entries())
    assert CANARY not in exchange.said()


EVENTS = [
    "AgentArrived",
    "AgentLeft",
    "ToolsOffered",
    "ToolsWithdrawn",
    "HealthReported",
    "CallRequested",
    "CallProgressed",
    "CallFinished",
    "CancelRequested",
    "CallerLeft",
    "ApprovalAnswered",
    "DirectiveStated",
    "DirectiveRequested",
    "TokenIssued",
    "TokenRevoked",
    "Noticed",
]


@pytest.mark.parametrize("event", EVENTS)
def test_a_hub_that_raises_ends_with_70_and_nobody_hears_why(short_path: Path, event: str) -> None:
    exchange = broken_exchange(short_path, f"hub:{event}").start()
    heard = []
    try:
        if event != "TokenIssued":
            heard += provoke(exchange, event)
        else:
            heard.append(told_by_http(exchange, "POST", "/v1/tokens", {"edge": "http", "agent": "x"}))
        assert exchange.process is not None
        assert exchange.process.wait(20) == 70
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.kill()
        for peer in exchange.peers:
            peer.close()
    assert CANARY not in "".join(heard)
    assert CANARY not in exchange.said()
    assert "ValueError in" in exchange.said()
    assert CANARY not in json.dumps(exchange.entries())


def provoke(exchange: Running, event: str) -> list[str]:
    """Make this event happen, from outside; everything that was heard."""
    agent = RawAgent(exchange, "raw.agent")
    agent.send(
        "agent.hello",
        {
            "session_token": agent.token,
            "agent_id": agent.agent_id,
            "agent_version": "1.0.0",
            "protocol": {"supported_versions": [1], "capabilities": ["tools", "calls", "directives"]},
        },
    )
    if event == "AgentArrived":
        return [listen(agent)]
    session_id = agent.wait_for("core.welcome")["payload"]["session_id"]
    if event == "ToolsOffered":
        return [speak(agent, "agent.tools.register", {"tools": [agent.tool("t")]})]
    agent.register({"name": "t", "side_effects": True, "capabilities": ["cancellation"]})
    beat = {"session_id": session_id, "uptime_ms": 1, "inflight_calls": 0, "status": "degraded"}
    simple: dict[str, tuple[str, dict[str, Any]]] = {
        "ToolsWithdrawn": ("agent.tools.unregister", {"tool_ids": [f"{agent.agent_id}/t"]}),
        "HealthReported": ("agent.heartbeat", beat),
        "CallRequested": ("agent.tool.call", {"call_id": "c", "tool_id": f"{agent.agent_id}/t", "input": {}}),
        "CallFinished": ("agent.tool.result", {"call_id": "c", "status": "succeeded", "output": {}}),
        "DirectiveRequested": ("agent.directive.request", {"tool_id": "a/b", "reason": "r"}),
        "Noticed": ("agent.heartbeat", {"status": "nonsense"}),
    }
    if event in simple:
        kind, payload = simple[event]
        return [speak(agent, kind, payload, request_id="r")]
    if event == "AgentLeft":
        agent.close()
        return [told_by_http(exchange, "GET", "/v1/tools")]
    if event == "DirectiveStated":
        return [told_by_http(exchange, "POST", "/v1/directives", {"tool_id": f"{agent.agent_id}/t", "reason": "r"})]
    if event == "TokenRevoked":
        return [told_by_http(exchange, "DELETE", "/v1/tokens/t1")]
    if event == "ApprovalAnswered":
        guest = exchange.new_token("guest", edge="http")
        body = {"tool_id": f"{agent.agent_id}/t", "input": {}}
        question = exchange.request("POST", "/v1/calls", body, token=guest)[1]["approval_id"]
        return [told_by_http(exchange, "POST", f"/v1/approvals/{question}", {"decision": "approved"})]
    return during_a_call(exchange, agent, event)


def during_a_call(exchange: Running, agent: RawAgent, event: str) -> list[str]:
    asked = asked_over_http(exchange, f'{{"tool_id":"{agent.agent_id}/t","input":{{}}}}'.encode())
    call = agent.wait_for("core.tool.call")
    call_id = call["payload"]["call_id"]
    if event == "CallerLeft":
        asked.close()
        return [listen(agent)]
    if event == "CancelRequested":
        heard = [told_by_http(exchange, "POST", f"/v1/calls/{call_id}/cancel", {})]
    else:
        chunk = {"call_id": call_id, "seq": 1, "channel": "stdout", "data": {"text": "x"}}
        heard = [speak(agent, "agent.tool.stream", chunk, request_id=call_id)]
    with contextlib.suppress(OSError):
        heard.append(asked.recv(65536).decode())
    return [*heard, listen(agent)]
