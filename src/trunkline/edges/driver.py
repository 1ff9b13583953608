"""Runs a conversation in bytes on a socket: receive, tell the exchange, write, keep time.

The next byte protocol writes a sans-IO session (``ByteSession``) and a listener; everything between is here. Owns how
much output may wait for a slow reader and for how long, when reading pauses, how long last words may take, and one
timer for each connection, moved only when it fires or when something earlier is due. It does not look at a byte, and
it does not know who may connect: the listener says that.

Invariant: each conversation that was opened at the exchange is closed there exactly once, after its last event was
fed. What a session raises is a defect of that connection, goes to ``Feed.failed``, and ends it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, cast

from trunkline.edges.exchange import Feed
from trunkline.effects import Close, ToSession
from trunkline.events import Event, Noticed
from trunkline.model import Now

# Twice what one exchange is promised to serve; beyond it somebody leaks connections.
MAX_CONNECTIONS: Final = 1024
# P-C4: what may wait for one reader, and for how long once that much waits.
MAX_OUTPUT_BYTES: Final = 8_388_608
WRITE_WITHIN_S: Final = 10.0
# Received and not read: what the loop reads at once. Beyond it reading pauses, which takes two system calls.
MAX_READ_AHEAD_BYTES: Final = 262_144
# How long the last words may take, when we close.
CLOSE_WITHIN_S: Final = 2.0


class ByteSession(Protocol):
    """One conversation, sans-IO: it is told the time, returns what happened, and its output is taken from it."""

    # Whether the last words were taken, or the peer is gone: nothing more will be said. An attribute, because it is
    # looked at for each write.
    is_closed: bool

    def receive(self, data: bytes, now: Now) -> Sequence[Event]:
        """Bytes arrived; ``b""`` means that the peer is gone. What a peer sends never makes it raise."""

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange wants this said."""

    def take_output(self) -> bytes:
        """Everything to write now."""

    def wake_at(self) -> float | None:
        """When ``wake`` is due, in monotonic seconds; 0.0 is at once, None never."""

    def wake(self, now: Now) -> Sequence[Event]:
        """The time has come, or there is more to read than one turn takes."""

    def pause(self, now: Now) -> None:
        """Nothing is read from here on, by our own choice: the peer's silence does not count."""

    def resume(self, now: Now) -> None:
        """Reading goes on."""

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to write or to go on with, and ``wake_at`` can only have become later."""

    @property
    def held(self) -> int:
        """How many bytes were received and not read."""

    @property
    def who(self) -> str:
        """The peer, as notices name it: ``<edge>:<agent>``."""


MakeSession = Callable[[int, Now], ByteSession]
# Who connected here: how to make his session from its number, or None if he is to be cut off before a byte is read.
Meet = Callable[[asyncio.Transport], MakeSession | None]


class Connections:
    """All connections of one listener. ``edge`` is the name in notices."""

    def __init__(self, feed: Feed, edge: str) -> None:
        self.feed = feed
        self.edge = edge
        self.open: set[Driver] = set()
        # From here on nobody is taken: one that was accepted while the listener stops would hear no goodbye.
        self.is_stopping = False
        self._gone: asyncio.Event | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more is taken."""
        return not self.is_stopping and len(self.open) < MAX_CONNECTIONS

    def forget(self, connection: Driver) -> None:
        """A connection is over."""
        self.open.discard(connection)
        if self._gone is not None and not self.open:
            self._gone.set()

    async def stop(self, reason: str) -> None:
        """Say goodbye to everybody, and wait until they are gone."""
        self.is_stopping = True
        if self.open:
            self._gone = asyncio.Event()
            now = self.feed.now()
            for connection in list(self.open):
                connection.say_goodbye(reason, now)
            # Each has its own deadline, CLOSE_WITHIN_S.
            await self._gone.wait()


class Driver(asyncio.Protocol):
    """One socket, and the ``Sink`` of its session."""

    def __init__(self, connections: Connections, loop: asyncio.AbstractEventLoop, meet: Meet) -> None:
        self._connections = connections
        self._feed = connections.feed
        self._loop = loop
        self._meet = meet
        self._transport: asyncio.Transport
        self._session: ByteSession | None = None
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Whether the timer is not later than a quiet session needs it: that can only have become later since.
        self._is_timer_early = False
        self._deadline: asyncio.TimerHandle | None = None
        # Whether only the last words are still to leave: that deadline is not moved any more.
        self._is_ending = False
        self._goes_on = False
        # Why nothing is read: "disk", "output", "turn".
        self._pauses: set[str] = set()
        # The exchange's word to the session, without a step between.
        self.send: Callable[[ToSession, Now], None]

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected: the listener says who, before a byte is read."""
        # uvloop's transports are not asyncio's by class, only by what they do.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=MAX_OUTPUT_BYTES)
        with self._guarded():
            make = self._meet(transport) if self._connections.has_room else None
            if make is None:
                transport.abort()
                return
            self._connections.open.add(self)
            self._number = self._feed.open_session(self)
            self._session = make(self._number, self._feed.now())
            self.send = self._session.send
            self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes."""
        session = self._session
        if session is not None:
            try:
                self._happened(session.receive(data, self._feed.now()))
            except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
                self._failed(error)

    def eof_received(self) -> bool:
        """The peer will not say more; whatever we have to say, it would not answer."""
        # The loop would close too, and then wait for a reader who may never read.
        self._close()
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        session, self._session = self._session, None
        if session is not None:
            self._connections.forget(self)
            with self._guarded():
                last = session.receive(b"", self._feed.now())
                if last:
                    self._feed.feed(last)
            self._feed.close_session(self._number)

    def pause_writing(self) -> None:
        """The reader is too slow: it is not listened to until it has read, and not for ever."""
        if not self._is_ending:
            self._end_after(WRITE_WITHIN_S, "output.stuck")
        with self._guarded():
            self._pause("output")

    def resume_writing(self) -> None:
        """It has read."""
        if self._deadline is not None and not self._is_ending:
            self._deadline.cancel()
            self._deadline = None
        with self._guarded():
            self._resume("output")

    # -- the exchange's side -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was gathered; after the last words, close."""
        session = self._session
        if session is None:
            return
        out = session.take_output()
        if out and not self._transport.is_closing():
            self._transport.write(out)
        if session.is_closed:
            self._close()
        elif not (self._is_timer_early and session.is_quiet):
            self._set_timer()

    def pause_reading(self) -> None:
        """The disk is behind."""
        self._pause("disk")

    def resume_reading(self) -> None:
        """The disk has caught up."""
        self._resume("disk")

    def abort(self) -> None:
        """End the connection: a defect of ours ended this conversation, and its session is not asked any more."""
        self._session = None
        self._connections.forget(self)
        self._transport.abort()

    def say_goodbye(self, reason: str, now: Now) -> None:
        """End this conversation in good order."""
        with self._guarded():
            self.send(Close(self._number, 0, reason), now)
            self.flush()
        # One that waits for its refusal has nothing to hear of this.
        self._close()

    # -- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Around whatever asks the session. Where it is asked for each read, the same stands written out: faster."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A defect of ours: on record, and this connection is over."""
        self._feed.failed(self._number, error)
        # Unless the exchange has done so: it did not know this connection yet, or is at its end.
        if not self._transport.is_closing():
            self.abort()

    def _happened(self, events: Sequence[Event]) -> None:
        if events:
            self._feed.feed(events)
        if self._session is not None and not self._session.is_quiet:
            self.flush()

    def _set_timer(self) -> None:
        """Let ``_wake`` come when the session wants it; one that comes too early sets itself anew."""
        session = self._session
        at = None if session is None else session.wake_at()
        if session is None or at is None or self._transport.is_closing():
            return
        if at == 0.0:
            if not self._goes_on:
                # More frames than one turn takes: others come first, and not much is read on top of them.
                self._goes_on = True
                if session.held > MAX_READ_AHEAD_BYTES:
                    self._pause("turn")
                self._loop.call_soon(self._go_on)
            return
        if not self._is_timer_early:
            self._is_timer_early = session.is_quiet
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.001, at - self._feed.now().mono), self._wake)

    def _go_on(self) -> None:
        self._goes_on = False
        session = self._session
        if session is not None:
            try:
                self._happened(session.wake(self._feed.now()))
                # The timer may have fired while frames waited.
                self._set_timer()
                if not self._goes_on:
                    self._resume("turn")
            except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
                self._failed(error)

    def _wake(self) -> None:
        self._timer = None
        self._is_timer_early = False
        session = self._session
        if session is not None:
            with self._guarded():
                at = session.wake_at()
                now = self._feed.now()
                self._happened(session.wake(now) if at is not None and at <= now.mono else ())
                self._set_timer()

    def _pause(self, reason: str) -> None:
        if self._session is None or self._transport.is_closing():
            return
        if not self._pauses:
            self._transport.pause_reading()
        self._pauses.add(reason)
        if reason != "turn":
            self._session.pause(self._feed.now())

    def _resume(self, reason: str) -> None:
        if self._session is None or reason not in self._pauses:
            return
        self._pauses.discard(reason)
        if not self._pauses - {"turn"}:
            self._session.resume(self._feed.now())
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()
        self._set_timer()

    def _close(self) -> None:
        """Let the last words leave; a peer that does not take them is cut off, whoever began to close."""
        if not self._is_ending:
            self._is_ending = True
            self._end_after(CLOSE_WITHIN_S, "")
            self._transport.close()

    def _end_after(self, seconds: float, notice: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._cut, notice)

    def _cut(self, notice: str) -> None:
        self._deadline = None
        session = self._session
        if session is not None and notice:
            detail = f"not read within {WRITE_WITHIN_S:g} s"
            self._feed.feed([Noticed(notice, self._connections.edge, session.who, detail)])
        self._transport.abort()
