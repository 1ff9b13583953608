"""Kill the exchange with -9 while a run of a space is carried out, a snapshot is taken or one is brought back.

A ``Trial`` is a home folder with an exchange and one space in it. What the space holds afterwards is held against what
the run says that it did, and against what the record has of its calls. ``test_kill9_spaces`` kills at named places,
which it sees on the disk; ``Trial.any_moment`` at random ones.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

from tests.running import WAIT_S, Running
from tests.spaces import SpaceOf, look
from trunkline.ledger.verify import verify

# What a space holds before: enough that a snapshot of it, or an undo, takes some hundred milliseconds.
FILES = 1200
# One run: as many rounds of a command, a file that is made, edited, and one that is deleted.
ROUNDS = 4
KILLED_WITHIN_S = 1.5

Tree = dict[str, tuple[int, bytes]]
# What one sees on the disk: the space's files, and the folder of its snapshots.
Place = Callable[[Path, Path], bool]


class Trial:
    """One exchange and its space."""

    def __init__(self, home: Path) -> None:
        self.exchange = Running(home).start()
        self.space = SpaceOf(self.exchange)
        self.kept = self.space.root.parent / "snapshots"
        made = "for d in $(seq 30); do mkdir d$d; for f in $(seq 40); do echo $d $f > d$d/f$f; done; done"
        assert self.space.shell(made)["success"]
        assert len(list(self.space.root.rglob("f*"))) == FILES

    def tree(self) -> Tree:
        """All files: mode and content."""
        root = self.space.root
        found = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes()) for path in found}

    def discard(self) -> None:
        """Leave no process behind."""
        process = self.exchange.process
        if process is not None and process.poll() is None:
            self.exchange.kill()

    def end(self) -> None:
        """Stop in good order; the whole record is verified."""
        assert self.exchange.stop() == 0
        verify(self.exchange.home / "ledger.sqlite")

    # -- killing -------------------------------------------------------------------------------------------------------

    def kill_at(self, place: Place) -> None:
        """As soon as the disk shows this; then start again."""
        until = time.monotonic() + WAIT_S
        while not place(self.space.root, self.kept):
            assert time.monotonic() < until, "this place was never seen"
            # Looking without a pause takes a core of the exchange, and each of these places lasts for longer.
            time.sleep(0.0005)
        self.exchange.kill()
        self.exchange.start()

    def kill_after(self, seconds: float) -> None:
        """At this moment; then start again."""
        time.sleep(seconds)
        self.exchange.kill()
        self.exchange.start()

    # -- a run ---------------------------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Start a run; its id."""
        operations: list[dict[str, Any]] = []
        for n in range(ROUNDS):
            operations += [
                {"type": "shell", "command": f"echo {n} >> log"},
                {"type": "createFile", "path": f"new{n}", "content": f"first {n}"},
                {"type": "editFile", "path": f"new{n}", "edits": [{"oldContent": "first", "newContent": "second"}]},
                {"type": "deleteFile", "path": f"d{n + 1}/f1"},
            ]
        return str(self.space.ask(*operations, query="?wait=0")[1]["runId"])

    def compare(self, run_id: str, before: Tree) -> int:
        """The end of a run against what is there; how many operations nobody knows about."""
        done = look(self.exchange, run_id)
        assert done["status"] == "completed", done
        events = done["events"]
        assert len(events) == 4 * ROUNDS, "each operation has one event"
        unknown = 0
        lines = (self.space.root / "log").read_text().split() if (self.space.root / "log").exists() else []
        assert lines == sorted(set(lines)), f"a command ran twice, or out of its turn: {lines}"
        now = self.tree()
        for n in range(ROUNDS):
            ran, created, edited, deleted = events[4 * n : 4 * n + 4]
            content, gone = now.get(f"new{n}", (0, b""))[1].decode(), f"d{n + 1}/f1" not in now
            unknown += sum(_is_unknown(event) for event in (ran, created, edited, deleted))
            # What is told as done was done; of what nobody knows, all or nothing.
            assert _is_unknown(ran) or (ran["success"] and str(n) in lines), ran
            assert content in {"", f"first {n}", f"second {n}"}
            assert _is_unknown(created) or (created["success"] and content), created
            if edited.get("success"):
                assert content == f"second {n}"
            else:
                assert _is_unknown(edited) or _is_unknown(created), edited
            assert _is_unknown(deleted) or (deleted["success"] and gone), deleted
        touched = {"log", *(f"new{n}" for n in range(ROUNDS)), *(f"d{n + 1}/f1" for n in range(ROUNDS))}
        assert {path: now[path] for path in now.keys() - touched} == {
            path: before[path] for path in before.keys() - touched
        }
        self._compare_record(run_id)
        return unknown

    def _compare_record(self, run_id: str) -> None:
        entries = self.exchange.entries()
        steps = [e["step"] for e in entries if e["kind"] == "process.step" and e["subject"] == run_id]
        assert steps == ["started", "ended"]
        calls = [e for e in entries if e["kind"] == "call.accepted" and e.get("correlation_id") == run_id]
        keys = Counter(e["key"] for e in calls)
        assert keys == Counter(f"{run_id}/{index}" for index in range(4 * ROUNDS)), "one call for each operation"
        ends = Counter(e["call_id"] for e in entries if e["kind"] == "call.settled")
        assert {ends[e["call_id"]] for e in calls} == {1}, "each has one outcome"

    # -- snapshots and undo --------------------------------------------------------------------------------------------

    def undo(self, run_id: str = "", *, redo: bool = False) -> dict[str, Any]:
        """Bring the space back to before a run, before the last one, or before the last undo."""
        wish = {"run": run_id, "redo": redo}
        status, told = self.exchange.request("POST", f"/v1/spaces/{self.space.name}/undo", wish)
        assert status == 200, told
        found: dict[str, Any] = told
        return found

    def begin_undo(self, run_id: str) -> None:
        """The same, and nobody waits for the answer."""

        def ask() -> None:
            # The exchange is killed while it does this.
            with contextlib.suppress(OSError, HTTPException):
                self.exchange.request("POST", f"/v1/spaces/{self.space.name}/undo", {"run": run_id})

        threading.Thread(target=ask, daemon=True).start()

    def undo_steps(self) -> list[str]:
        """What is on record of undos."""
        entries = self.exchange.entries(kind="process.step")
        return [entry["step"] for entry in entries if entry["process"] == "spaces.undo"]

    def any_moment(self, seed: int, kills: int) -> int:
        """Runs that are killed at random moments, each then undone; how many operations nobody knows about."""
        rng, unknown = Random(seed), 0
        for _ in range(kills):
            before = self.tree()
            run_id = self.begin()
            self.kill_after(rng.uniform(0, KILLED_WITHIN_S))
            unknown += self.compare(run_id, before)
            self.undo(run_id)
            assert self.tree() == before
        return unknown


def _is_unknown(event: dict[str, Any]) -> bool:
    return event["type"] == "error" and "not known" in event["message"]


def trial(home: Path, seed: int, kills: int) -> int:
    """So many kills at random moments; how many there were."""
    made = Trial(home)
    try:
        made.any_moment(seed, kills)
        made.end()
    except AssertionError as exc:
        exc.add_note(f"seed {seed}")
        raise
    finally:
        made.discard()
    return kills
