"""Signed heads of the record, published where somebody who can write to the home folder cannot change them.

Owns when a head is published, and what is said when that fails. Does not own the heads (``ledger.heads``), which the
writer signs. There are two ways, a file elsewhere and a command; another one is another function beside these two.

Invariant: nobody waits for it but a clean stop, and that a bounded time: a way that fails is a warning, never an end.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from trunkline.config import Anchor
from trunkline.errors import LedgerError
from trunkline.ledger.heads import Head, last_head, public_key_of

log = logging.getLogger("trunkline")

# What somebody with the key can still change is what happened since. A file grows by 500 bytes each time.
PUBLISH_EVERY_S: Final = 10.0
# A command that needs longer is killed; a file system that does is left alone until it answers.
PUBLISH_S: Final = 10.0


class Anchoring:
    """How far the record of this exchange is signed and published. Without ``anchor`` nothing is published."""

    def __init__(self, ledger_file: Path, keys: Path, anchor: Anchor | None) -> None:
        self._ledger_file = ledger_file
        self._keys = keys
        self._anchor = anchor
        self._next_look = 0.0
        self._publishing: threading.Thread | None = None
        self._began = 0.0
        # The newest head at the last look, and what was on the disk then.
        self._seen: Head | None = None
        self._durable = 0
        self._is_behind = False
        self._problem = ""
        self.published = 0
        # That of the entry up to which is published: whoever has the published head finds it there.
        self.published_hash = ""

    @property
    def signed(self) -> int:
        """The last entry that a signed head covers."""
        head = self._read()
        return 0 if head is None else head.number

    def _read(self) -> Head | None:
        try:
            return last_head(self._ledger_file)
        except (LedgerError, OSError):
            # The writer checked it when it was opened; what became of it since, `ledger verify` says.
            return None

    def warnings(self) -> list[str]:
        """What keeps the record from being signed or published."""
        found = []
        if self._is_behind:
            since = self._seen.number if self._seen else 0
            found.append(f"entries after {since} are not signed: {self._heads} cannot be written")
        if self._is_publishing and time.monotonic() - self._began > PUBLISH_S:
            found.append(f"[ledger] anchor: no answer for {time.monotonic() - self._began:.0f} s; {self._how_far}")
        elif self._problem:
            found.append(f"[ledger] anchor: {self._problem}; {self._how_far}")
        return found

    @property
    def _heads(self) -> str:
        return self._ledger_file.with_suffix(".heads").name

    @property
    def _how_far(self) -> str:
        return f"published up to entry {self.published}" if self.published else "nothing is published yet"

    @property
    def _is_publishing(self) -> bool:
        return self._publishing is not None and self._publishing.is_alive()

    def look(self, durable: int) -> None:
        """Now and then: publish the newest head, if it is not. ``durable`` is the last entry on the disk."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + PUBLISH_EVERY_S
        head = self._read()
        number = 0 if head is None else head.number
        # A head is signed a second after its entries: what was there at the last look has one by now.
        self._is_behind = number < self._durable and head == self._seen
        self._seen, self._durable = head, durable
        self._publish(head)

    def finish(self) -> None:
        """Publish the last head of this run, within a bounded time."""
        self._wait()
        self._publish(self._read())
        self._wait()

    def _wait(self) -> None:
        if self._publishing is not None:
            self._publishing.join(PUBLISH_S)

    def _publish(self, head: Head | None) -> None:
        if self._anchor is None or head is None or head.number <= self.published or self._is_publishing:
            return
        self._began = time.monotonic()
        # A daemon: a file system that does not answer holds nobody.
        self._publishing = threading.Thread(
            target=self._published, args=(self._anchor, head), name="anchor", daemon=True
        )
        self._publishing.start()

    def _published(self, anchor: Anchor, head: Head) -> None:
        try:
            text = json.dumps(head.as_json(public_key_of(self._keys) or b"")) + "\n"
            if anchor.file is not None:
                _append(Path(anchor.file), text)
            elif anchor.command is not None:
                _run(anchor.command, text)
        except (OSError, LedgerError, _NotPublished) as error:
            problem = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            if problem != self._problem:
                log.warning("a head of the record was not published: %s", problem)
            self._problem = problem
        else:
            self._problem = ""
            self.published, self.published_hash = head.number, head.hash


class _NotPublished(Exception):
    """A command did not take a head."""


def _append(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run(command: tuple[str, ...], text: str) -> None:
    try:
        # Nothing it prints is read: a child that it leaves behind would hold the pipe.
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PUBLISH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NotPublished(f"{command[0]} took longer than {PUBLISH_S:g} s and was killed") from None
    if done.returncode != 0:
        raise _NotPublished(f"{command[0]} ended with {done.returncode}")
