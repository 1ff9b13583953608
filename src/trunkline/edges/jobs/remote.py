"""The connection to an OpenAI-compatible endpoint: where it is, and the key that opens it.

Owns the key, from its reference in the configuration to the header of a request. Does not own what is asked
(``trunkline.jobs.endpoint``).

Invariant: the key is in this object and in requests to the endpoint, and nowhere else: no error, log line or figure
shows it, nor anything that the endpoint says.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from trunkline.config import Jobs
from trunkline.edges import client, tls
from trunkline.errors import ConfigError, JobFailed, SecretMissing
from trunkline.secret_references import look_up

# A model may think for a while; longer than this nobody waits.
TIMEOUT_S: Final = 100.0
MAX_KEY_CHARS: Final = 4096


class Remote:
    """One endpoint."""

    def __init__(self, settings: Jobs, key: str) -> None:
        self._base = settings.endpoint.rstrip("/")
        self._key = key
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Remote({self._base!r})"

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a body; the status and the body of the answer. ``JobFailed`` if there is none."""
        if self._tls is None:
            self._tls = tls.client_context()
        try:
            answer = await client.request(
                f"{self._base}/{path}", "POST", body=body, token=self._key, timeout_s=TIMEOUT_S, tls=self._tls
            )
        except client.Unreachable:
            raise JobFailed("the endpoint cannot be reached", retryable=True) from None
        return answer.status, answer.body


def key_of(reference: str, environ: Mapping[str, str]) -> str:
    """The key that a reference names, if there is one; ``ConfigError`` if it names nothing. It may take a while."""
    if not reference:
        return ""
    try:
        key = look_up(reference, environ).strip()
    except SecretMissing as missing:
        raise ConfigError(str(missing), "jobs.key") from None
    if len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise ConfigError("what it names is no key: expected one line of printable characters", "jobs.key")
    return key
