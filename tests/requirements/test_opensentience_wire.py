"""OpenSentience as an agent written from the specification alone meets it: raw sockets, a real exchange."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.requirement import requirement
from tests.running import RawAgent, Running, wait_until


@pytest.fixture
def agent(exchange: Running) -> Any:
    """A raw agent with a name of its own, hello said."""
    found = RawAgent(exchange, f"raw.{uuid.uuid4().hex[:8]}")
    found.hello("tools", "streaming", "cancellation", "calls")
    yield found
    found.close()


def calling(
    exchange: Running, tool_id: str, value: dict[str, Any] | None = None, **fields: Any
) -> Future[dict[str, Any]]:
    """A call by the operator, under way in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(exchange.call, tool_id, value, **fields)
    finally:
        pool.shutdown(wait=False)


@requirement("OS-005", "OS-067", "OS-068", "OS-069", "OS-070", "OS-071", "OS-072", "OS-033")
def test_a_valid_hello_on_the_unix_socket_is_welcomed(exchange: Running) -> None:
    first, second = RawAgent(exchange, "raw.first"), RawAgent(exchange, "raw.second")
    hello_id = first.send(
        "agent.hello",
        {
            "session_token": first.token,
            "agent_id": "raw.first",
            "agent_version": "1.0.0",
            "protocol": {"supported_versions": [1, 2], "capabilities": ["tools", "unheard_of"]},
            "sdk": {"name": "none", "version": "0.0.1"},
        },
    )
    welcome = first.wait_for("core.welcome")
    assert welcome["in_reply_to"] == hello_id
    payload = welcome["payload"]
    assert payload["accepted_version"] == 1
    assert payload["heartbeat_interval_ms"] == 10_000
    assert payload["max_frame_bytes"] == 4_194_304
    assert isinstance(payload["server"]["core_version"], str)
    assert isinstance(payload["server"]["instance_id"], str)
    assert second.hello()["payload"]["session_id"] != payload["session_id"]


@requirement("OS-006")
def test_only_the_owner_can_reach_the_socket(exchange: Running) -> None:
    path = Path(exchange.ready["socket"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(exchange.home.stat().st_mode) == 0o700


@requirement("OS-004")
def test_every_listener_is_local(exchange: Running) -> None:
    listening = psutil.Process(exchange.ready["pid"]).net_connections(kind="inet")
    addresses = {found.laddr.ip for found in listening if found.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


@requirement("OS-007", "OS-009")
def test_tcp_carries_the_same_bytes_as_the_unix_socket(exchange: Running) -> None:
    seen = []
    for tcp in (False, True):
        agent = RawAgent(exchange, f"raw.bytes{int(tcp)}", tcp=tcp)
        welcome = agent.hello()
        registered = agent.register({"name": "t"})
        for message in (welcome, registered):
            for name in ("id", "ts", "in_reply_to"):
                message[name] = "x"
        welcome["payload"]["session_id"] = "x"
        text = json.dumps([welcome, registered]).replace(agent.agent_id, "AGENT")
        seen.append(text)
        agent.close()
    assert seen[0] == seen[1]


@requirement("OS-023", "OS-022", "OS-024", "OS-075")
def test_a_lying_length_prefix_costs_no_memory_and_is_on_record_without_content(
    exchange: Running, agent: RawAgent
) -> None:
    process = psutil.Process(exchange.ready["pid"])
    before = process.memory_info().rss
    agent.socket.sendall(struct.pack(">I", 0xFFFFFFFF) + b"CANARY-IN-AN-OVERSIZE-FRAME")
    goodbye = agent.wait_for("core.goodbye")
    assert goodbye["payload"]["reason"] == "protocol.frame_too_large"
    assert agent.receive() is None
    assert process.memory_info().rss - before < 4_000_000
    exchange.wait_entry("notice", code="protocol.frame_too_large")
    assert "CANARY" not in json.dumps(exchange.entries())


@requirement("OS-073", "OS-074", "OS-135", "OS-008")
def test_every_bad_token_gets_the_same_answer_and_the_door(exchange: Running) -> None:
    good = exchange.new_token("raw.door")
    answers = []
    for token in (
        "",
        "wrong",
        "x" * 4096,
        good[:-1] + ("a" if good[-1] != "a" else "b"),
        exchange.new_token("raw.other"),
    ):
        agent = RawAgent(exchange, "raw.door", token)
        welcome = agent.hello()
        assert welcome["error"]["code"] == "protocol.unauthorized"
        assert agent.receive() is None
        answers.append(json.dumps({**welcome, "id": "", "ts": "", "in_reply_to": ""}))
    assert len(set(answers)) == 1
    assert RawAgent(exchange, "raw.door", good).hello().get("error") is None


@requirement("OS-144", "OS-058")
def test_nothing_is_registered_before_hello(exchange: Running) -> None:
    agent = RawAgent(exchange, "raw.early")
    agent.send("agent.tools.register", {"tools": [agent.tool("t")]})
    while (message := agent.receive()) is not None:
        assert message["type"] in ("core.goodbye", "core.error", "core.welcome")
        assert message.get("error") or message["payload"].get("reason")
    assert "raw.early/t" not in exchange.tools()


@requirement("OS-146")
def test_no_common_version_is_told_and_closed(exchange: Running) -> None:
    agent = RawAgent(exchange, "raw.v2")
    welcome = agent.hello(protocol={"supported_versions": [2, 3], "capabilities": []})
    assert welcome["error"]["code"] == "protocol.unsupported_version"
    assert agent.receive() is None


@requirement("OS-025", "OS-026", "OS-038", "OS-039", "OS-095", "OS-096", "OS-035", "OS-046")
def test_two_calls_answered_in_reverse_reach_the_right_callers(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "pick", "side_effects": False})
    tool_id = f"{agent.agent_id}/pick"
    first = calling(exchange, tool_id, {"n": 1})
    call_one = agent.wait_for("core.tool.call")
    second = calling(exchange, tool_id, {"n": 2})
    call_two = agent.wait_for("core.tool.call")
    for call in (call_one, call_two):
        assert str(uuid.UUID(call["request_id"])) == call["request_id"]
        assert str(uuid.UUID(call["payload"]["call_id"])) == call["payload"]["call_id"]
        assert call["correlation_id"]
        assert call["payload"]["tool_id"] == tool_id
        assert call["actor"]["type"] == "human"
    assert call_one["payload"]["call_id"] != call_two["payload"]["call_id"]
    agent.result(call_two, output={"n": call_two["payload"]["input"]["n"]})
    agent.result(call_one, output={"n": call_one["payload"]["input"]["n"]})
    assert first.result(20)["output"] == {"n": 1}
    assert second.result(20)["output"] == {"n": 2}


@requirement("OS-036", "OS-037", "OS-034")
def test_correlation_and_causation_reach_the_agent_and_the_ledger(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "t", "side_effects": False})
    correlation = f"chat_session:{uuid.uuid4().hex}"
    asked = calling(exchange, f"{agent.agent_id}/t", correlation_id=correlation, causation_id="event-7")
    call = agent.wait_for("core.tool.call")
    assert call["correlation_id"] == correlation
    assert call["causation_id"] == "event-7"
    agent.result(call, output={})
    assert asked.result(20)["status"] == "succeeded"
    accepted = exchange.wait_entry("call.accepted", correlation_id=correlation)
    assert accepted["causation_id"] == "event-7"
    status, found = exchange.request("GET", f"/v1/calls?correlation_id={correlation}")
    assert status == 200
    assert [view["call_id"] for view in found["calls"]] == [call["payload"]["call_id"]]


@requirement("OS-103", "OS-047")
def test_a_denied_caller_reaches_nobody_and_is_on_record(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "secret", "side_effects": False, "required_permissions": ["vault:read"]})
    caller = RawAgent(exchange, f"raw.{uuid.uuid4().hex[:8]}")
    caller.hello("calls")
    caller.send(
        "agent.tool.call",
        {"call_id": "c1", "tool_id": f"{agent.agent_id}/secret", "input": {}},
        request_id="r1",
        actor={"type": "human", "id": "operator"},  # a forged remark: never an authorization
    )
    result = caller.wait_for("core.tool.result")
    assert result["request_id"] == "r1"
    assert result["payload"]["status"] == "failed"
    assert result["payload"]["error"]["code"] == "policy.denied"
    refused = exchange.wait_entry("call.refused", caller=f"opensentience:{caller.agent_id}")
    assert refused["code"] == "policy.denied"
    agent.send("agent.heartbeat", {"session_id": "no", "uptime_ms": 1, "inflight_calls": 0, "status": "ok"})
    answer = agent.receive()
    assert answer is not None
    assert answer["type"] != "core.tool.call"


@requirement("OS-099")
def test_the_same_key_runs_once_before_and_after_the_outcome(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "count", "side_effects": True})
    tool_id = f"{agent.agent_id}/count"
    first = calling(exchange, tool_id, {"a": 1}, idempotency_key="k-1")
    call = agent.wait_for("core.tool.call")
    assert call["payload"]["idempotency_key"] == "k-1"
    joined = calling(exchange, tool_id, {"a": 1}, idempotency_key="k-1")
    wait_until(lambda: exchange.request("GET", "/v1/status")[1]["open_calls"], "the call is open")
    agent.result(call, output={"ran": 1})
    answers = [first.result(20), joined.result(20), exchange.call(tool_id, {"a": 1}, idempotency_key="k-1")]
    assert {answer["call_id"] for answer in answers} == {call["payload"]["call_id"]}
    assert all(answer["output"] == {"ran": 1} for answer in answers)
    conflict = exchange.call(tool_id, {"a": 2}, idempotency_key="k-1")
    assert (conflict["http"], conflict["error"]["code"]) == (409, "idempotency.conflict")
    agent.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        agent.receive()


@requirement("OS-114")
def test_streamed_output_reaches_the_one_who_asked(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "talk", "side_effects": False, "capabilities": ["streaming"]})
    pool = ThreadPoolExecutor(1)
    stream = pool.submit(
        exchange.request,
        "POST",
        "/v1/calls",
        {"tool_id": f"{agent.agent_id}/talk", "input": {}},
        headers={"Accept": "text/event-stream"},
    )
    call = agent.wait_for("core.tool.call")
    echoed = {"request_id": call["request_id"], "correlation_id": call["correlation_id"]}
    for seq, text in enumerate(("one", "two"), start=1):
        agent.send(
            "agent.tool.stream",
            {"call_id": call["payload"]["call_id"], "seq": seq, "channel": "stdout", "data": {"text": text}},
            **echoed,
        )
    agent.result(call, output={"said": 2})
    status, text = stream.result(20)
    assert status == 200
    assert text.index('"one"') < text.index('"two"') < text.index('"said"')
    pool.shutdown()


@requirement("OS-132")
def test_an_agent_that_says_it_is_unhealthy_gets_no_calls(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "t", "side_effects": False})

    def beat(health: str) -> None:
        agent.send(
            "agent.heartbeat",
            {"session_id": agent.session_id, "uptime_ms": 1, "inflight_calls": 0, "status": health},
        )

    beat("unhealthy")
    exchange.wait_tool(f"{agent.agent_id}/t", "unavailable")
    refused = exchange.call(f"{agent.agent_id}/t")
    assert (refused["http"], refused["error"]["code"], refused["error"]["retryable"]) == (503, "tool.unavailable", True)
    beat("degraded")
    exchange.wait_tool(f"{agent.agent_id}/t")


@requirement("OS-122")
def test_a_second_result_is_ignored_and_on_record(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{agent.agent_id}/t")
    call = agent.wait_for("core.tool.call")
    agent.result(call, output={"first": True})
    agent.result(call, output={"first": False})
    assert asked.result(20)["output"] == {"first": True}
    call_id = call["payload"]["call_id"]
    exchange.wait_entry("call.noted", call_id=call_id, note="result.ignored")
    assert len([e for e in exchange.entries(kind="call.settled") if e["call_id"] == call_id]) == 1
    assert exchange.request("GET", f"/v1/calls/{call_id}")[1]["output"] == {"first": True}


@requirement("OS-160")
def test_an_event_reaches_the_reserved_tool_as_an_ordinary_call(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "a2a_handle_event", "side_effects": False})
    asked = calling(exchange, f"{agent.agent_id}/a2a_handle_event", {"event": {"topic": "t"}})
    call = agent.wait_for("core.tool.call")
    assert call["payload"]["input"] == {"event": {"topic": "t"}}
    agent.result(call, output={"handled": True})
    assert asked.result(20)["output"] == {"handled": True}


@requirement("OS-158")
def test_an_agent_asks_for_a_directive_and_uses_it_once_a_person_agreed(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "launch", "side_effects": False, "requires_directive": True})
    tool_id = f"{agent.agent_id}/launch"
    refused = exchange.call(tool_id)
    assert (refused["http"], refused["error"]["code"]) == (403, "policy.directive_required")
    caller = RawAgent(exchange, f"raw.{uuid.uuid4().hex[:8]}")
    caller.hello("calls", "directives")
    caller.send(
        "agent.directive.request", {"tool_id": tool_id, "input": {"n": 1}, "reason": "lift-off"}, request_id="d1"
    )
    question = wait_until(
        lambda: [q for q in exchange.request("GET", "/v1/approvals")[1]["approvals"] if q.get("tool_id") == tool_id],
        "the question",
    )[0]
    assert question["subject"] == "directive"
    assert exchange.request("POST", f"/v1/approvals/{question['approval_id']}", {"decision": "approved"})[0] == 200
    created = caller.wait_for("core.directive.create")
    directive_id = created["payload"]["directive_id"]

    def use(call_id: str) -> None:
        caller.send(
            "agent.tool.call",
            {"call_id": call_id, "tool_id": tool_id, "input": {"n": 1}},
            request_id=call_id,
            causation_id=directive_id,
        )

    use("u1")
    agent.result(agent.wait_for("core.tool.call"), output={"up": True})
    assert caller.wait_for("core.tool.result")["payload"]["output"] == {"up": True}
    use("u2")
    assert caller.wait_for("core.tool.result")["payload"]["error"]["code"] == "policy.directive_required"


@requirement("OS-001")
def test_a_side_effect_is_on_record_with_the_decision_that_let_it_happen(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "write", "side_effects": True})
    asked = calling(exchange, f"{agent.agent_id}/write", {"x": 1})
    call = agent.wait_for("core.tool.call")
    # The record came first: it is on disk while the tool still runs.
    accepted = [e for e in exchange.entries(kind="call.accepted") if e["call_id"] == call["payload"]["call_id"]]
    assert accepted[0]["decision"] == "allow"
    assert accepted[0]["rule"] == "builtin-operator"
    assert accepted[0]["input"] == {"x": 1}
    agent.result(call, output={})
    assert asked.result(20)["status"] == "succeeded"


@requirement("OS-153")
def test_a_large_output_becomes_a_reference_that_can_be_fetched(exchange: Running, agent: RawAgent) -> None:
    agent.register({"name": "big", "side_effects": False})
    asked = calling(exchange, f"{agent.agent_id}/big")
    call = agent.wait_for("core.tool.call")
    text = "0123456789abcdef" * 100_000
    agent.result(call, output={"text": text})
    output = asked.result(20)["output"]
    assert output["$ref"].startswith("sha256:")
    assert output["bytes"] > 1_048_576
    _, body = wait_until(
        lambda: (found := exchange.request("GET", f"/v1/blobs/{output['$ref']}"))[0] == 200 and found, "the blob"
    )
    assert body == {"text": text}


def test_a_socket_of_another_user_is_refused(exchange: Running) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(exchange.ready["socket"])
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
