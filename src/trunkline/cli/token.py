"""``trunkline token``: make, list and revoke credentials for agents and programs.

The exchange makes a secret, and it is shown this once. ``list`` also works while no exchange runs, from the ledger.

Owns what is shown of a credential. Does not own which there can be (``edges.edge.TokenKind``).
"""

from __future__ import annotations

from typing import Any, Final

import click

from trunkline.cli.client import ExchangeClient, at, decode, encode
from trunkline.cli.completion import among
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import clock, note, printable, say, seconds_of, table, typed
from trunkline.errors import ExchangeUnreachable

# Those that have credentials; a shell completes them. Whether there is such an edge is the exchange's to say.
EDGES: Final = ("http", "mcp", "opensentience", "chiffon", "ossa")


@click.group()
@shared
def token(_: CommandSettings) -> None:
    """Credentials for agents and programs."""


@token.command("new", short_help="Make one.")
@click.argument("edge", shell_complete=among(EDGES))
@click.option("--agent", required=True, metavar="ID", help="Who will use it; calls are made in this name.")
@click.option(
    "--type", "kind", metavar="T", help="On chiffon: orchestrator, infra, desktop, code or research; on ossa: any."
)
@click.option(
    "--permission",
    "permissions",
    metavar="P",
    multiple=True,
    help="What it may do besides calls: approve, metrics, or what tools ask for; may be repeated.",
)
@click.option("--url", metavar="URL", help="On ossa: where the agent takes messages (https).")
@click.option("--pin", metavar="PIN", help="The public key of that server: base64 of its SHA-256.")
@shared
def new(
    settings: CommandSettings,
    edge: str,
    agent: str,
    kind: str | None,
    permissions: tuple[str, ...],
    url: str | None,
    pin: str | None,
) -> None:
    """Make a credential on an EDGE: http, mcp, opensentience, chiffon or ossa. Its secret is shown this once.

    \b
    trunkline token new http --agent dashboard --permission approve
    trunkline token new mcp --agent my-editor
    trunkline token new opensentience --agent com.example.weather
    trunkline token new chiffon --agent infra-1 --type infra
    trunkline token new ossa --agent worker-7 --type worker --url https://worker.example/ossa
    """
    said = {"edge": edge, "agent": agent, "type": kind, "url": url, "pin": pin, "permissions": permissions or None}
    body: dict[str, object] = {name: value for name, value in said.items() if value is not None}
    made = settings.connect().post(at("tokens"), body)
    if not settings.shown_as_json(made):
        # Keys are of use with the name that they are for: what is printed is an identity file as it is.
        say(printable(made["token"] if "token" in made else encode(made).decode()))
        take_back = typed(f"token revoke {made['id']}")
        note(f"{made['id']}: shown this once; {take_back} takes it back")


@token.command("list", short_help="Those that were made.")
@shared
def list_tokens(settings: CommandSettings) -> None:
    """The credentials that were made; also while no exchange is running."""
    try:
        found: list[dict[str, Any]] = settings.connect().get(at("tokens"))["tokens"]
    except ExchangeUnreachable:
        found = _on_record(settings)
    if settings.shown_as_json({"tokens": found}):
        return
    if not found:
        say(f"No tokens. `{typed('token new http --agent NAME')}` makes one.")
        return
    rows = [
        [
            one["id"],
            one["edge"] + (f" ({one['type']})" if one.get("type") else ""),
            one["agent"],
            clock(seconds_of(one["issued_at"])),
            "revoked" if one.get("revoked") else "valid",
            ", ".join(one.get("permissions", ())),
        ]
        for one in found
    ]
    headers = ["ID", "EDGE", "AGENT", "MADE", "STATE", "PERMISSIONS"]
    if any("public" in one for one in found):
        headers.append("KEY")
        for row, one in zip(rows, found, strict=True):
            row.append(one.get("public", {}).get("kid", ""))
    table(headers, rows, keep=(0, 2))


def _on_record(settings: CommandSettings) -> list[dict[str, Any]]:
    """The tokens as the ledger has them."""
    from trunkline.cli.ledger import reading
    from trunkline.entries import TokenIssued, TokenRevoked
    from trunkline.model import stamp

    found: dict[str, dict[str, Any]] = {}
    with reading(settings) as reader:
        for entry in reader.recovery():
            if isinstance(entry, TokenIssued):
                found[entry.token_id] = {
                    "id": entry.token_id,
                    "edge": entry.edge,
                    "agent": entry.agent,
                    "issued_at": stamp(entry.at),
                    "permissions": entry.permissions,
                    "type": entry.type,
                    "revoked": False,
                    **({} if entry.public is None else {"public": decode(bytes(entry.public))}),
                }
            elif isinstance(entry, TokenRevoked) and entry.token_id in found:
                found[entry.token_id]["revoked"] = True
    return list(found.values())


@token.command("revoke", short_help="Take one back.")
@click.argument("token_id", metavar="ID")
@shared
def revoke(settings: CommandSettings, token_id: str) -> None:
    """Take the credential ID back; who came in with it is sent away."""
    exchange: ExchangeClient = settings.connect()
    answer = decode(exchange.request("DELETE", at("tokens", token_id)))
    if not settings.shown_as_json(answer):
        say(f"revoked {printable(token_id)}")
