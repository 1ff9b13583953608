"""``hub.state`` and the start after a crash: the fold is the state, and open things are taken up (decisions 1, 27)."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.unit.hub.kit import ASK, BOSS, Asked, Kit, dump, tool
from trunkline import entries, events
from trunkline.hub.retry import PATIENCE_S
from trunkline.hub.state import RECENT_BYTES, RECENT_CALLS, State
from trunkline.model import Principal, Status

GUEST = Principal("http:guest")


def test_a_call_that_ran_at_the_crash_is_unknown_if_it_has_side_effects(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.crash()
    settled = kit.outcomes[asked.accepted.n]
    assert settled.fault is not None
    assert (settled.status, settled.fault.code) == (Status.UNKNOWN, "agent.lost")
    kit.attach("com.a", "x")
    assert len(asked.deliveries) == 1


@pytest.mark.parametrize("terms", [{"side_effects": False}, {"capabilities": ("idempotency",)}])
def test_a_call_that_ran_at_the_crash_is_sent_again_if_that_does_no_harm(kit: Kit, terms: dict[str, object]) -> None:
    kit.attach("com.a", tool("com.a/x", **terms))
    asked = kit.call("com.a/x", key="k")
    kit.crash()
    kit.attach("com.a", tool("com.a/x", **terms))
    kit.advance(1.1)
    assert [(d.attempt, d.key, d.call_id) for d in asked.deliveries] == [
        (1, "k", asked.call_id),
        (2, "k", asked.call_id),
    ]
    kit.finish(asked, {})
    assert kit.outcomes[asked.accepted.n].status is Status.SUCCEEDED


def test_a_call_that_was_provably_not_sent_is_sent_after_the_restart(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x")
    queued = kit.call("com.a/x", {"n": 1}, key="k")
    kit.crash()
    kit.attach("com.a", "x")
    (sent,) = queued.deliveries
    assert (sent.attempt, sent.key) == (1, "k")
    kit.crash()
    assert kit.outcomes[queued.accepted.n].status is Status.UNKNOWN


def test_what_waits_for_an_agent_that_does_not_come_back_is_settled_within_ten_seconds(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x")
    queued = kit.call("com.a/x", {"n": 1})
    kit.crash()
    kit.advance(PATIENCE_S + 0.1)
    settled = kit.outcomes[queued.accepted.n]
    assert (settled.status, settled.fault and settled.fault.code) == (Status.FAILED, "tool.unavailable")


def test_three_deliveries_are_counted_across_crashes(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", side_effects=False))
    asked = kit.call("com.a/x")
    for _ in range(2):
        kit.crash()
        kit.attach("com.a", tool("com.a/x", side_effects=False))
        kit.advance(2.1)
    assert [d.attempt for d in asked.deliveries] == [1, 2, 3]
    kit.snapshot()
    kit.crash()
    settled = kit.outcomes[asked.accepted.n]
    assert (settled.status, settled.fault and settled.fault.code) == (Status.UNKNOWN, "agent.lost")


def test_crashes_without_a_delivery_use_no_attempt_up(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", side_effects=False))
    asked = kit.call("com.a/x")
    for _ in range(5):
        kit.crash()
    kit.attach("com.a", tool("com.a/x", side_effects=False))
    kit.advance(1.1)
    assert [d.attempt for d in asked.deliveries] == [1, 2]


def busy() -> tuple[Kit, list[Asked]]:
    """A hub with something of everything open."""
    kit = Kit(ASK)
    kit.in_force(untrusted_agents=frozenset({"com.web"}))
    kit.attach(
        "com.a",
        "x",
        tool("com.a/read", side_effects=False),
        tool("com.a/meant", requires_directive=True),
        max_inflight=2,
    )
    kit.attach("com.web", tool("com.web/read", side_effects=False))
    token = kit.token("http", "gone", "secret", permissions=("p",))
    kit.token("http", "other", "secret 2")
    kit.revoke(token)
    kit.directive("com.a/meant", {"n": 1})
    used = kit.directive("com.a/meant").id
    kit.finish(kit.call("com.web/read", correlation_id="c"), {})
    asked = [kit.call("com.a/x", {"n": 1}, by=GUEST) for _ in range(3)]
    asked.append(kit.call("com.a/x", {"n": 2}, by=GUEST, key="k", expires_ms=kit.now.ms + 60_000))
    kit.answer(asked[0].approval_id)
    asked.append(kit.call("com.a/meant", causation_id=used))
    asked += [kit.call("com.a/read", {"n": n}) for n in range(3)]
    kit.cancel(asked[-1])
    kit.offer("com.a", tool("com.a/x", description="changed"), replace=True)
    return kit, asked


def test_all_entries_and_the_named_ones_fold_to_the_same_state() -> None:
    kit, _ = busy()
    kit.snapshot()
    kit.crash()


def test_a_snapshot_names_open_things_only() -> None:
    kit, _ = busy()
    named = [kit.log[number - 1] for number in kit.state.open_entries(kit.now.ms)]
    accepted = [e for e in named if isinstance(e, entries.CallAccepted)]
    assert {e.call_id for e in accepted} == set(kit.state.calls)
    kinds = {type(e) for e in named}
    assert entries.ExchangeStarted not in kinds
    assert entries.AgentAdmitted not in kinds
    kit.leave("com.a")
    kit.advance(5000)
    left = [kit.log[number - 1] for number in kit.state.open_entries(kit.now.ms)]
    assert {type(e) for e in left} == {
        entries.ToolPinned,
        entries.TokenIssued,
        entries.TokenRevoked,
        entries.CallSettled,  # of the untrusted agent
    }


def test_after_any_snapshot_the_rest_folds_to_the_same_state() -> None:
    kit, asked = busy()
    kit.snapshot()
    kit.answer(kit.questions("call")[0])
    kit.snapshot()
    for question in kit.questions("definition"):
        kit.answer(question)
    for each in asked:
        kit.cancel(each)
    kit.snapshot()
    kit.advance(5000)
    kit.crash()


def test_from_every_part_of_the_record_a_hub_comes_up_whole_and_ends_everything() -> None:
    """Cut after each entry: the kit checks the invariants, that nothing is sent twice, and that all ends once."""
    length = len(busy()[0].log)
    for keep in range(2, length + 1):
        kit, _ = busy()
        kit.crash(keep)
        kit.advance(4000)
        assert kit.state.calls == {}, keep
        assert kit.state.questions == {}, keep


def test_folding_keeps_no_more_settled_calls_than_the_window_holds() -> None:
    hub_state = Kit()
    hub_state.attach("com.a", tool("com.a/read", side_effects=False))
    with hub_state.in_bulk():
        for _ in range(RECENT_CALLS + 300):
            hub_state.finish(hub_state.call("com.a/read"), {})
    hub_state.crash()
    assert len(hub_state.state.recent) == RECENT_CALLS


@pytest.mark.slow
def test_the_window_is_bounded_in_bytes_of_inputs_and_outputs_together(kit: Kit) -> None:
    kit.attach("com.a", "x")
    large = Raw(b'{"a":"' + b"x" * 1_000_000 + b'"}')
    for _ in range(40):
        kit.hub.stored(len(kit.log))
        kit.finish(kit.call("com.a/x", large), {})
    held = sum(len(bytes(s.accepted.input)) for s in kit.state.recent.values())
    assert RECENT_BYTES / 2 < held <= RECENT_BYTES + 1_000_100


def test_the_end_of_a_call_that_a_snapshot_left_out_is_passed_over() -> None:
    state = State()
    state.apply(entries.CallSent(n=10, at=0, call=3, attempt=1))
    state.apply(entries.CallSettled(n=11, at=0, call=3, call_id="x", status=Status.FAILED))
    state.apply(entries.QuestionClosed(n=12, at=0, approval_id="a4", how="denied"))
    state.apply(entries.QuestionJoined(n=13, at=0, approval_id="a4", call=3))
    assert (state.last, state.calls, state.questions, state.recent) == (13, {}, {}, {})


def test_the_record_can_be_read_back_entry_for_entry() -> None:
    kit, _ = busy()
    kit.advance(5000)
    for entry in kit.log:
        assert entries.decode(entries.encode(entry)) == entry


def test_a_restart_without_anything_open_writes_two_entries(kit: Kit) -> None:
    kit.attach("com.a", "x")
    kit.finish(kit.call("com.a/x"), {})
    before = len(kit.log)
    kit.crash()
    assert [type(e) for e in kit.log[before:]] == [entries.ExchangeStarted, entries.PolicyChanged]


def test_the_hub_asks_to_be_woken_only_while_something_is_due(kit: Kit) -> None:
    assert kit.hub.wake_at() is None
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", timeout_ms=1000)
    at = kit.hub.wake_at()
    assert at is not None
    assert kit.mono + 1 < at <= kit.mono + 1.05 + 1e-6
    kit.finish(asked, {})
    assert kit.hub.wake_at() is None


def test_waking_too_early_or_twice_does_nothing(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", timeout_ms=1000)
    assert kit.feed(events.Woke()) == []
    kit.advance(1.06)
    assert asked.code == "tool.timeout"
    assert kit.feed(events.Woke()) == []


def test_the_dump_tells_states_apart(kit: Kit) -> None:
    kit.attach("com.a", "x")
    before = dump(kit.state, kit.now)
    kit.call("com.a/x", by=BOSS)
    assert dump(kit.state, kit.now) != before


# Of a state: what a comparison of two of them looks at, under whichever name, and what it need not look at.
COMPARED = {
    "last", "calls", "by_number", "keys", "questions", "directives", "subscriptions", "owed", "tokens", "revoked",
    "grants", "processes", "pins", "tainted", "tainted_agents", "_tainted_by", "_forgotten", "jumps",
}  # fmt: skip
NOT_COMPARED = {
    # Outcomes are read from the record when they are asked for, and how far the disk is nobody folds.
    "recent", "_recent_bytes", "stored",
    # When the clock was last looked at.
    "last_at",
    # One function for each kind of entry.
    "_appliers",
}  # fmt: skip


def test_whatever_a_state_holds_is_compared_after_each_fold_or_said_not_to_be() -> None:
    assert set(vars(State())) == COMPARED | NOT_COMPARED
    assert not COMPARED & NOT_COMPARED
