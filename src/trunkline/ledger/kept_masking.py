"""The masking rules as Hyperscan compiled them, kept beside the record: ``ledger.masking``.

To compile them takes 0.2 s and leaves 11 MiB behind, which each start of the writer would wait for before its first
commit; to read them back takes a millisecond. Owns that file. Does not own the rules, and never sees an exact secret
that the exchange knows: databases with one of those are not kept.

Invariant: what is read was written by who has the ledger's key, for exactly these rules, this library and this kind of
machine; anything else, a damaged file included, is compiled anew. The file can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import hyperscan

from trunkline.ledger.keys import derived

__all__ = ["KeptMasking"]

FILE_NAME: Final = "ledger.masking"
_MAC_BYTES: Final = 32
# Half a mebibyte as of now.
MAX_BYTES: Final = 16_777_216


class KeptMasking:
    """The file beside a record."""

    def __init__(self, ledger: Path, mac_key: bytes) -> None:
        self._path = ledger.with_name(FILE_NAME)
        self._key = derived(mac_key, b"trunkline masking 1")

    def database(self, seeds: Sequence[bytes], compiled: Callable[[], hyperscan.Database]) -> hyperscan.Database:
        """The database of these seeds, as it was kept or, else, as ``compiled`` makes it."""
        purpose = _purpose(seeds)
        found = self._read(purpose)
        if found is not None:
            with contextlib.suppress(hyperscan.error):
                database = hyperscan.loadb(found, hyperscan.HS_MODE_BLOCK)
                database.scratch = hyperscan.Scratch(database)
                return database
        database = compiled()
        self._write(purpose, hyperscan.dumpb(database))
        return database

    def _read(self, purpose: bytes) -> bytes | None:
        try:
            # Not to wait for whoever writes, should a pipe stand there.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                data = file.read(MAX_BYTES)
        except OSError:
            return None
        mac, data = data[:_MAC_BYTES], data[_MAC_BYTES:]
        return data if hmac.compare_digest(mac, self._mac(purpose, data)) else None

    def _write(self, purpose: bytes, data: bytes) -> None:
        # Two processes may do so at the same time. Without room on the disk it is compiled each time.
        part = self._path.with_name(f".{FILE_NAME}.{os.getpid()}")
        try:
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._mac(purpose, data) + data)
            part.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self._key, purpose + data, "sha256")


def _purpose(seeds: Sequence[bytes]) -> bytes:
    """What a database is for."""
    library: str = hyperscan.__version__  # type: ignore[attr-defined]  # its stubs do not say so
    digest = hashlib.sha256(f"{library} {os.uname().machine}\n".encode())
    for seed in seeds:
        digest.update(b"%d\n%b" % (len(seed), seed))
    return digest.digest()
