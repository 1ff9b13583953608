"""A purchase that the exchange is stopped in the middle of, with a provider that never says anything again: its call
ends once and in its time, nobody is asked to pay for it any more, and what became of money is said.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.edges.nostr.market import EMBEDDING, PROVIDERS, RERANK, Market, ranked
from tests.unit.edges.nostr.test_wallet_agent import ANNA, FUNDED, GOOD, JOB_HASH, MINT, Shop, _creq, turns
from trunkline.config import Config, NostrWallet
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.messages import Status
from trunkline.edges.nostr.order_record import CATCH_UP_S, PROCESS
from trunkline.edges.nostr.orders import DEFAULT_S
from trunkline.edges.nostr.settling import Settling
from trunkline.edges.nostr.wallet_agent import WalletAgent
from trunkline.entries import CallAccepted, CallSettled
from trunkline.ledger import receipts as on_record
from trunkline.ledger import wallets
from trunkline.model import Status as CallStatus
from trunkline.model import ToolDefinition
from trunkline.money import bolt11, proving, wallet
from trunkline.money.rail import Way
from trunkline.money.wallet import Held
from trunkline.testing.memory import ANY_OBJECT, MadeCall, MemoryExchange

JUDGE = "com.example.judge/same"
BERT = PROVIDERS[1]
PREIMAGE = bytes(31) + b"\x05"
MSATS = 500
# Far into the time of the job, so that a time that begins anew at a start is seen.
BEFORE_S = DEFAULT_S * 2 / 3


class Elsewhere:
    """Pays at once, by Lightning or in ecash, if ``answers``; and knows what ecash it handed over, as a purse does."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.paid: list[Held] = []
        self.handed_over: dict[tuple[str, str], str] = {}

    def reaches(self, _request: str) -> bool:
        return True

    def need_ready(self, wish: Held, way: Way) -> None:
        """It has enough."""

    async def pay(self, wish: Held, way: Way) -> str:
        self.paid.append(wish)
        if not self.answers:
            await asyncio.Event().wait()
        if way.mint:
            self.handed_over[wish.payment_hash, wish.order] = wish.call_id
        return "" if way.mint else PREIMAGE.hex()

    def look_soon(self) -> None:
        """Nothing is looked at."""

    def way(self, request: str) -> Way | None:
        return Way(MINT) if request.startswith("creq") else None

    def paid_by(self, payment_hash: str, order: str) -> str:
        return self.handed_over.get((payment_hash, order), "")


class Story:
    """One purchase in one exchange that is started several times."""

    def __init__(self, *, answers: bool = True) -> None:
        self.elsewhere = Elsewhere(answers=answers)
        self.wallet = NostrWallet(prepay=True, connection="env:X", mints=(MINT,))
        config = Config()
        exchange = MemoryExchange(policy=config.policy(), config=config)
        self.began = exchange.now().mono
        self.shop = self.opened(Market(exchange=exchange, wallet=self.wallet, judge=JUDGE))
        self.shop.payments.take(wallet.Opened("seller", "key"))
        self.shop.payments.take(wallet.Funded("exchange", FUNDED))
        judge = ToolDefinition(JUDGE, "says nothing", ANY_OBJECT, side_effects=False)
        exchange.attach("com.example.judge", judge, timeout_s=None)

    def opened(self, market: Market) -> Shop:
        market.settling._ecash = self.elsewhere
        return Shop(market, outside=self.elsewhere, prepay=True, connection="env:X", mints=(MINT,))

    @property
    def exchange(self) -> MemoryExchange:
        return self.shop.market.exchange

    def restart(self) -> None:
        self.shop = self.opened(self.shop.market.restarted())

    def called(self, schema_id: str = EMBEDDING, *sellers: Any) -> MadeCall:
        self.shop.market.announce(*(sellers or (ANNA,)))
        return self.shop.market.call(schema_id)

    def demanded(self, text: str, msats: int) -> None:
        self.shop.market.feedback(ANNA, Status.PAYMENT_REQUIRED, amount_msats=msats, invoice=text)

    def foreign_invoice(self, msats: int = MSATS) -> str:
        now = int(self.exchange.now().wall)
        payment_hash = hashlib.sha256(PREIMAGE).hexdigest()
        return bolt11.written(b"\x09" * 32, msats, payment_hash, JOB_HASH, now, 3600)

    def settled(self, call_id: str) -> list[CallSettled]:
        return [one for one in self.exchange.recorded(CallSettled) if one.call_id == call_id]


async def _looks(story: Story) -> MadeCall:
    return story.shop.market.call(EMBEDDING)


async def _asked(story: Story) -> MadeCall:
    return story.called()


async def _works(story: Story) -> MadeCall:
    call = story.called()
    story.shop.market.feedback(ANNA, Status.PROCESSING)
    return call


async def _waits_for_a_person(story: Story) -> MadeCall:
    call = story.called()
    story.shop.asked_to_pay(MSATS)
    return call


async def _held(story: Story) -> MadeCall:
    call = await _waits_for_a_person(story)
    story.shop.answer_question()
    assert story.shop.payments.wallet.held
    return call


async def _paid_elsewhere(story: Story) -> MadeCall:
    call = story.called()
    story.demanded(story.foreign_invoice(), MSATS)
    story.shop.answer_question()
    await turns()
    assert story.elsewhere.paid
    return call


async def _handed_over(story: Story) -> MadeCall:
    call = story.called()
    story.demanded(_creq(), 13_000)
    story.shop.answer_question()
    await turns()
    assert story.elsewhere.handed_over
    return call


async def _judged(story: Story) -> MadeCall:
    call = story.called(RERANK, ANNA, BERT)
    for provider in (ANNA, BERT):
        story.shop.market.answer(provider, ranked("cat", "dog", "cow"))
    assert [one for one in story.exchange.recorded(CallAccepted) if one.tool_id == JUDGE]
    return call


Step = Callable[[Story], Any]
# What is done before the stop, whether the wallet elsewhere answers, and what the outcome says of the money.
STEPS: dict[str, tuple[Step, bool, str]] = {
    "looking for a provider": (_looks, True, ""),
    "asked": (_asked, True, ""),
    "working": (_works, True, ""),
    "a person is asked whether to pay": (_waits_for_a_person, True, "nobody let 500 msats be paid for it"),
    "being paid": (_paid_elsewhere, False, "whether 500 msats asked for it were paid is unknown"),
    "paid by a wallet elsewhere": (_paid_elsewhere, True, "500 msats were paid for it first"),
    "handed over in ecash": (_handed_over, True, "comes back when its lock ends"),
    "held": (_held, True, ""),
    "judging": (_judged, True, ""),
}


@pytest.mark.parametrize("starts", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
async def test_stopped_at_any_step_a_purchase_ends_once_and_in_its_time_though_its_provider_is_silent(
    step: str, starts: int
) -> None:
    begin, answers, about_money = STEPS[step]
    story = Story(answers=answers)
    call_id = (await begin(story)).call_id
    is_looking = step == "looking for a provider"
    for number in range(starts):
        if not is_looking:
            story.exchange.advance(BEFORE_S / starts)
        await turns()
        story.restart()
        if number + 1 < starts:
            story.exchange.advance(2.5)  # it is delivered again
            await turns()
    deadline_s = story.began + DEFAULT_S + CATCH_UP_S - story.exchange.now().mono
    for _ in range(60):
        story.exchange.advance(deadline_s / 60)
        await turns()
    [settled] = story.settled(call_id)
    assert settled.status in {CallStatus.FAILED, CallStatus.UNKNOWN}
    assert settled.fault is not None
    # The third time it is not delivered any more: the exchange itself says that nobody knows.
    if settled.fault.code != "agent.lost":
        assert about_money in settled.fault.message
        # Where money is concerned, trying again could pay twice.
        assert not (about_money and settled.fault.retryable)
    assert (settled.fault.code == "agent.lost") is (starts == 3 and step != "being paid")
    assert story.exchange.views.questions() == []
    assert story.exchange.views.open_steps(PROCESS) == {}
    assert story.shop.payments.wallet.held == {}
    assert story.shop.payments.wallet.balances["exchange"] == FUNDED
    story.exchange.advance(60)
    await turns()
    ended = [one.call_id for one in story.exchange.recorded(CallSettled)]
    assert sorted(ended) == sorted(one.call_id for one in story.exchange.recorded(CallAccepted))


async def test_what_a_wallet_elsewhere_paid_before_a_stop_has_its_receipt_though_nobody_asks_for_it_again() -> None:
    story = Story()
    call_id = (await _paid_elsewhere(story)).call_id
    request = story.shop.market.request_to(ANNA)
    story.restart()
    story.exchange.advance(2)
    await turns()
    story.shop.market.answer(ANNA, GOOD, request=request)
    [settled] = story.settled(call_id)
    assert settled.status is CallStatus.SUCCEEDED
    [receipt] = story.shop.receipts()
    assert (receipt["session_id"], receipt["prepaid"]) == (call_id, True)
    assert len(story.elsewhere.paid) == 1


@pytest.mark.parametrize("has_result", [True, False])
async def test_a_stop_between_a_payment_and_the_outcome_of_its_call_leaves_it_paid(
    has_result: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    with monkeypatch.context() as killed:
        killed.setattr(WalletAgent, "_done", lambda *_: None)
        call_id = (await _paid_elsewhere(story)).call_id
    request = story.shop.market.request_to(ANNA)
    story.restart()
    story.exchange.advance(7)
    await turns()
    assert not story.settled(call_id)
    if has_result:
        story.shop.market.answer(ANNA, GOOD, request=request)
        [receipt] = story.shop.receipts()
        assert (receipt["session_id"], receipt["prepaid"]) == (call_id, True)
    else:
        story.exchange.advance(DEFAULT_S)
        assert "500 msats were paid for it first" in str(story.settled(call_id)[0].fault)
    assert len(story.settled(call_id)) == len(story.elsewhere.paid) == 1


@pytest.mark.parametrize("starts", [1, 2])
async def test_a_job_that_was_to_take_seconds_takes_no_longer_for_a_stop(starts: int) -> None:
    story = Story()
    story.shop.market.announce(ANNA)
    began = story.exchange.now().mono
    call_id = story.shop.market.call(EMBEDDING, timeout_ms=12_000).call_id
    for _ in range(starts):
        story.exchange.advance(2)
        story.restart()
    story.exchange.advance(began + 12 - story.exchange.now().mono)
    [settled] = story.settled(call_id)
    assert settled.status is CallStatus.FAILED


@pytest.mark.parametrize("kills", [1, 2])
async def test_a_stop_between_the_outcome_and_the_receipt_of_what_was_paid_first_ends_in_one_receipt(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    call_id = (await _paid_elsewhere(story)).call_id
    with monkeypatch.context() as killed:
        killed.setattr(Settling, "end", lambda *_: None)
        story.shop.market.answer(ANNA, GOOD)
        assert story.settled(call_id)[0].status is CallStatus.SUCCEEDED
        for _ in range(kills - 1):
            story.restart()
    assert story.shop.receipts() == []
    for _ in range(2):
        story.restart()
        story.exchange.advance(40)
        await turns()
        [receipt] = story.shop.receipts()
        assert (receipt["session_id"], receipt["prepaid"]) == (call_id, True)
        assert story.exchange.views.open_steps(PROCESS) == {}
    story.exchange.store()
    [one] = on_record.listed(story.exchange.ledger.reader)
    proving.prove(on_record.evidence(story.exchange.ledger.reader, one))


async def test_a_payment_that_is_approved_after_a_stop_is_known_to_its_job() -> None:
    story = Story()
    call_id = (await _waits_for_a_person(story)).call_id
    request = story.shop.market.request_to(ANNA)
    story.restart()
    story.exchange.advance(2)
    story.shop.answer_question()
    assert len(story.shop.payments.wallet.held) == 0  # the invoice was known to the process that ended
    story.exchange.advance(6)
    [settled] = story.settled(call_id)
    assert "were not paid: this invoice is not known any more" in str(settled.fault)
    assert request.id in story.shop.market.taken_back()


async def test_who_was_restarted_as_we_were_may_ask_by_another_invoice_once_and_only_that_is_asked_about() -> None:
    story = Story()
    call_id = (await _waits_for_a_person(story)).call_id
    request = story.shop.market.request_to(ANNA)
    story.restart()
    story.exchange.advance(2)
    for number in range(3):
        now = story.exchange.now()
        made = story.shop.payments.invoice("seller", MSATS + number, f"new {number}", JOB_HASH, now, 600)
        draft = messages.feedback_draft(
            story.shop.market.settings.kinds, request, Status.PAYMENT_REQUIRED, created_at=int(now.wall),
            amount_msats=MSATS + number, invoice=made.text,
        )  # fmt: skip
        story.shop.market.tell("answers", events.signed(draft, ANNA))
    assert story.shop.answer_question()["amount_msats"] == MSATS
    story.shop.market.answer(ANNA, GOOD, request=request)
    [settled] = story.settled(call_id)
    assert settled.status is CallStatus.SUCCEEDED
    assert story.shop.balances() == (FUNDED - MSATS, MSATS)


async def test_a_job_whose_time_was_over_while_we_were_off_takes_what_relays_kept_and_begins_nothing() -> None:
    story = Story()
    call_id = (await _asked(story)).call_id
    request = story.shop.market.request_to(ANNA)
    story.exchange.clock.advance(DEFAULT_S + 60)
    story.restart()
    story.shop.market.announce(BERT)
    story.exchange.advance(2)
    assert story.shop.market.asked() == [ANNA]
    story.shop.asked_to_pay(MSATS)
    assert story.exchange.views.questions() == []
    story.shop.market.answer(ANNA, GOOD, request=request)
    [settled] = story.settled(call_id)
    assert settled.status is CallStatus.SUCCEEDED


async def test_history_says_what_was_sent_and_how_it_ended() -> None:
    story = Story(answers=False)
    await _paid_elsewhere(story)
    reader = story.exchange.ledger.reader

    def shown() -> list[tuple[str, str]]:
        story.exchange.store()
        return [(told["step"], told["outcome"]) for _, told in wallets.history(reader, "", 10) if "outcome" in told]

    assert shown() == [("sent", "outstanding")]
    name = story.elsewhere.paid[0].payment_hash
    for end, outcome in ((PREIMAGE.hex(), "paid"), ("", "returned")):
        story.shop.payments.take(wallet.Settled(name, end))
        assert shown()[0] == ("settled", outcome)
    [told, *_] = [told for _, told in wallets.history(reader, "", 10)]
    assert (told["to"], told["msats"]) == (ANNA.npub, MSATS)
