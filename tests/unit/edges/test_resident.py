"""``edges.resident``: agents that live in the exchange come, offer, work, and leave like any other."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest
from msgspec import Raw

from trunkline.edges.resident import RETURN_S, Resident
from trunkline.effects import Cancel, Deliver
from trunkline.entries import AgentAdmitted, AgentExited, AgentLeft, Noticed
from trunkline.events import CallFinished, CancelRequested
from trunkline.model import Fault, Now, Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, BOSS, PROCESS, MemoryExchange

AGENT = "space.echo"
TOOL = f"{AGENT}/say"


class Echo(Resident):
    """Says what it is told; keeps ``wait`` for as long as nobody ends it."""

    def __init__(self, exchange: MemoryExchange, *tools: ToolDefinition) -> None:
        super().__init__(exchange.feed, "space", AGENT, "1.0.0", PROCESS, Random(1).randbytes)
        self.tools = tools
        self.delivered: list[Deliver] = []
        self.canceled: list[Cancel] = []
        self.is_broken = False

    def definitions(self) -> tuple[ToolDefinition, ...]:
        return self.tools

    def deliver(self, effect: Deliver, now: Now) -> None:
        self.delivered.append(effect)
        if self.is_broken:
            raise RuntimeError
        if effect.tool_id == TOOL:
            self._feed.feed([CallFinished(self.number, effect.call_id, Status.SUCCEEDED, effect.input)])

    def cancel(self, effect: Cancel, now: Now) -> None:
        self.canceled.append(effect)


SAY = ToolDefinition(TOOL, "says it", ANY_OBJECT, side_effects=False)
WAIT = ToolDefinition(f"{AGENT}/wait", "waits", ANY_OBJECT, capabilities=("cancellation",))


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


@pytest.fixture
async def echo(exchange: MemoryExchange) -> Echo:
    echo = Echo(exchange, SAY, WAIT)
    await echo.attach()
    return echo


def tools(exchange: MemoryExchange) -> list[str]:
    return [tool.tool_id for tool in exchange.views.tools() if tool.status == "available"]


async def test_who_is_attached_can_be_called(exchange: MemoryExchange, echo: Echo) -> None:
    assert tools(exchange) == [TOOL, f"{AGENT}/wait"]
    assert exchange.call(TOOL, {"a": 1}).output == {"a": 1}
    [agent] = exchange.views.agents()
    assert (agent.agent_id, agent.edge, agent.version) == (AGENT, "space", "1.0.0")


async def test_attaching_takes_as_long_as_the_disk(exchange: MemoryExchange) -> None:
    exchange.disk_rests = True
    echo = Echo(exchange, SAY)
    attaching = asyncio.create_task(echo.attach())
    await asyncio.sleep(0)
    assert not attaching.done()
    for _ in range(3):
        exchange.store()
    async with asyncio.timeout(5):
        await attaching
    assert tools(exchange) == [TOOL]


async def test_a_call_ends_without_an_output(exchange: MemoryExchange, echo: Echo) -> None:
    made = exchange.call(f"{AGENT}/wait")
    echo.finish(echo.delivered[0].call_id, Status.FAILED, Fault("com.example.own", "mine"))
    assert made.code == "com.example.own"


async def test_a_call_that_is_to_stop_is_told_to_the_agent(exchange: MemoryExchange, echo: Echo) -> None:
    made = exchange.call(f"{AGENT}/wait")
    exchange.feed.feed([CancelRequested(0, "", BOSS, call_id=made.call_id)])
    assert [effect.call_id for effect in echo.canceled] == [made.call_id]


async def test_offering_again_replaces_what_was_offered(exchange: MemoryExchange, echo: Echo) -> None:
    echo.tools = (SAY,)
    echo.offer()
    assert tools(exchange) == [TOOL]


async def test_what_is_not_taken_is_in_the_log_in_one_line(
    exchange: MemoryExchange, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = ToolDefinition("somebody.else/say", "says it", ANY_OBJECT)
    odd = ToolDefinition(f"{AGENT}/odd", "says it", Raw(b'{"type": 5}'))
    with caplog.at_level(logging.ERROR, "trunkline"):
        await Echo(exchange, SAY, foreign, odd).attach()
    assert tools(exchange) == [TOOL]
    (message,) = caplog.messages
    assert message.startswith(f"{AGENT}: 2 tools were not taken, the first is somebody.else/say: tool.invalid_tool_id")


async def test_who_is_refused_does_not_wait_for_ever(
    exchange: MemoryExchange, caplog: pytest.LogCaptureFixture
) -> None:
    other = Echo(exchange)
    other.agent_id = "space.Echo"
    await other.attach()
    with caplog.at_level(logging.ERROR, "trunkline"):
        async with asyncio.timeout(5):
            await Echo(exchange, SAY).attach()
    assert caplog.messages == [f"{AGENT} could not be attached"]


async def test_whose_place_another_takes_is_told_why_in_the_log(
    exchange: MemoryExchange, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "trunkline"):
        await Echo(exchange, SAY).attach()
    assert caplog.messages == [f"{AGENT} was sent away: replaced"]


async def test_who_leaves_is_gone_and_its_calls_are_settled(exchange: MemoryExchange, echo: Echo) -> None:
    before = exchange.operator.status()["sessions"]
    made = exchange.call(f"{AGENT}/wait")
    echo.leave("done")
    assert (made.outcome.status, made.code) == (Status.UNKNOWN, "agent.lost")
    assert tools(exchange) == []
    assert exchange.operator.status()["sessions"] == before - 1  # type: ignore[operator]
    echo.leave("again")
    assert [(entry.agent_id, entry.reason) for entry in exchange.recorded(AgentLeft)] == [(AGENT, "done")]
    assert [(entry.exit_code, entry.note) for entry in exchange.recorded(AgentExited)] == [(0, "done")]


async def test_a_defect_costs_the_calls_it_had_and_not_its_place(exchange: MemoryExchange, echo: Echo) -> None:
    held = exchange.call(f"{AGENT}/wait")
    echo.is_broken = True
    met = exchange.call(TOOL)
    assert (held.outcome.status, held.code) == (Status.UNKNOWN, "agent.lost")
    # It only reads, so it may be asked again: it waits for the agent to come back.
    assert met.answer is None
    assert tools(exchange) == []
    echo.is_broken = False
    exchange.advance(RETURN_S)
    assert tools(exchange) == [TOOL, f"{AGENT}/wait"]
    assert met.outcome.status is Status.SUCCEEDED
    assert exchange.call(TOOL, {"a": 1}).output == {"a": 1}
    [noticed] = exchange.recorded(Noticed)
    assert noticed.code == "defect"
    assert len(exchange.recorded(AgentAdmitted)) == 2
    assert exchange.died is None


async def test_who_left_does_not_come_back_after_a_defect(exchange: MemoryExchange, echo: Echo) -> None:
    exchange.feed.failed(echo.number, RuntimeError())
    echo.leave("stop")
    exchange.advance(10 * RETURN_S)
    assert tools(exchange) == []
    assert len(exchange.recorded(AgentAdmitted)) == 1


async def test_what_cannot_come_in_without_a_defect_tries_once_in_a_while(
    exchange: MemoryExchange, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def broken() -> tuple[ToolDefinition, ...]:
        tries.append(exchange.now().mono)
        raise RuntimeError

    monkeypatch.setattr(echo, "definitions", broken)
    exchange.feed.failed(echo.number, RuntimeError())
    exchange.advance(4.5 * RETURN_S)
    assert len(tries) == 4
    assert exchange.died is None
