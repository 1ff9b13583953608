from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import uvloop

from tests.requirement import requirement
from tests.unit.ledger.made import InProcess, accepted, change, in_process, noticed, settled
from tests.unit.ledger.masking_examples import OURS
from trunkline.entries import SnapshotTaken
from trunkline.errors import InvariantBroken, LedgerCorrupt, LedgerError, LedgerFailed, LedgerLocked
from trunkline.ledger import ledger as ledger_module
from trunkline.ledger import used_keys
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.link import ProcessLink
from trunkline.ledger.reader import Call, Reader
from trunkline.ledger.verify import verify

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0


class Attended:
    """A ledger with its writer process, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.sqlite"
        self.acknowledged: list[int] = []
        self.failures: list[LedgerError] = []
        self._changed = asyncio.Event()
        self.ledger = Ledger.open(
            self.path,
            folder / "keys",
            loop=asyncio.get_running_loop(),
            on_durable=self._durable,
            on_failure=self._failed,
        )

    def _durable(self, number: int) -> None:
        self.acknowledged.append(number)
        self._changed.set()

    def _failed(self, error: LedgerError) -> None:
        self.failures.append(error)
        self._changed.set()

    @property
    def writer(self) -> int:
        link = self.ledger._link
        assert isinstance(link, ProcessLink)
        return link._process.pid

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_durable(self, number: int) -> None:
        self.ledger.need(number)
        await self.wait_until(lambda: self.ledger.durable >= number or bool(self.failures))
        assert not self.failures


@contextlib.asynccontextmanager
async def attended(folder: Path) -> AsyncIterator[Attended]:
    made = Attended(folder)
    writer = made.writer
    try:
        yield made
    finally:
        with contextlib.suppress(LedgerError):
            made.ledger.close()
        assert not psutil.pid_exists(writer)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    return asyncio.run if request.param == "asyncio" else uvloop.run


def test_entries_become_durable_through_the_writer_process(tmp_path: Path, run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with attended(tmp_path) as made:
            for n in range(1, 101):
                made.ledger.append(accepted(n) if n % 2 else settled(n, n - 1))
            assert made.ledger.backlog == 100
            await made.wait_durable(100)
            assert made.ledger.backlog == 0
            assert made.acknowledged == sorted(made.acknowledged)
            # Read here, while it is being written there.
            assert made.ledger.reader.call(99) == (accepted(99), settled(100, 99))
            made.ledger.append(noticed(101))
            await made.wait_durable(101)

    run(scenario())
    assert verify(tmp_path / "ledger.sqlite").entries == 101


def test_a_key_is_found_once_its_call_is_on_disk_and_after_the_next_start(tmp_path: Path) -> None:
    keys = [f"{n:064x}" for n in range(1, 9, 2)]
    with in_process(tmp_path) as made:
        for n, key_id in zip(range(1, 9, 2), keys, strict=True):
            assert made.ledger.by_key(key_id) is None
            made.add(accepted(n, key="k", key_id=key_id), settled(n + 1, n))
            assert made.ledger.by_key(key_id) == made.ledger.reader.by_key(key_id) is not None
    with in_process(tmp_path) as made:
        assert [call[0].n for key_id in keys if (call := made.ledger.by_key(key_id)) is not None] == [1, 3, 5, 7]


async def test_keys_of_a_large_record_are_found_before_and_after_all_of_them_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path) as made:
        made.add(*(accepted(n, key="k", key_id=f"{n:064x}") for n in range(1, 21)))
    monkeypatch.setattr(used_keys, "MORE", 3)
    monkeypatch.setattr(ledger_module, "READ_KEYS_S", 0.001)
    async with attended(tmp_path) as made:
        looked_for: list[str] = []
        on_disk = made.ledger.reader.by_key

        def by_key(key_id: str) -> Call | None:
            looked_for.append(key_id)
            return on_disk(key_id)

        monkeypatch.setattr(made.ledger.reader, "by_key", by_key)
        assert made.ledger.by_key("new") is None
        assert made.ledger.by_key(f"{20:064x}") is not None
        async with asyncio.timeout(20):
            while looked_for:
                looked_for.clear()
                assert made.ledger.by_key("new") is None
                await asyncio.sleep(0.001)
        assert all(made.ledger.by_key(f"{n:064x}") is not None for n in range(1, 21))


async def test_a_writer_that_was_begun_before_is_the_one_that_writes(tmp_path: Path) -> None:
    path, keys = tmp_path / "ledger.sqlite", tmp_path / "keys"
    begun = Ledger.begin(path, keys)
    writer = begun.link._process.pid
    with pytest.raises(LedgerLocked):
        Ledger.begin(path, keys)
    ledger = Ledger.open(
        path, keys, loop=asyncio.get_running_loop(), on_durable=lambda _: None, on_failure=lambda _: None, begun=begun
    )
    # It is the ledger's from here on.
    begun.abandon()
    assert psutil.pid_exists(writer)
    ledger.append(noticed(1))
    ledger.close()
    assert not psutil.pid_exists(writer)
    assert verify(path).entries == 1


def test_a_writer_that_nobody_opens_ends_and_lets_go_of_the_record(tmp_path: Path) -> None:
    for _ in range(2):
        begun = Ledger.begin(tmp_path / "ledger.sqlite", tmp_path / "keys")
        begun.abandon()
        assert not psutil.pid_exists(begun.link._process.pid)


async def test_what_nobody_waits_for_is_written_all_the_same(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        made.ledger.append(noticed(1))
        made.ledger.append(noticed(2))
        await made.wait_until(lambda: made.ledger.durable == 2)
        # Gathered into one commit.
        assert made.acknowledged == [2]


async def test_entries_of_one_turn_of_the_loop_are_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)
    async with attended(tmp_path) as made:
        for n in range(1, 11):
            made.ledger.append(noticed(n))
            made.ledger.need(n)
        await made.wait_until(lambda: made.ledger.durable == 10)
        assert made.acknowledged == [10]


async def test_one_group_is_on_its_way_and_one_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)
    async with attended(tmp_path) as made:
        os.kill(made.writer, signal.SIGSTOP)
        made.ledger.append(noticed(1))
        made.ledger.flush()
        for n in range(2, 8):
            made.ledger.append(noticed(n))
            made.ledger.need(n)
            await asyncio.sleep(0)
        assert made.ledger._sent == 1
        os.kill(made.writer, signal.SIGCONT)
        await made.wait_until(lambda: made.ledger.durable == 7)
        # The second went off as soon as the first was answered, with all that had gathered.
        assert made.acknowledged == [1, 7]


async def test_in_the_middle_of_other_work_the_writer_is_heard_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)
    async with attended(tmp_path) as made:
        made.ledger.append(noticed(1))
        made.ledger.poll()
        assert made.ledger._sent == 0  # nobody waits for it
        made.ledger.need(1)
        made.ledger.poll()
        made.ledger.append(noticed(2))
        made.ledger.need(2)
        # The loop has no turn meanwhile.
        until = time.monotonic() + PATIENCE_S
        while made.ledger.durable < 2:
            assert time.monotonic() < until
            made.ledger.poll()
        assert made.acknowledged == [1, 2]


async def test_what_is_needed_goes_at_once_also_after_the_clock_found_nothing_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attended(tmp_path) as made:
        made.ledger.append(noticed(1))
        await made.wait_durable(1)
        # It was set for the first entry, which somebody needed before.
        made.ledger._due()
        monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)
        made.ledger.append(noticed(2))
        await made.wait_durable(2)


async def test_a_group_that_was_needed_leaves_no_later_one_without_a_clock(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        for n in range(1, 6):
            made.ledger.append(noticed(n))
            if n % 2:
                await made.wait_durable(n)
            else:
                # Nobody waits for these.
                await made.wait_until(lambda n=n: made.ledger.durable == n)


async def test_much_that_gathers_is_sent_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "GATHER_S", 3600.0)
    monkeypatch.setattr(ledger_module, "GATHER_BYTES", 10_000)
    async with attended(tmp_path) as made:
        for n in range(1, 41):
            made.ledger.append(accepted(n))
        await made.wait_until(lambda: made.ledger.durable > 0)


async def test_large_groups_and_blobs_go_through_a_small_pipe(tmp_path: Path) -> None:
    output = json.dumps({"text": "b" * 8_000_000, "password": "hunter2"}).encode()
    digest = hashlib.sha256(output).hexdigest()
    async with attended(tmp_path) as made:
        made.ledger.append(accepted(1, b'"' + b"a" * 900_000 + b'"'))
        made.ledger.append(settled(2, 1, output))
        for n in range(3, 12):
            made.ledger.append(accepted(n, json.dumps(f"{n}" * 400_000).encode()))
        await made.wait_durable(11)
        assert made.ledger.reader.blob(digest) == output
        assert made.ledger.reader.entry(1) == accepted(1, b'"' + b"a" * 900_000 + b'"')
    assert verify(tmp_path / "ledger.sqlite").blobs == 11


@pytest.mark.skipif(os.geteuid() != 0, reason="the writer shows its environment to nobody but root")
@requirement("OS-136")
async def test_secrets_reach_the_writer_and_no_command_line(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        made.ledger.add_secret("gateway", "plainwords")
        made.ledger.append(noticed(1, f"plainwords {OURS}"))
        await made.wait_durable(1)
        line = made.ledger.reader.line(1) or b""
        assert b"[masked:gateway] [masked:trunkline-token]" in line
        process = psutil.Process(made.writer)
        shown = " ".join(process.cmdline()) + str(process.environ())
        assert "plainwords" not in shown
        assert (tmp_path / "keys" / "ledger.key").read_bytes().hex() not in shown


async def test_the_writer_ignores_what_a_terminal_or_supervisor_sends_to_everybody(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(made.writer, number)
        made.ledger.append(noticed(1))
        await made.wait_durable(1)
        assert os.getpgid(made.writer) != os.getpgid(0)


async def test_a_writer_that_dies_is_a_failure_and_nothing_is_acknowledged_after_it(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        made.ledger.append(noticed(1))
        await made.wait_durable(1)
        os.kill(made.writer, signal.SIGKILL)
        made.ledger.append(noticed(2))
        made.ledger.need(2)
        await made.wait_until(lambda: bool(made.failures))
        assert isinstance(made.failures[0], LedgerFailed)
        assert "SIGKILL" in str(made.failures[0])
        # The hub may go on talking; nobody is told that it is recorded.
        made.ledger.append(noticed(3))
        made.ledger.append(settled(4, 1, b'"' + b"a" * 1_100_000 + b'"'))
        made.ledger.need(3)
        made.ledger.flush()
        made.ledger.erase_expired(1)
        assert made.ledger.durable == 1
        assert made.acknowledged == [1]
        assert len(made.failures) == 1
        with pytest.raises(LedgerFailed):
            made.ledger.close()
    assert verify(tmp_path / "ledger.sqlite").last in {1, 2}


async def test_closing_waits_for_everything(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        for n in range(1, 2001):
            made.ledger.append(accepted(n))
            if n == 1000:
                made.ledger.flush()
        made.ledger.close()
        assert made.ledger.durable == 2000
        assert made.acknowledged == [1000, 2000]
    wal = tmp_path / "ledger.sqlite-wal"
    assert not wal.exists() or wal.stat().st_size == 0
    assert verify(tmp_path / "ledger.sqlite").last == 2000


async def test_a_second_exchange_is_turned_away_while_the_first_or_its_writer_lives(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        with pytest.raises(LedgerLocked):
            Attended(tmp_path)
        with pytest.raises(LedgerLocked):
            InProcess(tmp_path)
        made.ledger.append(noticed(1))
        await made.wait_durable(1)
    with in_process(tmp_path) as again:
        assert again.ledger.last == 1


async def test_what_the_writer_cannot_open_is_told_at_the_start(tmp_path: Path) -> None:
    LedgerKeys.load(tmp_path / "keys", create=True)
    (tmp_path / "ledger.sqlite").write_bytes(b"this is no database at all, but it is long enough" * 20)
    with pytest.raises(LedgerCorrupt, match="the file itself is damaged"):
        Attended(tmp_path)
    # And the lock is free again.
    (tmp_path / "ledger.sqlite").unlink()
    async with attended(tmp_path):
        pass


async def test_a_damaged_end_is_told_at_the_start_with_its_number(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(noticed(1), noticed(2))
    change(made.path, "UPDATE entries SET hash = CAST(x'ff00ff' AS TEXT) WHERE n = 2")
    with pytest.raises(LedgerCorrupt) as caught:
        Attended(tmp_path)
    assert caught.value.number == 2
    change(made.path, "DELETE FROM entries WHERE n = 2")
    with pytest.raises(LedgerCorrupt) as caught:
        Attended(tmp_path)
    assert caught.value.number == 2


def test_a_secret_too_short_to_mask_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the secret gateway has fewer than 8 bytes"):
        InProcess(tmp_path, secrets=[("gateway", "short")])
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_was_not_made_cannot_be_recorded(tmp_path: Path) -> None:
    with in_process(tmp_path) as made, pytest.raises(InvariantBroken, match="a snapshot that was not made"):
        made.ledger.append(SnapshotTaken(n=1, at=1, through=0, sha256="ab" * 32))


@pytest.mark.skipif(os.geteuid() != 0, reason="the writer shows its memory to nobody but root")
async def test_the_writer_needs_little_memory(tmp_path: Path) -> None:
    async with attended(tmp_path) as made:
        made.ledger.append(accepted(1))
        await made.wait_durable(1)
        process = psutil.Process(made.writer)
        async with asyncio.timeout(30):
            # It signs a head then, which needs 7 MB.
            while not (tmp_path / "keys" / "heads.pub").exists():  # noqa: ASYNC110  (another process writes it)
                await asyncio.sleep(0.01)
        # 46 MB on CPython 3.11, half of it the pages of shared libraries.
        assert process.memory_info().rss < 60_000_000
        loaded = " ".join(mapping.path for mapping in process.memory_maps())
        for heavy in ("uvloop", "orjson"):
            assert heavy not in loaded


# --- the exchange is killed -------------------------------------------------------------------------------------------

EXCHANGE = """
import asyncio, sys
from pathlib import Path
from tests.unit.ledger.made import accepted, settled
from trunkline.ledger.ledger import Ledger

async def main():
    folder = Path(sys.argv[1])
    def durable(n):
        sys.stdout.write(f"{n}\\n")
        sys.stdout.flush()
    ledger = Ledger.open(folder / "ledger.sqlite", folder / "keys", loop=asyncio.get_running_loop(),
                         on_durable=durable, on_failure=print)
    # So much and no more: should nobody kill it, it does not fill the disk.
    while ledger.last < 20_000:
        while ledger.backlog > 20:
            await asyncio.sleep(0.0005)
        n = ledger.last + 1
        # Every seventh is large, and one of three.
        large = b'{"text":"' + b"abc"[n % 3 :][:1] * 70_000 + b'"}'
        ledger.append(accepted(n, large if n % 7 == 0 else b'{"password":"hunter2"}') if n % 2
                      else settled(n, n - 1, *([large] if n % 7 == 0 else [])))
        ledger.need(n)
        await asyncio.sleep(0)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.contextmanager
def exchange(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """An exchange in a process of its own, and its writer; neither outlives the test, however it ends."""
    child = subprocess.Popen([sys.executable, "-c", EXCHANGE, str(folder)], stdout=subprocess.PIPE)
    writer: psutil.Process | None = None
    try:
        assert child.stdout is not None
        assert int(child.stdout.readline()) > 0
        (writer,) = psutil.Process(child.pid).children()
        yield child, writer
    finally:
        child.kill()
        child.stdout.close()
        child.wait(PATIENCE_S)
        if writer is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                writer.wait(PATIENCE_S)


@pytest.mark.parametrize("after", [1, 7, 40])
def test_kill_9_of_the_exchange_loses_nothing_that_was_acknowledged(tmp_path: Path, after: int) -> None:
    with exchange(tmp_path) as (child, _):
        assert child.stdout is not None
        seen = 1
        for _ in range(after - 1):
            seen = int(child.stdout.readline())
        child.kill()
        # What it said with its last breath counts as well; a cut last line does not.
        rest = child.stdout.read().decode().split("\n")[:-1]
        seen = max([seen, *map(int, rest)])
        # At once, while the writer may still be busy: the next exchange waits for it and takes up what it left.
        with in_process(tmp_path) as made:
            assert made.ledger.last >= seen
            recovered = list(made.ledger.reader.recovery())
            assert [entry.n for entry in recovered] == list(range(1, made.ledger.last + 1))
            for entry in recovered:
                large = b'{"text":"' + b"abc"[entry.n % 3 :][:1] * 70_000 + b'"}'
                if entry.n % 7 == 0:
                    assert entry == (accepted(entry.n, large) if entry.n % 2 else settled(entry.n, entry.n - 1, large))
            if made.ledger.last % 2 and made.ledger.last % 7:
                assert recovered[-1] == accepted(made.ledger.last, b'{"password":"hunter2"}')
            # The next exchange knows nothing of what was sent before.
            made.add(accepted(made.ledger.last + 1, b'{"text":"' + b"a" * 70_000 + b'"}'))
            assert verify(made.path).blobs <= 3
            assert verify(made.path).last == made.ledger.last


def test_the_writer_ends_when_the_exchange_does_without_a_word(tmp_path: Path) -> None:
    with exchange(tmp_path) as (child, writer):
        child.kill()
        child.wait(PATIENCE_S)
        writer.wait(PATIENCE_S)
    reader = Reader(tmp_path / "ledger.sqlite")
    assert reader.head()[0] > 0
    reader.close()
