"""One recorded run of an exchange, and the judgement of any disk that a power loss may leave of it.

Used by ``test_power_loss`` for a bounded number of disks and by ``tools/soak.py`` for as many as the time allows.
"""

from __future__ import annotations

import bisect
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

from tests.crash.middle import TOOLS, WORKER, Middle, load
from trunkline.effects import Answer, Deliver
from trunkline.entries import CallSettled, decode
from trunkline.errors import LedgerError, TrunklineError
from trunkline.hub.retry import may_resend
from trunkline.ledger import writer
from trunkline.ledger.reader import Reader, call_number
from trunkline.ledger.verify import verify
from trunkline.model import Status
from trunkline.testing.disk import FaultyDisk, Image, write_image

LEDGER = "ledger.sqlite"
NEVER = sys.maxsize
# Small, so that a short run has several checkpoints among its steps.
CHECKPOINT_PAGES = 60


class Recorded:
    """What a run did to its disk, and what it let others know of it, each with its step."""

    def __init__(self, seed: int, rounds: int = 30, disk: FaultyDisk | None = None) -> None:
        self.disk = disk or FaultyDisk(seed)
        # Entry by number as stored, and the numbers at which a commit ended, with the step of its acknowledgement.
        self.lines: dict[int, bytes | None] = {}
        self.commits: list[tuple[int, int]] = [(0, 0)]
        self.runs: list[Middle] = []
        # Why an exchange did not come up, or could not stop.
        self.errors: list[LedgerError] = []
        with mock.patch.object(writer, "CHECKPOINT_PAGES", CHECKPOINT_PAGES):
            self._run(Random(seed), rounds)
        # The entry that settled a call, by the call's id.
        self.settled = {
            entry.call_id: n
            for n, line in self.lines.items()
            if line is not None and isinstance(entry := decode(line), CallSettled)
        }
        self.left = [left for middle in self.runs for left in middle.left]
        self.shown = [shown for middle in self.runs for shown in middle.shown]

    def _run(self, rng: Random, rounds: int) -> None:
        """Two runs: the second takes up what the first left after a clean stop, and ends in the middle of things."""
        for run in (1, 2):
            try:
                middle = self._start(run)
                load(middle, rng, rounds)
                if run == 1:
                    middle.stop()
            except LedgerError as error:
                self.errors.append(error)
            if self.errors or run == 2:
                break
        for middle in self.runs:
            if middle.failures:
                # What it was about to write may be there, or not.
                self.commits.append((NEVER, middle.ledger._sent))
            middle.abandon()

    @property
    def steps(self) -> int:
        return len(self.disk.steps)

    def _start(self, run: int) -> Middle:
        middle = Middle(self.disk.path(LEDGER), self.disk.vfs, steps=lambda: self.steps, run=run, start=False)
        self.runs.append(middle)
        told = middle.ledger._on_durable

        def durable(number: int) -> None:
            step = self.steps
            # To look on is no operation of the run: it does not fail, and is not counted.
            plan, self.disk._plan = self.disk._plan, None
            for n in range(len(self.lines) + 1, number + 1):
                self.lines[n] = middle.ledger.reader.line(n)
            self.disk._plan = plan
            self.commits.append((step, number))
            told(number)

        middle.ledger._on_durable = durable
        middle.start()
        return middle

    def durable_at(self, step: int) -> tuple[int, int]:
        """The last entry acknowledged after so many steps, and the last one that may be there besides."""
        acknowledged = bisect.bisect_right(self.commits, step, key=lambda commit: commit[0]) - 1
        following = min(acknowledged + 1, len(self.commits) - 1)
        return self.commits[acknowledged][1], self.commits[following][1]

    def close(self) -> None:
        self.disk.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder, in memory where there is some."""
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge(recorded: Recorded, image: Image, step: int, folder: Path) -> None:
    """Start an exchange on this disk. Everything that was acknowledged by ``step`` is there, and nothing in halves."""
    write_image(image, folder)
    path = folder / LEDGER
    middle = Middle(path, "unix", run=3, start=False)
    try:
        last = middle.ledger.last
        acknowledged, possible = recorded.durable_at(step)
        assert last >= acknowledged, f"entry {acknowledged} was acknowledged, {last} is the last one there"
        assert last in {acknowledged, possible}, f"half a commit: {last} between {acknowledged} and {possible}"
        assert verify(path, vfs="unix").last == last
        _judge_entries(recorded, middle.ledger.reader, last)
        _judge_what_left(recorded, middle, step)
        _judge_next_start(recorded, middle, step)
    finally:
        middle.abandon()


def _judge_entries(recorded: Recorded, reader: Reader, last: int) -> None:
    """Each entry is the one that was written, unless retention has removed it."""
    part = reader.part()
    for n in range(1, last + 1):
        line = reader.line(n)
        if line is None:
            is_removed = part is not None and n <= part.last and str(n) not in part.kept
            assert is_removed, f"entry {n} is missing"
        else:
            assert recorded.lines.get(n) in {None, line}, f"entry {n} is another one"


def _judge_what_left(recorded: Recorded, middle: Middle, step: int) -> None:
    """By entry number and by call id. That the entries are those of the run was judged before."""
    last, state = middle.ledger.last, middle.hub.state
    part = middle.ledger.reader.part()
    gone = part.last if part is not None else 0
    for at, what in recorded.left:
        if at > step:
            break
        assert what.after <= last, f"{what} left before entry {what.after} was on the disk"
        if isinstance(what, Deliver) and what.after > gone and recorded.settled.get(what.call_id, last + 1) > last:
            call = state.calls.get(what.call_id)
            # Or it was settled by a commit that was not acknowledged.
            settled = middle.ledger.reader.settled(call_number(what.call_id) or 0)
            runs = call is not None and call.status is Status.RUNNING
            assert runs or settled, f"{what} left, not on record"
        if isinstance(what, Answer) and what.after:
            assert recorded.settled[what.call_id] <= last, f"{what} left, not on record"
    for at, call_id, status in recorded.shown:
        if at > step:
            break
        assert recorded.settled[call_id] <= last, f"{call_id} was shown as {status}, not on record"


def _judge_next_start(recorded: Recorded, middle: Middle, step: int) -> None:
    """What was open is taken up: harmful calls that left once never leave again, the others go on."""
    sent = Counter(left.what.call_id for left in recorded.left if left.step <= step and isinstance(left.what, Deliver))
    once = {call_id for call_id, call in middle.hub.state.calls.items() if not may_resend(call)}
    middle.start()
    if all(f"token-{agent_id}" in {t.sha256 for t in middle.hub.state.tokens.values()} for agent_id in TOOLS):
        for agent_id in TOOLS:
            middle.attach(agent_id)
    middle.ledger.flush()
    assert not middle.failures
    sent.update(left.what.call_id for left in middle.left if isinstance(left.what, Deliver))
    twice = [call_id for call_id in once if sent[call_id] > 1]
    assert not twice, f"sent twice: {twice}"
    for call in middle.hub.state.calls.values():
        # Nothing hangs: it was sent in this run, waits for a person, or has an alarm.
        assert call.session or call.approval_id or call.wake_at, f"{call.entry.call_id} waits for nothing"
    assert WORKER not in middle.sessions or middle.hub.registry.agents[WORKER].is_usable


def prefixes(seed: int, rounds: int = 30) -> int:
    """Judge the disk after every single step of a run; how many disks that were."""
    with recording(seed, rounds) as recorded, scratch() as folder:
        for step, image in enumerate(recorded.disk.states()):
            with named(seed, step, None):
                judge(recorded, image, step, folder)
        return recorded.steps + 1


def losses(seed: int, count: int, rounds: int = 30) -> int:
    """Judge so many disks after a power loss at random steps of a run; how many disks that were."""
    with recording(seed, rounds) as recorded, scratch() as folder:
        for number in range(count):
            rng = Random(f"{seed}-{number}")
            step = rng.randint(0, recorded.steps)
            with named(seed, step, number):
                judge(recorded, recorded.disk.after_power_loss(rng, at=step), step, folder)
    return count


@contextmanager
def recording(seed: int, rounds: int) -> Iterator[Recorded]:
    recorded = Recorded(seed, rounds)
    try:
        yield recorded
    finally:
        recorded.close()


@contextmanager
def named(seed: int, step: int, number: int | None) -> Iterator[None]:
    """Say which disk it was: the same three numbers make it again."""
    try:
        yield
    except (AssertionError, TrunklineError) as exc:
        exc.add_note(f"the run of seed {seed}, after step {step}, loss {number}")
        raise
