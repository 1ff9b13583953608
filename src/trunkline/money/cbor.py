"""The part of CBOR (RFC 8949) that Cashu tokens are made of: numbers, bytes, text, lists, maps, true, false and null.

Owns bytes to values and back. Does not own what the values mean. Refused are the parts that no token has and that let
two readers disagree: lengths that are not given, tags, floats, negative numbers, keys that are not text or stand twice,
bytes after the value.

Invariant: what ``decode`` gives, ``encode`` writes in the one shortest form. Whatever the bytes are, ``decode`` gives a
value or raises ``ProofRefused``.
"""

from __future__ import annotations

from typing import Final

from trunkline.money.refusals import malformed

# A token is five levels deep; unknown fields may be a little deeper.
MAX_DEPTH: Final = 12

Value = int | bytes | str | bool | list["Value"] | dict[str, "Value"] | None

_UNSIGNED, _BYTES, _TEXT, _LIST, _MAP, _SIMPLE = 0, 2, 3, 4, 5, 7
# 23 is "undefined": some write it for what is left out.
_SIMPLE_VALUES: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None, 23: None}


def decode(data: bytes) -> Value:
    """The one value that these bytes are."""
    reader = _Reader(data)
    value = reader.value(MAX_DEPTH)
    if reader.at != len(data):
        raise malformed("bytes after the end of the CBOR value")
    return value


def encode(value: Value) -> bytes:
    """The shortest form; keys in the order in which the map has them."""
    if value is None or isinstance(value, bool):
        return bytes([_SIMPLE << 5 | {False: 20, True: 21, None: 22}[value]])
    if isinstance(value, int):
        return _head(_UNSIGNED, value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(_TEXT, len(text)) + text
    if isinstance(value, list):
        return _head(_LIST, len(value)) + b"".join(map(encode, value))
    return _head(_MAP, len(value)) + b"".join(encode(key) + encode(part) for key, part in value.items())


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([kind << 5 | code]) + number.to_bytes(size)
    raise ValueError("a number of more than 64 bits")


class _Reader:
    """Where reading has come to. Nothing is reserved before its bytes are seen to be there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, depth: int) -> Value:
        if depth == 0:
            raise malformed("CBOR nested too deeply")
        first = self._take(1)[0]
        kind, code = first >> 5, first & 31
        if kind == _SIMPLE:
            if code not in _SIMPLE_VALUES:
                raise malformed("a CBOR value that tokens do not have")
            return _SIMPLE_VALUES[code]
        number = self._number(code)
        match kind:
            case 0:
                return number
            case 2:
                return self._take(number)
            case 3:
                return self._text(number)
            case 4:
                return self._list(number, depth)
            case 5:
                return self._map(number, depth)
            case _:
                raise malformed("a CBOR value that tokens do not have")

    def _number(self, code: int) -> int:
        if code < 24:
            return code
        if code > 27:
            raise malformed("a CBOR length that is not given")
        return int.from_bytes(self._take(1 << code - 24))

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise malformed("CBOR that ends too early")
        self.at += size
        return self._data[self.at - size : self.at]

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise malformed("CBOR text that is not UTF-8") from None

    def _list(self, count: int, depth: int) -> list[Value]:
        # Each part has a byte at least, so that the count cannot promise more than there is.
        if count > len(self._data) - self.at:
            raise malformed("CBOR that ends too early")
        return [self.value(depth - 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        if count > len(self._data) - self.at:
            raise malformed("CBOR that ends too early")
        for _ in range(count):
            key = self.value(depth - 1)
            if not isinstance(key, str) or key in found:
                raise malformed("a CBOR key that is not text, or stands twice")
            found[key] = self.value(depth - 1)
        return found
