"""Trunkline as agent: how a call looks to somebody who gave it as work."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.unit.edges.chiffon.kit import Kit, RawAgent, as_fields, request, tool
from trunkline.edges.chiffon import chunks, messages
from trunkline.edges.chiffon.messages import Refused
from trunkline.events import StorageChanged
from trunkline.model import Decision, Fault, Policy, Rule, Status, fault


def refused(boss: RawAgent, message: dict[str, Any]) -> messages.ErrorPayload:
    with pytest.raises(Refused) as caught:
        boss.say(message)
    return caught.value.error


def at_once(boss: RawAgent, message: dict[str, Any]) -> dict[str, Any]:
    """The payload of the answer that comes at once."""
    reply = boss.say(message)
    assert reply is not None
    found: dict[str, Any] = reply["payload"]
    return found


async def test_a_work_type_is_the_one_tool_of_that_name() -> None:
    kit = Kit()
    one = kit.offer("com.a", tool("com.a/deploy"), tool("com.a/both"))
    kit.offer("com.b", tool("com.b/both"))
    boss = kit.orchestrator()
    boss.say(request("deploy", {"x": 1}))
    assert (one.delivered[0].tool_id, bytes(one.delivered[0].input)) == ("com.a/deploy", b'{"x": 1}')
    assert refused(boss, request("both")).error_code == 5006, "two tools have this name"


async def test_the_configuration_may_say_which_tool_it_is() -> None:
    kit = Kit(both="com.b/both", gone="com.c/none")
    kit.offer("com.a", tool("com.a/both"))
    two = kit.offer("com.b", tool("com.b/both"))
    boss = kit.orchestrator()
    boss.say(request("both"))
    assert len(two.delivered) == 1
    assert refused(boss, request("gone")).error_code == 5006


async def test_the_addressed_type_comes_before_names_and_an_instance_may_be_pinned() -> None:
    kit = Kit()
    agent, other = await kit.agent("infra-1"), await kit.agent("infra-2")
    named = kit.offer("com.a", tool("com.a/run"))
    boss = kit.orchestrator()
    boss.say(request("run", to_agent="infra", x_custom_fields={"agent_id": "infra-2"}))
    assert len(other.fetch()) == 1
    boss.say(request("run", to_agent="infra", hints={"max_memory_mb": 64, "max_duration_seconds": 30}))
    work = agent.fetch_one()
    assert work["payload"]["hints"] == {"max_duration_seconds": 30, "max_memory_mb": 64}
    boss.say(request("run", to_agent="code"))
    assert len(named.delivered) == 1
    assert refused(boss, request("run", x_custom_fields={"agent_id": "infra-9"})).error_code == 5006


async def test_custom_fields_travel_to_the_agent_and_back() -> None:
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    boss.say(request("run", x_custom_fields={"ticket": "T-1"}))
    work = agent.fetch_one()
    assert work["x_custom_fields"] == {"ticket": "T-1"}
    agent.result(work, "done", x_custom_fields={"ticket": "T-1", "node": "n7"})
    *_, result = boss.fetch()
    assert result["x_custom_fields"] == {"ticket": "T-1", "node": "n7"}
    assert result["payload"]["output"] == "done"
    assert result["payload"]["resources_used"]["cpu_time_ms"] == 5


async def test_an_outcome_beside_custom_fields_of_the_largest_size_can_be_sent() -> None:
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    large = {"ticket": "x" * (messages.MAX_CUSTOM_BYTES - 20)}
    boss.say(request("run", x_custom_fields=large))
    agent.result(agent.fetch_one(), "no", 3)
    *_, result = boss.fetch()
    assert result["x_custom_fields"] == {"fault": {"code": "tool.failed", "retryable": False}}, "what is said once"
    boss.say(request("run", x_custom_fields=large))
    agent.result(agent.fetch_one(), "done", x_custom_fields={"node": "y" * (messages.MAX_CUSTOM_BYTES - 20)})
    *_, result = boss.fetch()
    assert result["x_custom_fields"] == {"node": "y" * (messages.MAX_CUSTOM_BYTES - 20)}


async def test_a_tool_of_another_edge_may_name_no_numbers_where_chiffon_has_some() -> None:
    kit = Kit()
    other, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    other.show("stdout", {"percent": True, "step": {"number": True, "name": "n"}, "text": "t"})
    other.finish(None, Status.FAILED, Fault("tool.failed", "no", False, {"exit_code": True}))
    *_, status, result = boss.fetch()
    assert json.dumps(status["payload"]["progress_percent"]) == "0"
    assert json.dumps(status["payload"]["step"]["number"]) == "1"
    assert json.dumps(result["payload"]["exit_code"]) == "1"


async def test_a_status_before_anything_was_shown_names_a_step() -> None:
    kit = Kit()
    kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    boss.say(request("deploy"))
    kit.advance(11.0)
    assert [message["payload"]["step"] for message in boss.fetch()] == 2 * [{"number": 1, "name": "deploy"}]


async def test_a_refusal_of_an_orchestrators_work_comes_from_the_agent_it_addressed() -> None:
    kit = Kit()
    asked = request("nothing", to_agent="desktop")
    with pytest.raises(Refused) as caught:
        kit.orchestrator().say(asked)
    answer = kit.peers.refusal(caught.value, as_fields(asked))
    assert (answer.from_agent, answer.to_agent) == ("desktop", "orchestrator")
    answer = kit.peers.refusal(caught.value, as_fields({**asked, "from_agent": "infra", "to_agent": "orchestrator"}))
    assert (answer.from_agent, answer.to_agent) == ("orchestrator", "infra")
    answer = kit.peers.refusal(caught.value, as_fields({**asked, "to_agent": "nobody"}))
    assert (answer.from_agent, answer.to_agent) == ("orchestrator", "orchestrator")


async def test_progress_becomes_status() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    boss.fetch()
    worker.show("stdout", {"text": "hello"})
    worker.show("partial_result", {"json": {"rows": 3}}, 2)
    worker.show(
        "status", {"json": {"progress_percent": 30, "status": "step_completed", "step": {"number": 4, "name": "x"}}}, 3
    )
    told = [message["payload"] for message in boss.fetch()]
    assert [(one["status"], one["progress_percent"]) for one in told] == [
        ("running", 0),
        ("running", 0),
        ("step_completed", 30),
    ]
    assert [one["step"] for one in told] == [
        {"number": 1, "name": "stdout", "output": "hello"},
        {"number": 1, "name": "partial_result", "output": '{"rows":3}'},
        {"number": 4, "name": "x"},
    ]


@pytest.mark.parametrize("shown", [{"status": []}, {"step": {"number": {}}}, {"percent": "x"}, {"step": 7}, [], 5])
async def test_what_an_agent_shows_may_be_anything(shown: object) -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    worker.show("status", {"json": shown})
    assert [message["payload"]["status"] for message in boss.fetch()] == ["running", "running"]
    assert kit.notices() == []


@pytest.mark.slow
def test_an_output_in_too_many_pieces_is_refused() -> None:
    assembly = chunks.Assembly()
    for start in range(chunks.MAX_PIECES):
        assembly.add(chunks.Chunk(2 * start, 2 * start + 1, 100_000, "x"))
    with pytest.raises(messages.Refused, match="chunks"):
        assembly.add(chunks.Chunk(90_000, 90_001, 100_000, "x"))


async def test_a_large_piece_of_progress_goes_in_chunks() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    boss.fetch()
    text = "é" * 700_000
    worker.show("stdout", {"text": text})
    steps = [message["payload"]["step"] for message in boss.fetch()]
    assembly = chunks.Assembly()
    for step in steps:
        assembly.add(chunks.read(step["output_chunk"], step["output"]))
    assert assembly.text() == text


async def test_a_large_output_goes_before_the_result_which_has_its_end_and_its_hash() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    boss.fetch()
    worker.finish({"text": "x" * 3_000_000})
    *statuses, result = boss.fetch() + boss.fetch()
    text = "".join(message["payload"]["step"]["output"] for message in statuses)
    assert len(text) == 3_000_011
    assert result["x_custom_fields"]["output_truncated"] is True
    assert result["x_custom_fields"]["output_sha256"] == chunks.sha256(text)
    assert result["payload"]["output"] == text[-65_536:]


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (fault("tool.failed"), Status.FAILED, 1),
        (Fault("tool.failed", "x", False, {"exit_code": 7}), Status.FAILED, 7),
        (fault("tool.timeout"), Status.FAILED, 124),
        (fault("tool.canceled"), Status.CANCELED, 130),
        (fault("agent.lost"), Status.UNKNOWN, 1),
    ],
)
async def test_an_outcome_that_is_no_success_is_a_failed_result(problem: Fault, status: Status, code: int) -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    boss.fetch()
    worker.finish(None, status, problem)
    result = boss.fetch_one()
    assert (result["type"], result["payload"]["status"], result["payload"]["exit_code"]) == (
        "work_result",
        "failed",
        code,
    )
    told = result["x_custom_fields"]["fault"]
    assert told["code"] == problem.code
    assert told.get("outcome") == ("unknown" if status is Status.UNKNOWN else None)


async def test_refusals_are_errors_at_once() -> None:
    kit = Kit()
    schema = messages.raw({"type": "object", "required": ["x"]})
    kit.offer("com.a", tool("com.a/deploy", schema=schema))
    boss = kit.orchestrator()
    error = at_once(boss, request("deploy"))
    assert (error["error_code"], error["error_context"]["field_name"]) == (5003, "payload.parameters")
    kit.feed(StorageChanged(low=True))
    error = at_once(boss, request("deploy", {"x": 1}))
    assert (error["error_code"], error["error_context"]["limit_name"]) == (5005, "limit.resource")


async def test_the_same_key_with_another_input_after_it_ended_is_5003() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    work = request("deploy", {"n": 1})
    boss.say(work)
    worker.finish({})
    boss.fetch()
    other = {**work, "payload": {**work["payload"], "parameters": {"n": 2}}}
    error = at_once(boss, other)
    assert (error["error_code"], error["error_context"]["field_name"]) == (5003, "request_id")


async def test_what_policy_denies_is_a_failed_result() -> None:
    kit = Kit(Policy((Rule("no", "chiffon:*", "com.a/*", Decision.DENY),), "no"))
    kit.offer("com.a", tool("com.a/deploy"))
    result = at_once(kit.orchestrator(), request("deploy"))
    assert (result["status"], result["exit_code"]) == ("failed", 126)
    assert "policy.denied" in result["output"]


async def test_rules_may_name_a_type() -> None:
    rules = (Rule("type", "chiffon:type=orchestrator", "*", Decision.ALLOW), Rule("no", "*", "*", Decision.DENY))
    kit = Kit(Policy(rules, "typed"))
    worker = kit.offer("com.a", tool("com.a/deploy"))
    kit.orchestrator().say(request("deploy"))
    assert len(worker.delivered) == 1


async def test_waiting_for_a_person_is_paused() -> None:
    kit = Kit(Policy((Rule("ask", "chiffon:*", "*", Decision.ASK),), "ask"))
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy"))
    told = boss.fetch_one()
    assert told["payload"]["status"] == "paused"
    (question,) = kit.exchange.hub.approvals.views()
    kit.exchange.answer(question.approval_id)
    worker.finish({})
    assert boss.fetch()[-1]["payload"]["status"] == "success"


async def test_an_orchestrator_that_is_gone_is_forgotten_and_its_work_goes_on() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    work = request("deploy", hints={"max_duration_seconds": 2000})
    boss.say(work)
    kit.advance(700.0)
    assert kit.peers.orchestrators, "it has work open"
    worker.finish({})
    kit.advance(1.0)
    assert not kit.peers.orchestrators
    again = boss.say({**work, "message_id": str(uuid.uuid4())})
    assert again is not None
    assert again["type"] == "work_result"


async def test_work_to_the_orchestrator_is_refused() -> None:
    kit = Kit()
    error = refused(kit.orchestrator(), request("x", to_agent="orchestrator"))
    assert error.error_context["field_name"] == "to_agent"


@pytest.mark.parametrize(
    "output",
    [
        {"$ref": "sha256:zz"},
        {"$ref": "sha256:" + "ab" * 32, "bytes": 5, "head": "x"},
        {"$ref": "sha256:" + "é" * 64},
        {"$ref": 7},
    ],
)
async def test_an_output_that_looks_like_a_reference_is_an_output(output: dict[str, Any]) -> None:
    kit = Kit()
    worker = kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    boss.say(request("deploy"))
    worker.finish(output)
    result = [message for message in boss.fetch() if message["type"] == "work_result"]
    assert json.loads(result[0]["payload"]["output"]) == output


@pytest.mark.parametrize("hints", [{}, {"max_memory_mb": 64}])
async def test_a_repeat_after_a_restart_is_told_the_recorded_result_before_anybody_offers_the_work(
    hints: dict[str, Any],
) -> None:
    """Found by seed 59 of the simulation: it was told that there is no such work type."""
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    asked = request("run", {"x": 1}, to_agent="infra", hints=hints)
    boss.say(asked)
    agent.result(agent.fetch_one(), "done")
    kit = kit.restarted()
    repeated = {**asked, "message_id": str(uuid.uuid4())}
    assert at_once(kit.orchestrator(), repeated)["output"] == "done"
    assert refused(kit.orchestrator(), request("run", {"x": 1}, to_agent="infra")).error_code == 5006


async def test_a_repeat_is_about_the_same_tool_though_another_one_serves_this_work_by_now() -> None:
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    asked = request("run", to_agent="infra")
    boss.say(asked)
    agent.result(agent.fetch_one(), "done")
    kit = kit.restarted()
    other = kit.offer("com.a", tool("com.a/run"))
    assert at_once(kit.orchestrator(), {**asked, "message_id": str(uuid.uuid4())})["output"] == "done"
    assert not other.delivered
