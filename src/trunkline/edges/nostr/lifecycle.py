"""The six events of an agent's life that NIP-SA proposes: built and read, nothing more.

They are planned in the specification, without numbers or fields of their own: kinds are configuration, contents are
JSON objects, and each lies in the addressable range, so that its tag ``d`` keeps it apart from the next (silent point
26). What an agent's state says is encrypted to somebody (NIP-44). Nothing in the exchange sends or obeys one yet.

Invariant: what is built is read back as it was; two ticks, or two events of a session, never share a ``d`` tag.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.config import NostrKinds
from trunkline.edges.nostr import keys
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.messages import BadMessage, Decrypt, Encrypt

PROFILE_NAME: Final = "profile"
STATE_NAME: Final = "state"


class Life(enum.StrEnum):
    """Which of the six; the value is the key of its kind in ``[nostr.kinds]``."""

    AGENT_PROFILE = "agent_profile"
    AGENT_STATE = "agent_state"
    TICK_REQUEST = "tick_request"
    TICK_RESULT = "tick_result"
    TRAJECTORY_SESSION = "trajectory_session"
    TRAJECTORY_EVENT = "trajectory_event"


class LifeEvent(Struct, frozen=True):
    """One of them. ``name`` is its ``d`` tag; ``about`` the event or agent that it answers or belongs to, if any."""

    life: Life
    name: str
    content: Raw
    about: str = ""


def profile(content: Raw) -> LifeEvent:
    """What an agent can do, who it is, what others think of it."""
    return LifeEvent(Life.AGENT_PROFILE, PROFILE_NAME, content)


def state(content: Raw) -> LifeEvent:
    """How an agent is, and whether it has time."""
    return LifeEvent(Life.AGENT_STATE, STATE_NAME, content)


def tick_request(tick_id: str, agent: str, content: Raw) -> LifeEvent:
    """An agent is asked to take a turn."""
    return LifeEvent(Life.TICK_REQUEST, tick_id, content, agent)


def tick_result(tick_id: str, request_id: str, content: Raw) -> LifeEvent:
    """What came of a turn."""
    return LifeEvent(Life.TICK_RESULT, tick_id, content, request_id)


def trajectory_session(session_id: str, content: Raw) -> LifeEvent:
    """A session as a whole."""
    return LifeEvent(Life.TRAJECTORY_SESSION, session_id, content)


def trajectory_event(session_id: str, number: int, content: Raw) -> LifeEvent:
    """One event of a session."""
    return LifeEvent(Life.TRAJECTORY_EVENT, f"{session_id}:{number}", content, session_id)


def draft(
    kinds: NostrKinds, said: LifeEvent, *, created_at: int, to: str = "", encrypt: Encrypt | None = None
) -> Draft:
    """The event. A state needs ``to`` and ``encrypt``: it is for somebody."""
    content = bytes(said.content).decode()
    tags = [("d", said.name)]
    if said.about:
        tags.append((_ABOUT[said.life], said.about))
    if said.life is Life.AGENT_STATE:
        if encrypt is None:
            raise ValueError("the state of an agent is encrypted")
        content = encrypt(content, to)
        tags.append(("p", to))
    return Draft(getattr(kinds, said.life), content, tuple(tags), created_at)


def read(kinds: NostrKinds, event: Event, decrypt: Decrypt | None = None) -> LifeEvent:
    """What this event says; ``BadMessage`` if it is none of the six."""
    life = next((life for life in Life if getattr(kinds, life) == event.kind), None)
    if life is None or not event.value("d"):
        raise BadMessage("no event of an agent's life: another kind, or no tag d")
    content = event.content
    if life is Life.AGENT_STATE:
        try:
            content = decrypt(content, event.pubkey) if decrypt is not None else ""
        except keys.CannotDecrypt as error:
            raise BadMessage(str(error)) from None
    try:
        strictjson.check(content.encode(), want_object=True)
    except (strictjson.NotStrictJson, UnicodeEncodeError):
        raise BadMessage("its content is not a JSON object") from None
    about = event.value(_ABOUT[life]) if life in _ABOUT else ""
    return LifeEvent(life, event.value("d"), Raw(content.encode()), about)


# The tag that names what an event is about.
_ABOUT: Final = {Life.TICK_REQUEST: "p", Life.TICK_RESULT: "e", Life.TRAJECTORY_EVENT: "session"}
