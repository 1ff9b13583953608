"""How far the record is proved to be whole: by the start, and by walks beside the work.

Owns that one walk is made at a time, and what is known from the last one: a walk is begun after a start that did not
read everything, once a day, and when the operator asks (decision 112). Does not own the walk, which is a process of
its own (``ledger.proving``), nor what follows from damage.

Invariant: ``verified`` is only said after a walk, or a start, that found every entry up to it as it was written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger import proving
from trunkline.ledger.heads import public_key_of
from trunkline.model import stamp

log = logging.getLogger("trunkline")


class Verifying:
    """Of one record. ``on_damage`` hears of one that was changed, ``on_defect`` of a walk that failed by our fault."""

    def __init__(
        self,
        ledger_file: Path,
        keys: Path,
        *,
        on_damage: Callable[[LedgerCorrupt], None],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._ledger_file = ledger_file
        self._keys = keys
        self._on_damage = on_damage
        self._on_defect = on_defect
        self._walk: asyncio.Task[None] | None = None
        # The last entry that was proved, and when; 0 if nothing was yet.
        self.verified = 0
        self._at_ms = 0

    @property
    def is_walking(self) -> bool:
        """Whether a walk is under way."""
        return self._walk is not None and not self._walk.done()

    def start_proved(self, number: int) -> None:
        """The start read everything up to this entry, and each was as it was written."""
        self.verified, self._at_ms = number, int(time.time() * 1000)

    def walk(self) -> bool:
        """Begin a walk through the whole record; False if one is under way already."""
        if self.is_walking:
            return False
        self._walk = asyncio.get_running_loop().create_task(self._walked())
        self._walk.add_done_callback(self._ended)
        return True

    async def stop(self) -> None:
        """End a walk that is under way."""
        if self._walk is not None:
            self._walk.cancel()
            await asyncio.wait([self._walk])

    def figures(self) -> dict[str, object]:
        """What ``status`` says of it."""
        return {
            "entries_verified": self.verified,
            "verified_at": stamp(self._at_ms) if self._at_ms else None,
            "verifying": self.is_walking,
        }

    def _ended(self, walk: asyncio.Task[None]) -> None:
        if not walk.cancelled() and (error := walk.exception()) is not None:
            self._on_defect(error)

    async def _walked(self) -> None:
        try:
            number = await proving.prove(self._ledger_file, public_key_of(self._keys))
        except LedgerCorrupt as damage:
            # A record that was changed is not written on (decision 85).
            log.critical("the record was changed: %s; stopping", damage)
            self._on_damage(damage)
        except (LedgerError, OSError) as error:
            log.warning("the record was not proved as a whole: %s", error)
        else:
            self.start_proved(number)
