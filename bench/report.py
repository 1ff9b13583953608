"""A run as text: tables that read well in a terminal and are Markdown, so that ``docs/performance.md`` can take them.

Pure. A section that was not measured leaves no table; a cell that was not measured is a dash.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from bench.contenders import BARE_ANSWER, CONTENDERS, HTTP_CONTENDERS
from bench.loads import KIB, LARGE, SMALL, Load, percentile
from bench.plan import HTTP_LOADS, LOADS, USUAL
from bench.results import Cell, Printed, Results, Spread, Step, cell_of, ratio_of

MISSING: Final = "–"
# Of docs/performance.md: the section that a run writes, and the picture beside the page.
FIGURES: Final = "## Figures"
PICTURE: Final = "performance.svg"
_MIB: Final = KIB * KIB


class Goal(Struct, frozen=True):
    """A ratio that was set as a goal."""

    contender: str
    load: Load
    to: str
    least: float


GOALS: Final = (
    Goal("read-only", Load(64, SMALL), "relay", 0.50),
    Goal("read-only", Load(64, SMALL), "nats", 3.0),
    Goal("read-only", Load(64, SMALL), "mcp-stdio", 30.0),
    Goal("durable", Load(64, SMALL), "relay", 0.35),
    Goal("durable", Load(64, SMALL), "nats", 2.0),
    Goal("read-only", Load(1, SMALL), "relay", 0.60),
    Goal("read-only", Load(1, SMALL), "nats", 1.5),
    Goal("read-only", Load(64, LARGE, fresh=False), "relay", 0.60),
)
# Over HTTP: a ratio to the bare answer, and how many times their median 99 of 100 calls take at the most.
HTTP_GOALS: Final = (Goal("http-read-only", Load(64, SMALL), BARE_ANSWER.name, 0.50),)
TAILS: Final = (("http-read-only", Load(64, SMALL)), ("http-durable", Load(64, SMALL)))
MOST_TAIL: Final = 5.0
# What the process that answers is called: the first of these that a contender has.
SERVERS: Final = ("exchange", "server", "provider")
# Of spaces: a start's median over a plain shell's, one run beside many, memory while a command prints.
MOST_START_MS: Final = 25.0
LEAST_FILE_RATIO: Final = 5.0
MOST_OUTPUT_MIB: Final = 32.0
# Of OSSA: signing in the exchange beside signing alone, publishing beside JetStream, one subscriber of an event.
MOST_SIGNING: Final = 1.3
LEAST_PUBLISHING: Final = 0.5
MOST_TOLD_US: Final = 30.0
# Of jobs over Nostr: to three events through the same relay.
MOST_JOB: Final = 3.0
# Of MCP through the exchange: to FastMCP's proxy, to ContextForge, and CPU beyond two hops of the SDK.
LEAST_PROXY: Final = 5.0
LEAST_GATEWAY: Final = 50.0
MOST_BEYOND_US: Final = 100.0
# Of trajectories: the canonical form of 1 KB, and the check of 100,000 lines.
MOST_CANONICAL_US: Final = 10.0
MOST_CHECK_S: Final = 5.0
CHECKED_LINES: Final = 100_000
# Of the console: an entry on its way to a page, calls beside pages that watch, the first paint, all files of the page.
MOST_TOLD_MS: Final = 50.0
LEAST_KEPT: Final = 0.9
MOST_PAINT_MS: Final = 1000.0
MOST_PAGE_BYTES: Final = 300_000

_TITLES: Final = {contender.name: contender.title for contender in (*CONTENDERS, *HTTP_CONTENDERS)}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligned columns: the first to the left, figures to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    yield _line(head, widths)
    yield (
        "|"
        + "|".join(f":{'-' * (width + 1)}" if at == 0 else f"{'-' * (width + 1)}:" for at, width in enumerate(widths))
        + "|"
    )
    for row in rows:
        yield _line(row, widths)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if at == 0 else text.rjust(width)
        for at, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return f"| {' | '.join(cells)} |"


def lines(results: Results) -> Iterator[str]:
    """Everything that was found."""
    yield from _machine(results)
    parts = (
        _ratios,
        _rates,
        _cpu,
        _http,
        _goals,
        _pieces,
        _memory,
        _starts,
        _agents,
        _entries,
        _spaces,
        _chiffon,
        _ossa,
        _nostr,
        _trajectories,
        _console,
        _mounts,
        _contextforge,
    )
    for part in parts:
        shown = list(part(results))
        if shown:
            yield ""
            yield from shown


def page(text: str, results: Results, name: str) -> str:
    """The page with its figures replaced by those of this run, which is saved under ``name``."""
    before, heading, rest = text.partition(f"{FIGURES}\n")
    if not heading:
        raise ValueError(f"the page has no line {FIGURES!r}")
    at = rest.find("\n## ")
    after = "" if at < 0 else rest[at:]
    picture = ["", f"![The table as a picture]({PICTURE})"] if results.cells else []
    shown = "\n".join([f"From `{name}`:", "", *lines(results), *picture])
    return f"{before}{heading}\n{shown}\n{after}"


def ratio(found: Spread | None) -> str:
    """A ratio with its lowest and highest round; two significant digits below a tenth."""
    if found is None:
        return MISSING
    digits = 2 if found.median >= 0.095 else 3
    if found.low == found.high:
        return f"{found.median:.{digits}f}"
    return f"{found.median:.{digits}f} ({found.low:.{digits}f}–{found.high:.{digits}f})"


def _machine(results: Results) -> Iterator[str]:
    machine = results.machine
    yield (
        f"{machine.date} UTC, {results.plan} run of {results.seconds / 60:.1f} minutes, load of the machine "
        f"{machine.load_before:.1f} before and {machine.load_after:.1f} after. {machine.cores} × {machine.cpu}, "
        f"{machine.memory_bytes / KIB**3:.0f} GiB, {machine.kernel}, {machine.disk} (4 KiB and its sync: "
        f"{machine.sync_us:.0f} µs). Python {machine.python}, "
        f"{', '.join(f'{name} {version}' for name, version in machine.packages.items())}."
    )


def _ratios(results: Results) -> Iterator[str]:
    rows = _rows(results)
    if rows:
        rounds = max(len(cell.rates) for cell in results.cells)
        yield f"Calls a second as a ratio to the bare relay in the same round: median of {rounds} (lowest–highest)."
        yield ""
        body = [[title, *(ratio(results.ratio(name, load)) for load in LOADS)] for name, title in rows]
        yield from table(["calls in flight × text", *(load.title for load in LOADS)], body)


def _rates(results: Results) -> Iterator[str]:
    rows = _rows(results)
    if rows:
        yield "Calls a second, medians."
        yield ""
        body = [[title, *(_median(results.rates(name, load)) for load in LOADS)] for name, title in rows]
        yield from table(["calls in flight × text", *(load.title for load in LOADS)], body)


def _cpu(results: Results) -> Iterator[str]:
    rows = _rows(results)
    used = {(cell.contender, cell.load): sum(cell.cpu_us.values()) for cell in results.cells}
    if rows:
        yield "CPU µs for a call, all processes of a contender together: steadier than time on a busy machine."
        yield ""
        cells = [[used.get((name, load)) for load in LOADS] for name, _ in rows]
        body = [
            [title, *(MISSING if us is None else f"{us:,.0f}" for us in found)]
            for (_, title), found in zip(rows, cells, strict=True)
        ]
        yield from table(["calls in flight × text", *(load.title for load in LOADS)], body)


def _rows(results: Results) -> list[tuple[str, str]]:
    measured = {cell.contender for cell in results.cells}
    return [(contender.name, contender.title) for contender in CONTENDERS if contender.name in measured]


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f}" if values else MISSING


def _http(results: Results) -> Iterator[str]:
    if not results.http:
        return
    rounds = max(len(cell.rates) for cell in results.http)
    yield (
        f"Over HTTP/1.1 with keep-alive, texts of {SMALL} B, medians of {rounds}. The ratio is to the bare answer "
        "in the same round (lowest–highest), the times are those of one call, CPU is for a call."
    )
    yield ""
    measured = [
        cell
        for contender in HTTP_CONTENDERS
        for load in HTTP_LOADS
        if (cell := cell_of(results.http, contender.name, load)) is not None
    ]
    body = [
        [
            _TITLES[cell.contender],
            str(cell.load.in_flight),
            _median(cell.rates),
            ratio(ratio_of(results.http, cell.contender, cell.load, BARE_ANSWER.name)),
            _ms(cell.median_us),
            _ms(cell.p99_us),
            *_cpu_of(cell),
        ]
        for cell in measured
    ]
    head = ["", "in flight", "calls/s", "of the bare answer", "median, ms", "99 of 100, ms"]
    yield from table([*head, "CPU µs, server", "caller", "all processes"], body)


def _ms(times_us: Sequence[float]) -> str:
    return f"{statistics.median(times_us) / 1000:.2f}" if times_us else MISSING


def _cpu_of(cell: Cell) -> list[str]:
    """Of the process that answers, of the caller, of all together."""
    used = cell.cpu_us
    if not used:
        return [MISSING] * 3
    server = next(used[name] for name in SERVERS if name in used)
    return [f"{us:,.0f}" for us in (server, used["caller"], sum(used.values()))]


def _goals(results: Results) -> Iterator[str]:
    rows: list[list[str]] = []
    for goals, cells in ((GOALS, results.cells), (HTTP_GOALS, results.http)):
        for goal in goals:
            found = ratio_of(cells, goal.contender, goal.load, goal.to)
            if found is not None:
                what = f"{_TITLES[goal.contender]}, {goal.load.title}, of {_TITLES[goal.to]}"
                rows.append([what, f"≥ {goal.least:.2f}", ratio(found), _reached(found.median >= goal.least)])
    rows += _tail_goals(results)
    rows += _space_goals(results)
    if rows:
        yield "The goals."
        yield ""
        yield from table(["what", "goal", "measured", "reached"], rows)


def _tail_goals(results: Results) -> Iterator[list[str]]:
    for contender, load in TAILS:
        cell = cell_of(results.http, contender, load)
        found = None if cell is None else cell.tail()
        if found is not None:
            what = f"{_TITLES[contender]}, {load.title}, 99 of 100 calls, of their median"
            yield [what, f"≤ {MOST_TAIL:.2f}", ratio(found), _reached(found.median <= MOST_TAIL)]


def _space_goals(results: Results) -> Iterator[list[str]]:
    spaces = results.spaces
    if spaces is not None:
        start, files, more = spaces.room.overhead(50), spaces.files, spaces.printed.more_bytes / _MIB
        what = f"A space's {files.operations:,} file operations in one run, of a run for each"
        yield [
            "A space's shell start, beyond a plain shell's",
            f"≤ {MOST_START_MS:.0f} ms",
            f"{start:.1f} ms",
            _reached(start <= MOST_START_MS),
        ]
        yield [what, f"≥ {LEAST_FILE_RATIO:.2f}", f"{files.ratio:.2f}", _reached(files.ratio >= LEAST_FILE_RATIO)]
        yield [
            f"Memory while a command prints {_size(spaces.printed.size)}, beyond idle",
            f"≤ {MOST_OUTPUT_MIB:.0f} MiB",
            f"{more:.1f} MiB",
            _reached(more <= MOST_OUTPUT_MIB),
        ]


def _reached(is_reached: bool) -> str:
    return "yes" if is_reached else "no"


def _size(count: int) -> str:
    return f"{count / KIB**3:.0f} GiB" if count >= KIB**3 else f"{count / _MIB:.0f} MiB"


def _pieces(results: Results) -> Iterator[str]:
    if not results.pieces:
        return
    yield "CPU µs for a call, by piece of the exchange, and of the other processes."
    yield ""
    pure = list(results.pieces[0].pure)
    others = list(results.pieces[0].others)
    rows = []
    for found in results.pieces:
        parts = [
            *(found.pure[name] for name in pure),
            found.rest,
            found.exchange,
            *(found.others[name] for name in others),
        ]
        rows.append([f"{_TITLES[found.contender]}, {found.load.title}", *(f"{part:.1f}" for part in parts)])
    yield from table(["calls in flight × text", *pure, "sockets, loop", "exchange in all", *others], rows)


def _memory(results: Results) -> Iterator[str]:
    memory, flat = results.memory, results.flat
    if memory is not None:
        yield "Memory of the exchange's process (resident)."
        yield ""
        body = [
            ["idle connection", _kib(memory.idle_connection)],
            ["connection with a tool", _kib(memory.connection_with_tool)],
            ["call in flight", _kib(memory.open_call)],
            ["before anybody connects", f"{memory.empty / _MIB:.0f} MiB"],
        ]
        yield from table(["one more", "costs"], body)
    if flat is not None:
        yield from ["", "Memory as calls go by.", ""] if memory is not None else ["Memory as calls go by.", ""]
        body = [[f"{calls:,}", f"{rss / _MIB:.1f} MiB"] for calls, rss in zip(flat.calls, flat.rss, strict=True)]
        yield from table(["calls", "resident"], body)


def _kib(size: float) -> str:
    return f"{size / KIB:.1f} KiB"


def _starts(results: Results) -> Iterator[str]:
    if results.starts:
        yield "Seconds from the start of the process until it can be called."
        yield ""
        body = [
            [
                f"{start.entries:,}",
                f"{start.file_bytes / _MIB:,.0f} MiB",
                f"{start.folded_s:.2f}",
                f"{start.snapshot_s:.2f}",
            ]
            for start in results.starts
        ]
        yield from table(["entries", "file", "every entry folded and verified", "from a snapshot"], body)


def _agents(results: Results) -> Iterator[str]:
    if results.by_agents:
        yield f"Read-only calls a second as agents grow, {USUAL.title}."
        yield ""
        yield from _growth("agents", {"read-only": results.by_agents})
    if results.herd is not None:
        if results.by_agents:
            yield ""
        herd = results.herd
        yield (
            f"{herd.agents} agents that connect at once: all are welcomed after {herd.welcomed_s:.2f} s, "
            f"all have their tool confirmed after {herd.ready_s:.2f} s."
        )


def _entries(results: Results) -> Iterator[str]:
    if results.by_entries:
        yield f"Calls a second as the ledger grows, {USUAL.title}."
        yield ""
        yield from _growth("entries", results.by_entries)


def _growth(what: str, series: dict[str, tuple[Step, ...]]) -> Iterator[str]:
    head = [what]
    for name in series:
        head += [f"{name}, calls/s", "of the relay"]
    rows = []
    for steps in zip(*series.values(), strict=True):
        row = [f"{steps[0].size:,}"]
        for step in steps:
            beside = [rate / relay for rate, relay in zip(step.rates, step.relay, strict=True)]
            row += [_median(step.rates), ratio(Spread.of(beside))]
        rows.append(row)
    yield from table(head, rows)


def _spaces(results: Results) -> Iterator[str]:
    spaces = results.spaces
    if spaces is None:
        return
    pairs = len(spaces.room.ours_ms)
    yield f"Milliseconds that a command's start in a space takes beyond a plain `sh -c true`, {pairs} pairs."
    yield ""
    rows = [
        [title, *(f"{value:.1f}" for value in (starts.overhead(0), starts.overhead(50), starts.overhead(90)))]
        for title, starts in (("the sandbox itself", spaces.room), ("a shell operation over HTTP", spaces.exchange))
    ]
    yield from table(["", "lowest", "median", "90 of 100"], rows)
    yield ""
    yield "Seconds for small file operations over HTTP."
    yield ""
    rows = [
        [f"{runs.operations:,} {what}", f"{runs.together_s:.2f}", f"{runs.apart_s:.2f}", f"{runs.ratio:.1f}"]
        for what, runs in (("creating, reading, editing, deleting in turn", spaces.files), ("reading", spaces.reads))
    ]
    yield from table(["", "in one run", "in a run for each", "times as fast"], rows)
    yield ""
    yield _printed("A command that prints {}", spaces.printed)


def _chiffon(results: Results) -> Iterator[str]:
    chiffon = results.chiffon
    if chiffon is None:
        return
    yield f"Milliseconds from dispatch to result, {len(chiffon.ours_ms)} tasks one after the other, everything on disk."
    yield ""
    rows = [
        [title, *(f"{percentile(times, percent):.1f}" for percent in (50, 90, 99))]
        for title, times in (("Chiffon over JetStream", chiffon.ours_ms), ("Celery with Redis", chiffon.celery_ms))
        if times
    ]
    yield from table(["", "median", "90 of 100", "99 of 100"], rows)
    yield ""
    yield _printed("An output of {} in chunks", chiffon.printed)


def _ossa(results: Results) -> Iterator[str]:
    ossa = results.ossa
    if ossa is None:
        return
    alone_us = percentile(ossa.alone_us, 50)
    yield "OSSA, each beside its goal."
    yield ""
    rows = [
        [
            "CPU that signatures add to a request and its response, to one signed and one checked alone",
            f"{ossa.added_us:.0f} µs to {alone_us:.0f} µs",
            f"{ossa.added_us / alone_us:.2f}",
            f"at most {MOST_SIGNING}",
        ],
    ]
    rows += [
        [
            f"Events published and acknowledged a second, {one.in_flight} under way, to JetStream",
            f"{percentile(one.ours, 50):,.0f} to {percentile(one.jetstream, 50):,.0f}",
            ratio(one.ratio),
            f"at least {LEAST_PUBLISHING}",
        ]
        for one in ossa.published
    ]
    told = f"An event for {ossa.subscribers} subscribers in the hub, for each of them"
    rows.append([told, f"{ossa.told_us:.1f} µs", "", f"at most {MOST_TOLD_US:.0f} µs"])
    yield from table(["", "", "ratio", "goal"], rows)


def _nostr(results: Results) -> Iterator[str]:
    found = results.nostr
    if found is None:
        return
    job_us, events_us = percentile(found.job_us, 50), percentile(found.events_us, 50)
    yield "Jobs over Nostr, beside their goal."
    yield ""
    told = f"{job_us / 1000:.1f} ms to {events_us / 1000:.1f} ms"
    what = "From a request to its result, to three events through the embedded relay"
    yield from table(["", "", "ratio", "goal"], [[what, told, ratio(found.ratio), f"at most {MOST_JOB:.0f}"]])


def _trajectories(results: Results) -> Iterator[str]:
    found = results.trajectories
    if found is None:
        return
    yield "Trajectories, each beside its goal."
    yield ""
    form = f"The canonical form of {found.value_bytes:,} bytes"
    rows = [[form, f"{percentile(found.canonical_us, 50):.1f} µs", "", f"at most {MOST_CANONICAL_US:.0f} µs"]]
    rows += [
        [
            f"`trunkline replay` with {one.lines:,} lines, {_size(one.bytes)}",
            f"{one.seconds:.2f} s",
            f"{one.peak_rss / _MIB:.0f} MiB",
            f"at most {MOST_CHECK_S:.0f} s" if one.lines == CHECKED_LINES else "",
        ]
        for one in found.checked
    ]
    yield from table(["", "", "memory", "goal"], rows)


def _console(results: Results) -> Iterator[str]:
    found = results.console
    if found is None:
        return
    watched = found.watched
    rate = f"{watched.calls_a_second:,.0f} calls a second"
    yield f"The console, each beside its goal; {watched.pages} pages watch while {rate} run."
    yield ""
    rows = [
        [
            "An entry reaches a page: median, 95 of 100",
            f"{watched.median_ms:.0f} ms, {watched.high_ms:.0f} ms",
            f"at most {MOST_TOLD_MS:.0f} ms",
            _reached(watched.median_ms <= MOST_TOLD_MS),
        ],
        [
            "The calls' rate beside nobody watching",
            f"{watched.kept:.2f}",
            f"at least {LEAST_KEPT}",
            _reached(watched.kept >= LEAST_KEPT),
        ],
        [
            "All files of the page",
            f"{found.page_bytes / 1000:,.0f} KB",
            f"less than {MOST_PAGE_BYTES / 1000:.0f} KB",
            _reached(found.page_bytes < MOST_PAGE_BYTES),
        ],
    ]
    if found.paint_ms:
        paint = statistics.median(found.paint_ms)
        what = f"The first paint in a new profile, median of {len(found.paint_ms)}"
        rows.append([what, f"{paint:.0f} ms", f"less than {MOST_PAINT_MS:.0f} ms", _reached(paint < MOST_PAINT_MS)])
    yield from table(["", "", "goal", "reached"], rows)


def _mounts(results: Results) -> Iterator[str]:
    found = results.mounts
    if found is None:
        return
    yield "Tools of a mounted MCP server, called over `/mcp`, each beside its goal."
    yield ""
    rows = [
        [
            f"Calls a second, {in_flight} under way, to FastMCP's proxy with a shared session",
            f"{percentile(one.rates, 50):,.0f} to {percentile(other.rates, 50):,.0f}",
            ratio(found.ratios[in_flight]),
            f"at least {LEAST_PROXY}",
        ]
        for in_flight in found.ratios
        if (one := found.of("mcp", in_flight)) is not None and (other := found.of("fastmcp", in_flight)) is not None
    ]
    rows.append(
        [
            "CPU of the exchange for a call, to FastMCP's for two hops of the SDK",
            f"{found.mcp_us:.0f} µs to {found.cpu('fastmcp'):.0f} µs" if found.ratios else f"{found.mcp_us:.0f} µs",
            "",
            f"at most {MOST_BEYOND_US:.0f} µs beyond them",
        ]
    )
    plain = f"{found.cpu('http'):.0f} µs"
    rows.append(
        [
            f"The same over `/v1/calls`: {plain}; beyond it",
            f"{found.added_us:.0f} µs",
            "",
            f"at most {MOST_BEYOND_US:.0f} µs",
        ]
    )
    yield from table(["", "", "ratio", "goal"], rows)


def _contextforge(results: Results) -> Iterator[str]:
    found = results.contextforge
    if found is None:
        return
    yield "Tools of an MCP server at a URL, called over `/mcp`, beside ContextForge."
    yield ""
    rows = []
    for in_flight, spread in found.ratios_to("contextforge").items():
        one, other = found.of("mcp", in_flight), found.of("contextforge", in_flight)
        assert one is not None
        assert other is not None
        rates = f"{percentile(one.rates, 50):,.0f} to {percentile(other.rates, 50):,.0f}"
        cpu = f"{percentile(one.cpu_us, 50):,.0f} µs to {percentile(other.cpu_us, 50):,.0f} µs"
        rows.append([f"{in_flight} under way", rates, ratio(spread), f"at least {LEAST_GATEWAY:.0f}", cpu])
    yield from table(["", "calls a second", "ratio", "goal", "CPU of a call"], rows)


def _printed(what: str, printed: Printed) -> str:
    return (
        f"{what.format(_size(printed.size))} takes {printed.seconds:.1f} s; the exchange has "
        f"{printed.idle_rss / _MIB:.0f} MiB before and {printed.peak_rss / _MIB:.0f} MiB at the most."
    )
