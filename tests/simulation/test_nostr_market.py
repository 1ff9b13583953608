"""Buyer and providers, all ours, on bad relays: they drop, repeat, reorder, lie and forget; everybody is killed.

One seed is one story in fake time, with real hubs and records. Whatever happened, in the end every call has one
outcome, a provider was asked once for a call and ran it once, and nothing is open.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.edges.nostr.kit import ECHO, Bench
from tests.unit.edges.nostr.market import PROVIDERS, Market, announcement
from trunkline.config import Config
from trunkline.edges.nostr import events, messages, order_record
from trunkline.edges.nostr.events import Event, NotAnEvent
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.provider import Provider
from trunkline.entries import CallAccepted, CallSettled, ProcessStep
from trunkline.model import Status, fault

STEPS = 80


class OwnBench(Bench):
    """A provider with a key of its own."""

    signer: Signer

    @classmethod
    def made(cls, signer: Signer) -> OwnBench:
        found = type("Keyed", (cls,), {"signer": signer})(answers=False, max_jobs=3)
        assert isinstance(found, OwnBench)
        return found

    def _provider(self, config: Config) -> Provider:
        given = self.exchange.surroundings()
        till = self.made_till(given, self.signer)
        return Provider(
            given.feed, given.views, self.settings, self.signer, Offer(config, given.views), till, self._say
        )

    def again(self) -> OwnBench:
        """After a kill."""
        bench = object.__new__(type(self))
        bench.settings, bench.exchange = self.settings, self.exchange.restarted()
        bench.said, bench.takes, bench.waiting = [], True, []
        bench.agent = bench.attach(answers=False)
        bench.provider = bench._provider(bench.exchange.config)
        bench.provider.take_up()
        return bench


class Story:
    """One buyer, three providers, one relay between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.market = Market(silence_s=20)
        self.clock = self.market.exchange.clock
        self.providers = {signer.public: OwnBench.made(signer) for signer in PROVIDERS[:3]}
        self.finished: dict[str, set[int]] = {public: set() for public in self.providers}
        # What the relay has, and what it still has to send to whom.
        self.stored: dict[str, Event] = {}
        self.queue: list[tuple[str, Event]] = []
        self.said: list[Event] = []
        self.announce()

    def announce(self) -> None:
        self.market.announce(*PROVIDERS[:3], said=announcement(ECHO, jobs=3))

    # -- the relay -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What was said is at the relay, and on its way to whom it is for."""
        for said in [self.market.said, *(bench.said for bench in self.providers.values())]:
            for event in said:
                self.said.append(event)
                self.stored[event.id] = event
                self.queue += [(reader, event) for reader in self.readers(event)]
            said.clear()

    def readers(self, event: Event) -> list[str]:
        if event.kind in {5050, messages.DELETION}:
            return list(self.providers)
        return ["buyer"]

    def send(self, reader: str, event: Event) -> None:
        """As the client does: what is not signed by its author is nobody's."""
        try:
            event = events.checked(event)
        except NotAnEvent:
            return
        if reader == "buyer":
            self.market.tell("answers", event)
        elif event.kind == 5050:
            self.providers[reader].provider.requested(event, self.providers[reader].exchange.now())
        else:
            self.providers[reader].provider.deleted(event, self.providers[reader].exchange.now())

    # -- what can happen -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        acts = ["call"] * 3 + ["deliver"] * 14 + ["finish"] * 7 + ["repeat"] * 3 + ["drop", "lie", "pass", "pass"]
        act = self.random.choice([*acts, "forget", "kill_buyer", "kill_provider"])
        getattr(self, f"_{act}")()
        self.look()

    def _call(self) -> None:
        count = len(self.market.exchange.recorded(CallAccepted))
        options: dict[str, Any] = {"providers": self.random.choice([1, 1, 2, 3])}
        if self.random.random() < 0.2:
            options["private"] = True
        if self.random.random() < 0.2:
            options["timeout_ms"] = 30_000
        self.market.call(ECHO, {"n": count}, **options)

    def _deliver(self) -> None:
        if self.queue:
            self.send(*self.queue.pop(self.random.randrange(len(self.queue))))

    def _repeat(self) -> None:
        if self.stored:
            event = self.random.choice(list(self.stored.values()))
            self.send(self.random.choice(self.readers(event)), event)

    def _drop(self) -> None:
        if self.queue:
            self.queue.pop(self.random.randrange(len(self.queue)))

    def _lie(self) -> None:
        if self.stored:
            event = self.random.choice(list(self.stored.values()))
            content = self.random.choice(["", "{}", event.content + " ", event.content[::-1]])
            if content != event.content:
                self.send(self.readers(event)[0], replace(event, content=content))

    def _forget(self) -> None:
        """The relay starts anew with nothing."""
        self.stored.clear()
        self.queue.clear()

    def _finish(self) -> None:
        public = self.random.choice(list(self.providers))
        bench = self.providers[public]
        open_calls = [at for at in range(len(bench.agent.delivered)) if at not in self.finished[public]]
        if open_calls:
            at = self.random.choice(open_calls)
            self.finished[public].add(at)
            luck = self.random.random()
            if luck < 0.75:
                bench.agent.finish({"done": True}, at=at)
            elif luck < 0.9:
                bench.agent.finish({"done": luck}, at=at)
            else:
                bench.agent.finish(None, Status.FAILED, fault("tool.failed"), at=at)

    def _pass(self) -> None:
        seconds = self.random.choice([0.5, 5, 25])
        self.market.exchange.advance(seconds)
        for bench in self.providers.values():
            bench.exchange.advance(seconds)

    def _kill_buyer(self) -> None:
        self.look()
        self.market = self.market.restarted()
        self.announce()

    def _kill_provider(self) -> None:
        self.look()
        public = self.random.choice(list(self.providers))
        self.providers[public] = self.providers[public].again()
        self.finished[public] = set()

    def end(self) -> None:
        """The relay is good again, tools end, and time passes."""
        for _ in range(60):
            while self.queue:
                self._deliver()
                self.look()
            for public, bench in self.providers.items():
                for at in range(len(bench.agent.delivered)):
                    if at not in self.finished[public]:
                        self.finished[public].add(at)
                        bench.agent.finish({"done": True}, at=at)
            self._pass()
            self.look()
        self.market.exchange.advance(700)
        self.look()


@pytest.mark.parametrize("seed", range(40))
def test_every_call_has_one_outcome_and_no_provider_runs_a_job_twice(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.end()
    exchange = story.market.exchange
    accepted = [entry.n for entry in exchange.recorded(CallAccepted)]
    settled = Counter(entry.call for entry in exchange.recorded(CallSettled))
    assert accepted
    assert settled == dict.fromkeys(accepted, 1)
    assert exchange.views.open_steps(order_record.PROCESS) == {}
    assert len(story.market.agent.buyer) == 0
    assert [code for code in exchange.notices() if code == "defect"] == []
    # Each request that is on record was asked of one provider, and no provider was asked twice for a call.
    named = (order_record.PROCESS, order_record.ASKED)
    steps = [step for step in exchange.recorded(ProcessStep) if (step.process, step.step) == named]
    asked = [order_record.read_asked(step.data) for step in steps]
    pairs = Counter((step.subject, one.provider) for step, one in zip(steps, asked, strict=True))
    assert set(pairs.values()) <= {1}
    requests = {event.id for event in story.said if event.kind == 5050}
    assert requests <= {one.request.id for one in asked}
    for bench in story.providers.values():
        keys = Counter(call.key for call in bench.exchange.recorded(CallAccepted))
        assert set(keys.values()) <= {1}
        assert set(keys) <= requests
