"""What waits for a peer: in order, bounded, and never twice the same request."""

from __future__ import annotations

import uuid

import pytest

from trunkline.edges.chiffon import mailbox as module
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import Envelope, WorkRequest, WorkStatus, build


def work(request_id: str | None = None) -> Envelope:
    request_id = request_id or str(uuid.uuid4())
    return build(
        WorkRequest(request_id, "x"),
        sender="orchestrator",
        to="infra",
        trace_id=request_id,
        request_id=request_id,
        now_ms=0,
    )


def status(request_id: str) -> Envelope:
    said = WorkStatus(request_id, "running", 1)
    return build(said, sender="infra", to="orchestrator", trace_id=request_id, request_id=request_id, now_ms=0)


def test_letters_come_out_in_the_order_they_went_in_and_wake_their_carrier() -> None:
    box, rung = Mailbox(), []
    box.listeners.append(lambda: rung.append(len(box)))
    first, second = work(), work()
    box.put(first)
    box.put(second)
    assert rung == [1, 2]
    assert [letter.message_id for letter in box.take()] == [first.message_id, second.message_id]
    assert len(box) == 0


def test_a_newer_attempt_replaces_one_that_was_not_fetched() -> None:
    box, request_id = Mailbox(), str(uuid.uuid4())
    other = work()
    box.put(work(request_id))
    box.put(other)
    again = work(request_id)
    box.put(again)
    assert [letter.message_id for letter in box.take()] == [other.message_id, again.message_id]


def test_statuses_of_one_request_are_all_kept() -> None:
    box, request_id = Mailbox(), str(uuid.uuid4())
    for _ in range(3):
        box.put(status(request_id))
    assert len(box) == 3


def test_a_take_is_bounded_but_gives_at_least_one() -> None:
    box = Mailbox()
    for _ in range(3):
        box.put(work())
    assert len(box.take(1)) == 1
    assert len(box.take(10_000)) == 2


def test_what_did_not_arrive_is_first_in_line_again() -> None:
    box = Mailbox()
    sent = [work() for _ in range(3)]
    for one in sent:
        box.put(one)
    letters = box.take()
    box.put(work())
    box.put_back(letters)
    assert [letter.message_id for letter in box.take()][:3] == [one.message_id for one in sent]


def test_beyond_the_bounds_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 2)
    box = Mailbox()
    sent = [work() for _ in range(4)]
    for one in sent:
        box.put(one)
    assert box.dropped == 2
    assert [letter.message_id for letter in box.take()] == [one.message_id for one in sent[2:]]
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    box.put(work())
    assert len(box) == 1, "a single one is kept, whatever its size"


def test_a_request_may_be_forgotten() -> None:
    box, request_id = Mailbox(), str(uuid.uuid4())
    box.put(work(request_id))
    box.put(work())
    box.forget(request_id)
    box.forget("unknown")
    assert len(box.take()) == 1
