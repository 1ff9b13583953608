"""What one peer still has to be sent, until its transport takes it: a long poll, a callback, a socket or a queue. Pure.

Owns order and bounds. Nothing here is a promise: what is lost on its way is asked for again under its request_id.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from trunkline.edges.chiffon.messages import Envelope, encode

# For a peer that does not fetch: sixteen messages of the largest size, or many small ones.
MAX_BYTES: Final = 67_108_864
MAX_MESSAGES: Final = 4096
# One answer to a poll; a single larger message still goes, alone.
POLL_BYTES: Final = 4_194_304


class Outgoing(Struct, frozen=True):
    """One message on its way to a peer."""

    request_id: str
    message_id: str
    type: str
    data: bytes
    # The id of the message that this one answers; empty for what is said unasked.
    answers: str = ""


class Outbox:
    """First in, first out."""

    def __init__(self) -> None:
        self._waiting: deque[Outgoing] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, envelope: Envelope, answers: str = "") -> None:
        """One more. A newer attempt of a request replaces one that was not fetched; beyond the bounds the oldest go."""
        if envelope.type == "work_request":
            self.forget(envelope.request_id)
        put = Outgoing(envelope.request_id, envelope.message_id, envelope.type, encode(envelope), answers)
        self._waiting.append(put)
        self._bytes += len(put.data)
        while len(self._waiting) > MAX_MESSAGES or (self._bytes > MAX_BYTES and len(self._waiting) > 1):
            self._bytes -= len(self._waiting.popleft().data)

    def take(self, limit: int = POLL_BYTES) -> list[Outgoing]:
        """The next messages, together at most ``limit`` bytes, but at least one if there is one."""
        found: list[Outgoing] = []
        size = 0
        while self._waiting and (not found or size + len(self._waiting[0].data) <= limit):
            found.append(self._waiting.popleft())
            size += len(found[-1].data)
        self._bytes -= size
        return found

    def take_one(self) -> Outgoing | None:
        """The next message, whatever its size."""
        found = self._waiting.popleft() if self._waiting else None
        self._bytes -= 0 if found is None else len(found.data)
        return found

    def take_answer(self, message_id: str) -> Outgoing | None:
        """The answer to a message, if it is there already and nothing else of its request has to come before it."""
        found = next((one for one in self._waiting if one.answers == message_id), None)
        if found is None or next(one for one in self._waiting if one.request_id == found.request_id) is not found:
            return None
        self._waiting.remove(found)
        self._bytes -= len(found.data)
        return found

    def put_back(self, message: Outgoing) -> None:
        """It did not arrive: first in line again."""
        self._waiting.appendleft(message)
        self._bytes += len(message.data)

    def holds(self, request_id: str) -> bool:
        """Whether something about this request still has to leave."""
        return any(one.request_id.lower() == request_id for one in self._waiting)

    def request_ids(self) -> set[str]:
        """The requests about which something still has to leave."""
        return {one.request_id for one in self._waiting}

    def forget(self, request_id: str) -> None:
        """Nothing about this request is of use any more."""
        kept = deque(one for one in self._waiting if one.request_id != request_id)
        if len(kept) != len(self._waiting):
            self._waiting = kept
            self._bytes = sum(len(one.data) for one in kept)
