"""An event of Nostr as evidence: that its id is that of its content and its author signed it (NIP-01, BIP-340).

For whoever checks a receipt from files, without a relay or the library that speaks with one. Does not own events on
their way (``edges.nostr.events``).

Invariant: a ``SignedEvent`` that ``read`` gave was signed by ``pubkey``, over every field.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec
import orjson
from msgspec import Meta, Struct

from trunkline import strictjson

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Hex64 = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]
MAX_EVENT_BYTES: Final = 2_097_152


class NotSigned(ValueError):
    """These bytes are no event that its author signed; the text says why without quoting them."""


class SignedEvent(Struct, frozen=True):
    """One event."""

    id: Hex32
    pubkey: Hex32
    created_at: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    kind: Annotated[int, Meta(ge=0, le=65_535)]
    tags: tuple[tuple[str, ...], ...]
    content: str
    sig: Hex64

    def value(self, name: str) -> str:
        """What stands behind the name in the first such tag, or nothing."""
        return next((tag[1] for tag in self.tags if tag[:1] == (name,) and len(tag) > 1), "")


_decode: Final = msgspec.json.Decoder(SignedEvent).decode


def read(data: bytes) -> SignedEvent:
    """The event in these bytes; ``NotSigned`` if its id or its signature is not its own."""
    from coincurve import PublicKeyXOnly

    if len(data) > MAX_EVENT_BYTES:
        raise NotSigned("it is too large")
    try:
        strictjson.check(data, max_depth=3, want_object=True)
        event = _decode(data)
    except (strictjson.NotStrictJson, msgspec.DecodeError, UnicodeDecodeError):
        raise NotSigned("it is no event") from None
    form = orjson.dumps([0, event.pubkey, event.created_at, event.kind, event.tags, event.content])
    if hashlib.sha256(form).hexdigest() != event.id:
        raise NotSigned("its id is not that of its content")
    try:
        is_signed = PublicKeyXOnly(bytes.fromhex(event.pubkey)).verify(
            bytes.fromhex(event.sig), bytes.fromhex(event.id)
        )
    except ValueError:
        is_signed = False
    if not is_signed:
        raise NotSigned("its signature is not its author's")
    return event
