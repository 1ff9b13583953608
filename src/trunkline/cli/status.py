"""``trunkline status``: what runs here, where it listens, and how busy it is.

Addresses come from ``ready.json``, figures from ``GET /v1/status``.

Owns the lines and their order. Does not own the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import duration, hinted, printable, say, typed
from trunkline.sizes import shown_size

# What ``ready.json`` says besides the listeners.
_NOT_LISTENERS = {"pid", "start_time", "operator_token_file", "version"}


@click.command()
@shared
def status(settings: CommandSettings) -> None:
    """What runs here, since when, how busy it is; what is off and why; what went wrong in the exchange itself."""
    exchange = settings.connect()
    figures: dict[str, Any] = exchange.get(at("status"))
    if settings.shown_as_json({**exchange.ready, **figures, "home": str(exchange.home.path)}):
        return
    ready = exchange.ready
    _line("running", f"pid {ready['pid']}, up {duration(float(figures.get('uptime_s', 0)))}")
    _line("home", str(exchange.home.path))
    listeners = {name: value for name, value in ready.items() if name not in _NOT_LISTENERS}
    for name, value in listeners.items():
        if value is not None:
            _line(name, str(value))
    edges = figures.get("edges") or {}
    _off([name for name, value in listeners.items() if value is None], edges, figures.get("not_built") or ())
    _edges(edges)
    _line("agents", f"{figures.get('agents', 0)} attached, {figures.get('tools', 0)} tools")
    away = [one for one in exchange.get(at("agents"))["agents"] if one["state"] in {"crashed", "backoff", "signed-out"}]
    if away:
        names = ", ".join(one["agent_id"] for one in away[:3]) + (", …" if len(away) > 3 else "")
        _line("away", f"{len(away)} of those to launch: {names}: {typed('agents')}")
    _line("calls", f"{_counts(figures.get('open_calls'), 'open')}; {_counts(figures.get('settled_calls'), 'ended')}")
    if figures.get("refused_calls"):
        _line("refused", f"{_counts(figures['refused_calls'], 'since the start')}: {typed('calls --refused')}")
    if figures.get("subscriptions") or figures.get("owed_events"):
        owed = f"{figures.get('owed_events', 0):,} events owed ({figures.get('owed_event_bytes', 0):,} bytes)"
        _line("topics", f"{figures.get('subscriptions', 0):,} subscriptions, {owed}")
    questions = figures.get("questions", 0)
    _line("questions", f"{questions} open" + (f": {typed('approvals')}" if questions else ""))
    _line("ledger", f"{figures.get('entries', 0):,} entries, {figures.get('backlog', 0):,} on their way to disk")
    if "disk_free_bytes" in figures:
        free, total = shown_size(figures["disk_free_bytes"]), shown_size(figures["disk_total_bytes"])
        _line("disk", f"{free} of {total} free; the record has {shown_size(figures.get('ledger_bytes', 0))}")
    if figures.get("entries_signed"):
        published = f", published up to {figures['entries_anchored']:,}" if figures.get("entries_anchored") else ""
        _line("signed", f"up to {figures['entries_signed']:,}{published}")
    for warning in figures.get("warnings") or ():
        _line("warning", str(warning))
    defects = figures.get("defects", 0)
    if defects:
        _line("defects", f"{defects:,} met since the start: {typed('ledger show --last 100')}")


def _off(names: list[str], edges: Mapping[str, Any], not_built: Collection[str]) -> None:
    """What does not listen: because nobody asked for it, or because this release does not have it."""
    unset = [name for name in names if name not in not_built and name not in edges]
    missing = [name for name in names if name in not_built]
    if unset:
        _line("off", f"{', '.join(unset)}: not configured")
    if missing:
        _line("off", f"{', '.join(missing)}: not part of this release")


def _edges(edges: Mapping[str, Any]) -> None:
    """The figures of each edge; why one is off, or what it cannot do here."""
    for name, figures in edges.items():
        note = "; ".join(str(figures[key]) for key in ("note", "not_installed") if figures.get(key))
        if figures.get("state") == "off":
            _line("off", f"{name}: {note or 'it does not run'}")
            continue
        shown = [_figure(key, value) for key, value in figures.items() if key not in {"state", "note", "not_installed"}]
        if shown or note:
            _line(name, "; ".join(filter(None, [", ".join(shown), note])))


def _figure(name: str, value: object) -> str:
    """``3 open runs``, ``broker connected``."""
    words = name.replace("_", " ")
    return f"{value:,} {words}" if isinstance(value, int) else f"{words} {value}"


def _line(name: str, text: str) -> None:
    say(f"{name:<13} {hinted(printable(text))}")


def _counts(figure: object, word: str) -> str:
    """``3 open (2 running, 1 queued)``."""
    counts = {str(name): int(count) for name, count in figure.items() if count} if isinstance(figure, dict) else {}
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"{sum(counts.values()):,} {word}" + (f" ({parts})" if parts else "")
