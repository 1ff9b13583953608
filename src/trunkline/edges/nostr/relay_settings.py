"""What the exchange says to the process of the embedded relay when it starts it.

Stands apart from ``relay``, which runs in that process only: the exchange need not import nostr-sdk for a relay that it
may not have.
"""

from __future__ import annotations

from msgspec import Struct


class Settings(Struct, frozen=True):
    """What the exchange says to this process."""

    host: str
    # 0 takes a free one.
    port: int
    folder: str
    kinds: tuple[int, ...]
    # Kinds that are replaced by their author, and kept longer.
    lasting: tuple[int, ...]
    max_content_bytes: int
    # Who reads or writes has to say who he is (NIP-42).
    auth: bool = False
    # Of pages in a browser that may connect; programs have none.
    allowed_origins: tuple[str, ...] = ()
    # The descriptor of the socket that clients connect to; -1 with ``auth``: it takes ``host`` and ``port`` itself.
    listener: int = -1
