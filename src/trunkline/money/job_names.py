"""By which name a job stands in what is paid for it: its hash; of a private job one that tells strangers nothing.

The hash of a job with few possible inputs is as good as the inputs: whoever guesses them can compare. An invoice, a
payment request and the secrets of ecash are public, so in those of a private job stands a hash of its hash and of a
salt that only buyer and provider can compute. Owns the name, and the salt's place: beside the payee's signed event,
wherever that is kept, so that a receipt has what its payment is judged by.

Invariant: a name belongs to one job, whatever salt somebody claims; without the salt nobody can tell which.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Raw, Struct

_LABEL: Final = "trunkline private job 1"
SALT: Final = "job_salt"
MAX_SALT_CHARS: Final = 128


class _Salted(Struct):
    job_salt: str = ""


def job_name(job_hash: str, salt: str) -> str:
    """The name of a job with this salt; its hash if there is none."""
    if not salt:
        return job_hash
    text = f"{_LABEL}\n{salt}\n{job_hash}"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def names_of(job_hash: str, salt: str) -> frozenset[str]:
    """All names by which a job may be paid: providers of others name the hash, of a private job too."""
    return frozenset({job_hash, job_name(job_hash, salt)})


def with_salt(event: bytes, salt: str) -> Raw:
    """A payee's event with the salt beside what he signed."""
    if not salt:
        return Raw(event)
    fields = msgspec.json.decode(event, type=dict[str, Raw])
    return Raw(msgspec.json.encode(fields | {SALT: salt}))


def salt_of(event: bytes) -> str:
    """The salt beside a payee's event; empty if there is none, or these bytes are nothing of the kind."""
    try:
        found = msgspec.json.decode(event, type=_Salted).job_salt
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return found if len(found) <= MAX_SALT_CHARS else ""
