"""Who can spend a proof, and when: locks to a public key (NUT-11, P2PK) and to a hash (NUT-14, HTLC).

Owns reading and writing the secret that is a lock (NUT-10), and the witness that opens one. Does not own enforcing it:
the mint does that, and so a lock is worth what the mint's word is. A payment is held with it: the token is locked to
the provider's key, and to a hash too if there is one, and can be spent by the payer's key once its time is over.

Invariant: ``read_lock`` gives the same conditions that a mint would enforce, ``None`` for a secret that is no lock, and
refuses one that no mint would ever open, and every tag that mints could read in two ways.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from trunkline import strictjson
from trunkline.money.cashu.curve import is_point, is_schnorr_signed, schnorr_signature
from trunkline.money.refusals import ProofRefused, malformed

# Keys of one way to open a lock; signatures beside a proof. Mints take ten or so.
MAX_KEYS: Final = 16
# Seconds since 1970: what comes after is no time.
LAST_SECOND: Final = 2**53 - 1
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_KEY: Final = re.compile(r"0[23][0-9a-f]{64}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}")
JOB_TAG: Final = "job_hash"
# The one payment that a proof is for: an id that the payee drew.
PAYMENT_TAG: Final = "payment_id"
# What changes who can open a lock; each of them stands once at most.
CONDITIONS: Final = frozenset({"sigflag", "pubkeys", "n_sigs", "locktime", "refund", "n_sigs_refund"})
_ONCE: Final = CONDITIONS | {JOB_TAG, PAYMENT_TAG}

Tag = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
Tags = Sequence[Sequence[str]]


class Lock(Struct, frozen=True):
    """The conditions under which a mint lets a proof be spent. Keys are points of 33 bytes."""

    # Who can open it, and how many of them have to sign.
    keys: tuple[bytes, ...]
    signatures: int = 1
    # SHA-256 of what has to be shown as well, in hexadecimal digits; empty if nothing has to.
    hash: str = ""
    # Seconds since 1970 from which on the others can open it too; 0 for never.
    locktime: int = 0
    # Nobody here, and there is a locktime: then anybody can.
    refund_keys: tuple[bytes, ...] = ()
    # That signatures are over all inputs and outputs of a swap, and not over each secret.
    signs_all: bool = False
    # The job that it is for: part of the secret, so that who opens the lock signs it too. Mints pass it over.
    job_hash: str = ""
    # The payment that it is for, in the same way: else one token could be shown for two requests about one job.
    payment_id: str = ""


class Witness(Struct, frozen=True):
    """What opens a lock."""

    signatures: tuple[bytes, ...] = ()
    preimage: str = ""


class _Conditions(Struct):
    nonce: str
    data: str
    tags: list[Tag] = []


class _Shown(Struct):
    signatures: Annotated[list[str], Meta(max_length=MAX_KEYS)] | None = None
    preimage: str | None = None


def read_lock(secret: str) -> Lock | None:
    """The lock that a secret is; ``None`` for one that is none, which whoever has the proof can spend."""
    data = secret.encode("utf-8", "surrogatepass")
    try:
        strictjson.check(data)
        kind, conditions = msgspec.json.decode(data, type=tuple[Literal["P2PK", "HTLC"], _Conditions])
    except (strictjson.NotStrictJson, msgspec.MsgspecError):
        if secret.lstrip().startswith("["):
            # A mint may take it for a lock of a kind that we do not know.
            raise malformed("a lock that cannot be read") from None
        return None
    tags = {tag[0]: tag[1:] for tag in conditions.tags}
    if [tag[0] for tag in conditions.tags if tag[0] in _ONCE] != [name for name in tags if name in _ONCE]:
        raise malformed("a tag of a lock that stands twice")
    if not all(values for name, values in tags.items() if name in _ONCE):
        raise malformed("a tag of a lock without a value")
    keys, lock_hash = _keys(tags.get("pubkeys", [])), ""
    if kind == "P2PK":
        keys = (*_keys([conditions.data]), *keys)
    elif _HASH.fullmatch(lock_hash := conditions.data) is None:
        raise malformed("a lock to something that is no hash")
    refund_keys = _keys(tags.get("refund", []))
    # How many of them have to sign matters to nobody here, but for a number that is none.
    _needed(tags.get("n_sigs_refund"), len(refund_keys))
    return Lock(
        _once_each(keys),
        _needed(tags.get("n_sigs"), len(keys)) if keys or "n_sigs" in tags else 0,
        lock_hash,
        _locktime(tags.get("locktime")),
        _once_each(refund_keys),
        _signs_all(tags.get("sigflag", ["SIG_INPUTS"])),
        _only(tags.get(JOB_TAG)),
        _only(tags.get(PAYMENT_TAG)),
    )


def lock_secret(
    nonce: str, key: bytes, *, locktime: int, refund_key: bytes, lock_hash: str = "", tags: Tags = ()
) -> str:
    """The secret of a proof that ``key`` can spend, and after ``locktime`` ``refund_key`` too.

    ``tags`` are what the payee wants to stand in it besides.
    """
    made: list[object] = [["locktime", str(locktime)], ["refund", refund_key.hex()], ["sigflag", "SIG_INPUTS"], *tags]
    kind, data = "P2PK", key.hex()
    if lock_hash:
        kind, data, made = "HTLC", lock_hash, [["pubkeys", key.hex()], *made]
    return msgspec.json.encode([kind, {"nonce": nonce, "data": data, "tags": made}]).decode()


def read_witness(text: str) -> Witness:
    """What is shown to open a lock; empty text shows nothing."""
    if not text:
        return Witness()
    try:
        strictjson.check(text.encode("utf-8", "surrogatepass"))
        shown = msgspec.json.decode(text, type=_Shown)
        signatures = tuple(bytes.fromhex(signature) for signature in shown.signatures or ())
    except (strictjson.NotStrictJson, msgspec.MsgspecError, ValueError):
        raise malformed("a witness that cannot be read") from None
    return Witness(signatures, shown.preimage or "")


def signed_witness(secret: str, private_key: bytes, randomness: bytes, preimage: str = "") -> str:
    """What the owner of a key shows to open a lock to it, and to a hash if there is a preimage."""
    signatures = [schnorr_signature(private_key, secret.encode(), randomness).hex()]
    shown = {"preimage": preimage, "signatures": signatures} if preimage else {"signatures": signatures}
    return msgspec.json.encode(shown).decode()


def least_witness(secret: str, lock: Lock, text: str) -> str:
    """Of what was shown to open a lock only what opens it; refused if it does not. Whoever showed it, and a mint that
    shows it on, can have put in as much as they liked besides.
    """
    witness = read_witness(text)
    check_released(secret, lock, witness)
    by_key = {
        key[1:]: signature.hex()
        for key in lock.keys
        for signature in witness.signatures
        if is_schnorr_signed(key, secret.encode(), signature)
    }
    signatures = list(by_key.values())[: lock.signatures]
    shown = {"preimage": witness.preimage, "signatures": signatures} if lock.hash else {"signatures": signatures}
    return msgspec.json.encode(shown).decode()


def check_released(secret: str, lock: Lock, witness: Witness) -> None:
    """Refuse unless the witness opens the lock for those it was meant for, whatever the time."""
    if lock.hash and not is_preimage(witness.preimage, lock.hash):
        raise ProofRefused("wrong_preimage")
    # Keys and not signatures are counted: one key can sign as often as it likes.
    signers = {
        key[1:]
        for key in lock.keys
        for signature in witness.signatures
        if is_schnorr_signed(key, secret.encode(), signature)
    }
    if len(signers) < lock.signatures:
        raise ProofRefused("not_released")


def is_preimage(preimage: str, lock_hash: str) -> bool:
    """Whether 32 bytes, in lower-case hexadecimal digits, hash to this."""
    return _HASH.fullmatch(preimage) is not None and hashlib.sha256(bytes.fromhex(preimage)).hexdigest() == lock_hash


def _keys(texts: list[str]) -> tuple[bytes, ...]:
    if len(texts) > MAX_KEYS:
        raise malformed(f"a lock to more than {MAX_KEYS} keys")
    found = []
    for text in texts:
        # Exactly as NUT-11 writes it: Python's own reader would pass over spaces.
        key = bytes.fromhex(text) if _KEY.fullmatch(text) else b""
        if not is_point(key):
            raise malformed("a lock to something that is no key")
        found.append(key)
    return tuple(found)


def _once_each(keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if len({key[1:] for key in keys}) != len(keys):
        raise malformed("a key of a lock that stands twice")
    return keys


def _needed(values: list[str] | None, most: int) -> int:
    if values is None:
        return 1
    if len(values) != 1 or _NUMBER.fullmatch(values[0]) is None or int(values[0]) > most:
        raise malformed("a lock that wants more signatures than it has keys")
    return int(values[0])


def _locktime(values: list[str] | None) -> int:
    """Refused unless it is written in the one way that all mints read as the same second: by NUT-11 a time that is none
    leaves a lock closed for ever, and mints differ in what is none (spaces, a sign, a zero in front, underscores).
    """
    if values is None:
        return 0
    if len(values) != 1 or _NUMBER.fullmatch(values[0]) is None:
        raise malformed("a lock with a time that could be read in two ways")
    return min(int(values[0]), LAST_SECOND)


def _only(values: list[str] | None) -> str:
    """The one value of a tag that says what a proof is for; empty if there is no such tag."""
    if values is not None and len(values) != 1:
        raise malformed("a tag of a lock with more than one value")
    return values[0] if values else ""


def _signs_all(values: list[str]) -> bool:
    if values not in (["SIG_INPUTS"], ["SIG_ALL"]):
        raise malformed("a lock with signatures over something else")
    return values == ["SIG_ALL"]
