"""The book of announcements: which one holds, what is too much, and who is chosen for a job."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.requirement import requirement
from tests.unit.edges.nostr.market import PROVIDERS, announcement
from trunkline.config import NostrKinds
from trunkline.edges.nostr import discovery, events, messages
from trunkline.edges.nostr.discovery import Book, Need, price, reliability
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import Announcement, BadMessage, Pricing, Stability
from trunkline.edges.nostr.provider_records import MAX_RECORDS, Record, Records
from trunkline.jobs.schemas import EMBEDDING, RERANK, SANDBOX
from trunkline.model import Now

ANNA, BERT, CARL, DORA = PROVIDERS[:4]
KINDS = NostrKinds()
NOW = Now(1_800_000_000.0, 1000.0)
AT = int(NOW.wall)


def event(said: Announcement | None = None, *, by: Signer = ANNA, name: str = "d", at: int = AT) -> Event:
    return events.signed(messages.announcement_draft(KINDS, name, said or announcement(), created_at=at), by)


def unsigned(said: Announcement, public: str, name: str = "d", at: int = AT) -> Event:
    """As the book gets it from a client that has checked it; signing thousands would take a minute."""
    draft = messages.announcement_draft(KINDS, name, said, created_at=at)
    return Event(events.event_id(public, draft), public, at, draft.kind, draft.tags, draft.content, "0" * 128)


class Known:
    """A book, with records of ours."""

    def __init__(self, seed: int = 1) -> None:
        self.records = Records()
        self.book = Book(KINDS, Random(seed), self.records)

    def heard(self, *heard: Event) -> Known:
        for one in heard:
            self.book.heard(one, NOW)
        return self

    def chosen(self, need: Need, *excluded: str, **terms: Any) -> list[str]:
        return [one.provider for one in self.book.choice(need, excluded, **terms).ready]


@requirement("OA-107")
def test_whoever_announces_a_job_can_be_asked_for_it() -> None:
    known = Known()
    assert known.chosen(Need(EMBEDDING)) == []
    known.heard(event())
    assert known.chosen(Need(EMBEDDING)) == [ANNA.public]


@requirement("OA-109")
def test_a_job_goes_to_nobody_who_does_not_announce_it() -> None:
    known = Known().heard(event(announcement(RERANK)), event(announcement(EMBEDDING), by=BERT))
    assert known.chosen(Need(EMBEDDING)) == [BERT.public]
    assert known.chosen(Need("oa.other.v1")) == []


def test_of_two_announcements_of_one_name_the_newer_holds_whichever_comes_first() -> None:
    old, new = event(announcement(EMBEDDING), at=AT - 1), event(announcement(RERANK))
    for order in ((old, new), (new, old)):
        known = Known().heard(*order)
        assert (known.chosen(Need(EMBEDDING)), known.chosen(Need(RERANK))) == ([], [ANNA.public])
        assert len(known.book) == 1


def test_of_two_of_the_same_second_the_lower_id_holds() -> None:
    one, other = sorted((event(announcement(EMBEDDING)), event(announcement(RERANK))), key=lambda found: found.id)
    for order in ((one, other), (other, one)):
        assert [found.id for found in Known().heard(*order).book.announced()] == [one.id]


def test_announcements_of_other_names_and_providers_stand_beside_each_other() -> None:
    known = Known().heard(
        event(announcement(EMBEDDING, msats=9)),
        event(announcement(EMBEDDING, msats=2), name="cheap"),
        event(by=BERT),
    )
    assert len(known.book) == 3
    assert known.book.types() == {EMBEDDING: 2, RERANK: 1}
    ready = known.book.choice(Need(EMBEDDING, tokens=1000)).ready
    assert {one.provider: one.msats for one in ready} == {ANNA.public: 2, BERT.public: 0}


@pytest.mark.parametrize(
    "draft",
    [
        Draft(31_990, "hello", (("d", "x"),), AT),
        Draft(31_990, "{}", (("d", "x"),), AT),
        Draft(31_990, json.dumps({"supply_class": "SingleNode"}), (("d", "x"),), AT),
        Draft(31_991, event().content, (("d", "x"),), AT),
        Draft(31_990, event().content, (("d", "x"),), AT + 901),
        Draft(31_990, event().content + " " * 65_536, (("d", "x"),), AT),
        Draft(31_990, event().content.replace('"max_concurrent_jobs":4', '"max_concurrent_jobs":"4"'), (), AT),
        Draft(31_990, event().content.replace("SingleNode", "Cloud"), (), AT),
    ],
)
def test_what_is_no_announcement_is_refused_and_changes_nothing(draft: Draft) -> None:
    known = Known().heard(event())
    with pytest.raises(BadMessage):
        known.book.heard(events.signed(draft, ANNA), NOW)
    assert [one.id for one in known.book.announced()] == [event().id]


def test_an_announcement_for_other_kinds_of_jobs_is_passed_over() -> None:
    draft = messages.announcement_draft(NostrKinds(request=5100), "d", announcement(), created_at=AT)
    assert not Known().book.heard(events.signed(draft, ANNA), NOW)


@requirement("OA-113")
def test_a_job_goes_to_nobody_for_whom_it_is_too_large_or_who_is_busy() -> None:
    known = Known().heard(
        event(announcement(tokens=100)), event(announcement(jobs=2), by=BERT), event(announcement(jobs=0), by=CARL)
    )
    assert known.chosen(Need(EMBEDDING, tokens=101)) == [BERT.public]
    choice = known.book.choice(Need(EMBEDDING, tokens=101), (), {BERT.public: 2})
    assert (choice.ready, choice.busy) == ((), 1)
    assert len(known.book.choice(Need(EMBEDDING, tokens=101), (), {BERT.public: 1}).ready) == 1


@requirement("OA-112")
def test_a_quote_is_computed_from_prices_and_a_bid_is_not_exceeded() -> None:
    prices = Pricing(10, 30, 100)
    assert price(prices, Need(EMBEDDING, tokens=2500)) == 25
    assert price(prices, Need(RERANK, tokens=2500)) == 100
    assert price(prices, Need(SANDBOX, minutes=1.5)) == 150
    assert price(prices, Need(EMBEDDING, tokens=1)) == 1
    known = Known().heard(event(announcement(msats=10)))
    assert known.chosen(Need(EMBEDDING, tokens=1000, bid_msats=9)) == []
    assert known.chosen(Need(EMBEDDING, tokens=1000, bid_msats=10)) == [ANNA.public]


@pytest.mark.parametrize("msats", [1.7e308, 2**63 - 1])
def test_an_absurd_price_is_a_price(msats: float) -> None:
    known = Known().heard(event(announcement(msats=msats)), event(by=BERT))
    assert known.chosen(Need(EMBEDDING, tokens=10**9, minutes=1e9)) == []
    assert known.chosen(Need(EMBEDDING, tokens=10)) == [BERT.public, ANNA.public]


def test_of_equally_good_providers_the_cheapest_is_first() -> None:
    known = Known().heard(
        event(announcement(msats=30)), event(announcement(msats=10), by=BERT), event(announcement(msats=20), by=CARL)
    )
    assert known.chosen(Need(EMBEDDING, tokens=1000)) == [BERT.public, CARL.public, ANNA.public]


def test_who_has_the_model_is_before_who_is_cheap() -> None:
    known = Known().heard(event(announcement(msats=30, models=("m",))), event(by=BERT))
    assert known.chosen(Need(EMBEDDING, tokens=1000, model="m")) == [ANNA.public, BERT.public]


def test_what_we_saw_counts_more_than_what_a_provider_says_of_itself() -> None:
    said = announcement(stability=Stability(1.0, 10, 10_000))
    known = Known().heard(event(said), event(by=BERT))
    assert known.chosen(Need(EMBEDDING))[0] == ANNA.public
    for fate in ("silent", "failed", "silent", "failed"):
        known.records.put(ANNA.public, known.records.of(ANNA.public).with_one(fate))  # type: ignore[arg-type]
    for _ in range(4):
        known.records.put(BERT.public, known.records.of(BERT.public).with_one("succeeded", 10))
    assert known.chosen(Need(EMBEDDING)) == [BERT.public, ANNA.public]
    assert reliability(said, known.records.of(ANNA.public)) < reliability(announcement(), known.records.of(BERT.public))


def test_who_lied_is_asked_last_whatever_else_is_true() -> None:
    known = Known().heard(event(), event(announcement(msats=10**6), by=BERT))
    known.records.put(ANNA.public, Record(succeeded=1000, lied=1))
    known.records.put(BERT.public, Record(failed=50))
    assert known.chosen(Need(EMBEDDING, tokens=1000)) == [BERT.public, ANNA.public]


def test_ties_are_broken_by_the_seed_and_by_nothing_else() -> None:
    orders = {
        tuple(Known(seed).heard(*(event(by=one) for one in PROVIDERS)).chosen(Need(EMBEDDING))) for seed in range(20)
    }
    assert len(orders) > 10
    same = [Known(3).heard(*(event(by=one) for one in PROVIDERS)).chosen(Need(EMBEDDING)) for _ in range(2)]
    assert same[0] == same[1]


def test_who_is_excluded_is_not_chosen() -> None:
    known = Known().heard(event(), event(by=BERT))
    assert known.chosen(Need(EMBEDDING), ANNA.public) == [BERT.public]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_flood_of_providers_leaves_the_book_within_its_bounds_and_keeps_whom_we_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "MAX_ANNOUNCEMENTS", 200)
    known = Known().heard(event())
    known.records.put(ANNA.public, Record(succeeded=1))
    said = announcement()
    for number in range(3000):
        known.book.heard(unsigned(said, f"{number:064x}"), NOW)
    assert len(known.book) == 200
    assert ANNA.public in known.chosen(Need(EMBEDDING))


def test_a_flood_of_large_announcements_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_BOOK_BYTES", 500_000)
    known = Known()
    said = announcement(models=tuple(f"model-{number:0480}" for number in range(100)))
    for number in range(100):
        known.book.heard(unsigned(said, f"{number:064x}"), NOW)
        assert known.book.size <= 500_000
    assert known.book.size == sum(len(unsigned(said, one.provider).content) for one in known.book.announced())


def test_one_provider_has_a_few_announcements_and_not_a_thousand() -> None:
    known = Known()
    for number in range(discovery.MAX_OF_ONE):
        known.heard(event(name=str(number)))
    with pytest.raises(BadMessage, match="at most"):
        known.heard(event(name="one more"))
    known.heard(event(announcement(SANDBOX), name="0", at=AT + 1))
    assert known.chosen(Need(SANDBOX)) == [ANNA.public]


def test_who_was_asked_long_ago_is_forgotten_first() -> None:
    records = Records()
    for number in range(MAX_RECORDS + 1):
        records.put(str(number), Record(succeeded=1))
    assert len(records.all()) == MAX_RECORDS
    assert (records.of("0"), records.of("1")) == (Record(), Record(succeeded=1))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_an_announcement_with_any_part_replaced_is_taken_or_refused(data: st.DataObject) -> None:
    said = json.loads(event().content)
    place: Any = said
    while True:
        name = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[name], dict) or not place[name] or data.draw(st.booleans()):
            place[name] = data.draw(VALUES)
            break
        place = place[name]
    found = unsigned(announcement(), ANNA.public)
    known = Known()
    try:
        content = json.dumps(said, allow_nan=False)
        known.book.heard(replace(found, content=content), NOW)
    except (BadMessage, ValueError):
        assert len(known.book) == 0
        return
    known.book.choice(Need(EMBEDDING, tokens=1000, minutes=3, bid_msats=1))
    known.book.choice(Need(EMBEDDING, tokens=1000, minutes=3))
