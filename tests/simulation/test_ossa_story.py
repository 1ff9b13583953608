"""OSSA in fake time: callers and a provider whose messages are lost, who go and come back, and an exchange that dies.

A function of its seed, smaller than ``simulate`` and denser: OSSA alone, nobody else. What must hold in the end: each
message is one call with one outcome, each final reply is the same for every repeat, and a request was done once.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.unit.edges.ossa.kit import Agent, Kit, Line
from trunkline.edges.ossa.messages import Refused
from trunkline.entries import CallAccepted, CallSettled

STEPS = 60
# Said again after these.
LATER = {408, 429, 503}


class Story:
    """One exchange after the other on one record, and who speaks with it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.kit = Kit(rate={"worker": 100_000})
        self.callers = [self.kit.agent(name) for name in ("alice", "carol")]
        self.bob = self.kit.agent("bob")
        self.line: Line = self.bob.connect("work", side_effects=True)
        self.seen = 0
        # What bob did, and how he answers who asks again; what was asked, and every final reply to it.
        self.done: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[Agent, dict[str, Any]]] = []
        self.replies: dict[str, list[Any]] = {}
        self.waiting: list[tuple[str, list[dict[str, Any]]]] = []

    def step(self) -> None:
        which = self.rng.random()
        if which < 0.3:
            self.ask(*self.new())
        elif which < 0.45 and self.asked:
            self.ask(*self.rng.choice(self.asked))
        elif which < 0.7:
            self.work(loss=0.4)
        elif which < 0.8:
            self.line.leave()
            self.connect()
        elif which < 0.85:
            self.restart()
        else:
            self.kit.advance(self.rng.choice((0.1, 1, 3, 12)))
        self.collect()

    def new(self) -> tuple[Agent, dict[str, Any]]:
        caller = self.rng.choice(self.callers)
        thread = self.rng.choice(({}, {"correlationId": "c1"}, {"correlationId": "c2"}))
        kind = self.rng.choice(("request", "request", "command"))
        self.asked.append((caller, caller.message(kind, "bob", "work", {"n": len(self.asked)}, **thread)))
        return self.asked[-1]

    def ask(self, caller: Agent, message: dict[str, Any]) -> None:
        try:
            self.waiting.append((message["header"]["messageId"], caller.send(message)))
        except Refused as refused:
            if refused.error_code not in LATER | {507}:
                raise

    def work(self, loss: float = 0.0) -> None:
        """Bob does what he was sent, once for each id; some of what he is sent and of what he says is lost."""
        for request in self.line.of("request")[self.seen :]:
            self.seen += 1
            name = request["header"]["messageId"]
            if self.rng.random() < loss:
                continue
            if name not in self.done:
                thread = request["header"]["correlationId"]
                self.done[name] = self.bob.message(
                    "response", action="work", payload=request["body"]["payload"], correlationId=thread
                )
            for _ in range(self.rng.choice((0, 1, 1, 2)) if loss else 1):
                self.bob.send(self.done[name])

    def connect(self) -> None:
        self.line = self.bob.connect("work", side_effects=True)
        self.seen = 0

    def restart(self) -> None:
        self.collect()
        self.waiting.clear()
        self.kit = self.kit.restarted()
        for agent in (*self.callers, self.bob):
            agent.moved(self.kit)
        self.connect()

    def collect(self) -> None:
        for name, replies in self.waiting:
            for reply in replies:
                if reply["body"].get("error", {}).get("code") not in LATER:
                    self.replies.setdefault(name, []).append(reply)
            replies.clear()

    def end(self) -> None:
        for _ in range(12):
            self.work()
            self.kit.advance(11)
            self.bob.ask("heartbeat")
        for caller, message in self.asked:
            self.ask(caller, message)
            for _ in range(3):
                self.work()
                self.kit.advance(1)
        self.work()
        self.kit.advance(60)
        for caller, message in self.asked:
            self.ask(caller, message)
        self.kit.advance(60)
        self.collect()
        self.kit.check()


@pytest.mark.parametrize("seed", range(20))
def test_one_outcome_for_each_message_the_same_for_every_repeat(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.end()
    accepted = story.kit.exchange.recorded(CallAccepted)
    settled = Counter(entry.call_id for entry in story.kit.exchange.recorded(CallSettled))
    assert {entry.call_id for entry in accepted} == set(settled)
    assert set(settled.values()) <= {1}
    for name, replies in story.replies.items():
        assert all(reply == replies[0] for reply in replies), f"two replies to {name}"
    numbers = Counter(reply["body"]["payload"]["n"] for reply in story.done.values())
    assert set(numbers.values()) <= {1}, "a request was done twice"
    for caller, message in story.asked:
        for reply in story.replies.get(message["header"]["messageId"], []):
            if reply["header"]["type"] == "response":
                answered = reply["body"]["payload"]
                assert answered == message["body"]["payload"], f"somebody else's answer to {caller.name}"
