"""``OssaAgent``: what the author of an OSSA agent writes against.

::

    agent = OssaAgent("alice.json")

    @agent.handle("greet", side_effects=False)
    async def greet(request):
        return {"text": f"hello, {request.payload['name']}"}

    agent.run()

and, inside ``async with agent.connected():``, ``await agent.request("bob", "greet", {"name": "you"})``.

Done for the author: registration, signatures, encryption, heartbeats, retries, order, acknowledgments, reconnecting.
Owns the declaration and the agent's life; requests are in ``ossa_asking``, handlers in ``ossa_handling``, topics in
``ossa_subscription``, streams in ``ossa_streams``, the WebSocket in ``ossa_connection``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.ossa import messages, reading
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    COMMAND,
    ERROR,
    EVENT,
    FORBIDDEN,
    NACK,
    NOT_IMPLEMENTED,
    REQUEST,
    STREAM_TYPES,
    TIMEOUT,
    UNAUTHORIZED,
    Identity,
    Message,
    Refused,
)
from trunkline.errors import ConfigError, ExchangeUnreachable, NotAdmitted
from trunkline.model import TOOL_NAME, stamp
from trunkline.sdk.ossa_asking import Asked, Asking, MessageOptions, answer_of
from trunkline.sdk.ossa_connection import EXCHANGE, HEARTBEAT_S, Dialling, NetworkDialling, OssaConnection
from trunkline.sdk.ossa_handling import Handler, Handling, is_async
from trunkline.sdk.ossa_identity import DEFAULT_TYPE, Place, read_identity
from trunkline.sdk.ossa_inbox import Inbox
from trunkline.sdk.ossa_message import ConnectionLost, OssaError, OssaMessage
from trunkline.sdk.ossa_retry import DEFAULT_RETRY_POLICY, RetryPolicy
from trunkline.sdk.ossa_streams import Stream, StreamHandler, Streams
from trunkline.sdk.ossa_subscription import Subscription, Subscriptions
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=StreamHandler)

REQUEST_TIMEOUT_S: Final = 30.0
# Handlers that run at once: as many as the exchange gives one agent.
CONCURRENCY: Final = 16
GRACE_S: Final = 5.0
# How long `connected` tries: a restart of the exchange takes less.
CONNECT_S: Final = 30.0
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
# The exchange says that trying again will not help.
NOT_LET_IN: Final = frozenset({BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_IMPLEMENTED})


class DeclaredAction(Struct, frozen=True):
    """A function declared with ``@agent.handle``, and what the exchange is told of it."""

    handler: Handler
    offer: Mapping[str, Any]


class OssaAgent:
    """An agent that speaks OSSA with an exchange.

    ``identity`` is what ``trunkline token new ossa --json`` printed, or the file that it is in; ``OSSA_IDENTITY`` names
    the file otherwise. Without ``url`` the exchange is the one that runs in ``home``. It is trusted by ``pin`` (its
    key's SHA-256), by the authorities in the file ``ca``, by the certificate in ``home`` if it is on this machine, or
    by the authorities of this system.
    """

    def __init__(
        self,
        identity: str | Path | Mapping[str, Any] | None = None,
        *,
        agent_type: str | None = None,
        instance_name: str | None = None,
        version: str | None = None,
        url: str | None = None,
        home: str | Path | None = None,
        pin: str = "",
        ca: str | Path | None = None,
        inbox: str | Path | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        retry: RetryPolicy = DEFAULT_RETRY_POLICY,
        command_retry: RetryPolicy | None = None,
        publish_retry: RetryPolicy | None = None,
        concurrency: int = CONCURRENCY,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency: at least one handler has to run")
        own = read_identity(identity, agent_type, instance_name, version)
        self.agent_id = own.identity.agent_id
        self.agent_type = own.identity.agent_type
        place = Place(url, None if home is None else Path(home), pin, None if ca is None else Path(ca))
        self._own = own
        self._dialling: Dialling = NetworkDialling(place)
        self._inbox_path = inbox
        self._timeout_s = request_timeout_s
        self._policies = {REQUEST: retry, COMMAND: command_retry or retry, EVENT: publish_retry or retry}
        self._concurrency = concurrency
        self._heartbeat_s = heartbeat_s
        self._actions: dict[str, DeclaredAction] = {}
        self._stream_handlers: dict[str, StreamHandler] = {}
        self._result_handler: Callable[[OssaMessage | OssaError], Any] | None = None
        self._subscriptions = Subscriptions()
        # The first message of a connection on which nothing is registered.
        self._hello_id = ""
        self._parts: _Parts | None = None
        self._stopping: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"OssaAgent({self.agent_id!r}, {self.agent_type!r})"

    # -- declaring -----------------------------------------------------------------------------------------------------

    def handle(
        self,
        action: str,
        *,
        description: str | None = None,
        input_schema: Mapping[str, Any] = ANY_OBJECT,
        output_schema: Mapping[str, Any] | None = None,
        side_effects: bool = True,
    ) -> Callable[[F], F]:
        """Offer a function, async or plain, as an action. It gets the ``OssaMessage``; what it returns is the payload
        of the reply. ``OssaError`` is told as it is, of anything else only that it happened.

        ``side_effects=False`` promises that it changes nothing, so that it may be repeated and needs no approval.
        """
        if not TOOL_NAME.fullmatch(action):
            raise ValueError(f"{action!r} is no name for an action: {TOOL_NAME.pattern}")
        if any(action.casefold() == known.casefold() for known in self._actions):
            raise ValueError(f"there are two actions called {action}, or names that differ only in case")
        if self._parts is not None:
            raise RuntimeError(f"{self.agent_id} is connected already; declare actions before")

        def declare(function: F) -> F:
            text = description or (function.__doc__ or "").strip().partition("\n")[0]
            offer: dict[str, Any] = {"name": action, "description": text, "input_schema": dict(input_schema)}
            if output_schema is not None:
                offer["output_schema"] = dict(output_schema)
            self._actions[action] = DeclaredAction(function, {**offer, "side_effects": side_effects})
            return function

        return declare

    def handle_stream(self, handler: S, *, action: str = "") -> S:
        """Give streams to this async function: it gets an ``IncomingStream``, whose pieces it takes with ``async for``.

        With ``action`` only those of that action; without, all that no other handler is for. Also a decorator.
        """
        if not is_async(handler):
            raise TypeError("a handler of streams is an async function: it waits for their pieces")
        self._stream_handlers[action] = handler
        return handler

    def handle_result(self, handler: F) -> F:
        """Give results of commands that nobody waits for to this function: those of an earlier life of the agent."""
        self._result_handler = handler
        return handler

    # -- requests and commands -----------------------------------------------------------------------------------------

    async def send_request(
        self,
        to: str | Sequence[str],
        action: str,
        payload: Any = None,
        *,
        on_progress: Callable[[Any], None] | None = None,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Send a request; its correlation id, by which ``await_response`` gives the reply. ``trunkline`` is the
        exchange: its actions are whole tool ids.
        """
        return await self._send(REQUEST, to, action, payload, on_progress, options)

    async def send_command(
        self, to: str | Sequence[str], action: str, payload: Any = None, **options: Unpack[MessageOptions]
    ) -> str:
        """Send a command and wait until it was taken; its correlation id is what ``await_response`` needs."""
        return await self._send(COMMAND, to, action, payload, None, options)

    async def _send(
        self,
        kind: str,
        to: str | Sequence[str],
        action: str,
        payload: Any,
        on_progress: Callable[[Any], None] | None,
        options: MessageOptions,
    ) -> str:
        asked = self._asked(kind, _recipients(to), action, payload, options, on_progress, is_to_list=not _is_one(to))
        self._running().asking.begin(asked, kept=True)
        try:
            await (asked.sent if kind == REQUEST else asked.taken)
        except OssaError:
            self._running().asking.forget(asked)
            raise
        return asked.message.correlation

    async def await_response(self, correlation_id: str, timeout_s: float | None = None) -> Any:
        """The reply to what was sent under this correlation: an ``OssaMessage``; an error is raised. For several
        recipients a list, in their order, with an ``OssaError`` in the place of each that failed.

        Who does not get it within ``timeout_s`` may ask again. Without it a request's own time counts.
        """
        asking = self._running().asking
        asked = asking.take(correlation_id)
        if timeout_s is None and asked.message.type == COMMAND:
            timeout_s = self._timeout_s
        await asyncio.wait({asked.outcome}, timeout=timeout_s)
        if not asked.outcome.done():
            raise OssaError(TIMEOUT, "no reply yet")
        asking.forget(asked)
        return answer_of(asked, asked.outcome.result())

    async def request(
        self,
        to: str | Sequence[str],
        action: str,
        payload: Any = None,
        *,
        on_progress: Callable[[Any], None] | None = None,
        **options: Unpack[MessageOptions],
    ) -> Any:
        """``send_request`` and ``await_response`` in one. ``on_progress`` is given what is shown meanwhile."""
        asked = self._asked(REQUEST, _recipients(to), action, payload, options, on_progress, is_to_list=not _is_one(to))
        self._running().asking.begin(asked)
        return answer_of(asked, await asyncio.shield(asked.outcome))

    # -- topics --------------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, payload: Any = None, *, action: str = "event", **options: Unpack[MessageOptions]
    ) -> None:
        """Tell all subscribers of a topic. With ``qos`` 1 or 2 it returns when the exchange has taken the event, with 0
        when it was sent.
        """
        try:
            reading.topic_of(topic)
        except Refused as refused:
            raise OssaError(BAD_REQUEST, refused.text) from None
        asked = self._asked(EVENT, (EXCHANGE,), action, payload, options, topic=topic)
        self._running().asking.begin(asked)
        answer_of(asked, await asyncio.shield(asked.outcome))

    def subscribe(self, topic: str, handler: Handler, qos: int = 0, durable: bool = False) -> Subscription:
        """Have events of a topic (``*`` is one segment, ``#`` all that follow) given to a function, async or plain.

        Before the agent runs, this declares; ``await`` the subscription to know that the exchange took it. It holds
        across lost connections; a ``durable`` one also while the agent does not run: what is published meanwhile with
        quality 1 or 2 waits.
        """
        subscription = Subscription(topic, handler, qos, durable=durable)
        self._subscriptions.add(subscription)
        if self._parts is not None:
            self._parts.spawn(self._subscriptions.establish(subscription, self._ask_exchange))
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Its handler gets nothing from here on, and the exchange sends nothing more."""
        known = self._subscriptions.remove(subscription)
        if known is not None:
            await self.request(EXCHANGE.agent_id, "unsubscribe", {"subscription": known})

    # -- streams -------------------------------------------------------------------------------------------------------

    async def start_stream(
        self,
        stream_id: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        to: str,
        action: str = "stream",
        correlation_id: str | None = None,
        sensitive: bool = False,
    ) -> Stream:
        """Begin to send pieces of something. With the correlation id of a request that this agent works on, they show
        its caller how far it is.
        """
        stream = Stream(stream_id, _recipients(to)[0], action, correlation_id or str(uuid.uuid4()), sealed=sensitive)
        await self._in_time(stream, self._running().streams.start(stream, dict(metadata or {})))
        return stream

    async def send_data(self, stream: Stream, data: Any) -> None:
        """Send one piece, any JSON value; ``OssaError`` if the stream has ended or nobody hears it."""
        await self._in_time(stream, self._running().streams.send(stream, data))

    async def end_stream(self, stream: Stream) -> None:
        """Say that it is complete; nothing can be sent on it afterwards."""
        await self._in_time(stream, self._running().streams.end(stream))

    async def _in_time(self, stream: Stream, sending: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await sending
        except TimeoutError:
            # A piece is missing: nothing that follows it would be delivered.
            stream.error = ConnectionLost()
            raise stream.error from None

    # -- being connected -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM or SIGINT; the last line of an agent. Who is not let in exits with 1 and the reason."""

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            await self.serve()

        try:
            asyncio.run(serve())
        except (NotAdmitted, ConfigError) as error:
            raise SystemExit(f"{self.agent_id}: {error}") from None

    def stop(self) -> None:
        """End ``serve`` after the handlers that run; on the agent's own loop."""
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self, *, grace_s: float = GRACE_S) -> None:
        """Stay connected until ``stop()``; ``NotAdmitted`` when the exchange does not let this agent in."""
        if self._parts is not None:
            raise RuntimeError(f"{self.agent_id} is connected already")
        self._stopping = asyncio.Event()
        parts = self._parts = _Parts(self)
        connecting = asyncio.create_task(parts.connection.run())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await parts.handling.stop(grace_s)
            if connecting.done():
                connecting.result()
        finally:
            stopping.cancel()
            connecting.cancel()
            await asyncio.gather(connecting, stopping, return_exceptions=True)
            await parts.stop()
            self._parts = self._stopping = None

    @contextlib.asynccontextmanager
    async def connected(
        self, *, timeout_s: float | None = CONNECT_S, grace_s: float = GRACE_S
    ) -> AsyncIterator[OssaAgent]:
        """``async with agent.connected():`` connected, registered and subscribed, inside the block.

        ``ExchangeUnreachable`` says why not: after ``timeout_s`` (None: it is tried for ever), and at once if who
        answers is not the exchange that was meant.
        """
        serving = asyncio.create_task(self.serve(grace_s=grace_s))
        # One turn, so that serve() has made its parts.
        await asyncio.sleep(0)
        connection = None if self._parts is None else self._parts.connection
        waiting: set[asyncio.Task[Any]] = set()
        if connection is not None:
            found = (connection.is_ready, connection.is_distrusted)
            waiting = {asyncio.create_task(event.wait()) for event in found}
        try:
            await asyncio.wait({serving, *waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
                raise ExchangeUnreachable(f"{self.agent_id} was stopped before the exchange answered")
            if connection is not None and not connection.is_ready.is_set():
                why = connection.trouble or "what an agent says first was not answered"
                raise ExchangeUnreachable(f"{self.agent_id} is not connected: {why}")
            yield self
        finally:
            for task in waiting:
                task.cancel()
            self.stop()
            await serving

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        """What is said first on a new connection: what this agent does, and what it wants to be told of."""
        parts = self._running()
        if self._actions:
            offers = [dict(one.offer) for one in self._actions.values()]
            try:
                found = await self._ask_exchange("register", {"actions": offers, "replace": True}, is_greeting=True)
            except OssaError as error:
                if error.code in NOT_LET_IN:
                    raise NotAdmitted(str(error.code), error.message) from None
                raise
            for name, why in found.payload["rejected"].items():
                log.warning("the exchange does not take the action %s: %s", name, why)
        else:
            # The first message says whose connection this is.
            hello = parts.connection.new(messages.HEARTBEAT, messages.HEARTBEAT, (EXCHANGE,))
            self._hello_id = hello.message_id
            await parts.connection.send(hello)
        for subscription in list(self._subscriptions):
            await self._subscriptions.establish(subscription, self._ask_exchange, is_greeting=True)

    async def _ask_exchange(self, action: str, payload: Any, *, is_greeting: bool = False) -> OssaMessage:
        """A request to the exchange itself; with ``is_greeting`` before anything else on a new connection."""
        asked = self._asked(REQUEST, (EXCHANGE,), action, payload, {}, is_greeting=is_greeting)
        self._running().asking.begin(asked)
        found: OssaMessage = answer_of(asked, await asyncio.shield(asked.outcome))
        return found

    def _asked(
        self,
        kind: str,
        to: tuple[Identity, ...],
        action: str,
        payload: Any,
        options: MessageOptions,
        on_progress: Callable[[Any], None] | None = None,
        *,
        topic: str | None = None,
        is_to_list: bool = False,
        is_greeting: bool = False,
    ) -> Asked:
        expires_at = options.get("expires_at")
        correlation_id = options.get("correlation_id")
        timeout_s = options.get("timeout_s")
        message = self._running().connection.new(
            kind,
            action,
            to,
            Raw(msgspec.json.encode({} if payload is None else payload)),
            # Without one an event is in no order with others.
            correlation_id=correlation_id or (None if kind == EVENT else str(uuid.uuid4())),
            qos=options.get("qos"),
            priority=options.get("priority"),
            expires_at=None if expires_at is None else stamp(round(expires_at.timestamp() * 1000)),
            topic=topic,
            is_to_list=is_to_list,
            others={name: Raw(json.dumps(value).encode()) for name, value in (options.get("header") or {}).items()},
        )
        return Asked(
            message,
            options.get("retry") or self._policies[kind],
            self._timeout_s if timeout_s is None else timeout_s,
            sealed=options.get("sensitive", False),
            on_progress=on_progress,
            is_greeting=is_greeting,
        )

    def _running(self) -> _Parts:
        if self._parts is None:
            raise ExchangeUnreachable(
                f"{self.agent_id} is not connected; this works inside run(), serve() or connected()"
            )
        return self._parts

    def _handlers_of(self, message: Message) -> Sequence[Handler] | None:
        if message.type != EVENT:
            declared = self._actions.get(message.action)
            return None if declared is None else [declared.handler]
        return self._subscriptions.handlers_of(message)

    def _received(self, message: Message, is_sealed: bool) -> None:
        parts = self._running()
        if message.type in {REQUEST, COMMAND, EVENT}:
            parts.handling.receive(message, is_sealed)
        elif message.type in STREAM_TYPES:
            if not parts.asking.progressed(message):
                parts.streams.receive(message)
        elif message.type == NACK and message.stream_id is not None and parts.streams.nacked(message):
            return
        else:
            if message.error is not None and message.type == ERROR:
                if message.correlation_id == self._hello_id and message.error.code in NOT_LET_IN:
                    parts.connection.not_admitted(NotAdmitted(str(message.error.code), message.error.message))
                parts.streams.refused(message)
            parts.asking.receive(message, is_sealed)

    def _refused(self, message: Message, refused: Refused) -> None:
        self._running().handling.refused(message, OssaError(refused.error_code, refused.text))

    def _lost(self) -> None:
        if self._parts is None:
            return
        self._subscriptions.lost()
        self._parts.asking.lost()
        self._parts.streams.lost()

    def _result(self, answer: OssaMessage | OssaError) -> None:
        if self._result_handler is not None and self._parts is not None:
            self._parts.spawn(self._give_result(self._result_handler, answer))
        else:
            log.info("a reply that nobody waits for: %s", answer if isinstance(answer, OssaError) else answer.action)

    async def _give_result(
        self, handler: Callable[[OssaMessage | OssaError], Any], answer: OssaMessage | OssaError
    ) -> None:
        try:
            if is_async(handler):
                await handler(answer)
            else:
                await asyncio.to_thread(handler, answer)
        except Exception:
            log.exception("the handler of results failed")


class _Parts:
    """What an agent consists of while it runs."""

    def __init__(self, agent: OssaAgent) -> None:
        # One object in several modules: what is private to the agent is not to its parts.
        own = agent
        self.connection = OssaConnection(
            own._own,  # noqa: SLF001
            own._dialling,  # noqa: SLF001
            on_open=own._greet,  # noqa: SLF001
            on_message=own._received,  # noqa: SLF001
            on_refused=own._refused,  # noqa: SLF001
            on_lost=own._lost,  # noqa: SLF001
            heartbeat_s=own._heartbeat_s,  # noqa: SLF001
        )
        self.inbox = Inbox(own._inbox_path or ":memory:")  # noqa: SLF001
        self.asking = Asking(self.connection, own._result)  # noqa: SLF001
        self.handling = Handling(self.connection, self.inbox, own._concurrency, own._handlers_of)  # noqa: SLF001
        self.streams = Streams(self.connection)
        for action, handler in own._stream_handlers.items():  # noqa: SLF001
            self.streams.handle(handler, action)
        self._tasks = OwnTasks()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something beside, that ends with the agent."""
        self._tasks.spawn(work)

    async def stop(self) -> None:
        """Let go of everything."""
        await self._tasks.stop()
        await self.asking.stop()
        await self.streams.stop()
        await self.handling.stop(0)
        self.inbox.close()


def _is_one(to: str | Sequence[str]) -> bool:
    return isinstance(to, str)


def _recipients(to: str | Sequence[str]) -> tuple[Identity, ...]:
    """Whom a message is for. What class they are of is the exchange's to know."""
    names = [to] if isinstance(to, str) else to
    return tuple(EXCHANGE if name == EXCHANGE.agent_id else Identity(name, DEFAULT_TYPE) for name in names)
