"""Jobs paid in ecash (NIP-61, NUT-11): two real exchanges, a mint between them, and receipts that verify."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.mints import MintServer, running_mint
from tests.nostr import CONFIG, Buyer
from tests.requirement import requirement
from tests.requirements.test_openagents_money import EMBED, EMBEDDING, PRICED, SANDBOX, printed, trunkline
from tests.requirements.test_openagents_paying import BUYING, PAYING, known, questions
from tests.running import Running, calling, running, wait_until
from tests.unit.money.cashu.toy_mint import PAYER
from trunkline.edges.nostr import events, nutzaps
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.till import NUTZAPS_PER_MINUTE
from trunkline.jobs.schemas import job_types
from trunkline.ledger import wallets
from trunkline.ledger.reader import Reader
from trunkline.money import bolt11
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.requests import PaymentRequest, read_request
from trunkline.money.cashu.tokens import Token, read_token

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def mint() -> Iterator[MintServer]:
    with running_mint() as found:
        yield found


def seller_config(*mints: MintServer) -> str:
    return PRICED + f"[nostr.wallet]\nmints = {json.dumps([one.url for one in mints])}\n"


def buyer_config(seller: Running, *mints: MintServer, rules: str = BUYING + PAYING) -> str:
    wallet = f"[nostr.wallet]\nprepay = true\nmints = {json.dumps([one.url for one in mints])}\n"
    return CONFIG.replace("[nostr]\n", f'[nostr]\nrelays = ["{seller.ready["relay"]}"]\n') + wallet + rules


def ecash(exchange: Running, mint: MintServer) -> tuple[int, int]:
    """What there is of a mint's ecash by the record: to spend, and locked."""
    reader = Reader(exchange.home / "ledger.sqlite")
    try:
        found = wallets.fold(reader).ecash.get(mint.url)
    finally:
        reader.close()
    return (0, 0) if found is None else (found.sats * 1000, found.locked * 1000)


def fund(exchange: Running, mint: MintServer, msats: int) -> None:
    """Have a mint's invoice paid."""
    made = exchange.call("nostr.wallet/mint", {"mint": mint.url, "msats": msats})
    assert made["output"]["invoice"].startswith("lnbcrt"), made
    before = sum(ecash(exchange, mint))
    mint.pay_all()
    wait_until(lambda: sum(ecash(exchange, mint)) == before + msats, "the ecash")


def receipts_of(exchange: Running) -> list[dict[str, Any]]:
    """Those on record."""
    return [dict(one) for one in exchange.request("GET", "/v1/receipts")[1]["receipts"]]


def asks_in_ecash(exchange: Running) -> None:
    """Until the seller knows its mint."""
    wait_until(lambda: "1 of 1 known" in json.dumps(exchange.request("GET", "/v1/status")[1]), "the mint to be known")


async def bought(buyer: Running, **inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = await asyncio.wrap_future(calling(buyer, f"nostr.jobs/{EMBEDDING}", {**EMBED, **inputs}))
    return found


@requirement("OA-058", "OA-063", "OA-069", "OA-070", "OA-080", "OA-081", "OA-082")
async def test_a_job_is_paid_in_ecash_and_both_have_a_receipt_that_verifies(short_path: Path, mint: MintServer) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        with running(short_path / "buyer", buyer_config(seller, mint)) as buyer:
            fund(buyer, mint, 100_000)
            await known(buyer, 2)
            found = await bought(buyer)
            assert found["status"] == "succeeded", found
            await asyncio.to_thread(wait_until, lambda: receipts_of(buyer), "a receipt")
            [ours] = receipts_of(buyer)
            [theirs] = receipts_of(seller)
            assert (ours["rail"], ours["asset_id"]) == ("cashu", f"BTC_CASHU({mint.url})")
            assert ours["payment_proof"] == theirs["payment_proof"]
            assert ours["prepaid"] is True
            for home, receipt in ((buyer.home, ours), (seller.home, theirs)):
                done = trunkline(home, "receipts", "verify", receipt["receipt_id"])
                assert done.returncode == 0, done.stdout + done.stderr
            price = ours["amount_msats"]
            await asyncio.to_thread(wait_until, lambda: ecash(buyer, mint) == (100_000 - price, 0), "nothing locked")
            assert ecash(seller, mint) == (price, 0)
            shown = printed(buyer.home, "wallet", "balance")["ecash"]
            assert shown == [{"mint": mint.url, "balance_msats": 100_000 - price, "locked_msats": 0}]
            made = printed(buyer.home, "wallet", "fund", "exchange", "5000", "--mint", mint.url)
            assert made["invoice"].startswith("lnbcrt")
            exported = trunkline(buyer.home, "receipts", "export", ours["receipt_id"]).stdout
            file = short_path / "receipt.json"
            file.write_text(exported)
            assert trunkline(short_path / "nowhere", "receipts", "verify", str(file)).returncode == 0
            value = ours["payment_proof"]["value"]
            changed = value[:200] + ("A" if value[200] != "A" else "B") + value[201:]
            file.write_text(exported.replace(value, changed))
            assert trunkline(short_path / "nowhere", "receipts", "verify", str(file)).returncode == 1


@requirement("OA-075", "OA-079")
async def test_a_payment_in_ecash_is_asked_about_with_amount_payee_mint_and_job(
    short_path: Path, mint: MintServer
) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        npub = seller.request("GET", "/v1/status")[1]["edges"]["nostr"]["npub"]
        with running(short_path / "buyer", buyer_config(seller, mint, rules=BUYING)) as buyer:
            fund(buyer, mint, 100_000)
            await known(buyer, 2)
            for answer in ("deny", "approve"):
                call = calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED)
                [question] = await asyncio.to_thread(wait_until, lambda: questions(buyer), "a question")
                asked = question["input"]
                assert question["tool_id"] == "nostr.wallet/pay"
                assert (asked["payee"], asked["mint"], asked["job"]["schema_id"]) == (npub, mint.url, EMBEDDING)
                assert asked["amount_msats"] % 1000 == 0
                assert asked["invoice_names_job"] is True
                assert ecash(buyer, mint) == (100_000, 0)
                assert "/v1/swap" not in mint.asked
                trunkline(buyer.home, answer, question["approval_id"])
                found = await asyncio.wrap_future(call)
                assert found["status"] == ("succeeded" if answer == "approve" else "failed"), json.dumps(found)


async def test_who_has_not_enough_ecash_or_of_another_mint_pays_nothing_and_no_mint_hears_of_it(
    short_path: Path, mint: MintServer
) -> None:
    with running_mint("another") as other, running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        with running(short_path / "buyer", buyer_config(seller, other, mint)) as buyer:
            fund(buyer, other, 100_000)
            await known(buyer, 2)
            found = await bought(buyer)
            assert found["status"] == "failed"
            assert "not enough ecash" in json.dumps(found)
            assert ecash(buyer, other) == (100_000, 0)
        assert "/v1/swap" not in mint.asked + other.asked


async def test_a_foreign_buyers_nutzap_is_taken_only_if_it_is_good_and_he_is_told_why_not(
    short_path: Path, mint: MintServer
) -> None:
    with running_mint("another") as other, running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        async with Buyer(seller.ready["relay"]) as buyer:
            provider = await buyer.provider()
            request = await buyer.ask(EMBEDDING, EMBED)
            [asked] = await buyer.until(lambda: buyer.about(request, 7000), "what it costs")
            text = next(tag[2] for tag in asked.tags_named("amount") if tag[2].startswith("creqA"))
            wanted = read_request(text)
            key = bytes.fromhex(wanted.key)
            assert key[1:].hex() != provider  # NIP-61: not the key that signs its events
            later = int(time.time()) + 4 * 3600
            good = {"amount": wanted.amount, "key": key, "locktime": later} | named_by(wanted)

            def zap(server: MintServer = mint, as_of: str = mint.url, **changed: Any) -> Draft:
                lock = good | changed
                token = server.mint.locked(lock.pop("amount"), **lock)
                return nutzaps.nutzap_draft(
                    msgspec.structs.replace(token, mint=as_of), provider, request.id, 5050, created_at=int(time.time())
                )

            spent = zap()
            await redeem_elsewhere(mint, nutzaps.read_nutzap(events.signed(spent, buyer.signer)).token)
            for number, (draft, why) in enumerate(
                (
                    (zap(amount=wanted.amount - 1), "amount"),
                    (zap(amount=wanted.amount + 1), "amount"),
                    (zap(key=PAYER), "locked to somebody else"),
                    (zap(job_hash="sha256:" + "00" * 32), "another job"),
                    (zap(payment_id="00" * 16), "another payment"),
                    (zap(locktime=int(time.time()) + 60), "ends too early"),
                    (zap(other), "keyset"),
                    (zap(other, other.url), "another mint"),
                    (spent, "spent before"),
                ),
                start=2,
            ):
                await buyer.publish(draft)
                await buyer.until(lambda count=number: len(buyer.about(request, 7000)) == count, why)
                status = buyer.about(request, 7000)[-1].tag("status")
                assert status[1] == "payment-required"
                assert why in status[2], (why, status)
            await buyer.publish(zap())
            found = await buyer.result(request)
            assert found.invoice == text
            receipt = json.loads((buyer.about(request, 6050)[0]).value("receipt"))
            assert receipt["rail"] == "cashu"
            assert receipt["amount_msats"] == wanted.amount * 1000
        assert other.asked == []  # it is not listed
        assert trunkline(seller.home, "receipts", "verify", receipt["receipt_id"]).returncode == 0


def named_by(wanted: PaymentRequest) -> dict[str, str]:
    """What has to stand in each secret."""
    return {"job_hash": wanted.job_hash, "payment_id": wanted.secret_payment_id}


async def price_of(buyer: Buyer, request: Event) -> PaymentRequest:
    """What a request costs in ecash."""
    [asked, *_] = await buyer.until(lambda: buyer.about(request, 7000), "what it costs")
    return read_request(next(tag[2] for tag in asked.tags_named("amount") if tag[2].startswith("creqA")))


async def test_a_nutzap_pays_for_no_request_but_its_senders_own_whoever_copies_it(
    short_path: Path, mint: MintServer
) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        relay = seller.ready["relay"]
        async with Buyer(relay) as buyer, Buyer(relay, Signer(bytes(31) + b"\x0a")) as thief:
            provider = await buyer.provider()
            # What the victim asks for, word by word: it is public.
            same = await thief.ask(EMBEDDING, EMBED)
            await price_of(thief, same)
            request = await buyer.ask(EMBEDDING, EMBED)
            wanted = await price_of(buyer, request)
            later, key = int(time.time()) + 4 * 3600, bytes.fromhex(wanted.key)
            token = mint.mint.locked(wanted.amount, key=key, locktime=later, **named_by(wanted))
            token = msgspec.structs.replace(token, mint=mint.url)

            def zap(request: Event, at: int = 0, token: Token = token) -> Draft:
                return nutzaps.nutzap_draft(token, provider, request.id, 5050, created_at=int(time.time()) - at)

            # For his own request; and for the victim's, in whose place each would be looked at.
            await thief.publish(zap(same))
            await thief.until(lambda: len(thief.about(same, 7000)) == 2, "a refusal")
            assert "another payment" in thief.about(same, 7000)[-1].tag("status")[2]
            await thief.publish(zap(request, token=mint.mint.locked(1)))
            for at in range(NUTZAPS_PER_MINUTE):
                await thief.publish(zap(same, at + 1))
            await buyer.publish(zap(request))
            assert (await buyer.result(request)).amount_msats == wanted.amount * 1000
            assert thief.about(same, 6050) == []
            told = [event.tag("status") for event in buyer.about(request, 7000)]
            assert not [status for status in told if "nutzap" in str(status)], told


async def test_of_a_private_job_nothing_public_names_the_hash_and_its_receipt_verifies(
    short_path: Path, mint: MintServer
) -> None:
    job_hash = job_types()[EMBEDDING].job_hash(EMBED | {"texts": ["a secret"]})
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        async with Buyer(seller.ready["relay"], also=(nutzaps.NUTZAP,)) as reader:
            with running(short_path / "buyer", buyer_config(seller, mint)) as buyer:
                fund(buyer, mint, 100_000)
                await known(buyer, 2)
                found = await bought(buyer, texts=["a secret"], remote={"private": True})
                assert found["status"] == "succeeded", found
                for home in (seller.home, buyer.home):
                    [receipt] = await asyncio.to_thread(
                        wait_until, lambda home=home: printed(home, "receipts")["receipts"], "a receipt"
                    )
                    assert receipt["job_hash"] == job_hash
                    said = trunkline(home, "receipts", "verify", receipt["receipt_id"])
                    assert said.returncode == 0, said.stderr
            [zap] = await reader.until(lambda: [e for e in reader.seen if e.kind == nutzaps.NUTZAP], "the nutzap")
            [cost] = [event for event in reader.seen if event.tag("status")[1:] == ("payment-required",)]
        invoices = [tag[2] for tag in cost.tags_named("amount")]
        named = [bolt11.read(text).description for text in invoices if text.startswith("ln")]
        named += [str(read_request(text)) for text in invoices if text.startswith("creqA")]
        assert len(named) == 2
        assert not [text for text in (*named, str(zap)) if job_hash.removeprefix("sha256:") in text]


async def redeem_elsewhere(mint: MintServer, token: Token) -> None:
    """Its payee's key is not ours: the mint is told that it was spent."""
    mint.spent |= {hash_to_curve(proof.secret.encode()).hex(): None for proof in token.proofs}


async def test_what_the_question_shows_is_the_mint_that_is_paid_with(short_path: Path, mint: MintServer) -> None:
    with running_mint("another") as other, running(short_path / "seller", seller_config(mint, other)) as seller:
        wait_until(lambda: "2 of 2 known" in json.dumps(seller.request("GET", "/v1/status")[1]), "both mints")
        with running(short_path / "buyer", buyer_config(seller, mint, other, rules=BUYING)) as buyer:
            # The one that is listed first is not the one with most.
            fund(buyer, mint, 50_000)
            fund(buyer, other, 60_000)
            await known(buyer, 2)
            call = calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED)
            [question] = await asyncio.to_thread(wait_until, lambda: questions(buyer), "a question")
            assert (question["input"]["mint"], question["input"]["fee_msats"]) == (other.url, 0)
            trunkline(buyer.home, "approve", question["approval_id"])
            assert (await asyncio.wrap_future(call))["status"] == "succeeded"
            assert ("/v1/swap" in other.asked, "/v1/swap" in mint.asked) == (True, False)


@pytest.mark.parametrize("answer", ["none", "cut"])
async def test_a_payment_whose_mint_does_not_answer_is_unknown_and_nothing_is_lost(
    short_path: Path, mint: MintServer, answer: str
) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        with running(short_path / "buyer", buyer_config(seller, mint)) as buyer:
            fund(buyer, mint, 100_000)
            await known(buyer, 2)
            if answer == "none":
                mint.instead["/v1/swap"] = (500, b"")
            else:
                mint.garbled["/v1/swap"] = lambda status, data: (status, data[:40])
            found = await bought(buyer)
            assert found["status"] == "failed", found
            assert "is unknown" in found["error"]["message"], found
            assert not found["error"]["retryable"]
            paid = [one for one in buyer.entries(kind="call.settled") if one.get("status") == "unknown"]
            assert len(paid) == 1
            mint.instead.clear()

            def is_whole() -> bool:
                # What the mint never heard of is back at once; what it locked, when the lock has ended.
                has, locked = ecash(buyer, mint)
                return has + locked == 100_000 and (locked > 0) == (answer == "cut")

            await asyncio.to_thread(wait_until, is_whole, "all of the ecash")
            assert receipts_of(buyer) == []


@requirement("OA-058")
async def test_for_a_job_that_fails_nothing_is_redeemed_and_nothing_that_it_made_is_given(
    short_path: Path, mint: MintServer
) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        async with Buyer(seller.ready["relay"]) as buyer:
            provider = await buyer.provider()
            request = await buyer.ask(SANDBOX, {"commands": [{"cmd": "echo made; exit 3"}]})
            [asked] = await buyer.until(lambda: buyer.about(request, 7000), "what it costs")
            wanted = read_request(next(tag[2] for tag in asked.tags_named("amount") if tag[2].startswith("creqA")))
            later, key = int(time.time()) + 4 * 3600, bytes.fromhex(wanted.key)
            token = mint.mint.locked(wanted.amount, key=key, locktime=later, **named_by(wanted))
            token = msgspec.structs.replace(token, mint=mint.url)
            zap = nutzaps.nutzap_draft(token, provider, request.id, 5050, created_at=int(time.time()))
            await buyer.publish(zap)
            found = await buyer.result(request)
            assert found.amount_msats is None
            assert "stdout_preview" not in bytes(found.outputs).decode()
        assert "/v1/swap" not in mint.asked
        assert receipts_of(seller) == []
        assert ecash(seller, mint) == (0, 0)


def files_with(home: Path, secret: str) -> list[str]:
    """The files of a home in which this can be read."""
    return [str(file) for file in home.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]


def test_ecash_is_sent_as_a_token_that_another_home_receives_and_no_record_or_log_has_it(
    short_path: Path, mint: MintServer
) -> None:
    config = CONFIG + f'[nostr.wallet]\nmints = ["{mint.url}"]\n'
    with running(short_path / "ours", config) as ours, running(short_path / "theirs", config) as theirs:
        for exchange in (ours, theirs):
            asks_in_ecash(exchange)
        fund(ours, mint, 100_000)
        out = short_path / "token.txt"
        made = trunkline(ours.home, "wallet", "send", "13000", "--output", str(out))
        assert made.returncode == 0, made.stderr
        text = made.stdout.strip()
        token = read_token(text)
        assert (token.amount, token.mint, text[:6]) == (13, mint.url, "cashuB")
        assert out.read_text() == f"{text}\n"
        assert out.stat().st_mode & 0o777 == 0o600
        assert text not in made.stderr
        [shown] = [one for one in printed(ours.home, "wallet", "history")["history"] if one["step"] == "token_sent"]
        again = printed(ours.home, "wallet", "send", "--again", shown["token"])
        assert again == {"id": shown["token"], "token": text}
        # A file that is there is not written over, and nothing is sent then.
        refused = trunkline(ours.home, "wallet", "send", "1000", "--output", str(out))
        assert (refused.returncode, ecash(ours, mint)) == (2, (87_000, 0))
        with out.open() as file:
            command = [sys.executable, "-m", "trunkline", "--home", str(theirs.home), "wallet", "receive", "-"]
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == f"received 13,000 msats of {mint.url}\n", done.stderr
        assert ecash(theirs, mint) == (13_000, 0)
        twice = trunkline(theirs.home, "wallet", "receive", text)
        assert (twice.returncode, "spent" in twice.stderr, text in twice.stderr) == (1, True, False)
        # Our own is taken back in the same way.
        mine = printed(ours.home, "wallet", "send", "5000", "--mint", mint.url)["token"]
        assert printed(ours.home, "wallet", "receive", mine) == {"mint": mint.url, "msats": 5000}
        assert ecash(ours, mint) == (87_000, 0)
        secrets = [proof.secret for proof in (*token.proofs, *read_token(mine).proofs)]
        for exchange in (ours, theirs):
            assert [name for secret in (text, mine, *secrets) for name in files_with(exchange.home, secret)] == []
