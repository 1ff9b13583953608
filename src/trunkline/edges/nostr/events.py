"""An event of Nostr (NIP-01): read from bytes within bounds, its id computed anew, its signature checked.

Owns the form of an event and what of one is too much. Does not own what an event means (``messages``), keys (``keys``)
or relays.

Invariant: an ``Event`` that ``read`` gave has the id that its content has, and was signed by its author. Whatever the
bytes are, ``read`` gives an event or raises ``NotAnEvent``, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import orjson
from msgspec import Meta, Raw, Struct

from trunkline import strictjson
from trunkline.edges.nostr import keys

# The content of one event: what most public relays take, and more than any job of ours needs. A larger output is told
# as a failed job, with a sentence.
MAX_CONTENT_BYTES: Final = 262_144
# A result repeats its request (NIP-90) and its inputs: three contents, escaped, and a few tags.
MAX_EVENT_BYTES: Final = 2_097_152
MAX_TAGS: Final = 256
MAX_TAG_PARTS: Final = 64
# How deep an event is: itself, its list of tags, one tag.
MAX_DEPTH: Final = 3
# Seconds: beyond it no clock goes, and every language still has the number exactly.
LAST_SECOND: Final = 2**53 - 1

_ID: Final = re.compile(r"[0-9a-f]{64}")
HexId = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Signature = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]
Kind = Annotated[int, Meta(ge=0, le=65_535)]
Tag = tuple[str, ...]
Tags = tuple[Tag, ...]


class NotAnEvent(ValueError):
    """These bytes are no event that can be trusted; the text says why without quoting them."""


class Event(Struct, frozen=True):
    """One event, as it stands on the wire."""

    id: HexId
    pubkey: HexId
    created_at: Annotated[int, Meta(ge=0, le=LAST_SECOND)]
    kind: Kind
    tags: Annotated[tuple[Annotated[Tag, Meta(max_length=MAX_TAG_PARTS)], ...], Meta(max_length=MAX_TAGS)]
    content: str
    sig: Signature

    def tag(self, name: str) -> Tag:
        """The first tag of this name, or an empty one."""
        return next(self.tags_named(name), ())

    def value(self, name: str) -> str:
        """What stands behind the name in the first such tag, or nothing."""
        tag = self.tag(name)
        return tag[1] if len(tag) > 1 else ""

    def tags_named(self, name: str) -> Iterator[Tag]:
        """All tags of this name, in their order."""
        return (tag for tag in self.tags if tag and tag[0] == name)

    def values(self, name: str) -> list[str]:
        """What stands behind the name in each such tag."""
        return [tag[1] for tag in self.tags_named(name) if len(tag) > 1]


class Draft(Struct, frozen=True):
    """An event that nobody signed yet."""

    kind: int
    content: str
    tags: Tags
    created_at: int


_decode: Final = msgspec.json.Decoder(Event).decode


def read(data: bytes | Raw) -> Event:
    """The event in these bytes, if its id computes and its author signed it; else ``NotAnEvent``."""
    return checked(read_unchecked(data))


def checked(event: Event) -> Event:
    """The same event, if its id computes and its author signed it; else ``NotAnEvent``."""
    if event.id != event_id(event.pubkey, event):
        raise NotAnEvent("its id is not that of its content")
    if not keys.is_signature(event.pubkey, event.id, event.sig):
        raise NotAnEvent("its signature is not its author's")
    return event


def read_unchecked(data: bytes | Raw) -> Event:
    """The form alone: whoever takes these bytes from somebody he does not trust uses ``read``."""
    data = bytes(data)
    if len(data) > MAX_EVENT_BYTES:
        raise NotAnEvent(f"larger than {MAX_EVENT_BYTES} bytes")
    try:
        strictjson.check(data, max_depth=MAX_DEPTH, max_containers=MAX_TAGS + 2, want_object=True)
        event = _decode(data)
    except strictjson.NotStrictJson as error:
        raise NotAnEvent(error.fault) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAnEvent("a field of an event is missing, or has another form") from None
    if len(event.content) > MAX_CONTENT_BYTES or len(event.content.encode()) > MAX_CONTENT_BYTES:
        raise NotAnEvent(f"its content is larger than {MAX_CONTENT_BYTES} bytes")
    return event


def event_id(pubkey: str, said: Event | Draft) -> str:
    """What NIP-01 hashes. orjson escapes what it asks to escape, and control characters as everybody does."""
    form = orjson.dumps([0, pubkey, said.created_at, said.kind, said.tags, said.content])
    return hashlib.sha256(form).hexdigest()


def signed(draft: Draft, signer: keys.Signer) -> Event:
    """The event that this signer says."""
    pubkey = signer.public
    name = event_id(pubkey, draft)
    return Event(name, pubkey, draft.created_at, draft.kind, draft.tags, draft.content, signer.sign(name))


def encoded(event: Event) -> bytes:
    """As it goes over the wire."""
    return msgspec.json.encode(event)


def is_id(text: str) -> bool:
    """Whether this can be the id of an event, or a public key."""
    return _ID.fullmatch(text) is not None
