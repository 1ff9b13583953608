"""The process that makes and follows the index of calls, and searches in it; and our end of it.

``python -m trunkline.ledger.search_process LEDGER INDEX`` reads questions on standard input and answers each on
standard output, one JSON object a line; between them it follows the record, at a low priority. It ends with its
standard input, so also when the exchange is killed. What the exchange itself does is not slowed down by a search, and
does not wait for one.

Invariant: one question is asked at a time, and each is answered or failed within ``ANSWER_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import time
from pathlib import Path
from typing import Final

import apsw
import msgspec

from trunkline import children
from trunkline.errors import LedgerError
from trunkline.ledger.reader import Reader
from trunkline.ledger.search import Found, SearchIndex
from trunkline.shown import CallSearch

__all__ = ["SearchProcess"]

# How long a question waits for the index to reach the end of the record, before it is answered with what there is.
FOLLOW_S: Final = 8.0
# A look at 100,000 calls takes 0.1 s.
ANSWER_S: Final = 20.0
# Between two looks whether the record has grown.
LOOK_S: Final = 1.0
_LOW: Final = 10
MAX_LINE_BYTES: Final = 262_144

_decode: Final = msgspec.json.Decoder(CallSearch).decode
_decode_found: Final = msgspec.json.Decoder(Found).decode
_encode: Final = msgspec.json.Encoder().encode


class SearchProcess:
    """Our end. It is started with the first question, or by ``start`` where there is an index already."""

    def __init__(self, ledger: Path, index: Path) -> None:
        self._ledger = ledger
        self._index = index
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    async def start(self) -> None:
        """Follow the record from the start on if that was done before: what is removed there is removed here."""
        if self._index.exists():
            async with self._asking:
                await self._started()

    async def find(self, wanted: CallSearch) -> Found:
        """Search. ``LedgerError`` if that cannot be done."""
        async with self._asking:
            process = await self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                async with asyncio.timeout(ANSWER_S):
                    process.stdin.write(_encode(wanted) + b"\n")
                    await process.stdin.drain()
                    line = await process.stdout.readline()
                return _decode_found(line)
            except (TimeoutError, OSError, ValueError, msgspec.MsgspecError):
                await self._end()
                raise LedgerError("the search did not answer") from None
            except asyncio.CancelledError:
                # Whoever asks next would get this one's answer.
                await self._end()
                raise

    async def stop(self) -> None:
        """End it."""
        async with self._asking:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "trunkline.ledger.search_process", str(self._ledger), str(self._index)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # What a terminal sends to our group is not for it.
                start_new_session=True,
                limit=MAX_LINE_BYTES,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await children.end(process)


def answer(index: SearchIndex, line: bytes) -> bytes:
    """One question, once the index is as far as the record, or as far as it gets in time."""
    deadline = time.monotonic() + FOLLOW_S
    while index.follow() and time.monotonic() < deadline:
        pass
    return _encode(index.find(_decode(line)))


def main() -> None:
    """Follow and answer until standard input ends."""
    os.nice(_LOW)
    os.umask(0o077)
    # Unbuffered: what was read and not looked at would not wake `select`.
    asked, said = sys.stdin.fileno(), sys.stdout.buffer
    index = SearchIndex(Path(sys.argv[2]), Reader(Path(sys.argv[1])))
    unread = b""
    has_more = True
    while True:
        ready, _, _ = select.select([asked], [], [], 0 if has_more else LOOK_S)
        if not ready:
            has_more = index.follow()
            continue
        data = os.read(asked, 65_536)
        if not data:
            return
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            said.write(answer(index, line) + b"\n")
            said.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            main()
        except (LedgerError, apsw.Error) as error:
            # Our end sees that nothing is answered.
            sys.exit(f"the index of calls: {type(error).__name__}")
