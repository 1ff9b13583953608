"""JSON to the byte form that is hashed: equal values give equal bytes. There are two such forms, and a stricter one.

``canonical`` is RFC 8785 (the profile ``rfc8785``), for the record and for signatures. It does not judge JSON:
``strictjson`` refuses duplicate keys, NaN and lone surrogates before anything comes here. One deliberate difference
from the RFC, which reads every number as a double: an integer stays the integer that was written. Two ids that differ
only beyond 2^53 would otherwise have one hash, and one approval would cover both. So no two integers have one form; a
float has the form of an integer where the RFC writes it so (``1.0`` is ``1``). ``exact`` goes further, for MACs that
nobody else makes: a float that was written with more than a double holds is another number, too (decision 135).

``openagents`` is the form of OpenAgents (the profile ``openagents``), for every ``sha256:`` hash of a trajectory, a job
or a receipt: what a Rust program gets from serde_json with its keys sorted. A float stays one (``1.0``, ``-0.0``,
``1e16``), keys are sorted by code points. Values come from anybody's files, so it judges them: what is not strict JSON,
or has an integer outside 64 bits, is refused. Where the two forms differ is on docs/trajectories.md.

Invariant, of both: the form of a form is itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Final, cast

import msgspec
import orjson
import rfc8785
from msgspec import Raw

from trunkline import strictjson

__all__ = ["canonical", "exact", "has_exact_numbers", "openagents", "openagents_hash", "without_floats"]

# A character outside the BMP, in UTF-8. Only there does orjson's order (code points) differ from UTF-16's.
_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]")
# What orjson writes otherwise than serde_json: a float with an exponent (an integer beyond 64 bits is one to orjson),
# and an integer that is minus zero, which it reads as zero. In a string either only means the careful path.
_EXPONENT: Final = re.compile(rb"[0-9]e[+-]")
# The same less exactly, and five times faster: 0.5 µs for 1 KB.
_SIGNED_E: Final = re.compile(rb"e[+-]")
_MINUS_ZERO: Final = re.compile(rb"-0(?:[\s,\]}]|$)")
# serde_json writes numbers from here on, and below the other one, with an exponent.
_LARGE: Final = 1e16
_SMALL: Final = 1e-5


# Zeros that a whole number is written with, as an integer is; no double has more.
_MAX_ZEROS: Final = 400
# Python reads no integer of more than 4,300 digits.
_MAX_DIGITS: Final = 4000
# Numbers that ECMAScript writes without an exponent, and Python with one: 1e16 to 1e20, and 1e-6 and 1e-5.
_MOST_ZEROS: Final = 20
_MOST_DECIMAL_ZEROS: Final = 6
# A number of fifteen digits is the one that its double is written as, unless that is near the smallest or largest.
_SURE_CHARS: Final = 15
_SURELY_NORMAL: Final = 1e-300


class _FloatFound(Exception):
    """A number that is not an integer of 64 bits."""


def _meet_float(_text: str) -> None:
    raise _FloatFound


# To be told of floats by the reader costs nothing; to look for them in what was written takes three times as long as
# all else.
_decode: Final = msgspec.json.Decoder(float_hook=_meet_float).decode


def canonical(raw: bytes | Raw, without: str | None = None) -> bytes:
    """The canonical form of one JSON value, of an object without this member if one is named. ``ValueError`` if it is
    not JSON or holds a number no double can.
    """
    return _form(bytes(raw), without, None)


def without_floats(data: bytes, without: str | None = None) -> bytes | None:
    """The canonical form, if no number in it has a fraction or an exponent; None says nothing of the others."""
    try:
        # orjson's own form is RFC 8785's but for floats and the order of keys outside the BMP: 45 times faster.
        value = _decode(data)
        if without is not None:
            value.pop(without, None)
        quick = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (_FloatFound, msgspec.DecodeError, orjson.JSONEncodeError, UnicodeDecodeError, RecursionError):
        return None
    return quick if quick.isascii() or _ASTRAL.search(quick) is None else None


def _form(data: bytes, without: str | None, read_float: Callable[[str], object] | None) -> bytes:
    quick = without_floats(data, without)
    if quick is not None:
        return quick
    # What only Python's own reader takes is refused in the right words.
    orjson.loads(data)
    value = json.loads(data, parse_float=read_float)
    if without is not None:
        value.pop(without, None)
    return _written(value)


def _written(value: object) -> bytes:
    # `type` and not isinstance: True is an int.
    kind = type(value)
    if kind is int:
        return b"%d" % cast("int", value)
    if kind is _Digits:
        return bytes(cast("_Digits", value))
    if kind is dict:
        members = sorted(cast("dict[str, object]", value).items(), key=lambda member: member[0].encode("utf-16-be"))
        return b"{" + b",".join(orjson.dumps(name) + b":" + _written(item) for name, item in members) + b"}"
    if kind is list:
        return b"[" + b",".join(map(_written, cast("list[object]", value))) + b"]"
    if kind is float:
        text = repr(value)
        # Without an exponent, Python's shortest form is ECMAScript's but for whole numbers.
        if "e" not in text and "n" not in text:
            return text.removesuffix(".0").encode() if value else b"0"
        return _with_exponent(text)
    # Strings and constants.
    return rfc8785.dumps(cast("str | bool | None", value))


def _with_exponent(text: str) -> bytes:
    """A float that Python writes with an exponent, in the form of ECMAScript that the RFC asks for."""
    mantissa, mark, exponent = text.partition("e")
    if not mark:
        raise ValueError("not a number that JSON has")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    digits, power = mantissa.replace(".", ""), int(exponent)
    if _MOST_ZEROS >= power > 0:
        return f"{sign}{digits.ljust(power + 1, '0')}".encode()
    if 0 > power >= -_MOST_DECIMAL_ZEROS:
        return f"{sign}0.{'0' * (-power - 1)}{digits}".encode()
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{power:+}".encode()


def exact(raw: bytes | Raw, without: str | None = None) -> bytes:
    """The canonical form, in which no two numbers that differ as they are written are one: for MACs of inputs, where
    an equal form is an equal call. A number is as in ``canonical`` where that says its value, else its own digits.
    """
    return _form(bytes(raw), without, _exact)


class _Digits(bytes):
    """A number in its form."""


def _exact(text: str) -> float | _Digits:
    """A number with a fraction or an exponent: as a float if that has the value that was written, else its digits.

    The digits of a whole number are those of an integer. One that is too long to be read is its own text.
    """
    value = float(text)
    if _is_exact(text, value):
        return value
    if len(text) > _MAX_DIGITS:
        return _Digits(b"E" + text.encode())
    sign, digits, exponent = _digits(text)
    if 0 <= exponent < _MAX_ZEROS:
        return _Digits(f"{sign}{digits}{'0' * exponent}".encode())
    return _Digits(f"{sign}{digits}E{exponent}".encode())


def _is_exact(text: str, value: float) -> bool:
    """Whether the double that is nearest to this number is written as this number."""
    if len(text) <= _SURE_CHARS and _SURELY_NORMAL < abs(value) < 1 / _SURELY_NORMAL:
        return True
    return len(text) <= _MAX_DIGITS and math.isfinite(value) and _digits(text) == _digits(repr(value))


def has_exact_numbers(data: bytes) -> bool:
    """Whether each number is the value of its canonical form: none has more digits than a double, or is too small."""
    try:
        _exactly(data)
    except _FloatFound:
        return False
    return True


def _want_exact(text: str) -> None:
    if not _is_exact(text, float(text)):
        raise _FloatFound


_exactly: Final = msgspec.json.Decoder(float_hook=_want_exact).decode


def _digits(text: str) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end, and the power of ten that they are counted in."""
    mantissa, _, exponent = text.lower().partition("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return "", "0", 0
    return sign, kept, int(exponent or "0") - len(fraction) + len(digits) - len(kept)


# --- the form of OpenAgents -------------------------------------------------------------------------------------------


def openagents(raw: bytes | Raw) -> bytes:
    """The form of one JSON value that OpenAgents hashes. ``NotStrictJson`` if it is not JSON that all read alike."""
    data = bytes(raw)
    value = strictjson.load(data, strictjson.CARRIED_DEPTH, strictjson.CARRIED_CONTAINERS)
    quick = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if (_SIGNED_E.search(quick) is None or _EXPONENT.search(quick) is None) and _MINUS_ZERO.search(data) is None:
        return quick
    return _written_carefully(json.loads(data, parse_int=_integer))


def openagents_hash(raw: bytes | Raw) -> str:
    """``sha256:`` and the hexadecimal digest of the form that OpenAgents hashes."""
    return f"sha256:{hashlib.sha256(openagents(raw)).hexdigest()}"


def _integer(text: str) -> int | float:
    # Bounded before it is read: of 5,000 digits Python would not.
    number = int(text) if len(text) <= len("-9223372036854775808") else 2**64
    if not -(2**63) <= number < 2**64:
        raise strictjson.NotStrictJson("an integer outside 64 bits")
    return -0.0 if text == "-0" else number


def _written_carefully(value: object) -> bytes:
    kind = type(value)
    if kind is float:
        return _float(cast("float", value))
    if kind is dict:
        # Python compares texts by their code points.
        members = sorted(cast("dict[str, object]", value).items())
        return b"{" + b",".join(orjson.dumps(name) + b":" + _written_carefully(item) for name, item in members) + b"}"
    if kind is list:
        return b"[" + b",".join(map(_written_carefully, cast("list[object]", value))) + b"]"
    return orjson.dumps(value)


def _float(value: float) -> bytes:
    """As serde_json writes it: the shortest digits, an exponent only outside of 1e-5 to 1e16, and never a plus."""
    text = repr(value)
    if "e" not in text:
        return text.encode()
    digits, _, exponent = text.partition("e")
    if _SMALL <= abs(value) < _LARGE:
        # Python writes an exponent below 1e-4 already, so this is 1e-05 to 9.99…e-05.
        sign, digits = ("-", digits[1:]) if value < 0 else ("", digits)
        return f"{sign}0.0000{digits.replace('.', '')}".encode()
    return f"{digits}e{int(exponent)}".encode()
