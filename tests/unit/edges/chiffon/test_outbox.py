"""``edges.chiffon.outbox``: what waits for a peer: in order, bounded, and never twice the same request."""

from __future__ import annotations

import uuid

import pytest

from trunkline.edges.chiffon import outbox as module
from trunkline.edges.chiffon.messages import Envelope, WorkRequest, WorkStatus, build
from trunkline.edges.chiffon.outbox import Outbox


def work(request_id: str | None = None) -> Envelope:
    request_id = request_id or str(uuid.uuid4())
    return build(
        WorkRequest(request_id, "x"),
        sender="orchestrator",
        to="infra",
        trace_id=request_id,
        request_id=request_id,
        now_ms=0,
        message_id=str(uuid.uuid4()),
    )


def status(request_id: str) -> Envelope:
    said = WorkStatus(request_id, "running", 1)
    return build(
        said,
        sender="infra",
        to="orchestrator",
        trace_id=request_id,
        request_id=request_id,
        now_ms=0,
        message_id=str(uuid.uuid4()),
    )


def test_messages_come_out_in_the_order_they_went_in() -> None:
    box = Outbox()
    first, second = work(), work()
    box.put(first)
    box.put(second)
    assert [one.message_id for one in box.take()] == [first.message_id, second.message_id]
    assert len(box) == 0


def test_a_newer_attempt_replaces_one_that_was_not_fetched() -> None:
    box, request_id = Outbox(), str(uuid.uuid4())
    other = work()
    box.put(work(request_id))
    box.put(other)
    again = work(request_id)
    box.put(again)
    assert [one.message_id for one in box.take()] == [other.message_id, again.message_id]


def test_statuses_of_one_request_are_all_kept() -> None:
    box, request_id = Outbox(), str(uuid.uuid4())
    for _ in range(3):
        box.put(status(request_id))
    assert len(box) == 3


def test_a_take_is_bounded_but_gives_at_least_one() -> None:
    box = Outbox()
    for _ in range(3):
        box.put(work())
    assert len(box.take(1)) == 1
    assert len(box.take(10_000)) == 2


def test_what_did_not_arrive_is_first_in_line_again() -> None:
    box = Outbox()
    sent = [work() for _ in range(3)]
    for one in sent:
        box.put(one)
    (taken,) = box.take(1)
    box.put(work())
    box.put_back(taken)
    assert [one.message_id for one in box.take()][:3] == [one.message_id for one in sent]


def test_an_answer_is_taken_before_others_unless_more_of_its_request_comes_first() -> None:
    box, request_id = Outbox(), str(uuid.uuid4())
    other, answer = status(str(uuid.uuid4())), status(request_id)
    box.put(other)
    box.put(answer, "asked")
    assert box.take_answer("unknown") is None
    taken = box.take_answer("asked")
    assert taken is not None
    assert taken.message_id == answer.message_id
    assert box.take_answer("asked") is None
    box.put(status(request_id))
    box.put(answer, "asked")
    assert box.take_answer("asked") is None, "it would overtake what was said before"
    assert len(box.take()) == 3


def test_one_is_taken_by_itself_even_if_more_would_go_together() -> None:
    box, first, second = Outbox(), work(), work()
    assert box.take_one() is None
    box.put(first)
    box.put(second)
    taken = box.take_one()
    assert taken is not None
    assert taken.message_id == first.message_id
    assert [one.message_id for one in box.take()] == [second.message_id]


def test_beyond_the_bounds_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 2)
    box = Outbox()
    sent = [work() for _ in range(4)]
    for one in sent:
        box.put(one)
    assert [one.message_id for one in box.take()] == [one.message_id for one in sent[2:]]
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    box.put(work())
    assert len(box) == 1, "a single one is kept, whatever its size"


def test_a_request_may_be_forgotten() -> None:
    box, request_id = Outbox(), str(uuid.uuid4())
    box.put(work(request_id))
    box.put(work())
    box.forget(request_id)
    box.forget("unknown")
    assert len(box.take()) == 1
