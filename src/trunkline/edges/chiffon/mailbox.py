"""What one peer still has to be sent, until its transport takes it: a long poll, a callback, a socket or a queue.

Owns order and bounds. Nothing here is a promise: what is lost on its way is asked for again under its request_id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trunkline.edges.chiffon.messages import Envelope, encode

# For a peer that does not fetch: sixteen messages of the largest size, or many small ones.
MAX_BYTES: Final = 67_108_864
MAX_MESSAGES: Final = 4096
# One answer to a poll; a single larger message still goes, alone.
POLL_BYTES: Final = 4_194_304


class Letter(Struct, frozen=True):
    """One message on its way."""

    request_id: str
    message_id: str
    kind: str
    data: bytes


class Mailbox:
    """First in, first out. ``listeners`` wake whoever carries the letters."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque()
        self._bytes = 0
        self.dropped = 0
        self.listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, envelope: Envelope) -> None:
        """One more. A newer attempt of a request replaces one that was not fetched; beyond the bounds the oldest go."""
        if envelope.type == "work_request" and any(one.request_id == envelope.request_id for one in self._letters):
            self._letters = deque(one for one in self._letters if one.request_id != envelope.request_id)
            self._bytes = sum(len(one.data) for one in self._letters)
        letter = Letter(envelope.request_id, envelope.message_id, envelope.type, encode(envelope))
        self._letters.append(letter)
        self._bytes += len(letter.data)
        while len(self._letters) > MAX_MESSAGES or (self._bytes > MAX_BYTES and len(self._letters) > 1):
            self._bytes -= len(self._letters.popleft().data)
            self.dropped += 1
        for wake in self.listeners:
            wake()

    def take(self, limit: int = POLL_BYTES) -> list[Letter]:
        """The next letters, together at most ``limit`` bytes, but at least one if there is one."""
        found: list[Letter] = []
        size = 0
        while self._letters and (not found or size + len(self._letters[0].data) <= limit):
            letter = self._letters.popleft()
            found.append(letter)
            size += len(letter.data)
        self._bytes -= size
        return found

    def put_back(self, letters: list[Letter]) -> None:
        """They did not arrive: first in line again."""
        self._letters.extendleft(reversed(letters))
        self._bytes += sum(len(letter.data) for letter in letters)

    def forget(self, request_id: str) -> None:
        """Nothing about this request is of use any more."""
        kept = deque(letter for letter in self._letters if letter.request_id != request_id)
        if len(kept) != len(self._letters):
            self._letters = kept
            self._bytes = sum(len(letter.data) for letter in kept)
