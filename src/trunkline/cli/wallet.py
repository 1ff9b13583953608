"""``trunkline wallet``: accounts of the embedded wallet, and ecash as tokens for others and from them.

The secret of a new account is made here, goes to no exchange and is shown this once: the exchange gets its public key.
A token goes to the exchange and comes from it sealed with the wallet's key of the home. ``balance`` and ``history`` are
read from the record and need no running exchange.

Owns how accounts and tokens are shown, and the making of a secret. Does not own the fold (``money.wallet``).
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Any, Final

import click

from trunkline import key_files
from trunkline.cli.client import ExchangeClient, at, end_with
from trunkline.cli.ledger import reading
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.output_files import open_private, with_output
from trunkline.cli.terminal import CommandFailed, clock, file_failure, note, printable, say, seconds_of, table
from trunkline.cli.tools import all_tools
from trunkline.money.cashu import sealing

AGENT: Final = "nostr.wallet"
# As ``money.cashu.tokens`` has it; what is longer is refused there.
MAX_TOKEN_CHARS: Final = 262_144


@click.group()
@shared
def wallet(_: CommandSettings) -> None:
    """Accounts of the embedded wallet (regtest money), for buyers of priced jobs.

    \b
    trunkline wallet new alice
    trunkline wallet fund alice 100000
    trunkline wallet fund exchange 21000 --mint https://mint.example
    trunkline wallet send 5000 --output token.txt
    trunkline wallet receive - < token.txt
    trunkline wallet balance
    trunkline wallet history alice
    """


@wallet.command("new", short_help="Make an account, and print its connection.")
@click.argument("name")
@shared
def new(settings: CommandSettings, name: str) -> None:
    """Make an account and print how a client reaches it (Nostr Wallet Connect). The secret in it is shown this once."""
    from coincurve import PrivateKey

    exchange = _reached(settings)
    secret = secrets.token_bytes(32)
    client = PrivateKey(secret).public_key.format()[1:].hex()
    made = _called(exchange, "new", {"name": name, "client": client})
    uri = _connection(made["wallet"], made["relay"], secret.hex())
    if settings.shown_as_json({"name": name, "connection": uri}):
        return
    say(uri)
    note("shown this once: whoever has it can spend what is in the account")


def _connection(public: str, relay: str, secret: str) -> str:
    from urllib.parse import quote

    return f"nostr+walletconnect://{public}?relay={quote(relay, safe='')}&secret={secret}"


@wallet.command("fund", short_help="Make money in an account.")
@click.argument("name")
@click.argument("msats", type=WholeNumber(min=1))
@click.option("--mint", metavar="URL", help="Ecash of this listed mint instead: prints an invoice to pay.")
@shared
def fund(settings: CommandSettings, name: str, msats: int, mint: str | None) -> None:
    """Make MSATS of regtest money in the account NAME; `exchange` is the exchange's own.

    With --mint it is ecash, which only `exchange` has: the mint's Lightning invoice is printed, and once somebody paid
    it, `trunkline wallet balance` shows the ecash.
    """
    if mint is not None:
        _fund_at(settings, name, msats, mint)
        return
    try:
        made = _called(_reached(settings), "fund", {"name": name, "msats": msats})
    except CommandFailed:
        _check_known(name, _fold(settings))
        raise
    if not settings.shown_as_json(made):
        say(f"{printable(name)}: {made['balance']:,} msats")


def _fund_at(settings: CommandSettings, name: str, msats: int, mint: str) -> None:
    if name != "exchange":
        raise CommandFailed(
            "usage.invalid",
            "ecash is the exchange's own: `trunkline wallet fund exchange MSATS --mint URL`",
            exit_code=2,
        )
    made = _called(_reached(settings), "mint", {"mint": mint, "msats": msats})
    if settings.shown_as_json(made):
        return
    say(printable(str(made["invoice"])))
    note(f"pay this invoice: then {msats:,} msats are ecash of {printable(mint)}")


@wallet.command("send", short_help="Take ecash out, as a token for anybody.")
@click.argument("msats", type=WholeNumber(min=1), required=False)
@click.option("--mint", metavar="URL", help="Whose ecash; else that of which most is here.")
@with_output
@click.option("--again", metavar="ID", help="Show one that was made before and that nobody has received yet.")
@shared
def send(
    settings: CommandSettings, msats: int | None, mint: str | None, output: Path | None, again: str | None
) -> None:
    """Make a token of MSATS in ecash, which any Cashu wallet can receive, and print it.

    Whoever reads it has the money. Until somebody has received it, --again shows it once more, and
    `trunkline wallet receive` takes it back.
    """
    if (msats is None) == (again is None) or (again is not None and mint is not None):
        text = "either MSATS, or --again ID: `trunkline wallet send 5000`"
        raise CommandFailed("usage.invalid", text, exit_code=2)
    exchange, key = _reached(settings, "send"), _wallet_key(settings)
    file = None if output is None else open_private(output)
    try:
        name = again
        if name is None:
            name = _called(exchange, "send", {"msats": msats, "mint": mint or ""})["id"]
            # Known before anything else can go wrong.
            note(f"token {printable(name)}: `trunkline wallet send --again {printable(name)}` shows it again")
        token = sealing.unsealed(key, _called(exchange, "token", {"id": name})["sealed"])
        if file is not None:
            os.write(file, f"{token}\n".encode())
    except BaseException:
        if output is not None:
            output.unlink(missing_ok=True)
        raise
    finally:
        if file is not None:
            os.close(file)
    if settings.shown_as_json({"id": name, "token": token}):
        return
    say(printable(token))
    note("whoever has it can spend it")


@wallet.command("receive", short_help="Take ecash in: a token of a listed mint.")
@click.argument("token")
@shared
def receive(settings: CommandSettings, token: str) -> None:
    """Have the ecash of TOKEN, which is `-` to read it from stdin: so it stands in no list of processes.

    Its mint has to be one of [nostr.wallet] mints. One of our own that nobody has received is taken back in this way.
    """
    is_piped = token == "-"  # noqa: S105  (a word of the command line)
    text = (sys.stdin.read(MAX_TOKEN_CHARS + 1) if is_piped else token).strip()
    exchange, key = _reached(settings, "receive"), _wallet_key(settings)
    box = sealing.sealed(key, text[: MAX_TOKEN_CHARS + 1], secrets.token_bytes(sealing.NONCE_BYTES))
    made = _called(exchange, "receive", {"sealed": box})
    if not settings.shown_as_json(made):
        say(f"received {made['msats']:,} msats of {printable(str(made['mint']))}")


def _wallet_key(settings: CommandSettings) -> bytes:
    path = settings.home.keys_folder / sealing.WALLET_FILE
    try:
        return key_files.read_private(path)
    except FileNotFoundError:
        raise file_failure(path, "there is no such file") from None


@wallet.command("balance", short_help="What accounts have.")
@click.argument("name", required=False)
@shared
def balance(settings: CommandSettings, name: str | None) -> None:
    """What all accounts have, or the account NAME; what is held for jobs that are being done; and ecash, by mint."""
    found = _fold(settings)
    if name is not None:
        _check_known(name, found)
    held = dict.fromkeys(found.balances, 0)
    for one in found.held.values():
        held[one.payer] += one.msats
    rows = [
        {"name": account, "balance_msats": msats, "held_msats": held[account]}
        for account, msats in found.balances.items()
        if name in (None, account)
    ]
    ecash = [
        {"mint": one.mint, "balance_msats": one.sats * 1000, "locked_msats": one.locked * 1000}
        for one in found.ecash.values()
    ]
    everything = {"wallets": rows, "total_msats": found.total, "ecash": ecash}
    if settings.shown_as_json(rows[0] if name is not None else everything):
        return
    cells = [[row["name"], f"{row['balance_msats']:,}", f"{row['held_msats']:,}"] for row in rows]
    table(["WALLET", "MSATS", "HELD"], [[printable(str(one)) for one in row] for row in cells])
    if ecash and name is None:
        say("")
        cells = [[one["mint"], f"{one['balance_msats']:,}", f"{one['locked_msats']:,}"] for one in ecash]
        table(["MINT", "MSATS", "LOCKED"], [[printable(str(one)) for one in row] for row in cells])


@wallet.command("history", short_help="What happened to an account.")
@click.argument("name", required=False)
@click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="How many lines.")
@shared
def history(settings: CommandSettings, name: str | None, limit: int) -> None:
    """What happened to all accounts, or to NAME, newest first."""
    from trunkline.ledger import wallets
    from trunkline.model import stamp

    with reading(settings) as reader:
        found = [{"at": stamp(at_ms), **told} for at_ms, told in wallets.history(reader, name or "", limit)]
        if name is not None and not found:
            _check_known(name, wallets.fold(reader))
    if settings.shown_as_json({"history": found}):
        return
    rows = [
        [
            clock(seconds_of(one["at"])),
            " ".join(str(one[part]) for part in ("step", "outcome") if part in one),
            str(one.get("account", "")),
            str(one.get("to", "")),
            f"{one['msats']:,}" if "msats" in one else "",
            str(one.get("job", one.get("token", ""))),
        ]
        for one in found
    ]
    cells = [[printable(cell) for cell in row] for row in rows]
    table(["AT", "STEP", "WALLET", "TO", "MSATS", "JOB"], cells, below=1, keep=(0, 1, 4))


def _check_known(name: str, found: Any) -> None:
    if name not in found.balances:
        raise CommandFailed("not_found", f"no wallet {name!r}; `trunkline wallet balance` lists them")


def _fold(settings: CommandSettings) -> Any:
    from trunkline.ledger import wallets

    with reading(settings) as reader:
        return wallets.fold(reader)


def _reached(settings: CommandSettings, tool: str = "fund") -> ExchangeClient:
    """The running exchange, if its wallet has this tool."""
    exchange = settings.connect()
    offered = {one["tool_id"] for one in all_tools(exchange)}
    if f"{AGENT}/fund" not in offered:
        text = "there is no wallet here; `trunkline status` says why nostr is off"
        raise CommandFailed("tool.unavailable", text, exit_code=1)
    if f"{AGENT}/{tool}" not in offered:
        text = "there is no ecash here: no mint is listed in [nostr.wallet] mints"
        raise CommandFailed("tool.unavailable", text, exit_code=1)
    return exchange


def _called(exchange: ExchangeClient, tool: str, wish: dict[str, Any]) -> dict[str, Any]:
    """What a tool of the wallet gave."""
    found = exchange.post(at("calls"), {"tool_id": f"{AGENT}/{tool}", "input": wish})
    if found.get("status") != "succeeded":
        end_with({"code": "tool.failed", "message": "it was not done", **(found.get("error") or {})})
    output: dict[str, Any] = found["output"]
    return output
