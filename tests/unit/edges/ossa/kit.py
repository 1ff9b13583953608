"""The OSSA edge in a whole exchange in memory, seen from outside: agents with keys of their own, signed messages, time.

``Kit.agent`` is an agent that can sign; ``Agent.ask`` says something and gives the replies; ``Agent.connect`` is a
connection that keeps what it was sent. Nothing listens: bytes go to ``OssaPeers`` as a transport hands them over.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec
from joserfc.jwk import OKPKey
from msgspec import Raw

from tests.fuzz.asgi import Request, Socket
from tests.ossa_messages import identity, message, new_identity, signed
from trunkline.config import Config, Ossa
from trunkline.edges.edge import Surroundings
from trunkline.edges.ossa import reading, sealing, signing
from trunkline.edges.ossa.edge import OSSA, OssaEdge
from trunkline.edges.ossa.identity import Known
from trunkline.edges.ossa.messages import Refused
from trunkline.edges.ossa.peer import DISCONNECTED, OssaPeer
from trunkline.edges.ossa.providing import Sending
from trunkline.edges.topics.edge import TOPICS
from trunkline.model import Policy, stamp
from trunkline.testing.memory import ALLOW_ALL, MadeCall, MemoryExchange
from trunkline.testing.tasks import TaskLoop

OBJECT = {"type": "object"}


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What this gives, which waits for nobody."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Home:
    """A folder for the exchange's own keys; it goes with the last exchange that has it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tl-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Kit:
    """The edge, from outside."""

    def __init__(self, policy: Policy = ALLOW_ALL, *, before: Kit | None = None, **ossa: Any) -> None:
        edges = (TOPICS, msgspec.structs.replace(OSSA, make=self._make))
        if before is None:
            self.home = Home()
            config = Config(ossa=Ossa(**ossa))
            self.exchange = MemoryExchange(policy, edges=edges, config=config, home=self.home.path)
        else:
            self.home = before.home
            self.exchange = before.exchange.restarted(edges=edges)
        self.ids = Random(self.exchange._run)
        self.raised: list[BaseException] = []
        self.loop = TaskLoop(self.exchange.loop, self.raised.append)
        self.loop.create_task(self.exchange.edges.start())
        self.exchange.advance(0)
        self.check()

    def _make(self, given: Surroundings) -> OssaEdge:
        edge = OssaEdge(given)
        self.edge, self.peers = edge, edge.peers

        async def start() -> None:
            """Nobody listens."""
            edge.peers.take_up()

        edge.start = start  # type: ignore[method-assign]
        return edge

    def __enter__(self) -> Self:
        """For what starts tasks: while it lasts, the loop in fake time is the running one."""
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop.as_asyncio)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.kill()
        asyncio._set_running_loop(self._before)

    @property
    def app(self) -> Any:
        """What listens, if it did."""
        return self.edge._server.app

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin this; what it raises is kept."""

        async def kept() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  whatever it is, it is judged
                self.raised.append(error)

        self.loop.create_task(kept())
        self.exchange.advance(0)

    def post(self, data: bytes, path: str = "/ossa/v1/messages", method: str = "POST") -> Request:
        """One request, and its answer once it is there."""
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        request = Request(method, path, data, head)
        self.begin(self.app(request.scope, request.receive, request.send))
        return request

    def socket(self, send: Any = None) -> Socket:
        """A WebSocket; ``send`` takes what is said on it instead."""
        socket = Socket("/ossa/v1/ws")
        self.begin(self.app(socket.scope, socket.receive, send or socket.send))
        return socket

    def say(self, socket: Socket, data: bytes) -> None:
        """One frame."""
        socket.say(data.decode("utf-8", "surrogatepass"))
        self.exchange.advance(0)

    def restarted(self) -> Kit:
        """Another process on the same record; nobody is connected."""
        self.loop.kill()
        return Kit(before=self)

    def check(self) -> None:
        """Nothing was fatal and nothing a defect."""
        assert not self.raised, self.raised[0]
        assert self.exchange.died is None, self.exchange.died
        assert not self.exchange.feed._defects, self.exchange.notices()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.exchange.advance(seconds)
        self.check()

    def agent(self, name: str, kind: str = "worker", *, url: str = "") -> Agent:
        """An agent with a new key, made by the operator."""
        return Agent(self, name, kind, new_identity(self.exchange, name, kind, url))

    def call(self, tool_id: str, value: object = None, **terms: Any) -> MadeCall:
        """A call by the operator."""
        return self.exchange.call(tool_id, value, **terms)

    def new_id(self) -> str:
        """A UUID of version 4; the same ones in each run of a test."""
        return str(uuid.UUID(bytes=self.ids.randbytes(16), version=4))

    def stamp(self, seconds: float = 0.0) -> str:
        """A moment from now."""
        return stamp(self.exchange.now().ms + int(seconds * 1000))


class Agent:
    """One who can sign."""

    def __init__(self, kit: Kit, name: str, kind: str, shown: Any) -> None:
        self.kit, self.name, self.kind = kit, name, kind
        self.key = signing.key_of(signing.decoded(shown["jwk"]["d"]))
        self.opens = OKPKey.import_key(shown["enc_jwk"])

    def moved(self, kit: Kit) -> Agent:
        """The same one, after a restart of the exchange."""
        self.kit = kit
        return self

    def message(
        self, kind: str, to: str | list[str] = "trunkline", action: str = "", payload: object = None, **header: Any
    ) -> dict[str, Any]:
        """A message as JSON knows it. ``body`` are more members of its body."""
        given = {"message_id": self.kit.new_id(), "timestamp": self.kit.stamp(), **header}
        return message(identity(self.name, self.kind), kind, to, action or kind, payload, **given)

    def signed(self, message: dict[str, Any], **header: Any) -> bytes:
        """A message as it goes out."""
        return signed(message, self.key, **header)

    def sealed(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose payload only the exchange can read."""
        payload = Raw(json.dumps(message["body"]["payload"]).encode())
        sealed = sealing.seal(payload, message["header"]["messageId"], [self.kit.peers.own.opens])
        return {**message, "body": {**message["body"], "payload": json.loads(bytes(sealed))}}

    def send(self, data: bytes | dict[str, Any]) -> list[dict[str, Any]]:
        """Say this; the replies, which fill up while time passes. ``Refused`` if it is not taken."""
        peers, got = self.kit.peers, Replies()
        known: Known = finished(peers.identities.read(data if isinstance(data, bytes) else self.signed(data)))
        got.ticket = peers.receive(known, lambda told: got.extend(json.loads(reply) for _, reply in told))
        self.kit.check()
        return got

    def ask(
        self, kind: str, to: str | list[str] = "trunkline", action: str = "", payload: object = None, **header: Any
    ) -> list[dict[str, Any]]:
        """Make a message and say it."""
        return self.send(self.message(kind, to, action, {} if payload is None else payload, **header))

    def connect(self, *actions: str, **terms: Any) -> Line:
        """A connection; the agent registers these actions, if any."""
        line = Line(self)
        data = self.signed(self.message("heartbeat"))
        self.peer(data).attach(line, "memory")
        if actions:
            offered = [{"name": name, "input_schema": OBJECT, "side_effects": False, **terms} for name in actions]
            [reply] = self.ask("request", "trunkline", "register", {"actions": offered})
            assert reply["body"]["payload"]["registered"] == list(actions), reply
        return line

    def peer(self, data: bytes | None = None) -> OssaPeer:
        """What the exchange has of it."""
        if data is None:
            return self.kit.peers.by_agent[self.name]
        return self.kit.peers.peer(finished(self.kit.peers.identities.read(data)))

    def subscribe(self, topic: str, qos: int = 1, *, durable: bool = False) -> str:
        """Be told of a topic."""
        [reply] = self.ask("request", "trunkline", "subscribe", {"topic": topic, "qos": qos, "durable": durable})
        name = reply["body"]["payload"]["subscription"]
        assert isinstance(name, str)
        return name


class Replies(list[dict[str, Any]]):
    """What came to one ticket."""

    ticket = 0


class Line:
    """A connection of an agent: keeps what it is sent. ``room`` is how much more it takes."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.got: list[dict[str, Any]] = []
        self.sendings: list[Sending] = []
        self.room = 1_000_000

    @property
    def has_room(self) -> bool:
        return self.room > 0

    def send(self, data: bytes, sending: Sending) -> None:
        self.room -= 1
        self.sendings.append(sending)
        message = reading.read(data)
        signing.check(data, signing.read_claim(str(message.signature)), self.agent.kit.peers.own.signs.public)
        self.got.append(json.loads(data))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """What came of one type."""
        return [one for one in self.got if one["header"]["type"] == kind]

    def answer(self, request: dict[str, Any], payload: object, kind: str = "response", **header: Any) -> dict[str, Any]:
        """Answer what came; the message that was said."""
        correlation = {"correlationId": request["header"]["correlationId"]}
        message = self.agent.message(kind, "trunkline", request["body"]["action"], payload, **correlation, **header)
        self.agent.send(message)
        return message

    def fail(self, request: dict[str, Any], code: int) -> None:
        """Answer with an error."""
        info = {"code": code, "message": "no", "timestamp": self.agent.kit.stamp()}
        self.answer(request, {}, "error", body={"error": info})

    def acknowledge(self, event: dict[str, Any]) -> None:
        """It has this."""
        self.agent.ask("acknowledgment", payload={"messageId": event["header"]["messageId"]})

    def leave(self) -> None:
        """The connection ends."""
        self.agent.peer().detach(self, DISCONNECTED)


def refusal(work: Any, *args: Any, **more: Any) -> Refused:
    """How this is refused."""
    try:
        work(*args, **more)
    except Refused as refused:
        return refused
    raise AssertionError("it was taken")
