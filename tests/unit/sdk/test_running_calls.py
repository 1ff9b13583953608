"""Tools as their authors write them, run by calls of a scripted Core on a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.requirement import requirement
from tests.scripted_core import WAIT_S, ScriptedCore
from tests.unit.sdk.conftest import A, Attach
from trunkline import Agent, ToolError
from trunkline.model import Status
from trunkline.sdk.running_calls import MAX_OUTPUT_DEPTH, REMEMBERED_BYTES, REMEMBERED_RESULTS, CallOutcome, ResultCache

# --- a call -----------------------------------------------------------------------------------------------------------


async def test_an_async_and_a_plain_function_are_called_and_answer(agent: Agent, attach: Attach) -> None:
    main = threading.get_ident()

    @agent.tool(side_effects=False)
    async def double(n: int) -> dict[str, int]:
        assert threading.get_ident() == main
        return {"n": n * 2}

    @agent.tool(side_effects=False)
    def shout(text: str) -> str:
        assert threading.get_ident() != main
        return text.upper()

    async with attach(agent) as core:
        core.call(f"{A}/double", {"n": 21}, "c-1")
        assert (await core.result("c-1"))["output"] == {"n": 42}
        core.call(f"{A}/shout", {"text": "hey"}, "c-2")
        assert (await core.result("c-2"))["output"] == {"result": "HEY"}


@requirement("OS-105", "OS-106")
async def test_invalid_input_never_reaches_the_function(agent: Agent, attach: Attach) -> None:
    ran = []

    @agent.tool()
    async def forecast(city: str, days: int = 3) -> dict[str, Any]:
        ran.append(city)
        return {}

    async with attach(agent) as core:
        core.call(f"{A}/forecast", {"city": "Rome", "dayz": 1})
        result = await core.result()
    assert result["status"] == "failed"
    assert result["error"]["code"] == "tool.invalid_input"
    assert "did you mean `days`?" in result["error"]["message"]
    assert ran == []


# --- showing ----------------------------------------------------------------------------------------------------------


@requirement("OS-040", "OS-041", "OS-042", "OS-109", "OS-110", "OS-111")
@pytest.mark.parametrize("name", ["in_task", "in_thread"])
async def test_progress_partials_and_logs_are_streamed_in_order_before_the_result(
    agent: Agent, attach: Attach, name: str
) -> None:
    def show() -> None:
        agent.progress("reading", percent=50)
        agent.progress(percent=75)
        agent.partial({"rows": 3})
        agent.log("done soon")

    @agent.tool(side_effects=False)
    async def in_task() -> None:
        show()

    @agent.tool(side_effects=False)
    def in_thread() -> None:
        show()

    async with attach(agent) as core:
        core.call(f"{A}/{name}")
        said = [await core.expect("agent.tool.stream") for _ in range(4)]
        said.append(await core.expect("agent.tool.result"))
    assert [one["payload"].get("seq") for one in said] == [1, 2, 3, 4, None]
    assert [(one["payload"]["channel"], one["payload"]["data"]) for one in said[:4]] == [
        ("status", {"text": "reading", "percent": 50}),
        ("status", {"text": "75 %", "percent": 75}),
        ("partial_result", {"json": {"rows": 3}}),
        ("log", {"text": "done soon"}),
    ]
    for one in said:
        assert (one["request_id"], one["correlation_id"], one["causation_id"]) == ("r-c-1", "k-1", "cause-1")


def test_outside_a_call_a_tool_is_a_plain_function(agent: Agent) -> None:
    @agent.tool()
    def work(n: int) -> int:
        agent.progress("x", percent=1)
        agent.partial({})
        agent.log("y")
        assert not agent.canceled()
        assert agent.current() is None
        return n + 1

    assert work(1) == 2


async def test_a_tool_knows_its_call(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    def who() -> dict[str, Any]:
        call = agent.current()
        assert call is not None
        assert call.caller is not None
        return {"call": call.call_id, "key": call.key, "caller": call.caller.id, "correlation": call.correlation_id}

    async with attach(agent) as core:
        core.call(f"{A}/who", idempotency_key="k", caller={"type": "human", "id": "operator"})
        result = await core.result()
    assert result["output"] == {"call": "c-1", "key": "k", "caller": "operator", "correlation": "k-1"}


# --- failing ----------------------------------------------------------------------------------------------------------


@requirement("OS-154", "OS-050", "OS-051")
@pytest.mark.parametrize("name", ["in_task", "in_thread"])
async def test_an_exception_travels_as_its_type_only_and_its_stack_stays_in_the_log(
    agent: Agent, attach: Attach, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    @agent.tool()
    async def in_task() -> None:
        raise ValueError("password=hunter2")

    @agent.tool()
    def in_thread() -> None:
        raise ValueError("password=hunter2")

    async with attach(agent) as core:
        core.call(f"{A}/{name}")
        result = await core.result()
        heard = json.dumps(core.heard)
    assert result["status"] == "failed"
    assert result["error"]["code"] == "tool.failed"
    assert result["error"]["retryable"] is False
    assert result["error"]["details"] == {"exception": "ValueError"}
    assert "hunter2" not in heard
    assert "Traceback" not in heard
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("name", ["in_task", "in_thread"])
async def test_no_exception_leaves_a_call_without_its_result_or_ends_the_agent(
    agent: Agent, attach: Attach, name: str, kind: type[BaseException]
) -> None:
    @agent.tool()
    async def in_task() -> None:
        raise kind

    @agent.tool()
    def in_thread() -> None:
        raise kind

    async with attach(agent) as core:
        core.call(f"{A}/{name}")
        result = await core.result()
    assert result["status"] == "failed"
    assert result["error"]["code"] == "tool.failed"


async def test_a_failure_raised_on_purpose_travels_as_it_is(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    async def pay() -> None:
        raise ToolError("no funds", code="pay.no_funds", retryable=True, details={"short_by": 3})

    async with attach(agent) as core:
        core.call(f"{A}/pay")
        error = (await core.result())["error"]
    assert error == {
        "code": "pay.no_funds",
        "message": "no funds",
        "retryable": True,
        "details": {"short_by": 3},
        "where": "agent.runtime",
    }


@pytest.mark.parametrize("value", [object(), {1: "a", "1": "b"}, "\ud800"])
async def test_a_result_without_a_json_form_is_a_failure_and_the_line_stays(
    agent: Agent, attach: Attach, value: Any
) -> None:
    @agent.tool()
    async def odd() -> Any:
        return value

    async with attach(agent) as core:
        core.call(f"{A}/odd")
        result = await core.result()
        assert result["status"] == "failed"
        assert result["error"]["code"] == "tool.invalid_output"
        core.send("core.ping")
        await core.expect("agent.pong")


async def test_a_result_that_is_nested_too_deep_is_a_failure_and_the_line_stays(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    async def deep(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"v": value}
        return value

    async with attach(agent) as core:
        core.call(f"{A}/deep", {"levels": MAX_OUTPUT_DEPTH + 1}, "c-1")
        assert (await core.result("c-1"))["error"]["code"] == "tool.invalid_output"
        core.call(f"{A}/deep", {"levels": MAX_OUTPUT_DEPTH}, "c-2")
        assert (await core.result("c-2"))["status"] == "succeeded"


# --- cancellation and time --------------------------------------------------------------------------------------------


@requirement("OS-123", "OS-125", "OS-127")
async def test_an_async_tool_is_interrupted_by_a_cancel(agent: Agent, attach: Attach) -> None:
    cleaned = []

    @agent.tool()
    async def forever() -> None:
        try:
            agent.progress("started")
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with attach(agent) as core:
        core.call(f"{A}/forever")
        await core.expect("agent.tool.stream")
        core.send("core.tool.cancel", {"call_id": "c-1", "reason": "enough"})
        assert (await core.expect("agent.tool.cancel_ack"))["payload"]["accepted"] is True
        result = await core.result()
    assert result["status"] == "canceled"
    assert result["error"]["code"] == "tool.canceled"
    assert cleaned == [True]


@requirement("OS-123", "OS-125")
async def test_a_plain_tool_sees_the_cancel_and_what_it_then_returns_is_canceled(agent: Agent, attach: Attach) -> None:
    told = threading.Event()

    @agent.tool()
    def poll() -> str:
        agent.progress("started")
        while not agent.canceled():
            told.wait(0.005)
        return "half of it"

    async with attach(agent) as core:
        core.call(f"{A}/poll")
        await core.expect("agent.tool.stream")
        core.send("core.tool.cancel", {"call_id": "c-1"})
        await core.expect("agent.tool.cancel_ack")
        result = await core.result()
    assert result["status"] == "canceled"
    assert "output" not in result


@requirement("OS-126")
async def test_a_tool_that_finishes_in_spite_of_the_cancel_has_succeeded(agent: Agent, attach: Attach) -> None:
    go_on = threading.Event()

    @agent.tool()
    def deaf() -> str:
        agent.progress("started")
        assert go_on.wait(WAIT_S)
        return "all of it"

    async with attach(agent) as core:
        core.call(f"{A}/deaf")
        await core.expect("agent.tool.stream")
        core.send("core.tool.cancel", {"call_id": "c-1"})
        await core.expect("agent.tool.cancel_ack")
        go_on.set()
        result = await core.result()
    assert result["status"] == "succeeded"
    assert result["output"] == {"result": "all of it"}


@requirement("OS-122", "OS-125")
@pytest.mark.parametrize("name", ["in_task", "in_thread"])
async def test_a_cancel_that_arrives_together_with_its_call_is_answered_and_nothing_runs(
    agent: Agent, attach: Attach, name: str
) -> None:
    ran = []

    @agent.tool()
    async def in_task() -> None:
        ran.append(1)

    @agent.tool()
    def in_thread() -> None:
        ran.append(1)

    async with attach(agent) as core:
        core.call(f"{A}/{name}")
        core.send("core.tool.cancel", {"call_id": "c-1"})
        await core.expect("agent.tool.cancel_ack")
        assert (await core.result())["status"] == "canceled"
        core.send("core.ping")
        await core.expect("agent.pong")
    assert ran == []


@requirement("OS-098")
@pytest.mark.parametrize(("side_effects", "retryable"), [(True, False), (False, True)])
async def test_a_tools_own_time_limit_wins_over_a_longer_one(
    agent: Agent, attach: Attach, side_effects: bool, retryable: bool
) -> None:
    @agent.tool(side_effects=side_effects, timeout_s=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with attach(agent) as core:
        core.call(f"{A}/slow", timeout_ms=30_000)
        result = await core.result()
    assert result["status"] == "failed"
    assert result["error"]["code"] == "tool.timeout"
    assert "within 0.01 s" in result["error"]["message"]
    assert result["error"]["retryable"] is retryable


# --- the same call twice ----------------------------------------------------------------------------------------------


@requirement("OS-099")
async def test_an_idempotent_tool_runs_once_for_a_key_and_refuses_another_input(agent: Agent, attach: Attach) -> None:
    ran = []

    @agent.tool(idempotent=True)
    async def count(n: int) -> int:
        ran.append(n)
        return len(ran)

    alice = {"caller": {"type": "agent", "id": "alice"}, "idempotency_key": "k"}
    bob = {"caller": {"type": "agent", "id": "bob"}, "idempotency_key": "k"}
    async with attach(agent) as core:
        for call_id in ("c-1", "c-2"):
            core.call(f"{A}/count", {"n": 5}, call_id, **alice)
            assert (await core.result(call_id))["output"] == {"result": 1}
        core.call(f"{A}/count", {"n": 6}, "c-3", **alice)
        assert (await core.result("c-3"))["error"]["code"] == "idempotency.conflict"
        core.call(f"{A}/count", {"n": 5}, "c-4", **bob)
        assert (await core.result("c-4"))["output"] == {"result": 2}
        core.call(f"{A}/count", {"n": 5}, "c-1")
        await core.result("c-1")
        core.call(f"{A}/count", {"n": 5}, "c-1")
        assert (await core.result("c-1"))["output"] == {"result": 3}
    assert ran == [5, 5, 5]


def test_what_is_remembered_is_bounded_in_number_and_in_bytes() -> None:
    memory = ResultCache()
    for n in range(REMEMBERED_RESULTS + 5):
        memory.keep((str(n),), b"", CallOutcome(Status.SUCCEEDED, b"x"))
    assert memory.recall(("4",)) is None
    assert memory.recall(("5",)) is not None
    memory.keep(("big",), b"", CallOutcome(Status.SUCCEEDED, b"x" * (REMEMBERED_BYTES - 2)))
    assert memory.recall((str(REMEMBERED_RESULTS + 2),)) is None
    assert memory.recall((str(REMEMBERED_RESULTS + 3),)) is not None
    assert memory.recall(("big",)) is not None


async def test_a_failure_that_may_be_tried_again_is_not_remembered(agent: Agent, attach: Attach) -> None:
    ran = []

    @agent.tool(idempotent=True)
    async def flaky() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise ToolError("busy", retryable=True)
        return len(ran)

    async with attach(agent) as core:
        core.call(f"{A}/flaky", {}, "c-1", idempotency_key="k")
        assert (await core.result("c-1"))["error"]["retryable"] is True
        core.call(f"{A}/flaky", {}, "c-2", idempotency_key="k")
        assert (await core.result("c-2"))["output"] == {"result": 2}


async def test_a_call_with_the_key_of_a_running_one_joins_it(agent: Agent, attach: Attach) -> None:
    go_on = asyncio.Event()
    ran = []

    @agent.tool(idempotent=True)
    async def once() -> int:
        ran.append(1)
        agent.progress("started")
        await go_on.wait()
        return len(ran)

    async with attach(agent) as core:
        core.call(f"{A}/once", {}, "c-1", idempotency_key="k")
        await core.expect("agent.tool.stream")
        core.call(f"{A}/once", {}, "c-2", idempotency_key="k")
        core.send("core.ping")
        await core.expect("agent.pong")
        go_on.set()
        assert (await core.result("c-1"))["output"] == {"result": 1}
        assert (await core.result("c-2"))["output"] == {"result": 1}


async def test_canceling_one_of_two_who_wait_for_the_same_run_leaves_the_other(agent: Agent, attach: Attach) -> None:
    go_on = asyncio.Event()

    @agent.tool(idempotent=True)
    async def once() -> str:
        agent.progress("started")
        await go_on.wait()
        return "done"

    async with attach(agent) as core:
        core.call(f"{A}/once", {}, "c-1", idempotency_key="k")
        await core.expect("agent.tool.stream")
        core.call(f"{A}/once", {}, "c-2", idempotency_key="k")
        core.send("core.tool.cancel", {"call_id": "c-1"})
        await core.expect("agent.tool.cancel_ack")
        assert (await core.result("c-1"))["status"] == "canceled"
        go_on.set()
        assert (await core.result("c-2"))["output"] == {"result": "done"}


async def test_a_call_that_is_sent_again_after_a_reconnect_joins_the_one_that_still_runs(
    agent: Agent, attach: Attach, core: ScriptedCore
) -> None:
    go_on = asyncio.Event()
    ran = []

    @agent.tool(side_effects=False)
    async def slow() -> int:
        ran.append(1)
        agent.progress("started")
        await go_on.wait()
        return len(ran)

    async with attach(agent) as first:
        first.call(f"{A}/slow")
        await first.expect("agent.tool.stream")
        first.hang_up()
        second = await core.accept()
        await second.greet()
        await second.take_tools()
        second.call(f"{A}/slow")
        second.send("core.ping")
        await second.expect("agent.pong")
        go_on.set()
        assert (await second.result())["output"] == {"result": 1}
