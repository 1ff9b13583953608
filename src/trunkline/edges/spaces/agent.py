"""A space as an agent that lives in the exchange: it offers tools, and carries out what is delivered to it.

Owns the way from a delivery to the workspace and back to its outcome. Does not own what a file or a command is
(``trunkline.workspace``), whether it may be (the hub asked ``guard`` before), or whose turn it is (``process``).

Invariant: every delivery that was started has exactly one outcome, also if it is canceled, or if a defect of ours ends
it (which is then on record).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges.answers import Refused
from trunkline.edges.exchange import Feed
from trunkline.edges.resident import Resident
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.messages import DEFAULT_TIMEOUT_MS, validate_operation
from trunkline.edges.spaces.store import Space
from trunkline.effects import Cancel, Deliver
from trunkline.errors import ScriptChanged, WorkspaceError
from trunkline.events import CallProgressed, CancelAcknowledged
from trunkline.model import Decision, Now, ProcessIdentity, Status, ToolDefinition, Verdict, fault
from trunkline.workspace import files, policy
from trunkline.workspace.edits import Edit
from trunkline.workspace.output import Output
from trunkline.workspace.placing import sweep
from trunkline.workspace.sandbox import Sandbox
from trunkline.workspace.snapshots import Skipped, Snapshots

log = logging.getLogger("trunkline")

TYPE_OF: Final = {tool: kind for kind, tool in translate.TOOL_OF.items()}
# Scripts of one command whose hashes are shown: nobody compares more.
MAX_SCRIPTS: Final = 5
# Before these a snapshot is taken, once for each run.
CHANGING: Final = frozenset({"create_file", "edit_file", "delete_file", "shell"})
# What a tool tells, and what is only for the record.
Told = tuple[dict[str, Any], dict[str, Any]]


class SpaceAgent(Resident):
    """One space. ``delivered`` is told of each delivery; whoever was told calls ``start`` when its turn has come."""

    def __init__(
        self,
        feed: Feed,
        space: Space,
        process: ProcessIdentity,
        version: str,
        delivered: Callable[[Deliver], None],
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(feed, translate.EDGE, translate.agent_id(space.name), version, process, entropy)
        self.space = space
        # Where its commands run. Without one there is no shell.
        self.sandbox: Sandbox | None = None
        self.snapshots = Snapshots(space.workspace, space.folder / "snapshots", space.policy.snapshots)
        # Which run a delivery is of; a call that is of none stands for itself.
        self.run_of: Callable[[Deliver], str] = lambda delivery: delivery.call_id
        # With which reasons a person was asked about a delivery; none: nobody was.
        self.shown_before: Callable[[Deliver], list[str]] = lambda _: []
        self._delivered = delivered
        self._kept_for = ""  # the run before which the newest snapshot was taken
        self._moving = asyncio.Event()  # cleared while the space is brought back to where it was
        self._moving.set()
        self._working: set[str] = set()  # calls that are carried out, until their work is done
        self._tasks: dict[str, tuple[asyncio.Task[None], str]] = {}
        # The calls that may have changed something.
        self._begun: set[str] = set()

    def take_settings(self, space: Space) -> None:
        """Other rules and limits, from the next operation on."""
        self.space = space
        self.snapshots.limits = space.policy.snapshots

    def guard(self, tool_id: str, body: Raw) -> Verdict | None:
        """What the space's own rules say; the hub asks before anybody is let through."""
        verdict = translate.guard_verdict(self.space.policy, self.agent_id, tool_id.partition("/")[2], body)
        if verdict is None or verdict.decision is not Decision.ASK:
            return verdict
        return msgspec.structs.replace(verdict, reason=verdict.reason + self._scripts(tool_id, body))

    def judge(self, tool_id: str, body: Raw) -> policy.SpaceVerdict | None:
        """The same in the space's own words."""
        try:
            return translate.judge(self.space.policy, tool_id.partition("/")[2], body)
        except WorkspaceError:
            return None

    def _scripts(self, tool_id: str, body: Raw) -> str:
        """The scripts that a command reads, with their hashes as they are now: what a person says yes to."""
        judged = self.judge(tool_id, body)
        told = ""
        for script in () if judged is None else judged.scripts[:MAX_SCRIPTS]:
            try:
                folder = translate.decode(body, type=dict[str, Any]).get("cwd") or "."
                digest = files.read_file(self.space.workspace, f"{folder}/{script}").sha256
            except WorkspaceError as error:
                told += f"; it reads {script}, of which no hash can be shown ({error.message})"
            else:
                told += f"; it reads {script} (sha256 {digest})"
        return told

    def _check_scripts(self, delivery: Deliver) -> None:
        """What a person said yes to must be what runs."""
        now = self._scripts(delivery.tool_id, delivery.input)
        if not now:
            return
        # Where the rules of the exchange asked, no script was shown.
        shown = [reason for reason in self.shown_before(delivery) if "; it reads " in reason]
        if shown and not any(reason.endswith(now) for reason in shown):
            raise ScriptChanged

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Its tools."""
        return translate.definitions(self.space.name, has_shell=self.sandbox is not None)

    async def detach(self, reason: str) -> None:
        """Go. What still runs is ended, with everything it started."""
        for task, tool in self._tasks.values():
            # A file is written in a moment, and a thread that writes cannot be called back.
            if tool == "shell":
                task.cancel()
        await asyncio.gather(*(task for task, _ in self._tasks.values()), return_exceptions=True)
        self.leave(reason)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """After a start: finish what was being done. If that cannot be, the space is used as it is."""
        try:
            await asyncio.to_thread(sweep, self.space.workspace)
        except WorkspaceError as error:
            log.warning("%s: a file that was on its way cannot be removed: %s", self.agent_id, error.message)
        try:
            await asyncio.to_thread(self.snapshots.recover)
        except WorkspaceError as error:
            log.warning("%s: snapshots cannot be read: %s", self.agent_id, error.message)

    @contextlib.asynccontextmanager
    async def standing_still(self) -> AsyncIterator[None]:
        """Nothing is carried out in the space meanwhile. Refused if something is."""
        if self._working or not self._moving.is_set():
            raise Refused(fault("state.conflict", "something is being done in this space: wait until it has ended"))
        self._moving.clear()
        try:
            async with self.space.workspace.turn:
                yield
        finally:
            self._kept_for = ""
            self._moving.set()

    async def _keep(self, delivery: Deliver, tool: str) -> dict[str, Any]:
        """Take a snapshot before the first change of a run, and before each command that a person was asked about."""
        run = self.run_of(delivery)
        judged = self.judge(delivery.tool_id, delivery.input) if tool == "shell" else None
        if run == self._kept_for and (judged is None or judged.decision is not Decision.ASK):
            return {}
        async with self.space.workspace.turn:
            taken = await asyncio.to_thread(self.snapshots.take, run, self._feed.now().ms)
        self._kept_for = run
        if isinstance(taken, Skipped):
            log.warning("%s: no snapshot before %s: %s", self.agent_id, run, taken.reason)
            return {"snapshotSkipped": taken.reason}
        return {"snapshot": taken.number}

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver, now: Now) -> None:  # noqa: ARG002  (whoever starts it looks at the clock)
        """Something to do, now or later."""
        self._delivered(effect)

    def start(self, delivery: Deliver) -> None:
        """The turn of this delivery has come."""
        tool = delivery.tool_id.partition("/")[2]
        task = asyncio.get_running_loop().create_task(self._carry_out(delivery, tool))
        self._tasks[delivery.call_id] = (task, tool)
        self._working.add(delivery.call_id)
        task.add_done_callback(lambda task: self._ended(delivery.call_id, task))

    def cancel(self, effect: Cancel, now: Now) -> None:  # noqa: ARG002  (it stops as soon as it can)
        """Stop a call; one whose turn has not come never starts."""
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=True)])
        started = self._tasks.get(effect.call_id)
        if started is None:
            self.finish(effect.call_id, Status.CANCELED, fault("tool.canceled"))
        else:
            started[0].cancel()

    def _ended(self, call_id: str, task: asyncio.Task[None]) -> None:
        """What ended in another way than ``_carry_out`` tells."""
        del self._tasks[call_id]
        is_begun = call_id in self._begun
        self._begun.discard(call_id)
        self._working.discard(call_id)
        if task.cancelled():
            self.finish(call_id, Status.CANCELED, fault("tool.canceled"))
        elif (error := task.exception()) is not None:
            self._feed.failed(0, error)
            self._fail(call_id, WorkspaceError("system", translate.DEFECT, in_doubt=is_begun))

    def _fail(self, call_id: str, error: WorkspaceError, path: str = "") -> None:
        """It could not be done; or nobody knows whether it was."""
        status = Status.UNKNOWN if error.in_doubt else Status.FAILED
        self.finish(call_id, status, translate.failure(error, path))

    async def _carry_out(self, delivery: Deliver, tool: str) -> None:
        try:
            try:
                told, recorded = await self._work(delivery, tool)
            finally:
                self._working.discard(delivery.call_id)
            output, metrics = Raw(translate.encode(told)), Raw(translate.encode(recorded))
        except WorkspaceError as error:
            for note in getattr(error, "__notes__", ()):
                log.warning("%s: %s", delivery.tool_id, note)
            self._fail(delivery.call_id, error, translate.path_in(delivery.input))
        else:
            self.finish(delivery.call_id, Status.SUCCEEDED, output=output, metrics=metrics)

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def _work(self, delivery: Deliver, tool: str) -> Told:
        try:
            given = translate.decode(delivery.input, type=dict[str, Any])
        except msgspec.DecodeError:
            raise WorkspaceError("validation", "The input is not an object") from None
        # Not every caller came through a message that was validated.
        read = validate_operation({**given, "type": TYPE_OF[tool]})
        if not read["success"]:
            raise WorkspaceError("validation", read["error"]["message"])
        if translate.TOOLS[tool].side_effects:
            self._begun.add(delivery.call_id)
        return await self.do(delivery, tool, read["data"])

    async def do(self, delivery: Deliver, tool: str, given: dict[str, Any]) -> Told:
        """Do what a valid input says; a simulation does it in its own way."""
        await self._moving.wait()
        kept = await self._keep(delivery, tool) if tool in CHANGING else {}
        if tool == "shell":
            self._check_scripts(delivery)
        told: dict[str, Any] = {}
        recorded: dict[str, Any] = {}
        match tool:
            case "message":
                pass
            case "shell":
                told, recorded = await self._shell(given, delivery.call_id)
            case _:
                told, recorded = await asyncio.to_thread(self._file, tool, given)
        return told, {**recorded, **kept}

    def _file(self, tool: str, given: dict[str, Any]) -> Told:
        """One file operation, in a thread."""
        workspace, path, quota = self.space.workspace, given["path"], self.space.policy.quota
        match tool:
            case "create_file":
                created = files.create_file(workspace, path, _content(given), overwrite=given["overwrite"], quota=quota)
                return {"bytesWritten": created.bytes_written}, {"sha256": created.sha256}
            case "read_file":
                found = files.read_file(workspace, path)
                encoding = given["encoding"]
                content = found.text() if encoding == "utf-8" else base64.b64encode(found.data).decode()
                return {"content": content, "encoding": encoding, "size": found.size}, {"sha256": found.sha256}
            case "edit_file":
                edits = [
                    Edit(edit["oldContent"], edit["newContent"], edit.get("replaceAll", False))
                    for edit in given["edits"]
                ]
                edited = files.edit_file(workspace, path, edits, quota=quota)
                return {"editsApplied": edited.edits_applied}, {"sha256": edited.sha256, "size": edited.size}
            case "delete_file":
                files.delete_file(workspace, path)
        return {}, {}

    async def _shell(self, given: dict[str, Any], call_id: str) -> Told:
        assert self.sandbox is not None
        asked = int(given.get("timeout", DEFAULT_TIMEOUT_MS))
        longest = self.space.policy.shell.max_timeout_ms
        numbers = itertools.count(1)

        def show(channel: str, text: str) -> None:
            data = Raw(translate.encode({"text": text}))
            self._feed.feed([CallProgressed(self.number, call_id, next(numbers), channel, data)])

        ran = await self.sandbox.run(
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
        return told, {
            "stdout": _on_record(ran.stdout),
            "stderr": _on_record(ran.stderr),
            # Beside the output, which lists of calls do not fetch.
            "exit_codes": [ran.exit_code],
        }


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
