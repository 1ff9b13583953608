"""What is kept of what a running call showed: how much, its hash, its end (decision 27).

Does not own who is shown it. Invariant: what is kept is bounded, and begins with a whole word where it was cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from trunkline.entries import StreamSummary

TAIL_BYTES: Final = 65_536
# As much of a cut end's first word is left out: longer than any token.
HALF_SECRET_BYTES: Final = 1_024
_NOT_SPACE: Final = bytes(set(range(256)) - set(b" \t\r\n"))


class Stream(Struct, gc=False):
    """What one running call has shown so far: counted, hashed, and its last bytes. Settled with the call."""

    hasher: Any = field(default_factory=hashlib.sha256)
    chunks: int = 0
    size: int = 0
    last_seq: int = 0
    gaps: int = 0
    tail: bytes = b""

    def add(self, seq: int, data: bytes) -> None:
        """One more chunk, ``{"text": …}`` or ``{"json": …}`` as received."""
        self.hasher.update(data)
        self.chunks += 1
        self.size += len(data)
        self.gaps += max(0, seq - self.last_seq - 1)
        self.last_seq = seq
        self.tail = (self.tail + _shown(data))[-TAIL_BYTES:]

    def summary(self) -> StreamSummary:
        """What ``call.settled`` says of it."""
        tail = self.tail
        if len(tail) == TAIL_BYTES:
            # It begins in the middle of something: half a secret is one that no rule recognises any more.
            first = tail[:HALF_SECRET_BYTES]
            tail = tail[len(first) - len(first.lstrip(_NOT_SPACE)) :]
        return StreamSummary(
            self.chunks, self.size, self.hasher.hexdigest(), tail.decode("utf-8", "replace"), self.gaps
        )


_decode_shown: Callable[[bytes], dict[str, object]] = msgspec.json.Decoder(dict[str, object]).decode


def _shown(data: bytes) -> bytes:
    """The text of a chunk, so that the kept end reads as it was printed and a secret cut in two is whole again."""
    text = _decode_shown(data).get("text")
    return text.encode("utf-8", "replace") if isinstance(text, str) else data + b"\n"
