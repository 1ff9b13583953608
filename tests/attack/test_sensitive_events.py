"""An event that came encrypted is heard by those who subscribed, over a kill, and found nowhere on disk."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import ClientConnection, connect

from tests.attack.secrets import forms
from tests.ossa import EXCHANGE, JSON, Keyed, sealed_for
from tests.running import RawAgent, Running, contents, running, wait_until
from trunkline.edges import tls

CONFIG = '[ossa]\nlisten = "127.0.0.1:0"\n'
# No rule of masking knows them.
WORD, BESIDE = "the body, of Alice Lidell 1865", "a header's field, of Alice Lidell 1865"
CANARIES = [form for word in (WORD, BESIDE) for form in forms(word)]
WAIT_S = 20.0


def found(exchange: Running) -> list[str]:
    """Where something of what was said stands."""
    read = {path.name: data for path, data in contents(exchange.home, exchange.output).items()}
    return [f"{name}: {form!r}" for name, data in read.items() for form in CANARIES if form in data]


def keyed(exchange: Running, agent_id: str) -> Keyed:
    made = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": agent_id, "type": "worker"})[1]
    return Keyed(made, "worker", lambda: int(time.time() * 1000))


def trust(exchange: Running) -> ssl.SSLContext:
    shown = tls.shown_certificate(exchange.home / "keys" / tls.OWN_FILE)
    return ssl.create_default_context(cadata=shown.decode())


@contextmanager
def socket_of(exchange: Running) -> Iterator[ClientConnection]:
    url = exchange.ready["ossa"].replace("https", "wss") + "/ossa/v1/ws"
    with connect(url, ssl=trust(exchange), open_timeout=WAIT_S, proxy=None) as socket:
        yield socket


def say(socket: ClientConnection, agent: Keyed, message: JSON) -> None:
    socket.send(json.dumps(agent.signed(message)))


def heard(socket: ClientConnection, kind: str) -> JSON:
    while True:
        message: JSON = json.loads(socket.recv(WAIT_S))
        if message["header"]["type"] == kind:
            return message


def sealed_event(exchange: Running, agent: Keyed) -> JSON:
    url = exchange.ready["ossa"] + "/ossa/v1/keys"
    with urllib.request.urlopen(url, context=trust(exchange), timeout=WAIT_S) as answer:  # noqa: S310
        (jwk,) = [key for key in json.load(answer)["keys"] if key["use"] == "enc"]
    message = agent.message("event", EXCHANGE, "told", topic="news", qos=1, sensitive=True, xTrace=BESIDE)
    message["body"]["payload"] = sealed_for({"text": WORD}, message["header"]["messageId"], jwk)
    return message


def told_agent(exchange: Running, token: str | None = None) -> RawAgent:
    """An agent that is told of events by a call."""
    agent = RawAgent(exchange, "raw.agent", token=token)
    agent.hello("tools", "calls")
    agent.register({"name": "a2a_handle_event"})
    return agent


def test_a_sealed_event_is_heard_by_all_over_a_kill_and_found_nowhere(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = keyed(exchange, "alice"), keyed(exchange, "bob")
        raw = told_agent(exchange)
        wanted = {"topic": "news", "qos": 1, "durable": True}
        asked = {"call_id": "s", "tool_id": "trunkline/subscribe", "input": wanted}
        raw.send("agent.tool.call", asked, request_id="s")
        assert raw.wait_for("core.tool.result")["payload"]["status"] == "succeeded"
        raw.socket.close()
        with socket_of(exchange) as socket:
            say(socket, bob, bob.message("request", EXCHANGE, "subscribe", wanted))
            heard(socket, "response")
        with socket_of(exchange) as socket:
            say(socket, alice, sealed_event(exchange, alice))
            heard(socket, "acknowledgment")
        assert found(exchange) == []
        exchange.kill()
        assert found(exchange) == []
        exchange.start()
        with socket_of(exchange) as socket:
            say(socket, bob, bob.message("heartbeat", EXCHANGE, "heartbeat"))
            event = heard(socket, "event")
            assert bob.opened(event) == {"text": WORD}
            assert event["header"]["xTrace"] == BESIDE
            say(socket, bob, bob.ack(event))
            wait_until(lambda: exchange.entries(kind="event.taken"), "one has it")
        raw = told_agent(exchange, raw.token)
        call = raw.wait_for("core.tool.call")
        assert call["payload"]["input"]["payload"] == {"text": WORD}
        raw.result(call, output={"heard": WORD})
        wait_until(lambda: len(exchange.entries(kind="event.taken")) == 2, "both have it")
        assert [entry.get("released", False) for entry in exchange.entries(kind="event.taken")] == [False, True]
        (published,) = exchange.entries(kind="event.published")
        assert published["body"].keys() == published["context"].keys() == {"$sha256", "bytes"}
        assert found(exchange) == []
        assert exchange.stop() == 0
        assert found(exchange) == []


def test_what_is_looked_for_would_be_found(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        exchange.request("POST", "/v1/topics/news?qos=1", {"text": WORD})
        assert exchange.stop() == 0
        assert len(found(exchange)) >= 1
