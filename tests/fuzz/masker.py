"""JSON and text that nobody would write, for the masker: every spelling, depth and crowd of secrets.

``judge(seed, count)`` makes and judges so many; ``make soak`` goes on with other seeds.
"""

from __future__ import annotations

import json
import random
from typing import Any

from trunkline.host.log_mask import mask_log
from trunkline.ledger.masked_whole import masked_whole
from trunkline.ledger.masking import Masker

LETTERS = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
NAMES = ("password", "api_key", "Authorization", "client_secret", "x", "note", "paßwort", "", "a/b", "k\\")
PIECES = ("\\", "/", "\\/", '"', "\n", "\t", "\u0000", "é", "\U0001f600", "u0041", "\\u0041", "[masked:x]", "{", "]")
MASKER = Masker([("known", "plain-Xq7vBn2mKp9sTr4w")])


def secret(rng: random.Random) -> str:
    """One that every rule knows."""
    start, size = rng.choice([("tlk_", 43), ("ghp_", 36), ("sk-ant-api03-", 40), ("plain-Xq7vBn2mKp9sTr4w", 0)])
    return start + "".join(rng.choices(LETTERS, k=size))


class Maker:
    """Makes one value; remembers what is secret in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.planted: list[str] = []

    def text(self) -> str:
        rng = self.rng
        parts = ["".join(rng.choices(PIECES, k=rng.randrange(4))) for _ in range(rng.randrange(3))]
        if rng.random() < 0.3:
            found = secret(rng)
            self.planted.append(found)
            parts.insert(rng.randrange(len(parts) + 1), f" {found} ")
        return "".join(parts)

    def value(self, depth: int) -> Any:
        rng = self.rng
        which = rng.random()
        if depth <= 0 or which < 0.4:
            return rng.choice([self.text(), self.text(), 0, -1.5e300, True, None, 12345678901234567890, "r"])
        if which < 0.7:
            return [self.value(depth - 1) for _ in range(rng.randrange(4))]
        if which < 0.72:
            return [{rng.choice(NAMES): rng.choice(["r", "longer than that", 5])}] * rng.randrange(490, 520)
        return {rng.choice(NAMES) or self.text(): self.value(depth - 1) for _ in range(rng.randrange(4))}

    def spelled(self, value: Any) -> bytes:
        """JSON text, with escapes that nobody needs."""
        rng = self.rng
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1]))
        if rng.random() < 0.3:
            text = text.replace("/", "\\/")
        if rng.random() < 0.3:
            at = rng.choice("aeiou_-s")
            # Inside strings only: outside there are no such letters but in true, false and null.
            text = "".join(part.replace(at, f"\\u{ord(at):04x}") if inside else part for part, inside in _strings(text))
        nested = rng.choice([0] * 20 + [90, 200, 253, 254, 255, 300, 1100])
        return b"[" * nested + text.encode() + b"]" * nested


def _strings(text: str) -> list[tuple[str, bool]]:
    found, start, inside, escaped = [], 0, False, False
    for at, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == '"':
            found.append((text[start:at], inside and "\\" not in text[start:at]))
            start, inside = at, not inside
    found.append((text[start:], False))
    return found


def texts_of(data: bytes) -> list[str]:
    """Every string of a JSON text, also of one that is nested deeper than Python reads."""
    decoder = json.JSONDecoder()
    text, found, at = data.decode(), [], 0
    while (at := text.find('"', at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def judge(seed: int, count: int) -> int:
    """Make and judge so many."""
    rng = random.Random(seed)
    for _ in range(count):
        maker = Maker(rng)
        value = maker.value(rng.randrange(6))
        data = maker.spelled(value)
        masked = MASKER.mask(data)
        shown = "\n".join(texts_of(masked))
        for planted in maker.planted:
            assert planted not in shown, (seed, data[:2000])
        if not data.startswith(b"[" * 200):
            json.loads(masked)
            entry = b'{"kind":"call.settled","n":1,"output":' + data + b',"fault":{"code":"tool.failed"}}'
            whole = json.loads(masked_whole(entry, MASKER))
            assert (whole["kind"], whole["n"], whole["fault"]["code"]) == ("call.settled", 1, "tool.failed")
            assert not any(planted in json.dumps(whole) for planted in maker.planted)
        log = mask_log(data[: rng.randrange(len(data) + 1)] + b"\n" + bytes(rng.choices(range(256), k=20)))
        assert isinstance(log, bytes)
    return count
