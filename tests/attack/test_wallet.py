"""The wallet against those who want what is not theirs, and its secrets, which stand nowhere but where they have to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.secrets import forms
from tests.attack.test_private_keys import files_with
from tests.nostr import Buyer
from tests.requirements.test_openagents_money import EMBED, EMBEDDING, PRICED, account, balances, invoice_of
from tests.running import running
from tests.wallets import WalletClient
from trunkline.edges.nostr import nip47
from trunkline.money import bolt11

pytestmark = pytest.mark.timeout(120)


async def test_the_secrets_of_wallets_are_in_no_file_but_the_wallets_own(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "alice", 100_000)
        secret = nip47.read_connection(connection).secret
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            await invoice_of(buyer, await buyer.ask(EMBEDDING, EMBED))
            own = (exchange.home / "keys" / "wallet.key").read_bytes()
            assert (exchange.home / "keys" / "wallet.key").stat().st_mode & 0o077 == 0
            assert (await wallet.ask("get_balance"))["error"] is None
        exchange.kill()
        wanted = [bytes.fromhex(secret), *forms(secret), own, *forms(own.hex())]
        assert files_with(exchange, wanted) == ["wallet.key"]


async def test_strangers_agents_and_other_accounts_get_nothing_of_an_account(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        alice = account(exchange, "alice", 100_000)
        mallory = account(exchange, "mallory", 1)
        token = exchange.new_token("mallory", "http")
        for tool, wish in (
            ("fund", {"name": "mallory", "msats": 5}),
            ("new", {"name": "second", "client": "ab" * 32}),
        ):
            status, answer = exchange.request(
                "POST", "/v1/calls", {"tool_id": f"nostr.wallet/{tool}", "input": wish}, token=token
            )
            assert status == 202, answer  # a person is asked
        async with WalletClient(alice) as one, WalletClient(mallory) as other:
            made = (await one.ask("make_invoice", amount=5))["result"]
            assert (await other.ask("lookup_invoice", payment_hash=made["payment_hash"]))["error"][
                "code"
            ] == "NOT_FOUND"
            # An invoice that names alice's payment hash, signed by somebody else.
            forged = bolt11.written(b"\x01" * 32, 1, made["payment_hash"], "", made["created_at"], 600)
            assert (await other.ask("pay_invoice", invoice=forged))["error"]["code"] == "PAYMENT_FAILED"
            # A second client cannot take over the first one's key.
            public = one.signer.public
            refused = exchange.call("nostr.wallet/new", {"name": "third", "client": public})
            assert refused["status"] == "failed"
        assert balances(exchange) == {"exchange": 0, "alice": 100_000, "mallory": 1}
