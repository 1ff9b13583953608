"""Whether an exchange can run here, and whether the one that runs is well: what ``trunkline doctor`` shows.

Owns what is looked at, and what is said of it: the machine, the home and its disk, the configuration, the record with
its keys, the clock, sandboxes, ports, brokers, agents. Asks no exchange: what a running one says of itself is handed
in. Changes nothing.

Invariant: a *problem* keeps the exchange, or something that is configured, from working; a *warning* does not.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import platform
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

import trunkline
from trunkline.addresses import host_and_port
from trunkline.config import LISTENERS, AgentProgram, Config
from trunkline.config_file import load, overriding
from trunkline.edges.known import EDGES, UNBUILT
from trunkline.errors import ConfigError, LedgerCorrupt, LedgerError, SecretMissing, WorkspaceError
from trunkline.home import Home
from trunkline.host import isolation
from trunkline.host.housekeeping import MIN_FREE_BYTES, storage_figures
from trunkline.host.launch import LaunchError, find_program
from trunkline.host.supervised import environment
from trunkline.ledger.heads import public_key_of
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.reader import Reader
from trunkline.ledger.store import holder_of
from trunkline.ledger.verify import verify
from trunkline.rule_remarks import OF_THE_FILE, never_reached
from trunkline.secret_references import Found, may_wait
from trunkline.sizes import shown_size
from trunkline.workspace import sandbox as shell_sandbox

State = Literal["ok", "off", "warning", "problem"]

# Ten times what makes the exchange refuse calls: time to act.
LITTLE_FREE_BYTES: Final = 10 * MIN_FREE_BYTES
BROKER_WITHIN_S: Final = 2.0
NATS_PORT: Final = 4222
# What adjtimex(2) returns where nothing keeps the clock right; its record has 208 bytes.
CLOCK_UNSYNCHRONISED: Final = 5
TIMEX_BYTES: Final = 512
AFTER_DAMAGE: Final = "docs/operations.md says what to do: After ledger.corrupt"


class Finding(Struct, frozen=True):
    """One thing that was looked at, how it is, and what to do if it is not well."""

    name: str
    state: State
    text: str
    advice: str = ""


class RunningExchange(Struct, frozen=True):
    """What the running exchange of this home says: ``ready.json``, ``GET /v1/status``, ``GET /v1/agents``."""

    ready: Mapping[str, Any]
    figures: Mapping[str, Any]
    agents: Sequence[Mapping[str, Any]]


def findings(
    home: Home, config_path: Path | None, environ: Mapping[str, str], exchange: RunningExchange | None, why_not: str
) -> Iterator[Finding]:
    """Everything, in the order in which a start needs it. ``why_not`` says why there is no ``exchange``."""
    yield _machine()
    yield _home(home)
    yield _disk(home)
    yield _clock(home)
    config: Config | None = None
    try:
        config = load(home, config_path, environ)
    except ConfigError as error:
        yield Finding("configuration", "problem", str(error), "docs/configuration.md has every key")
    else:
        is_there = (config_path or home.config_file).exists()
        parts = [str(config_path or home.config_file)] if is_there else []
        if variables := overriding(environ):
            parts.append(f"{', '.join(variables)} of the environment")
        yield Finding("configuration", "ok", ", and ".join(parts) or "none: all defaults")
    yield from _record(home)
    yield _exchange(home, exchange, why_not)
    yield from _sandboxes()
    if config is not None:
        if exchange is None:
            yield from _ports(config)
            yield from _missing(config)
            yield from _agents(config)
            yield from _mounts(config)
            yield from map(_warning, never_reached(config.policy().rules))
        yield from _brokers(config, exchange)
    if exchange is not None:
        yield from _told(home, exchange)


# --- the machine ------------------------------------------------------------------------------------------------------


def _machine() -> Finding:
    system = f"{platform.system()} {platform.release()}"
    here = f"trunkline {trunkline.__version__}, Python {platform.python_version()}, {system}"
    if sys.platform != "linux":
        return Finding("machine", "problem", here, "Trunkline runs on Linux; a virtual machine or a container will do")
    return Finding("machine", "ok", here)


def _home(home: Home) -> Finding:
    try:
        home.check()
    except FileNotFoundError:
        return Finding("home", "off", f"{home.path} is not there yet: the first start makes it")
    except ConfigError as error:
        return Finding("home", "problem", str(error))
    except OSError as error:
        return Finding("home", "problem", f"{home.path}: {error.strerror}")
    token = home.operator_token_file
    try:
        mode = token.stat().st_mode
    except FileNotFoundError:
        return Finding("home", "ok", str(home.path))
    if stat.S_IMODE(mode) & 0o077:
        return Finding("home", "problem", f"others can read {token}", f"chmod 600 {token}, then make another one")
    return Finding("home", "ok", str(home.path))


def _disk(home: Home) -> Finding:
    place = next(folder for folder in (home.path, *home.path.parents) if folder.exists())
    usage = os.statvfs(place)
    free, total = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    text = f"{shown_size(free)} of {shown_size(total)} free"
    if usage.f_favail == 0 and usage.f_files:
        return Finding("disk", "problem", f"{text}, but no file can be made: no inode is left")
    if free < MIN_FREE_BYTES:
        return Finding("disk", "problem", f"{text}: below {shown_size(MIN_FREE_BYTES)} new calls are refused")
    if free < LITTLE_FREE_BYTES:
        return Finding("disk", "warning", f"{text}: below {shown_size(MIN_FREE_BYTES)} new calls are refused")
    return Finding("disk", "ok", text)


def _clock(home: Home) -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now))
    newest = _newest_entry(home)
    if newest is not None and newest > now + 1:
        text = f"{shown} is {newest - now:,.0f} s before the newest entry of the record"
        return Finding("clock", "problem", text, "set the clock: new entries would look older than those")
    if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)) == CLOCK_UNSYNCHRONISED:
        text = f"{shown}; nothing keeps it right (no NTP)"
        return Finding("clock", "warning", text, "signed messages more than minutes off are refused")
    return Finding("clock", "ok", shown)


def _newest_entry(home: Home) -> float | None:
    """When the newest entry was made, in seconds; None if there is none that can be read."""
    try:
        reader = Reader(home.ledger_file)
    except LedgerError:
        return None
    try:
        number = reader.head()[0]
        entry = reader.entry(number) if number else None
    except LedgerError:
        return None
    finally:
        reader.close()
    return None if entry is None else entry.at / 1000


# --- the record -------------------------------------------------------------------------------------------------------


def _record(home: Home) -> Iterator[Finding]:
    if not home.ledger_file.exists() and not home.ledger_file.with_name("ledger.head").exists():
        yield Finding("record", "off", "none yet")
        return
    try:
        report = verify(home.ledger_file, public_key=public_key_of(home.keys_folder))
    except LedgerCorrupt as damage:
        yield Finding("record", "problem", str(damage), AFTER_DAMAGE)
    except LedgerError as error:
        yield Finding("record", "problem", str(error))
    else:
        signed = f"signed up to {report.signed:,}" if report.signed else "not signed yet"
        length = shown_size(storage_figures(home)["ledger_bytes"])
        yield Finding("record", "ok", f"whole: {report.entries:,} entries, {signed}, {length}")
    try:
        LedgerKeys.load(home.keys_folder, create=False)
    except LedgerError as error:
        yield Finding("keys", "problem", str(error), f"a copy of {home.keys_folder} belongs to each backup")
    else:
        yield Finding("keys", "ok", str(home.keys_folder))


# --- the exchange -----------------------------------------------------------------------------------------------------


def _exchange(home: Home, exchange: RunningExchange | None, why_not: str) -> Finding:
    if exchange is not None:
        return Finding("exchange", "ok", f"running, pid {exchange.ready.get('pid')}")
    holder = holder_of(home.ledger_file.with_name("ledger.lock"))
    if holder is not None:
        text = f"process {holder} holds the record and does not answer: it starts, stops or hangs ({why_not})"
        return Finding("exchange", "warning", text, "look again in some seconds; `trunkline down`")
    return Finding("exchange", "off", "not running")


def _told(home: Home, exchange: RunningExchange) -> Iterator[Finding]:
    """What the running exchange itself says is off, has no effect, or went wrong."""
    for name, edge in (exchange.figures.get("edges") or {}).items():
        if edge.get("state") == "off":
            yield Finding(name, "off", str(edge.get("note") or "it does not run"))
            continue
        if edge.get("note"):
            yield Finding(name, "warning", str(edge["note"]))
        if edge.get("not_installed"):
            yield Finding(name, "off", str(edge["not_installed"]))
    for warning in exchange.figures.get("warnings") or ():
        yield _warning(str(warning))
    if defects := exchange.figures.get("defects"):
        yield Finding("defects", "warning", f"{defects:,} met since the start", "`trunkline ledger show --last 100`")
    away = [one for one in exchange.agents if one.get("state") in {"crashed", "backoff", "signed-out"}]
    for one in away:
        agent_id, why = one["agent_id"], one.get("note") or one["state"]
        # What is reached by an address prints nothing here.
        has_log = (home.logs_folder / str(agent_id)).is_dir()
        yield Finding("agent", "problem", f"{agent_id}: {why}", f"`trunkline logs {agent_id}`" if has_log else "")
    if not away:
        yield Finding("agents", "ok", f"{len(exchange.agents)}, none of them crashed")


def _warning(text: str) -> Finding:
    """A warning of the exchange, under the name of what it is about."""
    name = "policy" if OF_THE_FILE.match(text) else "configuration" if text.startswith("[") else "exchange"
    return Finding(name, "warning", text)


# --- what a start would meet ------------------------------------------------------------------------------------------


def _ports(config: Config) -> Iterator[Finding]:
    for (section, key), may_be_off in LISTENERS.items():
        address: str = getattr(getattr(config, section), key)
        if section in UNBUILT or not address:
            continue
        host, port = host_and_port(address)
        problem = _why_not_bound(host, port)
        name = f"[{section}] {key}"
        if not problem:
            yield Finding("port", "ok", f"{address} is free for {name}")
        else:
            advice = f'another address in {name}, such as "{host}:0" for any port'
            # A default that is taken turns its edge off; without the operator's, which may not be off, nothing starts.
            is_needed = not may_be_off or (section, key) in config.given
            state: State = "problem" if is_needed else "off"
            yield Finding("port", state, f"{address} cannot be used for {name}: {problem}", advice)


def _why_not_bound(host: str, port: int) -> str:
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _missing(config: Config) -> Iterator[Finding]:
    """Parts that are not installed, and sections that have no effect in this release."""
    for edge in EDGES:
        if edge.needs is not None and importlib.util.find_spec(edge.needs[0]) is None:
            module, extra = edge.needs
            yield Finding(edge.name, "off", f"{module} is missing", f"pip install 'trunkline[{extra}]'")
    for section in UNBUILT:
        if section in config.given_sections:
            yield _warning(f"[{section}] has no effect: this release does not have it")


def _agents(config: Config) -> Iterator[Finding]:
    for agent in config.agents:
        problem = _why_not_launched(agent)
        if problem:
            yield Finding("agent", "problem", f"{agent.id}: {problem}")
        else:
            yield Finding("agent", "ok", f"{agent.id}: {agent.command[0]} is there")


def _mounts(config: Config) -> Iterator[Finding]:
    for server in config.mcp_servers:
        problem = _why_no_secret(server.env) or _why_no_secret(server.headers)
        if server.command is not None and not problem:
            problem = _why_no_program(server.command, server.cwd, server.env)
        place = server.url or (server.command or ("",))[0]
        if problem:
            yield Finding("agent", "problem", f"{server.agent_id}: {problem}")
        else:
            yield Finding("agent", "ok", f"{server.agent_id}: {place} is {'an address' if server.url else 'there'}")


def _why_no_secret(texts: Mapping[str, str]) -> str:
    # A keyring may ask its owner to unlock it, and is not asked for this.
    try:
        Found({name: text for name, text in texts.items() if not may_wait({name: text})}, os.environ)
    except SecretMissing as missing:
        return f"a secret is missing: {missing}"
    return ""


def _why_no_program(command: Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    try:
        find_program(command, cwd, environment(env, {}, os.environ)["PATH"])
    except LaunchError as problem:
        return str(problem)
    return ""


def _why_not_launched(agent: AgentProgram) -> str:
    if agent.manifest is not None and not Path(agent.manifest).is_file():
        return f"its manifest {agent.manifest} does not exist"
    return _why_no_secret(agent.env) or _why_no_program(agent.command, agent.cwd, agent.env)


def _sandboxes() -> Iterator[Finding]:
    """Of agents, and of commands that run in workspaces, each seen by trying."""
    agents = isolation.probe()
    if agents.kind is None:
        yield Finding("sandbox", "warning", f"agents run without: {agents.why_not}")
    else:
        yield Finding("sandbox", "ok", f"agents: {agents.kind}")
    try:
        shell = asyncio.run(shell_sandbox.probe())
    except WorkspaceError as error:
        yield Finding("sandbox", "warning", f"commands of workspaces: {error.message}")
    else:
        yield Finding("sandbox", "ok", f"commands of workspaces: {shell.kind}")


def _brokers(config: Config, exchange: RunningExchange | None) -> Iterator[Finding]:
    """Of each edge that has one configured."""
    edges = {} if exchange is None else exchange.figures.get("edges") or {}
    for edge in EDGES:
        url = str(getattr(getattr(config, edge.section, None), "nats", ""))
        if url:
            yield _broker(url, edges.get(edge.name, {}).get("broker"))


def _broker(url: str, told: str | None) -> Finding:
    """``told`` is what the running exchange says of it."""
    # Without the password that it may hold.
    place = url.rpartition("@")[2]
    if importlib.util.find_spec("nats") is None:
        return Finding("broker", "problem", "nats-py is missing", "pip install 'trunkline[nats]'")
    if told is not None:
        return Finding("broker", "ok" if told == "connected" else "problem", f"{told}: {place}")
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or NATS_PORT), BROKER_WITHIN_S).close()
    except OSError as error:
        text = f"nobody answers at {place}: {error.strerror or error}"
        return Finding("broker", "problem", text, "messages wait until it is there")
    return Finding("broker", "ok", f"somebody answers at {place}")
