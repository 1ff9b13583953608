"""What an entry leaves in the small indexes beside the entries.

Owns which rows those are. Does not own the tables (``indexes``), which the writer has without knowing any entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from trunkline.entries import (
    CallAccepted,
    CallNoted,
    CallRefused,
    CallReturned,
    CallSent,
    CallSettled,
    Entry,
    ProcessStep,
    QuestionClosed,
    QuestionJoined,
    QuestionOpened,
)

__all__ = ["call_number", "rows_of"]

_CALL_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-([0-9a-f]{12})")
# An index, the text or call that is looked up, and the number of the entry.
IndexRow = tuple[str, str | int, int]


def call_number(call_id: str) -> int | None:
    """The number of the entry that accepted a call, which its id ends with, if it has the form of one."""
    match = _CALL_ID.fullmatch(call_id)
    return int(match[1], 16) if match else None


def rows_of(entry: Entry) -> Iterator[IndexRow]:
    """What an entry leaves in the indexes."""
    number = entry.n
    match entry:
        case CallSettled():
            yield "settled", entry.call, number
        case CallAccepted():
            if entry.key_id is not None:
                yield "keys", entry.key_id, number
            if entry.correlation_id is not None and entry.correlation_id != entry.call_id:
                yield "correlations", entry.correlation_id, number
        case CallRefused() if entry.correlation_id is not None:
            yield "correlations", entry.correlation_id, number
        case CallSent() | CallReturned() | QuestionJoined():
            yield "steps", str(entry.call), number
        case CallNoted():
            call = call_number(entry.call_id)
            if call is not None:
                yield "steps", str(call), number
        case QuestionOpened():
            yield "steps", entry.approval_id, number
            if entry.call is not None:
                yield "steps", str(entry.call), number
        case QuestionClosed():
            yield "steps", entry.approval_id, number
        case ProcessStep():
            yield "steps", entry.subject, number
        case _:
            pass
