"""The eight lines of REPLAY.jsonl v1, typed: what each holds and the range of every value.

Owns the names on the wire, in the order in which they are written, and both spellings that are read (``event`` and
``t``; a later revision of the format has ``type`` and ``ts``). Does not own which line may follow which (``check``).

Three lines have more than the format asks for, so that whoever has the file alone can compute every hash and answer
from it: ``PlanStart.plan``, ``ToolResult.output``, and what became of a call (``status``). ``masked``: what stands
here is not all that was said, since secrets and sensitive content are on record in another form. ``as_text``: the value
has no form that can be hashed (an integer beyond 64 bits), so it stands here as the text of its JSON.

Invariant: ``encode(decode(line))`` has every field that the type names, as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, dataclass_transform

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.model import OptionalRaw

__all__ = [
    "KNOWN",
    "AnyLine",
    "PlanStart",
    "ReplayHeader",
    "SessionEnd",
    "SessionStart",
    "StepComplete",
    "ToolCall",
    "ToolResult",
    "Verification",
    "decode",
    "encode",
    "named_as_written",
]

REPLAY_VERSION: Final = 1

# Exactly this: another spelling of the digits would be another text for the same hash.
Hash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Named = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Utility = Annotated[float, Meta(ge=-1, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Status = Literal["Success", "Failed", "Cancelled"]


# The decorator tells type checkers what msgspec does: a child of a frozen struct is frozen.
@dataclass_transform(frozen_default=True)
class _Line(Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """One line."""


class ReplayHeader(_Line, tag="ReplayHeader"):
    """The first line. ``created_at`` is when the session began, so that the same record gives the same bytes."""

    replay_version: Literal[1]
    producer: Named
    created_at: Named


class SessionStart(_Line, tag="SessionStart"):
    """The session, which is one correlation, and the rules it began under."""

    session_id: Named
    issue_number: int | None
    policy_bundle_id: str
    t: Named


class PlanStart(_Line, tag="PlanStart"):
    """What was intended, before anything was done."""

    plan_hash: Hash
    step_count: Count
    t: Named
    plan: OptionalRaw = None


class ToolCall(_Line, tag="ToolCall"):
    """A call that was taken on."""

    id: Named
    tool: Named
    params: Raw
    params_hash: Hash
    step_id: Named
    t: Named
    masked: Any = False
    as_text: Any = False


class ToolResult(_Line, tag="ToolResult"):
    """What became of a call. ``output`` is its output, or the fault with which it ended."""

    id: Named
    output_hash: Hash
    step_utility: Utility
    latency_ms: Milliseconds
    t: Named
    status: Any = ""
    output: OptionalRaw = None
    masked: Any = False
    as_text: Any = False


class StepComplete(_Line, tag="StepComplete"):
    """A step of the plan is over. ``iterations``: how many calls of its own it took."""

    step_id: Named
    status: Status
    iterations: Count
    t: Named


class Verification(_Line, tag="Verification"):
    """Commands that were run, and how they ended; -1 for one that has no exit code."""

    commands: tuple[str, ...]
    exit_codes: tuple[int, ...]
    verification_delta: int
    t: Named


class SessionEnd(_Line, tag="SessionEnd"):
    """The last line. ``confidence``: succeeded calls by all that ended."""

    status: Status
    confidence: Share
    total_tool_calls: Count
    total_latency_ms: Milliseconds
    t: Named


AnyLine = ReplayHeader | SessionStart | PlanStart | ToolCall | ToolResult | StepComplete | Verification | SessionEnd
KNOWN: Final[frozenset[str]] = frozenset(
    {
        "ReplayHeader",
        "SessionStart",
        "PlanStart",
        "ToolCall",
        "ToolResult",
        "StepComplete",
        "Verification",
        "SessionEnd",
    }
)

encode: Final = msgspec.json.Encoder().encode
# ``msgspec.ValidationError`` names the field that is missing or not what it should be.
decode: Final[Callable[[bytes], AnyLine]] = msgspec.json.Decoder(AnyLine).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_LATER_NAMES: Final = {"type": "event", "ts": "t"}


def named_as_written(line: bytes) -> bytes:
    """A line that has the later names, with those that ``decode`` reads; where both stand, the format's own count."""
    members = _members(line)
    for later, ours in _LATER_NAMES.items():
        if later in members and ours not in members:
            members[ours] = members.pop(later)
    # The tag has to be there before the rest is judged.
    return encode({"event": members.pop("event"), **members}) if "event" in members else line
