"""A type stands for its instances: the least loaded healthy one does the work, once, also across a restart."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Raw

from tests.unit.edges.chiffon.kit import Kit
from trunkline import entries
from trunkline.edges.chiffon.messages import Refused
from trunkline.model import Decision, Policy, Principal, Rule, Status


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


async def test_who_has_registered_can_be_called_by_its_type() -> None:
    kit = Kit()
    kit.exchange.disk_rests = True
    registering = asyncio.create_task(kit.agent("infra-1"))
    for _ in ("the agent", "its type"):
        await asyncio.sleep(0)
        assert not registering.done()
        kit.exchange.store()
    async with asyncio.timeout(10):
        await registering
    assert kit.call("chiffon.infra/run").answer is None


async def test_a_type_offers_what_is_new_and_not_its_whole_list_each_time() -> None:
    kit = Kit()
    agent = await kit.agent("infra-1", work=["w0"])
    for number in range(1, 20):
        await kit.register_again(agent, [f"w{number}"])
    await kit.agent("infra-2", work=["w3", "v"])
    offered = [entry for entry in kit.exchange.recorded(entries.ToolsOffered) if entry.agent_id == "chiffon.infra"]
    assert [len(entry.tool_ids) for entry in offered] == [1] * 21
    assert len(kit.exchange.hub.registry.agents["chiffon.infra"].tools) == 21
    assert kit.call("chiffon.infra/w3").answer is None


async def test_an_agent_that_does_nothing_is_registered_all_the_same() -> None:
    kit = Kit()
    assert (await kit.agent("infra-1", work=())).answer["registered"] is True
    assert kit.call("chiffon.infra/run").code == "tool.not_found"


async def test_calls_that_are_not_on_disk_yet_count_as_load() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    kit.exchange.disk_rests = True
    for n in range(4):
        kit.call("chiffon.infra/run", {"n": n})
    assert (one.fetch(), two.fetch()) == ([], [])
    kit.exchange.store()
    assert (len(one.fetch()), len(two.fetch())) == (2, 2)


async def test_a_call_of_a_type_is_one_call() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run")
    work = one.fetch_one()
    assert work["request_id"] == work["payload"]["task_id"] == called.call_id
    one.result(work)
    (accepted,) = kit.exchange.recorded(entries.CallAccepted)
    assert (accepted.tool_id, accepted.provider) == ("chiffon.infra/run", "infra-1/run")


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


async def test_to_an_agent_itself_the_pin_is_a_parameter_like_any_other() -> None:
    kit = Kit()
    agent = await kit.agent("infra-1")
    kit.call("infra-1/run", {"$agent_id": "infra-1"})
    assert agent.fetch_one()["payload"]["parameters"] == {"$agent_id": "infra-1"}


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


async def test_nobody_there_is_unavailable_at_once_and_whoever_comes_gets_the_next_work() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    kit.advance(31.0)
    refused = kit.call("chiffon.infra/run")
    assert (refused.code, refused.outcome.refused) == ("tool.unavailable", True)
    assert refused.outcome.fault is not None
    assert refused.outcome.fault.retryable
    one = await kit.agent("infra-1")
    assert kit.call("chiffon.infra/run").answer is None
    assert len(one.fetch()) == 1


async def test_when_the_pinned_instance_rests_the_call_is_refused_at_once_and_may_be_repeated() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    for _ in range(2):
        kit.call("infra-1/run")
    for _ in range(3):
        for work in one.fetch():
            one.error(work, 5002)
        kit.advance(4.5, one, two)
    assert "breaker.opened" in kit.notices()
    refused = kit.call("chiffon.infra/run", {"$agent_id": "infra-1"})
    assert (refused.code, refused.outcome.refused) == ("tool.unavailable", True)
    assert refused.outcome.fault is not None
    assert refused.outcome.fault.retryable
    assert kit.call("chiffon.infra/run").answer is None
    assert len(two.fetch()) == 1, "others of the type go on"


async def test_progress_of_the_instance_is_progress_of_the_call() -> None:
    kit = Kit()
    one = await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run")
    one.status(one.fetch_one(), 40, number=1, name="a", output="hello")
    assert [bytes(piece.data) for piece in called.progress][-1] == b'{"text":"hello"}'


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
    assert [entry.status for entry in later.exchange.recorded(entries.CallSettled)] == [Status.SUCCEEDED]


@pytest.mark.parametrize("given", [b"[]", b'{"$agent_id":5}', b'{"$hints":[]}', b'"x"'])
@pytest.mark.parametrize("tool_id", ["chiffon.infra/run", "infra-1/run"])
async def test_an_input_of_another_shape_is_refused_where_schemas_only_warn(tool_id: str, given: bytes) -> None:
    kit = Kit()
    agent = await kit.agent("infra-1")
    kit.only_warn_of_schemas()
    called = kit.call(tool_id, Raw(given))
    works = agent.fetch()
    if works:  # to an agent itself `$agent_id` is a parameter like any other
        agent.result(works[0])
        assert given == b'{"$agent_id":5}'
    else:
        assert called.code == "tool.invalid_input"


async def test_a_person_is_asked_about_the_type_and_not_again_about_the_instance() -> None:
    kit = Kit(Policy((Rule("ask", "http:script", "*", Decision.ASK), Rule("all", "*", "*", Decision.ALLOW)), "ask"))
    one = await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run", by=Principal("http:script"))
    kit.exchange.answer(called.approval_id)
    one.result(one.fetch_one(), "done")
    assert called.outcome.status is Status.SUCCEEDED
    assert len(kit.exchange.hub.approvals.views()) == 0


async def test_an_instance_that_gave_a_call_away_has_nothing_more_to_say_about_it() -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    called = kit.call("chiffon.infra/run", {"$hints": {"max_duration_seconds": 60}})
    for _ in range(4):
        work = one.fetch_one()
        one.error(work, 5005)
        kit.advance(4.5, one, two)
    moved = two.fetch_one()
    assert moved["request_id"] == work["request_id"]
    one.result(work, "too late")
    assert called.answer is None
    assert kit.notes()[-1] == "result.ignored"
    two.result(moved, "two")
    assert called.output["output"] == "two"


@pytest.mark.parametrize("disk_rests", [False, True])
async def test_late_words_about_work_of_a_type_are_known_to_be_late(disk_rests: bool) -> None:
    kit = Kit()
    one, two = await kit.agent("infra-1"), await kit.agent("infra-2")
    kit.call("chiffon.infra/run")
    work = one.fetch_one()
    kit.exchange.disk_rests = disk_rests
    one.result(work, "first")
    one.result(work, "second")
    assert kit.notes() == ["result.ignored"]
    for agent, why in ((one, "the task has ended"), (two, "no such task of this agent")):
        with pytest.raises(Refused) as caught:
            agent.status(work)
        assert caught.value.error.error_context["validation_error"] == why


# -- a type belongs to none of its instances --------------------------------------------------------------------------


async def test_no_instance_takes_the_names_of_a_type_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit()
    greedy = await kit.agent("infra-1", work=[f"w{n}" for n in range(1000)])
    assert greedy.answer["rejected"] == {}
    other = await kit.agent("infra-2", work=["run"])
    called = kit.call("chiffon.infra/run")
    other.result(other.fetch_one(), "done")
    assert called.output["output"] == "done"
    assert caplog.records == []


async def test_what_a_type_offered_before_a_restart_does_not_stand_in_anybodys_way() -> None:
    kit = Kit()
    await kit.agent("infra-1", work=[f"w{n}" for n in range(1000)])
    kit = kit.restarted()
    other = await kit.agent("infra-2", work=["run"])
    kit.call("chiffon.infra/run")
    assert len(other.fetch()) == 1


async def test_names_that_differ_in_case_only_do_not_take_each_others_place_in_a_type() -> None:
    kit = Kit()
    first, other = await kit.agent("infra-1", work=["RUN"]), await kit.agent("infra-2", work=["run"])
    kit.call("chiffon.infra/run")
    kit.call("chiffon.infra/RUN")
    assert (len(first.fetch()), len(other.fetch())) == (1, 1)


async def test_what_was_not_taken_from_an_instance_is_no_name_of_its_type() -> None:
    kit = Kit()
    one = await kit.agent("infra-1", work=[f"w{n}" for n in range(1000)])
    kit.advance(3600.0, one)
    answer = await kit.register_again(one, [f"v{n}" for n in range(1000)])
    assert (len(answer["rejected"]), answer["work_types"]) == (1000, [])
    assert kit.call("chiffon.infra/v1").code == "tool.not_found"
    # It says that it does none of this any more.
    assert kit.call("infra-1/w1").code == "tool.not_found"
    assert kit.call("chiffon.infra/w1").code == "tool.unavailable"
