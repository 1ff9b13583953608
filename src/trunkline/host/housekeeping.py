"""What an exchange looks after while it runs, each thing at its own pace.

The room on its disk, a disk that answers, snapshots, old entries, heads of the record that are to be published, whether
the record is whole, people who are asked.

Owns how often each of these is looked at, and what is said when one changes. Does not own what follows from it: the hub
refuses calls, the supervisor starts agents anew, the ledger forgets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline import events
from trunkline.config import Config
from trunkline.home import Home
from trunkline.host.anchoring import Anchoring
from trunkline.host.asked import AskedPeople
from trunkline.host.runner import Runner
from trunkline.host.supervisor import Supervisor
from trunkline.host.verifying import Verifying
from trunkline.hub.state import LONGEST_LIFE_MS
from trunkline.ledger.ledger import Ledger
from trunkline.model import Health

log = logging.getLogger("trunkline")

# A commit takes a thousandth of that. A disk that does not answer for so long is not waited for (decision 51).
STALL_S: Final = 5.0
# P-A6: below this new calls are refused, so that open ones can finish.
MIN_FREE_BYTES: Final = 67_108_864
# 1,000 calls a second with 64 KiB each fill those 64 MiB in one second; to look costs some microseconds.
CHECK_S: Final = 0.2
# Half a second of fold at the next start.
SNAPSHOT_EVERY: Final = 50_000
# Held originals of masked outcomes live a day; a minute more does not matter.
ERASE_CHECK_S: Final = 60.0
# Between two looks at the files of watched agents; a change is told after two of them.
FILES_CHECK_S: Final = 0.5
RETENTION_CHECK_S: Final = 3600.0
# A walk through a million small entries takes some 9 s of one core, at the lowest priority.
VERIFY_S: Final = 86_400.0
DAY_MS: Final = 86_400_000


def storage_figures(home: Home) -> dict[str, int]:
    """The room on the disk of a home, and what the record takes of it."""
    usage = os.statvfs(home.path)
    parts = (home.ledger_file, home.ledger_file.with_name(f"{home.ledger_file.name}-wal"))
    return {
        "disk_free_bytes": usage.f_bavail * usage.f_frsize,
        "disk_total_bytes": usage.f_blocks * usage.f_frsize,
        "ledger_bytes": sum(part.stat().st_size for part in parts if part.exists()),
    }


class Housekeeping:
    """Of one exchange. ``config`` gives the configuration in force."""

    def __init__(
        self,
        home: Path,
        ledger: Ledger,
        runner: Runner,
        supervisor: Supervisor,
        anchoring: Anchoring,
        verifying: Verifying,
        asked: AskedPeople,
        config: Callable[[], Config],
    ) -> None:
        self._home = home
        self._ledger = ledger
        self._runner = runner
        self._supervisor = supervisor
        self._anchoring = anchoring
        self._verifying = verifying
        self._asked = asked
        self._config = config
        self._next_snapshot = runner.hub.state.last + SNAPSHOT_EVERY
        self._was_low = self._was_stalled = False

    @property
    def is_stalled(self) -> bool:
        """Whether the disk has owed an answer for too long."""
        return self._ledger.unanswered_s > STALL_S

    async def keep(self) -> None:
        """Five times a second: disk, agents, whether a snapshot is due. Now and then: what is to be forgotten."""
        erase_at = retention_at = files_at = time.monotonic()
        verify_at = time.monotonic() + VERIFY_S
        while True:
            self._look_at_the_disk()
            self._supervisor.look(self._well())
            self._asked.look(self._runner.hub.approvals.shown_ids(), self._runner.hub.approvals.views)
            if time.monotonic() >= files_at:
                files_at = time.monotonic() + FILES_CHECK_S
                await self._supervisor.look_at_files()
            self._anchoring.look(self._ledger.durable)
            if self._runner.hub.state.last >= self._next_snapshot:
                self.take_snapshot()
            if time.monotonic() >= erase_at:
                erase_at = time.monotonic() + ERASE_CHECK_S
                self._erase_expired()
            if time.monotonic() >= verify_at:
                verify_at = time.monotonic() + VERIFY_S
                self._verifying.walk()
            if self._config().ledger.retention_days and time.monotonic() >= retention_at:
                retention_at = time.monotonic() + RETENTION_CHECK_S
                self._close_old_part()
            await asyncio.sleep(CHECK_S)

    def _look_at_the_disk(self) -> None:
        usage = os.statvfs(self._home)
        is_low = usage.f_bavail * usage.f_frsize < MIN_FREE_BYTES
        is_stalled = self.is_stalled
        if (is_low, is_stalled) != (self._was_low, self._was_stalled):
            self._runner.feed([events.StorageChanged(low=is_low, stalled=is_stalled)])
        if is_low is not self._was_low:
            text = "the disk is nearly full: new calls are refused" if is_low else "there is room on the disk again"
            log.warning("%s", text)
        if is_stalled is not self._was_stalled:
            text = "the disk does not answer: new calls are refused" if is_stalled else "the disk answers again"
            log.warning("%s", text)
        self._was_low, self._was_stalled = is_low, is_stalled
        if is_stalled:
            self._runner.answer_overdue()

    def _well(self) -> set[str]:
        """The agents that are connected and were heard of lately."""
        agents = self._runner.hub.registry.agents.values()
        return {agent.agent_id for agent in agents if agent.health is not Health.SILENT}

    def take_snapshot(self) -> None:
        """Store the open state: the next start folds from there."""
        state, now = self._runner.hub.state, self._runner.now()
        through = state.last
        _, sha256 = self._ledger.snapshot(state.open_entries(now.ms, self._config().limits.taint_ms))
        self._runner.feed([events.SnapshotTaken(through, sha256)])
        self._next_snapshot = through + SNAPSHOT_EVERY

    def _erase_expired(self) -> None:
        # Nothing happened, but the clock may have jumped.
        self._runner.feed(())
        now = self._runner.now()
        self._runner.mind_the_clock(now)
        self._ledger.erase_expired(now.ms)

    def _close_old_part(self) -> None:
        """Remove what is older than the retention setting; its hash stays in the chain."""
        state, config, now = self._runner.hub.state, self._config(), self._runner.now()
        if state.unlived_ms(now.ms) >= LONGEST_LIFE_MS:
            return  # somebody who set the clock wrong has a day to notice (decision 52)
        before_ms = now.ms - config.ledger.retention_days * DAY_MS
        closing = self._ledger.close_part(before_ms, state.open_entries(now.ms, config.limits.taint_ms))
        if closing is not None:
            self._runner.feed([closing])
