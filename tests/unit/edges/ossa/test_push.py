"""Agents that are reached by a URL: what is posted, and what each answer means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.edges.ossa.kit import OBJECT, Agent, Kit
from trunkline.edges import client
from trunkline.model import Status


class Server:
    """What stands at the URL: answers by ``reply``, which may raise."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.got: list[dict[str, Any]] = []
        self.status, self.body, self.is_away = 200, b"", False

    async def request(self, url: str, method: str, *, body: bytes, timeout_s: float, tls: Any) -> client.Answer:
        assert (url, method, timeout_s) == ("https://bob.example/in", "POST", 60.0)
        assert tls is not None
        self.got.append(json.loads(body))
        if self.is_away:
            raise client.Unreachable("nobody there")
        return client.Answer(self.status, self.body)

    def answers(self, payload: object, kind: str = "response", by: Agent | None = None) -> None:
        """Answer the next request like this; its correlation is ``c``."""
        who = by or self.agent
        self.body = who.signed(who.message(kind, "trunkline", "echo", payload, correlationId="c"))


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit() as kit:
        yield kit


@pytest.fixture
def server(kit: Kit) -> Iterator[Server]:
    bob = kit.agent("bob", url="https://bob.example/in")
    found = Server(bob)
    with patch.object(client, "request", found.request):
        offered = {"actions": [{"name": "echo", "input_schema": OBJECT, "side_effects": False}]}
        bob.ask("request", "trunkline", "register", offered)
        yield found


def test_the_answer_to_the_post_is_the_agents_answer(kit: Kit, server: Server) -> None:
    server.answers({"y": 2})
    called = kit.call("bob/echo", {"x": 1}, correlation_id="c")
    kit.advance(0)
    assert called.output == {"y": 2}
    assert server.got[-1]["body"] == {"action": "echo", "payload": {"x": 1}}


def test_who_cannot_be_reached_is_tried_at_0_and_1_and_3_s(kit: Kit, server: Server) -> None:
    server.is_away = True
    called = kit.call("bob/echo", correlation_id="c")
    for wait_s, expected in ((0.0, 1), (0.9, 1), (0.2, 2), (1.8, 2), (0.3, 3), (20.0, 3)):
        kit.advance(wait_s)
        assert len(server.got) == expected
    assert (called.outcome.status, called.code) == (Status.FAILED, "tool.unavailable")


def test_a_status_without_a_message_is_a_failed_attempt(kit: Kit, server: Server) -> None:
    server.status = 500
    called = kit.call("bob/echo", correlation_id="c")
    kit.advance(1.5)
    server.status = 200
    server.answers({"y": 2})
    kit.advance(5)
    assert called.output == {"y": 2}


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b'{"header":{}}', b"\xff" * 100, b"[" * 100_000])
def test_an_answer_that_is_none_waits_for_one_by_another_way(kit: Kit, server: Server, body: bytes) -> None:
    server.body = body
    called = kit.call("bob/echo", correlation_id="c")
    kit.advance(1)
    assert called.answer is None
    server.agent.ask("response", action="echo", payload={"y": 2}, correlationId="c")
    assert called.output == {"y": 2}


def test_an_answer_that_another_agent_signed_is_none(kit: Kit, server: Server) -> None:
    server.answers({"from": "eve"}, by=kit.agent("eve"))
    called = kit.call("bob/echo", correlation_id="c")
    kit.advance(1)
    assert called.answer is None


def test_an_event_is_taken_with_any_answer_of_2xx_and_told_again_after_others(kit: Kit, server: Server) -> None:
    server.agent.subscribe("news.*", qos=1, durable=True)
    server.status = 503
    kit.agent("dave").ask("event", topic="news.today", payload={}, qos=1)
    kit.advance(0.5)
    server.status = 204
    kit.advance(10)
    assert [one["header"]["type"] for one in server.got] == ["event", "event"]


def test_an_agent_that_is_gone_for_long_leaves_no_tasks(kit: Kit, server: Server) -> None:
    server.is_away = True
    for n in range(5):
        kit.call("bob/echo", correlation_id=f"c{n}")
    kit.advance(100)
    assert not [task for task in kit.loop._tasks if not task.done()]
    attachment = server.agent.peer().attachment
    assert attachment is not None
    assert attachment.way._running == 0  # type: ignore[attr-defined]
