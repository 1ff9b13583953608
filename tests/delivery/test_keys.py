"""One key, one execution: before, while and after it runs, and across restarts (P-B1, P-B2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import RawAgent, Running, attached, calling, running

# Agents may call what has side effects without a person, so that both edges can be tried.
CONFIG = """
[[policy.rule]]
caller = "*"
tool = "*"
decision = "allow"
"""
RESTARTS = 5
REPEATS = 60


class Counting:
    """A provider that counts what it was sent."""

    def __init__(self, exchange: Running, agent_id: str, token: str) -> None:
        self.agent = RawAgent(exchange, agent_id, token)
        self.agent.hello()
        self.agent.register({"name": "pay", "side_effects": True}, {"name": "refund", "side_effects": True})

    def sent(self) -> list[dict[str, Any]]:
        """Everything that waits in the socket. A message that is answered marks the end."""
        self.agent.send("agent.tools.unregister", {"tool_ids": [f"{self.agent.agent_id}/none"]})
        found = []
        while (message := self.agent.receive()) is not None and message["type"] != "core.tools.unregistered":
            if message["type"] == "core.tool.call":
                found.append(message)
        return found


def call_by_agent(caller: RawAgent, name: str, tool_id: str, key: str, value: dict[str, Any]) -> dict[str, Any]:
    caller.send(
        "agent.tool.call",
        {"call_id": name, "tool_id": tool_id, "input": value, "idempotency_key": key},
        request_id=name,
    )
    found: dict[str, Any] = caller.wait_for("core.tool.result")["payload"]
    return found


def test_three_hundred_repeats_on_both_edges_across_five_restarts_run_once(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        provider_token, caller_token = exchange.new_token("raw.provider"), exchange.new_token("raw.caller")
        tool_id = "raw.provider/pay"

        def arrive() -> tuple[Counting, RawAgent]:
            caller = RawAgent(exchange, "raw.caller", caller_token)
            caller.hello("calls")
            return Counting(exchange, "raw.provider", provider_token), caller

        provider, caller = arrive()
        # While it runs: two more on each edge join.
        by_http = [calling(exchange, tool_id, {"n": 1}, idempotency_key="k") for _ in range(3)]
        ours = provider.agent.wait_for("core.tool.call")
        for name in ("a1", "a2", "a3"):
            payload = {"call_id": name, "tool_id": tool_id, "input": {"n": 1}, "idempotency_key": "k"}
            caller.send("agent.tool.call", payload, request_id=name)
        theirs = provider.agent.wait_for("core.tool.call")
        provider.agent.result(ours, output={"receipt": 1})
        provider.agent.result(theirs, output={"receipt": 2})
        answers = [answer.result(20) for answer in by_http]
        assert {(a["call_id"], a["output"]["receipt"]) for a in answers} == {(ours["payload"]["call_id"], 1)}
        joined = [caller.wait_for("core.tool.result")["payload"] for _ in range(3)]
        assert {(r["exchange_call_id"], r["output"]["receipt"]) for r in joined} == {(theirs["payload"]["call_id"], 2)}

        # After it, and after each restart.
        for restart in range(RESTARTS):
            for n in range(REPEATS // 2):
                again = exchange.call(tool_id, {"n": 1}, idempotency_key="k")
                assert (again["call_id"], again["output"]) == (ours["payload"]["call_id"], {"receipt": 1})
                result = call_by_agent(caller, f"r{restart}-{n}", tool_id, "k", {"n": 1})
                assert (result["exchange_call_id"], result["output"]) == (theirs["payload"]["call_id"], {"receipt": 2})
            assert provider.sent() == []
            if restart % 2:
                assert exchange.stop() == 0
            else:
                exchange.kill()
            exchange.start()
            provider, caller = arrive()
        assert provider.sent() == []
        assert len(exchange.entries(kind="call.accepted")) == 2


def test_a_call_that_ran_when_the_exchange_was_killed_is_not_run_again_by_a_repeat(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        token = exchange.new_token("raw.provider")
        provider = Counting(exchange, "raw.provider", token)
        calling(exchange, "raw.provider/pay", {"n": 1}, idempotency_key="k")
        call = provider.agent.wait_for("core.tool.call")
        exchange.kill()
        exchange.start()
        provider = Counting(exchange, "raw.provider", token)
        for _ in range(20):
            answer = exchange.call("raw.provider/pay", {"n": 1}, idempotency_key="k")
            assert (answer["call_id"], answer["status"]) == (call["payload"]["call_id"], "unknown")
        assert provider.sent() == []


OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(("pay", {"n": n}) for n in range(2, 22)),
    ("pay", {}),
    ("pay", {"n": 1, "m": None}),
    ("pay", {"n": "1"}),
    ("pay", {"n": True}),
    ("pay", {"n": 1.5}),
    ("pay", {"n": [1]}),
    ("pay", {"N": 1}),
    ("pay", {"n": 9007199254740993}),
    ("refund", {"n": 1}),
]


@pytest.mark.parametrize("when", ["running", "settled"])
def test_the_same_key_with_anything_else_is_a_conflict_and_runs_nothing(exchange: Running, when: str) -> None:
    agent_id = attached(exchange).agent_id
    provider = Counting(exchange, agent_id, exchange.new_token(agent_id))
    first = calling(exchange, f"{agent_id}/pay", {"n": 1}, idempotency_key=agent_id)
    call = provider.agent.wait_for("core.tool.call")
    if when == "settled":
        provider.agent.result(call, output={})
        assert first.result(20)["status"] == "succeeded"
    for name, value in OTHERS:
        answer = exchange.call(f"{agent_id}/{name}", value, idempotency_key=agent_id)
        assert (answer["http"], answer["error"]["code"]) == (409, "idempotency.conflict"), value
    assert provider.sent() == []
    # The same in another order and spelling is the same.
    if when == "settled":
        assert exchange.call(f"{agent_id}/pay", {"n": 1.0}, idempotency_key=agent_id)["status"] == "succeeded"
    else:
        provider.agent.result(call, output={})
        assert first.result(20)["status"] == "succeeded"
