"""Answers around a restart of ours: those to calls of before it, and those that come before a call is sent again.

An agent answers by correlation. Which of its answers ended a call, and which calls it never answered, is known while
the exchange runs (``providing``); after a kill only the record knows. Owns looking there, and keeping what came too
early. Does not own what a call is then sent under.

Invariant: a call of before the start gets the same verdict as it had then, so that it is sent again under the
correlation that its agent knows.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.exchange import Views
from trunkline.edges.ossa.messages import Message
from trunkline.model import Now, Status, tool_agent
from trunkline.shown import CallView

# How long after a start an answer of before is still told apart: as long as any call may run by the built-in limits.
LATE_S: Final = 3600.0
# Calls of one correlation that are looked at, the latest.
MAX_LOOKED_AT: Final = 64
# Answers to what we have not sent yet: an agent may answer before it is asked again.
MAX_EARLY: Final = 256
MAX_EARLY_BYTES: Final = 4_194_304
# What an agent answered and was not taken as it is.
_OF_AGENTS: Final = frozenset({"tool.invalid_output", "tool.output_too_large"})


class EarlierCalls:
    """What the record had when this start began, as far as it matters for answers."""

    def __init__(self, views: Views, now: Now) -> None:
        self._views = views
        self._last = views.last_entry()
        # Nobody was asked anything before the first start.
        has_calls = bool(views.calls(1, self._last + 1)[0])
        self._until = now.mono + LATE_S if has_calls else now.mono

    def may_answer(self, agent_id: str, call_id: str, correlation: str, now: Now) -> bool:
        """Whether an answer of before this start may come from this agent that has this correlation and means another
        call than this one.

        Of a new call that is so if the agent had any call of the correlation: it may repeat its answer. Of one that was
        there before, only if it has left one unanswered, since only then was this one sent apart.
        """
        if correlation == call_id or now.mono > self._until or not self._views.has_correlation(correlation, self._last):
            return False
        number = int(call_id[-12:], 16)
        is_new = number > self._last
        found, _ = self._views.calls(MAX_LOOKED_AT, self._last + 1 if is_new else number, correlation)
        return any(
            tool_agent(one.provider or one.tool_id) == agent_id and (is_new or not _is_answered(one)) for one in found
        )


def _is_answered(view: CallView) -> bool:
    """Whether the agent's own word ended it."""
    if view.status is Status.SUCCEEDED:
        return True
    return view.error is not None and (view.error.code in _OF_AGENTS or "ossa_code" in (view.error.details or {}))


class EarlyAnswers:
    """Answers of one agent to what it was not sent yet, the latest of each correlation."""

    def __init__(self) -> None:
        self._found: dict[str, Message] = {}
        self._bytes = 0

    def keep(self, correlation: str, message: Message) -> None:
        """Have this for a call that may be sent in a moment."""
        self.pop(correlation)
        self._found[correlation] = message
        self._bytes += message.size
        while len(self._found) > MAX_EARLY or self._bytes > MAX_EARLY_BYTES:
            self.pop(next(iter(self._found)))

    def pop(self, correlation: str) -> Message | None:
        """The one of this correlation, which is then gone."""
        found = self._found.pop(correlation, None)
        if found is not None:
            self._bytes -= found.size
        return found
