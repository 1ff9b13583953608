"""``trunkline up``: run the exchange in the foreground, or with ``--detach`` in the background.

The only verb that imports the exchange; all others speak HTTP to one that runs, or read its files. What happens at the
start and at the end is in ``host.begin`` and ``host.up``. One in the background is the same program in a session of its
own, which prints to ``exchange.log`` in the home.

Invariant: ``up --detach`` succeeds only when the exchange that it started is ready.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from trunkline.cli.client import ExchangeClient, at, decode
from trunkline.cli.console import new_address
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, printable, say
from trunkline.errors import ExchangeUnreachable
from trunkline.home import Home

# A start takes a second; one that folds millions of entries after a crash some more.
READY_WITHIN_S: Final = 120.0
# Agents import and connect after it; one that takes longer is waited for by nobody.
AGENTS_WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 0.05
# A file that is larger when an exchange starts is put aside, once.
MAX_OUTPUT_BYTES: Final = 16_777_216


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Instead of trunkline.toml in the home."
)
@click.option("--demo", is_flag=True, help="With the example agents, besides those of the configuration.")
@click.option(
    "-d", "--detach", is_flag=True, help="In the background: return when it is ready. It prints to exchange.log."
)
@shared
def up(settings: CommandSettings, config: Path | None, demo: bool, detach: bool) -> None:
    """Run the exchange, in the foreground unless --detach is given.

    `trunkline down`, Ctrl-C or SIGTERM stops it: no new calls, those that run have 10 s to end, what is left is taken
    up at the next start. SIGHUP does what `trunkline reload` does.
    """
    if detach:
        options = [*(["--config", str(config.absolute())] if config is not None else []), *(["--demo"] if demo else [])]
        _start_in_background(settings, options)
        return
    from trunkline.host.begin import run

    raise SystemExit(run(settings.home, config, demo=demo))


def _start_in_background(settings: CommandSettings, options: list[str]) -> None:
    home = settings.home
    home.create()
    output = home.output_file
    if output.exists() and output.stat().st_size > MAX_OUTPUT_BYTES:
        output.replace(output.with_name(f"{output.name}.1"))
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        said_before = os.fstat(descriptor).st_size
        process = subprocess.Popen(
            # -P: a folder here that is called trunkline is not the program.
            [sys.executable, "-P", "-m", "trunkline", "up", "--home", str(home.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    ready = _wait_ready(home, process)
    with output.open("rb") as file:
        file.seek(said_before)
        said = printable(file.read().decode(errors="replace"), keep="\n").rstrip("\n")
    if ready is None:
        _not_ready(process, said, output)
    with contextlib.suppress(CommandFailed, ExchangeUnreachable):
        _wait_agents(settings.connect())
    if not settings.shown_as_json({**ready, "home": str(home.path), "output": str(output)}):
        say("\n".join(map(_as_text, said.split("\n"))))
        # Not among what it printed: that is kept.
        with contextlib.suppress(CommandFailed, ExchangeUnreachable):
            say(f"The console: {new_address(settings.connect())[0]}")


def _as_text(line: str) -> str:
    """A line that it printed, for a person: of one that is JSON (``[log] format``) its message."""
    try:
        told = decode(line.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        return line
    return printable(str(told.get("message", line)), keep="\n")


def _wait_ready(home: Home, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """What the process says of itself when it is ready; None if it ended instead, or takes too long."""
    deadline = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            ready: dict[str, Any] = decode(home.ready_file.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError):
            ready = {}
        if ready.get("pid") == process.pid:
            return ready
        time.sleep(LOOK_EVERY_S)
    return None


def _wait_agents(exchange: ExchangeClient) -> None:
    """Until the agents that it starts are there, or have taken their time: whoever calls one next expects it."""
    deadline = time.monotonic() + AGENTS_WITHIN_S
    while time.monotonic() < deadline:
        states = {one["state"] for one in exchange.get(at("agents"))["agents"]}
        if states.isdisjoint(("starting", "running")):
            return
        time.sleep(LOOK_EVERY_S)


def _not_ready(process: subprocess.Popen[bytes], said: str, output: Path) -> NoReturn:
    if process.returncode is None:
        text = f"process {process.pid} is not ready after {READY_WITHIN_S:g} s and goes on; see {output}"
        raise CommandFailed("exchange.not_ready", text, exit_code=1)
    code = process.returncode if process.returncode > 0 else 1
    text = said.rpartition("\n")[2] or f"it ended with {process.returncode}; see {output}"
    first, _, rest = said.partition("\n")
    raise CommandFailed("exchange.not_started", text, exit_code=code, line=first or text, below=rest)
