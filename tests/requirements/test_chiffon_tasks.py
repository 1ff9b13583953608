"""Chiffon's rules of time and order, on a clock that stands still until told: a real hub and the real edge."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.chiffon.kit import EMITTED, Kit, RawAgent, as_fields, envelope, reply_to, request, tool
from trunkline import effects, entries
from trunkline.edges.chiffon import chunks, messages
from trunkline.edges.chiffon.messages import ErrorPayload, Refused
from trunkline.model import Health, Status


def refused(agent: RawAgent, message: dict[str, Any]) -> ErrorPayload:
    with pytest.raises(Refused) as caught:
        agent.say(message)
    return caught.value.error


# --- one task ---------------------------------------------------------------------------------------------------------


@requirement("CH-090", "CH-027", "CH-012", "CH-002", "CH-114")
async def test_the_full_workflow_runs_and_its_outcome_is_recorded_under_its_trace() -> None:
    kit = Kit()
    agent = await kit.agent()
    trace = str(uuid.uuid4())
    called = kit.call("infra-1/run", {"service": "kuma"}, correlation_id=trace)
    work = agent.fetch_one()
    assert (work["type"], work["from_agent"], work["to_agent"]) == ("work_request", "orchestrator", "infra")
    assert work["trace_id"] == trace
    assert work["payload"]["work_type"] == "run"
    assert work["payload"]["parameters"] == {"service": "kuma"}
    for number, percent in enumerate((20, 40, 60, 80, 100), start=1):
        agent.status(work, percent, "step_completed", number=number, name=f"step {number}", output=f"{percent}\n")
    assert called.answer is None, "100 % does not end it"
    agent.result(work, "Deployment completed successfully.")
    assert called.outcome.status is Status.SUCCEEDED
    assert called.output["exit_code"] == 0
    assert called.output["output"] == "Deployment completed successfully."
    assert [step["number"] for step in called.output["steps"]] == [1, 2, 3, 4, 5]
    lines = b"".join(kit.exchange.views.entries(correlation_id=trace))
    assert b'"kind":"call.accepted"' in lines
    assert b'"kind":"call.settled"' in lines


@requirement("CH-012", "CH-002")
async def test_a_correlation_that_is_no_uuid_has_one_trace_id_that_follows_from_it() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run", correlation_id="nightly")
    kit.call("infra-1/run", correlation_id="nightly")
    kit.call("infra-1/run", correlation_id="weekly")
    first, second, third = agent.fetch()
    assert first["trace_id"] == second["trace_id"] != third["trace_id"]


@requirement("CH-020", "CH-081", "CH-003")
async def test_a_request_is_sent_once_and_repeats_have_its_ids_and_a_message_id_of_their_own() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run", {"a": 1})
    first = agent.fetch_one()
    kit.advance(29.0, agent)
    assert agent.fetch() == []
    kit.advance(2.5, agent)
    second = agent.fetch_one()
    assert second["message_id"] != first["message_id"]
    for name in ("request_id", "trace_id", "payload"):
        assert second[name] == first[name]


@requirement("CH-007")
async def test_each_message_of_ours_has_an_id_of_its_own() -> None:
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    for _ in range(100):
        boss.say(request("run"))
    said = [*agent.fetch(), *boss.fetch()]
    assert len(said) == 200
    assert len({message["message_id"] for message in said}) == 200


@requirement("CH-039")
async def test_a_second_result_is_recorded_and_changes_nothing() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.result(work, "first")
    agent.result(work, "second", 1)
    assert called.output["output"] == "first"
    assert kit.notes() == ["result.ignored"]


@requirement("CH-040")
async def test_a_status_after_the_result_is_refused() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.result(work)
    status = {"task_id": work["payload"]["task_id"], "status": "running", "progress_percent": 50}
    error = refused(agent, reply_to(work, "work_status", status, "infra"))
    assert (error.error_code, error.error_context["field_name"]) == (5003, "payload.task_id")


@requirement("CH-031")
async def test_an_unknown_task_is_refused_and_so_is_another_agents() -> None:
    kit = Kit()
    one, two = await kit.agent(), await kit.agent("infra-2")
    kit.call("infra-1/run")
    work = one.fetch_one()
    for agent, task_id in ((one, str(uuid.uuid4())), (two, work["payload"]["task_id"])):
        status = {"task_id": task_id, "status": "running", "progress_percent": 50}
        error = refused(agent, reply_to(work, "work_status", status, "infra"))
        assert (error.error_code, error.error_context["field_name"]) == (5003, "payload.task_id")


@requirement("CH-019", "CH-029", "CH-038", "CH-050")
async def test_directions() -> None:
    kit = Kit()
    agent, boss = await kit.agent(), kit.orchestrator()
    error = refused(agent, envelope("work_request", request()["payload"], from_agent="infra", to_agent="code"))
    assert (error.error_code, error.error_context["token_status"]) == (5004, "mismatch")
    for kind in ("work_status", "work_result"):
        error = refused(
            boss, envelope(kind, {"task_id": str(uuid.uuid4())}, from_agent="orchestrator", to_agent="infra")
        )
        assert (error.error_code, error.error_context["field_name"]) == (5003, "type")
        error = refused(agent, envelope(kind, {"task_id": str(uuid.uuid4())}, to_agent="code"))
        assert (error.error_code, error.error_context["field_name"]) == (5003, "to_agent")
    told = {"error_code": 5002, "error_message": "x"}
    agent.say(envelope("error", told))
    boss.say(envelope("error", told, from_agent="orchestrator", to_agent="infra"))
    assert kit.notices() == ["chiffon.error", "chiffon.error"]


@requirement("CH-051")
async def test_an_error_about_nothing_is_accepted_and_recorded() -> None:
    kit = Kit()
    agent = await kit.agent()
    agent.say(envelope("error", {"error_code": 5999, "error_message": "something", "error_context": {}}))
    noticed = [entry for entry in kit.exchange.log if isinstance(entry, entries.Noticed)]
    assert [(entry.code, entry.who, entry.detail) for entry in noticed] == [
        ("chiffon.error", "chiffon:infra-1", "5999")
    ]


# --- timers -----------------------------------------------------------------------------------------------------------


@requirement("CH-064", "CH-065", "CH-057")
async def test_no_first_answer_for_thirty_seconds_fails_the_attempt() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    agent.fetch_one()
    kit.advance(29.5, agent)
    assert kit.notes() == []
    kit.advance(1.0, agent)
    assert kit.notes() == ["attempt.failed"]
    for _ in range(3):
        kit.advance(36.0, agent)
    assert called.code == "tool.timeout"
    assert called.outcome.status is Status.UNKNOWN, "it has side effects, and nobody knows"
    context = called.details["error_context"]
    assert called.details["error_code"] == 5001
    assert context["attempted_retries"] == 3
    messages.check_time(context["last_attempt"], "last_attempt")


@requirement("CH-066")
async def test_silence_after_a_status_fails_the_attempt() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    for _ in range(4):
        kit.advance(25.0, agent)
        agent.status(work, 50)
    assert kit.notes() == [], "each status starts the time anew"
    kit.advance(31.0, agent)
    assert kit.notes() == ["attempt.failed"]


@requirement("CH-067")
async def test_silence_after_one_hundred_percent_fails_the_attempt() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work, 100)
    kit.advance(31.0, agent)
    assert kit.notes() == ["attempt.failed"]


@requirement("CH-068")
@pytest.mark.parametrize("by_hint", [True, False])
async def test_with_a_duration_there_is_no_timeout_before_it(by_hint: bool) -> None:
    kit = Kit()
    agent = await kit.agent()
    if by_hint:
        called = kit.call("infra-1/run", {"$hints": {"max_duration_seconds": 600}})
    else:
        called = kit.call("infra-1/run", timeout_ms=600_000)
    work = agent.fetch_one()
    assert work["payload"]["hints"] == {"max_duration_seconds": 600}
    assert work["payload"]["parameters"] == {}
    kit.advance(599.0, agent)
    assert called.answer is None
    assert "chiffon.suspected" in kit.notices(), "silence is noticed all the same"
    kit.advance(2.0, agent)
    assert called.code == "tool.timeout"
    assert agent.fetch() == [], "the caller's own limit is not tried again"


@requirement("CH-068")
async def test_a_duration_below_the_default_ends_it_earlier() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run", {"$hints": {"max_duration_seconds": 5}})
    work = agent.fetch_one()
    for _ in range(4):
        kit.advance(1.0, agent)
        agent.status(work, 10)
    kit.advance(1.5, agent)
    assert called.code == "tool.timeout"


async def test_durations_that_callers_choose_do_not_take_an_agent_from_others() -> None:
    kit = Kit()
    agent = await kit.agent()
    for _ in range(6):
        called = kit.call("infra-1/run", {"$hints": {"max_duration_seconds": 0.01}})
        agent.fetch_one()
        kit.advance(0.1, agent)
        assert called.code == "tool.timeout"
    assert "breaker.opened" not in kit.notices()
    other = kit.call("infra-1/run")
    agent.result(agent.fetch_one(), "done")
    assert other.output["output"] == "done"


async def test_an_agent_that_is_silent_for_too_long_rests_whatever_durations_callers_choose() -> None:
    kit = Kit()
    agent = await kit.agent()
    for _ in range(5):
        kit.call("infra-1/run", {"$hints": {"max_duration_seconds": 45}})
        agent.fetch_one()
        kit.advance(46.0, agent)
    assert "breaker.opened" in kit.notices()


@requirement("CH-069", "CH-111")
async def test_the_default_timeout_is_configurable() -> None:
    kit = Kit(timeout_s=5.0)
    agent = await kit.agent()
    kit.call("infra-1/run")
    kit.advance(4.5, agent)
    assert kit.notes() == []
    kit.advance(1.0, agent)
    assert kit.notes() == ["attempt.failed"]


async def test_paused_stops_the_idle_timer_and_never_the_total_one() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    limited = kit.call("infra-1/run", {"$hints": {"max_duration_seconds": 60}})
    first, second = agent.fetch()
    agent.status(first, 10, "paused")
    agent.status(second, 10, "paused")
    kit.advance(59.0, agent)
    assert kit.notes() == []
    kit.advance(2.0, agent)
    assert limited.code == "tool.timeout"
    kit.advance(600.0, agent)
    assert kit.notes() == ["attempt.failed"], "the other one is still paused"


async def test_a_late_result_settles_a_call_that_is_open() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    kit.advance(30.5, agent)
    assert kit.notes() == ["attempt.failed"]
    agent.result(work, "late")
    assert called.output["output"] == "late"
    kit.advance(60.0, agent)
    assert agent.fetch() == []


# --- retries ----------------------------------------------------------------------------------------------------------


@requirement("CH-075", "CH-076", "CH-077")
async def test_four_attempts_with_waits_of_one_two_and_four_seconds() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    sent = [agent.fetch_one()]
    for wait_s in (1.0, 2.0, 4.0):
        agent.error(sent[-1], 5005, limit_name="cpu", available=0, required=1)
        kit.advance(wait_s - 0.3, agent)
        assert agent.fetch() == []
        kit.advance(0.6, agent)
        sent.append(agent.fetch_one())
    agent.error(sent[-1], 5005, limit_name="cpu", available=0, required=1)
    kit.advance(100.0, agent)
    assert agent.fetch() == []
    assert len({message["request_id"] for message in sent}) == 1
    assert called.code == "limit.resource"


@requirement("CH-063", "CH-082", "CH-104")
@pytest.mark.parametrize(
    ("code", "ours", "attempts"),
    [
        (5001, "tool.timeout", 4),
        (5002, "tool.unavailable", 4),
        (5003, "tool.invalid_input", 1),
        (5004, "tool.failed", 1),
        (5005, "limit.resource", 4),
        (5006, "tool.not_found", 1),
        (5777, "tool.failed", 1),
    ],
)
async def test_only_what_is_marked_is_tried_again(code: int, ours: str, attempts: int) -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    count = 0
    while called.answer is None:
        agent.error(agent.fetch_one(), code)
        count += 1
        if called.answer is None:
            kit.advance(4.5, agent)
    assert (count, called.code) == (attempts, ours)
    assert called.details["error_code"] == code


async def test_the_callers_deadline_stops_the_retries() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run", timeout_ms=2000)
    agent.error(agent.fetch_one(), 5005)
    kit.advance(1.2, agent)
    agent.error(agent.fetch_one(), 5005)
    assert called.code == "limit.resource"


# --- the breaker ------------------------------------------------------------------------------------------------------


@requirement("CH-070", "CH-110")
async def test_five_failed_attempts_in_a_row_open_the_breaker() -> None:
    kit = Kit()
    agent = await kit.agent()
    first = kit.call("infra-1/run")
    for _ in range(4):
        agent.error(agent.fetch_one(), 5002)
        kit.advance(4.5, agent)
    assert first.code == "tool.unavailable"
    second = kit.call("infra-1/run")
    agent.error(agent.fetch_one(), 5002)
    assert "breaker.opened" in kit.notices()
    refused_now = kit.call("infra-1/run")
    assert refused_now.outcome.refused
    assert refused_now.code == "tool.unavailable"
    kit.advance(1.2, agent)
    work = agent.fetch_one()
    assert second.answer is None, "what ran before is still tried"
    agent.result(work)
    assert second.outcome.status is Status.SUCCEEDED


@requirement("CH-071", "CH-073")
async def test_after_sixty_seconds_a_health_check_precedes_work() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    kit.call("infra-1/run")
    for _ in range(3):
        for work in agent.fetch():
            agent.error(work, 5002)
        kit.advance(4.5, agent)
    assert kit.call("infra-1/run").code == "tool.unavailable"
    opened = kit.notices().index("breaker.opened")
    kit.advance(45.0, agent)
    assert kit.call("infra-1/run").code == "tool.unavailable"
    kit.advance(16.0, agent)
    checks = [effect for effect in kit.exchange.effects if isinstance(effect, effects.CheckHealth)]
    assert len(checks) == 1
    assert kit.notices()[opened:] == ["breaker.opened", "breaker.closed"]
    assert kit.call("infra-1/run").answer is None


@requirement("CH-058")
async def test_an_agent_that_is_not_there_is_5002() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.advance(31.0)
    called = kit.call("infra-1/run")
    assert called.code == "tool.unavailable"
    with pytest.raises(Refused) as caught:
        agent.fetch()
    assert caught.value.error.error_code == 5002
    assert caught.value.error.error_context == {"agent_id": "infra-1", "last_heartbeat": None}


async def test_an_agent_that_is_silent_while_it_works_keeps_its_tasks_until_its_timers_end() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    agent.fetch_one()
    kit.advance(31.0)
    assert kit.exchange.hub.registry.agents["infra-1"].health is Health.SILENT
    assert kit.call("infra-1/run").code == "tool.unavailable"
    kit.advance(2.0)
    repeated = agent.fetch_one()
    assert kit.exchange.hub.registry.agents["infra-1"].health is Health.OK
    agent.result(repeated)
    assert called.outcome.status is Status.SUCCEEDED


# --- large outputs ----------------------------------------------------------------------------------------------------


@requirement("CH-087", "CH-112")
async def test_a_large_output_is_put_together_whatever_the_order() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    output = "".join(f"line {number} äöü\n" for number in range(200_000))
    pieces = chunks.split(output)
    assert len(pieces) > 10
    for piece in [pieces[1], pieces[0], *pieces[:1:-1], pieces[3]]:
        agent.status(work, 99, number=5, name="Collecting logs", output=piece.text, output_chunk=piece.label)
    agent.result(
        work, output[-65_536:], x_custom_fields={"output_truncated": True, "output_sha256": chunks.sha256(output)}
    )
    assert called.outcome.large is not None, "above 1 MiB an output can be shown as a reference"
    whole = called.output
    assert whole["output"] == output
    (step,) = whole["steps"]
    assert step == {
        "number": 5,
        "name": "Collecting logs",
        "bytes": len(output.encode()),
        "sha256": chunks.sha256(output),
    }
    shown = [json.loads(bytes(p.data)).get("text", "") for p in called.progress]
    assert "".join(shown) == output, "pieces are shown in their order"


async def test_what_is_missing_of_an_output_is_on_record() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    pieces = chunks.split("x" * 600_000)
    agent.status(work, 99, number=1, name="logs", output=pieces[1].text, output_chunk=pieces[1].label)
    agent.result(work, "failed", 3)
    assert called.details["exit_code"] == 3
    assert called.details["steps"] == [{"number": 1, "name": "logs", "missing": [[0, 262_144], [524_288, 600_000]]}]


async def test_chunks_that_contradict_each_other_are_refused() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work, 1, number=1, output="abc", output_chunk="bytes 0-3 of 9")
    agent.status(work, 1, number=1, output="abc", output_chunk="bytes 0-3 of 9")
    for output, label in (("xyz", "bytes 0-3 of 9"), ("bcd", "bytes 1-4 of 9"), ("def", "bytes 3-6 of 8")):
        with pytest.raises(Refused) as caught:
            agent.status(work, 1, number=1, output=output, output_chunk=label)
        assert caught.value.error.error_context["field_name"] == "payload.step.output_chunk"


# --- who it is --------------------------------------------------------------------------------------------------------


@requirement("CH-101", "CH-060")
async def test_the_token_is_judged_for_every_message_and_binds_id_and_type() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work)
    error = refused(agent, reply_to(work, "work_status", {"task_id": work["payload"]["task_id"]}, "code"))
    assert error.error_code == 5004
    assert error.error_context == {"agent_id": "infra-1", "token_status": "mismatch"}
    for token, word in ((None, "missing"), (b"", "invalid"), (b"0" * 32, "invalid"), (b"x", "invalid")):
        with pytest.raises(Refused) as caught:
            kit.peers.identify(token)
        assert caught.value.error.error_context == {"agent_id": "unknown", "token_status": word}
    for agent_id, kind in (("infra-2", "infra"), ("infra-1", "code")):
        fields = {"agent_id": agent_id, "agent_type": kind, "supported_versions": ["1.0"]}
        with pytest.raises(Refused) as caught:
            await kit.peers.register(agent.caller, as_fields(fields), "test")
        assert caught.value.error.error_context["token_status"] == "mismatch"


@requirement("CH-092", "CH-093", "CH-094", "CH-095")
async def test_a_v2_agent_that_also_speaks_1_0_is_spoken_to_in_1_0() -> None:
    kit = Kit()
    agent = await kit.agent(supported_versions=["2.0", "1.0"])
    assert agent.answer["protocol_version"] == "1.0"
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    assert work["protocol_version"] == "1.0"
    agent.result(work)
    assert called.outcome.status is Status.SUCCEEDED
    with pytest.raises(Refused) as caught:
        await kit.agent("infra-2", supported_versions=["2.0"])
    assert caught.value.error.error_code == 5006
    assert caught.value.error.error_context["supported_versions"] == ["1.0"]


@requirement("CH-096")
async def test_another_version_is_5006_and_says_which_are_spoken() -> None:
    kit = Kit()
    kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    error = refused(boss, request("deploy", protocol_version="2.0"))
    assert error.error_code == 5006
    assert error.error_context == {
        "work_type_requested": "deploy",
        "supported_types": ["deploy"],
        "unsupported_version": "2.0",
        "supported_versions": ["1.0"],
    }


# --- capacity ---------------------------------------------------------------------------------------------------------


@requirement("CH-061")
async def test_a_hint_beyond_the_agents_capacity_is_5005_and_nothing_is_sent() -> None:
    kit = Kit()
    agent = await kit.agent(capacity={"memory_mb": 256})
    called = kit.call("infra-1/run", {"$hints": {"max_memory_mb": 512}})
    kit.advance(8.0, agent)
    assert agent.fetch() == []
    assert called.code == "limit.resource"
    assert called.details["error_context"] == {"limit_name": "memory_mb", "available": 256, "required": 512}


# --- Trunkline as agent -----------------------------------------------------------------------------------------------


@requirement("CH-001", "CH-027", "CH-078", "CH-079", "CH-080", "CH-109")
async def test_a_repeated_request_is_one_execution_and_one_outcome() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    work = request("deploy", {"n": 1})
    assert boss.say(work) is None
    first = boss.fetch_one()
    assert first["payload"]["task_id"] == work["payload"]["task_id"]
    assert (first["payload"]["status"], first["payload"]["progress_percent"]) == ("running", 0)
    again = boss.say({**work, "message_id": str(uuid.uuid4())})
    assert again is not None
    assert again["type"] == "work_status", "a repeat attaches to what runs"
    worker.finish({"ok": True})
    result = boss.fetch_one()
    assert (result["type"], result["payload"]["status"]) == ("work_result", "success")
    repeated = boss.say({**work, "message_id": str(uuid.uuid4())})
    assert repeated is not None
    assert (repeated["type"], repeated["request_id"], repeated["trace_id"]) == (
        "work_result",
        work["request_id"],
        work["trace_id"],
    )
    assert repeated["payload"] == result["payload"]
    assert len(worker.delivered) == 1
    later = kit.restarted()
    other = later.orchestrator()
    later.offer("com.a", tool("com.a/deploy"))
    recorded = other.say({**work, "message_id": str(uuid.uuid4())})
    assert recorded is not None
    assert recorded["payload"] == repeated["payload"], "the cache is the record: a restart changes nothing"


@requirement("CH-078")
async def test_the_same_request_id_with_another_payload_is_5003() -> None:
    kit = Kit()
    kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    work = request("deploy", {"n": 1})
    boss.say(work)
    error = refused(boss, {**work, "payload": {**work["payload"], "parameters": {"n": 2}}})
    assert (error.error_code, error.error_context["field_name"]) == (5003, "request_id")


@requirement("CH-062")
async def test_an_unknown_work_type_is_5006_with_what_there_is() -> None:
    kit = Kit(mapped="com.a/deploy")
    kit.offer("com.a", tool("com.a/deploy"))
    error = refused(kit.orchestrator(), request("destroy"))
    assert error.error_code == 5006
    assert error.error_context == {"work_type_requested": "destroy", "supported_types": ["deploy", "mapped"]}


@requirement("CH-030")
async def test_work_that_goes_on_is_told_of_every_ten_seconds() -> None:
    kit = Kit()
    worker, boss = kit.offer("com.a", tool("com.a/deploy")), kit.orchestrator()
    boss.say(request("deploy", hints={"max_duration_seconds": 100}))
    assert len(boss.fetch()) == 1
    kit.advance(9.0)
    assert boss.fetch() == []
    kit.advance(2.0)
    assert [message["type"] for message in boss.fetch()] == ["work_status"]
    worker.show("status", {"json": {"percent": 40}})
    boss.fetch()
    kit.advance(31.0)
    told = boss.fetch()
    assert [message["payload"]["progress_percent"] for message in told] == [40, 40, 40]


@requirement("CH-106", "CH-107", "CH-108", "CH-115", "CH-005")
def test_every_message_that_these_tests_saw_is_an_envelope_of_version_1_0() -> None:
    """``kit.valid`` has read each of them; this looks at what they were, if the others ran in this process."""
    for message in EMITTED:
        assert message["protocol_version"] == "1.0"
        messages.check_time(message["timestamp"], "timestamp")
        if message["type"] == "error":
            assert 5001 <= message["payload"]["error_code"] <= 5999
