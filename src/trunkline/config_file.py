"""``trunkline.toml`` and the environment, read into one ``Config``.

Owns where a file's paths lead, and which of its keys were set. Does not own settings (``config``) or what may be wrong
with them (``config_problems``).

The environment overrides the file: ``TRUNKLINE_<SECTION>_<KEY>`` sets one key of a section that is not repeated, as in
``TRUNKLINE_HTTP_LISTEN=127.0.0.1:0``. Text is taken as it is, anything else is written as in TOML.

Invariant: a ``Config`` from here can be used: paths are absolute, ids and addresses are well formed. What cannot be
used is a ``ConfigError`` that names the file and line (or the variable), the key and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from trunkline import secret_references
from trunkline.config import AgentProgram, Config, Jobs, LedgerTable, McpServer, Nostr, Ossa, Sections
from trunkline.config_problems import problems, write_problems
from trunkline.home import Home
from trunkline.tomlfile import TomlFile, placed_path


def load(home: Home, config_path: Path | None, environ: Mapping[str, str]) -> Config:
    """The configuration in force: ``config_path`` (else the home's file, if there is one) under the environment.

    Paths in it are made absolute: ``socket`` against the home, an agent's ``cwd`` and ``manifest``, the anchor's
    ``file``, ``client_ca`` and the files of references to secrets against the folder of the file.
    """
    path = (home.config_file if config_path is None else config_path).absolute()
    file = TomlFile(path, required=config_path is not None)
    file.take_environment(environ, Sections, "TRUNKLINE")
    config = file.convert(Sections)
    socket = str(home.path / config.opensentience.socket)
    for key, problem in (*problems(config, socket), *write_problems(config, path)):
        file.fail(key, problem)
    placed = structs.replace(
        config,
        opensentience=structs.replace(config.opensentience, socket=socket),
        agents=tuple(_placed(agent, path.parent) for agent in config.agents),
        mcp_servers=tuple(_placed_server(server, path.parent) for server in config.mcp_servers),
        ledger=_placed_ledger(config.ledger, path.parent),
        ossa=_placed_ossa(config.ossa, path.parent),
        jobs=_placed_jobs(config.jobs, path.parent),
        nostr=_placed_nostr(config.nostr, path.parent),
    )
    values = {name: getattr(placed, name) for name in Sections.__struct_fields__}
    return Config(**values, given=_given(file.tables))


def tables_of(home: Home, environ: Mapping[str, str]) -> dict[str, Any]:
    """The tables of the home's file under the environment, after it was found that they can be used."""
    load(home, None, environ)
    file = TomlFile(home.config_file.absolute(), required=False)
    file.take_environment(environ, Sections, "TRUNKLINE")
    return file.tables


def server_problem(home: Home, tables: Mapping[str, Any], secrets: Iterable[str]) -> str:
    """Why these tables could not be used, where without the last ``[[mcp]]`` they could; empty if they can."""
    try:
        # A character that is half of one cannot be written.
        msgspec.json.encode([tables, *secrets])
        config = msgspec.convert(tables, Sections)
    except UnicodeEncodeError:
        return "it has a character that is half of one"
    except msgspec.ValidationError as error:
        return str(error).partition(" - at ")[0]
    socket = str(home.path / config.opensentience.socket)
    for key, problem in (*problems(config, socket), *write_problems(config, home.config_file.absolute())):
        return f"{'.'.join(str(part) for part in key[2:])}: {problem}".removeprefix(": ")
    return ""


def overriding(environ: Mapping[str, str]) -> list[str]:
    """The variables of the environment that set a key of some section."""
    starts = tuple(f"TRUNKLINE_{name}_".upper() for name in Sections.__struct_fields__)
    return sorted(variable for variable in environ if variable.startswith(starts))


def _given(tables: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    """The keys that are set; of a section that is repeated only that it is there."""
    return frozenset(
        (section, key)
        for section, table in tables.items()
        for key in (table if isinstance(table, dict) else ("",) if table else ())
    )


def _placed_ledger(ledger: LedgerTable, folder: Path) -> LedgerTable:
    if ledger.anchor is None or ledger.anchor.file is None:
        return ledger
    return structs.replace(ledger, anchor=structs.replace(ledger.anchor, file=str(folder / ledger.anchor.file)))


def _placed_ossa(ossa: Ossa, folder: Path) -> Ossa:
    return structs.replace(ossa, client_ca=str(folder / ossa.client_ca)) if ossa.client_ca else ossa


def _placed_jobs(jobs: Jobs, folder: Path) -> Jobs:
    return structs.replace(jobs, key=secret_references.placed_one(jobs.key, folder))


def _placed_nostr(nostr: Nostr, folder: Path) -> Nostr:
    connection = secret_references.placed_one(nostr.wallet.connection, folder)
    return structs.replace(nostr, wallet=structs.replace(nostr.wallet, connection=connection))


def _placed(agent: AgentProgram, folder: Path) -> AgentProgram:
    return structs.replace(
        agent,
        cwd=str(folder / agent.cwd),
        env=secret_references.placed(agent.env, folder),
        manifest=None if agent.manifest is None else str(folder / agent.manifest),
        read=tuple(placed_path(path, folder) for path in agent.read),
        write=tuple(placed_path(path, folder) for path in agent.write),
    )


def _placed_server(server: McpServer, folder: Path) -> McpServer:
    secret = secret_references.placed({"": server.oauth.client_secret}, folder)[""]
    return structs.replace(
        server,
        oauth=structs.replace(server.oauth, client_secret=secret),
        cwd=str(folder / server.cwd),
        env=secret_references.placed(server.env, folder),
        headers=secret_references.placed(server.headers, folder),
        read=tuple(placed_path(path, folder) for path in server.read),
        write=tuple(placed_path(path, folder) for path in server.write),
    )
