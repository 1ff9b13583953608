"""Jobs that others do for us: whom is asked, what counts, and that each call ends once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.requirement import requirement
from tests.unit.edges.nostr.market import EMBED, PROVIDERS, RANK, US, Market, announcement, embedded, ranked, shown
from trunkline.edges.nostr import events, messages, provider_records
from trunkline.edges.nostr.buyer import LOOK_S
from trunkline.edges.nostr.events import Draft
from trunkline.edges.nostr.messages import Status
from trunkline.edges.nostr.order_record import PROCESS
from trunkline.edges.nostr.provider_records import PROVIDERS as RECORDS
from trunkline.entries import CallSettled, Noticed, ProcessStep
from trunkline.events import CancelRequested, SettingsChanged
from trunkline.jobs.schemas import EMBEDDING, RERANK, SANDBOX, job_types
from trunkline.model import Decision, Policy, Principal, Rule
from trunkline.model import Status as CallStatus
from trunkline.testing.memory import BOSS, MadeCall, MemoryExchange

ANNA, BERT, CARL, DORA, EMIL = PROVIDERS[:5]


def cancel(market: Market, call: MadeCall) -> None:
    session = market.exchange.feed.open_session(market.exchange._caller)
    market.exchange.feed.feed([CancelRequested(session, "cancel", BOSS, call_id=call.call_id)])


def verdicts(market: Market) -> list[dict[str, Any]]:
    steps = market.exchange.recorded(ProcessStep)
    return [json.loads(bytes(step.data)) for step in steps if step.process == PROCESS and step.step == "verdict"]


# --- one provider -----------------------------------------------------------------------------------------------------


@requirement("OA-001", "OA-107")
def test_a_call_is_a_request_to_a_provider_and_its_result_is_the_output() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call(bid_msats=7)
    [request] = market.requests()
    read = messages.read_request(request)
    assert (request.kind, request.pubkey, read.schema_id, read.bid_msats) == (5050, US.public, EMBEDDING, 7)
    assert read.providers == (ANNA.public,)
    assert read.job_hash == job_types()[EMBEDDING].job_hash(EMBED)
    assert json.loads(bytes(read.inputs)) == {**EMBED, "normalize": True}
    assert json.loads(request.value("i")) == {**EMBED, "normalize": True}
    assert ("param", "schema_id", EMBEDDING) in request.tags
    assert request.value("output") == "application/json"
    assert request.value("nonce")
    market.answer(ANNA, embedded())
    assert call.outcome.status is CallStatus.SUCCEEDED
    output = call.output
    assert output.pop("provenance") == {"model": "m", "provider_id": ANNA.npub}
    assert output.pop("verification")["to_be_paid"] == [ANNA.npub]
    assert output == embedded()
    assert market.taken_back() == []


def test_a_request_is_on_record_before_a_relay_hears_of_it() -> None:
    market = Market()
    market.announce(ANNA)
    market.exchange.disk_rests = True
    market.call()
    assert market.requests() == []
    market.exchange.store()
    [request] = market.requests()
    [step] = market.exchange.recorded(ProcessStep)
    assert json.loads(bytes(step.data))["request"]["id"] == request.id


def test_the_verdict_is_on_record_and_closes_the_job() -> None:
    market = Market()
    market.announce(ANNA)
    market.call()
    market.answer(ANNA, embedded())
    [verdict] = verdicts(market)
    assert (verdict["state"], verdict["agreed"], verdict["to_be_paid"]) == ("verified", [ANNA.npub], [ANNA.npub])
    assert market.exchange.views.open_steps(PROCESS) == {}


def test_feedback_is_progress() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call()
    market.feedback(ANNA, Status.PROCESSING, "reading")
    market.feedback(ANNA, Status.PARTIAL, content="half of it")
    assert shown(call) == [
        {"provider": ANNA.npub, "status": "processing", "text": "reading"},
        {"provider": ANNA.npub, "status": "partial", "content": "half of it"},
    ]
    assert [one.channel for one in call.progress] == ["status", "partial_result"]
    assert call.answer is None


def test_a_job_leaves_this_machine_so_it_is_asked_about_as_acting_tools_are() -> None:
    rules = (
        Rule("acts", "*", "*", Decision.ASK, side_effects=True),
        Rule("reads", "*", "*", Decision.ALLOW),
    )
    market = Market(exchange=MemoryExchange(Policy(rules, "1")))
    market.announce(ANNA)
    call = market.call(by=Principal("http:somebody"))
    assert market.requests() == []
    market.exchange.answer(call.approval_id)
    assert market.asked() == [ANNA]
    assert market.exchange.call("nostr.jobs/providers").output["count"] == 1


# --- who is asked next ------------------------------------------------------------------------------------------------


def test_a_provider_that_fails_is_followed_by_the_next_one() -> None:
    market = Market()
    market.announce(ANNA, BERT)
    call = market.call()
    [first] = market.asked()
    market.feedback(first, Status.ERROR, "no memory")
    _, second = market.asked()
    market.answer(second, embedded())
    verification = call.output["verification"]
    assert (verification["failed"], verification["agreed"]) == ([first.npub], [second.npub])
    assert f"{first.npub}: no memory" in verification["reasons"]


def test_a_provider_that_says_nothing_is_followed_by_the_next_one_and_may_still_answer() -> None:
    market = Market(silence_s=10)
    market.announce(ANNA, BERT)
    call = market.call()
    market.exchange.advance(9.9)
    [first] = market.asked()
    market.exchange.advance(0.2)
    _, second = market.asked()
    market.answer(first, embedded())
    assert call.output["verification"]["agreed"] == [first.npub]
    assert market.taken_back() == [market.request_to(second).id]


def test_a_provider_that_dies_after_it_has_begun_is_replaced_later() -> None:
    market = Market(silence_s=10)
    market.announce(ANNA, BERT)
    call = market.call()
    [first] = market.asked()
    market.feedback(first, Status.PROCESSING)
    market.exchange.advance(39)
    assert len(market.asked()) == 1
    market.exchange.advance(2)
    _, second = market.asked()
    market.answer(second, embedded())
    assert call.output["verification"]["silent"] == [first.npub]


@pytest.mark.parametrize("status", [Status.PAYMENT_REQUIRED])
def test_a_provider_that_wants_money_first_is_passed_over(status: Status) -> None:
    market = Market()
    market.announce(ANNA, BERT)
    market.call()
    [first] = market.asked()
    market.feedback(first, status, amount_msats=5, invoice="lnbcrt1")
    assert len(market.asked()) == 2


def test_a_request_that_no_relay_takes_goes_to_the_next_provider() -> None:
    market = Market()
    market.announce(ANNA, BERT)
    market.takes = False
    call = market.call()
    market.exchange.advance(LOOK_S)
    assert len(market.asked()) == 2
    assert call.code == "tool.failed"


def test_a_named_provider_is_the_only_one_that_is_asked_and_need_not_be_announced() -> None:
    market = Market()
    market.announce(BERT)
    call = market.call(provider=ANNA.npub)
    assert market.asked() == [ANNA]
    market.feedback(ANNA, Status.ERROR, "no")
    assert call.code == "tool.failed"
    assert market.asked() == [ANNA]


def test_nobody_announced_is_said_after_a_short_wait_in_which_somebody_may_come() -> None:
    market = Market()
    call, other = market.call(), market.call(RERANK)
    market.exchange.advance(LOOK_S / 2)
    market.announce(ANNA, said=announcement(EMBEDDING))
    assert market.asked() == [ANNA]
    market.exchange.advance(LOOK_S)
    assert (call.answer, other.code) == (None, "tool.unavailable")


@requirement("OA-113")
def test_a_provider_at_its_capacity_gets_no_more_and_the_job_waits_for_it() -> None:
    market = Market()
    market.announce(ANNA, said=announcement(jobs=1))
    first, second = market.call(), market.call()
    market.exchange.advance(LOOK_S + 1)
    assert len(market.requests()) == 1
    market.answer(ANNA, embedded())
    assert first.outcome.status is CallStatus.SUCCEEDED
    assert len(market.requests()) == 2
    market.answer(ANNA, embedded(), request=market.requests()[1])
    assert second.outcome.status is CallStatus.SUCCEEDED


def test_we_are_not_our_own_provider_unless_that_is_configured() -> None:
    market = Market()
    market.announce(US)
    call = market.call()
    market.exchange.advance(LOOK_S + 1)
    assert call.code == "tool.unavailable"
    assert call.outcome.fault is not None
    assert "without --remote, or set from_ourselves = true in [nostr.buyer]" in call.outcome.fault.message
    named = market.call(provider=US.npub)
    market.exchange.advance(1)
    assert (named.code, market.asked()) == ("tool.unavailable", [])
    market = Market(from_ourselves=True)
    market.announce(US)
    market.call()
    assert market.asked() == [US]


# --- lies -------------------------------------------------------------------------------------------------------------


def changed(index: int) -> dict[str, Any]:
    found = embedded()
    found["embeddings"][index] = [1.0, *[0.0] * 7]
    return found


LIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another hash": (embedded(), {"output_hash": "sha256:" + "1" * 64}),
    "one vector is missing": ({**embedded(), "embeddings": embedded()["embeddings"][:1]}, {}),
    "outputs of no schema": ({"what": 1}, {}),
    "another's id": (embedded(), {"provider_id": BERT.npub}),
    "vectors that no run of the model gives": (changed(1), {}),
}


@pytest.mark.parametrize("name", LIES)
def test_a_result_that_is_not_what_it_claims_is_a_lie_and_the_next_provider_is_asked(name: str) -> None:
    outputs, options = LIES[name]
    market = Market()
    market.announce(ANNA)
    call = market.call()
    market.announce(BERT, CARL)
    market.answer(ANNA, outputs, **options)
    assert len(market.asked()) == 2
    # It had its chance.
    market.answer(ANNA, embedded())
    assert call.answer is None
    market.answer(market.asked()[1], embedded())
    assert call.output["verification"]["rejected"] == [ANNA.npub]
    assert [one.who for one in market.exchange.recorded(Noticed)] == [ANNA.npub]


def test_a_result_without_a_model_or_that_is_no_json_is_a_lie() -> None:
    market = Market()
    market.announce(ANNA)
    market.call()
    market.announce(BERT, CARL)
    good = market.result(ANNA, embedded())
    content = json.loads(good.content)
    del content["provenance"]["model"]
    draft = Draft(good.kind, json.dumps(content), good.tags, good.created_at)
    market.tell("answers", market.sign(draft, ANNA))
    second = market.asked()[1]
    request = market.request_to(second)
    tags = (("e", request.id), ("p", US.public))
    market.tell("answers", market.sign(Draft(6050, "pay me", tags, request.created_at), second))
    assert len(market.asked()) == 3
    assert market.exchange.notices() == ["nostr.lied"] * 2


def test_a_result_by_another_signer_changes_nothing() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call()
    market.answer(ANNA, embedded(), by=BERT)
    market.answer(ANNA, changed(0), by=BERT, provider_id=ANNA.npub)
    assert call.answer is None
    assert market.exchange.notices() == ["nostr.not_asked"] * 2
    market.answer(ANNA, embedded())
    assert call.output["verification"]["agreed"] == [ANNA.npub]


def test_an_answer_to_a_request_that_is_not_ours_or_over_changes_nothing() -> None:
    market = Market()
    market.announce(ANNA)
    market.call()
    request = market.request_to(ANNA)
    late = market.result(ANNA, embedded())
    market.tell("answers", late)
    market.tell("answers", late)
    other = market.sign(Draft(5050, "", (), 0), BERT)
    market.answer(ANNA, embedded(), request=other)
    assert len(market.exchange.recorded(CallSettled)) == 1
    assert market.request_to(ANNA) == request


# --- private jobs -----------------------------------------------------------------------------------------------------


def test_a_private_job_is_read_by_its_provider_only_and_so_is_its_result() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call(private=True)
    [request] = market.requests()
    assert "hello there" not in json.dumps(request.tags) + request.content
    assert request.tag("encrypted")
    assert json.loads(bytes(messages.read_request(request, ANNA.decrypt).inputs))["texts"] == EMBED["texts"]
    result = market.result(ANNA, embedded())
    assert "embeddings" not in result.content
    market.tell("answers", result)
    assert call.output["embeddings"] == embedded()["embeddings"]
    steps = [bytes(step.data) for step in market.exchange.recorded(ProcessStep)]
    assert not any(b"hello there" in step or b"0.7" in step for step in steps)


def test_a_sensitive_call_is_a_private_job() -> None:
    market = Market()
    market.announce(ANNA)
    market.call(sensitive=True)
    assert market.requests()[0].tag("encrypted")


def test_a_private_job_that_is_answered_in_the_clear_does_not_count() -> None:
    market = Market()
    market.announce(ANNA, BERT)
    market.call(private=True)
    [first] = market.asked()
    market.answer(first, embedded(), request=market.sign(Draft(5050, "", (), 0), US))
    request = market.request_to(first)
    open_one = messages.request_draft(
        market.settings.kinds, EMBEDDING, messages.read_request(request, first.decrypt).inputs, "sha256:" + "0" * 64,
        created_at=0, nonce="",
    )  # fmt: skip
    clear = market.result(first, embedded(), request=market.sign(open_one, US))
    tags = tuple(("e", request.id) if tag[0] == "e" else tag for tag in clear.tags)
    market.tell("answers", market.sign(Draft(clear.kind, clear.content, tags, clear.created_at), first))
    assert len(market.asked()) == 2


def test_the_words_of_a_provider_about_a_private_job_are_not_on_record() -> None:
    market = Market()
    market.announce(ANNA)
    market.call(private=True)
    market.feedback(ANNA, Status.ERROR, "'hello there' is not a text")
    assert not any(b"hello" in bytes(step.data) for step in market.exchange.recorded(ProcessStep))


def test_a_job_that_no_relay_carries_is_refused_with_a_sentence() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call(inputs={**EMBED, "texts": ["a" * 70_000]})
    assert call.code == "tool.invalid_input"
    assert call.outcome.fault is not None
    assert "larger than relays carry" in call.outcome.fault.message
    assert market.requests() == []
    call = market.call(inputs={**EMBED, "texts": ["a" * 40_000]})
    [request] = market.requests()
    assert (request.value("i"), call.answer) == ("", None)


# --- several providers ------------------------------------------------------------------------------------------------


@requirement("OA-060")
def test_a_subjective_job_runs_on_as_many_providers_as_its_type_says() -> None:
    market = Market()
    market.announce(ANNA, BERT, CARL)
    call = market.call(RERANK)
    assert len(market.asked()) == job_types()[RERANK].detail.redundancy == 2
    for provider in market.asked():
        assert call.answer is None
        market.answer(provider, ranked("cat", "dog", "cow"))
    assert call.output["topk"] == ranked("cat", "dog", "cow")["topk"]
    assert sorted(call.output["verification"]["to_be_paid"]) == sorted(p.npub for p in market.asked())


@requirement("OA-060", "OA-061")
def test_of_three_providers_the_one_that_lies_is_found_and_named() -> None:
    market = Market()
    market.announce(ANNA, BERT, CARL)
    call = market.call(RERANK, providers=3)
    liar = market.asked()[1]
    for provider in market.asked():
        market.answer(provider, ranked("cow", "dog") if provider is liar else ranked("cat", "dog", "cow"))
    verification = call.output["verification"]
    assert (verification["state"], verification["dissented"], verification["quorum"]) == ("verified", [liar.npub], 2)
    assert liar.npub not in verification["to_be_paid"]
    assert len(verification["agreed"]) == 2
    assert verdicts(market)[0]["dissented"] == [liar.npub]
    assert market.agent.records.of(liar.public).disagreed == 1


@requirement("OA-061")
def test_providers_that_do_not_agree_are_joined_by_one_more() -> None:
    market = Market()
    market.announce(*PROVIDERS)
    call = market.call(RERANK)
    orders = [ranked("cat", "dog"), ranked("dog", "cat"), ranked("cow"), ranked("cat", "dog")]
    for number, outputs in enumerate(orders):
        assert len(market.asked()) == max(2, number + 1)
        market.answer(market.asked()[number], outputs)
    # Four results, three of which would have to agree: nobody is asked beyond N + 2.
    assert call.code == "tool.failed"
    assert len(market.asked()) == 4
    assert call.details["verification"]["to_be_paid"] == []


def test_one_more_that_agrees_decides() -> None:
    market = Market()
    market.announce(*PROVIDERS)
    call = market.call(RERANK)
    for number, outputs in enumerate([ranked("cat"), ranked("dog"), ranked("dog")]):
        market.answer(market.asked()[number], outputs)
    assert [one["id"] for one in call.output["topk"]] == ["dog"]


@requirement("OA-062")
def test_a_judge_decides_which_results_mean_the_same() -> None:
    market = Market(judge="com.judge/compare")
    market.announce(ANNA, BERT)
    seen: list[Any] = []

    def judge(agent: Any, effect: Any) -> None:
        seen.append(json.loads(bytes(effect.input)))
        agent.finish({"groups": [5, 5]})

    market.exchange.attach("com.judge", "compare", deliver=judge)
    call = market.call(RERANK)
    first, second = market.asked()
    market.answer(first, ranked("cat", "dog"))
    market.answer(second, ranked("dog", "cat"))
    assert call.output["verification"]["agreed"] == [first.npub, second.npub]
    [told] = seen
    assert (told["schema_id"], told["inputs"]["k"], len(told["results"])) == (RERANK, RANK["k"], 2)


def test_a_judge_that_says_nothing_of_use_leaves_it_to_the_comparison() -> None:
    market = Market(judge="com.judge/compare")
    market.announce(ANNA, BERT)
    market.exchange.attach("com.judge", "compare", deliver=lambda agent, _: agent.finish({"groups": [1]}))
    call = market.call(RERANK)
    for provider in market.asked():
        market.answer(provider, ranked("cat"))
    assert len(call.output["verification"]["agreed"]) == 2
    assert market.exchange.notices() == ["nostr.judge"]


def test_too_few_providers_for_agreement_are_not_asked_at_all() -> None:
    market = Market()
    market.announce(ANNA)
    call, alone = market.call(RERANK), market.call(RERANK, providers=1)
    market.exchange.advance(LOOK_S + 1)
    assert call.code == "tool.unavailable"
    assert call.outcome.fault is not None
    assert "2 providers" in call.outcome.fault.message
    assert (market.asked(), alone.answer) == ([ANNA], None)


def test_a_quorum_is_enough_when_nobody_is_left_to_ask() -> None:
    market = Market(silence_s=10)
    market.announce(ANNA, BERT, CARL)
    call = market.call(RERANK, providers=3)
    silent, *others = market.asked()
    for provider in others:
        market.answer(provider, ranked("cat"))
    assert call.answer is None
    market.exchange.advance(11)
    verification = call.output["verification"]
    assert (len(verification["agreed"]), verification["silent"]) == (2, [silent.npub])
    assert market.taken_back() == [market.request_to(silent).id]


# --- runs that failed -------------------------------------------------------------------------------------------------

RUN = {"commands": [{"cmd": "false"}]}


def failed_run() -> dict[str, Any]:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    run = {"cmd": "false", "exit_code": 1, "duration_ms": 3, "stdout_sha256": empty, "stderr_sha256": empty}
    return {"env_info": {}, "runs": [run], "artifacts": [], "status": "failed"}


def test_a_run_that_failed_is_a_result_and_nobody_is_paid_for_it() -> None:
    market = Market()
    market.announce(ANNA, BERT, said=announcement(SANDBOX))
    call = market.call(SANDBOX, RUN)
    [first] = market.asked()
    market.feedback(first, Status.ERROR, "the run did not succeed")
    market.answer(first, failed_run(), schema_id=SANDBOX)
    assert call.outcome.status is CallStatus.SUCCEEDED
    assert (call.output["status"], call.output["verification"]["state"]) == ("failed", "failed")
    assert call.output["verification"]["to_be_paid"] == []
    assert market.asked() == [first]


def test_a_sandbox_that_failed_without_a_result_is_followed_by_another() -> None:
    market = Market()
    market.announce(ANNA, BERT, said=announcement(SANDBOX))
    market.call(SANDBOX, RUN)
    market.feedback(market.asked()[0], Status.ERROR, "no sandbox here")
    market.exchange.advance(6)
    assert len(market.asked()) == 2


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_call_that_is_canceled_takes_its_request_back() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call()
    request = market.request_to(ANNA)
    cancel(market, call)
    assert call.outcome.status is CallStatus.CANCELED
    assert market.taken_back() == [request.id]
    market.answer(ANNA, embedded())
    assert len(market.exchange.recorded(CallSettled)) == 1


def test_of_a_canceled_run_nobody_knows_how_far_it_came() -> None:
    market = Market()
    market.announce(ANNA, said=announcement(SANDBOX))
    call = market.call(SANDBOX, RUN)
    cancel(market, call)
    assert call.outcome.status is CallStatus.UNKNOWN
    assert len(market.taken_back()) == 1


def test_a_deadline_ends_the_call_and_takes_back_what_is_open() -> None:
    market = Market()
    market.announce(ANNA, BERT)
    call = market.call(timeout_ms=20_000)
    market.exchange.advance(17)
    # Patience is a quarter of the time there is, so that there is time for others.
    assert len(market.asked()) == 2
    assert call.answer is None
    market.exchange.advance(2)
    assert (call.outcome.status, call.code) == (CallStatus.FAILED, "tool.timeout")
    assert len(market.taken_back()) == 2
    assert market.agent.records.of(ANNA.public).silent == 1


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        ({**EMBED, "remote": {"provider": "npub1x"}}, "remote.provider"),
        ({**EMBED, "remote": {"speed": 3}}, "remote"),
        ({"texts": ["a"]}, "model"),
    ],
)
def test_what_is_no_job_is_refused_and_nobody_is_asked(inputs: dict[str, Any], place: str) -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call(inputs=inputs)
    assert call.code == "tool.invalid_input"
    assert call.outcome.fault is not None
    assert place in call.outcome.fault.message
    assert market.requests() == []


def test_rules_that_change_while_a_job_looks_for_a_provider_hold() -> None:
    market = Market()
    call = market.call()
    denying = Policy((Rule("no", "*", "nostr.jobs/*", Decision.DENY),), "no")
    settings = replace(market.exchange.config.hub_settings(), policy=denying)
    market.exchange.feed.feed([SettingsChanged(settings)])
    market.announce(ANNA)
    assert call.code == "policy.denied"
    assert market.requests() == []


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_after_a_restart_the_same_request_is_told_again_and_a_late_result_is_taken() -> None:
    market = Market()
    market.announce(ANNA, BERT)
    call_id = market.call().call_id
    [request] = market.requests()
    again = market.restarted()
    again.exchange.advance(2)
    assert [event.id for event in again.said] == [request.id]
    assert again.listened == 3, "relays are asked for what was missed"
    [_, about] = again.filters["answers"](again.exchange.now())
    assert about.e == (request.id,)
    again.answer(next(p for p in PROVIDERS if p.public == request.value("p")), embedded())
    view = again.exchange.views.call(call_id)
    assert view is not None
    assert view.status is CallStatus.SUCCEEDED
    assert len(again.requests()) == 1


def test_a_clean_stop_leaves_requests_under_way_and_the_next_start_goes_on_with_them() -> None:
    market = Market()
    market.announce(ANNA)
    call_id = market.call().call_id
    [request] = market.requests()
    market.agent.stop()
    assert market.taken_back() == []
    again = market.restarted()
    again.exchange.advance(5)
    again.answer(ANNA, embedded(), request=request)
    view = again.exchange.views.call(call_id)
    assert view is not None
    assert (view.status, again.requests()) == (CallStatus.SUCCEEDED, [request])


def test_a_request_with_something_that_the_record_masks_is_the_same_after_a_restart() -> None:
    market = Market()
    market.announce(ANNA)
    secret = "tlk_" + "aB3" * 15
    market.call(inputs={**EMBED, "texts": [secret, "b"]})
    [request] = market.requests()
    again = market.restarted()
    again.exchange.advance(2)
    assert again.requests() == [request]
    assert events.checked(again.requests()[0]) == request
    disk = market.exchange.disk.folder
    assert not any(secret.encode() in path.read_bytes() for path in disk.rglob("*") if path.is_file())


def test_who_lied_before_a_restart_is_not_asked_again_after_it() -> None:
    market = Market()
    market.announce(ANNA)
    market.call()
    market.answer(ANNA, {"what": 1})
    again = market.restarted()
    again.announce(ANNA)
    again.exchange.advance(2)
    assert again.requests() == []
    again.announce(BERT)
    assert again.asked() == [BERT]


def test_how_providers_did_is_known_after_a_restart() -> None:
    market = Market()
    market.announce(ANNA)
    for _ in range(40):
        market.call()
        market.answer(ANNA, embedded(), request=market.requests()[-1])
    steps = market.exchange.views.open_steps(RECORDS)[ANNA.public]
    assert len(steps) <= 16
    assert market.restarted().agent.records.of(ANNA.public).succeeded == 40


def test_of_a_provider_that_is_forgotten_nothing_is_open_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    market = Market()
    for provider in (ANNA, BERT, CARL):
        market.call(provider=provider.npub)
        market.answer(provider, embedded())
    assert set(market.exchange.views.open_steps(RECORDS)) == {ANNA.public, BERT.public, CARL.public}
    monkeypatch.setattr(provider_records, "MAX_RECORDS", 2)
    again = market.restarted()
    assert set(again.exchange.views.open_steps(RECORDS)) == {BERT.public, CARL.public}
    again.call(provider=DORA.npub)
    again.answer(DORA, embedded())
    assert set(again.exchange.views.open_steps(RECORDS)) == {CARL.public, DORA.public}


def test_requests_of_a_call_that_ended_without_us_are_taken_back_at_the_start() -> None:
    market = Market()
    market.announce(ANNA)
    market.call()
    [request] = market.requests()
    # Three deliveries are the most: the call is unknown then.
    for _ in range(3):
        assert market.taken_back() == []
        market = market.restarted()
        market.exchange.advance(3)
    [settled] = market.exchange.recorded(CallSettled)
    assert settled.status is CallStatus.UNKNOWN
    assert market.taken_back() == [request.id]
    assert market.exchange.views.open_steps(PROCESS) == {}


def test_a_defect_of_ours_costs_no_call() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call()
    [request] = market.requests()
    market.exchange.feed.failed(market.agent.number, RuntimeError("a defect"))
    market.exchange.advance(5)
    market.answer(ANNA, embedded())
    assert call.outcome.status is CallStatus.SUCCEEDED
    assert market.requests() == [request]
