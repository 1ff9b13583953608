"""The conversation with one server: era and version, its list of tools, requests and what comes of them; sans-IO.

Owns the ids of our requests, what is open, and what is answered to a server that asks for something. Does not own how
messages travel (``piped``, ``remote``), nor calls and agents (``mount``).

Which era a server speaks shows when it is asked ``server/discover``: one that answers with a version that we know is
spoken with statelessly, any other is asked to shake hands (``initialize``). Then its tools are read, page by page, and
it is ``Ready``. When it says that they changed they are read again, one reading at a time.

Invariant: nothing that a server says raises. Each request that was handed in with a ``ref`` is answered once, or is
among those that ``end`` returns. What a server can make grow is bounded: pages, tools, bytes of their list.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.edges import mcp_words
from trunkline.edges.framing import json_rpc
from trunkline.edges.mounts import messages
from trunkline.edges.mounts.messages import Message, encode

# As many as an agent may have; a page that brings no tool counts as one.
MAX_TOOLS: Final = 1_000
MAX_PAGES: Final = 100
# Schemas that could be taken have 64 KiB each; a list that is longer than this is not looked at.
MAX_LIST_BYTES: Final = 16_777_216
# Of what a server says of its versions.
MAX_SHOWN_CHARS: Final = 200
# What a server may ask of us in vain.
REFUSED: Final = {
    "sampling/createMessage": "Trunkline has no model: a mounted server cannot ask for a completion",
    "elicitation/create": "nobody is asked for input by a mounted server; a call has all its input when it is made",
    "roots/list": "a mounted server is shown no folders but those that its configuration names",
}


class Outgoing(Struct, frozen=True):
    """A message of ours on its way. ``number`` is set for a request, ``name`` is what a header repeats of it."""

    body: bytes
    method: str
    number: int | None = None
    name: str = ""
    version: str = ""
    # Arguments that headers repeat, where messages travel with headers.
    headers: Mapping[str, str] = {}


class Ready(Struct, frozen=True):
    """It can be spoken with, and these are its tools, each as it was written."""

    tools: tuple[Raw, ...]
    has_resources: bool
    has_prompts: bool


class ToolsListed(Struct, frozen=True):
    """Its tools have changed."""

    tools: tuple[Raw, ...]


class ToolsChanged(Struct, frozen=True):
    """It says that they have; ``relist`` reads them."""


class Answered(Struct, frozen=True):
    """What came of a request: a result, or an error, or neither if it is known to be lost."""

    ref: str
    result: Raw | None = None
    error: messages.Error | None = None


class Progressed(Struct, frozen=True):
    """A running request shows something."""

    ref: str
    data: Raw


class Pong(Struct, frozen=True):
    """It answered a ping."""


class Broken(Struct, frozen=True):
    """It cannot be spoken with; why, in words for a person."""

    reason: str


Said = Ready | ToolsListed | ToolsChanged | Answered | Progressed | Pong | Broken

# Our own requests that are known by another name than their method.
_PING: Final = "ping"
_LISTEN: Final = "listen"


class _Open(Struct):
    method: str
    # Whose request it is; empty: our own.
    ref: str = ""


class Session:
    """Our side. ``take_output`` are the messages to be sent, in order."""

    def __init__(self, version: str) -> None:
        """``version`` is that of the exchange, by which it introduces itself."""
        self._client = {"name": "trunkline", "title": "Trunkline", "version": version}
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._output: list[Outgoing] = []
        # The protocol's version that was agreed on; empty before.
        self.version = ""
        # The server's own, as it says; empty if it does not.
        self.server_version = ""
        self._meta = b""
        self._capabilities: dict[str, Any] = {}
        self._is_ready = False
        self.is_broken = False
        # The list that is being read: tools so far, pages, bytes.
        self._listing: list[Raw] | None = None
        self._pages = self._listed_bytes = 0
        self._has_changed = False

    @property
    def is_stateless(self) -> bool:
        """Whether it is spoken with without a handshake."""
        return self.version == mcp_words.MODERN_VERSION

    @property
    def tells_changes(self) -> bool:
        """Whether it says when its tools change."""
        tools = self._capabilities.get("tools")
        return isinstance(tools, dict) and tools.get("listChanged") is True

    # -- to the server -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask which era it speaks."""
        meta = self._stateless_meta()
        self._send(messages.DISCOVER, encode({"_meta": meta}), version=mcp_words.MODERN_VERSION)

    def request(
        self, ref: str, method: str, params: bytes, *, name: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Ask for something; ``Answered`` with this ``ref`` follows. ``params`` is the inside of an object."""
        number = next(self._ids)
        token = b'"progressToken":%d' % number
        meta = b'"_meta":{%b}' % (self._meta + b"," + token if self._meta else token)
        body = b"{%b}" % (params + b"," + meta if params else meta)
        self._open[number] = _Open(method, ref)
        made = json_rpc.request(number, method, body)
        self._output.append(Outgoing(made, method, number, name, self.version, headers or {}))

    def cancel(self, ref: str, reason: str) -> int | None:
        """Say that nobody waits for this any more; its number, if it is open. It may be answered all the same."""
        number = next((number for number, one in self._open.items() if one.ref == ref), None)
        if number is not None:
            params = {"requestId": number, "reason": reason}
            self._output.append(
                Outgoing(
                    json_rpc.notification(messages.CANCELLED, params), messages.CANCELLED, number, "", self.version
                )
            )
        return number

    def ping(self) -> None:
        """See whether it is there; ``Pong`` follows."""
        if not any(one.ref == "" and one.method == _PING for one in self._open.values()):
            # Without a handshake there is no ping: it says again what it can do.
            self._send(messages.DISCOVER if self.is_stateless else messages.PING, self._own_params(), own=_PING)

    def relist(self) -> None:
        """Read its tools again, unless they are being read."""
        if self._listing is None and self._is_ready:
            self._list_first()

    def is_open(self, number: int) -> bool:
        """Whether this request has no answer yet."""
        return number in self._open

    def forget(self, ref: str) -> None:
        """Nobody wants this answer any more, and it is not waited for."""
        self._open = {number: one for number, one in self._open.items() if one.ref != ref or not ref}

    def take_output(self) -> list[Outgoing]:
        """What to send now."""
        output, self._output = self._output, []
        return output

    def end(self) -> list[str]:
        """It is gone: the requests that get no answer."""
        lost = [one.ref for one in self._open.values() if one.ref]
        self._open.clear()
        self.is_broken = True
        return lost

    def lost(self, number: int) -> list[Said]:
        """One request gets no answer, though the server may be there: its connection broke."""
        one = self._open.pop(number, None)
        if one is None:
            return []
        if one.ref:
            return [Answered(one.ref)]
        if one.method == _LISTEN:
            return []
        return [self._break(f"it did not answer {one.method}")]

    def _stateless_meta(self) -> dict[str, object]:
        return {
            mcp_words.VERSION_KEY: mcp_words.MODERN_VERSION,
            mcp_words.CLIENT_INFO_KEY: self._client,
            mcp_words.CLIENT_CAPABILITIES_KEY: {},
        }

    def _own_params(self, inside: bytes = b"") -> bytes:
        meta = b'"_meta":{%b}' % self._meta if self._meta else b""
        return b"{%b}" % b",".join(filter(None, (inside, meta)))

    def _send(self, method: str, params: bytes, *, own: str = "", version: str = "") -> None:
        number = next(self._ids)
        self._put(number, _Open(own or method), json_rpc.request(number, method, params), "", method, version)

    def _put(self, number: int, one: _Open, body: bytes, name: str = "", method: str = "", version: str = "") -> None:
        self._open[number] = one
        self._output.append(Outgoing(body, method or one.method, number, name, version or self.version))

    def _say(self, body: bytes, method: str) -> None:
        self._output.append(Outgoing(body, method, None, "", self.version))

    # -- from the server -----------------------------------------------------------------------------------------------

    def hear(self, data: bytes) -> list[Said]:
        """One message of its."""
        if self.is_broken or not data.strip():
            return []
        message = messages.read(data)
        if message is None:
            return []
        if message.method is None:
            return self._answered(message)
        if message.id is not None:
            self._asked(message.id, message.method)
            return []
        return self._told(message.method, message.params)

    def _asked(self, request_id: str | int, method: str) -> None:
        if method == messages.PING:
            self._say(json_rpc.result(request_id, b"{}"), "")
            return
        text = REFUSED.get(method, "Trunkline does not know this method")
        self._say(json_rpc.error(request_id, json_rpc.METHOD_NOT_FOUND, text), "")

    def _told(self, method: str, params: Raw) -> list[Said]:
        if method == messages.TOOLS_CHANGED:
            if self._listing is None and self._is_ready:
                return [ToolsChanged()]
            # What is being read may be the old list.
            self._has_changed = True
            return []
        if method == messages.PROGRESS:
            progress = messages.part(messages.Progress, params)
            number = None if progress is None else progress.progress_token
            one = self._open.get(number) if isinstance(number, int) else None
            if one is not None and one.ref:
                return [Progressed(one.ref, Raw(encode(_shown(progress))))]
        # What it logs is its own affair: its stderr has a log.
        return []

    def _answered(self, message: Message) -> list[Said]:
        number = message.id
        one = self._open.pop(number, None) if isinstance(number, int) and message.is_answer else None
        if one is None:
            return []
        error = None
        if bytes(message.error):
            error = messages.part(messages.Error, message.error) or messages.Error(0, "an error without words")
        if one.ref:
            return [Answered(one.ref, None if error else message.result.copy(), error)]
        match one.method:
            case messages.DISCOVER:
                return self._discovered(message, error)
            case messages.INITIALIZE:
                return self._initialized(message, error)
            case messages.LIST_TOOLS:
                return self._listed(message, error)
            case "ping":  # ``_PING``
                # An error is an answer, too: somebody is there.
                return [Pong()]
            case _:
                return []

    # -- which era -----------------------------------------------------------------------------------------------------

    def _discovered(self, message: Message, error: messages.Error | None) -> list[Said]:
        if error is not None and error.code == mcp_words.UNSUPPORTED_VERSION:
            known = error.data.get("supported") if isinstance(error.data, dict) else None
            if isinstance(known, list) and not any(version in mcp_words.HANDSHAKE_VERSIONS for version in known):
                return [
                    self._break(
                        f"it speaks {', '.join(map(str, known))[:MAX_SHOWN_CHARS]}, and no version that we know"
                    )
                ]
        found = None if error is not None else messages.part(messages.Discovered, message.result)
        if found is None or mcp_words.MODERN_VERSION not in found.supported_versions:
            params = {
                "protocolVersion": mcp_words.HANDSHAKE_VERSIONS[0],
                "capabilities": {},
                "clientInfo": self._client,
            }
            self._send(messages.INITIALIZE, encode(params))
            return []
        self.version = mcp_words.MODERN_VERSION
        self._meta = encode(self._stateless_meta())[1:-1]
        self._introduced(found.meta.get(mcp_words.SERVER_INFO_KEY) if isinstance(found.meta, dict) else None)
        self._agreed(found.capabilities)
        return self._list_first()

    def _initialized(self, message: Message, error: messages.Error | None) -> list[Said]:
        if error is not None:
            return [self._break(f"it refused to be initialized: error {error.code}")]
        found = messages.part(messages.Initialized, message.result)
        if found is None:
            return [self._break("its answer to initialize cannot be read")]
        if found.protocol_version not in mcp_words.HANDSHAKE_VERSIONS:
            return [self._break(f"it speaks {found.protocol_version[:MAX_SHOWN_CHARS]}, which we do not")]
        self.version = found.protocol_version
        self._introduced(found.server_info)
        self._agreed(found.capabilities)
        self._say(json_rpc.notification(messages.INITIALIZED), messages.INITIALIZED)
        return self._list_first()

    def _introduced(self, info: object) -> None:
        version = info.get("version") if isinstance(info, dict) else None
        if isinstance(version, str) and version.isprintable():
            self.server_version = version[:MAX_SHOWN_CHARS]

    def _agreed(self, capabilities: dict[str, Any]) -> None:
        self._capabilities = capabilities
        if self.is_stateless and self.tells_changes:
            inside = b'"notifications":{"toolsListChanged":true}'
            self._send(messages.LISTEN, self._own_params(inside), own=_LISTEN)

    # -- its tools -----------------------------------------------------------------------------------------------------

    def _list_first(self) -> list[Said]:
        self._listing, self._pages, self._listed_bytes, self._has_changed = [], 0, 0, False
        if "tools" not in self._capabilities:
            # One that has none is not asked: it would say that it knows no such method.
            return self._list_done()
        self._send(messages.LIST_TOOLS, self._own_params())
        return []

    def _listed(self, message: Message, error: messages.Error | None) -> list[Said]:
        page = None if error is not None else messages.part(messages.ToolList, message.result)
        assert self._listing is not None
        if page is None:
            return self._list_failed("cannot be read" if error is None else f"was refused: error {error.code}")
        self._pages += 1
        self._listed_bytes += len(message.result)
        self._listing += (tool.copy() for tool in page.tools[: MAX_TOOLS + 1 - len(self._listing)])
        if not page.next_cursor:
            return self._list_done()
        if self._pages >= MAX_PAGES or len(self._listing) > MAX_TOOLS or self._listed_bytes > MAX_LIST_BYTES:
            return self._list_failed(f"has more than {MAX_TOOLS} tools, {MAX_PAGES} pages or {MAX_LIST_BYTES} bytes")
        self._send(messages.LIST_TOOLS, self._own_params(b'"cursor":%b' % encode(page.next_cursor)))
        return []

    def _list_failed(self, why: str) -> list[Said]:
        """Without a list it cannot be used; one that it had before stays."""
        self._listing = None
        return [] if self._is_ready else [self._break(f"its list of tools {why}")]

    def _list_done(self) -> list[Said]:
        assert self._listing is not None
        tools, self._listing = tuple(self._listing), None
        changed = [ToolsChanged()] if self._has_changed else []
        if self._is_ready:
            return [ToolsListed(tools), *changed]
        self._is_ready = True
        has = self._capabilities
        return [Ready(tools, "resources" in has, "prompts" in has), *changed]

    def _break(self, reason: str) -> Broken:
        self.is_broken = True
        return Broken(reason)


def _shown(progress: messages.Progress) -> dict[str, object]:
    """What a server shows, as all agents show it: a text, and how much of the whole is done where that is known."""
    done, total = progress.progress, progress.total
    percent = None
    if done is not None and total is not None and 0 <= done <= total and total > 0:
        percent = round(100 * done / total, 2)
    text = progress.message
    if text is None and done is not None:
        text = f"{done:g}" if total is None else f"{done:g} of {total:g}"
    return {"text": text or ""} | ({} if percent is None else {"percent": percent})
