"""Chiffon over a WebSocket: the same messages, one in each frame, on a real exchange with a client that is not ours."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.requirement import requirement
from tests.running import WAIT_S, RawAgent, Running, calling, running
from tests.unit.edges.chiffon.kit import reply_to, request, valid


@pytest.fixture(scope="module")
def exchange() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    with running(folder / "home") as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def new_token(exchange: Running, agent: str, kind: str = "infra") -> str:
    body = {"edge": "chiffon", "agent": agent, "type": kind}
    return str(exchange.request("POST", "/v1/tokens", body)[1]["token"])


def opened(exchange: Running, token: str) -> ClientConnection:
    url = exchange.ready["http"].replace("http://", "ws://") + "/api/agent/ws"
    return connect(url, additional_headers={"Authorization": f"Bearer {token}"}, open_timeout=WAIT_S)


def say(socket: ClientConnection, message: dict[str, Any]) -> None:
    socket.send(json.dumps(message))


def hear(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(WAIT_S))
    return found


def registration(agent: str, **fields: Any) -> dict[str, Any]:
    return {"agent_id": agent, "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"], **fields}


@requirement("CH-090", "CH-092")
def test_work_comes_and_goes_in_frames(exchange: Running) -> None:
    with opened(exchange, new_token(exchange, "socket-1")) as socket:
        say(socket, registration("socket-1"))
        assert hear(socket)["protocol_version"] == "1.0"
        call = calling(exchange, "socket-1/run", {"x": 1})
        work = valid(hear(socket))
        task_id = work["payload"]["task_id"]
        status = {"task_id": task_id, "status": "running", "progress_percent": 50}
        say(socket, reply_to(work, "work_status", status, "infra"))
        result = {"task_id": task_id, "status": "success", "exit_code": 0, "output": "done"}
        say(socket, reply_to(work, "work_result", result, "infra"))
        assert call.result(WAIT_S)["output"]["output"] == "done"


@requirement("CH-059", "CH-113")
def test_faults_are_error_frames_and_a_bad_token_is_not_let_in(exchange: Running) -> None:
    with pytest.raises(InvalidStatus) as caught:
        opened(exchange, "0" * 32)
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["payload"]["error_code"] == 5004
    with opened(exchange, new_token(exchange, "socket-2")) as socket:
        socket.send("{not json")
        assert valid(hear(socket))["payload"]["error_code"] == 5003
        say(socket, registration("socket-9"))
        assert hear(socket)["payload"]["error_context"]["token_status"] == "mismatch"
        say(socket, reply_to(request(), "error", {"error_code": 5001, "error_message": "x"}, "infra"))
        assert hear(socket)["payload"]["error_code"] == 5002, "not registered yet"


@requirement("CH-101")
def test_a_token_that_is_revoked_closes_its_socket_at_once(exchange: Running) -> None:
    with opened(exchange, new_token(exchange, "socket-3")) as socket:
        say(socket, registration("socket-3"))
        hear(socket)
        tokens = exchange.request("GET", "/v1/tokens")[1]["tokens"]
        (token_id,) = [token["id"] for token in tokens if token["agent"] == "socket-3"]
        exchange.request("DELETE", f"/v1/tokens/{token_id}")
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(WAIT_S)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1008


def test_a_lost_socket_is_not_the_end_of_the_work(exchange: Running) -> None:
    token = new_token(exchange, "socket-4")
    with opened(exchange, token) as socket:
        say(socket, registration("socket-4"))
        hear(socket)
        call = calling(exchange, "socket-4/run")
        work = hear(socket)
    with opened(exchange, token) as socket:
        say(socket, registration("socket-4"))
        hear(socket)
        again = hear(socket)
        assert again["request_id"] == work["request_id"]
        result = {"task_id": again["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done"}
        say(socket, {**reply_to(again, "work_result", result, "infra"), "message_id": str(uuid.uuid4())})
        assert call.result(WAIT_S)["status"] == "succeeded"


def test_an_orchestrator_may_use_it_as_well(exchange: Running) -> None:
    with opened(exchange, new_token(exchange, "socket-boss", "orchestrator")) as socket:
        say(socket, request("nothing"))
        assert valid(hear(socket))["payload"]["error_code"] == 5006


def test_the_socket_of_a_revoked_token_hears_nothing_of_what_the_next_token_asked_for(exchange: Running) -> None:
    worker = RawAgent(exchange, "com.test.slow")
    worker.hello("tools")
    worker.register({"name": "slow", "side_effects": False})
    first = exchange.request("POST", "/v1/tokens", {"edge": "chiffon", "agent": "boss-7", "type": "orchestrator"})[1]
    with opened(exchange, first["token"]) as old:
        say(old, reply_to(request(), "error", {"error_code": 5001, "error_message": "x"}, "orchestrator"))
        assert exchange.request("DELETE", f"/v1/tokens/{first['id']}")[0] == 200
        with opened(exchange, new_token(exchange, "boss-7", "orchestrator")) as new:
            say(new, request(work_type="slow"))
            call = worker.wait_for("core.tool.call")
            assert valid(hear(new))["type"] == "work_status"
            result = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": {"x": 1}}
            worker.send("agent.tool.result", result, request_id=call["request_id"])
            found = hear(new)
            while found["type"] == "work_status":
                found = hear(new)
            assert (found["type"], found["payload"]["status"]) == ("work_result", "success")
            with pytest.raises(ConnectionClosed):
                old.recv(WAIT_S)
