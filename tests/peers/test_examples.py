"""The example agents on a real exchange: each does what its first lines promise."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.running import EXAMPLES, Running, running, wait_until


@pytest.fixture(scope="module")
def exchange(node: str) -> Iterator[Running]:
    """All examples, as their own configuration starts them."""
    agents = tomllib.loads((EXAMPLES / "trunkline.toml").read_text())["agent"]
    config = "".join(
        f"[[agent]]\nid = {json.dumps(agent['id'])}\ncommand = {json.dumps(agent['command'])}\n"
        f"cwd = {json.dumps(str(EXAMPLES / agent.get('cwd', '.')))}\n"
        + (f"manifest = {json.dumps(str(EXAMPLES / agent['manifest']))}\n" if "manifest" in agent else "")
        for agent in agents
    )
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    path = f"{Path(node).parent}:{os.environ['PATH']}"
    with running(folder / "home", config, env={"PATH": path}) as found:
        for tool in ("echo/echo", "clock/now", "notes/append", "reporter/when", "node/sha256"):
            found.wait_tool(f"com.example.{tool}")
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def question(exchange: Running, subject: str, agent_id: str = "") -> dict[str, Any]:
    """Bounded wait for an open question."""

    def find() -> dict[str, Any] | None:
        for one in exchange.request("GET", "/v1/approvals")[1]["approvals"]:
            if one["subject"] == subject and agent_id in {"", one.get("agent_id")}:
                return dict(one)
        return None

    found: dict[str, Any] = wait_until(find, f"a question about a {subject}")
    return found


def approve(exchange: Running, approval_id: str) -> None:
    status, answer = exchange.request("POST", f"/v1/approvals/{approval_id}", {"decision": "approved"})
    assert status == 200, answer


def test_echo(exchange: Running) -> None:
    assert exchange.call("com.example.echo/echo", {"text": "hé"})["output"] == {"text": "hé"}
    assert exchange.call("com.example.echo/reverse", {"text": "abc"})["output"] == {"text": "cba"}


def test_a_typo_in_a_parameter_is_refused(exchange: Running) -> None:
    answer = exchange.call("com.example.echo/echo", {"txet": "x"})
    assert answer["http"] == 400
    assert answer["error"]["code"] == "tool.invalid_input"


def test_clock(exchange: Running) -> None:
    assert exchange.call("com.example.clock/now")["output"]["zone"] == "UTC"
    unknown = exchange.call("com.example.clock/now", {"zone": "Nowhere"})
    assert unknown["status"] == "failed"
    assert "Europe/Rome" in unknown["error"]["message"]


@requirement("OS-108", "OS-114")
def test_a_countdown_is_streamed(exchange: Running) -> None:
    body = {"tool_id": "com.example.clock/countdown", "input": {"start": 3, "pause_s": 0}}
    status, events = exchange.request("POST", "/v1/calls", body, headers={"Accept": "text/event-stream"})
    assert status == 200
    assert [n for n in (3, 2, 1) if f"{n} …" in events or f'"number":{n}' in events] == [3, 2, 1]
    assert '"counted":3' in events


@requirement("OS-124", "OS-125", "OS-123")
@pytest.mark.parametrize(
    ("tool", "value"),
    [("clock/countdown", {"start": 100, "pause_s": 10}), ("node/lines", {"count": 1000, "pause_ms": 5000})],
)
def test_a_long_call_is_canceled(exchange: Running, tool: str, value: dict[str, Any]) -> None:
    call_id = exchange.call(f"com.example.{tool}", value, wait=False)["call_id"]
    wait_until(lambda: exchange.request("GET", f"/v1/calls/{call_id}")[1]["status"] == "running", "it runs")
    assert exchange.request("POST", f"/v1/calls/{call_id}/cancel", {})[0] in {200, 202}
    found = wait_until(
        lambda: (view := exchange.request("GET", f"/v1/calls/{call_id}")[1])["status"] != "running" and view, "it ends"
    )
    assert found["status"] == "canceled"
    assert found["error"]["code"] == "tool.canceled"


@requirement("OS-099")
def test_notes_are_kept_once_for_a_key(exchange: Running) -> None:
    first = exchange.call("com.example.notes/append", {"text": "buy milk"}, idempotency_key="milk")
    again = exchange.call("com.example.notes/append", {"text": "buy milk"}, idempotency_key="milk")
    assert (again["call_id"], again["output"]) == (first["call_id"], first["output"])
    assert exchange.call("com.example.notes/recent")["output"]["result"].count("buy milk") == 1


@requirement("OS-085", "OS-001")
def test_notes_are_thrown_away_only_with_a_stated_intent(exchange: Running) -> None:
    refused = exchange.call("com.example.notes/clear")
    assert (refused["http"], refused["error"]["code"]) == (403, "policy.directive_required")
    _, stated = exchange.request("POST", "/v1/directives", {"tool_id": "com.example.notes/clear", "reason": "spring"})
    cleared = exchange.call("com.example.notes/clear", causation_id=stated["directive_id"])
    assert cleared["status"] == "succeeded"
    assert exchange.call("com.example.notes/recent")["output"] == {"result": []}


def test_a_tool_calls_anothers_tool_and_the_record_shows_the_chain(exchange: Running) -> None:
    answer = exchange.call("com.example.reporter/when", correlation_id="chain-1")
    assert answer["output"]["result"].startswith("It is 2")
    exchange.wait_entry("call.accepted", tool_id="com.example.clock/now", correlation_id="chain-1")
    inner = exchange.wait_entry("call.accepted", tool_id="com.example.clock/now", correlation_id="chain-1")
    assert inner["caller"] == "opensentience:com.example.reporter"
    assert inner["causation_id"] == answer["call_id"]


@requirement("OS-104", "OS-103")
def test_the_reporter_needs_its_permission_and_then_an_approval(exchange: Running) -> None:
    denied = exchange.call("com.example.reporter/minute", {"text": "one"})
    assert denied["output"]["kept"] is False
    assert denied["output"]["why"].startswith("policy.denied")
    approve(exchange, question(exchange, "manifest", "com.example.reporter")["approval_id"])
    answers: list[dict[str, Any]] = []
    calling = threading.Thread(
        target=lambda: answers.append(exchange.call("com.example.reporter/minute", {"text": "two"}))
    )
    calling.start()
    asked = question(exchange, "call")
    assert asked["tool_id"] == "com.example.notes/append"
    approve(exchange, asked["approval_id"])
    calling.join(20)
    assert answers[0]["output"]["kept"] is True
    assert exchange.call("com.example.notes/recent")["output"]["result"][0].endswith(" two")


def test_an_agent_that_nobody_here_wrote_in_python(exchange: Running) -> None:
    answer = exchange.call("com.example.node/sha256", {"text": "abc"})
    assert answer["output"]["sha256"].startswith("ba7816bf")
