"""What an OSSA agent does for others: order, repeats, acknowledgments, and once despite a crash."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ossa_messages import new_identity
from tests.unit.sdk.ossa_kit import WAIT_S, ScriptedExchange, in_no_time, settled, until, world
from trunkline.edges.ossa import messages
from trunkline.sdk import OssaError, OssaMessage
from trunkline.testing.memory import MemoryExchange

REQUEST, EVENT, RESPONSE, ERROR = messages.REQUEST, messages.EVENT, messages.RESPONSE, messages.ERROR


def replies(exchange: ScriptedExchange) -> list[tuple[str, str | None, Any]]:
    return [
        (one.type, one.correlation_id, one.error.code if one.error else msgspec.json.decode(one.payload))
        for _, one in exchange.received
        if one.type in {RESPONSE, ERROR}
    ]


def test_those_of_one_correlation_run_one_after_the_other_and_others_beside_them() -> None:
    exchange, running, most = ScriptedExchange(), [], []

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle("work")
        async def _work(request: OssaMessage) -> str:
            running.append(request.payload)
            most.append(list(running))
            await asyncio.sleep(5 - request.payload)
            running.remove(request.payload)
            return "done"

        async with alice.connected():
            for number, thread in ((1, "c"), (2, "c"), (3, "d")):
                exchange.send(REQUEST, "work", number, qos=2, correlation_id=thread)
            await asyncio.sleep(20)

    in_no_time(main())
    assert most == [[1], [1, 3], [2]]
    assert [thread for _, thread, _ in replies(exchange)] == ["d", "c", "c"]


def test_with_one_at_a_time_the_most_urgent_goes_first() -> None:
    exchange, order = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent(concurrency=1)

        @alice.handle("work")
        async def _work(request: OssaMessage) -> None:
            order.append(request.payload)
            await asyncio.sleep(1)

        async with alice.connected():
            exchange.send(REQUEST, "work", "first")
            await settled()
            for priority in (9, 0, 5):
                exchange.send(REQUEST, "work", priority, priority=priority)
            await asyncio.sleep(10)

    in_no_time(main())
    assert order == ["first", 0, 5, 9]


def test_a_repeat_is_answered_with_the_very_same_reply_and_another_content_is_refused(tmp_path: Path) -> None:
    exchange, runs = ScriptedExchange(), []

    def agent() -> Any:
        alice = exchange.agent(inbox=tmp_path / "inbox.sqlite")

        @alice.handle("work")
        async def _work(request: OssaMessage) -> int:
            runs.append(request.payload)
            await asyncio.sleep(1)
            return len(runs)

        return alice

    async def main() -> None:
        async with agent().connected():
            sent = exchange.send(REQUEST, "work", "x", qos=2, correlation_id="c")
            await settled()
            exchange.say(sent)  # while it runs
            await asyncio.sleep(2)
            exchange.say(sent)
            await asyncio.sleep(2)
        async with agent().connected():
            exchange.say(sent)
            await asyncio.sleep(2)
            exchange.send(REQUEST, "work", "y", qos=2, correlation_id="c", message_id=sent.message_id)
            await asyncio.sleep(2)

    in_no_time(main())
    assert runs == ["x"]
    found = [one for _, one in exchange.received if one.type in {RESPONSE, ERROR}]
    assert [one.type for one in found] == [RESPONSE, RESPONSE, RESPONSE, ERROR]
    assert found[0] == found[1] == found[2]
    assert found[3].error is not None
    assert found[3].error.code == 400


def test_a_failure_is_kept_unless_a_later_attempt_may_go_well() -> None:
    exchange, runs = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle("work")
        async def _work(request: OssaMessage) -> None:
            runs.append(request.payload)
            raise OssaError(request.payload, "no")

        async with alice.connected():
            for code in (503, 400):
                sent = exchange.send(REQUEST, "work", code, qos=2)
                await asyncio.sleep(1)
                exchange.say(sent)
                await asyncio.sleep(1)

    in_no_time(main())
    assert runs == [503, 503, 400]
    assert [code for _, _, code in replies(exchange)] == [503, 503, 400, 400]


def test_what_cannot_be_sent_back_is_a_failure_of_the_agent() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle("work")
        async def _work(request: OssaMessage) -> Any:
            return {"big": "x" * 1_100_000, "odd": object()}[request.payload]

        async with alice.connected():
            for what in ("big", "odd"):
                exchange.send(REQUEST, "work", what, correlation_id=what)
            await asyncio.sleep(1)

    in_no_time(main())
    assert sorted(replies(exchange)) == [(ERROR, "big", 500), (ERROR, "odd", 500)]


def test_an_expired_request_is_answered_with_408_and_an_unknown_action_with_404() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle("work")
        async def _work(_: OssaMessage) -> None:
            raise AssertionError("it has expired")

        async with alice.connected():
            exchange.send(REQUEST, "work", expires_at="2026-01-01T00:00:00Z", correlation_id="late")
            exchange.send(REQUEST, "other", correlation_id="unknown")
            await asyncio.sleep(1)

    in_no_time(main())
    assert sorted(replies(exchange)) == [(ERROR, "late", 408), (ERROR, "unknown", 404)]


def test_an_event_that_nobody_subscribed_to_yet_is_not_acknowledged() -> None:
    exchange, heard = ScriptedExchange(), []

    async def main() -> None:
        async with exchange.agent().connected() as alice:
            sent = exchange.send(EVENT, "event", 1, topic="t", qos=1)
            await asyncio.sleep(1)
            assert not exchange.of(messages.ACK)
            await alice.subscribe("t", lambda event: heard.append(event.payload), qos=1)
            exchange.say(sent)
            async with asyncio.timeout(WAIT_S):
                while not exchange.of(messages.ACK):  # noqa: ASYNC110  (a plain handler runs in a thread)
                    await asyncio.sleep(0.001)

    asyncio.run(main())
    assert heard == [1]


# --- encryption -------------------------------------------------------------------------------------------------------


async def test_a_sensitive_request_and_its_reply_are_encrypted_and_handlers_see_them_open(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob")

        @bob.handle("keep", side_effects=False)
        async def _keep(request: OssaMessage) -> dict[str, Any]:
            return {"sealed": request.is_sealed, "got": request.payload}

        heard: list[OssaMessage] = []
        async with bob.connected(), here.agent("alice").connected() as alice:
            frames = seen_frames(alice)
            found = await alice.request("bob", "keep", {"pin": "planted-4711"}, sensitive=True)
            assert (found.payload, found.is_sealed) == ({"sealed": True, "got": {"pin": "planted-4711"}}, True)
            plain = await alice.request("bob", "keep", {"pin": 1})
            assert (plain.payload["sealed"], plain.is_sealed) == (False, False)
            await bob.subscribe("secrets", heard.append, qos=1)
            await alice.publish("secrets", {"pin": "planted-4711"}, sensitive=True, qos=1)
            await until(lambda: heard, "the event comes")
            assert (heard[0].payload, heard[0].is_sealed) == ({"pin": "planted-4711"}, True)
        assert len(frames) >= 3
        assert not any("planted-4711" in frame for frame in frames)


def seen_frames(agent: Any) -> list[str]:
    """What an agent sends from here on."""
    connection = agent._running().connection
    socket, frames = connection._socket, []
    send = socket.send

    async def recorded(text: str) -> None:
        frames.append(text)
        await send(text)

    socket.send = recorded
    return frames


def test_a_payload_that_cannot_be_opened_is_refused_with_400() -> None:
    exchange = ScriptedExchange()

    async def main() -> None:
        async with exchange.agent().connected():
            exchange.send(REQUEST, "work", {"$encrypted": "e30.e30.e30.e30.e30"}, correlation_id="c")
            await asyncio.sleep(1)

    in_no_time(main())
    assert replies(exchange) == [(ERROR, "c", 400)]


# --- once, despite a crash --------------------------------------------------------------------------------------------

AGENT = """
import asyncio, json, os, sqlite3, sys
from trunkline.sdk import OssaAgent

url, home, identity, inbox, how = sys.argv[1:]
agent = OssaAgent(json.loads(identity), url=url, home=home, inbox=inbox)

def note(event):
    with open(inbox + ".runs", "a") as file:
        file.write(f"{how} {event.payload}\\n")
    event.also("insert into notes values (?)", event.payload)

async def main():
    with sqlite3.connect(inbox) as db:
        db.execute("create table if not exists notes (text text)")
    agent.subscribe("notes", note, qos=2, durable=True)
    async with agent.connected():
        connection = agent._running().connection
        send = connection.send_bytes

        async def dies(data):
            if b"acknowledgment" in data:
                os.kill(os.getpid(), 9)
            await send(data)

        if how == "killed":
            connection.send_bytes = dies
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_handler_runs_once_though_the_agent_was_killed_before_it_could_acknowledge(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
        keys, inbox = new_identity(here.exchange, "bob"), tmp_path / "inbox.sqlite"

        async def start(how: str) -> asyncio.subprocess.Process:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(tmp_path / "agent.py"),
                *(here.url, str(here.home), msgspec.json.encode(keys).decode(), str(inbox), how),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert process.stdout is not None
            async with asyncio.timeout(2 * WAIT_S):
                assert await process.stdout.readline() == b"ready\n"
            return process

        async with here.agent("alice").connected() as alice:
            first = await start("killed")
            await alice.publish("notes", "milk", qos=2)
            async with asyncio.timeout(WAIT_S):
                assert await first.wait() == -9
            second = await start("alive")
            try:
                await until(lambda: not owed(here.exchange), "the event is acknowledged")
            finally:
                second.kill()
                await second.wait()
        assert (tmp_path / "inbox.sqlite.runs").read_text() == "killed milk\n"
        with sqlite3.connect(inbox) as db:
            assert db.execute("select text from notes").fetchall() == [("milk",)]
        db.close()


def owed(exchange: MemoryExchange) -> set[tuple[int, str]]:
    return exchange.hub.topics.owed_to_durable()


@pytest.mark.parametrize("action", ["a b", "", "x" * 65])
def test_an_action_has_a_name_that_can_be_a_tools(action: str) -> None:
    alice = ScriptedExchange().agent()
    with pytest.raises(ValueError, match="no name for an action"):
        alice.handle(action)
    alice.handle("work")(lambda _: None)
    with pytest.raises(ValueError, match="two actions"):
        alice.handle("Work")
