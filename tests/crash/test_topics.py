"""`kill -9` with events that are owed: what was acknowledged reaches each durable subscriber, however often we die."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running import RawAgent, Running, running, wait_until

KILLS = 4
READ_S = 20.0


@contextmanager
def stream_of(exchange: Running, pattern: str) -> Iterator[http.client.HTTPResponse]:
    """A durable stream, once it watches."""
    address = exchange.ready["http"].removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=READ_S)
    headers = {"Authorization": f"Bearer {exchange.token}"}
    connection.request("GET", f"/v1/topics/{pattern}?durable=1&qos=1", headers=headers)
    try:
        with connection.getresponse() as answer:
            assert answer.status == 200
            while not answer.readline().startswith(b"data: "):
                pass
            yield answer
    finally:
        connection.close()


def heard(stream: http.client.HTTPResponse) -> Any:
    """The payload of the next event."""
    while True:
        line = stream.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            return json.loads(line[6:])["payload"]


class Publisher(threading.Thread):
    """Publishes numbers one after the other, and remembers which were acknowledged, until the exchange is gone."""

    def __init__(self, exchange: Running, first: int) -> None:
        super().__init__()
        self.exchange = exchange
        self.next = first
        self.acknowledged: list[int] = []

    def run(self) -> None:
        while True:
            number, self.next = self.next, self.next + 1
            try:
                status, _ = self.exchange.request("POST", "/v1/topics/count?qos=1", number)
            except (OSError, http.client.HTTPException):
                return
            if status != 200:
                return
            self.acknowledged.append(number)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_reaches_a_durable_stream_after_every_kill(short_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with running(short_path / "home") as exchange:
        with stream_of(exchange, "count"):
            pass
        acknowledged: list[int] = []
        first = 0
        for _ in range(KILLS):
            publisher = Publisher(exchange, first)
            publisher.start()
            least = rng.randrange(1, 60)
            wait_until(lambda p=publisher, n=least: len(p.acknowledged) >= n, "some events")
            exchange.kill()
            publisher.join(READ_S)
            acknowledged += publisher.acknowledged
            first = publisher.next
            exchange.start()
        exchange.request("POST", "/v1/topics/count?qos=1", -1)
        told: list[int] = []
        with stream_of(exchange, "count") as stream:
            while (number := heard(stream)) != -1:
                told.append(number)
        assert told == sorted(set(told)), "in order, and none of them twice"
        assert set(acknowledged) <= set(told)
        assert set(told) <= set(range(first))
        wait_until(lambda: exchange.request("GET", "/v1/status")[1]["owed_events"] == 0, "nothing is owed any more")


@pytest.mark.timeout(120)
def test_an_agent_is_told_after_a_kill_what_it_had_not_taken(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        token = exchange.new_token("com.bot")

        def bot() -> RawAgent:
            agent = RawAgent(exchange, "com.bot", token)
            agent.hello("tools", "calls")
            agent.register({"name": "a2a_handle_event"})
            return agent

        agent = bot()
        wanted = {"call_id": "c-1", "tool_id": "trunkline/subscribe"}
        agent.send("agent.tool.call", {**wanted, "input": {"topic": "a", "qos": 1, "durable": True}}, request_id="c-1")
        assert agent.wait_for("core.tool.result")["payload"]["status"] == "succeeded"
        for number in (1, 2):
            assert exchange.request("POST", "/v1/topics/a?qos=1", number)[0] == 200
        first = agent.wait_for("core.tool.call")
        assert first["payload"]["input"]["payload"] == 1
        agent.result(first, output={})
        exchange.wait_entry("event.taken")
        exchange.kill()
        exchange.start()
        call = bot().wait_for("core.tool.call")["payload"]
        assert call["input"]["payload"] == 2
        assert call["input"]["topic"] == "a"
