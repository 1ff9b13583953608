"""The rim of the OpenSentience edge: sockets, timers, and the bounds that need them.

Owns connections: who may connect (the owner's processes, or loopback), how much output may wait for a slow reader, when
reading pauses. It does not look at a byte: ``session`` does. One connection costs one timer, moved only when it fires
or when something earlier is due.

Invariant: each session that was opened at the exchange is closed there exactly once, after its last event was fed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from trunkline.edges.exchange import Feed
from trunkline.edges.opensentience import socket_file
from trunkline.edges.opensentience.messages import ID_SEED_BYTES
from trunkline.edges.opensentience.session import CLOSED, READY, CoreSession, Settings
from trunkline.edges.opensentience.translate import EDGE
from trunkline.effects import Close, ToSession
from trunkline.errors import ConfigError
from trunkline.events import Event, Noticed
from trunkline.model import Now, Peer

# P-C2: asyncio's 100 fails at 200 simultaneous connects.
BACKLOG: Final = 1024
# Twice what one exchange is promised to serve; beyond it somebody leaks connections.
MAX_CONNECTIONS: Final = 1024
# P-C4: what may wait for one reader, and for how long once that much waits.
MAX_OUTPUT_BYTES: Final = 8_388_608
WRITE_WITHIN_S: Final = 10.0
# Received and not read: what the loop reads at once. Beyond it reading pauses, which takes two system calls.
MAX_READ_AHEAD_BYTES: Final = 262_144
# How long the last words may take, when we close.
CLOSE_WITHIN_S: Final = 2.0

_PEERCRED: Final = struct.Struct("3i")


class Connection(asyncio.Protocol):
    """One agent's socket, and the ``Sink`` of its session."""

    def __init__(self, listener: OpenSentienceListener, *, is_local: bool) -> None:
        self._listener = listener
        self._exchange = listener.exchange
        self._loop = listener.loop
        self._is_local = is_local
        self._transport: asyncio.Transport
        self._session: CoreSession | None = None
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Whether the timer is not later than what the peer's silence needs; each beat only makes that later.
        self._watches_silence = False
        self._deadline: asyncio.TimerHandle | None = None
        self._goes_on = False
        # Why nothing is read: "disk", "output", "turn".
        self._pauses: set[str] = set()
        # The exchange's word to the session, without a step between.
        self.send: Callable[[ToSession, Now], None]

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected: the operating system says who, before a byte is read."""
        # uvloop's transports are not asyncio's by class, only by what they do.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=MAX_OUTPUT_BYTES)
        peer = self._peer()
        if peer is None:
            transport.abort()
            return
        self._listener.connections.add(self)
        self._number = self._exchange.open_session(self)
        self._session = CoreSession(
            self._number,
            self._listener.settings,
            peer,
            seed=self._listener.entropy(ID_SEED_BYTES),
            now=self._exchange.now(),
        )
        self.send = self._session.send
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes."""
        session = self._session
        if session is not None:
            self._happened(session.receive(data, self._exchange.now()))

    def eof_received(self) -> bool:
        """The peer will not say more; whatever we have to say, it would not answer."""
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        session, self._session = self._session, None
        if session is not None:
            self._listener.forget(self)
            last = session.receive(b"", self._exchange.now())
            if last:
                self._exchange.feed(last)
            self._exchange.close_session(self._number)

    def pause_writing(self) -> None:
        """The reader is too slow: it is not listened to until it has read, and not for ever."""
        self._pause("output")
        self._end_after(WRITE_WITHIN_S, "output.stuck")

    def resume_writing(self) -> None:
        """It has read."""
        if self._deadline is not None and self._session is not None and self._session.state is not CLOSED:
            self._deadline.cancel()
            self._deadline = None
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
        if session.state is CLOSED:
            self._close()
        elif not (self._watches_silence and session.is_quiet):
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
        self._listener.forget(self)
        self._transport.abort()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _happened(self, events: Sequence[Event]) -> None:
        if events:
            self._exchange.feed(events)
        if self._session is not None and not self._session.is_quiet:
            self.flush()

    def _peer(self) -> Peer | None:
        # One that was accepted while the listener stopped finds nobody who would say goodbye to it.
        if self._listener.is_stopping or len(self._listener.connections) >= MAX_CONNECTIONS:
            return None
        if not self._is_local:
            address = self._transport.get_extra_info("peername")
            return Peer(f"tcp:{address[0]}" if address else "tcp:?")
        raw = self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        pid, uid, _gid = _PEERCRED.unpack(raw)
        if uid != os.geteuid():
            self._exchange.feed([Noticed("peer.refused", EDGE, f"uid:{uid}", "another user's process")])
            return None
        return self._exchange.peer_of(pid, uid)

    def _set_timer(self) -> None:
        """Let ``_wake`` come when the session wants it; one that comes too early sets itself anew."""
        session = self._session
        at = None if session is None else session.wake_at()
        if at is None or self._transport.is_closing():
            return
        if at == 0.0:
            if not self._goes_on:
                # More frames than one turn takes: others come first, and not much is read on top of them.
                self._goes_on = True
                if session is not None and session.held > MAX_READ_AHEAD_BYTES:
                    self._pause("turn")
                self._loop.call_soon(self._go_on)
            return
        self._watches_silence = session is not None and session.state is READY
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.001, at - self._exchange.now().mono), self._wake)

    def _go_on(self) -> None:
        self._goes_on = False
        session = self._session
        if session is not None:
            self._happened(session.wake(self._exchange.now()))
            # The timer may have fired while frames waited.
            self._set_timer()
            if not self._goes_on:
                self._resume("turn")

    def _wake(self) -> None:
        self._timer = None
        session = self._session
        if session is not None:
            at = session.wake_at()
            now = self._exchange.now()
            self._happened(session.wake(now) if at is not None and at <= now.mono else ())
            self._set_timer()

    def _pause(self, reason: str) -> None:
        if self._session is None or self._transport.is_closing():
            return
        if not self._pauses:
            self._transport.pause_reading()
        self._pauses.add(reason)
        if reason != "turn":
            self._session.pause(self._exchange.now())

    def _resume(self, reason: str) -> None:
        if self._session is None or reason not in self._pauses:
            return
        self._pauses.discard(reason)
        if not self._pauses - {"turn"}:
            self._session.resume(self._exchange.now())
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()
        self._set_timer()

    def _close(self) -> None:
        """Let the last words leave; a peer that does not take them is cut off."""
        if not self._transport.is_closing():
            self._transport.close()
            self._end_after(CLOSE_WITHIN_S, "")

    def _end_after(self, seconds: float, notice: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._cut, notice)

    def _cut(self, notice: str) -> None:
        self._deadline = None
        session = self._session
        if session is not None and notice:
            who = session.agent_id or "?"
            self._exchange.feed([Noticed(notice, EDGE, f"{EDGE}:{who}", f"not read within {WRITE_WITHIN_S:g} s")])
        self._transport.abort()

    def say_goodbye(self, reason: str, now: Now) -> None:
        """End this conversation in good order."""
        self.send(Close(self._number, 0, reason), now)
        self.flush()
        # One that waits for its refusal has nothing to hear of this.
        self._close()


class OpenSentienceListener:
    """The Unix socket, and loopback TCP where it is wanted."""

    def __init__(
        self,
        exchange: Feed,
        settings: Settings,
        *,
        path: Path,
        tcp: tuple[str, int] | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if tcp is not None and not _is_loopback(tcp[0]):  # OS-004
            raise ConfigError("agents are only served on loopback addresses, such as 127.0.0.1", f"{tcp[0]}:{tcp[1]}")
        self.exchange = exchange
        self.settings = settings
        # Where the ids of our messages come from; a simulation hands in its own.
        self.entropy = entropy
        self.path = path
        # The address in use, once it listens: port 0 becomes the one that was free.
        self.tcp = tcp
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.AbstractServer] = []
        self._identity: tuple[int, int] | None = None
        self._gone: asyncio.Event | None = None
        self.is_stopping = False

    async def start(self) -> None:
        """Listen; ``ConfigError`` if that cannot be done safely."""
        self.loop = asyncio.get_running_loop()
        bound = socket_file.bind(self.path)
        self._identity = socket_file.identity(self.path)
        self._servers.append(await self.loop.create_unix_server(self._accept(True), sock=bound, backlog=BACKLOG))
        if self.tcp is not None:
            host, port = self.tcp
            try:
                server = await self.loop.create_server(self._accept(False), host, port, backlog=BACKLOG)
            except OSError as exc:
                await self.stop("shutdown")
                raise ConfigError(f"cannot listen here: {exc.strerror}", f"{host}:{port}") from None
            self._servers.append(server)
            self.tcp = server.sockets[0].getsockname()[:2]

    async def stop(self, reason: str) -> None:
        """Say goodbye to everybody and stop listening."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._identity is not None:
            socket_file.remove(self.path, self._identity)
            self._identity = None
        if self.connections:
            self._gone = asyncio.Event()
            now = self.exchange.now()
            for connection in list(self.connections):
                connection.say_goodbye(reason, now)
            # Each has its own deadline, CLOSE_WITHIN_S.
            await self._gone.wait()

    def forget(self, connection: Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        if self._gone is not None and not self.connections:
            self._gone.set()

    def _accept(self, is_local: bool) -> Callable[[], Connection]:
        return lambda: Connection(self, is_local=is_local)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
