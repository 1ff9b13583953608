"""``AgentClient``: calls the tools of an ``Agent`` in a unit test, without an exchange, a socket or a process.

A call is read, run, shown and answered by the SDK's own code, and its input and output are held against the tool's
schemas as an exchange does. What the agent asks of others (calls, directives, events) is answered by the test. Does not
own policy, keys, queues or the record: those are the exchange's, and ``trunkline up`` has them.

Invariant: nothing that the agent asks for is made up: a tool that the test has no answer for is ``tool.not_found``.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from trunkline import schemas
from trunkline.edges.opensentience.agent_events import Answered, Called, DirectiveAnswered, Progressed
from trunkline.edges.opensentience.agent_session import HealthWord
from trunkline.edges.opensentience.messages import Caller
from trunkline.errors import ToolFailed
from trunkline.model import Channel, Fault, Now, Status, fault
from trunkline.sdk import json_form
from trunkline.sdk.agent import Agent, CallProgress
from trunkline.sdk.exchange_connection import ExchangeConnection
from trunkline.sdk.running_calls import CallOutcome, RunningCalls

# What a tool of somebody else says: the output, a fault, or a function from the input to either.
Reply = Mapping[str, Any] | Fault | Callable[..., Any]


class CallMade(Struct, frozen=True):
    """A call that the agent made of somebody else's tool."""

    tool_id: str
    input: dict[str, Any]
    key: str | None = None
    timeout_ms: int | None = None
    directive: str | None = None


class AgentClient:
    """Calls the tools of one agent. ``answers`` are the tools of others, by their ids.

    After a call ``shown`` has what the tool showed, ``made`` the calls that it made, ``health`` what it said of itself.
    """

    def __init__(self, agent: Agent, answers: Mapping[str, Reply] | None = None) -> None:
        self._agent = agent
        self.answers: dict[str, Reply] = dict(answers or {})
        # What a person says to a wish for a directive: its id, or None for no.
        self.directive: str | None = "d-test"
        self.shown: list[CallProgress] = []
        self.made: list[CallMade] = []
        self.health: tuple[str, dict[str, Any]] = ("ok", {})
        self._numbers = itertools.count(1)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **terms: Any) -> dict[str, Any]:
        """``call_async`` for a test that is a plain function."""
        return asyncio.run(self.call_async(tool, arguments, **terms))

    async def call_async(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        caller: str = "com.example.caller",
        cancel_after_s: float | None = None,
    ) -> dict[str, Any]:
        """Call a tool by its name or id, as ``caller``; its output. ``ToolFailed`` says why there is none.

        With ``cancel_after_s`` the call is canceled so long after it began.
        """
        tool_id = tool if "/" in tool else f"{self._agent.agent_id}/{tool}"
        declared = self._agent.tools.get(tool_id)
        if declared is None:
            known = ", ".join(one.definition.name for one in self._agent.tools.values()) or "none"
            raise ToolFailed(tool_id, Status.FAILED, fault("tool.not_found", f"no such tool; there are: {known}"))
        body = Raw(json_form.encode(arguments or {}))
        problem = schemas.compile(bytes(declared.definition.input_schema)).error(body)
        read = fault("tool.invalid_input", problem) if problem is not None else declared.signature.read(body)
        if isinstance(read, Fault):
            raise ToolFailed(tool_id, Status.FAILED, read)
        call_id = f"call-{next(self._numbers)}"
        called = Called(
            call_id, tool_id, read, body, key, caller=Caller("agent", caller), correlation_id=f"of-{call_id}"
        )
        outcome = await self._outcome(called, cancel_after_s)
        if outcome.status is not Status.SUCCEEDED:
            raise ToolFailed(tool_id, outcome.status, outcome.fault or fault("tool.failed"), call_id)
        output = outcome.output or b"{}"
        schema = declared.definition.output_schema
        wrong = None if schema is None else schemas.compile(bytes(schema)).error(output)
        if wrong is not None:
            raise ToolFailed(tool_id, Status.FAILED, fault("tool.invalid_output", wrong), call_id)
        return msgspec.json.decode(output, type=dict[str, Any])

    async def _outcome(self, called: Called, cancel_after_s: float | None) -> CallOutcome:
        connection = _TestConnection(self)
        # It has what a tool uses of a connection, and no socket.
        with self._agent.joined_to(cast("ExchangeConnection", connection)) as calls:
            calls.start(called)
            if cancel_after_s is not None:
                asyncio.get_running_loop().call_later(cancel_after_s, calls.cancel, called.call_id)
            return await connection.outcome


class _TestConnection:
    """What a running tool uses of a connection; the test stands for the exchange behind it."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self.outcome: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
        self.calls: RunningCalls

    def stream(self, _call_id: str, channel: Channel, data: bytes) -> None:
        self._client.shown.append(CallProgress(channel, msgspec.json.decode(data)))

    def finish(self, _call_id: str, outcome: CallOutcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def report(self, health: HealthWord, details: bytes | None) -> None:
        self._client.health = (health, {} if details is None else msgspec.json.decode(details))

    async def ask(
        self,
        send: Callable[[Any, Now], str],
        *,
        keyed: bool = False,  # noqa: ARG002  (nothing is lost here)
        progressed: Callable[[Progressed], None] | None = None,  # noqa: ARG002  (answers show nothing)
    ) -> Answered | DirectiveAnswered:
        asked = _Asked()
        send(asked, Now(0.0, 0.0))
        client = self._client
        if asked.made is None:
            denied = None if client.directive is not None else fault("policy.denied", "the test says no")
            return DirectiveAnswered("", client.directive, denied)
        client.made.append(asked.made)
        return await _answered(asked.made, client.answers.get(asked.made.tool_id, fault("tool.not_found")))


class _Asked:
    """Takes what is said to a session: one call, or a wish for a directive."""

    def __init__(self) -> None:
        self.made: CallMade | None = None

    def call(
        self,
        tool_id: str,
        body: bytes,
        _now: Now,
        *,
        key: str | None,
        timeout_ms: int | None,
        correlation_id: str | None,  # noqa: ARG002  (for the record only)
        causation_id: str | None,
    ) -> str:
        directive = causation_id if causation_id is not None and not causation_id.startswith("call-") else None
        self.made = CallMade(tool_id, msgspec.json.decode(body), key, timeout_ms, directive)
        return ""

    def request_directive(self, *_: object) -> str:
        return ""


async def _answered(call: CallMade, reply: Reply) -> Answered:
    said: Any = reply
    if callable(reply):
        try:
            said = reply(**call.input)
            if inspect.isawaitable(said):
                said = await said
        except ToolFailed as failed:
            return Answered("", failed.status, fault=failed.fault)
    if isinstance(said, Fault):
        return Answered("", Status.FAILED, fault=said)
    return Answered("", Status.SUCCEEDED, Raw(json_form.encode(said)))
