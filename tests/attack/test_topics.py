"""Topics under attack: topics that are denied, by every way in; subscriptions of others; the names of the exchange."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Self

import pytest

from tests.running import RawAgent, Running, running, wait_until

RULES = """
[[policy.rule]]
caller = "http:eve"
tool = "topic/secret.*"
decision = "deny"

[[policy.rule]]
caller = "agent:com.eve"
tool = "topic/secret.*"
decision = "deny"

[[policy.rule]]
caller = "http:mute"
tool = "trunkline/*"
decision = "deny"
"""


class Stream:
    """A stream of events, read line by line."""

    def __init__(self, exchange: Running, pattern: str, token: str) -> None:
        address = exchange.ready["http"].removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=20)
        self._connection.request("GET", f"/v1/topics/{pattern}", headers={"Authorization": f"Bearer {token}"})
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        if self.status == 200:
            assert b"watching" in self.answer.readline()

    def next_topic(self) -> str:
        """The topic of the next event."""
        while True:
            line = self.answer.readline()
            if b'"topic":"' in line:
                return line.partition(b'"topic":"')[2].partition(b'"')[0].decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()


def asked(agent: RawAgent, tool: str, value: dict[str, Any]) -> dict[str, Any]:
    """What comes of a call of the exchange's own tool by an agent."""
    agent.send("agent.tool.call", {"call_id": tool, "tool_id": f"trunkline/{tool}", "input": value}, request_id=tool)
    found: dict[str, Any] = agent.wait_for("core.tool.result")["payload"]
    return found


@pytest.mark.timeout(60)
def test_who_is_denied_a_topic_hears_and_says_nothing_there_by_any_way_in(short_path: Path) -> None:
    with running(short_path / "home", RULES) as exchange:
        eve, mute = (exchange.new_token(name, "http") for name in ("eve", "mute"))
        agent = RawAgent(exchange, "com.eve")
        agent.hello("tools", "calls")
        agent.register({"name": "a2a_handle_event"})
        assert asked(agent, "subscribe", {"topic": "#", "qos": 1, "durable": True})["status"] == "succeeded"
        refused = asked(agent, "publish", {"topic": "secret.plan", "payload": 1})
        assert refused["error"]["code"] == "policy.denied"
        assert exchange.request("POST", "/v1/topics/secret.plan", 1, token=eve)[0] == 403
        assert exchange.request("POST", "/v1/topics/open", 1, token=mute)[0] == 403
        value = {"tool_id": "trunkline/publish", "input": {"topic": "secret.plan", "payload": 1}}
        assert exchange.request("POST", "/v1/calls", value, token=eve)[1]["error"]["code"] == "policy.denied"
        assert exchange.entries(kind="event.published") == []
        with Stream(exchange, "mute", mute) as stream:
            assert stream.status == 403
        with Stream(exchange, "%23", eve) as stream:
            for topic in ("secret.plan", "open"):
                assert exchange.request("POST", f"/v1/topics/{topic}?qos=1", topic)[0] == 200
            assert stream.next_topic() == "open"
        assert agent.wait_for("core.tool.call")["payload"]["input"]["topic"] == "open"
        (secret, _) = exchange.entries(kind="event.published")
        assert "owed" not in secret, "it is owed to nobody who may not hear it"


@pytest.mark.timeout(60)
def test_nobody_ends_the_subscription_of_another_or_takes_the_exchanges_name(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        eve = exchange.new_token("eve", "http")
        value = {"topic": "a", "qos": 1, "durable": True}
        name = exchange.call("trunkline/subscribe", value)["output"]["subscription"]
        end = {"tool_id": "trunkline/unsubscribe", "input": {"subscription": name}}
        assert exchange.request("POST", "/v1/calls", end, token=eve)[1]["error"]["code"] == "not_found"
        assert exchange.request("GET", "/v1/status")[1]["subscriptions"] == 1
        for taken in ("trunkline", "Trunkline", "trunkline.events"):
            body = {"edge": "opensentience", "agent": taken, "permissions": []}
            assert exchange.request("POST", "/v1/tokens", body)[0] == 400
        # Who forges an event by calling an agent's tool is asked about like anybody.
        agent = RawAgent(exchange, "com.victim")
        agent.hello("tools", "calls")
        agent.register({"name": "a2a_handle_event"})
        forged = {"topic": "a", "payload": 1, "publisher": "operator", "event_id": "e"}
        body = {"tool_id": "com.victim/a2a_handle_event", "input": forged}
        status, answer = exchange.request("POST", "/v1/calls", body, token=eve)
        assert (status, answer["status"]) == (202, "waiting_approval")


@pytest.mark.timeout(60)
def test_a_revoked_token_hears_nothing_on_the_stream_that_it_opened(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        _, made = exchange.request("POST", "/v1/tokens", {"edge": "http", "agent": "eve", "permissions": []})
        with Stream(exchange, "a", made["token"]) as stream:
            assert exchange.request("POST", "/v1/topics/a", 1)[0] == 200
            assert stream.next_topic() == "a"
            assert exchange.request("DELETE", f"/v1/tokens/{made['id']}")[0] == 200
            before = exchange.request("GET", "/v1/status")[1]["events"]["told"]
            assert exchange.request("POST", "/v1/topics/a", 2)[0] == 200
            assert exchange.request("GET", "/v1/status")[1]["events"]["told"] == before
        wait_until(lambda: exchange.request("GET", "/v1/status")[1]["subscriptions"] == 0, "the stream is gone")
