"""Agents die in the middle of a call: sent again only where that does no harm, and not for ever (P-B11, P-B12)."""

from __future__ import annotations

from pathlib import Path

from tests.delivery.lost import trial


def test_of_a_hundred_agents_killed_in_a_call_each_call_is_sent_again_only_if_that_does_no_harm(
    short_path: Path,
) -> None:
    assert trial(short_path, 1, {"read": 25, "known": 25, "write": 25, "keyed": 25}) == 100


def test_twenty_calls_that_cost_their_agent_three_times_end_and_their_tools_rest(short_path: Path) -> None:
    assert trial(short_path, 2, {"poison": 20}) == 60
