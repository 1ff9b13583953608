"""What happens to a commit group on its way to the disk: masked, large bodies moved out, chained, inserted, synced.

Runs in a process of its own (``writer_process``) so that SQLite never holds the exchange's GIL, or inside the caller's
(tests, simulation): the same ``Writer`` either way. It does not decide what is recorded or when, and knows no clock:
time is the ``at`` of the entries. It imports little: its memory counts.

Invariant: a number that ``commit`` returned is on the disk; after a failed write or sync nothing more is acknowledged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import os
import re
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from trunkline.errors import InvariantBroken, LedgerCorrupt, LedgerError
from trunkline.ledger.chain import GENESIS
from trunkline.ledger.commit_group import FOLDED_KINDS, CommitGroup
from trunkline.ledger.heads import WHAT_TO_DO, Head, HeadSigner
from trunkline.ledger.held_keys import SLOT_BYTES, HeldKeys, slot_of
from trunkline.ledger.indexes import Indexes
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.masked_whole import masked_whole
from trunkline.ledger.masking import Masker
from trunkline.ledger.store import (
    CHECKPOINT_PAGES,
    HeadNote,
    Reserve,
    as_ledger_error,
    head_file,
    noted_head,
    open_for_writing,
)

if TYPE_CHECKING:
    from msgspec import Raw

# A body above this is stored once, in `blobs` (decision 27).
INLINE_BODY_BYTES: Final = 65_536
# How long the original of a masked outcome can be fetched (decisions 3 and 5), and how long it taints (decision 14).
OUTCOME_KEPT_MS: Final = 24 * 3600 * 1000
# Renamed references are used by the entry that follows; this many never pile up between the two.
MOST_RENAMED: Final = 64

# One statement adds so many rows: 1.1 µs instead of 1.7 for the three of an ordinary call.
ROWS_A_STATEMENT: Final = 32


class Writer:
    """Puts commit groups on the disk; the only one that changes the record.

    ``commit`` returns the last durable number, or raises: then only ``abandon`` is left.
    """

    def __init__(
        self,
        path: Path,
        keys: LedgerKeys,
        masker: Masker,
        *,
        vfs: str | None = None,
        signer: HeadSigner | None = None,
    ) -> None:
        self._keys = keys
        self._signer = signer
        self._masker = masker
        self._db = open_for_writing(path, vfs)
        self._execute = self._db.execute
        self._reserve = Reserve(path.with_name("ledger.reserve")) if vfs is None else None
        # Never the randomness of a simulation: these keys are no part of what a seed repeats.
        self._held_keys = HeldKeys(path, os.urandom, vfs)
        self._renamed: dict[bytes, bytes] = {}
        # Large bodies by the numbers the exchange gave them, for as long as it says.
        self._blobs: dict[int, bytes] = {}
        # Those that are stored as they came, there being nothing to mask in them: digest, and what stands for them.
        self._references: dict[int, tuple[bytes, bytes]] = {}
        # Of the group that is being written: its rows (number, entry, hash, and so on), and the last entry that refers
        # to each stored blob.
        self._rows: list[int | bytes] = []
        self._uses: dict[bytes, int] = {}
        self._wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._db.set_wal_hook(self._count_pages)
        try:
            self._begin_where_it_ended(path)
            if vfs is None:
                self._compare_head(noted_head(path))
            if signer is not None:
                self._compare_signed(signer.take_up())
            # Last: nothing is written to a record that is damaged otherwise.
            self._indexes = Indexes(self._db)
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc
        self._note = HeadNote(head_file(path)) if vfs is None else None
        if signer is not None:
            # What was committed before a crash and not signed any more.
            signer.note(self.last, self._head, self._time_of_last())
            signer.begin()

    def _begin_where_it_ended(self, path: Path) -> None:
        row = self._execute(
            "SELECT n, iif(typeof(hash) = 'blob', hash, NULL) FROM entries ORDER BY n DESC LIMIT 1"
        ).fetchone()
        self.last: int = row[0] if row else 0
        self._head: bytes = row[1] if row else GENESIS
        if self._head is None:
            raise LedgerCorrupt(self.last, "does not match its hash")
        recorded = self._execute("SELECT value FROM meta WHERE name = 'last'").get
        if recorded is not None and recorded != self.last:
            raise LedgerCorrupt(min(int(recorded), self.last) + 1, f"missing or not ours; {recorded} were recorded")
        check = self._execute("SELECT value FROM meta WHERE name = 'key'").get
        if check is None:
            self._execute("INSERT INTO meta VALUES ('key', ?)", (self._keys.check,))
        elif check != self._keys.check:
            raise LedgerError(f"the key does not belong to {path}: put back the one it was written with")
        self._read_held()
        rows = self._execute("SELECT substr(data, 1, 4) FROM held UNION ALL SELECT substr(data, 1, 4) FROM held_blobs")
        self._held_keys.take_up([slot_of(slot) for (slot,) in rows if isinstance(slot, bytes)])

    def _compare_head(self, noted: tuple[int, str] | None) -> None:
        if noted is None:
            return
        number, digest = noted
        if number > self.last:
            raise LedgerCorrupt(self.last + 1, f"missing; {number} were recorded")
        stored = self._execute("SELECT hash FROM entries WHERE n = ?", (number,)).get
        if isinstance(stored, bytes) and stored.hex() != digest:
            raise LedgerCorrupt(number, "is not the entry that was recorded there")

    def _compare_signed(self, signed: Head | None) -> None:
        """The newest signed head against the entry it names: what is older, ``verify`` compares."""
        if signed is None:
            return
        if signed.number > self.last:
            raise LedgerCorrupt(self.last + 1, f"missing; {signed.number} were signed. {WHAT_TO_DO}")
        stored = self._execute("SELECT hash FROM entries WHERE n = ?", (signed.number,)).get
        if isinstance(stored, bytes) and stored.hex() != signed.hash:
            raise LedgerCorrupt(signed.number, f"is not the entry that was signed there. {WHAT_TO_DO}")

    def _time_of_last(self) -> int:
        data = self._execute("SELECT data FROM entries WHERE n = ?", (self.last,)).get
        at = _AT.search(data) if isinstance(data, bytes) else None
        return int(at[1]) if at is not None else 0

    def _read_held(self) -> None:
        self._held_calls = {call for (call,) in self._execute("SELECT call FROM held WHERE call > 0 AND expires = 0")}
        self._next_expiry = self._soonest_expiry()

    def _count_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:
            # The log was begun anew.
            self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def add_secret(self, name: str, secret: str) -> None:
        """Mask this exact secret from now on."""
        self._masker.add(name, secret)
        # It may be in one of them.
        self._references.clear()

    # --- one group ----------------------------------------------------------------------------------------------------

    def commit(self, payload: bytes, blobs: Iterable[tuple[int, bytes | Raw]] = ()) -> int:
        """Store a packed group, whose entries may name these blobs and those of before. The last durable number."""
        group = CommitGroup(*marshal.loads(payload))  # noqa: S302 - from our own parent, over a private socket
        if group.first != self.last + 1:
            raise InvariantBroken(f"entry {group.first} does not follow {self.last}")
        for blob, data in blobs:
            self._blobs[blob] = bytes(data)
        try:
            try:
                last = self._transact(group, payload)
            except apsw.FullError:
                # The write was rolled back whole and nothing of it was synced, so to write it again is no retried sync.
                if not self._db.getautocommit():
                    self._execute("ROLLBACK")
                self._held_keys.rolled_back()
                if self._reserve is None or not self._reserve.give_back():
                    raise
                self._read_held()
                self._references.clear()
                last = self._transact(group, payload)
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc
        for blob in group.forgotten:
            self._blobs.pop(blob)
            self._references.pop(blob, None)
        return last

    def _transact(self, group: CommitGroup, payload: bytes) -> int:
        self._execute("BEGIN IMMEDIATE")
        self._uses = {}
        rows = self._rows = []
        for blob in group.outputs:
            self._store_output(blob, group)
        # One scan for the whole group: every entry stands in the payload as it is.
        clean = self._is_clean(payload)
        as_it_is = clean and not group.outlined
        sensitive = frozenset(group.sensitive)
        head = self._head
        number = group.first
        at = len(payload) - sum(group.sizes)
        for size in group.sizes:
            stored = payload[at : at + size]
            at += size
            if sensitive and number in sensitive:
                stored = self._sealed(stored, number)
            elif not as_it_is or size > INLINE_BODY_BYTES:
                stored = self._judged(stored, number, group.outlined.get(number), clean=clean)
            head = sha256(head + stored).digest()
            rows += (number, stored, head)
            number += 1
        self._insert("entries", 3, rows)
        self._insert("settled", 2, group.settled)
        sums = self._indexes.add(
            group.settled,
            keys=self._shown(group.keys, clean),
            correlations=self._shown(group.correlations, clean),
            steps=group.steps,
        )
        if self._uses:
            uses = self._uses.items()
            self._db.executemany("INSERT INTO uses VALUES (?, ?) ON CONFLICT DO UPDATE SET last = excluded.last", uses)
        last = number - 1
        if group.sizes:
            self._execute(
                "INSERT INTO meta VALUES ('last', ?) ON CONFLICT DO UPDATE SET value = excluded.value", (last,)
            )
        self._erase_settled(group)
        if group.snapshot is not None:
            self._store_snapshot(*group.snapshot)
        if group.part is not None:
            self._close_part(*group.part)
            sums = self._indexes.count_anew()
        self._held_keys.sync()
        self._execute("COMMIT")
        # On a file system that needs room to write over something, later.
        with contextlib.suppress(apsw.FullError):
            self._held_keys.committed()
        self.last = last
        self._head = head
        self._indexes.sums = sums
        if self._note is not None:
            self._note.write(last, head)
        if self._signer is not None:
            self._signer.note(last, head, group.at)
        return last

    def _insert(self, table: str, columns: int, values: Sequence[int | bytes]) -> None:
        """Add rows, given as the values of one after the other."""
        done = 0
        for rows in (ROWS_A_STATEMENT, 1):
            step = rows * columns
            upto = len(values) - (len(values) - done) % step
            if upto > done:
                several = (values[start : start + step] for start in range(done, upto, step))
                self._db.executemany(_insertion(table, columns, rows), several)
                done = upto

    def _shown(self, pairs: list[tuple[str, int]], clean: bool) -> list[tuple[str, int]]:
        return pairs if clean else [(self._masker.mask_text(text), number) for text, number in pairs]

    # --- masking and what is held -------------------------------------------------------------------------------------

    def _judged(self, data: bytes, number: int, gap: tuple[int, int] | None, *, clean: bool) -> bytes:
        """The entry as it is stored: nothing in it that may not be shown, and its large body somewhere else."""
        if gap is not None:
            at, blob = gap
            # No rule's seed reaches over the edge of a body: before it is a colon, after it a comma or a brace.
            if clean or self._is_clean(data):
                reference = self._reference(blob)
                if reference is not None:
                    digest, stand_in = reference
                    self._uses[digest] = number
                    name = data[data.rindex(b',"', 0, at) + 2 : at - 2]
                    return b'%b%b%b,"moved":["%b"]}' % (data[:at], stand_in, data[at:-1], name)
            # Together with what is around it, as the rules want it.
            data = b"".join((data[:at], self._blob(blob), data[at:]))
            clean = False
        if not clean:
            data = self._masked(data, number)
        return self._with_bodies_moved(data, number) if len(data) > INLINE_BODY_BYTES else data

    def _is_clean(self, data: bytes) -> bool:
        """Whether ``_masked`` would certainly change nothing in it."""
        return self._masker.is_clean(data) and not any(original in data for original in self._renamed)

    def _masked(self, data: bytes, number: int) -> bytes:
        """The entry as it may be stored; its original goes where only the key opens it, if it is still needed."""
        masked = self._masker.mask(data)
        for original, renamed in self._renamed.items():
            if original in masked:
                masked = masked.replace(original, renamed)
        return data if masked is data else self._held_back(data, masked, number)

    def _sealed(self, data: bytes, number: int) -> bytes:
        """A sensitive entry as it may be stored: hashes, and around them nothing that has to be masked."""
        from trunkline.ledger.sensitive import hashed

        return self._held_back(data, self._masker.mask(hashed(data)), number)

    def _held_back(self, data: bytes, masked: bytes, number: int) -> bytes:
        """What is stored of an entry that is shown as ``masked``; its original is held if it is still needed."""
        try:
            entry: dict[str, object] = json.loads(masked)
            kind = entry["kind"]
        except (ValueError, TypeError, RecursionError):
            # An entry is never lost because of what somebody wrote into it.
            masked = masked_whole(data, self._masker)
            entry = json.loads(masked)
            kind = entry["kind"]
        if kind == "call.settled":
            call = entry["call"]
            assert isinstance(call, int)
            # A repeat of its key returns it as it was; a fold needs the very names of what it taints.
            if entry.get("taints") or entry.get("receivers") or self._is_keyed(call):
                at = entry["at"]
                assert isinstance(at, int)
                self._hold(number, call, at + OUTCOME_KEPT_MS, data)
        # An event that is owed to nobody is told to nobody after a restart.
        elif kind in FOLDED_KINDS and (kind != "event.published" or entry.get("owed")):
            call = number if kind == "call.accepted" else entry.get("call")
            self._hold(number, call if isinstance(call, int) else 0, 0, data)
        return masked[:-1] + b',"masked_mac":"%s"}' % self._keys.mac(data).encode()

    def _is_keyed(self, call: int) -> bool:
        """Whether a call has a key: asked only about a masked outcome."""
        if call > self.last:
            accepted: object = self._rows[(call - self.last - 1) * 3 + 1]
        else:
            accepted = self._execute("SELECT data FROM entries WHERE n = ?", (call,)).get
        return isinstance(accepted, bytes) and json.loads(accepted).get("key_id") is not None

    def _hold(self, number: int, call: int, expires: int, data: bytes) -> None:
        slot, own_key = self._held_keys.take()
        sealed = slot.to_bytes(SLOT_BYTES) + self._keys.seal(data, b"entry %d" % number, own_key)
        self._execute("INSERT INTO held VALUES (?, ?, ?, ?)", (number, call, expires, sealed))
        if expires:
            self._next_expiry = min(self._next_expiry, expires)
        elif call:
            self._held_calls.add(call)

    def _erase_settled(self, group: CommitGroup) -> None:
        if self._held_calls:
            for call in group.settled[::2]:
                if call in self._held_calls:
                    self._erase("held", "call = ? AND expires = 0", call)
                    self._held_calls.discard(call)
        for number in group.released:
            self._erase("held", "n = ?", number)
        if group.erase_until >= self._next_expiry:
            self._erase("held", "expires BETWEEN 1 AND ?", group.erase_until)
            self._erase("held_blobs", "expires <= ?", group.erase_until)
            self._next_expiry = self._soonest_expiry()

    def _erase(self, table: str, where: str, value: int | str) -> None:
        """Delete held originals, and destroy their keys once that is committed: the one way in which rows go there."""
        sql = f"DELETE FROM {table} WHERE {where} RETURNING substr(data, 1, 4)"  # noqa: S608  (our own words)
        for (slot,) in self._execute(sql, (value,)).fetchall():
            if isinstance(slot, bytes):
                self._held_keys.doom(slot_of(slot))

    def _soonest_expiry(self) -> int:
        soonest = self._execute(
            "SELECT min(expires) FROM"
            " (SELECT expires FROM held WHERE expires > 0 UNION ALL SELECT expires FROM held_blobs)"
        ).get
        return soonest if isinstance(soonest, int) else sys.maxsize

    # --- bodies -------------------------------------------------------------------------------------------------------

    def _with_bodies_moved(self, data: bytes, number: int) -> bytes:
        """The entry with its bodies in ``blobs``. ``moved`` says which, since a body may look like such a reference."""
        import msgspec

        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        moved = [name for name in ("input", "output", "data") if len(fields.get(name, b"")) > INLINE_BODY_BYTES]
        if not moved:
            return data
        for name in moved:
            body = bytes(fields[name])
            digest = sha256(body)
            self._store_blob(digest.digest(), body)
            self._uses[digest.digest()] = number
            fields[name] = msgspec.Raw(_stand_in(digest.hexdigest(), len(body)))
        fields["moved"] = msgspec.Raw(json.dumps(moved, separators=(",", ":")).encode())
        return msgspec.json.encode(fields)

    def _blob(self, blob: int) -> bytes:
        try:
            return self._blobs[blob]
        except KeyError:
            raise InvariantBroken(f"blob {blob} was never sent, or is forgotten") from None

    def _reference(self, blob: int) -> tuple[bytes, bytes] | None:
        """A blob's digest and what stands for it in an entry; None if a rule has to judge it, which needs the entry."""
        reference = self._references.get(blob)
        if reference is None:
            body = self._blob(blob)
            if not self._is_clean(body):
                return None
            digest = sha256(body)
            self._store_blob(digest.digest(), body)
            reference = (digest.digest(), _stand_in(digest.hexdigest(), len(body)))
            self._references[blob] = reference
        return reference

    def _store_blob(self, digest: bytes, data: bytes) -> None:
        self._execute("INSERT INTO blobs VALUES (?, ?) ON CONFLICT DO NOTHING", (digest, data))

    def _store_output(self, blob: int, group: CommitGroup) -> None:
        """An output that travels by reference. Masked it has another hash, which the entries that name it then say."""
        reference = self._reference(blob)
        if reference is not None:
            self._uses[reference[0]] = group.first
            return
        data = self._blob(blob)
        masked = self._masker.mask(data)
        digest = sha256(data).digest()
        shown = digest if masked is data else sha256(masked).digest()
        self._store_blob(shown, masked)
        self._uses[shown] = group.first
        if masked is data:
            return
        name = self._keys.mac(digest)
        expires = group.at + OUTCOME_KEPT_MS
        slot, own_key = self._held_keys.take()
        sealed = slot.to_bytes(SLOT_BYTES) + self._keys.seal(data, name.encode(), own_key)
        self._erase("held_blobs", "name = ?", name)
        self._execute("INSERT INTO held_blobs VALUES (?, ?, ?)", (name, expires, sealed))
        self._next_expiry = min(self._next_expiry, expires)
        self._renamed[digest.hex().encode()] = shown.hex().encode()
        self._references.clear()
        if len(self._renamed) > MOST_RENAMED:
            del self._renamed[next(iter(self._renamed))]

    # --- snapshots and parts ------------------------------------------------------------------------------------------

    def _store_snapshot(self, number: int, through: int, data: bytes) -> None:
        self._execute("INSERT INTO snapshots VALUES (?, ?)", (number, data))
        # The one before stays, should this one turn out damaged; older ones say nothing that the entries do not.
        self._execute("DELETE FROM snapshots WHERE n NOT IN (SELECT n FROM snapshots ORDER BY n DESC LIMIT 2)")
        # What is no longer open needs no original.
        still_open = set(json.loads(data))
        for n, call in self._execute("SELECT n, call FROM held WHERE expires = 0 AND n <= ?", (through,)).fetchall():
            if isinstance(n, int) and n not in still_open:
                self._erase("held", "n = ?", n)
                self._held_calls.discard(call)

    def _close_part(self, number: int, last: int, kept: list[int]) -> None:
        """Remove entries 1 to ``last`` but ``kept``. The hash before each of those, and the last, stay without data."""
        stays = sorted(kept)
        bare = ({n - 1 for n in kept if n > 1} | {last}) - set(kept)
        referred: set[bytes] = set()
        for n in stays:
            data = self._execute("SELECT data FROM entries WHERE n = ?", (n,)).get
            if isinstance(data, bytes):
                referred.update(bytes.fromhex(digest.decode()) for digest in _REFERENCE.findall(data))
        for n in bare:
            self._execute("UPDATE entries SET data = NULL WHERE n = ?", (n,))
        for table, column, spared in (
            ("entries", "n", sorted({*stays, *bare})),
            ("settled", "call", stays),
            ("keys", "call", stays),
            ("correlations", "n", stays),
            ("steps", "n", stays),
        ):
            before = 0
            for n in (*spared, last + 1):
                if n > before + 1:
                    self._execute(f"DELETE FROM {table} WHERE {column} > ? AND {column} < ?", (before, n))  # noqa: S608
                before = n
        for (held,) in self._execute("SELECT n FROM held WHERE n <= ?", (last,)).fetchall():
            if isinstance(held, int) and held not in kept:
                self._erase("held", "n = ?", held)
        for (digest,) in self._execute("SELECT sha256 FROM uses WHERE last <= ?", (last,)).fetchall():
            if digest not in referred:
                self._execute("DELETE FROM blobs WHERE sha256 = ?", (digest,))
                self._execute("DELETE FROM uses WHERE sha256 = ?", (digest,))
        self._execute("DELETE FROM snapshots WHERE n <= ?", (last,))
        self._execute("INSERT OR REPLACE INTO meta VALUES ('part', ?)", (number,))
        # Some of them may be gone.
        self._references.clear()

    # --- between groups, and at the end -------------------------------------------------------------------------------

    def rest(self) -> None:
        """Nobody waits: move the log into the file if it has grown, and set the reserve aside again."""
        if self._wal_pages >= self._checkpoint_at:
            # While somebody reads, the log cannot begin anew and grows: no sense in a checkpoint after every group.
            self._checkpoint_at = self._wal_pages + CHECKPOINT_PAGES
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        if self._reserve is not None and not self._reserve.is_there:
            # It was needed. The disk may be filled a second time before the log has grown.
            self._reserve.take()

    def _checkpoint(self, mode: int) -> None:
        try:
            # No room, or somebody reads: the log keeps everything until another time.
            with contextlib.suppress(apsw.FullError, apsw.BusyError):
                self._db.wal_checkpoint(mode=mode)
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc

    def close(self) -> None:
        """Checkpoint and let go of the file."""
        self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        try:
            self._held_keys.close()
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc
        self._db.close()
        self._let_go_of_note()
        if self._signer is not None:
            self._signer.close()

    def abandon(self) -> None:
        """Let go of the file after a failure, writing nothing more."""
        # A disk that fails may fail once more at this.
        with contextlib.suppress(apsw.Error):
            self._db.close(True)
        with contextlib.suppress(apsw.Error):
            self._held_keys.abandon()
        self._let_go_of_note()
        if self._signer is not None:
            self._signer.abandon()

    def _let_go_of_note(self) -> None:
        if self._note is not None:
            self._note.close()
            self._note = None


@functools.cache
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {','.join([row] * rows)}"  # noqa: S608 - our own words


def _stand_in(digest: str, size: int) -> bytes:
    return b'{"$blob":"sha256:%b","bytes":%d}' % (digest.encode(), size)


_AT: Final = re.compile(rb'"at":([0-9]+)')
_REFERENCE: Final = re.compile(rb'"\$(?:blob|ref)"\s*:\s*"sha256:([0-9a-f]{64})"')
