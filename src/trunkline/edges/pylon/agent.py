"""The agent ``pylon.codex``: what a page may have done with codex, as tools, so that policy and record hold for it.

Owns which workspaces there are, and the way from a call to one of them. Does not own a workspace's process
(``workspace``), nor the clients (``serve``). Only clients of this bridge can use the tools: a call by anybody else, or
for a connection that is gone, fails. ``connect`` asks a person by default; what a client that was let in requests and
answers is allowed by a built-in rule (decision 87).

Invariant: a call reaches only a workspace that the client named in it has connected.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from trunkline.edges.edge import Surroundings
from trunkline.edges.pylon import translate
from trunkline.edges.pylon.workspace import Workspace, not_connected
from trunkline.edges.resident import Resident
from trunkline.effects import Cancel, Deliver
from trunkline.events import CancelAcknowledged
from trunkline.model import Fault, Now, Principal, Status, ToolDefinition, fault

if TYPE_CHECKING:
    from trunkline.edges.pylon.client import Client

# Each is a process of some 100 MB.
MAX_WORKSPACES: Final = 16
INSTALL: Final = "codex is not installed: `npm install -g @openai/codex`, or say in [pylon] codex where it is"
OFF: Final = "codex is turned off: [pylon] codex is []"
STALE: Final = "this is for clients of the Pylon bridge, while they are connected"


class CodexAgent(Resident):
    """The agent, and all workspaces. ``find_client`` knows the connections that are open."""

    def __init__(self, given: Surroundings, find_client: Callable[[str], Client | None]) -> None:
        super().__init__(given.feed, translate.EDGE, translate.AGENT, given.version, given.process, given.entropy)
        self.feed = given.feed
        self.version = given.version
        self.command = given.config.pylon.codex
        self.principal = Principal(f"{translate.EDGE}:{given.config.pylon.app_key}")
        self.start_piped = given.start_piped
        self._find_client = find_client
        self._workspaces: dict[tuple[str, str], Workspace] = {}
        # Calls that were delivered in this conversation and are not finished.
        self._open: set[str] = set()
        # Those whose process has been told to end, until it has.
        self._leaving: set[Workspace] = set()
        self._on_quiet: Callable[[], None] | None = None

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What it offers."""
        return translate.definitions()

    # -- what can be said before anybody is asked ----------------------------------------------------------------------

    def trouble(self) -> tuple[str, str] | None:
        """Why no workspace can be connected, as a status and a detail; None if one can."""
        if not self.command:
            return translate.DISABLED, OFF
        if shutil.which(self.command[0]) is None:
            return translate.UNAVAILABLE, INSTALL
        return None

    def figures(self) -> Mapping[str, bool]:
        """For ``pylon.capabilities``."""
        return {"enabled": bool(self.command), "available": self.trouble() is None}

    @property
    def count(self) -> int:
        """How many workspaces there are."""
        return len(self._workspaces)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver, now: Now) -> None:  # noqa: ARG002  (no clock is needed)
        """Carry out a call."""
        self._open.add(effect.call_id)
        problem = self._done(effect) if effect.caller == self.principal.identity else fault("not_allowed", STALE)
        if problem is not None:
            self.finish(effect.call_id, Status.FAILED, problem)

    def finish(
        self,
        call_id: str,
        status: Status,
        fault: Fault | None = None,
        *,
        output: Raw | None = None,
        metrics: Raw | None = None,
    ) -> None:
        """A call ended; one of an earlier conversation the hub has settled."""
        if call_id in self._open:
            self._open.discard(call_id)
            super().finish(call_id, status, fault, output=output, metrics=metrics)

    def arrive(self) -> None:
        """Come in."""
        self._open.clear()
        super().arrive()

    def cancel(self, effect: Cancel, now: Now) -> None:  # noqa: ARG002
        """What codex was asked cannot be taken back."""
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=False)])

    def _done(self, call: Deliver) -> Fault | None:
        """Carry it out, or say why not. What is not finished here, the workspace finishes."""
        match call.tool_id:
            case translate.CONNECT:
                return self._connect(call)
            case translate.REQUEST:
                request = translate.read_input(translate.RequestInput, call.input)
                workspace = None if request is None else self._of_client(request.client, request.workspace_id)
                if request is None or workspace is None:
                    return not_connected()
                workspace.request(call.call_id, request.method, request.params)
                return None
            case translate.RESPOND:
                answer = translate.read_input(translate.RespondInput, call.input)
                workspace = None if answer is None else self._of_client(answer.client, answer.workspace_id)
                if answer is None or workspace is None:
                    return not_connected()
                return self._decided(call, is_first=workspace.respond(answer.question, answer.result))
            case _:
                asked = translate.read_input(translate.ApproveInput, call.input)
                workspace = None if asked is None else self._workspaces.get((asked.workspace_id, asked.cwd))
                if asked is None or workspace is None:
                    return not_connected()
                return self._decided(call, is_first=workspace.decide(asked.question, approved=True))

    def _decided(self, call: Deliver, *, is_first: bool) -> Fault | None:
        if not is_first:
            return fault("state.conflict", "codex does not wait for this answer any more")
        self.finish(call.call_id, Status.SUCCEEDED)
        return None

    def _connect(self, call: Deliver) -> Fault | None:
        wanted = translate.read_input(translate.ConnectInput, call.input)
        if wanted is None or self._find_client(wanted.client) is None:
            return fault("state.conflict", STALE)
        if (trouble := self.trouble()) is not None:
            return fault("tool.unavailable", trouble[1], details={"status": trouble[0]})
        key = wanted.workspace_id, wanted.cwd
        workspace = self._workspaces.get(key)
        if workspace is not None:
            workspace.join(call.call_id, wanted.client)
            return None
        if len(self._workspaces) + len(self._leaving) >= MAX_WORKSPACES:
            text = f"{MAX_WORKSPACES} workspaces are connected; disconnect one"
            return fault("limit.resource", text, details={"status": translate.FAILED})
        workspace = self._workspaces[key] = Workspace(self, *key, self._entropy(8).hex())
        workspace.join(call.call_id, wanted.client)
        workspace.start()
        return None

    def _of_client(self, client_id: str, workspace_id: str) -> Workspace | None:
        client = self._find_client(client_id)
        return None if client is None else client.workspaces.get(workspace_id)

    # -- clients -------------------------------------------------------------------------------------------------------

    def admit(self, client: Client, workspace_id: str, cwd: str) -> Workspace | None:
        """A client's ``connect`` succeeded: it is told what happens there from now on."""
        workspace = self._workspaces.get((workspace_id, cwd))
        return workspace if workspace is not None and workspace.attach(client) else None

    def client_left(self, client_id: str) -> None:
        """A connection is gone, with everything it had connected."""
        for workspace in list(self._workspaces.values()):
            workspace.detach(client_id)

    # -- workspaces that end -------------------------------------------------------------------------------------------

    def leaving(self, workspace: Workspace) -> None:
        """It is being ended; another one may have its name."""
        if self._workspaces.get(workspace.key) is workspace:
            del self._workspaces[workspace.key]
        self._leaving.add(workspace)

    def over(self, workspace: Workspace) -> None:
        """Nothing of it is left."""
        self.leaving(workspace)
        self._leaving.discard(workspace)
        if self._on_quiet is not None and not self._leaving:
            self._on_quiet()

    def stop(self, on_quiet: Callable[[], None]) -> None:
        """End all; ``on_quiet`` is called when nothing is left."""
        self._on_quiet = on_quiet
        for workspace in list(self._workspaces.values()):
            workspace.stop("the exchange is stopping")
        if not self._leaving:
            on_quiet()

    def abort(self) -> None:
        """A defect ended its conversation, and with it its calls: codex would go on with what nobody waits for."""
        for workspace in list(self._workspaces.values()):
            workspace.stop("a defect of the exchange ended it; it is on record")
        super().abort()
