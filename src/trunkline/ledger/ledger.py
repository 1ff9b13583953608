"""How the exchange writes the record: ``append`` what happened, ``need`` what somebody waits for, hear what is durable.

Owns the gathering of entries into commit groups: one is on its way to the writer, one gathers. It decides nothing about
their content and never blocks but in ``open`` and ``close``.

Invariant: ``durable`` only ever names an entry that is on the disk with all before it. After a failure it never moves
again, and entries are dropped: nobody is told that they are durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.entries import (
    CallAccepted,
    CallSettled,
    Entry,
    EventDropped,
    EventPublished,
    EventTaken,
    PartClosed,
    SnapshotTaken,
    TopicUnsubscribed,
    encode,
)
from trunkline.errors import InvariantBroken, LedgerError, LedgerFailed
from trunkline.events import PartClosed as PartClosing
from trunkline.ledger import receipts
from trunkline.ledger.blobs import SentBlobs
from trunkline.ledger.commit_group import CommitGroup, packed
from trunkline.ledger.heads import HeadSigner
from trunkline.ledger.index_rows import rows_of
from trunkline.ledger.keys import FILE_NAME, LedgerKeys
from trunkline.ledger.link import InlineLink, Link, ProcessLink
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import Call, Reader
from trunkline.ledger.store import Lock
from trunkline.ledger.used_keys import UsedKeys
from trunkline.ledger.writer import INLINE_BODY_BYTES, Writer
from trunkline.model import INLINE_OUTPUT_BYTES

__all__ = ["BegunWriter", "Ledger"]

# A commit costs 200 to 300 µs of CPU. What nobody waits for may gather so long.
GATHER_S: Final = 0.010
# Nor does it pile up in memory: so much is worth a commit of its own.
GATHER_BYTES: Final = 1_048_576

# Between two looks at keys that are on record, after a start: all are known soon, and nobody waits for that.
READ_KEYS_S: Final = 0.05

# Encoded it leaves a gap, where a large body goes.
_NOTHING: Final = Raw(b"")


class BegunWriter(Struct):
    """A writer that starts: what ``Ledger.begin`` made, for ``Ledger.open`` to wait for, whose it is from there on."""

    link: ProcessLink
    lock: Lock
    keys: LedgerKeys
    is_taken: bool = False

    def abandon(self) -> None:
        """End it if nobody opened it after all."""
        if not self.is_taken:
            self.link.abandon()
            self.lock.release()


class Ledger:
    """The record, open for writing: what the host appends to. Make it with ``Ledger.open``."""

    def __init__(
        self,
        link: Link,
        reader: Reader,
        keys: LedgerKeys,
        *,
        lock: Lock | None,
        loop: asyncio.AbstractEventLoop | None,
        on_durable: Callable[[int], None],
        on_failure: Callable[[LedgerError], None],
    ) -> None:
        self.reader: Final = reader
        self.mac_key: Final = keys.mac_key
        self.last = link.last
        self.durable = link.last
        self.failure: LedgerError | None = None
        # By how much the clock is ahead of what was lived through: what is to be erased after a time waits so long.
        self.unlived_ms = 0
        self._link = link
        self._lock = lock
        self._loop = loop
        self._on_durable = on_durable
        self._on_failure = on_failure
        # What gathers; `_sent` is the last number that does not.
        self._sent = link.last
        self._at = 0
        self._bytes = 0
        # Of the group that is on its way.
        self._sent_bytes = 0
        self._entries: list[bytes] = []
        self._outlined: dict[int, tuple[int, int]] = {}
        self._settled: list[int] = []
        self._keyed: list[tuple[str, int]] = []
        self._correlations: list[tuple[str, int]] = []
        self._steps: list[tuple[str, int]] = []
        self._outputs: list[int] = []
        self._sensitive: list[int] = []
        self._released: list[int] = []
        self._blobs = SentBlobs()
        self._snapshot: tuple[int, int, bytes] | None = None
        self._part: tuple[int, int, list[int]] | None = None
        # Snapshots that were made and whose entry has not come yet, by their hash.
        self._made: dict[str, bytes] = {}
        self._outstanding = False
        # When the group that is on its way left, by the loop's clock.
        self._sent_at = 0.0
        self._urgent = False
        self._soon = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._used_keys = UsedKeys(reader.keys_after)
        self._read_keys()
        link.listen(self._acknowledged, self._fail)

    @staticmethod
    def begin(path: Path, keys_dir: Path) -> BegunWriter:
        """Start the writer of a record, made if there is none, without waiting for it. ``LedgerError`` says why not."""
        lock = Lock(path.with_name("ledger.lock"))
        try:
            keys = _keys_of(path, keys_dir)
            return BegunWriter(ProcessLink(path, keys_dir, lock=lock.descriptor), lock, keys)
        except LedgerError:
            lock.release()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        keys_dir: Path,
        *,
        loop: asyncio.AbstractEventLoop | None,
        on_durable: Callable[[int], None],
        on_failure: Callable[[LedgerError], None],
        secrets: Iterable[tuple[str, str]] = (),
        vfs: str | None = None,
        keys: LedgerKeys | None = None,
        begun: BegunWriter | None = None,
    ) -> Ledger:
        """Open the record, making it if there is none; blocks until the writer is ready. ``LedgerError`` says why not.

        Without a ``loop`` there is no process: everything happens in ``flush``, in this thread. ``vfs`` names an apsw
        file system, which only this process has; ``keys`` replaces those of ``keys_dir``, for a simulation. ``begun``
        is the writer of this record, if it was started before.
        """
        known = list(secrets)
        masker = Masker(known)
        lock: Lock | None = None
        link: Link | None = None
        if begun is not None:
            begun.is_taken = True
            lock, link, keys = begun.lock, begun.link, begun.keys
        elif vfs is None:
            lock = Lock(path.with_name("ledger.lock"))
        try:
            if keys is None:
                keys = _keys_of(path, keys_dir)
            if loop is None or lock is None:
                # A file system of its own, or keys of its own: nothing beside the record is written.
                own = vfs is not None or not (keys_dir / FILE_NAME).exists()
                signer = None if own else HeadSigner(path, keys.head_seed, keys_dir, in_background=False)
                link = InlineLink(Writer(path, keys, masker, vfs=vfs, signer=signer))
            else:
                process = ProcessLink(path, keys_dir, lock=lock.descriptor) if begun is None else begun.link
                link = process
                process.wait_ready(loop)
                for name, secret in known:
                    process.send_secret(name, secret)
            reader = Reader(path, keys, vfs=vfs)
        except LedgerError:
            if link is not None:
                link.abandon()
            if lock is not None:
                lock.release()
            raise
        return cls(link, reader, keys, lock=lock, loop=loop, on_durable=on_durable, on_failure=on_failure)

    @property
    def backlog(self) -> int:
        """How many entries are not on the disk yet."""
        return self.last - self.durable

    @property
    def unanswered_s(self) -> float:
        """For how long the writer has owed an answer."""
        return self._loop.time() - self._sent_at if self._outstanding and self._loop is not None else 0.0

    @property
    def backlog_bytes(self) -> int:
        """How many bytes they have."""
        return self._bytes + self._sent_bytes

    # --- keys ---------------------------------------------------------------------------------------------------------

    def by_key(self, key_id: str) -> Call | None:
        """The newest call under a key that is on disk."""
        return self.reader.by_key(key_id) if self._used_keys.may_have(key_id) else None

    def _read_keys(self) -> None:
        """Read some more of the keys on record. A record that cannot be read says so when one of them is looked for."""
        with contextlib.suppress(LedgerError):
            if not self._closed and self._used_keys.read_more() and self._loop is not None:
                self._loop.call_later(READ_KEYS_S, self._read_keys)

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Record this. It is durable when ``on_durable`` was called with its number or a later one."""
        number = entry.n
        if number != self.last + 1:
            raise InvariantBroken(f"entry {number} does not follow {self.last}")
        self.last = number
        if self.failure is not None:
            return
        self._at = entry.at
        body: Raw | None = None
        if type(entry) is CallSettled:
            self._settled += (entry.call, number)
            if entry.sensitive:
                self._sensitive.append(number)
            else:
                body = entry.output
        elif type(entry) is CallAccepted:
            if entry.sensitive:
                # Whole, and in no blob: the writer keeps it where only a key opens it.
                self._sensitive.append(number)
            else:
                body = entry.input
            if entry.key_id is not None:
                self._keyed.append((entry.key_id, number))
                self._used_keys.add(entry.key_id)
            if entry.correlation_id is not None and entry.correlation_id != entry.call_id:
                self._correlations.append((entry.correlation_id, number))
        else:
            self._note(entry, number)
        data = encode(entry) if body is None or len(body) <= INLINE_BODY_BYTES else self._outline(entry, body)
        self._entries.append(data)
        self._bytes += len(data)
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(GATHER_S, self._due)
        if self._bytes > GATHER_BYTES:
            self.need(number)

    def _outline(self, entry: Entry, body: Raw) -> bytes:
        """The entry without its large body, which goes by itself, and only if the writer does not have it."""
        blob, size = self._blobs.number(body)
        if type(entry) is CallSettled:
            data, name = encode(replace(entry, output=_NOTHING)), b'"output":'
            if len(body) > INLINE_OUTPUT_BYTES:
                # Handed over by reference: found by the hash it had, also when masking changes it.
                self._outputs.append(blob)
        else:
            data, name = encode(replace(entry, input=_NOTHING)), b'"input":'
        # No string can hold such a name, since its quotes would be escaped, and before it are only strings and numbers.
        self._outlined[entry.n] = (data.index(name) + len(name), blob)
        self._bytes += size
        return data

    def _note(self, entry: Entry, number: int) -> None:
        """What the rarer kinds leave in the indexes, or ask of the writer."""
        for table, looked_up, _ in rows_of(entry):
            rows = self._steps if table == "steps" else self._correlations
            rows.append((str(looked_up), number))
        match entry:
            case SnapshotTaken():
                if entry.sha256 not in self._made:
                    raise InvariantBroken(f"entry {number} names a snapshot that was not made")
                self._snapshot = (number, entry.through, self._made[entry.sha256])
                self._made.clear()
            case PartClosed():
                self._part = (number, entry.last, [int(kept) for kept in entry.kept])
            case EventPublished(sensitive=True):
                self._sensitive.append(number)
            case EventTaken(released=True) | EventDropped(released=True):
                self._released.append(entry.event)
            case TopicUnsubscribed():
                self._released += entry.released
            case _:
                pass

    def add_secret(self, name: str, secret: str) -> None:
        """Mask this exact secret in what is appended from now on. ``ValueError`` if it has fewer than eight bytes."""
        # Judged here: in the writer it could not be refused any more.
        Masker([(name, secret)])
        if self._entries:
            # Entries that gather were appended before; only their order among the frames says so.
            self.need(self.last)
        self._link.send_secret(name, secret)

    def poll(self) -> None:
        """In the middle of other work: hear what is durable by now, and let the writer go on with what is needed."""
        if self._outstanding:
            self._link.poll()
        elif self._urgent:
            self._start()

    def need(self, number: int) -> None:
        """Somebody waits for this entry: commit it as soon as the commit before it has ended."""
        if number > self._sent and not self._urgent:
            self._urgent = True
            if not self._outstanding and not self._soon and self._loop is not None:
                # Not at once: what else this turn of the loop records goes with it.
                self._soon = True
                self._loop.call_soon(self._start)

    def erase_expired(self, now_ms: int) -> None:
        """Erase held originals whose time is over. Every group does so: this is for when nothing happens."""
        self._at = max(self._at, now_ms)
        if not self._outstanding and self.failure is None:
            self._send()

    def flush(self) -> None:
        """Send what gathers, unless a group is on its way (then it follows). In this process: until nothing gathers."""
        if self._outstanding:
            self._urgent = True
            return
        while self.failure is None and self._entries:
            self._send()
            if self._loop is not None:
                return

    def _start(self) -> None:
        self._soon = False
        if not self._outstanding and self._entries and self.failure is None:
            self._send()

    def _due(self) -> None:
        # Not stopped when a group is sent: on a busy exchange that would be a new one for every group.
        self._timer = None
        if self._entries:
            self._urgent = True
            self._start()

    def _send(self) -> None:
        blobs, forgotten = self._blobs.take()
        entries = self._entries
        group = CommitGroup(
            first=self._sent + 1,
            at=self._at,
            sizes=[*map(len, entries)],
            outlined=self._outlined,
            settled=self._settled,
            keys=self._keyed,
            correlations=self._correlations,
            steps=self._steps,
            snapshot=self._snapshot,
            part=self._part,
            outputs=self._outputs,
            forgotten=forgotten,
            erase_until=max(0, self._at - self.unlived_ms),
            sensitive=tuple(self._sensitive),
            released=tuple(self._released),
        )
        self._sensitive, self._released = [], []
        self._entries, self._outlined, self._settled = [], {}, []
        self._keyed, self._correlations, self._steps = [], [], []
        self._outputs, self._snapshot, self._part = [], None, None
        self._sent_bytes = self._bytes
        self._bytes = 0
        self._sent = self.last
        self._urgent = False
        self._outstanding = True
        if self._loop is not None:
            self._sent_at = self._loop.time()
        self._link.send(packed(group, entries), blobs)

    def _acknowledged(self, number: int) -> None:
        self.durable = number
        self._outstanding = False
        self._sent_bytes = 0
        if self._urgent and self._loop is not None and self._entries:
            # First the next group, so that the writer works while the exchange does.
            self._send()
        self._on_durable(number)

    def _fail(self, error: LedgerError) -> None:
        self.failure = error
        self._entries.clear()
        self._on_failure(error)

    # --- snapshots and retention --------------------------------------------------------------------------------------

    def snapshot(self, numbers: Collection[int]) -> tuple[bytes, str]:
        """The open state after ``last``, as the numbers of the entries it rests on: its bytes and their hash.

        Stored together with the ``ledger.snapshot`` entry that names this hash, which has to follow.
        """
        data = msgspec.json.encode(sorted(numbers))
        digest = hashlib.sha256(data).hexdigest()
        self._made[digest] = data
        return data, digest

    def close_part(self, before_ms: int, open_numbers: Collection[int]) -> PartClosing | None:
        """What a ``ledger.part_closed`` entry for everything older would say; None if there is nothing to remove.

        The entries go when that entry is appended, in its own transaction; so many at a time, so call it again.
        """
        return self.reader.part_before(before_ms, {*open_numbers, *receipts.pointed_to(self.reader)})

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self, *, is_stalled: bool = False) -> None:
        """Put everything on the disk, end the writer, let go of the lock. Blocks; ``LedgerError`` if that failed.

        A writer that is known to hang (``is_stalled``) is not waited for; what it was sent may be on the disk or not.
        """
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_stalled and self.failure is None:
            self.failure = LedgerFailed("the ledger's writer does not answer")
        try:
            while self.failure is None and (self._outstanding or self._entries):
                if self._outstanding:
                    self._link.wait()
                else:
                    self._send()
            if self.failure is not None:
                self._link.abandon()
                raise self.failure
            self._link.close()
        finally:
            self.reader.close()
            if self._lock is not None:
                self._lock.release()


def _keys_of(path: Path, keys_dir: Path) -> LedgerKeys:
    # A new key beside an old record would lose the originals that the old one opens.
    return LedgerKeys.load(keys_dir, create=not path.exists() or not path.stat().st_size)
