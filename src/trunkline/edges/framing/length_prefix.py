"""Frames with a 4-byte unsigned big-endian length in front: the OpenSentience framing, OS spec §2.1.

Owns the cutting of a byte stream into frames. It does not look inside a frame, and does not close anything.

Invariant: a length is judged against ``limit`` before a byte of its frame is kept, so what is held never exceeds one
frame of the limit and what the last ``feed`` brought beyond it. Any cutting of the stream gives the same frames.
"""

from __future__ import annotations

import io
import struct
from typing import Final

PREFIX_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">I")


class FrameTooLarge(ValueError):
    """A length prefix above the limit. Nothing of the frame was kept; the stream cannot be read on."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes is above the limit of {limit}")
        self.size = size
        self.limit = limit


# The four bytes in front of a frame of this size.
prefix: Final = _LENGTH.pack
_length_at: Final = _LENGTH.unpack_from


def frame(body: bytes) -> bytes:
    """A whole frame."""
    return prefix(len(body)) + body


class FrameDecoder:
    """Cuts frames out of a stream: ``feed`` what arrived, then pull with ``take`` until it gives nothing.

    ``limit`` may be changed between two pulls and holds for the next frame.
    """

    __slots__ = ("_at", "_chunk", "_missing", "_partial", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # What arrived last, and how far it was read. All whole frames are cut straight out of it: one copy for each.
        self._chunk = b""
        self._at = 0
        # A frame whose prefix was judged and whose end is missing. BytesIO gives its buffer away without a copy.
        self._partial: io.BytesIO | None = None
        self._missing = 0

    @property
    def held(self) -> int:
        """How many bytes wait here."""
        waiting = len(self._chunk) - self._at
        return waiting if self._partial is None else waiting + self._partial.tell()

    @property
    def mid_frame(self) -> bool:
        """Whether part of a frame arrived and the rest did not (only meaningful after ``take`` gave nothing)."""
        return self._partial is not None or self._at < len(self._chunk)

    def feed(self, data: bytes) -> None:
        """These bytes arrived."""
        self._chunk = self._chunk[self._at :] + data if self._at < len(self._chunk) else data
        self._at = 0

    def drop_consumed(self) -> None:
        """Let go of the bytes that were handed out: they may be large, or secret."""
        if self._at:
            self._chunk = self._chunk[self._at :]
            self._at = 0

    def take(self, at_most: int) -> list[bytes]:
        """The next whole frames, no more than so many; none if more bytes are needed.

        ``FrameTooLarge`` as soon as a prefix that says so is the next thing.
        """
        if self._partial is not None:
            last = self._finish_partial(self._partial)
            return [] if last is None else [last]
        chunk, end, limit = self._chunk, self._at, self.limit
        size = len(chunk)
        frames: list[bytes] = []
        while at_most and end + PREFIX_BYTES <= size:
            (length,) = _length_at(chunk, end)
            start = end + PREFIX_BYTES
            after = start + length
            if after > size or length > limit:
                break
            frames.append(chunk[start:after])
            end = after
            at_most -= 1
        self._at = end
        if not frames:
            self._keep_rest()
        return frames

    def _keep_rest(self) -> None:
        """Keep what there is of the next frame, unless its prefix says that it is too large."""
        chunk, at = self._chunk, self._at
        start = at + PREFIX_BYTES
        if len(chunk) < start:
            self.drop_consumed()
            return
        (size,) = _length_at(chunk, at)
        if size > self.limit:  # OS-023
            raise FrameTooLarge(size, self.limit)
        self._partial = io.BytesIO()
        self._partial.write(chunk[start:])
        self._missing = start + size - len(chunk)
        self._chunk, self._at = b"", 0

    def _finish_partial(self, partial: io.BytesIO) -> bytes | None:
        chunk, at, missing = self._chunk, self._at, self._missing
        if len(chunk) - at < missing:
            partial.write(chunk[at:] if at else chunk)
            self._missing = missing - (len(chunk) - at)
            self._chunk, self._at = b"", 0
            return None
        partial.write(chunk[at : at + missing])
        self._partial = None
        self._at = at + missing
        return partial.getvalue()
