"""What is refused on the wire can be looked into: a note on record, the latest in the status, and no flood."""

from __future__ import annotations

import json

import pytest

from tests.fuzz.asgi import Request
from tests.unit.edges.ossa.kit import Agent, Kit, refusal
from trunkline import entries
from trunkline.edges.ossa import refusals
from trunkline.edges.ossa.identity import NOT_YOURS
from trunkline.edges.ossa.messages import BAD_REQUEST, UNAUTHORIZED, Identity, Refused


@pytest.fixture
def kit() -> Kit:
    return Kit()


def noted(kit: Kit) -> list[tuple[str, str]]:
    found = kit.exchange.recorded(entries.Noticed)
    return [(one.who, one.detail) for one in found if one.code == "message.refused"]


def error_of(request: Request) -> dict[str, object]:
    found: dict[str, object] = json.loads(request.content)["body"]["error"]
    return found


def test_a_refusal_is_on_record_with_its_code_who_claimed_to_speak_and_why(kit: Kit) -> None:
    alice, mallory = kit.agent("alice"), kit.agent("mallory")
    with kit:
        claimed = kit.post(mallory.signed(alice.message("request", "bob", "greet")))
        broken = kit.post(b"{}")
        late = kit.post(alice.signed(alice.message("request", "bob", "greet", timestamp=kit.stamp(-100_000))))
        kit.exchange.advance(1)
    assert [one.status for one in (claimed, broken, late)] == [401, 400, 401]
    assert noted(kit) == [
        ("127.0.0.1", f"401 to alice: {NOT_YOURS}"),
        ("127.0.0.1", "400 to nobody: header is missing"),
        ("ossa:alice", "401 to alice: timestamp: too old, or in the future; whether it is a replay cannot be told"),
    ]
    assert kit.edge.status()["refused"] == 3
    assert str(kit.edge.status()["last_refused"]).startswith("401 to alice: timestamp")


def test_what_is_not_the_fault_of_a_message_is_counted_and_not_noted(kit: Kit) -> None:
    alice = kit.agent("alice")
    with kit:
        message = alice.message("stream_start", "bob", "feed", {}, streamId="s")
        assert kit.post(alice.signed(message)).status == 503
    assert noted(kit) == []
    assert kit.edge.status()["refused"] == 1


def refused(name: str = "", proven: str = "", code: int = UNAUTHORIZED) -> Refused:
    made = Refused(code, "no", to=Identity(name, "worker") if name else None)
    made.proven = proven
    return made


def test_of_the_same_in_a_row_the_first_the_tenth_and_the_hundredth_is_noted(kit: Kit) -> None:
    for _ in range(150):
        kit.peers.refusals.note(refused(proven="ossa:alice"), "10.0.0.1")
    assert len(noted(kit)) == 3
    kit.peers.refusals.note(refused(proven="ossa:alice", code=BAD_REQUEST), "10.0.0.1")
    assert len(noted(kit)) == 4
    kit.advance(refusals.FORGET_S)
    kit.peers.refusals.note(refused(proven="ossa:alice"), "10.0.0.1")
    assert len(noted(kit)) == 5


def test_strangers_fill_no_record_whatever_they_claim_and_wherever_they_come_from(kit: Kit) -> None:
    for number in range(3 * refusals.MAX_NOTES_AN_HOUR):
        kit.peers.refusals.note(refused(f"agent-{number}"), f"10.0.{number // 250}.{number % 250}")
    assert len(noted(kit)) == refusals.MAX_NOTES_AN_HOUR
    kit.peers.refusals.note(refused("alice", proven="ossa:alice"), "10.0.0.1")
    assert len(noted(kit)) == refusals.MAX_NOTES_AN_HOUR + 1, "who proved who he is has a share of his own"
    kit.advance(refusals.HOUR_S)
    kit.peers.refusals.note(refused("bob"), "10.0.0.9")
    assert len(noted(kit)) == refusals.MAX_NOTES_AN_HOUR + 2


# --- revoked keys -----------------------------------------------------------------------------------------------------


def revoked(kit: Kit) -> Agent:
    alice = kit.agent("alice")
    kit.exchange.revoke("ossa", "alice")
    return alice


def test_who_signs_with_a_revoked_key_is_told_so_and_which_one_to_use(kit: Kit) -> None:
    old = revoked(kit)
    text = refusal(old.ask, "request", "bob", "greet").text
    assert text == f"the key {old.key.kid} was revoked; `trunkline token new ossa --agent alice` makes another"
    new = kit.agent("alice")
    text = refusal(old.ask, "request", "bob", "greet").text
    assert text == f"the key {old.key.kid} was revoked; sign with {new.key.kid}"


def test_strangers_hear_the_same_of_a_revoked_key_as_of_one_that_never_was(kit: Kit) -> None:
    old, mallory = revoked(kit), kit.agent("mallory")
    message = old.message("request", "bob", "greet")
    with kit:
        named = kit.post(mallory.signed(message, kid=old.key.kid))
        unknown = kit.post(mallory.signed(message, kid="never"))
        changed = json.loads(old.signed(message))
        changed["body"]["action"] = "other"
        forged = kit.post(json.dumps(changed).encode())
        kit.exchange.advance(10)
        others = mallory.message("request", "bob", "greet")
        own = kit.post(mallory.signed(others, kid=old.key.kid))
        kit.exchange.advance(10)
    texts = {str(error_of(one)["message"]) for one in (named, unknown, forged, own)}
    assert texts == {NOT_YOURS}
    assert {one.status for one in (named, unknown, forged, own)} == {401}
