"""``ChiffonAgent``: what the author of a Chiffon agent writes against.

::

    agent = ChiffonAgent("infra-1", "infra")

    @agent.work("run_playbook")
    async def run_playbook(task, playbook: str, extra_vars: dict | None = None) -> str:
        async with task.step("Pull the image", percent=50):
            task.write("pulled")
        return "done"

    agent.run()

Done for the author: registration, a first status at once and one every 10 s, chunks, resources used, the cache of
requests on disk, reconnecting. Owns the declaration and the life of a job; the rules are in ``chiffon_jobs``, the
transports in ``chiffon_connections``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import resource
import stat
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.messages import AGENT_TYPES, ORCHESTRATOR, Envelope, Resources, WorkResult
from trunkline.errors import ConfigError, ToolError, TrunklineError
from trunkline.model import AGENT_ID, TOOL_NAME
from trunkline.sdk.chiffon_cache import RequestCache
from trunkline.sdk.chiffon_connections import HttpConnection, NatsConnection, OrchestratorConnection
from trunkline.sdk.chiffon_jobs import AcceptedJob, AcceptedJobs, JobOutcome, exit_code
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

F = TypeVar("F", bound=Callable[..., Any])

# CH-030; contradiction 5: a third of the time after which an orchestrator takes an agent as hung.
STATUS_S: Final = 10.0
TOKEN_CHARS: Final = 32
# Messages of one job that wait to be sent. Sixteen chunks are 4 MiB.
MAX_UNSENT: Final = 16


class DeclaredWork(Struct, frozen=True):
    """A function declared with ``@agent.work``, and whether it may run again after it was interrupted."""

    function: Callable[..., Any]
    is_repeatable: bool


class ChiffonAgent:
    """An agent that does work for a Chiffon orchestrator.

    ``url`` (``http://…`` or ``nats://…``) and ``token`` come from the arguments, else from ``CHIFFON_URL`` and
    ``CHIFFON_TOKEN``, else from the file ``config`` (TOML with ``url`` and ``token``, readable by its owner only).
    """

    def __init__(
        self,
        agent_id: str,
        agent_type: str,
        *,
        url: str | None = None,
        token: str | None = None,
        config: str | Path | None = None,
        cache: str | Path | None = None,
        memory_mb: int | None = None,
        gpu_vram_mb: int | None = None,
        cpu: float | None = None,
        status_s: float = STATUS_S,
    ) -> None:
        if not AGENT_ID.fullmatch(agent_id):
            raise ValueError(f"{agent_id!r} is no agent id: letters, digits, `.`, `_` and `-`, at most 128")
        if agent_type not in AGENT_TYPES or agent_type == ORCHESTRATOR:
            raise ValueError(f"{agent_type!r} is no agent type: {', '.join(AGENT_TYPES[1:])}")
        self.agent_id = agent_id
        self.agent_type = agent_type
        self._given = (url, token, config)
        self._cache_path = cache
        self._capacity = {"memory_mb": memory_mb, "gpu_vram_mb": gpu_vram_mb, "cpu": cpu}
        self._status_s = status_s
        self._declared: dict[str, DeclaredWork] = {}
        self._connection: OrchestratorConnection | None = None
        self._jobs: AcceptedJobs | None = None
        self._tasks = OwnTasks()
        self._job_ended: dict[str, asyncio.Event] = {}

    def __repr__(self) -> str:
        return f"ChiffonAgent({self.agent_id!r}, {self.agent_type!r})"

    # -- declaring -----------------------------------------------------------------------------------------------------

    def work(self, work_type: str, *, repeatable: bool = False) -> Callable[[F], F]:
        """Offer a function, async or plain, as a work type. It gets the task, and the parameters by name.

        ``repeatable``: may be run again when the agent was killed in the middle of it. Otherwise such a request ends as
        failed, and says that nobody knows how far it came.
        """
        if not TOOL_NAME.fullmatch(work_type):
            raise ValueError(f"{work_type!r} is no name for work: {TOOL_NAME.pattern}")
        if any(work_type != known and work_type.casefold() == known.casefold() for known in self._declared):
            raise ValueError(f"{work_type!r}: another work type has this name but for case")

        def declare(function: F) -> F:
            self._declared[work_type] = DeclaredWork(function, repeatable)
            return function

        return declare

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.serve())

    async def serve(self) -> None:
        """Work until cancelled; ``NotAdmitted`` if the orchestrator does not know the token."""
        url, token = self.settings()
        cache = RequestCache(self._cache_path if self._cache_path is not None else _default_cache(self.agent_id))
        names = {name: declared.is_repeatable for name, declared in self._declared.items()}
        memory = self._capacity["memory_mb"]
        jobs = self._jobs = AcceptedJobs(
            self.agent_type, names, cache, memory_mb=None if memory is None else int(memory)
        )
        by_queue = url.startswith(("nats://", "tls://"))
        if by_queue:

            def admitted(shown: str) -> None:
                jobs.orchestrator_token = shown

            self._connection = NatsConnection(url, token, self._registration(), admitted)
        else:
            self._connection = HttpConnection(url, token, self._registration())

        async def on_message(data: bytes) -> asyncio.Event | None:
            return await self._receive(data, with_token=by_queue)

        try:
            await self._connection.run(on_message)
        finally:
            await self._tasks.stop()
            cache.close()

    def settings(self) -> tuple[str, str]:
        """Where the orchestrator is and how it knows us (CH-099)."""
        url, token, config = self._given
        url, token = url or os.environ.get("CHIFFON_URL"), token or os.environ.get("CHIFFON_TOKEN")
        if config is not None and (url is None or token is None):
            found = _read_config(Path(config))
            url, token = url or found.get("url"), token or found.get("token")
        if not url or not token:
            raise ConfigError("CHIFFON_URL and CHIFFON_TOKEN are not set, and no config file has `url` and `token`")
        if len(token) != TOKEN_CHARS:
            raise ConfigError(f"the token has {len(token)} characters; Chiffon's have {TOKEN_CHARS}")
        return url, token

    def _registration(self) -> dict[str, object]:
        return {
            "agent_id": self.agent_id,
            "agent_type": self.agent_type,
            "supported_versions": list(messages.SUPPORTED_VERSIONS),
            "work_types": sorted(self._declared),
            "capacity": {name: value for name, value in self._capacity.items() if value is not None},
        }

    async def _receive(self, data: bytes, *, with_token: bool) -> asyncio.Event | None:
        assert self._jobs is not None
        replies, job = self._jobs.receive(data, time.time(), with_token=with_token)
        if job is not None:
            request_id = job.envelope.request_id.lower()
            self._job_ended[request_id] = asyncio.Event()
            self._tasks.spawn(self._run(job, replies))
            return self._job_ended[request_id]
        for reply in replies:
            self._tasks.spawn(self._send(reply))
        request_id = replies[0].request_id.lower() if replies else ""
        return self._job_ended.get(request_id)

    async def _send(self, envelope: Envelope) -> None:
        assert self._connection is not None
        await self._connection.send(envelope)

    async def _run(self, job: AcceptedJob, first: list[Envelope]) -> None:
        """One request, from its first status to its result."""
        assert self._jobs is not None
        jobs, reporter = self._jobs, JobReporter(self._send)
        task = Task(jobs, job, reporter)
        status_task = asyncio.get_running_loop().create_task(self._report_status(job, reporter))
        started, used = time.monotonic(), _cpu_ms()
        try:
            await reporter.send(first)
            given: dict[str, Any] = msgspec.json.decode(job.request.parameters)
            try:
                returned = await _call(self._declared[job.request.work_type].function, task, given)
                code, output = 0, task.text if returned is None else str(returned)
            except WorkFailed as failed:
                code, output = exit_code(failed.exit_code) or 1, failed.output or task.text
            except ResourceLimit as limit:
                await reporter.send(jobs.gave_up(job, limit.error, time.time()))
                await reporter.wait_sent()
                return
            except ToolError as failed:
                code, output = 1, f"{task.text}{failed}"
            except Exception as defect:
                # The boundary to the author's code: the text of what it raised may hold a secret.
                log.exception("%s failed", job.request.work_type)
                code, output = 1, f"{task.text}{type(defect).__name__} in the agent"
            resources = Resources(int(time.monotonic() - started), task.gpu_vram_mb, max(0, _cpu_ms() - used))
            result = WorkResult(job.request.task_id, "failed" if code else "success", code, output, resources)
            await reporter.send(jobs.finished(job, JobOutcome(result), time.time()))
            await reporter.wait_sent()
        finally:
            status_task.cancel()
            reporter.stop()
            ended = self._job_ended.pop(job.envelope.request_id.lower(), None)
            if ended is not None:
                ended.set()

    async def _report_status(self, job: AcceptedJob, reporter: JobReporter) -> None:
        """A status every 10 s, whatever the author's code does."""
        assert self._jobs is not None
        while True:
            await asyncio.sleep(self._status_s)
            await reporter.send([self._jobs.status(job, time.time())])


class JobReporter:
    """Sends the messages about one job, in their order, while the author's function goes on."""

    def __init__(self, send: Callable[[Envelope], Awaitable[None]]) -> None:
        self._send = send
        # A full one makes the work wait: chunks of a large output are not all in memory twice.
        self._unsent: asyncio.Queue[Envelope] = asyncio.Queue(MAX_UNSENT)
        self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def send(self, envelopes: list[Envelope]) -> None:
        """Send these, after all that was given before."""
        for envelope in envelopes:
            await self._unsent.put(envelope)

    async def _send_all(self) -> None:
        while True:
            envelope = await self._unsent.get()
            await self._send(envelope)
            self._unsent.task_done()

    async def wait_sent(self) -> None:
        """Until everything has arrived; or, if the orchestrator refuses us, nothing more will."""
        sent = asyncio.ensure_future(self._unsent.join())
        await asyncio.wait({sent, self._sender}, return_when=asyncio.FIRST_COMPLETED)
        sent.cancel()

    def stop(self) -> None:
        """Send nothing more. What ended it early is told by the connection itself."""
        if self._sender.done() and not self._sender.cancelled():
            self._sender.exception()
        self._sender.cancel()


class WorkFailed(TrunklineError):
    """For an author to raise: the work ran and failed. A negative code is a signal's number."""

    def __init__(self, output: str = "", *, exit_code: int = 1) -> None:
        super().__init__(f"exit code {exit_code}")
        self.output = output
        self.exit_code = exit_code


class ResourceLimit(TrunklineError):
    """For an author to raise before anything was done: there is not enough of something; it is tried again."""

    def __init__(self, name: str, available: int, required: int) -> None:
        refused = messages.over_limit(name, available, required)
        super().__init__(refused.error.error_message)
        self.error = refused.error


class Task:
    """What an author's function is given: the ids and hints of its task, and where to say how far it is."""

    def __init__(self, jobs: AcceptedJobs, job: AcceptedJob, reporter: JobReporter) -> None:
        self._jobs = jobs
        self._job = job
        self._reporter = reporter
        self._parts: list[str] = []
        self._step_parts: list[str] = []
        self.task_id = job.request.task_id
        self.trace_id = job.envelope.trace_id
        self.hints = job.request.hints
        # Set it if a GPU was used.
        self.gpu_vram_mb = 0

    @property
    def text(self) -> str:
        """Everything that was written so far."""
        return "".join(self._parts)

    def progress(self, percent: int) -> None:
        """How far it is, 0 to 100; said with the next status."""
        self._job.percent = max(0, min(100, percent))

    def write(self, text: str) -> None:
        """Add to the output of this step."""
        self._parts.append(text)
        self._step_parts.append(text)

    def pause(self, *, paused: bool = True) -> None:
        """It waits for something and is not hung; said with the next status."""
        self._job.is_paused = paused

    @contextlib.asynccontextmanager
    async def step(self, name: str, *, percent: int | None = None) -> AsyncIterator[Task]:
        """A step; at its end its output is sent, and ``percent`` is reached. A long name is cut."""
        self._job.step += 1
        self._job.step_name = name[: messages.MAX_STEP_NAME_CHARS]
        self._step_parts = []
        try:
            yield self
            if percent is not None:
                self.progress(percent)
        finally:
            output, self._step_parts = "".join(self._step_parts), []
            await self._reporter.send(self._jobs.step_completed(self._job, output, time.time()))


async def _call(function: Callable[..., Any], task: Task, given: dict[str, Any]) -> Any:
    try:
        inspect.signature(function).bind(task, **given)
    except TypeError as error:
        raise WorkFailed(f"the parameters do not fit: {error}", exit_code=2) from None
    if inspect.iscoroutinefunction(function):
        return await function(task, **given)
    context = contextvars.copy_context()
    return await asyncio.to_thread(context.run, lambda: function(task, **given))


def _read_config(path: Path) -> dict[str, str]:
    """Silent about its content in every error: it holds the token (CH-098, CH-100)."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"others can read it, and it holds a token; chmod 600 {path}", str(path))
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    except tomllib.TOMLDecodeError:
        raise ConfigError("is not TOML", str(path)) from None
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _default_cache(agent_id: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "chiffon" / f"{agent_id}.sqlite"


def _cpu_ms() -> int:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime) * 1000)
