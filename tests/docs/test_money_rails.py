"""What docs/money-rails.md says is so: its sentences are those of refusals, its bounds the code's, its file loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.money.onchain.chain import GENESIS, hash_of
from trunkline.config_file import load
from trunkline.edges import client
from trunkline.edges.nostr import cashu_rail, mint_client, till
from trunkline.home import Home
from trunkline.money.cashu import keysets, locks, proof, purse, tokens
from trunkline.money.onchain import headers, transactions
from trunkline.money.rail import PROOF_OF_RAIL
from trunkline.money.refusals import REASONS

PAGE = (Path(__file__).parents[2] / "docs" / "money-rails.md").read_text(encoding="utf-8")


def row(start: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))


def test_the_settings_on_the_page_are_taken_and_name_the_first_block(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text("\n".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)))
    settings = load(Home(Path("/h")), file, {}).nostr
    assert settings.chain.checkpoints == (f"0:{hash_of(GENESIS)}",)
    assert (settings.wallet.mints, settings.wallet.prepay) == (("https://mint.example",), True)


def test_each_sentence_on_the_page_is_one_that_a_refusal_says() -> None:
    said = re.findall(r"\*([^*]+)\*", PAGE.partition("`verify` refuses")[2].partition("Whether a token")[0])
    assert len(said) > 10
    for sentence in said:
        assert any(sentence in reason for reason in REASONS.values()), sentence


@pytest.mark.parametrize(("rail", "kind"), PROOF_OF_RAIL.items())
def test_each_rail_is_on_the_page_with_its_proof(rail: str, kind: str) -> None:
    assert f"| `{kind}` |" in row(f"`{rail}`")


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    assert f"{tokens.MAX_TOKEN_CHARS:,} characters, {tokens.MAX_PROOFS} proofs" in row("a token |")
    assert f"secrets of {tokens.MAX_SECRET_CHARS:,}" in row("a token |")
    assert f"{locks.MAX_KEYS} keys" in row("a lock |")
    assert f"{keysets.MAX_KEYS} keys; {proof.MAX_KEYSETS} keysets" in row("a keyset")
    assert proof.MAX_EVIDENCE_BYTES == 1 << 20
    assert f"{transactions.MAX_TRANSACTION_BYTES:,} bytes" in row("a transaction |")
    assert f"{headers.MAX_HEADERS:,} headers, {headers.MAX_DEPTH} levels" in row("a proof in a block")
    assert (client.MAX_ANSWER_BYTES, mint_client.TIMEOUT_S) == (8 << 20, 30)
    assert (cashu_rail.LOCK_S, cashu_rail.LEAST_LOCK_S) == (3 * 3600, 3600)
    assert row("payments of ours that are locked").endswith(f"| {purse.MAX_LOCKED}; {purse.MAX_LOCKED} |")
    assert row("tokens that were sent").endswith(f"| {purse.MAX_SENT} |")
    assert f"{till.NUTZAPS_PER_MINUTE} a minute" in row("nutzaps that are looked at")
