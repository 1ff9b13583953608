"""``trunkline mcp``: an MCP server on stdin and stdout, for clients that start one; and signing in at mounted servers.

It starts no exchange: it passes messages on to the one that runs (``mcp_bridge``). Owns whose calls these are, and
where his token is kept. Tokens of mounted servers are the exchange's: a person is led to the address, and what comes of
it is looked at.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from trunkline import key_files
from trunkline.cli.client import ExchangeClient, at, decode
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, note, printable, say, typed
from trunkline.home import Home
from trunkline.model import MOUNT_PREFIX

DEFAULT_NAME: Final = "local"
# How often it is looked whether the person is done.
LOOK_S: Final = 0.5


@click.group(invoke_without_command=True)
@click.option(
    "--as", "name", metavar="NAME", default=DEFAULT_NAME, show_default=True, help="Calls are made as mcp:NAME."
)
@shared
@click.pass_context
def mcp(context: click.Context, settings: CommandSettings, name: str) -> None:
    """Serve MCP on stdin and stdout, for a client that starts a server; the exchange has to run already.

    Messages go to the exchange of this home. The token of NAME is kept in keys/mcp of the home; it is made
    when NAME is used for the first time.

    \b
    trunkline connect claude-desktop     tells a client to start this
    trunkline mcp login issues           signs you in at the mounted server `issues`
    """
    if context.invoked_subcommand is not None:
        return
    from trunkline.cli.mcp_bridge import Bridge

    exchange = settings.connect()
    Bridge(str(exchange.ready["http"]), token_of(exchange, name), lambda: str(settings.connect().ready["http"])).run()


@mcp.command()
@click.argument("server")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--no-wait", is_flag=True, help="Print the address and end.")
@shared
def login(settings: CommandSettings, server: str, no_browser: bool, no_wait: bool) -> None:
    """Sign in at a mounted SERVER that wants OAuth: prints the address to open, and waits until you are done.

    SERVER is the id of its [[mcp]]. The exchange keeps the tokens, encrypted, and renews them; `logout` forgets them.
    """
    from trunkline.cli.console import has_screen, open_in_browser

    exchange = settings.connect()
    place = _place(server)
    made: dict[str, Any] = exchange.post(place)
    if settings.as_json and no_wait:
        settings.shown_as_json(made)
        return
    if not settings.as_json:
        note(f"sign in at {printable(made['issuer'])}:")
        say(printable(made["url"]))
        is_shown = not no_browser and not no_wait and has_screen()
        if is_shown and open_in_browser(settings.home.path / "sign-in.html", made["url"]):
            note("opened in a browser")
    if no_wait:
        return
    ended = _awaited(exchange, place, float(made["expires_s"]))
    if ended != "done":
        raise CommandFailed("state.conflict", f"not signed in: {ended or 'somebody else began anew'}")
    if not settings.shown_as_json({**made, "state": ended}):
        say(f"signed in; `{typed('agents')}` shows how {printable(_agent(server))} is")


def _awaited(exchange: ExchangeClient, place: str, seconds: float) -> str:
    """What came of it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = str(exchange.get(place)["state"])
        if state != "waiting":
            return state
        time.sleep(LOOK_S)
    return "it took too long"


@mcp.command()
@click.argument("server")
@shared
def logout(settings: CommandSettings, server: str) -> None:
    """Forget the tokens of a mounted SERVER. Whoever gave them is not told: there you end them yourself."""
    answer = decode(settings.connect().request("DELETE", _place(server)))
    if not settings.shown_as_json(answer):
        say(f"signed out of {printable(_agent(server))}")


def _agent(server: str) -> str:
    return server if server.startswith(MOUNT_PREFIX) else f"{MOUNT_PREFIX}{server}"


def _place(server: str) -> str:
    return at("agents", _agent(server), "sign-in")


def token_file(home: Home, name: str) -> Path:
    """Where the token of this client is kept."""
    return home.keys_folder / "mcp" / f"{name}.token"


def token_of(exchange: ExchangeClient, name: str) -> str:
    """The token of this client. One that was taken back stays where it is: it is not replaced by itself."""

    def make() -> bytes:
        made = exchange.post(at("tokens"), {"edge": "mcp", "agent": name})
        return str(made["token"]).encode()

    # Asked first: what is no name of a client must not become the name of a file.
    if not name or "/" in name or name.startswith("."):
        raise click.BadParameter("expected 1 to 128 of the characters A-Z a-z 0-9 . _ -", param_hint="--as")
    return key_files.kept(token_file(exchange.home, name), make).decode().strip()
