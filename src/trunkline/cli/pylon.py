"""``trunkline pylon``: what a person needs so that pages in a browser can connect to this exchange.

Reads the home; no exchange needs to run. The certificate is written anew without its private key, for programs that
want a file.

Owns that file and the words about it. Does not own the certificate (``edges.tls``).
"""

from __future__ import annotations

import hashlib
import json
import shlex
import ssl
from typing import Final

import click

from trunkline import key_files
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, heading, printable, say
from trunkline.home import Home

# Where the exchange keeps its certificate together with the key, and what is handed out.
OWN_FILE: Final = "tls.pem"
SHOWN_FILE: Final = "trunkline.crt"
START: Final = b"-----BEGIN CERTIFICATE-----"


@click.group()
@shared
def pylon(_: CommandSettings) -> None:
    """The bridge for pages in a browser."""


@pylon.command("trust")
@shared
def trust(settings: CommandSettings) -> None:
    """How to have a browser or a program trust this exchange's own certificate.

    It is for 127.0.0.1, ::1 and localhost, and whoever trusts it trusts this exchange only: it vouches for nobody else.
    """
    home = settings.home
    try:
        own = key_files.read_private(home.keys_folder / OWN_FILE)
    except FileNotFoundError:
        text = f"there is no certificate in {home.keys_folder} yet; `trunkline up` makes it"
        raise CommandFailed("not_found", text) from None
    shown = START + own.partition(START)[2]
    file = home.path / SHOWN_FILE
    file.write_bytes(shown)
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown.decode())).hexdigest().upper()
    fingerprint = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
    page = _page(home)
    if settings.shown_as_json({"certificate": str(file), "sha256": fingerprint, "page": page}):
        return
    quoted = shlex.quote(str(file))
    say(f"The certificate is in {printable(str(file))}")
    say(f"SHA-256 {fingerprint}")
    say()
    for title, how in (
        ("One browser", f"open {page or 'the address of Pylon with https, while the exchange runs'} and accept it"),
        ("Chrome on Linux", f'certutil -d sql:"$HOME"/.pki/nssdb -A -t P,, -n trunkline -i {quoted}'),
        ("macOS", f"security add-trusted-cert -r trustRoot -p ssl {quoted}"),
        ("Windows", f"certutil -user -addstore Root {quoted}"),
        ("Debian, Ubuntu", f"sudo cp {quoted} /usr/local/share/ca-certificates/ && sudo update-ca-certificates"),
        ("Node.js", f"NODE_EXTRA_CA_CERTS={quoted}"),
        ("Python", f"SSL_CERT_FILE={quoted}"),
    ):
        say(f"{heading(f'{title:<16}')} {how}")


def _page(home: Home) -> str:
    """Where a browser can be shown the certificate; empty if nothing runs, or without TLS."""
    try:
        found = json.loads(home.ready_file.read_text()).get("pylon") or ""
    except (OSError, ValueError, AttributeError):
        return ""
    return f"https://{found.removeprefix('wss://')}/" if found.startswith("wss://") else ""
