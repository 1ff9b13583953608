"""Masking of what is stored or shown: secrets in JSON or text become ``[masked:rule]``.

Owns the search and the replacement; ``rules`` owns what a secret looks like. Exact secrets that the exchange itself
knows are added at run time, live only in memory, and are also found in base64, hexadecimal and percent encoding.

One Hyperscan scan for all rules mostly says "nothing here" (0.5 µs for 200 bytes, 15 for 64 KiB); only where a rule's
seed was seen is that rule asked. Both are linear. JSON stays JSON, and everything but the secret stays the bytes it
was. Not for several threads at once: Hyperscan's scratch space belongs to one scan.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import urllib.parse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import hyperscan

from trunkline.ledger.rules import RULES, TOKEN_PREFIX, Finding, MaskingRule, inside_escape

if TYPE_CHECKING:
    # The keeper masks, too, and its memory counts.
    from trunkline.ledger.kept_masking import KeptMasking

__all__ = ["MASKED_WHOLE", "Masker"]

# What stands for something that could not be masked: JSON, and readable in a log.
MASKED_WHOLE: Final = b'"[masked:whole]"'
# A shorter one cannot be told from ordinary text: masking every "admin" would blank the record.
SHORTEST_SECRET: Final = 8

# Characters that need no escape and yet have one (`\u0041`, `\/`) hide a secret from the scan. Such JSON is respelled
# first. Quotes and backslashes never lose theirs.
_ESCAPED: Final = rb"\\(?:u00[2-7]|/)"

# As deep as anything that somebody may send; orjson reads four times as deep.
DEEPEST_READ: Final = 256

# So many places of one body are judged one by one, 3 µs each. Where there are more, whole strings go, 1 µs each: it
# bounds what a hostile body can cost.
MOST_JUDGED: Final = 500
# The rest of such a body is looked through in windows, so that what was seen in it is never held all at once. They
# overlap by more than a seed has.
WINDOW_BYTES: Final = 8_192
OVERLAP_BYTES: Final = 512

_Hit = tuple[int, int, int]
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# What a rule would take of a member: a string, a number, an array of strings.
_MEMBER_VALUE: Final = re.compile(
    rb'\s*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*+|\[\s*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"\s*+,?\s*+)++\])',
    re.DOTALL,
)
_QUOTE, _COLON, _BACKSLASH = b'":\\'


def _note(rule: int, start: int, end: int, _flags: int, hits: object) -> bool:
    assert type(hits) is list
    hits.append((rule, start, end))
    return len(hits) >= MOST_JUDGED


def _note_each(rule: int, start: int, end: int, _flags: int, hits: object) -> None:
    assert type(hits) is list
    hits.append((rule, start, end))


def _stop(*_match: object) -> bool:
    return True


class Masker:
    """Masks by ``RULES`` and by exact secrets: ``(name, secret)`` pairs, whose mark is ``[masked:name]``.

    With ``kept`` the rules need not be compiled at each start, as long as there are no such secrets.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]] = (), kept: KeptMasking | None = None) -> None:
        self._kept = kept
        self._known: dict[bytes, str] = {}
        self._rules: list[MaskingRule] = []
        self._database: hyperscan.Database | None = None
        for name, secret in secrets:
            self.add(name, secret)

    def add(self, name: str, secret: str) -> None:
        """Mask this exact secret from now on. ``ValueError`` if it is shorter than eight bytes."""
        data = secret.encode()
        if len(data) < SHORTEST_SECRET:
            raise ValueError(f"the secret {name} has fewer than {SHORTEST_SECRET} bytes and cannot be told from text")
        # Ours have a rule of their own for all encodings; 500 launched agents need not be 500 more patterns.
        if not secret.startswith(TOKEN_PREFIX) and data not in self._known:
            self._known[data] = name
            self._database = None

    def is_clean(self, data: bytes) -> bool:
        """Whether nothing in these bytes could be a secret: no rule needs to be asked. Any bytes, not only JSON."""
        database = self._database or self._compiled()
        try:
            database.scan(data, _stop)
        except Exception:  # noqa: BLE001  (a seed was found, or nobody knows whether there is one)
            return False
        return True

    def mask(self, data: bytes) -> bytes:
        """The JSON text ``data`` without secrets; ``data`` itself if there were none. Lines of a log will do too.

        What cannot be masked, for whatever reason, is ``MASKED_WHOLE``: nobody's bytes stop the one who masks them.
        """
        try:
            hits = self._seen(data)
            if not hits:
                return data
            masked = self._masked(data, hits)
            is_broken = masked is not data and not _is_json(masked) and _is_json(data)
        except Exception:  # noqa: BLE001  (whatever it was, it was the fault of these bytes)
            return MASKED_WHOLE
        return MASKED_WHOLE if is_broken else masked

    def _masked(self, data: bytes, hits: list[_Hit]) -> bytes:
        plain = data
        respell = len(self._rules) - 1
        if any(number == respell for number, _, _ in hits) or (len(hits) == MOST_JUDGED and b"\\" in data):
            plain = _respelled(data)
            hits = self._seen(plain)
        findings: list[tuple[Finding, str]] = []
        for number, start, end in hits:
            rule = self._rules[number]
            finding = rule.find(plain, start, end)
            if finding is not None:
                findings.append((finding, rule.name))
        if len(hits) < MOST_JUDGED:
            return _spliced(plain, findings) if findings else data
        judged = max(hits[-1][2], *(finding.end for finding, _ in findings)) if findings else hits[-1][2]
        flooded = self._flooded(plain, judged)
        if not findings and len(flooded) == 1:
            return data
        return _spliced(plain[:judged], findings) + b"".join(flooded)

    def mask_text(self, text: str) -> str:
        """A line for a log or a screen without secrets; ``text`` itself if there were none."""
        data = json.dumps(text).encode()
        masked = self.mask(data)
        if masked is data:
            return text
        shown = json.loads(masked)
        assert isinstance(shown, str)
        return shown

    def _flooded(self, data: bytes, done: int) -> list[bytes]:
        """What follows ``done``, in pieces, without any string or member value in which a seed was seen."""
        database = self._database or self._compiled()
        parts: list[bytes] = []
        escapes = b"\\" in data
        respell = len(self._rules) - 1
        base = done
        while base < len(data):
            seen: list[_Hit] = []
            database.scan(data[base : base + WINDOW_BYTES], _note_each, 0, seen)
            for rule, first, last in seen:
                end = base + last
                # The last rule says only that there is such an escape, and not where it begins.
                if end <= done or rule == respell:
                    continue
                # Most often the string ended within the seed: it was a key.
                if data[end - 1] != _COLON or data[end - 2] != _QUOTE or data[end - 3] == _BACKSLASH:
                    start = max(base + first, done)
                    if data[start] == _QUOTE:
                        # The seed of a JWK begins before its string.
                        start = data.rindex(b'"', start, end) + 1
                    elif escapes and inside_escape(data, start):
                        start = end
                    rest = _REST_OF_STRING.match(data, start)
                    assert rest is not None
                    if rest.end() >= end:
                        parts += (data[done:start], b"[masked:flood]")
                        done = rest.end()
                        continue
                value = _MEMBER_VALUE.match(data, end)
                if value is not None:
                    parts += (data[done:end], b'"[masked:flood]"')
                    done = value.end()
            base = max(done, base + WINDOW_BYTES - OVERLAP_BYTES)
        parts.append(data[done:])
        return parts

    def _seen(self, data: bytes) -> list[_Hit]:
        """Where seeds are, in the order of their ends; no more than ``MOST_JUDGED``."""
        database = self._database or self._compiled()
        hits: list[_Hit] = []
        with contextlib.suppress(hyperscan.ScanTerminated):
            database.scan(data, _note, 0, hits)
        return hits

    def _compiled(self) -> hyperscan.Database:
        self._rules = [*RULES, *(rule for secret, name in self._known.items() for rule in _known_rules(name, secret))]
        # The last only makes `mask` look: that there is such an escape, not where.
        self._rules.append(MaskingRule("", _ESCAPED, lambda _data, _start, _end: None))
        seeds = tuple(rule.seed for rule in self._rules)
        if self._kept is None or self._known:
            self._database = _database(seeds)
        else:
            self._database = self._kept.database(seeds, functools.partial(_database, seeds))
        return self._database

    def prepare(self) -> None:
        """Compile the rules now, and not with the first look."""
        self._compiled()


# 170 ms: a simulation opens a thousand ledgers with the same rules.
@functools.lru_cache(maxsize=4)
def _database(seeds: tuple[bytes, ...]) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=seeds,
        ids=list(range(len(seeds))),
        elements=len(seeds),
        flags=[hyperscan.HS_FLAG_SOM_LEFTMOST] * (len(seeds) - 1) + [hyperscan.HS_FLAG_SINGLEMATCH],
    )
    return database


@functools.lru_cache(maxsize=256)
def _mark(name: str, quoted: bool) -> bytes:
    return f'"[masked:{name}]"'.encode() if quoted else f"[masked:{name}]".encode()


def _spliced(data: bytes, findings: list[tuple[Finding, str]]) -> bytes:
    findings.sort()
    parts: list[bytes] = []
    done = 0
    for (start, end, quoted), name in findings:
        if start >= done:
            parts += (data[done:start], _mark(name, quoted))
        # What begins inside an earlier finding is covered by its mark, to its own end.
        done = max(done, end)
    parts.append(data[done:])
    return b"".join(parts)


def _respelled(data: bytes) -> bytes:
    """The same JSON with only the escapes it needs. Numbers may be spelled anew; nothing else looks at this text.

    What is not JSON stays as it is: a line that an agent printed, with the path of a Windows file in it.
    """
    import orjson

    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        # Not JSON, or nested deeper than it can be read: then what its escapes hide is not known.
        if data.count(b"[") + data.count(b"{") > DEEPEST_READ:
            raise
        return data
    # Raises for what is nested deeper than anybody may send: then it is masked whole.
    return orjson.dumps(value)


def _is_json(data: bytes) -> bool:
    import orjson

    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _known_rules(name: str, secret: bytes) -> list[MaskingRule]:
    """One rule for each spelling of an exact secret."""
    quoted = urllib.parse.quote_from_bytes(secret, safe="").encode()
    spellings = {secret, quoted, quoted.lower() if quoted != secret else quoted, secret.hex().encode()}
    spellings.add(secret.hex().upper().encode())
    for ascii_only in (True, False):
        text = secret.decode()
        # As it stands inside a JSON string, and inside a JSON text inside one.
        for _ in range(2):
            text = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            spellings.add(text.encode())
    for shift in range(3):
        # Only the characters that no neighbour has a share in.
        encoded = base64.b64encode(b"\0" * shift + secret)
        inner = encoded[-(-shift * 8 // 6) : (shift + len(secret)) * 8 // 6]
        spellings |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return [_exact(name, spelling) for spelling in sorted(spellings)]


def _exact(name: str, spelling: bytes) -> MaskingRule:
    def find(data: bytes, start: int, end: int) -> Finding | None:
        return None if inside_escape(data, start) else Finding(start, end)

    return MaskingRule(name, b"".join(b"\\x%02x" % byte for byte in spelling), find)
