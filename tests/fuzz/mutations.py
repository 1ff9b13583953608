"""Valid input made wrong in many ways: the fuzzing of every edge stands on this.

A ``Mutator`` is a function of its seed: the same seed makes the same inputs, so a failure is repeated by its numbers.
It knows JSON and bytes, and nothing of a protocol: what is valid comes from ``corpus/``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final

CORPUS: Final = Path(__file__).parent / "corpus"

# Values that broke somebody's parser once, and the edges of what ours count.
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1,
    0.5, -0.0, 1e308, 1e-320, "", " ", "a", "\0", "a\0b", "\r\n", "\x1b[2J", "\u202e", "\u200b", "\ufeff", "\U0001f600",
    "é", "e\u0301", "../../etc/passwd", "%s%n{0}", "${jndi:ldap://x}", "'; drop table entries; --", "<script>",
    "x" * 127, "x" * 128, "x" * 129, "x" * 5000, [], {}, [[]], [None], [{}] * 3, {"": ""}, {"a": {"b": {"c": []}}},
    {"__proto__": 1}, "2026-02-30T00:00:00Z", "2026-01-16T12:00:00Z", "9999-12-31T23:59:60Z", "com.example.echo/echo",
    "com.other/tool", "0197b1a0-0000-8000-8000-00000000002a", "operator", "protocol.unauthorized",
)  # fmt: skip
# What no JSON writer makes: put in the place of a value as it is.
SPELLINGS: Final = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"0123", b"1.", b".5", b"+1", b"0x10", b"1_000", b"'a'",
    b"undefined", b"True", b"nul", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\x41"', b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"', b'"a\nb"', b'"', b"{", b"[", b"}", b"]", b",", b"", b"//", b"/**/1", b"[1,]", b'{"a":1,}',
    b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b"9" * 400, b"[" * 70 + b"]" * 70, b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 70 + b"1" + b"}" * 70, b" " * 50 + b"1", b"\xef\xbb\xbf1",
)  # fmt: skip
_PLACE: Final = "\ue000place\ue000"


def corpus(name: str) -> list[Any]:
    """The messages kept under this name: one JSON value a line."""
    lines = (CORPUS / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


class Mutator:
    """An endless source of wrong input."""

    def __init__(self, seed: int, messages: list[Any]) -> None:
        self.rng = Random(seed)
        self._messages = messages
        self._of_json: tuple[Callable[[Any], bytes], ...] = (
            self._as_it_is, self._other_value, self._other_value, self._other_value, self._without, self._renamed,
            self._doubled, self._spelled, self._spelled, self._wrapped, self._mixed, self._spaced,
        )  # fmt: skip
        self._of_bytes: tuple[Callable[[bytes], bytes], ...] = (
            self._flip, self._flip, self._cut, self._insert, self._delete, self._repeat, self._splice, self._swap_case,
        )  # fmt: skip

    def body(self) -> bytes:
        """One body: a message as it is, wrong as JSON, wrong as bytes, or noise."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.03:
            return rng.randbytes(rng.choice((0, 1, 2, 3, 8, 40, 200)))
        data = rng.choice(self._of_json)(self.message())
        if kind < 0.3:
            for _ in range(rng.choice((1, 1, 2, 5))):
                data = rng.choice(self._of_bytes)(data)
        return data

    def _value(self) -> Any:
        # A copy: what is put into a message may be changed there.
        value = self.rng.choice(VALUES)
        return deepcopy(value) if isinstance(value, (list, dict)) else value

    def message(self) -> Any:
        """A copy of one of the valid messages."""
        return json.loads(json.dumps(self.rng.choice(self._messages)))

    # --- as JSON ------------------------------------------------------------------------------------------------------

    def _places(self, value: Any) -> list[tuple[Any, Any]]:
        """Every container and key in it."""
        found: list[tuple[Any, Any]] = []
        waiting = [value]
        while waiting:
            part = waiting.pop()
            pairs: list[tuple[Any, Any]] = []
            if isinstance(part, dict):
                pairs = list(part.items())
            elif isinstance(part, list):
                pairs = list(enumerate(part))
            found += [(part, key) for key, _ in pairs]
            waiting += [inner for _, inner in pairs]
        return found

    def _as_it_is(self, message: Any) -> bytes:
        return _dump(message)

    def _other_value(self, message: Any) -> bytes:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            places = self._places(message)
            if places:
                part, key = self.rng.choice(places)
                part[key] = self._value()
        return _dump(message)

    def _without(self, message: Any) -> bytes:
        places = self._places(message)
        if places:
            part, key = self.rng.choice(places)
            del part[key]
        return _dump(message)

    def _renamed(self, message: Any) -> bytes:
        places = [(part, key) for part, key in self._places(message) if isinstance(part, dict)]
        if places:
            part, key = self.rng.choice(places)
            part[self.rng.choice((key.upper(), f"{key} ", f"x_{key}", "", "type", "payload"))] = part.pop(key)
        return _dump(message)

    def _doubled(self, message: Any) -> bytes:
        """A key twice in one object."""
        data = _dump(message)
        keys = [key for part, key in self._places(message) if isinstance(part, dict)]
        key = _dump(self.rng.choice(keys)) if keys else b'"a"'
        return data[:-1] + b"," + key + b":" + _dump(self.rng.choice(VALUES)) + b"}"

    def _spelled(self, message: Any) -> bytes:
        places = self._places(message)
        if not places:
            return self.rng.choice(SPELLINGS)
        part, key = self.rng.choice(places)
        part[key] = _PLACE
        return _dump(message).replace(_dump(_PLACE), self.rng.choice(SPELLINGS))

    def _wrapped(self, message: Any) -> bytes:
        depth = self.rng.choice((1, 2, 61, 62, 63, 64, 65, 200))
        places = self._places(message)
        if places:
            part, key = self.rng.choice(places)
            for _ in range(depth):
                part[key] = [part[key]]
        return _dump(message)

    def _mixed(self, message: Any) -> bytes:
        """A part of another message in the place of one of this."""
        other = self.message()
        places, others = self._places(message), self._places(other)
        if places and others:
            (part, key), (source, name) = self.rng.choice(places), self.rng.choice(others)
            part[key] = deepcopy(source[name])
        return _dump(message)

    def _spaced(self, message: Any) -> bytes:
        return json.dumps(message, indent=self.rng.choice((0, 1, "\t")), sort_keys=self.rng.random() < 0.5).encode()

    # --- as bytes -----------------------------------------------------------------------------------------------------

    def _at(self, data: bytes) -> int:
        return self.rng.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self.rng.randrange(8))]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        return data[: self._at(data)]

    def _insert(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + self.rng.choice((self.rng.choice(SPELLINGS), self.rng.randbytes(3))) + data[at:]

    def _delete(self, data: bytes) -> bytes:
        first, last = sorted((self._at(data), self._at(data)))
        return data[:first] + data[min(last, first + 20) :]

    def _repeat(self, data: bytes) -> bytes:
        first, last = sorted((self._at(data), self._at(data)))
        return data[:last] + data[first:last] * self.rng.choice((1, 2, 20)) + data[last:]

    def _splice(self, data: bytes) -> bytes:
        other = _dump(self.message())
        return data[: self._at(data)] + other[self._at(other) :]

    def _swap_case(self, data: bytes) -> bytes:
        return data.swapcase()

    def pieces(self, data: bytes, most: int = 12) -> list[bytes]:
        """The same bytes in pieces."""
        cuts = sorted({self._at(data) for _ in range(self.rng.randrange(most))})
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
