"""A simulation told to a person: what happened to each call, in order, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trunkline.testing.promises import Breach
from trunkline.testing.witness import Line

# The end of a story without calls to tell of.
LAST_LINES = 60


class Story(Struct):
    """One simulation. ``sha256`` covers every row of the ledger: equal for equal seeds, steps and code."""

    seed: int
    steps: int
    sha256: str
    # How much happened, by what.
    figures: dict[str, int]
    lines: list[Line]
    # The ledger's entries by call, and those of no call, as it stores them.
    entries: dict[str, list[str]] = {}

    def of(self, calls: Sequence[str]) -> list[str]:
        """What happened to these calls, seen from outside, then what the ledger has of them."""
        told = [str(line) for line in self.lines if line.call_id in calls or (not line.call_id and _is_turn(line))]
        for call_id in calls:
            told.append(f"on record of {call_id}:")
            told += [f"  {entry}" for entry in self.entries.get(call_id, ["  nothing"])]
        return told

    def again(self) -> str:
        """The command that runs it again."""
        return f"python -m trunkline.testing {self.seed} --steps {self.steps}"


def _is_turn(line: Line) -> bool:
    """Whether a line about no call in particular changes the fate of all."""
    return line.who == "exchange"


class SimulationFailed(AssertionError):
    """A promise was broken. The text is the story."""

    def __init__(self, story: Story, breaches: Sequence[Breach]) -> None:
        self.story = story
        self.breaches = list(breaches)
        super().__init__(story_of(story, breaches))


def story_of(story: Story, breaches: Sequence[Breach]) -> str:
    """The text of a failed simulation."""
    calls = list(dict.fromkeys(call_id for breach in breaches for call_id in breach.calls if call_id))
    told = story.of(calls) if calls else [str(line) for line in story.lines[-LAST_LINES:]]
    return "\n".join(
        [
            f"seed {story.seed} broke {len(breaches)} promise{'s' if len(breaches) != 1 else ''}:",
            *(f"  {breach.what}" for breach in breaches),
            "",
            *told,
            "",
            f"again: {story.again()}",
        ]
    )
