"""One exchange in memory with all edges, for fuzzing of what is said to them and of what agents say.

``Town`` has the HTTP edge's application with its gate and the doors of the others, two spaces with real files and a
sandbox that only pretends, agents that speak OpenSentience, and a reader of ``/v1/watch`` who understands every line.
Everything awaits in fake time; threads are calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self

from msgspec.structs import replace

from tests.fuzz.asgi import Request, Scene, Socket
from tests.fuzz.mutations import VALUES, Mutator
from tests.fuzz.requests import Transport
from tests.unit.edges.opensentience.core_side import envelope, frame, hello
from trunkline.config import Chiffon, Config, Http, OpenSentience
from trunkline.edges import bearer
from trunkline.edges.chiffon.edge import CHIFFON
from trunkline.edges.edge import RunningEdge, Surroundings
from trunkline.edges.http.edge import HTTP
from trunkline.edges.http.routes import Api
from trunkline.edges.opensentience.edge import OPENSENTIENCE, OpenSentienceEdge
from trunkline.edges.spaces.edge import SPACES, SpacesEdge
from trunkline.edges.topics.edge import TOPICS, TopicsEdge
from trunkline.edges.waiting import Requests
from trunkline.model import FAULTS, Decision, Policy, Rule
from trunkline.testing.memory import OPERATOR_TOKEN
from trunkline.testing.tasks import TaskLoop
from trunkline.workspace.output import Output
from trunkline.workspace.sandbox import CommandResult, Sandbox

HOST: Final = b"127.0.0.1:80"
STATUSES: Final = frozenset(
    {200, 201, 202, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 413, 415, 422, 429, 431, 501, 503, 504}
)
# A person is asked about some, so that there are questions.
POLICY: Final = Policy(
    (
        Rule("ask", "http:*", "space.*/delete_file", Decision.ASK),
        Rule("ask-agents", "opensentience:*", "com.b/*", Decision.ASK),
        Rule("all", "*", "*", Decision.ALLOW),
    ),
    "v1",
)
TELLS: Final = ("stdout", "stderr")


class Pretending(Sandbox, frozen=True):
    """Runs nothing. What a command prints is what its own text says."""

    async def run(self, workspace: Any, command: str, **terms: Any) -> CommandResult:
        told = terms["on_output"]
        text = command[:200]
        await asyncio.sleep(0.01)
        told(TELLS[len(text) % 2], text)
        await asyncio.sleep(len(command) % 7)
        out = Output(text, False, len(text), hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())
        return CommandResult(len(text) % 3, False, None, out, out, 10)


class Agent:
    """An agent's end of an OpenSentience connection."""

    def __init__(self, town: Town, agent_id: str) -> None:
        self.agent_id = agent_id
        self._read = 0
        self.transport = Transport()
        self.transport.set_write_buffer_limits = lambda **_: None  # type: ignore[method-assign]
        self.driver = town.agents_edge._listener.connection(is_local=False)
        self.driver.connection_made(self.transport)
        token = town.exchange.token("opensentience", agent_id)
        capabilities = ["tools", "streaming", "cancellation", "calls", "directives"]
        protocol = {"supported_versions": [1], "capabilities": capabilities}
        self.say(frame(envelope("agent.hello", hello(agent_id=agent_id, session_token=token, protocol=protocol))))

    def say(self, data: bytes) -> None:
        if not self.transport.closed:
            self.driver.data_received(data)

    def heard(self) -> list[dict[str, Any]]:
        """What it was told since it was last asked."""
        found, data = [], bytes(self.transport.written)
        while self._read < len(data):
            size = int.from_bytes(data[self._read : self._read + 4], "big")
            found.append(json.loads(data[self._read + 4 : self._read + 4 + size]))
            self._read += 4 + size
        self.transport.written.clear()
        self._read = 0
        return found

    def leave(self) -> None:
        self.transport.closed = True
        self.driver.connection_lost(None)


class Town(Scene):
    """The exchange, its edges and who watches."""

    def __init__(self, seed: int, messages: list[Any] | None = None) -> None:
        self.mutator = Mutator(seed, messages or [{}])
        self.rng = self.mutator.rng
        # Ids that edges make up: the same for the same seed.
        self._entropy = Random(seed).randbytes
        self.counts: Counter[str] = Counter()
        self._folder = tempfile.TemporaryDirectory(prefix="tl-")
        home = Path(self._folder.name)
        config = Config(
            http=Http(listen="127.0.0.1:0"),
            opensentience=OpenSentience(socket=str(home / "s")),
            chiffon=Chiffon(),
        )
        edges = (
            replace(TOPICS, make=lambda given: TopicsEdge(replace(given, entropy=self._entropy))),
            replace(OPENSENTIENCE, make=self._make_agents),
            replace(HTTP, make=lambda _: RunningEdge()),
            replace(SPACES, make=self._make_spaces),
            replace(CHIFFON, make=lambda given: CHIFFON.make(replace(given, entropy=self._entropy))),
        )
        super().__init__(edges, policy=POLICY, config=config, home=home)
        self.loop = TaskLoop(self.exchange.loop, self.raised.append)
        self.agents_edge._listener.loop = self.loop.as_asyncio
        self.requests = Requests(self.exchange.feed)
        given = self.exchange.surroundings()
        self.api = Api(given.feed, given.views, given.operator, self.requests, given.doors())
        self.app: Any = self.api.app()
        # The pause before a repeated refusal is not what is judged here.
        self._pause = bearer.MAX_DELAY_S

    def _make_agents(self, given: Surroundings) -> OpenSentienceEdge:
        self.agents_edge = OpenSentienceEdge(replace(given, entropy=self._entropy))

        async def nobody_listens() -> None:
            """Agents are connected by hand."""

        self.agents_edge.start = nobody_listens  # type: ignore[method-assign]
        return self.agents_edge

    def _make_spaces(self, given: Surroundings) -> SpacesEdge:
        self.spaces_edge = SpacesEdge(replace(given, entropy=self._entropy))

        async def pretending() -> Sandbox:
            return Pretending("bubblewrap")

        self.spaces_edge.spaces.find_sandbox = pretending  # type: ignore[method-assign]
        return self.spaces_edge

    def __enter__(self) -> Self:
        super().__enter__()
        bearer.MAX_DELAY_S = 0.0  # type: ignore[misc]
        self.spawn(self.exchange.edges.start())
        self.exchange.advance(0)
        self.judge("the start")
        self.tokens = {
            "operator": OPERATOR_TOKEN,
            "alice": self.exchange.token("http", "alice"),
            "carol": self.exchange.token("http", "carol", permissions=("approve", "metrics")),
            "nobody": "x" * 20,
        }
        self.watching = Request("GET", "/v1/watch", b"", self.headers("operator"))
        self.ask(self.app, self.watching)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        bearer.MAX_DELAY_S = self._pause  # type: ignore[misc]
        super().__exit__(kind, error, at)
        self._folder.cleanup()

    # -- who asks ------------------------------------------------------------------------------------------------------

    def headers(self, who: str) -> list[tuple[bytes, bytes]]:
        return [
            (b"host", HOST),
            (b"authorization", b"Bearer " + self.tokens[who].encode()),
            (b"content-type", b"application/json"),
        ]

    def send(self, who: str, method: str, target: str, body: bytes, wait_s: float = 0.0) -> Request:
        """One request, judged if it was answered."""
        headers = self.headers(who)
        if body:
            headers.append((b"content-length", b"%d" % len(body)))
        request = self.ask(self.app, Request(method, target, body, headers), wait_s)
        if request.complete:
            self.answered(request)
        return request

    def answered(self, request: Request) -> None:
        """An answer is one of ours."""
        about = f"{request.sent!r:.1200}"
        assert request.status in STATUSES, f"{request.status} {request.content[:300]!r} to {about}"
        self.counts[str(request.status)] += 1
        kind = request.headers.get(b"content-type", b"")
        if kind == b"application/json" and request.content:
            content = json.loads(request.content)
            # Chiffon has envelopes, and a run has events; everything else that is refused has our form.
            if request.status >= 400 and "error" in content:
                assert content["error"]["code"] in FAULTS, content
                assert len(request.content) < 20_000, about
            elif request.status >= 400:
                assert content.get("type") == "error" or content.get("status") == "error", f"{content} to {about}"
        elif request.status >= 400:
            assert request.sent[0] == "HEAD", f"{request.content[:200]!r} to {about}"

    def open(self, path: str, who: str = "operator") -> Socket:
        return self.connect(self.app, Socket(path, self.headers(who)))

    def odd(self, value: Any) -> Any:
        """This, or anything."""
        return value if self.rng.random() < 0.6 else self.rng.choice(VALUES)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def look(self, about: object) -> None:
        """After each step: nothing fatal, and whoever watches read every line."""
        self.exchange.advance(0)
        self.disk(self.rng)
        self.judge(about)
        watching = self.watching
        assert not watching.complete, f"the watch ended after {about!r:.800}"
        *events, rest = watching.content.split(b"\n\n")
        watching.content = rest
        for event in events:
            if event.startswith(b":"):
                continue
            name, *lines = event.split(b"\n")
            assert name in {b"event: entry", b"event: watching", b"event: dropped"}, name
            assert all(line.startswith(b"data: ") for line in lines), f"{event[:500]!r} after {about!r:.800}"
            json.loads(b"\n".join(line[6:] for line in lines))
            self.counts["watched"] += 1

    def finish(self) -> None:
        """Everybody is gone, everything ended."""
        self.judge_end()
        self.look("the end")
        self.watching.give_up()
        self.exchange.advance(1)
        self.requests.close()
        self.exchange.advance(1)
        self.judge("the end of watching")
        left = [task for task in self.loop._tasks if not task.done()]
        assert not left, f"{len(left)} never ended: {left[0]}"


class Inhabitant(Protocol):
    """Who does things in a town."""

    def step(self) -> None:
        """Do the next thing, and look."""

    def end(self) -> None:
        """Go, and see that everything ended."""


def story(make: Callable[[Town], Inhabitant], steps: int, seed: int) -> Counter[str]:
    """One town, and so many steps in it; what happened how often."""
    with Town(seed) as town:
        inhabitant = make(town)
        for _ in range(steps):
            inhabitant.step()
        inhabitant.end()
    return town.counts


def fuzz(make: Callable[[Town], Inhabitant], steps_each: int, seed: int, steps: int) -> int:
    """At least so many steps, in towns of ``steps_each``; how many."""
    towns = -(-steps // steps_each)
    for number in range(towns):
        story(make, steps_each, seed * 1_000_003 + number)
    return towns * steps_each
