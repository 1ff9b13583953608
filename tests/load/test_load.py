"""Section C of the promises on a real exchange: who is served under load, and what it costs. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load import scenes
from tests.load.churn import churn


@pytest.mark.timeout(180)
def test_under_steady_load_every_call_is_answered_once_and_memory_is_flat(short_path: Path) -> None:
    served = scenes.steady(short_path / "home", agents=50, calls_a_second=200, seconds=30)
    assert served.calls >= 5_900
    # 0 to 2 % measured.
    assert abs(served.grown) < 0.1, served
    assert served.rss_mib < 300


@pytest.mark.timeout(120)
def test_five_hundred_agents_that_come_at_once_are_all_welcomed(short_path: Path) -> None:
    assert scenes.herd(short_path / "home", 500) == 500


@pytest.mark.timeout(120)
def test_peers_that_send_a_byte_now_and_then_are_ended_and_others_are_served(short_path: Path) -> None:
    assert scenes.slow(short_path / "home", strangers=200, clients=100, calls=500) == 300


@pytest.mark.timeout(180)
def test_agents_that_do_not_read_are_ended_with_their_calls_and_others_are_served(short_path: Path) -> None:
    assert scenes.stuck(short_path / "home", readers=8, calls=200).calls >= 200


@pytest.mark.timeout(120)
def test_a_caller_that_floods_is_told_when_to_come_back_and_everybody_else_is_served(short_path: Path) -> None:
    normal, refused = scenes.noisy(short_path / "home", normals=49, calls=20)
    assert normal == 49 * 20
    assert refused > 500


@pytest.mark.timeout(120)
def test_one_who_takes_all_he_gets_locks_out_neither_the_operator_nor_others(short_path: Path) -> None:
    requests, contexts = scenes.greedy(short_path / "home", requests=520, contexts=30)
    assert requests <= 256
    assert 0 < contexts <= 17


@pytest.mark.timeout(120)
def test_frames_and_tools_made_to_be_slow_keep_nobody_else_from_being_served(short_path: Path) -> None:
    assert scenes.heavy(short_path / "home", frames=12) == 12


@pytest.mark.timeout(120)
def test_the_largest_length_there_is_ends_the_connection_and_nothing_of_it_is_kept(short_path: Path) -> None:
    assert scenes.oversize(short_path / "home", 30) == 30


@pytest.mark.timeout(120)
def test_connections_that_come_and_go_leave_no_descriptor_session_or_memory(short_path: Path) -> None:
    assert churn(short_path / "home", 7, 2_000) == 2_000


@pytest.mark.parametrize(("agents", "is_ring", "runs"), [(12, False, 8), (2, True, 2), (3, True, 3)])
def test_agents_that_call_each_other_are_stopped_at_eight_and_in_a_circle(
    short_path: Path, agents: int, is_ring: bool, runs: int
) -> None:
    assert scenes.cascade(short_path / "home", agents=agents, is_ring=is_ring) == (runs, "chain.refused")
