from __future__ import annotations

from collections.abc import Callable

import pytest

from trunkline.host.restart import (
    CRASH_LOOP_RUNS,
    FIRST_WAIT_S,
    JITTER,
    LONGEST_WAIT_S,
    STEADY_S,
    Life,
    Restart,
    State,
    Step,
    how_it_ended,
)


def life_in(state: State, restart: Restart = "on-failure") -> Life:
    """A life that came to this state by itself."""
    life = Life(restart)
    if state is State.STOPPED:
        return life
    assert life.start(0.0) is Step.LAUNCH
    if state is State.STARTING:
        return life
    life.launched()
    if state is State.STOPPING:
        assert life.stop() is Step.STOP
    elif state is State.BACKOFF:
        life.ended(1, "", 0.0, 0.0)
    elif state is State.CRASHED:
        crash(life, 0.0, CRASH_LOOP_RUNS)
    assert life.state is state
    return life


def crash(life: Life, now: float, times: int) -> float:
    """Let runs end at once, one after the other, until the last one ended."""
    for run in range(times):
        if run:
            assert life.wake_at is not None
            now = life.wake_at
            assert life.wake(now) is Step.LAUNCH
            life.launched()
        life.ended(1, "", now, 0.0)
    return now


def does_start(life: Life) -> Step | None:
    return life.start(0.0)


def is_launched(life: Life) -> Step | None:
    life.launched()
    return None


def fails(life: Life) -> Step | None:
    return life.ended(1, "", 1.0, 0.0)


def ends_well(life: Life) -> Step | None:
    return life.ended(0, "", 1.0, 0.0)


def wakes_late(life: Life) -> Step | None:
    return life.wake(1000.0)


def wakes_early(life: Life) -> Step | None:
    return life.wake(0.1)


def is_stopped(life: Life) -> Step | None:
    return life.stop()


def is_retried(life: Life) -> Step | None:
    return life.retry(0.0)


S = State
# Every state and every event: the state that follows, and what the host must do.
TABLE: dict[Callable[[Life], Step | None], dict[State, tuple[State, Step | None]]] = {
    does_start: {
        S.STOPPED: (S.STARTING, Step.LAUNCH),
        S.STARTING: (S.STOPPING, Step.STOP),
        S.RUNNING: (S.STOPPING, Step.STOP),
        S.STOPPING: (S.STOPPING, None),
        S.BACKOFF: (S.STARTING, Step.LAUNCH),
        S.CRASHED: (S.STARTING, Step.LAUNCH),
    },
    is_launched: {
        S.STOPPED: (S.STOPPED, None),
        S.STARTING: (S.RUNNING, None),
        S.RUNNING: (S.RUNNING, None),
        S.STOPPING: (S.STOPPING, None),
        S.BACKOFF: (S.BACKOFF, None),
        S.CRASHED: (S.CRASHED, None),
    },
    fails: {
        S.STOPPED: (S.STOPPED, None),
        S.STARTING: (S.BACKOFF, None),
        S.RUNNING: (S.BACKOFF, None),
        S.STOPPING: (S.STOPPED, None),
        S.BACKOFF: (S.BACKOFF, None),
        S.CRASHED: (S.CRASHED, None),
    },
    ends_well: {
        S.STOPPED: (S.STOPPED, None),
        S.STARTING: (S.STOPPED, None),
        S.RUNNING: (S.STOPPED, None),
        S.STOPPING: (S.STOPPED, None),
        S.BACKOFF: (S.BACKOFF, None),
        S.CRASHED: (S.CRASHED, None),
    },
    wakes_late: {
        S.STOPPED: (S.STOPPED, None),
        S.STARTING: (S.STARTING, None),
        S.RUNNING: (S.RUNNING, None),
        S.STOPPING: (S.STOPPING, None),
        S.BACKOFF: (S.STARTING, Step.LAUNCH),
        S.CRASHED: (S.CRASHED, None),
    },
    wakes_early: {state: (state, None) for state in S},
    is_stopped: {
        S.STOPPED: (S.STOPPED, None),
        S.STARTING: (S.STOPPING, Step.STOP),
        S.RUNNING: (S.STOPPING, Step.STOP),
        S.STOPPING: (S.STOPPING, None),
        S.BACKOFF: (S.STOPPED, None),
        S.CRASHED: (S.STOPPED, None),
    },
    is_retried: {
        S.STOPPED: (S.STARTING, Step.LAUNCH),
        S.STARTING: (S.STARTING, None),
        S.RUNNING: (S.RUNNING, None),
        S.STOPPING: (S.STOPPING, None),
        S.BACKOFF: (S.BACKOFF, None),
        S.CRASHED: (S.STARTING, Step.LAUNCH),
    },
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", TABLE)
def test_every_event_in_every_state_leads_where_the_table_says(
    state: State, event: Callable[[Life], Step | None]
) -> None:
    life = life_in(state)
    step = event(life)
    assert (life.state, step) == TABLE[event][state]
    assert (life.wake_at is not None) == (life.state is State.BACKOFF)


@pytest.mark.parametrize(
    ("restart", "code", "state"),
    [
        ("never", 0, State.STOPPED),
        ("never", 1, State.CRASHED),
        ("never", -9, State.CRASHED),
        ("on-failure", 0, State.STOPPED),
        ("on-failure", 1, State.BACKOFF),
        ("on-failure", -15, State.BACKOFF),
        ("always", 0, State.BACKOFF),
        ("always", 1, State.BACKOFF),
    ],
)
def test_the_setting_and_the_exit_code_decide_whether_another_run_follows(
    restart: Restart, code: int, state: State
) -> None:
    life = life_in(State.RUNNING, restart)
    life.ended(code, "", 1.0, 0.0)
    assert life.state is state


def test_waits_double_up_to_the_longest_one() -> None:
    life = life_in(State.RUNNING)
    now = 0.0
    waits = []
    for _ in range(10):
        # Long enough to be no crash loop, too short to be steady.
        now += STEADY_S - 1
        life.ended(1, "", now, 0.0)
        assert life.wake_at is not None
        waits.append(life.wake_at - now)
        now = life.wake_at
        assert life.wake(now) is Step.LAUNCH
        life.launched()
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, LONGEST_WAIT_S, LONGEST_WAIT_S])
    assert life.restarts == 10


def test_jitter_shortens_a_wait_by_its_part_at_most() -> None:
    life = life_in(State.RUNNING)
    life.ended(1, "", 0.0, 1.0)
    assert life.wake_at == pytest.approx(FIRST_WAIT_S * (1 - JITTER))


def test_the_wait_starts_over_after_a_run_that_lasted() -> None:
    life = life_in(State.RUNNING)
    now = crash(life, 0.0, CRASH_LOOP_RUNS - 1)
    assert life.wake_at is not None
    now = life.wake_at
    life.wake(now)
    life.launched()
    now += STEADY_S
    life.ended(1, "", now, 0.0)
    assert life.state is State.BACKOFF
    assert life.wake_at == pytest.approx(now + FIRST_WAIT_S)


def test_quick_ends_one_after_the_other_are_a_crash_loop_and_the_note_says_how_to_go_on() -> None:
    almost = life_in(State.RUNNING)
    crash(almost, 0.0, CRASH_LOOP_RUNS - 1)
    assert almost.state is State.BACKOFF
    life = life_in(State.RUNNING)
    crash(life, 0.0, CRASH_LOOP_RUNS)
    assert life.state is State.CRASHED
    assert life.note == "exit code 1; ended 5 times in 60 s; `trunkline reload` starts it again"


def test_a_crash_loop_is_one_also_when_every_run_ends_well() -> None:
    life = life_in(State.RUNNING, "always")
    now = 0.0
    for _ in range(CRASH_LOOP_RUNS):
        life.ended(0, "", now, 0.0)
        if life.wake_at is not None:
            now = life.wake_at
            life.wake(now)
    assert life.state is State.CRASHED


def test_failures_far_apart_are_no_crash_loop() -> None:
    life = life_in(State.RUNNING)
    now = 0.0
    for _ in range(20):
        now += 20.0
        life.ended(1, "", now, 0.0)
        assert life.state is State.BACKOFF
        assert life.wake_at is not None
        now = life.wake_at
        life.wake(now)
        life.launched()


def test_a_crashed_agent_that_is_tried_again_has_all_its_tries() -> None:
    life = life_in(State.CRASHED)
    assert life.retry(1.0) is Step.LAUNCH
    assert life.restarts == 0
    life.ended(1, "", 1.0, 0.0)
    assert life.state is State.BACKOFF
    assert life.wake_at == pytest.approx(1.0 + FIRST_WAIT_S)


def test_an_agent_that_is_started_while_it_runs_ends_first_and_is_launched_at_once() -> None:
    life = life_in(State.RUNNING, "never")
    assert life.start(1.0) is Step.STOP
    assert life.ended(-15, "", 2.0, 0.0) is Step.LAUNCH
    assert life.state is State.STARTING


def test_a_stop_after_a_start_wins() -> None:
    life = life_in(State.RUNNING)
    life.start(1.0)
    assert life.stop() is None
    assert life.ended(0, "", 2.0, 0.0) is None
    assert life.state is State.STOPPED


def test_a_start_after_a_stop_wins() -> None:
    life = life_in(State.STOPPING)
    assert life.start(1.0) is None
    assert life.ended(0, "", 2.0, 0.0) is Step.LAUNCH


def test_a_reason_says_more_than_a_code() -> None:
    life = life_in(State.STARTING, "never")
    life.ended(127, "the command 'x' is not in PATH", 1.0, 0.0)
    assert life.note == "the command 'x' is not in PATH; `trunkline reload` starts it again"


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")]
)
def test_an_exit_code_is_told_in_words(code: int, text: str) -> None:
    assert how_it_ended(code) == text
