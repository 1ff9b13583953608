"""Whose word counts: two results, strange results, results out of nowhere (P-B3, P-B4)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.running import RawAgent, Running, attached, calling


def words_of(agent: RawAgent) -> None:
    """Wait until everything the agent said was taken: its next message is answered after that."""
    agent.send("agent.tools.unregister", {"tool_ids": []})
    agent.wait_for("core.tools.unregistered")


def finish(agent: RawAgent, call_id: str, **envelope: Any) -> None:
    agent.send("agent.tool.result", {"call_id": call_id, "status": "succeeded", "output": {"by": "me"}}, **envelope)


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("second", ["succeeded", "failed", "canceled"])
def test_of_two_results_the_first_counts_and_the_sender_of_the_second_is_on_record(
    exchange: Running, tcp: bool, second: str
) -> None:
    agent = attached(exchange, tcp=tcp)
    agent.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{agent.agent_id}/t", idempotency_key=agent.agent_id)
    call = agent.wait_for("core.tool.call")
    agent.result(call, output={"first": True})
    error = {} if second == "succeeded" else {"error": {"code": "tool.failed", "message": "no"}}
    agent.result(call, second, output={"first": False}, **error)
    assert asked.result(20)["output"] == {"first": True}
    call_id = call["payload"]["call_id"]
    noted = exchange.wait_entry("call.noted", call_id=call_id, note="result.ignored")
    assert noted["by"] == f"opensentience:{agent.agent_id}"
    # Whoever asks later hears the same, by id and by key.
    assert exchange.request("GET", f"/v1/calls/{call_id}")[1]["output"] == {"first": True}
    again = exchange.call(f"{agent.agent_id}/t", idempotency_key=agent.agent_id)
    assert (again["call_id"], again["output"]) == (call_id, {"first": True})
    assert len([e for e in exchange.entries(kind="call.settled") if e["call_id"] == call_id]) == 1


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("case", ["unknown", "foreign", "foreign and echoed", "settled"])
def test_a_result_of_a_call_that_is_not_ones_own_goes_nowhere(exchange: Running, tcp: bool, case: str) -> None:
    victim, intruder = attached(exchange), attached(exchange, tcp=tcp)
    victim.register({"name": "t", "side_effects": True})
    intruder.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{victim.agent_id}/t")
    call = victim.wait_for("core.tool.call")
    call_id = call["payload"]["call_id"]
    if case == "unknown":
        # Right but for the last digits: that of a later call, perhaps.
        call_id = call_id[:-12] + f"{int(call_id[-12:], 16) + 1000:012x}"
        finish(intruder, call_id)
        finish(intruder, str(uuid.uuid4()))
    elif case == "foreign":
        finish(intruder, call_id)
    elif case == "foreign and echoed":
        finish(intruder, call_id, request_id=call["request_id"], correlation_id=call["correlation_id"])
    else:
        victim.result(call, output={"by": "the victim"})
        assert asked.result(20)["output"] == {"by": "the victim"}
        finish(intruder, call_id)
    intruder.send(
        "agent.tool.stream", {"call_id": call_id, "seq": 1, "channel": "stdout", "data": {"text": "from the intruder"}}
    )
    intruder.send("agent.tool.cancel_ack", {"call_id": call_id, "accepted": True})
    words_of(intruder)
    noted = exchange.wait_entry("call.noted", call_id=call_id, note="result.ignored")
    assert noted["by"] == f"opensentience:{intruder.agent_id}"
    if case != "settled":
        assert not asked.done()
        victim.result(call, output={"by": "the victim"})
    assert asked.result(20)["output"] == {"by": "the victim"}
    told = exchange.request("GET", f"/v1/calls/{call['payload']['call_id']}")[1]
    assert (told["status"], told["output"]) == ("succeeded", {"by": "the victim"})
    # The intruder's own calls are none the worse for it.
    asked = calling(exchange, f"{intruder.agent_id}/t")
    intruder.result(intruder.wait_for("core.tool.call"), output={"by": "me"})
    assert asked.result(20)["output"] == {"by": "me"}


def test_a_strange_result_of_an_ordinary_call_goes_nowhere_either(exchange: Running) -> None:
    """The second call of an agent to the same tool goes the short way (``hub.lanes``)."""
    victim, intruder, caller = attached(exchange), attached(exchange), attached(exchange, "calls")
    victim.register({"name": "t", "side_effects": False})

    def ask(name: str) -> dict[str, Any]:
        payload = {"call_id": name, "tool_id": f"{victim.agent_id}/t", "input": {}}
        caller.send("agent.tool.call", payload, request_id=name)
        return victim.wait_for("core.tool.call")

    victim.result(ask("first"), output={})
    caller.wait_for("core.tool.result")
    call = ask("second")
    call_id = call["payload"]["call_id"]
    finish(intruder, call_id)
    noted = exchange.wait_entry("call.noted", call_id=call_id, note="result.ignored")
    assert noted["by"] == f"opensentience:{intruder.agent_id}"
    victim.result(call, output={"by": "the victim"})
    assert caller.wait_for("core.tool.result")["payload"]["output"] == {"by": "the victim"}


def test_no_route_of_http_finishes_a_call(exchange: Running) -> None:
    agent = attached(exchange)
    agent.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{agent.agent_id}/t")
    call = agent.wait_for("core.tool.call")
    path = f"/v1/calls/{call['payload']['call_id']}"
    body = {"status": "succeeded", "output": {"by": "http"}}
    for method, route in [("POST", path), ("PUT", path), ("PATCH", path), ("POST", f"{path}/result")]:
        assert exchange.request(method, route, body)[0] in (404, 405)
    assert not asked.done()
    agent.result(call, output={"by": "agent"})
    assert asked.result(20)["output"] == {"by": "agent"}


def test_the_result_of_a_connection_that_was_replaced_goes_nowhere(exchange: Running) -> None:
    first = attached(exchange)
    first.register({"name": "t", "side_effects": True})
    asked = calling(exchange, f"{first.agent_id}/t")
    call = first.wait_for("core.tool.call")
    second = RawAgent(exchange, first.agent_id, first.token)
    second.hello()
    assert asked.result(20)["status"] == "unknown"
    second.result(call, output={"late": True})
    exchange.wait_entry("call.noted", call_id=call["payload"]["call_id"], note="result.ignored")
    assert exchange.request("GET", f"/v1/calls/{call['payload']['call_id']}")[1]["status"] == "unknown"
