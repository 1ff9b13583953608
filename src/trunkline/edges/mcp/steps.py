"""What a message of an MCP client means: which method, in which era of the protocol, with which parameters.

Sans-IO: a message in, a step out. Owns the methods and the rules of both eras. Does not own connections (``serve``),
calls on their way (``calls``) or what is read (``resources``).

Invariant: each request leads to one step that answers it, or to ``BadMessage``.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.edges import mcp_words
from trunkline.edges.framing.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND
from trunkline.edges.mcp import messages
from trunkline.edges.mcp.messages import URL_VERSION, VERSIONS, BadMessage, Message
from trunkline.edges.mcp.translate import Wording
from trunkline.edges.mcp_words import HANDSHAKE_VERSIONS
from trunkline.model import Principal

# What a client names: a tool, a version, a cursor, an address, of which that of a file in a space is the longest.
MAX_NAMED_CHARS: Final = 2048
# Of a version that we do not know, so much is said back.
MAX_SHOWN_CHARS: Final = 64
# The id of a call.
MAX_STATE_CHARS: Final = 256

INSTRUCTIONS: Final = (
    "Tools of all agents of this exchange, under the rules of the person who runs it. A call that needs a person's "
    "approval says so and where; made again after the approval, with the same arguments, it gets the outcome."
)
CAPABILITIES: Final = {"tools": {"listChanged": True}, "resources": {}}


class Client(Struct, frozen=True):
    """Who sent a message, and what was agreed on with him."""

    principal: Principal
    version: str
    wording: Wording
    # Whether he can be asked to open an address.
    opens_urls: bool = False
    # Empty where there is none.
    session_id: str = ""

    @property
    def is_modern(self) -> bool:
        """Whether each of his requests stands for itself."""
        return self.wording.is_modern


# --- steps ------------------------------------------------------------------------------------------------------------


class Answered(Struct, frozen=True):
    """Answer with this result at once."""

    result: bytes


class Begun(Struct, frozen=True):
    """A session begins: answer with this result, and with the session's id."""

    result: bytes
    version: str
    opens_urls: bool


class ListTools(Struct, frozen=True):
    """Show the tools from here on."""

    cursor: str | None


class CallTool(Struct, frozen=True):
    """Call a tool, or go on with a call that waited for a person."""

    name: str
    arguments: Raw
    # The same, read.
    value: Any
    key: str | None
    correlation_id: str | None
    timeout_ms: int | None
    progress_token: int | str | None
    # What an earlier answer to the same call said.
    state: str | None
    # Whether the client's person would not open the address.
    is_declined: bool


class ListResources(Struct, frozen=True):
    """Show what can be read."""

    cursor: str | None


class ReadResource(Struct, frozen=True):
    """Show one resource."""

    uri: str


class Listen(Struct, frozen=True):
    """Tell of changes until the client leaves; only of those it asked for."""

    tools: bool


class Cancel(Struct, frozen=True):
    """A request of the same session is not wanted any more."""

    request_id: int | str


class Nothing(Struct, frozen=True):
    """There is nothing to do and nothing to say."""


NOTHING: Final = Nothing()
Step = Answered | Begun | ListTools | CallTool | ListResources | ReadResource | Listen | Cancel | Nothing

TEMPLATES: Final = (
    {
        "uriTemplate": "trunkline://trajectories/{correlation_id}",
        "name": "trajectory",
        "title": "A trajectory",
        "description": "What happened under one correlation id of yours, as REPLAY.jsonl.",
        "mimeType": "application/jsonl",
    },
    {
        "uriTemplate": "trunkline://spaces/{space}/{+path}",
        "name": "file",
        "title": "A file of a space",
        "description": "Read by a call of the space's tool read_file: under the rules, and on record.",
        "mimeType": "text/plain",
    },
)


def step_of(message: Message, data: bytes, client: Client) -> Step:
    """What is to be done about a message. ``data`` are its bytes."""
    try:
        if not message.is_request:
            return _notified(message, client)
        if client.is_modern:
            return _modern(message, data, client)
        return _handshake(message, data, client)
    except BadMessage as bad:
        if bad.request_id is None:
            bad.request_id = message.request_id
        raise


def _notified(message: Message, client: Client) -> Step:
    if message.method != "notifications/cancelled" or client.is_modern:
        return NOTHING
    found = message.params.get("requestId")
    is_id = isinstance(found, int | str) and not isinstance(found, bool)
    return Cancel(found) if is_id else NOTHING  # type: ignore[arg-type]


def _handshake(message: Message, data: bytes, client: Client) -> Step:
    match message.method:
        case "":
            return NOTHING  # an answer, and we ask nothing
        case "initialize":
            return _initialize(message, client.wording)
        case "ping":
            return Answered(b"{}")
        case _:
            return _shared(message, data, client)


def _modern(message: Message, data: bytes, client: Client) -> Step:
    match message.method:
        case "server/discover":
            shape: dict[str, Any] = {
                "supportedVersions": list(VERSIONS),
                "capabilities": CAPABILITIES,
                "instructions": INSTRUCTIONS,
            }
            return Answered(client.wording.cacheable(shape))
        case "subscriptions/listen":
            if not isinstance(message.params.get("notifications"), dict):
                raise BadMessage(INVALID_PARAMS, "notifications: expected an object")
            return Listen(message.params["notifications"].get("toolsListChanged") is True)
        case _:
            return _shared(message, data, client)


def _shared(message: Message, data: bytes, client: Client) -> Step:
    """What both eras have."""
    match message.method:
        case "tools/call":
            return _call(message, data)
        case "tools/list":
            return ListTools(_cursor(message))
        case "resources/list":
            return ListResources(_cursor(message))
        case "resources/templates/list":
            return Answered(client.wording.cacheable({"resourceTemplates": list(TEMPLATES)}))
        case "resources/read":
            return ReadResource(messages.text_of(message.params, "uri", MAX_NAMED_CHARS))
        case _:
            raise BadMessage(METHOD_NOT_FOUND, "no such method here")


def _initialize(message: Message, wording: Wording) -> Begun:
    asked = messages.text_of(message.params, "protocolVersion", MAX_NAMED_CHARS)
    version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
    capabilities = messages.object_of(message.params, "capabilities")
    shape = {
        "protocolVersion": version,
        "capabilities": CAPABILITIES,
        "serverInfo": wording.server_info,
        "instructions": INSTRUCTIONS,
    }
    return Begun(wording.result(shape), version, version >= URL_VERSION and messages.opens_urls(capabilities))


def _call(message: Message, data: bytes) -> CallTool:
    value = messages.object_of(message.params, "arguments")
    responses = messages.object_of(message.params, "inputResponses")
    said = responses.get("approval")
    state, meta = message.params.get("requestState"), message.meta
    return CallTool(
        messages.text_of(message.params, "name", MAX_NAMED_CHARS),
        messages.arguments_of(data),
        value,
        messages.name_of(meta, messages.IDEMPOTENCY_KEY),
        messages.name_of(meta, messages.CORRELATION_KEY),
        messages.timeout_of(meta),
        messages.progress_token(meta),
        None if state is None else messages.text_of(message.params, "requestState", MAX_STATE_CHARS),
        isinstance(said, dict) and said.get("action") in ("decline", "cancel"),
    )


def _cursor(message: Message) -> str | None:
    if message.params.get("cursor") is None:
        return None
    return messages.text_of(message.params, "cursor", MAX_NAMED_CHARS)


# --- 2026-07-28 -------------------------------------------------------------------------------------------------------


def envelope_problem(message: Message, headers: dict[bytes, list[bytes]] | None) -> BadMessage | None:
    """What is wrong with what a request of 2026-07-28 says about itself, in its order; None if nothing is.

    ``headers`` are those of its HTTP request: they repeat some of it, for whoever routes by them.
    """
    meta = message.params.get("_meta")
    keys = (mcp_words.VERSION_KEY, mcp_words.CLIENT_CAPABILITIES_KEY)
    if not isinstance(meta, dict) or any(meta.get(key) is None for key in keys):
        return BadMessage(INVALID_PARAMS, f"params._meta: expected an object with {' and '.join(keys)}")
    version = meta[mcp_words.VERSION_KEY]
    if headers is not None and (problem := _header_problem(message, version, headers)):
        return BadMessage(messages.HEADER_MISMATCH, problem)
    if not isinstance(version, str):
        return BadMessage(INVALID_PARAMS, f"_meta.{mcp_words.VERSION_KEY}: expected a text")
    if version != mcp_words.MODERN_VERSION:
        data = {"supported": list(VERSIONS), "requested": version[:MAX_SHOWN_CHARS]}
        return BadMessage(mcp_words.UNSUPPORTED_VERSION, "unsupported protocol version", data)
    if not isinstance(meta[mcp_words.CLIENT_CAPABILITIES_KEY], dict):
        return BadMessage(INVALID_PARAMS, f"_meta.{mcp_words.CLIENT_CAPABILITIES_KEY}: expected an object")
    return None


def _header_problem(message: Message, version: object, headers: dict[bytes, list[bytes]]) -> str:
    wanted: list[tuple[bytes, object]] = [(b"mcp-protocol-version", version), (b"mcp-method", message.method)]
    name = message.params.get(mcp_words.NAMED_BY.get(message.method, ""))
    if name is not None:
        wanted.append((b"mcp-name", name))
    for header, value in wanted:
        said = headers.get(header, [])
        if len(said) != 1 or mcp_words.header_text(said[0]) != value:
            return f"the header {header.decode()} has to be there once and say what the body says"
    return ""
