"""What we say of ourselves: exactly what is offered, measured from our own record."""

from __future__ import annotations

import json

from tests.requirement import requirement
from tests.unit.edges.nostr.kit import ECHO, OURS, TOOL, Bench
from trunkline.config import Config, NostrPricing
from trunkline.edges.nostr import announcing, events, messages
from trunkline.edges.nostr.announcing import Announcer, count_record
from trunkline.edges.nostr.events import Draft
from trunkline.edges.nostr.messages import Announcement, Stability
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.provider import Tally
from trunkline.jobs.schemas import EMBEDDING
from trunkline.model import Status, fault


class Desk:
    """An announcer of an exchange in memory."""

    def __init__(self, bench: Bench) -> None:
        self.said: list[Draft] = []
        given = bench.exchange.surroundings()
        self.offer = Offer(Config(nostr=bench.settings), given.views)
        self.announcer = Announcer(given.feed, bench.settings, self.offer, bench.provider.tally, self.said.append)

    def heard(self, at: int = -1) -> Announcement:
        return messages.read_announcement(events.signed(self.said[at], OURS)).announcement


@requirement("OA-014", "OA-107", "OA-109", "OA-112", "OA-113")
def test_what_is_announced_is_what_is_offered_with_our_prices_and_places() -> None:
    bench = Bench(
        offer=(EMBEDDING, TOOL), max_jobs=3, max_context_tokens=9, pricing=NostrPricing(sandbox_per_minute_msats=100)
    )
    desk = Desk(bench)
    desk.announcer.start()
    [draft] = desk.said
    assert (draft.kind, draft.tags) == (31_990, (("d", "trunkline"), ("k", "5050")))
    found = desk.heard()
    assert found.capabilities.supported_jobs == (EMBEDDING, ECHO)
    assert {"trunkline-hashing-v1", TOOL} <= set(found.capabilities.models)
    assert (found.capacity.max_concurrent_jobs, found.capacity.max_context_tokens) == (3, 9)
    assert found.pricing.sandbox_per_minute_msats == 100
    assert "stability" not in json.loads(draft.content)


def test_it_is_said_again_after_an_hour_and_each_time_is_later_than_the_last() -> None:
    bench = Bench()
    desk = Desk(bench)
    desk.announcer.start()
    bench.exchange.advance(announcing.AGAIN_S - 20)
    assert len(desk.said) == 1
    bench.exchange.clock.jump(-7200)
    bench.exchange.advance(40)
    assert [draft.created_at for draft in desk.said] == [desk.said[0].created_at, desk.said[0].created_at + 1]
    desk.announcer.stop()
    bench.exchange.advance(2 * announcing.AGAIN_S)
    assert len(desk.said) == 2


def test_it_is_said_again_when_it_changed() -> None:
    bench = Bench()
    desk = Desk(bench)
    desk.announcer.start()
    desk.offer.tools["oa.new.v1"] = "com.example.new/new"
    bench.exchange.advance(announcing.LOOK_S)
    assert desk.heard().capabilities.supported_jobs == (ECHO, "oa.new.v1")


@requirement("OA-114")
def test_stability_is_measured_from_the_jobs_there_were_also_before_a_restart() -> None:
    bench = Bench(answers=False)
    for number in range(4):
        bench.ask(nonce=str(number))
        bench.exchange.advance(2)
        if number:
            bench.agent.finish({})
        else:
            bench.agent.finish(None, Status.FAILED, fault("tool.failed"))
    # Somebody else's call is none of ours.
    bench.exchange.call(TOOL)
    bench.agent.finish({})
    measured = announcing.stability(bench.provider.tally)
    assert measured == Stability(0.75, 2000.0, 3)
    tally = Tally()
    count_record(bench.restarted().exchange.views, tally)
    assert announcing.stability(tally) == measured
    assert announcing.stability(Tally()) is None


def test_tools_that_nobody_has_are_named() -> None:
    bench = Bench(offer=(TOOL, "com.example.none/x"))
    assert Desk(bench).offer.missing() == ("com.example.none/x",)
