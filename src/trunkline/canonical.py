"""JSON to the byte form that is hashed: equal values give equal bytes. Two profiles, ``rfc8785`` and ``openagents``.

It does not judge JSON: ``strictjson`` refuses duplicate keys, NaN and lone surrogates before anything comes here.

One deliberate difference from the RFC, which reads every number as a double: an integer stays the integer that was
written. Two ids that differ only beyond 2^53 would otherwise have one hash, and one approval would cover both.
So no two integers have one form; a float has the form of an integer where the RFC writes it so (``1.0`` is ``1``).

Invariant: ``canonical(canonical(x)) == canonical(x)``.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final, cast

import orjson
import rfc8785
from msgspec import Raw

__all__ = ["canonical", "openagents", "openagents_hash"]

# A float as orjson writes it, outside a string or (then the slow path gives the same bytes) inside one; but not the
# seconds of a time, which are in many strings: before the colon of a member is a quote. An integer beyond 64 bits is a
# float to orjson, so this finds it as well.
_FLOAT: Final = re.compile(rb'(?:^|[\[,]|":)-?[0-9]+[.e]')
# A character outside the BMP, in UTF-8. Only there does orjson's order (code points) differ from UTF-16's.
_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]")


def canonical(raw: bytes | Raw) -> bytes:
    """The canonical form of one JSON value. ``ValueError`` if it is not JSON or holds a number no double can."""
    data = bytes(raw)
    # orjson's own form is RFC 8785's but for floats and the order of keys outside the BMP: 45 times faster.
    quick = orjson.dumps(orjson.loads(data), option=orjson.OPT_SORT_KEYS)
    if _FLOAT.search(quick) is None and (quick.isascii() or _ASTRAL.search(quick) is None):
        return quick
    return _written(json.loads(data))


def _written(value: object) -> bytes:
    # `type` and not isinstance: True is an int.
    kind = type(value)
    if kind is int:
        return b"%d" % cast("int", value)
    if kind is dict:
        members = sorted(cast("dict[str, object]", value).items(), key=lambda member: member[0].encode("utf-16-be"))
        return b"{" + b",".join(orjson.dumps(name) + b":" + _written(item) for name, item in members) + b"}"
    if kind is list:
        return b"[" + b",".join(map(_written, cast("list[object]", value))) + b"]"
    if kind is float:
        text = repr(value)
        # Without an exponent, Python's shortest form is ECMAScript's: 8 times faster than to ask for that one.
        if "e" not in text and "n" not in text:
            return text.removesuffix(".0").encode() if value else b"0"
    # Strings, constants, and floats in the ECMAScript form that the RFC asks for.
    return rfc8785.dumps(cast("str | float | bool | None", value))


def openagents(raw: bytes | Raw) -> bytes:
    """The canonical form that hashes of OpenAgents are over: keys by code points, floats as Rust writes them."""
    return _as_rust_writes(json.loads(bytes(raw)))


def openagents_hash(raw: bytes | Raw) -> str:
    """``sha256:`` and the digest of the canonical form."""
    return f"sha256:{hashlib.sha256(openagents(raw)).hexdigest()}"


def _as_rust_writes(value: object) -> bytes:
    if type(value) is dict:
        members = sorted(cast("dict[str, object]", value).items())
        return b"{" + b",".join(orjson.dumps(name) + b":" + _as_rust_writes(item) for name, item in members) + b"}"
    if type(value) is list:
        return b"[" + b",".join(map(_as_rust_writes, cast("list[object]", value))) + b"]"
    if type(value) is float:
        return _rust_float(value)
    return orjson.dumps(value)


def _rust_float(value: float) -> bytes:
    """``1.0``, ``0.00001``, ``1e16``, ``1e-6``: the shortest digits, with an exponent outside 1e-5 to 1e16."""
    text = repr(value)
    if "e" not in text:
        return text.encode()
    digits, _, exponent = text.partition("e")
    if int(exponent) == -5:
        sign, bare = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
        return f"{sign}0.0000{bare.replace('.', '')}".encode()
    return f"{digits}e{int(exponent)}".encode()
