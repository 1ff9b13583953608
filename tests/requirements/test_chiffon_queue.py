"""Chiffon over a real NATS JetStream server, and what happens when the broker, the exchange or an agent is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import NotFoundError

from tests.requirement import requirement
from tests.running import WAIT_S, Running, calling, leash, running, wait_until
from tests.unit.edges.chiffon.kit import reply_to, request, valid
from trunkline.edges.chiffon import subjects

SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"


def free_port() -> int:
    """A port that nobody has, and that nobody gets who asks the system for any: those are above 32767."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class Broker:
    """A NATS server of our own, with its memory on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Broker:
        words = [str(SERVER), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "js")]
        self.process = subprocess.Popen(
            [*leash(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listens, "the broker")
        return self

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the broker ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def hang(self) -> None:
        """Its connections stay open, and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)


class Scene:
    """A broker, an exchange on a port that stays, and agents in processes of their own."""

    def __init__(self, folder: Path, *, with_broker: bool = True, timeout_s: float = 3.0) -> None:
        self.folder = folder
        self.broker = Broker(folder).start() if with_broker else None
        config = f"[chiffon]\ntimeout_s = {timeout_s}\n"
        if self.broker is not None:
            config += f'nats = "{self.broker.url}"\n'
        config += '[[policy.rule]]\ncaller = "chiffon:*"\ntool = "*"\ndecision = "allow"\n'
        env = {"TRUNKLINE_HTTP_LISTEN": f"127.0.0.1:{free_port()}"}
        self.exchange = Running(folder / "home", config, env=env).start()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._tokens: dict[str, str] = {}

    def token(self, agent: str, kind: str = "infra") -> str:
        if agent not in self._tokens:
            body = {"edge": "chiffon", "agent": agent, "type": kind}
            self._tokens[agent] = str(self.exchange.request("POST", "/v1/tokens", body)[1]["token"])
        return self._tokens[agent]

    def worker(self, agent: str = "worker") -> subprocess.Popen[bytes]:
        """The agent of ``chiffon_worker.py``, by the queue if there is one."""
        folder = self.folder / agent
        folder.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "WORKER_FOLDER": str(folder),
            "WORKER_ID": agent,
            "CHIFFON_URL": self.exchange.ready["http"] if self.broker is None else self.broker.url,
            "CHIFFON_TOKEN": self.token(agent),
        }
        script = Path(__file__).with_name("chiffon_worker.py")
        process = subprocess.Popen([*leash(), sys.executable, str(script)], env=env, stdin=subprocess.DEVNULL)
        self._workers.append(process)
        self.exchange.wait_tool(f"{agent}/count")
        return process

    def runs(self, agent: str = "worker") -> list[str]:
        path = self.folder / agent / "runs"
        return path.read_text().split() if path.exists() else []

    def go(self, name: str, agent: str = "worker") -> None:
        (self.folder / agent / f"go-{name}").touch()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait(WAIT_S)
        if self.exchange.process is not None and self.exchange.process.poll() is None:
            self.exchange.kill()
        if self.broker is not None:
            self.broker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene(Path(tempfile.mkdtemp(prefix="tl-")))
    yield found
    found.close()


@pytest.fixture
def http_scene() -> Iterator[Scene]:
    found = Scene(Path(tempfile.mkdtemp(prefix="tl-")), with_broker=False)
    yield found
    found.close()


def outcome_of(scene: Scene, call_id: str) -> dict[str, Any]:
    """Bounded wait for the outcome of a call."""

    def find() -> Any:
        status, body = scene.exchange.request("GET", f"/v1/calls/{call_id}")
        return body if status == 200 and body["status"] in {"succeeded", "failed", "canceled", "unknown"} else None

    found: dict[str, Any] = wait_until(find, f"the outcome of {call_id}", 40)
    return found


def begin(scene: Scene, name: str, tool: str = "worker/count", **fields: Any) -> str:
    """A call that is under way, seen by the agent; its id."""
    # The tool of a type comes a moment after that of the agent.
    scene.exchange.wait_tool(tool)
    answer = scene.exchange.call(tool, {"name": name}, wait=False, **fields)
    assert answer["http"] == 202, answer
    wait_until(lambda: name in scene.runs(), f"the run of {name}")
    return str(answer["call_id"])


# --- scenarios --------------------------------------------------------------------------------------------------------


@requirement("CH-103", "CH-001")
def test_work_by_the_queue_comes_back_by_the_queue(scene: Scene) -> None:
    scene.worker()
    scene.go("a")
    answer = scene.exchange.call("worker/count", {"name": "a"})
    assert (answer["status"], answer["output"]["output"]) == ("succeeded", "ran a")
    by_type = scene.exchange.call("chiffon.infra/count", {"name": "a"})
    assert by_type["status"] == "succeeded"
    assert scene.runs() == ["a", "a"]


@requirement("CH-109")
def test_a_broker_that_is_killed_and_restarted_in_mid_work_loses_nothing_and_runs_nothing_twice(scene: Scene) -> None:
    assert scene.broker is not None
    scene.worker()
    call_id = begin(scene, "a")
    scene.broker.kill()
    scene.go("a")
    scene.broker.start()
    found = outcome_of(scene, call_id)
    assert (found["status"], found["output"]["output"]) == ("succeeded", "ran a")
    assert scene.runs() == ["a"]
    scene.go("b")
    assert scene.exchange.call("worker/count", {"name": "b"})["status"] == "succeeded"


@requirement("CH-109", "CH-080")
@pytest.mark.parametrize("tool", ["worker/count", "chiffon.infra/count"])
def test_an_exchange_that_is_killed_in_mid_work_loses_nothing_and_runs_nothing_twice(scene: Scene, tool: str) -> None:
    scene.worker()
    call_id = begin(scene, "a", tool)
    scene.exchange.kill()
    scene.go("a")
    scene.exchange.start()
    found = outcome_of(scene, call_id)
    assert (found["status"], found["output"]["output"]) == ("succeeded", "ran a")
    assert scene.runs() == ["a"]


@requirement("CH-109", "CH-080")
def test_the_same_by_http(http_scene: Scene) -> None:
    http_scene.worker()
    call_id = begin(http_scene, "a")
    http_scene.exchange.kill()
    http_scene.exchange.start()
    http_scene.go("a")
    found = outcome_of(http_scene, call_id)
    assert (found["status"], found["output"]["output"]) == ("succeeded", "ran a")
    assert http_scene.runs() == ["a"]


def test_an_agent_that_is_killed_in_mid_work_says_so_when_it_is_back_and_does_not_run_it_again(scene: Scene) -> None:
    worker = scene.worker()
    call_id = begin(scene, "a")
    worker.kill()
    worker.wait(WAIT_S)
    scene.worker()
    found = outcome_of(scene, call_id)
    assert found["status"] == "failed"
    assert found["error"]["details"]["exit_code"] == 137
    assert found["error"]["details"]["x_custom_fields"]["outcome"] == "unknown"
    assert scene.runs() == ["a"]


def test_a_broker_that_is_away_at_the_start_is_waited_for() -> None:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    broker = Broker(folder)
    with running(folder / "home", f'[chiffon]\nnats = "{broker.url}"\n') as exchange:
        assert exchange.request("GET", "/healthz")[0] == 200
        broker.start()
        wait_until(lambda: "connected to the broker" in exchange.said(), "the broker")
        broker.kill()
        wait_until(lambda: "is away" in exchange.said(), "the end of the broker")
        broker.start()
        wait_until(lambda: "is back" in exchange.said(), "the broker again")
    broker.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("way", ["gone", "silent"])
def test_an_exchange_stops_in_order_while_the_broker_is_away_and_a_call_waits_for_it(scene: Scene, way: str) -> None:
    assert scene.broker is not None
    scene.worker()
    begin(scene, "a")
    if way == "silent":
        scene.broker.hang()
    else:
        scene.broker.kill()
    # To be sent while nobody takes it.
    waiting = scene.exchange.call("worker/count", {"name": "b"}, wait=False)
    assert waiting["http"] == 202
    assert scene.exchange.stop() == 0
    said = scene.exchange.said()
    assert "Traceback" not in said
    assert "a defect" not in said
    assert "2 calls will go on at the next start" in said


# --- an agent made of a NATS client and the specification -------------------------------------------------------------


@asynccontextmanager
async def connected(scene: Scene) -> AsyncIterator[Any]:
    assert scene.broker is not None
    connection = await nats.connect(scene.broker.url)
    try:
        yield connection
    finally:
        await connection.close()


async def registered(scene: Scene, connection: Any, agent: str, kind: str = "infra") -> dict[str, Any]:
    body = {
        "agent_id": agent,
        "agent_type": kind,
        "supported_versions": ["1.0"],
        "work_types": ["run"],
        "auth_token": scene.token(agent, kind),
    }
    for _ in range(100):
        try:
            answer = await connection.request(subjects.REGISTER, json.dumps(body).encode(), timeout=WAIT_S)
            break
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.05)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def fetch(js: Any, subject: str, name: str) -> tuple[Any, dict[str, Any]]:
    """The next message for a consumer, and what it holds."""
    inbox = await subjects.consumer(js, subject, name)
    (message,) = await inbox.fetch(1, timeout=WAIT_S)
    return message, json.loads(message.data)


async def dead_letters(js: Any, at_least: int = 1) -> list[dict[str, Any]]:
    """Bounded wait until there are so many."""
    for _ in range(400):
        try:
            info = await js.stream_info(subjects.DEAD_STREAM)
            if info.state.messages >= at_least:
                numbers = range(info.state.first_seq, info.state.last_seq + 1)
                return [json.loads((await js.get_msg(subjects.DEAD_STREAM, seq)).data) for seq in numbers]
        except NotFoundError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("no dead letter")


@requirement("CH-103", "CH-012", "CH-101")
async def test_a_raw_agent_by_the_queue_duplicates_included(scene: Scene) -> None:
    async with connected(scene) as connection:
        answer = await registered(scene, connection, "raw")
        js = connection.jetstream()
        call = calling(scene.exchange, "raw/run", {"x": 1})
        message, work = await fetch(js, subjects.work("infra", "raw"), "raw-test")
        assert work.pop("auth_token") == answer["orchestrator_token"]
        assert message.headers["Nats-Msg-Id"] == work["message_id"]
        valid(work)
        payload = {"task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done"}
        result = {**reply_to(work, "work_result", payload, "infra"), "auth_token": scene.token("raw")}
        for message_id in (result["message_id"], result["message_id"], str(uuid.uuid4())):
            body = json.dumps({**result, "message_id": message_id}).encode()
            await js.publish(subjects.REPLIES, body, headers={"Nats-Msg-Id": message_id})
        await message.ack()
        outcome = await asyncio.wrap_future(call)
        assert (outcome["status"], outcome["output"]["output"]) == ("succeeded", "done")
        noted = await asyncio.to_thread(
            lambda: scene.exchange.wait_entry("call.noted", call_id=outcome["call_id"], note="result.ignored")
        )
        assert noted, "the third is not a copy for the broker; the hub knows it"


@requirement("CH-103", "CH-060", "CH-100", "CH-104")
async def test_a_message_without_a_good_token_is_a_dead_letter_without_its_token(scene: Scene) -> None:
    async with connected(scene) as connection:
        await registered(scene, connection, "raw")
        js = connection.jetstream()
        for number, token in enumerate((None, "f" * 32), start=1):
            message = reply_to(request(), "error", {"error_code": 5001, "error_message": "x"}, "infra")
            if token is not None:
                message["auth_token"] = token
            await js.publish(subjects.REPLIES, json.dumps(message).encode())
            (*_, letter) = await dead_letters(js, number)
            assert letter["reason"].startswith("5004")
            assert "auth_token" not in letter["message"]
            assert "f" * 32 not in json.dumps(letter)
        message = reply_to(request(), "error", {"error_code": 5001, "error_message": f"with {'f' * 32}"}, "infra")
        await js.publish(subjects.REPLIES, json.dumps({**message, "auth_token": "f" * 32}).encode())
        (*_, letter) = await dead_letters(js, 3)
        assert letter["message"]["payload"]["error_message"] == "with [masked:auth_token]"
        await js.publish(subjects.REPLIES, b"{not json")
    await asyncio.to_thread(lambda: scene.exchange.wait_entry("notice", code="chiffon.dead_letter"))


@requirement("CH-101", "CH-059")
async def test_a_known_agent_hears_what_was_wrong_with_its_message(scene: Scene) -> None:
    async with connected(scene) as connection:
        await registered(scene, connection, "raw")
        js = connection.jetstream()
        message = reply_to(request(), "work_status", {"task_id": str(uuid.uuid4())}, "infra")
        await js.publish(subjects.REPLIES, json.dumps({**message, "auth_token": scene.token("raw")}).encode())
        _, error = await fetch(js, subjects.work("infra", "raw"), "raw-test")
        assert error.pop("auth_token")
        assert valid(error)["payload"]["error_code"] == 5003
        assert error["x_custom_fields"]["in_reply_to"] == message["message_id"]
        assert len(await dead_letters(js)) == 1


@requirement("CH-060")
async def test_registration_by_the_queue_wants_a_token_too(scene: Scene) -> None:
    async with connected(scene) as connection:
        await registered(scene, connection, "raw")
        body = {"agent_id": "raw", "agent_type": "infra", "supported_versions": ["1.0"], "auth_token": "0" * 32}
        answer = await connection.request(subjects.REGISTER, json.dumps(body).encode(), timeout=WAIT_S)
        assert valid(json.loads(answer.data))["payload"]["error_code"] == 5004
        answer = await connection.request(subjects.HEARTBEAT, b"{}", timeout=WAIT_S)
        assert json.loads(answer.data) == {"registered": False}


@requirement("CH-001", "CH-078", "CH-080")
async def test_trunkline_as_an_agent_by_the_queue(scene: Scene) -> None:
    scene.worker()
    scene.go("a")
    async with connected(scene) as connection:
        js = connection.jetstream()
        work = request("count", {"name": "a"})
        heard: list[dict[str, Any]] = []
        for count in (1, 2):
            signed = {**work, "message_id": str(uuid.uuid4()), "auth_token": scene.token("boss", "orchestrator")}
            await js.publish(subjects.work("infra", "trunkline"), json.dumps(signed).encode())
            inbox = await subjects.consumer(js, subjects.reply("boss"), "boss-test")
            while [message["type"] for message in heard].count("work_result") < count:
                for message in await inbox.fetch(10, timeout=WAIT_S):
                    content = json.loads(message.data)
                    assert content.pop("auth_token")
                    heard.append(valid(content))
                    await message.ack()
        results = [message["payload"] for message in heard if message["type"] == "work_result"]
        assert results[0] == results[1]
        assert results[0]["output"] == "ran a"
        assert {message["request_id"] for message in heard} == {work["request_id"]}
    assert scene.runs() == ["a"]


def test_stopping_while_the_broker_is_away_and_work_is_open_ends_in_good_order(scene: Scene) -> None:
    assert scene.broker is not None
    scene.worker()
    begin(scene, "a")
    scene.broker.kill()
    wait_until(lambda: "is away" in scene.exchange.said(), "the end of the broker")
    assert scene.exchange.stop() == 0
    assert "Traceback" not in scene.exchange.said()
    assert "defect" not in scene.exchange.said()
