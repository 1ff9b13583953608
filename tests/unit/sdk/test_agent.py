"""What an author writes outside a tool: declaring, and calling others."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline
from tests.requirement import requirement
from tests.scripted_core import WAIT_S, ScriptedCore
from tests.unit.sdk.conftest import TOKEN, A, Attach
from trunkline import Agent, ToolFailed
from trunkline.errors import ExchangeUnreachable
from trunkline.sdk.agent import MAX_INPUT_DEPTH, CallProgress

# --- declaring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent_id", "version", "match"),
    [("", "1.0.0", "agent id"), ("a b", "1.0.0", "agent id"), ("mcp.x", "1.0.0", "own"), ("a", "1", "1.2.3")],
)
def test_a_wrong_id_or_version_is_named_at_once(agent_id: str, version: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Agent(agent_id, version=version)


def test_wrong_declarations_are_named_at_once(agent: Agent) -> None:
    with pytest.raises(ValueError, match="no name for a tool"):
        agent.tool(name="a/b")(lambda: None)
    with pytest.raises(ValueError, match="timeout_s"):
        agent.tool(name="x", timeout_s=0)(lambda: None)
    agent.tool(name="x")(lambda: None)
    for name in ("x", "X"):
        with pytest.raises(ValueError, match="two tools"):
            agent.tool(name=name)(lambda: None)


def test_a_decorator_without_brackets_declares_a_tool_as_one_with_them_does(agent: Agent) -> None:
    @agent.tool
    async def plain(a: int) -> None: ...

    @agent.tool()
    async def bracketed(a: int) -> None: ...

    assert plain.__name__ == "plain"
    one, other = (tool.definition for tool in agent.tools.values())
    assert (one.name, other.name) == ("plain", "bracketed")
    assert (one.input_schema, one.side_effects) == (other.input_schema, other.side_effects)


async def test_tools_are_declared_before_the_agent_is_attached(agent: Agent, attach: Attach) -> None:
    async with attach(agent):
        with pytest.raises(RuntimeError, match="before"):
            agent.tool(name="late")(lambda: None)


async def test_what_is_registered_is_what_the_author_wrote(agent: Agent, core: ScriptedCore) -> None:
    @agent.tool(
        name="send.mail",
        requires_directive=True,
        idempotent=True,
        capabilities=["x"],
        tags=["mail"],
        permissions=["mail:send"],
        timeout_s=120,
    )
    async def send(to: str) -> None:
        """Sends a mail."""

    async with asyncio.timeout(WAIT_S):
        serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
        conversation = await core.accept()
        hello = await conversation.greet()
        tools = await conversation.take_tools()
        agent.stop()
        await serving
    assert hello["payload"]["agent_id"] == A
    assert hello["payload"]["agent_version"] == "1.2.3"
    assert hello["payload"]["sdk"] == {"name": "trunkline", "version": trunkline.__version__}
    assert tools["send.mail"] == {
        "tool_id": f"{A}/send.mail",
        "name": "send.mail",
        "description": "Sends a mail.",
        "input_schema": {
            "type": "object",
            "properties": {"to": {"type": "string"}},
            "required": ["to"],
            "additionalProperties": False,
        },
        "capabilities": ["streaming", "cancellation", "idempotency", "x"],
        "side_effects": True,
        "requires_directive": True,
        "tags": ["mail"],
        "required_permissions": ["mail:send"],
        "timeout_ms": 120_000,
    }


async def test_a_rejected_tool_is_named_in_the_agents_log(
    agent: Agent, core: ScriptedCore, caplog: pytest.LogCaptureFixture
) -> None:
    @agent.tool()
    async def bad() -> None: ...

    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
    conversation = await core.accept()
    await conversation.greet()
    await conversation.expect("agent.tools.register")
    error = {"code": "tool.schema_invalid", "message": "no"}
    conversation.send(
        "core.tools.registered", {"registered": [], "rejected": [{"tool_id": f"{A}/bad", "error": error}]}
    )
    conversation.send("core.ping")
    await conversation.expect("agent.pong")
    agent.stop()
    await serving
    assert f"{A}/bad is not taken: tool.schema_invalid: no" in caplog.text


@requirement("OS-062")
async def test_the_manifests_hash_is_that_of_its_bytes(core: ScriptedCore, tmp_path: Path) -> None:
    manifest = tmp_path / "opensentience.agent.json"
    manifest.write_bytes(b'{"id": "com.example.test"}\n')
    agent = Agent(A, manifest=manifest)
    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
    conversation = await core.accept()
    hello = await conversation.greet()
    agent.stop()
    await serving
    assert hello["payload"]["manifest_hash"] == hashlib.sha256(manifest.read_bytes()).hexdigest()


# --- calling others ---------------------------------------------------------------------------------------------------


async def test_a_call_from_a_tool_belongs_to_the_running_one(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    async def ask() -> Any:
        return await agent.call("other/tool", {"n": 1}, key="k", timeout_s=2.5)

    async with attach(agent) as core:
        core.call(f"{A}/ask")
        asked = await core.expect("agent.tool.call")
        assert asked["causation_id"] == "c-1"
        assert asked["correlation_id"] == "k-1"
        payload = asked["payload"]
        assert (payload["tool_id"], payload["input"]) == ("other/tool", {"n": 1})
        assert (payload["timeout_ms"], payload["idempotency_key"]) == (2500, "k")
        core.send(
            "core.tool.result",
            {"call_id": payload["call_id"], "status": "succeeded", "output": {"n": 2}},
            request_id=asked["request_id"],
        )
        assert (await core.result())["output"] == {"n": 2}


async def test_a_plain_tool_calls_from_its_thread(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    def ask() -> Any:
        return agent.call_sync("other/tool", {"n": 1})

    async with attach(agent) as core:
        core.call(f"{A}/ask")
        asked = await core.expect("agent.tool.call")
        assert (asked["causation_id"], asked["correlation_id"]) == ("c-1", "k-1")
        core.send(
            "core.tool.result", {"call_id": asked["payload"]["call_id"], "status": "succeeded", "output": {"n": 2}}
        )
        assert (await core.result())["output"] == {"n": 2}


async def test_a_failed_call_raises_with_its_fault_and_let_through_says_whose_it_was(
    agent: Agent, attach: Attach
) -> None:
    caught: list[ToolFailed] = []

    @agent.tool()
    async def ask() -> None:
        try:
            await agent.call("other/tool")
        except ToolFailed as exc:
            caught.append(exc)
            raise

    async with attach(agent) as core:
        core.call(f"{A}/ask")
        asked = await core.expect("agent.tool.call")
        error = {"code": "policy.denied", "message": "no", "retryable": False}
        payload = {
            "call_id": asked["payload"]["call_id"],
            "status": "failed",
            "error": error,
            "exchange_call_id": "e-1",
        }
        core.send("core.tool.result", payload)
        result = await core.result()
    assert (caught[0].fault.code, caught[0].call_id, caught[0].status) == ("policy.denied", "e-1", "failed")
    assert result["error"]["code"] == "tool.failed"
    assert result["error"]["details"] == {"tool_id": "other/tool", "code": "policy.denied"}


@pytest.mark.parametrize("name", ["in_task", "in_thread"])
async def test_a_cancel_reaches_the_call_that_the_tool_waits_for(agent: Agent, attach: Attach, name: str) -> None:
    @agent.tool()
    async def in_task() -> None:
        await agent.call("other/tool")

    @agent.tool()
    def in_thread() -> None:
        agent.call_sync("other/tool")

    async with attach(agent) as core:
        core.call(f"{A}/{name}")
        asked = await core.expect("agent.tool.call")
        core.send("core.tool.cancel", {"call_id": "c-1"})
        await core.expect("agent.tool.cancel_ack")
        first, second = await core.hear(), await core.hear()
        by_type = {one["type"]: one["payload"] for one in (first, second)}
    assert by_type["agent.tool.cancel"]["call_id"] == asked["payload"]["call_id"]
    assert by_type["agent.tool.result"]["status"] == "canceled"


async def test_progress_of_a_called_tool_can_be_watched(agent: Agent, attach: Attach) -> None:
    seen: list[CallProgress] = []
    async with attach(agent) as core:
        calling = asyncio.create_task(agent.call("other/tool", on_progress=seen.append))
        ref = (await core.expect("agent.tool.call"))["payload"]["call_id"]
        core.send("core.tool.stream", {"call_id": ref, "seq": 1, "channel": "status", "data": {"text": "half"}})
        core.send("core.tool.result", {"call_id": ref, "status": "succeeded"})
        assert await calling == {}
    assert seen == [CallProgress("status", {"text": "half"})]


async def test_a_watcher_of_progress_that_raises_does_not_end_the_connection(agent: Agent, attach: Attach) -> None:
    def broken(_progress: CallProgress) -> None:
        raise ValueError

    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
    async with attach(agent) as core:
        calling = asyncio.create_task(agent.call("other/tool", on_progress=broken))
        ref = (await core.expect("agent.tool.call"))["payload"]["call_id"]
        core.send("core.tool.stream", {"call_id": ref, "seq": 1, "channel": "status", "data": {"text": "half"}})
        core.send("core.tool.result", {"call_id": ref, "status": "succeeded"})
        assert await calling == {}
        core.send("core.ping")
        await core.expect("agent.pong")
    assert len(raised) == 1


async def test_a_keyed_call_survives_a_lost_line_and_an_unkeyed_one_is_unknown(
    agent: Agent, attach: Attach, core: ScriptedCore
) -> None:
    async with attach(agent) as first:
        keyed = asyncio.create_task(agent.call("other/tool", {"n": 1}, key="k"))
        unkeyed = asyncio.create_task(agent.call("other/tool", {"n": 2}))
        await first.expect("agent.tool.call")
        await first.expect("agent.tool.call")
        first.hang_up()
        with pytest.raises(ToolFailed) as lost:
            await asyncio.wait_for(unkeyed, WAIT_S)
        assert (lost.value.status, lost.value.fault.code) == ("unknown", "agent.lost")
        second = await core.accept()
        await second.greet()
        again = (await second.expect("agent.tool.call"))["payload"]
        assert (again["input"], again["idempotency_key"]) == ({"n": 1}, "k")
        second.send("core.tool.result", {"call_id": again["call_id"], "status": "succeeded", "output": {"n": 2}})
        assert await asyncio.wait_for(keyed, WAIT_S) == {"n": 2}


async def test_a_core_without_calls_is_not_called(agent: Agent, attach: Attach) -> None:
    async with attach(agent, capabilities=[]) as core:
        with pytest.raises(ToolFailed, match="calls"):
            await agent.call("other/tool")
        core.send("core.ping")
        await core.expect("agent.pong")


async def test_an_input_above_the_limit_is_refused_before_it_is_sent(agent: Agent, attach: Attach) -> None:
    async with attach(agent):
        with pytest.raises(ToolFailed, match="1048576"):
            await agent.call("other/tool", {"text": "x" * 1_048_576})
        deep: Any = {}
        for _ in range(MAX_INPUT_DEPTH + 1):
            deep = {"v": deep}
        with pytest.raises(ValueError, match="nested"):
            await agent.call("other/tool", deep)


@requirement("OS-158")
async def test_a_directive_is_asked_for_and_used(agent: Agent, attach: Attach) -> None:
    async with attach(agent) as core:
        asking = asyncio.create_task(agent.request_directive("other/tool", {"n": 1}, reason="because"))
        asked = await core.expect("agent.directive.request")
        assert asked["payload"] == {"tool_id": "other/tool", "reason": "because", "input": {"n": 1}}
        made = {"tool_id": "other/tool", "status": "waiting_approval", "approval_id": "a1"}
        core.send("core.directive.create", made, in_reply_to=asked["id"])
        made = {"tool_id": "other/tool", "status": "stated", "directive_id": "d1"}
        core.send("core.directive.create", made, in_reply_to=asked["id"])
        assert await asyncio.wait_for(asking, WAIT_S) == "d1"
        calling = asyncio.create_task(agent.call("other/tool", {"n": 1}, directive="d1"))
        asked = await core.expect("agent.tool.call")
        assert asked["causation_id"] == "d1"
        core.send("core.tool.result", {"call_id": asked["payload"]["call_id"], "status": "succeeded"})
        await calling


async def test_what_needs_a_line_says_so_without_one(agent: Agent) -> None:
    with pytest.raises(ExchangeUnreachable, match="not attached"):
        await agent.call("other/tool")
    with pytest.raises(RuntimeError, match=r"await agent\.call"):
        agent.call_sync("other/tool")


async def test_connect_gives_a_caller(core: ScriptedCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_bytes(msgspec.json.encode({"socket": core.address}))
    monkeypatch.setenv("OPENSENTIENCE_AGENT_ID", "script")
    monkeypatch.setenv("OPENSENTIENCE_SESSION_TOKEN", TOKEN)

    async def answer() -> dict[str, Any]:
        conversation = await core.accept()
        hello = await conversation.greet()
        asked = (await conversation.expect("agent.tool.call"))["payload"]
        conversation.send("core.tool.result", {"call_id": asked["call_id"], "status": "succeeded", "output": {"n": 2}})
        return hello

    answering = asyncio.create_task(answer())
    async with trunkline.connect(home=tmp_path) as caller:
        assert await caller.call("other/tool") == {"n": 2}
    hello = await answering
    assert hello["payload"]["agent_id"] == "script"
    assert hello["payload"]["session_token"] == TOKEN


async def test_connect_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENSENTIENCE_AGENT_ID", "OPENSENTIENCE_SESSION_TOKEN", "OPENSENTIENCE_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ExchangeUnreachable, match="agent id"):
        trunkline.connect()
    with pytest.raises(ExchangeUnreachable, match="token new opensentience"):
        trunkline.connect("script")
