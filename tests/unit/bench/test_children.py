from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.children import Child, Children, Failed, child_of, cpu_s, rss_bytes
from bench.loads import Done

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(600)"
)


def test_nothing_is_left_of_what_was_started_whatever_happens(tmp_path: Path) -> None:
    started: list[Child] = []

    def interrupted() -> None:
        with Children(tmp_path) as children:
            started.extend(children.start(f"sleeper-{number}", "sleep", "600") for number in range(2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [child.has_ended() for child in started] == [True, True]


def test_what_does_not_end_when_told_to_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.children.STOP_S", 0.1)
    with Children(tmp_path) as children:
        child = children.start("stubborn", sys.executable, "-c", STUBBORN)
        child.wait(Done)
    assert child.has_ended()


def test_one_of_ours_ends_when_its_standard_input_is_closed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        relay = children.ours("relay", "bench.relay", str(tmp_path / "s"))
        relay.wait(Done)
    assert relay.process.returncode == 0


def test_a_failure_shows_the_end_of_what_was_printed(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("broken", sys.executable, "-c", "raise SystemExit('no such thing')")
        with pytest.raises(Failed, match=r"(?s)broken: it has ended.*no such thing"):
            child.wait(Done)


def test_the_figures_of_a_process_are_there() -> None:
    assert cpu_s(os.getpid()) > 0
    assert rss_bytes(os.getpid()) > 1_000_000
    with pytest.raises(Failed, match="has no child nothing-like-it"):
        child_of(os.getpid(), "nothing-like-it")
