"""What a run found, as plain values: saved as JSON, shown by ``report`` and ``picture``.

Owns the shapes and the few lines of statistics. Everything that was measured is kept, round by round, so that another
median or another table can be made of a saved run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct

from bench.loads import Load, percentile


class Spread(Struct, frozen=True):
    """The median of some rounds, and how far they lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Cell(Struct, frozen=True, omit_defaults=True):
    """One contender under one load: calls a second in each round, CPU of each of its processes for a call."""

    contender: str
    load: Load
    rates: tuple[float, ...]
    cpu_us: dict[str, float] = {}
    # What a call took in each round, and 99 of 100 at the most; empty where the caller does not time each call.
    median_us: tuple[float, ...] = ()
    p99_us: tuple[float, ...] = ()

    def tail(self) -> Spread | None:
        """How many times the median 99 of 100 calls took at the most, within each round."""
        times = [p99 / median for p99, median in zip(self.p99_us, self.median_us, strict=True)]
        return Spread.of(times) if times else None


def cell_of(cells: Sequence[Cell], contender: str, load: Load) -> Cell | None:
    """The cell of this contender under this load, if it was measured."""
    return next((cell for cell in cells if (cell.contender, cell.load) == (contender, load)), None)


def ratio_of(cells: Sequence[Cell], contender: str, load: Load, to: str) -> Spread | None:
    """Of the other's rate in the same round, so that a slow minute of the machine counts for both."""
    one, other = cell_of(cells, contender, load), cell_of(cells, to, load)
    if one is None or other is None:
        return None
    ratios = [rate / beside for rate, beside in zip(one.rates, other.rates, strict=False)]
    return Spread.of(ratios) if ratios else None


class Step(Struct, frozen=True):
    """Calls a second at one size of something that grows, and those of the bare relay in the same rounds."""

    size: int
    rates: tuple[float, ...]
    relay: tuple[float, ...]


class Start(Struct, frozen=True):
    """From the start of the process until it can be called."""

    entries: int
    file_bytes: int
    # Every entry folded and verified; and from the snapshot that a clean stop leaves.
    folded_s: float
    snapshot_s: float


class Memory(Struct, frozen=True):
    """Bytes of the exchange's process, for one more of each."""

    idle_connection: float
    connection_with_tool: float
    open_call: float
    # The process before anybody connected.
    empty: int


class Herd(Struct, frozen=True):
    """Agents that connect at once: seconds until the last is welcomed, and until the last has its tool confirmed."""

    agents: int
    welcomed_s: float
    ready_s: float


class Pieces(Struct, frozen=True):
    """CPU µs for a call, by piece. ``exchange`` and ``others`` are whole processes in a live run."""

    contender: str
    load: Load
    pure: dict[str, float]
    exchange: float
    others: dict[str, float]

    @property
    def rest(self) -> float:
        """What the exchange's process uses beyond the pure pieces: sockets, the loop, the pipe to the writer."""
        return max(0.0, self.exchange - sum(self.pure.values()))


class Flat(Struct, frozen=True):
    """Memory of the exchange's process as calls go by."""

    calls: tuple[int, ...]
    rss: tuple[int, ...]


class Starts(Struct, frozen=True):
    """Milliseconds of a plain ``sh -c true``, and of the same in a sandbox right after it."""

    plain_ms: tuple[float, ...]
    ours_ms: tuple[float, ...]

    def overhead(self, percent: int) -> float:
        """What the sandbox adds at the most in so many of a hundred pairs; 0 is the lowest."""
        more = sorted(ours - plain for ours, plain in zip(self.ours_ms, self.plain_ms, strict=True))
        return statistics.median(more) if percent == 50 else more[max(0, -(-percent * len(more) // 100) - 1)]


class FileRuns(Struct, frozen=True):
    """Small file operations over HTTP: seconds for all of them in one run, and for a run of each."""

    operations: int
    together_s: float
    apart_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast one run is."""
        return self.apart_s / self.together_s


class Printed(Struct, frozen=True):
    """A command that prints much: memory of the exchange's process before, and the most it had meanwhile."""

    size: int
    seconds: float
    idle_rss: int
    peak_rss: int

    @property
    def more_bytes(self) -> int:
        """Beyond idle."""
        return self.peak_rss - self.idle_rss


class Spaces(Struct, frozen=True):
    """Starts of a command in the sandbox itself and as an operation over HTTP, file operations, output."""

    room: Starts
    exchange: Starts
    files: FileRuns
    # The same with operations that change nothing, and so wait for no disk.
    reads: FileRuns
    printed: Printed


class Chiffon(Struct, frozen=True):
    """Milliseconds from dispatch to result, each call by itself; and a large output in chunks."""

    ours_ms: tuple[float, ...]
    # Empty where Celery or Redis is missing.
    celery_ms: tuple[float, ...]
    printed: Printed

    @staticmethod
    def median(times: tuple[float, ...]) -> float:
        """The middle one; 0 if none was measured."""
        return percentile(times, 50)


class Publishing(Struct, frozen=True):
    """Events a second, each acknowledged once it is on disk, with so many under way; in each round."""

    in_flight: int
    ours: tuple[float, ...]
    jetstream: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        """Ours to JetStream's."""
        return Spread.of([mine / other for mine, other in zip(self.ours, self.jetstream, strict=True)])


class Checking(Struct, frozen=True):
    """A trajectory that was checked by a process of its own: its size, how long it took, the most memory it had."""

    lines: int
    bytes: int
    seconds: float
    peak_rss: int


class Trajectories(Struct, frozen=True):
    """The canonical form of one value, and files that were checked, the smallest first."""

    value_bytes: int
    canonical_us: tuple[float, ...]
    checked: tuple[Checking, ...]


class Ossa(Struct, frozen=True):
    """What signatures cost, publishing, and one event for many."""

    # Microseconds of the exchange's CPU for a request and its response, in each round.
    signed_us: tuple[float, ...]
    unsigned_us: tuple[float, ...]
    # To sign one message and to check one: what is not done for unsigned ones.
    alone_us: tuple[float, ...]
    published: tuple[Publishing, ...]
    subscribers: int
    # In the hub, for each subscriber of one event.
    told_us: float

    @property
    def added_us(self) -> float:
        """What signed messages cost beyond unsigned ones."""
        return percentile(self.signed_us, 50) - percentile(self.unsigned_us, 50)


class Watched(Struct, frozen=True):
    """Pages that watch while calls run: how long entries take to them, and what is left of the calls' rate."""

    pages: int
    calls_a_second: float
    # The same with nobody watching.
    alone_a_second: float
    median_ms: float
    high_ms: float

    @property
    def kept(self) -> float:
        """The part of the calls' rate that is left."""
        return self.calls_a_second / self.alone_a_second


class Console(Struct, frozen=True):
    """Pages that watch, the weight of all files of the page, and the first paint in a new profile each time."""

    watched: Watched
    page_bytes: int
    # Empty where there is no browser.
    paint_ms: tuple[float, ...]


class Jobs(Struct, frozen=True):
    """Microseconds from a request to its result over Nostr, and of three events through the same relay; by round."""

    job_us: tuple[float, ...]
    events_us: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        """A job to the three events."""
        return Spread.of([job / events for job, events in zip(self.job_us, self.events_us, strict=True)])


class Middle(Struct, frozen=True):
    """What is between a caller of MCP and a server: calls a second, and its CPU for one of them, in each round."""

    # ``mcp`` and ``http`` are the exchange, called by either; ``fastmcp`` is FastMCP's proxy, ``contextforge`` itself.
    name: str
    in_flight: int
    rates: tuple[float, ...]
    cpu_us: tuple[float, ...]


class Mounts(Struct, frozen=True):
    """Calls of a mounted server."""

    middles: tuple[Middle, ...]

    def of(self, name: str, in_flight: int) -> Middle | None:
        """One of them, if it was measured."""
        return next((one for one in self.middles if (one.name, one.in_flight) == (name, in_flight)), None)

    def cpu(self, name: str) -> float:
        """CPU for a call, with as many in flight as there were; the median. 0 if it was not measured."""
        found = [one for one in self.middles if one.name == name]
        return percentile(found[-1].cpu_us, 50) if found else 0.0

    @property
    def mcp_us(self) -> float:
        """Over ``/mcp``."""
        return self.cpu("mcp")

    @property
    def added_us(self) -> float:
        """What a call over ``/mcp`` costs beyond the same over ``/v1/calls``."""
        return self.cpu("mcp") - self.cpu("http")

    @property
    def ratios(self) -> dict[int, Spread]:
        """Of FastMCP's rate in the same round, by the number of calls in flight."""
        return self.ratios_to("fastmcp")

    def ratios_to(self, name: str) -> dict[int, Spread]:
        """Of another's rate in the same round, by the number of calls in flight."""
        found: dict[int, Spread] = {}
        for one in self.middles:
            other = self.of(name, one.in_flight)
            if one.name == "mcp" and other is not None:
                pairs = zip(one.rates, other.rates, strict=True)
                found[one.in_flight] = Spread.of([ours / theirs for ours, theirs in pairs])
        return found


class Machine(Struct, frozen=True):
    """What the run ran on."""

    date: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    disk: str
    # An append of 4 KiB and its fdatasync: what a durable call at least waits for, twice.
    sync_us: float
    load_before: float
    load_after: float = 0.0
    packages: dict[str, str] = {}


class Results(Struct, omit_defaults=True):
    """One run. A section that was not asked for is empty."""

    machine: Machine
    plan: str
    seconds: float = 0.0
    cells: tuple[Cell, ...] = ()
    # Calls over HTTP, beside the bare answer instead of the bare relay.
    http: tuple[Cell, ...] = ()
    pieces: tuple[Pieces, ...] = ()
    memory: Memory | None = None
    starts: tuple[Start, ...] = ()
    by_agents: tuple[Step, ...] = ()
    # By the contender's name.
    by_entries: dict[str, tuple[Step, ...]] = {}
    herd: Herd | None = None
    flat: Flat | None = None
    spaces: Spaces | None = None
    chiffon: Chiffon | None = None
    ossa: Ossa | None = None
    trajectories: Trajectories | None = None
    console: Console | None = None
    nostr: Jobs | None = None
    mounts: Mounts | None = None
    contextforge: Mounts | None = None

    def rates(self, contender: str, load: Load) -> tuple[float, ...]:
        """Calls a second in each round; nothing if it was not measured."""
        cell = cell_of(self.cells, contender, load)
        return () if cell is None else cell.rates

    def ratio(self, contender: str, load: Load, to: str = "relay") -> Spread | None:
        """Of the other's rate, in the table."""
        return ratio_of(self.cells, contender, load, to)
