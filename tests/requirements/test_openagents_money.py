"""Money for jobs as a foreign buyer sees it: a real exchange, its relay, its wallet, and receipts that verify."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from msgspec import Raw

from tests.nostr import CONFIG, KINDS, Buyer
from tests.requirement import requirement
from tests.running import Running, running
from tests.wallets import WalletClient
from trunkline.canonical import openagents_hash
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.keys import npub_of
from trunkline.jobs import embedding
from trunkline.jobs.schemas import job_types
from trunkline.money.proving import Broken, Evidence, prove

pytestmark = pytest.mark.timeout(120)
EMBEDDING, SANDBOX = "oa.embedding.v1", "oa.sandbox_run.v1"
EMBED = {"texts": ["hello wide world"], "model": embedding.HASHING, "dimensions": 4}
PRICED = (
    CONFIG
    + f'offer = ["{EMBEDDING}", "{SANDBOX}"]\n'
    + "[nostr.pricing]\ninput_tokens_per_1k_msats = 1000000\nsandbox_per_minute_msats = 6000\n"
)


def trunkline(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", "--home", str(home), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def printed(home: Path, *words: str) -> Any:
    done = trunkline(home, *words, "--json")
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


def account(exchange: Running, name: str, msats: int) -> str:
    """A new account with money in it; its connection."""
    connection: str = printed(exchange.home, "wallet", "new", name)["connection"]
    printed(exchange.home, "wallet", "fund", name, str(msats))
    return connection


def balances(exchange: Running) -> dict[str, int]:
    listed = printed(exchange.home, "wallet", "balance")
    assert sum(one["balance_msats"] + one["held_msats"] for one in listed["wallets"]) == listed["total_msats"]
    return {one["name"]: one["balance_msats"] for one in listed["wallets"]}


async def invoice_of(buyer: Buyer, request: Any) -> tuple[int, str]:
    """What the provider asks for."""

    def asked() -> list[Any]:
        return [event for event in buyer.about(request, 7000) if event.value("status") == "payment-required"]

    [event] = await buyer.until(asked, "an invoice")
    _, msats, invoice = event.tag("amount")
    return int(msats), invoice


@requirement("OA-003", "OA-078", "OA-079", "OA-080", "OA-081", "OA-082", "OA-112")
async def test_a_foreign_buyer_pays_gets_a_verified_result_and_a_receipt_that_verifies(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "alice", 100_000)
        nobody = trunkline(exchange.home, "wallet", "fund", "nope", "5")
        told = f"not_found: no wallet 'nope'; `trunkline wallet balance --home {exchange.home}` lists them\n"
        assert (nobody.returncode, nobody.stderr) == (2, told)
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            request = await buyer.ask(EMBEDDING, EMBED)
            msats, invoice = await invoice_of(buyer, request)
            assert not exchange.entries(kind="call.accepted", correlation_id=request.id)
            answer = await wallet.ask("pay_invoice", invoice=invoice)
            assert answer["error"] is None, answer
            preimage = answer["result"]["preimage"]
            result = await buyer.result(request)
            [event] = buyer.about(request, 6050)
            assert (result.amount_msats, result.invoice) == (msats, invoice)
            receipt = json.loads(event.value("receipt"))
            assert (await wallet.ask("get_balance"))["result"] == {"balance": 100_000 - msats}
        assert receipt["payment_proof"] == {"type": "lightning_preimage", "value": preimage}
        assert receipt["provider_id"] == npub_of(event.pubkey)
        assert receipt["session_id"] == request.id
        assert balances(exchange) == {"exchange": msats, "alice": 100_000 - msats}
        home = exchange.home
        assert printed(home, "receipts")["receipts"] == [receipt]
        name = receipt["receipt_id"]
        assert printed(home, "receipts", "verify", name)["links"] == [
            "receipt", "payment", "job", "trajectory", "policy",
        ]  # fmt: skip
    # Also without a running exchange, and from a file alone.
    assert trunkline(home, "receipts", "verify", name).returncode == 0
    exported = trunkline(home, "receipts", "export", name)
    file = short_path / "receipt.json"
    file.write_text(exported.stdout)
    assert trunkline(short_path / "elsewhere", "receipts", "verify", str(file)).returncode == 0
    assert hashlib.sha256(bytes.fromhex(preimage)).hexdigest()


@requirement("OA-058", "OA-081")
async def test_a_job_whose_command_fails_costs_nothing_and_has_no_receipt(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "alice", 100_000)
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            request = await buyer.ask(SANDBOX, {"commands": [{"cmd": "exit 3"}]})
            msats, invoice = await invoice_of(buyer, request)
            assert msats == 6000  # a minute, which is what a run may take if nothing is said
            answer = await wallet.ask("pay_invoice", invoice=invoice)
            assert answer["error"]["code"] == "PAYMENT_FAILED"
            assert "exit_code: is 3" in answer["error"]["message"]
            result = await buyer.result(request)
            assert (result.amount_msats, json.loads(bytes(result.outputs))["status"]) == (None, "failed")
            await buyer.until(lambda: "error" in buyer.statuses(request), "feedback")
            # The invoice is used up: it cannot be paid again.
            assert (await wallet.ask("pay_invoice", invoice=invoice))["error"]["code"] == "PAYMENT_FAILED"
        assert balances(exchange) == {"exchange": 0, "alice": 100_000}
        assert printed(exchange.home, "receipts")["receipts"] == []


@requirement("OA-078")
async def test_the_same_key_gives_the_same_quote_and_another_job_may_not_have_it(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "alice", 100_000)
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            first = await buyer.ask(EMBEDDING, EMBED, nonce="1")
            second = await buyer.ask(EMBEDDING, EMBED, nonce="2")
            invoices = [await invoice_of(buyer, request) for request in (first, second)]
            assert invoices[0] == invoices[1]
            keyed = [await keyed_job(buyer, inputs) for inputs in (EMBED, {**EMBED, "texts": ["other"]})]
            assert (await invoice_of(buyer, keyed[0]))[1] != invoices[0][1]
            await buyer.until(lambda: buyer.statuses(keyed[1]), "a refusal")
            assert buyer.statuses(keyed[1]) == ["error"]
            assert "another job" in buyer.about(keyed[1], 7000)[0].tag("status")[2]
            await wallet.ask("pay_invoice", invoice=invoices[0][1])
            await buyer.result(first)
            await buyer.until(lambda: buyer.statuses(second)[-1] == "error", "the repeat is told where its result is")
        assert len(exchange.entries(kind="call.accepted", correlation_id=first.id)) == 1
        assert exchange.entries(kind="call.accepted", correlation_id=second.id) == []


async def keyed_job(buyer: Buyer, inputs: dict[str, Any]) -> Any:
    """A request with the buyer's own key."""
    body = Raw(msgspec.json.encode(inputs))
    job_hash = job_types()[EMBEDDING].job_hash(inputs)
    draft = messages.request_draft(
        KINDS, EMBEDDING, body, job_hash, created_at=int(time.time()), nonce="k", provider=await buyer.provider()
    )
    tags = (*draft.tags, ("param", "idempotency_key", "mine"))
    return await buyer.publish(msgspec.structs.replace(draft, tags=tags))


async def test_a_wallet_serves_its_own_keys_only_and_spends_no_more_than_it_has(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        poor = account(exchange, "poor", 10)
        rich = account(exchange, "rich", 100_000)
        stranger = rich.partition("&secret=")[0] + "&secret=" + "07" * 32
        async with (
            Buyer(exchange.ready["relay"]) as buyer,
            WalletClient(poor, is_old=True) as first,
            WalletClient(rich) as second,
            WalletClient(stranger) as third,
        ):
            request = await buyer.ask(EMBEDDING, EMBED)
            msats, invoice = await invoice_of(buyer, request)
            assert (await third.ask("pay_invoice", invoice=invoice))["error"]["code"] == "UNAUTHORIZED"
            assert (await first.ask("pay_invoice", invoice=invoice))["error"]["code"] == "INSUFFICIENT_BALANCE"
            assert (await first.ask("make_a_wish"))["error"]["code"] == "NOT_IMPLEMENTED"
            changed = invoice[:-1] + ("q" if invoice[-1] != "q" else "p")
            assert "checksum" in (await second.ask("pay_invoice", invoice=changed))["error"]["message"]
            assert "is over" in (await second.ask("pay_invoice", invoice=invoice, amount=1))["error"]["message"]
            both = await asyncio.gather(*(second.ask("pay_invoice", invoice=invoice) for _ in range(2)))
            assert [one["error"] for one in both] == [None, None]
            assert both[0]["result"]["preimage"] == both[1]["result"]["preimage"]
            assert (await first.ask("pay_invoice", invoice=invoice))["error"]["code"] == "PAYMENT_FAILED"
            # Between accounts, for no job: paid at once.
            made = (await second.ask("make_invoice", amount=10, description="lunch"))["result"]
            paid = await first.ask("pay_invoice", invoice=made["invoice"])
            assert hashlib.sha256(bytes.fromhex(paid["result"]["preimage"])).hexdigest() == made["payment_hash"]
            looked = await second.ask("lookup_invoice", payment_hash=made["payment_hash"])
            assert looked["result"]["state"] == "settled"
        assert balances(exchange) == {"exchange": msats, "poor": 0, "rich": 100_010 - msats}


@requirement("OA-066", "OA-068", "OA-082")
async def test_one_byte_changed_on_record_or_in_a_file_is_found_and_its_link_named(short_path: Path) -> None:
    home = short_path / "home"
    with running(home, PRICED) as exchange:
        connection = account(exchange, "alice", 10_000_000)
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            request = await buyer.ask(EMBEDDING, {**EMBED, "texts": ["text 1", "text 2"]})
            _, invoice = await invoice_of(buyer, request)
            assert (await wallet.ask("pay_invoice", invoice=invoice))["error"] is None
            await buyer.result(request)
        [receipt] = printed(home, "receipts")["receipts"]
        _, listed = exchange.request("GET", "/v1/receipts")
        assert listed == {"receipts": [receipt], "next": None}
    name = receipt["receipt_id"]
    whole = json.loads(trunkline(home, "receipts", "export", name).stdout)
    assert _broken(whole) == ""
    for field in whole["receipt"]:
        changed = json.loads(json.dumps(whole))
        changed["receipt"][field] = _other(changed["receipt"][field])
        assert _broken(changed) == "receipt", field
        # Whoever computes the hash anew as well is found by what the receipt points to, or by its form.
        changed["receipt_hash"] = openagents_hash(json.dumps(changed["receipt"]).encode())
        expected = {
            "session_id": "trajectory", "trajectory_hash": "trajectory", "policy_bundle_id": "policy",
            "job_hash": "payment", "payment_proof": "payment", "amount_msats": "payment", "asset_id": "payment",
            "rail": "receipt", "provider_id": "receipt", "approval_rule_id": "policy", "timestamp": "receipt",
            "receipt_id": "untied",
        }  # fmt: skip
        assert _broken(changed) == expected.get(field, ""), field
    assert _broken({**whole, "request": whole["request"][:-1] + "q"}) == "payment"
    rules = json.loads(json.dumps(whole["policy"]))
    rules[0]["reason"] += "."
    assert _broken({**whole, "policy": rules}) == "policy"
    line = whole["trajectory"][3].replace("text 1", "text 9")
    assert line != whole["trajectory"][3]
    changed = {**whole, "trajectory": [*whole["trajectory"][:3], line, *whole["trajectory"][4:]]}
    assert _broken(changed) == "trajectory"
    bare = short_path / "bare.json"
    for value, link in ((receipt, None), ({**receipt, "timestamp": "2026-01-01T00:00:00Z"}, "receipt")):
        bare.write_text(json.dumps(value))
        _verified(home, str(bare), link)
    for link, kind, before, after in (
        ("trajectory", "call.accepted", "text 1", "text 9"),
        ("policy", "policy.changed", "may call", "may calI"),
        ("receipt", "money.receipt", receipt["job_hash"][-9:], "000000000"),
    ):
        copy = short_path / f"{link}-{kind}"
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*.sock", "run"))
        _change(copy / "ledger.sqlite", kind, before, after)
        _verified(copy, name, link)
    _verified(home, name, None)


def _other(value: Any) -> Any:
    """The same with one sign changed."""
    if isinstance(value, dict):
        return {**value, "value": _other(value["value"])}
    if isinstance(value, int):
        return value + 1
    if value is None:
        return "x"
    return value[:-1] + ("0" if value[-1] != "0" else "1")


def _broken(exported: Any) -> str:
    """The link that a changed file is refused for."""
    given = Evidence(
        Raw(json.dumps(exported["receipt"]).encode()),
        exported["receipt_hash"],
        exported["request"],
        Raw(json.dumps(exported["evidence"]).encode()),
        tuple(line.encode() for line in exported["trajectory"]),
        Raw(json.dumps(exported["policy"]).encode()),
    )
    try:
        return "untied" if prove(given).untied else ""
    except Broken as broken:
        return broken.link


def _verified(home: Path, named: str, link: str | None) -> None:
    done = trunkline(home, "receipts", "verify", named, "--json")
    told = json.loads(done.stdout)
    if link is None:
        assert (done.returncode, told["status"]) == (0, "whole"), done
    else:
        assert (done.returncode, told["error"]["details"]["link"]) == (1, link), done


def _change(ledger: Path, kind: str, before: str, after: str) -> None:
    """Put other bytes into the first entry of a kind."""
    connection = apsw.Connection(str(ledger))
    for number, data in connection.execute("SELECT n, data FROM entries ORDER BY n"):
        if kind.encode() in data and before.encode() in data:
            changed = data.replace(before.encode(), after.encode(), 1)
            connection.execute("UPDATE entries SET data = ? WHERE n = ?", (changed, number))
            connection.close()
            return
    raise AssertionError(f"no {kind} with {before}")
