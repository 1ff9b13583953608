"""Fuzzing of what agents say about themselves and their work: tools and schemas, streams, results, metrics, errors.

Agents on the OpenSentience edge of a whole exchange (``all_edges``) say it; people call their tools, look at every page
and watch. What must hold: nothing fatal, every answer and every line of ``/v1/watch`` is JSON, the record verifies.
``manifests`` judges the reader of manifests. Functions of their seed. ``test_agents`` does some, ``tools/soak.py`` goes
on.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.fuzz import all_edges
from tests.fuzz.all_edges import Agent, Town
from tests.fuzz.asgi import Request
from tests.fuzz.masker import Maker
from tests.fuzz.mutations import VALUES, Mutator
from tests.unit.edges.opensentience.core_side import envelope, framed
from trunkline.edges.opensentience import manifest
from trunkline.errors import ConfigError

STEPS: Final = 250
IDS: Final = ("com.a", "com.b", "com.c")
NAMES: Final = ("say", "write", "ask", "a.b", "x" * 64, "é", "", "a/b")
SCHEMAS: Final[tuple[Any, ...]] = (
    {"type": "object"}, {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}},
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/x"}}},
    {"$ref": "http://example.com/schema"}, {"$ref": "#"}, {"type": "object", "minProperties": 10**30}, {"enum": []},
    {"type": ["object", "null"]}, {"type": "object", "patternProperties": {"[": {}}}, {"$schema": "x"}, {"$id": "\0"},
    {"allOf": [{"not": {"not": {}}}] * 30}, {"type": "object", "default": {"password": "hunter2hunter2"}}, True, False,
    {"type": "object", "properties": {"x": {"const": 1e308}}, "required": ["x", "x"]}, {"multipleOf": 0}, {"type": "x"},
    {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}}, {"if": {}, "then": False},
    {"$dynamicRef": "#a", "$dynamicAnchor": "a"}, {"unevaluatedProperties": False}, {"dependentSchemas": {"a": {}}},
)  # fmt: skip
PAGES: Final = (
    "/v1/tools", "/v1/agents", "/v1/calls", "/v1/approvals", "/metrics", "/v1/status", "/v1/calls/{call}",
    "/v1/ledger?call_id={call}", "/v1/ledger?correlation_id={chat}", "/v1/ledger/{chat}/replay.jsonl", "/v1/policy",
)  # fmt: skip


class Sayer:
    """Agents, their callers and who looks at the pages."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.rng = town.rng
        self.agents = {agent_id: Agent(town, agent_id) for agent_id in IDS}
        # Calls that each was given: how to answer them.
        self.given: dict[str, list[dict[str, Any]]] = {agent_id: [] for agent_id in IDS}
        self.called: list[str] = ["none"]
        self.open: list[Request] = []

    # -- what they say -------------------------------------------------------------------------------------------------

    def body(self) -> Any:
        """Anything that JSON can be, often with a secret in it."""
        which = self.rng.random()
        if which < 0.5:
            return Maker(self.rng).value(self.rng.randrange(5))
        return self.town.odd({"text": "x"})

    def schema(self) -> Any:
        return self.town.odd(self.rng.choice(SCHEMAS))

    def tools(self, agent_id: str) -> dict[str, Any]:
        rng, odd = self.rng, self.town.odd
        found = []
        for name in rng.sample(NAMES, rng.randrange(4)):
            tool: dict[str, Any] = {
                "tool_id": odd(f"{agent_id}/{name}"), "name": odd(name), "description": odd("does it"),
                "input_schema": self.schema(),
            }  # fmt: skip
            more = {
                "output_schema": self.schema(), "capabilities": odd(["cancellation"]), "tags": odd(["t"]),
                "side_effects": odd(True), "requires_directive": odd(False), "timeout_ms": odd(1000),
                "required_permissions": odd(["a:b"]),
            }  # fmt: skip
            tool |= {key: value for key, value in more.items() if rng.random() < 0.25}
            found.append(tool)
        plain = {"tool_id": f"{agent_id}/say", "name": "say", "description": "d", "input_schema": {"type": "object"}}
        return {"tools": [plain, *found], "replace": rng.random() < 0.3}

    def message(self, agent_id: str) -> dict[str, Any]:
        """One message of an agent; mostly right in its form, and with anything where anything may stand."""
        rng, odd = self.rng, self.town.odd
        given = self.given[agent_id]
        call = rng.choice(given) if given and rng.random() < 0.95 else None
        call_id = str(uuid.UUID(int=rng.getrandbits(128))) if call is None else call["payload"]["call_id"]
        ids = {name: call[name] for name in ("request_id", "correlation_id") if call and name in call}
        which = rng.random()
        if which < 0.2:
            return envelope("agent.tools.register", self.tools(agent_id))
        if which < 0.45:
            data = rng.choice(({"text": odd("t")}, {"json": self.body()}, self.body()))
            channel = odd(rng.choice(("stdout", "stderr", "progress", "partial_result", "log")))
            payload = {"call_id": call_id, "seq": odd(rng.randrange(1, 5)), "channel": channel, "data": data}
            return envelope("agent.tool.stream", payload, **ids)
        if which < 0.75:
            return envelope("agent.tool.result", self.result(call_id), **ids)
        if which < 0.8:
            payload = {"session_id": odd("s"), "uptime_ms": odd(1), "inflight_calls": odd(0), "status": odd("ok")}
            return envelope("agent.heartbeat", {**payload, "details": self.body()})
        if which < 0.85:
            return envelope("agent.error", {}, error=self.error())
        if which < 0.95:
            payload = {"call_id": str(rng.randrange(5)), "tool_id": odd(f"{rng.choice(IDS)}/say"), "input": self.body()}
            payload |= {"context": self.body(), "idempotency_key": odd("k")}
            return envelope("agent.tool.call", payload, request_id="r", correlation_id=odd("chat:2"))
        payload = {"tool_id": odd("com.b/say"), "reason": odd("because"), "input": self.body()}
        return envelope("agent.directive.request", payload)

    def result(self, call_id: str) -> dict[str, Any]:
        rng, odd = self.rng, self.town.odd
        payload: dict[str, Any] = {"call_id": call_id, "status": rng.choice(("succeeded", "failed", "canceled"))}
        if rng.random() < 0.7:
            payload["output"] = self.body()
        if payload["status"] != "succeeded" or rng.random() < 0.1:
            payload["error"] = self.error()
        if rng.random() < 0.5:
            payload["metrics"] = self.body()
        if rng.random() < 0.3:
            payload |= {"started_at": odd("2026-01-16T12:00:00Z"), "finished_at": odd("2026-01-16T12:00:00Z")}
        return payload

    def error(self) -> Any:
        odd = self.town.odd
        details = self.body()
        return odd({"code": odd("tool.failed"), "message": odd("no"), "retryable": odd(False), "details": details})

    def say(self) -> object:
        """An agent says something, in one of the ways to write it down."""
        agent_id = self.rng.choice(IDS)
        agent = self.agents[agent_id]
        if agent.transport.closed:
            agent = self.agents[agent_id] = Agent(self.town, agent_id)
            self.given[agent_id] = []
        message = self.message(agent_id)
        message["id"] = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        which = self.rng.random()
        if which < 0.6:
            data = json.dumps(message, ensure_ascii=which < 0.3).encode("utf-8", "surrogatepass")
        elif which < 0.85:
            data = json.dumps(message, indent=self.rng.choice((1, "\t"))).replace("\n", "\r\n").encode()
        else:
            self.town.mutator._messages = [message]
            data = self.town.mutator.body()
        agent.say(framed(data))
        for heard in agent.heard():
            if heard["type"] == "core.tool.call":
                self.given[agent_id] = [*self.given[agent_id][-8:], heard]
        return data

    # -- what others do ------------------------------------------------------------------------------------------------

    def call(self) -> object:
        rng = self.rng
        body: dict[str, Any] = {"tool_id": f"{rng.choice(IDS)}/say", "correlation_id": "chat:1"}
        body["input"] = rng.choice(({}, self.body()))
        if rng.random() < 0.5:
            body["wait"] = False
        request = Request(
            "POST", "/v1/calls", json.dumps(body).encode(), self.town.headers(rng.choice(("operator", "alice")))
        )
        if rng.random() < 0.4:
            request.scope["headers"].append((b"accept", b"text/event-stream"))
        self.town.ask(self.town.app, request)
        self.open = [*self.open, request]
        return body

    def page(self) -> object:
        target = self.rng.choice(PAGES).format(call=self.rng.choice(self.called[-5:]), chat="chat:1")
        request = self.town.send("operator", "GET", target, b"")
        assert request.complete, target
        assert request.status in {200, 404}, f"{request.status} to {target}: {request.content[:300]!r}"
        if target.endswith("jsonl") and request.status == 200:
            for line in request.content.splitlines():
                json.loads(line)
        if target == "/v1/calls":
            self.called += [each["call_id"] for each in json.loads(request.content)["calls"]]
        return target

    def step(self) -> None:
        which = self.rng.random()
        if which < 0.6:
            about = self.say()
        elif which < 0.75:
            about = self.call()
        elif which < 0.95:
            about = self.page()
        else:
            about = self.rng.choice((0.1, 1, 8))
            self.town.exchange.advance(about)
            for agent_id, agent in self.agents.items():
                self.given[agent_id] += [each for each in agent.heard() if each["type"] == "core.tool.call"]
        self.town.look(about)
        for request in self.open:
            if request.complete:
                self.heard(request)
        self.open = [each for each in self.open if not each.complete]

    def heard(self, request: Request) -> None:
        if request.headers[b"content-type"].startswith(b"text/event-stream"):
            for part in request.content.split(b"\n\n"):
                lines = [line[6:] for line in part.split(b"\n") if line.startswith(b"data: ")]
                if lines:
                    json.loads(b"\n".join(lines))
                    self.town.counts["streamed"] += 1
        else:
            self.town.answered(request)

    def end(self) -> None:
        for request in self.open:
            request.give_up()
        for agent in self.agents.values():
            if not agent.transport.closed:
                agent.leave()
        self.town.finish()


story = partial(all_edges.story, Sayer, STEPS)
fuzz = partial(all_edges.fuzz, Sayer, STEPS)


def manifests(seed: int, count: int) -> int:
    """So many files in the place of a manifest; how many."""
    right = {
        "id": "com.a", "name": "A", "version": "1.0.0", "description": "d", "source": {"git_url": "u", "ref": "r"},
        "entrypoint": {"type": "command", "value": ["a"]}, "permissions": ["net:read:*", "a:b"], "capabilities": ["x"],
    }  # fmt: skip
    mutator = Mutator(seed, [right, *[{**right, "permissions": [value], "version": value} for value in VALUES]])
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        path = Path(folder) / manifest.FILE_NAME
        for _ in range(count):
            data = mutator.body()
            path.write_bytes(data)
            try:
                with contextlib.suppress(ConfigError):
                    manifest.read_manifest(path, "com.a")
            except Exception as error:
                raise AssertionError(f"{error!r} of {data[:500]!r}, seed {seed}") from error
    return count
