"""Messages that were refused on the wire: how many, the latest one, and a note on record of some of them.

A refusal that reaches its sender alone cannot be looked into by the person who runs the exchange. So the record has the
code, who claimed to speak, and why. Owns how many notes there are: strangers write them, too. Does not own the answer
(``peers``).

Invariant: what is written for those who did not prove who they are is bounded by the hour, whatever they claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.edges.exchange import Feed
from trunkline.edges.ossa.messages import BAD_REQUEST, FORBIDDEN, UNAUTHORIZED, Refused
from trunkline.edges.ossa.translate import EDGE
from trunkline.events import Noticed
from trunkline.model import is_told_of

NOTED: Final = frozenset({BAD_REQUEST, UNAUTHORIZED, FORBIDDEN})
# Whoever was refused nothing for so long is a new one: of the same in a row the 1st, 10th, 100th … is on record.
FORGET_S: Final = 60.0
# Those in a row that are counted, by agent or address and code.
MAX_COUNTED: Final = 256
# Notes in an hour about all who proved nothing together, some 300 bytes each.
MAX_NOTES_AN_HOUR: Final = 100
HOUR_S: Final = 3600.0


class Refusals:
    """All refusals of one edge."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._by_code: dict[int, int] = {}
        # How many in a row, and when the last one was.
        self._in_a_row: dict[tuple[str, int], tuple[int, float]] = {}
        self._hour_began = 0.0
        self._notes = 0
        self._latest = ""

    def note(self, refused: Refused, origin: str) -> None:
        """A message from this address was refused."""
        code = refused.error_code
        self._by_code[code] = self._by_code.get(code, 0) + 1
        claimed = "nobody" if refused.to is None else refused.to.agent_id
        who = refused.proven or origin
        self._latest = f"{code} to {claimed}: {refused.text}"
        if code in NOTED and self._is_to_be_noted(who, code, is_proven=bool(refused.proven)):
            self._feed.feed([Noticed("message.refused", EDGE, who, self._latest)])

    def _is_to_be_noted(self, who: str, code: int, *, is_proven: bool) -> bool:
        now = self._feed.now().mono
        earlier, at = self._in_a_row.pop((who, code), (0, now))
        count = earlier + 1 if now - at < FORGET_S else 1
        self._in_a_row[who, code] = (count, now)
        if len(self._in_a_row) > MAX_COUNTED:
            del self._in_a_row[next(iter(self._in_a_row))]
        if not is_told_of(count):
            return False
        if is_proven:
            return True
        if now - self._hour_began >= HOUR_S:
            self._hour_began, self._notes = now, 0
        self._notes += 1
        return self._notes <= MAX_NOTES_AN_HOUR

    def figures(self) -> Mapping[str, object]:
        """How many since the start, and the latest."""
        shown: dict[str, object] = {"refused": sum(self._by_code.values())}
        if self._latest:
            shown["last_refused"] = self._latest
        return shown
