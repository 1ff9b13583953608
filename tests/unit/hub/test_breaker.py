"""The breaker by itself, and as calls meet it: a row of failures, a rest, one health check."""

from __future__ import annotations

from tests.requirement import requirement
from tests.unit.hub.kit import NO_RETRY, Kit
from trunkline import effects, entries, events
from trunkline.hub import views
from trunkline.hub.breaker import Breaker
from trunkline.model import BreakerPolicy, Fault, Health, fault

TIMEOUT = fault("tool.timeout", retryable=True)
SHORT = fault("limit.resource")


def attached(kit: Kit, **terms: object) -> int:
    return kit.attach("com.a", "x", dedupes=True, timeout_s=None, retry=NO_RETRY, breaker=BreakerPolicy(), **terms)


def fail_once(kit: Kit, problem: Fault = TIMEOUT) -> None:
    asked = kit.call("com.a/x")
    kit.feed(events.AttemptFailed(kit.sessions["com.a"], asked.call_id, problem))


def breaker_of(kit: Kit) -> Breaker:
    found = kit.hub.registry.agents["com.a"].breaker
    assert found is not None
    return found


def checks(kit: Kit, seconds: float) -> list[effects.Effect]:
    """What is said while time passes, of health checks."""
    until, said = kit.mono + seconds, []
    while (at := kit.hub.wake_at()) is not None and at <= until:
        kit._move_to(max(kit.mono, at))
        said += [e for e in kit.feed(events.Woke()) if isinstance(e, effects.CheckHealth)]
    kit._move_to(until)
    return said


@requirement("CH-070")
def test_the_fifth_failed_attempt_in_a_row_opens_it_and_the_next_call_is_refused_at_once(kit: Kit) -> None:
    attached(kit)
    for _ in range(4):
        fail_once(kit)
    assert not breaker_of(kit).is_open
    fail_once(kit)
    assert breaker_of(kit).is_open
    refused = kit.call("com.a/x")
    assert (refused.refused, refused.code) == (True, "tool.unavailable")
    assert refused.outcome.fault is not None
    assert refused.outcome.fault.retryable
    assert [n.code for n in kit.log_of(entries.Noticed)] == ["breaker.opened"]


@requirement("CH-071", "CH-073")
def test_it_stays_open_for_sixty_seconds_and_then_one_health_check_comes_before_any_work(kit: Kit) -> None:
    session = attached(kit)
    for _ in range(5):
        fail_once(kit)
    assert checks(kit, 59.0) == []
    assert kit.call("com.a/x").code == "tool.unavailable"
    assert checks(kit, 2.0) == [effects.CheckHealth(session, 0)]
    assert kit.call("com.a/x").code == "tool.unavailable", "while the check is under way others are still refused"
    kit.health("com.a", Health.OK)
    assert not breaker_of(kit).is_open
    assert breaker_of(kit).failures == 0
    assert kit.call("com.a/x").answer is None, "it is sent"


def test_a_failed_health_check_opens_it_for_another_sixty_seconds(kit: Kit) -> None:
    attached(kit)
    for _ in range(5):
        fail_once(kit)
    assert len(checks(kit, 60.1)) == 1
    kit.health("com.a", Health.SILENT)
    assert breaker_of(kit).is_open
    assert checks(kit, 59.0) == []
    assert len(checks(kit, 2.0)) == 1
    kit.health("com.a", Health.OK)
    assert kit.call("com.a/x").answer is None


@requirement("CH-072")
def test_what_runs_goes_on_while_it_is_open(kit: Kit) -> None:
    attached(kit)
    running = kit.call("com.a/x")
    for _ in range(5):
        fail_once(kit)
    kit.finish(running, {"done": True})
    assert running.status == "succeeded"
    assert breaker_of(kit).is_open, "a success of work from before does not close it"


@requirement("CH-074")
def test_a_result_resets_the_count(kit: Kit) -> None:
    attached(kit)
    for _ in range(4):
        fail_once(kit)
    kit.finish(kit.call("com.a/x"), {})
    for _ in range(4):
        fail_once(kit)
    assert not breaker_of(kit).is_open


def test_only_timeouts_and_unavailable_agents_count(kit: Kit) -> None:
    attached(kit)
    for _ in range(9):
        fail_once(kit, SHORT)
    assert breaker_of(kit).failures == 0
    for _ in range(4):
        fail_once(kit)
    fail_once(kit, SHORT)
    fail_once(kit, fault("tool.unavailable"))
    assert (breaker_of(kit).failures, breaker_of(kit).is_open) == (1, False)


def test_a_limit_that_callers_set_themselves_neither_counts_nor_ends_the_row(kit: Kit) -> None:
    attached(kit)
    for _ in range(6):
        asked = kit.call("com.a/x")
        kit.feed(events.AttemptFailed(kit.sessions["com.a"], asked.call_id, fault("tool.timeout"), True))
    assert not breaker_of(kit).is_open
    fail_once(kit)
    asked = kit.call("com.a/x")
    kit.feed(events.AttemptFailed(kit.sessions["com.a"], asked.call_id, fault("tool.timeout"), True))
    assert breaker_of(kit).failures == 1


def test_an_answer_that_comes_too_late_ends_the_row_and_one_about_a_made_up_call_does_not(kit: Kit) -> None:
    session = attached(kit)
    asked = kit.call("com.a/x")
    kit.feed(events.AttemptFailed(session, asked.call_id, fault("tool.timeout")))
    assert breaker_of(kit).failures == 1
    kit.finish("made up", {}, session=session)
    assert breaker_of(kit).failures == 1
    kit.finish(asked, {})
    assert breaker_of(kit).failures == 0


def test_calls_that_wait_for_a_slot_do_not_wait_for_a_resting_agent(kit: Kit) -> None:
    session = attached(kit, max_inflight=1)
    running = kit.call("com.a/x")
    for hub in kit.hubs:
        for _ in range(4):
            hub.registry.agents["com.a"].breaker.failed(TIMEOUT, kit.mono)  # type: ignore[union-attr]
    waiting = kit.call("com.a/x")
    kit.feed(events.AttemptFailed(session, running.call_id, TIMEOUT))
    assert breaker_of(kit).is_open
    assert waiting.deliveries == []
    kit.advance(10.1)
    assert waiting.code == "tool.unavailable"


def test_an_agent_that_comes_back_is_not_well_for_that(kit: Kit) -> None:
    attached(kit)
    for _ in range(5):
        fail_once(kit)
    kit.leave("com.a")
    attached(kit)
    assert breaker_of(kit).is_open
    kit.leave("com.a")
    kit.advance(61.0)
    run_id = kit.launch("com.a")
    session = kit.new_session()
    said = kit.feed(
        events.AgentArrived(
            session,
            "again",
            "opensentience",
            "com.a",
            "1",
            "launch-com.a",
            events.Peer("pid:100", events.ProcessIdentity(100, 1), run_id),
            breaker=BreakerPolicy(),
        )
    )
    assert effects.CheckHealth(session, 0) in said, "the rest ended while it was away: it is asked at once"
    kit.feed(events.HealthReported(session, Health.OK))
    assert not breaker_of(kit).is_open


def test_it_is_visible(kit: Kit) -> None:
    attached(kit)
    agent = kit.hub.registry.agents["com.a"]
    assert (views.agent(kit.hub, agent).state, views.figures(kit.hub)["open_breakers"]) == ("ready", 0)
    for _ in range(5):
        fail_once(kit)
    shown = views.agent(kit.hub, agent)
    assert (shown.state, shown.health) == ("unhealthy", "breaker_open")
    assert views.figures(kit.hub)["open_breakers"] == 1
    assert [tool.status for tool in views.tools(kit.hub, kit.now)] == ["unavailable"]
    kit.advance(60.1)
    assert views.agent(kit.hub, agent).health == "breaker_checking"
    kit.health("com.a", Health.OK)
    assert breaker_of(kit).word == "breaker_closed"


def test_an_agent_without_a_breaker_is_never_shut_out(kit: Kit) -> None:
    kit.attach("com.a", "x", dedupes=True, retry=NO_RETRY)
    for _ in range(9):
        fail_once(kit)
    assert kit.call("com.a/x").answer is None
