"""The exchange's figures as Prometheus text (exposition format 0.0.4).

Owns the metric names, which are part of the surface: they are added, never renamed. ``prometheus_client`` is not
used: we only show numbers that the exchange counts anyway, and its import (90 ms) is a tenth of the time in which
``up`` has to be ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MEDIA_TYPE: Final = "text/plain; version=0.0.4"


class Metric(NamedTuple):
    """One family: the figure it shows, and the label that tells the values of a figure with several apart."""

    figure: str
    name: str
    kind: str
    text: str
    label: str = ""


METRICS: Final = (
    Metric("uptime_s", "trunkline_uptime_seconds", "gauge", "Time since the exchange was ready."),
    Metric("agents", "trunkline_agents", "gauge", "Agents attached now."),
    Metric("tools", "trunkline_tools", "gauge", "Tools registered now."),
    Metric("questions", "trunkline_questions", "gauge", "Questions that wait for a person."),
    Metric("subscriptions", "trunkline_subscriptions", "gauge", "Subscriptions to topics."),
    Metric("owed_events", "trunkline_owed_events", "gauge", "Events that subscriptions have not taken yet."),
    Metric("owed_event_bytes", "trunkline_owed_event_bytes", "gauge", "What these count together."),
    Metric("events", "trunkline_events_total", "counter", "Events on topics since start.", "what"),
    Metric("open_calls", "trunkline_open_calls", "gauge", "Calls without an outcome.", "status"),
    Metric("settled_calls", "trunkline_settled_calls_total", "counter", "Calls with an outcome since start.", "status"),
    Metric("refused_calls", "trunkline_refused_calls_total", "counter", "Calls that were not taken on.", "code"),
    Metric("resent_calls", "trunkline_resent_calls_total", "counter", "Deliveries after the first one."),
    Metric("defects", "trunkline_defects_total", "counter", "Defects of the exchange itself that were met."),
    Metric("sessions", "trunkline_sessions", "gauge", "Conversations open on all edges."),
    Metric("entries", "trunkline_ledger_entries", "gauge", "Number of the newest ledger entry."),
    Metric("entries_on_disk", "trunkline_ledger_entries_on_disk", "gauge", "Number of the newest entry on disk."),
    Metric("backlog", "trunkline_ledger_backlog", "gauge", "Entries that wait to be written."),
    Metric("ledger_bytes", "trunkline_ledger_bytes", "gauge", "Size of the record on disk."),
    Metric("disk_free_bytes", "trunkline_disk_free_bytes", "gauge", "Room that is left on the disk of the home."),
    Metric("disk_total_bytes", "trunkline_disk_total_bytes", "gauge", "Size of the disk of the home."),
    Metric("brokers", "trunkline_broker_connected", "gauge", "Whether a configured broker is there.", "edge"),
)
DURATIONS: Final = "trunkline_call_duration_seconds"


def text(figures: Mapping[str, object]) -> str:
    """All families whose figure the exchange gives."""
    lines: list[str] = []
    shown = {**figures, "brokers": _brokers(figures.get("edges"))}
    for metric in METRICS:
        samples = _samples(metric, shown.get(metric.figure))
        if samples:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *samples]
    lines += _durations(figures.get("call_durations"))
    lines += _of_edges(figures.get("edges"))
    return "".join(f"{line}\n" for line in lines)


def _of_edges(edges: object) -> list[str]:
    """What each edge counts for ``status``, whichever edges there are."""
    if not isinstance(edges, Mapping):
        return []
    samples = [
        f'trunkline_edge{{edge="{_escaped(name)}",figure="{_escaped(figure)}"}} {value}'
        for name, told in sorted(edges.items())
        for figure, value in sorted(told.items())
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if not samples:
        return []
    text = "Figures of each edge, as `trunkline status` has them."
    return [f"# HELP trunkline_edge {text}", "# TYPE trunkline_edge gauge", *samples]


def _samples(metric: Metric, figure: object) -> list[str]:
    if metric.label and isinstance(figure, Mapping):
        return [f'{metric.name}{{{metric.label}="{_escaped(key)}"}} {value}' for key, value in sorted(figure.items())]
    return [f"{metric.name} {figure}"] if isinstance(figure, int | float) else []


def _brokers(edges: object) -> dict[str, int]:
    """By edge: 1 if its broker is there, 0 if it is away; edges without one are not named."""
    told = edges.items() if isinstance(edges, Mapping) else ()
    return {str(name): int(edge["broker"] == "connected") for name, edge in told if "broker" in edge}


def _durations(series: object) -> list[str]:
    """The histogram of how long calls took. How many series there are is bounded where they are counted."""
    lines: list[str] = []
    for one in series if isinstance(series, list) else ():
        labels = ",".join(f'{name}="{_escaped(str(one[name]))}"' for name in ("tool", "agent", "outcome"))
        for bound, count in (*one["below"].items(), ("+Inf", one["count"])):
            lines.append(f'{DURATIONS}_bucket{{{labels},le="{bound}"}} {count}')
        lines += [f"{DURATIONS}_sum{{{labels}}} {one['sum_s']}", f"{DURATIONS}_count{{{labels}}} {one['count']}"]
    if lines:
        text = "Time from when a call was sent to its outcome."
        lines[:0] = [f"# HELP {DURATIONS} {text}", f"# TYPE {DURATIONS} histogram"]
    return lines


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
