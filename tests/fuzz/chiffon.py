"""Fuzzing of the Chiffon edge: wrong messages by every transport, from agents and orchestrators, known and unknown.

The exchange behind it is a whole one, in memory and in fake time. HTTP and WebSockets are spoken to the edge's own
application; the broker is a list that now and then is away; a callback answers anything. A function of its seed.
``test_chiffon`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections import Counter
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import msgspec
import nats.errors

from tests.fuzz.asgi import Request, Scene, Socket
from tests.fuzz.mutations import VALUES, Mutator
from trunkline.config import Chiffon, Config
from trunkline.edges import bearer
from trunkline.edges.background import Background
from trunkline.edges.chiffon import chunks, messages, outbox
from trunkline.edges.chiffon.edge import CHIFFON, ChiffonEdge
from trunkline.edges.chiffon.queue import Queue
from trunkline.edges.edge import Surroundings
from trunkline.effects import Deliver
from trunkline.entries import CallAccepted, CallSettled
from trunkline.events import CancelRequested, TokenIssued
from trunkline.model import Fault, Status
from trunkline.testing.memory import BOSS, AttachedAgent, MadeCall

STATUSES: Final = frozenset({200, 202, 400, 401, 404, 405, 413, 415, 422, 429, 503, 504})
# After so many a scene is over: what it recorded is read at its end.
STEPS: Final = 250
PEOPLE: Final = (
    ("infra-1", "infra"), ("infra-2", "infra"), ("code-1", "code"), ("boss", "orchestrator"), ("chief", "orchestrator"),
)  # fmt: skip
WORK_TYPES: Final = ("run", "build", "health_check")
LABELS: Final = (
    "bytes {0}-{1} of {2}", "bytes {0}-{1}", "bytes {0}k-{1}k", "bytes {1}-{0} of {2}", "bytes {0}-{1} of 0", "bytes",
    "bytes -1-5", "bytes ٠-٥", "bytes 0-999999999999 of 999999999999", "BYTES {0}-{1}", "bytes {0}-{1} of {2} ",
)  # fmt: skip
ANSWERS: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nbody", b"HTTP/1.1 500 no\r\n\r\n", b"",
    b"HTTP/1.1 \r\n\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 ab\r\n\r\n", b"HTTP/1.1 204 x\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 x\r\ncontent-length: 99999999999\r\n\r\n", b"\xff" * 40000, b"HTTP/1.1 200 x\r\n\xff: \xff\r\n\r\n",
)  # fmt: skip
AWAY: Final = (nats.errors.TimeoutError, nats.errors.ConnectionClosedError, OSError)


class Broker:
    """What the queue knows of JetStream: takes a message, or is away."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def publish(self, subject: str, data: bytes, headers: Any = None) -> None:
        rng = self._world.rng
        if rng.random() < 0.1:
            raise rng.choice(AWAY)
        assert len(subject.split(".")) >= 3
        assert not set(subject) & set(" *>\r\n\t"), subject
        content = json.loads(data)
        if headers is not None:
            content.pop("auth_token")
            self._world.hear(content, subject)


class Letter:
    """One message of the queue; says what became of it."""

    def __init__(self, world: World, data: bytes, delivered: int) -> None:
        self._world = world
        self.data = data
        self.subject = "chiffon.reply.orchestrator"
        self.metadata = SimpleNamespace(num_delivered=delivered)
        self.ends: list[str] = []

    async def _end(self, how: str) -> None:
        if self._world.rng.random() < 0.05:
            raise self._world.rng.choice(AWAY)
        assert not self.ends, "answered twice"
        self.ends.append(how)

    async def ack(self) -> None:
        await self._end("ack")

    async def nak(self, delay: float = 0) -> None:
        await self._end(f"nak {delay}")

    async def term(self) -> None:
        await self._end("term")

    async def in_progress(self) -> None:
        """It goes on."""


class Writer:
    """Where a callback's request is written to."""

    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, data: bytes) -> None:
        if body := data.partition(b"\r\n\r\n")[2]:
            self._world.hear(json.loads(body), "a callback")
        head = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert head[0].endswith(b" HTTP/1.1")
        assert len(head[0].split(b" ")) == 3, head[0]
        assert [line.partition(b":")[0] for line in head[1:4]] == [b"Host", b"Connection", b"Content-Length"], head

    async def drain(self) -> None:
        """At once."""

    def close(self) -> None:
        """Gone."""


class World:
    """The edge, its peers, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed, [])
        self.rng = self.mutator.rng
        # Ids that the edge makes up: the same for the same seed.
        self.entropy = Random(seed).randbytes
        self.counts: Counter[str] = Counter()
        config = Config(chiffon=Chiffon(timeout_s=self.rng.choice((1.0, 30.0)), work={"mail": "com.other/show"}))
        self.scene = Scene((msgspec.structs.replace(CHIFFON, make=self._make),), config=config)
        self.exchange = self.scene.exchange
        self.app: Any = self.edge._door.door.app
        self.background: Background = self.edge._background
        self.queue = Queue(self.edge.peers, self.background, "nats://nowhere")
        self.queue._js = Broker(self)
        self.tokens: dict[str, str] = {}
        self.numbers = 0
        # Work that agents were given, and words of theirs that may be answered.
        self.given: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.sockets: list[Socket] = []
        self.polls: list[Request] = []
        self.letters: list[Letter] = []
        self.made: list[MadeCall] = []
        for agent, kind in PEOPLE:
            self.issue(agent, kind)
        self.other = self.exchange.attach("com.other", "show", "write", deliver=self._show)

    def _make(self, given: Surroundings) -> ChiffonEdge:
        self.edge = ChiffonEdge(msgspec.structs.replace(given, entropy=self.entropy))
        return self.edge

    # -- people --------------------------------------------------------------------------------------------------------

    def issue(self, agent: str, kind: str) -> None:
        self.numbers += 1
        secret = hashlib.sha256(f"{agent}{self.numbers}".encode()).hexdigest()[:32]
        digest = hashlib.sha256(secret.encode()).hexdigest()
        self.exchange.feed.feed([TokenIssued(0, "t", BOSS, "chiffon", agent, digest, (), kind)])
        self.tokens[agent] = secret

    def _show(self, agent: AttachedAgent, effect: Deliver) -> None:
        """An agent of another edge shows and answers whatever comes to its mind."""
        rng = self.rng
        for seq in range(1, rng.randrange(1, 4)):
            facts: dict[str, Any] = {"percent": self._odd(50), "status": self._odd("paused"), "text": self._odd("x")}
            facts["step"] = self._odd({"number": self._odd(2), "name": self._odd("n")})
            shown = rng.choice((facts, {"json": self._odd(facts)}, {"json": facts, "text": "t"}))
            agent.show(rng.choice(("stdout", "partial_result", "progress")), shown, seq)
        end = rng.random()
        if end < 0.5:
            agent.finish(
                rng.choice((self._odd({}), {"output": self._odd("o"), "exit_code": self._odd(0)}, "é" * 500_000))
            )
        elif end < 0.8:
            details = {"exit_code": self._odd(3), "output": self._odd("o")}
            agent.finish(None, Status.FAILED, Fault("tool.failed", "no", False, details))

    def _odd(self, value: Any) -> Any:
        return value if self.rng.random() < 0.5 else self.rng.choice(VALUES)

    # -- what they say -------------------------------------------------------------------------------------------------

    def message(self, kind: str, sender: str, to: str, request_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "protocol_version": "1.0", "message_id": self.uuid(), "from_agent": sender, "to_agent": to,
            "timestamp": "2026-01-19T04:21:04Z", "trace_id": self.uuid(), "request_id": request_id, "type": kind,
            "payload": payload,
        }  # fmt: skip
        if self.rng.random() < 0.2:
            size = self.rng.choice((1, 100, messages.MAX_CUSTOM_BYTES - 40, messages.MAX_CUSTOM_BYTES + 1))
            found["x_custom_fields"] = {"agent_id": self._odd("infra-1"), "x": "y" * size}
        return found

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def by_agent(self, kind: str) -> dict[str, Any]:
        """A message of an agent, about work that it was given."""
        rng = self.rng
        own = [work for work in self.given if work["to_agent"] == kind or rng.random() < 0.1]
        work = rng.choice(own) if own else None
        request_id = self.uuid() if work is None else work["request_id"]
        task_id = self.uuid() if work is None else work["payload"]["task_id"]
        which = rng.random()
        if which < 0.35:
            payload = {"task_id": task_id, "status": rng.choice(("running", "step_completed", "paused"))}
            payload |= {"progress_percent": rng.randrange(101), "step": self.step()}
            return self.message("work_status", kind, "orchestrator", request_id, payload)
        if which < 0.6:
            exit_code = rng.choice((0, 0, 1, 2**70))
            payload = {"task_id": task_id, "status": "failed" if exit_code else "success", "exit_code": exit_code}
            payload |= {"output": rng.choice(("done", "", "\0", "x" * 3000, "\ud83d\ude00"))}
            payload["resources_used"] = {
                "duration_seconds": rng.choice((0, 10**40)),
                "gpu_vram_mb": 0,
                "cpu_time_ms": 1,
            }
            return self.message("work_result", kind, "orchestrator", request_id, payload)
        if which < 0.95:
            code = rng.choice((*messages.CODES, 5999, 5000))
            context = {
                name: self._odd("x") for name in (messages.CODES[code].context if code in messages.CODES else "a")
            }
            payload = {
                "error_code": code,
                "error_message": "no",
                "error_context": rng.choice((context, {}, {"a": 10**40})),
            }
            return self.message("error", kind, "orchestrator", request_id, payload)
        return self.by_orchestrator()

    def step(self) -> dict[str, Any]:
        rng = self.rng
        text = rng.choice(("", "abcd", "é" * 10, "x" * 1000, "\U0001f600" * 5))
        start = rng.choice((0, 0, 4, 20, 1000, 2**40))
        size = len(text.encode()) + rng.choice((0, 0, 0, 1, -1))
        step: dict[str, Any] = {"number": rng.choice((1, 2, -1, 10**30)), "name": "s", "output": text}
        if rng.random() < 0.7:
            total = rng.choice((start + size, start + size + 10, 1020, 4))
            step["output_chunk"] = rng.choice(LABELS[:2] * 4 + LABELS).format(start, start + size, total)
        return step

    def by_orchestrator(self) -> dict[str, Any]:
        rng = self.rng
        if self.asked and rng.random() < 0.3:
            again = dict(rng.choice(self.asked))
            again["message_id"] = self.uuid()
            return again
        hints = rng.choice(({}, {"max_duration_seconds": rng.choice((1, 0.001, 1e15, 5))}, {"max_memory_mb": 1e15}))
        payload: dict[str, Any] = {"task_id": self.uuid(), "work_type": rng.choice((*WORK_TYPES, "mail", "none"))}
        payload |= {"parameters": rng.choice(({}, {"$hints": self._odd({})}, {"$agent_id": self._odd("infra-1")}))}
        payload["hints"] = hints
        found = self.message("work_request", "orchestrator", rng.choice(("infra", "code")), self.uuid(), payload)
        self.asked = [*self.asked[-20:], found]
        return found

    def registration(self, agent: str, kind: str) -> dict[str, Any]:
        rng = self.rng
        found: dict[str, Any] = {"agent_id": agent, "agent_type": kind, "supported_versions": ["1.0"]}
        found["work_types"] = rng.sample(WORK_TYPES, rng.randrange(len(WORK_TYPES) + 1))
        if rng.random() < 0.3:
            found["capacity"] = {"gpu_vram_mb": self._odd(1), "cpu": self._odd(1.5), "memory_mb": self._odd(10)}
        if rng.random() < 0.3:
            found["callback_url"] = rng.choice(
                ("http://127.0.0.1:9/cb", "http://127.0.0.1/é x", "http://[::1]:1/\u2028", "http://localhost/?a b#c",
                 "http://127.0.0.1:9/a\\b\x0b", "http://[", "http://127.0.0.1:99999/", "http://127.0.0.1:9/\x85")
            )  # fmt: skip
        found["version"] = self._odd("1.0.0")
        return found

    def body(self, message: dict[str, Any]) -> bytes:
        """It as it is, or wrong."""
        if self.rng.random() < 0.5:
            return json.dumps(message).encode()
        self.mutator._messages = [message]
        data = self.mutator.body()
        self.counts["wrong"] += 1
        return data

    def somebody(self) -> tuple[str, str, str]:
        """An id, a type and a token, which are not always of the same."""
        agent, kind = self.rng.choice(PEOPLE)
        token = self.tokens[agent]
        chance = self.rng.random()
        if chance < 0.05:
            token = self.rng.choice(("", "x", "é", "a b", "f" * 32, "x" * 5000))
        elif chance < 0.1:
            token = self.tokens[self.rng.choice(PEOPLE)[0]]
        return agent, kind, token

    # -- what they hear ------------------------------------------------------------------------------------------------

    def hear(self, message: dict[str, Any], about: object) -> None:
        """Every message of ours is Chiffon's, by Chiffon's own rules."""
        try:
            fields = messages.read_object(json.dumps(message).encode())
            messages.read_payload(messages.read_envelope(fields))
        except messages.Refused as refused:
            # Kept, not raised: whoever hears this may be a task of the edge.
            self.scene.raised.append(AssertionError(f"{refused.error} about {message!r:.800} after {about!r:.800}"))
        if message["type"] == "work_request":
            self.given = [*self.given[-20:], message]

    def answered(self, request: Request) -> None:
        """One answer over HTTP."""
        about = request.sent
        assert request.complete, f"no answer to {about!r:.1000}"
        assert request.status in STATUSES, f"{request.status} {request.content[:300]!r} to {about!r:.1000}"
        self.counts[str(request.status)] += 1
        content = json.loads(request.content)
        if request.status >= 400:
            assert content["type"] == "error", content
        if "messages" in content:
            for message in content["messages"]:
                self.hear(message, about)
        elif "payload" in content:
            self.hear(content, about)
        else:
            assert content.get("registered") or content.get("accepted"), content

    def heard_by_socket(self, socket: Socket) -> None:
        for text in socket.said:
            content = json.loads(text)
            if "registered" not in content:
                self.hear(content, "a socket")
        socket.said.clear()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def by_http(self) -> object:
        agent, kind, token = self.somebody()
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
        which = self.rng.random()
        if kind != "orchestrator" and agent not in self.edge.peers.agents and which < 0.7:
            body = json.dumps(self.registration(agent, kind)).encode()
            request = Request("POST", "/api/agent/register", body, headers)
        elif which < 0.55:
            message = self.by_orchestrator() if kind == "orchestrator" else self.by_agent(kind)
            request = Request("POST", "/api/agent/message", self.body(message), headers)
        elif which < 0.7:
            request = Request("POST", "/api/agent/register", self.body(self.registration(agent, kind)), headers)
        elif which < 0.95:
            wait = self.rng.choice(
                ("", "?wait=0", "?wait=1", "?wait=-1", "?wait=.", "?wait=٣", "?wait=1e9", "?wait=99999999")
            )
            request = Request("GET", f"/api/agent/messages{wait}", b"", headers)
        else:
            method = self.rng.choice(("PUT", "DELETE", "GET", "POST"))
            request = Request(
                method, self.rng.choice(("/api/agent", "/api/agent/", "/api/agent/x", "/api/agent/ws")), b"", headers
            )
        self.scene.ask(self.app, request, self.rng.choice((0, 0, 0.5)))
        if request.complete:
            self.answered(request)
        else:
            self.polls.append(request)
            if self.rng.random() < 0.2:
                request.give_up()
        return request.sent

    def by_socket(self) -> object:
        agent, kind, token = self.somebody()
        if len(self.sockets) < 5 and self.rng.random() < 0.3:
            socket = Socket("/api/agent/ws", [(b"authorization", f"Bearer {token}".encode())], {"who": (agent, kind)})
            self.sockets.append(self.scene.connect(self.app, socket))
            return "a socket"
        if not self.sockets:
            return None
        socket = self.rng.choice(self.sockets)
        agent, kind = socket.scope["who"]
        which = self.rng.random()
        if which < 0.05:
            socket.leave()
        elif which < 0.07:
            socket.say(b"\x00")
        else:
            message = self.registration(agent, kind)
            if which > 0.3:
                message = self.by_orchestrator() if kind == "orchestrator" else self.by_agent(kind)
            socket.say(self.body(message).decode("utf-8", "replace"))
            self.counts["frames"] += 1
        self.exchange.advance(0)
        self.heard_by_socket(socket)
        return socket.scope["who"]

    def by_queue(self) -> object:
        agent, kind, token = self.somebody()
        which = self.rng.random()
        signed = {"auth_token": self._odd(token)} if self.rng.random() < 0.2 else {"auth_token": token}
        if which < 0.7:
            message = self.by_orchestrator() if kind == "orchestrator" else self.by_agent(kind)
            letter = Letter(self, self.body({**message, **signed}), self.rng.choice((1, 1, 1, 11)))
            self.letters.append(letter)
            self.background.spawn(self.queue._take(letter))
            about = letter.data
        else:
            about = self.body({**self.registration(agent, kind), **signed})
            answer = self.queue._register if which < 0.9 else self.queue._heartbeat
            self.scene.spawn(self._answered_by(answer, about))
        self.exchange.advance(0)
        self.counts["letters"] += 1
        return about

    async def _answered_by(self, answer: Any, data: bytes) -> None:
        content = json.loads(await answer(data))
        if "registered" not in content:
            self.hear(content, data)

    def by_operator(self) -> object:
        which = self.rng.random()
        if which < 0.6:
            tool = self.rng.choice(
                ("infra-1/run", "infra-2/build", "code-1/run", "chiffon.infra/run", "chiffon.code/build")
            )
            value: dict[str, Any] = {"x": self._odd(1)}
            if self.rng.random() < 0.4:
                value |= {
                    "$hints": self._odd({"max_duration_seconds": self._odd(5)}),
                    "$agent_id": self._odd("infra-1"),
                }
            self.made.append(self.exchange.call(tool, value, correlation_id=self._text()))
            return value
        if which < 0.8 and self.made:
            made = self.rng.choice(self.made)
            if made.waits or made.answer:
                self.exchange.feed.feed([CancelRequested(0, "c", BOSS, call_id=made.call_id)])
            return "canceled"
        agent, kind = self.rng.choice(PEOPLE)
        if which < 0.9:
            self.exchange.revoke("chiffon", agent)
        self.issue(agent, kind)
        return f"another token for {agent}"

    def _text(self) -> str | None:
        return self.rng.choice((None, "é\0", self.uuid(), "x" * 100))

    def pass_time(self) -> object:
        seconds = self.rng.choice((0.1, 1, 5, 16, 31))
        self.exchange.advance(seconds)
        return seconds

    def step_once(self) -> None:
        acts = (
            self.by_http,
            self.by_http,
            self.by_http,
            self.by_socket,
            self.by_socket,
            self.by_queue,
            self.by_operator,
        )
        about = self.rng.choice(acts)() if self.rng.random() < 0.93 else self.pass_time()
        self.exchange.advance(0)
        self.scene.disk(self.rng)
        self.scene.judge(about)
        for socket in self.sockets:
            self.heard_by_socket(socket)
        self.sockets = [socket for socket in self.sockets if not socket.closed and not socket.denied]
        for request in [each for each in self.polls if each.complete]:
            self.polls.remove(request)
            if request.status:
                self.answered_late(request)
        peers = self.edge.peers
        everybody: list[Any] = [*peers.agents.values(), *peers.orchestrators.values()]
        for conversation in everybody:
            waiting = conversation.session.outbox
            assert len(waiting) <= outbox.MAX_MESSAGES
            assert waiting._bytes == sum(len(each.data) for each in waiting._waiting) <= outbox.MAX_BYTES
        assert len(peers.agents) <= len(PEOPLE)

    def answered_late(self, request: Request) -> None:
        if request.content:
            self.answered(request)

    def end(self) -> None:
        """Everybody leaves; every request was answered, every call ended."""
        for socket in self.sockets:
            socket.leave()
        self.exchange.disk_rests = False
        self.exchange.store()
        self.exchange.advance(60)
        for request in self.polls:
            assert request.complete, request.sent
        self.scene.judge_end()
        for letter in self.letters:
            assert len(letter.ends) <= 1
        assert not self.edge.peers.agents
        assert not self.edge.peers.orchestrators
        assert not self.queue._unanswered
        self.counts["calls"] += len(self.exchange.recorded(CallAccepted))
        for entry in self.exchange.recorded(CallSettled):
            self.counts[entry.status.value] += 1


async def _connection(world: World) -> tuple[asyncio.StreamReader, Writer]:
    if world.rng.random() < 0.2:
        raise ConnectionRefusedError
    reader = asyncio.StreamReader(limit=32_768, loop=world.scene.loop.as_asyncio)
    reader.feed_data(world.rng.choice(ANSWERS))
    if world.rng.random() < 0.8:
        reader.feed_eof()
    return reader, Writer(world)


def pieces(seed: int, outputs: int) -> int:
    """So many outputs in pieces whose labels lie, overlap, repeat and come in any order; how many."""
    rng = Random(seed)
    for _ in range(outputs):
        text = "".join(rng.choices("ab\u00e9\U0001f600", k=rng.randrange(1, 40)))
        data = text.encode()
        assembly = chunks.Assembly("s")
        shown, kept = "", {}
        for _ in range(rng.randrange(1, 12)):
            start, end = rng.randrange(len(data) + 1), rng.randrange(len(data) + 2)
            part = data[start:end].decode("utf-8", "ignore")
            label = rng.choice(LABELS[:2] * 10 + LABELS).format(start, start + len(part.encode()), len(data))
            with contextlib.suppress(messages.Refused):
                chunk = chunks.read(label, part)
                assert 0 <= chunk.start < chunk.end <= (chunk.total or chunk.end)
                assert chunk.total is None or len(part.encode()) == chunk.end - chunk.start
                shown += assembly.add(chunk)
                kept[chunk.start] = chunk
        ranges = sorted((chunk.start, chunk.end) for chunk in kept.values())
        assert all(before[1] <= after[0] for before, after in pairwise(ranges)), "what overlaps was kept"
        joined = "".join(kept[start].text for start, _ in ranges)
        assert joined.startswith(shown)
        if assembly.is_complete:
            assert assembly.text() == joined
            assert assembly.total is None or len(joined.encode()) == assembly.total
    return outputs


def story(seed: int, steps: int) -> Counter[str]:
    """One scene of so many steps; what happened how often."""
    world = World(seed)

    async def connect(*_: object, **__: object) -> Any:
        return await _connection(world)

    with world.scene, patch("asyncio.open_connection", connect):
        for _ in range(steps):
            world.step_once()
        world.end()
    return world.counts


def fuzz(seed: int, steps: int) -> int:
    """So many steps, in scenes; how many."""
    # The pause before a repeated refusal is not what is judged here.
    pause, bearer.MAX_DELAY_S = bearer.MAX_DELAY_S, 0.0  # type: ignore[misc]
    try:
        for number in range(-(-steps // STEPS)):
            story(seed * 1_000_003 + number, STEPS)
    finally:
        bearer.MAX_DELAY_S = pause  # type: ignore[misc]
    return -(-steps // STEPS) * STEPS
