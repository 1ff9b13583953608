"""What a command prints: a bounded beginning, and the size and hash of all of it.

Owns the bound and the way from bytes to text. Does not own the pipes (``sandbox``).

Invariant: memory stays the same however much is printed.
"""

from __future__ import annotations

import codecs
import hashlib
from typing import Final

from msgspec import Struct

# What an answer carries inline; the rest of a runaway log helps nobody.
KEPT_BYTES: Final = 1_048_576


class Output(Struct, frozen=True):
    """What a command printed on one stream.

    ``text`` is of the first KEPT_BYTES, with U+FFFD for what is no UTF-8; ``size`` and ``sha256`` are of all.
    """

    text: str
    truncated: bool
    size: int
    sha256: str


class Capture:
    """Takes in what a command prints on one stream, as it comes."""

    def __init__(self) -> None:
        self.size = 0
        self._kept = 0
        self._texts: list[str] = []
        self._hash = hashlib.sha256()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def take(self, data: bytes) -> str:
        """The text that these bytes add, which is empty once the bound is reached."""
        self.size += len(data)
        self._hash.update(data)
        room = KEPT_BYTES - self._kept
        if room <= 0:
            return ""
        self._kept += min(room, len(data))
        text = self._decode(data[:room])
        self._texts.append(text)
        return text

    def finish(self) -> Output:
        """All of it. A character that the bound cut in two is left out; one that the command did not end is U+FFFD."""
        truncated = self.size > KEPT_BYTES
        if not truncated:
            self._texts.append(self._decode(b"", final=True))
        return Output("".join(self._texts), truncated, self.size, self._hash.hexdigest())
