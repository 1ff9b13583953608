"""Sessions of 2025-11-25 and before, in their ids: which version was agreed on, what the client can do, whose it is.

An id carries this with a code that only this exchange can make, so nothing is kept for a session and none can be used
by anybody else. It goes on after a restart of the exchange, and no number of them takes memory. Only the ends of
sessions are remembered, the latest so many.

Invariant: an id is good for the caller for whom it was made, and for nobody else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trunkline.edges.mcp_words import HANDSHAKE_VERSIONS

NONCE_BYTES: Final = 12
CODE_BYTES: Final = 16
# A client that ended its session does not come back to it; who forgets that he did is told so for a while.
MAX_ENDED: Final = 4096
# Sessions whose code was looked at; only those of callers that we know are among them.
MAX_FOUND: Final = 1024
_URLS: Final = 1


class ClientSession(Struct, frozen=True):
    """What was agreed on when a session began."""

    session_id: str
    version: str
    # Whether the client can be asked to open an address.
    opens_urls: bool


class SessionIds:
    """Makes and reads ids."""

    def __init__(self, key: bytes, entropy: Callable[[int], bytes]) -> None:
        self._key = hashlib.sha256(b"mcp sessions" + key).digest()
        self._entropy = entropy
        self._ended: dict[str, None] = {}
        self._found: dict[tuple[str, str], ClientSession] = {}

    def new(self, caller: str, version: str, *, opens_urls: bool) -> str:
        """The id of a session that begins."""
        head = bytes((HANDSHAKE_VERSIONS.index(version), _URLS if opens_urls else 0)) + self._entropy(NONCE_BYTES)
        return base64.urlsafe_b64encode(head + self._code(head, caller)).decode()

    def find(self, session_id: str, caller: str) -> ClientSession | None:
        """The session of an id, if it is one of this caller's and has not ended."""
        if session_id in self._ended:
            return None
        found = self._found.get((session_id, caller)) or self._read(session_id, caller)
        if found is not None:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[session_id, caller] = found
        return found

    def _read(self, session_id: str, caller: str) -> ClientSession | None:
        try:
            data = base64.b64decode(session_id, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if base64.urlsafe_b64encode(data).decode() != session_id:
            return None  # another spelling of an id is not the id that ended
        head, code = data[:-CODE_BYTES], data[-CODE_BYTES:]
        if len(head) != 2 + NONCE_BYTES or not hmac.compare_digest(code, self._code(head, caller)):
            return None
        return ClientSession(session_id, HANDSHAKE_VERSIONS[head[0]], bool(head[1] & _URLS))

    def end(self, session_id: str) -> None:
        """A client ends its session."""
        self._ended[session_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _code(self, head: bytes, caller: str) -> bytes:
        return hmac.digest(self._key, head + caller.encode(), "sha256")[:CODE_BYTES]
