"""The agent ``nostr.jobs``: which tools it offers, what it listens for, and what strangers can make of that."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.requirement import requirement
from tests.unit.edges.nostr.market import PROVIDERS, US, Market, announcement, embedded
from trunkline.config import Config, Nostr
from trunkline.edges.nostr import discovery, events, messages
from trunkline.edges.nostr.buyer import LOOK_S
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.jobs_agent import GATHER_S, OFFER_S
from trunkline.edges.nostr.remote_tools import MAX_ANNOUNCED, job_type, offered
from trunkline.entries import Noticed, ToolsOffered
from trunkline.jobs.schemas import CURRENT, EMBEDDING
from trunkline.model import Status

ANNA, BERT = PROVIDERS[:2]
OTHER = "oa.weather.forecast.v1"


def tools(market: Market) -> set[str]:
    return {tool.tool_id for tool in market.exchange.views.tools() if tool.tool_id.startswith("nostr.jobs/oa.")}


def test_each_type_that_ships_with_us_is_a_tool_that_acts() -> None:
    market = Market()
    assert tools(market) == {f"nostr.jobs/{schema_id}" for schema_id in CURRENT}
    assert all(tool.side_effects for tool in market.exchange.views.tools() if "/oa." in tool.tool_id)


@requirement("OA-107")
def test_a_type_that_somebody_announces_is_a_tool_for_as_long_as_he_does() -> None:
    market = Market()
    market.announce(ANNA, said=announcement(OTHER))
    assert f"nostr.jobs/{OTHER}" in tools(market)
    call = market.call(OTHER, {"place": "Bern"})
    job = job_type(OTHER)
    market.answer(ANNA, {"sun": True}, schema_id=OTHER, output_hash=job.output_hash({"sun": True}))
    assert call.output["sun"] is True
    market.announce(ANNA, at=int(market.exchange.now().wall) + 1)
    market.exchange.advance(OFFER_S)
    assert f"nostr.jobs/{OTHER}" not in tools(market)


def test_outputs_of_a_type_that_nobody_knows_may_not_stand_for_the_verdict() -> None:
    market = Market()
    market.announce(ANNA, said=announcement(OTHER))
    call = market.call(OTHER, {})
    lie = {"verification": {"state": "verified"}}
    market.answer(ANNA, lie, schema_id=OTHER, output_hash=job_type(OTHER).output_hash(lie))
    market.exchange.advance(LOOK_S)
    assert call.outcome.status is Status.FAILED
    assert call.details["verification"]["rejected"] == [ANNA.npub]


def test_who_announces_what_is_listed_with_prices_and_our_record() -> None:
    market = Market()
    market.announce(ANNA, said=announcement(EMBEDDING, msats=5))
    market.announce(BERT)
    market.call(provider=ANNA.npub)
    market.answer(ANNA, embedded())
    found = market.exchange.call("nostr.jobs/providers", {"schema_id": EMBEDDING}).output
    assert found["count"] == 2
    rows = {row["provider"]: row for row in found["providers"]}
    assert rows[ANNA.npub]["pricing"]["input_tokens_per_1k_msats"] == 5
    assert (rows[ANNA.npub]["record"]["succeeded"], rows[BERT.npub]["record"]["succeeded"]) == (1, 0)
    assert market.exchange.call("nostr.jobs/providers", {"schema_id": OTHER}).output["count"] == 0


def test_open_requests_are_listened_for_by_name_and_new_ones_by_our_key() -> None:
    market = Market()
    now = market.exchange.now()
    [ours] = market.filters["answers"](now)
    assert (ours.p, ours.kinds) == ((US.public,), (6050, 7000))
    market.announce(ANNA)
    market.call()
    assert market.filters["answers"](now)[1].e == (market.requests()[0].id,)


def test_what_comes_from_outside_relays_is_strangers_words_for_the_rules() -> None:
    assert Config(nostr=Nostr(relays=("wss://relay.example",))).hub_settings().untrusted_agents == {"nostr.jobs"}
    assert Config().hub_settings().untrusted_agents == frozenset()


# --- strangers --------------------------------------------------------------------------------------------------------


def test_a_malformed_announcement_is_dropped_with_a_note() -> None:
    market = Market()
    draft = Draft(31_990, '{"supply_class": "Cloud"}', (("d", "x"),), int(market.exchange.now().wall))
    market.tell("announcements", events.signed(draft, ANNA))
    [note] = market.exchange.recorded(Noticed)
    assert (note.code, note.who) == ("nostr.announcement", "")
    assert len(market.agent.book) == 0


def test_announced_types_are_few_whatever_is_announced() -> None:
    many = [(f"oa.spam_{number}.v1", 1) for number in range(500)] + [(OTHER, 2), ("oa." + "x" * 80 + ".v1", 9)]
    found = offered(many)
    assert len(found) == len(CURRENT) + MAX_ANNOUNCED
    assert OTHER in found
    assert not any(len(schema_id) > 64 for schema_id in found)


@pytest.mark.slow
def test_a_flood_of_announcements_leaves_memory_and_the_record_as_they_were() -> None:
    market = Market()
    market.announce(ANNA)
    market.call(providers=1)
    said = announcement(*(f"oa.spam_{number}.v1" for number in range(200)), models=("m" * 400,) * 10)
    draft = messages.announcement_draft(market.settings.kinds, "d", said, created_at=int(market.exchange.now().wall))

    def flood(first: int, count: int) -> None:
        for number in range(first, first + count):
            public = f"{number:064x}"
            name = events.event_id(public, draft)
            market.tell(
                "announcements",
                Event(name, public, draft.created_at, draft.kind, draft.tags, draft.content, "0" * 128),
            )
            if number % 100 == 0:
                market.exchange.advance(GATHER_S)

    tracemalloc.start()
    try:
        flood(0, 800)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        flood(10_000, 1600)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2_000_000
    finally:
        tracemalloc.stop()
    assert market.agent.book.size <= discovery.MAX_BOOK_BYTES
    # Once for what was announced first, not for each that follows with the same types.
    assert len(market.exchange.recorded(ToolsOffered)) <= 3
    market.answer(ANNA, embedded())
    assert len(market.agent.buyer) == 0


def test_types_that_come_and_go_do_not_fill_the_record() -> None:
    market = Market()
    before = len(market.exchange.log)
    at = int(market.exchange.now().wall)
    for number in range(240):
        market.announce(ANNA, said=announcement(f"oa.spam_{number}.v1"), at=at + number)
    # A minute has passed.
    assert len(market.exchange.log) - before <= 4
    market.exchange.advance(OFFER_S)
    assert "nostr.jobs/oa.spam_239.v1" in tools(market)


def test_malformed_announcements_by_many_do_not_fill_the_record() -> None:
    market = Market()
    for number in range(500):
        draft = Draft(31_990, "{}", (("d", str(number)),), int(market.exchange.now().wall))
        market.tell("announcements", Event("0" * 64, f"{number:064x}", draft.created_at, 31_990, (), "{}", "0" * 128))
    assert len(market.exchange.recorded(Noticed)) <= 101


def test_a_flood_of_answers_by_strangers_leaves_nothing_behind() -> None:
    market = Market()
    market.announce(ANNA)
    call = market.call()
    request = market.requests()[0]
    for number in range(400):
        tags = (("e", request.id), ("p", US.public), ("status", "error", "no"))
        kind = 6050 if number % 2 else 7000
        draft = Draft(kind, "x" * 1000, tags, request.created_at)
        public = f"{number:064x}"
        event = Event(events.event_id(public, draft), public, draft.created_at, kind, tags, draft.content, "0" * 128)
        market.tell("answers", event)
    notes = [note for note in market.exchange.recorded(Noticed) if note.code == "nostr.not_asked"]
    assert len(notes) <= 101
    assert call.answer is None
    market.answer(ANNA, embedded())
    assert call.output["verification"]["agreed"] == [ANNA.npub]
