"""One message a line: bytes in any pieces to whole lines, for programs that we speak with over their pipes.

Owns the line that has not ended, and its bound. Does not own what a line says.

Invariant: the same bytes give the same lines however they were cut into pieces, and no more than ``max_bytes`` are
kept. After a line that is too long nothing more is read: whoever writes so speaks something else.
"""

from __future__ import annotations

from typing import Final

# A whole conversation with its outputs may be one answer: what Trunkline's own frames may have at most.
MAX_LINE_BYTES: Final = 16_777_216


class Lines:
    """The lines of one stream of bytes. ``is_broken`` once one of them was too long."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._started = bytearray()
        self.is_broken = False

    @property
    def kept(self) -> int:
        """Bytes of the line that has not ended."""
        return len(self._started)

    @property
    def trouble(self) -> str:
        """What was wrong, in words for a person."""
        return f"a line has more than {self._max_bytes} bytes" if self.is_broken else ""

    def receive(self, data: bytes) -> list[bytes]:
        """The lines that end in these bytes, without their ends; those before one that is too long."""
        if self.is_broken:
            return []
        found: list[bytes] = []
        *ended, rest = data.split(b"\n")
        for line in ended:
            whole = bytes(self._started) + line if self._started else line
            self._started.clear()
            if len(whole) > self._max_bytes:
                self._break()
                return found
            found.append(whole)
        self._started += rest
        if len(self._started) > self._max_bytes:
            self._break()
        return found

    def _break(self) -> None:
        self.is_broken = True
        self._started.clear()
