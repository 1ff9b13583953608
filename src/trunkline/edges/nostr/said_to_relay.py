"""What a client has said to the embedded relay, as far as it has to be known whether it still uses its connection.

Pure: bytes of a WebSocket (RFC 6455) after its head go in, in any pieces. Owns finding in them the beginning of each
message, and by it which subscriptions are open. Reads no event and changes nothing: what it does not understand is the
relay's to refuse, and counts as nothing said.

Invariant: what is kept of one client is bounded, whatever it sends.
"""

from __future__ import annotations

import re
from typing import Final

# Of a message: enough for its verb and the name of a subscription, which has 64 characters at most (NIP-01).
KEPT_BYTES: Final = 512
MAX_SUBSCRIPTIONS: Final = 64
_VERB: Final = re.compile(rb'\s*\[\s*"(REQ|CLOSE|EVENT|COUNT|AUTH)"\s*,\s*(?:"((?:[^"\\]|\\.)*)")?')
_LAST, _OPCODE, _MASKED, _LENGTH = 0x80, 0x0F, 0x80, 0x7F
_CONTROL: Final = 0x08


class SaidToRelay:
    """One client. ``last`` is when it last said something that a relay does something for; at first, when it came."""

    def __init__(self, now: float) -> None:
        self.last = now
        self.subscriptions: set[bytes] = set()
        self._head = bytearray()
        # Of the frame that is being read: how much is left of it, and by what it is masked.
        self._left = 0
        self._mask = b""
        self._at = 0
        self._is_control = False
        self._is_last = False
        self._message = bytearray()

    def take(self, data: bytes, now: float) -> None:
        """More bytes of it."""
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._keep(piece)
                at += len(piece)
                self._left -= len(piece)
            else:
                self._head += data[at : at + 1]
                at += 1
                if not self._begin():
                    continue
            if not self._left and self._is_last and not self._is_control:
                self._judge(now)

    def _begin(self) -> bool:
        """Whether the head of a frame is complete; then its payload follows."""
        head = self._head
        if len(head) < 2:
            return False
        length = head[1] & _LENGTH
        longer = {126: 2, 127: 8}.get(length, 0)
        masked = 4 if head[1] & _MASKED else 0
        if len(head) < 2 + longer + masked:
            return False
        self._left = int.from_bytes(head[2 : 2 + longer], "big") if longer else length
        self._mask = bytes(head[2 + longer :]) or bytes(4)
        self._at = 0
        self._is_control = bool(head[0] & _OPCODE & _CONTROL)
        self._is_last = bool(head[0] & _LAST)
        self._head = bytearray()
        return True

    def _keep(self, piece: bytes) -> None:
        room = 0 if self._is_control else KEPT_BYTES - len(self._message)
        for place, byte in enumerate(piece[:room], start=self._at):
            self._message.append(byte ^ self._mask[place % 4])
        self._at += len(piece)

    def _judge(self, now: float) -> None:
        found = _VERB.match(self._message)
        self._message = bytearray()
        if found is None:
            return
        self.last = now
        name = found[2]
        if found[1] == b"REQ" and name is not None and len(self.subscriptions) < MAX_SUBSCRIPTIONS:
            self.subscriptions.add(name)
        elif found[1] == b"CLOSE":
            self.subscriptions.discard(name or b"")
