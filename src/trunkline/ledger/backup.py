"""A copy of the record, taken while an exchange writes to it, and proved before it gets its name.

The copy is one file with the signed heads beside it (``NAME.heads``), without free pages and without the keys of held
originals: an original that is erased here is erased in every copy. Does not own how copies are kept.

Invariant: a copy under its final name was verified.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw

from trunkline.errors import LedgerNotCopied
from trunkline.key_files import sync_folder
from trunkline.ledger.heads import heads_file
from trunkline.ledger.store import as_ledger_error, open_for_reading
from trunkline.ledger.verify import Report, verify

__all__ = ["backup"]


def backup(path: Path, out: Path, public_key: bytes | None) -> Report:
    """Copy the record at ``path`` to ``out``, which must not exist; the figures of the copy."""
    copied_heads = heads_file(out)
    if out == copied_heads:
        raise LedgerNotCopied(
            out, f"is the name of its heads: choose another one, such as {out.with_suffix('.sqlite')}"
        )
    for taken in (out, copied_heads):
        if taken.exists():
            raise LedgerNotCopied(taken, "exists already: choose another name")
    part = out.with_name(f".{out.stem}.{os.getpid()}{out.suffix}")
    part_heads = heads_file(part)
    try:
        # Before the copy is taken, so that it is never behind them.
        if heads_file(path).exists():
            _write(part_heads, heads_file(path).read_bytes())
        _copy(path, part)
        report = verify(part, public_key=public_key)
        if part_heads.exists():
            part_heads.replace(copied_heads)
        part.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise LedgerNotCopied(out, f"cannot be written: {error.strerror}") from None
    finally:
        for left in (part, part_heads):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
    return report


def _copy(path: Path, out: Path) -> None:
    connection = open_for_reading(path)
    try:
        _write(out, b"")
        # One view of the record, whatever an exchange adds meanwhile, without what was deleted from it.
        connection.execute("VACUUM INTO ?", (str(out),))
        descriptor = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except apsw.Error as exc:
        raise as_ledger_error(exc) from exc
    finally:
        connection.close()


def _write(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
