"""People and programs who call over HTTP: each request has a caller of its own, who waits for its answer or leaves.

``HttpCallers`` speaks to the runner as the HTTP edge does, without its listener and its routes: one session, a ``ref``
for each request, an answer under that ref. An effect that reaches it has left the exchange: the one who asked knows.
It decides nothing and repeats nothing. Owns which requests are open; does not own who asks what (``choices``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import Raw

from trunkline import events
from trunkline.edges.exchange import BaseSink, Feed, Operator, Views
from trunkline.effects import Answer, Reply, ToSession, Wait
from trunkline.errors import LedgerError
from trunkline.model import Now, Principal
from trunkline.shown import CallView
from trunkline.testing.witness import Request, Witness

PAGE_CALLS: Final = 8


class HttpCallers(BaseSink):
    """Everybody who asks over HTTP. ``left`` is told of each answer."""

    def __init__(self, witness: Witness, left: Callable[[], None]) -> None:
        self._witness = witness
        self._left = left
        self._exchange: Feed | None = None
        self._views: Views
        self._operator: Operator
        self._session = 0
        self._count = 0
        self._requests: dict[str, Request] = {}
        # What is to be done with the reply to a request that is not a call.
        self._replies: dict[str, tuple[str, Callable[[Reply], None]]] = {}

    @property
    def is_open(self) -> bool:
        """Whether an exchange is there."""
        return self._exchange is not None

    def open(self, exchange: Feed, views: Views, operator: Operator) -> None:
        """An exchange serves."""
        self._exchange = exchange
        self._views = views
        self._operator = operator
        self._session = exchange.open_session(self)

    def close(self) -> None:
        """The exchange is gone: nobody who waits will hear anything."""
        self._exchange = None
        for request in self._requests.values():
            request.is_waiting = False
        self._requests.clear()
        self._replies.clear()

    # -- asking --------------------------------------------------------------------------------------------------------

    def call(
        self,
        who: Principal,
        tool_id: str,
        body: bytes,
        *,
        key: str | None = None,
        timeout_ms: int | None = None,
        expires_ms: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        announce: bool = False,
    ) -> Request:
        """``POST /v1/calls``."""
        request = Request(self._ref(), who.identity, tool_id, body, key)
        self._requests[request.ref] = self._witness.asked(request)
        self._feed(
            events.CallRequested(
                self._session,
                request.ref,
                who,
                tool_id,
                Raw(body),
                key,
                timeout_ms,
                correlation_id,
                causation_id,
                expires_ms=expires_ms,
                announce=announce,
            )
        )
        return request

    def leave(self, request: Request) -> None:
        """The one who waits closes the connection."""
        if self._requests.pop(request.ref, None) is not None:
            self._witness.note(request.caller, f"does not wait for {request.ref} any more", request.call_id)
            request.is_waiting = False
            self._feed(events.CallerLeft(self._session, request.ref))

    def cancel(self, who: Principal, call_id: str, reason: str) -> None:
        """``POST /v1/calls/{id}/cancel``."""
        self._witness.note(who.identity, "asks for the end of a call", call_id)
        self._ask(who, lambda ref: events.CancelRequested(self._session, ref, who, call_id=call_id, reason=reason))

    def answer(self, who: Principal, approval_id: str, *, approved: bool, reason: str = "") -> None:
        """``POST /v1/approvals/{id}``."""
        self._witness.note(who.identity, f"says {'yes' if approved else 'no'} to {approval_id}")
        self._ask(who, lambda ref: events.ApprovalAnswered(self._session, ref, who, approval_id, approved, reason))

    def state(self, who: Principal, tool_id: str, then: Callable[[Reply], None], reason: str) -> None:
        """``POST /v1/directives``."""
        self._ask(who, lambda ref: events.DirectiveStated(self._session, ref, who, tool_id, None, reason), then)

    def issue(
        self, who: Principal, edge: str, agent: str, token_sha256: str, then: Callable[[Reply], None], kind: str = ""
    ) -> None:
        """``POST /v1/tokens``."""
        self._ask(
            who, lambda ref: events.TokenIssued(self._session, ref, who, edge, agent, token_sha256, (), kind), then
        )

    def revoke(self, who: Principal, token_id: str) -> None:
        """``DELETE /v1/tokens/{id}``."""
        self._ask(who, lambda ref: events.TokenRevoked(self._session, ref, who, token_id))

    def look_up(self, who: Principal, call_id: str) -> None:
        """``GET /v1/calls/{id}``."""
        if self._exchange is not None:
            with suppress(LedgerError):  # the disk is broken: the exchange will say so itself
                view = self._views.call(call_id)
                self._read(who, [] if view is None else [view])

    def look_around(self, who: Principal) -> None:
        """``GET /v1/calls``: the newest ones."""
        if self._exchange is not None:
            with suppress(LedgerError):
                self._read(who, self._views.calls(PAGE_CALLS, None)[0])
                for question in self._views.questions():
                    self._witness.read_question(who.identity, question)
                self._views.agents()
                self._views.tools()
                self._operator.status()

    def _read(self, who: Principal, views: list[CallView]) -> None:
        for view in views:
            if view.status.is_outcome:
                output = None if view.output is None else bytes(view.output)
                self._witness.read(who.identity, view.call_id, view.tool_id, view.status, output)
        self._left()

    def _ask(
        self,
        who: Principal,
        event: Callable[[str], events.Event],
        then: Callable[[Reply], None] = lambda _reply: None,
    ) -> None:
        ref = self._ref()
        self._replies[ref] = (who.identity, then)
        self._feed(event(ref))

    def _feed(self, event: events.Event) -> None:
        if self._exchange is not None:
            self._exchange.feed([event])

    def _ref(self) -> str:
        self._count += 1
        return f"h{self._count}"

    # -- the exchange's side -------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002 - a Sink is told the time
        """Somebody is told something."""
        match effect:
            case Answer():
                self._answered(effect)
            case Wait():
                self._waits(effect)
            case Reply():
                who, then = self._replies.pop(effect.ref, ("", None))
                if then is None:
                    # While it stops, its last commit may come when those who asked have left.
                    if self._exchange is not None:
                        self._witness.defect(f"a reply to {effect.ref}, which nobody waits for")
                elif effect.fault is None:
                    self._witness.confirm(who, effect.status or "", effect.id or "")
                    then(effect)
            case _:
                pass
        self._left()

    def _answered(self, answer: Answer) -> None:
        request = self._requests.pop(answer.ref, None)
        if request is None:
            return
        code = answer.fault.code if answer.fault is not None else ""
        output = None if answer.output is None else bytes(answer.output)
        self._witness.answered(request, answer.call_id, answer.status, code, output, refused=answer.refused)

    def _waits(self, wait: Wait) -> None:
        request = self._requests.get(wait.ref)
        if request is None:
            return
        request.call_id = wait.call_id
        if wait.approval_id is not None:
            self._witness.waits_for(request, wait.call_id, wait.approval_id)
        else:
            self._witness.announced(request, wait.call_id)
