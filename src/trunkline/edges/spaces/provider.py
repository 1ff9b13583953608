"""A space as an agent: it attaches, offers its tools, and carries out what is delivered to it.

Owns the way from a delivery to the workspace and back to ``CallFinished``. Does not own what a file or a command is
(``trunkline.workspace``), whether it may be (the hub asked ``guard`` before), or whose turn it is (``process``).

Invariant: every delivery is finished by exactly one ``CallFinished``, unless the space is detached meanwhile: then the
hub says what became of it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.messages import DEFAULT_TIMEOUT_MS, validate_operation
from trunkline.effects import Admit, Cancel, Close, ConfirmTools, Deliver, Refuse, ToSession
from trunkline.errors import WorkspaceError
from trunkline.events import (
    AgentArrived,
    AgentExited,
    AgentLaunched,
    AgentLeft,
    CallFinished,
    CallProgressed,
    CancelAcknowledged,
    ToolsOffered,
)
from trunkline.model import Fault, Now, Peer, ProcessIdentity, Status, Verdict, fault
from trunkline.workspace import files, policy
from trunkline.workspace.edits import Edit
from trunkline.workspace.folder import Workspace
from trunkline.workspace.output import Output
from trunkline.workspace.sandbox import Sandbox

log = logging.getLogger("trunkline")

# The exchange answers as soon as its entry is on disk; a disk that takes longer is broken.
READY_S: Final = 30.0
TYPE_OF: Final = {tool: kind for kind, tool in translate.TOOL_OF.items()}


class Space(Struct, frozen=True):
    """A space as its folder says: its rules and its files."""

    name: str
    preset: str
    policy: policy.Policy
    workspace: Workspace
    folder: Path


class SpaceAgent(BaseSink):
    """One space, attached. ``gate`` is asked when a delivery arrives and starts it by ``start``."""

    def __init__(
        self,
        exchange: Exchange,
        space: Space,
        process: ProcessIdentity,
        version: str,
        *,
        gate: Callable[[Deliver], None],
    ) -> None:
        self._exchange = exchange
        self.space = space
        self._sandbox: Sandbox | None = None
        self._process = process
        self._version = version
        self._gate = gate
        self._session = 0
        self._run_id = secrets.token_hex(8)
        self._ready = asyncio.Event()
        self._waiting: dict[str, Deliver] = {}
        self._tasks: dict[str, tuple[asyncio.Task[None], str]] = {}

    @property
    def agent_id(self) -> str:
        """Who it is to others."""
        return translate.agent_id(self.space.name)

    def guard(self, tool_id: str, body: Raw) -> Verdict | None:
        """What the space's own rules say; the hub asks before anybody is let through."""
        return translate.guard_verdict(self.space.policy, self.agent_id, tool_id.partition("/")[2], body)

    def judge(self, tool_id: str, body: Raw) -> policy.Verdict | None:
        """The same in the space's own words."""
        try:
            return translate.judge(self.space.policy, tool_id.partition("/")[2], body)
        except WorkspaceError:
            return None

    @property
    def has_shell(self) -> bool:
        """Whether commands can be run here."""
        return self._sandbox is not None

    async def attach(self, sandbox: Sandbox | None) -> None:
        """Come in like any other agent, with a token that lives as long as this process, and offer the tools."""
        self._sandbox = sandbox
        self._session = self._exchange.open_session(self)
        digest = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
        peer = Peer(f"process:{self._process.pid}", self._process, self._run_id)
        self._exchange.feed(
            [
                AgentLaunched(self.agent_id, self._run_id, self._process, digest),
                AgentArrived(
                    self._session,
                    "arrive",
                    translate.EDGE,
                    self.agent_id,
                    self._version,
                    digest,
                    peer,
                    # A command has its own timer, and a file takes no time worth one.
                    timeout_s=None,
                    is_resident=True,
                ),
            ]
        )
        async with asyncio.timeout(READY_S):
            await self._ready.wait()

    async def detach(self, reason: str) -> None:
        """Go. What still runs is ended, with everything it started."""
        for task, tool in self._tasks.values():
            # A file is written in a moment, and a thread that writes cannot be called back.
            if tool == "shell":
                task.cancel()
        await asyncio.gather(*(task for task, _ in self._tasks.values()), return_exceptions=True)
        if self._session:
            gone = AgentExited(self.agent_id, self._run_id, exit_code=0, note=reason)
            self._exchange.feed([AgentLeft(self._session, reason), gone])
            self._exchange.close_session(self._session)
            self._session = 0

    # -- the sink ------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  a Sink is told the time; this one needs none
        """The exchange says something to this space."""
        match effect:
            case Deliver():
                self._waiting[effect.call_id] = effect
                self._gate(effect)
            case Cancel():
                self._cancel(effect.call_id)
            case Admit():
                tools = translate.definitions(self.space.name, has_shell=self._sandbox is not None)
                self._exchange.feed([ToolsOffered(self._session, "offer", tools, replace=True)])
            case ConfirmTools():
                for tool_id, problem in effect.rejected:
                    log.error("%s was not taken: %s: %s", tool_id, problem.code, problem.message)
                self._ready.set()
            case Refuse() | Close():
                log.error("the space %s could not be attached", self.space.name)
                self._ready.set()
            case _:
                pass

    # -- carrying out --------------------------------------------------------------------------------------------------

    def start(self, call_id: str) -> None:
        """The turn of this delivery has come."""
        deliver = self._waiting.pop(call_id, None)
        if deliver is not None:
            task = asyncio.get_running_loop().create_task(self._carry_out(deliver))
            self._tasks[call_id] = (task, deliver.tool_id.partition("/")[2])
            task.add_done_callback(lambda _: self._tasks.pop(call_id, None))

    def _cancel(self, call_id: str) -> None:
        self._exchange.feed([CancelAcknowledged(self._session, call_id, accepted=True)])
        if self._waiting.pop(call_id, None) is not None:
            self._finish(call_id, Status.CANCELED, problem=fault("tool.canceled"))
        elif call_id in self._tasks:
            self._tasks[call_id][0].cancel()

    async def _carry_out(self, deliver: Deliver) -> None:
        tool = deliver.tool_id.partition("/")[2]
        try:
            # Not every caller came through a message that was validated.
            read = validate_operation({**translate.decode(deliver.input, type=dict[str, Any]), "type": TYPE_OF[tool]})
            if not read["success"]:
                raise WorkspaceError("validation", read["error"]["message"])
            output: dict[str, Any] = {}
            metrics: dict[str, Any] = {}
            if tool == "shell":
                output, metrics = await self._shell(read["data"], deliver.call_id)
            elif tool != "message":
                output, metrics = await asyncio.to_thread(self._file, tool, read["data"])
        except msgspec.DecodeError:
            problem = WorkspaceError("validation", "The input is not an object")
            self._finish(deliver.call_id, Status.FAILED, problem=translate.failure(problem))
        except WorkspaceError as error:
            for note in getattr(error, "__notes__", ()):
                log.warning("%s: %s", deliver.tool_id, note)
            self._finish(deliver.call_id, Status.FAILED, problem=translate.failure(error))
        except asyncio.CancelledError:
            self._finish(deliver.call_id, Status.CANCELED, problem=fault("tool.canceled"))
            raise
        else:
            self._finish(deliver.call_id, Status.SUCCEEDED, output=output, metrics=metrics)

    def _finish(
        self,
        call_id: str,
        status: Status,
        *,
        output: dict[str, Any] | None = None,
        problem: Fault | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        body = None if output is None else translate.encode(output)
        self._exchange.feed(
            [
                CallFinished(
                    self._session,
                    call_id,
                    status,
                    None if body is None else Raw(body),
                    problem,
                    metrics=None if metrics is None else Raw(translate.encode(metrics)),
                )
            ]
        )

    def _file(self, tool: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """One file operation, in a thread: what it tells, and what is only for the record."""
        workspace, quota = self.space.workspace, self.space.policy.quota
        match tool:
            case "create_file":
                created = files.create_file(
                    workspace, given["path"], _content(given), overwrite=given["overwrite"], quota=quota
                )
                return {"bytesWritten": created.bytes_written}, {"sha256": created.sha256}
            case "read_file":
                found = files.read_file(workspace, given["path"])
                encoding = given["encoding"]
                content = found.text() if encoding == "utf-8" else base64.b64encode(found.data).decode()
                told = {"content": content, "encoding": encoding, "size": found.size}
                return told, {"sha256": found.sha256}
            case "edit_file":
                edits = [
                    Edit(edit["oldContent"], edit["newContent"], edit.get("replaceAll", False))
                    for edit in given["edits"]
                ]
                edited = files.edit_file(workspace, given["path"], edits, quota=quota)
                return {"editsApplied": edited.edits_applied}, {"sha256": edited.sha256, "size": edited.size}
            case "delete_file":
                files.delete_file(workspace, given["path"])
        return {}, {}

    async def _shell(self, given: dict[str, Any], call_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self._sandbox is not None
        asked = int(given.get("timeout", DEFAULT_TIMEOUT_MS))
        longest = self.space.policy.shell.max_timeout_ms
        seq = 0

        def show(channel: str, text: str) -> None:
            nonlocal seq
            seq += 1
            data = Raw(translate.encode({"text": text}))
            self._exchange.feed([CallProgressed(self._session, call_id, seq, channel, data)])

        ran = await self._sandbox.run(
            self.space.workspace,
            given["command"],
            policy=self.space.policy,
            cwd=given.get("cwd"),
            timeout_ms=min(asked, longest),
            env=given.get("env", {}),
            on_output=show,
        )
        told: dict[str, Any] = {
            "success": ran.exit_code == 0 and not ran.timed_out,  # SP-056
            "exitCode": ran.exit_code,
            "stdout": ran.stdout.text,
            "stderr": ran.stderr.text,
            "durationMs": ran.duration_ms,
        }
        if ran.timed_out:
            told["timedOut"] = True
        elif ran.ended_by is not None:
            told["endedBy"] = ran.ended_by
        for name, output in (("stdout", ran.stdout), ("stderr", ran.stderr)):
            if output.truncated:
                told[f"{name}Truncated"] = True
        if asked > longest:
            told["timeoutCappedTo"] = longest
        return told, {"stdout": _on_record(ran.stdout), "stderr": _on_record(ran.stderr)}


def _content(given: dict[str, Any]) -> bytes:
    content: str = given["content"]
    if given["encoding"] == "utf-8":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise WorkspaceError("validation", "content is not valid base64") from None


def _on_record(output: Output) -> dict[str, Any]:
    """The whole of an output, by its size and its hash (decision 39)."""
    return {"bytes": output.size, "sha256": output.sha256}
