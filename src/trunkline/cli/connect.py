"""``trunkline connect`` and ``trunkline import``: a client's own file learns of us, and its servers become ours.

Owns when files of others are written: complete, with a copy of what was there before beside them. What is written is
decided by ``mcp_clients`` and ``mcp_import``. Neither verb needs a running exchange.

Invariant: a file that cannot be read, or would not say afterwards what it should, stays as it is.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import click

from trunkline import key_files
from trunkline.cli.json_text import NotJson
from trunkline.cli.mcp_clients import CLIENTS, ENTRY, McpClient
from trunkline.cli.mcp_import import Imported, imported
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, heading, note, printable, say, typed
from trunkline.home import Home

_CLIENT: Final = click.Choice(list(CLIENTS))


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
    before = _text(file)
    try:
        after = known.without_entry(before) if undo else known.with_entry(before, _command(settings.home, client))
    except NotJson as error:
        raise _unreadable(file, error) from None
    backup = None
    if after != before and not dry_run:
        backup = _written(file, after)
    shape = {
        "client": client,
        "file": str(file),
        "changed": after != before,
        "backup": None if backup is None else str(backup),
    }
    if settings.shown_as_json({**shape, "dry_run": dry_run}):
        return
    if after == before:
        say(f"{printable(str(file))} is as it should be: nothing to change.")
        return
    if dry_run:
        _show_difference(file, before, after)
        return
    done = f"{known.title} does not know this exchange any more" if undo else f"{known.title} knows this exchange now"
    say(f"{done}: {printable(str(file))}")
    if backup is not None:
        note(f"what was there before: {printable(str(backup))}")
    if undo:
        note(f"its token is still good; {typed('token list')} shows it, {typed('token revoke ID')} takes it back")
    else:
        note(f"restart {known.title}; it makes its calls as mcp:{client}. The exchange has to run: {typed('up')}")


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
    before = _text(home.config_file)
    found = _found(known, file, before, home)
    after = _extended(before, found)
    backup = None
    if found and not dry_run:
        home.create()
        for one in found:
            for path, secret in one.secrets.items():
                key_files.write_private(path, secret.encode())
        backup = _written(home.config_file, after)
    shape = {
        "client": client,
        "file": str(home.config_file),
        "servers": [
            {"id": one.id, "secrets": [str(path) for path in one.secrets], "remarks": one.remarks} for one in found
        ],
        "backup": None if backup is None else str(backup),
        "dry_run": dry_run,
    }
    if settings.shown_as_json(shape):
        return
    if not found:
        say(f"{printable(str(file))} names no server that is not in {printable(str(home.config_file))} already.")
        return
    say(heading(f"{'Would be added' if dry_run else 'Added'} to {printable(str(home.config_file))}"))
    say()
    for one in found:
        say(printable(one.text, keep="\n"))
    for one in found:
        for path in one.secrets:
            say(f"{one.id}: a secret is in {printable(str(path))}, for you only")
        for remark in one.remarks:
            say(f"{one.id}: {printable(remark)}")
    if backup is not None:
        note(f"what was there before: {printable(str(backup))}")
    if not dry_run:
        note(f"the servers are mounted when the exchange starts: {typed('up')}")


def _found(known: McpClient, file: Path, config: str, home: Home) -> list[Imported]:
    try:
        servers = known.servers(_text(file))
    except NotJson as error:
        raise _unreadable(file, error) from None
    try:
        tables = tomllib.loads(config).get("mcp", [])
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(home.config_file, error) from None
    taken = [ENTRY, *(str(table.get("id")) for table in tables if isinstance(table, dict))]
    return imported(servers, taken, home.keys_folder / "mcp-servers")


def _extended(before: str, found: list[Imported]) -> str:
    """The configuration with these tables at its end, and otherwise as it was."""
    texts = [one.text for one in found]
    after = "\n".join([before.rstrip() + "\n", *texts]) if before.strip() else "\n".join(texts)
    expected: dict[str, Any] = tomllib.loads(before)
    if found:
        expected["mcp"] = [*expected.get("mcp", []), *(one.table for one in found)]
    if tomllib.loads(after) != expected:
        raise CommandFailed("state.conflict", "the tables cannot be added to this file by a command", below=after)
    return after


# --- files ------------------------------------------------------------------------------------------------------------


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed("state.conflict", f"{file}: cannot be read ({type(error).__name__})") from None


def _written(file: Path, text: str) -> Path | None:
    """Write a file of somebody else's, whole; where what was there before is kept, if there was something."""
    real = file.resolve()
    backup = None
    try:
        if real.exists():
            backup = real.with_name(f"{real.name}.bak-{time.strftime('%Y%m%dT%H%M%S')}")
            number = 1
            while backup.exists():
                number += 1
                backup = real.with_name(f"{real.name}.bak-{time.strftime('%Y%m%dT%H%M%S')}-{number}")
            shutil.copy2(real, backup)
        real.parent.mkdir(parents=True, exist_ok=True)
        part = real.with_name(f".{real.name}.{os.getpid()}")
        mode = real.stat().st_mode & 0o777 if backup is not None else 0o600
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as writer:
            writer.write(text)
            writer.flush()
            os.fsync(writer.fileno())
        part.replace(real)
    except OSError as error:
        raise CommandFailed("state.conflict", f"{file}: {error.strerror}") from None
    return backup


def _unreadable(file: Path, error: Exception) -> CommandFailed:
    return CommandFailed("config.invalid", f"{file}: {error}; nothing was changed")


def _show_difference(file: Path, before: str, after: str) -> None:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), lineterm="")
    for line in lines:
        say(printable(line))
