"""Chiffon over HTTP as an agent written from the specification alone meets it: an HTTP client, a real exchange."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.running import Running, calling, contents, running, wait_until
from tests.unit.edges.chiffon.kit import envelope, reply_to, request, valid
from trunkline.edges.chiffon.messages import MAX_MESSAGE_BYTES

CONFIG = """
[chiffon]
timeout_s = 1.5
[chiffon.work]
say = "com.example.echo/echo"
[[policy.rule]]
caller = "chiffon:*"
tool = "*"
decision = "allow"
"""


@pytest.fixture(scope="module")
def exchange() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    agents = f'[[agent]]\nid = "com.example.echo"\ncommand = ["python", "{Path.cwd()}/examples/echo.py"]\n'
    with running(folder / "home", CONFIG + agents) as found:
        found.wait_tool("com.example.echo/echo")
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def new_token(exchange: Running, agent: str, kind: str) -> str:
    status, answer = exchange.request("POST", "/v1/tokens", {"edge": "chiffon", "agent": agent, "type": kind})
    assert status == 201, answer
    return str(answer["token"])


class SpecAgent:
    """An agent made of an HTTP client and the specification."""

    def __init__(self, exchange: Running, agent_id: str | None = None, kind: str = "infra", token: str = "") -> None:
        self.exchange = exchange
        self.agent_id = agent_id or f"{kind}-{uuid.uuid4().hex[:8]}"
        self.kind = kind
        self.token = token or new_token(exchange, self.agent_id, kind)

    def register(self, *work: str, **fields: Any) -> tuple[int, Any]:
        body = {
            "agent_id": self.agent_id,
            "agent_type": self.kind,
            "supported_versions": ["1.0"],
            "work_types": list(work or ("run",)),
            "capacity": {"memory_mb": 1024},
            **fields,
        }
        return self.exchange.request("POST", "/api/agent/register", body, token=self.token)

    def poll(self, wait_s: float = 10) -> list[dict[str, Any]]:
        status, body = self.exchange.request("GET", f"/api/agent/messages?wait={wait_s}", token=self.token)
        assert status == 200, body
        return [valid(message) for message in body["messages"]]

    def work(self) -> dict[str, Any]:
        """The next request."""
        found: list[dict[str, Any]] = []
        while not found:
            found = self.poll()
        assert len(found) == 1
        return found[0]

    def send(self, message: dict[str, Any]) -> tuple[int, Any]:
        return self.exchange.request("POST", "/api/agent/message", message, token=self.token)

    def status(self, work: dict[str, Any], percent: int, **step: Any) -> tuple[int, Any]:
        payload = {
            "task_id": work["payload"]["task_id"],
            "status": "running",
            "progress_percent": percent,
            "step": step,
        }
        return self.send(reply_to(work, "work_status", payload, self.kind))

    def result(self, work: dict[str, Any], output: str = "done", code: int = 0) -> tuple[int, Any]:
        payload = {
            "task_id": work["payload"]["task_id"],
            "status": "failed" if code else "success",
            "exit_code": code,
            "output": output,
        }
        return self.send(reply_to(work, "work_result", payload, self.kind))

    @property
    def tool(self) -> str:
        return f"{self.agent_id}/run"


def error_of(answer: tuple[int, Any], status: int, code: int) -> dict[str, Any]:
    """The error of an answer, which is an envelope whatever went wrong."""
    assert answer[0] == status, answer
    message = valid(answer[1])
    assert message["type"] == "error"
    assert message["payload"]["error_code"] == code
    found: dict[str, Any] = message["payload"]["error_context"]
    return found


@requirement("CH-090", "CH-027", "CH-092", "CH-094", "CH-105", "CH-002", "CH-012")
def test_an_agent_written_from_the_specification_does_work_and_the_record_has_it(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    status, answer = agent.register()
    assert status == 200
    assert answer["protocol_version"] == "1.0"
    trace = str(uuid.uuid4())
    call = calling(exchange, agent.tool, {"playbook": "deploy.yml"}, correlation_id=trace)
    work = agent.work()
    assert work["trace_id"] == trace
    assert work["payload"]["parameters"] == {"playbook": "deploy.yml"}
    for percent in (20, 40, 60, 80, 100):
        status, body = agent.status(work, percent, number=percent // 20, name="a step", output=f"{percent}\n")
        assert status == 202
        assert body["accepted"] is True
    assert agent.result(work, "Deployment completed successfully.")[0] == 202
    outcome = call.result(20)
    assert (outcome["status"], outcome["output"]["output"]) == ("succeeded", "Deployment completed successfully.")
    found = exchange.request("GET", f"/v1/ledger?correlation_id={trace}")[1]["entries"]
    assert {"call.accepted", "call.settled"} <= {entry["kind"] for entry in found}


@requirement("CH-001")
def test_an_agent_that_is_restarted_between_messages_still_answers(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    call = calling(exchange, agent.tool)
    work = agent.work()
    again = SpecAgent(exchange, agent.agent_id, token=agent.token)
    again.register()
    repeated = again.work()
    assert repeated["request_id"] == work["request_id"], "what it works on is sent once more"
    again.status(work, 50)
    assert again.result(work)[0] == 202
    assert call.result(20)["status"] == "succeeded"


@requirement("CH-109", "CH-081", "CH-078", "CH-080")
def test_a_lost_reply_is_one_execution_and_one_outcome(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    call = calling(exchange, agent.tool)
    executed: dict[str, str] = {}
    first = agent.work()
    executed[first["request_id"]] = "the one result"  # and its message is lost
    second = agent.work()
    assert second["request_id"] == first["request_id"]
    assert second["message_id"] != first["message_id"]
    agent.result(second, executed[second["request_id"]])
    outcome = call.result(20)
    assert (outcome["status"], outcome["output"]["output"]) == ("succeeded", "the one result")
    assert len(executed) == 1


@requirement("CH-111", "CH-057", "CH-065")
def test_a_hung_agent_is_5001_after_four_attempts(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    call = calling(exchange, agent.tool)
    seen = []
    while not call.done():
        seen += agent.poll(1)
    outcome = call.result(1)
    assert (outcome["status"], outcome["error"]["code"]) == ("unknown", "tool.timeout")
    assert outcome["error"]["details"]["error_code"] == 5001
    assert outcome["error"]["details"]["error_context"]["attempted_retries"] == 3
    assert len(seen) == 4
    assert len({work["request_id"] for work in seen}) == 1


@requirement("CH-110", "CH-070", "CH-058")
def test_a_dead_agent_opens_its_breaker_and_the_next_call_is_refused_at_once(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    calls = [calling(exchange, agent.tool) for _ in range(3)]
    wait_until(lambda: exchange.entries(kind="notice", code="breaker.opened", who=agent.agent_id), "an open breaker")
    refused = exchange.call(agent.tool)
    assert (refused["http"], refused["error"]["code"]) == (503, "tool.unavailable")
    # It was not taken on, so nothing was waited for.
    on_record = exchange.entries(kind="call.refused", tool_id=agent.tool)
    assert [entry["code"] for entry in on_record] == ["tool.unavailable"]
    shown = next(a for a in exchange.request("GET", "/v1/agents")[1]["agents"] if a["agent_id"] == agent.agent_id)
    assert shown["health"] == "breaker_open"
    assert exchange.request("GET", "/v1/status")[1]["open_breakers"] >= 1
    for work in agent.poll(0):
        agent.result(work)
    outcomes = {call.result(30)["status"] for call in calls}
    assert outcomes <= {"succeeded", "unknown"}, "what ran goes on"


@requirement("CH-112", "CH-083", "CH-087")
def test_three_megabytes_travel_in_blocks(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    call = calling(exchange, agent.tool)
    work = agent.work()
    text = "0123456789abcdef" * 196_608
    pieces = [(start, min(start + 262_144, len(text))) for start in range(0, len(text), 262_144)]
    pieces[1], pieces[7] = pieces[7], pieces[1]
    for start, end in [*pieces, pieces[2]]:
        label = f"bytes {start}-{end} of {len(text)}"
        status, body = agent.status(work, 90, number=1, name="logs", output=text[start:end], output_chunk=label)
        assert status == 202, body
    digest = hashlib.sha256(text.encode()).hexdigest()
    payload = {"task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": text[-65_536:]}
    custom = {"output_truncated": True, "output_sha256": digest}
    agent.send(reply_to(work, "work_result", payload, "infra", x_custom_fields=custom))
    reference = call.result(20)["output"]["$ref"]
    status, whole = exchange.request("GET", f"/v1/blobs/{reference}")
    assert status == 200
    assert whole["output"] == text
    assert whole["steps"][0]["sha256"] == digest


def stranger(
    exchange: Running, source: str, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """A request from an address of its own: refusals slow down the next one from the same place."""
    address = exchange.ready["http"].removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=20, source_address=(source, 0))
    body = json.dumps(request()).encode() if method == "POST" else None
    connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    connection.close()
    assert answer.headers["www-authenticate"] == "Bearer"
    return answer.status, data


@requirement("CH-113", "CH-102", "CH-060", "CH-104")
@pytest.mark.parametrize(
    ("method", "path", "place"),
    [("POST", "/api/agent/message", 2), ("POST", "/api/agent/register", 3), ("GET", "/api/agent/messages?wait=1", 4)],
)
def test_every_entry_point_wants_a_token(exchange: Running, method: str, path: str, place: int) -> None:
    unknown = "00000000000000000000000000000000"
    basic = f"Basic {new_token(exchange, f'basic-{place}', 'infra')}"
    for number, shown in enumerate(("", f"Bearer {unknown}", f"Bearer {exchange.token}", basic)):
        source = f"127.0.{place}.{number + 1}"
        context = error_of(stranger(exchange, source, method, path, {"Authorization": shown}), 401, 5004)
        assert context == {"agent_id": "unknown", "token_status": "invalid"}
    context = error_of(stranger(exchange, f"127.0.{place}.9", method, path), 401, 5004)
    assert context == {"agent_id": "unknown", "token_status": "missing"}


@requirement("CH-101")
def test_a_revoked_token_is_refused_with_the_next_message(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    call = calling(exchange, agent.tool)
    work = agent.work()
    assert agent.status(work, 10)[0] == 202
    (token_id,) = [t["id"] for t in exchange.request("GET", "/v1/tokens")[1]["tokens"] if t["agent"] == agent.agent_id]
    assert exchange.request("DELETE", f"/v1/tokens/{token_id}")[0] == 200
    assert error_of(agent.status(work, 20), 401, 5004)["token_status"] == "invalid"
    exchange.wait_no_tool(agent.tool)
    assert not call.done(), "its work waits a while for it to come back"


@requirement("CH-105")
def test_media_type_size_and_broken_json_are_told_in_envelopes(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    text = exchange.request("POST", "/api/agent/message", {}, token=agent.token, headers={"Content-Type": "text/plain"})
    error_of(text, 415, 5003)
    error_of(agent.send({"x": "y" * (MAX_MESSAGE_BYTES + 1)}), 413, 5003)
    error_of(exchange.request("GET", "/api/agent/message", token=agent.token), 405, 5003)
    error_of(exchange.request("GET", "/api/agent/nothing", token=agent.token), 404, 5003)
    error_of(exchange.request("GET", "/api/agent/messages?wait=x", token=agent.token), 400, 5003)


def test_a_refusal_is_addressed_to_who_showed_the_token_also_where_nothing_can_be_read(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    broken = [
        exchange.request("POST", "/api/agent/message", [], token=agent.token),
        exchange.request("GET", "/api/agent/messages?wait=x", token=agent.token),
        exchange.request("POST", "/api/agent/register", {"agent_id": "x"}, token=agent.token),
        agent.send(envelope("work_status", {"task_id": "x"}, from_agent="desktop")),
    ]
    assert [(reply["from_agent"], reply["to_agent"]) for _, reply in broken] == [("orchestrator", "infra")] * 4


@requirement("CH-017", "CH-059")
def test_a_broken_message_is_answered_with_its_ids_if_they_can_be_read(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    message = envelope("work_status", {"task_id": "x"})
    del message["timestamp"]
    status, reply = agent.send(message)
    assert error_of((status, reply), 400, 5003) == {"validation_error": "missing", "field_name": "timestamp"}
    assert (reply["trace_id"], reply["request_id"]) == (message["trace_id"], message["request_id"])
    assert reply["x_custom_fields"] == {"in_reply_to": message["message_id"]}
    assert (reply["from_agent"], reply["to_agent"]) == ("orchestrator", "infra")


@requirement("CH-058")
def test_an_agent_that_did_not_register_is_told_to(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    context = error_of(agent.send(envelope("error", {"error_code": 5001, "error_message": "x"})), 503, 5002)
    assert context == {"agent_id": agent.agent_id, "last_heartbeat": None}


@requirement("CH-097", "CH-100")
def test_tokens_are_32_random_characters_and_nowhere_to_be_found(exchange: Running) -> None:
    agents = [SpecAgent(exchange) for _ in range(20)]
    tokens = [agent.token for agent in agents]
    assert len(set(tokens)) == 20
    assert all(len(token) == 32 and re.fullmatch(r"tlk_[A-Za-z0-9_-]{28}", token) for token in tokens)
    for agent in agents[:3]:
        agent.register()
        agent.send({"auth_token": agent.token, "x": agent.token})
    boss = SpecAgent(exchange, kind="orchestrator")
    for token in (agents[0].token, boss.token):
        boss.send(request("say", {"text": f"a note about {token}, and {token.encode().hex()}"}))
    wait_until(lambda: len(exchange.entries(kind="call.settled")) >= 2, "the notes on record")
    tokens += [boss.token, boss.token.encode().hex()]
    listed = json.dumps(exchange.request("GET", "/v1/tokens")[1])
    assert all(token not in listed for token in tokens)
    wait_until(lambda: exchange.entries(kind="agent.admitted", agent_id=agents[2].agent_id), "the record")
    for path, data in contents(exchange.home).items():
        assert not any(token.encode() in data for token in tokens), path
    assert not any(token in exchange.said() for token in tokens)
    assert stat.S_IMODE((exchange.home / "ledger.sqlite").stat().st_mode) == 0o600


@requirement("CH-096")
def test_a_v2_message_is_5006(exchange: Running) -> None:
    boss = SpecAgent(exchange, kind="orchestrator")
    context = error_of(boss.send(request("say", protocol_version="2.0")), 422, 5006)
    assert context["unsupported_version"] == "2.0"
    assert context["work_type_requested"] == "say"


@requirement("CH-001", "CH-003", "CH-027", "CH-079", "CH-080", "CH-004")
def test_trunkline_as_an_agent(exchange: Running) -> None:
    boss = SpecAgent(exchange, kind="orchestrator")
    work = request("say", {"text": "hello"}, x_custom_fields={"ticket": 7})
    assert boss.send(work)[0] == 202
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != "work_result":
        heard += boss.poll()
    assert [message["type"] for message in heard] == ["work_status", "work_result"]
    result = heard[-1]
    assert json.loads(result["payload"]["output"]) == {"text": "hello"}
    for message in heard:
        assert (message["trace_id"], message["request_id"]) == (work["trace_id"], work["request_id"])
        assert message["x_custom_fields"] == {"ticket": 7}
    status, again = boss.send({**work, "message_id": str(uuid.uuid4())})
    # At once, or as soon as it is on disk.
    assert (valid(again) if status == 200 else boss.work())["payload"] == result["payload"]
    error_of(boss.send(request("nothing")), 422, 5006)


def test_a_callback_gets_the_work_and_shows_our_token(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    received: list[tuple[str, dict[str, Any]]] = []

    class Callback(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Callback)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/chiffon"
        status, answer = agent.register(callback_url=url)
        assert status == 200
        call = calling(exchange, agent.tool, {"x": 1})
        wait_until(lambda: received, "the callback")
        shown, work = received[0]
        assert shown == f"Bearer {answer['orchestrator_token']}"
        agent.result(valid(work))
        assert call.result(20)["status"] == "succeeded"
    finally:
        server.shutdown()
        server.server_close()
    down = exchange.call(agent.tool)
    assert down["error"]["code"] == "tool.unavailable", "nobody listens there: 5002"
    assert down["error"]["details"]["error_code"] == 5002
    for bad in ("http://10.0.0.1/x", "https://127.0.0.1/x", "http://u:p@127.0.0.1/", "ftp://localhost/"):
        error_of(agent.register(callback_url=bad), 400, 5003)


def test_two_polls_at_the_same_time_lose_nothing(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    found: list[dict[str, Any]] = []

    def poll() -> None:
        found.extend(agent.poll(3))

    pollers = [threading.Thread(target=poll) for _ in range(3)]
    for poller in pollers:
        poller.start()
    call = calling(exchange, agent.tool)
    for poller in pollers:
        poller.join(10)
    ids = {work["request_id"] for work in found}
    assert len(ids) == 1
    agent.result(found[0])
    assert call.result(20)["status"] == "succeeded"


def test_a_poll_whose_client_is_gone_takes_nothing(exchange: Running) -> None:
    agent = SpecAgent(exchange)
    agent.register()
    connection = http.client.HTTPConnection(exchange.ready["http"].removeprefix("http://"), timeout=20)
    connection.request("GET", "/api/agent/messages?wait=20", headers={"Authorization": f"Bearer {agent.token}"})
    assert agent.poll(0) == [], "by now the first one waits"
    connection.close()
    call = calling(exchange, agent.tool)
    agent.result(agent.work())
    outcome = call.result(20)
    assert outcome["status"] == "succeeded"
    assert exchange.entries(kind="call.noted", call_id=outcome["call_id"]) == [], "the first attempt arrived"


def test_nobody_gets_a_token_for_the_exchanges_own_agents(exchange: Running) -> None:
    body = {"edge": "chiffon", "agent": "chiffon.infra", "type": "infra"}
    status, answer = exchange.request("POST", "/v1/tokens", body)
    assert (status, answer["error"]["code"]) == (400, "message.malformed")
    for edge, kind in (("chiffon", None), ("http", "infra")):
        body = {"edge": edge, "agent": "x", **({"type": kind} if kind else {})}
        assert exchange.request("POST", "/v1/tokens", body)[0] == 400
