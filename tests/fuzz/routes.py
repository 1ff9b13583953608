"""Fuzzing of every route that there is: its path, its query and every field of its body, from the tables of routes.

Which routes there are is asked of the applications; which bodies and parameters one reads, of its own code: a new route
is fuzzed without a line here. The exchange behind them is a whole one (``all_edges``). A function of its seed.
``test_routes`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, inspect
from starlette.routing import Route

from tests.fuzz import all_edges
from tests.fuzz.all_edges import Agent, Town
from tests.fuzz.asgi import Request
from tests.fuzz.mutations import SPELLINGS, VALUES
from tests.unit.edges.opensentience.core_side import envelope, frame
from trunkline.edges.known import EDGES

STEPS: Final = 300
WORDS: Final = (
    "com.a/say", "com.b/write", "com.a", "http", "chiffon", "opensentience", "infra", "approved", "denied", "demo",
    "alice", "operator", "http:alice", "k1", "because", "standard", "open", "op-0", "1.0",
    "build.done", "build.*", "#", "trunkline/publish", "trunkline/subscribe",
)  # fmt: skip
# Where an answer calls something by another name than a path does.
ALIASES: Final = {"id": "token_id", "runId": "run_id", "name": "space"}
NUMBERS: Final = (0, 1, 2, 1000, -1, 2**53, 2**63, 10**30, 0.5, "1", "1e3", " 1", "\u0663")
METHODS: Final = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "X")
OPERATIONS: Final = {
    "protocolVersion": "1.0",
    "operations": [
        {"type": "createFile", "path": "a.txt", "content": "x", "overwrite": True},
        {"type": "deleteFile", "path": "a.txt", "id": "op-1"},
    ],
}


def wires() -> set[str]:
    """The modules of all edges' wires."""
    names = {f"{edge.make.__module__.rpartition('.')[0]}.messages" for edge in EDGES}
    return {name for name in names if importlib.util.find_spec(name) is not None}


WIRES: Final = wires()


def named(code: CodeType, around: dict[str, Any]) -> list[Any]:
    """What a piece of code names: things of its module, and things of the modules that it names."""
    found = [around[name] for name in code.co_names if name in around]
    modules = [each for each in found if isinstance(each, ModuleType)]
    return found + [getattr(module, name) for module in modules for name in code.co_names if hasattr(module, name)]


class Reads:
    """What a handler reads, by its own code: types of bodies, and words that may be parameters."""

    def __init__(self, handler: Any) -> None:
        self.bodies: set[type[Struct]] = set()
        self.words: set[str] = set()
        self._seen: set[int] = set()
        self._walk(handler, None, 0)

    def _walk(self, what: Any, owner: Any, depth: int) -> None:
        if isinstance(what, MethodType):
            self._walk(what.__func__, what.__self__, depth)
            return
        if depth > 6 or id(what) in self._seen:
            return
        self._seen.add(id(what))
        if isinstance(what, FunctionType):
            self._code(what.__code__, owner, what.__globals__, depth)
            for cell in what.__closure__ or ():
                self._walk(cell.cell_contents, owner, depth + 1)
        elif isinstance(what, dict):
            for each in what.values():
                self._walk(each, owner, depth + 1)
        elif callable(what) and type(what).__module__.startswith("trunkline.edges."):
            for each in vars(type(what)).values():
                if isinstance(each, FunctionType):
                    self._walk(each, what, depth + 1)

    def _code(self, code: CodeType, owner: Any, around: dict[str, Any], depth: int) -> None:
        kinds = {each for each in named(code, around) if isinstance(each, type) and each.__module__ in WIRES}
        self.bodies |= {kind for kind in kinds if issubclass(kind, Struct)}
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, owner, around, depth)
            elif isinstance(constant, str) and constant.isidentifier():
                self.words.add(constant)
        for name in code.co_names:
            method = getattr(owner, name, None) if owner is not None else None
            found = method if isinstance(method, MethodType) else around.get(name)
            if isinstance(found, MethodType | FunctionType) and found.__module__.startswith("trunkline.edges."):
                self._walk(found, owner, depth + 1)


class Known:
    """One route."""

    def __init__(self, path: str, method: str, handler: Any) -> None:
        self.path = path
        self.method = method
        reads = Reads(handler)
        self.bodies = sorted(reads.bodies, key=lambda kind: (kind.__module__, kind.__name__))
        self.words = sorted(reads.words)


def table(town: Town) -> list[Known]:
    """Every route of every application."""
    apps = [town.api.routes(), *(door.app for door in town.exchange.edges.doors())]
    past_the_router: dict[tuple[str, str], Any] = town.app._routes
    found = []
    for app in apps:
        for route in app.routes:  # type: ignore[attr-defined]
            if isinstance(route, Route):
                # A HEAD is a GET; METHODS has it.
                for method in sorted((route.methods or set()) - {"HEAD"}):
                    handler = past_the_router.get((method, route.path), route.endpoint)
                    found.append(Known(route.path, method, handler))
    return found


class Visitor:
    """Makes requests to the routes of one town."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.rng = town.rng
        self.table = table(town)
        self.open: list[Request] = []
        town.exchange.launched.add("com.a")
        self.agents = [self.agent("com.a"), self.agent("com.b")]
        town.send("operator", "POST", "/v1/spaces", b'{"name": "demo"}')
        self.ids: list[str] = list(WORDS)
        # What is there, by the names that paths have for it.
        self.there: dict[str, list[str]] = {
            "space": ["demo"], "agent_id": ["com.a"], "tool_id": ["com.a/say", "com.b/write", "space.demo/delete_file"],
            "edge": ["http", "chiffon"], "agent": ["alice", "bob"], "caller": ["http:alice"], "preset": ["standard"],
            "name": ["demo", "other"],
        }  # fmt: skip

    def agent(self, agent_id: str) -> Agent:
        """One with two tools."""
        agent = Agent(self.town, agent_id)
        tools = [
            {
                "tool_id": f"{agent_id}/{name}", "name": name, "description": "d", "input_schema": {"type": "object"},
                "side_effects": name == "write",
            }
            for name in ("say", "write")
        ]  # fmt: skip
        agent.say(frame(envelope("agent.tools.register", {"tools": tools})))
        return agent

    # -- requests ------------------------------------------------------------------------------------------------------

    def word(self) -> str:
        return self.rng.choice(self.ids if self.rng.random() < 0.8 else [str(value)[:200] for value in VALUES])

    def value(self, kind: inspect.Type) -> Any:
        """One that may be right."""
        rng = self.rng
        match kind:
            case inspect.StrType():
                return self.word()
            case inspect.IntType() | inspect.FloatType():
                return rng.choice(NUMBERS)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.LiteralType(values):
                return rng.choice(values)
            case inspect.UnionType(types):
                return self.value(rng.choice(types))
            case inspect.VarTupleType(item) | inspect.ListType(item):
                return [self.value(item) for _ in range(rng.randrange(3))]
            case inspect.DictType():
                return {self.word(): self.value(kind.value_type) for _ in range(rng.randrange(3))}
            case inspect.StructType(cls):
                return self.struct(cls)
            case inspect.Metadata():
                return self.value(kind.type)
            case inspect.NoneType():
                return None
        return rng.choice(({}, {"path": "a.txt"}, rng.choice(VALUES)))

    def struct(self, kind: type[Struct]) -> dict[str, Any]:
        found = {}
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            if field.required or self.rng.random() < 0.5:
                is_there = field.encode_name in self.there and self.rng.random() < 0.7
                found[field.encode_name] = self._named(field.encode_name) if is_there else self.value(field.type)
        return found

    def body(self, route: Known) -> bytes:
        rng = self.rng
        if route.bodies and rng.random() < 0.9:
            message: Any = self.struct(rng.choice(route.bodies))
        else:
            message = rng.choice((OPERATIONS, {}, rng.choice(VALUES), {word: self.word() for word in route.words[:5]}))
        which = rng.random()
        if which < 0.6:
            return json.dumps(message).encode()
        self.town.mutator._messages = [message]
        return self.town.mutator.body() if which < 0.97 else rng.choice(SPELLINGS)

    def _named(self, parameter: str) -> str:
        there = self.there.get(parameter.partition(":")[0], [])
        return self.rng.choice(there) if there and self.rng.random() < 0.7 else self.word()

    def target(self, route: Known) -> str:
        rng = self.rng
        path = "/".join(
            quote(self._named(part[1:-1]), safe=rng.choice(("", "/"))) if part.startswith("{") else part
            for part in route.path.split("/")
        )
        if rng.random() < 0.5 and route.words:
            names = rng.sample(route.words, min(len(route.words), rng.randrange(1, 4)))
            values = [str(rng.choice((*NUMBERS, self.word(), ""))) for _ in names]
            path += "?" + "&".join(f"{name}={quote(value)}" for name, value in zip(names, values, strict=True))
        return path

    def request(self) -> object:
        """One request."""
        town, rng = self.town, self.rng
        # Those with a body have more to be wrong.
        route = rng.choice([each for each in self.table if each.bodies or rng.random() < 0.4])
        method = route.method if rng.random() < 0.95 else rng.choice(METHODS)
        target = self.target(route)
        body = self.body(route) if method in {"POST", "PUT", "PATCH"} or rng.random() < 0.1 else b""
        if route.path == "/v1/watch" and rng.random() < 0.9:
            return None
        who = rng.choice(("operator", "operator", "operator", "alice", "carol", "nobody"))
        request = town.send(who, method, target, body, rng.choice((0, 0, 1)))
        town.counts[f"{route.method} {route.path}"] += 1
        if request.complete:
            if request.headers.get(b"content-type") == b"application/json" and method != "HEAD":
                self._learn(request.content)
        elif rng.random() < 0.5:
            request.give_up()
        else:
            self.open.append(request)
        return (who, method, target, body)

    def _learn(self, content: bytes) -> None:
        """Ids from answers: what is there can be asked about."""
        if len(content) < 20_000:
            for name, value in _texts(json.loads(content)):
                if name.endswith(("id", "Id")) or name in {"sha256", "name"}:
                    self.ids = [*WORDS, *self.ids[-40:], value]
                    parameter = ALIASES.get(name, name)
                    self.there[parameter] = [*self.there.get(parameter, ())[-10:], value]

    def work(self) -> object:
        """Agents answer what they were given, or do not."""
        self.agents = [self.agent(each.agent_id) if each.transport.closed else each for each in self.agents]
        for agent in self.agents:
            for message in agent.heard():
                if message["type"] == "core.tool.call" and self.rng.random() < 0.7:
                    status = self.rng.choice(("succeeded", "failed"))
                    payload = {"call_id": message["payload"]["call_id"], "status": status, "output": {"x": 1}}
                    if status == "failed":
                        payload |= {
                            "output": None,
                            "error": {"code": "tool.failed", "message": "no", "retryable": False},
                        }
                    ids = {name: message[name] for name in ("request_id", "correlation_id") if name in message}
                    agent.say(frame(envelope("agent.tool.result", payload, **ids)))
        return "agents at work"

    def step(self) -> None:
        which = self.rng.random()
        if which < 0.9:
            about = self.request()
        elif which < 0.97:
            about = self.work()
        else:
            about = self.rng.choice((1, 20, 700))
            self.town.exchange.advance(about)
        self.town.look(about)
        for request in [each for each in self.open if each.complete]:
            self.open.remove(request)
            self.town.answered(request)

    def end(self) -> None:
        for request in self.open:
            request.give_up()
        self.town.exchange.advance(700)
        for agent in self.agents:
            agent.leave()
        self.town.finish()


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and len(value) < 200:
        yield name, value


story = partial(all_edges.story, Visitor, STEPS)
fuzz = partial(all_edges.fuzz, Visitor, STEPS)
