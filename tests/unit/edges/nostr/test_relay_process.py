"""The embedded relay as a process: real ones, each on a port of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from trunkline.edges.address import Address
from trunkline.edges.background import Background
from trunkline.edges.edge import EdgeOff
from trunkline.edges.nostr import events
from trunkline.edges.nostr.client import Client
from trunkline.edges.nostr.events import Draft
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.relay import LASTING_S, Settings
from trunkline.edges.nostr.relay_process import RelayProcess
from trunkline.edges.nostr.session import Filter
from trunkline.errors import ConfigError
from trunkline.model import Now

pytestmark = pytest.mark.slow

SIGNER = Signer(bytes(31) + b"\x01")
WAIT_S = 20


class Exchange:
    """As much of one as a relay needs."""

    def now(self) -> Now:
        return Now(time.monotonic(), time.time())

    def failed(self, session: int, error: BaseException) -> None:
        raise error


@asynccontextmanager
async def running(folder: Path, port: int = 0, **changes: Any) -> AsyncIterator[RelayProcess]:
    settings = Settings("127.0.0.1", port, str(folder), (5050, 5, 7000, 31_990), (31_990,), 1000, **changes)
    background = Background(Exchange())  # type: ignore[arg-type]
    relay = RelayProcess(settings, Address("127.0.0.1", port, "nostr", "relay"), background)
    try:
        await relay.start()
        await asyncio.wait_for(relay.reached(), WAIT_S)
        relay.let_in()
        yield relay
    finally:
        await relay.stop()
        await background.stop()


async def say(connection: ClientConnection, *words: object) -> None:
    await connection.send(json.dumps(words))


async def publish(connection: ClientConnection, draft: Draft) -> tuple[bool, str]:
    event = events.signed(draft, SIGNER)
    await connection.send(b'["EVENT",%b]' % events.encoded(event), text=True)
    while True:
        words = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
        if words[0] == "OK" and words[1] == event.id:
            return words[2], words[3]


def draft(kind: int = 5050, content: str = "x", tags: tuple[tuple[str, ...], ...] = ()) -> Draft:
    return Draft(kind, content, tags, int(time.time()))


async def test_it_carries_jobs_within_bounds_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as relay, connect(relay.url) as connection:
        assert relay.url.startswith("ws://127.0.0.1:")
        assert await publish(connection, draft()) == (True, "")
        for refused in (draft(kind=1), draft(content="x" * 1001), draft(tags=(("a",),) * 257)):
            is_taken, why = await publish(connection, refused)
            assert (is_taken, why.partition(":")[0]) == (False, "blocked")


async def test_it_bears_sixty_events_a_minute_from_one_connection_and_many_more(tmp_path: Path) -> None:
    async with running(tmp_path) as relay, connect(relay.url) as connection:
        for number in range(120):
            assert await publish(connection, draft(content=str(number))) == (True, "")


async def test_a_deletion_is_passed_on_to_those_who_listen(tmp_path: Path) -> None:
    async with running(tmp_path) as relay, connect(relay.url) as connection:
        await say(connection, "REQ", "a", {"kinds": [5]})
        event = events.signed(draft(), SIGNER)
        await publish(connection, draft(kind=5, content="", tags=(("e", event.id), ("k", "5050"))))
        words = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
        assert (words[0], words[2]["tags"][0]) == ("EVENT", ["e", event.id])


async def test_it_is_started_again_at_the_same_address_with_what_it_had(tmp_path: Path) -> None:
    async with running(tmp_path) as relay:
        async with connect(relay.url) as connection:
            await publish(connection, draft(content="kept"))
        first = relay.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while not relay.restarts:  # noqa: ASYNC110  (another process is waited for)
                await asyncio.sleep(0.05)
        assert relay.pid != first
        async with connect(relay.url) as connection:
            await say(connection, "REQ", "a", {"kinds": [5050]})
            words = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
            assert words[2]["content"] == "kept"


async def test_nobody_waits_for_its_start_and_who_connects_meanwhile_is_let_in_after_the_exchange(
    tmp_path: Path,
) -> None:
    settings = Settings("127.0.0.1", 0, str(tmp_path), (5050,), (), 1000)
    background = Background(Exchange())  # type: ignore[arg-type]
    relay = RelayProcess(settings, Address("127.0.0.1", 0, "nostr", "relay"), background)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(background.stop)
        stack.push_async_callback(relay.stop)
        await relay.start()
        assert relay.state == "starting"
        stranger = asyncio.create_task(stack.enter_async_context(connect(relay.url, open_timeout=WAIT_S)))
        inner = await asyncio.wait_for(relay.reached(), WAIT_S)
        assert relay.state == "running"
        own = await stack.enter_async_context(connect(inner))
        await say(own, "REQ", "a", {"kinds": [5050]})
        assert json.loads(await asyncio.wait_for(own.recv(), WAIT_S))[0] == "EOSE"
        # It answers us, and the stranger, who was here before, still waits.
        assert not stranger.done()
        relay.let_in()
        connection = await asyncio.wait_for(stranger, WAIT_S)
        await publish(connection, draft(content="said at once"))
        assert json.loads(await asyncio.wait_for(own.recv(), WAIT_S))[2]["content"] == "said at once"


async def test_it_says_why_it_does_not_start_and_is_tried_again(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    data.mkdir()
    settings = Settings("127.0.0.1", 0, str(tmp_path), (5050,), (), 1000)
    background = Background(Exchange())  # type: ignore[arg-type]
    relay = RelayProcess(settings, Address("127.0.0.1", 0, "nostr", "relay"), background)
    try:
        await relay.start()
        async with asyncio.timeout(WAIT_S):
            while not relay.problem:  # noqa: ASYNC110  (another process is waited for)
                await asyncio.sleep(0.05)
        assert relay.state == f"does not start: {relay.problem}"
        data.rmdir()
        await asyncio.wait_for(relay.reached(), WAIT_S)
        assert (relay.state, relay.problem, relay.restarts) == ("running", "", 0)
    finally:
        await relay.stop()
        await background.stop()


async def test_it_is_gone_after_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as relay:
        pid = relay.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_a_taken_address_turns_the_edge_off_or_is_an_error_if_it_was_chosen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings("127.0.0.1", port, str(tmp_path), (5050,), (), 1000)
        for is_given, expected in ((False, EdgeOff), (True, ConfigError)):
            address = Address("127.0.0.1", port, "nostr", "relay", is_given=is_given)
            relay = RelayProcess(settings, address, Background(Exchange()))  # type: ignore[arg-type]
            with pytest.raises(expected, match="relay"):
                await relay.start()
            await relay.stop()


async def test_our_client_says_who_it_is_to_a_relay_that_asks(tmp_path: Path) -> None:
    async with running(tmp_path, auth=True) as relay:
        feed = Exchange()
        background = Background(feed)  # type: ignore[arg-type]
        client = Client(feed, background, SIGNER)  # type: ignore[arg-type]
        told: list[events.Event] = []
        client.subscribe("a", lambda now: [Filter(kinds=(5050,))], lambda event, _: told.append(event))
        client.add(relay.url)
        event, taken = client.publish(draft(content="known"))
        assert await asyncio.wait_for(taken, WAIT_S)
        async with asyncio.timeout(60):
            while event not in told:  # noqa: ASYNC110  (another process is waited for)
                await asyncio.sleep(0.05)
        await background.stop()


async def found(connection: ClientConnection, kind: int) -> set[str]:
    """The contents of all events of a kind that it has."""
    await say(connection, "REQ", "all", {"kinds": [kind]})
    contents = set()
    while True:
        words = json.loads(await asyncio.wait_for(connection.recv(), WAIT_S))
        if words[0] == "EOSE":
            await say(connection, "CLOSE", "all")
            return contents
        if words[0] == "EVENT":
            contents.add(words[2]["content"])


async def test_announcements_that_nobody_repeats_are_removed_after_a_month(tmp_path: Path) -> None:
    now = int(time.time())
    kept = {"new": now, "of last week": now - 700_000, "old": now - LASTING_S - 100}
    async with running(tmp_path) as relay, connect(relay.url) as connection:
        # What is there is looked through at the start; this comes after it.
        await asyncio.wait_for(found(connection, 31_990), WAIT_S)
        for name, created_at in kept.items():
            assert (await publish(connection, Draft(31_990, name, (("d", name),), created_at)))[0]
    async with running(tmp_path) as relay, connect(relay.url) as connection, asyncio.timeout(WAIT_S):
        while "old" in await found(connection, 31_990):  # noqa: ASYNC110  (another process is waited for)
            await asyncio.sleep(0.05)
        assert await found(connection, 31_990) == {"new", "of last week"}
