"""What one caller may use at once: arithmetic over ``now``, nothing durable.

A rate is a bucket that holds one second's worth of calls; open calls and the bytes of their inputs are plain counts,
given back when the call is settled.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from trunkline.model import Fault, Limits, fault

# One call, less what sums of floats lose: whoever waited as long as he was told gets through.
_ONE: Final = 1.0 - 1e-6


class Load(Struct, gc=False):
    """What one caller uses now."""

    calls: int = 0
    bytes: int = 0
    tokens: float = 0.0
    filled_at: float = -math.inf


class Loads:
    """The loads of all callers there were. They are few: each has a credential."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}

    def try_pace(self, caller: str, limits: Limits, now: float) -> Fault | None:
        """Count one request against the rate, or say when to come back. What is refused later counts as well."""
        if not limits.calls_per_s:
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

    def try_take(self, caller: str, size: int, limits: Limits) -> Fault | None:
        """Count one more open call of ``size`` bytes, or say why not."""
        load = self.of(caller)
        if limits.open_calls and load.calls >= limits.open_calls:
            return fault("limit.inflight", f"{caller} has {load.calls} open calls, the most one caller may have")
        if limits.open_bytes and load.bytes + size > limits.open_bytes:
            text = f"the inputs of {caller}'s open calls would exceed {limits.open_bytes} bytes"
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
        load = self._loads[caller]
        load.calls -= 1
        load.bytes -= size

    def of(self, caller: str) -> Load:
        """A caller's load."""
        load = self._loads.get(caller)
        if load is None:
            load = self._loads[caller] = Load()
        return load

    def total(self) -> tuple[int, int]:
        """Calls and bytes over all callers."""
        return sum(load.calls for load in self._loads.values()), sum(load.bytes for load in self._loads.values())
