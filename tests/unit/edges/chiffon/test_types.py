"""A type passes work on: to the least loaded healthy instance, once, also across a restart."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.unit.edges.chiffon.kit import Kit
from trunkline import entries
from trunkline.events import ApprovalAnswered, SettingsChanged
from trunkline.model import Decision, HubSettings, Policy, Principal, Rule, Status


async def test_work_of_a_type_goes_to_the_least_loaded_instance() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    called = [kit.call("chiffon.infra/run", {"n": n}) for n in range(4)]
    first, second = one.fetch(), two.fetch()
    assert (len(first), len(second)) == (2, 2)
    for work in first:
        one.result(work, "one")
    for work in second:
        two.result(work, "two")
    assert sorted(each.output["output"] for each in called) == ["one", "one", "two", "two"]


async def test_an_instance_that_does_not_do_this_work_is_not_asked() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1", work=["run"]), await kit.agent("infra-2", work=["run", "build"])
    kit.call("chiffon.infra/build")
    assert (len(one.fetch()), len(two.fetch())) == (0, 1)


async def test_a_silent_or_resting_instance_is_passed_over() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    kit.call("infra-1/run")
    kit.advance(31.0, two)
    kit.call("chiffon.infra/run")
    assert len(two.fetch()) == 1
    assert len(one.fetch()) == 1, "what it had before"


async def test_nobody_gets_through_a_type_to_an_instance_that_policy_denies_him() -> None:
    script = Principal("http:script")
    denied = Rule("1", script.identity, "infra-1/*", Decision.DENY)
    kit = Kit(Policy((denied, Rule("2", "*", "*", Decision.ALLOW)), "v1"))
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    for _ in range(3):
        kit.call("chiffon.infra/run", by=script)
    assert (len(one.fetch()), len(two.fetch())) == (0, 3)
    kit.call("chiffon.infra/run", {"$agent_id": "infra-1"}, by=script)
    assert (one.fetch(), two.fetch()) == ([], [])
    kit.call("chiffon.infra/run")
    assert len(one.fetch()) == 1


async def test_an_input_may_pin_the_instance() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    for _ in range(3):
        kit.call("chiffon.infra/run", {"$agent_id": "infra-2", "x": 1})
    assert one.fetch() == []
    works = two.fetch()
    assert [work["payload"]["parameters"] for work in works] == [{"x": 1}] * 3


async def test_an_instance_without_the_memory_is_the_last_choice() -> None:
    kit = Kit()
    small, large = await kit.agent("a-small", capacity={"memory_mb": 64}), await kit.agent("b-large")
    kit.call("chiffon.infra/run", {"$hints": {"max_memory_mb": 512}})
    assert (len(small.fetch()), len(large.fetch())) == (0, 1)


async def test_what_an_instance_cannot_take_moves_to_another() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    called = kit.call("chiffon.infra/run", {"n": 1})
    for _ in range(4):
        one.error(one.fetch_one(), 5005)
        kit.advance(4.5, one, two)
    two.result(two.fetch_one(), "two")
    assert called.output["output"] == "two"


async def test_a_failure_of_the_work_itself_does_not_move() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    called = kit.call("chiffon.infra/run")
    one.result(one.fetch_one(), "no", 3)
    assert (called.code, called.details["exit_code"]) == ("tool.failed", 3)
    assert two.fetch() == []


async def test_nobody_there_is_unavailable_and_work_that_waits_finds_the_one_who_comes() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    kit.advance(31.0)
    assert kit.call("chiffon.infra/run").code == "tool.unavailable"
    one = await kit.agent("infra-1")
    assert kit.call("chiffon.infra/run").answer is None
    assert len(one.fetch()) == 1


async def test_all_instances_refuse_and_it_is_tried_again_later() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    breaker = kit.exchange.hub.registry.agents["infra-1"].breaker
    assert breaker is not None
    called = kit.call("chiffon.infra/run", {"$agent_id": "infra-1"})
    one.fetch()
    breaker.is_open = True
    waiting = kit.call("chiffon.infra/run", {"$agent_id": "infra-1"})
    assert waiting.answer is None
    breaker.is_open = False
    kit.advance(1.5, one)
    one.result(one.fetch_one(), "second")
    assert waiting.output["output"] == "second"
    assert called.answer is None


async def test_progress_of_the_instance_is_progress_of_the_call() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    kit.call("chiffon.infra/run")
    one.status(one.fetch_one(), 40, number=1, name="a", output="hello")
    assert [bytes(piece.data) for piece in kit.desk.progress][-1] == b'{"text":"hello"}'


async def test_after_a_restart_the_same_instance_is_asked_under_the_same_request() -> None:
    kit = Kit()
    one, _ = await kit.agent("infra-1"), await kit.agent("infra-2")
    kit.call("chiffon.infra/run", {"n": 1}, correlation_id="c")
    before = one.fetch_one()
    later = kit.restarted()
    two = await later.agent("infra-2")
    later.advance(0.5, two)
    one = await later.agent("infra-1")
    later.advance(2.0, one, two)
    assert two.fetch() == []
    again = one.fetch_one()
    assert again["request_id"] == before["request_id"]
    assert again["payload"] == before["payload"]
    one.result(again, "once")
    settled = [entry for entry in later.exchange.log if isinstance(entry, entries.CallSettled)]
    assert [entry.status for entry in settled] == [Status.SUCCEEDED, Status.SUCCEEDED]


@pytest.mark.parametrize("suffix", ["boom", "7", "1"])
async def test_a_key_that_somebody_else_made_up_does_not_lead_the_type_astray(suffix: str) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    called = kit.call("chiffon.infra/run", {"n": 1}, correlation_id="c")
    before = one.fetch_one()
    kit.call("infra-2/run", {"n": 2}, by=Principal("http:evil"), correlation_id="c", key=f"{called.call_id}:{suffix}")
    two.result(two.fetch_one(), "evil")
    later = kit.restarted()
    one, two = await later.agent("infra-1"), await later.agent("infra-2")
    later.advance(2.0, one, two)
    assert two.fetch() == []
    assert one.fetch_one()["request_id"] == before["request_id"]


@pytest.mark.parametrize("given", [b"[]", b'{"$agent_id":5}', b'{"$hints":[]}', b'"x"'])
@pytest.mark.parametrize("tool_id", ["chiffon.infra/run", "infra-1/run"])
async def test_an_input_of_another_shape_is_refused_where_schemas_only_warn(tool_id: str, given: bytes) -> None:
    kit = Kit()
    agent = await kit.agent("infra-1")
    kit.exchange.feed([SettingsChanged(HubSettings(kit.policy, schema_strict=False))])
    called = kit.call(tool_id, Raw(given))
    works = agent.fetch()
    if works:  # to an agent itself `$agent_id` is a parameter like any other
        agent.result(works[0])
        assert given == b'{"$agent_id":5}'
    else:
        assert called.code == "tool.invalid_input"


async def test_a_person_is_asked_about_the_type_and_not_again_about_the_instance() -> None:
    policy = Policy(
        (
            Rule("types", "chiffon:chiffon.*", "*", Decision.ALLOW),
            Rule("ask", "http:script", "*", Decision.ASK),
            Rule("all", "*", "*", Decision.ALLOW),
        ),
        "ask",
    )
    kit = Kit(policy)
    one = await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run", by=Principal("http:script"))
    approval_id = kit.desk.waits[called.ref].approval_id
    assert approval_id is not None
    kit.exchange.feed([ApprovalAnswered(kit.session, "yes", Principal("operator"), approval_id, approved=True)])
    one.result(one.fetch_one(), "done")
    assert called.outcome.status is Status.SUCCEEDED
    assert len(kit.exchange.hub.approvals.views()) == 0


async def test_a_call_that_somebody_ended_is_forgotten() -> None:
    kit = Kit()
    await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run", timeout_ms=1000)
    kit.advance(2.0)
    assert called.code == "tool.timeout"
    kit.switchboard.due(kit.exchange.now())
    assert kit.switchboard._types["infra"]._passed == {}
