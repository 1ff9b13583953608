"""``trunkline console``: an address at which a browser is signed in to the console, and the browser if there is one.

The address holds a one-time code. It is printed, and never handed to a program as an argument, which every user of the
machine could read: the browser is shown a file of ours that leads on to it.

Owns that file and when a browser is opened. Codes and sign-ins are ``edges.console``'s.

Invariant: the code is in no argument of a process.
"""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from pathlib import Path
from typing import Final

import click

from trunkline import key_files
from trunkline.cli.client import ExchangeClient, decode
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import note, say

# Beside `ready.json`; it is replaced by the next one, and its code is spent by then.
FILE: Final = "console.html"
PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>Trunkline</title>
<p>If nothing happens, <a href="{url}">go on</a>.</p>
</html>
"""


@click.command()
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@shared
def console(settings: CommandSettings, no_browser: bool) -> None:
    """Open the console in a browser, or print where it is.

    The address is good once, for 15 minutes. Whoever opens it is the operator: show it to nobody.
    """
    exchange = settings.connect()
    url, expires_at = new_address(exchange)
    is_opened = (
        not (no_browser or settings.as_json) and has_screen() and open_in_browser(settings.home.path / FILE, url)
    )
    if settings.shown_as_json({"url": url, "expires_at": expires_at, "opened": is_opened}):
        return
    say(url)
    note("opened in a browser" if is_opened else "open it in a browser on this machine; it works once, for 15 minutes")


def new_address(exchange: ExchangeClient) -> tuple[str, str]:
    """An address that signs a browser in, and until when."""
    made = decode(exchange.request("POST", "/console/code", b"{}"))
    return f"{exchange.ready['http']}{made['path']}", made["expires_at"]


def has_screen() -> bool:
    """Whether a browser could show something to whoever typed this."""
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_in_browser(file: Path, url: str) -> bool:
    """Show somebody an address that no other user of the machine may read; ``file`` leads on to it."""
    try:
        key_files.write_private(file, PAGE.format(url=html.escape(url)).encode())
        return webbrowser.open(file.as_uri())
    except (OSError, webbrowser.Error):
        return False
