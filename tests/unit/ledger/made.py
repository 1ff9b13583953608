"""Entries to fill a ledger with, a ledger in this process, and a disk that fails on demand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from hypothesis import strategies as st
from msgspec import Raw

from tests.unit.ledger.masking_examples import FALSE, TRUE
from trunkline.entries import (
    AnyEntry,
    CallAccepted,
    CallNoted,
    CallRefused,
    CallSent,
    CallSettled,
    Entry,
    Noticed,
    QuestionClosed,
    QuestionOpened,
    SnapshotTaken,
    StreamSummary,
    ToolPinned,
)
from trunkline.errors import LedgerError
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.verify import verify
from trunkline.model import Decision, Fault, Status, ToolDefinition

AT = 1_763_200_000_000
KEYS = LedgerKeys(bytes(range(32)), os.urandom)
BODY = Raw(b'{"text":"' + b"lorem ipsum dolor " * 10 + b'"}')


def call_id(number: int) -> str:
    return f"01234567-89ab-8cde-8f01-{number:012x}"


def accepted(n: int, body: bytes | Raw = BODY, **more: object) -> CallAccepted:
    values: dict[str, object] = {
        "call_id": call_id(n),
        "caller": "operator",
        "tool_id": "com.example.echo/echo",
        "input": Raw(body),
        "decision": Decision.ALLOW,
        "rule": "builtin:operator",
        "policy": "0123456789abcdef",
        "fingerprint": "ab" * 32,
        "sent": True,
    }
    return CallAccepted(n=n, at=AT + n, **{**values, **more})  # type: ignore[arg-type]


def settled(n: int, call: int, body: bytes | Raw = BODY, **more: object) -> CallSettled:
    values: dict[str, object] = {
        "status": Status.SUCCEEDED,
        "output": Raw(body),
        "started_ms": AT,
        "finished_ms": AT + 1,
    }
    return CallSettled(n=n, at=AT + n, call=call, call_id=call_id(call), **{**values, **more})  # type: ignore[arg-type]


def question(n: int, call: int, body: bytes | None = None) -> QuestionOpened:
    return QuestionOpened(
        n=n,
        at=AT + n,
        approval_id=f"a{n}",
        subject="call",
        asked_by="operator",
        expires_ms=AT,
        reason="asks",
        call=call,
        input=None if body is None else Raw(body),
    )


def change(path: Path, sql: str, *values: object) -> None:
    """What somebody with a database tool might do to a ledger. Without `CAST`, `||` makes text."""
    connection = apsw.Connection(str(path))
    connection.execute(sql, values)
    connection.close()


def noticed(n: int, detail: str = "", at: int | None = None) -> Noticed:
    return Noticed(n=n, at=AT + n if at is None else at, code="test", place="here", detail=detail)


class InProcess:
    """A ledger whose writer is this process, and what it reported."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.path = folder / "ledger.sqlite"
        self.acknowledged: list[int] = []
        self.failures: list[LedgerError] = []
        self.ledger = Ledger.open(
            self.path,
            folder / "keys",
            loop=None,
            on_durable=self.acknowledged.append,
            on_failure=self.failures.append,
            **more,  # type: ignore[arg-type]
        )

    def add(self, *makers: Callable[[int], Entry] | Entry) -> list[Entry]:
        """Append entries, numbering those that are given as makers, and commit them as one group."""
        made = []
        for maker in makers:
            entry = maker(self.ledger.last + 1) if callable(maker) else maker
            self.ledger.append(entry)
            made.append(entry)
        self.ledger.flush()
        return made

    def break_off(self) -> None:
        """Close everything as it is, as after a defect; nothing was written."""
        assert self.acknowledged == []
        self.ledger._link.abandon()
        self.ledger.reader.close()
        assert self.ledger._lock
        self.ledger._lock.release()
        assert verify(self.path).last == 0

    def take_snapshot(self, numbers: list[int]) -> SnapshotTaken:
        through = self.ledger.last
        _, digest = self.ledger.snapshot(numbers)
        entry = SnapshotTaken(n=through + 1, at=AT + through + 1, through=through, sha256=digest)
        self.add(entry)
        return entry


@contextmanager
def in_process(folder: Path, **more: object) -> Iterator[InProcess]:
    made = InProcess(folder, **more)
    try:
        yield made
    finally:
        if not made.failures:
            made.ledger.close()
        else:
            made.ledger.reader.close()
            made.ledger._link.abandon()
            if made.ledger._lock:
                made.ledger._lock.release()
        # pytest keeps the folders of three runs.
        (folder / "ledger.reserve").unlink(missing_ok=True)


# --- any entries ------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SPICED = st.one_of(WORDS, st.sampled_from([text for examples in TRUE.values() for text, _ in examples]),
                   st.sampled_from([text for examples in FALSE.values() for text in examples]))  # fmt: skip
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SPICED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SPICED, inner, max_size=3),
    max_leaves=6,
).map(lambda value: Raw(json.dumps(value, ensure_ascii=False).encode()))
LARGE = st.integers(65_530, 65_560).map(lambda size: Raw(json.dumps("a" * size).encode()))


@st.composite
def histories(draw: st.DrawFn) -> list[AnyEntry]:
    """A sequence of entries with right numbers, as some hub might have recorded it."""
    entries: list[AnyEntry] = []
    still_open: list[CallAccepted] = []
    for n in range(1, draw(st.integers(1, 12)) + 1):
        kind = draw(st.sampled_from(["accepted", "accepted", "settled", "settled", "sent", "noted", "refused", "asked",
                                     "closed", "pinned", "noticed"]))  # fmt: skip
        call = draw(st.sampled_from(still_open)) if still_open else None
        made: AnyEntry
        if kind == "accepted" or call is None:
            made = accepted(
                n,
                draw(BODIES | LARGE),
                caller=draw(WORDS),
                key=draw(st.none() | SPICED),
                key_id=draw(st.none() | st.sampled_from(["k1", "k2", "k3"])),
                correlation_id=draw(st.none() | st.sampled_from(["c1", "c2"]) | SPICED),
                chain=tuple(draw(st.lists(WORDS, max_size=2))),
            )
            still_open.append(made)
        elif kind == "settled":
            still_open.remove(call)
            made = settled(
                n,
                call.n,
                draw(BODIES | LARGE),
                fault=draw(st.none() | st.just(Fault("tool.failed", "no", details={"password": "hunter2"}))),
                stream=draw(st.none() | SPICED.map(lambda tail: StreamSummary(1, 2, "ab" * 32, tail))),
            )
        elif kind == "sent":
            made = CallSent(n=n, at=AT, call=call.n, attempt=2)
        elif kind == "noted":
            made = CallNoted(n=n, at=AT, call_id=call.call_id, note="late", detail=draw(SPICED))
        elif kind == "refused":
            made = CallRefused(n=n, at=AT, call_id=call_id(n), caller="x", tool_id="a/b", code="policy.denied",
                               correlation_id=draw(st.none() | SPICED))  # fmt: skip
        elif kind == "asked":
            made = QuestionOpened(n=n, at=AT, approval_id=f"a{n}", subject="call", asked_by="x", expires_ms=AT,
                                  reason=draw(SPICED), call=call.n, input=draw(BODIES))  # fmt: skip
        elif kind == "closed":
            made = QuestionClosed(n=n, at=AT, approval_id=f"a{n - 1}", how="approved", reason=draw(SPICED))
        elif kind == "pinned":
            definition = ToolDefinition(tool_id="a/b", description=draw(SPICED), input_schema=draw(BODIES))
            made = ToolPinned(n=n, at=AT, definition=definition, fingerprint="ab" * 32)
        else:
            made = noticed(n, draw(SPICED))
        entries.append(made)
    return entries


# --- a disk that fails ------------------------------------------------------------------------------------------------


class FailingDisk(apsw.VFS):
    """The real file system until ``fails`` says otherwise of an operation: ``(name, count of it so far)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count: dict[str, int] = {}
        self.fails: Callable[[str, int], Exception | None] = lambda _operation, _count: None
        super().__init__(name, "")

    def happens(self, operation: str) -> None:
        self.count[operation] = self.count.get(operation, 0) + 1
        error = self.fails(operation, self.count[operation])
        if error is not None:
            raise error

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.happens("sync")
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.happens("write")
        super().xWrite(data, offset)
