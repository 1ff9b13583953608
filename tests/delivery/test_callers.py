"""Callers who leave (P-B9) and callers who change their mind (P-B10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running import RawAgent, Running, asked_over_http, attached, calling, wait_until
from tests.unit.hub.kit import Kit, body, tool
from tests.unit.hub.test_cancel import ME, STATES, STRANGER, call_in
from trunkline import entries, events
from trunkline.model import Status

# --- gone before the outcome (P-B9) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
def test_the_outcome_of_a_call_whose_http_caller_hung_up_is_kept(exchange: Running, key: str | None) -> None:
    agent = attached(exchange)
    agent.register({"name": "t", "side_effects": True})
    key_json = "" if key is None else f',"idempotency_key":"{agent.agent_id}"'
    peer = asked_over_http(exchange, f'{{"tool_id":"{agent.agent_id}/t","input":{{"n":1}}{key_json}}}'.encode())
    call = agent.wait_for("core.tool.call")
    peer.close()
    call_id = call["payload"]["call_id"]
    agent.result(call, output={"done": 1})
    exchange.wait_entry("call.settled", call_id=call_id, status="succeeded")
    assert exchange.request("GET", f"/v1/calls/{call_id}")[1]["output"] == {"done": 1}
    if key is not None:
        again = exchange.call(f"{agent.agent_id}/t", {"n": 1}, idempotency_key=agent.agent_id)
        assert (again["call_id"], again["output"]) == (call_id, {"done": 1})


def test_the_outcome_of_a_call_whose_calling_agent_died_is_there_for_its_next_connection(exchange: Running) -> None:
    agent = attached(exchange)
    agent.register({"name": "read", "side_effects": False})
    caller = attached(exchange, "calls")

    def ask(by: RawAgent, name: str) -> None:
        payload = {"call_id": name, "tool_id": f"{agent.agent_id}/read", "input": {}, "idempotency_key": "k"}
        by.send("agent.tool.call", payload, request_id=name)

    ask(caller, "one")
    call = agent.wait_for("core.tool.call")
    caller.close()
    exchange.wait_entry("agent.left", agent_id=caller.agent_id)
    agent.result(call, output={"done": 1})
    back = RawAgent(exchange, caller.agent_id, caller.token)
    back.hello("calls")
    ask(back, "two")
    result = back.wait_for("core.tool.result")["payload"]
    assert (result["exchange_call_id"], result["output"]) == (call["payload"]["call_id"], {"done": 1})


def test_a_call_without_a_key_that_can_be_stopped_is_stopped_ten_seconds_after_its_caller_left() -> None:
    """The one exception (decision 5), to the tenth of a second; and a kept outcome is there for a day."""
    for capabilities, key, canceled in [
        (("cancellation",), None, True),
        (("cancellation",), "k", False),
        ((), None, False),
    ]:
        kit = Kit()
        kit.attach("com.a", tool("com.a/x", capabilities=capabilities))
        asked = kit.call("com.a/x", by=ME, key=key, timeout_ms=600_000)
        kit.feed(events.CallerLeft(asked.session, asked.ref))
        kit.advance(9.9)
        assert kit.cancels == []
        kit.advance(0.2)
        assert bool(kit.cancels) is canceled
        kit.finish(asked, {"done": 1})
        assert kit.outcomes[asked.accepted.n].output == body({"done": 1})
        if key is not None:
            kit.advance(86_399)
            assert kit.call("com.a/x", by=ME, key=key).outcome.output == body({"done": 1})


# --- cancel (P-B10) ---------------------------------------------------------------------------------------------------

HOW = ("once", "twice", "by a stranger", "by the operator", "while the result is on its way")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", HOW)
def test_a_cancel_in_any_state_by_anybody_leaves_exactly_one_outcome(state: str, how: str) -> None:
    kit, asked = call_in(state, capabilities=("cancellation",))
    was_settled, was_running = state == "settled", state == "running"
    if how == "by a stranger":
        before = len(kit.log)
        reply = kit.cancel(asked, by=STRANGER)
        assert reply.fault is not None
        assert reply.fault.code == "not_found"
        assert len(kit.log) == before
        assert kit.cancels == []
        return
    kit.cancel(asked, **({} if how == "by the operator" else {"by": ME}))
    if how == "twice":
        kit.cancel(asked, by=ME)
    # Best effort: asked once, and only where somebody runs it.
    assert len(kit.cancels) == was_running
    if how == "while the result is on its way" and was_running:
        kit.finish(asked, {"done": 1})
    kit.advance(60)
    settled = [e for e in kit.log_of(entries.CallSettled) if e.call == asked.accepted.n]
    assert len(settled) == 1
    assert asked.outcome.status is settled[0].status
    if was_settled or (was_running and how == "while the result is on its way"):
        assert asked.outcome.output == body({"done": 1})
    else:
        assert asked.outcome.status is (Status.UNKNOWN if was_running else Status.CANCELED)
    if was_running:
        _late_result_goes_nowhere(kit, asked)


def _late_result_goes_nowhere(kit: Kit, asked: Any) -> None:
    told = asked.outcome
    kit.finish(asked, {"late": 1})
    assert kit.log_of(entries.CallNoted)[-1].note == "result.ignored"
    assert asked.outcome is told


def test_a_running_call_is_asked_to_stop_once_and_its_own_word_is_the_outcome(exchange: Running) -> None:
    agent = attached(exchange, "tools", "cancellation")
    agent.register({"name": "t", "side_effects": True, "capabilities": ["cancellation"]})
    asked = calling(exchange, f"{agent.agent_id}/t")
    call = agent.wait_for("core.tool.call")
    path = f"/v1/calls/{call['payload']['call_id']}/cancel"
    stranger = exchange.new_token("stranger", edge="http")
    assert exchange.request("POST", path, {}, token=stranger)[0] == 404
    assert [exchange.request("POST", path, {"reason": "enough"})[0] for _ in range(2)] == [202, 202]
    cancel = agent.wait_for("core.tool.cancel")
    assert (cancel["payload"]["call_id"], cancel["payload"]["reason"]) == (call["payload"]["call_id"], "enough")
    agent.result(call, "canceled", error={"code": "tool.canceled", "message": "as you wish"})
    assert asked.result(20)["status"] == "canceled"
    status, told = exchange.request("POST", path, {})
    assert (status, told["status"]) == (200, "canceled")


def test_an_agent_cancels_its_own_calls_and_nobody_elses(exchange: Running) -> None:
    agent = attached(exchange, "tools", "cancellation")
    agent.register({"name": "read", "side_effects": False, "capabilities": ["cancellation"]})
    caller, stranger = attached(exchange, "calls"), attached(exchange, "calls")
    payload = {"call_id": "mine", "tool_id": f"{agent.agent_id}/read", "input": {}}
    caller.send("agent.tool.call", payload, request_id="r")
    call = agent.wait_for("core.tool.call")
    for name in ("mine", call["payload"]["call_id"]):
        stranger.send("agent.tool.cancel", {"call_id": name, "reason": "theirs"}, request_id="x")
        error = stranger.wait_for("core.error")["error"]
        assert error["message"] == "there is no such open call of yours"
    caller.send("agent.tool.cancel", {"call_id": "mine", "reason": "enough"}, request_id="r")
    assert agent.wait_for("core.tool.cancel")["payload"]["reason"] == "enough"
    agent.result(call, "canceled", error={"code": "tool.canceled", "message": "as you wish"})
    assert caller.wait_for("core.tool.result")["payload"]["status"] == "canceled"


def test_where_cancel_is_not_spoken_the_call_ends_and_its_late_result_is_dropped(exchange: Running) -> None:
    agent = attached(exchange)
    agent.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{agent.agent_id}/t")
    call = agent.wait_for("core.tool.call")
    call_id = call["payload"]["call_id"]
    exchange.request("POST", f"/v1/calls/{call_id}/cancel", {})
    assert asked.result(20)["status"] == "unknown"
    agent.result(call, output={"late": 1})
    exchange.wait_entry("call.noted", call_id=call_id, note="result.ignored")
    wait_until(lambda: exchange.request("GET", f"/v1/calls/{call_id}")[1]["status"] == "unknown", "the same outcome")
