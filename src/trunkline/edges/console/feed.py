"""The record as it grows, for pages: the latest entries in memory, and where each page is; sans-IO.

Owns what a page is told in which batch. Does not own pages and timers (``live``), nor masking: what comes in is masked
already, and is cut only here, so that nothing secret is left by half (decision 99). A page is a position in the record:
a batch says after which entry it begins and up to which it goes, so each page can see that nothing is missing. Pages
that follow the same from the same position get the same bytes, made once.

Invariant: a batch holds all entries between its two numbers that the page asked for, and none is told before it is on
disk: after a crash the numbers mean the same entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.console.messages import BATCH, BEHIND, FEED_CHANNEL, Follow
from trunkline.edges.pusher.frames import encode, encoded_frame

# Entries that are kept for pages that follow: four seconds of 1,000 calls a second, 3 MB as a rule.
MAX_RECENT: Final = 8192
# Of the record, in one batch to a page that catches up; reading them takes some 3 ms.
MAX_READ: Final = 500
# A value of an entry that is longer is cut to its beginning: whoever looks closer asks for the call.
MAX_VALUE_BYTES: Final = 1024
SHOWN_CHARS: Final = 240
# Pieces of output that are told in one batch. Of a program that prints faster some are left out; their numbers say so.
MAX_OUTPUT_BYTES: Final = 262_144


class _Head(Struct):
    """What a line is about."""

    kind: str
    n: int = 0
    call_id: str = ""
    call: int | None = None


_head: Final = msgspec.json.Decoder(_Head).decode
_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_PROGRESS: Final = "progress"


class Line(Struct, frozen=True):
    """One entry, cut, and what of it decides who is told."""

    n: int
    kind: str
    call_id: str
    call: int | None
    data: bytes


class Follower:
    """Where one page is. ``at``: it was told everything up to this entry."""

    def __init__(self) -> None:
        self.wanted = Follow()
        self.at = 0
        # Whether it is told anything, and whether that comes from the record first.
        self.is_following = False
        self.is_reading = False
        # Pieces of output that came while it read: they are told once it has their calls.
        self.held: list[bytes] = []
        self._held_bytes = 0

    def follow(self, wanted: Follow, last: int) -> None:
        """From here on it is told this; ``last`` is the latest entry."""
        self.wanted = wanted
        self.at = last if wanted.after is None else min(wanted.after, last)
        self.is_following = True
        self.is_reading = wanted.after is not None and wanted.after < last
        self.take_held()

    def hold(self, output: Iterable[tuple[str, bytes]]) -> None:
        """Keep the output of a round for later, up to the bound of one batch."""
        for call_id, data in output:
            if self.wanted.wants_output and _is_call(self.wanted, call_id) and self._held_bytes < MAX_OUTPUT_BYTES:
                self.held.append(data)
                self._held_bytes += len(data)

    def take_held(self) -> list[bytes]:
        """What was kept; from here on nothing is."""
        held, self.held, self._held_bytes = self.held, [], 0
        return held


class Recent:
    """The latest entries, and pieces of output since the last batches."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=MAX_RECENT)
        self.output: list[tuple[str, bytes]] = []
        self._output_bytes = 0
        # The frames of this round of batches.
        self._frames: dict[tuple[object, ...], bytes | None] = {}

    def clear(self) -> None:
        """Nobody follows: what comes next is not kept."""
        self._lines.clear()
        self.end_round()

    def take(self, line: bytes) -> None:
        """Something happened: a masked entry, or a piece of output of a running call."""
        head = _head(line)
        if head.kind != _PROGRESS:
            if head.n != self.last + 1:
                # What was recorded while nobody watched is not shown to who begins to, but for some that was not on
                # disk then: places follow from numbers only behind the gap.
                self._lines.clear()
            self._lines.append(_cut(head, line))
        elif self._output_bytes < MAX_OUTPUT_BYTES:
            data = _shortened(line)
            self._output_bytes += len(data)
            self.output.append((head.call_id, data))

    @property
    def first(self) -> int:
        """The oldest entry that is kept; 0 if none is."""
        return self._lines[0].n if self._lines else 0

    @property
    def last(self) -> int:
        """The latest."""
        return self._lines[-1].n if self._lines else 0

    def end_round(self) -> None:
        """Everybody was told."""
        self.output.clear()
        self._output_bytes = 0
        self._frames.clear()

    # -- batches -------------------------------------------------------------------------------------------------------

    def has(self, after: int, upto: int) -> bool:
        """Whether all entries after one and up to another are kept."""
        return after >= upto or (bool(self._lines) and self.first <= after + 1 and upto <= self.last)

    def frame(self, follower: Follower, upto: int) -> bytes | None:
        """The next batch of a page that is not behind, up to an entry that is on disk; None if there is nothing."""
        if follower.held:
            return self._frame(follower, upto, follower.take_held())
        key = (follower.at, upto, follower.wanted)
        if key not in self._frames:
            self._frames[key] = self._frame(follower, upto)
        return self._frames[key]

    def _frame(self, follower: Follower, upto: int, held: Sequence[bytes] = ()) -> bytes | None:
        wanted = follower.wanted
        lines = self._between(follower.at, upto) if upto > follower.at else ()
        told = [data for call_id, data in self.output if _is_call(wanted, call_id)] if wanted.wants_output else []
        output = [*held, *told]
        if upto <= follower.at and not output:
            return None
        return batch(wanted, follower.at, upto, lines, output)

    def _between(self, after: int, upto: int) -> list[Line]:
        # Numbers have no gaps, so that places follow from them.
        start = max(0, after + 1 - self.first)
        return [self._lines[at] for at in range(start, min(len(self._lines), start + upto - after))]


def batch(wanted: Follow, after: int, upto: int, lines: Iterable[Line], output: Sequence[bytes] = ()) -> bytes:
    """The frame of one batch."""
    entries = b",".join(line.data for line in lines if is_wanted(wanted, line))
    data = b'{"after":%d,"upto":%d,"entries":[%b],"output":[%b]}' % (after, upto, entries, b",".join(output))
    return encoded_frame(BATCH, data.decode(), FEED_CHANNEL)


def behind(after: int, last: int) -> bytes:
    """The frame that tells a page to follow anew."""
    return encoded_frame(BEHIND, encode({"after": after, "last": last}).decode(), FEED_CHANNEL)


def is_wanted(wanted: Follow, line: Line) -> bool:
    """Whether a page asked for this entry."""
    if (
        (wanted.kinds or wanted.prefixes)
        and line.kind not in wanted.kinds
        and not line.kind.startswith(wanted.prefixes)
    ):
        return False
    return (
        not wanted.call_id
        or line.call_id == wanted.call_id
        or (line.call is not None and line.call == _number(wanted.call_id))
    )


def read_lines(lines: Iterable[bytes]) -> list[Line]:
    """Entries of the record, as they are told."""
    return [_cut(_head(line), line) for line in lines]


def _is_call(wanted: Follow, call_id: str) -> bool:
    return not wanted.call_id or wanted.call_id == call_id


def _number(call_id: str) -> int | None:
    """The number of the entry with which a call began: the last twelve hex digits of its id."""
    try:
        return int(call_id[-12:], 16)
    except ValueError:
        return None


def _cut(head: _Head, line: bytes) -> Line:
    return Line(head.n, head.kind, head.call_id, head.call, _shortened(line))


def _shortened(line: bytes) -> bytes:
    """The same, with long values cut."""
    if len(line) <= MAX_VALUE_BYTES:
        return line
    found = _fields(line)
    for name, value in found.items():
        size = len(bytes(value))
        if size > MAX_VALUE_BYTES:
            # A character has four bytes at most; what is cut in the middle of one is left out.
            shown = bytes(value)[: 4 * SHOWN_CHARS].decode(errors="ignore")[:SHOWN_CHARS]
            found[name] = Raw(encode({"$cut": shown, "bytes": size}))
    return encode(found)
