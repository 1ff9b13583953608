"""How providers did for us: done, failed, silent, disagreed or lied, and the steps by which that stays on record.

Pure. Owns the sums of each provider and what is written of them. Does not own what follows from them for the next
choice (``discovery``).

Invariant: the last step of a provider has its sums, no provider has more than ``MAX_STEPS`` steps that are open, and
whoever is forgotten has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct, structs

from trunkline.entries import ProcessStep
from trunkline.events import ProcessStepped

# One subject for each provider.
PROVIDERS: Final = "nostr.provider"
# A provider's steps before they are written anew as one.
MAX_STEPS: Final = 16
# Providers of whom we remember how they did.
MAX_RECORDS: Final = 1024

Fate = Literal["succeeded", "failed", "silent", "disagreed", "lied"]


class Record(Struct, frozen=True):
    """How one provider did for us. ``lied`` are results that are not what they claim to be."""

    succeeded: int = 0
    failed: int = 0
    silent: int = 0
    disagreed: int = 0
    lied: int = 0
    # Of those that succeeded.
    total_ms: int = 0

    @property
    def jobs(self) -> int:
        """How many jobs it was asked for."""
        return self.succeeded + self.failed + self.silent + self.disagreed + self.lied

    def with_one(self, fate: Fate, took_ms: int = 0) -> Record:
        """One job more."""
        counted = structs.replace(self, **{fate: getattr(self, fate) + 1})
        is_success = fate == "succeeded"
        return structs.replace(counted, total_ms=self.total_ms + max(0, took_ms)) if is_success else counted


class Records:
    """What we know of providers ourselves. Who was asked long ago is forgotten first."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        # How many steps of each are on record.
        self._steps: Counter[str] = Counter()

    def take_up(self, steps_of: Mapping[str, Sequence[ProcessStep]]) -> list[ProcessStepped]:
        """What is on record of each provider; what is to be put there of those who are too many."""
        for provider, steps in sorted(steps_of.items(), key=lambda one: one[1][-1].n):
            self._records[provider] = msgspec.json.decode(steps[-1].data, type=Record)
            self._steps[provider] = len(steps)
        return self._forget_oldest()

    def count(self, provider: str, fate: Fate, took_ms: int) -> list[ProcessStepped]:
        """A provider was asked for one job more; what is to be put on record of it."""
        record = self.of(provider).with_one(fate, took_ms)
        data, out = Raw(msgspec.json.encode(record)), self.put(provider, record)
        if self._steps[provider] >= MAX_STEPS:
            # Each step has the sums: one is enough.
            out.append(ProcessStepped(0, "", PROVIDERS, provider, "counted", data, done=True))
            self._steps[provider] = 0
        self._steps[provider] += 1
        return [*out, ProcessStepped(0, "", PROVIDERS, provider, "counted", data)]

    def put(self, provider: str, record: Record) -> list[ProcessStepped]:
        """Remember how it did so far; what is to be put on record of those who are forgotten for it."""
        # The last is the one that was asked last.
        self._records.pop(provider, None)
        self._records[provider] = record
        return self._forget_oldest()

    def _forget_oldest(self) -> list[ProcessStepped]:
        """Forget those who are too many, and close their steps: nobody would ever look at them again."""
        gone = list(self._records)[: max(0, len(self._records) - MAX_RECORDS)]
        for provider in gone:
            del self._records[provider]
            self._steps.pop(provider, None)
        return [ProcessStepped(0, "", PROVIDERS, one, "forgotten", Raw(b"{}"), done=True) for one in gone]

    def of(self, provider: str) -> Record:
        """One provider's record; an empty one for somebody unknown."""
        return self._records.get(provider, Record())

    def all(self) -> Mapping[str, Record]:
        """Everybody of whom there is one."""
        return self._records
