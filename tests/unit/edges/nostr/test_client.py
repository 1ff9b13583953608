"""The client of several relays, at scripted ones that drop, repeat, lie and die."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from trunkline.edges.background import Background
from trunkline.edges.nostr import client as module
from trunkline.edges.nostr import events
from trunkline.edges.nostr.client import Bad, Client
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.session import Filter
from trunkline.model import Now

OURS, OTHER = Signer(bytes(31) + b"\x01"), Signer(bytes(31) + b"\x02")


class Clock:
    """As much of the exchange as a client needs."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def now(self) -> Now:
        return Now(time.monotonic(), time.time())

    def failed(self, session: int, error: BaseException) -> None:
        self.failures.append(error)


class ScriptedRelay:
    """A relay that says to each subscription what it is told to, and answers events as it is told to."""

    def __init__(self) -> None:
        self.sends: list[bytes] = []
        self.takes: Callable[[Any], list[Any] | None] = lambda event: ["OK", event["id"], True, ""]
        self.heard: list[Any] = []
        self.connections: set[ServerConnection] = set()
        self.server: Server
        self.port = 0

    async def start(self) -> None:
        self.server = await serve(self._talk, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        await self.server.wait_closed()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def _talk(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        try:
            async for frame in connection:
                words = json.loads(frame)
                self.heard.append(words)
                if words[0] == "REQ":
                    for data in self.sends:
                        await connection.send(b'["EVENT","%b",%b]' % (words[1].encode(), data), text=True)
                    await connection.send(json.dumps(["EOSE", words[1]]))
                if words[0] == "EVENT" and (answer := self.takes(words[1])) is not None:
                    await connection.send(json.dumps(answer))
        except ConnectionClosed:
            pass
        self.connections.discard(connection)


class Kit:
    """A client, and what it told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.background = Background(self.clock)  # type: ignore[arg-type]
        self.client = Client(self.clock, self.background, OURS)  # type: ignore[arg-type]
        self.told: list[tuple[Event, str]] = []
        self.bad: list[Bad] = []
        self.client.on_bad = self.bad.append

    def listen(self, name: str = "a", *, has_window: bool = True) -> None:
        self.client.subscribe(
            name, lambda now: [Filter(kinds=(1,))], lambda *told: self.told.append(told), has_window=has_window
        )

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  (what a relay was told is no event of ours)
                await asyncio.sleep(0.01)
        assert condition(), what


@asynccontextmanager
async def kit(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    # The waits are the same, but short: a test that waits for a relay to come back is about that it does.
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(module, "MAX_WAIT_S", 0.1)
    made = Kit()
    try:
        yield made
    finally:
        await made.background.stop()
    assert made.clock.failures == []


@asynccontextmanager
async def relay() -> AsyncIterator[ScriptedRelay]:
    made = ScriptedRelay()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def event(text: str = "", *, age_s: float = 0.0, by: Signer = OTHER) -> Event:
    return events.signed(Draft(1, text, (), int(time.time() - age_s)), by)


async def test_an_event_that_two_relays_have_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one, relay() as two:
        same = event("same")
        one.sends = [events.encoded(same), events.encoded(event("one"))]
        two.sends = [events.encoded(event("two")), events.encoded(same)]
        at.listen()
        at.client.add(one.url)
        at.client.add(two.url)
        await at.until(lambda: len(at.told) == 3 and at.bad, "three events, and a repeat")
        assert sorted(told.content for told, _ in at.told) == ["one", "same", "two"]
        assert [bad.code for bad in at.bad] == ["nostr.repeated"]


async def test_forged_old_early_and_broken_events_are_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        good = event("good")
        forged = json.loads(events.encoded(good)) | {"content": "evil"}
        resigned = json.loads(events.encoded(good)) | {"sig": event("x").sig}
        one.sends = [
            json.dumps(forged).encode(),
            json.dumps(resigned).encode(),
            events.encoded(event("old", age_s=3601)),
            events.encoded(event("early", age_s=-920)),
            b'{"id":1}',
            events.encoded(event("oldest", age_s=3590)),
            events.encoded(event("newest", age_s=-890)),
            events.encoded(good),
        ]
        at.listen()
        at.client.add(one.url)
        await at.until(lambda: len(at.told) == 3, "the good ones")
        assert [told.content for told, _ in at.told] == ["oldest", "newest", "good"]
        codes = [bad.code for bad in at.bad]
        assert codes == ["nostr.forged", "nostr.forged", "nostr.old", "nostr.old", "nostr.malformed"]


async def test_a_subscription_without_a_window_takes_old_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        one.sends = [events.encoded(event("old", age_s=90_000))]
        at.listen(has_window=False)
        at.client.add(one.url)
        await at.until(lambda: at.told, "the old one")


async def test_subscriptions_and_events_of_ours_survive_the_death_of_a_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at:
        one = ScriptedRelay()
        await one.start()
        one.takes = lambda event: None
        at.listen()
        at.client.add(one.url)
        await at.until(lambda: one.connections, "a connection")
        said, told = at.client.publish(Draft(7000, "ours", (), 1))
        await at.until(lambda: any(words[0] == "EVENT" for words in one.heard), "our event")
        await one.stop()
        assert not told.done()
        one.takes = lambda event: ["OK", event["id"], True, ""]
        one.sends = [events.encoded(event("after"))]
        one.heard.clear()
        await one.start()
        assert await asyncio.wait_for(told, 10)
        await at.until(lambda: at.told, "the subscription")
        assert [words[1]["id"] for words in one.heard if words[0] == "EVENT"] == [said.id]
        await one.stop()


async def test_one_relay_is_enough_and_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one, relay() as two:
        assert not await at.client.say(event(by=OURS))
        one.takes = lambda event: ["OK", event["id"], False, "blocked: no"]
        at.client.add(one.url)
        assert not await asyncio.wait_for(at.client.say(event("1", by=OURS)), 10)
        at.client.add(two.url)
        assert await asyncio.wait_for(at.client.say(event("2", by=OURS)), 10)
        await asyncio.wait_for(at.client.wait_quiet(), 10)


async def test_what_was_seen_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEEN", 10)
    async with kit(monkeypatch) as at, relay() as one:
        one.sends = [events.encoded(event(str(number))) for number in range(40)]
        at.listen()
        at.client.add(one.url)
        await at.until(lambda: len(at.told) == 40, "all")
        assert len(at.client._subscriptions["a"].seen) == 10


async def test_a_relay_that_is_left_is_talked_to_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        one.takes = lambda event: None
        at.client.add(one.url)
        assert await at.client.wait_any_connected(5)
        told = at.client.say(event(by=OURS))
        at.client.remove(one.url)
        assert not await asyncio.wait_for(told, 5)
        await at.until(lambda: not one.connections, "gone")
        assert at.client.relays == ()


def test_a_password_in_an_address_is_not_shown() -> None:
    assert module.shown("wss://me:secret@relay.example/x") == "wss://relay.example/x"


@pytest.mark.parametrize("error", [IndexError, ValueError, OSError, TimeoutError, RecursionError])
@pytest.mark.parametrize("place", ["told", "on_bad", "filters"])
async def test_what_a_callback_raises_costs_one_event_and_no_subscription(
    monkeypatch: pytest.MonkeyPatch, place: str, error: type[Exception]
) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        first = events.encoded(event("first"))
        # The second is a repeat, so that `on_bad` is told of one.
        one.sends = [first, first, events.encoded(event("last"))]

        def fails(*_: object) -> Any:
            raise error("planted")

        if place == "told":
            told = at.told.append
            at.client.subscribe(
                "a", lambda _: [Filter(kinds=(1,))], lambda *one: fails() if one[0].content == "first" else told(one)
            )
        else:
            at.listen()
        if place == "on_bad":
            at.client.on_bad = fails
        if place == "filters":
            at.client.subscribe("other", fails, fails)
        at.client.add(one.url)
        await at.until(lambda: any(one.content == "last" for one, _ in at.told), "what came after")
        assert len(one.connections) == 1  # it never went away
        assert await asyncio.wait_for(at.client.say(event("ours", by=OURS)), 10)
        assert [type(failure) for failure in at.clock.failures] == [error]
        at.clock.failures.clear()


async def test_a_defect_while_a_relay_is_talked_to_costs_the_connection_and_there_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        at.listen()
        at.client.add(one.url)
        await at.until(lambda: one.connections, "a connection")
        session = at.client._relays[one.url].session
        for method in ("receive", "take_output"):
            before = set(one.connections)
            with monkeypatch.context() as patched:
                patched.setattr(session, method, _planted)
                at.client.unsubscribe("a")
                at.listen()
                await at.until(lambda: at.clock.failures, method)
            await at.until(lambda known=before: one.connections - known, "another connection")
            at.clock.failures.clear()
        one.takes = lambda event: ["OK", event["id"], True, ""]
        assert await asyncio.wait_for(at.client.say(event("ours", by=OURS)), 10)
        at.clock.failures.clear()


def _planted(*_: object) -> Any:
    raise KeyError("planted")


async def test_an_address_that_cannot_be_one_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kit(monkeypatch) as at, relay() as one:
        at.client.add("ws://127.0.0.1:99999999")
        at.client.add(one.url)
        at.listen()
        assert await at.client.wait_any_connected(5)
