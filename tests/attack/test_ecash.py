"""Ecash is money for whoever reads it: what could be spent stands encrypted in one file, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from tests.attack.secrets import forms
from tests.attack.test_private_keys import files_with
from tests.mints import running_mint
from tests.requirements.test_openagents_ecash import (
    asks_in_ecash,
    bought,
    buyer_config,
    ecash,
    fund,
    seller_config,
)
from tests.requirements.test_openagents_paying import known
from tests.running import Running, running, wait_until
from trunkline.edges.nostr.purse_file import PurseFile
from trunkline.ledger.keys import LedgerKeys, derived
from trunkline.money.cashu.purse import Purse


def purse_of(exchange: Running, mint: str) -> Purse:
    """What the exchange keeps, opened with its home's key."""
    key = derived(LedgerKeys.load(exchange.home / "keys", create=False).mac_key, b"trunkline edges 1")
    return PurseFile(exchange.home, key, mint, os.urandom).read()


def command_lines() -> list[bytes]:
    """Of all processes here."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


@pytest.mark.timeout(120)
async def test_ecash_that_could_be_spent_is_in_no_file_log_or_command_line(short_path: Path) -> None:
    with running_mint() as mint, running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        with running(short_path / "buyer", buyer_config(seller, mint)) as buyer:
            fund(buyer, mint, 100_000)
            await known(buyer, 2)
            # Once the mint fails in the middle: what is said of that names nothing either.
            mint.instead["/v1/swap"] = (500, b"\xff<html>")
            assert (await bought(buyer))["status"] == "failed"
            mint.instead.clear()
            await asyncio.to_thread(wait_until, lambda: ecash(buyer, mint) == (100_000, 0), "the ecash to be back")
            found = await bought(buyer, texts=["another job"])
            assert found["status"] == "succeeded", found
            await asyncio.to_thread(wait_until, lambda: ecash(buyer, mint)[1] == 0, "the end of the payment")
            # An invoice that nobody has paid: who knows its name has what is paid for it.
            buyer.call("nostr.wallet/mint", {"mint": mint.url, "msats": 5000})
            for exchange in (buyer, seller):
                commands = command_lines()
                exchange.kill()
                purse = purse_of(exchange, mint.url)
                assert purse.proofs
                wanted = [form for one in purse.proofs for form in (*forms(one.secret), bytes.fromhex(one.secret))]
                wanted += [form for one in purse.funding for form in forms(one.quote)]
                assert files_with(exchange, wanted) == []
                assert not [line for line in commands if any(form in line for form in wanted)]
