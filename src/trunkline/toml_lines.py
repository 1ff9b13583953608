"""Where each key of a TOML text stands: ``tomllib`` gives values without their lines.

Owns one function. It does not judge the text: call it only with what ``tomllib`` has already read without an error, so
that every bracket closes and every string ends.

Invariant: each key path that ``tomllib`` yields is found, with tables of an array told apart by their index.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

KeyPath = tuple[str | int, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
# The longest quotes first, and `""` only when no third one follows its opening pair.
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?'
    r"|'''.*?'''(?:'{1,2}(?!'))?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
# Numbers, booleans and dates hold none of these.
_SCALAR: Final = re.compile(r"[^,\]}\n#]+")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, on which each table, key and array element first appears."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        # How far each array of tables has come: `[[agent]]` twice makes ("agent",) -> 1.
        self.arrays: dict[KeyPath, int] = {}
        self._line = 1
        self._counted = 0

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._take("[["):
                table = self._array_header()
            elif self._take("["):
                table = self._resolve(self._key("]"))
            else:
                self._pair(table)
        return self.lines

    def _array_header(self) -> KeyPath:
        *parents, name = self._key("]")
        self._take("]")
        array = (*self._resolve(parents), name)
        self._note(array)
        self.arrays[array] = self.arrays.get(array, -1) + 1
        table = (*array, self.arrays[array])
        self._note(table)
        return table

    def _resolve(self, names: list[str]) -> KeyPath:
        """The path a header means: a name that is an array of tables stands for its last table."""
        path: KeyPath = ()
        for name in names:
            path = (*path, name)
            self._note(path)
            if path in self.arrays:
                path = (*path, self.arrays[path])
        return path

    def _pair(self, table: KeyPath) -> None:
        path = table
        start = self.at
        for name in self._key("="):
            path = (*path, name)
            self._note(path, start)
        self._skip_blank()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._take("["):
            self._array(path)
        elif self._take("{"):
            while self._skip_blank() and not self._take("}"):
                self._pair(path)
                self._skip_blank()
                self._take(",")
        else:
            match = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
            assert match, "tomllib accepted this text"
            self.at = match.end()

    def _array(self, path: KeyPath) -> None:
        index = 0
        while self._skip_blank() and not self._take("]"):
            self._note((*path, index))
            self._value((*path, index))
            index += 1
            self._skip_blank()
            self._take(",")

    def _key(self, end: str) -> list[str]:
        """The parts of a dotted key, up to and with ``end``."""
        parts: list[str] = []
        while True:
            self._skip_blank()
            if match := _BARE_KEY.match(self.text, self.at):
                parts.append(match[0])
            else:
                match = _STRING.match(self.text, self.at)
                assert match, "tomllib accepted this text"
                parts.append(tomllib.loads(f"key = {match[0]}")["key"])
            self.at = match.end()
            self._skip_blank()
            if self._take(end):
                return parts
            self._take(".")

    def _note(self, path: KeyPath, position: int | None = None) -> None:
        position = self.at if position is None else position
        self._line += self.text.count("\n", self._counted, position)
        self._counted = max(self._counted, position)
        self.lines.setdefault(path, self._line)

    def _skip_blank(self) -> bool:
        """Go past spaces, lines and comments; whether anything is left."""
        match = _BLANK.match(self.text, self.at)
        assert match, "the pattern matches nothing, too"
        self.at = match.end()
        return self.at < len(self.text)

    def _take(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.at)
        if found:
            self.at += len(mark)
        return found
