"""Snapshots of a workspace: what they keep, what they cost, and that everything comes back, also after a kill."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trunkline.errors import WorkspaceError
from trunkline.workspace import snapshots
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import SnapshotLimits
from trunkline.workspace.snapshots import About, Skipped, Snapshots

pytestmark = pytest.mark.slow


def plant(root: Path) -> None:
    """A space with some of everything."""
    (root / "data" / "deep" / "er").mkdir(parents=True)
    (root / "data" / "a.txt").write_text("alpha\n" * 50)
    (root / "data" / "b.bin").write_bytes(bytes(range(256)) * 300)
    (root / "data" / "deep" / "er" / "c").write_text("gamma")
    (root / "empty").mkdir()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "closed").write_text("nobody reads this")
    (root / "closed").chmod(0)
    (root / "link").symlink_to("data/a.txt")
    (root / "dangling").symlink_to("nowhere")
    os.link(root / "data" / "a.txt", root / "second-name")
    os.mkfifo(root / "pipe")
    with (root / "sparse").open("wb") as file:
        file.seek(10_000_000)
        file.write(b"end")
    (root / os.fsdecode(b"not-utf8-\xff")).write_text("named in bytes")
    for place in sorted(root.rglob("*")):
        os.utime(place, ns=(10**18, 10**18 + 123), follow_symlinks=False)
    subprocess.run(["git", "init", "-q", str(root / "repo")], check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/"})
    (root / "repo" / "untracked").write_text("work of an hour")


def picture(root: Path) -> dict[str, object]:
    """All that is there: content, mode, owner, time, target, and which names are one file."""
    found: dict[str, object] = {}
    names: dict[int, str] = {}
    for place in [root, *sorted(root.rglob("*"))]:
        info = place.lstat()
        content: object = None
        if stat.S_ISREG(info.st_mode):
            place.chmod(0o600)
            content = hashlib.sha256(place.read_bytes()).hexdigest()
            place.chmod(stat.S_IMODE(info.st_mode))
        elif stat.S_ISLNK(info.st_mode):
            content = str(place.readlink())
        one_file = names.setdefault(info.st_ino, str(place)) if info.st_nlink > 1 and content else None
        key = os.fsencode(place.relative_to(root)).decode(errors="backslashreplace")
        found[key] = (info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, content, one_file)
    return found


@pytest.fixture
def kept(workspace: Workspace, tmp_path: Path) -> Snapshots:
    plant(workspace.root)
    return Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits())


def copies_in(folder: Path) -> int:
    return len(list((folder / "snapshots" / "objects").iterdir()))


def taken(kept: Snapshots, run: str = "run_1", at_ms: int = 1) -> int:
    about = kept.take(run, at_ms)
    assert isinstance(about, About)
    return about.number


DESTRUCTIVE = [
    "rm -rf data",
    "rm -rf ./* .[a-z]*",
    "find . -delete",
    "find data -type f -delete",
    "cd repo && git clean -fdxq",
    "rm -rf repo/.git",
    "truncate -s 0 data/b.bin",
    "> data/a.txt",
    "echo more >> data/a.txt",
    "mv data/b.bin data/a.txt",
    "mv data /tmp/moved-$$; rm -rf /tmp/moved-$$",
    "python3 -c 'import shutil; shutil.rmtree(\"data\")'",
    "sed -i s/alpha/omega/ data/a.txt",
    "dd if=/dev/zero of=data/b.bin bs=1 count=10 conv=notrunc 2>/dev/null",
    "chmod 000 data/a.txt data",
    "chmod -R 777 .",
    "ln -sf /etc/passwd data/a.txt",
    "shred -n 1 data/b.bin",
    "shred -u data/b.bin",
    "cp run.sh data/a.txt",
    "tar cf /tmp/t-$$.tar run.sh; tar xf /tmp/t-$$.tar --transform s/run.sh/link/; rm /tmp/t-$$.tar",
    "rm -rf data; echo x > data",
    "rm run.sh; mkdir -p run.sh/a/b; touch run.sh/a/b/c",
    "ln -sfn /tmp empty; rmdir empty; ln -s /tmp empty",
    "rm second-name; cp data/a.txt second-name",
    "rm link dangling; touch link",
    "rm pipe; touch pipe",
    "touch data/a.txt run.sh empty",
    "mkdir -p new/folder; touch new/folder/x new/y; chmod 000 new",
    "perl -e 'truncate(\"sparse\", 5)'",
    "chmod 000 .",
]


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_what_a_command_destroyed_comes_back_byte_for_byte(kept: Snapshots, workspace: Workspace, command: str) -> None:
    before = picture(workspace.root)
    number = taken(kept)
    subprocess.run(["/bin/sh", "-c", command], cwd=workspace.root, check=False, capture_output=True)
    told = kept.compare(number)
    assert told.brought_back + told.changed_back + told.removed > 0
    assert kept.restore(number) == told
    assert picture(workspace.root) == before
    again = kept.compare(number)
    assert (again.brought_back, again.changed_back, again.removed) == (0, 0, 0)


def test_a_file_changed_at_once_after_a_snapshot_without_its_time_or_size_is_seen(
    kept: Snapshots, workspace: Workspace
) -> None:
    file = workspace.root / "data" / "b.bin"
    for letter in (b"x", b"y", b"z"):
        number = taken(kept)
        before, info = file.read_bytes(), file.stat()
        file.write_bytes(letter * len(before))
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
        second = taken(kept)
        kept.restore(number)
        assert file.read_bytes() == before
        kept.restore(second)
        assert file.read_bytes() == letter * len(before)


def test_undoing_an_undo_brings_back_what_it_took_away(kept: Snapshots, workspace: Workspace) -> None:
    number = taken(kept)
    shutil.rmtree(workspace.root / "data")
    (workspace.root / "new").write_text("made since")
    changed = picture(workspace.root)
    before_undo = taken(kept, "undo")
    kept.restore(number)
    assert not (workspace.root / "new").exists()
    kept.restore(before_undo)
    assert picture(workspace.root) == changed


def test_what_did_not_change_is_not_copied_again(
    kept: Snapshots, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if all of it had been there for a while.
    monkeypatch.setattr(snapshots, "UNSETTLED_NS", -(10**9))
    taken(kept)
    taken(kept)
    copies = copies_in(tmp_path)
    (workspace.root / "data" / "b.bin").write_text("new")
    about = kept.take("run", 1)
    assert isinstance(about, About)
    # One that its owner closed is opened to be read, which changes its time: it is copied each time.
    closed = 0 if os.geteuid() == 0 else 1
    assert about.copied == 4096 * (1 + closed)
    assert copies_in(tmp_path) == copies + 1 + closed


DAY_MS = 86_400_000


def changed_and_taken(kept: Snapshots, workspace: Workspace, run: str, at_ms: int, size: int = 0) -> None:
    """The file says which snapshot it is in, and is as large as was asked for."""
    (workspace.root / "file").write_bytes(run.encode() + b"\n" + os.urandom(size))
    taken(kept, run, at_ms)


def said_by_file(workspace: Workspace) -> str:
    return (workspace.root / "file").read_bytes().partition(b"\n")[0].decode()


@pytest.mark.parametrize("earlier", [0, 1, 40])
def test_a_burst_does_not_push_out_the_snapshot_from_before_it(
    workspace: Workspace, tmp_path: Path, earlier: int
) -> None:
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits())
    for day in range(earlier):
        changed_and_taken(kept, workspace, f"day_{day}", day * DAY_MS)
    # Shortly after the last of the earlier ones, so that it is not the distance between days that saves it.
    good_ms = max(earlier - 1, 0) * DAY_MS + 60_000
    changed_and_taken(kept, workspace, "good", good_ms)
    for turn in range(100):
        changed_and_taken(kept, workspace, f"burst_{turn}", good_ms + 170 * (turn + 1))
        runs = [about.run for about in kept.all()]
        assert "good" in runs, turn
        assert len(runs) <= 20
    kept.restore(kept.find("good"))
    assert said_by_file(workspace) == "good"


def test_a_burst_before_the_loss_leaves_a_snapshot_that_is_no_older_than_the_burst(
    workspace: Workspace, tmp_path: Path
) -> None:
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits())
    for day in range(20):
        changed_and_taken(kept, workspace, f"day_{day}", day * DAY_MS)
    began_ms = 19 * DAY_MS + 60_000
    for turn in range(200):
        changed_and_taken(kept, workspace, f"burst_{turn}", began_ms + 100 * turn)
    # Whatever was lost between the 100th and the 101st is there as it was at most these 10 s before.
    assert any(began_ms <= about.at_ms < began_ms + 10_000 for about in kept.all())


def test_a_burst_of_large_changes_does_not_push_it_out_by_bytes(workspace: Workspace, tmp_path: Path) -> None:
    limit = 200_000
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(max_bytes=limit))
    changed_and_taken(kept, workspace, "first", 0)
    changed_and_taken(kept, workspace, "good", 3_600_000, 40_000)
    for turn in range(30):
        changed_and_taken(kept, workspace, f"burst_{turn}", 3_600_000 + 170 * (turn + 1), 40_000)
        assert kept.size() <= limit
    assert {"good", "burst_29"} <= {about.run for about in kept.all()}
    kept.restore(kept.find("good"))
    assert said_by_file(workspace) == "good"


def test_of_even_distances_the_newest_half_and_the_first_stay_and_the_rest_is_sparser_the_older_it_is(
    workspace: Workspace, tmp_path: Path
) -> None:
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(kept=8))
    for hour in range(100):
        changed_and_taken(kept, workspace, str(hour), hour * 3_600_000)
    hours = [int(about.run) for about in kept.all()]
    assert hours[:4] == [99, 98, 97, 96]
    assert hours[-1] == 0
    assert len(hours) == 8
    ages = [99 - hour for hour in hours[3:]]
    assert all(older <= 4 * younger for younger, older in itertools.pairwise(ages)), ages
    # Each has the copies that are its own, and no others are left.
    assert copies_in(tmp_path) == 8
    for hour in hours:
        kept.restore(kept.find(str(hour)))
        assert said_by_file(workspace) == str(hour)


def test_a_copy_that_older_and_newer_snapshots_share_stays_when_one_between_them_goes(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "UNSETTLED_NS", -(10**9))
    (workspace.root / "steady").write_text("the same all the time")
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(kept=4))
    for turn in range(12):
        if turn == 8:
            (workspace.root / "steady").unlink()
        changed_and_taken(kept, workspace, str(turn), turn * 1_000)
    with_it = [about.number for about in kept.all() if int(about.run) < 8]
    assert with_it
    for number in with_it:
        kept.restore(number)
        assert (workspace.root / "steady").read_text() == "the same all the time"


def test_the_newest_alone_stays_if_no_more_is_kept_or_fits(workspace: Workspace, tmp_path: Path) -> None:
    one = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(kept=1))
    for turn in range(3):
        changed_and_taken(one, workspace, str(turn), turn)
    assert [about.run for about in one.all()] == ["2"]
    small = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(max_bytes=1))
    changed_and_taken(small, workspace, "last", 3)
    assert [about.run for about in small.all()] == ["last"]
    assert copies_in(tmp_path) == 1


@pytest.mark.parametrize("limits", [SnapshotLimits(kept=1), SnapshotLimits(kept=4), SnapshotLimits(max_bytes=1)])
@pytest.mark.parametrize("nth", range(6))
def test_the_one_that_an_undo_is_about_to_use_never_goes(
    workspace: Workspace, tmp_path: Path, limits: SnapshotLimits, nth: int
) -> None:
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits())
    for turn in range(6):
        changed_and_taken(kept, workspace, str(turn), turn * 100)
    number = kept.find(str(nth))
    strict = Snapshots(workspace, tmp_path / "snapshots", limits)
    about = strict.take("undo", 501, number)
    assert isinstance(about, About)
    assert {number, about.number} <= {one.number for one in strict.all()}
    assert len(strict.all()) <= max(limits.kept, 2)
    strict.restore(number)
    assert said_by_file(workspace) == str(nth)


def test_a_space_that_is_too_large_is_skipped_and_says_so_until_it_is_smaller(
    workspace: Workspace, tmp_path: Path
) -> None:
    (workspace.root / "large").write_bytes(os.urandom(100_000))
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits(largest_space_bytes=50_000))
    for _ in range(2):
        found = kept.take("run", 1)
        assert isinstance(found, Skipped)
        assert "more than 50000 bytes" in found.reason
        assert kept.skipped == found.reason
    assert copies_in(tmp_path) == 0
    (workspace.root / "large").unlink()
    assert isinstance(kept.take("run", 1), About)
    assert isinstance(Snapshots(workspace, tmp_path / "none", SnapshotLimits(kept=0)).take("run", 1), Skipped)


def test_the_first_snapshot_of_a_run_and_of_the_last_that_changed_something_are_found(
    workspace: Workspace, tmp_path: Path
) -> None:
    kept = Snapshots(workspace, tmp_path / "snapshots", SnapshotLimits())
    with pytest.raises(WorkspaceError, match="no snapshot of this space yet"):
        kept.find_changed()
    first = taken(kept, "run_a")
    with pytest.raises(WorkspaceError, match="nothing to undo"):
        kept.find_changed()
    (workspace.root / "a").write_text("before the question")
    assert taken(kept, "run_a") != first
    (workspace.root / "b").write_text("after it")
    third = taken(kept, "run_only_looks")
    assert (kept.find("run_a"), kept.find("run_only_looks"), kept.find_changed()) == (first, third, first)
    (workspace.root / "b").unlink()
    assert kept.find_changed() == third
    with pytest.raises(WorkspaceError, match="no snapshot from before run_c"):
        kept.find("run_c")


def test_a_damaged_copy_changes_nothing(kept: Snapshots, workspace: Workspace, tmp_path: Path) -> None:
    number = taken(kept)
    shutil.rmtree(workspace.root / "data")
    present = picture(workspace.root)
    copies = sorted((tmp_path / "snapshots" / "objects").iterdir(), key=lambda copy: copy.stat().st_size)
    copies[-2].write_bytes(b"")
    with pytest.raises(WorkspaceError, match="damaged"):
        kept.restore(number)
    assert picture(workspace.root) == present


def test_a_link_in_the_place_of_a_folder_is_not_followed(kept: Snapshots, workspace: Workspace, tmp_path: Path) -> None:
    before = picture(workspace.root)
    number = taken(kept)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("not yours")
    shutil.rmtree(workspace.root / "data")
    (workspace.root / "data").symlink_to(outside)
    kept.restore(number)
    assert picture(workspace.root) == before
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("a.txt", "not yours")]


# --- kill -9 at each step ---------------------------------------------------------------------------------------------


def killed_at(nth: int, work: Callable[[Callable[[str], None]], object]) -> bool:
    """Whether a process of its own that does this was killed at its nth step, or came to the end before."""
    child = os.fork()
    if child == 0:
        steps = 0

        def step(_: str) -> None:
            nonlocal steps
            steps += 1
            if steps == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(step)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_step_of_a_snapshot_leaves_the_space_and_the_older_ones(
    kept: Snapshots, workspace: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    before = picture(workspace.root)
    first = taken(kept)
    nth = 1
    while killed_at(nth, lambda step: Snapshots(workspace, folder, SnapshotLimits(kept=2), step).take("x", 1)):
        assert picture(workspace.root) == before
        after = Snapshots(workspace, folder, SnapshotLimits())
        assert after.recover() is None
        assert not list(folder.glob("*.new"))
        for about in after.all():
            assert after.compare(about.number).changed_back == 0
        nth += 1
    assert nth > 8
    assert first


def test_a_kill_at_any_step_of_an_undo_is_finished_at_the_next_start(
    kept: Snapshots, workspace: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    before = picture(workspace.root)
    number = taken(kept)
    nth, is_killed = 1, True
    while is_killed:
        shutil.rmtree(workspace.root / "data")
        (workspace.root / "run.sh").write_text("other")
        (workspace.root / "new").mkdir()
        (workspace.root / "new" / "file").write_text("x")
        is_killed = killed_at(nth, lambda step: Snapshots(workspace, folder, SnapshotLimits(), step).restore(number))
        after = Snapshots(workspace, folder, SnapshotLimits())
        assert after.recover() == (number if is_killed else None)
        assert picture(workspace.root) == before
        assert not (folder / "staging").exists()
        nth += 1
    assert nth > 8
