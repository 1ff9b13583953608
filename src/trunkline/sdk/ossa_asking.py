"""What an OSSA agent asks others: requests, commands and events, each until its reply, in as many attempts as allowed.

Each message is one ``Asked``. Its attempts have the same ``messageId``, so that the exchange carries it out once. Of
one correlation one message is under way at a time: the next leaves when the one before has its reply, which keeps
their order and says which reply is whose.

Owns timeouts, retries and who waits for which reply. Does not own the connection, nor what comes unasked.

Invariant: each ``Asked`` ends with one outcome, or is forgotten by whoever asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypedDict

import msgspec

from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import (
    ACK,
    COMMAND,
    COMMAND_RESULT,
    ERROR,
    EVENT,
    NACK,
    NOT_FOUND,
    RESPONSE,
    TIMEOUT,
    UNAUTHORIZED,
    Message,
)
from trunkline.sdk.ossa_connection import EXCHANGE, OssaConnection
from trunkline.sdk.ossa_message import ConnectionLost, OssaError, OssaMessage, error_of, message_of
from trunkline.sdk.ossa_retry import RetryPolicy
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

# Outcomes that nobody has asked for yet; the oldest go first.
MAX_OUTCOMES: Final = 1024

Outcome = list[OssaMessage | OssaError]


class MessageOptions(TypedDict, total=False):
    """What can be said with each message. Without ``qos`` it is 1 for a request or command and 0 for an event."""

    correlation_id: str | None
    # 0 to 2.
    qos: int | None
    # 0 to 9, 0 is the most urgent.
    priority: int | None
    # After this moment it is not delivered any more.
    expires_at: dt.datetime | None
    # Encrypt the payload.
    sensitive: bool
    # For this message instead of what the agent uses.
    retry: RetryPolicy | None
    timeout_s: float | None
    # Fields of your own, which the recipient gets.
    header: Mapping[str, Any] | None


class Asked:
    """One message on its way to its outcome."""

    def __init__(
        self,
        message: Message,
        policy: RetryPolicy,
        timeout_s: float,
        *,
        sealed: bool = False,
        on_progress: Callable[[Any], None] | None = None,
        is_greeting: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.message = message
        self.policy = policy
        self.deadline = loop.time() + timeout_s
        self.sealed = sealed
        self.on_progress = on_progress
        # Said before the connection counts as ready.
        self.is_greeting = is_greeting
        self.sent: asyncio.Future[None] = loop.create_future()
        # Of a command: it was acknowledged.
        self.taken: asyncio.Future[None] = loop.create_future()
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        # The attempt under way: set when it is over, by a reply or by the end of the connection.
        self.bell: asyncio.Future[None] = loop.create_future()
        self.got: dict[str, OssaMessage | OssaError] = {}
        self.is_taken = False
        for future in (self.sent, self.taken, self.outcome):
            future.add_done_callback(_looked_at)

    @property
    def is_complete(self) -> bool:
        """Whether everybody has answered that was asked."""
        return all(one.agent_id in self.got for one in self.message.recipients)

    @property
    def answers(self) -> Outcome:
        """What each of them answered."""
        return [self.got[one.agent_id] for one in self.message.recipients]

    def ring(self, error: OssaError | None = None) -> None:
        """The attempt is over."""
        if self.bell.done():
            return
        if error is None:
            self.bell.set_result(None)
        else:
            self.bell.set_exception(error)


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Nobody has to fetch an outcome."""
    if not future.cancelled():
        future.exception()


def answer_of(asked: Asked, outcome: Outcome) -> Any:
    """The one reply, of which an error is raised; to a list of recipients, all of them."""
    if asked.message.is_to_list:
        return outcome
    [found] = outcome
    if isinstance(found, OssaError):
        raise found
    return found


class Asking:
    """Everything that one agent has asked and has no outcome yet."""

    def __init__(self, connection: OssaConnection, on_result: Callable[[OssaMessage | OssaError], None]) -> None:
        self._on_result = on_result
        self._connection = connection
        self._open: dict[str, Asked] = {}
        self._lanes: dict[str, deque[asyncio.Future[None]]] = {}
        # By correlation, oldest first: what ``await_response`` gives.
        self._outcomes: dict[str, deque[Asked]] = {}
        self._count = 0
        self._tasks = OwnTasks()

    # -- asking --------------------------------------------------------------------------------------------------------

    def begin(self, asked: Asked, *, kept: bool = False) -> None:
        """Let it go its way. With ``kept`` its outcome is there for ``take``, by its correlation."""
        if kept:
            self._keep(asked)
        self._tasks.spawn(self._carry(asked))

    def take(self, correlation_id: str) -> Asked:
        """What was asked first under this correlation and not fetched; ``OssaError`` 404 if there is nothing."""
        found = self._outcomes.get(correlation_id)
        if not found:
            raise OssaError(NOT_FOUND, f"nothing was asked under {correlation_id!r}, or its outcome was fetched")
        return found[0]

    def forget(self, asked: Asked) -> None:
        """Its outcome was fetched, or nobody wants it."""
        found = self._outcomes.get(asked.message.correlation)
        if found is not None and asked in found:
            found.remove(asked)
            self._count -= 1
            if not found:
                del self._outcomes[asked.message.correlation]

    def _keep(self, asked: Asked) -> None:
        self._outcomes.setdefault(asked.message.correlation, deque()).append(asked)
        self._count += 1
        if self._count > MAX_OUTCOMES:
            self.forget(next(iter(self._outcomes.values()))[0])

    async def _carry(self, asked: Asked) -> None:
        """One message, from its turn to its outcome."""
        try:
            async with self._turn(asked):
                await self._until_answered(asked)
                for answer in () if asked.is_taken or asked.message.is_to_list else asked.answers:
                    if isinstance(answer, OssaError):
                        raise answer
                if not asked.taken.done():
                    asked.taken.set_result(None)
                if asked.message.type == COMMAND:
                    # It was taken: its result comes when it is there, over this connection or a later one.
                    await self._until_complete(asked)
        except OssaError as error:
            # Of several recipients each has its own answer.
            self._end(asked, None if asked.message.is_to_list and asked.is_complete else error)
        except asyncio.CancelledError:
            self._end(asked, ConnectionLost())
            raise
        else:
            self._end(asked, None)

    def _end(self, asked: Asked, error: OssaError | None) -> None:
        for early in (asked.sent, asked.taken):
            if not early.done():
                if error is None:
                    early.set_result(None)
                else:
                    early.set_exception(error)
        if not asked.outcome.done():
            if error is None:
                asked.outcome.set_result(asked.answers)
            else:
                asked.outcome.set_exception(error)

    @contextlib.asynccontextmanager
    async def _turn(self, asked: Asked) -> AsyncIterator[None]:
        """While this is held, nothing else of the same correlation is under way."""
        thread = asked.message.correlation
        lane = self._lanes.setdefault(thread, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.append(turn)
        try:
            if lane[0] is not turn:
                try:
                    async with asyncio.timeout_at(asked.deadline):
                        await turn
                except TimeoutError:
                    raise OssaError(TIMEOUT, "what was asked before it under its correlation has no reply") from None
            self._open[thread] = asked
            yield
        finally:
            lane.remove(turn)
            if self._open.get(thread) is asked:
                del self._open[thread]
            if not lane:
                del self._lanes[thread]
            elif not lane[0].done():
                lane[0].set_result(None)

    async def _until_answered(self, asked: Asked) -> None:
        """Attempts, until a reply or the end of the time."""
        loop = asyncio.get_running_loop()
        attempt = 1
        while True:
            try:
                async with asyncio.timeout_at(asked.deadline):
                    return await self._attempt(asked)
            except TimeoutError:
                raise OssaError(TIMEOUT, "no reply in time") from None
            except OssaError as error:
                attempt += 1
                wait_ms = asked.policy.wait_ms(attempt, error)
                is_final = isinstance(error, ConnectionLost) and not asked.message.level
                if wait_ms is None or is_final or loop.time() + wait_ms / 1000 >= asked.deadline:
                    raise
            await asyncio.sleep(wait_ms / 1000)

    async def _attempt(self, asked: Asked) -> None:
        if not asked.is_greeting:
            if not asked.message.level and not self._connection.is_ready.is_set():
                raise ConnectionLost
            await self._connection.is_ready.wait()
        asked.got.clear()
        asked.bell = asyncio.get_running_loop().create_future()
        asked.bell.add_done_callback(_looked_at)
        await self._connection.send(asked.message, sealed=asked.sealed)
        if not asked.sent.done():
            asked.sent.set_result(None)
        if asked.message.type == EVENT and not asked.message.level:
            asked.got = dict.fromkeys([EXCHANGE.agent_id], _nothing(asked.message))
            return
        await asked.bell
        for answer in asked.got.values():
            if isinstance(answer, OssaError) and asked.policy.wait_ms(1, answer) is not None:
                raise answer

    async def _until_complete(self, asked: Asked) -> None:
        while not asked.is_complete:
            asked.bell = asyncio.get_running_loop().create_future()
            asked.bell.add_done_callback(_looked_at)
            with contextlib.suppress(ConnectionLost):
                await asked.bell

    # -- what comes ----------------------------------------------------------------------------------------------------

    def receive(self, message: Message, is_sealed: bool) -> None:
        """A reply: response, result, error, acknowledgment or its opposite."""
        if message.type in {ACK, NACK}:
            self._receipt(message)
        elif message.type in {RESPONSE, COMMAND_RESULT, ERROR}:
            self._reply(message, is_sealed)

    def _receipt(self, message: Message) -> None:
        asked = self._open.get(message.correlation_id or "")
        if asked is None or asked.message.message_id != messages.about(message.payload):
            if message.error is not None:
                log.warning("an event was not taken: %d %s", message.error.code, message.error.message)
            return
        answer = _nothing(asked.message) if message.error is None else error_of(message.error)
        if asked.message.type == COMMAND and not isinstance(answer, OssaError):
            asked.is_taken = True
            asked.ring()
            return
        for one in asked.message.recipients:
            asked.got[one.agent_id] = answer
        asked.ring()

    def _reply(self, message: Message, is_sealed: bool) -> None:
        asked = self._open.get(message.correlation_id or "")
        answer = message_of(message, is_sealed=is_sealed) if message.error is None else error_of(message.error)
        is_owed = message.type == COMMAND_RESULT or asked is None or asked.is_taken
        if is_owed and (message.error is None or message.error.code != UNAUTHORIZED):
            # A result is told again until it is acknowledged; an acknowledgment of anything else is not heeded. Who is
            # told that nobody knows him would be told so once more.
            self._acknowledge(message)
        if asked is None:
            self._on_result(answer)
            return
        for one in asked.message.recipients:
            # The exchange itself refuses a message for all.
            if message.sender.agent_id in {one.agent_id, EXCHANGE.agent_id}:
                asked.got[one.agent_id] = answer
        if asked.is_complete:
            asked.ring()

    def _acknowledge(self, message: Message) -> None:
        body = messages.receipt(message.message_id)
        ack = self._connection.new(ACK, ACK, (message.sender,), body, correlation_id=message.correlation_id)
        self._tasks.spawn(self._say(ack))

    async def _say(self, message: Message) -> None:
        with contextlib.suppress(ConnectionLost):
            await self._connection.send(message)

    def progressed(self, message: Message) -> bool:
        """A piece of a stream; whether it belongs to something that was asked (it shows how far that is)."""
        asked = self._open.get(message.correlation_id or "")
        if asked is None or asked.message.type not in {messages.REQUEST, COMMAND}:
            return False
        if message.type == messages.STREAM_DATA and asked.on_progress is not None:
            asked.on_progress(msgspec.json.decode(message.payload))
        return True

    def lost(self) -> None:
        """The connection ended: what waits for a reply has none on this one."""
        for asked in list(self._open.values()):
            asked.ring(ConnectionLost())

    async def stop(self) -> None:
        """Nothing is asked any more; who waits is told."""
        await self._tasks.stop()


def _nothing(message: Message) -> OssaMessage:
    """What stands for the answer of a message that is only acknowledged."""
    plain = msgspec.structs.replace(message, payload=msgspec.Raw(b"null"))
    return message_of(plain, is_sealed=False)
