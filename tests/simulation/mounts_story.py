"""A mounted server that dies, hangs, lies and changes its tools at any step, calls of them, and the exchange is killed.

One seed is one story in fake time, with the real hub and record; only pipes and processes are replaced. The server
remembers what it was asked and under which definition: against that the record is held.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random
from typing import Any

from msgspec import Raw

from tests.unit.edges.mounts.kit import SCHEMA, Programs, Server
from trunkline.config import Config, McpServer
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.entries import CallAccepted, CallSettled
from trunkline.model import Status
from trunkline.testing.memory import MemoryExchange

STEPS = 80
# A tool that only reads, and one that does something; the operator believes what the server says of them.
READS, DOES = "read", "do"
CONFIG = Config(mcp_servers=(McpServer(id="x", command=("x",), trust_annotations=True),))


def tool(name: str, version: int) -> dict[str, object]:
    """A definition; its version is in the words that a person approves."""
    annotations = {"readOnlyHint": name == READS}
    return {"name": name, "description": f"Version {version}.", "inputSchema": SCHEMA, "annotations": annotations}


class Story:
    """One server, over all its runs and those of the exchange."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seen: Counter[str] = Counter()
        self.exchange: MemoryExchange
        self.server: Server
        # What the server offers at this moment, which version a person has agreed to (of the first nobody is asked),
        # and which it has listed last.
        self.versions = {READS: 1, DOES: 1}
        self.agreed: dict[str, int] = {}
        self.listed: dict[str, int] = {}
        # By the text of a call, which is its own: how often the server was asked for it, and what it answered.
        self.asked: Counter[str] = Counter()
        self.answered: dict[str, str] = {}
        self.lied: set[str] = set()
        self.made = 0
        # Requests that the server has read and not answered.
        self.open: list[dict[str, Any]] = []
        self.wrong: list[str] = []

    async def begin(self) -> None:
        programs = Programs()
        self.exchange = MemoryExchange(edges=(MOUNTS,), config=CONFIG, programs=programs)
        await self._mount(programs)

    async def _mount(self, programs: Programs) -> None:
        await self.exchange.edges.start()
        self.server = Server(self.exchange, programs)
        self._comes_in()

    # -- the server ----------------------------------------------------------------------------------------------------

    def _comes_in(self) -> None:
        """A new run of it, which may say all that is needed, or die before."""
        self.open.clear()
        self.server.begin()
        for _ in range(self.random.choice((3, 3, 3, 1, 0))):
            self._reads()
            self._greets()

    def _reads(self) -> None:
        for message in self.server.read():
            if message.get("method") == "tools/call":
                self._asked(message)
            if "id" in message and "method" in message:
                self.open.append(message)

    def _asked(self, message: dict[str, Any]) -> None:
        name, text = message["params"]["name"], message["params"]["arguments"]["text"]
        self.asked[text] += 1
        if self.listed[name] != self.agreed.get(name):
            self.wrong.append(f"{text} was sent under a definition that nobody agreed to")

    def _greets(self) -> None:
        """Answer what is not a call."""
        for message in [one for one in self.open if one["method"] != "tools/call"]:
            self.open.remove(message)
            match message["method"]:
                case "server/discover":
                    capabilities = {"tools": {"listChanged": True}}
                    self.server.answers(message, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
                case "tools/list":
                    self.listed = dict(self.versions)
                    self.server.answers(message, {"tools": [tool(*one) for one in self.versions.items()]})
                    for name, version in self.listed.items():
                        if self.exchange.views.was_offered(f"mcp.x/{name}"):
                            self.agreed.setdefault(name, version)
                case _:
                    pass  # a subscription stays open

    def _answers(self) -> None:
        self._reads()
        self._greets()
        calls = [one for one in self.open if one["method"] == "tools/call"]
        if calls:
            call = self.random.choice(calls)
            self.open.remove(call)
            text = call["params"]["arguments"]["text"]
            self.answered[text] = f"done {text}"
            self.server.answers(call, {"content": [{"type": "text", "text": self.answered[text]}]})

    def _lies(self) -> None:
        """An answer twice, to nothing, to another call, or no answer at all; progress of what has ended."""
        self._reads()
        calls = [one for one in self.open if one["method"] == "tools/call"]
        number = (
            self.random.choice(calls)["id"] if calls and self.random.random() < 0.4 else self.random.randrange(1, 60)
        )
        self.lied.update(one["params"]["arguments"]["text"] for one in calls if one["id"] == number)
        lie = self.random.choice(
            [
                {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": "a lie"}]}},
                {"jsonrpc": "2.0", "id": number, "result": 7},
                {"jsonrpc": "2.0", "id": number, "error": {"code": -1, "message": "no"}},
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": number, "progress": 1},
                },
                {"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage", "params": {}},
                b"not json",
            ]
        )
        self.server.says(lie)

    def _changes(self) -> None:
        """Another definition, or an earlier one again; told, or not."""
        name = self.random.choice((READS, DOES))
        self.versions[name] = self.random.choice((self.versions[name] + 1, self.agreed.get(name, 1)))
        if self.random.random() < 0.8:
            self.server.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def _dies(self) -> None:
        self.server.end()
        self._comes_in()

    # -- everybody else ------------------------------------------------------------------------------------------------

    def _calls(self) -> None:
        self.made += 1
        self.exchange.call(f"mcp.x/{self.random.choice((READS, DOES))}", Raw(b'{"text":"call %d"}' % self.made))

    def _person(self) -> None:
        """Agrees to a definition, or does not."""
        for question in self.exchange.views.questions():
            assert question.subject == "definition"
            assert question.tool_id is not None
            assert question.after is not None
            approved = self.random.random() < 0.7
            name = question.tool_id.partition("/")[2]
            words = json.loads(bytes(question.after))["description"]
            if approved:
                self.agreed[name] = int(words.removeprefix("Version ").rstrip("."))
            self.exchange.answer(question.approval_id, approved=approved)

    def _passes(self) -> None:
        self.exchange.advance(self.random.choice((0.1, 1.0, 11.0, 70.0)))

    async def _killed(self) -> None:
        programs = Programs()
        self.exchange = self.exchange.restarted(programs=programs)
        await self._mount(programs)

    async def step(self) -> None:
        acts = ["calls"] * 6 + ["answers"] * 8 + ["passes"] * 3 + ["lies"] * 3 + ["changes"] * 2 + ["person"] * 2
        act = self.random.choice([*acts, "dies", "killed"])
        self.seen[act] += 1
        done = getattr(self, f"_{act}")()
        if done is not None:
            await done
        if self.server.run.endings:
            self._dies()
        self._reads()

    async def end(self) -> None:
        """The server is gone for good, and time passes."""
        self.server.end()
        self.exchange.advance(400)
        await self.exchange.edges.stop()


def judged(story: Story, seed: int) -> None:
    """What has to be true, whatever happened."""
    exchange = story.exchange
    status: dict[str, Any] = exchange.operator.status()
    assert (exchange.died, status["defects"]) == (None, 0), seed
    assert story.wrong == [], seed
    accepted = {entry.call_id: entry for entry in exchange.recorded(CallAccepted)}
    settled = [entry.call_id for entry in exchange.recorded(CallSettled)]
    assert sorted(accepted) == sorted(settled), seed
    for entry in exchange.recorded(CallSettled):
        call = accepted[entry.call_id]
        text = json.loads(bytes(call.input))["text"]
        story.seen[entry.status.value] += 1
        if call.tool_id == f"mcp.x/{DOES}":
            assert story.asked[text] <= 1, f"{seed}: {text} was asked for twice"
        if entry.status is Status.SUCCEEDED and text not in story.lied:
            said = json.loads(bytes(entry.output))["content"][0]["text"]
            assert said == story.answered[text], seed
        if (
            entry.status in {Status.FAILED, Status.CANCELED}
            and call.tool_id == f"mcp.x/{DOES}"
            and text not in story.lied
        ):
            assert story.asked[text] == 0, f"{seed}: {text} may have run"


def told(seed: int, steps: int = STEPS) -> Story:
    """One story, to its end."""

    async def tell() -> Story:
        story = Story(seed)
        await story.begin()
        for _ in range(steps):
            await story.step()
        await story.end()
        return story

    return asyncio.run(tell())
