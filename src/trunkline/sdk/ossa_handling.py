"""What an OSSA agent does for others: requests, commands and events, given to the author's handlers and answered.

Each message waits for its turn: the lower priority first, those of one correlation one after the other, and no more at
once than the agent allows. With quality 2 a message that was handled is answered again from the inbox, and one that
waits or runs is not taken twice. Acknowledgments and replies leave when the handler is done and the inbox has it.

Owns the order, repeats and the words of replies. Does not own the inbox's file, nor which handler is for which event.

Invariant: a handler runs for a message at most once at a time, and with quality 2 not again after its reply was kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import (
    ACK,
    BAD_REQUEST,
    COMMAND,
    COMMAND_RESULT,
    ERROR,
    EVENT,
    INSUFFICIENT,
    INTERNAL_ERROR,
    NACK,
    NOT_FOUND,
    REQUEST,
    RESPONSE,
    TIMEOUT,
    UNAVAILABLE,
    Message,
)
from trunkline.edges.ossa.queue import SendQueue
from trunkline.errors import ToolError
from trunkline.model import EMPTY_OBJECT
from trunkline.sdk.ossa_connection import OssaConnection
from trunkline.sdk.ossa_inbox import Handled, Inbox
from trunkline.sdk.ossa_message import ConnectionLost, OssaError, OssaMessage, info_of, message_of
from trunkline.sdk.ossa_retry import DEFAULT_RETRY_POLICY
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

# Messages that wait for their turn. The exchange itself sends fewer, but for events of quality 0.
MAX_WAITING: Final = 4096

Handler = Callable[[OssaMessage], Any]


class Work(Struct, eq=False):
    """A message that waits for its turn, or runs."""

    message: Message
    is_sealed: bool
    fingerprint: bytes

    @property
    def key(self) -> tuple[str, str]:
        """What a repeat has in common with it."""
        return self.message.sender.agent_id, self.message.message_id


class Handling:
    """All work of one agent. ``find`` gives the handlers of a message: none if this is not known here."""

    def __init__(
        self,
        connection: OssaConnection,
        inbox: Inbox,
        concurrency: int,
        find: Callable[[Message], Sequence[Handler] | None],
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._concurrency = concurrency
        self._find = find
        self._queue: SendQueue[Work] = SendQueue()
        self._taken: dict[tuple[str, str], Work] = {}
        self._tasks = OwnTasks()
        self._running = 0
        self._is_stopping = False
        # Plain functions wait in threads, as many as may run at once.
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="ossa")

    # -- taking in -----------------------------------------------------------------------------------------------------

    def receive(self, message: Message, is_sealed: bool) -> None:
        """A request, command or event."""
        if self._is_stopping:
            return  # it comes again, to whoever is there then
        work = Work(message, is_sealed, _fingerprint(message))
        earlier = self._taken.get(work.key)
        if earlier is not None:
            if earlier.fingerprint != work.fingerprint:
                self._refuse(work, OssaError(BAD_REQUEST, "this messageId was used before with another content"))
            elif message.type == COMMAND:
                self._say(self._receipt(work, ACK))
            return
        if message.level == 2 and self._is_answered(work):
            return
        if len(self._queue) >= MAX_WAITING:
            self._refuse(work, OssaError(INSUFFICIENT, f"{MAX_WAITING} messages wait here"))
            return
        if message.type == COMMAND:
            self._say(self._receipt(work, ACK))
        self._taken[work.key] = work
        now = asyncio.get_running_loop().time()
        self._queue.put(work, message.correlation_id or "", message.urgency, now)
        self._start()

    def _is_answered(self, work: Work) -> bool:
        """Whether the inbox has the reply, which is sent again then."""
        known = self._inbox.get(*work.key, time.time())
        if known is None:
            return False
        if known.fingerprint != work.fingerprint:
            self._refuse(work, OssaError(BAD_REQUEST, "this messageId was used before with another content"))
        else:
            self._tasks.spawn(self._send(known.reply))
        return True

    def refused(self, message: Message, error: OssaError) -> None:
        """Something is wrong with a message: its sender is told, if it is one that is answered."""
        if message.type in {REQUEST, COMMAND, EVENT}:
            self._refuse(Work(message, False, b""), error)

    def _refuse(self, work: Work, error: OssaError) -> None:
        reply = self._failure(work, error)
        if reply is not None:
            self._say(reply)

    # -- running -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._running < self._concurrency:
            work = self._queue.take(now)
            if work is None:
                return
            self._running += 1
            self._tasks.spawn(self._run(work))

    async def _run(self, work: Work) -> None:
        try:
            reply = await self._handled(work)
            if reply is not None:
                await self._send(reply)
        finally:
            self._running -= 1
            self._taken.pop(work.key, None)
            self._queue.done(work.message.correlation_id or "")
            if not self._is_stopping:
                self._start()

    async def _handled(self, work: Work) -> bytes | None:
        """Run the handlers of a message; the bytes of its reply, if it has one."""
        message = work.message
        seen = message_of(message, is_sealed=work.is_sealed)
        try:
            if message.expires_ms is not None and message.expires_ms <= time.time() * 1000:
                raise OssaError(TIMEOUT, "expired before it was handled")
            handlers = self._find(message)
            if handlers is None:
                if message.type == EVENT:
                    return None  # it comes again; somebody may subscribe meanwhile
                raise OssaError(NOT_FOUND, "no such action")
            result: Any = None
            for handler in handlers:
                result = await self._call(handler, seen)
            return self._succeeded(work, seen, result)
        except OssaError as error:
            return self._failed(work, error)
        except ToolError as error:
            return self._failed(work, OssaError(INTERNAL_ERROR, error.fault.message, error.fault.details))
        except Exception as defect:
            # The boundary to the author's code: the text of what it raised may hold a secret.
            log.exception("the handler of %s failed", message.action)
            return self._failed(work, OssaError(INTERNAL_ERROR, f"{type(defect).__name__} in the agent"))

    async def _call(self, handler: Handler, seen: OssaMessage) -> Any:
        if is_async(handler):
            return await handler(seen)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, handler, seen)
        return await found if isinstance(found, Awaitable) else found

    # -- replies -------------------------------------------------------------------------------------------------------

    def _succeeded(self, work: Work, seen: OssaMessage, result: Any) -> bytes | None:
        message = work.message
        if message.type == EVENT:
            reply = self._receipt(work, ACK)
        else:
            kind = RESPONSE if message.type == REQUEST else COMMAND_RESULT
            reply = self._reply(work, kind, message.action, Raw(msgspec.json.encode(result)))
        try:
            data = self._connection.encode(reply, sealed=work.is_sealed and reply.type != ACK)
        except OssaError as error:
            raise OssaError(INTERNAL_ERROR, f"the reply cannot be sent: {error.message}") from None
        if message.level == 2 or seen.statements:
            try:
                self._inbox.finish(*work.key, Handled(work.fingerprint, data), time.time(), seen.statements)
            except sqlite3.OperationalError:
                log.exception("the inbox cannot be written")
                raise OssaError(UNAVAILABLE, "the agent's inbox cannot be written") from None
        return data if message.type != EVENT or message.level else None

    def _failed(self, work: Work, error: OssaError) -> bytes | None:
        reply = self._failure(work, error)
        if reply is None:
            return None
        data = self._connection.encode(reply)
        is_final = error.code not in DEFAULT_RETRY_POLICY.retryable_errors
        if work.message.level == 2 and is_final and work.message.type != EVENT:
            try:
                self._inbox.finish(*work.key, Handled(work.fingerprint, data), time.time())
            except sqlite3.Error:
                log.exception("the inbox cannot be written")
        return data

    def _failure(self, work: Work, error: OssaError) -> Message | None:
        info = info_of(error, round(time.time() * 1000))
        if work.message.type == EVENT:
            if not work.message.level:
                return None
            return msgspec.structs.replace(self._receipt(work, NACK), error=info)
        return msgspec.structs.replace(self._reply(work, ERROR, "error", EMPTY_OBJECT), error=info)

    def _reply(self, work: Work, kind: str, action: str, payload: Raw) -> Message:
        to = (work.message.sender,)
        return self._connection.new(kind, action, to, payload, correlation_id=work.message.correlation)

    def _receipt(self, work: Work, kind: str) -> Message:
        body = messages.receipt(work.message.message_id)
        return self._reply(work, kind, kind, body)

    def _say(self, message: Message) -> None:
        self._tasks.spawn(self._send(self._connection.encode(message)))

    async def _send(self, data: bytes) -> None:
        # Without a connection the message comes again on the next one, and is answered then.
        with contextlib.suppress(ConnectionLost):
            await self._connection.send_bytes(data)

    # -- ending --------------------------------------------------------------------------------------------------------

    async def stop(self, grace_s: float) -> None:
        """Take nothing more; what runs may end within this time."""
        self._is_stopping = True
        await self._tasks.stop(grace_s)
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether this runs on the loop; a plain function runs in a thread."""
    return inspect.iscoroutinefunction(function)


def _fingerprint(message: Message) -> bytes:
    """What a repeat must have in common: the same id with another content is none."""
    parts = (message.type.encode(), message.action.encode(), str(message.topic).encode(), bytes(message.payload))
    return hashlib.sha256(b"\n".join(parts)).digest()
