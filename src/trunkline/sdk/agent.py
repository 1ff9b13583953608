"""``Agent``: what an agent's author writes against. ``connect``: the same for a program that only calls.

Owns the declaration of tools, and the methods that a tool uses while it runs. The work is elsewhere:
``exchange_connection`` keeps the agent connected, ``running_calls`` runs the tools, ``launch`` is ``agent.run()``.

Invariant: a decorated function stays the function it was. Outside a call ``progress``, ``partial`` and ``log`` do
nothing and ``canceled`` is False, so that a tool can be tested like any function.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import inspect
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import msgspec
from msgspec import Struct

import trunkline
from trunkline import strictjson
from trunkline.edges.opensentience.agent_events import Answered, Called, DirectiveAnswered, Progressed
from trunkline.edges.opensentience.agent_session import AgentSession, HealthWord
from trunkline.edges.opensentience.messages import is_semver
from trunkline.errors import ExchangeUnreachable, ToolFailed
from trunkline.model import (
    AGENT_ID,
    EVENT_TOOL,
    EXCHANGE,
    MAX_INPUT_BYTES,
    Channel,
    Now,
    Status,
    fault,
    reserved_prefix,
)
from trunkline.sdk import json_form
from trunkline.sdk.exchange_connection import ExchangeConnection, Identity, Token
from trunkline.sdk.large_outputs import reference_in, whole_output
from trunkline.sdk.running_calls import RunningCalls, current
from trunkline.sdk.tool import DeclaredTool, make_tool
from trunkline.sdk.topic_events import WantedTopic, event_tool

log = logging.getLogger("trunkline.agent")

F = TypeVar("F", bound=Callable[..., Any])

# How long running calls get to end when the agent is stopped, before they are cancelled. With what follows it stays
# below the 5 s after which an exchange kills an agent that it stops.
GRACE_S: Final = 2.5
CLOSE_S: Final = 1.0
# An input stands two levels deep in its message.
MAX_INPUT_DEPTH: Final = strictjson.MAX_DEPTH - 2


class CallProgress(Struct, frozen=True):
    """Something that a called tool showed before its result; ``on_progress`` of ``Agent.call`` gets it.

    ``data`` is ``{"text": …}`` or, on the channel ``partial_result``, ``{"json": …}``.
    """

    channel: str
    data: dict[str, Any]


class Agent:
    """One agent, over OpenSentience: it offers functions as tools, calls those of others, or both.

    ``manifest`` is the path of its ``opensentience.agent.json``; the exchange is told the hash of it.
    """

    def __init__(self, agent_id: str, *, version: str = "0.0.0", manifest: str | Path | None = None) -> None:
        if not AGENT_ID.fullmatch(agent_id):
            raise ValueError(f"{agent_id!r} is no agent id: letters, digits, `.`, `_` and `-`, at most 128")
        if prefix := reserved_prefix(agent_id):
            raise ValueError(f"{agent_id!r}: ids that start with {prefix} are the exchange's own")
        if not is_semver(version):
            raise ValueError(f"{version!r} is no version of the form 1.2.3")
        self.agent_id = agent_id
        self.version = version
        self.tools: dict[str, DeclaredTool] = {}
        self._manifest = None if manifest is None else Path(manifest)
        self._connection: ExchangeConnection | None = None
        self._calls: RunningCalls | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stopping: asyncio.Event | None = None
        self._wanted: list[WantedTopic] = []
        self._subscribing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Agent({self.agent_id!r}, version={self.version!r})"

    # -- declaring -----------------------------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        side_effects: bool = True,
        requires_directive: bool = False,
        idempotent: bool = False,
        capabilities: Iterable[str] = (),
        tags: Iterable[str] = (),
        permissions: Iterable[str] = (),
        timeout_s: float | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        side_effects: bool = True,
        requires_directive: bool = False,
        idempotent: bool = False,
        capabilities: Iterable[str] = (),
        tags: Iterable[str] = (),
        permissions: Iterable[str] = (),
        timeout_s: float | None = None,
    ) -> Any:
        """Offer a function as a tool, async or plain; plain ones run in threads of their own.

        ``side_effects=False`` promises that a call changes nothing, so that it may be repeated and needs no approval.
        ``idempotent=True`` promises that a call which is sent twice, with the same ``agent.current().key`` or
        ``call_id``, does its work once. Within one process the SDK sees to that; across a crash the function has to.
        ``timeout_s`` is the tool's own limit: what a call may take if its caller does not say, and never more.
        """

        def declare(function: F) -> F:
            if self._connection is not None:
                raise RuntimeError(f"{self.agent_id} is attached already; declare tools before agent.run()")
            tool = make_tool(
                self.agent_id,
                function,
                name=name,
                description=description,
                side_effects=side_effects,
                requires_directive=requires_directive,
                idempotent=idempotent,
                capabilities=capabilities,
                tags=tags,
                permissions=permissions,
                timeout_s=timeout_s,
            )
            tool_id = tool.definition.tool_id
            if any(tool_id.casefold() == known.casefold() for known in self.tools):
                raise ValueError(f"there are two tools called {tool_id}, or names that differ only in case")
            self.tools[tool_id] = tool
            return function

        # ``@agent.tool`` hands over the function itself.
        return declare if function is None else declare(function)

    def on_event(
        self, *topics: str, qos: int = 0, durable: bool = False, timeout_s: float | None = None
    ) -> Callable[[F], F]:
        """Have a function, async or plain, told of events: it is given a ``TopicEvent``, and takes it by returning.

        The agent subscribes to ``topics`` each time it is attached; without any it subscribes by ``subscribe``. A
        handler that raises is told again if both sides asked for a ``qos`` above 0. One agent has one handler.
        """
        if any(callable(topic) for topic in topics):
            raise TypeError("write @agent.on_event(), with its brackets")

        def declare(function: F) -> F:
            text = inspect.getdoc(function) or "Events on topics."
            self.tool(name=EVENT_TOOL, description=text, timeout_s=timeout_s)(event_tool(function))
            self._wanted += [WantedTopic(topic, qos, durable) for topic in topics]
            return function

        return declare

    # -- inside a tool -------------------------------------------------------------------------------------------------

    def progress(self, text: str = "", *, percent: float | None = None) -> None:
        """Show how far a call is."""
        data: dict[str, Any] = {"text": text or ("" if percent is None else f"{percent:g} %")}
        if percent is not None:
            data["percent"] = percent
        self._say("status", data)

    def partial(self, result: Mapping[str, Any]) -> None:
        """Show a part of the result."""
        self._say("partial_result", {"json": result})

    def log(self, text: str) -> None:
        """Show a line of log to whoever called."""
        self._say("log", {"text": text})

    def canceled(self) -> bool:
        """Whether this call should stop; a tool that saw True and returns is canceled. Async ones are interrupted."""
        run = current.get()
        return run is not None and RunningCalls.is_stopping(run)

    def current(self) -> Called | None:
        """The call that is running here: its ``call_id``, ``key``, ``caller``, ``correlation_id``, ``context``, and the
        ``traceparent`` to send on.
        """
        run = current.get()
        return None if run is None else run.called

    def health(self, status: HealthWord, **details: Any) -> None:
        """Say how the agent is: calls stop while it is ``unhealthy``. ``details`` must hold no secret."""
        connection = self._attached()
        encoded = msgspec.json.encode(details) if details else None
        self._on_loop(connection.report, status, encoded)

    # -- calling others ------------------------------------------------------------------------------------------------

    async def call(
        self,
        tool_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        directive: str | None = None,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> dict[str, Any]:
        """Call a tool through the exchange and return its output; ``ToolFailed`` carries why there is none.

        With a ``key`` a repeat is answered with the first outcome, also across a lost connection. Inside a tool the
        call is part of the running one's chain.
        """
        run = current.get()
        own = run.called if run is not None and run.calls is self._calls else None
        body = _encoded_input(tool_id, arguments or {})
        timeout_ms = None if timeout_s is None else max(1, round(timeout_s * 1000))

        def send(session: AgentSession, now: Now) -> str:
            return session.call(
                tool_id,
                body,
                now,
                key=key,
                timeout_ms=timeout_ms,
                correlation_id=None if own is None else own.correlation_id,
                causation_id=directive or (None if own is None else own.call_id),
            )

        def progressed(event: Progressed) -> None:
            assert on_progress is not None
            on_progress(CallProgress(event.channel, msgspec.json.decode(event.data)))

        answer = await self._attached().ask(
            send, keyed=key is not None, progressed=None if on_progress is None else progressed
        )
        assert isinstance(answer, Answered)
        if answer.status is not Status.SUCCEEDED:
            why = answer.fault or fault("tool.failed")
            raise ToolFailed(tool_id, answer.status, why, answer.exchange_call_id)
        output = {} if answer.output is None else msgspec.json.decode(answer.output, type=dict[str, Any])
        reference = reference_in(output)
        return output if reference is None else await whole_output(tool_id, reference, self.call)

    def call_sync(
        self,
        tool_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        directive: str | None = None,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> dict[str, Any]:
        """``call`` for plain functions: waits in their thread, and ends when the running call is asked to stop."""
        if self._loop is None or threading.get_ident() == self._thread:
            raise RuntimeError("call_sync() is for plain functions in a thread; use `await agent.call(…)` here")
        future = asyncio.run_coroutine_threadsafe(
            self.call(tool_id, arguments, key=key, timeout_s=timeout_s, directive=directive, on_progress=on_progress),
            self._loop,
        )
        run = current.get()
        if run is None:
            return future.result()
        run.blocked.add(future)
        try:
            if run.stop is not None:
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise ToolFailed(tool_id, Status.CANCELED, fault("tool.canceled")) from None
        finally:
            run.blocked.discard(future)

    async def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        qos: int = 0,
        expires_s: float | None = None,
        key: str | None = None,
    ) -> str:
        """Tell all who subscribed to a topic; returns the event's id. With ``qos`` above 0 it is on disk by then."""
        asked: dict[str, Any] = {"topic": topic, "payload": payload, "qos": qos}
        if expires_s is not None:
            asked["expires_ms"] = round((time.time() + expires_s) * 1000)
        return str((await self.call(f"{EXCHANGE}/publish", asked, key=key))["event"])

    async def subscribe(self, topic: str, *, qos: int = 0, durable: bool = False) -> str:
        """Be told of events whose topic matches, by the handler of ``on_event``; returns the subscription's id."""
        asked = {"topic": topic, "qos": qos, "durable": durable}
        return str((await self.call(f"{EXCHANGE}/subscribe", asked))["subscription"])

    async def unsubscribe(self, subscription: str) -> None:
        """Hear no more."""
        await self.call(f"{EXCHANGE}/unsubscribe", {"subscription": subscription})

    async def request_directive(self, tool_id: str, arguments: Mapping[str, Any] | None = None, *, reason: str) -> str:
        """Ask a person to state the intent that a ``requires_directive`` tool needs; returns its id for ``call``."""
        body = None if arguments is None else _encoded_input(tool_id, arguments)

        def send(session: AgentSession, now: Now) -> str:
            return session.request_directive(tool_id, body, reason, now)

        answer = await self._attached().ask(send)
        directive_id = answer.directive_id if isinstance(answer, DirectiveAnswered) else None
        if directive_id is None:
            raise ToolFailed(tool_id, Status.FAILED, answer.fault or fault("policy.denied"))
        return directive_id

    # -- being attached ------------------------------------------------------------------------------------------------

    async def serve(
        self, *, socket: str | Path, token: str, home: str | Path | None = None, grace_s: float = GRACE_S
    ) -> bool:
        """Stay attached until ``stop()``; ``NotAdmitted`` when the exchange refuses. False if a tool would not end."""
        if self._connection is not None:
            raise RuntimeError(f"{self.agent_id} is attached already")
        manifest = self._manifest
        identity = Identity(
            agent_id=self.agent_id,
            version=self.version,
            address=str(socket),
            token=Token(token),
            manifest_hash=None if manifest is None else hashlib.sha256(manifest.read_bytes()).hexdigest(),
            sdk_version=trunkline.__version__,
        )
        offers = [tool.offer for tool in self.tools.values()]
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._stopping = asyncio.Event()
        connection = self._connection = ExchangeConnection(identity, offers, None if home is None else Path(home))
        calls = self._calls = connection.calls = RunningCalls(self.tools, connection)
        connection.when_ready = self._subscribe_wanted
        connection_task = asyncio.create_task(connection.run())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({connection_task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if len(calls) and connection.ready.is_set():
                # The exchange sends nothing more, and what is under way may end.
                connection.report("unhealthy", b'{"reason":"stopping"}')
            ended = await calls.drain(grace_s)
            connection.close()
            # An exchange that does not read keeps a socket from closing in order.
            await asyncio.wait({connection_task}, timeout=CLOSE_S)
            if connection_task.done():
                await connection_task
        finally:
            for task in (stopping, connection_task, *self._subscribing):
                task.cancel()
            calls.abandon()
            self._connection = self._calls = self._loop = self._stopping = None
        return ended

    @contextlib.contextmanager
    def joined_to(self, connection: ExchangeConnection) -> Iterator[RunningCalls]:
        """Run calls that come by this connection, inside the block; ``trunkline.testing`` has one without a socket."""
        if self._connection is not None:
            raise RuntimeError(f"{self.agent_id} is attached already")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._connection = connection
        calls = self._calls = connection.calls = RunningCalls(self.tools, connection)
        try:
            yield calls
        finally:
            calls.abandon()
            self._connection = self._calls = self._loop = None

    def stop(self) -> None:
        """End ``serve`` after the running calls; from any thread."""
        if self._stopping is not None:
            self._on_loop(self._stopping.set)

    @contextlib.asynccontextmanager
    async def connected(
        self, *, socket: str | Path, token: str, home: str | Path | None = None, grace_s: float = GRACE_S
    ) -> AsyncIterator[Agent]:
        """``async with agent.connected(…)``: attached, tools registered, inside the block."""
        serving = asyncio.create_task(self.serve(socket=socket, token=token, home=home, grace_s=grace_s))
        # One turn, so that serve() has made the connection.
        await asyncio.sleep(0)
        waiting = None if self._connection is None else asyncio.create_task(self._connection.ready.wait())
        try:
            await asyncio.wait({serving, waiting} if waiting else {serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
                raise ExchangeUnreachable(f"{self.agent_id} was stopped before the exchange answered")
            yield self
        finally:
            if waiting is not None:
                waiting.cancel()
            self.stop()
            await serving

    def run(self, *, grace_s: float = GRACE_S) -> None:
        """Serve until SIGTERM or SIGINT, with what the exchange put into the environment; the last line of an agent."""
        from trunkline.sdk.launch import run

        run(self, grace_s)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _subscribe_wanted(self) -> None:
        """The tools are registered: subscribe, also after a connection was lost."""
        assert self._loop is not None
        for wanted in self._wanted:
            task = self._loop.create_task(self._subscribe_to(wanted))
            self._subscribing.add(task)
            task.add_done_callback(self._subscribing.discard)

    async def _subscribe_to(self, wanted: WantedTopic) -> None:
        try:
            await self.subscribe(wanted.topic, qos=wanted.qos, durable=wanted.durable)
        except (ToolFailed, ExchangeUnreachable) as error:
            log.error("%s is not subscribed to %s: %s", self.agent_id, wanted.topic, error)  # noqa: TRY400

    def _say(self, channel: Channel, data: Mapping[str, Any]) -> None:
        run = current.get()
        if run is not None:
            run.calls.say(run, channel, json_form.encode(data))

    def _attached(self) -> ExchangeConnection:
        if self._connection is None:
            raise ExchangeUnreachable(
                f"{self.agent_id} is not attached; this works inside run(), serve() or connected()"
            )
        return self._connection

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)


def connect(
    agent_id: str | None = None,
    *,
    socket: str | Path | None = None,
    token: str | None = None,
    home: str | Path | None = None,
) -> contextlib.AbstractAsyncContextManager[Agent]:
    """For a program that only calls: ``async with trunkline.connect() as caller: await caller.call(tool_id, {…})``.

    What is not given comes from ``OPENSENTIENCE_AGENT_ID``, ``OPENSENTIENCE_SESSION_TOKEN``, and
    ``OPENSENTIENCE_SOCKET`` or the exchange that runs in ``home``. ``trunkline token new opensentience --agent ID``
    makes a token.
    """
    from trunkline.sdk.launch import find_socket, take_token

    agent_id = agent_id or os.environ.get("OPENSENTIENCE_AGENT_ID")
    token = token or take_token()
    if not agent_id or not token:
        missing = "an agent id (OPENSENTIENCE_AGENT_ID)" if not agent_id else "a token (OPENSENTIENCE_SESSION_TOKEN)"
        raise ExchangeUnreachable(f"{missing} is needed; `trunkline token new opensentience --agent ID` makes a token")
    return Agent(agent_id).connected(socket=socket or find_socket(home), token=token)


def _encoded_input(tool_id: str, arguments: Mapping[str, Any]) -> bytes:
    body = json_form.encode(arguments)
    strictjson.check(body, max_depth=MAX_INPUT_DEPTH, want_object=True)
    if len(body) > MAX_INPUT_BYTES:
        too_large = fault(
            "tool.invalid_input", f"the input has {len(body)} bytes, above the limit of {MAX_INPUT_BYTES}"
        )
        raise ToolFailed(tool_id, Status.FAILED, too_large)
    return body
