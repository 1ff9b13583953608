"""What one caller may use at once: arithmetic over ``now``, nothing durable.

A rate is a bucket that holds one second's worth of calls; open calls and the bytes that they hold are plain counts,
given back when the call is settled. What is written on record for a caller is counted by the hour. What is written
beside calls (tools that come and go, reconnects, remarks) has a bucket of its own, of entries: ``try_note``.

Owns these counts. Does not own the figures (``config``), nor who is refused for them (``judging``).

Invariant: whatever was counted for a call is given back once, when the call ends.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from trunkline.model import EVENTS_CALLER, OPERATOR, Fault, Limits, fault, share_of

# One call, less what sums of floats lose: whoever waited as long as he was told gets through.
_ONE: Final = 1.0 - 1e-6


# An entry without its bodies, about.
ENTRY_BYTES: Final = 512
# The two entries of a call without its bodies. Counted with them when it ends: until then ``open_bytes`` bounds it.
CALL_BYTES: Final = 2 * ENTRY_BYTES
HOUR_S: Final = 3600.0
NO_LIMITS: Final = Limits(calls_per_s=0, open_calls=0, open_bytes=0, ledger_bytes_per_hour=0)
# Entries beside calls: an agent of a thousand tools may offer them all, one by one, twice in a row; then ten a second.
NOTES: Final = 2_000
NOTES_PER_S: Final = 10.0


def written_at_most(caller: str, limits: Limits) -> int:
    """Bytes that may be written on record for a caller in an hour; 0 is no bound."""
    # What is written while agents are told of events counts for whoever published them.
    return 0 if caller in (OPERATOR, EVENTS_CALLER) else limits.ledger_bytes_per_hour


class Load(Struct, gc=False):
    """What one caller uses now."""

    calls: int = 0
    bytes: int = 0
    tokens: float = 0.0
    filled_at: float = -math.inf
    # Written on record since then.
    written: int = 0
    written_since: float = -math.inf
    # Entries beside calls that may still be written.
    notes: float = NOTES
    notes_at: float = -math.inf


def _notes_left(load: Load, now: float) -> float:
    return min(NOTES, load.notes + max(0.0, now - load.notes_at) * NOTES_PER_S)


class Loads:
    """The loads of all callers there were. They are few: each has a credential, and those without share one."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}

    def try_pace(self, caller: str, limits: Limits, now: float) -> Fault | None:
        """Count one request against the rate, or say when to come back. What is refused later counts as well."""
        if not limits.calls_per_s or caller == EVENTS_CALLER:
            return None
        load = self.of(caller)
        burst = max(1.0, limits.calls_per_s)
        load.tokens = min(burst, load.tokens + (now - load.filled_at) * limits.calls_per_s)
        load.filled_at = now
        if load.tokens < _ONE:
            wait_ms = math.ceil((1.0 - load.tokens) / limits.calls_per_s * 1000)
            return fault("limit.rate", details={"retry_after_ms": wait_ms})
        load.tokens -= 1.0
        return None

    def try_write(self, caller: str, limits: Limits, now: float, size: int = 0) -> Fault | None:
        """Say when to come back to a caller for whom so much was written that the next hour has to begin first.

        ``size`` is what is about to be written, where that is known. It is counted by ``wrote``.
        """
        most = written_at_most(caller, limits)
        if not most:
            return None
        load = self.of(caller)
        passed_s = now - load.written_since
        if passed_s >= HOUR_S:
            load.written, load.written_since, passed_s = 0, now, 0.0
        if load.written + size > most:
            more = f", with {size} for this" if size else ""
            text = f"more than {most} bytes were written on record for {caller} within an hour{more}"
            return fault("limit.rate", text, details={"retry_after_ms": math.ceil((HOUR_S - passed_s) * 1000)})
        return None

    def wrote(self, caller: str, size: int) -> None:
        """Count so many bytes on record."""
        self.of(caller).written += size

    def try_note(self, who: str, count: int, now: float) -> Fault | None:
        """Count entries beside calls, or say when to come back. More than there ever are at once are let through."""
        load = self.of(who)
        load.notes, load.notes_at = _notes_left(load, now), max(now, load.notes_at)
        refused = self.too_many_notes(who, count, now)
        if refused is None:
            load.notes -= min(count, NOTES)
        return refused

    def too_many_notes(self, who: str, count: int, now: float) -> Fault | None:
        """What ``try_note`` would say. Nothing is counted."""
        load = self._loads.get(share_of(who))
        left, wanted = NOTES if load is None else _notes_left(load, now), min(count, NOTES)
        if left >= wanted - (1 - _ONE):
            return None
        wait_ms = math.ceil((wanted - left) / NOTES_PER_S * 1000)
        return fault("limit.rate", "too many changes in a short time", details={"retry_after_ms": wait_ms})

    def try_take(self, caller: str, size: int, limits: Limits) -> Fault | None:
        """Count one more open call of ``size`` bytes, or say why not."""
        load = self.of(caller)
        if caller == EVENTS_CALLER:
            limits = NO_LIMITS  # each agent's conversation has a bound of its own
        if limits.open_calls and load.calls >= limits.open_calls:
            return fault("limit.inflight", f"{caller} has {load.calls} open calls, the most one caller may have")
        if limits.open_bytes and load.bytes + size > limits.open_bytes:
            text = f"what {caller}'s open calls hold would exceed {limits.open_bytes} bytes"
            return fault("limit.inflight", text)
        load.calls += 1
        load.bytes += size
        return None

    def take(self, caller: str, size: int) -> None:
        """Count a call that was taken on before a restart."""
        load = self.of(caller)
        load.calls += 1
        load.bytes += size

    def give_back(self, caller: str, size: int) -> None:
        """A call is settled."""
        load = self._loads[share_of(caller)]
        load.calls -= 1
        load.bytes -= size

    def of(self, caller: str) -> Load:
        """A caller's load; that of all strangers, if he is one."""
        caller = share_of(caller)
        load = self._loads.get(caller)
        if load is None:
            load = self._loads[caller] = Load()
        return load

    def written(self) -> dict[str, int]:
        """Bytes on record that are counted for each caller."""
        return {caller: load.written for caller, load in self._loads.items()}

    def total(self) -> tuple[int, int]:
        """Calls and bytes over all callers."""
        return sum(load.calls for load in self._loads.values()), sum(load.bytes for load in self._loads.values())
