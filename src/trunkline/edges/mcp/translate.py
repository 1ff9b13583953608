"""What the exchange says in the words of MCP: outcomes of calls, questions to a person, progress.

Owns the form of results and of what stands beside them. Bodies of tools stay the bytes they arrived as; those of
mounted MCP servers have the protocol's own form already and are given back as they are.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import hints
from trunkline.edges.mcp.catalogue import Listed
from trunkline.edges.mcp.messages import encode
from trunkline.edges.mcp_words import SERVER_INFO_KEY
from trunkline.effects import Answer, Progress, Wait
from trunkline.model import MOUNT_PREFIX, Fault, LargeOutput, Status, fault
from trunkline.shown import CallView

EDGE: Final = "mcp"
CALL_ID: Final = "trunkline/call_id"
CORRELATION_ID: Final = "trunkline/correlation_id"
FAULT: Final = "trunkline/fault"
APPROVAL_ID: Final = "trunkline/approval_id"
BLOB_URI: Final = "trunkline://blobs/sha256:"
# The name of the one thing that a client is asked for.
APPROVAL: Final = "approval"


class Outcome(Struct, frozen=True):
    """How a call ended, from whichever place it was learned."""

    call_id: str
    status: Status
    output: Raw | None = None
    fault: Fault | None = None
    large: LargeOutput | None = None
    correlation_id: str | None = None


class Asked(Struct, frozen=True):
    """A call that waits for a person."""

    call_id: str
    approval_id: str


class _MountOutput(Struct, omit_defaults=True):
    """The output of a tool of a mounted MCP server."""

    content: list[Raw]
    structured: Raw = msgspec.field(name="structuredContent", default=Raw(b""))
    is_error: bool = msgspec.field(name="isError", default=False)


_read_mounted: Final = msgspec.json.Decoder(_MountOutput).decode


def outcome_of(told: Answer | CallView) -> Outcome:
    """The outcome in an answer, or in a call that was looked up."""
    if isinstance(told, Answer):
        return Outcome(told.call_id, told.status, told.output, told.fault, told.large, told.correlation_id)
    return Outcome(told.call_id, told.status, told.output, told.error, told.large, told.correlation_id)


class Wording:
    """How results of one era look: 2026-07-28 (``is_modern``) says in each what kind it is, and who says it."""

    def __init__(self, version: str, *, is_modern: bool, home: str = "") -> None:
        """``home`` is what commands have to name that a text tells its reader to type."""
        self.is_modern = is_modern
        self._home = home
        self._server = {"name": "trunkline", "title": "Trunkline", "version": version}

    @property
    def server_info(self) -> dict[str, str]:
        """Who we are."""
        return self._server

    def hinted(self, text: str) -> str:
        """A text whose commands can be typed as they stand."""
        return hints.completed(text, self._home)

    def result(self, shape: dict[str, Any], *, kind: str = "complete") -> bytes:
        """A result of any method."""
        if self.is_modern:
            shape["resultType"] = kind
            shape["_meta"] = {**shape.get("_meta", {}), SERVER_INFO_KEY: self._server}
        return encode(shape)

    def cacheable(self, shape: dict[str, Any]) -> bytes:
        """A result that a client of 2026-07-28 may keep; not for long, since tools come and go."""
        if self.is_modern:
            shape |= {"ttlMs": 0, "cacheScope": "private"}
        return self.result(shape)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def outcome(self, found: Outcome, tool: Listed) -> bytes:
        """The result of a call that ended."""
        meta = {}
        if found.call_id:
            # A call without a correlation is its own.
            meta = {CALL_ID: found.call_id, CORRELATION_ID: found.correlation_id or found.call_id}
        if found.status is not Status.SUCCEEDED:
            return self._failed_there(found, meta, tool) or self._failed(found, meta)
        if found.large is not None and not tool.has_output_schema:
            return self._linked(found.large, meta)
        output = Raw(b"null") if found.output is None else found.output
        if tool.tool_id.startswith(MOUNT_PREFIX) and (mounted := _mounted(output)) is not None:
            shape: dict[str, Any] = {"content": mounted.content}
            if len(mounted.structured):
                shape["structuredContent"] = mounted.structured
            if mounted.is_error:
                shape["isError"] = True
            return self.result({**shape, "_meta": meta})
        shape = {"content": [{"type": "text", "text": _text(output)}], "_meta": meta}
        data = bytes(output)
        if data[:1] == b"{" or (self.is_modern and data != b"null"):
            shape["structuredContent"] = output
        return self.result(shape)

    def _failed_there(self, found: Outcome, meta: dict[str, Any], tool: Listed) -> bytes | None:
        """A mounted server's own words for a failure of its tool, if they are there (decision 91)."""
        details = None if found.fault is None else found.fault.details
        if details is None or not tool.tool_id.startswith(MOUNT_PREFIX):
            return None
        mounted = _mounted(Raw(encode(details.get("result"))))
        if mounted is None or not mounted.is_error:
            return None
        shape: dict[str, Any] = {"content": mounted.content, "isError": True, "_meta": meta}
        if len(mounted.structured):
            shape["structuredContent"] = mounted.structured
        return self.result(shape)

    def _failed(self, found: Outcome, meta: dict[str, Any]) -> bytes:
        why = found.fault or fault("tool.failed")
        meta = {**meta, FAULT: why}
        text = f"{why.code}: {why.message}"
        if why.code not in hints.STRANGERS_WORDS:
            text = self.hinted(text)
        if found.status is not Status.FAILED:
            text = f"{found.status.value}: {text}"
        return self.result({"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta})

    def _linked(self, large: LargeOutput, meta: dict[str, Any]) -> bytes:
        uri = f"{BLOB_URI}{large.sha256}"
        link = {"type": "resource_link", "uri": uri, "name": "output", "mimeType": "application/json"}
        text = f"The output has {large.size} bytes; read it as the resource {uri}. It begins with:\n{large.head}"
        content = [{"type": "text", "text": text}, {**link, "size": large.size}]
        return self.result({"content": content, "_meta": meta})

    # -- questions -----------------------------------------------------------------------------------------------------

    def told_to_wait(self, asked: Asked, url: str) -> bytes:
        """For a client that cannot be asked to open an address: what waits and where, in a result."""
        text = (
            f"Not done yet: a person has to approve this call first. Approve it with `trunkline approve "
            f"{asked.approval_id}`, or at {url}. Then make the same call again: it gets the outcome of this one."
        )
        meta = {CALL_ID: asked.call_id, APPROVAL_ID: asked.approval_id}
        content = [{"type": "text", "text": self.hinted(text)}]
        return self.result({"content": content, "isError": True, "_meta": meta})

    def input_required(self, asked: Asked, url: str) -> bytes:
        """2026-07-28: the client opens the address for its person, and asks again with the state."""
        params = {"mode": "url", "message": self._asking(asked), "url": url}
        shape = {
            "inputRequests": {APPROVAL: {"method": "elicitation/create", "params": params}},
            "requestState": asked.call_id,
            "_meta": {CALL_ID: asked.call_id, APPROVAL_ID: asked.approval_id},
        }
        return self.result(shape, kind="input_required")

    def elicitations(self, asked: Asked, url: str) -> dict[str, object]:
        """2025-11-25: what stands in the error that asks for it."""
        one = {"mode": "url", "elicitationId": asked.approval_id, "url": url, "message": self._asking(asked)}
        return {"elicitations": [one]}

    def _asking(self, asked: Asked) -> str:
        return self.hinted(f"A person has to approve this call (`trunkline approve {asked.approval_id}`).")


def asked_of(told: Wait | CallView) -> Asked | None:
    """The question that a call waits for, if it waits for one."""
    return None if told.approval_id is None else Asked(told.call_id, told.approval_id)


def _mounted(output: Raw) -> _MountOutput | None:
    try:
        return _read_mounted(output)
    except msgspec.MsgspecError:
        return None


def _text(output: Raw) -> str:
    """An output for who reads text: a text as it is, anything else as JSON."""
    data = bytes(output)
    return str(msgspec.json.decode(data)) if data[:1] == b'"' else data.decode()


# --- progress ---------------------------------------------------------------------------------------------------------


class _Shown(Struct):
    """What an agent shows of a running call."""

    text: str | None = None
    json: Raw = Raw(b"")
    percent: float | None = None


_read_shown: Final = msgspec.json.Decoder(_Shown).decode


def progress_params(effect: Progress, token: int | str, last: float) -> dict[str, object]:
    """What is told of a piece of progress. The figure always grows, as the protocol wants: by steps, or in percent."""
    try:
        shown = _read_shown(effect.data)
    except msgspec.MsgspecError:
        shown = _Shown()
    params: dict[str, object] = {"progressToken": token, "progress": last + 1}
    if shown.percent is not None and last < shown.percent <= 100:
        params |= {"progress": shown.percent, "total": 100}
    message = shown.text if shown.text is not None else bytes(shown.json).decode("utf-8", "replace")
    if message:
        params["message"] = message
    return params
