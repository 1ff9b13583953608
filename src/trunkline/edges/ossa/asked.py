"""One message that asks for something: what is known of it while it is open, and what is read out of it.

Pure. What becomes of it is ``asking``'s.

Owns what is read out of a payload before the exchange is asked. Does not own the form of messages (``messages``).
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.canonical import exact
from trunkline.edges.ossa import messages, translate
from trunkline.edges.ossa.messages import BAD_REQUEST, Identity, Message, Refused
from trunkline.model import EMPTY_OBJECT, ToolDefinition


class OssaAsking(Struct, eq=False):
    """One message to one recipient, on its way to an outcome."""

    ref: str
    message: Message
    recipient: Identity
    tool_id: str
    is_sealed: bool
    arrived_ms: int
    tickets: list[int] = []
    runs: int = 1
    call_id: str = ""
    # What is shown of it is a stream, and another after each that ended: how many there were, whether one is open, and
    # how many pieces that has.
    streams: int = 0
    is_streaming: bool = False
    shown: int = 0

    @property
    def size(self) -> int:
        """What it holds."""
        return self.message.size

    @property
    def digest(self) -> bytes:
        """Equal for messages that ask for the same, however they are spelled."""
        names = (self.message.type, self.tool_id, str(self.message.topic))
        return hashlib.sha256("\n".join(names).encode() + exact(self.message.payload)).digest()

    def is_same(self, other: OssaAsking) -> bool:
        """Whether the other one is a repeat of this one, as one with the same id has to be."""
        ours, theirs = self.message, other.message
        if (ours.type, self.tool_id, ours.topic) != (theirs.type, other.tool_id, theirs.topic):
            return False
        # To spell a megabyte of numbers anew takes a tenth of a second, and a repeat has mostly the same bytes.
        return bytes(ours.payload) == bytes(theirs.payload) or exact(ours.payload) == exact(theirs.payload)


class Command(Struct, frozen=True):
    """What is on record of a command whose result is owed."""

    message: Raw
    call_id: str
    is_sealed: bool = False


def published_input(message: Message) -> Raw:
    """The input of ``trunkline/publish`` for an event."""
    given = {"topic": message.topic, "payload": message.payload, "qos": message.level}
    if message.expires_ms is not None:
        given["expires_ms"] = message.expires_ms
    return Raw(msgspec.json.encode(given))


def outline_of(message: Message) -> Message:
    """What has to be known of a command to tell its result after a restart.

    Not its payload, nor fields that mean nothing here; of one that came encrypted those of its identities, too.
    """
    sender, recipients = message.sender, message.recipients
    if message.sensitive:
        sender = msgspec.structs.replace(sender, others={})
        recipients = tuple(msgspec.structs.replace(one, others={}) for one in recipients)
    return msgspec.structs.replace(
        message, sender=sender, recipients=recipients, payload=EMPTY_OBJECT, error=None, signature=None,
        others={}, body_others={}, message_others={},
    )  # fmt: skip


def recipient_of(message: Message, ref: str) -> Identity:
    """To whom the asking with this ref went."""
    name = ref.partition("@")[2]
    return next((one for one in message.recipients if one.agent_id == name), message.recipients[0])


def offered_tools(agent_id: str, payload: Raw) -> tuple[tuple[ToolDefinition, ...], bool]:
    """The tools that an agent announces, and whether they are all that it has."""
    given = strictjson.load(bytes(payload), messages.MAX_DEPTH)
    actions = given.get("actions") if isinstance(given, dict) else None
    if not isinstance(actions, list) or not isinstance(given.get("replace", False), bool):
        raise Refused(BAD_REQUEST, 'payload: expected {"actions": […], "replace"?}')
    tools = tuple(translate.definition_of(agent_id, one, f"actions.{at}") for at, one in enumerate(actions))
    return tools, given.get("replace", False)
