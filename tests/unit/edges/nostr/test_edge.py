"""The edge as the host sees it: what it says of what it offers."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from tests.unit.edges.nostr.kit import TOOL
from trunkline.config import Config, Nostr, NostrWallet
from trunkline.edges import nostr
from trunkline.edges.nostr.edge import PATIENCE_S, NostrEdge
from trunkline.testing.memory import MemoryExchange


def test_an_offered_tool_is_missed_only_after_its_agent_had_the_time_to_come(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    exchange = MemoryExchange(config=Config(nostr=Nostr(offer=(TOOL,))))
    edge = NostrEdge(exchange.surroundings(tmp_path))
    assert list(edge.warnings()) == []
    assert edge.status()["offer"] == f"{edge.offer.ids[0]} (not here now)"
    exchange.advance(PATIENCE_S + 1)
    assert list(edge.warnings()) == [f"[nostr] offer: nobody offers {TOOL} here now"]
    exchange.attach("com.example.echo", "echo")
    assert list(edge.warnings()) == []
    assert edge.status()["offer"] == edge.offer.ids[0]


def test_the_masker_is_told_of_the_secret_of_a_wallet_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    secret = "5a" * 32
    (tmp_path / "wallet").write_text(f"nostr+walletconnect://{'1b' * 32}?relay=ws://127.0.0.1:1&secret={secret}\n")
    wallet = NostrWallet(connection=f"file:{tmp_path / 'wallet'}")
    known: list[tuple[str, str]] = []
    given = MemoryExchange(config=Config(nostr=Nostr(wallet=wallet))).surroundings(tmp_path)
    NostrEdge(replace(given, know_secret=lambda name, secret: known.append((name, secret))))
    assert known == [("nostr.wallet.connection", secret)]


def test_that_nothing_is_offered_is_said(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    assert NostrEdge(MemoryExchange().surroundings(tmp_path)).status()["offer"] == "nothing"


def test_all_that_is_chance_in_signatures_and_encryption_comes_from_the_hosts_entropy(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "wallet").write_text(f"nostr+walletconnect://{'1b' * 32}?relay=ws://127.0.0.1:1&secret={'5a' * 32}\n")
    wallet = NostrWallet(connection=f"file:{tmp_path / 'wallet'}")
    given = MemoryExchange(config=Config(nostr=Nostr(wallet=wallet))).surroundings(tmp_path)
    edge = NostrEdge(replace(given, entropy=lambda size: b"\x01" * size))
    assert edge.money.outside is not None
    for signer in (edge.signer, edge.money.service._signer, edge.money.outside._signer):
        assert signer.sign("ab" * 32) == signer.sign("ab" * 32)
        assert signer.encrypt("a", signer.public) == signer.encrypt("a", signer.public)


def test_the_map_of_this_folder_names_each_of_its_modules() -> None:
    modules = {path.stem for path in Path(nostr.__path__[0]).glob("*.py")} - {"__init__"}
    named = set(re.findall(r"[a-z0-9_]+", nostr.__doc__ or ""))
    assert modules - named == set()
    # A name with an underscore is no word: it is a module, or was one.
    assert {name for name in named if "_" in name} - modules == set()
