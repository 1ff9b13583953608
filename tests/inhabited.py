"""An exchange in memory with somebody in it: for tests of what people and programs see of one over HTTP.

There are an agent that echoes, one that sends mail and one that takes its time; a few people with tokens; a call that
ended, one that runs, one that waits for a person, and a large output as soon as a test asks for it. ``answering`` is
the feed for an edge: it hands events on to the hub, except those for which a test has put an answer into ``script``,
because a real exchange gives that answer only after long preparation, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from trunkline.config import Config, Http
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.known import EDGES
from trunkline.effects import Answer, Deliver, Progress, Reply, ToSession, Wait
from trunkline.entries import Entry
from trunkline.events import (
    ApprovalAnswered,
    CallerLeft,
    CallRequested,
    CancelRequested,
    DirectiveStated,
    Event,
    SubscriptionRequested,
    TokenIssued,
    TokenRevoked,
)
from trunkline.model import Principal, Status, ToolDefinition, fault
from trunkline.shown import CallView, Question
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent, MemoryExchange

ECHO: Final = "com.example.echo/say"
MAIL: Final = "com.example.mail/send"
SLOW: Final = "com.example.slow/wait"
ALICE: Final = Principal("http:alice")
BOB: Final = Principal("http:bob")
LARGE_BYTES: Final = 2_000_000
# Names for scripted answers; the exchange itself has not given them to anybody.
CALL_ID: Final = "00000000-0000-8000-8000-00000000002a"
APPROVAL_ID: Final = "a42"

Script = Callable[[Any], list[ToSession]]


class AnsweringFeed:
    """The feed of an exchange; what ``script`` has an answer for does not reach the hub."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self._feed = exchange.feed
        self.fed: list[Event] = []
        self.script: dict[type[Event], Script] = {}
        # Told of each event, after it was answered.
        self.on_fed: Callable[[Event], None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def feed(self, events: Sequence[Event]) -> None:
        for event in events:
            self.fed.append(event)
            script = self.script.get(type(event))
            if script is None:
                self._feed.feed([event])
            else:
                for effect in script(event):
                    self.say(effect)
            self.on_fed(event)

    def say(self, effect: ToSession) -> None:
        """Tell a conversation something, guarded as the runner does it."""
        self._feed._send(effect, self._feed.now())
        self._feed._flush()


class Inhabited(MemoryExchange):
    """The exchange. ``call_id``, ``running_id``, ``approval_id``, ``token_id``, ``subscription_id`` and ``blob`` name
    what is in it.
    """

    def __init__(self, *more: Edge) -> None:
        config = Config(http=Http(listen="127.0.0.1:0"))
        # Their tokens can be made; none of them runs.
        known = [replace(edge, make=lambda _: RunningEdge(), needs=None) for edge in (*EDGES, *more)]
        super().__init__(config.policy(), edges=known, config=config)
        self.launched.add("com.launched")
        self.answering = AnsweringFeed(self)
        self.alice = self.token("http", "alice")
        self.approver = self.token("http", "carol", permissions=("approve",))
        echo = ToolDefinition(ECHO, "Says it.", ANY_OBJECT, side_effects=False)
        big = ToolDefinition("com.example.echo/big", "Says much.", ANY_OBJECT, side_effects=False)
        self.echo = self.attach("com.example.echo", echo, big, deliver=_echo)
        self.mail = self.attach("com.example.mail", ToolDefinition(MAIL, "Sends it.", ANY_OBJECT))
        stops = ("cancellation",)
        slow = ToolDefinition(SLOW, "Takes its time.", ANY_OBJECT, capabilities=stops, side_effects=False)
        self.slow = self.attach("com.example.slow", slow)
        said = Raw(b'{"n": 12345678901234567890}')
        self.call_id = self.call(ECHO, said, by=ALICE, correlation_id="chat:1").call_id
        self.running_id = self.call(SLOW, by=BOB, correlation_id="a/b").call_id
        self.approval_id = self.call(MAIL, {"to": "bob"}, by=ALICE).approval_id
        self.token_id = next(view.token_id for view in self.operator.tokens() if view.agent == "alice")
        self.feed.feed([SubscriptionRequested(0, "", ALICE, "build.#", 1, durable=True)])
        self.subscription_id = self.operator.subscriptions(1)[0].subscription
        self._begun = len(self.log)

    @cached_property
    def blob(self) -> str:
        """The hash of a large output, of one more call, which is no news if there was none before it.

        Made for those who look at it: two megabytes on disk took four fifths of what it takes to fill the exchange.
        """
        is_quiet = not self.news
        large = self.call("com.example.echo/big", by=ALICE).outcome.large
        assert large is not None
        if is_quiet:
            self._begun = len(self.log)
        return large.sha256

    def surroundings(self, home: Path | None = None) -> Surroundings:
        given = super().surroundings(home)
        # The edges of ``known`` are made before there is one; they ask for nothing.
        return replace(given, feed=getattr(self, "answering", given.feed))

    @property
    def news(self) -> list[Entry]:
        """What was recorded since the exchange was filled."""
        return self.log[self._begun :]

    def path(self, pattern: str) -> str:
        """A path about what is in it."""
        known = {
            "agent_id": "com.launched",
            "call_id": self.call_id,
            "approval_id": self.approval_id,
            "token_id": self.token_id,
            "subscription_id": self.subscription_id,
            "correlation_id": "chat:1",
        }
        if "{sha256}" in pattern:
            known["sha256"] = self.blob
        for name, value in known.items():
            pattern = pattern.replace(f"{{{name}}}", value)
        return pattern

    def pretend(self, *, calls: list[CallView] | None = None, questions: list[Question] | None = None) -> None:
        """Show these instead of what is there: calls of scripted answers, words that no agent can choose."""
        views: Any = self.views
        if calls is not None:
            views.call = lambda call_id: next((view for view in calls if view.call_id == call_id), None)

            def page(
                limit: int, before: int | None, correlation_id: str | None = None, caller: str | None = None
            ) -> tuple[list[CallView], Any]:
                start = before or 0
                found = [view for view in calls if correlation_id in {None, view.correlation_id}]
                return found[start : start + limit], start + limit if start + limit < len(found) else None

            views.calls = page
        if questions is not None:
            views.questions = lambda: questions

    def rote(self) -> None:
        """Answer everything without recording it, so that thousands of requests leave nothing behind."""

        def reply(event: Any) -> list[ToSession]:
            return [Reply(event.session, 0, event.ref, id="x1")]

        script: dict[type[Event], Script] = dict.fromkeys(
            (ApprovalAnswered, CancelRequested, DirectiveStated, TokenIssued, TokenRevoked), reply
        )
        script[CallRequested] = lambda event: [accepted(event), answered(event, output=event.input)]
        script[CallerLeft] = lambda _: []
        self.answering.script = script


def _echo(agent: AttachedAgent, effect: Deliver) -> None:
    is_big = effect.tool_id.endswith("/big")
    agent.finish("x" * LARGE_BYTES if is_big else effect.input)


# --- answers for a script ---------------------------------------------------------------------------------------------


def accepted(event: CallRequested, status: Status = Status.RUNNING) -> Wait:
    return Wait(event.session, 0, event.ref, CALL_ID, status, correlation_id="chat:1")


def asks(event: CallRequested) -> Wait:
    expires_ms = 1_794_742_800_000
    return Wait(event.session, 0, event.ref, CALL_ID, Status.WAITING_APPROVAL, APPROVAL_ID, expires_ms, "chat:1")


def answered(event: CallRequested, status: Status = Status.SUCCEEDED, **more: Any) -> Answer:
    times = {"started_ms": 1_794_736_800_000, "finished_ms": 1_794_736_800_250}
    return Answer(event.session, 0, event.ref, CALL_ID, status, correlation_id="chat:1", **{**times, **more})


def refused(event: CallRequested, code: str, **more: Any) -> Answer:
    return Answer(event.session, 0, event.ref, CALL_ID, Status.FAILED, fault=fault(code, **more), refused=True)


def progressed(event: CallRequested, seq: int, data: bytes, channel: str = "stdout") -> Progress:
    return Progress(event.session, 0, event.ref, CALL_ID, seq, channel, Raw(data))


def view(call_id: str, caller: str, status: Status = Status.SUCCEEDED, **more: Any) -> CallView:
    return CallView(call_id, ECHO, caller, status, "2026-11-15T10:00:00.000Z", "chat:1", **more)
