"""``hub.idempotency`` and the joining of calls: the first call with a key is the call (decision 3, P-B1, P-B2)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.hub.kit import DESK, Kit, rules, tool
from trunkline import entries, events
from trunkline.hub.hub import MAX_WAITERS
from trunkline.hub.idempotency import Fingerprints
from trunkline.hub.state import RECENT_CALLS
from trunkline.model import Principal, Status

DAY_S = 86_400.0


@pytest.fixture
def kit() -> Kit:
    kit = Kit()
    kit.attach("com.a", "x", "y", tool("com.a/read", side_effects=False))
    return kit


@requirement("OS-099")
def test_a_repeat_joins_the_running_call_and_gets_the_same_id_and_outcome(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    again = kit.call("com.a/x", {"n": 1}, key="k")
    kit.finish(first, {"done": 1})
    assert len(kit.deliveries) == 1
    assert again.outcome.call_id == first.outcome.call_id
    assert again.outcome.output == first.outcome.output


@requirement("OS-099")
def test_a_repeat_of_a_settled_call_gets_its_outcome_without_a_second_run(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    kit.finish(first, {"done": 1})
    again = kit.call("com.a/x", {"n": 1}, key="k")
    assert (again.call_id, again.status) == (first.call_id, Status.SUCCEEDED)
    assert again.outcome.after == kit.outcomes[first.accepted.n].n
    assert len(kit.deliveries) == 1


def test_the_order_of_the_inputs_keys_and_its_spaces_do_not_matter(kit: Kit) -> None:
    first = kit.call("com.a/x", Raw(b'{"a":1,"b":[1.0]}'), key="k")
    again = kit.call("com.a/x", Raw(b'{ "b": [1], "a": 1 }'), key="k")
    kit.finish(first, {})
    assert again.call_id == first.call_id


@pytest.mark.parametrize("when", ["running", "settled", "after a crash"])
@pytest.mark.parametrize(("tool_id", "value"), [("com.a/x", {"n": 2}), ("com.a/y", {"n": 1})])
def test_the_same_key_with_another_input_or_tool_is_a_conflict_and_runs_nothing(
    kit: Kit, when: str, tool_id: str, value: object
) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    if when != "running":
        kit.finish(first, {})
    if when == "after a crash":
        kit.crash()
        kit.attach("com.a", "x", "y")
    other = kit.call(tool_id, value, key="k")
    assert (other.code, other.refused) == ("idempotency.conflict", True)
    assert len(kit.deliveries) == 1


def test_of_a_call_that_is_refused_no_input_is_compared(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """To spell a megabyte of numbers anew takes a third of a second, for which everybody else would wait."""
    looked_at: list[str] = []
    for hub in kit.hubs:
        monkeypatch.setattr(hub.fingerprints, "input_mac", lambda tool_id, _: looked_at.append(tool_id) or "mac")
    assert kit.call("com.nobody/x", {"n": 1}, key="k").refused
    assert looked_at == []


def test_a_key_belongs_to_its_caller(kit: Kit) -> None:
    mine = kit.call("com.a/x", {"n": 1}, key="k")
    yours = kit.call("com.a/x", {"n": 2}, key="k", by=Principal("http:you"))
    assert mine.call_id != yours.call_id
    assert len(kit.deliveries) == 2


def test_after_a_crash_a_repeat_gets_the_outcome_that_is_on_disk(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    kit.finish(first, {"done": 1})
    kit.snapshot()
    kit.crash()
    kit.attach("com.a", "x")
    again = kit.call("com.a/x", {"n": 1}, key="k")
    assert (again.call_id, again.status) == (first.call_id, Status.SUCCEEDED)
    assert len(kit.deliveries) == 1


def test_after_a_crash_a_repeat_of_a_call_that_ran_gets_its_unknown_outcome(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    kit.crash()
    kit.attach("com.a", "x")
    again = kit.call("com.a/x", {"n": 1}, key="k")
    assert (again.call_id, again.status, again.code) == (first.call_id, Status.UNKNOWN, "agent.lost")
    assert len(kit.deliveries) == 1


def test_a_thousand_repeats_across_twenty_restarts_run_once(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, key="k")
    kit.finish(first, {"done": 1})
    for _ in range(20):
        for _ in range(50):
            assert kit.call("com.a/x", {"n": 1}, key="k").outcome.output == first.outcome.output
        kit.crash()
        kit.attach("com.a", "x")
    assert len(kit.deliveries) == 1


@pytest.mark.parametrize(("later_s", "runs"), [(DAY_S - 0.001, 1), (DAY_S, 2), (DAY_S + 0.001, 2)])
@pytest.mark.parametrize("crash", [False, True])
def test_a_key_lives_a_day_from_its_outcome(kit: Kit, later_s: float, runs: int, crash: bool) -> None:
    kit.finish(kit.call("com.a/x", key="k"), {})
    if crash:
        kit.crash()
        kit.attach("com.a", "x")
    kit.advance(later_s)
    kit.call("com.a/x", key="k")
    assert len(kit.deliveries) == runs


@pytest.mark.parametrize("refusal", ["unknown tool", "denied", "bad input", "away", "expired"])
def test_a_call_refused_before_it_was_recorded_does_not_use_its_key(refusal: str) -> None:
    kit = Kit(rules(("operator", "com.a/denied", "deny"), ("*", "*", "allow")))
    strict = Raw(b'{"type":"object","required":["n"]}')
    kit.attach("com.a", tool("com.a/x", input_schema=strict), "denied")
    if refusal == "unknown tool":
        refused = kit.call("com.a/none", key="k")
    elif refusal == "denied":
        refused = kit.call("com.a/denied", key="k")
    elif refusal == "bad input":
        refused = kit.call("com.a/x", {}, key="k")
    elif refusal == "expired":
        refused = kit.call("com.a/x", {"n": 1}, key="k", expires_ms=kit.now.ms)
    else:
        kit.leave("com.a")
        refused = kit.call("com.a/x", {"n": 1}, key="k")
        kit.attach("com.a", tool("com.a/x", input_schema=strict))
    assert refused.refused
    assert len(kit.call("com.a/x", {"n": 1}, key="k").deliveries) == 1


@pytest.mark.parametrize("outcome", [Status.FAILED, Status.CANCELED])
def test_any_outcome_uses_the_key(kit: Kit, outcome: Status) -> None:
    first = kit.call("com.a/x", key="k")
    kit.finish(first, status=outcome)
    again = kit.call("com.a/x", key="k")
    assert (again.status, again.call_id) == (outcome, first.call_id)


def test_a_repeat_of_a_call_that_waits_for_a_person_waits_too_and_asks_nothing_new() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "x")
    first = kit.call("com.a/x", key="k")
    again = kit.call("com.a/x", key="k")
    assert again.approval_id == first.approval_id
    assert len(kit.questions("call")) == 1
    kit.answer(first.approval_id)
    kit.finish(first, {})
    assert first.status is again.status is Status.SUCCEEDED


def test_an_answer_to_somebody_who_joined_waits_for_the_disk_even_if_the_tool_only_reads(kit: Kit) -> None:
    first = kit.call("com.a/read", key="k")
    again = kit.call("com.a/read", key="k")
    kit.feed(events.CallerLeft(DESK, first.ref))
    kit.finish(first, {})
    assert again.outcome.after == kit.outcomes[first.accepted.n].n


def test_a_flood_of_repeats_of_a_running_call_is_bounded(kit: Kit) -> None:
    kit.call("com.a/x", key="k")
    with kit.in_bulk():
        for _ in range(MAX_WAITERS - 1):
            kit.call("com.a/x", key="k")
    assert kit.call("com.a/x", key="k").code == "limit.inflight"


def test_a_key_that_memory_forgot_is_looked_up_and_one_it_knows_is_not(kit: Kit) -> None:
    def request(key: str | None) -> events.CallRequested:
        return events.CallRequested(DESK, "r", Principal("operator"), "com.a/x", Raw(b"{}"), key)

    assert kit.hub.key_to_look_up(request(None)) is None
    assert kit.hub.key_to_look_up(request("k")) is not None
    first = kit.call("com.a/x", key="k")
    kit.finish(first, {})
    assert kit.hub.key_to_look_up(request("k")) is None
    for _ in range(RECENT_CALLS):
        kit.finish(kit.call("com.a/read"), {})
    kit.hub.stored(len(kit.log))
    assert kit.hub.key_to_look_up(request("k")) is not None
    assert kit.call("com.a/x", key="k").call_id == first.call_id


def test_what_is_not_on_disk_yet_is_never_forgotten(kit: Kit) -> None:
    kit.has_disk = False
    first = kit.call("com.a/x", key="k")
    kit.finish(first, {})
    settled = len(kit.log)
    for _ in range(RECENT_CALLS + 5):
        kit.finish(kit.call("com.a/read"), {})
    kit.hub.stored(settled - 1)
    assert first.call_id in kit.state.recent
    kit.hub.stored(settled)
    assert first.call_id not in kit.state.recent


def test_the_key_in_the_record_is_a_keyed_hash_and_so_is_the_input(kit: Kit) -> None:
    first = kit.call("com.a/x", {"pin": 1234}, key="k")
    assert first.accepted.key_id is not None
    assert first.accepted.input_mac is not None
    other = Fingerprints(b"another secret")
    assert other.key_id("operator", "k") != first.accepted.key_id
    assert other.input_mac("com.a/x", Raw(b'{"pin":1234}')) != first.accepted.input_mac


NAMES = st.text(max_size=6)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_pairs_of_caller_and_key_share_an_id_only_if_they_are_equal(a: str, b: str, c: str, d: str) -> None:
    prints = Fingerprints(b"secret")
    assert (prints.key_id(a, b) == prints.key_id(c, d)) == ((a, b) == (c, d))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)


@given(VALUES, VALUES)
def test_equal_inputs_and_only_those_have_equal_fingerprints(a: object, b: object) -> None:
    prints = Fingerprints(b"secret")
    first, second = (prints.input_mac("t", Raw(msgspec.json.encode(v))) for v in (a, b))
    assert (first == second) == (msgspec.json.encode(a, order="sorted") == msgspec.json.encode(b, order="sorted"))


def test_a_refused_call_leaves_no_accepted_entry(kit: Kit) -> None:
    kit.call("com.a/none", key="k")
    assert kit.log_of(entries.CallAccepted) == []
