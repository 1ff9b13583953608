"""Jobs of strangers: which are taken on, what becomes of them, and what strangers leave behind."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.nostr.kit import BUYER, ECHO, OTHER, OURS, Bench, read
from trunkline import canonical
from trunkline.config import NostrKinds, NostrPricing
from trunkline.edges.nostr import events
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.provider import MAX_SENT_BYTES, MAX_WAITING, PROCESS
from trunkline.entries import CallAccepted, CallRefused, CallSettled, ProcessStep
from trunkline.events import DrainStarted, SettingsChanged
from trunkline.model import HubSettings, Policy, Status, fault
from trunkline.money import wallet


def calls(bench: Bench) -> list[CallAccepted]:
    return bench.exchange.recorded(CallAccepted)


def test_a_job_is_one_call_and_its_result_has_hashes_that_compute() -> None:
    bench = Bench()
    request = bench.ask({"text": "hi", "n": 1.0})
    [call] = calls(bench)
    assert (call.caller, call.key, call.correlation_id) == (f"nostr:{BUYER.npub}", request.id, request.id)
    assert (call.tool_id, call.rule) == ("com.example.echo/echo", "offer-1")
    [result] = bench.results()
    assert read(result.outputs) == {"text": "hi", "n": 1.0}
    assert result.output_hash == canonical.openagents_hash(result.outputs)
    assert (result.request_id, result.provenance.provider_id) == (request.id, OURS.npub)
    assert result.provenance.model == "com.example.echo/echo"
    assert result.provenance.token_counts is not None
    assert bench.statuses() == ["processing", "success"]
    assert bench.exchange.views.open_steps(PROCESS) == {}


def test_a_job_for_nobody_in_particular_is_done_too() -> None:
    bench = Bench()
    bench.ask(provider="")
    assert len(bench.results()) == 1


@requirement("OA-006", "OA-007")
def test_another_kind_is_served_under_the_same_schema_id() -> None:
    bench = Bench(kinds=NostrKinds(request=5999))
    bench.ask()
    assert [event.kind for event in bench.said] == [7000, 6999, 7000]


@requirement("OA-109")
def test_what_is_not_offered_is_refused_to_those_who_ask_us_and_left_to_others() -> None:
    bench = Bench()
    bench.ask(schema_id="oa.embedding.v1")
    bench.ask(schema_id="oa.embedding.v1", provider="")
    assert bench.statuses() == ["error"]
    assert "not offered" in bench.feedback()[0].text
    assert calls(bench) == []


def test_a_job_for_another_provider_is_passed_over_in_silence() -> None:
    bench = Bench()
    bench.ask(provider=OTHER.public)
    assert (bench.said, calls(bench)) == ([], [])


@pytest.mark.parametrize("job_hash", ["sha256:" + "0" * 64])
def test_a_job_hash_that_does_not_compute_is_an_error(job_hash: str) -> None:
    bench = Bench()
    bench.ask(job_hash=job_hash)
    assert bench.statuses() == ["error"]
    assert "job_hash" in bench.feedback()[0].text
    assert calls(bench) == []


def test_what_cannot_be_read_is_an_error_for_us_and_nothing_for_nobody_in_particular() -> None:
    bench = Bench()
    for tags in ((("p", OURS.public),), ()):
        draft = events.Draft(5050, "what is the capital of France?", tags, int(bench.exchange.now().wall))
        bench.provider.requested(events.signed(draft, BUYER), bench.exchange.now())
    assert bench.statuses() == ["error"]


def test_a_request_of_our_own_is_not_served() -> None:
    bench = Bench()
    bench.ask(by=OURS)
    assert (bench.said, calls(bench)) == ([], [])


def test_a_request_that_comes_again_makes_no_second_call() -> None:
    bench = Bench()
    request = bench.ask()
    bench.provider.requested(request, bench.exchange.now())
    assert len(calls(bench)) == len(bench.results()) == 1
    assert bench.exchange.notices() == ["nostr.repeated"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_whose_call_was_refused_is_not_taken_on_again_when_its_relay_repeats_it(is_killed: bool) -> None:
    bench = Bench()
    allowed, denies_all = bench.exchange.config.policy(), Policy((), "none")
    bench.exchange.feed.feed([SettingsChanged(HubSettings(denies_all))])
    request = bench.ask()
    assert bench.statuses() == ["error"]
    bench.exchange.feed.feed([SettingsChanged(HubSettings(allowed))])
    told = list(bench.said)
    bench = bench.restarted() if is_killed else bench
    bench.provider.requested(request, bench.exchange.now())
    assert (bench.said if is_killed else bench.said[len(told) :]) == []
    assert bench.agent.delivered == []


def test_a_job_that_fails_is_an_error_without_a_result() -> None:
    bench = Bench(answers=False)
    bench.ask()
    bench.agent.finish(None, Status.FAILED, fault("tool.failed", "no flour"))
    assert bench.results() == []
    assert bench.statuses() == ["processing", "error"]
    assert bench.feedback()[-1].text == "tool.failed: no flour"


def test_what_a_tool_shows_is_partial_feedback_and_bounded() -> None:
    bench = Bench(answers=False)
    bench.ask()
    for number in range(60):
        bench.agent.show("status", {"text": f"step {number}"}, number)
        if number % 2:
            bench.exchange.advance(1.0)
    bench.agent.finish({})
    partial = [feedback for feedback in bench.feedback() if feedback.status == "partial"]
    assert len(partial) == 20
    assert partial[0].content == "step 0"


def test_the_buyer_takes_a_job_back_and_nobody_else_does() -> None:
    bench = Bench(answers=False, can_cancel=True)
    request = bench.ask()
    bench.take_back(request, by=OTHER)
    assert bench.agent.canceled == []
    bench.take_back(request)
    bench.take_back(request)
    assert len(bench.agent.canceled) == 1
    bench.agent.finish({"too": "late"})
    assert bench.results() == []
    assert bench.statuses() == ["processing", "error"]
    assert bench.feedback()[-1].text == "canceled"


def test_a_job_whose_tool_cannot_be_stopped_has_no_result_either() -> None:
    bench = Bench(answers=False)
    bench.take_back(bench.ask())
    bench.agent.finish({"too": "late"})
    assert bench.results() == []
    assert bench.feedback()[-1].text == "canceled"
    assert bench.exchange.views.open_steps(PROCESS) == {}


def test_a_deletion_that_was_faster_than_its_request_counts() -> None:
    bench = Bench()
    request = bench.request()
    bench.take_back(request)
    bench.provider.requested(request, bench.exchange.now())
    assert calls(bench) == []
    assert [feedback.text for feedback in bench.feedback()] == ["canceled"]


def test_a_deletion_by_somebody_else_does_not_keep_a_request_out() -> None:
    bench = Bench()
    request = bench.request()
    bench.take_back(request, by=OTHER)
    bench.provider.requested(request, bench.exchange.now())
    assert len(bench.results()) == 1


@requirement("OA-113")
def test_above_capacity_jobs_wait_and_then_are_told_to_come_back() -> None:
    bench = Bench(answers=False, max_jobs=2)
    requests = [bench.ask(nonce=str(number)) for number in range(2 + MAX_WAITING + 1)]
    assert len(calls(bench)) == 2
    assert [feedback.text for feedback in bench.feedback() if feedback.status == "error"] == [
        "at capacity; try again later"
    ]
    bench.take_back(requests[3])
    bench.agent.finish({}, at=0)
    bench.agent.finish({}, at=1)
    assert [call.key for call in calls(bench)] == [request.id for request in (*requests[:3], requests[4])]


def test_all_strangers_together_keep_one_pace() -> None:
    bench = Bench(requests_per_minute=3)
    for number in range(5):
        bench.ask(by=Signer(bytes(31) + bytes([10 + number])))
    assert len(calls(bench)) == 3
    assert bench.exchange.notices() == ["nostr.too_many"] * 2
    bench.exchange.advance(20)
    bench.ask(nonce="later")
    assert len(calls(bench)) == 4


def test_strangers_may_ask_for_what_is_offered_and_nothing_else_by_any_rule_of_ours() -> None:
    bench = Bench()
    reading = bench.exchange.views.check(f"nostr:{BUYER.npub}", "com.example.echo/echo", None)
    assert (reading.decision, reading.rule) == ("allow", "offer-1")
    bench.exchange.attach("com.example.other", "look")
    denied = bench.exchange.views.check(f"nostr:{BUYER.npub}", "com.example.other/look", None)
    assert (denied.decision, denied.rule) == ("deny", "builtin-strangers")


def test_a_refusal_of_the_exchange_is_an_error() -> None:
    bench = Bench()
    bench.agent.leave()
    bench.ask()
    assert calls(bench) == []
    assert len(bench.exchange.recorded(CallRefused)) == 1
    assert bench.statuses() == ["error"]
    assert bench.results() == []


def test_a_result_that_no_relay_would_carry_is_an_error() -> None:
    bench = Bench(answers=False)
    bench.ask()
    bench.agent.finish({"text": "x" * MAX_SENT_BYTES})
    assert bench.results() == []
    assert "larger than a relay carries" in bench.feedback()[-1].text


def test_numbers_that_have_no_hash_are_errors_in_both_directions() -> None:
    bench = Bench(answers=False)
    huge = -(2**63) - 1
    wrong = events.Draft(
        5050,
        json.dumps({"job_type": ECHO, "job_hash": "sha256:" + "0" * 64, "payload": {"n": huge}}),
        (("p", OURS.public),),
        int(bench.exchange.now().wall),
    )
    bench.provider.requested(events.signed(wrong, BUYER), bench.exchange.now())
    assert "64 bits" in bench.feedback()[-1].text
    bench.ask()
    bench.agent.finish(Raw(b'{"n":%d}' % huge))
    assert "64 bits" in bench.feedback()[-1].text
    assert bench.results() == []


def test_a_private_result_that_nip_44_does_not_carry_is_an_error() -> None:
    bench = Bench(answers=False)
    bench.ask(encrypt=BUYER.encrypt)
    bench.agent.finish({"text": "x" * 66_000})
    assert bench.feedback()[-1].content == "the result is larger than a relay carries"


def test_an_output_that_is_no_object_is_the_value_of_one() -> None:
    bench = Bench(answers=False)
    bench.ask()
    bench.agent.finish([1, 2])
    assert read(bench.results()[0].outputs) == {"value": [1, 2]}


def test_an_exchange_that_stops_takes_nothing_on() -> None:
    bench = Bench()
    bench.exchange.feed.feed([DrainStarted()])
    bench.ask()
    assert bench.said == []


# --- private jobs -----------------------------------------------------------------------------------------------------


def test_a_private_job_is_answered_encrypted_and_on_record_as_hashes() -> None:
    bench = Bench(answers=False)
    bench.ask({"text": "top secret words"}, encrypt=BUYER.encrypt)
    assert bench.agent.delivered[0].sensitive
    bench.agent.show("status", {"text": "secret progress"})
    bench.agent.finish({"text": "secret result"})
    [result] = bench.results()
    assert read(result.outputs) == {"text": "secret result"}
    assert result.is_private
    on_wire = b"".join(events.encoded(event) for event in bench.said)
    assert b"secret" not in on_wire
    [call] = calls(bench)
    stored = b"".join(bench.exchange.views.entries(correlation_id=call.correlation_id))
    assert b"secret" not in stored
    [settled] = bench.exchange.recorded(CallSettled)
    assert settled.call_id == call.call_id


def test_a_private_job_that_is_refused_says_so_privately() -> None:
    bench = Bench()
    bench.ask(schema_id="oa.secret_thing.v1", encrypt=BUYER.encrypt)
    [feedback] = bench.feedback()
    assert (feedback.status, feedback.text, feedback.content) == ("error", "", "this job is not offered here")


def test_a_private_job_for_another_key_is_no_job_of_ours() -> None:
    bench = Bench()
    bench.ask(encrypt=lambda text, _: BUYER.encrypt(text, OTHER.public))
    assert bench.statuses() == ["error"]
    assert calls(bench) == []


# --- payment ----------------------------------------------------------------------------------------------------------


def dear() -> Bench:
    """Everything costs something, and the buyer has money."""
    bench = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1_000_000))
    bench.payments.take(wallet.Opened("buyer", BUYER.public))
    bench.payments.take(wallet.Funded("buyer", 1_000_000))
    return bench


def pay(bench: Bench) -> str:
    """Pay the last invoice that was asked for; its payment hash."""
    invoice = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(invoice.payment_hash, "buyer", "provider", bench.exchange.now())
    return invoice.payment_hash


def test_a_job_that_has_to_be_paid_is_called_when_its_money_is_held() -> None:
    bench = dear()
    bench.ask()
    [feedback] = bench.feedback()
    assert (feedback.status, feedback.amount_msats) == ("payment-required", 1000)
    assert calls(bench) == []
    bench.provider.paid("00" * 32)
    assert calls(bench) == []
    paid = pay(bench)
    [result] = bench.results()
    assert (result.amount_msats, result.invoice) == (1000, feedback.invoice)
    assert bench.payments.wallet.balances == {"exchange": 1000, "buyer": 999_000}
    assert bench.payments.wallet.over[paid].preimage


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_a_job_that_was_open_at_a_crash_gets_one_result_from_the_next_process() -> None:
    bench = Bench(answers=False)
    request = bench.ask()
    after = bench.restarted()
    # Its tool has side effects, so the honest answer is that nobody knows: one error, and no second run.
    after.provider.requested(request, after.exchange.now())
    assert len(after.exchange.recorded(CallAccepted)) == 1
    assert [event.kind for event in after.said] == [7000]
    assert after.statuses() == ["error"]
    assert after.exchange.views.open_steps(PROCESS) == {}


def test_a_result_that_no_relay_had_at_a_crash_is_told_again_as_the_same_event() -> None:
    bench = Bench()
    bench.takes = False
    request = bench.ask()
    [result] = [event for event in bench.said if event.kind == 6050]
    after = bench.restarted()
    assert [event.id for event in after.said if event.kind == 6050] == [result.id]
    assert [event.id for event in after.said if event.kind == 7000] == [bench.said[-1].id]
    after.provider.requested(request, after.exchange.now())
    assert len(after.exchange.recorded(CallAccepted)) == 1
    again = after.restarted()
    assert again.said == []


def test_a_request_that_a_relay_still_has_after_a_restart_is_not_run_again() -> None:
    bench = Bench()
    request = bench.ask()
    after = bench.restarted()
    after.provider.requested(request, after.exchange.now())
    assert after.said == []
    assert len(after.exchange.recorded(CallAccepted)) == 1


def test_the_same_refusal_is_the_same_event_after_a_restart() -> None:
    bench = Bench()
    request = bench.ask(schema_id="oa.embedding.v1")
    after = bench.restarted()
    after.exchange.advance(5)
    after.provider.requested(request, after.exchange.now())
    assert [event.id for event in after.said] == [event.id for event in bench.said]


def test_a_job_that_no_relay_will_have_is_over_and_the_record_says_so() -> None:
    bench = Bench()
    bench.takes = False
    bench.ask()
    for told in bench.waiting:
        told(False)
    assert [step.step for step in bench.exchange.recorded(ProcessStep)] == ["taken", "answered", "untold"]
    assert bench.provider.status()["jobs"] == 0


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_strangers_leave_no_memory_behind() -> None:
    bench = Bench(requests_per_minute=1_000_000)

    def crowd(first: int, count: int) -> None:
        for number in range(first, first + count):
            signer = Signer((number + 1).to_bytes(32, "big"))
            bench.ask(by=signer, nonce=str(number), schema_id=ECHO if number % 10 == 0 else "oa.none.v1")
        bench.said.clear()
        bench.exchange.log.clear()
        bench.exchange.effects.clear()
        bench.agent.delivered.clear()
        # What is on the disk is in memory here; spellings of keys are remembered up to a number.
        bench.exchange.disk.steps.clear()
        npub_of.cache_clear()

    crowd(0, 300)
    gc.collect()
    tracemalloc.start()
    try:
        crowd(300, 300)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        crowd(600, 600)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Nothing grows with the number of keys: neither what the provider keeps, nor what the hub does.
    assert after - before < 200_000
    assert set(bench.exchange.hub.loads.written()) <= {"nostr:*", "opensentience:com.example.echo", "operator"}
