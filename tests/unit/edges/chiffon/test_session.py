"""The conversation with one agent: signs of life, health checks, capacity, coming back, being sent away."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid

import pytest
from msgspec import Raw

from tests.unit.edges.chiffon.kit import Kit, RawAgent, as_fields, envelope, reply_to
from trunkline.edges.chiffon import messages, tasks, translate
from trunkline.edges.chiffon.messages import Refused, Registration
from trunkline.edges.chiffon.outbox import Outgoing
from trunkline.edges.chiffon.session import HEALTH_CHECK, AgentSession, Probe
from trunkline.effects import Admit, Deliver
from trunkline.entries import CallSettled
from trunkline.events import Event
from trunkline.model import Health, Now, Status
from trunkline.shown import CallView


def health(kit: Kit, agent_id: str = "infra-1") -> Health:
    return kit.exchange.hub.registry.agents[agent_id].health


async def test_an_idle_agent_that_says_nothing_for_thirty_seconds_is_gone() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.advance(29.0)
    assert "infra-1" in kit.peers.agents
    kit.advance(2.0)
    assert "infra-1" not in kit.peers.agents
    assert "infra-1" not in kit.exchange.hub.registry.agents
    with pytest.raises(Refused):
        agent.fetch()
    again = await kit.agent()
    assert again.fetch() == []


async def test_an_agent_that_comes_back_goes_on_with_its_session_and_hears_of_its_tasks_again() -> None:
    kit = Kit()
    agent = await kit.agent()
    before = agent.conversation
    called = kit.call("infra-1/run", {"x": 1})
    first = agent.fetch_one()
    agent = await kit.agent(work=["run", "more"])
    assert agent.conversation is before
    again = agent.fetch_one()
    assert (again["request_id"], again["payload"]) == (first["request_id"], first["payload"])
    assert kit.call("infra-1/more").answer is None
    agent.result(again)
    assert called.outcome.status is Status.SUCCEEDED
    assert kit.notes() == [], "that was no failed attempt"


async def test_who_registers_again_and_again_is_not_looked_at_and_keeps_what_it_has() -> None:
    kit = Kit()
    agent = await kit.agent(work=[f"w{n}" for n in range(900)])
    kit.call("infra-1/w1", {"x": 1})
    assert len(agent.fetch()) == 1
    told = await kit.register_again(agent, [f"w{n}" for n in range(900)])
    assert (told["rejected"], len(agent.fetch())) == ({}, 1)
    before = len(kit.exchange.log)
    for _ in range(50):
        told = await kit.register_again(agent, [f"v{n}" for n in range(900)])
        assert set(told["rejected"].values()) == {"limit.rate"}
    assert (len(told["rejected"]), told["work_types"]) == (900, [])
    assert agent.fetch() == [], "what it works on is sent again to who is taken at its word"
    assert len(kit.exchange.log) == before
    assert kit.call("infra-1/w2").answer is None
    kit.advance(100.0, agent)
    assert (await kit.register_again(agent, ["v1"]))["work_types"] == ["v1"]


@pytest.mark.slow
async def test_who_says_nothing_new_again_and_again_is_not_sent_its_work_each_time() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run", {"x": 1})
    while True:
        agent.fetch()
        await kit.register_again(agent, ())
        if not len(agent.session.outbox):
            break
    kit.advance(1.0, agent)
    await kit.register_again(agent, ())
    assert len(agent.fetch()) == 1


async def test_work_that_was_not_fetched_yet_is_not_written_anew_by_a_registration() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run", {"x": 1})
    (first,) = agent.session.outbox.take()
    agent.session.outbox.put_back(first)
    await kit.register_again(agent, ["run"])
    assert [one.message_id for one in agent.session.outbox.take()] == [first.message_id]


async def test_registrations_before_the_first_is_admitted_are_bounded() -> None:
    kit = Kit()
    kit.exchange.disk_rests = True
    names = [f"w{n}" for n in range(900)]
    asked = [asyncio.create_task(kit.agent(work=names)) for _ in range(40)]
    async with asyncio.timeout(10):
        refused = await asyncio.gather(*asked[20:], return_exceptions=True)
    assert [one.error.error_code for one in refused if isinstance(one, Refused)] == [5002] * 20
    kit.exchange.disk_rests = False
    kit.exchange.store()
    async with asyncio.timeout(10):
        assert (await asked[0]).answer["work_types"] == names
        await asyncio.gather(*asked, return_exceptions=True)


async def test_another_token_for_the_same_agent_begins_anew() -> None:
    kit = Kit()
    agent = await kit.agent()
    before = agent.conversation
    caller = kit.other_token("infra-1", "infra", b"o" * 32)
    fields = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"]}
    await kit.peers.register(caller, as_fields(fields), "test")
    assert kit.peers.agents["infra-1"] is not before
    with pytest.raises(Refused) as caught:
        agent.fetch()
    assert caught.value.error.error_code == 5002


async def test_a_revoked_token_ends_the_session() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.exchange.revoke("chiffon", "infra-1")
    assert "infra-1" not in kit.exchange.hub.registry.agents
    assert "infra-1" not in kit.peers.agents
    assert agent.answer["registered"] is True


async def test_a_refused_admission_is_5004() -> None:
    kit = Kit()
    kit.offer("taken")
    with pytest.raises(Refused) as caught:
        await kit.agent("taken")
    assert caught.value.error.error_code == 5004
    assert "taken" not in kit.peers.agents


async def test_a_transport_that_can_probe_is_asked_when_the_agent_was_quiet() -> None:
    kit = Kit()
    agent = await kit.agent()
    probes = []
    agent.conversation.probe_by(Probe.BY_TRANSPORT, lambda: probes.append(kit.exchange.clock.mono))
    kit.advance(14.0)
    assert probes == []
    kit.advance(2.0)
    assert len(probes) == 1
    agent.conversation.looked(is_well=True)
    kit.advance(20.0)
    assert "infra-1" in kit.peers.agents
    agent.conversation.looked(is_well=False)
    assert health(kit) is Health.SILENT
    agent.beat()
    assert health(kit) is Health.OK


async def test_a_health_check_by_work_is_answered_by_any_reply() -> None:
    kit = Kit()
    agent = await kit.agent()
    agent.conversation.probe_by(Probe.BY_WORK)
    kit.advance(15.5)
    (asked,) = agent.session.take_output()
    work = json.loads(asked.data)
    assert work["payload"]["work_type"] == HEALTH_CHECK
    agent.error(work, 5006, work_type_requested=HEALTH_CHECK, supported_types=[])
    assert kit.notices() == []
    kit.advance(29.0)
    assert health(kit) is Health.OK


async def test_a_health_check_that_is_answered_too_late_is_silence_first_and_health_then() -> None:
    kit = Kit(timeout_s=5.0)
    agent = await kit.agent()
    agent.conversation.probe_by(Probe.BY_WORK)
    kit.advance(15.5)
    (asked,) = agent.session.take_output()
    kit.advance(5.0)
    assert health(kit) is Health.SILENT
    agent.error(json.loads(asked.data), 5006)
    assert health(kit) is Health.OK
    assert kit.notices() == [], "it is known what this is about"


async def test_a_message_that_cannot_be_handed_over_is_a_failed_attempt() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    for request_id in (work["request_id"], "unknown"):
        agent.conversation.not_sent(Outgoing(request_id, "m", "work_request", b""), "nobody there")
    assert kit.notes() == ["attempt.failed"]
    kit.advance(1.3, agent)
    agent.result(agent.fetch_one())
    assert called.outcome.status is Status.SUCCEEDED


async def test_hints_that_are_none_fail_the_call_where_schemas_are_not_enforced() -> None:
    kit = Kit()
    await kit.agent()
    kit.only_warn_of_schemas()
    called = kit.call("infra-1/run", {"$hints": {"max_memory_mb": -1}})
    assert called.code == "tool.invalid_input"


async def test_falling_progress_is_recorded_and_not_refused() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work, 50)
    agent.status(work, 40)
    assert kit.notices() == ["chiffon.progress_fell"]


async def test_an_attempt_fails_once_and_errors_about_nothing_do_not_fill_the_record() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    for _ in range(5):
        agent.error(work, 5005)
    assert kit.notes() == ["attempt.failed"]
    agent.error(work, 5003)
    assert called.code == "tool.invalid_input", "what is final is heard all the same"
    for _ in range(50):
        agent.say(envelope("error", {"error_code": 5001, "error_message": "x"}))
    assert kit.notices() == ["chiffon.error"] * 2


async def test_what_an_agent_may_have_us_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_HELD_BYTES", 5)
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work, 1, number=1, output="abcdef", output_chunk="bytes 0-6 of 100")
    with pytest.raises(Refused) as caught:
        agent.status(work, 1, number=2, output="abcdef", output_chunk="bytes 0-6 of 100")
    assert caught.value.error.error_code == 5005


async def test_a_step_that_is_complete_is_not_put_together_again_and_short_labels_end_with_the_result() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    for _ in range(2):
        agent.status(work, 1, number=1, name="a", output="abc", output_chunk="bytes 0-3 of 3")
    agent.status(work, 1, number=2, name="b", output="x" * 10, output_chunk="bytes 0-256k")
    agent.result(work)
    steps = {step["number"]: step for step in called.output["steps"]}
    assert (steps[1]["bytes"], steps[2]["bytes"]) == (3, 10)


async def test_tasks_of_calls_that_somebody_ended_are_forgotten() -> None:
    kit = Kit()
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.status(work, 10, "paused")
    kit.cancel(called)
    assert called.outcome.status is Status.UNKNOWN
    assert len(agent.session.tasks) == 1
    kit.advance(31.0, agent)
    assert len(agent.session.tasks) == 0
    agent.result(work)
    assert kit.notes()[-1] == "result.ignored"


async def test_a_task_that_was_ended_elsewhere_has_no_more_timeouts() -> None:
    kit = Kit(timeout_s=5.0)
    agent = await kit.agent()
    called = kit.call("infra-1/run")
    agent.fetch_one()
    kit.cancel(called)
    kit.advance(6.0, agent)
    assert len(agent.session.tasks) == 0
    assert "attempt.ignored" not in kit.notes()


async def test_a_payload_whose_task_cannot_be_read_is_refused_for_that() -> None:
    kit = Kit()
    agent = await kit.agent()
    for payload in ({"task_id": 5}, {"task_id": "x"}, {}):
        with pytest.raises(Refused) as caught:
            agent.say(envelope("work_status", payload))
        assert caught.value.error.error_context["field_name"] == "payload.task_id"


async def test_an_agent_is_not_paused_by_the_disk() -> None:
    kit = Kit()
    agent = await kit.agent()
    agent.conversation.pause_reading()
    agent.conversation.resume_reading()
    agent.conversation.flush()
    kit.call("infra-1/run")
    assert len(agent.fetch()) == 1


async def test_a_late_failed_result_is_recorded_as_such() -> None:
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    work = agent.fetch_one()
    agent.result(work)
    payload = {"task_id": work["payload"]["task_id"], "status": "failed", "exit_code": 1, "output": ""}
    agent.say({**reply_to(work, "work_result", payload, "infra"), "message_id": str(uuid.uuid4())})
    assert kit.notes() == ["result.ignored"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"agent_id": 5}, "agent_id"),
        ({"agent_type": "gardener"}, "agent_type"),
        ({"supported_versions": "1.0"}, "supported_versions"),
        ({"work": ["no spaces"]}, "work_types"),
        ({"work": [f"w{n}" for n in range(1001)]}, "work_types"),
        ({"capacity": {"memory_mb": "much"}}, "capacity.memory_mb"),
        ({"capacity": []}, "capacity"),
        ({"callback_url": "http://10.0.0.1/"}, "callback_url"),
    ],
)
async def test_each_fault_of_a_registration_is_named(fields: dict[str, object], name: str) -> None:
    kit = Kit()
    with pytest.raises(Refused) as caught:
        await kit.agent(**fields)  # type: ignore[arg-type]
    assert caught.value.error.error_context["field_name"] == name


def talked() -> tuple[list[Event], list[Outgoing]]:
    """A conversation with nobody around it: what it led to, and what was said."""
    ids = itertools.count(1)
    calls = {"c-1": CallView("c-1", "infra-1/run", "operator", Status.RUNNING, "")}
    session = AgentSession(
        7,
        "infra-1",
        "infra",
        "hash",
        30.0,
        find_call=calls.get,
        new_id=lambda: f"{next(ids):08}-0000-4000-8000-000000000000",
        now=Now(0.0, 0.0),
    )
    registration = Registration("infra-1", "infra", ("1.0",), ("run",))
    found = session.register("r1", registration, "1.0", "here", Now(0.0, 0.0))
    found += session.send(Admit(7, 0, "r1"), Now(1.0, 1.0))
    found += session.send(Deliver(7, 0, "c-1", "infra-1/run", Raw(b"{}"), "operator", "c-1"), Now(2.0, 2.0))
    while (at := session.wake_at()) is not None:
        if at > 60.0:
            calls.clear()
        found += session.wake(Now(at, at))
    return found, session.take_output()


def test_a_session_needs_nothing_around_it_and_the_same_course_gives_the_same_events_and_messages() -> None:
    events, messages = talked()
    assert [type(event).__name__ for event in events] == [
        "AgentArrived",
        "ToolsOffered",
        "HealthReported",
        "AttemptFailed",
        "AgentLeft",
    ]
    assert [message.type for message in messages] == ["work_request"]
    assert (events, messages) == talked()


def test_an_input_without_hints_passes_as_it_was_written() -> None:
    body = Raw(b'{ "n" : 12345678901234567890 }')
    request = translate.work_request(Deliver(1, 0, "c", "a/run", body, "operator", "c"), is_typed=False)
    assert bytes(request.parameters) == bytes(body)


async def test_a_result_that_comes_before_its_work_is_sent_again_is_not_taken_and_so_not_lost() -> None:
    """Seed 1008 of the simulation: after a restart it was answered with 202, and the work was sent once more."""
    kit = Kit()
    agent, made = await kit.agent(), kit.call("infra-1/run")
    work = agent.fetch_one()
    kit = kit.restarted()
    kit.exchange.disk_rests = True
    coming = asyncio.ensure_future(kit.agent())
    await asyncio.sleep(0)
    early = RawAgent(kit, kit.peers.identify(kit.token("infra-1", "infra")), "infra", {})
    for say in (early.result, early.status):
        with pytest.raises(Refused) as refused:
            say(work)
        assert refused.value.error.error_code == 5002
    kit.exchange.disk_rests = False
    kit.exchange.store()
    again = await coming
    kit.advance(2.0, again)
    again.result(again.fetch_one(), "done")
    (settled,) = kit.exchange.recorded(CallSettled)
    assert (settled.status, made.call_id) == (Status.SUCCEEDED, settled.call_id)
    assert not [note for note in kit.notes() if "result" in note]


async def test_an_attempt_that_waited_for_the_disk_is_not_sent_after_the_result_of_an_earlier_one() -> None:
    """Seed 1738 of the simulation."""
    kit = Kit()
    agent = await kit.agent()
    kit.call("infra-1/run")
    first = agent.fetch_one()
    kit.exchange.disk_rests = True
    agent.error(first, 5002, agent_id="infra-1")
    kit.advance(2.0, agent)
    assert agent.fetch() == [], "the next attempt is not on disk yet"
    agent.result(first, "done")
    kit.exchange.disk_rests = False
    kit.exchange.store()
    assert agent.fetch() == []
    (settled,) = kit.exchange.recorded(CallSettled)
    assert settled.status is Status.SUCCEEDED


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [messages.MAX_CUSTOM_BYTES + 1, 3_900_000])
async def test_a_call_whose_context_an_agent_would_refuse_fails_alone_before_it_is_sent(size: int) -> None:
    kit = Kit()
    agent = await kit.agent()
    fits = kit.call("infra-1/run", {"n": 1}, context=padded(messages.MAX_CUSTOM_BYTES - 1))
    called = kit.call("infra-1/run", {"n": 2}, context=padded(size))
    assert (called.outcome.status, called.code) == (Status.FAILED, "tool.invalid_input")
    assert called.outcome.fault is not None
    assert "custom fields have at most 16384" in called.outcome.fault.message
    work = agent.fetch_one()
    assert work["payload"]["parameters"] == {"n": 1}
    agent.result(work)
    assert fits.outcome.status is Status.SUCCEEDED
    assert len(agent.session.tasks) == 0


def padded(size: int) -> Raw:
    """A context of so many bytes."""
    return Raw(b'{"x":"%s"}' % (b"x" * (size - 8)))
