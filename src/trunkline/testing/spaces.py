"""Spaces without files and processes, and people who send operations to them by their HTTP door.

``SimulatedSpaces`` are the real spaces, runs and agents; only what an operation does is replaced: files are texts in
memory, commands are words that take some time, and each effect is told to the witness. ``SpaceUsers`` send messages,
look at runs, answer what they ask, or walk away.

Invariant: what a workspace holds outlives the exchange, as files do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline.edges.doors import Door
from trunkline.edges.edge import Surroundings
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.agent import SpaceAgent, Told
from trunkline.edges.spaces.edge import SpacesEdge
from trunkline.edges.spaces.routes import PREFIXES, SpacesApi
from trunkline.edges.spaces.serve import Spaces
from trunkline.edges.spaces.store import Space, SpacesFolder
from trunkline.effects import Deliver
from trunkline.errors import WorkspaceError
from trunkline.model import Principal
from trunkline.testing.memory import NOWHERE
from trunkline.testing.web import Web, WebAnswer
from trunkline.testing.witness import SpaceRun, Witness
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import make_policy
from trunkline.workspace.sandbox import Sandbox

# How long an operation takes before it has its effect, and from there until its outcome is told.
FILE_S: Final = (0.0, 0.01)
COMMAND_S: Final = (0.0, 4.0)


class SimulatedWorkspace(Struct):
    """The files of one space."""

    name: str
    preset: str
    files: dict[str, str] = {}


class SpacesInMemory(SpacesFolder):
    """The spaces of a simulation, in the place of a folder of them."""

    def __init__(self, workspaces: Sequence[SimulatedWorkspace]) -> None:
        super().__init__(NOWHERE)
        self._workspaces = workspaces

    def load(self) -> list[Space]:
        """All of them."""
        return [
            Space(each.name, each.preset, make_policy(each.preset), Workspace(NOWHERE, -1, 0, 0), NOWHERE)
            for each in self._workspaces
        ]


class SimulatedSpaceAgent(SpaceAgent):
    """A space whose operations have their effects in memory. ``workspace``, ``rng`` and ``witness`` are set after."""

    workspace: SimulatedWorkspace
    rng: Random
    witness: Witness

    async def recover(self) -> None:
        """There is nothing on disk."""

    async def do(self, delivery: Deliver, tool: str, given: dict[str, Any]) -> Told:
        """Do it, some time after it was asked for and some time before it is told."""
        span = COMMAND_S if tool == "shell" else FILE_S
        await asyncio.sleep(self.rng.uniform(*span))
        (definition,) = [each for each in self.definitions() if each.tool_id == delivery.tool_id]
        self.witness.executed(
            self.agent_id, delivery.call_id, definition, delivery.caller, delivery.key, bytes(delivery.input)
        )
        told = self._effect(tool, given)
        await asyncio.sleep(self.rng.uniform(*span))
        return told, {}

    def _effect(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        files, path = self.workspace.files, given.get("path", "")
        match tool:
            case "create_file":
                files[path] = given["content"]
                return {"bytesWritten": len(given["content"].encode())}
            case "shell":
                return {"success": True, "exitCode": 0, "stdout": "done", "stderr": "", "durationMs": 1}
            case "message":
                return {}
        if path not in files:
            raise WorkspaceError("execution", "There is no such file")
        if tool == "delete_file":
            del files[path]
            return {}
        if tool == "edit_file":
            files[path] += given["edits"][0]["newContent"]
            return {"editsApplied": 1}
        return {"content": files[path], "encoding": "utf-8", "size": len(files[path].encode())}


class SimulatedSpaces(Spaces):
    """The real spaces and runs, with such agents."""

    machine: tuple[Sequence[SimulatedWorkspace], Random, Witness]

    def new_agent(self, space: Space) -> SpaceAgent:
        """One that has its effects in memory."""
        workspaces, rng, witness = self.machine
        agent = SimulatedSpaceAgent(self._feed, space, self._process, self._version, self._delivered, self._entropy)
        (agent.workspace,) = [each for each in workspaces if each.name == space.name]
        agent.rng, agent.witness = rng, witness
        return agent

    async def find_sandbox(self) -> Sandbox | None:
        """One that is never asked to run anything."""
        return Sandbox("bubblewrap")


class SimulatedSpacesEdge(SpacesEdge):
    """Agent Spaces as an edge, of these parts."""

    def __init__(
        self, given: Surroundings, workspaces: Sequence[SimulatedWorkspace], rng: Random, witness: Witness
    ) -> None:
        store = SpacesInMemory(workspaces)
        self.spaces = SimulatedSpaces(given.feed, given.views, store, given.process, given.version, given.entropy)
        self.spaces.machine = (workspaces, rng, witness)
        self._door = Door(PREFIXES, SpacesApi(given.feed, given.views, self.spaces, given.stopwatch).app())


class SpaceUsers:
    """Everybody who sends operations to spaces."""

    def __init__(self, web: Web, witness: Witness) -> None:
        self._web = web
        self._witness = witness

    def submit(self, who: Principal, space: str, operations: list[dict[str, Any]], wait_s: int, *, stops: bool) -> None:
        """``POST /v1/spaces/{space}/runs``."""
        message = {"protocolVersion": "1.0", "operations": operations, "stopOnError": stops}
        self._witness.note(who.identity, f"sends {', '.join(each['type'] for each in operations)} to {space}")

        def heard(answer: WebAnswer | None) -> None:
            if answer is not None and answer.status in {200, 202}:
                self._witness.run_taken(SpaceRun(_run_id(answer), who.identity, space, operations))
                self._told(who, answer, 0)

        body = msgspec.json.encode(message)
        self._web.ask("POST", f"/v1/spaces/{space}/runs?wait={wait_s}", heard, body=body, principal=who)

    def look(self, who: Principal, run: SpaceRun, wait_s: int, after: int) -> None:
        """``GET /v1/runs/{id}``."""
        path = f"/v1/runs/{run.run_id}?wait={wait_s}&after={after}"
        self._web.ask("GET", path, self._hears(who, after), principal=who)

    def resume(self, who: Principal, run: SpaceRun, operation_id: str, decision: str) -> None:
        """``POST /v1/runs/{id}/resume``."""
        self._witness.note(who.identity, f"says of {run.run_id}: {operation_id} is {decision}")
        body = msgspec.json.encode({"approval": {"operationId": operation_id, "decision": decision}})
        # From which event on its answer tells is not said: nothing is concluded from it.
        self._web.ask("POST", f"/v1/runs/{run.run_id}/resume?wait=1", lambda _: None, body=body, principal=who)

    def _hears(self, who: Principal, first: int) -> Callable[[WebAnswer | None], None]:
        def heard(answer: WebAnswer | None) -> None:
            if answer is not None and answer.status in {200, 202}:
                self._told(who, answer, first)

        return heard

    def _told(self, who: Principal, answer: WebAnswer, first: int) -> None:
        message = msgspec.json.decode(answer.body)
        is_over = not message.get("more") and message["status"] != "awaiting_approval"
        self._witness.run_told(who.identity, message["runId"], first, message["events"], is_over=is_over)


def _run_id(answer: WebAnswer) -> str:
    found: str = msgspec.json.decode(answer.body)["runId"]
    return found


def operation(kind: str, name: str, number: int) -> dict[str, Any]:
    """One operation of a run, with the id ``name``."""
    path = f"file-{number}.txt"
    match kind:
        case "createFile":
            more: dict[str, Any] = {"path": path, "content": f"text {number}", "overwrite": True}
        case "editFile":
            more = {"path": path, "edits": [{"oldContent": "text", "newContent": "more text"}]}
        case "shell":
            more = {"command": "rm -r build" if number == 0 else f"echo {number}"}
        case "message":
            more = {"content": "going on"}
        case _:
            more = {"path": path}
    return {"type": kind, "id": name, **more}


KINDS: Final = tuple(translate.TOOL_OF)
