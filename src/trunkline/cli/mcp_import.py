"""Servers of an MCP client as ``[[mcp]]`` tables of ``trunkline.toml``.

Owns how an entry of a client is read, and what becomes of its values: a reference to a variable stays one
(``env:NAME``), what may be a secret goes to a file of the home (``file:PATH``), the rest stays as it is. What cannot be
taken over is told (``remarks``, ``left_out``). What may be a secret is judged by ``mcp_secrets``.

Arguments and addresses cannot refer to anything, so a secret in one of them stays there, and each is told of.

Invariant: nothing of an entry is left out without a word. ``shown`` holds no value that may be a secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from trunkline.cli.mcp_secrets import HIDDEN, is_secret, masked_address, masked_words, shown

MAX_ID_CHARS: Final = 64
# `${NAME}`, `${env:NAME}`, `${NAME:-what if it is not set}`, `$NAME`.
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_ASKED_FOR: Final = re.compile(r"\$\{input:([^}]+)\}")
# What stands before a token in a header (RFC 9110, 11.1).
_SCHEME: Final = re.compile(r"[A-Za-z]{1,16} (?=\$\{input:[^}]+\}$)")
# Variables whose value everybody may see: put in when a server is imported.
_PLAIN: Final = {"HOME": "HOME", "userHome": "HOME", "USER": "USER", "LOGNAME": "LOGNAME"}
_ADDRESSES: Final = ("url", "httpUrl", "serverUrl")
# The keys of an entry that are read here.
_READ: Final = frozenset(
    {
        *("command", "args", "env", "env_vars", "cwd", "type", "disabled", "enabled"),
        *(*_ADDRESSES, "headers", "http_headers", "env_http_headers", "bearer_token_env_var"),
    }
)
_AS_IT_IS: Final = "may be a secret, and stands in trunkline.toml as it is"


class Found(NamedTuple):
    """One entry of a client's file; ``project`` is the folder that it is for, if it is for one only."""

    name: str
    entry: Mapping[str, Any]
    project: str = ""


@dataclass
class Imported:
    """One server, ready to be written."""

    id: str
    table: dict[str, object]
    # Files to be made, and what goes into them.
    secrets: dict[Path, str] = field(default_factory=dict)
    # What a person has to know or do.
    remarks: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its table of the file."""
        return _table_text(self.table)

    @property
    def shown(self) -> str:
        """The same, as it may be shown."""
        return _table_text(shown(self.table))


@dataclass
class Import:
    """The servers of a client that can be taken over, and those that cannot, each with the reason."""

    servers: list[Imported] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def leave_out(self, server: Imported, reason: str) -> None:
        """Do without this one."""
        self.servers.remove(server)
        self.left_out.append((server.id, reason))


class Importer:
    """Reads entries. ``folder`` is where files with secrets go, ``home`` is the exchange's own."""

    def __init__(self, environ: Mapping[str, str], folder: Path, home: Path) -> None:
        self._environ = environ
        self._folder = folder
        self._home = os.path.realpath(home)
        # Files of secrets that a server has: of this run, and by the tables of now.
        self._files: set[Path] = set()
        self._owners: dict[Path, str] = {}
        # Names of variables that stand for what a client asks for, and which text of which server each is for.
        self._variables: dict[str, tuple[str, str]] = {}

    def servers(self, entries: Iterable[Found], there: Iterable[Mapping[str, Any]]) -> Import:
        """What becomes of these; ``there`` are the ``[[mcp]]`` tables of now."""
        tables = {str(table.get("id")).casefold(): table for table in there}
        self._owners = {file: server_id for server_id, table in tables.items() for file in _files_of(table)}
        ids: set[str] = set()
        seen: list[tuple[str, Mapping[str, Any]]] = []
        done = Import()
        for name, entry, project in entries:
            same = next((other for other, known in seen if known == entry), None)
            if same is not None:
                if _id_of(name) != same:
                    done.left_out.append((_id_of(name), f"is the same server as {same}"))
                continue
            server_id = first = _id_of(name)
            number = 1
            while server_id.casefold() in ids:
                number += 1
                server_id = f"{first[: MAX_ID_CHARS - 4]}-{number}"
            ids.add(server_id.casefold())
            seen.append((server_id, entry))
            if entry.get("disabled") is True or entry.get("enabled") is False:
                done.left_out.append((server_id, "is turned off in the client"))
            elif (made := self._server(server_id, entry, project)) is None:
                done.left_out.append((server_id, "has neither a command nor an address"))
            elif (known := tables.get(server_id.casefold())) is not None:
                done.left_out.append((server_id, _why_not_again(made.table, known)))
            else:
                done.servers.append(made)
        return done

    def _server(self, server_id: str, entry: Mapping[str, Any], project: str) -> Imported | None:
        made = Imported(server_id, {"id": server_id})
        url = next((entry[key] for key in _ADDRESSES if isinstance(entry.get(key), str)), None)
        if isinstance(entry.get("command"), str):
            self._take_command(made, entry, project)
        elif url is not None:
            self._take_address(made, entry, url)
        else:
            return None
        if project:
            made.remarks.append(f"is for {project} only in the client; here it is for all who may call it")
        if "envFile" in entry:
            made.remarks.append("has variables in a file (envFile), which is not read: add them to `env`")
        if others := sorted(map(str, entry.keys() - _READ - {"envFile"})):
            made.remarks.append(f"has keys that mean nothing here and are left out: {', '.join(others)}")
        return made

    # -- what is started -----------------------------------------------------------------------------------------------

    def _take_command(self, made: Imported, entry: Mapping[str, Any], project: str) -> None:
        arguments = entry.get("args")
        words = [entry["command"], *map(str, arguments if isinstance(arguments, list) else ())]
        words = [self._put_in(made, f"argument {at}" if at else "its command", word) for at, word in enumerate(words)]
        made.table["command"] = words
        for at, (word, masked) in enumerate(zip(words, masked_words(words), strict=True)):
            if word != masked:
                made.remarks.append(f"argument {at} ({masked}) {_AS_IT_IS}; give it by `env` or a file if you can")
        self._take(made, "env", _table(entry.get("env")))
        for name in _names(entry.get("env_vars")):
            made.table["env"] = {**_table(made.table.get("env")), name: f"env:{name}"}
        cwd = entry.get("cwd")
        if isinstance(cwd, str) and _VARIABLE.search(cwd := self._put_in(made, "cwd", cwd)) is None:
            made.table["cwd"] = cwd
        elif project:
            made.table["cwd"] = project
        self._open_folders(made, words)

    def _open_folders(self, made: Imported, words: list[str]) -> None:
        """A server sees the folders that its command names, and cannot write there by itself."""
        folders = [word for word in words[1:] if word.startswith("/") and Path(word).is_dir()]
        writes = any("filesystem" in word for word in words)
        for folder in folders:
            real = os.path.realpath(folder)
            if f"{self._home}/".startswith(real.rstrip("/") + "/"):
                made.remarks.append(
                    f"cannot write to {folder}, which holds this exchange: name folders in it in `write`"
                )
            elif real.startswith(f"{self._home}/"):
                made.remarks.append(f"cannot write to {folder}, which is the exchange's own")
            elif writes:
                made.table["write"] = [*_names(made.table.get("write")), folder]
                made.remarks.append(
                    f"may write to {folder}, as in the client; without it in `write` it only reads there"
                )
            else:
                made.remarks.append(f'only reads in {folder}: add write = ["{folder}"] if it should write there')

    # -- what is reached -----------------------------------------------------------------------------------------------

    def _take_address(self, made: Imported, entry: Mapping[str, Any], url: str) -> None:
        made.table["url"] = url = self._put_in(made, "its address", url)
        if (masked := masked_address(url)) != url:
            made.remarks.append(f"its address ({masked}) {_AS_IT_IS}; give it by `headers` if you can")
        if entry.get("type") == "sse":
            made.remarks.append("speaks the older SSE transport; [[mcp]] speaks streamable HTTP")
        self._take(made, "headers", {**_table(entry.get("headers")), **_table(entry.get("http_headers"))})
        headers = _table(made.table.get("headers"))
        headers |= {name: f"env:{variable}" for name, variable in _table(entry.get("env_http_headers")).items()}
        variable = entry.get("bearer_token_env_var")
        if isinstance(variable, str):
            token = self._environ.get(variable)
            secret = f"Bearer {token}" if token else None
            file = self._file(made, "Authorization", secret)
            headers["Authorization"] = f"file:{file}"
            if secret is not None:
                made.secrets[file] = secret
                made.remarks.append(f"has the token that ${variable} holds now; a new one goes to {file}")
            else:
                made.remarks.append(f"wants ${variable}, which is not set here: write `Bearer TOKEN` to {file}, 0600")
        if headers:
            made.table["headers"] = headers

    # -- values --------------------------------------------------------------------------------------------------------

    def _take(self, made: Imported, key: str, values: Mapping[str, Any]) -> None:
        kept = {name: self._value(made, name, str(value)) for name, value in values.items()}
        if kept:
            made.table[key] = kept

    def _value(self, made: Imported, name: str, value: str) -> str:
        """A value, or a reference to it."""
        if _ASKED_FOR.search(value) is not None:
            return f"env:{self._asked_for(made, name, value)}"
        variable = _VARIABLE.fullmatch(value)
        if variable is not None and variable[1] != "userHome":
            if variable[2] is None or (variable[1] in self._environ):
                return f"env:{variable[1] or variable[3]}"
            value = variable[2]
        value = self._with_plain(value)
        wanted = [found[1] or found[3] for found in _VARIABLE.finditer(value)]
        if not wanted and not is_secret(name, value):
            return value
        secret = None
        if all(known in self._environ for known in wanted):
            secret = _VARIABLE.sub(lambda found: self._environ[found[1] or found[3]], value)
        file = self._file(made, name, secret)
        if secret is not None:
            made.secrets[file] = secret
            if wanted:
                made.remarks.append(f"{name} is put together with {', '.join(wanted)} as they are now, in {file}")
        else:
            made.remarks.append(f"{name} has variables that are not set here: write the whole to {file}, 0600")
        return f"file:{file}"

    def _asked_for(self, made: Imported, name: str, value: str) -> str:
        """The variable for a text with values that the client asks its person for: one for each text of a server."""
        inputs = list(dict.fromkeys(_ASKED_FOR.findall(value)))
        plain = re.sub(r"[^A-Za-z0-9]+", "_", "_".join((made.id, *inputs))).strip("_").upper()
        first = variable = f"_{plain}" if plain[:1].isdigit() else plain
        number = 1
        while self._variables.setdefault(variable, (made.id, value)) != (made.id, value):
            number += 1
            variable = f"{first}_{number}"
        remark = f"{name} is asked for by the client ({', '.join(inputs)}); set the variable {variable} for `up`"
        if (scheme := _SCHEME.match(value)) is not None:
            remark += f", which begins with `{scheme[0]}`: `{scheme[0]}TOKEN`"
        elif _ASKED_FOR.fullmatch(value) is None:
            remark += ", to the whole text that the client makes of it"
        made.remarks.append(remark)
        return variable

    def _put_in(self, made: Imported, what: str, text: str) -> str:
        """A text that cannot refer to anything, with those variables that are no secrets."""
        text = self._with_plain(text)
        left = [found[0] for found in _VARIABLE.finditer(text) if found[0].startswith("${")]
        left += [found[0] for found in re.finditer(r"\$\{[^}]*\}", text) if found[0] not in left]
        if left:
            named = ", ".join(_without_default(one) for one in left)
            made.remarks.append(f"{what} has {named}, which is not put in here: write what it stands for")
        return text

    def _with_plain(self, text: str) -> str:
        def value_of(found: re.Match[str]) -> str:
            known = _PLAIN.get(found[1] or found[3])
            return self._environ.get(known, found[0]) if known is not None else found[0]

        return _VARIABLE.sub(value_of, text)

    def _file(self, made: Imported, name: str, secret: str | None) -> Path:
        """A file of its own: names that look alike once they are cleaned are those of two secrets.

        One that is there is another's, unless this server's table names it or it holds this very secret.
        """
        plain = f"{made.id}.{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        found, number = self._folder / plain, 1
        while found in self._files or not self._is_for(found, made.id, secret):
            number += 1
            found = self._folder / f"{plain}-{number}"
        self._files.add(found)
        return found

    def _is_for(self, file: Path, server_id: str, secret: str | None) -> bool:
        owner = self._owners.get(file)
        if owner is not None or not file.exists():
            return owner in (None, server_id.casefold())
        try:
            return secret is not None and file.read_text(encoding="utf-8") == secret
        except (OSError, UnicodeDecodeError):
            return False


def _without_default(variable: str) -> str:
    """A variable as it is written, but for what it stands for where it is not set: that may be a secret."""
    name, mark, default = variable.partition(":-")
    return f"{name}:-{HIDDEN}}}" if mark and default != "}" else variable


def _files_of(table: Mapping[str, Any]) -> Iterator[Path]:
    """The files of secrets that a table names."""
    for values in (_table(table.get("env")), _table(table.get("headers"))):
        for value in values.values():
            if isinstance(value, str) and value.startswith("file:"):
                yield Path(value.removeprefix("file:"))


def _why_not_again(made: Mapping[str, object], there: Mapping[str, object]) -> str:
    """Why a server is not added whose id a table of the file has."""
    if any(made.get(key) != there.get(key) for key in ("command", "url")):
        return "another server has this name in trunkline.toml; give one of them another name"
    others = [f"`{key}`" for key in ("env", "headers", "cwd") if made.get(key) != there.get(key)]
    if others:
        return f"is in trunkline.toml already, where {', '.join(others)} differ; what is there stays as it is"
    return "is in trunkline.toml already"


def _id_of(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_ID_CHARS]
    return cleaned if cleaned and cleaned[0].isalnum() else f"server-{cleaned}".rstrip("-")


def _table(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _table_text(table: Mapping[str, object]) -> str:
    return "\n".join(["[[mcp]]", *(f"{key} = {_toml(value)}" for key, value in table.items())]) + "\n"


def _toml(value: object) -> str:
    """As TOML writes it: texts and lists as JSON does, tables in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # DEL is the one character that JSON takes as it is and TOML does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
