"""One socket of an agent and the session on it: bytes in, bytes out, one timer.

Owns when to write, when to wake the session and when to close. Does not own the protocol: ``AgentSession`` reads and
makes the messages. No task reads: asyncio calls in, and events go to ``on_event``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

from trunkline.addresses import is_loopback
from trunkline.edges.opensentience.agent_events import AgentEvent, Broken, Dismissed, Refused
from trunkline.edges.opensentience.agent_session import AgentSession
from trunkline.model import Now

# With one write for each turn of the loop all calls in flight move together, and the other side idles meanwhile.
FLUSH_FRAMES: Final = 8

End = Refused | Dismissed | Broken


class AgentSocket(asyncio.Protocol):
    """One socket and the session on it, as asyncio wants it. Each attempt to connect makes a new one."""

    def __init__(self, session: AgentSession, on_event: Callable[[AgentEvent], None]) -> None:
        self.session = session
        # What was said about the end, before or instead of it.
        self.end: End | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._flush_due = False

    def now(self) -> Now:
        """Both clocks; the monotonic one is the loop's, which also runs our timer."""
        return Now(self._loop.time(), time.time())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: say hello at once."""
        # uvloop's transports are not of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived."""
        self._handle(self.session.receive(data, self.now()))

    def connection_lost(self, _exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self.session.receive(b"", self.now())
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def write_soon(self) -> None:
        """Write what was just put into the session, soon: several messages go together."""
        if self.session.waiting_frames >= FLUSH_FRAMES:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is, set the timer, and close when the session is over."""
        self._flush_due = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        output = self.session.take_output()
        if output:
            transport.write(output)
        if self.session.is_closed():
            transport.close()
        elif self.session.wake_at() != self._armed_for:
            self._arm()

    def close(self) -> None:
        """Write what there is and close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without writing what is left."""
        if self._transport is not None:
            self._transport.abort()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = self.session.wake_at()
        self._timer = None if self._armed_for is None else self._loop.call_at(self._armed_for, self._wake)

    def _wake(self) -> None:
        self._armed_for = None
        # The loop may wake a clock tick early; the session goes by what it is told.
        now = self.now()
        due = self.session.wake_at()
        self._handle(self.session.wake(now if due is None else Now(max(now.mono, due), now.wall)))

    def _handle(self, events: list[AgentEvent]) -> None:
        for event in events:
            if isinstance(event, End):
                self.end = event
            else:
                self._on_event(event)
        self.flush()


async def open_socket(address: str, socket: AgentSocket) -> None:
    """Connect to a socket's path, or to ``tcp://HOST:PORT`` on this machine (spec §1.2)."""
    loop = asyncio.get_running_loop()
    if not address.startswith("tcp://"):
        await loop.create_unix_connection(lambda: socket, address)
        return
    host, port = loopback_address(address)
    await loop.create_connection(lambda: socket, host, port)


def loopback_address(address: str) -> tuple[str, int]:
    """Host and port of ``tcp://HOST:PORT``; ``ValueError`` if the token would leave this machine."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal():
        raise ValueError(f"{address!r} is not of the form tcp://127.0.0.1:PORT")
    if not is_loopback(host):
        raise ValueError(f"{address!r} is not an address of this machine; the token would leave it unencrypted")
    return host, int(port)
