"""``hub.calls`` and ``hub.interruptions``: sent, shown, finished; timed out, lost, sent again; slots and queues."""

from __future__ import annotations

import hashlib
import json

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.hub.kit import BOSS, DESK, Asked, Kit, body, rules, tool
from trunkline import effects, entries, events
from trunkline.hub.hub import MAX_IGNORED
from trunkline.hub.interruptions import CALLER_GONE_S, GRACE_S
from trunkline.hub.queues import MAX_QUEUED
from trunkline.hub.retry import PATIENCE_S
from trunkline.hub.streams import HALF_SECRET_BYTES, TAIL_BYTES
from trunkline.model import (
    HEAD_BYTES,
    INLINE_OUTPUT_BYTES,
    RESEND,
    Actor,
    Fault,
    Health,
    Principal,
    Status,
    fault,
)

STOPPABLE = ("cancellation",)
OBJECT_WITH_TEXT = Raw(b'{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}')


def attached(kit: Kit, *names: str, **terms: object) -> None:
    """``com.a`` with tools of these names, all of the same kind."""
    agent = {name: terms.pop(name) for name in ("max_inflight", "timeout_s", "dedupes") if name in terms}
    kit.attach("com.a", *(tool(f"com.a/{name}", **terms) for name in names), **agent)


# --- the ordinary way -------------------------------------------------------------------------------------------------


def test_a_call_is_delivered_and_its_result_answered(kit: Kit) -> None:
    session = kit.attach("com.a", "x")
    asked = kit.call("com.a/x", {"city": "Bern"}, correlation_id="c1", timeout_ms=2000)
    (sent,) = asked.deliveries
    assert sent.session == session
    assert bytes(sent.input) == b'{"city":"Bern"}'
    assert (sent.caller, sent.correlation_id, sent.timeout_ms, sent.attempt) == ("operator", "c1", 2000, 1)
    kit.finish(asked, {"ok": True})
    assert asked.status is Status.SUCCEEDED
    assert asked.outcome.output == body({"ok": True})
    assert asked.outcome.correlation_id == "c1"
    assert not asked.refused


@requirement("OS-001")
def test_an_ordinary_call_has_two_entries_which_name_the_decision_and_the_rule(kit: Kit) -> None:
    kit.attach("com.a", "x")
    before = len(kit.log)
    asked = kit.call("com.a/x")
    kit.finish(asked, {})
    accepted, settled = kit.log[before:]
    assert isinstance(accepted, entries.CallAccepted)
    assert isinstance(settled, entries.CallSettled)
    assert (accepted.decision, accepted.rule, accepted.policy, accepted.sent) == ("allow", "rule-1", "v1", True)
    assert settled.call == accepted.n
    assert settled.call_id == accepted.call_id == asked.call_id


def test_the_call_id_ends_with_the_number_of_its_entry(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    assert int(asked.call_id[-12:], 16) == asked.accepted.n


@pytest.mark.parametrize("side_effects", [True, False])
def test_with_side_effects_delivery_and_answer_wait_for_their_entries_and_without_for_nothing(
    kit: Kit, side_effects: bool
) -> None:
    attached(kit, "x", side_effects=side_effects)
    asked = kit.call("com.a/x")
    kit.finish(asked, {})
    settled = kit.outcomes[asked.accepted.n]
    expected = (asked.accepted.n, settled.n) if side_effects else (0, 0)
    assert (asked.deliveries[0].after, asked.outcome.after) == expected


def test_a_read_only_call_that_a_person_was_asked_about_waits_for_the_disk_too() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    attached(kit, "x", side_effects=False)
    asked = kit.call("com.a/x")
    kit.answer(asked.approval_id)
    kit.finish(asked, {})
    assert asked.deliveries[0].after > asked.accepted.n
    assert asked.outcome.after == kit.outcomes[asked.accepted.n].n


@requirement("OS-047")
def test_the_actor_and_the_context_travel_but_decide_nothing() -> None:
    kit = Kit(rules(("operator", "*", "allow")))
    kit.attach("com.a", "x")
    boss = Actor("human", "operator", "The Boss")
    denied = kit.call("com.a/x", by=Principal("http:guest"), actor=boss)
    assert denied.code == "policy.denied"
    allowed = kit.call("com.a/x", actor=boss, context=body({"project_root": "/p"}))
    assert allowed.deliveries[0].actor == boss
    assert allowed.deliveries[0].context == body({"project_root": "/p"})


def test_with_announce_the_caller_learns_the_id_before_the_outcome(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    running, queued = kit.call("com.a/x", announce=True), kit.call("com.a/x", announce=True)
    assert [w.status for w in (*running.waits, *queued.waits)] == [Status.RUNNING, Status.QUEUED]
    assert running.waits[0].call_id == running.deliveries[0].call_id
    assert running.waits[0].after == running.accepted.n
    silent = kit.call("com.a/x")
    assert silent.waits == []


def test_an_announced_repeat_of_a_running_key_is_told_the_same_id(kit: Kit) -> None:
    kit.attach("com.a", "x")
    first = kit.call("com.a/x", key="k")
    again = kit.call("com.a/x", key="k", announce=True)
    assert [w.call_id for w in again.waits] == [first.call_id]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_recorded_and_reaches_nobody(kit: Kit) -> None:
    asked = kit.call("com.a/none")
    assert asked.refused
    assert asked.code == "tool.not_found"
    (entry,) = kit.log_of(entries.CallRefused)
    assert (entry.caller, entry.tool_id, entry.code) == ("operator", "com.a/none", "tool.not_found")
    assert kit.deliveries == []
    assert kit.hub.refused == {"tool.not_found": 1}


def test_a_tool_whose_agent_is_away_is_unavailable_and_not_unknown(kit: Kit) -> None:
    kit.attach("com.a", "x")
    kit.leave("com.a")
    assert kit.call("com.a/x").code == "tool.unavailable"
    kit.crash()
    away = kit.call("com.a/x")
    assert (away.code, away.outcome.fault and away.outcome.fault.retryable) == ("tool.unavailable", True)


def test_a_withdrawn_tool_is_not_found_while_its_agent_is_here(kit: Kit) -> None:
    kit.attach("com.a", "x", "y")
    kit.withdraw("com.a", "com.a/x")
    assert kit.call("com.a/x").code == "tool.not_found"
    assert kit.call("com.a/y").answer is None


def test_input_that_breaks_the_schema_is_refused_with_its_place(kit: Kit) -> None:
    attached(kit, "x", input_schema=OBJECT_WITH_TEXT)
    asked = kit.call("com.a/x", {"text": 5})
    assert asked.code == "tool.invalid_input"
    assert "$.text" in str(asked.outcome.fault)
    assert asked.deliveries == []


@requirement("OS-159")
def test_a_broken_schema_is_only_a_warning_where_the_setting_says_so(kit: Kit) -> None:
    attached(kit, "x", input_schema=OBJECT_WITH_TEXT)
    kit.in_force(schema_strict=False)
    asked = kit.call("com.a/x", {"text": 5})
    assert len(asked.deliveries) == 1
    assert asked.accepted.warning is not None
    assert "$.text" in asked.accepted.warning


@requirement("OS-019", "OS-021")
@pytest.mark.parametrize(("size", "code"), [(99, None), (100, None), (101, "tool.invalid_input")])
def test_an_input_may_be_as_large_as_the_tool_allows(kit: Kit, size: int, code: str | None) -> None:
    attached(kit, "x", max_input_bytes=100)
    asked = kit.call("com.a/x", Raw(b'{"a":"' + b"x" * (size - 8) + b'"}'))
    assert asked.code == code
    assert len(asked.deliveries) == (code is None)


@requirement("OS-132")
@pytest.mark.parametrize(
    ("health", "code"),
    [
        (Health.OK, None),
        (Health.DEGRADED, None),
        (Health.UNHEALTHY, "tool.unavailable"),
        (Health.SILENT, "tool.unavailable"),
    ],
)
def test_only_an_agent_that_is_well_enough_is_given_calls(kit: Kit, health: Health, code: str | None) -> None:
    kit.attach("com.a", "x")
    kit.health("com.a", health)
    assert kit.call("com.a/x").code == code
    kit.health("com.a", Health.OK)
    assert kit.call("com.a/x").answer is None


def test_a_running_call_of_an_agent_that_falls_silent_goes_on(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.health("com.a", Health.SILENT)
    kit.finish(asked, {"late": "but good"})
    assert asked.status is Status.SUCCEEDED


# --- what an agent says -----------------------------------------------------------------------------------------------


def test_a_failure_keeps_the_agents_own_fault(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    given = Fault("weather.closed", "come back tomorrow", retryable=True, details={"hours": 8})
    kit.finish(asked, {"ignored": 1}, status=Status.FAILED, fault=given)
    assert asked.status is Status.FAILED
    assert asked.outcome.fault == given
    assert asked.outcome.output is None


@pytest.mark.parametrize(("status", "code"), [(Status.FAILED, "tool.failed"), (Status.CANCELED, "tool.canceled")])
def test_an_end_without_a_reason_gets_the_one_of_the_table(kit: Kit, status: Status, code: str) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.finish(asked, status=status)
    assert (asked.status, asked.code) == (status, code)


def test_success_without_an_output_is_an_empty_object(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.finish(asked)
    assert asked.outcome.output == Raw(b"{}")


def test_an_output_that_breaks_its_schema_fails_the_call(kit: Kit) -> None:
    attached(kit, "x", output_schema=OBJECT_WITH_TEXT)
    asked = kit.call("com.a/x")
    kit.finish(asked, {"text": 5})
    assert (asked.status, asked.code) == (Status.FAILED, "tool.invalid_output")
    assert asked.outcome.output is None


@requirement("OS-020", "OS-021")
@pytest.mark.parametrize(("size", "status"), [(100, Status.SUCCEEDED), (101, Status.FAILED)])
def test_an_output_may_be_as_large_as_the_tool_allows(kit: Kit, size: int, status: Status) -> None:
    attached(kit, "x", max_output_bytes=100)
    asked = kit.call("com.a/x")
    kit.finish(asked, Raw(b'{"a":"' + b"x" * (size - 8) + b'"}'))
    assert asked.status is status
    assert asked.code == (None if status is Status.SUCCEEDED else "tool.output_too_large")


def test_a_result_is_judged_by_the_definition_its_call_was_made_under(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.offer("com.a", tool("com.a/x", output_schema=OBJECT_WITH_TEXT), replace=True)
    kit.finish(asked, {"other": "shape"})
    assert asked.status is Status.SUCCEEDED


def test_a_call_of_a_tool_that_was_withdrawn_meanwhile_can_still_finish(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.withdraw("com.a", "com.a/x")
    kit.finish(asked, {"ok": 1})
    assert asked.status is Status.SUCCEEDED


def test_a_large_output_is_answered_whole_with_what_a_reference_needs_beside_it(kit: Kit) -> None:
    kit.attach("com.a", "x")
    small, large = kit.call("com.a/x"), kit.call("com.a/x", {"n": 2}, key="k")
    exactly = Raw(b'"' + b"x" * (INLINE_OUTPUT_BYTES - 2) + b'"')
    kit.finish(small, exactly)
    assert (small.outcome.output, small.outcome.large) == (exactly, None)
    output = Raw(b'"' + b"x" * (INLINE_OUTPUT_BYTES - 1) + b'"')
    kit.finish(large, output)
    assert large.outcome.output == output
    assert large.outcome.large is not None
    shown = json.loads(bytes(large.outcome.large.reference()))
    assert shown["$ref"] == f"sha256:{hashlib.sha256(bytes(output)).hexdigest()}"
    assert (shown["bytes"], len(shown["head"])) == (INLINE_OUTPUT_BYTES + 1, HEAD_BYTES)
    assert kit.outcomes[large.accepted.n].output == output
    again = kit.call("com.a/x", {"n": 2}, key="k")
    assert (again.outcome.output, again.outcome.large) == (output, large.outcome.large)


@pytest.mark.parametrize(("size", "waits"), [(INLINE_OUTPUT_BYTES, False), (INLINE_OUTPUT_BYTES + 1, True)])
def test_a_reference_is_given_out_when_what_it_refers_to_is_on_disk(kit: Kit, size: int, waits: bool) -> None:
    kit.attach("com.a", tool("com.a/read", side_effects=False))
    asked = kit.call("com.a/read")
    kit.finish(asked, Raw(b'"' + b"x" * (size - 2) + b'"'))
    assert asked.outcome.after == (kit.outcomes[asked.accepted.n].n if waits else 0)


def test_what_a_call_shows_reaches_its_waiters_and_its_end_is_kept(kit: Kit) -> None:
    attached(kit, "x")
    asked = kit.call("com.a/x", correlation_id="c")
    kit.show(asked, 1, "one ")
    kit.show(asked, 2, "two ")
    kit.show(asked, 5, "x" * TAIL_BYTES)
    assert [(p.ref, p.seq, p.channel, p.correlation_id) for p in kit.progress] == [
        (asked.ref, 1, "stdout", "c"),
        (asked.ref, 2, "stdout", "c"),
        (asked.ref, 5, "stdout", "c"),
    ]
    kit.finish(asked, {})
    stream = kit.outcomes[asked.accepted.n].stream
    assert stream is not None
    assert (stream.chunks, stream.gaps) == (3, 2)
    # What begins in the middle of a word begins with the next one, or without as much as any token has.
    assert stream.tail == "x" * (TAIL_BYTES - HALF_SECRET_BYTES)


def test_what_a_call_shows_that_nobody_waits_for_is_said_once_for_those_who_look_on(kit: Kit) -> None:
    attached(kit, "x")
    asked = kit.call("com.a/x", key="k")
    kit.feed(events.CallerLeft(asked.session, asked.ref))
    kit.show(asked, 1, "nobody waits")
    assert [(p.session, p.ref, p.call_id, p.seq) for p in kit.progress] == [(0, "", asked.call_id, 1)]
    kit.finish(asked, {})
    assert kit.answers == {}


def test_the_numbers_of_what_a_call_shows_go_on_when_it_is_sent_again(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/read", side_effects=False))
    asked = kit.call("com.a/read")
    for seq in (1, 2, 5):
        kit.show(asked, seq, "first")
    for _ in range(2):
        kit.leave("com.a")
        kit.attach("com.a", tool("com.a/read", side_effects=False))
        kit.advance(3.0)
        for seq in (1, 2):
            kit.show(asked, seq, "again")
    assert [shown.seq for shown in kit.progress] == [1, 2, 5, 6, 7, 8, 9]
    kit.finish(asked, {})
    stream = kit.outcomes[asked.accepted.n].stream
    assert stream is not None
    assert (stream.chunks, stream.gaps) == (2, 0), "on record is what the delivery that ended it showed"


def test_a_partial_result_is_kept_as_it_was_sent(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    session = asked.deliveries[0].session
    kit.feed(events.CallProgressed(session, asked.call_id, 1, "partial_result", body({"json": {"a": 1}})))
    kit.finish(asked, {})
    stream = kit.outcomes[asked.accepted.n].stream
    assert stream is not None
    assert stream.tail == '{"json":{"a":1}}\n'


# --- results that are nobody's business (P-B3, P-B4) ------------------------------------------------------------------


@requirement("OS-122")
def test_of_two_results_the_first_counts_and_the_second_is_recorded_with_its_sender(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.finish(asked, {"n": 1})
    assert kit.finish(asked, {"n": 2}) == []
    assert asked.outcome.output == body({"n": 1})
    (note,) = kit.log_of(entries.CallNoted)
    assert (note.call_id, note.note, note.by) == (asked.call_id, "result.ignored", "opensentience:com.a")


@pytest.mark.parametrize("case", ["unknown", "foreign", "settled", "never sent"])
def test_a_result_of_a_call_that_is_not_the_senders_running_one_goes_nowhere(case: str) -> None:
    kit = Kit(rules(("http:asked", "*", "ask"), ("*", "*", "allow")))
    kit.attach("com.a", "x")
    thief = kit.attach("com.b", "y")
    asked = kit.call("com.a/x", by=Principal("http:asked") if case == "never sent" else BOSS)
    call_id, session = asked.call_id, thief
    if case == "unknown":
        call_id = "00000000-0000-8000-8000-00000000ffff"
    elif case == "settled":
        kit.finish(asked, {})
        session = kit.sessions["com.a"]
    elif case == "never sent":
        session = kit.sessions["com.a"]
    answered = asked.answer
    assert kit.finish(call_id, {"stolen": True}, session=session) == []
    assert asked.answer is answered
    assert kit.log_of(entries.CallNoted)[-1].note == "result.ignored"


def test_progress_and_cancel_acknowledgements_of_foreign_calls_go_nowhere(kit: Kit) -> None:
    kit.attach("com.a", "x")
    thief = kit.attach("com.b", "y")
    asked = kit.call("com.a/x")
    assert kit.feed(events.CallProgressed(thief, asked.call_id, 1, "stdout", body({"text": "lies"}))) == []
    assert kit.feed(events.CancelAcknowledged(thief, asked.call_id, True)) == []
    assert kit.progress == []
    assert [note.note for note in kit.log_of(entries.CallNoted)] == ["stream.ignored", "cancel_ack.ignored"]


def test_an_agent_cannot_fill_the_record_with_words_about_calls_that_it_made_up(kit: Kit) -> None:
    session = kit.attach("com.a", "x")
    for number in range(MAX_IGNORED + 10):
        assert kit.feed(events.CallFinished(session, f"call-{number}", Status.SUCCEEDED)) == []
    assert len(kit.log_of(entries.CallNoted)) == MAX_IGNORED


def test_a_stream_that_goes_on_after_its_call_ended_is_noted_once(kit: Kit) -> None:
    session = kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.finish(asked, {})
    for seq in range(1, 50):
        kit.feed(events.CallProgressed(session, asked.call_id, seq, "stdout", body({"text": "…"})))
    assert len(kit.log_of(entries.CallNoted)) == 1


# --- deadlines (decision 4) -------------------------------------------------------------------------------------------


def test_a_tools_own_limit_stands_between_the_callers_and_the_edges(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/slow", timeout_ms=120_000), tool("com.a/x"))
    for _ in range(2):
        assert kit.call("com.a/slow").deliveries[0].timeout_ms == 120_000
        assert kit.call("com.a/slow", timeout_ms=1500).deliveries[0].timeout_ms == 1500
        assert kit.call("com.a/x").deliveries[0].timeout_ms == 30_000


@pytest.mark.parametrize(
    ("terms", "asked_ms", "told"),
    [
        (
            {},
            None,
            "within 30 s, the default; another is `call --timeout` (`timeout_ms`), or `timeout_s` of its tool or",
        ),
        ({"timeout_ms": 90_000}, None, "within 90 s, the tool's own limit (its `timeout_s`)"),
        ({"timeout_ms": 90_000}, 1500, "within 1.5 s, as the call asked"),
    ],
)
def test_a_call_that_took_too_long_says_how_long_it_had_and_who_said_so(
    kit: Kit, terms: dict[str, int], asked_ms: int | None, told: str
) -> None:
    kit.attach("com.a", tool("com.a/x", side_effects=False, **terms))
    first, second = (kit.call("com.a/x", timeout_ms=asked_ms) for _ in range(2))
    kit.advance(91.0)
    for asked in (first, second):
        assert asked.outcome.fault is not None
        assert asked.outcome.fault.message.startswith(f"the tool did not answer {told}")
        assert asked_ms is None or asked.outcome.fault.message.endswith(told), "a person said --timeout"


def test_another_time_limit_is_no_other_tool(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", timeout_ms=1000))
    kit.offer("com.a", tool("com.a/x", timeout_ms=2000))
    assert kit.call("com.a/x").deliveries[0].timeout_ms == 2000


def test_the_deadline_is_the_callers_else_the_edges_else_none(kit: Kit) -> None:
    kit.attach("com.a", "x")
    kit.attach("com.b", "y", timeout_s=None)
    assert kit.call("com.a/x", timeout_ms=1500).deliveries[0].timeout_ms == 1500
    assert kit.call("com.a/x").deliveries[0].timeout_ms == 30_000
    endless = kit.call("com.b/y")
    assert endless.deliveries[0].timeout_ms is None
    kit.advance(10_000)
    assert endless.answer is None


@pytest.mark.parametrize("side_effects", [True, False])
def test_at_the_deadline_a_stoppable_call_is_canceled_and_given_a_grace(kit: Kit, side_effects: bool) -> None:
    attached(kit, "x", side_effects=side_effects, capabilities=STOPPABLE)
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(0.99)
    assert kit.cancels == []
    kit.advance(0.07)
    (cancel,) = kit.cancels
    assert (cancel.call_id, cancel.reason, cancel.deadline_ms) == (asked.call_id, "timeout", 5000)
    kit.advance(GRACE_S - 0.1)
    assert asked.answer is None
    kit.advance(0.2)
    assert asked.code == "tool.timeout"
    expected = (Status.UNKNOWN, False) if side_effects else (Status.FAILED, True)
    assert (asked.status, asked.outcome.fault and asked.outcome.fault.retryable) == expected


@pytest.mark.parametrize("side_effects", [True, False])
def test_a_call_that_cannot_be_stopped_is_not_waited_for_any_longer(kit: Kit, side_effects: bool) -> None:
    attached(kit, "x", side_effects=side_effects)
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(1.06)
    assert kit.cancels == []
    assert asked.code == "tool.timeout"
    assert asked.status is (Status.UNKNOWN if side_effects else Status.FAILED)


def test_a_confirmed_cancel_after_the_deadline_is_a_timeout_and_not_unknown(kit: Kit) -> None:
    attached(kit, "x", capabilities=STOPPABLE)
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(1.1)
    kit.finish(asked, status=Status.CANCELED)
    assert (asked.status, asked.code) == (Status.FAILED, "tool.timeout")


def test_a_result_within_the_grace_counts(kit: Kit) -> None:
    attached(kit, "x", capabilities=STOPPABLE)
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(3)
    kit.finish(asked, {"just": "in time"})
    assert asked.status is Status.SUCCEEDED


def test_a_result_after_the_outcome_is_recorded_as_late_and_goes_nowhere(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(2)
    assert kit.finish(asked, {"too": "late"}) == []
    assert asked.code == "tool.timeout"
    assert kit.log_of(entries.CallNoted)[-1].note == "result.ignored"


def test_the_timeout_counts_from_sending_and_not_from_the_question() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "x", max_inflight=1)
    asked = kit.call("com.a/x", timeout_ms=1000)
    kit.advance(600)
    kit.answer(asked.approval_id)
    kit.advance(0.9)
    assert asked.answer is None
    kit.advance(0.2)
    assert asked.code == "tool.timeout"


def test_the_timeout_of_a_queued_call_counts_from_sending(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    first, second = kit.call("com.a/x", timeout_ms=60_000), kit.call("com.a/x", timeout_ms=1000)
    kit.advance(30)
    assert second.answer is None
    kit.finish(first, {})
    kit.advance(0.9)
    assert second.answer is None
    kit.advance(0.2)
    assert second.code == "tool.timeout"


# --- the caller is gone (decision 5) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "key", "is_canceled"),
    [(STOPPABLE, None, True), ((), None, False), (STOPPABLE, "k", False), ((), "k", False)],
)
def test_only_unkeyed_calls_of_stoppable_tools_end_with_their_caller(
    kit: Kit, capabilities: tuple[str, ...], key: str | None, is_canceled: bool
) -> None:
    attached(kit, "x", capabilities=capabilities)
    asked = kit.call("com.a/x", key=key)
    kit.feed(events.CallerLeft(DESK, asked.ref))
    kit.advance(CALLER_GONE_S - 0.1)
    assert kit.cancels == []
    kit.advance(0.2)
    assert [c.reason for c in kit.cancels] == (["caller_gone"] if is_canceled else [])
    kit.finish(asked, {"done": 1})
    assert asked.answer is None
    assert kit.outcomes[asked.accepted.n].status is Status.SUCCEEDED


def test_a_caller_that_repeats_its_key_in_time_is_not_gone(kit: Kit) -> None:
    attached(kit, "x", capabilities=STOPPABLE)
    asked = kit.call("com.a/x", key="k")
    kit.feed(events.CallerLeft(DESK, asked.ref))
    again = kit.call("com.a/x", key="k")
    kit.advance(CALLER_GONE_S + 1)
    assert kit.cancels == []
    kit.finish(asked, {})
    assert again.status is Status.SUCCEEDED


def test_an_agent_that_leaves_gives_up_its_own_calls_like_any_caller(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", capabilities=STOPPABLE))
    kit.attach("com.b")
    asked = kit.call("com.a/x", by="com.b")
    kit.leave("com.b")
    kit.advance(CALLER_GONE_S + 0.1)
    assert [c.call_id for c in kit.cancels] == [asked.call_id]


def test_a_queued_call_whose_caller_is_gone_is_never_sent(kit: Kit) -> None:
    attached(kit, "x", capabilities=STOPPABLE, max_inflight=1)
    first, second = kit.call("com.a/x", timeout_ms=60_000), kit.call("com.a/x")
    kit.feed(events.CallerLeft(DESK, second.ref))
    kit.advance(CALLER_GONE_S + 0.1)
    kit.finish(first, {})
    assert second.deliveries == []
    assert kit.outcomes[second.accepted.n].status is Status.CANCELED


def test_a_call_that_a_question_inside_holds_up_goes_on_without_its_caller() -> None:
    kit = Kit(rules(("opensentience:com.a", "*", "ask"), ("*", "*", "allow")))
    kit.attach("com.a", tool("com.a/x", capabilities=STOPPABLE))
    kit.attach("com.b", "x")
    first, beside = kit.call("com.a/x", timeout_ms=600_000), kit.call("com.a/x", timeout_ms=600_000)
    inside = kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    for asked in (first, beside):
        kit.feed(events.CallerLeft(DESK, asked.ref))
    kit.advance(CALLER_GONE_S + 60)
    assert [c.call_id for c in kit.cancels] == [beside.call_id]
    kit.answer(inside.approval_id)
    kit.finish(inside, {})
    kit.finish(first, {})
    assert kit.outcomes[first.accepted.n].status is Status.SUCCEEDED


def test_a_call_that_waits_for_a_person_does_not_need_its_caller() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    attached(kit, "x", capabilities=STOPPABLE)
    asked = kit.call("com.a/x")
    kit.feed(events.CallerLeft(DESK, asked.ref))
    kit.advance(CALLER_GONE_S + 60)
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1
    kit.finish(asked, {})
    assert kit.outcomes[asked.accepted.n].status is Status.SUCCEEDED


# --- lost in flight (decision 1) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [{"side_effects": False}, {"capabilities": ("idempotency",)}, {"dedupes": True}],
    ids=["no side effects", "the tool dedupes", "the agent dedupes"],
)
def test_a_lost_call_that_can_do_no_harm_is_sent_again_under_the_same_id_and_key(
    kit: Kit, terms: dict[str, object]
) -> None:
    attached(kit, "x", **terms)
    asked = kit.call("com.a/x", key="k")
    kit.leave("com.a")
    assert asked.answer is None
    attached(kit, "x", **terms)
    kit.advance(RESEND.delays_s[1] + 0.1)
    assert [(d.call_id, d.attempt, d.key) for d in asked.deliveries] == [
        (asked.call_id, 1, "k"),
        (asked.call_id, 2, "k"),
    ]
    kit.finish(asked, {"at": "last"})
    assert asked.status is Status.SUCCEEDED
    assert kit.hub.interruptions.resent == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_a_lost_call_with_side_effects_is_unknown_and_never_sent_again(kit: Kit, key: str | None) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", key=key)
    kit.leave("com.a")
    assert (asked.status, asked.code) == (Status.UNKNOWN, "agent.lost")
    assert asked.outcome.fault is not None
    assert not asked.outcome.fault.retryable
    kit.attach("com.a", "x")
    kit.advance(60)
    assert len(asked.deliveries) == 1
    if key is not None:
        assert kit.call("com.a/x", key=key).status is Status.UNKNOWN


def test_a_result_that_arrives_on_a_later_connection_goes_nowhere(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.leave("com.a")
    session = kit.attach("com.a", "x")
    assert kit.finish(asked, {"n": 1}, session=session) == []
    assert asked.status is Status.UNKNOWN


def test_a_call_is_sent_three_times_and_then_its_tool_rests(kit: Kit) -> None:
    attached(kit, "x", "y", side_effects=False)
    asked = kit.call("com.a/x")
    for attempt in (2, 3):
        kit.leave("com.a")
        attached(kit, "x", "y", side_effects=False)
        kit.advance(RESEND.delays_s[attempt - 1] + 0.1)
        assert asked.deliveries[-1].attempt == attempt
    kit.leave("com.a")
    assert (asked.status, asked.code) == (Status.UNKNOWN, "agent.lost")
    attached(kit, "x", "y", side_effects=False)
    assert kit.call("com.a/x").code == "tool.unavailable"
    assert kit.hub.registry.tools["com.a/x"].status(kit.mono) == "quarantined"
    assert kit.call("com.a/y").answer is None
    kit.advance(59.9)
    assert kit.call("com.a/x").code == "tool.unavailable"
    kit.advance(0.2)
    assert kit.call("com.a/x").answer is None


def test_a_repeat_waits_its_delay_even_if_the_agent_is_back_at_once(kit: Kit) -> None:
    attached(kit, "x", side_effects=False)
    asked = kit.call("com.a/x")
    kit.leave("com.a")
    attached(kit, "x", side_effects=False)
    kit.advance(0.9)
    assert len(asked.deliveries) == 1
    kit.advance(0.2)
    assert len(asked.deliveries) == 2


def test_a_lost_call_whose_agent_stays_away_is_given_up(kit: Kit) -> None:
    attached(kit, "x", side_effects=False)
    asked = kit.call("com.a/x")
    kit.leave("com.a")
    kit.advance(RESEND.delays_s[1] + PATIENCE_S - 0.1)
    assert asked.answer is None
    kit.advance(0.2)
    assert (asked.status, asked.code) == (Status.UNKNOWN, "agent.lost")


@pytest.mark.parametrize("side_effects", [True, False])
def test_a_call_lost_while_it_was_being_canceled_ends_as_far_as_it_is_known(kit: Kit, side_effects: bool) -> None:
    attached(kit, "x", side_effects=side_effects, capabilities=(*STOPPABLE, "idempotency"))
    asked = kit.call("com.a/x")
    kit.cancel(asked)
    kit.leave("com.a")
    assert asked.code == "tool.canceled"
    assert asked.status is (Status.UNKNOWN if side_effects else Status.CANCELED)


@pytest.mark.parametrize("end", ["cancel", "expiry", "definition changed"])
def test_a_call_that_was_sent_once_and_lost_never_ends_as_if_it_had_not_run(kit: Kit, end: str) -> None:
    attached(kit, "x", capabilities=("idempotency",))
    asked = kit.call("com.a/x", expires_ms=kit.now.ms + 3000)
    kit.leave("com.a")
    if end == "cancel":
        kit.cancel(asked)
    elif end == "expiry":
        kit.advance(3.1)
    else:
        kit.in_force(unpinned_agents=frozenset({"com.a"}))
        attached(kit, "x", capabilities=("idempotency",), description="changed")
        kit.advance(1.1)
    assert (asked.status, asked.code) == (Status.UNKNOWN, "agent.lost")


def test_a_stream_starts_anew_when_its_call_is_sent_again(kit: Kit) -> None:
    attached(kit, "x", side_effects=False)
    asked = kit.call("com.a/x")
    kit.show(asked, 1, "lost ")
    kit.show(asked, 2, "lost ")
    kit.leave("com.a")
    attached(kit, "x", side_effects=False)
    kit.advance(1.1)
    kit.show(asked, 1, "kept")
    kit.finish(asked, {})
    stream = kit.outcomes[asked.accepted.n].stream
    assert stream is not None
    assert (stream.chunks, stream.gaps, stream.tail) == (1, 0, "kept")


def test_a_fresh_session_of_an_agent_replaces_the_old_one_and_its_calls_are_lost(kit: Kit) -> None:
    old = kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    run_id = kit.launch("com.a", token="fresh")
    kit.arrive("com.a", run_id=run_id, token="fresh")
    assert kit.closes == [effects.Close(old, 0, "replaced")]
    assert asked.status is Status.UNKNOWN
    assert kit.finish(asked, {}, session=old) == []
    kit.feed(events.AgentLeft(old, "closed"))
    assert "com.a" in kit.hub.registry.agents


# --- slots and queues (decision 21, P-C6) -----------------------------------------------------------------------------


@requirement("OS-017", "OS-018")
def test_the_257th_call_is_queued_and_never_more_than_256_are_on_the_wire(kit: Kit) -> None:
    kit.attach("com.a", "x")
    with kit.in_bulk():
        asked = [kit.call("com.a/x", {"n": n}) for n in range(257)]
    assert [len(a.deliveries) for a in asked] == [1] * 256 + [0]
    assert kit.state.calls[asked[256].call_id].status is Status.QUEUED
    kit.finish(asked[100], {})
    assert len(asked[256].deliveries) == 1


@requirement("OS-018")
def test_the_queue_holds_1024_and_the_next_call_is_told_at_once(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    running = kit.call("com.a/x")
    with kit.in_bulk():
        queued = [kit.call("com.a/x", {"n": n}) for n in range(MAX_QUEUED - 1)]
    last, too_many = kit.call("com.a/x"), kit.call("com.a/x")
    assert (last.answer, too_many.code) == (None, "limit.inflight")
    assert too_many.refused
    assert too_many.outcome.fault is not None
    assert too_many.outcome.fault.retryable
    kit.finish(running, {})
    assert len(queued[0].deliveries) == 1
    assert kit.call("com.a/x").answer is None
    assert kit.call("com.a/x").code == "limit.inflight"


def test_a_canceled_call_gives_its_place_in_the_queue_back(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x", timeout_ms=600_000)
    with kit.in_bulk():
        queued = [kit.call("com.a/x", {"n": n}) for n in range(MAX_QUEUED)]
        assert kit.call("com.a/x").code == "limit.inflight"
        for asked in queued:
            kit.cancel(asked)
    assert kit.call("com.a/x").answer is None


def test_queued_calls_are_sent_in_the_order_they_came(kit: Kit) -> None:
    kit.attach("com.a", "x", "y", max_inflight=1)
    asked = [kit.call(f"com.a/{name}") for name in "xyxyx"]
    for each in asked:
        kit.finish(each, {})
    assert [d.call_id for d in kit.deliveries] == [each.call_id for each in asked]


def test_calls_that_waited_for_a_sick_agent_are_sent_in_the_order_they_came(kit: Kit) -> None:
    kit.attach("com.a", "x", "y", max_inflight=1)
    asked = [kit.call(f"com.a/{name}") for name in "xyxyx"]
    kit.health("com.a", Health.UNHEALTHY)
    kit.finish(asked[0], {})
    assert len(kit.deliveries) == 1
    kit.health("com.a", Health.OK)
    for each in asked[1:]:
        kit.finish(each, {})
    assert [d.call_id for d in kit.deliveries] == [each.call_id for each in asked]


def test_a_queued_call_does_not_wait_for_ever_for_a_sick_agent(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    running, queued = kit.call("com.a/x", timeout_ms=600_000), kit.call("com.a/x")
    kit.health("com.a", Health.UNHEALTHY)
    kit.advance(PATIENCE_S + 0.1)
    assert (queued.status, queued.code) == (Status.FAILED, "tool.unavailable")
    assert running.answer is None


def test_a_queued_call_of_a_lost_agent_waits_for_it_and_no_longer_than_its_patience(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x")
    kept, given_up = kit.call("com.a/x", {"n": 1}), kit.call("com.a/x", {"n": 2})
    kit.leave("com.a")
    kit.advance(PATIENCE_S / 2)
    kit.attach("com.a", "x", max_inflight=1)
    assert len(kept.deliveries) == 1
    kit.leave("com.a")
    kit.advance(PATIENCE_S + 0.1)
    assert (given_up.status, given_up.code) == (Status.FAILED, "tool.unavailable")


def test_a_queued_call_of_a_withdrawn_tool_waits_for_the_tool(kit: Kit) -> None:
    kit.attach("com.a", "x", "y", max_inflight=1)
    running, queued = kit.call("com.a/y", timeout_ms=600_000), kit.call("com.a/x")
    kit.withdraw("com.a", "com.a/x")
    kit.finish(running, {})
    assert queued.deliveries == []
    kit.offer("com.a", "x")
    assert len(queued.deliveries) == 1


def test_a_queued_call_is_not_sent_under_another_definition(kit: Kit) -> None:
    kit.in_force(unpinned_agents=frozenset({"com.a"}))
    kit.attach("com.a", "x", max_inflight=1)
    running, queued = kit.call("com.a/x"), kit.call("com.a/x", {"n": 1})
    kit.offer("com.a", tool("com.a/x", description="something else"), replace=True)
    kit.finish(running, {})
    assert (queued.status, queued.code, queued.deliveries) == (Status.FAILED, "policy.denied", [])


def test_a_full_queue_at_the_return_of_an_agent_fails_the_rest(kit: Kit) -> None:
    attached(kit, "x", side_effects=False, max_inflight=2)
    with kit.in_bulk():
        asked: list[Asked] = [kit.call("com.a/x", {"n": n}) for n in range(2 + MAX_QUEUED)]
    kit.leave("com.a")
    attached(kit, "x", side_effects=False, max_inflight=1)
    kit.advance(1.1)
    assert sum(len(a.deliveries) == 2 for a in asked[:2]) + sum(len(a.deliveries) for a in asked[2:]) == 1
    assert [a.code for a in asked if a.answer is not None] == ["limit.inflight"]


def test_a_fault_of_the_table_has_the_tables_text_unless_more_is_known() -> None:
    assert fault("tool.failed").message == "the tool failed"
    assert fault("tool.failed", "because").message == "because"
