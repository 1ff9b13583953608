"""``trunkline mcp``: an MCP server on stdin and stdout, for clients that start one.

It starts no exchange: it passes messages on to the one that runs (``mcp_bridge``). Owns whose calls these are, and
where his token is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from trunkline import key_files
from trunkline.cli.client import ExchangeClient, at
from trunkline.cli.options import CommandSettings, shared
from trunkline.home import Home

DEFAULT_NAME: Final = "local"


@click.command()
@click.option(
    "--as", "name", metavar="NAME", default=DEFAULT_NAME, show_default=True, help="Calls are made as mcp:NAME."
)
@shared
def mcp(settings: CommandSettings, name: str) -> None:
    """Serve MCP on stdin and stdout, for a client that starts a server; the exchange has to run already.

    Messages go to the exchange of this home. The token of NAME is kept in keys/mcp of the home; it is made
    when NAME is used for the first time.

    \b
    trunkline connect claude-desktop     tells a client to start this
    """
    from trunkline.cli.mcp_bridge import Bridge

    exchange = settings.connect()
    Bridge(str(exchange.ready["http"]), token_of(exchange, name), lambda: str(settings.connect().ready["http"])).run()


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
