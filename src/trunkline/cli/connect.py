"""``trunkline connect`` and ``trunkline import``: a client's own file learns of us, and its servers become ours.

Owns when files of others are written, and what is said of it. What is written is decided by ``mcp_clients`` and
``mcp_import``, how by ``client_files``. Neither verb needs a running exchange.

Invariant: a file that cannot be read, or would not say afterwards what it should, stays as it is; so does a
configuration with which the exchange would not start. Of what others wrote into a client's file nothing is shown that
may be a secret.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import click

from trunkline import key_files
from trunkline.cli import client_files
from trunkline.cli.json_text import NotJson
from trunkline.cli.mcp import token_file
from trunkline.cli.mcp_clients import CLIENTS, ENTRY, McpClient, is_exchange
from trunkline.cli.mcp_import import Import, Imported, Importer
from trunkline.cli.mcp_secrets import shown
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, heading, note, printable, say, typed
from trunkline.errors import ConfigError, ExchangeUnreachable
from trunkline.home import Home

_CLIENT: Final = click.Choice(list(CLIENTS))
_UNTRUSTED: Final = (
    "What these servers answer counts as written by strangers: after it, tools with side effects ask you each time.",
    "untrusted = false is for a server where only you write; trust_annotations = true believes a server which of its",
    "tools only read, and those do not ask.",
)


@click.command()
@click.argument("client", type=_CLIENT)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--undo", is_flag=True, help="Take our entry out again.")
@shared
def connect(settings: CommandSettings, client: str, dry_run: bool, undo: bool) -> None:
    """Let an MCP CLIENT use this exchange: adds one server, `trunkline`, to its file.

    The client then starts `trunkline mcp`, which finds its token in the home: there is no secret in the
    client's file. What was there before is kept beside it.
    """
    known = CLIENTS[client]
    file = known.file(os.environ)
    before = client_files.text_of(file)
    try:
        _check_owner(known.owner_of_entry(before), settings.home, client, undo=undo)
        after = known.without_entry(before) if undo else known.with_entry(before, _command(settings.home, client))
        entries = [known.servers(text).get(ENTRY) for text in (before, after)]
    except NotJson as error:
        raise _unreadable(file, error) from None
    backup = None
    if after != before and not dry_run:
        backup = client_files.write(file, after, before)
    shape = {
        "client": client,
        "file": str(file),
        "changed": after != before,
        "backup": None if backup is None else str(backup),
    }
    if settings.shown_as_json({**shape, "dry_run": dry_run}):
        return
    if after == before:
        is_there = file.exists()
        does_not = "does not know this exchange" if is_there else "does not exist"
        said = f"{does_not}: nothing to undo" if undo else "is as it should be: nothing to change"
        say(f"{printable(str(file))} {said}.")
        return
    if dry_run:
        say(heading(f"Would change in {printable(str(file))}, and nothing else"))
        _show_difference(known, *entries)
        return
    done = f"{known.title} does not know this exchange any more" if undo else f"{known.title} knows this exchange now"
    say(f"{done}: {printable(str(file))}")
    if backup is not None:
        note(f"what was there before: {printable(str(backup))}")
    if undo and token_file(settings.home, client).exists():
        note(f"its token is still good; {typed('token list')} shows it, {typed('token revoke ID')} takes it back")
    elif not undo:
        note(f"restart {known.title}; it makes its calls as mcp:{client}. {_has_to_run(settings)}".rstrip())


def _check_owner(owner: str | None, home: Home, client: str, *, undo: bool) -> None:
    """Only our own entry is changed, and only that of this home is taken out."""
    if owner == "":
        text = f"a server that is not ours is called {ENTRY} in this file; give it another name, or remove it by hand"
        raise CommandFailed("state.conflict", text)
    if undo and owner is not None and Path(owner) != home.path:
        import shlex

        text = f"the entry is that of another exchange; `trunkline connect {client} --undo --home {shlex.quote(owner)}`"
        raise CommandFailed("state.conflict", text)


def _has_to_run(settings: CommandSettings) -> str:
    return "" if _is_running(settings) else f"The exchange has to run: {typed('up')}"


def _is_running(settings: CommandSettings) -> bool:
    try:
        settings.connect()
    except ExchangeUnreachable:
        return False
    return True


def _command(home: Home, client: str) -> tuple[str, ...]:
    """How the client starts us: by a whole path, since it may have another idea of PATH."""
    program = Path(sys.argv[0])
    if program.name == "trunkline" and program.exists():
        words: tuple[str, ...] = (str(program.absolute()),)
    else:
        words = (sys.executable, "-m", "trunkline")
    return (*words, "--home", str(home.path), "mcp", "--as", client)


@click.command("import")
@click.argument("client", type=_CLIENT)
@click.option("--dry-run", is_flag=True, help="Only show what would be written.")
@shared
def import_servers(settings: CommandSettings, client: str, dry_run: bool) -> None:
    """Mount the MCP servers that a CLIENT has: adds them as [[mcp]] to trunkline.toml.

    Values that may be secrets go to files in keys/mcp-servers of the home; the configuration names the files. The
    client's own file is not changed: `trunkline connect` does that, and its servers can be removed there afterwards.
    """
    known, home = CLIENTS[client], settings.home
    file = known.file(os.environ)
    before = client_files.text_of(home.config_file)
    found = _found(known, file, home)
    after = _extended(before, found.servers)
    backup = _put(home, found.servers, before, after) if found.servers and not dry_run else None
    shape = {
        "client": client,
        "file": str(home.config_file),
        "servers": [
            {"id": one.id, "secrets": [str(path) for path in one.secrets], "remarks": one.remarks}
            for one in found.servers
        ],
        "left_out": [{"id": name, "reason": reason} for name, reason in found.left_out],
        "backup": None if backup is None else str(backup),
        "dry_run": dry_run,
    }
    if settings.shown_as_json(shape):
        return
    _tell(found, file, home.config_file, dry_run)
    if backup is not None:
        note(f"what was there before: {printable(str(backup))}")
    if found.servers and not dry_run:
        is_running = _is_running(settings)
        note(f"to mount them now: {typed('reload')}" if is_running else f"they are mounted by {typed('up')}")


def _tell(found: Import, file: Path, config: Path, dry_run: bool) -> None:
    """What was taken over, and what a person has to know."""
    ours = printable(str(config))
    if not found.servers and not found.left_out:
        said = f"names no server that is not in {ours} already" if file.exists() else "does not exist"
        say(f"{printable(str(file))} {said}.")
        return
    if found.servers:
        say(heading(f"{'Would be added' if dry_run else 'Added'} to {ours}"))
        say("(values of env and headers, and what looks like a secret, are there and not shown here)")
        say()
    for one in found.servers:
        say(printable(one.shown, keep="\n"))
    goes = "would go to" if dry_run else "is in"
    for one in found.servers:
        for path in one.secrets:
            say(f"{one.id}: a value that may be a secret {goes} {printable(str(path))}, for you only")
        for remark in one.remarks:
            say(f"{one.id}: {printable(remark)}")
    for name, reason in found.left_out:
        say(f"{printable(name)} is left out: {printable(reason)}")
    if found.servers:
        for line in _UNTRUSTED:
            say(line)


def _found(known: McpClient, file: Path, home: Home) -> Import:
    from trunkline.config_file import server_problem, tables_of

    try:
        entries = known.entries(client_files.text_of(file))
    except NotJson as error:
        raise _unreadable(file, error) from None
    try:
        tables = tables_of(home, os.environ)
    except ConfigError as error:
        raise CommandFailed("config.invalid", f"{error}; nothing was changed") from None
    servers: list[dict[str, Any]] = tables.get("mcp", [])
    # An exchange is no server of the client's own.
    entries = [one for one in entries if one.name != ENTRY or not is_exchange(one.entry)]
    found = Importer(os.environ, home.keys_folder / "mcp-servers", home.path).servers(entries, servers)
    for one in list(found.servers):
        if reason := server_problem(home, {**tables, "mcp": [*servers, one.table]}, one.secrets.values()):
            found.leave_out(one, reason)
    return found


def _extended(before: str, found: list[Imported]) -> str:
    """The configuration with these tables at its end, and otherwise as it was."""
    texts = [one.text for one in found]
    after = "\n".join([before.rstrip() + "\n", *texts]) if before.strip() else "\n".join(texts)
    expected: dict[str, Any] = tomllib.loads(before)
    if found:
        expected["mcp"] = [*expected.get("mcp", []), *(one.table for one in found)]
    try:
        is_right = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        below = "\n".join(one.shown for one in found)
        raise CommandFailed("state.conflict", "the tables cannot be added to this file by a command", below=below)
    return after


def _put(home: Home, found: list[Imported], before: str, text: str) -> Path | None:
    """Write secrets and configuration; where the configuration was kept. Neither stays without the other."""
    home.create()
    made: list[Path] = []
    try:
        for one in found:
            for path, secret in one.secrets.items():
                if not path.exists():  # one that is there holds this secret (mcp_import)
                    made.append(path)
                    key_files.write_private(path, secret.encode())
        return client_files.write(home.config_file, text, before)
    except BaseException as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CommandFailed("state.conflict", f"{error.filename}: {error.strerror}; nothing was changed") from None
        raise


def _unreadable(file: Path, error: Exception) -> CommandFailed:
    return CommandFailed("config.invalid", f"{file}: {error}; nothing was changed")


def _show_difference(known: McpClient, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    """What changes of our own entry. The text around it is that of others, and stays as it is."""
    name = f"{known.key}.{ENTRY}"
    old, new = ([] if one is None else known.written(shown(one)).splitlines() for one in (before, after))
    for line in difflib.unified_diff(old, new, name, name, lineterm="", n=100):
        say(printable(line))
