"""The one pen: numbers entries, folds each into the state as it is written, and gathers the effects of a step.

Everything in the hub that wants something remembered or said goes through here, so "recorded first" is one line of
code.
"""

from __future__ import annotations

from trunkline.effects import Effect, Reply
from trunkline.entries import Entry
from trunkline.hub.state import State
from trunkline.model import Fault


class Book:
    """What one step of the hub writes and says."""

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
