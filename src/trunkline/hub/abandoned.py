"""Calls that ended, or were lost, without the word of the agent that worked on them: it may still act for the callers.

Owns for whom one agent may still act, and until when. Does not own what follows from it (``chains``), or which calls an
agent runs (``registry``).

Invariant: nobody is forgotten before his time because of the calls of others. A bounded number of calls is remembered
one by one; of those beyond, everybody who stood behind them is, until the last of his would have been over, whatever
the agent says of single calls meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from trunkline.hub.state import Call

# For so long an agent may still be at a call whose end it did not tell, and so many of them are remembered singly.
ABANDONED_S: Final = 3600.0
MAX_ABANDONED: Final = 256

_NOTHING: Final = Raw(b"{}")


class Abandoned:
    """Those of one agent."""

    def __init__(self) -> None:
        # By id, the oldest first; and by who stood behind those that were too many. Each with the moment it is over.
        self._calls: OrderedDict[str, tuple[Call, float]] = OrderedDict()
        self._beyond: dict[str, tuple[Call, float]] = {}

    def __len__(self) -> int:
        return len(self._calls) + len(self._beyond)

    def ids(self) -> list[str]:
        """The calls that are remembered singly."""
        return list(self._calls)

    def add(self, call: Call, now: float) -> None:
        """Keep of a call who asked for it, and nothing large: its caller does not answer for these bytes any more."""
        kept = replace(call, entry=replace(call.entry, input=_NOTHING), context=None, stream=None)
        self._calls[call.entry.call_id] = (kept, now + ABANDONED_S)
        if len(self._calls) > MAX_ABANDONED:
            _, (oldest, until) = self._calls.popitem(last=False)
            if until > now:
                self._add_beyond(oldest, until, now)

    def _add_beyond(self, call: Call, until: float, now: float) -> None:
        """One call for each who stood behind it. They are as many as there are identities, which people hand out."""
        entry = call.entry
        for identity in (*entry.chain, entry.caller):
            known, known_until = self._beyond.get(identity, (call, 0.0))
            depth, circumstances = entry.depth, set(entry.circumstances)
            if known_until > now:
                depth = max(depth, known.entry.depth)
                circumstances.update(known.entry.circumstances)
            # Without an id: nobody can name it, and so say that he asks for this one alone.
            one = replace(
                entry,
                call_id="",
                caller=identity,
                chain=(),
                depth=depth,
                circumstances=tuple(sorted(circumstances)),
            )
            self._beyond[identity] = (replace(call, entry=one), max(until, known_until))

    def answered(self, call_id: str) -> bool:
        """The agent has said how this one ended, or was given it again. Whether it is one of them."""
        return self._calls.pop(call_id, None) is not None

    def at(self, now: float) -> Iterator[Call]:
        """The calls that it may be working on at this moment."""
        for call, until in (*self._beyond.values(), *self._calls.values()):
            if until > now:
                yield call
