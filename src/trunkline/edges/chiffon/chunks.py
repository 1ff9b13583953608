"""Large outputs in pieces: split at character boundaries, joined again exactly, whatever the order of arrival.

Owns the labels (``bytes 0-262144 of 524288``; ``bytes 0-256k`` is understood) and the bounds. Ranges are half-open
[start, end) over the UTF-8 bytes of a step's output (silent point 17). Does not own messages.

Invariant: a joined output is the output that was split, or it is not joined.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from msgspec import Struct

from trunkline.edges.chiffon.messages import invalid

CHUNK_BYTES: Final = 262_144  # CH-084
# Decision 24: of one step.
MAX_STEP_BYTES: Final = 67_108_864
# Sixteen times what full chunks of such an output are.
MAX_PIECES: Final = 4096
# What keeping a piece takes beside its text, about.
PIECE_BYTES: Final = 512
_FIELD: Final = "payload.step.output_chunk"
_LABEL: Final = re.compile(r"bytes (\d{1,12})(k?)-(\d{1,12})(k?)(?: of (\d{1,12})(k?))?")


class Chunk(Struct, frozen=True):
    """A part of an output; ``total`` is None where the short label was used."""

    start: int
    end: int
    total: int | None
    text: str

    @property
    def label(self) -> str:
        """How it is named on the wire (CH-085)."""
        return f"bytes {self.start}-{self.end}" + ("" if self.total is None else f" of {self.total}")


def split(text: str) -> list[Chunk]:
    """An output as chunks that follow each other without gap or overlap (CH-084, CH-086)."""
    data = text.encode()
    total, start, found = len(data), 0, []
    while start < total:
        end = min(start + CHUNK_BYTES, total)
        while end < total and data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        found.append(Chunk(start, end, total, data[start:end].decode()))
        start = end
    return found


def read(label: str, text: str) -> Chunk:
    """The chunk of a label and its text; refused if they contradict each other."""
    found = _LABEL.fullmatch(label)
    if found is None:
        raise invalid("expected `bytes START-END of TOTAL`", _FIELD)
    start, end = _number(found[1], found[2]), _number(found[3], found[4])
    total = None if found[5] is None else _number(found[5], found[6])
    size = len(text.encode())
    if not start < end or (total is not None and end > total):
        raise invalid("the range is empty or beyond the total", _FIELD)
    if max(end, total or 0) > MAX_STEP_BYTES:
        raise invalid(f"a step's output may have {MAX_STEP_BYTES} bytes", _FIELD)
    # The short label cannot say where a character kept a chunk from being full, nor that the last one is shorter.
    if size != end - start and (total is not None or not 0 < size <= end - start):
        raise invalid(f"the label names {end - start} bytes and the output has {size}", _FIELD)
    return Chunk(start, end, total, text)


def _number(digits: str, suffix: str) -> int:
    return int(digits) * (1024 if suffix else 1)


class Assembly:
    """The output of one step, while its chunks arrive."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.total: int | None = None
        # What keeping it takes.
        self.size = 0
        self._pieces: dict[int, Chunk] = {}
        # Up to here everything has been shown, in order.
        self._shown = 0

    def add(self, chunk: Chunk) -> str:
        """Keep a chunk; the text that now follows what was shown before. Identical repeats change nothing."""
        known = self._pieces.get(chunk.start)
        if known is not None and (known.end, known.text) == (chunk.end, chunk.text):
            return ""
        if self._pieces and chunk.total != self.total:
            raise invalid("the total changed", _FIELD)
        if len(self._pieces) >= MAX_PIECES:
            raise invalid(f"a step's output may come in {MAX_PIECES} chunks", _FIELD)
        if any(chunk.start < other.end and other.start < chunk.end for other in self._pieces.values()):
            raise invalid("overlaps another chunk of this step", _FIELD)
        self.total = chunk.total
        self._pieces[chunk.start] = chunk
        self.size += chunk.end - chunk.start + PIECE_BYTES
        follows = []
        while (following := self._pieces.get(self._shown)) is not None:
            follows.append(following.text)
            self._shown = following.end
        return "".join(follows)

    @property
    def is_complete(self) -> bool:
        """Whether everything is there. With short labels only the end of the task tells."""
        return self.total is not None and self._shown == self.total

    def missing(self) -> list[tuple[int, int]]:
        """The ranges that did not arrive."""
        found, at = [], 0
        for start in sorted(self._pieces):
            if start > at:
                found.append((at, start))
            at = self._pieces[start].end
        if self.total is not None and at < self.total:
            found.append((at, self.total))
        return found

    def text(self) -> str:
        """What arrived, joined in order (CH-087)."""
        return "".join(self._pieces[start].text for start in sorted(self._pieces))


def sha256(text: str) -> str:
    """The hash of an output, over its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
