"""A commit group: what travels from the exchange to the writer of the ledger; and which entries the fold needs whole.

Words of the two ends (``ledger`` and ``writer``), which may be two processes. It imports little, as the writer does.

Owns the form of a group and that list. Does not own when one is sent (``link``) or what becomes of it (``writer``).
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from typing import Final, NamedTuple

# What the fold needs whole: such an entry's original is held while the entry is open. Outcomes have their own rule.
FOLDED_KINDS: Final = frozenset(
    {
        "call.accepted",
        "call.sent",
        "call.returned",
        "question.opened",
        "tool.pinned",
        "directive.stated",
        "token.issued",
        "agent.permissions",
        "process.step",
        "topic.subscribed",
        "event.published",
        "agents.labelled",
    }
)


class CommitGroup(NamedTuple):
    """The entries that are committed together, and what goes into the indexes with them.

    Plain values only: it travels by ``marshal``, between two runs of one interpreter.
    """

    first: int
    # The newest entry's time.
    at: int
    # Of the entries, which follow.
    sizes: list[int]
    # Where in an entry its large body is missing, and the number of the blob that belongs there.
    outlined: dict[int, tuple[int, int]]
    # A call, the entry that settled it, and so on.
    settled: list[int]
    keys: list[tuple[str, int]]
    correlations: list[tuple[str, int]]
    steps: list[tuple[str, int]]
    # The number of a `ledger.snapshot` entry, how far it reaches, and what it stands for.
    snapshot: tuple[int, int, bytes] | None
    # The last number of a part that is closed, and those of it that stay.
    part: tuple[int, int, list[int]] | None
    # Blobs that are handed over by reference, and blobs that no later group will name.
    outputs: list[int]
    forgotten: list[int]
    # Held originals whose time was over then are erased; 0: none. Not ``at``: a clock that jumped erases nothing.
    erase_until: int = 0
    # Sensitive entries: stored as hashes of what they say.
    sensitive: tuple[int, ...] = ()
    # Sensitive events that are owed to nobody any more.
    released: tuple[int, ...] = ()


def packed(group: CommitGroup, entries: Iterable[bytes]) -> bytes:
    """A group as it travels. Version 2: without the search for repeated objects, which costs more than it saves.

    Joined, since ``marshal`` finds out the size by and by: new memory for each group, 0.5 µs for a call.
    """
    return b"".join((marshal.dumps(tuple(group), 2), *entries))
