"""Signed heads: how far the record went, signed while it is written: a record made anew, put back or cut is noticed.

The chain of entries needs no key, so whoever can write the file can make it anew as a whole. ``ledger.heads`` beside it
has one line for each signed head: number, the chain's hash there, time, the digest of the head before, signature
(Ed25519). The key follows from ``keys/ledger.key``; ``keys/heads.pub`` is its public half, and says that heads were
signed here. Does not own the chain (``chain``), nor where heads are published (the host).

Invariant: a head is signed only when its entries are on the disk, and each covers all heads before it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import LedgerCorrupt, LedgerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Head", "HeadSigner", "WrittenHead", "heads", "heads_file", "last_head", "public_key_of", "written_heads"]

# Half a second of a busy exchange is a thousand entries; a signature costs 0.13 ms, in a thread of its own.
SIGN_EVERY_S: Final = 1.0
PUBLIC_KEY_FILE: Final = "heads.pub"
FORMAT: Final = "trunkline-head-1"
# A line has 260 bytes at most.
_TAIL_BYTES: Final = 1024
_LINE: Final = re.compile(
    rb"(?P<number>[0-9]{1,20}) (?P<hash>[0-9a-f]{64}) (?P<at>[0-9]{1,20}) (?P<before>[0-9a-f]{64})"
    rb" (?P<signature>[A-Za-z0-9_-]{86})\n"
)
# A head as a person copies it: 160 bits, so that nobody finds two records that share it.
_SHORT_DIGITS: Final = 40
_WRITTEN: Final = re.compile(r"([0-9]{1,20}):([0-9a-f]{40,64})")
_FIRST: Final = hashlib.sha256(b"trunkline heads 1").hexdigest()


class Head(NamedTuple):
    """One signed head. ``before`` is the digest of the head before it, so that it covers all of them."""

    number: int
    hash: str
    at: int
    before: str
    signature: bytes

    @property
    def digest(self) -> str:
        """What is signed, and what the next head names."""
        return hashlib.sha256(f"{FORMAT} {self.number} {self.hash} {self.at} {self.before}".encode()).hexdigest()

    @property
    def line(self) -> bytes:
        """As it stands in ``ledger.heads``."""
        signature = base64.urlsafe_b64encode(self.signature).rstrip(b"=").decode()
        return f"{self.number} {self.hash} {self.at} {self.before} {signature}\n".encode()

    @property
    def short(self) -> str:
        """As a person writes it down: ``12:0123-4567-…``."""
        return short(self.number, self.hash)

    def as_json(self, public_key: bytes) -> dict[str, object]:
        """As it is published: with the key, it can be checked by itself."""
        return {
            "format": FORMAT,
            "number": self.number,
            "hash": self.hash,
            "at": self.at,
            "before": self.before,
            "signature": self.signature.hex(),
            "key": public_key.hex(),
        }


def short(number: int, digest: str) -> str:
    """A head in the form that a person copies."""
    groups = (digest[place : place + 4] for place in range(0, _SHORT_DIGITS, 4))
    return f"{number}:{'-'.join(groups)}"


def heads_file(path: Path) -> Path:
    """Where the heads of this ledger are signed."""
    return path.with_suffix(".heads")


def public_key_of(folder: Path) -> bytes | None:
    """The public half of the key, from the folder of keys; None if no head was ever signed with it."""
    try:
        text = (folder / PUBLIC_KEY_FILE).read_text()
        key = bytes.fromhex(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{folder / PUBLIC_KEY_FILE} cannot be read: {error.strerror}") from None
    except ValueError:
        key = b""
    if len(key) != 32:
        raise LedgerError(f"{folder / PUBLIC_KEY_FILE} is damaged: it should have 64 hexadecimal digits")
    return key


def is_signed(head: Head, public_key: bytes) -> bool:
    """Whether this head was signed with that key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(head.signature, head.digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


# --- reading ----------------------------------------------------------------------------------------------------------


def last_head(path: Path) -> Head | None:
    """The newest head of this ledger, unproved; None if there is none."""
    return _last(heads_file(path))[0]


def _last(file: Path) -> tuple[Head | None, int]:
    """The last whole line, and where it ends: a power loss may leave half a line, which says nothing."""
    try:
        with file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            lines.seek(start)
            tail = lines.read()
    except FileNotFoundError:
        return None, 0
    end = tail.rfind(b"\n") + 1
    begin = tail.rfind(b"\n", 0, max(0, end - 1)) + 1
    if not end:
        if start:
            raise LedgerCorrupt(0, f"{file.name} is damaged: it does not end with a head")
        return None, 0
    head = _head(tail[begin:end])
    if head is None:
        raise LedgerCorrupt(0, f"{file.name} is damaged: it does not end with a head")
    return head, start + end


def _head(line: bytes) -> Head | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    signature = base64.urlsafe_b64decode(match["signature"] + b"==")
    return Head(int(match["number"]), match["hash"].decode(), int(match["at"]), match["before"].decode(), signature)


def heads(path: Path, public_key: bytes) -> Iterator[Head]:
    """The signed heads of a ledger in their order; ``LedgerCorrupt`` names the entry of the first that is not proved.

    Each names the digest of the one before, so one signature, the last, proves all of them.
    """
    file = heads_file(path)
    last, _ = _last(file)
    if last is None:
        raise LedgerCorrupt(1, f"{file.name} is gone or empty, and heads were signed here")
    if not is_signed(last, public_key):
        wrong = next(head for head in _linked(file, last) if not is_signed(head, public_key))
        raise LedgerCorrupt(wrong.number, f"its head in {file.name} is not signed with this ledger's key")
    return _linked(file, last)


def _linked(file: Path, last: Head) -> Iterator[Head]:
    """The heads up to ``last``, each once the one after it named it."""
    earlier: Head | None = None
    with file.open("rb") as lines:
        for line in lines:
            head = _head(line)
            before, number = (_FIRST, 0) if earlier is None else (earlier.digest, earlier.number)
            if head is None or head.before != before or head.number <= number:
                break
            if earlier is not None:
                yield earlier
            if head == last:
                yield head
                return
            earlier = head
    wrong = 0 if earlier is None else earlier.number
    raise LedgerCorrupt(wrong, f"a signed head in {file.name}, of this entry or the next one, was changed or removed")


# --- heads that were kept elsewhere -----------------------------------------------------------------------------------


class WrittenHead(NamedTuple):
    """A head that was kept elsewhere: the entry, the first digits of the chain's hash there, and all if signed."""

    number: int
    hash: str
    signed: Head | None = None


def written_heads(text: str) -> list[WrittenHead]:
    """The heads in a text: ``N:HASH``, with or without dashes, or a published head as JSON, one to a line."""
    found = [_written(line.strip()) for line in text.splitlines() if line.strip()]
    if not found:
        raise ValueError("there is no head in it")
    return found


def _written(line: str) -> WrittenHead:
    match = _WRITTEN.fullmatch(line.replace("-", "").lower())
    if match is not None:
        return WrittenHead(int(match[1]), match[2])
    try:
        told = json.loads(line)
        head = Head(int(told["number"]), str(told["hash"]), int(told["at"]), str(told["before"]),
                    bytes.fromhex(told["signature"]))  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise ValueError("expected N:HASH, as `trunkline ledger anchor` prints it, or a published head") from None
    if not re.fullmatch("[0-9a-f]{64}", head.hash):
        raise ValueError("the hash of a published head has 64 hexadecimal digits")
    return WrittenHead(head.number, head.hash, head)


# --- signing ----------------------------------------------------------------------------------------------------------


class HeadSigner:
    """Signs heads of a ledger that is open for writing, in a thread of its own, once a second at most and at the end.

    A head that cannot be written costs nobody anything but the proof: the next one is tried a second later.
    Without ``in_background`` only the end is signed, for a writer in the caller's own process.
    """

    def __init__(self, path: Path, seed: bytes, keys: Path, *, in_background: bool) -> None:
        self._file = heads_file(path)
        self._keys = keys
        self._seed = seed
        self._last: Head | None = None
        self._end = 0
        self._is_told = False
        self._newest: tuple[int, bytes, int] | None = None
        self._noted = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if in_background:
            # A daemon: after a failure nobody waits for it.
            self._thread = threading.Thread(target=self._sign_now_and_then, name="heads", daemon=True)

    def take_up(self) -> Head | None:
        """Find where the heads end; the last one. Refuses heads that are gone, or that another key signed."""
        self._last, self._end = _last(self._file)
        known = public_key_of(self._keys)
        self._is_told = known is not None
        if self._last is None and known is None:
            # A new ledger does not wait for `cryptography`, which takes 90 ms to load.
            return None
        if known not in {None, self.public_key}:
            raise LedgerError(f"{self._keys / PUBLIC_KEY_FILE} does not belong to the key of this ledger")
        if self._last is None:
            raise LedgerCorrupt(1, f"{self._file.name} is gone or empty, and heads were signed here. {WHAT_TO_DO}")
        if not is_signed(self._last, self.public_key):
            reason = f"the last head in {self._file.name} is not signed with this ledger's key. {WHAT_TO_DO}"
            raise LedgerCorrupt(self._last.number, reason)
        return self._last

    @functools.cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._seed)

    @functools.cached_property
    def public_key(self) -> bytes:
        """The public half of the key."""
        return self._key.public_key().public_bytes_raw()

    def begin(self) -> None:
        """Sign what is noted from here on."""
        if self._thread is not None:
            self._thread.start()

    def note(self, number: int, digest: bytes, at: int) -> None:
        """Say what is on the disk. Costs the one who commits a fifth of a microsecond."""
        self._newest = (number, digest, at)
        if not self._noted.is_set():
            self._noted.set()

    def _sign_now_and_then(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            if self._stopping.is_set():
                return
            with contextlib.suppress(OSError):
                self._sign()
            self._stopping.wait(SIGN_EVERY_S)

    def _sign(self) -> None:
        newest = self._newest
        if newest is None or newest[0] <= (self._last.number if self._last is not None else 0):
            return
        number, digest, at = newest
        before = self._last.digest if self._last is not None else _FIRST
        unsigned = Head(number, digest.hex(), at, before, b"")
        head = unsigned._replace(signature=self._key.sign(unsigned.digest.encode()))
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Half a line that a power loss left, or a full disk, is written over.
            os.ftruncate(descriptor, self._end)
            if os.pwrite(descriptor, head.line, self._end) != len(head.line):
                return
            if self._stopping.is_set() or not self._is_told:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._last, self._end = head, self._end + len(head.line)
        self._tell_that_heads_are_signed()

    def _tell_that_heads_are_signed(self) -> None:
        if not self._is_told:
            file = self._keys / PUBLIC_KEY_FILE
            part = file.with_name(f".{PUBLIC_KEY_FILE}.{os.getpid()}")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as out:
                out.write(self.public_key.hex() + "\n")
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
            self._is_told = True

    def close(self) -> None:
        """Sign the end, if that can be written: the record itself is on the disk either way."""
        self._stop()
        with contextlib.suppress(OSError):
            self._sign()

    def abandon(self) -> None:
        """End without signing anything more."""
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._noted.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(10 * SIGN_EVERY_S)


WHAT_TO_DO: Final = (
    "Put back the newest copy of the record with its heads; `trunkline ledger verify` says how far one goes. "
    "To go on with this one without proof of what was before, move the .heads file and keys/heads.pub away"
)
