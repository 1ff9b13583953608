"""Fuzzing of the MCP edge: wrong messages and wrong headers to ``/mcp``, of both eras, from known and unknown clients.

The exchange behind it is a whole one, in memory and in fake time. A function of its seed.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from starlette.types import ASGIApp

from tests.fuzz.asgi import Request, Scene
from tests.fuzz.mutations import VALUES, Mutator
from trunkline.edges.mcp.edge import MCP, McpEdge
from trunkline.effects import Deliver
from trunkline.model import Decision, Policy, Rule, Status, ToolDefinition, fault
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent

MODERN: Final = "2026-07-28"
STATUSES: Final = frozenset({0, 200, 202, 400, 401, 404, 405, 406, 408, 413, 415})
# After so many a scene is over: what it recorded is read at its end.
STEPS: Final = 250
ECHO, MAIL = "com.example.echo/say", "com.example.mail/send"
POLICY: Final = Policy((Rule("ask", "*", MAIL, Decision.ASK), Rule("all", "*", "*", Decision.ALLOW)), "fuzz")
CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {"url": {}}}


def messages() -> list[Any]:
    """Valid messages of both eras; those of the later one get their envelope when they are sent."""
    call = {"name": "com_example_echo__say", "arguments": {"text": "x"}}
    asked = {"name": "com_example_mail__send", "arguments": {"to": "me"}}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("initialize", {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "clientInfo": {"name": "x"}}),
        ("ping", {}),
        ("server/discover", {}),
        ("tools/list", {"cursor": None}),
        ("tools/call", call),
        ("tools/call", {**call, "_meta": {"progressToken": 1, "trunkline/idempotency_key": "k"}}),
        ("tools/call", {**call, "_meta": {"trunkline/timeout_ms": 500, "trunkline/correlation_id": "c"}}),
        ("tools/call", asked),
        ("tools/call", {**asked, "requestState": "s", "inputResponses": {"approval": {"action": "decline"}}}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "trunkline://trajectories/c"}),
        ("resources/read", {"uri": "trunkline://spaces/x/y"}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
    ]
    found = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": params} for method, params in requests]
    notices: list[tuple[str, dict[str, Any]]] = [
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": 1, "reason": "x"}),
    ]
    found += [{"jsonrpc": "2.0", "method": method, "params": params} for method, params in notices]
    return [*found, {"jsonrpc": "2.0", "id": 3, "result": {}}]


class World:
    """One exchange and those who talk to it."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.mutator = Mutator(seed, messages())
        self.rng = self.mutator.rng
        self.seen: Counter[str] = Counter()
        self.open: list[Request] = []
        exchange = scene.exchange
        (edge,) = (running for running in exchange.edges._running.values() if isinstance(running, McpEdge))
        self.door = edge.doors()[0].taking["POST", "/mcp"]
        self.tokens = [exchange.token("mcp", name) for name in ("a", "b")]
        self.sessions = [self._begun(token) for token in self.tokens]
        echo = ToolDefinition(ECHO, "says it", ANY_OBJECT, side_effects=False, capabilities=("cancellation",))
        exchange.attach("com.example.echo", echo, deliver=self._deliver)
        exchange.attach("com.example.mail", "send", deliver=self._deliver)

    def _begun(self, token: str) -> str:
        body = json.dumps(messages()[0]).encode()
        headers = [(b"authorization", b"Bearer " + token.encode()), *self._plain()]
        asked = self._ask(Request("POST", "/mcp", body, headers))
        return asked.headers[b"mcp-session-id"].decode()

    def _plain(self) -> list[tuple[bytes, bytes]]:
        accept = b"application/json, text/event-stream"
        return [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"accept", accept)]

    def _deliver(self, agent: AttachedAgent, effect: Deliver) -> None:
        kind = self.rng.random()
        if kind < 0.3:
            shown = self.rng.choice(VALUES)
            agent.show("status", {"text": shown, "percent": 5} if isinstance(shown, str) else {"json": shown})
        if kind < 0.5:
            agent.finish(effect.input)
        elif kind < 0.6:
            agent.finish(self.rng.choice(VALUES))
        elif kind < 0.7:
            agent.finish(None, Status.FAILED, fault("tool.failed"))

    def step(self) -> None:
        """One request, or something else that happens."""
        rng = self.rng
        for question in self.scene.exchange.views.questions():
            if rng.random() < 0.2:
                self.scene.exchange.answer(question.approval_id, approved=rng.random() < 0.7)
        if self.open and rng.random() < 0.3:
            self.open.pop(rng.randrange(len(self.open))).give_up()
        self.scene.disk(rng)
        self._send()
        self.scene.judge(self.open[-1].sent if self.open else "")

    def _send(self) -> None:
        rng = self.rng
        who = rng.randrange(2)
        body, headers = self._body(), self._plain()
        token = self.tokens[who] if rng.random() < 0.97 else "tlk_wrong"
        headers.append((b"authorization", b"Bearer " + token.encode()))
        if self._is_modern:
            headers += self._routing(body)
        else:
            owner = who if rng.random() < 0.95 else 1 - who
            headers.append((b"mcp-session-id", self.sessions[owner].encode()))
        if rng.random() < 0.1:
            headers = self._spoiled(headers)
        method = "POST" if rng.random() < 0.95 else rng.choice(("GET", "DELETE", "PUT"))
        if method == "DELETE":
            self.sessions[who] = self._begun(self.tokens[who])
        asked = self._ask(Request(method, "/mcp", body, headers), rng.choice((0, 0, 0.1, 20)))
        self._judge(asked)

    def _ask(self, request: Request, wait_s: float = 0.0) -> Request:
        """As the listener does: what is taken without a task has none, until it wants one."""

        def serve(app: ASGIApp) -> None:
            self.scene.spawn(app(request.scope, request.receive, request.send))

        method, _, body = request.sent
        comes_whole = method == "POST" and self.rng.random() < 0.9
        if comes_whole and self.door.try_take(request.scope, body, serve, lambda: None):
            self.seen["without a task"] += 1
            self.scene.exchange.advance(wait_s)
            return request
        return self.scene.ask(self.door, request, wait_s)

    def _judge(self, asked: Request) -> None:
        assert asked.status in STATUSES, (asked.status, asked.sent)
        self.seen[str(asked.status)] += 1
        if not asked.complete:
            self.open.append(asked)
        elif asked.headers.get(b"content-type") == b"application/json" and asked.status != 401:
            said = json.loads(asked.content)
            assert said["jsonrpc"] == "2.0"
            assert ("result" in said) != ("error" in said)
            self.seen["error" if "error" in said else "result"] += 1
            assert said.get("error", {}).get("code") != -32603 or "is" in said["error"]["message"]

    @property
    def _is_modern(self) -> bool:
        return self._modern

    def _body(self) -> bytes:
        self._modern = self.rng.random() < 0.5
        body = self.mutator.body()
        if not self._modern or self.rng.random() < 0.1:
            return body
        try:
            value = json.loads(body)
            meta = {f"io.modelcontextprotocol/{key}": given for key, given in self._envelope()}
            value["params"].setdefault("_meta", {}).update(meta)
            return json.dumps(value).encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return body

    def _envelope(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = [("protocolVersion", MODERN), ("clientCapabilities", CAPABILITIES)]
        if self.rng.random() < 0.1:
            at = self.rng.randrange(2)
            found[at] = (found[at][0], self.rng.choice(VALUES))
        return found

    def _routing(self, body: bytes) -> list[tuple[bytes, bytes]]:
        try:
            value = json.loads(body)
            method, params = value["method"], value["params"]
            name = params.get("name", params.get("uri"))
            found = [(b"mcp-protocol-version", MODERN.encode()), (b"mcp-method", str(method).encode("latin-1"))]
            return [*found, (b"mcp-name", str(name).encode("latin-1"))] if name is not None else found
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return [(b"mcp-protocol-version", MODERN.encode())]

    def _spoiled(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        at = rng.randrange(1, len(headers))
        name, value = headers[at]
        wrong = rng.choice((b"", b"x", value * 2, rng.randbytes(8).replace(b"\n", b""), b"=?base64?e?=", value.upper()))
        return [*headers[:at], *rng.choice(([], [(name, wrong)], [(name, value), (name, wrong)])), *headers[at + 1 :]]


def story(seed: int, steps: int) -> Counter[str]:
    """So many requests to one exchange; what came of them."""
    with Scene((MCP,), policy=POLICY) as scene:
        scene.spawn(scene.exchange.edges.start())
        scene.exchange.advance(0)
        world = World(scene, seed)
        for _ in range(steps):
            world.step()
        for asked in world.open:
            asked.give_up()
        scene.judge_end()
        return world.seen


def fuzz(seed: int, steps: int) -> int:
    """At least so many requests."""
    for number in range(-(-steps // STEPS)):
        story(seed * 1000 + number, STEPS)
    return steps
