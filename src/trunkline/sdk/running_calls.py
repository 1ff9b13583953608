"""The calls that run in this process, from the moment a connection brings them to their one outcome.

Owns tasks and threads, cancellation, time limits, and the cache of results that keeps a call from running twice.
Outlives a connection: a call that is sent again after a reconnect joins the run that is still going on. Does not own
sockets; what is to be said goes to a ``CallReporter``.

Invariant: everything but ``say`` and ``is_stopping`` happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.opensentience.agent_events import Called
from trunkline.errors import ToolError, ToolFailed
from trunkline.model import Channel, Fault, Status, fault
from trunkline.sdk import json_form
from trunkline.sdk.tool import DeclaredTool

# Plain functions run in threads. As many as an exchange sends calls at once, so that none waits for a thread while
# another waits for its answer.
MAX_THREADS: Final = 256
# Results of idempotent tools that are remembered: four times what an exchange may have sent and not seen answered.
REMEMBERED_RESULTS: Final = 1_024
REMEMBERED_BYTES: Final = 16_777_216
# After a stop, how long the cancelled get to end. A tool that needs longer to clean up says so with its own grace.
AFTER_CANCEL_S: Final = 1.0
# An output stands two levels deep in its message.
MAX_OUTPUT_DEPTH: Final = strictjson.MAX_DEPTH - 2

log: Final = logging.getLogger("trunkline.agent")


class CallReporter(Protocol):
    """Where the messages about a call go: the connection that has it open now, if any."""

    def stream(self, call_id: str, channel: Channel, data: bytes) -> None:
        """Show something of a call."""

    def finish(self, call_id: str, outcome: CallOutcome) -> None:
        """Say how it ended."""


class CallOutcome(Struct, frozen=True):
    """How a call ended: its status, and the output or the fault."""

    status: Status
    output: bytes | None = None
    fault: Fault | None = None
    # Whether a reference may stand in the output's place: not where a schema says what the output is.
    may_be_file: bool = False


class ToolRun:
    """One run of a tool. Calls that repeat it, under the same key, wait for this run too: ``call_ids``."""

    __slots__ = ("blocked", "call_ids", "called", "calls", "has_started", "stop", "stop_seen", "task", "timer", "tool")

    def __init__(self, called: Called, tool: DeclaredTool, calls: RunningCalls) -> None:
        self.called = called
        self.tool = tool
        # Where it runs: a process may hold several agents.
        self.calls = calls
        self.has_started = False
        self.call_ids = [called.call_id]
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        # How it will end if it heeds the request to stop.
        self.stop: CallOutcome | None = None
        self.stop_seen = False
        # What plain functions wait for in their threads, to be let go by a stop.
        self.blocked: set[concurrent.futures.Future[Any]] = set()


current: Final[contextvars.ContextVar[ToolRun | None]] = contextvars.ContextVar("trunkline_run", default=None)


class ResultCache:
    """The results of idempotent tools, with which a repeated call is answered; the oldest forgotten first."""

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[str, ...], tuple[bytes, CallOutcome]] = OrderedDict()
        self._bytes = 0

    def recall(self, key: tuple[str, ...]) -> tuple[bytes, CallOutcome] | None:
        """The hash of the input it was for, and the outcome."""
        return self._results.get(key)

    def keep(self, key: tuple[str, ...], digest: bytes, outcome: CallOutcome) -> None:
        """Remember an outcome."""
        self._results[key] = (digest, outcome)
        self._bytes += len(outcome.output or b"")
        while self._bytes > REMEMBERED_BYTES or len(self._results) > REMEMBERED_RESULTS:
            _, (_, oldest) = self._results.popitem(last=False)
            self._bytes -= len(oldest.output or b"")


class RunningCalls:
    """Runs the tools of one agent, and tells its ``CallReporter`` how they go."""

    def __init__(self, tools: Mapping[str, DeclaredTool], reporter: CallReporter) -> None:
        self._tools = tools
        self._reporter = reporter
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._runs: dict[str, ToolRun] = {}
        self._by_key: dict[tuple[str, ...], ToolRun] = {}
        self._memory = ResultCache()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._runs)

    # -- what the connection brings ------------------------------------------------------------------------------------

    def start(self, called: Called) -> None:
        """ToolRun this, or join what already runs or ran."""
        if called.call_id in self._runs:
            return
        tool = self._tools[called.tool_id]
        if tool.is_idempotent and self._joined(called, tool):
            return
        if self._draining:
            unavailable = fault("tool.unavailable", "the agent is stopping")
            self._reporter.finish(called.call_id, CallOutcome(Status.FAILED, fault=unavailable))
            return
        run = ToolRun(called, tool, self)
        self._runs[called.call_id] = run
        if tool.is_idempotent:
            self._by_key[_key(called)] = run
        if tool.timeout_s is not None:  # OS-098: the stricter limit wins
            text = f"the tool did not end within {tool.timeout_s:g} s, its own limit (its `timeout_s`)"
            limit = fault("tool.timeout", text, retryable=not tool.definition.side_effects)
            outcome = CallOutcome(Status.FAILED, fault=limit)
            run.timer = self._loop.call_later(tool.timeout_s, self._stop, run, outcome)
        context = contextvars.copy_context()
        context.run(current.set, run)
        run.task = self._loop.create_task(self._perform(run), context=context)

    def cancel(self, call_id: str) -> None:
        """Ask a call to stop (OS-125)."""
        run = self._runs.get(call_id)
        if run is None:
            return
        canceled = CallOutcome(Status.CANCELED, fault=fault("tool.canceled"))  # OS-123
        if len(run.call_ids) == 1:
            self._stop(run, canceled)
        else:
            # Somebody else waits for the same run.
            run.call_ids.remove(call_id)
            del self._runs[call_id]
            self._reporter.finish(call_id, canceled)

    async def drain(self, grace_s: float) -> bool:
        """Take no more calls; let the running ones end, then cancel them. False if some would not end."""
        self._draining = True
        if self._runs and grace_s > 0:
            await asyncio.wait(self._tasks(), timeout=grace_s)
        self.abandon()
        if self._runs:
            await asyncio.wait(self._tasks(), timeout=AFTER_CANCEL_S)
        return not self._runs

    def abandon(self) -> None:
        """Ask everything to stop and wait for nothing."""
        self._draining = True
        for run in tuple(self._runs.values()):
            self._stop(run, CallOutcome(Status.CANCELED, fault=fault("tool.canceled", "the agent stopped")))
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- what a tool says ----------------------------------------------------------------------------------------------

    def say(self, run: ToolRun, channel: Channel, data: bytes) -> None:
        """Show something of a running call, from its own task or from a thread."""
        if threading.get_ident() == self._thread:
            self._say(run, channel, data)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._say, run, channel, data)

    @staticmethod
    def is_stopping(run: ToolRun) -> bool:
        """Whether a call was asked to stop; one that has seen it and returns has stopped."""
        if run.stop is None:
            return False
        run.stop_seen = True
        return True

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _perform(self, run: ToolRun) -> None:
        tool = run.tool
        run.has_started = True
        try:
            if tool.is_async:
                value = await tool.function(**run.called.arguments)
            else:
                value = await self._in_thread(tool, run.called.arguments)
            outcome = run.stop if run.stop is not None and run.stop_seen else self._success(tool, value)
        except asyncio.CancelledError:
            interrupted = CallOutcome(Status.FAILED, fault=fault("tool.failed", "the tool was interrupted"))
            outcome = run.stop or interrupted
        except ToolError as exc:
            outcome = CallOutcome(Status.FAILED, fault=exc.fault)
        except ToolFailed as exc:
            outcome = run.stop if run.stop and exc.status is Status.CANCELED else _passed_on(exc, tool)
        # The boundary to somebody else's code: whatever it raises is a failed call, never the end of the agent.
        except (Exception, SystemExit) as exc:
            # OS-154: the stack goes to our own log. Its text may quote anything, so only the type travels.
            log.exception("tool %s failed (call %s)", tool.definition.name, run.called.call_id)
            name = type(exc).__name__
            failed = fault("tool.failed", f"the tool raised {name}; its log says more", details={"exception": name})
            outcome = CallOutcome(Status.FAILED, fault=failed)
        self._settle(run, outcome)

    async def _in_thread(self, tool: DeclaredTool, arguments: dict[str, Any]) -> Any:
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(MAX_THREADS, "tool")
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, context.run, _run_plain, tool.function, arguments)

    @staticmethod
    def _success(tool: DeclaredTool, value: object) -> CallOutcome:
        try:
            output = tool.signature.write(value)
            strictjson.check(output, max_depth=MAX_OUTPUT_DEPTH, want_object=True)
        except json_form.NotJson as exc:
            log.error("tool %s returned a number without a JSON form", tool.definition.name)  # noqa: TRY400
            return CallOutcome(Status.FAILED, fault=fault("tool.invalid_output", f"the tool's result: {exc}"))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            log.exception("tool %s returned what has no JSON form", tool.definition.name)
            return CallOutcome(Status.FAILED, fault=fault("tool.invalid_output", "the tool's result has no JSON form"))
        return CallOutcome(Status.SUCCEEDED, output, may_be_file=tool.signature.output_schema is None)

    def _settle(self, run: ToolRun, outcome: CallOutcome) -> None:
        if run.timer is not None:
            run.timer.cancel()
        for call_id in run.call_ids:
            del self._runs[call_id]
        if run.tool.is_idempotent:
            key = _key(run.called)
            del self._by_key[key]
            # A failure that may be tried again is not the answer to the next try.
            if outcome.fault is None or not outcome.fault.retryable:
                self._memory.keep(key, _digest(run.called), outcome)
        for call_id in run.call_ids:
            self._reporter.finish(call_id, outcome)

    def _joined(self, called: Called, tool: DeclaredTool) -> bool:
        key = _key(called)
        running, earlier = self._by_key.get(key), self._memory.recall(key)
        if running is not None:
            first = _digest(running.called)
        elif earlier is not None:
            first = earlier[0]
        else:
            return False
        if first != _digest(called):
            self._reporter.finish(called.call_id, CallOutcome(Status.FAILED, fault=fault("idempotency.conflict")))
        elif running is not None:
            running.call_ids.append(called.call_id)
            self._runs[called.call_id] = running
        elif earlier is not None:
            log.info("call %s of %s is answered from memory", called.call_id, tool.definition.name)
            self._reporter.finish(called.call_id, earlier[1])
        return True

    def _stop(self, run: ToolRun, outcome: CallOutcome) -> None:
        if run.stop is not None:
            return
        run.stop = outcome
        if run.task is not None and (run.tool.is_async or not run.has_started):
            run.task.cancel()
        if not run.has_started:
            # A task that is cancelled before its first step never runs: there is nobody else to say so.
            self._settle(run, outcome)
        for future in tuple(run.blocked):
            future.cancel()

    def _say(self, run: ToolRun, channel: Channel, data: bytes) -> None:
        for call_id in run.call_ids:
            self._reporter.stream(call_id, channel, data)

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {run.task for run in self._runs.values() if run.task is not None}


def _run_plain(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as exc:
        # Python 3.11 cannot hand this one from a thread to a task: the call would wait for ever.
        raise RuntimeError("the tool raised StopIteration") from exc


def _key(called: Called) -> tuple[str, ...]:
    # A key belongs to its caller: two callers may choose the same words.
    caller = "" if called.caller is None else called.caller.id
    return (called.tool_id, caller, "call" if called.key is None else "key", called.key or called.call_id)


def _digest(called: Called) -> bytes:
    return hashlib.sha256(called.input).digest()


def _passed_on(exc: ToolFailed, tool: DeclaredTool) -> CallOutcome:
    """A tool let the failure of a tool that it called pass through."""
    details: dict[str, object] = {"tool_id": exc.tool_id, "code": exc.fault.code}
    text = f"a call of {exc.tool_id} ended with {exc.fault.code}: {exc.fault.message}"
    # What this tool did before the failure would be done twice by a retry.
    retryable = exc.fault.retryable and not tool.definition.side_effects
    return CallOutcome(Status.FAILED, fault=fault("tool.failed", text, retryable=retryable, details=details))
