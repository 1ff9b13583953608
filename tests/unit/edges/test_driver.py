"""``edges.driver``: what it does with a byte session, on a fake loop and transport; and when the session fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Raw

from trunkline.edges import driver
from trunkline.edges.driver import Connections, Driver
from trunkline.effects import Answer, Close, Deliver, ToSession
from trunkline.entries import AgentLeft as AgentLeftEntry
from trunkline.entries import Noticed as NoticedEntry
from trunkline.events import (
    AgentArrived,
    AgentLaunched,
    AgentLeft,
    CallFinished,
    CallRequested,
    Event,
    ToolsOffered,
)
from trunkline.model import Now, Peer, ProcessIdentity, Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, BOSS, MemoryExchange

AGENT = "com.example.lines"
TOOL = f"{AGENT}/say"
PROCESS = ProcessIdentity(7, 7)


class Lines:
    """A session of lines: an agent with one tool that also calls. ``breaks`` names a method that raises."""

    is_closed = False

    def __init__(self, number: int, now: Now) -> None:
        self.number = number
        self.breaks = ""
        self.log: list[str] = []
        self.out = b""
        self.read = b""
        # Lines in one turn.
        self.a_turn = 1000
        self.due: float | None = now.mono + 60
        self.is_closing = False
        self.is_known = True

    def _note(self, word: str) -> None:
        self.log.append(word)
        if word == self.breaks:
            raise RuntimeError("canary-in-the-exception")

    def receive(self, data: bytes, now: Now) -> Sequence[Event]:
        self._note("receive" if data else "lost")
        if not data:
            self.is_closed = True
            return [AgentLeft(self.number, "lost")] if self.is_known else []
        self.read += data
        return self._take()

    def _take(self) -> list[Event]:
        events: list[Event] = []
        for _ in range(self.a_turn):
            line, found, rest = self.read.partition(b"\n")
            if not found:
                break
            self.read = rest
            word, _, argument = line.decode().partition(" ")
            if word == "call":
                events.append(CallRequested(self.number, argument, BOSS, "com.example.other/say", Raw(b"{}")))
            elif word == "done":
                events.append(CallFinished(self.number, argument, Status.SUCCEEDED, Raw(b"{}")))
            elif word == "bye":
                self.out += b"bye\n"
                self.is_closing = True
        return events

    def send(self, effect: ToSession, now: Now) -> None:
        self._note("send")
        if isinstance(effect, Deliver):
            self.out += f"deliver {effect.call_id}\n".encode()
        elif isinstance(effect, Answer):
            self.out += f"answer {effect.ref} {effect.status.value}\n".encode()
        elif isinstance(effect, Close):
            self.out += f"close {effect.reason}\n".encode()
            self.is_closing = True

    def take_output(self) -> bytes:
        self._note("take_output")
        out, self.out = self.out, b""
        self.is_closed = self.is_closing
        return out

    def wake_at(self) -> float | None:
        self._note("wake_at")
        return 0.0 if b"\n" in self.read else self.due

    def wake(self, now: Now) -> Sequence[Event]:
        self._note("wake")
        if self.due is not None and now.mono >= self.due:
            self.due = now.mono + 60
            self.out += b"ping\n"
        return self._take()

    def pause(self, now: Now) -> None:
        self._note("pause")

    def resume(self, now: Now) -> None:
        self._note("resume")

    @property
    def is_quiet(self) -> bool:
        return not self.out and not self.read and not self.is_closing

    @property
    def held(self) -> int:
        return len(self.read)

    @property
    def who(self) -> str:
        return "lines:somebody"


class Transport(asyncio.Transport):
    """What a loop would give: notes what is done with it, and calls back later, as a loop does."""

    def __init__(self, exchange: MemoryExchange) -> None:
        super().__init__()
        self._loop = exchange.loop
        self.protocol: Driver
        self.written = b""
        self.high = 0
        self.is_read = True
        self.ended = ""
        # Whether the protocol is told so, or will be.
        self.is_lost = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self.protocol.connection_lost, None)
        self.ended = how

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True


class Rig:
    """An exchange in memory, and one connection that came in as an agent with a tool."""

    def __init__(self) -> None:
        self.exchange = MemoryExchange()
        self.connections = Connections(self.exchange.feed, "lines")
        self.other = self.exchange.attach("com.example.other", "say")
        self.session: Lines
        self.transport, self.driver = self.connect()
        self._arrive()

    def connect(self, meet: Callable[[asyncio.Transport], Any] | None = None) -> tuple[Transport, Driver]:
        transport = Transport(self.exchange)
        loop: Any = self.exchange.loop
        transport.protocol = Driver(self.connections, loop, meet or (lambda _: self._make))
        transport.protocol.connection_made(transport)
        return transport, transport.protocol

    def _make(self, number: int, now: Now) -> Lines:
        self.session = Lines(number, now)
        return self.session

    def _arrive(self) -> None:
        number, digest = self.session.number, "launch"
        peer = Peer("memory", PROCESS, digest)
        tool = ToolDefinition(TOOL, "says it", ANY_OBJECT, side_effects=False)
        self.exchange.feed.feed(
            [
                AgentLaunched(AGENT, digest, PROCESS, digest),
                AgentArrived(number, "arrive", "opensentience", AGENT, "1.0.0", digest, peer),
                ToolsOffered(number, "offer", (tool,)),
            ]
        )

    def receive(self, data: bytes) -> None:
        self.driver.data_received(data)

    def run(self) -> None:
        """What the loop does next."""
        self.exchange.advance(0)

    @property
    def is_known(self) -> bool:
        return self.session.number in self.exchange.feed._sinks

    def left(self) -> list[str]:
        return [entry.reason for entry in self.exchange.recorded(AgentLeftEntry) if entry.agent_id == AGENT]


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- talking ----------------------------------------------------------------------------------------------------------


def test_bytes_become_events_and_effects_become_bytes(rig: Rig) -> None:
    rig.receive(b"call a\nca")
    rig.receive(b"ll b\n")
    assert len(rig.other.delivered) == 2
    rig.other.finish({}, at=1)
    rig.other.finish({}, at=0)
    assert rig.transport.written == b"answer b succeeded\nanswer a succeeded\n"
    made = rig.exchange.call(TOOL)
    assert rig.transport.written.endswith(f"deliver {made.call_id}\n".encode())
    rig.receive(f"done {made.call_id}\n".encode())
    assert made.outcome.status is Status.SUCCEEDED


def test_a_quiet_session_is_not_asked_for_its_timer_again(rig: Rig) -> None:
    rig.exchange.call(TOOL)
    rig.session.log.clear()
    for _ in range(5):
        rig.exchange.call(TOOL)
    assert "wake_at" not in rig.session.log


def test_a_timer_that_comes_too_early_sets_itself_anew(rig: Rig) -> None:
    assert rig.session.due is not None
    rig.session.due += 30
    rig.exchange.advance(60)
    assert "wake" not in rig.session.log
    rig.exchange.advance(30)
    assert rig.transport.written == b"ping\n"
    rig.exchange.advance(60)
    assert rig.transport.written == b"ping\n" * 2


def test_an_earlier_wish_of_a_session_that_is_not_quiet_moves_the_timer(rig: Rig) -> None:
    rig.session.due = rig.exchange.now().mono + 5
    rig.receive(b"half a line")
    rig.exchange.advance(5)
    assert rig.transport.written == b"ping\n"


def test_more_than_one_turn_takes_waits_for_others_and_reads_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAX_READ_AHEAD_BYTES", 10)
    rig.session.a_turn = 2
    rig.receive(b"call a\ncall b\ncall c\ncall d\ncall e\n")
    assert len(rig.other.delivered) == 2
    assert not rig.transport.is_read
    rig.run()
    assert len(rig.other.delivered) == 5
    assert rig.transport.is_read
    assert "pause" not in rig.session.log, "a turn is no silence of the peer"


# --- slow readers, a slow disk ----------------------------------------------------------------------------------------


def test_a_slow_reader_is_not_listened_to_until_it_has_read(rig: Rig) -> None:
    assert rig.transport.high == driver.MAX_OUTPUT_BYTES
    rig.driver.pause_writing()
    assert not rig.transport.is_read
    rig.driver.pause_reading()
    rig.driver.resume_writing()
    assert not rig.transport.is_read, "the disk is behind too"
    rig.driver.resume_reading()
    assert rig.transport.is_read
    assert [word for word in rig.session.log if word in {"pause", "resume"}] == ["pause", "pause", "resume"]
    rig.exchange.advance(2 * driver.WRITE_WITHIN_S)
    assert rig.transport.ended == ""


def test_a_reader_that_does_not_read_is_cut_off_after_its_time_and_on_record(rig: Rig) -> None:
    rig.driver.pause_writing()
    rig.exchange.advance(driver.WRITE_WITHIN_S - 0.1)
    assert rig.transport.ended == ""
    rig.exchange.advance(0.2)
    assert rig.transport.ended == "aborted"
    [noticed] = rig.exchange.recorded(NoticedEntry)
    assert (noticed.code, noticed.place, noticed.who) == ("output.stuck", "lines", "lines:somebody")
    assert rig.left() == ["lost"]


def test_pausing_twice_and_resuming_what_was_not_paused_does_nothing(rig: Rig) -> None:
    rig.driver.resume_reading()
    rig.driver.pause_reading()
    rig.driver.pause_reading()
    rig.driver.resume_reading()
    assert rig.transport.is_read


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_peer_that_is_gone_has_left_once(rig: Rig) -> None:
    assert rig.driver.eof_received() is False
    rig.driver.connection_lost(None)
    assert rig.left() == ["lost"]
    assert not rig.is_known
    assert rig.connections.open == set()
    rig.exchange.advance(200)
    assert rig.session.log.count("lost") == 1
    assert "wake" not in rig.session.log


def test_after_the_last_words_the_connection_is_closed(rig: Rig) -> None:
    rig.receive(b"bye\n")
    assert (rig.transport.written, rig.transport.ended) == (b"bye\n", "closed")
    rig.run()
    assert rig.left() == ["lost"]


def test_last_words_that_are_not_taken_are_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transport, "close", lambda self: setattr(self, "ended", "closed"))
    rig.receive(b"bye\n")
    rig.exchange.advance(driver.CLOSE_WITHIN_S - 0.1)
    assert rig.transport.ended == "closed"
    rig.exchange.advance(0.2)
    assert rig.transport.ended == "aborted"
    assert rig.exchange.notices() == [], "that is no reason for a notice"


def test_a_reader_who_was_slow_and_is_told_goodbye_has_only_the_time_of_last_words(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transport, "close", lambda self: setattr(self, "ended", "closed"))
    rig.driver.pause_writing()
    rig.driver.say_goodbye("shutdown", rig.exchange.now())
    # What it reads now does not give it more.
    rig.driver.resume_writing()
    rig.exchange.advance(driver.CLOSE_WITHIN_S + 0.1)
    assert rig.transport.ended == "aborted"


@pytest.mark.parametrize("reads_a_little", [False, True])
def test_a_peer_that_half_closes_and_does_not_read_is_cut_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, reads_a_little: bool
) -> None:
    monkeypatch.setattr(Transport, "close", lambda self: setattr(self, "ended", "closed"))
    rig.driver.pause_writing()
    assert rig.driver.eof_received() is False
    if reads_a_little:
        rig.driver.resume_writing()
    rig.exchange.advance(driver.CLOSE_WITHIN_S + 0.1)
    assert rig.transport.ended == "aborted"
    rig.run()
    assert rig.left() == ["lost"]


async def test_stopping_does_not_wait_for_one_that_half_closed_and_does_not_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transport, "close", lambda self: setattr(self, "ended", "closed"))
    rig.driver.eof_received()
    stopping = asyncio.create_task(rig.connections.stop("shutdown"))
    await asyncio.sleep(0)
    assert not stopping.done()
    rig.exchange.advance(driver.CLOSE_WITHIN_S + 0.1)
    rig.run()
    async with asyncio.timeout(5):
        await stopping


async def test_stopping_says_goodbye_to_everybody_and_waits_for_them(rig: Rig) -> None:
    stopping = asyncio.create_task(rig.connections.stop("shutdown"))
    await asyncio.sleep(0)
    assert rig.transport.written == b"close shutdown\n"
    assert not stopping.done()
    rig.run()
    async with asyncio.timeout(5):
        await stopping
    late, _ = rig.connect()
    assert late.ended == "aborted"


async def test_stopping_with_nobody_there_is_done(rig: Rig) -> None:
    rig.driver.connection_lost(None)
    async with asyncio.timeout(5):
        await rig.connections.stop("shutdown")


@pytest.mark.parametrize("why", ["not met", "no room"])
def test_who_is_not_taken_is_cut_off_before_a_byte_is_read(rig: Rig, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    before = rig.exchange.operator.status()["sessions"]
    if why == "no room":
        monkeypatch.setattr(driver, "MAX_CONNECTIONS", 1)
    transport, connection = rig.connect(None if why == "no room" else lambda _: None)
    connection.data_received(b"call a\n")
    rig.run()
    assert transport.ended == "aborted"
    assert rig.exchange.operator.status()["sessions"] == before
    assert not rig.other.delivered


# --- defects ----------------------------------------------------------------------------------------------------------


def fails_alone(rig: Rig) -> None:
    """This connection is over, its calls are settled, the defect is on record with its place, others go on."""
    exchange = rig.exchange
    rig.run()
    assert exchange.died is None
    assert rig.transport.ended == "aborted"
    assert not rig.is_known
    assert rig.connections.open == set()
    assert rig.left() == ["defect"]
    [noticed] = exchange.recorded(NoticedEntry)
    assert (noticed.code, noticed.detail) == ("defect", "RuntimeError, 1 so far")
    assert noticed.place.startswith("test_driver.py:")
    assert exchange.operator.status()["defects"] == 1
    other = exchange.call("com.example.other/say")
    rig.other.finish({})
    assert other.outcome.status is Status.SUCCEEDED
    # Nothing of it comes later.
    asked = rig.session.log.copy()
    rig.receive(b"call x\n")
    exchange.advance(200)
    assert rig.session.log == asked


def test_what_receive_raises_ends_this_connection_alone(rig: Rig) -> None:
    rig.session.breaks = "receive"
    rig.receive(b"call a\n")
    fails_alone(rig)


def test_what_the_last_receive_raises_is_on_record(rig: Rig) -> None:
    rig.session.breaks = "lost"
    rig.transport.abort()
    fails_alone(rig)


@pytest.mark.parametrize("method", ["send", "take_output"])
def test_what_is_raised_while_the_exchange_speaks_ends_this_connection_alone(rig: Rig, method: str) -> None:
    rig.session.breaks = method
    made = rig.exchange.call(TOOL)
    # It only reads, so it waits for its agent (decision 1).
    assert made.answer is None
    fails_alone(rig)


@pytest.mark.parametrize("method", ["wake", "take_output"])
def test_what_is_raised_at_a_timer_ends_this_connection_alone(rig: Rig, method: str) -> None:
    rig.session.breaks = method
    rig.exchange.advance(61)
    fails_alone(rig)


def test_what_is_raised_when_a_turn_goes_on_ends_this_connection_alone(rig: Rig) -> None:
    rig.session.a_turn = 1
    rig.session.breaks = "wake"
    rig.receive(b"call a\ncall b\n")
    rig.other.finish({})
    fails_alone(rig)


@pytest.mark.parametrize("who", ["disk", "reader"])
@pytest.mark.parametrize("method", ["pause", "resume"])
def test_what_pausing_and_resuming_raise_ends_this_connection_alone(rig: Rig, who: str, method: str) -> None:
    rig.session.breaks = method
    if who == "reader":
        rig.driver.pause_writing()
        rig.driver.resume_writing()
    else:
        rig.exchange.feed._pause(paused=True)
        rig.exchange.feed._pause(paused=False)
    fails_alone(rig)


async def test_what_a_goodbye_raises_does_not_keep_the_others_from_theirs(rig: Rig) -> None:
    broken = rig.session
    transport, _ = rig.connect(lambda _: Lines)
    broken.breaks = "send"
    stopping = asyncio.create_task(rig.connections.stop("shutdown"))
    await asyncio.sleep(0)
    rig.run()
    async with asyncio.timeout(5):
        await stopping
    assert transport.written == b"close shutdown\n"
    assert rig.exchange.notices() == ["defect"]


@pytest.mark.parametrize("where", ["meet", "make", "wake_at"])
def test_what_is_raised_before_a_conversation_begins_ends_this_connection_alone(rig: Rig, where: str) -> None:
    before = rig.exchange.operator.status()["sessions"]

    def broken(*_: object) -> Any:
        raise RuntimeError

    class Late(Lines):
        wake_at = broken

    meet = {"meet": broken, "make": lambda _: broken, "wake_at": lambda _: Late}[where]
    transport, connection = rig.connect(meet)
    rig.run()
    assert transport.ended == "aborted"
    assert connection not in rig.connections.open
    assert rig.exchange.operator.status()["sessions"] == before
    assert rig.exchange.notices() == ["defect"]
    assert rig.transport.ended == ""


def test_at_the_end_of_the_exchange_a_defect_still_ends_its_connection(rig: Rig) -> None:
    rig.exchange.feed._die("for this test")
    rig.session.breaks = "receive"
    rig.receive(b"call a\n")
    assert rig.transport.ended == "aborted"
    assert rig.connections.open == set()
