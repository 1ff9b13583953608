"""How commit groups get from the exchange to the writer: to a child process over a socket pair, or by a plain call.

Owns the child process and the bytes between; ``ledger`` decides what is sent when. Plain ``add_reader`` and
``add_writer``, so any asyncio loop will do.

Invariant: frames arrive in the order they were sent, and the child ends when this end is closed, killed included.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec import Raw

from trunkline.errors import LedgerCorrupt, LedgerError, LedgerFailed, LedgerFull
from trunkline.ledger.writer import Writer
from trunkline.ledger.writer_process import (
    ANSWER,
    BLOB,
    BLOB_NUMBER,
    CORRUPT,
    DURABLE,
    FRAME,
    FULL,
    GROUP,
    SECRET,
)

__all__ = ["InlineLink", "Link", "ProcessLink"]

# A writer that has not opened its file by then never will: starting takes 0.1 s, replaying a full log about 1.
START_S: Final = 30.0
# The last group: a commit takes milliseconds, and a disk that needs longer than this does not answer at all.
LAST_GROUP_S: Final = 5.0
# A checkpoint of the whole log, on a slow disk.
STOP_S: Final = 30.0
# A process that waits for a disk which does not answer cannot even be killed; nobody waits longer for it.
KILL_S: Final = 1.0

# So many pieces are given to the system with one call; it takes 1,024 at most.
AT_ONCE: Final = 64

# A large body and the number that entries name it by.
Blob = tuple[int, Raw]


class Link(Protocol):
    """What ``Ledger`` needs of the way to its writer.

    Each group that is sent is answered by one call of the two functions that ``listen`` was given.
    """

    last: int

    def listen(self, on_durable: Callable[[int], None], on_failure: Callable[[LedgerError], None]) -> None:
        """Say who is told of each answer."""

    def send(self, group: bytes, blobs: Sequence[Blob]) -> None:
        """Commit this group, whose entries may name these bodies."""

    def send_secret(self, name: str, secret: str) -> None:
        """Mask this from here on."""

    def poll(self) -> None:
        """Hear the answer, if it has come, without waiting for the loop."""

    def wait(self) -> None:
        """Block until the group that was sent is answered."""

    def close(self) -> None:
        """End cleanly, when every group is answered."""

    def abandon(self) -> None:
        """End after a failure."""


class InlineLink:
    """The writer in this process: a group is durable, and its answer heard, before ``send`` returns."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.last = writer.last

    def listen(self, on_durable: Callable[[int], None], on_failure: Callable[[LedgerError], None]) -> None:
        """Say who is told of each answer."""
        self._on_durable = on_durable
        self._on_failure = on_failure

    def send(self, group: bytes, blobs: Sequence[Blob]) -> None:
        """Commit this group, now."""
        try:
            last = self._writer.commit(group, blobs)
            self._writer.rest()
        except LedgerError as exc:
            self._on_failure(exc)
        else:
            self._on_durable(last)

    def send_secret(self, name: str, secret: str) -> None:
        """Mask this from here on."""
        self._writer.add_secret(name, secret)

    def poll(self) -> None:
        """Nothing is ever outstanding."""

    def wait(self) -> None:
        """Nothing is ever outstanding."""

    def close(self) -> None:
        """Checkpoint and close the file."""
        self._writer.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._writer.abandon()


class ProcessLink:
    """The writer as a child process. It holds ``lock`` too, so that nobody else writes while it still does.

    Made, it starts; ``wait_ready`` waits for it, and comes before all else.
    """

    def __init__(self, path: Path, keys: Path, *, lock: int) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self._answers = 0
        self._failed = False
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: the folder it is started in is no place to import from.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "trunkline.ledger.writer_process",
                    str(theirs.fileno()),
                    str(path),
                    str(keys),
                ],
                pass_fds=(theirs.fileno(), lock),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Its own group: what a terminal sends to ours is not for it.
                process_group=0,
                # One arena is enough for one thread and keeps its memory small.
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "1"},
            )
        self._on_durable: Callable[[int], None] = self._begin
        self._on_failure: Callable[[LedgerError], None] = self._refuse
        self.last = -1

    def wait_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Block until the file is open, and use this loop from here on. ``LedgerError`` if it cannot be opened."""
        self._await_answer(START_S)
        self._channel.setblocking(False)
        self._loop = loop

    def _begin(self, last: int) -> None:
        self.last = last

    def _refuse(self, error: LedgerError) -> None:
        self.abandon()
        raise error

    def _ended(self) -> LedgerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return LedgerFailed(f"the ledger's writer ended by itself: {how}")

    def listen(self, on_durable: Callable[[int], None], on_failure: Callable[[LedgerError], None]) -> None:
        """Say who is told of each answer."""
        self._on_durable = on_durable
        self._on_failure = on_failure
        assert self._loop is not None
        self._loop.add_reader(self._channel, self._read)

    # --- to the writer ------------------------------------------------------------------------------------------------

    def send(self, group: bytes, blobs: Sequence[Blob]) -> None:
        """Commit this. Everything goes as it is, without a copy."""
        for number, data in blobs:
            head = FRAME.pack(BLOB, BLOB_NUMBER.size + len(data)) + BLOB_NUMBER.pack(number)
            self._outgoing += (memoryview(head), memoryview(data))
        self._outgoing += (memoryview(FRAME.pack(GROUP, len(group))), memoryview(group))
        self._write()

    def send_secret(self, name: str, secret: str) -> None:
        """Mask this from here on."""
        payload = marshal.dumps((name, secret), 2)
        self._outgoing.append(memoryview(FRAME.pack(SECRET, len(payload)) + payload))
        self._write()

    def _write(self) -> None:
        outgoing = self._outgoing
        try:
            while outgoing:
                sent = self._channel.sendmsg([*itertools.islice(outgoing, AT_ONCE)])
                while outgoing and sent >= len(outgoing[0]):
                    sent -= len(outgoing.popleft())
                if sent:
                    outgoing[0] = outgoing[0][sent:]
        except BlockingIOError:
            assert self._loop is not None
            self._loop.add_writer(self._channel, self._write)
            return
        except OSError:
            # The reading side finds out how it ended.
            outgoing.clear()
        if self._loop is not None:
            self._loop.remove_writer(self._channel)

    # --- from the writer ----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Hear the answer, if it has come, without waiting for the loop."""
        if not self._failed:
            self._read()

    def _read(self) -> None:
        try:
            data = self._channel.recv(4096)
        except BlockingIOError:
            return
        except TimeoutError:
            self._fail(LedgerFailed("the ledger's writer does not answer"))
            return
        except OSError:
            data = b""
        if not data:
            self._fail(self._ended())
            return
        self._incoming += data
        while len(self._incoming) >= ANSWER.size and not self._failed:
            kind, number, size = ANSWER.unpack_from(self._incoming)
            if len(self._incoming) < ANSWER.size + size:
                return
            text = self._incoming[ANSWER.size : ANSWER.size + size].decode()
            del self._incoming[: ANSWER.size + size]
            self._answers += 1
            if kind == DURABLE:
                self._on_durable(number)
            else:
                self._fail(_failure(kind, number, text))

    def _fail(self, error: LedgerError) -> None:
        self._failed = True
        self._leave_loop()
        self._on_failure(error)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _leave_loop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)

    def wait(self) -> None:
        """Block until the group that was sent is answered."""
        self._leave_loop()
        self._await_answer(LAST_GROUP_S)

    def _await_answer(self, seconds: float) -> None:
        self._channel.settimeout(seconds)
        before = self._answers
        with contextlib.suppress(OSError):
            while self._outgoing:
                self._channel.sendall(self._outgoing.popleft())
        while self._answers == before and not self._failed:
            self._read()

    def close(self) -> None:
        """Close this end: the writer checkpoints and ends."""
        self._leave_loop()
        self._channel.close()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise LedgerFailed("the ledger's writer did not end; everything acknowledged is on the disk") from None
        if code != 0:
            raise LedgerFailed(f"the ledger's writer ended with code {code}; everything acknowledged is on the disk")

    def abandon(self) -> None:
        """Close this end and see that no process is left behind, unless the disk holds it: then it ends after that.

        It has the lock until it does, so that nobody else writes before.
        """
        self._leave_loop()
        self._channel.close()
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_S)


def _failure(kind: bytes, number: int, text: str) -> LedgerError:
    if kind == CORRUPT:
        return LedgerCorrupt(number, text)
    return LedgerFull(text) if kind == FULL else LedgerFailed(text)
