"""Telling a session that a person has answered: ``notifications/elicitation/complete`` (2025-11-25).

A client of a session that was sent to the console (URL elicitation) may wait for this instead of guessing when to make
its call again. Owns which session was sent where, and who listens in it. It is looked for once a second while somebody
listens; a question that is not open any more was answered, withdrawn, or has expired, and the repeat says which.

Invariant: a session is told of its own questions alone, of each once.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.exchange import Feed, Views
from trunkline.edges.framing import json_rpc
from trunkline.edges.mcp.listening import Listening
from trunkline.edges.waiting import Waiting

METHOD: Final = "notifications/elicitation/complete"
# Of one caller; the oldest makes room. A client that never listens is told of none.
MAX_ASKED: Final = 256


class Completions(Listening[tuple[str, str]]):
    """Who waits for which answers: each listener with his caller and session."""

    def __init__(self, feed: Feed, views: Views) -> None:
        super().__init__(feed)
        self._views = views
        # By caller: the session of each question, the oldest first.
        self._asked: dict[str, dict[str, str]] = {}

    def asked(self, caller: str, session_id: str, approval_id: str) -> None:
        """A client was sent to this question in this session."""
        of_caller = self._asked.setdefault(caller, {})
        of_caller[approval_id] = session_id
        if len(of_caller) > MAX_ASKED:
            del of_caller[next(iter(of_caller))]

    def listen(self, listener: Waiting, caller: str, session_id: str) -> None:
        """Tell this one of the answers to questions of its session."""
        self._add(listener, (caller, session_id))

    def _look_for(self, listener: Waiting, kept: tuple[str, str]) -> None:
        caller, session_id = kept
        of_caller = self._asked.get(caller, {})
        for approval_id in [one for one, session in of_caller.items() if session == session_id]:
            if self._views.question(approval_id) is None:
                del of_caller[approval_id]
                line = json_rpc.notification(METHOD, {"elicitationId": approval_id})
                listener.put(line, len(line))
        if not of_caller:
            self._asked.pop(caller, None)
