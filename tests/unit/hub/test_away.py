"""Why an agent is not there, as callers are told it: in refusals, and in the outcome of calls that it had."""

from __future__ import annotations

import pytest

from tests.unit.hub.kit import Asked, Kit
from trunkline import entries, events
from trunkline.model import Health, Status, fault

FILES = "its files changed, and it is being restarted"


def message(asked: Asked) -> str:
    assert asked.outcome.fault is not None
    return asked.outcome.fault.message


def test_callers_are_told_why_an_agent_was_ended_until_it_is_back(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    kit.arrive("com.a", run_id=run_id)
    kit.offer("com.a", "x")
    call = kit.call("com.a/x")
    kit.feed(events.AgentStopping("com.a", run_id, FILES))
    kit.health("com.a", Health.UNHEALTHY)
    assert message(kit.call("com.a/x")) == f"com.a takes no more calls: {FILES}"
    kit.finish(call, status=Status.CANCELED, fault=fault("tool.canceled", "the agent stopped"))
    settled = kit.log_of(entries.CallSettled)[-1]
    assert settled.fault == fault("tool.canceled", f"the agent stopped: {FILES}")
    kit.leave("com.a")
    refused = kit.call("com.a/x")
    assert (refused.code, message(refused)) == ("tool.unavailable", f"com.a is not connected: {FILES}")
    kit.feed(events.AgentExited("com.a", run_id, 0, 0.0))
    kit.attach("com.a", "x")
    kit.leave("com.a")
    refused = kit.call("com.a/x")
    assert message(refused) == "com.a is not connected"


def test_why_an_agent_was_ended_says_nothing_of_a_later_run_that_crashed(kit: Kit) -> None:
    kit.attach("com.a", "x")
    kit.leave("com.a")
    kit.feed(events.AgentStopping("com.a", "first", FILES))
    kit.feed(events.AgentExited("com.a", "first", 0, 0.0))
    assert kit.hub.registry.why_stopping("com.a") == FILES
    kit.feed(events.AgentExited("com.a", "second", 1, 0.5))
    assert kit.hub.registry.why_stopping("com.a") == ""


def test_a_call_that_was_lost_with_an_agent_that_was_ended_says_why(kit: Kit) -> None:
    run_id = kit.launch("com.a")
    kit.arrive("com.a", run_id=run_id)
    kit.offer("com.a", "x")
    kit.call("com.a/x")
    kit.feed(events.AgentStopping("com.a", run_id, FILES))
    kit.leave("com.a")
    settled = kit.log_of(entries.CallSettled)[-1]
    assert settled.fault is not None
    assert (settled.status, settled.fault.code) == (Status.UNKNOWN, "agent.lost")
    assert settled.fault.message.endswith(f"; {FILES}")


@pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.SILENT])
def test_an_agent_that_is_not_well_is_named_with_how_it_is(kit: Kit, health: Health) -> None:
    kit.attach("com.a", "x")
    kit.health("com.a", health)
    refused = kit.call("com.a/x")
    assert (refused.code, message(refused)) == ("tool.unavailable", f"com.a is {health.value}")
