"""What one run of an agent printed, in a file that stays below its cap and holds no secret.

Owns lines, masking, escaping and the cap; does not own the pipe they come from (``keeper``). Only the standard library
is imported, because the keeper lives on it.

Invariant: the same output gives the same lines however it was cut into pieces, and at most one line waits in memory.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

# The rest of a longer line is left out. 16 KiB is where Docker cuts them.
MAX_LINE_BYTES: Final = 16_384
# Cut off in addition at the end of a cut line, where half a secret may stand that no pattern knows any more.
HALF_SECRET_BYTES: Final = 256
# As for the record.
SHORTEST_SECRET: Final = 8

MASKED: Final = b"[masked]"
NOT_MASKED: Final = b"[trunkline: %d bytes left out, they could not be masked]"

_TOO_LONG: Final = re.compile(rb"(?m)^[^\n]{%d,}" % (MAX_LINE_BYTES + 1))
# What would act on the terminal of a reader instead of being seen: control characters (escape sequences), marks that
# turn the direction of writing, and those without width or ink (but for the selector in emoji).
_UNSEEN: Final = re.compile(
    r"\r(?=\n)|[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def spellings(secret: bytes) -> tuple[bytes, ...]:
    """A secret as itself, in hexadecimal, and inside a longer text in Base64 (both alphabets, all three positions)."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    for before in range(3):
        # A character of Base64 that also holds bits of a neighbour is not known: leave those out at both ends.
        first = (before * 8 + 5) // 6
        last = (before + len(secret)) * 8 // 6
        text = b"\0" * before + secret
        found += [base64.b64encode(text)[first:last], base64.urlsafe_b64encode(text)[first:last]]
    return tuple(dict.fromkeys(found))


class RunLog:
    """The log of one run. ``feed`` takes what was printed, in pieces of any size; ``close`` writes what is left."""

    def __init__(self, path: str, max_bytes: int, mask: Callable[[bytes], bytes], secrets: Iterable[str]) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120  (no pathlib in the keeper)
        # Never an existing file, never through a link.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._max_bytes = max_bytes
        self._mask = mask
        # What its program was given, and could print. A short one cannot be told from ordinary text.
        given = (secret.encode(errors="surrogateescape") for secret in secrets)
        self._secrets = tuple(form for secret in given if len(secret) >= SHORTEST_SECRET for form in spellings(secret))
        self._line = bytearray()
        self._line_bytes = 0
        self._end = 0
        self._is_full = False
        self._left_out = 0
        self._unwritten = 0

    def feed(self, data: bytes) -> None:
        """Take a piece of what the agent printed."""
        if self._is_full:
            self._leave_out(len(data))
            return
        head, newline, rest = data.partition(b"\n")
        self._extend_line(head)
        if not newline:
            return
        complete, newline, tail = rest.rpartition(b"\n")
        self._write(self._take_line() + _TOO_LONG.sub(self._cut_match, complete + newline))
        self._extend_line(tail)

    def remark(self, text: str) -> None:
        """Say something of our own between two lines of the agent's."""
        if not self._is_full:
            self._write(b"[trunkline: %s]\n" % text.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Write the line that was not ended, if any, and close the file."""
        try:
            if self._line_bytes and not self._is_full:
                self._write(self._take_line())
        finally:
            os.close(self._file)

    def _extend_line(self, data: bytes) -> None:
        self._line += data[: MAX_LINE_BYTES - len(self._line)]
        self._line_bytes += len(data)

    def _take_line(self) -> bytes:
        line = bytes(self._line)
        if self._line_bytes > MAX_LINE_BYTES:
            line = self._cut(line, self._line_bytes)
        self._line.clear()
        self._line_bytes = 0
        return line + b"\n"

    def _cut_match(self, match: re.Match[bytes]) -> bytes:
        return self._cut(match[0][:MAX_LINE_BYTES], len(match[0]))

    def _cut(self, start: bytes, length: int) -> bytes:
        shown = self._masked(start)[:-HALF_SECRET_BYTES]
        return shown + b" [trunkline: line of %d bytes cut]" % length

    def _masked(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, MASKED)
        masked = self._try_mask(data)
        if masked is None:
            # A defect of ours, and an agent that found it: it costs the line in which it is met. What goes over several
            # lines is looked for in the others.
            lines = data.split(b"\n")
            kept = [NOT_MASKED % len(line) if (one := self._try_mask(line)) is None else one for line in lines]
            masked = self._try_mask(b"\n".join(kept))
        return NOT_MASKED % len(data) if masked is None else masked

    def _try_mask(self, data: bytes) -> bytes | None:
        try:
            return self._mask(data) if data else data
        except Exception:  # noqa: BLE001  (whatever it is, what was printed must not be shown, nor lost beyond it)
            return None

    def _write(self, lines: bytes) -> None:
        """Append whole lines, as far as the cap allows."""
        visible = _UNSEEN.sub(_escaped, self._masked(lines).decode(errors="backslashreplace")).encode()
        if not visible.endswith(b"\n"):  # it was part of what was masked, such as a key of several lines
            visible += b"\n"
        if self._unwritten:
            visible = b"[trunkline: %d bytes lost, the disk was full]\n" % self._unwritten + visible
        # The line that tells of the cap has its place below the cap.
        room = max(0, self._max_bytes - len(self._notice()) - self._end)
        if len(visible) <= room:
            self._put(visible)
            return
        self._is_full = True
        kept = visible.rfind(b"\n", 0, room) + 1
        self._put(visible[:kept])
        self._leave_out(len(visible) - kept)

    def _put(self, data: bytes) -> None:
        try:
            written = os.pwrite(self._file, data, self._end)
        except OSError:  # The disk is full or broken; the agent goes on, and so does everybody else's log.
            written = -1
        if written == len(data):
            self._end += written
            self._unwritten = 0
        else:
            self._unwritten += len(data)

    def _leave_out(self, count: int) -> None:
        """Count what is dropped, in the one line after the last that was kept: written anew each time, in place."""
        self._left_out += count
        try:
            os.pwrite(self._file, self._notice(), self._end)
        except OSError:
            return

    def _notice(self) -> bytes:
        return b"[trunkline: log full at %d bytes; %15d bytes left out]\n" % (self._max_bytes, self._left_out)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    # A line of Windows ends with both; only a carriage return that would go back over the line is shown.
    if character == "\r" and match.string[match.end() : match.end() + 1] == "\n":
        return ""
    return character.encode("unicode_escape").decode()
