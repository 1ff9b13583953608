"""docs/money.md: its session goes as it is printed, and its file is one that the exchange takes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from tests.docs.pages import play
from tests.running import ROOT, running
from trunkline.config import Config, Nostr, NostrWallet
from trunkline.edges.nostr.nip47 import METHODS
from trunkline.money.proving import LINKS
from trunkline.money.receipts import FIELDS

PAGE = (ROOT / "docs/money.md").read_text()


def test_the_session_on_the_page_goes_as_it_is_printed(short_path: Path) -> None:
    with running(short_path / "home", '[nostr]\nrelay = "127.0.0.1:0"\n') as exchange:
        assert play(PAGE, exchange, short_path) == 4


def test_the_file_on_the_page_is_a_configuration() -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    settings = msgspec.convert(tomllib.loads(text)["nostr"], Nostr)
    assert settings.pricing.sandbox_per_minute_msats == 6000
    assert len(Config(nostr=settings).policy().rules) > 2


def test_the_page_names_every_field_link_method_and_setting() -> None:
    for name in (*FIELDS, *LINKS, *METHODS, *NostrWallet.__struct_fields__):
        assert f"`{name}`" in PAGE, name
