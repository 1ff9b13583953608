"""What an MCP client can read besides calling tools: its trajectories, the spaces, and large outputs of its calls.

| address | what |
|---|---|
| ``trunkline://trajectories/{correlation_id}`` | REPLAY.jsonl of the caller's own calls under it |
| ``trunkline://spaces/{space}`` | a space: its state and its tools |
| ``trunkline://spaces/{space}/{path}`` | a file of it, read by a call of its tool ``read_file`` |
| ``trunkline://blobs/sha256:{hash}`` | a large output of a call of the caller |

Owns addresses and what is shown under them. Does not own calls: a file is read by one, under the rules and on record.

Invariant: nobody reads what he could not see otherwise; what he may not see is not there.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.exchange import Views
from trunkline.edges.framing.json_rpc import INTERNAL_ERROR, INVALID_PARAMS
from trunkline.edges.mcp.catalogue import Catalogue, Listed
from trunkline.edges.mcp.messages import RESOURCE_NOT_FOUND, BadMessage, encode
from trunkline.edges.mcp.steps import Client
from trunkline.edges.mcp.translate import BLOB_URI, Outcome
from trunkline.model import Principal, Status

TRAJECTORY_URI: Final = "trunkline://trajectories/"
SPACE_URI: Final = "trunkline://spaces/"
# Spaces are agents of these names, and read files by this tool.
SPACE_PREFIX: Final = "space."
READ_TOOL: Final = "read_file"
# How many of a caller's latest calls are looked through for trajectories to list.
LISTED_CALLS: Final = 100
# A caller's own calls in one trajectory; a larger one is for the operator.
MAX_CALLS: Final = 1000
# What one answer shows of a trajectory.
MAX_TRAJECTORY_BYTES: Final = 8_388_608
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class FileCall(Struct, frozen=True):
    """A file is read by this call."""

    tool: Listed
    arguments: Raw
    value: dict[str, Any]


class _FileOutput(Struct):
    content: str
    encoding: str = "utf-8"


_read_file: Final = msgspec.json.Decoder(_FileOutput).decode


class Resources:
    """What can be read of one exchange."""

    def __init__(self, views: Views, catalogue: Catalogue) -> None:
        self._views = views
        self._catalogue = catalogue

    def listed(self, client: Client) -> bytes:
        """The spaces of a client's view, and its latest trajectories."""
        caller = client.principal.identity
        found = [
            {
                "uri": f"{SPACE_URI}{quote(name)}",
                "name": name,
                "title": f"Space {name}",
                "mimeType": "application/json",
            }
            for name in self._spaces(caller)
        ]
        calls, _ = self._views.calls(LISTED_CALLS, None, None, caller)
        # A call without a correlation is its own.
        latest = {call.correlation_id or call.call_id: call for call in reversed(calls)}
        for correlation_id, call in reversed(latest.items()):
            found.append(
                {
                    "uri": f"{TRAJECTORY_URI}{quote(correlation_id, safe='')}",
                    "name": correlation_id,
                    "title": f"{call.tool_id} at {call.accepted_at}",
                    "mimeType": "application/jsonl",
                }
            )
        return client.wording.cacheable({"resources": found})

    def find(self, uri: str, client: Client) -> bytes | FileCall:
        """What stands under an address; a file has to be called for."""
        caller = client.principal
        if uri.startswith(TRAJECTORY_URI):
            text = self._trajectory(unquote(uri[len(TRAJECTORY_URI) :]), caller)
            return self.contents(client, uri, "application/jsonl", text)
        if uri.startswith(BLOB_URI):
            data = self._blob(uri[len(BLOB_URI) :], caller)
            return self.contents(client, uri, "application/json", data.decode())
        if uri.startswith(SPACE_URI):
            name, slash, path = uri[len(SPACE_URI) :].partition("/")
            if slash:
                return self._file(unquote(name), unquote(path), caller)
            return self.contents(client, uri, "application/json", self._space(unquote(name), caller))
        raise _absent()

    def contents(self, client: Client, uri: str, kind: str, text: str) -> bytes:
        """A resource that is text."""
        return client.wording.cacheable({"contents": [{"uri": uri, "mimeType": kind, "text": text}]})

    def file(self, client: Client, uri: str, found: Outcome) -> bytes:
        """A file that was read by a call."""
        if found.large is not None:
            raise BadMessage(INTERNAL_ERROR, f"the file is large: read {BLOB_URI}{found.large.sha256}")
        if found.status is not Status.SUCCEEDED or found.output is None:
            why = "" if found.fault is None else f": {found.fault.code}: {found.fault.message}"
            raise BadMessage(INTERNAL_ERROR, f"the file was not read{why}")
        return self.contents(client, uri, "text/plain", _read_file(found.output).content)

    # -- spaces --------------------------------------------------------------------------------------------------------

    def _spaces(self, caller: str) -> list[str]:
        """Spaces of which a caller is shown a tool."""
        names = {tool.tool_id.partition("/")[0] for tool in self._catalogue.of(caller).tools}
        return sorted(name.removeprefix(SPACE_PREFIX) for name in names if name.startswith(SPACE_PREFIX))

    def _space(self, name: str, caller: Principal) -> str:
        if name not in self._spaces(caller.identity):
            raise _absent()
        agent_id = f"{SPACE_PREFIX}{name}"
        tools = [tool for tool in self._catalogue.of(caller.identity).tools if tool.tool_id.startswith(f"{agent_id}/")]
        agent = self._views.agent(agent_id)
        shape = {
            "name": name,
            "state": "away" if agent is None else agent.state,
            "tools": [tool.name for tool in tools],
            "files": f"{SPACE_URI}{quote(name)}/{{path}}",
        }
        return encode(shape).decode()

    def _file(self, name: str, path: str, caller: Principal) -> FileCall:
        tool_id = f"{SPACE_PREFIX}{name}/{READ_TOOL}"
        tool = next((tool for tool in self._catalogue.of(caller.identity).tools if tool.tool_id == tool_id), None)
        if tool is None:
            raise _absent()
        value = {"path": path}
        return FileCall(tool, Raw(encode(value)), value)

    # -- trajectories and outputs --------------------------------------------------------------------------------------

    def _trajectory(self, correlation_id: str, caller: Principal) -> str:
        """His part of it: anybody may name a correlation, and others' calls under it are neither his nor in his way."""
        own, before = 0, None
        while own <= MAX_CALLS:
            calls, before = self._views.calls(MAX_CALLS + 1 - own, before, correlation_id, caller.identity)
            own += len(calls)
            if before is None:
                break
        if not 0 < own <= MAX_CALLS:
            raise _absent()
        lines: list[bytes] = []
        size = 0
        for line in self._views.trajectory(correlation_id, caller=caller.identity):
            size += len(line) + 1
            if size > MAX_TRAJECTORY_BYTES:
                raise BadMessage(INVALID_PARAMS, f"the trajectory has more than {MAX_TRAJECTORY_BYTES} bytes")
            lines.append(line)
        return b"".join(line + b"\n" for line in lines).decode()

    def _blob(self, sha256: str, caller: Principal) -> bytes:
        data = self._views.blob(sha256, caller) if _SHA256.fullmatch(sha256) else None
        if data is None:
            raise _absent()
        return data


def _absent() -> BadMessage:
    return BadMessage(RESOURCE_NOT_FOUND, "there is no such resource")
