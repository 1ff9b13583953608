"""Who counts as told what strangers wrote when one agent's words reach another by no call and on no topic."""

from __future__ import annotations

from tests.unit.hub.kit import Kit
from trunkline import entries, events
from trunkline.hub.state import TAINT_MS
from trunkline.model import OPERATOR

BOT, PEER, OTHER = "opensentience:com.bot", "opensentience:com.peer", "opensentience:com.other"


def made(*, has_read: bool = True) -> Kit:
    """``com.web`` reads what strangers wrote; ``com.bot`` asked it."""
    kit = Kit()
    kit.in_force(untrusted_agents=frozenset({"com.web"}))
    for agent in ("com.web", "com.bot", "com.peer", "com.other"):
        kit.attach(agent, "work")
    if has_read:
        kit.finish(kit.call("com.web/work", by="com.bot"))
    return kit


def labels(kit: Kit) -> list[dict[str, tuple[str, ...]]]:
    return [entry.agents for entry in kit.log_of(entries.AgentsLabelled)]


def test_who_hears_an_agent_that_was_told_strangers_words_is_labelled_and_so_is_who_hears_him() -> None:
    kit = made()
    kit.feed(events.WordsPassed(BOT, (PEER,), "k"))
    kit.feed(events.WordsPassed(PEER, (OTHER,)))
    assert labels(kit) == [{"com.peer": ("k",)}, {"com.other": ()}]


def test_words_of_one_who_was_told_nothing_label_nobody() -> None:
    kit = made(has_read=False)
    kit.feed(events.WordsPassed(BOT, (PEER,)))
    assert labels(kit) == []


def test_an_agent_that_reads_strangers_words_by_trade_labels_who_hears_it_and_the_operator_is_never_labelled() -> None:
    kit = made(has_read=False)
    kit.feed(events.WordsPassed("opensentience:com.web", (PEER, OPERATOR)))
    assert labels(kit) == [{"com.peer": ()}]
    kit.feed(events.WordsPassed(OPERATOR, (OTHER,)))
    assert len(labels(kit)) == 1


def test_many_pieces_are_one_label_until_new_work_begins_or_it_grows_old() -> None:
    kit = made()
    for _ in range(5):
        kit.feed(events.WordsPassed(BOT, (PEER,)))
    assert len(labels(kit)) == 1
    work = kit.call("com.peer/work", by="com.other")
    for _ in range(5):
        kit.feed(events.WordsPassed(BOT, (PEER,)))
    (_, second) = labels(kit)
    assert second == {"com.peer": (kit.state.calls[work.call_id].correlation_id,)}
    # What it answers now may hold some of it.
    kit.finish(work)
    assert kit.state.is_tainted_agent("com.other", kit.now.ms)
    kit.advance(TAINT_MS / 1000 * 0.6)
    kit.feed(events.WordsPassed(BOT, (PEER,)))
    assert len(labels(kit)) == 3
