"""Byte connections in fake time: late, cut into slices, lost by a reset, or open at one end only.

A ``Wire`` joins an ``asyncio.Protocol`` (the exchange's rim, told what a socket would tell it) and a ``Client`` (an
agent, or any scripted peer). All delays and cuts come from the ``Random`` that the network is given. Bytes arrive in
order and whole, or not at all: that is what a stream socket promises. It knows no protocol.

Invariant: after ``lost`` was said to an end, nothing more is said to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from trunkline.testing.clock import ManualLoop

# Between two processes of one machine: from a wake-up to a scheduler's bad day.
LATENCY_S: Final = (0.00005, 0.002)
SLOW_S: Final = (0.02, 0.4)
# How often a connection is a slow one, and how often one whose bytes come in small slices.
SLOW_SHARE: Final = 0.1
SLICED_SHARE: Final = 0.25
# A slice of a sliced connection has at most so many bytes; more slices than this in one write only cost time.
MAX_SLICE_BYTES: Final = 400
MAX_SLICES: Final = 8

_PEERCRED: Final = struct.Struct("3i")


class Client(Protocol):
    """What a peer of the exchange has to offer to be at the other end of a wire."""

    def received(self, data: bytes) -> None:
        """Bytes arrived."""

    def lost(self) -> None:
        """The connection is over."""


class Direction:
    """One direction of a wire: bytes go in at one end and come out later, in order, or never."""

    def __init__(self, loop: ManualLoop, rng: Random, deliver: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._rng = rng
        self._deliver = deliver
        self._latency = SLOW_S if rng.random() < SLOW_SHARE else LATENCY_S
        self._is_sliced = rng.random() < SLICED_SHARE
        self._last_at = 0.0
        self._is_open = True
        self._is_silent = False

    def send(self, data: bytes) -> None:
        """Bytes leave; they arrive later, in order."""
        for piece in self._slices(data) if self._is_sliced else (data,):
            self._after_latency(self._arrive, piece)

    def end(self, then: Callable[[], None]) -> None:
        """Nothing follows: ``then``, after everything that was sent."""
        if not self._is_silent:
            self._after_latency(then)

    def close(self) -> None:
        """Nobody reads here any more: what is under way is dropped."""
        self._is_open = False

    def vanish(self) -> None:
        """From here on nothing arrives, not even the end, and nobody is told."""
        self._is_open = False
        self._is_silent = True

    def _after_latency(self, callback: Callable[..., None], *args: object) -> None:
        self._last_at = max(self._last_at, self._loop.time() + self._rng.uniform(*self._latency))
        self._loop.call_at(self._last_at, callback, *args)

    def _arrive(self, data: bytes) -> None:
        if self._is_open:
            self._deliver(data)

    def _slices(self, data: bytes) -> list[bytes]:
        slices: list[bytes] = []
        start = 0
        while start < len(data) and len(slices) < MAX_SLICES - 1:
            end = start + self._rng.randint(1, MAX_SLICE_BYTES)
            slices.append(data[start:end])
            start = end
        return [*slices, data[start:]] if start < len(data) else slices


class Wire:
    """One connection between a client and the exchange.

    The client's end are this object's own methods; the exchange's end is ``transport``.
    """

    def __init__(self, network: Network, client: Client, protocol: asyncio.Protocol, pid: int) -> None:
        self.is_open = True
        self._loop = network.loop
        self._client: Client | None = client
        self._protocol: asyncio.Protocol | None = protocol
        self.up = Direction(network.loop, network.rng, self._to_server)
        self.down = Direction(network.loop, network.rng, self._to_client)
        self.transport = Transport(network, self, pid)
        protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """The client writes."""
        if self.is_open:
            self.up.send(data)

    def close(self, *, abruptly: bool = False) -> None:
        """The client closes, or its process dies: what it wrote arrives first, or is lost with it."""
        self.is_open = False
        self._client = None
        if abruptly:
            self.up.close()
        self.up.end(self._server_lost)

    def reset(self) -> None:
        """Both ends lose it; what was under way in either direction is gone."""
        self.is_open = False
        self.up.close()
        self.down.close()
        self._loop.call_soon(self._server_lost)
        self._loop.call_soon(self._client_lost)

    def vanish(self, *, up: bool = True, down: bool = True) -> None:
        """Half open: what is sent this way goes nowhere, and nobody is told."""
        if up:
            self.up.vanish()
        if down:
            self.down.vanish()

    def server_closed(self, *, flush: bool) -> None:
        """The exchange closes its end; with ``flush`` what it wrote arrives first."""
        self.is_open = False
        self.up.close()
        if not flush:
            self.down.close()
        self.down.end(self._client_lost)
        self._loop.call_soon(self._server_lost)

    def server_died(self, *, keep_in_flight: bool) -> None:
        """The exchange's process is gone, and hears nothing of it; the kernel may still deliver what it had written."""
        self._protocol = None
        self.transport.is_lost = True
        self.server_closed(flush=keep_in_flight)

    def _to_server(self, data: bytes) -> None:
        if self._protocol is not None:
            self.transport.arrived(data, self._protocol)

    def _to_client(self, data: bytes) -> None:
        if self._client is not None:
            self._client.received(data)

    def _server_lost(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self.transport.is_lost = True
            protocol.connection_lost(None)

    def _client_lost(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.lost()


class Transport(asyncio.Transport):
    """The exchange's end of a wire, as asyncio shows it."""

    def __init__(self, network: Network, wire: Wire, pid: int) -> None:
        super().__init__()
        self._network = network
        self._wire = wire
        self._pid = pid
        self.is_lost = False
        self._is_paused = False
        self._unread: list[tuple[bytes, asyncio.Protocol]] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Who connected, as far as a Unix socket says."""
        return _Socket(self._pid) if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered: what is written is under way at once."""

    def is_closing(self) -> bool:
        """Whether it is, or will be, closed."""
        return self.is_lost

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes to the client."""
        self._wire.down.send(bytes(data))
        self._network.wrote()

    def close(self) -> None:
        """Close when everything is sent."""
        if not self.is_lost:
            self.is_lost = True
            self._wire.server_closed(flush=True)

    def abort(self) -> None:
        """Close now."""
        if not self.is_lost:
            self.is_lost = True
            self._wire.server_closed(flush=False)

    def pause_reading(self) -> None:
        """Keep back what arrives."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Hand on what was kept back, in another turn."""
        self._is_paused = False
        self._network.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        while self._unread and not self._is_paused and not self.is_lost:
            data, protocol = self._unread.pop(0)
            protocol.data_received(data)

    def arrived(self, data: bytes, protocol: asyncio.Protocol) -> None:
        """Bytes came out of the wire."""
        self._unread.append((data, protocol))
        self._catch_up()


class _Socket:
    """What the rim asks of a Unix socket: who is at the other end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        return _PEERCRED.pack(self._pid, os.geteuid(), os.getegid())


class Network:
    """All wires between clients and the one exchange that listens at the time.

    ``wrote`` is called at each write of the exchange.
    """

    def __init__(self, loop: ManualLoop, rng: Random, wrote: Callable[[], None] = lambda: None) -> None:
        self.loop = loop
        self.rng = rng
        self.wrote = wrote
        # Makes the protocol of a new connection; None while nobody listens.
        self.listener: Callable[[], asyncio.Protocol] | None = None
        self.wires: list[Wire] = []

    def connect(self, client: Client, pid: int) -> Wire | None:
        """A new connection, or None if nobody listens."""
        if self.listener is None:
            return None
        self.wires = [wire for wire in self.wires if wire.is_open]
        wire = Wire(self, client, self.listener(), pid)
        self.wires.append(wire)
        return wire

    def server_died(self) -> None:
        """The process at the other end of all wires was killed."""
        self.listener = None
        for wire in self.wires:
            wire.server_died(keep_in_flight=self.rng.random() < 0.5)
        self.wires = []
