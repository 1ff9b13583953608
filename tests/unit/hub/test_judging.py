"""``hub.judging``: the order in which reasons to refuse a call are looked for, and the dry run, which is part of it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.unit.hub.kit import ALL, Kit, body, rules, tool
from trunkline import entries, events
from trunkline.hub import queues, views
from trunkline.model import Decision, Health, Limits, Verdict, fault

SCHEMA = Raw(b'{"type":"object","properties":{"a":{"type":"integer"}}}')
VALID, INVALID = {"a": 1}, {"a": "one"}


def test_of_several_reasons_to_refuse_a_call_the_first_in_the_order_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything speaks against the call; one reason after the other is taken away."""
    kit = Kit(rules(("opensentience:com.c", "*", "allow"), version="closed"))
    denial = Verdict(Decision.DENY, "guard", "no", "", fault("policy.denied", "says the guard"))
    kit.guard("com.a", lambda _tool_id, _body: denial)
    for agent_id in ("com.a", "com.b", "com.c"):
        kit.attach(agent_id, max_inflight=1)
    kit.health("com.a", Health.UNHEALTHY)
    kit.in_force(limits=Limits(calls_per_s=0.001))
    kit.call("com.a/x", by="com.b")
    kit.feed(events.StorageChanged(low=True))

    def told(by: str = "com.b", value: object = INVALID, causation_id: str | None = None) -> tuple[str, str]:
        problem = kit.call("com.a/x", value, by=by, causation_id=causation_id).outcome.fault
        assert problem is not None
        return problem.code, problem.message

    assert told() == ("limit.resource", "the disk is nearly full")
    kit.feed(events.StorageChanged(low=False))
    assert told()[0] == "limit.rate"
    kit.in_force(limits=Limits(open_calls=1))
    assert told()[0] == "tool.not_found"
    kit.offer("com.a", "other", tool("com.a/x", input_schema=SCHEMA, requires_directive=True))
    assert told(by="com.a")[0] == "chain.refused"
    assert told()[0] == "policy.denied"
    kit.in_force(ALL, Limits(open_calls=1))
    assert told()[0] == "policy.directive_required"
    intent = kit.directive("com.a/x").id
    assert told(causation_id=intent)[0] == "tool.unavailable"
    kit.health("com.a", Health.OK)
    assert told(causation_id=intent)[0] == "tool.invalid_input"
    assert told(value=VALID, causation_id=intent) == ("policy.denied", "says the guard")
    kit.guard("com.a", None)
    running = kit.call("com.a/other", by="com.b")
    with monkeypatch.context() as small:
        small.setattr(queues, "MAX_QUEUED", 0)
        assert told(value=VALID, causation_id=intent) == ("limit.inflight", "the agent's queue is full")
    assert told(value=VALID, causation_id=intent)[1].startswith("opensentience:com.b has 1 open calls")
    kit.finish(running, {})
    assert len(kit.call("com.a/x", VALID, by="com.b", causation_id=intent).deliveries) == 1


def test_a_refusal_names_the_rule_and_the_callers_unless_it_would_be_the_same_for_everybody(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", input_schema=SCHEMA))
    kit.attach("com.b", "y")
    work = kit.call("com.b/y")
    kit.call("com.a/x", INVALID, by="com.b", causation_id=work.call_id)
    kit.in_force(rules(("opensentience:*", "*", "deny"), version="v2"))
    kit.call("com.a/x", INVALID, by="com.b", causation_id=work.call_id)
    refused = [(entry.code, entry.rule, entry.chain) for entry in kit.log_of(entries.CallRefused)]
    assert refused == [("tool.invalid_input", "", ()), ("policy.denied", "default", ("operator",))]


def test_the_record_of_a_refused_input_says_where_it_does_not_fit_and_nothing_of_it(kit: Kit) -> None:
    closed = Raw(b'{"properties":{"a":{"type":"integer"}},"additionalProperties":false}')
    kit.attach("com.a", tool("com.a/x", input_schema=closed))
    for value in ({"a": "hunter2"}, {"hunter2": 1}):
        kit.call("com.a/x", value)
    kit.attach("com.b", tool("com.b/y", max_input_bytes=4))
    kit.call("com.b/y", {"a": "hunter2"})
    assert [entry.why for entry in kit.log_of(entries.CallRefused)] == [
        '$.a: the value is not of type "integer"',
        "$: unexpected properties",
        "15 bytes; the limit is 4",
    ]


def verdict(kit: Kit, value: object) -> tuple[Decision, str]:
    found = views.dry_run(kit.hub, "operator", "com.a/x", body(value), kit.now)
    return found.decision, found.rule


def test_where_the_exchange_only_warns_of_an_input_a_dry_run_does_not_deny_it(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", input_schema=SCHEMA))
    assert verdict(kit, INVALID) == (Decision.DENY, "schema")
    kit.in_force(schema_strict=False)
    assert verdict(kit, INVALID) == (Decision.ALLOW, "rule-1")
    assert kit.call("com.a/x", INVALID).accepted.warning is not None


def test_a_dry_run_checks_the_input_of_a_tool_whose_agent_is_away(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", input_schema=SCHEMA))
    kit.crash()
    assert verdict(kit, INVALID) == (Decision.DENY, "schema")
    assert verdict(kit, VALID) == (Decision.ALLOW, "rule-1")
