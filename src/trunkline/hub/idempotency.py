"""Keys: the first call with a key is the call; every repeat is the same call.

The scope is (caller, key). The fingerprint covers the tool and the canonical input, so the same key with anything else
is a conflict (decision 3). Both are keyed hashes: a low-entropy input cannot be guessed from the ledger. A key lives
24 hours.
"""

from __future__ import annotations

import hmac
from typing import Final

from msgspec import Raw

from trunkline.canonical import exact

KEY_LIFE_MS: Final = 86_400_000


class Fingerprints:
    """Keyed hashes of keys and inputs, with the exchange's own secret."""

    def __init__(self, mac_key: bytes) -> None:
        self._mac_key = mac_key
        # The last key: it is looked up before its call is judged by it.
        self._last = ("", "", "")

    def key_id(self, caller: str, key: str) -> str:
        """A key in its caller's scope. The length in front keeps (a, bc) and (ab, c) apart."""
        if self._last[0] != caller or self._last[1] != key:
            data = b"key\0%d\0%s\0%s" % (len(caller), caller.encode(), key.encode())
            self._last = (caller, key, hmac.digest(self._mac_key, data, "sha256").hex())
        return self._last[2]

    def input_mac(self, tool_id: str, body: Raw) -> str:
        """Tool and input, whatever the order of the input's keys."""
        data = b"input\0%s\0%s" % (tool_id.encode(), exact(body))
        return hmac.digest(self._mac_key, data, "sha256").hex()
