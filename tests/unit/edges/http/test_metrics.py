"""The Prometheus text."""

from __future__ import annotations

from trunkline.edges.http.metrics import METRICS, text


def test_each_family_has_help_and_type_before_its_samples() -> None:
    figures = {"uptime_s": 1.5, "settled_calls": {"succeeded": 3, "failed": 0}, "policy": "v1", "unheard_of": 3}
    assert text(figures) == (
        "# HELP trunkline_uptime_seconds Time since the exchange was ready.\n"
        "# TYPE trunkline_uptime_seconds gauge\n"
        "trunkline_uptime_seconds 1.5\n"
        "# HELP trunkline_settled_calls_total Calls with an outcome since start.\n"
        "# TYPE trunkline_settled_calls_total counter\n"
        'trunkline_settled_calls_total{status="failed"} 0\n'
        'trunkline_settled_calls_total{status="succeeded"} 3\n'
    )


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    assert 'code="a\\"b\\\\c\\nd"} 1' in text({"refused_calls": {'a"b\\c\nd': 1}})


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS:
        assert metric.name.startswith("trunkline_")
        assert metric.name.endswith("_total") is (metric.kind == "counter")


def test_defects_are_counted_also_while_there_are_none() -> None:
    assert "trunkline_defects_total 0\n" in text({"defects": 0})
    assert "trunkline_defects_total 3\n" in text({"defects": 3})


def test_durations_are_a_histogram_by_tool_agent_and_outcome() -> None:
    one = {"tool": "a/b", "agent": "a", "outcome": "failed", "below": {"0.5": 1, "1": 2}, "count": 3, "sum_s": 4.5}
    labels = 'tool="a/b",agent="a",outcome="failed"'
    assert text({"call_durations": [one]}) == (
        "# HELP trunkline_call_duration_seconds Time from when a call was sent to its outcome.\n"
        "# TYPE trunkline_call_duration_seconds histogram\n"
        f'trunkline_call_duration_seconds_bucket{{{labels},le="0.5"}} 1\n'
        f'trunkline_call_duration_seconds_bucket{{{labels},le="1"}} 2\n'
        f'trunkline_call_duration_seconds_bucket{{{labels},le="+Inf"}} 3\n'
        f"trunkline_call_duration_seconds_sum{{{labels}}} 4.5\n"
        f"trunkline_call_duration_seconds_count{{{labels}}} 3\n"
    )


def test_the_room_on_the_disk_and_the_broker_are_figures() -> None:
    edges = {"chiffon": {"state": "on", "broker": "away"}, "http": {"state": "on"}}
    shown = text({"disk_free_bytes": 5, "ledger_bytes": 7, "edges": edges})
    assert "trunkline_disk_free_bytes 5\n" in shown
    assert "trunkline_ledger_bytes 7\n" in shown
    assert 'trunkline_broker_connected{edge="chiffon"} 0\n' in shown
    assert 'edge="http"' not in shown


def test_what_each_edge_counts_is_shown_by_its_name() -> None:
    edges = {"pylon": {"state": "on", "clients": 2, "is_well": True, "codex": "available"}, "http": {"state": "on"}}
    assert text({"edges": edges}) == (
        "# HELP trunkline_edge Figures of each edge, as `trunkline status` has them.\n"
        "# TYPE trunkline_edge gauge\n"
        'trunkline_edge{edge="pylon",figure="clients"} 2\n'
    )
    assert text({"edges": {"http": {"state": "on"}}}) == ""
