"""What drives one session: its events are fed, its alarm is set, and whoever carries its messages is woken.

A session (``session``, ``orchestrator_session``) is pure; a ``Conversation`` is the one thing of the edge that the
exchange knows it by. Transports make the session do something only by ``step``. Owns nothing of the protocol.

Invariant: a defect in a session, or in a task that carries its messages, ends this conversation and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from trunkline.edges.alarm import Alarm
from trunkline.edges.chiffon.messages import Refused
from trunkline.edges.chiffon.orchestrator_session import OrchestratorSession
from trunkline.edges.chiffon.outbox import Outgoing
from trunkline.edges.chiffon.session import AgentSession, Probe, State
from trunkline.edges.exchange import BaseSink, Feed
from trunkline.effects import ConfirmTools, Refuse, ToSession
from trunkline.events import Event
from trunkline.model import Now

S = TypeVar("S", bound=AgentSession | OrchestratorSession)


class Conversation(BaseSink, Generic[S]):
    """One peer's session in the exchange. ``ended`` is told once, when it is over."""

    def __init__(self, feed: Feed, make: Callable[[int, Now], S], ended: Callable[[Conversation[S]], None]) -> None:
        self._feed = feed
        self._ended = ended
        self.number = feed.open_session(self)
        self.session = make(self.number, feed.now())
        self._alarm = Alarm(feed, self.session.wake_at, self._wake)
        # Told when there is something to send, or the conversation is over.
        self._listeners: list[Callable[[], None]] = []
        # Registrations that wait for the exchange's word, by ref.
        self._registering: dict[str, asyncio.Future[ToSession | None]] = {}
        # Who sends its messages without being asked for them, and its task.
        self.carrier: object = None
        self._task: asyncio.Task[None] | None = None
        self._look: Callable[[], None] | None = None
        self.is_over = False

    def step(self, act: Callable[[Now], list[Event]]) -> None:
        """Let the session do something: a method of it that takes the time. ``Refused`` is for the peer.

        After a defect, which is on record, the conversation ``is_over``.
        """
        if self.is_over:
            return
        try:
            events = act(self._feed.now())
            if events:
                self._feed.feed(events)
            self.flush()
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(self.number, error)

    def _wake(self) -> None:
        self.step(self.session.wake)

    # -- the exchange's side -------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        events = self.session.send(effect, now)
        if events:
            self._feed.feed(events)
        if isinstance(effect, ConfirmTools | Refuse):
            self._answer(effect.ref, effect)

    def flush(self) -> None:
        """Something may be different: let messages leave, look at the agent, wake up in time."""
        session = self.session
        if self.is_over or session.state is State.CLOSED:
            self._close()
            return
        if len(session.outbox):
            self._tell_listeners()
        if session.take_probe() and self._look is not None:
            self._look()
        self._alarm.set()

    def abort(self) -> None:
        """A defect of ours ended it, and the exchange knows."""
        self._close()

    def stop(self) -> None:
        """The edge stops: what is open stays on record, and goes on after the next start."""
        self._alarm.cancel()

    def _close(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.session.state = State.CLOSED  # also after a defect: it asks for no alarm any more
        self._alarm.cancel()
        self._feed.close_session(self.number)
        self.carry(None)
        for ref in list(self._registering):
            self._answer(ref, None)
        self._tell_listeners()
        self._ended(self)

    # -- registering ---------------------------------------------------------------------------------------------------

    def answer_to(self, ref: str) -> asyncio.Future[ToSession | None]:
        """What the exchange will say to a registration: ``ConfirmTools``, ``Refuse``, or None if it ends before."""
        return self._registering.setdefault(ref, asyncio.get_running_loop().create_future())

    def _answer(self, ref: str, effect: ToSession | None) -> None:
        answer = self._registering.pop(ref, None)
        if answer is not None and not answer.done():
            answer.set_result(effect)

    # -- the messages' way out -----------------------------------------------------------------------------------------

    def carry(self, carrier: object, task: asyncio.Task[None] | None = None) -> None:
        """From here on this carrier, by this task, sends what there is; the one before stops. None: the peer polls."""
        if self._task is not None:
            self._task.cancel()
        self.carrier, self._task = carrier, task

    def probe_by(self, probe: Probe, look: Callable[[], None] | None = None) -> None:
        """How an agent that was quiet is asked whether it lives; ``look`` is for ``BY_TRANSPORT``, then ``looked``."""
        self._look = look
        self.session.probe = probe
        self._alarm.set()

    def not_sent(self, message: Outgoing, why: str) -> None:
        """A carrier could not hand this over: to an agent, that attempt has failed."""
        self.step(lambda _: self.session.unreachable(message.request_id, why))

    def looked(self, *, is_well: bool) -> None:
        """What the transport saw."""
        self.step(partial(self.session.probed, is_well=is_well))

    @contextmanager
    def listening(self, told: Callable[[], None]) -> Iterator[None]:
        """Call ``told`` whenever there is something to send, or this is over."""
        self._listeners.append(told)
        try:
            yield
        finally:
            self._listeners.remove(told)

    def _tell_listeners(self) -> None:
        for told in self._listeners[:]:
            told()

    async def outgoing(self, may_go_on: Callable[[], bool] = lambda: True) -> AsyncIterator[Outgoing]:
        """Everything that is to be sent, as it comes, until the conversation is over or ``may_go_on`` says no."""
        bell = asyncio.Event()
        with self.listening(bell.set):
            while not self.is_over and may_go_on():
                bell.clear()
                # One by one: what is taken is lost if whoever sends it is stopped.
                found = self.session.outbox.take_one()
                if found is not None:
                    yield found
                else:
                    await bell.wait()
