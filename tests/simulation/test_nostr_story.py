"""The provider on bad relays: they drop, repeat, reorder, and buyers change their minds, and the exchange is killed.

One seed is one story in fake time, with the real hub and record. Whatever happened, in the end each request that was
taken on led to one call and one last event, and nothing is open.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.unit.edges.nostr.kit import BUYER, ECHO, OTHER, OURS, Bench
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.provider import PROCESS
from trunkline.entries import CallAccepted, ProcessStep
from trunkline.model import Status, fault

STEPS = 60
BUYERS = [BUYER, *(Signer(bytes(31) + bytes([number])) for number in range(20, 24))]


class Story:
    """Buyers, relays and one exchange after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(answers=False, max_jobs=3)
        self.requests: list[tuple[Event, Signer]] = []
        # What was said by all exchanges, in order.
        self.said: list[Event] = []
        self.unfinished: list[int] = []
        self.deletions: list[tuple[Event, Signer]] = []

    def step(self) -> None:
        act = self.random.choice(
            ["ask"] * 5
            + ["deliver"] * 8
            + ["finish"] * 6
            + ["take back"] * 2
            + ["relay answers"] * 4
            + ["kill", "pass"]
        )
        getattr(self, f"_{act.replace(' ', '_')}")()
        self._look()

    def _ask(self) -> None:
        buyer = self.random.choice(BUYERS)
        kind = self.random.random()
        options = {} if kind < 0.7 else {"schema_id": "oa.none.v1"} if kind < 0.8 else {"provider": OTHER.public}
        if kind > 0.9:
            options = {"encrypt": buyer.encrypt}
        event = self.bench.request({"n": len(self.requests)}, by=buyer, nonce=str(len(self.requests)), **options)
        self.requests.append((event, buyer))

    def _deliver(self) -> None:
        """A relay sends some request: a new one, or one that was here before."""
        if self.requests:
            event, _ = self.random.choice(self.requests[-6:] if self.random.random() < 0.7 else self.requests)
            self.bench.provider.requested(event, self.bench.exchange.now())

    def _finish(self) -> None:
        open_calls = [at for at in range(len(self.bench.agent.delivered)) if at not in self.unfinished]
        if open_calls:
            at = self.random.choice(open_calls)
            self.unfinished.append(at)
            if self.random.random() < 0.8:
                self.bench.agent.finish({"done": at}, at=at)
            else:
                self.bench.agent.finish(None, Status.FAILED, fault("tool.failed"), at=at)

    def _take_back(self) -> None:
        if self.requests:
            event, buyer = self.random.choice(self.requests)
            by = buyer if self.random.random() < 0.8 else OTHER
            self.deletions.append((event, by))
            self.bench.take_back(event, by=by)

    def _relay_answers(self) -> None:
        self.bench.takes = self.random.random() < 0.6
        waiting, self.bench.waiting = self.bench.waiting, []
        for told in waiting:
            told(True)

    def _pass(self) -> None:
        self.bench.exchange.advance(self.random.choice([0.5, 5, 60]))

    def _kill(self) -> None:
        self._look()
        takes = self.bench.takes
        self.bench = self.bench.restarted(answers=False)
        self.bench.takes = takes
        self.unfinished = []
        for event, by in self.deletions:  # a relay has them, and we ask for them first
            self.bench.take_back(event, by=by)

    def _look(self) -> None:
        self.said += self.bench.said
        self.bench.said.clear()

    def end(self) -> None:
        """Everything that can happen has happened: relays take all, tools end, each request came once more."""
        for _ in range(2):
            self.bench.takes = True
            self._relay_answers()
            self.bench.takes = True
            for event, _buyer in self.requests:
                self.bench.provider.requested(event, self.bench.exchange.now())
            while len(self.unfinished) < len(self.bench.agent.delivered):
                self._finish()
        self._look()


@pytest.mark.parametrize("seed", range(40))
def test_each_job_is_one_call_and_ends_with_one_event(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.end()
    keys = Counter(call.key for call in story.bench.exchange.recorded(CallAccepted))
    assert set(keys.values()) <= {1}
    taken = {step.subject for step in story.bench.exchange.recorded(ProcessStep) if step.step == "taken"}
    assert set(keys) <= taken <= {event.id for event, _ in story.requests}
    assert story.bench.exchange.views.open_steps(PROCESS) == {}
    buyers = {event.id: buyer for event, buyer in story.requests}
    last: dict[str, set[str]] = {}
    for event in {said.id: said for said in story.said}.values():
        request = event.value("e")
        is_error = event.kind == 7000 and event.value("status") == "error"
        is_of_result = is_error and any(said.kind == 6050 and said.value("e") == request for said in story.said)
        if event.kind == 6050 or (is_error and not is_of_result):
            last.setdefault(request, set()).add(event.id)
        if event.kind == 6050:
            result = messages.read_result(event, buyers[request].decrypt)
            assert result.provider == OURS.public
    assert {name: len(found) for name, found in last.items() if name in taken} == dict.fromkeys(taken, 1)
    for event, _ in story.requests:
        if messages.providers_of(event) == (OTHER.public,):
            assert event.id not in last
    assert all(events.read(events.encoded(said)) == said for said in story.said)
    assert ECHO in story.bench.provider._offer.tools
