"""Pairs of edges: what one entrance accepts, every exit can deliver, or that call fails alone, in words.

All edges are there with their real sockets, on one exchange in memory. A call with odd ids, keys and inputs comes in by
one edge for a tool of another, while a plain call is under way at the same agent: it must not be disturbed.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.fuzz.failing import Peer, Plan, World
from tests.unit.edges.opensentience.core_side import envelope, framed
from trunkline.entries import CallAccepted, CallRefused
from trunkline.model import FAULTS, Status
from trunkline.testing.memory import OPERATOR_TOKEN, MadeCall

pytestmark = pytest.mark.slow

BOUND_S: Final = 20.0
PLAIN: Final = {"plain": True}
# By exit: the tool, and the name under which another orchestrator asks for it.
EXITS: Final = {
    "opensentience": "com.exit/odd_job",
    "chiffon": "infra-1/run",
    "chiffon by type": "chiffon.infra/run",
    "space": "space.demo/message",
}


class OddCall(Struct, frozen=True):
    """What a caller makes up: any of it may be refused, none of it may do harm."""

    input: Any
    key: str | None
    correlation_id: str | None
    causation_id: str | None
    request_id: str


class Scene:
    """The edges, an agent at each exit that holds plain calls and answers all others, and callers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        # What is under way at an exit, each as it is answered.
        self._held: list[Callable[[], Awaitable[None]]] = []
        self._used: set[str] = set()

    async def open(self) -> None:
        self.world = await self._stack.enter_async_context(World(self._folder, Plan("nobody", "send")))
        self.world.client.timeout = BOUND_S  # type: ignore[assignment]
        exchange, ask = self.world.exchange, self.world.ask
        self._provider = await self._agent("com.exit", "odd_job")
        self._caller = await self._agent("com.entrance")
        self._worker = exchange.token("chiffon", "infra-1", "infra")
        self._boss = exchange.token("chiffon", "boss", "orchestrator")
        fields = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"]}
        assert (await ask("POST", "/api/agent/register", fields, self._worker))["registered"]
        assert (await ask("POST", "/v1/spaces", {"name": "demo", "preset": "permissive"}))["name"] == "demo"
        self._tasks = [asyncio.create_task(work()) for work in (self._serve_opensentience, self._serve_chiffon)]

    async def _agent(self, agent_id: str, *names: str) -> Peer:
        schema = {"description": "d", "input_schema": {"type": "object"}}
        return await self.world.agent(agent_id, *({"tool_id": f"{agent_id}/{n}", "name": n, **schema} for n in names))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    # -- exits ---------------------------------------------------------------------------------------------------------

    async def _serve_opensentience(self) -> None:
        async def answer(call: dict[str, Any]) -> None:
            self._provider.answer(call)

        while True:
            call = await self._provider.hear("core.tool.call")
            if call is not None:
                await self._do(partial(answer, call), is_held=call["payload"]["input"] == PLAIN)

    async def _do(self, work: Callable[[], Awaitable[None]], *, is_held: bool) -> None:
        if is_held:
            self._held.append(work)
        else:
            await work()

    async def _serve_chiffon(self) -> None:
        async def answer(work: dict[str, Any]) -> None:
            payload = {"task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done"}
            ids = {"trace_id": work["trace_id"], "request_id": work["request_id"]}
            body = {**_message("work_result", payload, "infra", "orchestrator"), **ids}
            await self.world.ask("POST", "/api/agent/message", body, self._worker)

        while True:
            found = await self.world.ask("GET", "/api/agent/messages?wait=1", token=self._worker)
            for work in found["messages"]:
                if work["type"] == "work_request":
                    await self._do(partial(answer, work), is_held=work["payload"].get("parameters") == PLAIN)

    # -- entrances: each comes back when it was told what became of the call -------------------------------------------

    async def by_http(self, exit_tool: str, odd: OddCall) -> str:
        """What it was told: the status, or the code of the refusal."""
        body = {
            "tool_id": exit_tool,
            "input": odd.input,
            "idempotency_key": odd.key,
            "correlation_id": odd.correlation_id,
            "causation_id": odd.causation_id,
        }
        headers = {"authorization": f"Bearer {self.world.exchange.token('http', 'odd')}"}
        answer = await self.world.client.post(
            "/v1/calls", content=_json(body), headers={**headers, "content-type": "application/json"}
        )
        said = answer.json()
        return _code(said["error"]) if "error" in said else str(said["status"])

    async def by_opensentience(self, exit_tool: str, odd: OddCall) -> str:
        payload = {"call_id": odd.request_id, "tool_id": exit_tool, "input": odd.input, "idempotency_key": odd.key}
        ids = {"correlation_id": odd.correlation_id, "causation_id": odd.causation_id, "request_id": odd.request_id}
        given = {name: value for name, value in payload.items() if value is not None}
        named = {name: value for name, value in ids.items() if value is not None}
        self._caller._writer.write(framed(_json(envelope("agent.tool.call", given, **named))))
        async with asyncio.timeout(BOUND_S):
            while True:
                said = await self._hear_any()
                if said is None:
                    self._caller = await self._agent("com.entrance")
                    return "closed"
                if said["type"] in {"core.tool.result", "core.error"}:
                    problem = said.get("error") or said["payload"].get("error")
                    return _code(problem) if problem else str(said["payload"]["status"])

    async def _hear_any(self) -> dict[str, Any] | None:
        """The next message; None at the end of the connection."""
        try:
            size = int.from_bytes(await self._caller._reader.readexactly(4), "big")
            found: dict[str, Any] = json.loads(await self._caller._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return None
        return found

    async def by_chiffon(self, exit_tool: str, odd: OddCall) -> str:
        work = {"task_id": odd.key or str(uuid.uuid4()), "work_type": exit_tool.partition("/")[2]}
        message = _message("work_request", {**work, "parameters": odd.input}, "orchestrator", "infra")
        if odd.correlation_id is not None:
            message["trace_id"] = odd.correlation_id
        headers = {"authorization": f"Bearer {self._boss}", "content-type": "application/json"}
        answer = await self.world.client.post("/api/agent/message", content=_json(message), headers=headers)
        if answer.status_code >= 400:
            return f"refused {answer.json()['payload']['error_code']}"
        async with asyncio.timeout(BOUND_S):
            while True:
                found = await self.world.ask("GET", "/api/agent/messages?wait=0.2", token=self._boss)
                for said in found["messages"]:
                    if said["request_id"] == message["request_id"] and said["type"] != "work_status":
                        assert said["type"] in {"work_result", "error"}
                        return str(said["type"])

    async def by_space(self, exit_tool: str, odd: OddCall) -> str:
        operation = {**odd.input, "type": "message", "id": odd.request_id}
        body = {"protocolVersion": "1.0", "operations": [operation]}
        headers = {"authorization": f"Bearer {OPERATOR_TOKEN}", "content-type": "application/json"}
        space = exit_tool.partition("/")[0].removeprefix("space.")
        path = f"/v1/spaces/{space}/runs?wait={BOUND_S:.0f}"
        answer = await self.world.client.post(path, content=_json(body), headers=headers)
        events = answer.json()["events"]
        assert all(event.get("message") for event in events if event["type"] == "error")
        return "succeeded" if [event["type"] for event in events] == ["message"] else "error"

    # -- the pair ------------------------------------------------------------------------------------------------------

    async def judge(self, entrance: str, exit_name: str, odd: OddCall) -> None:
        """One odd call beside a plain one that is under way at the same agent."""
        assert not any(task.done() for task in self._tasks), "an agent of the test ended"
        exchange, exit_tool = self.world.exchange, EXITS[exit_name]
        taken, refused = len(exchange.recorded(CallAccepted)), len(exchange.recorded(CallRefused))
        plain = None if exit_name == "space" else exchange.call(exit_tool, PLAIN)
        odd = replace(
            odd, key=None if odd.key is None else self._unused(odd.key), request_id=self._unused(odd.request_id)
        )
        told = await ENTRANCES[entrance](self, exit_tool, odd)
        accepted = exchange.recorded(CallAccepted)[taken:]
        if len(accepted) == (1 if plain is None else 2):
            # Whatever was taken on reached the agent, and came back.
            assert told in {"succeeded", "work_result"}, (told, odd)
        else:
            assert told not in {"succeeded", "work_result"}, (told, odd)
            assert len(exchange.recorded(CallRefused)) - refused <= 1
        if plain is not None:
            await self._is_undisturbed(plain)
        assert "defect" not in exchange.notices()
        assert exchange.died is None

    def _unused(self, name: str) -> str:
        """A name that no earlier call had: a repeat is no new call."""
        fresh = name if name not in self._used else f"{name[:50]}{uuid.uuid4()}"
        self._used.add(fresh)
        return fresh

    async def _is_undisturbed(self, plain: MadeCall) -> None:
        assert plain.answer is None, plain.outcome
        async with asyncio.timeout(BOUND_S):
            while plain.answer is None:
                while self._held:
                    await self._held.pop()()
                await asyncio.sleep(0.002)  # an answer in memory rings no bell
        assert plain.outcome.status is Status.SUCCEEDED


ENTRANCES: Final[dict[str, Callable[[Scene, str, OddCall], Awaitable[str]]]] = {
    "http": Scene.by_http,
    "opensentience": Scene.by_opensentience,
    "chiffon": Scene.by_chiffon,
    "space": Scene.by_space,
}
# A space's own entrance leads to its own tools alone.
PAIRS: Final = [(entrance, way) for entrance in ENTRANCES for way in EXITS if entrance != "space" or way == "space"]


def _json(value: Any) -> bytes:
    """Also what is no text: half of a surrogate pair is written as its escape."""
    return json.dumps(value).encode()


def _code(problem: dict[str, Any]) -> str:
    """The code of an error in words."""
    assert problem["message"]
    code = str(problem["code"])
    assert code in FAULTS or code.startswith(("protocol.", "tool.", "auth.")), code
    return code


def _message(kind: str, payload: dict[str, Any], sender: str, to: str) -> dict[str, Any]:
    ids = {name: str(uuid.uuid4()) for name in ("message_id", "trace_id", "request_id")}
    fixed = {"protocol_version": "1.0", "timestamp": "2026-01-19T04:21:04Z"}
    return {**fixed, "from_agent": sender, "to_agent": to, "type": kind, "payload": payload, **ids}


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[asyncio.Runner, Scene]]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="tl-") as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as run:
        made = Scene(Path(folder))
        run.run(made.open())
        yield run, made
        run.run(made.close())


# Letters, and all that has a meaning somewhere on the way: in JSON, a URL, a subject of NATS, a path, a log.
CHARACTERS: Final = st.one_of(
    st.sampled_from(
        "abzAZ09._-/\\\"'`*>$ \t\r\n\0\x1b\x7f{}[]:;,%&=?#@!~\u00e9\u0130\u2028\u202e\ufeff\ufffe\U0001f600"
    ),
    st.characters(exclude_categories=()),
)
NAMES: Final = st.one_of(
    st.text(CHARACTERS, max_size=12),
    st.integers(100, 300).map(lambda count: "x" * count),
    st.integers(30, 140).map(lambda count: "\u00e9" * count),
    st.uuids().map(str),
)
NUMBERS: Final = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**53, -(2**53) - 1, 2**63, 2**64, 10**40, 10**400, 1e308, -0.0])
)
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(CHARACTERS, max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def _nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


INPUTS: Final = st.one_of(
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["content", "$agent_id", "constraints", "timeout"]), VALUES, max_size=3),
    st.integers(80, 140).map(_nested),
    st.integers(1, 2_000).map(lambda count: {"text": "\u00e9" * count}),
    st.just({"content": "said"}),
)
ODD: Final = st.builds(
    OddCall,
    input=INPUTS,
    key=st.none() | st.uuids().map(str) | NAMES,
    correlation_id=st.none() | NAMES,
    causation_id=st.none() | NAMES,
    request_id=st.uuids().map(str) | NAMES,
)


@pytest.mark.parametrize(("entrance", "exit_name"), PAIRS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd=ODD)
def test_what_one_edge_accepts_every_other_delivers_or_that_call_fails_alone(
    scene: tuple[asyncio.Runner, Scene], entrance: str, exit_name: str, odd: OddCall
) -> None:
    run, made = scene
    run.run(made.judge(entrance, exit_name, odd))
