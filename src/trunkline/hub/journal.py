"""What the hub writes down and says: every entry and every effect of one ``handle`` goes through here, in order.

Owns the numbers of entries. An entry is folded into the state as it is written, so what is said afterwards already
rests on it. Does not own what an entry does to the state (``state``) or when it is on disk (the host).

Invariant: entries are numbered without gaps, in the order in which they are handed out.
"""

from __future__ import annotations

from trunkline.effects import Effect, Reply
from trunkline.entries import Entry
from trunkline.hub.state import State
from trunkline.model import Fault


class Journal:
    """Gathers the effects of one event; ``hub`` hands them out and begins anew."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.effects: list[Effect] = []

    @property
    def next(self) -> int:
        """The number of the next entry."""
        return self.state.last + 1

    def write(self, entry: Entry) -> int:
        """Remember this; its number is what an effect waits for."""
        self.state.apply(entry)
        self.effects.append(entry)
        return entry.n

    def say(self, effect: Effect) -> None:
        """Ask the host for this."""
        self.effects.append(effect)

    def reply(
        self,
        session: int,
        ref: str,
        after: int,
        *,
        problem: Fault | None = None,
        named: str | None = None,
        status: str | None = None,
    ) -> None:
        """Answer a request that is not a call: with a problem, or with the id and the state of what it was about."""
        if problem is not None:
            self.effects.append(Reply(session, after, ref, fault=problem))
        else:
            self.effects.append(Reply(session, after, ref, id=named, status=status))
