"""A person who wants to know whether the record is whole, and what was paid for which job."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import WAIT_MS, signed_in, visit
from tests.crash.money9 import FUNDED, JOBS, PRICED
from tests.nostr import Buyer
from tests.running import Running, running, wait_until
from tests.wallets import WalletClient

pytestmark = pytest.mark.timeout(150)
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An exchange that is paid for jobs, and whose heads are published."""
    folder = tmp_path_factory.mktemp("p")
    anchor = f'[ledger]\nanchor = {{ file = "{folder}/heads" }}\n'
    with running(folder / "home", anchor + PRICED) as found:
        yield found


@pytest.fixture(scope="module")
def desk(browser: Browser, priced: Running) -> Iterator[Page]:
    profile = browser.new_context(viewport={"width": 1280, "height": 800})
    yield signed_in(profile, priced)
    profile.close()


def pay(exchange: Running) -> str:
    """Have a job done and paid; the id of its receipt."""
    client = WalletClient.of(exchange.ready["relay"], b"\x07" * 32, "0" * 64)
    opened = exchange.call("nostr.wallet/new", {"name": "alice", "client": client.signer.public})["output"]
    exchange.call("nostr.wallet/fund", {"name": "alice", "msats": FUNDED})

    async def paid() -> None:
        async with (
            Buyer(exchange.ready["relay"]) as buyer,
            WalletClient.of(exchange.ready["relay"], b"\x07" * 32, opened["wallet"]) as wallet,
        ):
            request = await buyer.ask(*JOBS[0], nonce="1")
            [invoice] = await buyer.until(lambda: buyer.about(request, 7000), "an invoice")
            await wallet.send("pay_invoice", {"invoice": str(invoice.tag("amount")[2])})

    # Playwright has the loop of this thread.
    other = threading.Thread(target=lambda: asyncio.run(paid()))
    other.start()
    other.join(60)
    [receipt] = wait_until(lambda: exchange.request("GET", "/v1/receipts")[1]["receipts"], "a receipt")
    return str(receipt["receipt_id"])


def test_a_receipt_leads_to_its_job_and_every_link_was_followed(desk: Page, priced: Running) -> None:
    visit(desk, priced, "jobs")
    expect(desk.get_by_text("No receipt yet.")).to_be_visible()
    receipt_id = pay(priced)
    # It comes by itself, and leads to its links.
    desk.get_by_role("table", name="Receipts").get_by_role("link", name=receipt_id).click()
    expect(desk.get_by_text("It holds: every link was followed just now.")).to_be_visible()
    for name in ("receipt", "payment", "policy", "trajectory", "job"):
        expect(desk.locator(f'[data-link="{name}"]')).to_contain_text("holds")
    expect(desk.get_by_label("Receipt", exact=True)).to_contain_text(receipt_id)
    desk.get_by_role("link", name="The job that was paid for").click()
    expect(desk.get_by_role("heading", name="trunkline.jobs/oa.embedding.v1")).to_be_visible()
    visit(desk, priced, "jobs/rcpt_none")
    expect(desk.get_by_text("No such receipt.")).to_be_visible()


def test_the_record_is_verified_when_somebody_asks_and_the_page_says_up_to_where(desk: Page, priced: Running) -> None:
    visit(desk, priced, "ledger")
    last = priced.entries()[-1]["n"]
    desk.get_by_role("button", name="Verify now").click()
    expect(desk.get_by_role("main")).to_contain_text(re.compile(r"Verifiedup to entry [0-9,]+"), timeout=60_000)
    verified = priced.request("GET", "/v1/status")[1]["entries_verified"]
    assert verified >= last
    expect(desk.get_by_role("main")).to_contain_text(f"up to entry {verified:,}")
    anchored = wait_until(lambda: priced.request("GET", "/v1/status")[1]["anchored_head"], "a published head")
    assert anchored in Path(priced.home.parent / "heads").read_text()
    visit(desk, priced, "now")
    visit(desk, priced, "ledger")
    expect(desk.get_by_role("main")).to_contain_text(re.compile(r"Anchored headentry [0-9,]+"))
