"""A simulation as text for a person: what happened to each call, in order, and the command that runs it again.

Owns the form of it, and ``SimulationFailed``, whose text it is. What happened is collected by ``witness``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trunkline.testing.promises import Breach
from trunkline.testing.witness import StoryLine, short

# The end of a story without calls to tell of.
LAST_LINES = 60


class Story(Struct):
    """One simulation, as it happened. ``sha256`` covers every row of the ledger: equal for equal seeds, steps and code.

    It is empty for one that ended in the middle.
    """

    seed: int
    steps: int
    sha256: str
    # How much happened, by what.
    figures: dict[str, int]
    lines: list[StoryLine]

    def of(self, calls: Sequence[str]) -> list[StoryLine]:
        """What happened to these calls, and to the exchange meanwhile."""
        return [line for line in self.lines if line.call_id in calls or (not line.call_id and line.who == "exchange")]

    def again(self) -> str:
        """The command that runs it again."""
        return f"python -m trunkline.testing {self.seed} --steps {self.steps}"


class SimulationFailed(AssertionError):
    """A promise was broken. The text is the story; ``on_record`` is what the ledger has of the calls involved."""

    def __init__(self, story: Story, breaches: Sequence[Breach], on_record: Sequence[str] = ()) -> None:
        self.story = story
        self.breaches = list(breaches)
        calls = involved(breaches)
        told = story.of(calls) if calls else story.lines[-LAST_LINES:]
        broken = [f"  {' '.join([breach.what, *map(short, breach.calls)])}" for breach in breaches]
        parts = [
            f"seed {story.seed} broke {len(breaches)} of the promises:",
            *broken,
            "",
            *map(str, told),
            "",
            *on_record,
        ]
        super().__init__("\n".join([*parts, "", f"again: {story.again()}"]))


def involved(breaches: Sequence[Breach]) -> list[str]:
    """The calls that breaches are about, each once."""
    return list(dict.fromkeys(call_id for breach in breaches for call_id in breach.calls if call_id))
