"""The console's own words on the wire: channels and events of the live line, and how what a page asks for is read.

The frames around them are Pusher's (``edges.pusher``). docs/console.md describes all of them for whoever writes a page.
Does not own what follows from a message.

Invariant: reading raises nothing but ``BadFollow``, whatever a page sent.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from trunkline.edges.pusher.frames import PRIVATE, Channels

EDGE: Final = "console"

FEED: Final = "feed"
REGISTRY: Final = "registry"
FIGURES: Final = "figures"

FOLLOW: Final = "client-feed.follow"
BATCH: Final = "feed.batch"
BEHIND: Final = "feed.behind"
CHANGED: Final = "registry.changed"
FIGURES_TOLD: Final = "figures"

# All private: a page shows for each that it has its key.
CHANNELS: Final = Channels(
    {FEED: frozenset({FOLLOW}), REGISTRY: frozenset(), FIGURES: frozenset()}, prefixes=(PRIVATE,)
)
FEED_CHANNEL: Final = f"{PRIVATE}{FEED}"
REGISTRY_CHANNEL: Final = f"{PRIVATE}{REGISTRY}"
FIGURES_CHANNEL: Final = f"{PRIVATE}{FIGURES}"

# There are some forty kinds of entries.
MAX_KINDS: Final = 64
MAX_KIND_CHARS: Final = 64
MAX_ID_CHARS: Final = 128
# What JavaScript can count.
MAX_NUMBER: Final = 2**53


class BadFollow(ValueError):
    """What a page wants to follow cannot be read; the text names the field."""


class Follow(Struct, frozen=True):
    """Which entries a page wants to be told of, and after which number; None: from now on."""

    after: int | None = None
    # Kinds as they are written; ``call.*`` is kept as ``call.`` among the prefixes. Neither: all.
    kinds: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    call_id: str = ""
    wants_output: bool = True


def read_follow(data: Any) -> Follow:
    """The data of ``client-feed.follow``."""
    if not isinstance(data, dict):
        raise BadFollow("expected an object")
    after = data.get("after")
    if after is not None and (not isinstance(after, int) or isinstance(after, bool) or not 0 <= after <= MAX_NUMBER):
        raise BadFollow("after: expected the number of an entry")
    kinds = data.get("kinds")
    if kinds is None:
        kinds = []
    if (
        not isinstance(kinds, list)
        or len(kinds) > MAX_KINDS
        or not all(_is_name(kind, MAX_KIND_CHARS) for kind in kinds)
    ):
        raise BadFollow(f"kinds: expected at most {MAX_KINDS} kinds of entries")
    call_id = data.get("call_id")
    if call_id is not None and not _is_name(call_id, MAX_ID_CHARS):
        raise BadFollow("call_id: expected the id of a call")
    output = data.get("output")
    if output is not None and not isinstance(output, bool):
        raise BadFollow("output: expected true or false")
    return Follow(
        after,
        frozenset(kind for kind in kinds if not kind.endswith("*")),
        tuple(sorted({kind[:-1] for kind in kinds if kind.endswith("*")})),
        call_id or "",
        output is not False,
    )


def _is_name(value: Any, most: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most
