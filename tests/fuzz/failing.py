"""Real edges on an exchange in memory, and one conversation of one of them that raises at a planned moment.

``World`` starts all edges, puts a guard between the exchange and each of their sinks, and a bystander beside: an agent
and a caller on another edge than the one that fails. ``DRIVES`` has for each edge somebody who talks to it as its peers
do, and takes every answer, or none. What must hold afterwards is ``judge``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Self
from unittest import mock

import httpx
from msgspec import Raw, Struct, field
from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed

from tests.pylon import pusher
from tests.unit.edges.mounts.kit import ECHO as MOUNTED_TOOL
from tests.unit.edges.mounts.kit import Programs as KeptPrograms
from tests.unit.edges.mounts.kit import Server as MountedServer
from tests.unit.edges.opensentience.core_side import envelope, frame, hello
from tests.unit.edges.pylon.kit import Program
from trunkline import canonical
from trunkline.config import Chiffon, Config, Http, McpServer, Nostr, OpenSentience, Pylon
from trunkline.edges.driver import Driver
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.exchange import Sink
from trunkline.edges.known import EDGES
from trunkline.edges.nostr import edge as nostr_edge
from trunkline.edges.nostr import messages as nostr_messages
from trunkline.edges.nostr.edge import NostrEdge
from trunkline.edges.nostr.events import Draft, encoded, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.piped import PipedOwner, PipedProcess, PipedSpec
from trunkline.effects import Deliver, ToSession
from trunkline.entries import CallAccepted, CallNoted, CallSettled, Noticed
from trunkline.events import CancelRequested
from trunkline.jobs.embedding import HASHING
from trunkline.jobs.schemas import EMBEDDING
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.model import Decision, Now, Policy, Rule, Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, BOSS, OPERATOR_TOKEN, AttachedAgent, MemoryExchange

BYSTANDER: Final = "bystander"
ECHO: Final = "com.example.echo/say"
MAIL: Final = "com.example.mail/send"
STRANGER: Final = Signer(bytes(31) + b"\x05")
# How long a peer waits for one who will not answer any more; all answers that come are there long before.
PATIENCE_S: Final = 0.4
BOUND_S: Final = 10.0
# Of strangers' mail a person is asked, so that there are questions in some stories.
POLICY: Final = Policy(
    (
        Rule("ask-programs", "http:*", MAIL, Decision.ASK),
        Rule("ask-clients", "mcp:*", MAIL, Decision.ASK),
        Rule("ask-agents", "opensentience:*", MAIL, Decision.ASK),
        Rule("ask-pages", "pylon:*", "pylon.codex/connect", Decision.ASK),
        Rule("ask-codex", "pylon:*", "pylon.codex/approve", Decision.ASK),
        Rule("all", "*", "*", Decision.ALLOW),
    ),
    "v1",
)

# The embedded relay is a process of its own, two thirds of what a story takes. What strangers say is put into the hands
# of its edge, which can do without: nobody listens where it goes then, nor does it wait until all is heard there.
SILENT: Final = Nostr(relay="", relays=("ws://127.0.0.1:1",), offer=(ECHO, MAIL))
# Without it no delivery was seen to wait for the disk in these stories.
WITH_RELAY: Final = frozenset({"space", "trunkline"})


class Planted(Exception):
    """What a sink raises here."""


class Plan(Struct):
    """Where a conversation of ``edge`` raises: at the n-th time that this method is called, with this effect."""

    edge: str
    method: str
    effect: str = ""
    n: int = 1
    # Only while the disk answers: what leaves then has waited for it.
    at_disk: bool = False
    # Letting go of the connection fails as well.
    in_abort: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    # Kinds that had to wait for the disk.
    waited: set[str] = field(default_factory=set)
    victim: Guarded | None = None

    def meet(self, sink: Guarded, method: str, effect: ToSession | None) -> None:
        """Raise, if this is the moment."""
        kind = "" if effect is None else type(effect).__name__
        self.seen[f"{method} {kind}".strip()] += 1
        if effect is not None and sink.world.exchange.is_storing:
            self.waited.add(kind)
        if self.victim is sink and method == "abort" and self.in_abort:
            raise Planted
        if self.victim is not None or method != self.method or self.effect not in {"", kind}:
            return
        if self.at_disk and not sink.world.exchange.is_storing:
            return
        self.n -= 1
        if self.n == 0:
            self.victim = sink
            sink.lost = sink.open_calls(effect)
            raise Planted


class Guarded:
    """A sink of an edge, behind the plan."""

    def __init__(self, world: World, sink: Sink) -> None:
        self.world = world
        self._sink = sink
        self._given: list[str] = []
        # Calls that it had been given and not answered when it failed.
        self.lost: list[str] = []
        self.aborts = 0

    def open_calls(self, effect: ToSession | None) -> list[str]:
        given = [*self._given, effect.call_id] if isinstance(effect, Deliver) else self._given
        return [call_id for call_id in given if call_id in self.world.exchange.hub.state.calls]

    def send(self, effect: ToSession, now: Now) -> None:
        self.world.plan.meet(self, "send", effect)
        self._sink.send(effect, now)
        if isinstance(effect, Deliver):
            self._given.append(effect.call_id)

    def flush(self) -> None:
        self.world.plan.meet(self, "flush", None)
        self._sink.flush()

    def pause_reading(self) -> None:
        self.world.plan.meet(self, "pause_reading", None)
        self._sink.pause_reading()

    def resume_reading(self) -> None:
        self.world.plan.meet(self, "resume_reading", None)
        self._sink.resume_reading()

    def abort(self) -> None:
        self.aborts += 1
        # The edge is told whatever happens: else a peer of this story waits for nothing.
        self._sink.abort()
        self.world.plan.meet(self, "abort", None)


class World:
    """All edges, started; agents of no edge to call; a bystander."""

    def __init__(self, folder: Path, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        self.rng = Random(seed)
        has_relay = plan.edge in WITH_RELAY
        config = Config(
            http=Http(listen="127.0.0.1:0"),
            opensentience=OpenSentience(socket=str(folder / "s"), heartbeat_interval_ms=3_600_000),
            chiffon=Chiffon(work={"say": ECHO}),
            pylon=Pylon(tls=False, codex=(sys.executable,)),
            mcp_servers=(McpServer(id="x", command=("x",)),) if plan.edge == "mounts" else (),
            nostr=Nostr(relay="127.0.0.1:0", offer=(ECHO, MAIL)) if has_relay else SILENT,
        )
        self._last_words = mock.patch.object(nostr_edge, "LAST_WORDS_S", nostr_edge.LAST_WORDS_S if has_relay else 0.0)
        self.programs: list[Program] = []
        # Whose conversations are opened now.
        self._opening = ""
        self._open: Callable[[Sink], int] | None = None
        known = [replace(edge, make=partial(self._make, edge)) for edge in EDGES]
        self.kept = KeptPrograms()
        self.exchange = MemoryExchange(
            POLICY, edges=known, config=config, home=folder, start_piped=self._start_piped, programs=self.kept
        )
        nostr = self.exchange.edges._running["nostr"]
        assert isinstance(nostr, NostrEdge)
        self.nostr = nostr
        self.socket = folder / "s"
        self.client: httpx.AsyncClient
        self.peers: list[Peer] = []
        self.echo = self.exchange.attach("com.example.echo", _read_only(ECHO), deliver=_echoes)
        self.mail = self.exchange.attach("com.example.mail", "send", deliver=self._takes_its_time)

    def _start_piped(self, spec: PipedSpec, owner: PipedOwner) -> PipedProcess:
        self.programs.append(Program(spec, owner, mute=False))
        return self.programs[-1]

    def _takes_its_time(self, agent: AttachedAgent, _: Deliver) -> None:
        """Long enough that the disk falls behind meanwhile."""
        place = len(agent.delivered) - 1
        loop = asyncio.get_running_loop()
        loop.call_soon(self.fall_behind)
        loop.call_later(0.01, lambda: agent.finish({}, at=place))

    def _make(self, edge: Edge, given: Surroundings) -> RunningEdge:
        """Make an edge; all that it opens from here on is guarded."""
        if self._open is None:
            feed: Any = given.feed
            self._open, feed.open_session = feed.open_session, self._guard
        with self._by(edge.name):
            made = edge.make(given)
        prepare = made.prepare

        def prepared() -> None:
            with self._by(edge.name):
                prepare()

        made.prepare = prepared  # type: ignore[method-assign]
        return made

    def _guard(self, sink: Sink) -> int:
        assert self._open is not None
        is_target = self._opening == self.plan.edge
        # The bystander of this edge comes in over HTTP, all the while.
        if self.plan.edge == "opensentience":
            is_target = is_target and isinstance(sink, Driver)
        return self._open(Guarded(self, sink) if is_target else sink)

    @contextlib.contextmanager
    def _by(self, name: str) -> Any:
        before, self._opening = self._opening, name
        yield
        self._opening = before

    async def __aenter__(self) -> Self:
        self._last_words.start()
        try:
            await self._start()
        except BaseException:
            # A listener that stays open keeps uvloop from ever closing its loop.
            await self.exchange.edges.stop()
            await self.exchange.edges.stop_last()
            self._last_words.stop()
            raise
        return self

    async def _start(self) -> None:
        exchange = self.exchange
        for name, running in exchange.edges._running.items():
            with self._by(name):
                starting = asyncio.create_task(running.start())
                while not starting.done():
                    # What lives in the exchange and failed comes back after a while.
                    await asyncio.sleep(0.001)
                    exchange.advance(0.1)
                await starting
                exchange.edges._is_started.add(name)
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        url = exchange.edges.ready()["http"]
        self.client = httpx.AsyncClient(base_url=str(url), timeout=PATIENCE_S, verify=plain)

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        async with asyncio.timeout(BOUND_S):
            await self.exchange.edges.stop()
            await self.exchange.edges.stop_last()
            for peer in self.peers:
                await peer.close()
        self._last_words.stop()

    # -- who talks -----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str = OPERATOR_TOKEN,
        patience_s: float | None = None,
        **headers: str,
    ) -> Any:
        """One request; None if there is no answer. As patient as the client, unless it is told otherwise."""
        given = {"authorization": f"Bearer {token}", **headers}
        timeout = httpx.USE_CLIENT_DEFAULT if patience_s is None else patience_s
        with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
            answer = await self.client.request(method, path, json=body, headers=given, timeout=timeout)
            return answer.text if "event-stream" in answer.headers["content-type"] else answer.json()
        return None

    async def agent(self, agent_id: str, *tools: dict[str, Any], patience_s: float = PATIENCE_S) -> Peer:
        """An agent on the OpenSentience edge."""
        peer = Peer(self, agent_id, *await asyncio.open_unix_connection(str(self.socket)), patience_s=patience_s)
        token = self.exchange.token("opensentience", agent_id)
        capabilities = ["tools", "streaming", "cancellation", "calls", "directives"]
        protocol = {"supported_versions": [1], "capabilities": capabilities}
        peer.tell("agent.hello", hello(agent_id=agent_id, session_token=token, protocol=protocol))
        if await peer.hear("core.welcome") is not None and tools:
            peer.tell("agent.tools.register", {"tools": list(tools)})
            await peer.hear("core.tools.registered")
        return peer

    # -- the bystander -------------------------------------------------------------------------------------------------

    async def settle_in(self) -> None:
        """The bystander arrives, on another edge than the one that fails."""
        with self._by(BYSTANDER):
            if self.plan.edge == "opensentience":
                self._stands = self.exchange.attach("com.by.stander", "change", deliver=_echoes)
                return
            # Nothing keeps their messages from them, however long that takes on a busy machine.
            self._provider = await self.agent("com.by.stander", _tool("com.by.stander/change"), patience_s=BOUND_S)
            self._caller = await self.agent("com.by.caller", patience_s=BOUND_S)

    async def bystander_calls(self) -> None:
        """One call of the bystander, which ends well whatever else happens."""
        if self.plan.edge == "opensentience":
            body = {"tool_id": "com.by.stander/change", "input": {}, "correlation_id": BYSTANDER}
            with self._by(BYSTANDER):
                answer = await self.ask("POST", "/v1/calls", body, patience_s=BOUND_S)
            assert answer is not None
            assert answer["status"] == "succeeded", answer
            return
        payload = {"call_id": str(uuid.uuid4()), "tool_id": "com.by.stander/change", "input": {}}
        self._caller.tell("agent.tool.call", payload, request_id="r", correlation_id=BYSTANDER)
        call = await self._provider.hear("core.tool.call")
        assert call is not None, "the bystander's call was not delivered"
        self._provider.answer(call)
        result = await self._caller.hear("core.tool.result")
        assert result is not None, "the bystander's call was not answered"
        assert result["payload"]["status"] == "succeeded", result

    # -- the story -----------------------------------------------------------------------------------------------------

    async def tell(self) -> None:
        """Drive the edge that fails, with the bystander before, beside and after."""
        await self.settle_in()
        await self.bystander_calls()
        with self._by(self.plan.edge):
            story = asyncio.create_task(DRIVES[self.plan.edge](self))
            pump = asyncio.create_task(self._disk())
            try:
                async with asyncio.timeout(BOUND_S):
                    await story
            finally:
                pump.cancel()
        self.exchange.disk_rests = False
        self.exchange.store()
        for _ in range(2):
            await self.bystander_calls()

    async def _disk(self) -> None:
        """A disk that answers now and then, if the plan is about that."""
        self.exchange.disk_rests = self.plan.at_disk
        while self.plan.at_disk:
            # There is nothing to wait for: this is the disk's own pace.
            await asyncio.sleep(0.002)
            self.exchange.store()

    def fall_behind(self) -> None:
        """For a moment nobody is read from, because the disk is behind."""
        self.exchange.feed._pause(paused=True)
        self.exchange.feed._pause(paused=False)


def judge(world: World) -> None:
    """One conversation is over, and nothing else happened."""
    exchange, plan = world.exchange, world.plan
    victim = plan.victim
    assert victim is not None, f"nothing was raised; seen were {dict(plan.seen)}"
    assert exchange.died is None
    assert victim not in exchange.feed._sinks.values()
    assert victim.aborts == 1
    defects = [entry for entry in exchange.recorded(Noticed) if entry.code == "defect"]
    assert [(entry.place.partition(":")[0], entry.detail) for entry in defects] == [
        ("failing.py", "Planted, 1 so far")
    ], defects
    assert exchange.operator.status()["defects"] == 1
    settled = Counter(entry.call_id for entry in exchange.recorded(CallSettled))
    outcomes = {entry.call_id: entry for entry in exchange.recorded(CallSettled)}
    accepted = {entry.call_id: entry for entry in exchange.recorded(CallAccepted)}
    assert not settled or max(settled.values()) == 1
    stopped = {entry.call_id for entry in exchange.recorded(CallNoted) if entry.note == "cancel.requested"}
    # Decision 1, for what the failing conversation had been given.
    for call_id in victim.lost:
        if accepted[call_id].side_effects and not accepted[call_id].dedupes:
            assert outcomes[call_id].status is Status.UNKNOWN
            assert outcomes[call_id].fault.code == ("tool.canceled" if call_id in stopped else "agent.lost")
    bystanders = [entry.call_id for entry in accepted.values() if entry.correlation_id == BYSTANDER]
    assert len(bystanders) == 3
    assert {outcomes[call_id].status for call_id in bystanders} == {Status.SUCCEEDED}


def judge_end(world: World) -> None:
    """After all edges stopped and much time has passed, every call has one outcome."""
    exchange = world.exchange
    for _ in range(20):
        exchange.advance(600)
    accepted = {entry.call_id for entry in exchange.recorded(CallAccepted)}
    assert {entry.call_id for entry in exchange.recorded(CallSettled)} == accepted
    assert len(exchange.recorded(CallSettled)) == len(accepted)
    assert exchange.died is None
    wallet = world.nostr.money.payments.wallet
    assert wallet.total == wallet.funded
    assert min(wallet.balances.values()) >= 0
    # What a payment whose end its caller does not know has held is held once.
    assert sum(held.msats for held in wallet.held.values()) in {0, 500}


# --- peers ------------------------------------------------------------------------------------------------------------


class Peer:
    """An agent's end of the OpenSentience socket; hears what comes, or that nothing does."""

    def __init__(
        self,
        world: World,
        agent_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.agent_id = agent_id
        self._patience_s = patience_s
        self._reader = reader
        self._writer = writer
        world.peers.append(self)

    def tell(self, type_: str, payload: Any = None, **fields: Any) -> None:
        # uvloop says so by an error of its own if the other end is gone.
        with contextlib.suppress(RuntimeError):
            self._writer.write(frame(envelope(type_, payload, **fields)))

    async def hear(self, type_: str) -> dict[str, Any] | None:
        """The next message of a type; None if the connection ended, or nothing comes."""
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(self._patience_s):
                while True:
                    size = int.from_bytes(await self._reader.readexactly(4), "big")
                    message: dict[str, Any] = json.loads(await self._reader.readexactly(size))
                    if message["type"] == type_:
                        return message
        return None

    def answer(self, call: dict[str, Any]) -> None:
        payload = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": {}}
        ids = {name: call[name] for name in ("request_id", "correlation_id") if name in call}
        self.tell("agent.tool.result", payload, **ids)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _tool(tool_id: str, **more: Any) -> dict[str, Any]:
    name = tool_id.rpartition("/")[2]
    return {"tool_id": tool_id, "name": name, "description": "d", "input_schema": {"type": "object"}, **more}


def _read_only(tool_id: str) -> ToolDefinition:
    return ToolDefinition(tool_id, "a tool", ANY_OBJECT, side_effects=False)


def _echoes(agent: AttachedAgent, effect: Deliver) -> None:
    agent.show("stdout", {"text": "on it"})
    agent.finish(effect.input)


# --- stories ----------------------------------------------------------------------------------------------------------


async def drive_http(world: World) -> None:
    """Calls that are waited for, followed and left; questions, tokens, cancellation."""
    alice = world.exchange.token("http", "alice")
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.ask("POST", "/v1/calls", {"tool_id": ECHO, "input": {}}),
        lambda: world.ask("POST", "/v1/calls", {"tool_id": ECHO, "input": {}}, accept="text/event-stream"),
        lambda: world.ask("POST", "/v1/calls", {"tool_id": ECHO, "input": {}, "wait": False}),
        lambda: world.ask("POST", "/v1/calls", {"tool_id": MAIL, "input": {}}, alice),
        lambda: world.ask("POST", "/v1/calls", {"tool_id": MAIL, "input": {}}),
        lambda: world.ask("POST", "/v1/calls", {"tool_id": "no.such/tool", "input": {}}),
        lambda: world.ask("POST", "/v1/tokens", {"edge": "http", "agent": "bob"}),
        lambda: world.ask("POST", "/v1/directives", {"tool_id": ECHO, "reason": "as agreed"}),
    ]
    world.rng.shuffle(steps)
    for step in steps:
        await step()
    for question in world.exchange.views.questions():
        await world.ask("POST", f"/v1/approvals/{question.approval_id}", {"decision": "approved"})


async def drive_opensentience(world: World) -> None:
    """An agent that offers tools, works, is told to stop, calls, wishes, and is replaced; one that is refused."""
    exchange = world.exchange
    tools = (_tool("com.x/change"), _tool("com.x/look", side_effects=False), _tool("com.x/old"))
    peer = await world.agent("com.x", *tools)
    world.fall_behind()
    names = ["change", "look"]
    world.rng.shuffle(names)
    for name in names:
        made = exchange.call(f"com.x/{name}")
        call = await peer.hear("core.tool.call")
        if call is not None and world.rng.random() < 0.5:
            peer.answer(call)
        elif not made.answer:
            exchange.feed.feed([CancelRequested(0, "", BOSS, call_id=made.call_id)])
            await peer.hear("core.tool.cancel")
    peer.tell("agent.tool.call", {"call_id": "mine", "tool_id": ECHO, "input": {}}, request_id="mine")
    await peer.hear("core.tool.result")
    peer.tell("agent.tool.call", {"call_id": "other", "tool_id": "com.by.stander/change", "input": {}}, request_id="o")
    await peer.hear("core.tool.result")
    peer.tell("agent.tool.call", {"call_id": "asked", "tool_id": MAIL, "input": {}}, request_id="asked")
    peer.tell("agent.directive.request", {"tool_id": MAIL, "reason": "as agreed"})
    await asyncio.sleep(0.01)  # it has to be read before there is a question
    for question in exchange.views.questions():
        exchange.answer(question.approval_id)
    await peer.hear("core.directive.create")
    peer.tell("agent.tools.unregister", {"tool_ids": ["com.x/old"]})
    await peer.hear("core.tools.unregistered")
    await world.agent("com.x", *tools)
    stranger = Peer(world, "com.y", *await asyncio.open_unix_connection(str(world.socket)))
    stranger.tell("agent.hello", hello(agent_id="com.y", session_token="nobody's"))
    await stranger.hear("core.welcome")


async def drive_spaces(world: World) -> None:
    """A space with a run of a few files, a call of its tool from outside, and its end."""
    await world.ask("POST", "/v1/spaces", {"name": "demo", "preset": "standard", "policy": {}})
    world.fall_behind()
    operations = [
        {"type": "message", "content": "a"},
        {"type": "createFile", "path": "a.txt", "content": "a"},
        {"type": "readFile", "path": "a.txt"},
    ]
    for _ in range(2):
        await world.ask("POST", "/v1/spaces/demo/runs", {"protocolVersion": "1.0", "operations": operations})
    world.exchange.call("space.demo/readFile", {"path": "a.txt"})
    await world.ask("DELETE", "/v1/spaces/demo")


async def drive_chiffon(world: World) -> None:
    """An agent that registers, is given work and does it; an orchestrator that asks for work."""
    exchange = world.exchange
    worker, boss = exchange.token("chiffon", "infra-1", "infra"), exchange.token("chiffon", "boss", "orchestrator")
    registration = {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run"]}
    await world.ask("POST", "/api/agent/register", registration, worker)
    world.fall_behind()
    for _ in range(2):
        exchange.call("infra-1/run")
        found = await world.ask("GET", "/api/agent/messages?wait=0.2", token=worker)
        for work in (found or {}).get("messages", []):
            if work["type"] == "work_request":
                payload = {
                    "task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done",
                }  # fmt: skip
                result = _message("work_result", payload, "infra", "orchestrator")
                ids = {"trace_id": work["trace_id"], "request_id": work["request_id"]}
                await world.ask("POST", "/api/agent/message", {**result, **ids}, worker)
    wish = {"task_id": str(uuid.uuid4()), "work_type": "say", "parameters": {}}
    await world.ask("POST", "/api/agent/message", _message("work_request", wish, "orchestrator", "infra"), boss)
    await world.ask("GET", "/api/agent/messages?wait=0.2", token=boss)


def _message(kind: str, payload: dict[str, Any], sender: str, to: str) -> dict[str, Any]:
    ids = {name: str(uuid.uuid4()) for name in ("message_id", "trace_id", "request_id")}
    return {
        "protocol_version": "1.0", "from_agent": sender, "to_agent": to, "timestamp": "2026-01-19T04:21:04Z",
        "type": kind, "payload": payload, **ids,
    }  # fmt: skip


async def drive_topics(world: World) -> None:
    """Two who read events over HTTP, and somebody who publishes, until each has heard the last or is cut off."""

    async def listen(path: str, begun: asyncio.Event) -> None:
        headers = {"authorization": f"Bearer {OPERATOR_TOKEN}"}
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(1.0), world.client.stream("GET", path, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    begun.set()
                    # Only what is published with a quality waits for the disk.
                    if '"payload":2' in line:
                        break
        begun.set()

    begun = [asyncio.Event(), asyncio.Event()]
    paths = ("/v1/topics/a?durable=1&qos=1", "/v1/topics/%23?qos=1")
    readers = [asyncio.create_task(listen(path, event)) for path, event in zip(paths, begun, strict=True)]
    for event in begun:
        await event.wait()
    world.fall_behind()
    for number in range(3):
        await world.ask("POST", f"/v1/topics/a?qos={number}", number)
    await asyncio.gather(*readers)
    world.exchange.call("trunkline/unsubscribe", {"subscription": "nobody's"})


async def drive_pylon(world: World) -> None:
    """A page that connects a workspace, asks codex for something and answers what it asks; so does a person."""
    with contextlib.suppress(ConnectionClosed, OSError):
        async with pusher(str(world.exchange.edges.ready()["pylon"]), welcome=False) as page:

            async def hear(event: str, **fields: object) -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await page.next(event, **fields)

            async def answer(decision: str) -> None:
                for question in (await world.ask("GET", "/v1/approvals") or {}).get("approvals", []):
                    await world.ask("POST", f"/v1/approvals/{question['approval_id']}", {"decision": decision})

            for channel in ("pylon.system", "pylon.codex"):
                await page.send("pusher:subscribe", {"channel": channel})
            await page.codex("connect", workspaceId="ws_1", cwd="/w")
            await hear("pylon.codex.status", status="disconnected")
            await answer("approved")
            await hear("pylon.codex.status", status="connected")
            world.fall_behind()
            await page.codex("request", workspaceId="ws_1", requestId="r", method="echo")
            for program in world.programs:
                await asyncio.sleep(0.01)
                for asked in program.heard:
                    program.say({"id": asked["id"], "result": {}})
                for number in (1, 2):
                    program.say({"id": number, "method": "execCommandApproval", "params": {}})
            await hear("pylon.codex.event")
            await page.codex("respond", workspaceId="ws_1", requestId=1, result={"decision": "approved"})
            await asyncio.sleep(0.02)
            await answer("denied")
            await page.codex("disconnect", workspaceId="ws_1")
            await hear("pylon.codex.status", status="disconnected")


async def drive_mcp(world: World) -> None:
    """Calls with and without progress, a question and the repeat after its answer, a client that listens."""
    token = world.exchange.token("mcp", "editor")
    version = "2026-07-28"
    ids = itertools.count(1)

    async def ask(method: str, patience_s: float | None = None, **params: Any) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}},
            **params.pop("_meta", {}),
        }
        body = {"jsonrpc": "2.0", "id": next(ids), "method": method, "params": {**params, "_meta": meta}}
        headers = {"mcp-protocol-version": version, "mcp-method": method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        accept = "application/json, text/event-stream"
        return await world.ask("POST", "/mcp", body, token, patience_s, accept=accept, **headers)

    echo, mail = "com_example_echo__say", "com_example_mail__send"
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: ask("tools/call", name=echo, arguments={}),
        lambda: ask("tools/call", name=echo, arguments={}, _meta={"progressToken": 1}),
        lambda: ask("tools/call", name=mail, arguments={}),
        lambda: ask("tools/call", name=mail, arguments={"n": 1}),
        lambda: ask("tools/list"),
        lambda: ask("subscriptions/listen", 0.1, notifications={"toolsListChanged": True}),
    ]
    world.rng.shuffle(steps)
    for step in steps:
        await step()
    for question in world.exchange.views.questions():
        await world.ask("POST", f"/v1/approvals/{question.approval_id}", {"decision": "approved"})
    listening = asyncio.create_task(ask("subscriptions/listen", 0.1, notifications={"toolsListChanged": True}))
    await asyncio.sleep(0.02)
    world.fall_behind()
    await listening
    for arguments in ({}, {"n": 1}):
        await ask("tools/call", name=mail, arguments=arguments)


async def drive_mounts(world: World) -> None:
    """A server on pipes that is called, canceled, changes its tools, ends and is started again."""
    exchange, server = world.exchange, MountedServer(world.exchange, world.kept)

    async def pass_time(seconds: float = 0.1) -> None:
        await asyncio.sleep(0.005)
        exchange.advance(seconds)

    def answer() -> None:
        for request in server.read():
            if "id" in request:
                result = {"tools": [MOUNTED_TOOL]} if request["method"] == "tools/list" else {"content": []}
                server.answers(request, result)

    for _ in range(2):
        server.begin()
        server.answers(server.one(), {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
        for _ in range(4):
            # One that failed comes back after a while.
            await pass_time(1.1)
            answer()
            exchange.call("mcp.x/echo", {})
            await pass_time()
            world.fall_behind()
            answer()
        made = exchange.call("mcp.x/echo", {})
        await pass_time()
        if (call := exchange.views.awaited(exchange._session, made.ref)) is not None:
            exchange.feed.feed([CancelRequested(exchange._session, "cancel", BOSS, call_id=call.call_id)])
        await pass_time()
        server.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await pass_time(1.1)
        answer()
        await pass_time()
        server.end()
        await pass_time()


async def drive_nostr(world: World) -> None:
    """A payment; then strangers who ask for jobs, as relays would tell of it, until each has an outcome, or nobody
    speaks of it.
    """
    edge = world.nostr
    await _pay(world, edge)
    before = edge.provider.tally.succeeded + edge.provider.tally.failed
    for number, tool in enumerate((ECHO, MAIL, ECHO)):
        body, schema_id = Raw(b'{"text":"hi"}'), schema_id_of(tool)
        job_hash = canonical.openagents_hash(Raw(b'{"schema_id":"%b","inputs":%b}' % (schema_id.encode(), bytes(body))))
        now = world.exchange.now()
        draft = nostr_messages.request_draft(
            edge._settings.kinds, schema_id, body, job_hash, created_at=int(now.wall), nonce=str(number),
            provider=edge.signer.public,
        )  # fmt: skip
        edge.provider.requested(signed(draft, STRANGER), now)
        await asyncio.sleep(0.05)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while edge.provider.tally.succeeded + edge.provider.tally.failed < before + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def _pay(world: World, edge: NostrEdge) -> None:
    """The operator has a stranger paid; each call ends, or its agent is away."""
    now, job_hash, request_id = world.exchange.now(), "sha256:" + "ab" * 32, "cd" * 32
    invoice = edge.money.payments.invoice("seller", 500, "q", job_hash, now, 600).text
    draft = Draft(edge._settings.kinds.feedback, "", (("e", request_id), ("amount", "500", invoice)), int(now.wall))
    wish = {
        "amount_msats": 500,
        "payee": STRANGER.npub,
        "job": {"schema_id": EMBEDDING, "job_hash": job_hash, "request_id": request_id},
        "invoice": invoice,
        "asked": json.loads(encoded(signed(draft, STRANGER))),
    }
    for tool, body in (
        ("new", {"name": "seller", "client": STRANGER.public}),
        ("fund", {"name": "exchange", "msats": 1000}),
        ("pay", wish),
    ):
        made = world.exchange.call(f"nostr.wallet/{tool}", body)
        world.fall_behind()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while made.answer is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)


async def drive_jobs(world: World) -> None:
    """Jobs by the operator, at the agent that lives in the exchange, until each has an outcome."""
    body = {"texts": ["hi"], "model": HASHING, "dimensions": 8}
    made = []
    for _ in range(2):
        made.append(world.exchange.call(f"trunkline.jobs/{EMBEDDING}", body))
        await asyncio.sleep(0.02)
        world.fall_behind()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while any(one.answer is None for one in made):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


DRIVES: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "http": drive_http,
    "opensentience": drive_opensentience,
    "space": drive_spaces,
    "chiffon": drive_chiffon,
    "trunkline": drive_topics,
    "pylon": drive_pylon,
    "mcp": drive_mcp,
    "mounts": drive_mounts,
    "nostr": drive_nostr,
    "jobs": drive_jobs,
}
