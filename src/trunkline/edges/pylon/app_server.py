"""The conversation with one ``codex app-server``: JSON-RPC without ``jsonrpc``, one object a line; sans-IO.

Owns the handshake (``initialize``, ``initialized``), the ids of our requests, and how a yes and a no are said to each
kind of approval. Does not own lines (``framing.lines``), the process (``workspace``), nor who asked for what.

Invariant: nothing that the program says raises. A line that is no message is counted and skipped; one that is too long
means that it speaks something else, and ends the conversation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.edges.framing.lines import MAX_LINE_BYTES, Lines
from trunkline.edges.pusher.frames import encode
from trunkline.edges.pylon.messages import RequestId

INITIALIZE: Final = "initialize"


class Started(Struct, frozen=True):
    """The handshake is done."""


class Notified(Struct, frozen=True):
    """Something happened there; ``message`` is what it said."""

    message: dict[str, Any]


class Asked(Struct, frozen=True):
    """It asks for something, and waits for ``respond`` with this id."""

    request_id: RequestId
    method: str
    params: Any
    message: dict[str, Any]


class Answered(Struct, frozen=True):
    """The answer to a request of ours: a result, or an error."""

    ref: str
    result: Raw | None = None
    error: dict[str, Any] | None = None


class Broken(Struct, frozen=True):
    """It does not speak this protocol."""

    reason: str


Said = Started | Notified | Asked | Answered | Broken


class AppServer:
    """Our side. ``take_output`` is what has to be written to its stdin."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._lines = Lines(MAX_LINE_BYTES)
        self._output = bytearray()
        self._ids = itertools.count(1)
        # Our requests that wait, by their ids.
        self._open: dict[int, str] = {}
        # What the handshake was answered, for a client that wants to shake hands itself.
        self.introduction: Raw | None = None
        self._is_broken = False
        # Lines that were no messages.
        self.skipped = 0
        client = {"name": "trunkline", "title": "Trunkline", "version": version}
        self._write({"id": 0, "method": INITIALIZE, "params": {"clientInfo": client}})

    # -- to the program ------------------------------------------------------------------------------------------------

    def request(self, ref: str, method: str, params: Any) -> None:
        """Ask for something; ``Answered`` with this ``ref`` follows."""
        number = next(self._ids)
        self._open[number] = ref
        self._write({"id": number, "method": method, "params": params})

    def respond(self, request_id: RequestId, result: Any) -> None:
        """Answer what it asked."""
        self._write({"id": request_id, "result": result})

    def take_output(self) -> bytes:
        """What to write now."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def _write(self, message: Mapping[str, object]) -> None:
        self._output += encode(message)
        self._output += b"\n"

    def end(self) -> list[str]:
        """It is gone: the requests that get no answer."""
        lost = list(self._open.values())
        self._open.clear()
        return lost

    # -- from the program ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Said]:
        """Some bytes of its stdout."""
        if self._is_broken:
            return []
        read = (self._read(line) for line in self._lines.receive(data))
        said: list[Said] = [message for message in read if message is not None]
        if self._lines.is_broken:
            self._is_broken = True
            said.append(Broken(self._lines.trouble))
        return said

    def _read(self, line: bytes) -> Said | None:
        if not line.strip():
            return None
        try:
            message = strictjson.load(line, strictjson.CARRIED_DEPTH, strictjson.CARRIED_CONTAINERS)
        except strictjson.NotStrictJson:
            message = None
        found = self._understood(message) if isinstance(message, dict) else None
        if found is None:
            self.skipped += 1
        return found

    def _understood(self, message: dict[str, Any]) -> Said | None:
        method, number = message.get("method"), message.get("id")
        if isinstance(method, str):
            if isinstance(number, str | int) and not isinstance(number, bool):
                return Asked(number, method, message.get("params"), message)
            return Notified(message) if number is None else None
        if not isinstance(number, int) or isinstance(number, bool):
            return None
        error = message.get("error")
        if number == 0 and self.introduction is None:
            return self._introduced(message)
        ref = self._open.pop(number, None)
        if ref is None:
            return None
        if isinstance(error, dict):
            return Answered(ref, error=error)
        return Answered(ref, result=Raw(encode(message.get("result"))))

    def _introduced(self, message: dict[str, Any]) -> Said:
        if isinstance(message.get("error"), dict):
            self._is_broken = True
            return Broken("it refused to be initialized")
        self.introduction = Raw(encode(message.get("result")))
        self._write({"method": "initialized"})
        return Started()


# --- approvals --------------------------------------------------------------------------------------------------------

# How a yes and a no are said to what it asks of a person. The last two are those of older versions, whose plain
# "denied" newer ones spell otherwise: "abort" is the no that both know.
_ANSWERS: Final[dict[str, tuple[object, object]]] = {
    "item/commandExecution/requestApproval": ({"decision": "accept"}, {"decision": "decline"}),
    "item/fileChange/requestApproval": ({"decision": "accept"}, {"decision": "decline"}),
    "execCommandApproval": ({"decision": "approved"}, {"decision": "abort"}),
    "applyPatchApproval": ({"decision": "approved"}, {"decision": "abort"}),
}
_PERMISSIONS: Final = "item/permissions/requestApproval"


def is_approval(method: str) -> bool:
    """Whether this is a question that yes and no answer. Others (a text, a login) only a client can answer."""
    return method in _ANSWERS or method == _PERMISSIONS


def verdict(method: str, params: Any, *, approved: bool) -> object:
    """The answer to such a question."""
    if method == _PERMISSIONS:
        wanted = params.get("permissions") if isinstance(params, dict) else None
        return {"permissions": wanted if approved and isinstance(wanted, dict) else {}, "scope": "turn"}
    return _ANSWERS[method][0 if approved else 1]
