"""Which trace a call belongs to, in the words of W3C Trace Context: trace ids, span ids, ``traceparent``.

Owns the one way from our names to those: a trace is the conversation (``correlation_id``), a span is one call
(``call_id``). A correlation that is a ``traceparent`` names its trace and the span above; a UUID is its own trace id,
as Chiffon's ``trace_id`` is; anything else has a trace id that always follows from it. So every protocol that carries a
correlation carries the trace, and nothing has to be remembered. Does not own what is told of a span (``host.spans``).

Invariant: the same correlation gives the same trace, here and in every other process.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class Trace(NamedTuple):
    """A trace, and the span above its first call of ours; empty where there is none."""

    trace_id: str
    parent: str = ""


def read_traceparent(text: str) -> Trace | None:
    """What a ``traceparent`` names; None if it is none."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or text.startswith("ff") or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    # Of this version there is nothing behind the flags.
    if text.startswith("00") and found[3]:
        return None
    return Trace(found[1], found[2])


def trace_of(correlation_id: str) -> Trace:
    """The trace of a conversation."""
    named = read_traceparent(correlation_id)
    if named is not None:
        return named
    try:
        trace_id = uuid.UUID(correlation_id).hex
    except ValueError:
        trace_id = _NO_TRACE
    if trace_id == _NO_TRACE:
        trace_id = hashlib.sha256(correlation_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Trace(trace_id)


def span_of(call_id: str) -> str:
    """The span of a call: the end of its id, which holds the number of its entry."""
    digits = call_id.replace("-", "")[-16:].lower()
    if re.fullmatch("[0-9a-f]{16}", digits) and digits != _NO_SPAN:
        return digits
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def traceparent(correlation_id: str, call_id: str) -> str:
    """What whoever serves this call says to go on with its trace, below its span."""
    return f"00-{trace_of(correlation_id).trace_id}-{span_of(call_id)}-01"
