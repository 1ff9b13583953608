"""When the disk is behind, peers wait: by the number of entries that are on their way, and by their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from msgspec import Raw

from trunkline import events
from trunkline.effects import ToSession
from trunkline.host import runner as runner_module
from trunkline.host.runner import Loop, Processes, Runner
from trunkline.hub.hub import Hub
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.model import Now, Policy


class Peer:
    """A sink that remembers whether it is read from."""

    is_read = True

    def send(self, effect: ToSession, now: Now) -> None: ...

    def flush(self) -> None: ...

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def fail(reason: object) -> None:
    raise AssertionError(reason)


@pytest.mark.parametrize(("steps", "size"), [(9, 4_000_000), (3, 12_000_000), (40, 10)])
def test_nobody_is_read_from_while_too_much_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, size: int
) -> None:
    monkeypatch.setattr(runner_module, "BACKLOG_BYTES", 33_554_432)
    runners: list[Runner] = []

    def stored(number: int) -> None:
        runners[0].on_durable(number)

    ledger = Ledger.open(
        tmp_path / "ledger.sqlite",
        tmp_path / "keys",
        loop=None,
        on_durable=stored,
        on_failure=fail,
    )
    hub = Hub(mac_key=b"k" * 32, call_prefix="", new_id=str, operator_sha256="", rules=Policy((), "v1"))
    nobody = cast("Processes", None)
    runner = Runner(
        hub,
        ledger,
        Masker(),
        nobody,
        cast("Loop", None),
        instance="test",
        fatal=fail,
        reload=lambda: None,
        backlog=(10, 30),
    )
    runners.append(runner)
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
