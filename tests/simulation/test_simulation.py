"""The whole system on a fake clock, disk and network: 300 seeds, and the same bytes for the same seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.simulation.broken import LANE_VARIANTS, VARIANTS, Patch, ordinary, what_could_do_harm_is_sent_again
from trunkline.testing.simulation import Simulation, simulate
from trunkline.testing.story import SimulationFailed
from trunkline.testing.witness import StoryLine
from trunkline.testing.world import World

SEEDS = 300
CHUNK = 10
# A broken rule is seen in one of 40 seeds at the least.
SEEDS_TO_FIND = 200
# Those that are not seen in seed 0, and one that showed each: tried first. Any change of the simulation may make it
# another; then all are tried, which takes ten times as long, and this is the place for the new one.
SEEN_IN = {
    "a_call_is_sent_before_it_is_on_record": 4,
    "a_commit_is_not_synced": 2,
    "a_directive_is_used_twice": 14,
    "a_job_that_ended_is_not_known_again": 6,
    "a_key_is_forgotten_at_a_restart": 85,
    "a_lost_agent_is_not_noticed": 1,
    "a_page_does_not_notice_a_gap": 5,
    "a_page_is_not_told_that_codex_is_gone": 11,
    "a_question_does_not_expire": 1,
    "a_question_is_shown_before_it_is_on_record": 39,
    "a_repeat_needs_somebody_who_does_such_work": 27,
    "a_request_that_is_sent_again_has_another_id": 18,
    "a_result_is_told_before_it_is_on_record": 16,
    "a_run_does_not_wait_for_its_operation": 7,
    "a_run_forgets_what_was_done": 4,
    "a_run_is_told_of_before_it_is_on_record": 5,
    "a_token_is_good_for_any_process": 6,
    "an_event_is_told_before_it_is_on_record": 7,
    "an_instance_is_chosen_anew_after_a_restart": 1,
    "an_ordinary_call_is_sent_before_it_is_on_record": 13,
    "an_outcome_is_shown_before_it_is_on_record": 67,
    "anybody_may_end_a_call": 14,
    "its_outcome_is_told_before_it_is_on_record": 177,
    "one_answer_lets_all_through": 3,
    "only_the_last_caller_is_judged": 11,
    "originals_are_not_kept": 14,
    "reading_never_goes_on": 2,
    "the_questions_of_a_run_are_forgotten_at_a_restart": 1,
    "typed_work_moves_whatever_became_of_it": 25,
    "what_could_do_harm_is_sent_again": 5,
    "what_is_owed_is_not_told_again": 3,
    "who_published_is_answered_before_it_is_on_record": 1,
    "work_that_is_done_is_not_forgotten": 4,
}
ORDINARY_SEEDS = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_whatever_happens(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


@pytest.mark.parametrize("first", range(0, ORDINARY_SEEDS, CHUNK))
def test_every_promise_is_kept_where_most_calls_are_ordinary(first: int, monkeypatch: Patch) -> None:
    """Those go the short way (``hub.lanes``), which is open nowhere else here: an agent there reads untrusted text."""
    taken = ordinary(monkeypatch)
    for seed in range(first, first + CHUNK):
        simulate(seed)
    assert taken["accepted"] > CHUNK
    assert taken["settled"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("variant", "says"), LANE_VARIANTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_of_ordinary_calls_it_is_found_when(variant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    variant(monkeypatch)
    ordinary(monkeypatch)
    find(says, variant.__name__)


# In that of 11 are agents of OSSA, in that of 19 strangers and events; of 7 originals are held in the end.
REPEATED_SEEDS = (7, 11, 12, 19)


def test_the_same_seed_gives_the_same_ledger_in_any_process() -> None:
    command = [sys.executable, "-m", "trunkline.testing", *map(str, REPEATED_SEEDS), "--sha256"]
    processes = [
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, text=True)
        for hash_seed in ("0", "1", "12345")
    ]
    said = [process.communicate(timeout=100)[0].split() for process in processes]
    assert said == [[simulate(seed).sha256 for seed in REPEATED_SEEDS]] * len(processes)


def test_another_seed_gives_another_ledger() -> None:
    assert len({simulate(seed, 20).sha256 for seed in range(5)}) == 5


def simulate_many(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("variant", "says"), VARIANTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_it_is_found_when(variant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    variant(monkeypatch)
    find(says, variant.__name__)


def find(says: str, name: str) -> None:
    found = []
    for seed in (SEEN_IN.get(name, 0), *range(SEEDS_TO_FIND)):
        try:
            simulate(seed)
        except SimulationFailed as failure:
            if says in str(failure):
                return
            found.append(failure.breaches)
    pytest.fail(f"not found in {SEEDS_TO_FIND} seeds; but: {found}")


def test_a_failing_seed_tells_its_story_and_how_to_see_it_again(monkeypatch: Patch) -> None:
    what_could_do_harm_is_sent_again(monkeypatch)
    with pytest.raises(SimulationFailed) as found:
        simulate_many(SEEDS_TO_FIND)
    failure = found.value
    (call_id,) = failure.breaches[0].calls
    about = [line.what for line in failure.story.lines if line.call_id == call_id]
    assert sum(what.startswith("runs ") for what in about) >= 2
    assert all(what in str(failure) for what in about)
    assert '{"kind":"call.accepted"' in str(failure)
    assert f"again: python -m trunkline.testing {failure.story.seed} --steps" in str(failure)


def lines_without_crashes(seed: int) -> list[StoryLine]:
    """What happens where nothing is lost and everybody's wall clock jumps."""
    simulation = Simulation(seed, 60)
    for action in list(simulation.actions):
        if action.__name__.startswith(("_exchange_", "_disk_")):
            del simulation.actions[action]
        if action.__name__ == "_clock_jumps":
            simulation.actions[action] = 15
    try:
        return [line for line in simulation.run().lines if "wall clock" not in line.what]
    finally:
        simulation.close()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_wall_clock_says_the_same_happens_at_the_same_time(seed: int, monkeypatch: Patch) -> None:
    """P-B8: deadlines use monotonic time. Messages of OSSA and Nostr carry the time of day, which is judged: they are
    left out.
    """
    monkeypatch.setattr("trunkline.testing.world.OSSA_SHARE", 0.0)
    monkeypatch.setattr("trunkline.testing.world.NOSTR_SHARE", 0.0)
    jumping = lines_without_crashes(seed)
    monkeypatch.setattr(World, "jump", lambda *_: None)
    assert lines_without_crashes(seed) == jumping
