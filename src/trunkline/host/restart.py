"""When an agent's process is started again: one agent's life as a table of states, without a clock or a process.

An agent is meant to run until somebody stops it. Each time its process ends, ``restart`` says whether another run
follows: ``never``, ``on-failure`` (not after exit code 0), ``always``. The wait before it doubles from run to run, so
that a broken agent costs little, and starts over after a run that lasted. Runs that end quickly again and again are a
crash loop: the agent is given up until a person asks for it.

=========  ========  ========  =================================  ========  ========  ========
state      start     launched  ended                              wake      stop      retry
=========  ========  ========  =================================  ========  ========  ========
stopped    starting  –         –                                  –         –         starting
starting   stopping  running   backoff, crashed or stopped        –         stopping  –
running    stopping  –         backoff, crashed or stopped        –         stopping  –
stopping   –         –         stopped; starting if asked for     –         –         –
backoff    starting  –         –                                  starting  stopped   –
crashed    starting  –         –                                  –         stopped   starting
=========  ========  ========  =================================  ========  ========  ========

``start`` means: run as configured now; one that runs is stopped first. Each method returns what the host must do.

Owns the table and the waits. Does not own processes, clocks or what is told of an agent (``supervisor``).

Invariant: an agent that somebody stopped is not started again until somebody asks for it.
"""

from __future__ import annotations

import enum
import signal
from typing import Final, Literal

Restart = Literal["never", "on-failure", "always"]

FIRST_WAIT_S: Final = 0.2
# An operator who repaired something should not wait longer than this for the next try.
LONGEST_WAIT_S: Final = 30.0
# Waits are spread over this part of themselves, so that agents that fell together do not rise together.
JITTER: Final = 0.25
# A run that lasted so long worked: what follows is a new story.
STEADY_S: Final = 60.0
# So many quick ends within this time are a crash loop. systemd: 5 in 10 s.
CRASH_LOOP_RUNS: Final = 5
CRASH_LOOP_S: Final = 60.0

START_AGAIN: Final = "`trunkline reload` starts it again"
STOPPED_BY_HAND: Final = "stopped by the operator"


class State(enum.StrEnum):
    """Where the agent's process stands, as ``AgentView.state`` shows it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    CRASHED = "crashed"
    STOPPED = "stopped"


class Step(enum.Enum):
    """What the host must do now."""

    LAUNCH = enum.auto()
    STOP = enum.auto()


class Life:
    """One agent's process, from start to stop, over as many runs as it takes."""

    def __init__(self, restart: Restart) -> None:
        self.restart: Restart = restart
        self.state = State.STOPPED
        self.restarts = 0
        self.note = ""
        self.wake_at: float | None = None
        self._started_at = 0.0
        self._starts_again = False
        self._is_given_up = False
        self._waits = 0
        self._quick_ends: list[float] = []

    @property
    def has_process(self) -> bool:
        """Whether a run is under way, so that an end of it will be reported."""
        return self.state in {State.STARTING, State.RUNNING, State.STOPPING}

    def start(self, now: float) -> Step | None:
        """Run as configured now, whatever happened before."""
        self.restarts = 0
        self._waits = 0
        self._quick_ends.clear()
        if self.state is State.STOPPING:
            self._starts_again = True
            return None
        if self.has_process:
            self.state = State.STOPPING
            self._starts_again = True
            return Step.STOP
        return self._launch(now)

    def launched(self) -> None:
        """There is a process."""
        if self.state is State.STARTING:
            self.state = State.RUNNING

    def ended(self, code: int, reason: str, now: float, jitter: float) -> Step | None:
        """The run is over, or never began. ``reason`` tells more than the code, if there is more; 0 <= jitter < 1."""
        if not self.has_process:
            return None
        how = reason or how_it_ended(code)
        if self.state is State.STOPPING:
            if self._starts_again:
                return self._launch(now)
            # Whoever stopped it may have said why.
            self._rest(State.STOPPED, self.note)
            return None
        if self._is_given_up or self.restart == "never" or (self.restart == "on-failure" and code == 0):
            self._rest(State.CRASHED if code else State.STOPPED, f"{how}; {START_AGAIN}")
            return None
        if now - self._started_at >= STEADY_S:
            self._waits = 0
            self._quick_ends.clear()
        else:
            self._quick_ends = [at for at in self._quick_ends if now - at < CRASH_LOOP_S] + [now]
        if len(self._quick_ends) >= CRASH_LOOP_RUNS:
            self._rest(State.CRASHED, f"{how}; ended {CRASH_LOOP_RUNS} times in {CRASH_LOOP_S:.0f} s; {START_AGAIN}")
            return None
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**self._waits) * (1 - JITTER * jitter)
        self._waits += 1
        self._rest(State.BACKOFF, how)
        self.wake_at = now + wait_s
        return None

    def give_up(self) -> None:
        """The end that follows is one that another try would not change."""
        self._is_given_up = True

    def wake(self, now: float) -> Step | None:
        """Time passed; launch again if the wait is over."""
        if self.state is not State.BACKOFF or self.wake_at is None or now < self.wake_at:
            return None
        self.restarts += 1
        return self._launch(now)

    def stop(self) -> Step | None:
        """No more runs."""
        self._starts_again = False
        if self.state is State.STOPPING or self.state is State.STOPPED:
            return None
        if self.has_process:
            self.state = State.STOPPING
            return Step.STOP
        self._rest(State.STOPPED, "")
        return None

    def retry(self, now: float) -> Step | None:
        """Somebody says that an agent which does not run, and is not about to, should."""
        return self.start(now) if self.state in {State.CRASHED, State.STOPPED} else None

    def _launch(self, now: float) -> Step:
        self._rest(State.STARTING, "")
        self._started_at = now
        self._starts_again = self._is_given_up = False
        return Step.LAUNCH

    def _rest(self, state: State, note: str) -> None:
        self.state = state
        self.note = note
        self.wake_at = None


def how_it_ended(code: int) -> str:
    """An exit code, or the negative number of a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
