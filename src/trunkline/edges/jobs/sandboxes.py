"""Sandbox jobs in the exchange: a fresh folder for each, filled with what the job starts from, and gone afterwards.

Owns the folders below ``<home>/jobs`` and the question whether a caller may have what ``repo.source`` names. Does not
own what commands do and may (``trunkline.jobs.sandbox``).

Invariant: a job begins in a folder of its own with a user of its own (as root), and when it has ended, however that
came about, the folder is removed; what a crash left is removed at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges.exchange import Views
from trunkline.effects import Deliver
from trunkline.errors import JobFailed, JobRefused, WorkspaceError
from trunkline.jobs import sandbox as jobs_sandbox
from trunkline.jobs.sandbox import Bounds, Plan, Show
from trunkline.jobs.sources import BlobSource, SpaceSource, UrlSource, copy_space, files_of, put_blob, read_source
from trunkline.model import Behalf, Decision, Principal
from trunkline.workspace.folder import Workspace, erase, files_root
from trunkline.workspace.sandbox import Sandbox, probe, uninterrupted

log = logging.getLogger("trunkline")

FOLDER: Final = "jobs"
# Files of a space that are judged before others have a turn.
AT_ONCE: Final = 200


class Sandboxes:
    """The sandbox jobs of one exchange. ``start`` before the first one."""

    def __init__(self, home: Path, views: Views, bounds: Bounds) -> None:
        self._home = home
        self._folder = home / FOLDER
        self._views = views
        self._bounds = bounds
        self._sandbox: Sandbox | None = None
        # Why there is none.
        self.missing = "no sandbox was looked for"

    async def start(self) -> None:
        """Remove what a crash left, and find out which sandbox holds here."""
        await asyncio.to_thread(self._tidy)
        try:
            self._sandbox = await probe()
            self.missing = ""
        except WorkspaceError as error:
            self.missing = error.message

    def _tidy(self) -> None:
        for left in list(self._folder.iterdir()) if self._folder.is_dir() else ():
            erase(left)

    async def run(self, call: Deliver, inputs: Mapping[str, Any], show: Show) -> dict[str, Any]:
        """The outputs of a job; the inputs are valid and have their defaults."""
        assert self._sandbox is not None
        plan = jobs_sandbox.plan(inputs, self._bounds, self._sandbox)
        source = read_source(inputs["repo"]["source"], _network(inputs)) if inputs.get("repo") else None
        if isinstance(source, SpaceSource):
            self._check_space(call, source)
        root = self._folder / call.call_id
        try:
            with await self._opened(root) as workspace:
                await self._fill(call, source, workspace, plan)
                clone = source.url if isinstance(source, UrlSource) else ""
                return await jobs_sandbox.run(inputs, plan, self._sandbox, workspace, show, clone)
        finally:
            # Also if the job was cancelled, and before anybody hears of that.
            await uninterrupted(asyncio.to_thread(erase, root))

    async def _opened(self, root: Path) -> Workspace:
        try:
            return await asyncio.to_thread(self._create, root)
        except OSError as error:
            log.warning("the folder of a sandbox job could not be made: %s", error.strerror)
            raise JobFailed("a folder for the job could not be made", retryable=True) from None

    def _create(self, root: Path) -> Workspace:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return Workspace.create(root, self._taken())

    def _taken(self) -> set[int]:
        """Users that other jobs and spaces have."""
        places = [*self._folder.iterdir(), *self._home.glob("spaces/*/files")]
        found = set()
        for place in places:
            try:
                found.add(place.lstat().st_uid)
            except FileNotFoundError:
                continue  # another job ended meanwhile
        return found

    async def _fill(
        self, call: Deliver, source: SpaceSource | BlobSource | UrlSource | None, workspace: Workspace, plan: Plan
    ) -> None:
        quota = plan.policy.quota
        try:
            match source:
                case SpaceSource(name):
                    with Workspace.open(files_root(self._home / "spaces" / name)) as space:
                        wanted = await asyncio.to_thread(files_of, space)
                        await self._check_files(call, name, wanted)
                        await asyncio.to_thread(copy_space, space, workspace, plan.mount, quota, wanted)
                case BlobSource(sha256):
                    data = self._views.blob(sha256, Principal(call.caller))
                    if data is None:
                        raise JobRefused("inputs.repo.source: there is no such blob of yours")
                    await asyncio.to_thread(put_blob, data, workspace, plan.mount, quota)
                case _:
                    pass
        except WorkspaceError as error:
            raise JobRefused(f"inputs.repo.source: {error.message}") from None

    def _check_space(self, call: Deliver, source: SpaceSource) -> None:
        """Who may read every file of a space may have all of them; a job is no way around the rules."""
        tool_id = f"space.{source.name}/read_file"
        if self._views.tool(tool_id) is None:
            raise JobRefused("inputs.repo.source: there is no such space")
        verdict = self._views.check(call.caller, tool_id, None, Behalf(call.chain))
        if verdict.decision is not Decision.ALLOW:
            raise JobRefused(f"inputs.repo.source: the rules do not let you read this space ({verdict.rule})")

    async def _check_files(self, call: Deliver, name: str, wanted: frozenset[str]) -> None:
        """Rules may look at the path that is read: each file is one that the caller may read by itself."""
        tool_id, behalf = f"space.{name}/read_file", Behalf(call.chain)
        for place, path in enumerate(sorted(wanted)):
            if place % AT_ONCE == 0:
                await asyncio.sleep(0)
            body = Raw(msgspec.json.encode({"path": path}))
            verdict = self._views.check(call.caller, tool_id, body, behalf)
            if verdict.decision is not Decision.ALLOW:
                text = f"the rules do not let you read every file of this space ({verdict.rule})"
                raise JobRefused(f"inputs.repo.source: {text}")

    def count(self) -> int:
        """How many folders there are."""
        return len(os.listdir(self._folder)) if self._folder.is_dir() else 0  # noqa: PTH208  (a count)


def _network(inputs: Mapping[str, Any]) -> str:
    return str(inputs["sandbox"]["network_policy"])
