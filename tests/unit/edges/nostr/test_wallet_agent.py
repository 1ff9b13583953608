"""Paying for jobs that we buy: one call, one payment, one end, whatever is approved, denied, lost or claimed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.requirement import requirement
from tests.unit.edges.nostr.market import EMBED, EMBEDDING, PROVIDERS, RANK, RERANK, Market, ranked
from trunkline.config import Config, Nostr, NostrWallet
from trunkline.edges.background import Background
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.messages import Status
from trunkline.edges.nostr.names import PAY, WALLET_AGENT
from trunkline.edges.nostr.payments import Invoiced
from trunkline.edges.nostr.settling import is_open, is_right
from trunkline.edges.nostr.till import Priced
from trunkline.edges.nostr.wallet_agent import WalletAgent
from trunkline.entries import CallRefused
from trunkline.events import CancelRequested
from trunkline.jobs import embedding
from trunkline.jobs.schemas import job_types
from trunkline.ledger import receipts as on_record
from trunkline.model import Principal, ToolDefinition
from trunkline.model import Status as CallStatus
from trunkline.money import bolt11, proving, wallet
from trunkline.money.cashu.locks import JOB_TAG
from trunkline.money.cashu.requests import PaymentRequest, write_request
from trunkline.money.rail import RailFailed, Way
from trunkline.money.wallet import Held
from trunkline.testing.memory import ANY_OBJECT, BOSS, MadeCall, MemoryExchange
from trunkline.testing.nostr import ecash_without_mints, till_of

FUNDED = 10_000
ANNA = PROVIDERS[0]
JOB_HASH = job_types()[EMBEDDING].job_hash(EMBED)
GOOD = embedding.embed(EMBED["texts"], embedding.HASHING, dimensions=8)


class Shop:
    """A market with a wallet; ``seller`` is an account that a provider asks to be paid into."""

    def __init__(self, market: Market | None = None, outside: Any = None, **settings: Any) -> None:
        is_new = market is None
        config = Config()
        exchange = MemoryExchange(policy=config.policy(), config=config)
        self.market = market or Market(exchange=exchange)
        given = self.market.exchange.surroundings()
        self.payments = self.market.payments
        self.till = till_of(given, self.market.settings, ANNA, self.payments)
        ecash = ecash_without_mints(given, self.payments)
        self.agent = WalletAgent(
            given.feed, NostrWallet(**settings), self.payments, self.till, partial(is_open, given.views), "",
            () if outside is None else (outside,), ecash, lambda: "ws://relay", Background(given.feed), given.process,
            "0", given.entropy,
        )  # fmt: skip
        given.feed.guard(WALLET_AGENT, self.agent.guard)
        self.agent.arrive()
        if is_new:
            self.payments.take(wallet.Opened("seller", "key"))
            self.payments.take(wallet.Funded("exchange", FUNDED))
            self.market.announce(ANNA)

    def restarted(self) -> Shop:
        return Shop(self.market.restarted())

    def asked_to_pay(self, msats: int = 500, text: str = "", about: str = JOB_HASH) -> Invoiced:
        """The provider that was asked wants money first."""
        now = self.market.exchange.now()
        made = self.payments.invoice("seller", msats, f"q{msats}", about, now, 600)
        self.market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=msats, invoice=text or made.text)
        return made

    def answer_question(self, *, approved: bool = True) -> dict[str, Any]:
        """Answer the open question; what it showed."""
        [question] = self.market.exchange.views.questions()
        assert question.tool_id == PAY
        self.market.exchange.answer(question.approval_id, approved=approved)
        return dict(json.loads(bytes(question.input or b"{}")))

    def receipts(self) -> list[Any]:
        return [json.loads(bytes(one)) for one in self.market.exchange.views.receipts(100, None)[0]]

    def balances(self) -> tuple[int, int]:
        found = self.payments.wallet
        assert found.total == FUNDED
        return found.balances["exchange"], found.balances["seller"]


@requirement("OA-063", "OA-079")
def test_a_payment_is_approved_held_and_released_when_the_result_was_found_right() -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    assert shop.balances() == (FUNDED, 0)
    shown = shop.answer_question()
    assert (shown["amount_msats"], shown["payee"], shown["paid_before"]) == (500, ANNA.npub, {"count": 0, "msats": 0})
    assert shop.balances() == (FUNDED - 500, 0)
    shop.market.answer(ANNA, GOOD)
    assert call.outcome.status is CallStatus.SUCCEEDED
    assert shop.balances() == (FUNDED - 500, 500)
    [receipt] = shop.receipts()
    assert (receipt["provider_id"], receipt["session_id"]) == (ANNA.npub, call.call_id)
    assert receipt["approval_rule_id"] == "builtin-untrusted"


def test_only_a_provider_whom_a_job_that_succeeded_names_is_right_by_its_record() -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    shop.market.answer(ANNA, GOOD)
    made = shop.market.exchange.views.call(str(call.call_id))
    assert made is not None
    assert is_right(made, ANNA.npub)
    assert not is_right(made, PROVIDERS[1].npub)
    assert not is_right(msgspec.structs.replace(made, status=CallStatus.FAILED), ANNA.npub)
    assert not is_right(None, ANNA.npub)


@pytest.mark.parametrize("correlation", [None, "chat 1"])
def test_a_strangers_call_that_names_a_bought_job_or_its_payment_is_no_part_of_the_receipt(
    correlation: str | None,
) -> None:
    shop = Shop()
    exchange = shop.market.exchange
    mallory = Principal("http:mallory")
    slow = ToolDefinition("com.example.slow/wait", "slow", ANY_OBJECT, side_effects=False)
    exchange.attach("com.example.slow", slow)
    call = shop.market.call(EMBEDDING, correlation_id=correlation)
    exchange.call(slow.tool_id, {}, by=mallory, correlation_id=call.call_id, causation_id=call.call_id)
    shop.asked_to_pay()
    [question] = exchange.views.questions()
    assert question.call_id is not None
    exchange.call(slow.tool_id, {}, by=mallory, correlation_id=question.call_id)
    shop.answer_question()
    shop.market.answer(ANNA, GOOD)
    [receipt] = shop.receipts()
    assert receipt["approval_rule_id"] == "builtin-untrusted"
    exchange.store()
    [one] = on_record.listed(exchange.ledger.reader)
    lines = [json.loads(line) for line in on_record.evidence(exchange.ledger.reader, one).trajectory]
    called = [line["tool"] for line in lines if line["event"] == "ToolCall"]
    assert called == [f"nostr.jobs/{EMBEDDING}", PAY]
    assert lines[-1]["event"] == "SessionEnd"


@pytest.mark.parametrize("end", ["denied", "lied", "failed", "canceled"])
def test_money_comes_back_from_whoever_did_not_do_it(end: str) -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    shop.answer_question(approved=end != "denied")
    match end:
        case "lied":
            shop.market.answer(ANNA, GOOD, output_hash="sha256:" + "0" * 64)
        case "failed":
            shop.market.feedback(ANNA, Status.ERROR, "no")
        case "canceled":
            shop.market.exchange.feed.feed([_cancel(call)])
        case _:
            pass
    shop.market.exchange.advance(6)  # nobody else announces himself meanwhile
    assert call.outcome.status in {CallStatus.FAILED, CallStatus.CANCELED}
    assert shop.balances() == (FUNDED, 0)
    assert shop.receipts() == []
    why = call.outcome.fault
    assert (why is not None and "500 msats asked for it were not paid: " in why.message) is (end == "denied")


def test_a_payment_beyond_the_budget_names_amount_limit_setting_and_call_and_so_does_the_record() -> None:
    shop = Shop(max_msats_per_job=499)
    call = shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    shop.market.exchange.advance(6)
    problem = "this job would cost 500 msats, and max_msats_per_job is 499 in [nostr.wallet]"
    assert call.outcome.fault is not None
    told = call.outcome.fault.message
    assert told.startswith("1 provider was asked for oa.embedding.v1, and none gave a result that counts; ")
    exchange = shop.market.exchange
    exchange.store()
    reader = exchange.ledger.reader
    [refused] = [one for one in reader.entries(1, reader.head()[0]) if isinstance(one, CallRefused)]
    assert told.endswith(f"500 msats asked for it were not paid: {problem} (call {refused.call_id})")
    assert (refused.rule, refused.why) == ("wallet-budget", problem)


def _cancel(call: MadeCall) -> CancelRequested:
    return CancelRequested(0, "c", BOSS, call_id=call.call_id)


def _asked_other(shop: Shop) -> None:
    made = shop.payments.invoice("seller", 500, "q", JOB_HASH, shop.market.exchange.now(), 600)
    shop.market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=499, invoice=made.text)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda shop: shop.asked_to_pay(text="lnbcrt1"), "no invoice"),
        (_asked_other, "another amount"),
        (lambda shop: shop.asked_to_pay(about="sha256:" + "0" * 64), "for another job"),
    ],
)
def test_what_is_no_honest_invoice_is_not_even_asked_about(made: Callable[[Shop], object], why: str) -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    made(shop)
    shop.market.exchange.advance(6)
    assert shop.market.exchange.views.questions() == []
    assert why in json.dumps(msgspec.to_builtins(call.outcome.fault))


def test_who_asks_for_more_than_is_bid_is_not_paid() -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING, bid_msats=499)
    shop.asked_to_pay()
    shop.market.exchange.advance(6)
    assert "499 are bid" in json.dumps(msgspec.to_builtins(call.outcome.fault))


def test_a_job_goes_on_after_a_crash_and_is_paid_once() -> None:
    shop = Shop()
    shop.market.call(EMBEDDING)
    invoice = shop.asked_to_pay()
    shop.answer_question()
    request = shop.market.request_to(ANNA)
    after = shop.restarted()
    assert after.balances() == (FUNDED - 500, 0)
    after.market.exchange.advance(2)  # the call is delivered again
    # Relays tell it again: the same invoice, which is held.
    at = int(after.market.exchange.now().wall)
    draft = messages.feedback_draft(
        after.market.settings.kinds, request, Status.PAYMENT_REQUIRED, created_at=at, amount_msats=500,
        invoice=invoice.text,
    )  # fmt: skip
    after.market.tell("answers", events.signed(draft, ANNA))
    assert after.market.exchange.views.questions() == []
    after.market.answer(ANNA, GOOD, request=request)
    assert after.balances() == (FUNDED - 500, 500)
    assert len(after.receipts()) == 1


@pytest.mark.parametrize("is_right", [True, False])
def test_what_was_held_before_a_crash_ends_with_the_job_though_nobody_asks_for_it_again(is_right: bool) -> None:
    shop = Shop()
    shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    shop.answer_question()
    request = shop.market.request_to(ANNA)
    after = shop.restarted()
    after.market.exchange.advance(2)  # the call is delivered again; the relay has forgotten what the provider asked
    after.market.answer(ANNA, GOOD, request=request, output_hash="" if is_right else "sha256:" + "0" * 64)
    after.market.exchange.advance(6)
    assert after.balances() == ((FUNDED - 500, 500) if is_right else (FUNDED, 0))
    assert len(after.receipts()) == is_right


def test_nobody_is_asked_to_pay_for_a_job_that_is_over() -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    shop.market.exchange.feed.feed([_cancel(call)])
    assert shop.market.exchange.views.questions() == []


def test_nothing_is_held_for_a_job_that_is_over_and_a_provider_is_paid_once_for_a_job() -> None:
    shop = Shop()
    call = shop.market.call(EMBEDDING)
    job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": "ab" * 32, "order": call.call_id}
    assert paid(shop, job=job).output["state"] == "held"
    assert "by another invoice" in str(paid(shop, job=job, quote="another").outcome.fault)
    shop.market.exchange.feed.feed([_cancel(call)])
    assert shop.balances() == (FUNDED, 0)
    assert "the job is over" in str(paid(shop, job=job, quote="third").outcome.fault)
    assert shop.payments.wallet.held == {}


def test_an_agreement_below_the_quorum_that_time_ends_pays_nobody() -> None:
    shop = Shop()
    shop.market.announce(*PROVIDERS[1:3])
    call = shop.market.call(RERANK, providers=3)
    about = job_types()[RERANK].job_hash(RANK)
    made = shop.payments.invoice("seller", 500, "q", about, shop.market.exchange.now(), 600)
    shop.market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=500, invoice=made.text)
    shop.answer_question()
    shop.market.answer(ANNA, ranked("cat", "dog", "cow"))
    assert shop.balances() == (FUNDED - 500, 0)
    shop.market.exchange.advance(700)
    assert call.outcome.status is not CallStatus.SUCCEEDED
    assert shop.balances() == (FUNDED, 0)
    assert shop.receipts() == []


def test_an_invoice_that_names_no_job_is_asked_about_whatever_the_rules_allow() -> None:
    shop = Shop()
    made = paid(shop, about="lunch")  # the operator's own call, which every rule allows
    assert made.answer is None
    [question] = shop.market.exchange.views.questions()
    assert "does not say which job it is for" in question.reason
    shop.market.exchange.answer(question.approval_id)
    assert made.outcome.fault is not None
    assert "no call waits" in made.outcome.fault.message  # it was let through, and the wallet looked at it


def test_the_question_says_whether_the_invoice_names_the_job_and_the_receipt_what_is_only_a_word() -> None:
    for about, names_job in ((JOB_HASH, True), ("lunch", False)):
        shop = Shop()
        shop.market.call(EMBEDDING)
        shop.asked_to_pay(about=about)
        assert shop.answer_question()["invoice_names_job"] is names_job
        shop.market.answer(ANNA, GOOD)
        reader = shop.market.exchange.ledger.reader
        [found] = [proving.prove(on_record.evidence(reader, one)) for one in on_record.listed(reader)]
        assert [text.partition(":")[0] for text in found.untied] == ([] if names_job else ["invoice"])


def test_a_crash_between_verdict_and_release_ends_in_the_release_and_its_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop()
    shop.market.call(EMBEDDING)
    shop.asked_to_pay()
    shop.answer_question()
    monkeypatch.setattr(shop.market.settling, "end", lambda _: None)
    shop.market.answer(ANNA, GOOD)
    assert shop.balances() == (FUNDED - 500, 0)
    after = shop.restarted()
    after.market.settling.take_up(after.market.exchange.now())
    assert after.balances() == (FUNDED - 500, 500)
    assert len(after.receipts()) == 1


# --- what is said to the tool itself ----------------------------------------------------------------------------------


def wish(shop: Shop, **changes: Any) -> dict[str, Any]:
    """A payment as the buyer asks for it; the seller signed what asks for it."""
    now = shop.market.exchange.now()
    quote, about = changes.pop("quote", "q"), changes.pop("about", JOB_HASH)
    made = shop.payments.invoice("seller", 500, quote, about, now, 600)
    request_id = "ab" * 32
    tags = (("e", request_id), ("amount", "500", changes.pop("signed_invoice", made.text)))
    asked = events.signed(events.Draft(7000, "", tags, int(now.wall)), changes.pop("signer", ANNA))
    job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": request_id}
    body = {"amount_msats": 500, "payee": ANNA.npub, "job": job, "invoice": made.text}
    return {**body, "asked": json.loads(events.encoded(asked)), **changes}


def paid(shop: Shop, **changes: Any) -> MadeCall:
    return shop.market.exchange.call(PAY, wish(shop, **changes))


def test_an_honest_wish_is_held() -> None:
    shop = Shop()
    job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": "ab" * 32}
    job["order"] = str(shop.market.call(EMBEDDING).call_id)
    assert paid(shop, job=job).output["state"] == "held"
    assert paid(shop, job=job).outcome.status is CallStatus.FAILED  # the same invoice once more
    assert shop.balances() == (FUNDED - 500, 0)


def test_what_is_paid_by_hand_for_a_job_that_no_call_waits_for_is_not_held_since_nothing_would_end_it() -> None:
    shop = Shop()
    made = paid(shop)
    assert made.outcome.status is CallStatus.FAILED
    assert made.outcome.fault is not None
    assert "no call waits for this job" in made.outcome.fault.message
    assert shop.balances() == (FUNDED, 0)
    assert shop.payments.wallet.held == {}


def test_what_is_paid_by_hand_for_a_job_done_here_is_judged_by_who_does_it() -> None:
    shop = Shop()
    now = shop.market.exchange.now()
    inputs = msgspec.Raw(json.dumps(EMBED).encode())
    draft = messages.request_draft(
        shop.market.settings.kinds, EMBEDDING, inputs, JOB_HASH, created_at=int(now.wall), nonce="n"
    )
    request = messages.read_request(events.signed(draft, PROVIDERS[1]))
    price = shop.till.quote(request, Priced(EMBEDDING, 500, JOB_HASH), now)
    assert price is not None
    tags = (("e", request.id), ("amount", "500", price.invoice))
    asked = events.signed(events.Draft(7000, "", tags, int(now.wall)), ANNA)
    shop.till.asked(price.payment_hash, asked)
    job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": request.id}
    made = paid(shop, job=job, invoice=price.invoice, asked=json.loads(events.encoded(asked)))
    assert made.output["state"] == "held"
    assert shop.payments.wallet.held[price.payment_hash].judge == "provider"
    shop.till.settle(request.id, "it failed", lambda _paid: None)
    assert shop.payments.wallet.held == {}
    assert shop.balances() == (FUNDED, 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"amount_msats": 501}, "the invoice is over 500"),
        ({"amount_msats": 499}, "the invoice is over 500"),
        ({"payee": PROVIDERS[1].npub}, "did not sign"),
        ({"signed_invoice": "lnbcrt1"}, "another invoice"),
        ({"invoice": "lnbcrt1"}, "invoice:"),
        ({"asked": {"id": "x"}}, "asked:"),
        ({"job": {"schema_id": "x", "job_hash": JOB_HASH, "request_id": "cd" * 32}}, "another job"),
        ({"about": "sha256:" + "0" * 64}, "for another job"),
        ({"invoice_names_job": False}, "not what the invoice says"),
        ({"about": "lunch", "invoice_names_job": True}, "not what the invoice says"),
        ({"fee_msats": 1}, "what a mint takes, and there is none"),
        ({"paid_before": {"count": 1, "msats": 500}}, "and no more"),
        ({"amount_msats": 10**9}, "max_msats_per_job"),
        ({"amount_msats": "500"}, "amount_msats"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wish_that_is_not_what_it_claims_moves_nothing(changes: dict[str, Any], why: str) -> None:
    shop = Shop()
    made = paid(shop, **changes)
    assert made.outcome.fault is not None
    assert why in json.dumps(msgspec.to_builtins(made.outcome.fault))
    assert shop.balances() == (FUNDED, 0)


def test_an_invoice_of_somebody_elses_wallet_needs_one_that_may_prepay() -> None:
    shop = Shop()
    text = foreign(shop)
    made = paid(shop, invoice=text, signed_invoice=text)
    assert "prepay = true" in str(made.outcome.fault)


def foreign(shop: Shop) -> str:
    return bolt11.written(b"\x02" * 32, 500, "cd" * 32, JOB_HASH, int(shop.market.exchange.now().wall), 600)


class Silent:
    """A wallet elsewhere whose answer never comes."""

    def __init__(self, error: RailFailed) -> None:
        self.asked: list[str] = []
        self._error = error

    def reaches(self, request: str) -> bool:
        return not request.startswith("creq")

    def need_ready(self, wish: Held, way: Way) -> None:
        pass

    async def pay(self, wish: Held, way: Way) -> str:
        self.asked.append(wish.invoice)
        raise self._error


async def turns() -> None:
    """Let what was spawned take its turns: nothing in it waits for anything but these."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_unknown", [True, False])
async def test_a_payment_whose_end_nobody_knows_is_unknown_and_never_sent_again(is_unknown: bool) -> None:
    outside = Silent(RailFailed("no answer", is_unknown=is_unknown))
    shop = Shop(outside=outside, connection="env:X", prepay=True)
    text = foreign(shop)
    made = paid(shop, invoice=text, signed_invoice=text)
    await turns()
    assert made.outcome.status is (CallStatus.UNKNOWN if is_unknown else CallStatus.FAILED)
    assert outside.asked == [text]
    second = paid(shop, invoice=text, signed_invoice=text)
    await turns()
    assert second.outcome.status is CallStatus.FAILED
    # What failed for certain may be tried again; what nobody knows may not.
    assert len(outside.asked) == (1 if is_unknown else 2)


class Purse:
    """Ecash that is handed over at once."""

    def __init__(self) -> None:
        self.paid: list[Held] = []

    def reaches(self, request: str) -> bool:
        return request.startswith("creqA")

    def need_ready(self, wish: Held, way: Way) -> None:
        if wish.msats > 20_000:
            raise wallet.Refused("PAYMENT_FAILED", "there is not enough ecash")

    async def pay(self, wish: Held, way: Way) -> str:
        self.paid.append(wish)
        return ""


MINT = "https://mint.example"


def ecash_wish(shop: Shop, sats: int = 13, **changes: Any) -> dict[str, Any]:
    """A payment in ecash as the buyer asks for it."""
    tags = ((JOB_TAG, changes.pop("about", JOB_HASH)),) if changes.get("about") != "" else ()
    changes.pop("about", None)
    text = write_request(PaymentRequest(sats, "sat", (MINT,), "02" + "ab" * 32, tags=tags))
    request_id = "ab" * 32
    draft = events.Draft(7000, "", (("e", request_id), ("amount", str(sats * 1000), text)), 5)
    asked = json.loads(events.encoded(events.signed(draft, ANNA)))
    job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": request_id}
    body = {"amount_msats": sats * 1000, "payee": ANNA.npub, "job": job, "invoice": text, "mint": MINT, "asked": asked}
    return {**body, **changes}


async def test_ecash_is_handed_over_once_counts_at_once_and_is_not_yet_paid() -> None:
    purse = Purse()
    shop = Shop(outside=purse, prepay=True, mints=(MINT,))
    made = shop.market.exchange.call(PAY, ecash_wish(shop, mint=f"{MINT}/"))
    await turns()
    assert made.output["state"] == "handed_over"
    assert (made.output["rail"], purse.paid[0].msats) == ("cashu", 13_000)
    assert purse.paid[0].payment_hash in shop.payments.wallet.spent
    assert shop.payments.wallet.paid == {}
    again = shop.market.exchange.call(PAY, ecash_wish(shop))
    await turns()
    assert again.outcome.status is CallStatus.FAILED
    assert len(purse.paid) == 1


@pytest.mark.parametrize(
    ("settings", "changes", "why"),
    [
        ({"prepay": False}, {}, "prepay = true"),
        ({"mints": ()}, {}, "not listed"),
        ({}, {"mint": "https://other.example"}, "not listed"),
        ({"mints": (MINT, "https://b.example")}, {"mint": "https://b.example"}, "none whose ecash"),
        ({}, {"mint": ""}, "none whose ecash"),
        ({}, {"about": ""}, "names no job"),
        ({}, {"about": "sha256:" + "0" * 64}, "for another job"),
        ({}, {"sats": 21}, "not enough ecash"),
        ({"max_msats_per_job": 12_999}, {}, "max_msats_per_job"),
        ({}, {"amount_msats": 13_001}, "is over 13000"),
    ],
)
async def test_ecash_that_may_not_be_paid_is_refused_and_nothing_is_handed_over(
    settings: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    purse = Purse()
    shop = Shop(outside=purse, **({"prepay": True, "mints": (MINT,)} | settings))
    made = shop.market.exchange.call(PAY, ecash_wish(shop, **changes))
    await turns()
    assert made.outcome.fault is not None
    assert why in json.dumps(msgspec.to_builtins(made.outcome.fault))
    assert purse.paid == []


def test_a_mint_beside_an_invoice_of_lightning_is_not_what_it_claims() -> None:
    shop = Shop(mints=(MINT,))
    made = paid(shop, mint=MINT)
    assert made.outcome.fault is not None
    assert "none whose ecash" in made.outcome.fault.message


def _creq(mint: str = MINT, sats: int = 13, job_hash: str = JOB_HASH) -> str:
    tags = ((JOB_TAG, job_hash),) if job_hash else ()
    return write_request(PaymentRequest(sats, "sat", (mint,), "02" + "ab" * 32, tags=tags))


@pytest.mark.parametrize(
    ("amount", "text", "why"),
    [
        (13_000, _creq("https://other.example"), "other mints"),
        (13_001, _creq(), "another amount"),
        (13_000, _creq(job_hash="sha256:" + "0" * 64), "for another job"),
        (13_000, _creq(job_hash=""), "names no job"),
        (13_000, "creqAxx", "no invoice"),
    ],
)
def test_what_is_no_honest_request_for_ecash_is_not_even_asked_about(amount: int, text: str, why: str) -> None:
    market = Market(wallet=NostrWallet(mints=(MINT,), prepay=True))
    market.announce(ANNA)
    call = market.call(EMBEDDING)
    market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=amount, invoice=text)
    market.exchange.advance(6)
    assert market.exchange.views.questions() == []
    assert why in json.dumps(msgspec.to_builtins(call.outcome.fault))


class PricedMints:
    """Ecash of mints: what paying would cost, None if there is not enough."""

    def __init__(self, fee_msats: int | None) -> None:
        self.fee_msats = fee_msats

    def way(self, _request: str) -> Way | None:
        return None if self.fee_msats is None else Way(MINT, self.fee_msats)

    def look_soon(self) -> None:
        """Nothing is handed over."""

    def paid_by(self, _payment_hash: str, _order: str) -> str:
        return ""


@pytest.mark.parametrize(
    ("invoice_msats", "ecash_sats", "fee_msats", "bid", "is_ecash"),
    [
        (12_500, 13, 0, None, False),
        (13_500, 13, 0, None, True),
        (13_000, 13, 0, None, True),
        (13_500, 13, 1_000, None, False),
        (1_000, 5_000, 0, 2_000, False),
        (14_000, 13, None, None, False),
        (14_000, 15, 0, 14_500, False),
    ],
)
def test_of_two_ways_to_pay_it_is_the_cheaper_with_its_fee_that_can_be_paid_within_the_bid(
    invoice_msats: int, ecash_sats: int, fee_msats: int | None, bid: int | None, is_ecash: bool
) -> None:
    asked = _asked_both(invoice_msats, _creq(sats=ecash_sats), ecash_sats * 1000, fee_msats, bid)
    assert asked["amount_msats"] == (ecash_sats * 1000 if is_ecash else invoice_msats)
    assert (asked.get("mint"), asked.get("fee_msats")) == ((MINT, fee_msats) if is_ecash else (None, None))


@pytest.mark.parametrize(("mints", "prepay"), [(("https://other.example",), True), ((), False), ((MINT,), False)])
def test_ecash_that_may_not_be_paid_with_is_no_way_however_cheap(mints: tuple[str, ...], prepay: bool) -> None:
    asked = _asked_both(14_000, _creq(), 13_000, 0, None, mints=mints, prepay=prepay)
    assert (asked["amount_msats"], asked.get("mint")) == (14_000, None)


def _asked_both(
    invoice_msats: int, request: str, ecash_msats: int, fee_msats: int | None, bid: int | None, **settings: Any
) -> dict[str, Any]:
    """What a person is asked when a provider lets us choose."""
    settings = {"mints": (f"{MINT}/",), "prepay": True} | settings
    shop = Shop(**settings)
    shop.market.agent.buyer._settings = Nostr(wallet=NostrWallet(**settings))
    shop.market.settling._ecash = PricedMints(fee_msats)
    shop.market.call(EMBEDDING, **({} if bid is None else {"bid_msats": bid}))
    now = shop.market.exchange.now()
    invoice = shop.payments.invoice("seller", invoice_msats, "q", JOB_HASH, now, 600).text
    also = (("amount", str(ecash_msats), request),)
    shop.market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=invoice_msats, invoice=invoice, also=also)
    [question] = shop.market.exchange.views.questions()
    return dict(json.loads(bytes(question.input or b"{}")))


async def test_what_a_mint_takes_counts_for_the_budget() -> None:
    purse = Purse()
    shop = Shop(outside=purse, prepay=True, mints=(MINT,), max_msats_per_day=30_000)
    made = shop.market.exchange.call(PAY, ecash_wish(shop, fee_msats=5_000))
    await turns()
    assert made.output["state"] == "handed_over"
    denied = shop.market.exchange.call(PAY, ecash_wish(shop, sats=12, fee_msats=1_000))
    await turns()
    assert denied.outcome.fault is not None
    assert "31000 msats would be paid within a day" in denied.outcome.fault.message
    assert len(purse.paid) == 1
