"""P-A7: a ledger that somebody or something changed. The start refuses and names the entry; nothing is repaired.

``tests/unit/ledger/test_verify`` has every kind of damage once. Here: every byte of every entry, and real processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import apsw
import psutil
import pytest

from tests.crash.damage import Damaged, flips_of, made, rows_of
from tests.running import RawAgent, Running, running
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger.chain import GENESIS, verified

ENTRIES = 300
# Of each entry so many bytes are flipped in the file itself; `make soak` flips them all, of 2,000 entries.
FLIPS = 12
CUTS = 1000


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("whole"), ENTRIES)


def test_every_flipped_byte_of_every_entry_breaks_the_chain(ledger: Path) -> None:
    rows = rows_of(ledger)
    before, count = GENESIS, 0
    for n, data, stored in rows:
        for place in range(len(data) + len(stored)):
            changed = bytearray(data + stored)
            changed[place] ^= 1 << place % 8
            row = (n, bytes(changed[: len(data)]), bytes(changed[len(data) :]))
            with pytest.raises(LedgerCorrupt) as caught:
                list(verified([row], n, before))
            assert caught.value.number == n
            count += 1
        before = stored
    assert len(rows) == ENTRIES
    assert count > ENTRIES * 150


def test_a_flipped_byte_in_the_file_is_named_by_the_walk_and_by_the_start(ledger: Path, tmp_path: Path) -> None:
    damaged = Damaged(ledger, tmp_path)
    rng = Random(7)
    count = 0
    for n, places in flips_of(ledger):
        for place in rng.sample(places, FLIPS):
            with damaged.flipped(place, 1 << rng.randrange(8)):
                assert damaged.named_by_walk() == n
                if count % 4 == 0:
                    assert damaged.named_by_start() == n
            count += 1
    assert count == ENTRIES * FLIPS
    assert damaged.named_by_walk() is None


@pytest.mark.parametrize("seed", range(4))
def test_a_removed_repeated_swapped_or_renumbered_entry_is_named(ledger: Path, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    for _ in range(25):
        n, other = sorted(rng.sample(range(2, ENTRIES), 2))
        for changes, named in (
            (["DELETE FROM entries WHERE n = ?1"], n),
            (["UPDATE entries SET (data, hash) = (SELECT data, hash FROM entries WHERE n = ?1) WHERE n = ?2"], other),
            (
                [
                    "UPDATE entries SET n = -n WHERE n IN (?1, ?2)",
                    "UPDATE entries SET n = ?2 WHERE n = -?1",
                    "UPDATE entries SET n = ?1 WHERE n = -?2",
                ],
                n,
            ),
            (
                # All later ones a step further on, in everything that counts them: the chain stays whole.
                [
                    "UPDATE entries SET n = -n - 1 WHERE n > ?1",
                    "UPDATE entries SET n = -n WHERE n < 0",
                    "UPDATE settled SET n = n + 1 WHERE n > ?1",
                    "UPDATE meta SET value = value + 1 WHERE name = 'last'",
                ],
                n + 1,
            ),
        ):
            damaged = Damaged(ledger, tmp_path)
            connection = apsw.Connection(str(damaged.path))
            for change in changes:
                connection.execute(change, (n, other)[: 2 if "?2" in change else change.count("?1")])
            connection.close()
            assert damaged.named_by_walk() == named, changes
            assert damaged.named_by_start() == named, changes


def test_a_cut_file_is_never_taken_for_whole(ledger: Path, tmp_path: Path) -> None:
    data = ledger.read_bytes()
    rng = Random(7)
    damaged = Damaged(ledger, tmp_path)
    for size in rng.sample(range(len(data)), CUTS):
        damaged.path.write_bytes(data[:size])
        with pytest.raises(LedgerError):
            damaged.verify()


# What a copy does not need: sockets cannot be copied, and who reads the log makes its index anew.
LEFT_OUT = shutil.ignore_patterns("*.sock", "ready.json", "ledger.sqlite-shm", "ledger.reserve")

# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of an exchange that ran 40 calls and was killed: much of its record is in the log still."""
    folder = tmp_path_factory.mktemp("killed")
    short = Path("/tmp") / f"tl-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    short.mkdir(mode=0o700)
    with running(short / "home") as exchange:
        doer = RawAgent(exchange, "com.test.doer")
        doer.hello()
        doer.register({"name": "do", "side_effects": False})
        for n in range(40):
            exchange.request("POST", "/v1/calls", {"tool_id": "com.test.doer/do", "input": {"n": n}, "wait": False})
            doer.result(doer.wait_for("core.tool.call"), output={"n": n})
        exchange.wait_entry("call.settled", call=_last_call(exchange))
        assert exchange.process is not None
        # All at once, as the kernel does when memory ends: the writer would still put its log in order.
        for process in psutil.Process(exchange.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        exchange.kill()
    assert (exchange.home / "ledger.sqlite-wal").stat().st_size > 100_000
    yield exchange.home
    shutil.rmtree(short)


def _last_call(exchange: Running) -> int:
    return int(exchange.wait_entry("call.accepted", input={"n": 39})["n"])


def entry_in_file(home: Path) -> None:
    sql(home, "UPDATE entries SET data = CAST(substr(data, 1, 40) || '~' || substr(data, 42) AS BLOB) WHERE n = 30")


def hash_in_file(home: Path) -> None:
    sql(home, "UPDATE entries SET hash = zeroblob(32) WHERE n = 30")


def removed(home: Path) -> None:
    sql(home, "DELETE FROM entries WHERE n = 30")


def added(home: Path) -> None:
    sql(home, "INSERT INTO entries SELECT max(n) + 1, data, hash FROM entries")


def cut_off(home: Path) -> None:
    sql(home, "DELETE FROM entries WHERE n > 30")
    sql(home, "DELETE FROM settled WHERE n > 30")
    sql(home, "UPDATE meta SET value = 30 WHERE name = 'last'")


def log_taken_away(home: Path) -> None:
    (home / "ledger.sqlite-wal").unlink()


def log_flipped(home: Path) -> None:
    log = home / "ledger.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def file_emptied(home: Path) -> None:
    (home / "ledger.sqlite").write_bytes(b"")


def file_cut(home: Path) -> None:
    sql(home, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = home / "ledger.sqlite"
    path.write_bytes(path.read_bytes()[:-8192])


def sql(home: Path, statement: str) -> None:
    connection = apsw.Connection(str(home / "ledger.sqlite"))
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (entry_in_file, "entry 30"),
        (hash_in_file, "entry 30"),
        (removed, "entry 30"),
        (added, "entry "),
        (cut_off, "entry 31"),
        (log_taken_away, "entry "),
        (log_flipped, "entry "),
        (file_emptied, "entry 1: missing"),
        (file_cut, "entry "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_start_refuses_names_the_entry_and_deletes_nothing(
    killed: Path, short_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    home = short_path / "home"
    shutil.copytree(killed, home, ignore=LEFT_OUT)
    damage(home)
    before = {path.name: path.read_bytes() for path in home.glob("ledger.sqlite*") if not path.name.endswith("-shm")}
    for command in (["up"], ["ledger", "verify"]):
        ended = trunkline(home, *command)
        assert ended.returncode == 1, ended.stderr
        assert ended.stderr.startswith(f"ledger.corrupt: {named}"), ended.stderr
        assert "entry 0" not in ended.stderr, "it says which"
        assert "Traceback" not in ended.stderr
        for name, data in before.items():
            assert (home / name).read_bytes() == data, f"{name} was changed by {command}"
    assert not (home / "ready.json").exists()


@pytest.fixture(scope="module")
def stopped(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same home after a clean stop: its snapshot names none of the calls."""
    home = killed.parent / "stopped"
    shutil.copytree(killed, home, ignore=LEFT_OUT)
    with running(home):
        pass
    yield home
    shutil.rmtree(home)


def test_a_changed_entry_that_the_start_does_not_need_is_noticed_all_the_same(stopped: Path, short_path: Path) -> None:
    home = short_path / "home"
    shutil.copytree(stopped, home, ignore=LEFT_OUT)
    entry_in_file(home)
    ended = trunkline(home, "up")
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.endswith("ledger.corrupt: entry 30: does not match its hash\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (home / "ready.json").exists()


def test_without_damage_the_same_home_starts(killed: Path, short_path: Path) -> None:
    home = short_path / "home"
    shutil.copytree(killed, home, ignore=LEFT_OUT)
    assert trunkline(home, "ledger", "verify").returncode == 0
    with running(home) as exchange:
        assert len(exchange.entries(kind="call.settled")) == 40


def trunkline(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trunkline", *words, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
