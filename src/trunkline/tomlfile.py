"""A TOML file, with the environment over it, as a struct; each fault with the place it came from.

Owns finding and wording what does not fit a struct: an unknown key with the nearest known one, a wrong type with what
was expected, always with ``file:line`` or the variable's name. It knows no setting; ``config`` does.

Invariant: no error from here quotes a value, because a configuration may hold secrets.
"""

from __future__ import annotations

import ast
import enum
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from trunkline.errors import ConfigError
from trunkline.toml_lines import KeyPath, key_lines

# A hundred times the longest configuration anybody should have to read.
MAX_FILE_BYTES: Final = 1_048_576

# How ``tomllib`` writes the name of a table in its messages: as Python writes the tuple of its parts.
_KEY_TUPLE: Final = re.compile(r"\((?:'[^']*'|\"[^\"]*\")(?:,? ?(?:'[^']*'|\"[^\"]*\"))*,?\)")

S = TypeVar("S", bound=Struct)


def _dotted(shown: re.Match[str]) -> str:
    """The name of a table as it stands in the file."""
    return f"[{'.'.join(ast.literal_eval(shown[0]))}]"


class TomlFile:
    """The tables as read, and where each key came from."""

    def __init__(self, path: Path, *, required: bool) -> None:
        self.path = path
        text = _text_of(path, required=required)
        try:
            self.tables: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message, _, position = str(error).partition(" (at ")
            at = re.match(r"line (\d+)", position)
            line = int(at[1]) if at else text.count("\n") + 1
            message = _KEY_TUPLE.sub(_dotted, message[:1].lower() + message[1:])
            raise ConfigError(f"not TOML: {message}", f"{path}:{line}") from None
        except RecursionError:
            raise ConfigError("nested too deeply", str(path)) from None
        self.places: dict[KeyPath, str] = {key: f"{path}:{line}" for key, line in key_lines(text).items()}

    def take_environment(self, environ: Mapping[str, str], kind: type[Struct], prefix: str) -> None:
        """Lay ``<prefix>_<SECTION>_<KEY>`` over the file.

        A variable that starts with no section of ours is none of our business: container platforms set
        ``TRUNKLINE_SERVICE_HOST`` and its like by themselves.
        """
        for section in structs.fields(kind):
            start = f"{prefix}_{section.encode_name}_".upper()
            if _is_struct(section.type):
                for variable in sorted(environ):
                    if variable.startswith(start):
                        self._take_variable(variable, start, section, environ[variable])

    def _take_variable(self, variable: str, start: str, section: structs.FieldInfo, text: str) -> None:
        key = variable.removeprefix(start).lower()
        known = {item.encode_name: item.type for item in structs.fields(section.type) if _fits_variable(item.type)}
        path = (section.encode_name, key)
        self.places[path] = f"${variable}"
        if key not in known:
            self.fail(path, f"no such setting{suggestion(variable, [start + name.upper() for name in known])}")
        value: object = text
        if not _is_text(known[key]):
            try:
                value = tomllib.loads(f"value = {text}")["value"]
            except tomllib.TOMLDecodeError:
                self.fail(path, f"expected {_expected(known[key])}, written as in TOML")
        table = self.tables.setdefault(section.encode_name, {})
        # Anything but a table is refused by `convert`, with the place in the file.
        if isinstance(table, dict):
            table[key] = value

    def convert(self, kind: type[S]) -> S:
        """The tables as a ``kind``; the first fault is a ``ConfigError`` with its place."""
        for key, problem in _unknown_keys(self.tables, kind, ()):
            self.fail(key, problem)
        try:
            return msgspec.convert(self.tables, kind)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$")
            key = self._full_key(where.removesuffix("`"), kind)
            self.fail(key, _in_toml_words(message, _type_at(key, kind)))

    def _full_key(self, where: str, kind: type[Struct]) -> KeyPath:
        """The path that msgspec writes ``.agent[0].env[...]``; for ``[...]`` the first key whose value does not fit."""
        path: KeyPath = ()
        value: Any = self.tables
        for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", where):
            step: str | int
            if name:
                step = name
            elif index != "...":
                step = int(index)
            else:
                wanted = _type_at((*path, ""), kind)
                step = next(key for key, item in value.items() if not _fits(item, wanted))
            path = (*path, step)
            value = value[step]
        return path

    def fail(self, key: KeyPath, problem: str) -> NoReturn:
        """Raise for ``key``, at its place or that of the nearest table around it."""
        at = key
        while at and at not in self.places:
            at = at[:-1]
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key).removeprefix(".")
        raise ConfigError(f"{name}: {problem}" if name else problem, self.places.get(at, str(self.path)))


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` if something known is near, else nothing."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _text_of(path: Path, *, required: bool) -> str:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError("not a regular file", str(path))
            if mode & stat.S_IWOTH:
                raise ConfigError(
                    f"it names programs to run, and everybody can write to it; chmod o-w {path}", str(path)
                )
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise ConfigError("no such file", str(path)) from None
        return ""
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than {MAX_FILE_BYTES} bytes", str(path))
    try:
        # TOML knows "\r\n" as one line end; a lone "\r" is an error in it.
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8 text", f"{path}:{line}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting: a named pipe that nobody writes to would hold us for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


# --- types, and words for them ----------------------------------------------------------------------------------------

_TOML_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "a table",
    "datetime": "a date and time",
    "date": "a date",
    "time": "a time",
}


def _unknown_keys(value: object, kind: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if _is_struct(kind) and isinstance(value, dict):
        known = {item.encode_name: item.type for item in structs.fields(kind)}
        for name, item in value.items():
            if name in known:
                yield from _unknown_keys(item, known[name], (*path, name))
            else:
                yield (*path, name), f"no such {'key' if path else 'section'}{suggestion(name, known)}"
    elif get_origin(kind) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_keys(item, get_args(kind)[0], (*path, index))


def _in_toml_words(message: str, kind: Any) -> str:
    """What msgspec says, for somebody who reads TOML and not Python."""
    if message.startswith("Invalid enum value"):
        return f"expected {_expected(kind)}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", message):
        return f"the key `{missing[1]}` is missing"
    message = message.replace(" | null`", "`")
    message = re.sub(r"`(\w+)`", lambda word: _TOML_WORDS.get(word[1], word[0]), message)
    return message[:1].lower() + message[1:]


def _expected(kind: Any) -> str:
    for option in (kind, *get_args(kind)):
        if get_origin(option) is Literal:
            return " or ".join(f'"{choice}"' for choice in get_args(option))
        if isinstance(option, type) and issubclass(option, enum.StrEnum):
            return " or ".join(f'"{choice.value}"' for choice in option)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return _TOML_WORDS["array" if get_origin(kind) is tuple else kind.__name__]


def _type_at(path: KeyPath, kind: Any) -> Any:
    for step in path:
        if _is_struct(kind):
            kind = next(item.type for item in structs.fields(kind) if item.encode_name == step)
        else:
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
    return kind


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _is_text(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal


def _fits_variable(kind: Any) -> bool:
    """No table and no array of tables."""
    return get_origin(kind) is not dict and not any(_is_struct(part) for part in (kind, *get_args(kind)))


def placed_path(path: str, folder: Path) -> str:
    """Absolute, by the names alone: ``..`` goes, links stay."""
    return os.path.normpath(folder / Path(path).expanduser())
