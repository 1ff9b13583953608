"""JSON that people write by hand, comments and trailing commas included: read, and changed in one place only.

Owns where the members of an object stand in a text. A change touches one member; every other byte stays as it is. Made
for settings files of other programs, which are not ours to reformat.

Invariant: after ``with_member`` and ``without_member`` of a member that was not there, the text is what it was before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

# What stands between two things and means nothing.
_BETWEEN: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN: Final = re.compile(r"[-+.\w]+")
MAX_DEPTH: Final = 100


class NotJson(ValueError):
    """A text that is no JSON, comments or not."""


@dataclass
class _Member:
    key: str
    start: int
    # Of its value.
    value: _Node
    # Behind the comma after it, if there is one; else the end of its value.
    end: int
    has_comma: bool


@dataclass
class _Node:
    start: int
    end: int
    plain: Any
    # Of an object.
    members: list[_Member] = field(default_factory=list)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> _Node:
        self._skip()
        found = self._value(0)
        self._skip()
        if self._at != len(self._text):
            raise NotJson(f"there is more than one value: the second is at {self._place(self._at)}")
        return found

    def _skip(self) -> None:
        matched = _BETWEEN.match(self._text, self._at)
        assert matched is not None
        self._at = matched.end()

    def _place(self, at: int) -> str:
        before = self._text[:at]
        return f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}"

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise NotJson("it is nested too deeply")
        start, first = self._at, self._peek()
        if first == "{":
            return self._object(start, depth)
        if first == "[":
            return self._array(start, depth)
        matched = (_STRING if first == '"' else _PLAIN).match(self._text, self._at)
        if matched is None:
            raise NotJson(f"a value is missing at {self._place(start)}")
        self._at = matched.end()
        try:
            return _Node(start, self._at, json.loads(matched[0]))
        except ValueError:
            raise NotJson(f"what stands at {self._place(start)} is no value") from None

    def _object(self, start: int, depth: int) -> _Node:
        members: list[_Member] = []
        self._at += 1
        while True:
            self._skip()
            if self._peek() == "}":
                self._at += 1
                plain = {member.key: member.value.plain for member in members}
                return _Node(start, self._at, plain, members)
            if members and not members[-1].has_comma:
                raise NotJson(f"a comma is missing before {self._place(self._at)}")
            begin = self._at
            key = self._value(depth) if self._peek() == '"' else None
            self._skip()
            if key is None or self._peek() != ":":
                raise NotJson(f"a name in double quotes and a colon are missing at {self._place(begin)}")
            self._at += 1
            self._skip()
            value = self._value(depth + 1)
            end = self._at
            self._skip()
            has_comma = self._peek() == ","
            if has_comma:
                self._at += 1
                end = self._at
            members.append(_Member(key.plain, begin, value, end, has_comma))

    def _array(self, start: int, depth: int) -> _Node:
        items: list[Any] = []
        has_comma = True
        self._at += 1
        while True:
            self._skip()
            if self._peek() == "]":
                self._at += 1
                return _Node(start, self._at, items)
            if not has_comma:
                raise NotJson(f"a comma is missing before {self._place(self._at)}")
            items.append(self._value(depth + 1).plain)
            self._skip()
            has_comma = self._peek() == ","
            self._at += has_comma


def read(text: str) -> Any:
    """The value of a text; an empty one is an empty object."""
    return {} if not text.strip() else _Reader(text.removeprefix("\ufeff")).document().plain


def with_member(text: str, path: tuple[str, ...], value: object) -> str:
    """The same text with a member at this path; objects on the way are made, one that is there is replaced."""
    if not text.strip():
        text = "{}\n"
    *above, key = path
    at, indent = _document(text), ""
    for depth, name in enumerate(above):
        found = _member(at, name)
        if found is None:
            inner: object = value
            for missing in reversed(path[depth + 1 :]):
                inner = {missing: inner}
            return _inserted(text, at, name, inner, indent)
        at, indent = found.value, indent + "  "
        if not isinstance(at.plain, dict):
            raise NotJson(f"{name} is no object")
    known = _member(at, key)
    if known is None:
        return _inserted(text, at, key, value, indent)
    return text[: known.value.start] + _written(value, _indent_of(text, known.start)) + text[known.value.end :]


def without_member(text: str, path: tuple[str, ...]) -> str:
    """The same text without the member at this path."""
    if not text.strip():
        return text
    at = _document(text)
    for name in path[:-1]:
        found = _member(at, name)
        if found is None:
            return text
        at = found.value
    known = _member(at, path[-1])
    if known is None:
        return text
    number = at.members.index(known)
    if number == len(at.members) - 1 and number > 0:
        # With the comma of the one before, which may have been for it. A comment between them is somebody's.
        before = at.members[number - 1]
        start = before.end if known.has_comma else before.value.end
        return text[:start] + _joined(text[before.end : known.start], text[known.end :])
    if number == 0 and len(at.members) == 1:
        between, rest = text[at.start + 1 : known.start], text[known.end :]
        has_comment = bool(between.strip() or text[known.end : at.end - 1].strip())
        return text[: at.start + 1] + (_joined(between, rest) if has_comment else rest.lstrip())
    return text[: known.start] + text[known.end :].lstrip()


def _joined(before: str, after: str) -> str:
    """What stood before a member and what stands behind it; a comment to the end of its line stays one."""
    before = before.rstrip()
    is_open = "//" in before.rpartition("\n")[2] and not after.lstrip(" \t\r").startswith("\n")
    return f"{before}\n{after}" if is_open else before + after


def _document(text: str) -> _Node:
    found = _Reader(text).document()
    if not isinstance(found.plain, dict):
        raise NotJson("it is no object")
    return found


def _member(at: _Node, name: str) -> _Member | None:
    return next((member for member in reversed(at.members) if member.key == name), None)


def _inserted(text: str, at: _Node, key: str, value: object, indent: str) -> str:
    """As the last member, with the indentation of the others."""
    inner = _indent_of(text, at.members[-1].start) if at.members else indent + "  "
    member = f"{json.dumps(key)}: {_written(value, inner)}"
    if at.members:
        last = at.members[-1]
        comma, end = ("", last.end) if last.has_comma else (",", last.value.end)
        # A comma at the end stays the custom of this file.
        return f"{text[:end]}{comma}\n{inner}{member}{',' if last.has_comma else ''}{text[end:]}"
    rest = text[at.start + 1 : at.end - 1]
    return f"{text[: at.start + 1]}{rest.rstrip()}\n{inner}{member}\n{indent}{text[at.end - 1 :]}"


def _indent_of(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line if not line.strip() else " " * (len(line) - len(line.lstrip()))


def _written(value: object, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")
