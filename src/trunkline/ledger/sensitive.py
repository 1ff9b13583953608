"""Sensitive entries as they are stored and shown: the hash and the size of what was said, never what it was.

Owns which parts of an entry are content: input, output, figures, the words of a fault, the end of a stream; of an event
its body, and what its publisher's protocol says beside it. What the exchange itself needs of them is held like the
original of a masked entry (``writer``): encrypted, until the call is settled, and for as long as its key lives; until
the event is owed to nobody.

Invariant: of what caller, agent or publisher said as content, nothing but SHA-256 and length is in the result, which
says so (``hashed``).
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Raw

_BODIES: Final = ("input", "output", "metrics", "data", "body", "context")
_parts: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def hashed(entry: bytes) -> bytes:
    """An entry, or a line about a running call, with hashes in the place of its content."""
    fields = _parts(entry)
    for name in _BODIES:
        if name in fields:
            fields[name] = _stand_in(bytes(fields[name]))
    if "warning" in fields:
        fields["warning"] = _words(fields["warning"])
    if "fault" in fields:
        fault = _parts(fields["fault"])
        fault["message"] = _words(fault["message"])
        if "details" in fault:
            fault["details"] = _stand_in(bytes(fault["details"]))
        fields["fault"] = Raw(msgspec.json.encode(fault))
    if "stream" in fields:
        stream = _parts(fields["stream"])
        stream.pop("tail", None)
        fields["stream"] = Raw(msgspec.json.encode(stream))
    fields["hashed"] = Raw(b"true")
    return msgspec.json.encode(fields)


def _stand_in(data: bytes) -> Raw:
    return Raw(b'{"$sha256":"%b","bytes":%d}' % (hashlib.sha256(data).hexdigest().encode(), len(data)))


def _words(text: Raw) -> Raw:
    data = _text(text).encode()
    return Raw(msgspec.json.encode(f"sensitive: sha256 {hashlib.sha256(data).hexdigest()}, {len(data)} bytes"))
