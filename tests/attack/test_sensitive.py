"""What is said in a sensitive call is found nowhere on disk, and the call works like any other, also over a kill."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

from tests.attack.secrets import forms
from tests.running import RawAgent, Running, calling, contents, running, wait_until

RULE = """
[[policy.rule]]
caller = "operator"
tool = "raw.agent/*"
decision = "allow"
sensitive = true
"""
# No rule of masking knows any of these.
WORDS = {
    name: f"{name} of Alice Lidell 1865"
    for name in ("input", "output", "progress", "fault", "details", "metrics", "stream end")
}
CANARIES = [form for word in WORDS.values() for form in [word.encode(), *forms(word)[3:]]]


def found(exchange: Running) -> list[str]:
    """Where something of what was said stands."""
    read = {path.name: data for path, data in contents(exchange.home, exchange.output).items()}
    assert len(read) >= 4
    return [f"{name}: {form!r}" for name, data in read.items() for form in CANARIES if form in data]


def agent_in(exchange: Running) -> RawAgent:
    """An agent with a tool that changes something and recognises what it did before."""
    agent = RawAgent(exchange, "raw.agent")
    agent.hello("tools", "streaming", "idempotency")
    agent.register(agent.tool(name="act", side_effects=True, capabilities=["idempotency"]))
    return agent


def shown(agent: RawAgent, call: dict[str, Any]) -> None:
    chunk = {"call_id": call["payload"]["call_id"], "seq": 1, "channel": "stdout", "data": {"text": WORDS["progress"]}}
    agent.send("agent.tool.stream", chunk, request_id=call["request_id"])


class Onlooker:
    """Somebody at ``/v1/watch``."""

    def __init__(self, exchange: Running) -> None:
        address = exchange.ready["http"].removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=30)
        self._connection.request("GET", "/v1/watch", headers={"Authorization": f"Bearer {exchange.token}"})
        self._answer = self._connection.getresponse()
        self.lines: list[bytes] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while line := self._answer.readline():
            self.lines.append(line)

    def end(self) -> None:
        """The exchange has ended."""
        self._thread.join(20)
        self._answer.close()
        self._connection.close()

    def saw(self, word: bytes) -> bool:
        return any(word in line for line in self.lines)


def test_a_sensitive_call_leaves_hashes_on_record_and_nothing_else(short_path: Path) -> None:
    with running(short_path / "home", RULE) as exchange:
        agent, onlooker = agent_in(exchange), Onlooker(exchange)
        said = {"text": WORDS["input"], "padding": "x" * 100_000}
        asked = calling(exchange, "raw.agent/act", said, idempotency_key="k1")
        call = agent.wait_for("core.tool.call")
        assert call["payload"]["input"] == said
        shown(agent, call)
        wait_until(lambda: onlooker.saw(b'"progress"'), "what is shown of it")
        wait_until(lambda: exchange.entries(kind="call.accepted"), "it is on record")
        assert found(exchange) == []
        agent.result(call, output={"text": WORDS["output"]}, metrics={"m": WORDS["metrics"]})
        answer = asked.result(20)
        assert (answer["status"], answer["output"]) == ("succeeded", {"text": WORDS["output"]})
        repeat = exchange.call("raw.agent/act", said, idempotency_key="k1")
        assert (repeat["call_id"], repeat["output"]) == (answer["call_id"], {"text": WORDS["output"]})
        failing = calling(exchange, "raw.agent/act", {"text": WORDS["input"]})
        call = agent.wait_for("core.tool.call")
        error = {"code": "tool.failed", "message": WORDS["fault"], "details": {"why": WORDS["details"]}}
        agent.result(call, "failed", error=error)
        assert failing.result(20)["error"]["message"] == WORDS["fault"]
        [accepted, _] = exchange.entries(kind="call.accepted")
        [settled, failed] = exchange.entries(kind="call.settled")
        assert accepted["input"].keys() == {"$sha256", "bytes"}
        assert accepted["input"]["bytes"] > 100_000
        assert settled["output"].keys() == {"$sha256", "bytes"}
        assert (settled["stream"]["chunks"], "tail" in settled["stream"]) == (1, False)
        assert (failed["fault"]["code"], failed["fault"]["details"].keys()) == ("tool.failed", {"$sha256", "bytes"})
        exported = exchange.request("GET", f"/v1/ledger?call_id={answer['call_id']}")[1]
        wait_until(lambda: onlooker.saw(failed["call_id"].encode()), "the end of it is seen")
        for canary in CANARIES:
            assert canary not in json.dumps(exported).encode()
            assert not onlooker.saw(canary)
        assert exchange.stop() == 0
        onlooker.end()
        assert found(exchange) == []


def test_a_sensitive_call_outlives_a_kill_and_so_does_its_outcome_for_a_repeat(short_path: Path) -> None:
    with running(short_path / "home", RULE) as exchange:
        agent = agent_in(exchange)
        said = {"text": WORDS["input"]}
        calling(exchange, "raw.agent/act", said, idempotency_key="k1")
        before = agent.wait_for("core.tool.call")
        exchange.kill()
        assert found(exchange) == []
        exchange.start()
        agent = RawAgent(exchange, "raw.agent", token=agent.token)
        agent.hello("tools", "streaming", "idempotency")
        agent.register(agent.tool(name="act", side_effects=True, capabilities=["idempotency"]))
        again = agent.wait_for("core.tool.call")
        assert again["payload"]["call_id"] == before["payload"]["call_id"]
        assert again["payload"]["input"] == said
        agent.result(again, output={"text": WORDS["output"]})
        repeat = exchange.call("raw.agent/act", said, idempotency_key="k1")
        assert repeat["output"] == {"text": WORDS["output"]}
        exchange.kill()
        assert found(exchange) == []
        exchange.start()
        repeat = exchange.call("raw.agent/act", said, idempotency_key="k1")
        assert (repeat["status"], repeat["output"]) == ("succeeded", {"text": WORDS["output"]})
        other = exchange.call("raw.agent/act", {"text": "another"}, idempotency_key="k1")
        assert other["http"] == 409
        assert exchange.stop() == 0
        assert found(exchange) == []


def test_what_is_looked_for_would_be_found(short_path: Path) -> None:
    with running(short_path / "home", RULE.replace("sensitive = true", "")) as exchange:
        agent = agent_in(exchange)
        asked = calling(exchange, "raw.agent/act", {"text": WORDS["input"]})
        agent.result(agent.wait_for("core.tool.call"), output={"text": WORDS["output"]})
        asked.result(20)
        assert exchange.stop() == 0
        assert len(found(exchange)) >= 2
