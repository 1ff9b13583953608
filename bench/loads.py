"""What a caller is asked to do, and what it says of it: the words between the run and its processes.

Owns the loads, the bodies, the counting of calls and the line protocol on a process's standard input and output. It
does not know how a call is made; each contender does.

Invariant: a window opens and closes with the end of a call, so its length is that of whole calls, and every contender
is counted by the same code.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

KIB: Final = 1024
SMALL: Final = 200
# As JSON it is a few bytes above what the ledger keeps inside an entry: a repeated body is stored once.
LARGE: Final = 64 * KIB
# A thousand identities with their tokens fit on one line.
MAX_LINE_BYTES: Final = 1024 * KIB

_SENTENCE: Final = "A trunk line joins telephone exchanges, and this one joins the tools of many agents. "
# Digits that make a body new; the same number of them in every body.
_NUMBER_DIGITS: Final = 12


class Load(Struct, frozen=True):
    """One column of the table: a closed loop of ``in_flight`` calls whose input and output is a text of this size."""

    in_flight: int
    text_bytes: int
    # Every body is new; otherwise one body is repeated.
    fresh: bool = True

    @property
    def title(self) -> str:
        """As it stands above the column."""
        size = f"{self.text_bytes} B" if self.text_bytes < KIB else f"{self.text_bytes // KIB} KiB"
        repeated = "" if self.text_bytes < KIB else ", new" if self.fresh else ", repeated"
        return f"{self.in_flight} × {size}{repeated}"


class Identity(Struct, frozen=True):
    """Who a raw end says it is. The token travels on standard input: a command line is everybody's to read."""

    agent: str
    token: str


class Attach(Struct, frozen=True, tag=True):
    """Connect, once for each identity, or once without any to the bare relay; answered with ``Attached``."""

    socket: str
    identities: tuple[Identity, ...] = ()
    # The tool that each connection offers, if it offers one.
    tool: str | None = None
    side_effects: bool = False
    # Never answer a call: they stay in flight.
    hold: bool = False


class Run(Struct, frozen=True, tag=True):
    """Keep the load up for ``warm_s``, then count for ``measure_s``; answered with ``Measured``."""

    load: Load
    warm_s: float
    measure_s: float
    # Called in turn.
    tools: tuple[str, ...]


class Open(Struct, frozen=True, tag=True):
    """Put so many calls in flight and do not wait for their ends; answered with ``Done``."""

    load: Load
    tools: tuple[str, ...]


class Target(Struct, frozen=True, tag=True):
    """Where an HTTP caller sends its requests, and with which token; answered with ``Done``."""

    # Host and port.
    address: str
    token: str


class Attached(Struct, frozen=True):
    """All connections stand: seconds until the last welcome, and until the last tool was confirmed."""

    welcomed_s: float
    ready_s: float


class Measured(Struct, frozen=True):
    """``calls`` ended in ``seconds``; ``total`` were made, the warm-up and the end of the loop included."""

    calls: int
    seconds: float
    total: int
    # What one call took, and 99 of 100 at the most; 0 from a caller that does not time each of its calls.
    median_us: float = 0.0
    p99_us: float = 0.0

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


class Done(Struct, frozen=True):
    """It was done."""


Command = Attach | Run | Open | Target


def percentile(times: Sequence[float], percent: int) -> float:
    """The time within which so many of a hundred ended; 0 if there is none."""
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)] if times else 0.0


class Texts:
    """Bodies of a load. Numbers go on from one load to the next, so that a new body is new for the whole run."""

    def __init__(self) -> None:
        self._number = 0
        self._size = 0
        self._fresh = True
        self._rest = ""
        self._repeated = ""
        self._body_rest = b""
        self._repeated_body = b""

    def use(self, load: Load) -> None:
        """Make bodies for this load from here on."""
        self._fresh = load.fresh
        size = load.text_bytes
        self._rest = (_SENTENCE * (size // len(_SENTENCE) + 1))[: size - _NUMBER_DIGITS]
        self._body_rest = self._rest.encode() + b'"}'
        self._repeated = "0" * _NUMBER_DIGITS + self._rest
        self._repeated_body = b'{"text":"%s"}' % self._repeated.encode()

    def text(self) -> str:
        """The next text."""
        if not self._fresh:
            return self._repeated
        self._number += 1
        return f"{self._number:012d}{self._rest}"

    def body(self) -> bytes:
        """The next text as a JSON body."""
        if not self._fresh:
            return self._repeated_body
        self._number += 1
        return b'{"text":"%012d%s' % (self._number, self._body_rest)


class Meter:
    """Counts the calls of one run."""

    def __init__(self, run: Run, now: float) -> None:
        self._warm_until = now + run.warm_s
        self._measure_s = run.measure_s
        self._begun: float | None = None
        self._ended: float | None = None
        self._end_at = 0.0
        self._calls = 0
        self._times: list[float] = []

    def count(self, now: float, began: float | None = None) -> bool:
        """One more call ended, which began then; whether another may begin."""
        if self._ended is not None:
            return False
        if self._begun is not None:
            self._calls += 1
            if began is not None:
                self._times.append(now - began)
            if now >= self._end_at:
                self._ended = now
                return False
        elif now >= self._warm_until:
            self._begun = now
            self._end_at = now + self._measure_s
        return True

    def measured(self, total: int) -> Measured:
        """What was counted; ``total`` is what the caller made in all."""
        assert self._begun is not None
        assert self._ended is not None
        median, p99 = (percentile(self._times, percent) * 1e6 for percent in (50, 99))
        return Measured(self._calls, self._ended - self._begun, total, median, p99)


async def closed_loop(run: Run, texts: Texts, call: Callable[[Texts], Awaitable[None]]) -> Measured:
    """A run for contenders whose client library has a call that one awaits."""
    texts.use(run.load)
    meter = Meter(run, time.perf_counter())
    total = 0

    async def one_after_the_other() -> None:
        nonlocal total
        goes_on = True
        while goes_on:
            total += 1
            began = time.perf_counter()
            await call(texts)
            goes_on = meter.count(time.perf_counter(), began)

    await asyncio.gather(*(one_after_the_other() for _ in range(run.load.in_flight)))
    return meter.measured(total)


# --- the line protocol ------------------------------------------------------------------------------------------------

_command = msgspec.json.Decoder(Command)


async def commands() -> AsyncIterator[Command]:
    """What the run asks for, until it closes our standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield _command.decode(line)


def answer(value: Struct) -> None:
    """Say it to the run."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


async def obey(call: Callable[[Texts], Awaitable[None]]) -> None:
    """A caller's life: say that it is there, run what is asked for."""
    texts = Texts()
    answer(Done())
    async for command in commands():
        assert isinstance(command, Run)
        answer(await closed_loop(command, texts, call))


async def wait_for_end() -> None:
    """A server's life: say that it is there, stay until the run closes our standard input."""
    answer(Done())
    async for _ in commands():
        raise AssertionError("a server is asked for nothing")
