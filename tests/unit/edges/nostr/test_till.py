"""What strangers pay for jobs done here: when money is held, released, refunded, and what a crash leaves of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.nostr.kit import BUYER, OTHER, Bench
from trunkline.config import NostrPricing
from trunkline.edges.nostr import payments
from trunkline.edges.nostr.messages import KEY_PARAM
from trunkline.edges.nostr.provider import MAX_UNPAID_OF_BUYER
from trunkline.edges.nostr.receipting import Receipting
from trunkline.entries import CallAccepted
from trunkline.jobs.schemas import SANDBOX, job_types
from trunkline.model import Status, fault
from trunkline.money import quotes, wallet
from trunkline.money import receipts as forms
from trunkline.money.quotes import OPEN
from trunkline.money.wallet import Refused
from trunkline.testing.memory import AttachedAgent

FUNDED = 1_000_000


def priced(**settings: Any) -> Bench:
    bench = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1_000_000), **settings)
    bench.payments.take(wallet.Opened("buyer", BUYER.public))
    bench.payments.take(wallet.Funded("buyer", FUNDED))
    return bench


def pay(bench: Bench, invoice: str = "") -> str:
    """Pay an invoice, the last one that was asked for if none is named; its payment hash."""
    found = bench.payments.issued(invoice or bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(found.payment_hash, "buyer", "provider", bench.exchange.now())
    return found.payment_hash


def balances(bench: Bench) -> tuple[int, int]:
    """What the exchange and the buyer have; all of it is what was funded."""
    assert bench.payments.wallet.total == FUNDED
    return bench.payments.wallet.balances["exchange"], bench.payments.wallet.balances["buyer"]


def receipts(bench: Bench) -> list[Any]:
    found, _ = bench.exchange.views.receipts(100, None)
    return [json.loads(bytes(one)) for one in found]


@requirement("OA-079", "OA-080")
def test_nothing_is_called_before_the_money_is_on_disk_as_held() -> None:
    bench = priced()
    bench.ask()
    bench.exchange.disk_rests = True
    pay(bench)
    assert bench.exchange.recorded(CallAccepted) == []
    bench.exchange.disk_rests = False
    bench.exchange.store()
    assert len(bench.exchange.recorded(CallAccepted)) == 1
    assert balances(bench) == (1000, FUNDED - 1000)


@requirement("OA-058", "OA-081")
@pytest.mark.parametrize("status", [Status.FAILED, Status.UNKNOWN])
def test_a_job_that_does_not_succeed_is_refunded_and_has_no_receipt(status: Status) -> None:
    bench = priced(answers=False)
    bench.ask()
    pay(bench)
    assert balances(bench) == (0, FUNDED - 1000)
    bench.agent.finish(status=status, fault=fault("tool.failed", "no"))
    assert balances(bench) == (0, FUNDED)
    assert receipts(bench) == []
    assert bench.feedback()[-1].status == "error"


SECRET = "what the work came to"
COMMANDS = {"commands": [{"cmd": f"run {number}"} for number in range(3)]}


def sandbox_outputs(*exit_codes: int) -> dict[str, Any]:
    """What a run with these exit codes came to; all that it made says ``SECRET``."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    runs = [
        {
            "cmd": f"run {number}", "exit_code": code, "duration_ms": 1234.5, "stdout_sha256": digest,
            "stderr_sha256": digest, "stdout_preview": SECRET, "stderr_preview": SECRET,
        }
        for number, code in enumerate(exit_codes)
    ]  # fmt: skip
    artifacts = [{"path": SECRET, "sha256": digest, "size_bytes": 7}]
    return {"env_info": {}, "runs": runs, "artifacts": artifacts, "status": "failed" if any(exit_codes) else "success"}


def sandbox_bench(price: int) -> tuple[Bench, AttachedAgent]:
    bench = Bench(offer=(SANDBOX,), pricing=NostrPricing(sandbox_per_minute_msats=price))
    bench.payments.take(wallet.Opened("buyer", BUYER.public))
    bench.payments.take(wallet.Funded("buyer", FUNDED))
    return bench, bench.exchange.attach("trunkline.jobs", SANDBOX, edge="trunkline", is_resident=True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_that_is_refunded_is_told_how_it_failed_and_nothing_that_it_made(is_killed: bool) -> None:
    bench, agent = sandbox_bench(price=6000)
    bench.ask(COMMANDS, schema_id=SANDBOX)
    pay(bench)
    agent.show("stdout", {"text": SECRET})
    bench.takes = not is_killed
    if is_killed:
        # The refund is on disk, and what would have been told is not.
        bench.provider._conclude = lambda *_: None  # type: ignore[method-assign]
    agent.finish(sandbox_outputs(0, 3))
    assert balances(bench) == (0, FUNDED)
    said = bench.said
    if is_killed:
        bench = bench.restarted()
        said = [*said, *bench.said]
    [result] = bench.results()
    outputs = json.loads(bytes(result.outputs))
    assert [run["exit_code"] for run in outputs["runs"]] == [0, 3]
    assert outputs["runs"][1]["stdout_sha256"] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert (outputs["status"], outputs["artifacts"]) == ("failed", [])
    assert job_types()[SANDBOX].output_hash(outputs) == result.output_hash
    assert not [event for event in said if SECRET in event.content]


def test_a_command_after_the_first_that_failed_is_not_told_of_either_and_a_free_job_tells_everything() -> None:
    bench, agent = sandbox_bench(price=6000)
    commands = {"commands": [{**one, "continue_on_fail": True} for one in COMMANDS["commands"]]}
    bench.ask(commands, schema_id=SANDBOX)
    pay(bench)
    agent.finish(sandbox_outputs(0, 3, 7))
    [result] = bench.results()
    assert [run["exit_code"] for run in json.loads(bytes(result.outputs))["runs"]] == [0, 3]
    bench, agent = sandbox_bench(price=0)
    bench.ask(COMMANDS, schema_id=SANDBOX)
    agent.show("stdout", {"text": SECRET})
    agent.finish(sandbox_outputs(0, 3))
    [result] = bench.results()
    assert json.loads(bytes(result.outputs)) == sandbox_outputs(0, 3)
    assert SECRET in [feedback.content for feedback in bench.feedback()]


def test_a_job_that_its_buyer_takes_back_is_refunded_whether_it_runs_or_waits_for_a_place() -> None:
    bench = priced(answers=False, can_cancel=True, max_jobs=1)
    running = bench.ask({"text": "one"})
    pay(bench)
    waiting = bench.ask({"text": "two"}, nonce="2")
    pay(bench)
    unpaid = bench.ask({"text": "three"}, nonce="3")
    invoice = bench.feedback()[-1].invoice
    for request in (waiting, unpaid, running):
        bench.take_back(request)
    bench.agent.finish(status=Status.CANCELED)
    assert balances(bench) == (0, FUNDED)
    with pytest.raises(KeyError):
        bench.provider._unpaid[unpaid.id]
    # Nobody can pay for what was taken back.
    with pytest.raises(Refused, match="not known any more"):
        pay(bench, invoice)
    assert balances(bench) == (0, FUNDED)


def test_a_quote_that_nobody_pays_in_time_is_over() -> None:
    bench = priced()
    bench.ask()
    invoice = bench.feedback()[-1].invoice
    bench.exchange.advance(606)
    assert (bench.feedback()[-1].status, bench.feedback()[-1].text) == ("error", "it was not paid in time")
    with pytest.raises(Refused, match="expired"):
        pay(bench, invoice)
    assert balances(bench) == (0, FUNDED)


def test_an_invoice_is_paid_once_and_by_one() -> None:
    bench = priced(answers=False)
    bench.ask()
    payment_hash = pay(bench)
    assert not bench.till.is_offer(payment_hash)
    with pytest.raises(Refused, match="used already"):
        bench.till.pay(payment_hash, "buyer", "provider", bench.exchange.now())
    assert balances(bench) == (0, FUNDED - 1000)


@requirement("OA-078")
def test_a_repeat_of_a_wish_is_told_the_same_invoice_and_is_not_done_beside_it() -> None:
    bench = priced()
    first = bench.ask(nonce="1")
    second = bench.ask(nonce="2")
    invoices = {feedback.invoice for feedback in bench.feedback()}
    assert len(invoices) == 1
    bench.ask(nonce="3", by=OTHER)
    assert len({feedback.invoice for feedback in bench.feedback()}) == 2  # a key belongs to its buyer
    pay(bench, invoices.pop())
    assert [result.request_id for result in bench.results()] == [first.id]
    said = {feedback.request_id: feedback.text for feedback in bench.feedback() if feedback.status == "error"}
    assert said == {second.id: f"what it asks for was paid as {first.id}"}
    assert KEY_PARAM == ("param", "idempotency_key")


# --- places -----------------------------------------------------------------------------------------------------------


def open_quotes(bench: Bench) -> int:
    return sum(one.state in OPEN for one in bench.till.quotes._by_id.values())


def test_a_repeat_of_what_is_paid_and_runs_is_refused_at_once_and_takes_no_place() -> None:
    bench = priced(answers=False)
    first = bench.ask(nonce="0")
    pay(bench)
    repeat = bench.ask(nonce="1")
    assert (bench.feedback()[-1].request_id, bench.feedback()[-1].text) == (
        repeat.id, f"what it asks for was paid as {first.id}",
    )  # fmt: skip
    assert bench.provider._unpaid == {}
    bench.agent.finish({"text": "hi"})
    assert (open_quotes(bench), bench.till._offers) == (0, {})
    bench.ask(nonce="2")
    assert bench.feedback()[-1].status == "payment-required"  # it can be bought again


def test_one_buyer_has_a_share_of_the_places_and_others_have_the_rest() -> None:
    bench = priced()
    for number in range(MAX_UNPAID_OF_BUYER + 1):
        bench.ask({"text": f"n{number}"}, nonce=str(number))
    assert bench.statuses() == ["payment-required"] * MAX_UNPAID_OF_BUYER + ["error"]
    bench.ask(by=OTHER)
    assert bench.feedback()[-1].status == "payment-required"


@pytest.mark.parametrize("ending", ["expired", "asked again too late", "taken back", "paid", "refunded", "by judge"])
def test_however_a_quote_ends_its_requests_wait_no_longer(ending: str) -> None:
    bench = priced(answers=False)
    requests = [bench.ask(nonce=str(number)) for number in range(3)]
    match ending:
        case "expired":
            bench.exchange.advance(606)
        case "asked again too late":
            # At the very moment at which its time is over, before anybody looked.
            bench.till.stop()
            bench.exchange.advance(601)
            requests.append(bench.ask(nonce="late"))
            assert list(bench.provider._unpaid) == [requests[-1].id]
            bench.take_back(requests[-1])
        case "taken back":
            for request in requests:
                bench.take_back(request)
        case "paid" | "refunded":
            pay(bench)
            bench.agent.finish({"text": "hi"} if ending == "paid" else None, fault=fault("tool.failed", "no"))
        case _:
            payment = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now()).payment_hash
            bench.till.pay(payment, "buyer", "buyer", bench.exchange.now())
            bench.payments.refund(payment, "not right", bench.exchange.now())
    assert bench.provider._unpaid == {}
    assert (open_quotes(bench), bench.till._offers) == (0, {})
    told = {feedback.request_id for feedback in bench.feedback() if feedback.status == "error"}
    assert told >= {request.id for request in requests[1:]}


def test_a_request_that_is_taken_back_leaves_the_quote_to_its_repeats() -> None:
    bench = priced()
    first, second = bench.ask(nonce="1"), bench.ask(nonce="2")
    invoice = bench.feedback()[-1].invoice
    bench.take_back(first)
    pay(bench, invoice)
    assert [result.request_id for result in bench.results()] == [second.id]


def test_requests_that_are_taken_back_push_out_no_invoice_of_another_buyer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotes, "MAX_QUOTES", 8)
    monkeypatch.setattr(payments, "MAX_INVOICES", 16)
    bench = priced()
    bench.ask({"text": "victim"})
    invoice = bench.feedback()[-1].invoice
    for number in range(50):
        bench.take_back(bench.ask({"text": f"n{number}"}, by=OTHER, nonce=str(number)), by=OTHER)
    pay(bench, invoice)
    assert len(bench.results()) == 1
    # Where all are open, the new one is refused.
    for number in range(9):
        bench.ask({"text": f"m{number}"}, by=OTHER, nonce=str(number))
    assert bench.feedback()[-1].text == "too many quotes are open; try again later"


def test_an_account_has_a_share_of_the_invoices_and_takes_none_of_those_for_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payments, "MAX_INVOICES", 12)
    monkeypatch.setattr(payments, "MAX_OPEN_OF_ACCOUNT", 4)
    bench = priced()
    now = bench.exchange.now()
    made = [bench.payments.invoice("anna", 5, f"a{number}", "", now, 600) for number in range(4)]
    with pytest.raises(Refused, match="of yours"):
        bench.payments.invoice("anna", 5, "a", "", now, 600)
    assert bench.payments.invoice("anna", 5, "a0", "", now, 600) == made[0]  # the same one again
    for number in range(2):
        bench.payments.invoice("bert", 5, f"b{number}", "", now, 600)
    with pytest.raises(Refused, match="try again later"):
        bench.payments.invoice("bert", 5, "b", "", now, 600)
    bench.ask()
    assert bench.feedback()[-1].status == "payment-required"
    bench.exchange.advance(601)
    bench.payments.invoice("bert", 5, "b", "", bench.exchange.now(), 600)  # those that are over go first


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_money_held_for_a_job_that_was_never_taken_on_goes_back_at_the_next_start() -> None:
    bench = priced(answers=False, max_jobs=1)
    bench.ask({"text": "one"})
    pay(bench)
    bench.ask({"text": "two"}, nonce="2")
    waits = pay(bench)
    after = bench.restarted(answers=False)
    assert waits not in after.payments.wallet.held
    assert after.payments.wallet.over[waits].reason == "the exchange was started anew before the job began"


def test_a_job_whose_end_is_unknown_after_a_crash_is_refunded() -> None:
    bench = priced(answers=False)
    bench.ask()
    pay(bench)
    after = bench.restarted(answers=False)
    assert balances(after) == (0, FUNDED)
    assert receipts(after) == []


def test_a_result_that_no_relay_had_at_a_crash_is_told_with_the_same_receipt() -> None:
    bench = priced()
    bench.takes = False
    bench.ask()
    pay(bench)
    [receipt] = receipts(bench)
    before = [event for event in bench.said if event.kind == 6050]
    after = bench.restarted()
    assert [event for event in after.said if event.kind == 6050] == before
    assert receipts(after) == [receipt]
    assert balances(after) == (1000, FUNDED - 1000)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_whose_receipt_cannot_be_made_has_its_result_and_frees_its_place(
    monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    bench = priced(answers=False, max_jobs=1)
    bench.ask()
    pay(bench)
    if is_killed:
        # Released, and killed before the receipt: the next start comes to it again.
        monkeypatch.setattr(Receipting, "issue", lambda *_args, **_options: None)
    monkeypatch.setattr(forms, "MAX_RECEIPT_BYTES", 100)
    bench.agent.finish({"text": "hi"})
    if is_killed:
        monkeypatch.undo()
        monkeypatch.setattr(forms, "MAX_RECEIPT_BYTES", 100)
        bench = bench.restarted()
    [result] = bench.results()
    assert result.amount_msats == 1000
    assert receipts(bench) == []
    assert balances(bench) == (1000, FUNDED - 1000)
    assert bench.payments.wallet.unreceipted == {}
    assert bench.provider.status()["jobs"] == 0
    assert bench.restarted().said == []


def test_the_wallet_is_the_same_after_its_steps_were_carried_over_and_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wallet, "MAX_STEPS", 8)
    bench = priced()
    for number in range(3):
        bench.ask({"text": f"n{number}"}, nonce=str(number))
        pay(bench)
        bench.said.clear()
    assert bench.payments._generation == 2
    earned = balances(bench)
    assert earned[0] > 0
    assert list(bench.exchange.views.open_steps(wallet.PROCESS)) == [wallet.subject_of(2)]
    after = bench.restarted()
    assert balances(after) == earned
