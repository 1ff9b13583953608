"""Names of topics: segments between dots, and patterns in which ``*`` is one segment and ``#`` all that follow.

The one grammar, for the hub, for edges that read topics from their wire, and for agents that sort what they are told.
"""

from __future__ import annotations

import re
from typing import Final

MAX_TOPIC_CHARS: Final = 255
_SEGMENT: Final = r"[^\s.*#\x00-\x1f\x7f]+"
TOPIC: Final = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
PATTERN: Final = re.compile(rf"(?:#|(?:{_SEGMENT}|\*)(?:\.(?:{_SEGMENT}|\*))*(?:\.#)?)")


def is_topic(text: str) -> bool:
    """Whether something can be published on this."""
    return len(text) <= MAX_TOPIC_CHARS and TOPIC.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether somebody can subscribe to this."""
    return len(text) <= MAX_TOPIC_CHARS and PATTERN.fullmatch(text) is not None


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to a pattern is told of a topic."""
    wanted, given = pattern.split("."), topic.split(".")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(one in {"*", other} for one, other in zip(wanted, given, strict=True))
