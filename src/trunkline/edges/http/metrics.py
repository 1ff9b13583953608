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
)


def text(figures: Mapping[str, object]) -> str:
    """All families whose figure the exchange gives."""
    lines: list[str] = []
    for metric in METRICS:
        samples = _samples(metric, figures.get(metric.figure))
        if samples:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *samples]
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


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
