"""What an edge's rim may ask of the exchange, and what the exchange asks of a rim.

The seam between edges and host: edges never import the hub or the host, the host hands itself in as an ``Exchange``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw

from trunkline.effects import ToSession
from trunkline.entries import ProcessStep
from trunkline.events import Event
from trunkline.model import (
    AgentView,
    CallView,
    Guard,
    Now,
    Peer,
    Policy,
    Principal,
    Question,
    Router,
    TokenView,
    ToolView,
    Verdict,
)


class Sink(Protocol):
    """One conversation's way out. ``send`` gathers; the runner calls ``flush`` when a turn or a few frames are done."""

    def send(self, effect: ToSession, now: Now) -> None:
        """Say this (its entry is on disk if it had to be)."""

    def flush(self) -> None:
        """Write what was gathered."""

    def pause_reading(self) -> None:
        """The disk is behind: take nothing more in. A rim whose requests wait for answers has nothing to do here."""

    def resume_reading(self) -> None:
        """Go on."""


class Exchange(Protocol):
    """The host as an edge sees it."""

    instance: str

    def now(self) -> Now:
        """Both clocks."""

    def open_session(self, sink: Sink) -> int:
        """A number for a new conversation; effects for it go to ``sink`` until ``close_session``."""

    def close_session(self, session: int) -> None:
        """Forget the conversation. Effects for it are dropped from here on."""

    def feed(self, events: Sequence[Event]) -> None:
        """These happened, in this order. Effects may be sent before this returns."""

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is: its start time, and the launched run whose session it belongs to."""

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        """Ask this before a tool of an agent that is part of the exchange is called; None takes it away.

        What was asked of a person before a restart is judged again at the start: guards have to be there before it.
        """

    def route(self, agent_id: str, router: Router | None) -> None:
        """Let other tools serve calls of the tools of an agent that is part of the exchange; None takes it away.

        What was taken on and not sent before a restart is sent after the start: routers have to be there before it.
        """

    # -- reading; nothing below changes anything -----------------------------------------------------------------------

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        """Whose standing token this is (for edges without a handshake of their own)."""

    def agents(self) -> list[AgentView]:
        """All agents, launched or attached."""

    def tools(self) -> list[ToolView]:
        """All tools, also those that cannot be called now."""

    def call(self, call_id: str) -> CallView | None:
        """One call, open or settled."""

    def calls(
        self, limit: int, before: int | None, correlation_id: str | None = None
    ) -> tuple[list[CallView], int | None]:
        """Calls, newest first, and where the next page starts."""

    def questions(self) -> list[Question]:
        """The open questions."""

    def tokens(self) -> list[TokenView]:
        """The standing credentials."""

    def policy(self) -> Policy:
        """The rules in force."""

    def check(self, caller: str, tool_id: str, body: Raw | None) -> Verdict:
        """What would happen to such a call. Nothing is recorded."""

    def blob(self, sha256: str) -> bytes | None:
        """A large body by its hash."""

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        """The masked entries of a call or a correlation, as JSON."""

    def open_steps(self, process: str) -> dict[str, list[ProcessStep]]:
        """What is on record of the subjects of a process that are not done, each in order, as it was written."""

    def steps(self, process: str, subject: str) -> list[ProcessStep]:
        """What is on record of one subject, done or not; secrets masked."""

    def status(self) -> dict[str, object]:
        """Figures for a person and for ``/metrics``."""

    def reload(self) -> None:
        """Read the configuration again; ``ConfigError`` if it cannot be used, and then nothing changed."""

    def watch(self, sink: WatchSink) -> None:
        """Hand every entry and progress to ``sink`` as it happens, until ``unwatch``."""

    def unwatch(self, sink: WatchSink) -> None:
        """Stop handing them over."""


class WatchSink(Protocol):
    """Somebody who looks on. Must not block; a slow one drops lines and says how many."""

    def __call__(self, line: bytes) -> None:
        """One masked JSON line."""
