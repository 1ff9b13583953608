"""Bytes to JSON whose shape can be trusted: everybody who reads them later sees the same value.

Owns the judgement; typed values are read by whoever needs them. Refused is what RFC 8259 leaves open or parsers
disagree on: duplicate keys, NaN and Infinity, numbers no double holds (1e999, 5,000 digits), lone surrogates, a byte
order mark, UTF-16, invalid UTF-8, text after the value, more depth or parts than anybody needs. Integers beyond 2^53
and ``-0`` pass.

Fast accept, slow judge. What orjson writes has none of it but depth: if a value, however it was read, written by orjson
gives the same bytes, they are accepted. Otherwise orjson reads, which refuses all of it but duplicate keys and depth,
and (spaces, escapes, another spelling of a float) the colons outside strings are counted before and after: a dropped
key is a missing colon. All of it is linear and runs at the speed of C.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from itertools import accumulate, chain
from operator import sub
from typing import Any, Final

import msgspec
import orjson

# What is taken from outside, on every edge. Others chose 20 (ASP.NET: 32) to 512 (PHP); orjson writes 254, recursive
# readers go deeper still. What carries a body (a frame, an answer, an entry) is a few levels deeper than the body.
MAX_DEPTH: Final = 100
MAX_CONTAINERS: Final = 200_000
# What our own readers take of what we sent: more than may come in, so that nothing that was taken is refused later. One
# container for each 16 bytes of the largest frame: 4 MiB made to be slow take 120 ms at most, without it 330 (P-C9).
CARRIED_DEPTH: Final = 128
CARRIED_CONTAINERS: Final = 262_144

_decode: Final = msgspec.json.Decoder().decode
_loads: Final = orjson.loads
_dumps: Final = orjson.dumps
_QUOTE: Final = b'"'
_BRACKETS: Final = bytes.maketrans(b"{[}]", b"(())")
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'{[}]"'))
_ALL_BUT_OPENING: Final = bytes(set(range(256)) - set(b'{["'))
_ALL_BUT_COLONS: Final = bytes(set(range(256)) - set(b':"'))
_OPENING: Final = re.compile(rb"\(+")
_CLOSING: Final = re.compile(rb"\)+")
_GC_MATTERS: Final = 65_536
# From here on it is cheaper to go from bracket to bracket, 100 ns each, than to look at every byte: 64 KiB of text take
# 2 µs instead of 36.
_WORTH_SEARCHING: Final = 8_192
_DOUBTFUL: Final = object()
# A string, and whether it is a key; or a brace.
_TOKEN: Final = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[{}]')
# 0.4 µs a token: at most 10 ms.
_LONGEST_SEARCHED: Final = 65_536


class NotStrictJson(ValueError):
    """These bytes are refused. ``fault`` says why without quoting them; ``at`` is where, in bytes, if that is known."""

    def __init__(self, fault: str, at: int | None = None) -> None:
        super().__init__(fault if at is None else f"{fault} at byte {at}")
        self.fault = fault
        self.at = at


def check(
    data: bytes, *, max_depth: int = MAX_DEPTH, max_containers: int = MAX_CONTAINERS, want_object: bool = False
) -> None:
    """Accept, or raise ``NotStrictJson``. With ``want_object`` anything but an object is refused too."""
    value = load(data, max_depth, max_containers)
    if want_object and type(value) is not dict:
        raise NotStrictJson("not a JSON object", 0)


def load(data: bytes, max_depth: int = MAX_DEPTH, max_containers: int = MAX_CONTAINERS) -> Any:
    """The value of bytes that ``check`` accepts. Integers beyond 64 bits come as floats: who needs them reads again."""
    if len(data) < _GC_MATTERS:
        value = _quickly(data)
        if value is not _DOUBTFUL and not _is_deeper(data, max_depth):
            return value
    return _judged(data, max_depth, max_containers)


def _is_deeper(data: bytes, max_depth: int) -> bool:
    """Of valid JSON. Where no more is opened than may be nested, nothing is nested deeper."""
    return _opens_more(data, max_depth) and _depth(data) > max_depth


def _opens_more(data: bytes, most: int) -> bool:
    """Whether there are more than so many opening brackets, in strings or not."""
    if len(data) < _WORTH_SEARCHING:
        return data.count(b"{") + data.count(b"[") > most
    for bracket in (b"{", b"["):
        at = data.find(bracket)
        while at >= 0:
            most -= 1
            if most < 0:
                return True
            at = data.find(bracket, at + 1)
    return False


def _quickly(data: bytes) -> Any:
    try:
        value = _decode(data)
        return value if _dumps(value) == data else _DOUBTFUL
    except (msgspec.DecodeError, orjson.JSONEncodeError, UnicodeDecodeError, RecursionError):
        return _DOUBTFUL


def load_all(texts: list[bytes]) -> list[Any]:
    """The values of texts each of which is JSON by itself, if ``check`` quickly accepts all; ``NotStrictJson`` if not.

    Only for texts that another reader takes one by one: two halves of a value would be one value here.
    """
    if sum(map(len, texts)) + len(texts) < _GC_MATTERS:
        joined = b"[%b]" % b",".join(texts)
        values = _quickly(joined)
        if type(values) is list and len(values) == len(texts) and not _is_deeper(joined, MAX_DEPTH + 1):
            return values
    raise NotStrictJson("not quickly told")


def _judged(data: bytes, max_depth: int, max_containers: int) -> Any:
    if len(data) >= _GC_MATTERS and gc.isenabled():
        return _judged_without_gc(data, max_depth, max_containers)
    if len(data) > max_containers and len(_outside_strings(data, _ALL_BUT_OPENING)) > max_containers:
        raise NotStrictJson(f"more than {max_containers} arrays and objects")
    try:
        value = _loads(data)
    except orjson.JSONDecodeError as exc:
        raise _why_unreadable(data, exc) from None
    try:
        again = _dumps(value)
    except orjson.JSONEncodeError:
        raise NotStrictJson(f"nested deeper than {max_depth}") from None
    if _is_deeper(data, max_depth):
        raise NotStrictJson(f"nested deeper than {max_depth}")
    if again != data and not _has_all_colons(data, again):
        raise NotStrictJson("a key appears twice in one object", _second_of_duplicate(data))
    return value


def _has_all_colons(data: bytes, again: bytes) -> bool:
    """Whether no key was dropped. Where nothing is escaped, a string has the same colons in both: all are counted."""
    if b"\\" not in data and data.count(b":") == again.count(b":"):
        return True
    return _colons(data) == _colons(again)


def _judged_without_gc(data: bytes, max_depth: int, max_containers: int) -> Any:
    """Many small arrays take three times as long with the collector looking through them again and again."""
    gc.disable()
    try:
        return _judged(data, max_depth, max_containers)
    finally:
        gc.enable()


def _outside_strings(data: bytes, delete: bytes, table: bytes | None = None) -> bytes:
    r"""Valid JSON without its strings and without the bytes in ``delete``.

    ``\\`` goes first and then ``\"``, so that each remaining quote opens or closes a string. Two quotes side by side go
    without changing which of the others open: what then stands between the 1st and 2nd, 3rd and 4th, … was a string.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    rest = data.translate(table, delete).replace(b'""', b"")
    return b"".join(rest.split(_QUOTE)[::2]) if _QUOTE in rest else rest


def _depth(data: bytes) -> int:
    brackets = _outside_strings(data, _ALL_BUT_BRACKETS, _BRACKETS)
    depth = 0
    # Each round takes exactly the innermost level away, 20 ns a pair. Where that takes little, there are long runs of
    # one direction, at most len / 8 of them: these are summed up.
    while brackets:
        fewer = brackets.replace(b"()", b"")
        depth += 1
        if len(brackets) - len(fewer) < len(brackets) // 8:
            ups = map(len, _OPENING.findall(fewer))
            downs = map(len, _CLOSING.findall(fewer))
            peaks: Iterator[int] = accumulate(map(sub, ups, chain((0,), downs)))
            return depth + max(peaks)
        brackets = fewer
    return depth


def _colons(data: bytes) -> int:
    return len(_outside_strings(data, _ALL_BUT_COLONS))


# --- only after a refusal, for the text of it -------------------------------------------------------------------------


def _why_unreadable(data: bytes, exc: orjson.JSONDecodeError) -> NotStrictJson:
    if data.startswith(b"\xef\xbb\xbf"):
        return NotStrictJson("starts with a byte order mark", 0)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]:
        return NotStrictJson("not UTF-8: this looks like UTF-16 or UTF-32", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError as invalid:
        return NotStrictJson("not valid UTF-8", invalid.start)
    # orjson counts characters; its texts name the rule and never quote the input.
    return NotStrictJson(exc.msg, len(text[: exc.pos].encode()))


def _second_of_duplicate(data: bytes) -> int | None:
    """Where the first key that was there before begins. Python's own speed, so it is not looked for in a large body."""
    if len(data) > _LONGEST_SEARCHED:
        return None
    keys: list[set[str]] = []
    for token in _TOKEN.finditer(data):
        if token[0] == b"{":
            keys.append(set())
        elif token[0] == b"}":
            keys.pop()
        elif token[2] is not None:
            key = orjson.loads(token[1])
            if key in keys[-1]:
                return token.start()
            keys[-1].add(key)
    return None
