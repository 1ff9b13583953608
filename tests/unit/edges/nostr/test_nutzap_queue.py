"""Whose nutzap is looked at next, and how many of them."""

from __future__ import annotations

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.edges.nostr.nutzap_queue import MAX_OF_SENDER, NutzapQueue
from trunkline.edges.nostr.nutzaps import Nutzap
from trunkline.model import Now

TOKEN = ToyMint().locked(1)
START = Now(0.0, 1000.0)


def zap(sender: str, number: int = 0) -> Nutzap:
    return Nutzap(f"{sender} {number}", sender, "payee", f"request of {sender}", TOKEN)


def looked_at(queue: NutzapQueue, now: Now = START, ready: str = "") -> list[str]:
    found = []
    while (one := queue.next(now, lambda zap: ready in zap.sender)) is not None:
        found.append(one.id)
    return found


def test_one_who_sends_many_waits_for_his_own_and_holds_back_nobody_else() -> None:
    queue = NutzapQueue(60)
    for number in range(3):
        assert queue.add(zap("flood", number))
    assert queue.add(zap("buyer"))
    assert looked_at(queue) == ["flood 0", "buyer 0", "flood 1", "flood 2"]
    assert len(queue) == 0


def test_what_came_too_fast_is_looked_at_later_in_its_turn() -> None:
    queue = NutzapQueue(2)
    for number in range(4):
        queue.add(zap("flood", number))
    assert looked_at(queue) == ["flood 0", "flood 1"]
    queue.add(zap("buyer"))
    assert looked_at(queue, Now(30.0, 1000.0)) == ["flood 2"]
    assert looked_at(queue, Now(60.0, 1000.0)) == ["buyer 0"]
    assert looked_at(queue, Now(90.0, 1000.0)) == ["flood 3"]


def test_of_one_sender_so_many_wait_and_a_repeat_is_no_second_one() -> None:
    queue = NutzapQueue(60)
    assert all(queue.add(zap("flood", number)) for number in (0, 0, *range(MAX_OF_SENDER)))
    assert not queue.add(zap("flood", MAX_OF_SENDER))
    assert queue.add(zap("buyer"))
    assert len(queue) == MAX_OF_SENDER + 1


def test_what_is_not_ready_takes_no_room_and_what_is_over_is_forgotten() -> None:
    queue = NutzapQueue(1)
    queue.add(zap("first"))
    queue.add(zap("second"))
    assert looked_at(queue, ready="second") == ["second 0"]
    queue.drop(lambda one: one.sender == "first")
    assert looked_at(queue, Now(600.0, 1000.0)) == []
    assert len(queue) == 0
