"""Calls of MCP clients: outcomes, progress, cancellation, questions to a person, repeats."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.unit.edges.mcp.conftest import (
    ECHO,
    ECHO_NAME,
    HANDSHAKE,
    MODERN,
    SHELL_NAME,
    Client,
    Served,
    Timers,
    memory_exchange,
    messages_of,
    wait_until,
)
from trunkline.config import Config
from trunkline.edges.mcp.awaiting import Awaiting
from trunkline.entries import CallAccepted
from trunkline.model import Fault, Limits, Status, ToolDefinition, fault
from trunkline.testing.memory import ANY_OBJECT, NOWHERE


async def test_a_call_gives_the_output_as_text_and_as_data(client: Client) -> None:
    result = await client.call(ECHO_NAME, {"text": "hi", "n": 12345678901234567890})
    assert result["structuredContent"] == {"text": "hi", "n": 12345678901234567890}
    assert json.loads(result["content"][0]["text"]) == {"text": "hi", "n": 12345678901234567890}
    assert "isError" not in result
    assert result.get("resultType") == ("complete" if client.era == MODERN else None)


async def test_a_call_is_on_record_under_the_name_of_its_token(served: Served, client: Client) -> None:
    result = await client.call(ECHO_NAME)
    entry = served.exchange.recorded(CallAccepted)[-1]
    assert (entry.caller, entry.tool_id) == ("mcp:me", ECHO)
    assert result["_meta"]["trunkline/call_id"] == entry.call_id


async def test_a_fault_is_a_result_that_a_model_can_read(served: Served, client: Client) -> None:
    async def fail() -> None:
        await wait_until(lambda: agent.delivered)
        agent.finish(None, Status.FAILED, fault("tool.failed", "no such city"))

    definition = ToolDefinition("com.example.weather/forecast", "weather", ANY_OBJECT, side_effects=False)
    agent = served.exchange.attach("com.example.weather", definition)
    failing = asyncio.create_task(fail())
    result = await client.call("com_example_weather__forecast")
    await failing
    assert result["isError"] is True
    assert result["content"][0]["text"] == "tool.failed: no such city"
    assert result["_meta"]["trunkline/fault"]["code"] == "tool.failed"


async def test_an_unknown_tool_is_an_error_of_the_protocol(client: Client) -> None:
    answer = await client.ask("tools/call", {"name": "com_example_echo__shout"})
    assert answer["error"]["code"] == -32602


async def test_progress_is_told_before_the_result(served: Served, client: Client) -> None:
    async def work() -> None:
        await wait_until(lambda: agent.delivered)
        agent.show("status", {"text": "half", "percent": 50})
        agent.show("status", {"text": "more"}, seq=2)
        agent.finish({"done": True})

    definition = ToolDefinition("com.example.slow/work", "works", ANY_OBJECT, side_effects=False)
    agent = served.exchange.attach("com.example.slow", definition)
    working = asyncio.create_task(work())
    params = {"name": "com_example_slow__work", "_meta": {"progressToken": "p1"}}
    told = messages_of(await client.post("tools/call", params))
    await working
    assert [message.get("method") for message in told] == ["notifications/progress"] * 2 + [None]
    assert told[0]["params"] == {"progressToken": "p1", "progress": 50.0, "total": 100, "message": "half"}
    assert told[1]["params"] == {"progressToken": "p1", "progress": 51.0, "message": "more"}
    assert told[2]["result"]["structuredContent"] == {"done": True}


async def test_a_session_cancels_a_request_by_its_id(served: Served) -> None:
    client = await served.client(era=HANDSHAKE).begin()
    definition = ToolDefinition(
        "com.example.slow/work", "works", ANY_OBJECT, side_effects=False, capabilities=("cancellation",)
    )
    agent = served.exchange.attach("com.example.slow", definition)
    running = asyncio.create_task(client.post("tools/call", {"name": "com_example_slow__work"}))
    await wait_until(lambda: agent.delivered)
    request_id = served.next_id() - 1
    other = await served.client("other", era=HANDSHAKE).begin()
    await other.notify("notifications/cancelled", {"requestId": request_id})
    assert not agent.canceled
    assert (await client.notify("notifications/cancelled", {"requestId": request_id})).status_code == 202
    assert agent.canceled
    agent.finish(status=Status.CANCELED)
    assert messages_of(await running)[-1]["error"]["code"] == -32800


async def test_a_client_of_the_later_version_cancels_by_leaving(served: Served) -> None:
    client = served.client()
    definition = ToolDefinition(
        "com.example.slow/work", "works", ANY_OBJECT, side_effects=False, capabilities=("cancellation",)
    )
    agent = served.exchange.attach("com.example.slow", definition)
    running = asyncio.create_task(client.post("tools/call", {"name": "com_example_slow__work"}))
    await wait_until(lambda: agent.delivered)
    running.cancel()
    await wait_until(lambda: agent.canceled)
    agent.finish(status=Status.CANCELED)


# --- a person is asked ------------------------------------------------------------------------------------------------


def approval_id(served: Served) -> str:
    (question,) = served.exchange.views.questions()
    return question.approval_id


async def outcome_after_approval(served: Served, repeat: Any, output: dict[str, Any]) -> Any:
    """Approve what is asked, let the shell answer, and repeat."""
    served.exchange.answer(approval_id(served))
    assert len(served.shell.delivered) == 1
    served.shell.finish(output)
    return await repeat


async def test_a_client_that_cannot_open_addresses_is_told_what_waits_and_where(served: Served, client: Client) -> None:
    result = await client.call(SHELL_NAME, {"command": "ls"})
    asked = approval_id(served)
    assert result["isError"] is True
    assert f"`trunkline approve {asked} --home {NOWHERE}`" in result["content"][0]["text"]
    assert f"{served.url}/#/approvals/{asked}" in result["content"][0]["text"]
    assert not served.shell.delivered
    # The question is still open, and nothing of the request is: no connection waits for a person (decision 11).
    assert not served.waiting
    assert await client.ask("tools/list"), "the connection is free for the next request"


async def test_the_repeat_after_the_approval_gets_the_outcome_of_the_one_execution(
    served: Served, client: Client
) -> None:
    await client.call(SHELL_NAME, {"command": "ls", "all": True})
    # Spelled otherwise, and the same.
    repeat = client.call(SHELL_NAME, {"all": True, "command": "ls"})
    result = await outcome_after_approval(served, repeat, {"files": 3})
    assert result["structuredContent"] == {"files": 3}
    assert len(served.exchange.recorded(CallAccepted)) == 1


async def test_a_repeat_before_the_answer_asks_nobody_again(served: Served, client: Client) -> None:
    first = await client.call(SHELL_NAME, {"command": "ls"})
    second = await client.call(SHELL_NAME, {"command": "ls"})
    assert first["content"] == second["content"]
    assert len(served.exchange.views.questions()) == 1


async def test_other_arguments_and_other_callers_are_other_calls(served: Served, client: Client) -> None:
    await client.call(SHELL_NAME, {"command": "ls"})
    await client.call(SHELL_NAME, {"command": "rm"})
    other = await served.client("other", era=client.era).begin()
    await other.call(SHELL_NAME, {"command": "ls"})
    assert len(served.exchange.views.questions()) == 3


async def test_once_the_outcome_was_told_the_same_call_is_a_new_one(served: Served, client: Client) -> None:
    await client.call(SHELL_NAME, {"command": "ls"})
    await outcome_after_approval(served, client.call(SHELL_NAME, {"command": "ls"}), {})
    await client.call(SHELL_NAME, {"command": "ls"})
    assert len(served.exchange.recorded(CallAccepted)) == 2
    assert approval_id(served)


async def test_a_denied_call_says_so_to_its_repeat(served: Served, client: Client) -> None:
    await client.call(SHELL_NAME, {"command": "ls"})
    served.exchange.answer(approval_id(served), approved=False)
    result = await client.call(SHELL_NAME, {"command": "ls"})
    assert result["isError"] is True
    assert "policy.denied" in result["content"][0]["text"]
    assert not served.shell.delivered


async def test_a_repeat_while_the_approved_call_runs_waits_for_its_outcome(served: Served, client: Client) -> None:
    await client.call(SHELL_NAME, {"command": "ls"})
    served.exchange.answer(approval_id(served))
    repeat = asyncio.create_task(client.call(SHELL_NAME, {"command": "ls"}))
    await wait_until(lambda: served.waiting)
    served.shell.finish({"files": 3})
    assert (await repeat)["structuredContent"] == {"files": 3}


async def test_the_later_version_asks_by_an_address_and_goes_on_with_the_state(served: Served) -> None:
    client = served.client(opens_urls=True)
    asked = await client.call(SHELL_NAME, {"command": "ls"})
    assert asked["resultType"] == "input_required"
    request = asked["inputRequests"]["approval"]
    assert request["method"] == "elicitation/create"
    assert request["params"]["mode"] == "url"
    assert request["params"]["url"] == f"{served.url}/#/approvals/{approval_id(served)}"
    accepted = {"requestState": asked["requestState"], "inputResponses": {"approval": {"action": "accept"}}}
    again = await client.call(SHELL_NAME, {"command": "ls"}, **accepted)
    assert again["resultType"] == "input_required"  # the caller's word is not a person's answer
    repeat = client.call(SHELL_NAME, {"command": "ls"}, **accepted)
    result = await outcome_after_approval(served, repeat, {"files": 3})
    assert (result["resultType"], result["structuredContent"]) == ("complete", {"files": 3})
    # The state still names this call, whatever was told.
    assert (await client.call(SHELL_NAME, {"command": "ls"}, **accepted))["structuredContent"] == {"files": 3}
    assert len(served.exchange.recorded(CallAccepted)) == 1


async def test_a_person_who_will_not_open_the_address_ends_the_call(served: Served) -> None:
    client = served.client(opens_urls=True)
    asked = await client.call(SHELL_NAME, {"command": "ls"})
    declined = {"requestState": asked["requestState"], "inputResponses": {"approval": {"action": "decline"}}}
    result = await client.call(SHELL_NAME, {"command": "ls"}, **declined)
    assert result["isError"] is True
    assert not served.exchange.views.questions()


async def test_a_state_is_good_for_its_caller_and_its_tool_only(served: Served) -> None:
    asked = await served.client(opens_urls=True).call(SHELL_NAME, {"command": "ls"})
    state = {"requestState": asked["requestState"]}
    for name, tool in (("other", SHELL_NAME), ("me", ECHO_NAME)):
        answer = await served.client(name, opens_urls=True).ask("tools/call", {"name": tool, **state})
        assert answer["error"]["code"] == -32602


async def test_the_version_before_asks_by_an_error_that_names_the_address(served: Served) -> None:
    client = await served.client(era=HANDSHAKE, opens_urls=True).begin()
    answer = await client.ask("tools/call", {"name": SHELL_NAME, "arguments": {"command": "ls"}})
    assert answer["error"]["code"] == -32042
    (elicitation,) = answer["error"]["data"]["elicitations"]
    asked = approval_id(served)
    assert (elicitation["mode"], elicitation["elicitationId"]) == ("url", asked)
    assert elicitation["url"] == f"{served.url}/#/approvals/{asked}"
    repeat = client.call(SHELL_NAME, {"command": "ls"})
    assert (await outcome_after_approval(served, repeat, {"files": 3}))["structuredContent"] == {"files": 3}


async def test_a_key_makes_a_repeat_the_same_call_whatever_happened(served: Served, client: Client) -> None:
    keyed = {"_meta": {"trunkline/idempotency_key": "k1"}}
    first = await client.call(ECHO_NAME, {"n": 1}, **keyed)
    second = await client.call(ECHO_NAME, {"n": 1}, **keyed)
    assert first["_meta"]["trunkline/call_id"] == second["_meta"]["trunkline/call_id"]
    other = await client.call(ECHO_NAME, {"n": 2}, **keyed)
    assert "idempotency.conflict" in other["content"][0]["text"]
    assert len(served.echo.delivered) == 1


# The first is the usual one; the second takes the call, and no step of it.
@pytest.mark.parametrize("limit", [17_179_869_184, 600])
@pytest.mark.parametrize("is_answered", [False, True])
async def test_what_waited_is_known_after_a_crash(is_answered: bool, limit: int) -> None:
    config = Config(limits=Limits(ledger_bytes_per_hour=limit))
    async with Served(memory_exchange(config=config)) as before:
        client = before.client()
        await client.call(SHELL_NAME, {"command": "ls"})
        if is_answered:
            before.exchange.answer(approval_id(before))
            before.shell.finish({"files": 3})
        next_run = before.exchange.restarted()
    async with Served(next_run) as after:
        client = after.client()
        repeat = client.call(SHELL_NAME, {"command": "ls"})
        result = await (repeat if is_answered else _asked_and_answered(after, repeat))
        assert result["structuredContent"] == {"files": 3}
        assert len(after.exchange.recorded(CallAccepted)) == 1


async def test_what_was_asked_in_the_moment_of_a_crash_is_known_after_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Served(memory_exchange()) as first:
        with monkeypatch.context() as patched:

            async def crash(*_: object, **__: object) -> Fault:
                return fault("hub.unavailable")

            patched.setattr(Awaiting, "_step", crash)
            answer = await first.client().ask("tools/call", {"name": SHELL_NAME, "arguments": {"command": "ls"}})
        assert "hub.unavailable" in answer["error"]["message"], "nobody is told to repeat what would not be known"
        second_run = first.exchange.restarted()
    async with Served(second_run) as second:
        second.exchange.answer(approval_id(second))
        second.shell.finish({"files": 3})
        third_run = second.exchange.restarted()
    async with Served(third_run) as third:
        result = await third.client().call(SHELL_NAME, {"command": "ls"})
        assert result["structuredContent"] == {"files": 3}
        assert len(third.exchange.recorded(CallAccepted)) == 1


async def _asked_and_answered(served: Served, repeat: Any) -> Any:
    return await outcome_after_approval(served, repeat, {"files": 3})


async def test_the_exchange_stops_while_a_call_runs(served: Served, client: Client) -> None:
    definition = ToolDefinition("com.example.slow/work", "works", ANY_OBJECT, side_effects=False)
    agent = served.exchange.attach("com.example.slow", definition)
    running = asyncio.create_task(client.post("tools/call", {"name": "com_example_slow__work"}))
    await wait_until(lambda: agent.delivered)
    await served.exchange.edges.stop()
    await served.exchange.edges.stop_last()
    answer: httpx.Response = await running
    assert "is on record and goes on" in messages_of(answer)[-1]["error"]["message"]


async def test_nothing_is_looked_at_again_after_the_stop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(served.exchange, monkeypatch)
    client = await served.client().begin()
    await client.call(ECHO_NAME, {"text": "hi"})
    assert timers.of("Calls._look_after") == 1, "one timer, for all calls that wait"
    await served.exchange.edges.stop()
    await served.exchange.edges.stop_last()
    assert timers.of("Calls._look_after") == 0
