"""P-A1 and P-F11 in a space: `kill -9` of the exchange in a run, in a snapshot and in an undo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.spaces9 import Place, Trial, trial


@pytest.fixture
def space(short_path: Path) -> Iterator[Trial]:
    made = Trial(short_path / "home")
    yield made
    made.discard()


def lines(count: int) -> Place:
    """So many commands have run."""
    return lambda root, _: (root / "log").exists() and len((root / "log").read_text().split()) >= count


IN_A_RUN: dict[str, Place] = {
    "before anything": lambda _root, _kept: True,
    "in the snapshot before it": lambda _, kept: any(kept.glob("*.new")) or len(list(kept.glob("objects/*"))) > 200,
    "after the first command": lines(1),
    "a file was made": lambda root, _: (root / "new0").exists(),
    "a file was deleted": lambda root, _: not (root / "d1/f1").exists(),
    "in the middle": lines(2),
    "at the last command": lines(4),
    "at its end": lambda root, _: not (root / "d4/f1").exists(),
}


@pytest.mark.parametrize("place", IN_A_RUN)
def test_a_run_killed_there_does_nothing_twice_loses_nothing_and_can_be_undone(space: Trial, place: str) -> None:
    before = space.tree()
    run_id = space.begin()
    space.kill_at(IN_A_RUN[place])
    # One command or file operation runs at a time.
    assert space.compare(run_id, before) <= 1
    told = space.undo(run_id)
    assert told["done"] is True
    assert space.tree() == before
    # Another run as if nothing had happened.
    again = space.begin()
    assert space.compare(again, before) == 0
    space.end()


IN_AN_UNDO: dict[str, Place] = {
    "it has begun": lambda _, kept: (kept / "undo.pending").exists(),
    "something was set aside": lambda _, kept: (kept / "undo.pending").exists() and any(kept.glob("staging/*")),
    "the first came back": lambda root, _: (root / "d1").exists() and any((root / "d1").iterdir()),
    "half came back": lambda root, _: (root / "d2/f1").exists(),
    "nearly all came back": lambda root, _: (root / "d9").exists(),
}


@pytest.mark.parametrize("place", IN_AN_UNDO)
def test_an_undo_killed_there_is_finished_at_the_next_start_and_can_be_undone(space: Trial, place: str) -> None:
    # A script is not read: nobody is asked about this.
    space.space.write("wipe.sh", "find . -delete\necho x > left\n")
    before = space.tree()
    destroyed = space.space.ask({"type": "shell", "command": "sh wipe.sh"})[1]["runId"]
    assert set(space.tree()) == {"left"}
    space.begin_undo(destroyed)
    space.kill_at(IN_AN_UNDO[place])
    assert space.tree() == before
    assert space.undo_steps() == ["started", "ended"]
    assert not (space.kept / "undo.pending").exists()
    space.undo(redo=True)
    assert set(space.tree()) == {"left"}
    space.undo(destroyed)
    assert space.tree() == before
    space.end()


def test_a_snapshot_that_was_killed_is_none_and_those_before_it_stand(space: Trial) -> None:
    before = space.tree()
    first = space.space.ask({"type": "createFile", "path": "mine", "content": "x"})[1]["runId"]
    after = space.tree()
    # Every file is another, so that the next snapshot copies all of them.
    everything = "find . -type f -name 'f*' -exec sh -c 'for f; do echo y > $f; done' sh {} +"
    _, answer = space.space.ask({"type": "shell", "command": everything})
    copied = len(list((space.kept / "objects").iterdir()))
    changed = space.tree()
    run_id = space.begin()
    space.kill_at(lambda _, kept: len(list((kept / "objects").iterdir())) > copied + 100)
    space.compare(run_id, changed)
    space.undo(run_id)
    assert space.tree() == changed
    space.undo(answer["runId"])
    assert space.tree() == after
    space.undo(first)
    assert space.tree() == before
    space.end()


@pytest.mark.timeout(180)
def test_after_kills_at_any_moment_the_space_is_what_its_runs_say(short_path: Path) -> None:
    assert trial(short_path / "home", 1, 4) == 4
