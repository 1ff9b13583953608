"""The connection to an OpenAI-compatible endpoint: where it is, and the key that opens it.

Owns the key, from its reference in the configuration to the header of a request. Does not own what is asked
(``trunkline.jobs.endpoint``).

Invariant: the key is in this object and in requests to the endpoint, and nowhere else: no error, log line or figure
shows it, nor anything that the endpoint says.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trunkline.config import Jobs
from trunkline.edges import client, tls
from trunkline.errors import ConfigError, JobFailed

# A model may think for a while; longer than this nobody waits.
TIMEOUT_S: Final = 100.0
MAX_KEY_CHARS: Final = 4096


class Remote:
    """One endpoint."""

    def __init__(self, settings: Jobs, environ: Mapping[str, str] = os.environ) -> None:
        self._base = settings.endpoint.rstrip("/")
        self._key = _resolved(settings.key, environ)
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


def _resolved(reference: str, environ: Mapping[str, str]) -> str:
    """The key that a reference means; ``ConfigError`` if it means none."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        key = environ.get(name, "").strip()
        missing = f"the variable {name} is not set"
    elif kind == "file":
        try:
            key = Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            key = ""
        missing = f"{name} cannot be read, or is empty"
    else:
        return ""
    if not key:
        raise ConfigError(missing, "jobs.key")
    if len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise ConfigError("what it names is no key: expected one line of printable characters", "jobs.key")
    return key
