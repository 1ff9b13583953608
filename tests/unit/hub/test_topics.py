"""Events on topics: who is told, what is owed until it was taken, and what survives a restart."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from tests.unit.hub.kit import ALL, Kit, rules
from trunkline import effects, entries, events
from trunkline.effects import Notify, Reply
from trunkline.hub import topics
from trunkline.model import OPERATOR, Circumstance, Decision, Fault, Limits, Policy, Principal, Rule
from trunkline.topic_names import matches

ALICE, BOB = Principal("ossa:alice"), Principal("ossa:bob")
BODY = Raw(b'{"x":1}')


class Board(Kit):
    """A hub, and what each subscriber was told."""

    def __init__(self, policy: Policy = ALL) -> None:
        super().__init__(policy)
        # Where each subscriber is told.
        self.at: dict[Principal, int] = {}

    def subscribe(self, who: Principal, pattern: str, *, session: int = 5, qos: int = 0, durable: bool = False) -> str:
        if self.at.get(who) != session:
            self.feed(events.SubscriberArrived(session, who))
            self.at[who] = session
        said = self.feed(events.SubscriptionRequested(1, "s", who, pattern, qos, durable))
        reply = next(effect for effect in said if isinstance(effect, Reply))
        assert reply.id is not None, reply.fault
        return reply.id

    def publish(self, topic: str, qos: int = 0, body: Raw = BODY, **terms: int) -> list[Notify]:
        said = self.feed(events.EventPublished(9, "p", "ossa:carol", topic, body, qos, **terms))  # type: ignore[arg-type]
        return [effect for effect in said if isinstance(effect, Notify)]

    def back(self, who: Principal, session: int) -> list[Notify]:
        self.at[who] = session
        return [effect for effect in self.feed(events.SubscriberArrived(session, who)) if isinstance(effect, Notify)]

    def take(self, told: Notify) -> None:
        self.feed(events.EventTaken(told.session, told.subscription_id, told.event))

    def kinds(self) -> Counter[str]:
        return Counter(type(entry).__name__ for entry in self.log)


@pytest.mark.parametrize(
    ("pattern", "topic", "is_told"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("#", "a.b.c", True),
        ("a.#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "b", False),
        ("*.#", "a", True),
    ],
)
def test_a_star_is_one_segment_and_a_hash_the_rest(pattern: str, topic: str, is_told: bool) -> None:
    board = Board()
    board.subscribe(ALICE, pattern)
    assert bool(board.publish(topic)) is is_told


@pytest.mark.parametrize("topic", ["", ".", "a.", ".a", "a..b", "a b", "a.*", "#", "a\n", "x" * 256, "a.\x00"])
def test_what_is_no_topic_is_refused_and_leaves_nothing(topic: str) -> None:
    board = Board()
    before = len(board.log)
    (reply,) = board.feed(events.EventPublished(9, "p", "x", topic, BODY))
    assert isinstance(reply, Reply)
    assert reply.fault is not None
    assert len(board.log) == before


@pytest.mark.parametrize("pattern", ["", "a.#.b", "##", "a*", "#.a", "a..b", "x" * 256])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    (reply,) = Board().feed(events.SubscriptionRequested(5, "s", ALICE, pattern))
    assert isinstance(reply, Reply)
    assert reply.fault is not None


def test_an_event_of_the_lowest_quality_is_told_once_without_waiting_and_owed_to_nobody() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=2, durable=True)
    (told,) = board.publish("a", qos=0)
    assert (told.after, told.qos) == (0, 0)
    assert board.back(ALICE, 6) == []


def test_an_event_goes_out_with_the_lower_of_two_qualities() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1)
    board.subscribe(BOB, "a", qos=2, session=6)
    assert [told.qos for told in board.publish("a", qos=2)] == [1, 2]
    assert [told.qos for told in board.publish("a", qos=1)] == [1, 1]


def test_what_is_owed_is_on_disk_before_anybody_is_told() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    (told,) = board.publish("a", qos=1)
    assert told.after == told.event == board.state.last


def test_a_durable_subscription_is_told_again_until_it_took_an_event_also_after_a_restart() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=2, durable=True)
    first, second = *board.publish("a", qos=2), *board.publish("a", qos=2)
    board.take(first)
    board.feed(events.SubscriberLeft(5))
    board.publish("a", qos=2)
    board.crash()
    told = board.back(ALICE, 7)
    assert [one.event for one in told] == [second.event, board.log_of(entries.EventPublished)[-1].n]
    for one in told:
        board.take(one)
    assert board.back(ALICE, 8) == []
    assert board.kinds()["EventTaken"] == 3


def test_a_subscription_that_is_not_durable_ends_with_its_conversation() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=2)
    board.publish("a", qos=2)
    board.feed(events.SubscriberLeft(5))
    assert board.back(ALICE, 6) == []
    assert board.publish("a", qos=2) == []
    assert len(board.hub.topics) == 0


def test_taking_what_is_not_ones_own_or_twice_says_nothing() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    (told,) = board.publish("a", qos=1)
    board.feed(events.EventTaken(99, told.subscription_id, told.event))
    board.feed(events.EventTaken(told.session, "other", told.event))
    board.feed(events.EventTaken(told.session, told.subscription_id, 1))
    assert board.kinds()["EventTaken"] == 0
    board.take(told)
    board.take(told)
    assert board.kinds()["EventTaken"] == 1


def test_nobody_ends_the_subscription_of_another() -> None:
    board = Board()
    mine = board.subscribe(ALICE, "a")
    (reply,) = board.feed(events.SubscriptionEnded(6, "u", BOB, mine))
    assert isinstance(reply, Reply)
    assert reply.fault is not None
    board.feed(events.SubscriptionEnded(5, "u", ALICE, mine))
    assert board.publish("a") == []


def test_the_operator_ends_a_subscription_of_anybody_and_what_was_owed_is_owed_no_more() -> None:
    board = Board()
    name = board.subscribe(ALICE, "a", qos=1, durable=True)
    other = board.subscribe(ALICE, "b", qos=1)
    board.publish("a", qos=1)
    stop, reply = board.feed(events.SubscriptionEnded(8, "u", Principal(OPERATOR), name))[-2:]
    assert stop == effects.StopTelling(5, 0, name)
    assert isinstance(reply, Reply)
    assert (reply.session, reply.id, reply.fault) == (8, name, None)
    (ended,) = [entry for entry in board.log if isinstance(entry, entries.TopicUnsubscribed)]
    assert (ended.subscription_id, ended.reason) == (name, "operator")
    assert [one.subscription for one in board.hub.topics.listed(10, 0)] == [other]
    assert board.back(ALICE, 6) == []


def test_who_is_not_there_is_not_told_that_his_subscription_was_ended() -> None:
    board = Board()
    name = board.subscribe(ALICE, "a", qos=1, durable=True)
    board.feed(events.SubscriberLeft(5))
    said = board.feed(events.SubscriptionEnded(8, "u", Principal(OPERATOR), name))
    assert not [effect for effect in said if isinstance(effect, effects.StopTelling)]
    (reply,) = board.feed(events.SubscriptionEnded(8, "u", Principal(OPERATOR), name))
    assert isinstance(reply, Reply)
    assert reply.fault is not None
    assert reply.fault.message == "no such subscription"


def test_a_list_of_subscriptions_says_who_is_told_of_what_and_what_is_owed() -> None:
    board = Board()
    first = board.subscribe(ALICE, "a.*", qos=1, durable=True)
    second = board.subscribe(BOB, "#", session=6)
    board.feed(events.SubscriberLeft(5))
    board.publish("a.b", qos=1)
    board.publish("a.c", qos=1)
    one, two = board.hub.topics.listed(10, 0)
    assert (one.subscription, one.subscriber, one.topic, one.qos) == (first, ALICE.identity, "a.*", 1)
    assert (one.durable, one.owed_events, one.connected) == (True, 2, False)
    assert one.owed_bytes > 2 * len(BODY)
    assert (two.subscription, two.durable, two.owed_events, two.connected) == (second, False, 0, True)
    assert one.since.endswith("Z")
    assert board.hub.topics.listed(1, 0) == [one]
    assert board.hub.topics.listed(10, one.number) == [two]


def test_the_same_durable_subscription_again_is_the_one_there_is() -> None:
    board = Board()
    first = board.subscribe(ALICE, "a", qos=1, durable=True)
    assert board.subscribe(ALICE, "a", qos=1, durable=True, session=6) == first
    assert board.subscribe(ALICE, "a", qos=2, durable=True, session=6) != first
    assert [told.session for told in board.publish("a")] == [6, 6]


def test_who_is_denied_a_topic_is_not_told_of_it_whatever_he_subscribed_to() -> None:
    board = Board(rules(("ossa:alice", "topic/secret.*", "deny"), ("*", "*", "allow")))
    board.subscribe(ALICE, "#", qos=1, durable=True)
    assert board.publish("secret.x", qos=1) == []
    assert len(board.publish("open.x", qos=1)) == 1


def test_what_was_owed_before_a_rule_denied_it_is_dropped_with_an_entry() -> None:
    board = Board()
    board.subscribe(ALICE, "#", qos=1, durable=True)
    board.publish("a", qos=1)
    board.in_force(rules(("ossa:alice", "topic/a", "deny"), ("*", "*", "allow"), version="v2"))
    assert board.back(ALICE, 6) == []
    assert [entry.reason for entry in board.log_of(entries.EventDropped)] == ["denied"]


@pytest.mark.parametrize("denied", ["topic/payroll", "topic/payroll.dlq"])
def test_who_is_denied_a_topic_is_not_told_of_its_dead_letters_and_sends_none(denied: str) -> None:
    board = Board(rules(("ossa:bob", denied, "deny"), ("*", "*", "allow")))
    board.subscribe(ALICE, "payroll", qos=1)
    board.subscribe(BOB, "*.dlq", session=6)
    board.subscribe(Principal("ossa:dave"), "*.dlq", session=7)
    (told,) = board.publish("payroll", qos=1)
    said = board.feed(events.EventGivenUp(5, told.subscription_id, told.event, "no answer"))
    assert [effect.session for effect in said if isinstance(effect, Notify)] == [7]
    forged = board.feed(events.EventPublished(9, "p", BOB.identity, "payroll.dlq", BODY))
    assert problem_of(forged).code == "policy.denied"


def test_what_is_published_while_a_subscriber_has_no_key_is_owed_until_he_has_one() -> None:
    board = Board()
    key = board.token("ossa", "alice", "first")
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.revoke(key)
    assert board.publish("a", qos=1) == []
    board.crash()
    board.token("ossa", "alice", "second")
    assert [told.topic for told in board.back(ALICE, 6)] == ["a"]


def test_what_a_rule_denies_by_the_time_a_subscriber_has_a_key_again_is_dropped_with_an_entry() -> None:
    board = Board(rules(("ossa:alice", "topic/a", "deny"), ("*", "*", "allow")))
    key = board.token("ossa", "alice", "first")
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.revoke(key)
    board.publish("a", qos=1)
    board.token("ossa", "alice", "second")
    assert board.back(ALICE, 6) == []
    assert [entry.reason for entry in board.log_of(entries.EventDropped)] == ["denied"]


def test_what_nobody_took_in_time_is_dropped_and_told_of_among_the_dead_letters() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.publish("a", qos=1, expires_ms=board.now.ms + 1000)
    board.subscribe(BOB, "*.dlq", session=6)
    board.advance(2.0)
    (letter,) = board.back(ALICE, 7)
    assert (letter.session, letter.topic, letter.publisher, bytes(letter.body)) == (
        6,
        "a.dlq",
        "trunkline",
        bytes(BODY),
    )
    assert [entry.reason for entry in board.log_of(entries.EventDropped)] == ["expired"]


def test_what_an_edge_gives_up_goes_to_the_dead_letters_which_have_none_themselves() -> None:
    board = Board()
    board.subscribe(ALICE, "#", qos=1, durable=True)
    (told,) = board.publish("a", qos=1)
    (letter,) = [
        effect for effect in board.feed(events.EventGivenUp(5, told.subscription_id, told.event, "no answer"))
        if isinstance(effect, Notify)
    ]  # fmt: skip
    assert letter.topic == "a.dlq"
    assert board.feed(events.EventGivenUp(5, letter.subscription_id, letter.event, "no answer")) == []
    assert board.kinds()["EventDropped"] == 2


def test_who_takes_nothing_is_owed_up_to_a_bound_and_nobody_else_is_harmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_OWED", 3)
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    bob = board.subscribe(BOB, "a", qos=1, durable=True, session=6)
    for _ in range(5):
        for told in board.publish("a", qos=1):
            if told.subscription_id == bob:
                board.take(told)
    assert [entry.reason for entry in board.log_of(entries.EventDropped)] == ["full", "full"]
    assert len(board.back(ALICE, 7)) == 3


def test_somebody_may_have_so_many_subscriptions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_SUBSCRIPTIONS", 2)
    board = Board()
    board.subscribe(ALICE, "a")
    board.subscribe(ALICE, "b")
    (reply,) = board.feed(events.SubscriptionRequested(5, "s", ALICE, "c"))
    assert isinstance(reply, Reply)
    assert reply.fault is not None
    board.subscribe(BOB, "c")


# -- where a subscriber is ---------------------------------------------------------------------------------------------


def problem_of(said: list[effects.Effect]) -> Fault:
    (reply,) = [effect for effect in said if isinstance(effect, Reply)]
    assert reply.fault is not None
    return reply.fault


def test_a_subscription_that_is_not_durable_needs_a_conversation_in_which_its_subscriber_is_told() -> None:
    board = Board()
    problem = problem_of(board.feed(events.SubscriptionRequested(5, "s", ALICE, "a")))
    assert problem.code == "state.conflict"
    assert "durable" in problem.message
    (reply,) = [
        effect for effect in board.feed(events.SubscriptionRequested(5, "s", ALICE, "a", 1, durable=True))
        if isinstance(effect, Reply)
    ]  # fmt: skip
    assert reply.fault is None
    assert board.publish("a", qos=1) == []
    assert len(board.back(ALICE, 6)) == 1


def test_the_newest_conversation_of_a_subscriber_is_where_he_is_told() -> None:
    board = Board()
    board.subscribe(ALICE, "a", session=5)
    board.back(ALICE, 6)
    assert [told.session for told in board.publish("a")] == [6]
    board.feed(events.SubscriberLeft(5))
    assert [told.session for told in board.publish("a")] == [6]
    board.feed(events.SubscriberLeft(6))
    assert board.publish("a") == []
    assert board.kinds()["TopicUnsubscribed"] == 1


def test_where_an_answer_goes_is_not_where_events_go() -> None:
    board = Board()
    board.back(ALICE, 5)
    said = board.feed(events.SubscriptionRequested(77, "s", ALICE, "a"))
    assert [effect.session for effect in said if isinstance(effect, Reply)] == [77]
    assert [told.session for told in board.publish("a")] == [5]


def test_an_earlier_conversation_has_no_word_about_what_is_owed_any_more() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    (told,) = board.publish("a", qos=1)
    board.back(ALICE, 6)
    board.take(told)
    assert board.kinds()["EventTaken"] == 0


def test_a_conversation_that_a_defect_ends_ends_for_its_subscriber_too() -> None:
    board = Board()
    board.subscribe(ALICE, "a")
    board.feed(events.AgentLeft(5, "defect"))
    assert board.publish("a") == []
    assert len(board.hub.topics) == 0


def test_the_same_subscription_that_is_not_durable_is_one_too() -> None:
    board = Board()
    first = board.subscribe(ALICE, "a")
    assert board.subscribe(ALICE, "a") == first
    assert len(board.publish("a")) == 1


# -- what goes with an event -------------------------------------------------------------------------------------------


def test_what_a_protocol_says_beside_an_event_reaches_its_subscribers_unread_also_after_a_restart() -> None:
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    beside = Raw(b'{"priority":3,"x":[1.0]}')
    board.feed(events.EventPublished(9, "p", "ossa:carol", "a", BODY, 1, context=beside))
    board.crash()
    (told,) = board.back(ALICE, 6)
    assert bytes(told.context or b"") == bytes(beside)


def working_for_carol(policy: Policy) -> tuple[Board, str]:
    """``com.bot`` works for Carol, and asks the exchange for something meanwhile: the call of its tool."""
    board = Board(policy)
    board.attach("com.bot", "work")
    board.attach("com.board", "ask")
    board.call("com.bot/work", by=Principal("http:carol"))
    return board, board.call("com.board/ask", by="com.bot").call_id


BOT = Principal("opensentience:com.bot")


@pytest.mark.parametrize("denied", ["http:carol", "opensentience:com.bot"])
def test_nobody_publishes_through_another_where_he_may_not_himself(denied: str) -> None:
    board, call_id = working_for_carol(rules((denied, "topic/secret.*", "deny"), ("*", "*", "allow")))
    said = board.feed(events.EventPublished(9, "p", BOT.identity, "secret.a", BODY, call_id=call_id))
    assert problem_of(said).code == "policy.denied"
    assert board.log_of(entries.EventPublished) == []
    board.feed(events.EventPublished(9, "p", BOT.identity, "open.a", BODY, call_id=call_id))
    assert len(board.log_of(entries.EventPublished)) == 1


def test_nobody_is_told_through_another_what_he_may_not_hear_himself_also_after_a_restart() -> None:
    board, call_id = working_for_carol(rules(("http:carol", "topic/secret.*", "deny"), ("*", "*", "allow")))
    board.feed(events.SubscriptionRequested(9, "s", BOT, "#", 1, durable=True, call_id=call_id))
    board.crash()
    board.back(BOT, 60)
    assert board.publish("secret.a", qos=1) == []
    assert len(board.publish("open.a", qos=1)) == 1


def test_the_call_of_another_says_nothing_about_an_event() -> None:
    board, call_id = working_for_carol(rules(("http:carol", "topic/a", "deny"), ("*", "*", "allow")))
    board.feed(events.EventPublished(9, "p", "ossa:dave", "a", BODY, call_id=call_id))
    assert len(board.log_of(entries.EventPublished)) == 1


def test_what_strangers_wrote_is_behind_an_event_as_it_was_behind_its_call() -> None:
    board = Board()
    board.in_force(untrusted_agents=frozenset({"com.web"}))
    board.attach("com.web", "read")
    board.attach("com.bot", "work")
    board.attach("com.board", "ask")
    board.finish(board.call("com.web/read", by="com.bot"))
    call_id = board.call("com.board/ask", by="com.bot").call_id
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.feed(events.EventPublished(9, "p", BOT.identity, "a", BODY, 1, call_id=call_id))
    board.crash()
    (told,) = board.back(ALICE, 60)
    assert told.circumstances == (Circumstance.UNTRUSTED,)


DENIED_IF_UNTRUSTED = Rule("denied", "*", "com.board/*", Decision.DENY, when=Circumstance.UNTRUSTED)


def read_by_bot(policy: Policy = ALL) -> tuple[Board, str]:
    """``com.bot`` has read what strangers wrote, and asks the exchange to publish: that call."""
    board = Board(policy)
    board.in_force(policy, untrusted_agents=frozenset({"com.web"}))
    board.attach("com.web", "read")
    board.attach("com.bot", "work")
    board.attach("com.board", "ask")
    board.attach("com.desk", "ask")
    board.finish(board.call("com.web/read", by="com.bot"))
    return board, board.call("com.desk/ask", by="com.bot").call_id


def publish_untrusted(board: Board, call_id: str, qos: int = 0, correlation_id: str | None = None) -> list[Notify]:
    said = board.feed(
        events.EventPublished(9, "p", BOT.identity, "a", BODY, qos, correlation_id=correlation_id, call_id=call_id)
    )
    return [effect for effect in said if isinstance(effect, Notify)]


@pytest.mark.parametrize("qos", [0, 1])
def test_who_is_told_of_an_untrusted_event_is_labelled_before_it_and_stays_so_after_a_restart(qos: int) -> None:
    board, call_id = read_by_bot(rules(DENIED_IF_UNTRUSTED, ("*", "*", "allow")))
    board.subscribe(ALICE, "a", qos=qos)
    assert board.call("com.board/ask", by=ALICE).accepted
    (told,) = publish_untrusted(board, call_id, qos)
    (label,) = board.log_of(entries.AgentsLabelled)
    assert label.agents == {"alice": ()}
    assert told.after == label.n
    assert board.call("com.board/ask", {"n": 2}, by=ALICE).code == "policy.denied"
    assert board.call("com.board/ask", by=BOB).accepted
    board.snapshot()
    board.crash()
    board.attach("com.board", "ask")
    assert board.call("com.board/ask", {"n": 3}, by=ALICE).code == "policy.denied"


def test_a_trusted_event_labels_nobody_and_no_event_labels_the_operator() -> None:
    board, call_id = read_by_bot()
    board.subscribe(ALICE, "b")
    board.subscribe(Principal(OPERATOR), "a", session=6)
    assert len(board.publish("b")) == 1
    assert len(publish_untrusted(board, call_id)) == 1
    assert board.log_of(entries.AgentsLabelled) == []


def test_who_comes_back_is_labelled_when_he_is_told() -> None:
    board, call_id = read_by_bot()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.subscribe(ALICE, "*", qos=1, durable=True)
    board.feed(events.SubscriberLeft(5))
    assert publish_untrusted(board, call_id, 1) == []
    board.crash()
    assert not board.state.is_tainted_agent("alice", board.now.ms)
    told = board.back(ALICE, 60)
    (label,) = board.log_of(entries.AgentsLabelled)
    assert [one.after for one in told] == [label.n, label.n]
    for one in told:
        board.take(one)
    board.snapshot()
    board.crash()
    assert board.state.is_tainted_agent("alice", board.now.ms)
    assert board.back(ALICE, 61) == []


def test_what_an_agent_that_reads_strangers_words_publishes_is_untrusted_itself() -> None:
    board, _ = read_by_bot()
    board.subscribe(ALICE, "a")
    board.feed(events.EventPublished(9, "p", "opensentience:com.web", "a", BODY))
    assert board.state.is_tainted_agent("alice", board.now.ms)


def test_what_an_agent_publishes_that_was_told_strangers_words_is_untrusted_whether_or_not_it_is_by_a_call() -> None:
    board, _ = read_by_bot()
    board.subscribe(ALICE, "a")
    board.feed(events.EventPublished(9, "p", BOT.identity, "a", BODY))
    assert board.state.is_tainted_agent("alice", board.now.ms)
    # and on from her, to who listens to her
    board.subscribe(BOB, "b", session=6)
    board.feed(events.EventPublished(5, "p", ALICE.identity, "b", BODY))
    assert board.state.is_tainted_agent("bob", board.now.ms)


def test_the_dead_letter_of_an_untrusted_event_labels_who_is_told_of_it() -> None:
    board, call_id = read_by_bot()
    board.subscribe(ALICE, "a", qos=1)
    board.subscribe(BOB, "*.dlq", session=6)
    (told,) = publish_untrusted(board, call_id, 1)
    board.feed(events.EventGivenUp(5, told.subscription_id, told.event, "no answer"))
    assert board.state.is_tainted_agent("bob", board.now.ms)


def test_the_result_of_what_an_agent_worked_on_when_it_was_told_may_hold_strangers_words() -> None:
    board, call_id = read_by_bot()
    worker = Principal("opensentience:com.board")
    board.subscribe(worker, "a")
    before = board.call("com.board/ask", by=ALICE)
    publish_untrusted(board, call_id, correlation_id="k")
    after = board.call("com.board/ask", {"n": 2}, by=BOB)
    board.finish(before)
    board.finish(after)
    assert board.state.is_tainted("k", board.now.ms)
    assert board.state.is_tainted_agent("alice", board.now.ms)
    assert not board.state.is_tainted_agent("bob", board.now.ms)
    board.snapshot()
    board.crash()


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_what_is_owed_to_all_subscriptions_of_one_identity_has_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_OWED_BYTES", 2000)
    board = Board()
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.subscribe(ALICE, "*", qos=1, durable=True)
    board.publish("a", qos=1)
    assert board.log_of(entries.EventDropped) == []
    board.publish("a", qos=1)
    assert [entry.reason for entry in board.log_of(entries.EventDropped)] == ["full"]
    assert board.hub.topics.figures()["owed_event_bytes"] == 519 * 3


def test_who_publishes_more_than_may_be_written_for_him_is_told_when_to_come_back() -> None:
    board = Board()
    board.in_force(limits=Limits(ledger_bytes_per_hour=2500))
    board.subscribe(ALICE, "a", qos=1, durable=True)
    board.publish("a", qos=1)
    board.publish("a", qos=1)
    problem = problem_of(board.feed(events.EventPublished(9, "p", "ossa:carol", "a", BODY, 1)))
    assert problem.code == "limit.rate"
    assert problem.details is not None
    assert problem.details["retry_after_ms"]
    board.feed(events.EventPublished(9, "p", "ossa:dave", "a", BODY, 1))
    assert len(board.log_of(entries.EventPublished)) == 3


def test_who_comes_and_goes_with_subscriptions_all_the_time_is_held_up() -> None:
    board = Board()
    board.back(ALICE, 5)
    codes: set[str] = set()
    with board.in_bulk():
        for number in range(1100):
            name = f"s{number}"
            (reply,) = [
                effect for effect in board.feed(events.SubscriptionRequested(5, name, ALICE, f"a.{number}"))
                if isinstance(effect, Reply)
            ]  # fmt: skip
            if reply.fault is None:
                board.feed(events.SubscriptionEnded(5, name, ALICE, reply.id or ""))
            else:
                codes.add(reply.fault.code)
    assert codes == {"limit.rate"}


def test_an_exchange_that_stops_takes_no_events_and_no_subscriptions() -> None:
    board = Board()
    board.back(ALICE, 5)
    board.feed(events.DrainStarted())
    assert problem_of(board.feed(events.EventPublished(9, "p", "x", "a", BODY, 1))).code == "hub.unavailable"
    assert problem_of(board.feed(events.SubscriptionRequested(5, "s", ALICE, "a"))).code == "hub.unavailable"


segment = st.sampled_from(["a", "b", "*"])
pattern = st.lists(segment, min_size=1, max_size=3).map(".".join) | st.just("#") | st.just("a.#")


class TopicsMachine(RuleBasedStateMachine):
    """Subscribers come and go, events are published and taken, the exchange is killed: nothing that is owed is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.board = Board(ALL)
        # By subscription: who, its pattern and quality; and the events that it has to take, in order.
        self.mine: dict[str, tuple[Principal, str, int]] = {}
        self.owed: dict[str, list[int]] = {}
        self.at: dict[Principal, int] = {}
        self.session = 20

    @initialize()
    def begin(self) -> None:
        for who in (ALICE, BOB):
            self.come(who)

    def come(self, who: Principal) -> None:
        self.session += 1
        self.at[who] = self.session
        told = self.board.back(who, self.session)
        own = [name for name, (owner, _, _) in self.mine.items() if owner == who]
        for name in own:
            assert [one.event for one in told if one.subscription_id == name] == self.owed[name]

    @rule(who=st.sampled_from([ALICE, BOB]), pattern=pattern, qos=st.integers(1, 2))
    def subscribe(self, who: Principal, pattern: str, qos: int) -> None:
        name = self.board.subscribe(who, pattern, session=self.at[who], qos=qos, durable=True)
        self.mine.setdefault(name, (who, pattern, qos))
        self.owed.setdefault(name, [])

    @rule(topic=st.sampled_from(["a", "b", "a.b", "a.a.b"]), qos=st.integers(0, 2))
    def publish(self, topic: str, qos: int) -> None:
        told = self.board.publish(topic, qos)
        number = self.board.log_of(entries.EventPublished)[-1].n
        expected = {name for name, (_, pattern, _) in self.mine.items() if matches(pattern, topic)}
        assert {one.subscription_id for one in told} == expected
        if qos:
            for name in expected:
                self.owed[name].append(number)

    @precondition(lambda self: any(self.owed.values()))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, events_ in self.owed.items() if events_]))
        number = data.draw(st.sampled_from(self.owed[name]))
        self.board.feed(events.EventTaken(self.at[self.mine[name][0]], name, number))
        self.owed[name].remove(number)

    @rule(who=st.sampled_from([ALICE, BOB]))
    def leave_and_come(self, who: Principal) -> None:
        self.board.feed(events.SubscriberLeft(self.at[who]))
        self.come(who)

    @rule(with_snapshot=st.booleans())
    def killed(self, with_snapshot: bool) -> None:
        if with_snapshot:
            self.board.snapshot()
        self.board.crash()
        for who in (ALICE, BOB):
            self.come(who)

    @precondition(lambda self: self.mine)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.mine)))
        who, _, _ = self.mine.pop(name)
        del self.owed[name]
        self.board.feed(events.SubscriptionEnded(self.at[who], "u", who, name))

    @invariant()
    def what_is_owed_is_what_was_not_taken(self) -> None:
        owed = {(number, name) for name, numbers in self.owed.items() for number in numbers}
        assert self.board.hub.topics.owed_to_durable() == owed


TestTopics = pytest.mark.slow(TopicsMachine.TestCase)
TestTopics.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
