"""The six kinds of NIP-SA."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.requirement import requirement
from trunkline.config import NostrKinds
from trunkline.edges.nostr import events, lifecycle
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.lifecycle import LifeEvent
from trunkline.edges.nostr.messages import BadMessage

OTHER = NostrKinds(
    agent_profile=30_001, agent_state=30_002, tick_request=30_003, tick_result=30_004, trajectory_session=30_005,
    trajectory_event=30_006,
)  # fmt: skip
AGENT, OWNER = Signer(bytes(31) + b"\x01"), Signer(bytes(31) + b"\x02")
BODY = Raw(b'{"name":"a","score":1.5}')
ALL = {
    39_200: lifecycle.profile(BODY),
    39_201: lifecycle.state(BODY),
    39_210: lifecycle.tick_request("t1", AGENT.public, BODY),
    39_211: lifecycle.tick_result("t1", "ab" * 32, BODY),
    39_230: lifecycle.trajectory_session("s1", BODY),
    39_231: lifecycle.trajectory_event("s1", 7, BODY),
}


def said(kinds: NostrKinds, one: LifeEvent) -> events.Event:
    draft = lifecycle.draft(kinds, one, created_at=1, to=OWNER.public, encrypt=AGENT.encrypt)
    return events.read(events.encoded(events.signed(draft, AGENT)))


@requirement("OA-008", "OA-009", "OA-010", "OA-011", "OA-012", "OA-013")
@pytest.mark.parametrize("kind", ALL)
def test_each_is_read_back_as_it_was_said_under_the_kind_that_is_configured(kind: int) -> None:
    for kinds in (NostrKinds(), OTHER):
        event = said(kinds, ALL[kind])
        assert lifecycle.read(kinds, event, OWNER.decrypt) == ALL[kind]
    assert said(NostrKinds(), ALL[kind]).kind == kind
    with pytest.raises(BadMessage):
        lifecycle.read(NostrKinds(), event, OWNER.decrypt)


def test_a_state_can_be_read_by_its_owner_only() -> None:
    event = said(NostrKinds(), ALL[39_201])
    assert "score" not in event.content
    for decrypt in (None, Signer(bytes(31) + b"\x03").decrypt):
        with pytest.raises(BadMessage):
            lifecycle.read(NostrKinds(), event, decrypt)
    with pytest.raises(ValueError, match="encrypted"):
        lifecycle.draft(NostrKinds(), ALL[39_201], created_at=1)


def test_no_two_events_of_a_session_share_a_name() -> None:
    names = {lifecycle.trajectory_event(session, number, BODY).name for session in "ab" for number in range(20)}
    assert len(names) == 40


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a":1,"a":2}'])
def test_what_is_no_object_is_refused(content: str) -> None:
    event = events.signed(events.Draft(39_200, content, (("d", "x"),), 1), AGENT)
    with pytest.raises(BadMessage):
        lifecycle.read(NostrKinds(), event)
