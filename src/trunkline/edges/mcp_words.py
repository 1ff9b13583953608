"""Words of the Model Context Protocol that both edges of it say: ``mcp`` to clients, ``mounts`` to servers.

Owns versions, keys of ``_meta``, the code of an error, and how a text stands in a header. Does not own messages or
methods, which each side reads in its own way.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

# The version without a handshake, and those that a handshake may agree on, newest first.
MODERN_VERSION: Final = "2026-07-28"
HANDSHAKE_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

_PREFIX: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = f"{_PREFIX}protocolVersion"
CLIENT_INFO_KEY: Final = f"{_PREFIX}clientInfo"
CLIENT_CAPABILITIES_KEY: Final = f"{_PREFIX}clientCapabilities"
SERVER_INFO_KEY: Final = f"{_PREFIX}serverInfo"
SUBSCRIPTION_KEY: Final = f"{_PREFIX}subscriptionId"

UNSUPPORTED_VERSION: Final = -32022

# Which parameter of a method stands in the header `Mcp-Name`, too (2026-07-28, streamable HTTP).
NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

_OPENING, _CLOSING = "=?base64?", "?="


def header_value(text: str) -> str:
    """A text as a header says it: as it is if that can be, else in base64 (2026-07-28)."""
    is_plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith(_OPENING)
    return text if is_plain else f"{_OPENING}{base64.b64encode(text.encode(errors='surrogatepass')).decode()}{_CLOSING}"


def header_text(value: bytes) -> str | None:
    """What a header says; None if that is no text."""
    said = value.strip(b" \t").decode("latin-1")
    if not (said.startswith(_OPENING) and said.endswith(_CLOSING)):
        return said
    try:
        return base64.b64decode(said[len(_OPENING) : -len(_CLOSING)], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
