"""Servers of an MCP client as ``[[mcp]]`` tables of ``trunkline.toml``, without a secret in the text.

Owns how an entry of a client is read, and what becomes of values that may be secrets: a reference to a variable stays
one (``env:NAME``), anything that looks like a secret goes to a file of the home (``file:PATH``), the rest stays as it
is.

Invariant: no value that may be a secret is in what ``tables`` returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MAX_ID_CHARS: Final = 64
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_ASKED_FOR: Final = re.compile(r"\$\{input:([^}]+)\}")
_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|credential|api.?key|access.?key|private|auth|cookie|bearer|dsn|connection|_key$|^key$|_pat$",
    re.IGNORECASE,
)
# Long and without spaces, and neither a path nor an address without a user in it.
_SECRET_VALUE: Final = re.compile(r"[A-Za-z0-9+/_=.-]{20,}|[a-z+]+://[^/\s]*:[^/\s]*@.*")
_REFERENCE: Final = re.compile(r"(?:env|file|keyring):")


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
        lines = [f"{key} = {_toml(value)}" for key, value in self.table.items()]
        return "\n".join(["[[mcp]]", *lines]) + "\n"


def imported(servers: Mapping[str, Mapping[str, Any]], taken: Iterable[str], folder: Path) -> list[Imported]:
    """The servers of a client; ``taken`` are ids that are in use, ``folder`` is where files with secrets go."""
    ids = {name.casefold() for name in taken}
    found: list[Imported] = []
    for name, entry in servers.items():
        server_id = _id_of(name)
        if server_id.casefold() in ids:
            continue
        one = _server(server_id, entry, folder)
        if one is not None:
            ids.add(server_id.casefold())
            found.append(one)
    return found


def _server(server_id: str, entry: Mapping[str, Any], folder: Path) -> Imported | None:
    made = Imported(server_id, {"id": server_id})
    url = next((entry[key] for key in ("url", "httpUrl", "serverUrl") if isinstance(entry.get(key), str)), None)
    if isinstance(entry.get("command"), str):
        arguments = entry.get("args")
        words = [entry["command"], *map(str, arguments if isinstance(arguments, list) else ())]
        made.table["command"] = words
        _note_secret_words(made, words)
        _add(made, "env", entry.get("env"), folder)
        for name in _names(entry.get("env_vars")):
            made.table["env"] = {**_table(made.table.get("env")), name: f"env:{name}"}
        if isinstance(entry.get("cwd"), str):
            made.table["cwd"] = entry["cwd"]
    elif url is not None:
        made.table["url"] = url
        if entry.get("type") == "sse":
            made.remarks.append("speaks the older SSE transport; [[mcp]] speaks streamable HTTP")
        _add(made, "headers", {**_table(entry.get("headers")), **_table(entry.get("http_headers"))}, folder)
        variable = entry.get("bearer_token_env_var")
        if isinstance(variable, str):
            made.remarks.append(f'wants "Authorization: Bearer" with ${variable}; put the whole header into a file')
    else:
        return None
    if entry.get("disabled") is True or entry.get("enabled") is False:
        made.remarks.append("is turned off in the client, and on here")
    return made


def _add(made: Imported, key: str, values: object, folder: Path) -> None:
    kept = {name: _value(made, name, str(value), folder) for name, value in _table(values).items()}
    if kept:
        made.table[key] = kept


def _value(made: Imported, name: str, value: str, folder: Path) -> str:
    """A value, or a reference to it."""
    if (variable := _VARIABLE.fullmatch(value)) is not None:
        return f"env:{variable[1] or variable[2]}"
    if (asked := _ASKED_FOR.search(value)) is not None:
        made.remarks.append(f"{name} is asked for by the client ({asked[1]}); set the variable {name} for `up`")
        return f"env:{name}"
    if _VARIABLE.search(value) is not None:
        made.remarks.append(f"{name} mixes text and variables, which are not put in here: put the whole into its file")
    elif not is_secret(name, value):
        return value
    file = folder / f"{made.id}.{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
    made.secrets[file] = value
    return f"file:{file}"


def is_secret(name: str, value: str) -> bool:
    """Whether a value may be one, by its name or by its looks. What would be read as a reference counts as one."""
    if _REFERENCE.match(value):
        return True
    return bool(
        _SECRET_NAME.search(name) or (_SECRET_VALUE.fullmatch(value) and not value.startswith(("/", "./", "~")))
    )


def _note_secret_words(made: Imported, words: list[str]) -> None:
    """Arguments are seen by everybody on this machine anyway; a person should know."""
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if (before.startswith("-") and is_secret(before, word) and not word.startswith("-")) or (
            equals and is_secret(name, value)
        ):
            made.remarks.append("has something like a secret among its arguments; give it by env or a file if you can")
            return
        before = word


def _id_of(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_ID_CHARS]
    return cleaned if cleaned and cleaned[0].isalnum() else f"server-{cleaned}".rstrip("-")


def _table(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _toml(value: object) -> str:
    """As TOML writes it: texts and lists as JSON does, tables in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # DEL is the one character that JSON takes as it is and TOML does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
