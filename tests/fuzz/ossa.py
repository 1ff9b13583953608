"""Fuzzing of the OSSA edge: every field of every type of message, by POST, by WebSocket and by hand.

Agents ask, answer, stream, publish and acknowledge, and what they say is wrong in many ways: before it is signed, so
that it gets in, and after, so that it does not; encrypted, and what is encrypted is wrong. The exchange behind it is a
whole one, in memory and in fake time. A function of its seed. ``test_ossa`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final
from unittest.mock import patch

import msgspec

from tests.fuzz.asgi import LONG_S, Request, Socket
from tests.fuzz.mutations import VALUES, Mutator
from tests.ossa_messages import signed
from tests.unit.edges.ossa.kit import OBJECT, Agent, Kit, finished
from trunkline.edges import bearer, client
from trunkline.edges.ossa import messages, reading, sealing, signing
from trunkline.edges.ossa.messages import CODES, TYPES, Refused
from trunkline.effects import Deliver
from trunkline.entries import CallAccepted, CallSettled
from trunkline.events import CancelRequested
from trunkline.ledger.verify import verify
from trunkline.model import Status
from trunkline.testing.memory import BOSS, AttachedAgent

# After so many a world is over.
STEPS: Final = 250
# Stands in every message: nothing that is refused may come back with it.
CANARY: Final = "canary-7f3a"
NAMES: Final = ("alice", "bob", "carol", "dave")
TOPICS: Final = ("news.today", "news.old", "a", "a.b.c", "news.today.dlq")
THREADS: Final = ("c1", "c2", "c3", "correlation-123", "x" * 128)
# What is written into the parts of an encrypted payload.
HEADS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"alg": "none"}, {"alg": "dir"}, {"enc": "A128GCM"}, {"zip": "DEF"}, {"epk": {}}, {"epk": {"kty": "EC"}},
    {"crit": ["x"]}, {"alg": 5}, {"epk": {"kty": "OKP", "crv": "X25519", "x": ""}}, {"messageId": 5}, {"kid": None},
    {"epk": {"kty": "OKP", "crv": "X25519", "x": "A" * 43}}, {"apu": "\u00e9"}, {"p2c": 10**9}, {"enc": ["A256GCM"]},
)  # fmt: skip


class World:
    """The edge, its peers, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed, [])
        self.rng = rng = self.mutator.rng
        self.counts: Counter[str] = Counter()
        limit = rng.choice((100_000, 100_000, 40))
        self.kit = Kit(rate={"worker": limit}, actions={"mail": "com.other/show"})
        self.kit.__enter__()
        self.exchange = self.kit.exchange
        self.agents = {name: self.kit.agent(name) for name in NAMES}
        self.agents["url"] = self.kit.agent("url", url="https://url.example/in")
        self.stranger = signing.key_of(rng.randbytes(32))
        self.sockets: list[tuple[Agent, Socket]] = []
        self.posts: list[Request] = []
        # What agents were sent, and streams that they began: to be answered, or gone on with.
        self.given: list[tuple[Agent, dict[str, Any]]] = []
        self.begun: list[tuple[Agent, dict[str, Any], int]] = []
        self.asked: list[tuple[Agent, dict[str, Any]]] = []
        self.exchange.attach("com.other", "show", deliver=self._show)
        self._patches = (
            patch.object(client, "request", self._request),
            # The pause before a repeated refusal is not what is judged here.
            patch.object(bearer, "MAX_DELAY_S", 0.0),
        )
        for one in self._patches:
            one.start()
        for name in NAMES:
            self.connect(self.agents[name])

    def close(self) -> None:
        for one in self._patches:
            one.stop()
        self.kit.__exit__()
        self.exchange.close()

    def _show(self, agent: AttachedAgent, effect: Deliver) -> None:
        rng = self.rng
        for seq in range(1, rng.randrange(1, 4)):
            agent.show("logs", rng.choice(({"text": "t"}, {"json": self._odd({})}, {"json": None})), seq)
        end = rng.random()
        if end < 0.6:
            agent.finish(rng.choice((self._odd({}), {"big": 2**60}, {"text": "é" * 600_000}, {CANARY: 1})))
        elif end < 0.8:
            agent.finish(None, Status.FAILED)

    async def _request(self, _url: str, _method: str, *, body: bytes, **_: Any) -> client.Answer:
        rng = self.rng
        agent = self.agents["url"]
        self.hear(agent, json.loads(body), body)
        if rng.random() < 0.2:
            raise client.Unreachable("away")
        answer = self.body(agent, self._answer(agent)) if rng.random() < 0.7 else rng.choice((b"", b"[", b"\xff" * 99))
        return client.Answer(rng.choice((200, 200, 202, 204, 400, 500, 503)), answer)

    def _odd(self, value: Any) -> Any:
        return value if self.rng.random() < 0.5 else self.rng.choice(VALUES)

    # -- what they say -------------------------------------------------------------------------------------------------

    def message(self, agent: Agent) -> dict[str, Any]:
        """A valid message, of any type."""
        rng = self.rng
        kind = rng.choice((*TYPES, "request", "request", "command", "event", "answer", "stream", "again"))
        if kind == "again" and self.asked:
            return rng.choice([one for who, one in self.asked if who is agent] or [agent.message("heartbeat")])
        if kind == "answer":
            return self._answer(agent)
        if kind in {"stream", "stream_start", "stream_data", "stream_end"}:
            return self._stream(agent)
        somebody = (*NAMES, *NAMES, "com.other", "url", "zed", list(NAMES), ["trunkline"], ["bob", "zed"])
        to: Any = "trunkline" if rng.random() < 0.2 else rng.choice(somebody)
        action = rng.choice(("echo", "echo", "echo", "echo", "show", "mail", "com.other/show", "nothing", CANARY))
        more: dict[str, Any] = {}
        if kind == "event":
            to, more = "trunkline", {"topic": rng.choice(TOPICS), "qos": rng.randrange(3)}
        if kind == "error":
            info = {"code": rng.choice(list(CODES)), "message": CANARY, "timestamp": self.kit.stamp()}
            more["body"] = {"error": {**info, "details": self._odd({"a": 1})}}
        if rng.random() < 0.5:
            more["correlationId"] = rng.choice(THREADS)
        if rng.random() < 0.2:
            more["priority"] = rng.randrange(10)
        if rng.random() < 0.1:
            more["expiresAt"] = self.kit.stamp(rng.choice((-10, 1, 100, 1e6)))
        if rng.random() < 0.1:
            more["timestamp"] = self.kit.stamp(rng.choice((-86_500, -86_000, 299, 301)))
        if rng.random() < 0.1:
            more[rng.choice(("trace", "instance", ""))] = self._odd({"x": CANARY})
        payload: Any = rng.choice(({"x": CANARY}, None, [1], "text", {"n": 0.1}, {"messageId": self.kit.new_id()}))
        if to == "trunkline" and kind in {"request", "command"}:
            action, payload = self._own_action()
        found = agent.message(kind, to, action, payload, **more)
        self.asked = [*self.asked[-30:], (agent, found)]
        return found

    def _own_action(self) -> tuple[str, Any]:
        rng = self.rng
        offer = {"name": rng.choice(("echo", "other", CANARY)), "input_schema": self._odd(OBJECT), "description": "d"}
        return rng.choice(
            (
                ("register", {"actions": [offer, self._odd(offer)], "replace": rng.random() < 0.3}),
                ("register", {"actions": [{"name": "echo", "input_schema": OBJECT, "side_effects": False}]}),
                ("subscribe", {"topic": rng.choice((*TOPICS, "#", "news.*", "*.b.#")), "qos": rng.randrange(3)}),
                ("unsubscribe", {"subscription": self._odd("sub-1")}),
                ("publish", {"topic": rng.choice(TOPICS), "payload": {"x": CANARY}}),
                ("com.other/show", {}),
            )
        )

    def _answer(self, agent: Agent) -> dict[str, Any]:
        """An answer to something that somebody was sent; mostly to the right one."""
        rng = self.rng
        own = [one for who, one in self.given if who is agent or rng.random() < 0.1]
        if not own:
            return agent.message("response", payload={}, correlationId=rng.choice(THREADS))
        header = rng.choice(own)["header"]
        if header["type"] in {"event", "command_result", "error"} or rng.random() < 0.1:
            kind = rng.choice(("acknowledgment", "acknowledgment", "negative_acknowledgment"))
            return agent.message(kind, payload={"messageId": header["messageId"]})
        more: dict[str, Any] = {"correlationId": header.get("correlationId", "c1")}
        kind = rng.choice(("response", "response", "command_result", "error"))
        if kind == "error" or rng.random() < 0.1:
            info = {"code": rng.choice(list(CODES)), "message": "no", "timestamp": self.kit.stamp()}
            more["body"] = {"error": info}
        return agent.message(kind, "trunkline", "echo", self._odd({"y": CANARY}), **more)

    def _stream(self, agent: Agent) -> dict[str, Any]:
        rng = self.rng
        own = [one for one in self.begun if one[0] is agent]
        if not own or rng.random() < 0.3:
            more: dict[str, Any] = {"streamId": rng.choice(("s1", "s2", self.kit.new_id()))}
            if rng.random() < 0.4:
                threads = [one["header"].get("correlationId", "c") for who, one in self.given if who is agent]
                more["correlationId"] = rng.choice(threads or ["c1"])
            to = rng.choice(("bob", "carol", ["bob", "carol"], "trunkline", "zed"))
            found = agent.message("stream_start", to, rng.choice(("feed", "echo")), {"contentType": "text/x"}, **more)
            self.begun = [*self.begun[-20:], (agent, found, 0)]
            return found
        begun = rng.choice(own)
        _, start, count = begun
        self.begun.remove(begun)
        header = {name: start["header"][name] for name in ("streamId", "correlationId") if name in start["header"]}
        sequence = count + rng.choice((0, 0, 0, 0, 1, 2, -1 if count else 0))
        kind = "stream_end" if rng.random() < 0.2 else "stream_data"
        if kind == "stream_data":
            self.begun.append((agent, start, max(count, sequence + 1)))
        to = [one["agentId"] for one in start["header"]["recipient"]] if isinstance(
            start["header"]["recipient"], list) else start["header"]["recipient"]["agentId"]  # fmt: skip
        return agent.message(kind, to, start["body"]["action"], {"n": count, "x": CANARY}, sequence=sequence, **header)

    def body(self, agent: Agent, message: dict[str, Any]) -> bytes:
        """It as it goes out: as it is, encrypted, wrong and signed, signed and then wrong, or signed by another."""
        rng = self.rng
        which = rng.random()
        if rng.random() < 0.1:
            message = self._sealed(agent, message)
        if which < 0.45:
            return self._signed(message, agent.key)
        self.counts["wrong"] += 1
        if which < 0.75:
            return self._wrong_and_signed(agent, message)
        self.mutator._messages = [json.loads(self._signed(message, agent.key)) if which < 0.9 else message]
        if which < 0.95:
            return self.mutator.body()
        other = rng.choice((self.stranger, self.agents[rng.choice(NAMES)].key))
        odd = {"alg": rng.choice(("none", "HS256", "EdDSA", "Ed25519", "", None)), "typ": self._odd(signing.TYPE)}
        return self._signed(message, other, **rng.choice(({}, odd, {"kid": agent.key.kid}, {"crit": ["b64"]})))

    def _signed(self, message: dict[str, Any], key: signing.Key, **header: Any) -> bytes:
        """With a signature, if it can have one."""
        try:
            made = signed(message, key, **header)
        except (ValueError, RecursionError, Refused):
            return json.dumps(message).encode()
        # Now and then it ends in bits that no writer sets.
        return made if self.rng.random() < 0.97 else re.sub(rb'.("})$', rb"B\1", made)

    def _wrong_and_signed(self, agent: Agent, message: dict[str, Any]) -> bytes:
        self.mutator._messages = [message]
        data = self.mutator.body()
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return data
        return self._signed(value, agent.key) if isinstance(value, dict) else data

    def _sealed(self, agent: Agent, message: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng
        sealed = agent.sealed(message)
        sealed["header"] = {**sealed["header"], "sensitive": True}
        jwe: Any = sealed["body"]["payload"][sealing.MEMBER]
        which = rng.random()
        if which < 0.5:
            return sealed
        parts = jwe.split(".")
        if which < 0.6:
            parts[rng.randrange(5)] = rng.choice(("", "A", "AAAA", "é", "=", "A" * 43, "." * 3, "-" * 16))
            jwe = ".".join(parts)
        elif which < 0.8:
            head = {**json.loads(signing.decoded(parts[0])), **rng.choice(HEADS)}
            jwe = ".".join((signing.encoded(json.dumps(head).encode()), *parts[1:]))
        elif which < 0.9:
            raw = rng.choice(
                (b"[" * 50_000, b"{}", b"null", b"\xff", b'{"alg":' * 20_000, b'{"a":1,"a":2}', b"9" * 5000)
            )
            jwe = ".".join((signing.encoded(raw), *parts[1:]))
        else:
            recipients: Any = rng.choice(([], [{}], [{"header": {}, "encrypted_key": "A"}], [5], None, [{}] * 200))
            jwe = {"protected": parts[0], "recipients": recipients, "iv": parts[2], "ciphertext": parts[3]}
            jwe["tag"] = self._odd(parts[4])
        sealed["body"]["payload"] = {sealing.MEMBER: jwe}
        return sealed

    # -- what they hear ------------------------------------------------------------------------------------------------

    def hear(self, agent: Agent | None, message: dict[str, Any], about: object) -> None:
        """Every message of ours is OSSA's by OSSA's own rules, and signed."""
        data = json.dumps(message).encode()
        try:
            read = reading.read(data)
            signing.check(data, signing.read_claim(str(read.signature)), self.kit.peers.own.signs.public)
        except Refused as refused:
            # Kept, not raised: whoever hears this may be a task of the edge.
            self.kit.raised.append(AssertionError(f"{refused} about {message!r:.800} after {about!r:.800}"))
            return
        self.counts[read.type] += 1
        if read.error is not None:
            self.counts[str(read.error.code)] += 1
            assert read.error.code in CODES
        if read.type in {"request", "event", "command_result"} and agent is not None:
            self.given = [*self.given[-30:], (agent, message)]

    def hear_all(self, agent: Agent, told: list[tuple[messages.Message, bytes]], about: object) -> None:
        for _, data in told:
            self.hear(agent, json.loads(data), about)

    def refused(self, message: dict[str, Any], about: bytes) -> None:
        """What is said of a message that was not taken has nothing of it but names."""
        shown = {**message["header"]}
        for name in ("recipient", "sender", "correlationId"):
            shown.pop(name, None)
        text = json.dumps([shown, message["body"]])
        assert CANARY not in text, f"{text[:600]} to {about!r:.800}"

    def answered(self, request: Request, agent: Agent) -> None:
        about = request.sent[2]
        assert request.status in {200, 202, 404, 405, *CODES}, f"{request.status} to {about!r:.1000}"
        self.counts[f"http {request.status}"] += 1
        if not request.content:
            return
        content = json.loads(request.content)
        for one in content if isinstance(content, list) else [content]:
            self.hear(agent, one, about)
            if one["header"]["type"] == "error" and one["header"]["sender"]["agentId"] == "trunkline":
                self.refused(one, about)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def connect(self, agent: Agent) -> None:
        socket = self.kit.socket()
        self.sockets.append((agent, socket))
        self.kit.say(socket, agent.signed(agent.message("heartbeat")))
        offered = {"actions": [{"name": "echo", "input_schema": OBJECT, "side_effects": self.rng.random() < 0.5}]}
        self.kit.say(socket, agent.signed(agent.message("request", "trunkline", "register", offered)))

    def by_post(self) -> object:
        agent = self.rng.choice(list(self.agents.values()))
        request = self.kit.post(self.body(agent, self.message(agent)))
        if request.complete:
            self.answered(request, agent)
        elif self.rng.random() < 0.2:
            request.give_up()
        else:
            request.scope["who"] = agent
            self.posts.append(request)
        return request.sent

    def by_socket(self) -> object:
        rng = self.rng
        open_ = [(agent, socket) for agent, socket in self.sockets if not socket.closed]
        if len(open_) < len(NAMES) or rng.random() < 0.05:
            self.connect(self.agents[rng.choice(NAMES)])
            return "a socket"
        agent, socket = rng.choice(open_)
        which = rng.random()
        if which < 0.03:
            socket.leave()
        elif which < 0.05:
            socket.say(b"\x00")
        else:
            data = self.body(agent, self.message(agent))
            socket.say(data.decode("utf-8", "replace"))
            self.counts["frames"] += 1
        self.exchange.advance(0)
        self.heard_by_sockets()
        return agent.name

    def heard_by_sockets(self) -> None:
        for agent, socket in self.sockets:
            for text in socket.said:
                self.hear(agent, json.loads(text), "a socket")
            socket.said.clear()
        self.sockets = [one for one in self.sockets if not one[1].closed]

    def by_hand(self) -> object:
        """Without a rim: what is not refused raises nothing."""
        agent = self.rng.choice(list(self.agents.values()))
        data = self.body(agent, self.message(agent))
        peers = self.kit.peers
        if len(data) < 60_000:
            try:
                peers.receive(finished(peers.identities.read(data)), lambda told: self.hear_all(agent, told, data))
            except Refused as refused:
                self.refused(json.loads(peers.refusal(refused, "memory")), data)
        return data

    def by_operator(self) -> object:
        rng = self.rng
        which = rng.random()
        if which < 0.5:
            tool = rng.choice(("bob/echo", "carol/echo", "alice/echo", "url/echo"))
            context = msgspec.Raw(json.dumps({"ossa": self._odd({"priority": self._odd(3)})}).encode())
            self.exchange.call(tool, self._odd({}), correlation_id=rng.choice(THREADS), context=context)
        elif which < 0.54:
            agent = self.agents[rng.choice(NAMES)]
            self.exchange.revoke("ossa", agent.name)
            self.agents[agent.name] = self.kit.agent(agent.name)
        elif which < 0.65:
            for call_id in list(self.exchange.hub.state.calls)[:3]:
                self.exchange.feed.feed([CancelRequested(0, "stop", BOSS, call_id=call_id)])
        else:
            self.exchange.advance(rng.choice((0.1, 1, 5, 31, 100, 301)))
        self.exchange.advance(0)
        self.heard_by_sockets()
        return which

    def step(self) -> None:
        ways = (self.by_post, self.by_post, self.by_socket, self.by_socket, self.by_hand, self.by_operator)
        about = self.rng.choice(ways)()
        self.exchange.advance(0)
        self.judge(about)
        for request in [one for one in self.posts if one.complete]:
            self.posts.remove(request)
            self.answered(request, request.scope["who"])

    def judge(self, about: object) -> None:
        if self.kit.raised:
            raise AssertionError(f"{self.kit.raised[0]!r} after {about!r:.1500}") from self.kit.raised[0]
        assert self.exchange.died is None, f"{self.exchange.died} after {about!r:.1500}"
        assert not self.exchange.feed._defects, f"{self.exchange.feed._defects} after {about!r:.1500}"

    def end(self) -> None:
        """Everybody goes; every call has one outcome, nobody waits, nothing is left."""
        for _, socket in self.sockets:
            socket.leave()
        self.exchange.advance(LONG_S)
        for call_id in list(self.exchange.hub.state.calls):
            self.exchange.feed.feed([CancelRequested(0, "stop", BOSS, call_id=call_id)])
        self.exchange.advance(LONG_S)
        self.judge("the end")
        for request in self.posts:
            assert request.complete, f"nobody answered {request.sent!r:.1000}"
        accepted = [entry.call_id for entry in self.exchange.recorded(CallAccepted)]
        settled = [entry.call_id for entry in self.exchange.recorded(CallSettled)]
        assert sorted(accepted) == sorted(settled), "a call has no outcome, or two"
        assert not self.kit.edge._server._posts
        for peer in self.kit.peers.by_agent.values():
            assert not len(peer.asker), f"{peer.agent_id} waits for ever"
            assert not peer.asker._by_correlation
            assert not len(peer.streams)
            if peer.attachment is not None:
                provider = peer.attachment.provider
                assert not provider._requests, "a place that is never free again"
                assert not provider._by_call
                assert not provider._calls_waiting._correlations
        assert not self.exchange.views.open_steps("ossa.streams")
        verify(self.exchange.disk.path("ledger.sqlite"), vfs=self.exchange.disk.vfs)


def story(seed: int, steps: int) -> Counter[str]:
    """One world, and so many steps in it; what happened how often."""
    world = World(seed)
    try:
        for _ in range(steps):
            world.step()
        world.end()
    finally:
        world.close()
    return world.counts


def fuzz(seed: int, steps: int) -> int:
    """At least so many steps; how many."""
    worlds = -(-steps // STEPS)
    for number in range(worlds):
        story(seed * 1_000_003 + number, STEPS)
    return worlds * STEPS


def fields(seed: int, share: int = 1) -> int:
    """Each field of each type of message with each of the odd values, signed by its sender; how many.

    With a ``share``, every so many of them; so many seeds in a row are all.
    """
    world = World(seed)
    count = 0
    try:
        alice = world.agents["alice"]
        for kind in TYPES:
            more: dict[str, Any] = {"topic": "a"} if kind == "event" else {}
            if kind.startswith("stream"):
                more |= {"streamId": "s", "sequence": 0}
            if kind == "error":
                more["body"] = {"error": {"code": 400, "message": "no", "timestamp": world.kit.stamp(), "details": 1}}
            more |= {
                "correlationId": "c",
                "priority": 3,
                "expiresAt": world.kit.stamp(50),
                "qos": 1,
                "sensitive": False,
            }
            message = alice.message(kind, "bob", "echo", {"x": 1}, **more)
            count += _fields(world, alice, message, seed % share, share)
        world.end()
    finally:
        world.close()
    return count


def signature_headers() -> int:
    """Every value in each member of a signature's header, also one that JSON can write and UTF-8 cannot; how many."""
    world = World(0)
    cases = [(name, value) for name in ("alg", "kid", "typ", "crit", "") for value in (*VALUES, "\ud800", ["EdDSA"])]
    try:
        alice = world.agents["alice"]
        for name, value in cases:
            message = alice.message("request", "bob", "echo", {"x": 1})
            data = signed(message, alice.key, **{name: value})
            request = world.kit.post(data)
            if request.complete:
                world.answered(request, alice)
            world.judge(data)
        world.end()
    finally:
        world.close()
    return len(cases)


def _fields(world: World, alice: Agent, message: dict[str, Any], first: int, share: int) -> int:
    count = len(world.mutator._places(message))
    cases = [(at, value) for at in range(count) for value in VALUES][first::share]
    for at, value in cases:
        made = json.loads(json.dumps(message))
        made["header"]["messageId"] = world.kit.new_id()
        part, key = world.mutator._places(made)[at]
        part[key] = value
        data = world._signed(made, alice.key)
        request = world.kit.post(data)
        if request.complete:
            world.answered(request, alice)
        world.judge(data)
    return len(cases)
