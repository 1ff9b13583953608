"""The runner and the disk: what waits for it leaves soon, and peers wait while too much is on its way to it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from msgspec import Raw

from trunkline import events
from trunkline.effects import ToSession
from trunkline.errors import LedgerFailed
from trunkline.host import runner as runner_module
from trunkline.host.runner import FLUSH_EVERY, Loop, Processes, Runner
from trunkline.hub.hub import Hub
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.model import HubSettings, Now, Policy


class Peer:
    """A sink that remembers whether it is read from."""

    is_read = True

    def __init__(self) -> None:
        self.sent: list[ToSession] = []

    def send(self, effect: ToSession, now: Now) -> None:
        self.sent.append(effect)

    def flush(self) -> None: ...

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def fail(reason: object) -> None:
    raise AssertionError(reason)


def joined(folder: Path) -> tuple[Ledger, Runner]:
    """A runner and its ledger, which commits in this process."""
    runners: list[Runner] = []

    def stored(number: int) -> None:
        runners[0].on_durable(number)

    ledger = Ledger.open(
        folder / "ledger.sqlite",
        folder / "keys",
        loop=None,
        on_durable=stored,
        on_failure=fail,
    )
    hub = Hub(
        mac_key=b"k" * 32,
        call_prefix="",
        new_id=str,
        operator_sha256="",
        launch_edge="",
        operator_edge="",
        settings=HubSettings(Policy((), "v1")),
    )
    nobody = cast("Processes", None)
    runner = Runner(
        hub,
        ledger,
        Masker(),
        nobody,
        cast("Loop", None),
        instance="test",
        fatal=fail,
        backlog=(10, 30),
    )
    runners.append(runner)
    return ledger, runner


@pytest.mark.parametrize(("steps", "size"), [(9, 4_000_000), (3, 12_000_000), (40, 10)])
def test_nobody_is_read_from_while_too_much_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, size: int
) -> None:
    monkeypatch.setattr(runner_module, "BACKLOG_BYTES", 33_554_432)
    ledger, runner = joined(tmp_path)
    peer = Peer()
    session = runner.open_session(peer)
    body = Raw(b'{"text":"' + b"x" * size + b'"}')
    for number in range(steps):
        assert peer.is_read
        runner.feed([events.ProcessStepped(session, f"r{number}", "test", "run", f"step {number}", body)])
        if not peer.is_read:
            break
    assert not peer.is_read
    assert ledger.backlog_bytes > 33_554_432 or ledger.backlog > 30
    ledger.flush()
    assert (ledger.backlog, ledger.backlog_bytes) == (0, 0)
    assert peer.is_read
    ledger.close()


def test_who_watches_is_shown_an_entry_once_it_is_on_disk(tmp_path: Path) -> None:
    # A name in it, like that of a question, would else be given to another one after a crash.
    ledger, runner = joined(tmp_path)
    shown: list[bytes] = []
    runner.watch(shown.append)
    runner.feed([events.Noticed("defect", "here")])
    assert shown == []
    ledger.flush()
    assert [b'"notice' in line for line in shown] == [True]
    ledger.close()


def test_what_is_on_disk_in_the_middle_of_many_events_leaves_in_the_middle_of_them(tmp_path: Path) -> None:
    ledger, runner = joined(tmp_path)
    peer = Peer()
    session = runner.open_session(peer)
    many = 3 * FLUSH_EVERY
    steps = [events.ProcessStepped(session, str(n), "test", "run", "step", Raw(b"{}")) for n in range(many)]
    left: list[int] = []

    def noted(effect: ToSession, now: Now) -> None:
        left.append(runner.hub.state.last)

    peer.send = noted  # type: ignore[method-assign]
    runner.feed(steps)
    # Those of each flush but the last; no reply before its own entry, and none later than the next flush.
    assert left == [FLUSH_EVERY] * FLUSH_EVERY + [2 * FLUSH_EVERY] * FLUSH_EVERY + [many] * FLUSH_EVERY
    ledger.close()


def test_after_a_failed_commit_in_the_middle_of_many_events_nothing_more_is_handled(tmp_path: Path) -> None:
    ledger, runner = joined(tmp_path)
    session = runner.open_session(Peer())
    died: list[str] = []
    runner._fatal = died.append

    def fail_here() -> None:
        runner.on_failure(LedgerFailed("gone"))

    ledger.poll = fail_here  # type: ignore[method-assign]
    steps = [events.ProcessStepped(session, str(n), "test", "run", "step", Raw(b"{}")) for n in range(20)]
    runner.feed(steps)
    assert runner.hub.state.last == FLUSH_EVERY
    assert died == ["the ledger failed: gone"]
    ledger.close()
