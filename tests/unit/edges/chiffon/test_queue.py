"""The queue's rim on a real NATS server, with everything else in this process."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.requirements.test_chiffon_queue import Broker
from tests.unit.edges.chiffon.kit import Kit, reply_to, request, tool, valid
from trunkline.edges.background import Background
from trunkline.edges.chiffon import subjects
from trunkline.edges.chiffon.queue import Queue
from trunkline.edges.chiffon.translate import EDGE
from trunkline.entries import CallAccepted
from trunkline.model import Health, Status

pytestmark = pytest.mark.slow


@asynccontextmanager
async def joined(folder: Path, kit: Kit) -> AsyncIterator[tuple[Queue, Any]]:
    """A queue of the kit's edge, and another client of its broker."""
    broker = Broker(folder).start()
    background = Background(kit.exchange.feed)
    queue = Queue(kit.peers, background, broker.url)
    queue.start()
    connection = await nats.connect(broker.url)
    try:
        await until(lambda: queue.is_connected)
        yield queue, connection
    finally:
        await connection.close()
        await background.stop()
        await queue.stop()
        broker.kill()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (what is waited for rings no bell)
            await asyncio.sleep(0.01)


async def register(kit: Kit, connection: Any, agent: str = "infra-1") -> dict[str, Any]:
    fields = {"agent_id": agent, "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"]}
    body = json.dumps({**fields, "auth_token": kit.token(agent, "infra").decode()}).encode()
    async with asyncio.timeout(20):
        while True:
            try:
                answer = await connection.request(subjects.REGISTER, body, timeout=10)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.02)
            else:
                found: dict[str, Any] = json.loads(answer.data)
                return found


async def empty(connection: Any) -> None:
    """Bounded wait until everything is acknowledged."""
    js = connection.jetstream()
    async with asyncio.timeout(20):
        while (await js.stream_info(subjects.STREAM)).state.messages:  # noqa: ASYNC110  (a stream rings no bell)
            await asyncio.sleep(0.02)


async def beat(kit: Kit, connection: Any) -> Any:
    """A sign of life."""
    body = json.dumps({"auth_token": kit.token("infra-1", "infra").decode()}).encode()
    return json.loads((await connection.request(subjects.HEARTBEAT, body, timeout=10)).data)


async def fetch(connection: Any) -> tuple[Any, dict[str, Any]]:
    inbox = await subjects.consumer(connection.jetstream(), subjects.work("infra", "infra-1"), "test")
    (message,) = await inbox.fetch(1, timeout=10)
    content = json.loads(message.data)
    assert content.pop("auth_token")
    await message.ack()
    return message, valid(content)


async def publish(kit: Kit, connection: Any, message: dict[str, Any], agent: str = "infra-1") -> None:
    signed = {**message, "auth_token": kit.token(agent, "infra").decode()}
    await connection.jetstream().publish(subjects.REPLIES, json.dumps(signed).encode())


async def test_work_goes_out_and_its_result_comes_in_and_is_acknowledged(tmp_path: Path) -> None:
    kit = Kit()
    async with joined(tmp_path, kit) as (_, connection):
        assert (await register(kit, connection))["protocol_version"] == "1.0"
        called = kit.call("infra-1/run", {"x": 1})
        _, work = await fetch(connection)
        result = {"task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done"}
        await publish(kit, connection, reply_to(work, "work_result", result, "infra"))
        await until(lambda: called.answer)
        assert called.outcome.status is Status.SUCCEEDED
        await empty(connection)
        assert await beat(kit, connection) == {"registered": True}


async def test_a_message_from_one_who_has_to_register_first_comes_again(tmp_path: Path) -> None:
    kit = Kit()
    async with joined(tmp_path, kit) as (_, connection):
        await publish(
            kit, connection, reply_to(request(), "error", {"error_code": 5001, "error_message": "x"}, "infra")
        )
        assert kit.notices() == []
        await register(kit, connection)
        await until(kit.notices)
        assert kit.notices() == ["chiffon.error"], "it was kept, and taken once its sender was known"


async def test_what_cannot_be_taken_is_a_dead_letter(tmp_path: Path) -> None:
    kit = Kit()
    async with joined(tmp_path, kit) as (_, connection):
        await register(kit, connection)
        js = connection.jetstream()
        await js.publish(subjects.REPLIES, b"[]")
        await js.publish(subjects.REPLIES, json.dumps({"auth_token": 5}).encode())
        await publish(kit, connection, {"from_agent": "infra"})
        await until(lambda: len(kit.notices()) == 3)
        found = [json.loads((await js.get_msg(subjects.DEAD_STREAM, seq)).data) for seq in (1, 2, 3)]
        assert sorted(letter["reason"][:4] for letter in found) == ["5003", "5003", "5004"]
        _, error = await fetch(connection)
        assert error["payload"]["error_context"]["field_name"] == "protocol_version"


async def test_a_health_check_goes_by_the_queue_and_silence_is_an_answer_too(tmp_path: Path) -> None:
    kit = Kit(timeout_s=0.2)
    async with joined(tmp_path, kit) as (_, connection):
        await register(kit, connection)
        agent = kit.exchange.hub.registry.agents["infra-1"]
        kit.advance(15.1)
        _, check = await fetch(connection)
        assert check["payload"]["work_type"] == "health_check"
        kit.advance(0.3)
        assert agent.health is Health.SILENT
        await beat(kit, connection)
        kit.advance(15.1)
        _, check = await fetch(connection)
        context = {"work_type_requested": "health_check", "supported_types": []}
        error = {"error_code": 5006, "error_message": "x", "error_context": context}
        await publish(kit, connection, reply_to(check, "error", error, "infra"))
        await empty(connection)
        kit.advance(0.3)
        assert agent.health is Health.OK


async def test_other_orchestrators_are_answered_on_subjects_of_their_own(tmp_path: Path) -> None:
    kit = Kit()
    worker = kit.offer("com.a", tool("com.a/deploy"))
    async with joined(tmp_path, kit) as (_, connection):
        js = connection.jetstream()
        signed = {**request("deploy"), "auth_token": kit.token("boss", "orchestrator").decode()}
        await js.publish(subjects.work("infra", "trunkline"), json.dumps(signed).encode())
        await until(lambda: worker.delivered)
        worker.finish({"ok": True})
        inbox = await subjects.consumer(js, subjects.reply("boss"), "boss")
        heard = []
        while not heard or heard[-1]["type"] != "work_result":
            for message in await inbox.fetch(1, timeout=10):
                heard.append(json.loads(message.data))
                await message.ack()
        assert [message["type"] for message in heard] == ["work_status", "work_result"]
        nothing = {**signed, "message_id": str(uuid.uuid4()), "request_id": str(uuid.uuid4()), "type": "nonsense"}
        await js.publish(subjects.work("infra", "trunkline"), json.dumps(nothing).encode())
        (message,) = await inbox.fetch(1, timeout=10)
        assert json.loads(message.data)["payload"]["error_code"] == 5003


async def test_work_is_acknowledged_when_its_last_answer_is_with_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit()
    worker = kit.offer("com.a", tool("com.a/deploy"))
    async with joined(tmp_path, kit) as (queue, connection):
        js = connection.jetstream()
        signed = {**request("deploy"), "auth_token": kit.token("boss", "orchestrator").decode()}
        await js.publish(subjects.work("infra", "trunkline"), json.dumps(signed).encode())
        await until(lambda: worker.delivered)
        tries = []

        async def refuse(subject: str, *_: Any, **__: Any) -> None:
            tries.append(subject)
            raise nats.errors.TimeoutError

        with monkeypatch.context() as away:
            away.setattr(queue._js, "publish", refuse)
            worker.finish({"ok": True})
            await until(lambda: len(tries) > 1)
            assert await unacknowledged(js) == 1, "its outcome is on record, and nobody has it"
        inbox = await subjects.consumer(js, subjects.reply("boss"), "boss")
        heard: list[str] = []
        while "work_result" not in heard:
            for message in await inbox.fetch(1, timeout=10):
                heard.append(json.loads(message.data)["type"])
                await message.ack()
        async with asyncio.timeout(20):
            while await unacknowledged(js):  # noqa: ASYNC110  (a consumer rings no bell)
                await asyncio.sleep(0.02)
    assert kit.notices() == []


async def unacknowledged(js: Any) -> int:
    """How many messages we were given and have not acknowledged."""
    found: int = (await js.consumer_info(subjects.STREAM, "trunkline-agent")).num_ack_pending
    return found


async def test_a_broker_that_is_away_is_a_failed_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.edges.chiffon.queue.PUBLISH_TIMEOUT_S", 0.3)
    kit = Kit()
    async with joined(tmp_path, kit) as (queue, connection):
        await register(kit, connection)

        async def refuse(*_: Any, **__: Any) -> None:
            raise nats.errors.TimeoutError

        monkeypatch.setattr(queue._js, "publish", refuse)
        kit.call("infra-1/run")
        await until(kit.notes)
        assert kit.notes() == ["attempt.failed"]


async def test_nobody_is_registered_by_the_queue_whose_work_would_reach_somebody_else(tmp_path: Path) -> None:
    kit = Kit()
    async with joined(tmp_path, kit) as (_, connection):
        assert (await register(kit, connection, "infra.1"))["registered"] is True
        refused = (await register(kit, connection, "infra_1"))["payload"]
        assert (refused["error_code"], refused["error_context"]["field_name"]) == (5003, "agent_id")
        assert "would reach somebody else" in refused["error_message"]
        assert [view.agent_id for view in kit.exchange.views.agents() if not view.agent_id.startswith(EDGE)] == [
            "infra.1"
        ]
        assert (await register(kit, connection, "infra.1"))["registered"] is True


async def test_nobody_is_registered_by_the_queue_under_the_name_of_the_exchange(tmp_path: Path) -> None:
    kit = Kit()
    async with joined(tmp_path, kit) as (_, connection):
        refused = (await register(kit, connection, "trunkline"))["payload"]
        assert refused["error_code"] == 5004
        assert [view.agent_id for view in kit.exchange.views.agents() if not view.agent_id.startswith(EDGE)] == []


async def test_an_orchestrator_whose_answers_would_reach_ourselves_is_not_listened_to(tmp_path: Path) -> None:
    kit = Kit()
    kit.offer("com.example.echo", tool("com.example.echo/say"))
    async with joined(tmp_path, kit) as (_, connection):
        work = {**request("say"), "auth_token": kit.token("orchestrator", "orchestrator").decode()}
        js = connection.jetstream()
        await js.publish(subjects.work("infra", "trunkline"), json.dumps(work).encode())
        await until(kit.notices)
        assert kit.notices() == ["chiffon.dead_letter"]
        assert kit.exchange.recorded(CallAccepted) == []
