"""Calls as spans: one trace through all hops, told to a collector that is another process's, and nothing when off."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.running import RawAgent, Running, running, wait_until
from trunkline.host import spans as spans_module
from trunkline.host.spans import Exporter, Spans, export_request
from trunkline.model import Status, fault
from trunkline.testing.memory import MemoryExchange
from trunkline.traces import span_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


class Collector:
    """Takes OTLP over HTTP, as JSON. With ``status`` it refuses."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.services: set[str] = set()
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.status == 200 and self.path == "/v1/traces":
                    for resource in told["resourceSpans"]:
                        outer.services |= {one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
                        for scope in resource["scopeSpans"]:
                            outer.spans += scope["spans"]
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def named(span: dict[str, Any]) -> dict[str, str]:
    return {one["key"].removeprefix("trunkline."): next(iter(one["value"].values())) for one in span["attributes"]}


def relayed(exchange: Running) -> None:
    """A call by a program with a ``traceparent``, whose agent calls another one."""
    first, second = RawAgent(exchange, "com.first"), RawAgent(exchange, "com.second", exchange.new_token("com.second"))
    for agent in (first, second):
        agent.hello("tools", "calls")
        agent.register({"name": "work"})
    body = {"tool_id": "com.first/work", "input": {"secret": "not in a span"}}
    done: list[tuple[int, Any]] = []
    headers = {"traceparent": GIVEN}
    asking = threading.Thread(target=lambda: done.append(exchange.request("POST", "/v1/calls", body, headers=headers)))
    asking.start()
    outer = first.wait_for("core.tool.call")
    assert outer["correlation_id"] == GIVEN
    first.send("agent.tool.call", {"call_id": "c", "tool_id": "com.second/work", "input": {}}, request_id="r")
    inner = second.wait_for("core.tool.call")
    second.result(inner, output={})
    first.wait_for("core.tool.result")
    first.result(outer, output={})
    asking.join(20)
    assert done[0][0] == 200


@pytest.mark.slow
def test_a_call_and_what_it_causes_are_spans_of_the_callers_trace(short_path: Path, collector: Collector) -> None:
    config = (
        f'[otel]\nendpoint = "{collector.url}"\nservice = "mine"\n'
        '[[policy.rule]]\ncaller = "*"\ntool = "*"\ndecision = "allow"\n'
    )
    with running(short_path / "home", config) as exchange:
        relayed(exchange)
        assert exchange.call("com.nobody/work")["error"]["code"] == "tool.not_found"
        wait_until(lambda: len(collector.spans) >= 3, "three spans at the collector")
    outer, inner, refused = (
        next(one for one in collector.spans if one["name"] == name)
        for name in ("com.first/work", "com.second/work", "com.nobody/work")
    )
    assert collector.services == {"mine"}
    assert (outer["traceId"], outer["parentSpanId"]) == (TRACE, SPAN)
    assert (inner["traceId"], inner["parentSpanId"]) == (TRACE, outer["spanId"])
    assert outer["spanId"] == span_of(named(outer)["call_id"])
    assert int(outer["startTimeUnixNano"]) <= int(inner["startTimeUnixNano"]) <= int(inner["endTimeUnixNano"])
    assert (named(outer)["status"], named(inner)["depth"]) == ("succeeded", "2")
    assert (named(refused)["status"], refused["status"]["code"]) == ("refused", 2)
    assert refused["traceId"] != TRACE
    assert "not in a span" not in json.dumps(collector.spans)


@pytest.mark.slow
def test_without_an_endpoint_a_traceparent_says_nothing_and_nothing_is_imported(short_path: Path) -> None:
    config = '[[policy.rule]]\ncaller = "*"\ntool = "*"\ndecision = "allow"\n'
    with running(short_path / "home", config) as exchange:
        agent = RawAgent(exchange, "com.x")
        agent.hello()
        agent.register({"name": "work"})
        exchange.request(
            "POST", "/v1/calls", {"tool_id": "com.x/work", "input": {}, "wait": False}, headers={"traceparent": GIVEN}
        )
        assert agent.wait_for("core.tool.call")["correlation_id"] != GIVEN
    script = "import sys, trunkline.host.up; print([name for name in sys.modules if name.endswith('host.spans')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_attempts_are_events_of_a_span_and_a_failure_is_its_status() -> None:
    told: list[dict[str, Any]] = []
    exchange = MemoryExchange()
    exchange.feed.watch(Spans(told.append).watch)
    agent = exchange.attach("com.a", "work")
    call = exchange.call("com.a/work")
    assert told == []
    agent.finish(status=Status.FAILED, fault=fault("tool.failed"))
    exchange.advance(1)
    assert call.answer is not None
    (span,) = told
    assert (named(span)["fault"], span["status"]) == ("tool.failed", {"code": 2, "message": "tool.failed"})


def test_a_collector_that_refuses_or_is_away_costs_spans_and_nothing_else(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans_module, "GATHER_S", 0.01)
    exporter = Exporter(collector.url, "s")
    collector.status = 503
    exporter.put({"name": "lost"})
    wait_until(lambda: exporter.dropped == 1, "a span that was not taken")
    where = collector.url.split("/")[2]
    assert f"[otel] spans are dropped: the collector at {where} answered 503" in caplog.text
    assert exporter.warnings() == [f"[otel] spans are dropped, 1 so far: the collector at {where} answered 503"]
    collector.status = 200
    exporter.put({"name": "taken"})
    exporter.stop()
    assert [span["name"] for span in collector.spans] == ["taken"]
    assert exporter.warnings() == [], "it is over"
    away = Exporter("http://127.0.0.1:1/v1/traces", "s")
    away.put({"name": "lost"})
    away.stop()
    assert away.dropped == 1
    assert away.warnings() == ["[otel] spans are dropped, 1 so far: nobody listens there (127.0.0.1:1)"]


def test_what_waits_for_a_collector_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "MAX_WAITING", 2)
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    exporter = Exporter("http://127.0.0.1:1/v1/traces", "s")
    for number in range(5):
        exporter.put({"name": str(number)})
    assert exporter.dropped == 3


def test_the_request_has_the_form_of_otlp() -> None:
    told = json.loads(export_request([{"name": "x"}], "s"))
    (resource,) = told["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "s"}}]
    assert resource["scopeSpans"][0]["spans"] == [{"name": "x"}]
