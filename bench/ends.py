"""The caller and the provider on the two sides of the exchange and of the bare relay: one code for both.

Raw frames, typed decoding of what an end needs, no SDK. ``python -m bench.ends provider`` or ``caller``; everything
else comes on standard input (``loads``). A caller has one connection, a provider as many as it has identities.

Invariant: what an end does for a call does not depend on what is between the ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, cast

import uvloop

from bench import wire
from bench.loads import Attach, Attached, Done, Identity, Load, Measured, Meter, Open, Run, Texts, answer, commands

# As in the exchange: a write for every frame is a system call for every frame.
FLUSH_EVERY: Final = 8
# Half of what an agent is given.
HEARTBEAT_S: Final = 5.0
CONNECT_WITHIN_S: Final = 30.0


class Broken(RuntimeError):
    """What is measured did not do what it should. Not an ``OSError``: of those a loop says nothing."""


class Line(asyncio.Protocol):
    """One connection: frames in, frames out."""

    def __init__(self, identity: Identity | None) -> None:
        loop = asyncio.get_running_loop()
        self.identity = identity
        self.session_id = ""
        self.welcomed: asyncio.Future[float] = loop.create_future()
        self.ready: asyncio.Future[float] = loop.create_future()
        self.out: list[bytes] = []
        self._rest = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves to an exchange; a relay does not ask."""
        self._transport = cast("asyncio.Transport", transport)
        if self.identity is None:
            self.welcomed.set_result(time.perf_counter())
            self.ready.set_result(time.perf_counter())
        else:
            self.write(wire.hello(self.identity))

    def connection_lost(self, _exc: Exception | None) -> None:
        """Nothing that is measured closes a connection while it is."""
        raise Broken(f"{self.identity and self.identity.agent}: the connection was closed")

    def write(self, data: bytes) -> None:
        """To the other side, now."""
        self._transport.write(data)

    def flush(self) -> None:
        """To the other side what has gathered."""
        if self.out:
            self._transport.write(b"".join(self.out))
            self.out.clear()

    def data_received(self, data: bytes) -> None:
        """Frames; what they lead to is written every few of them."""
        if self._rest:
            data = self._rest + data
        size = len(data)
        at = count = 0
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > size:
                break
            self.heard(wire.envelope(data[at + 4 : end]))
            at = end
            count += 1
            if count == FLUSH_EVERY:
                self.flush()
                count = 0
        self._rest = data[at:]
        self.flush()

    def heard(self, message: wire.Envelope) -> None:
        """What is neither a call nor a result."""
        if message.type == "core.welcome":
            self.session_id = wire.welcome(message.payload).session_id
            self.welcomed.set_result(time.perf_counter())
            self.begin()
        elif message.type == "core.tools.registered":
            if not wire.registered(message.payload).registered:
                raise Broken(f"the tool was refused: {bytes(message.payload)!r}")
            self.ready.set_result(time.perf_counter())
        elif message.type in {"core.error", "core.goodbye"}:
            raise Broken(f"{message.type}: {bytes(message.payload)!r}")

    def begin(self) -> None:
        """We are welcome."""
        self.ready.set_result(time.perf_counter())


class Provider(Line):
    """Answers each call with what it was given."""

    def __init__(self, identity: Identity | None, attach: Attach) -> None:
        super().__init__(identity)
        self._attach = attach
        self._results = 0

    def begin(self) -> None:
        """Offer the tool, if there is one."""
        if self._attach.tool is None or self.identity is None:
            super().begin()
        else:
            side_effects = self._attach.side_effects
            self.write(wire.register(self.identity.agent, self._attach.tool, side_effects=side_effects))

    def heard(self, message: wire.Envelope) -> None:
        """A call: from a relay as the caller wrote it, from an exchange in its own words."""
        if not message.type.endswith(".tool.call"):
            super().heard(message)
        elif not self._attach.hold:
            self._results += 1
            asked = wire.tool_call(message.payload)
            self.out.append(wire.frame(wire.result(self._results, message, asked)))


class Caller(Line):
    """Keeps a number of calls in flight."""

    def __init__(self, identity: Identity | None) -> None:
        super().__init__(identity)
        self._texts = Texts()
        self._calls = 0
        self._open = 0
        self._meter: Meter | None = None
        self._ended: asyncio.Future[None]
        self._next_tool: Callable[[], bytes]

    async def run(self, run: Run) -> Measured:
        """One load, until its last call has ended."""
        before = self._calls
        self._ended = asyncio.get_running_loop().create_future()
        self._meter = meter = Meter(run, time.perf_counter())
        self.open(run.load, run.tools)
        await self._ended
        return meter.measured(self._calls - before)

    def open(self, load: Load, tools: tuple[str, ...]) -> None:
        """Make as many calls as are to be in flight."""
        self._texts.use(load)
        self._next_tool = itertools.cycle([tool.encode() for tool in tools]).__next__
        for _ in range(load.in_flight):
            self._call()
        self.flush()

    def _call(self) -> None:
        self._calls += 1
        self._open += 1
        self.out.append(wire.frame(wire.call(self._calls, self._next_tool(), self._texts.body())))

    def heard(self, message: wire.Envelope) -> None:
        """A result makes room for the next call."""
        if not message.type.endswith(".tool.result"):
            super().heard(message)
            return
        result = wire.tool_result(message.payload)
        if result.status != "succeeded":
            raise Broken(f"a call ended as {result.status}: {bytes(message.payload)[:300]!r}")
        self._open -= 1
        assert self._meter is not None
        if self._meter.count(time.perf_counter()):
            self._call()
        elif self._open == 0:
            self._ended.set_result(None)


# --- the process ------------------------------------------------------------------------------------------------------


async def _attach(socket: str, lines: list[Line]) -> Attached:
    """Connect all at once, and wait for the last to be ready."""
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    async with asyncio.timeout(CONNECT_WITHIN_S):
        await asyncio.gather(*(loop.create_unix_connection(_made(line), socket) for line in lines))
        welcomed = await asyncio.gather(*(line.welcomed for line in lines))
        ready = await asyncio.gather(*(line.ready for line in lines))
    return Attached(max(welcomed) - begun, max(ready) - begun)


def _made(line: Line) -> Callable[[], Line]:
    return lambda: line


async def _beat(lines: list[Line]) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        for line in lines:
            if line.session_id:
                line.write(wire.heartbeat(line.session_id))


def end_on_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An end that goes on after a fault would only be waited for in vain."""
    sys.stderr.write(f"{context['message']}: {context.get('exception')!r}\n")
    sys.stderr.flush()
    os._exit(1)


async def main(role: str) -> None:
    """Do what is asked for until standard input is closed."""
    asyncio.get_running_loop().set_exception_handler(end_on_fault)
    lines: list[Line] = []
    heartbeats = asyncio.create_task(_beat(lines))
    answer(Done())
    async for command in commands():
        match command:
            case Attach():
                of_them = command.identities or (None,)
                added = [Caller(one) if role == "caller" else Provider(one, command) for one in of_them]
                answer(await _attach(command.socket, list(added)))
                lines += added
            case Run():
                caller = lines[0]
                assert isinstance(caller, Caller)
                answer(await caller.run(command))
            case Open():
                caller = lines[0]
                assert isinstance(caller, Caller)
                caller.open(command.load, command.tools)
                answer(Done())
    heartbeats.cancel()
    os._exit(0)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
