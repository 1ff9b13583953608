"""Reading the record: single entries and calls, what a key or a correlation names, and everything that recovery folds.

Opens its own read-only connection, in the exchange or in any other process, whether or not an exchange runs. Nothing is
repaired or deleted here. What was masked comes back masked unless the original is asked for and still held.

Invariant: ``recovery`` yields no entry before its hash is proved against the last snapshot's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw
import msgspec
from msgspec import Raw

from trunkline.canonical import openagents_hash
from trunkline.entries import (
    AnyEntry,
    CallAccepted,
    CallSettled,
    ExchangeStarted,
    PartClosed,
    PolicyChanged,
    SnapshotTaken,
    decode,
)
from trunkline.errors import LedgerCorrupt
from trunkline.events import PartClosed as PartClosing
from trunkline.ledger.chain import GENESIS, Row, link, verified
from trunkline.ledger.held_keys import SLOT_BYTES, key_in, slot_of
from trunkline.ledger.index_rows import call_number
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.store import as_ledger_error, open_for_reading
from trunkline.trajectory.build import Origin

__all__ = ["Call", "ListedCall", "Reader", "call_number"]

# So many rows are looked through for a page of calls; a page may be short when few of them are wanted. Rows have up to
# 64 KiB, and are read whole: a few milliseconds as a rule, 30 at worst.
PAGE_ROWS: Final = 1_000
# So many entries go in one part: removing them takes 0.1 s, in which no other group is committed.
PART_ENTRIES: Final = 20_000

# What damage turned into text is no entry; without this, reading it could fail before it is judged.
_LINE: Final = "SELECT iif(typeof(data) = 'blob', data, NULL) FROM entries WHERE n = ?"
_LINES: Final = "SELECT n, iif(typeof(data) = 'blob', data, NULL) FROM entries WHERE n BETWEEN ? AND ? ORDER BY n"
_HASH: Final = "SELECT iif(typeof(hash) = 'blob', hash, NULL) FROM entries WHERE n = ?"
_ACCEPTED: Final = b'{"kind":"call.accepted"'
_AT: Final = re.compile(rb'"at":([0-9]+)')
# The rules and the exchange that were there when an entry was made: each start writes both, and each change of the
# rules the first, so that they are near. To look through a million entries for them takes 0.3 s.
_POLICY: Final = b'{"kind":"policy.changed"'
_STARTED: Final = b'{"kind":"exchange.started"'
# What the writer adds to an entry stands at its end: the mark of masking, and before or after it which bodies it moved.
_MASKED: Final = re.compile(rb',"masked_mac":"[^"]*"(?:,"moved":\[[^\]]*\])?\}$')
_MARKS_BYTES: Final = 256

# What an accepted entry holds before its caller, at most: its kind, number, moment and the call's id.
_BEFORE_CALLER_BYTES: Final = 160

Call = tuple[CallAccepted, CallSettled | None]
# The same without large bodies, and the size of its output if that is one of them, else 0.
ListedCall = tuple[CallAccepted, CallSettled | None, int]


class _Whose(msgspec.Struct):
    """Of an entry: the call it is about, or the caller of the one it began."""

    call: int | None = None
    caller: str | None = None


_whose: Final = msgspec.json.Decoder(_Whose).decode


class Reader:
    """A read-only view of one ledger. Without ``keys`` the originals of what was masked stay closed."""

    def __init__(self, path: Path, keys: LedgerKeys | None = None, *, vfs: str | None = None) -> None:
        self._keys = keys
        self._path = path
        self._vfs = vfs
        self._db = open_for_reading(path, vfs)

    def another(self) -> Reader:
        """A second view of the same ledger with a connection of its own, for another thread; masked stays masked."""
        return Reader(self._path, vfs=self._vfs)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc
        except UnicodeDecodeError:
            raise LedgerCorrupt(0, "the file itself is damaged: a row's bytes became text") from None

    def _value(self, sql: str, *values: object) -> object:
        rows = self._rows(sql, *values)
        return rows[0][0] if rows else None

    # --- entries ------------------------------------------------------------------------------------------------------

    def head(self) -> tuple[int, bytes]:
        """The last entry's number and hash: what to keep elsewhere if the end of the record must be provable too."""
        number = self._value("SELECT max(n) FROM entries")
        if not isinstance(number, int):
            return 0, GENESIS
        stored = self.hash(number)
        if stored is None:
            raise LedgerCorrupt(number, "does not match its hash")
        return number, stored

    def line(self, number: int) -> bytes | None:
        """An entry as it is stored: masked JSON, large bodies as references."""
        data = self._value(_LINE, number)
        return data if isinstance(data, bytes) else None

    def lines(self, first: int, last: int) -> Iterator[bytes]:
        """Entries ``first`` to ``last`` as they are stored."""
        for _, data in self._rows(_LINES, first, last):
            if isinstance(data, bytes):
                yield data

    def hash(self, number: int) -> bytes | None:
        """An entry's hash; also of one whose data a closed part left out."""
        if number == 0:
            return GENESIS
        stored = self._value(_HASH, number)
        return stored if isinstance(stored, bytes) else None

    def entry(self, number: int, *, original: bool = False) -> AnyEntry | None:
        """One entry, masked; with ``original`` as it was, as far as that is still held. Bodies are whole."""
        data = self.line(number)
        return None if data is None else self._decoded(number, data, original=original)

    def entries(self, first: int, last: int) -> Iterator[AnyEntry]:
        """Entries ``first`` to ``last``, masked, with bodies whole."""
        for number, data in self._rows(_LINES, first, last):
            if isinstance(number, int) and isinstance(data, bytes):
                yield self._decoded(number, data, original=False)

    def is_masked(self, number: int) -> bool:
        """Whether an entry is stored otherwise than it was said. The writer's mark of it is at its end."""
        data = self.line(number)
        return data is not None and _MASKED.search(data[-_MARKS_BYTES:]) is not None

    def origin(self, number: int) -> Origin:
        """Who recorded an entry, and the rules that were in force: as they were put on record before it."""
        started, policy = self.started_before(number), self.policy_before(number)
        rules = ""
        if policy is not None:
            rules = policy.policy_bundle_id or openagents_hash(msgspec.json.encode(policy.rules))
        return Origin("trunkline" if started is None else f"trunkline@{started.version}", rules)

    def started_before(self, number: int) -> ExchangeStarted | None:
        """The start of the exchange that recorded an entry."""
        entry = self._last_of(_STARTED, number)
        return entry if isinstance(entry, ExchangeStarted) else None

    def policy_before(self, number: int) -> PolicyChanged | None:
        """The rules that were in force when an entry was made."""
        entry = self._last_of(_POLICY, number)
        return entry if isinstance(entry, PolicyChanged) else None

    def _last_of(self, kind: bytes, number: int) -> AnyEntry | None:
        found = self._value(
            "SELECT data FROM entries WHERE n <= ? AND substr(data, 1, ?) = ? ORDER BY n DESC LIMIT 1",
            *(number, len(kind), kind),
        )
        return decode(found) if isinstance(found, bytes) else None

    def _decoded(self, number: int, data: bytes, *, original: bool) -> AnyEntry:
        if original and b'"masked_mac":' in data:
            data = self._held(number) or data
        try:
            entry = decode(data)
        except msgspec.DecodeError as exc:
            raise LedgerCorrupt(number, f"is not an entry that this version knows: {exc}") from exc
        return self._whole(entry, data) if b'"moved":[' in data else entry

    def _whole(self, entry: AnyEntry, data: bytes) -> AnyEntry:
        """Put bodies back that the writer moved to ``blobs``. Only it can write ``moved`` at the top of an entry."""
        fields = msgspec.json.decode(data, type=dict[str, Raw])
        bodies = {}
        for name in json.loads(bytes(fields.get("moved", b"[]"))):
            digest = json.loads(bytes(fields[name]))["$blob"].removeprefix("sha256:")
            body = self._value("SELECT data FROM blobs WHERE sha256 = ?", bytes.fromhex(digest))
            if not isinstance(body, bytes) or hashlib.sha256(body).hexdigest() != digest:
                raise LedgerCorrupt(int(bytes(fields["n"])), f"its {name} is missing or damaged")
            bodies[name] = Raw(body)
        return msgspec.structs.replace(entry, **bodies)

    def _held(self, number: int) -> bytes | None:
        sealed = self._value("SELECT data FROM held WHERE n = ?", number)
        if self._keys is None or not isinstance(sealed, bytes):
            return None
        own_key = self._own_key(sealed)
        if own_key is None:
            # Erased a moment ago, or this is a copy of the record.
            return None
        data = self._keys.unseal(sealed[SLOT_BYTES:], b"entry %d" % number, own_key)
        if data is None:
            if self._value("SELECT data FROM held WHERE n = ?", number) != sealed:
                # Erased, and its slot is another one's by now.
                return None
            raise LedgerCorrupt(number, "its original does not open with this key")
        return data

    def _own_key(self, sealed: bytes) -> bytes | None:
        try:
            return key_in(self._path, slot_of(sealed), self._vfs)
        except apsw.Error as exc:
            raise as_ledger_error(exc) from exc

    def original(self, number: int, field: str) -> Raw | None:
        """One field of an entry as it was before masking, if it is still held."""
        data = self._held(number)
        return None if data is None else msgspec.json.decode(data, type=dict[str, Raw]).get(field)

    def blob(self, sha256: str) -> bytes | None:
        """A large body by the hash it travels under; the original of a masked one while it is held."""
        body = self._value("SELECT data FROM blobs WHERE sha256 = ?", bytes.fromhex(sha256))
        if isinstance(body, bytes):
            return body
        if self._keys is None:
            return None
        name = self._keys.mac(bytes.fromhex(sha256))
        sealed = self._value("SELECT data FROM held_blobs WHERE name = ?", name)
        own_key = self._own_key(sealed) if isinstance(sealed, bytes) else None
        if not isinstance(sealed, bytes) or own_key is None:
            return None
        return self._keys.unseal(sealed[SLOT_BYTES:], name.encode(), own_key)

    def newest_user(self, sha256: str) -> str | None:
        """The caller of the newest call that a large body on record belongs to."""
        number = self._value("SELECT last FROM uses WHERE sha256 = ?", bytes.fromhex(sha256))
        data = self.line(number) if isinstance(number, int) else None
        found = None if data is None else _whose(data)
        if found is not None and found.call is not None:
            data = self.line(found.call)
            found = None if data is None else _whose(data)
        return None if found is None else found.caller

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, number: int, *, original: bool = False) -> Call | None:
        """The call that entry ``number`` accepted, and its outcome if it has one."""
        accepted = self.entry(number, original=original)
        if not isinstance(accepted, CallAccepted):
            return None
        settled = self._value("SELECT n FROM settled WHERE call = ?", number)
        outcome = self.entry(settled, original=original) if isinstance(settled, int) else None
        return accepted, outcome if isinstance(outcome, CallSettled) else None

    def by_key(self, key_id: str) -> Call | None:
        """The newest call under a key, for answering a repeat: as it was, not as it is shown."""
        number = self._value("SELECT call FROM keys WHERE key_id = ?", key_id)
        return self.call(number, original=True) if isinstance(number, int) else None

    def keys_after(self, key_id: str, count: int) -> list[str]:
        """So many keys that calls were accepted under, in order, from the one after this on."""
        rows = self._rows("SELECT key_id FROM keys WHERE key_id > ? ORDER BY key_id LIMIT ?", key_id, count)
        return [str(found) for (found,) in rows]

    def by_correlation(self, correlation: str) -> list[int]:
        """The numbers of the calls accepted or refused under a correlation, in order."""
        rows = self._rows("SELECT n FROM correlations WHERE correlation = ? ORDER BY n", correlation)
        numbers = [number for (number,) in rows if isinstance(number, int)]
        # A call without one is its own correlation.
        own = call_number(correlation)
        if own is not None and own not in numbers:
            entry = self.entry(own)
            if isinstance(entry, CallAccepted) and entry.call_id == correlation:
                numbers = sorted([*numbers, own])
        return numbers

    def steps(self, subject: str) -> list[int]:
        """The numbers of what else was recorded of a call (its number) or a question (its approval id)."""
        rows = self._rows("SELECT n FROM steps WHERE subject = ? ORDER BY n", subject)
        return [number for (number,) in rows if isinstance(number, int)]

    def subjects(self, beginning: str) -> list[str]:
        """What ``steps`` has something of whose name begins like this."""
        rows = self._rows(
            "SELECT DISTINCT subject FROM steps WHERE subject >= ? AND subject < ?", beginning, f"{beginning}\U0010ffff"
        )
        return [subject for (subject,) in rows if isinstance(subject, str)]

    def settled(self, call: int) -> int | None:
        """The number of the entry that settled a call."""
        number = self._value("SELECT n FROM settled WHERE call = ?", call)
        return number if isinstance(number, int) else None

    def calls_page(
        self, before: int | None, limit: int, correlation: str | None = None, caller: str | None = None
    ) -> tuple[list[ListedCall], int | None]:
        """Calls accepted before entry ``before``, newest first, and the ``before`` of the next page if there is one.

        Those of one correlation, or of one caller, if it is given: others are neither decoded nor counted as shown.
        """
        top = self.head()[0] + 1 if before is None else before
        numbers, following = self._numbers(top, correlation)
        called = b"" if caller is None else b'"caller":' + msgspec.json.encode(caller)
        wanted = self._rows(
            "SELECT n FROM entries WHERE n IN (SELECT value FROM json_each(?)) AND substr(data, 1, ?) = ?"
            " AND (? = 0 OR instr(substr(data, 1, ?), ?)) ORDER BY n DESC LIMIT ?",
            *(json.dumps(numbers), len(_ACCEPTED), _ACCEPTED),
            *(len(called), _BEFORE_CALLER_BYTES + len(called), called, limit),
        )
        found = [number for (number,) in wanted if isinstance(number, int)]
        calls = [call for number in found if (call := self._listed(number)) is not None]
        if len(found) == limit:
            following = found[-1]
        # An input that begins so can look like the caller that is asked for.
        mine = [call for call in calls if caller is None or call[0].caller == caller]
        return mine, following if following > 1 else None

    def listed(self, numbers: Sequence[int]) -> list[ListedCall]:
        """The calls that these entries accepted, without large bodies; what is not on record is left out."""
        return [call for number in numbers if (call := self._listed(number)) is not None]

    def _numbers(self, top: int, correlation: str | None) -> tuple[list[int], int]:
        """Of the entries to look through for a page: their numbers, and before which one to go on; 0 if at none."""
        if correlation is None:
            bottom = max(0, top - PAGE_ROWS)
            return list(range(bottom + 1, top)), bottom + 1
        rows = self._rows(
            "SELECT n FROM correlations WHERE correlation = ? AND n < ? ORDER BY n DESC LIMIT ?",
            *(correlation, top, PAGE_ROWS),
        )
        numbers = [number for (number,) in rows if isinstance(number, int)]
        following = numbers[-1] if len(numbers) == PAGE_ROWS else 0
        # A call without one is its own correlation.
        own = call_number(correlation)
        if own is not None and following <= own < top and own not in numbers:
            entry = self.entry(own)
            if isinstance(entry, CallAccepted) and entry.call_id == correlation:
                numbers.append(own)
        return numbers, following

    def _listed(self, number: int) -> ListedCall | None:
        """A call without the bodies that the writer moved."""
        accepted, _ = self._outlined(number)
        if not isinstance(accepted, CallAccepted):
            return None
        end = self.settled(number)
        outcome, moved_bytes = (None, 0) if end is None else self._outlined(end)
        return accepted, outcome if isinstance(outcome, CallSettled) else None, moved_bytes

    def _outlined(self, number: int) -> tuple[AnyEntry | None, int]:
        """An entry as it is stored, and the size of its output if the writer moved that."""
        data = self.line(number)
        if data is None:
            return None, 0
        try:
            entry = decode(data)
            if b'"moved":[' not in data:
                return entry, 0
            fields = msgspec.json.decode(data, type=dict[str, Raw])
            if "output" not in json.loads(bytes(fields.get("moved", b"[]"))):
                return entry, 0
            return entry, json.loads(bytes(fields["output"]))["bytes"]
        except msgspec.DecodeError as exc:
            raise LedgerCorrupt(number, f"is not an entry that this version knows: {exc}") from exc

    # --- recovery -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, list[int]] | None:
        """How far the last snapshot reaches, and the entries that were open then; proved by its own entry."""
        rows = self._rows("SELECT n, data FROM snapshots ORDER BY n DESC LIMIT 1")
        if not rows:
            return None
        number, data = rows[0]
        assert isinstance(number, int)
        entry = self._proved(number)
        if not isinstance(entry, SnapshotTaken):
            raise LedgerCorrupt(number, "is not the entry of its snapshot")
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise LedgerCorrupt(number, "its snapshot is damaged")
        return entry.through, msgspec.json.decode(data, type=list[int])

    def recovery(self) -> Iterator[AnyEntry]:
        """What the state is the fold of: entries that the last snapshot names, then all after it, each proved first.

        Whole and unmasked where an original is held. ``LedgerCorrupt`` names the first entry that is damaged.
        """
        try:
            # One view, whatever is added meanwhile.
            self._rows("BEGIN")
            yield from self._recovery()
        finally:
            self._rows("ROLLBACK")

    def _recovery(self) -> Iterator[AnyEntry]:
        through, numbers = self.snapshot() or (0, [])
        for number in numbers:
            yield self._proved(number)
        before = self.hash(through)
        if before is None:
            raise LedgerCorrupt(through, "is missing or does not match its hash")
        held = {number for (number,) in self._rows("SELECT n FROM held")}
        last = through
        try:
            for last, data, _ in verified(self._after(through), through + 1, before):
                # `moved` is the last field of an entry.
                if last in held or data.endswith(b'"]}'):
                    yield self._decoded(last, data, original=True)
                else:
                    yield decode(data)
        except LedgerCorrupt as exc:
            if exc.number == through + 1:
                # Its hash does not follow from the one before, which may be the damaged one.
                self._blame(through)
            raise
        except apsw.Error as exc:
            raise LedgerCorrupt(last + 1, f"cannot be read: {exc}") from exc
        except msgspec.DecodeError as exc:
            raise LedgerCorrupt(last, f"is not an entry that this version knows: {exc}") from exc
        recorded = self._value("SELECT value FROM meta WHERE name = 'last'")
        if recorded is not None and recorded != last:
            raise LedgerCorrupt(last + 1, f"missing; {recorded} were recorded")

    def _after(self, number: int) -> Iterator[Row]:
        return self._db.execute("SELECT n, data, hash FROM entries WHERE n > ? ORDER BY n", (number,))

    def _proved(self, number: int) -> AnyEntry:
        data, before = self.line(number), self.hash(number - 1)
        if before is None:
            raise LedgerCorrupt(number - 1, "is missing or does not match its hash")
        if data is None or link(before, data) != self.hash(number):
            self._blame(number - 1)
            raise LedgerCorrupt(number, "is missing or does not match its hash")
        return self._decoded(number, data, original=True)

    def _blame(self, number: int) -> None:
        """Raise if entry ``number``, whose hash was taken on trust, is itself damaged."""
        data, before = self.line(number), self.hash(number - 1) if number else None
        if data is not None and before is not None and link(before, data) != self.hash(number):
            raise LedgerCorrupt(number, "does not match its hash")

    # --- retention ----------------------------------------------------------------------------------------------------

    def part(self) -> PartClosed | None:
        """The entry that closed the last part, if one was ever closed."""
        number = self._value("SELECT value FROM meta WHERE name = 'part'")
        if number is None:
            return None
        entry = self.entry(number) if isinstance(number, int) else None
        if not isinstance(entry, PartClosed):
            raise LedgerCorrupt(number if isinstance(number, int) else 0, "is missing or does not close a part")
        return entry

    def part_before(self, before_ms: int, open_numbers: Collection[int]) -> PartClosing | None:
        """A part of entries older than ``before_ms`` that can be removed, and what has to stay of it."""
        snapshot = self.snapshot()
        if snapshot is None:
            # Recovery would begin at entry 1.
            return None
        through, named = snapshot
        closed = self.part()
        first = closed.last + 1 if closed else 1
        last = first - 1
        rows = self._rows(
            "SELECT n, substr(data, 1, 256) FROM entries WHERE n BETWEEN ? AND ? ORDER BY n",
            *(first, min(through, first + PART_ENTRIES - 1)),
        )
        for number, start in rows:
            at = _AT.search(start) if isinstance(start, bytes) else None
            if at is None or int(at[1]) >= before_ms:
                break
            assert isinstance(number, int)
            last = number
        head = self.hash(last)
        if last < first or head is None:
            return None
        # What recovery reads, what is open now, and the beginning of a call whose end stays.
        late = (call for (call,) in self._rows("SELECT call FROM settled WHERE call <= ? AND n > ?", last, last))
        needed = {n for n in itertools.chain(named, open_numbers, late) if isinstance(n, int) and n <= last}
        # A call that stays keeps its end.
        needed |= {end for n in needed if (end := self.settled(n)) is not None and end <= last}
        kept = {}
        for number in sorted(needed):
            stored = self.hash(number)
            if stored is not None and self.line(number) is not None:
                kept[str(number)] = stored.hex()
        return PartClosing(first=1, last=last, head=head.hex(), kept=kept)
