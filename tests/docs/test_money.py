"""docs/money.md: its session goes as it is printed, and its file is one that the exchange takes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.docs.pages import play, printed, session
from tests.running import NO_DEFAULT_PORTS, ROOT, running, wait_until
from tests.unit.cli.conftest import trunkline
from trunkline.config import Config, Nostr, NostrWallet
from trunkline.edges.nostr.nip47 import METHODS
from trunkline.money.proving import LINKS
from trunkline.money.receipts import FIELDS

PAGE = (ROOT / "docs/money.md").read_text()
WALK = PAGE.partition("## A paid job, from two fresh homes\n")[2].partition("\n## ")[0]
# Wherever it listens by the page, nobody else does.
ON_ANY_PORT = {**NO_DEFAULT_PORTS, "TRUNKLINE_NOSTR_RELAY": "127.0.0.1:0"}


def test_the_session_on_the_page_goes_as_it_is_printed(short_path: Path) -> None:
    with running(short_path / "home", '[nostr]\nrelay = "127.0.0.1:0"\n') as exchange:
        assert play(PAGE.replace(WALK, ""), exchange, short_path) == 4


@pytest.mark.timeout(120)
def test_a_job_is_paid_as_the_page_walks_through_it(short_path: Path) -> None:
    files = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", WALK, re.DOTALL))
    assert set(files) == {"seller/trunkline.toml", "buyer/trunkline.toml"}
    for name, text in files.items():
        (short_path / name).parent.mkdir(mode=0o700)
        (short_path / name).write_text(text)

    def told(home: str, *words: str) -> Any:
        ran = trunkline("--home", str(short_path / home), *words, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    def ready(command: str) -> str:
        """What the reader does meanwhile: he takes the seller's relay, waits a moment, and fills in ids."""
        if command.startswith("trunkline up --home buyer"):
            relay = json.loads((short_path / "seller" / "ready.json").read_text())["relay"]
            file = short_path / "buyer" / "trunkline.toml"
            file.write_text(file.read_text().replace("ws://127.0.0.1:7414", relay))
        elif "jobs providers" in command:
            wait_until(lambda: told("buyer", *command.split()[1:5])["count"], "a provider")
        elif "trunkline calls" in command:
            wait_until(lambda: told("buyer", "receipts")["receipts"], "a receipt")
        if "a…" in command:
            command = command.replace("a…", told("buyer", "approvals")["approvals"][0]["approval_id"])
        if "rcpt_…" in command:
            command = command.replace("rcpt_…", told("buyer", "receipts")["receipts"][0]["receipt_id"])
        return command

    steps = session(WALK)
    try:
        for command, expected in steps:
            printed(ready(command), expected, short_path, ON_ANY_PORT)
    finally:
        for home in ("buyer", "seller"):
            trunkline("down", "--home", str(short_path / home))
    assert len(steps) == 17


def test_the_file_on_the_page_is_a_configuration() -> None:
    text = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    settings = msgspec.convert(tomllib.loads(text)["nostr"], Nostr)
    assert settings.pricing.sandbox_per_minute_msats == 6000
    assert len(Config(nostr=settings).policy().rules) > 2


def test_the_page_names_every_field_link_method_and_setting() -> None:
    for name in (*FIELDS, *LINKS, *METHODS, *NostrWallet.__struct_fields__):
        assert f"`{name}`" in PAGE, name
