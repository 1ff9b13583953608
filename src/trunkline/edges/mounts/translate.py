"""A server's tools as definitions of ours, a call as a request to it, and its answer as an outcome; pure.

Owns the names: a tool whose name is none here gets one that follows from it. What a server has besides tools
(resources, prompts) is reached by tools of ours that only read: ``resources.list``, ``prompts.get`` and their like.
Hints are claims: ``readOnlyHint`` makes a tool one without side effects only if the configuration trusts the server.

Invariant: different names of a server are different names here, and one of them does not depend on the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline import schemas, strictjson
from trunkline.config import McpServer
from trunkline.edges import mcp_words, tool_results
from trunkline.edges.mounts import header_arguments, messages
from trunkline.edges.mounts.header_arguments import Places
from trunkline.edges.mounts.messages import encode
from trunkline.model import TOOL_NAME, Fault, Status, ToolDefinition, fault

# A page; long ones teach a model what it should not learn from a list.
MAX_DESCRIPTION_CHARS: Final = 16_384
MAX_TITLE_CHARS: Final = 256
# What is shown of an error's own words.
MAX_MESSAGE_CHARS: Final = 500
# A failure's result goes along with its fault up to this size.
MAX_DETAIL_BYTES: Final = 65_536
_LONGEST_SHOWN_NAME: Final = 128
# Of what a server asks for before it goes on: the first few, and so much of each.
_SHOWN_CHARS: Final = 40
_SHOWN_METHODS: Final = 4
# Of a name that is none here: so much of it, and a part of its hash.
_KEPT_CHARS: Final = 47
_HASH_CHARS: Final = 16

CANCELABLE: Final = ("cancellation",)
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 8192}
_CURSOR: Final = {"type": "object", "properties": {"cursor": _TEXT}, "additionalProperties": False}
_PROMPT: Final = {"type": "object", "additionalProperties": {"type": "string"}}


class Bound(Struct, frozen=True):
    """What a call of one of our tools asks of the server."""

    method: str
    # The server's own name of the tool; empty: the input is the request's parameters.
    name: str = ""
    side_effects: bool = True
    # Arguments that headers repeat.
    places: Places = ()


class Offer(Struct, frozen=True):
    """A server's tools as they are offered here, and what a call of each leads to, by our name."""

    definitions: tuple[ToolDefinition, ...]
    rejected: tuple[tuple[str, Fault], ...]
    bound: dict[str, Bound]


# Tools of ours for what is no tool there: method, what it is, and its input.
_LISTS: Final[dict[str, tuple[str, str, str, dict[str, Any]]]] = {
    "resources.list": ("resources", "resources/list", "The resources that this server has, page by page.", _CURSOR),
    "resources.templates": (
        "resources",
        "resources/templates/list",
        "Forms of addresses of resources that this server has, page by page.",
        _CURSOR,
    ),
    "resources.read": (
        "resources",
        "resources/read",
        "What a resource of this server holds.",
        {"type": "object", "properties": {"uri": _TEXT}, "required": ["uri"], "additionalProperties": False},
    ),
    "prompts.list": ("prompts", "prompts/list", "The prompts that this server has, page by page.", _CURSOR),
    "prompts.get": (
        "prompts",
        "prompts/get",
        "A prompt of this server, filled in.",
        {
            "type": "object",
            "properties": {"name": _TEXT, "arguments": _PROMPT},
            "required": ["name"],
            "additionalProperties": False,
        },
    ),
}


def local_name(name: str) -> str:
    """What a tool is called here: as there, or if that is no name here, what is left of it and a part of its hash."""
    if TOOL_NAME.fullmatch(name) is not None and name not in _LISTS:
        return name
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "_.-") else "_" for char in name)
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{kept[:_KEPT_CHARS].lstrip('.-') or '_'}_{digest}"


def offer(
    server: McpServer,
    tools: Sequence[Raw],
    *,
    has_resources: bool,
    has_prompts: bool,
    has_headers: bool,
    too_often: Callable[[int], Fault | None],
) -> Offer:
    """What is offered of a server. ``too_often`` counts a tool by its size before it is looked at.

    ``has_headers``: requests to it travel with headers that may repeat arguments.
    """
    definitions: list[ToolDefinition] = []
    rejected: list[tuple[str, Fault]] = []
    bound: dict[str, Bound] = {}
    for raw in tools:
        tool = messages.part(messages.Tool, raw)
        if tool is None or not tool.name:
            rejected.append(("", fault("message.malformed", "a tool of the list cannot be read")))
            continue
        name = local_name(tool.name)
        tool_id = f"{server.agent_id}/{name}"
        read = too_often(len(raw)) or _definition(server, tool, tool_id)
        if name in bound:
            read = fault("tool.name_conflict")
        places: Places | None = ()
        if has_headers and not isinstance(read, Fault):
            places = header_arguments.places(bytes(tool.input_schema))
            if places is None:
                read = fault("tool.schema_invalid", "inputSchema: x-mcp-header stands where no client can follow it")
        if isinstance(read, Fault):
            rejected.append((tool_id[:_LONGEST_SHOWN_NAME], read))
            continue
        definitions.append(read)
        bound[name] = Bound(messages.CALL_TOOL, tool.name, read.side_effects, places or ())
    has = {"resources": has_resources, "prompts": has_prompts}
    # That they only read is a server's claim like any other: each is sent texts of a caller.
    may_act = not server.trust_annotations
    for name, (kind, method, text, schema) in _LISTS.items():
        if has[kind]:
            tool_id = f"{server.agent_id}/{name}"
            definitions.append(
                ToolDefinition(tool_id, text, Raw(encode(schema)), side_effects=may_act, capabilities=CANCELABLE)
            )
            bound[name] = Bound(method, side_effects=may_act)
    return Offer(tuple(definitions), tuple(rejected), bound)


def _definition(server: McpServer, tool: messages.Tool, tool_id: str) -> ToolDefinition | Fault:
    description, title = tool.description or "", tool.title or ""
    tags = _claims(tool.annotations, title)
    if len(description) > MAX_DESCRIPTION_CHARS or sum(map(len, tags)) > MAX_DESCRIPTION_CHARS:
        return fault("message.malformed", f"the description is longer than {MAX_DESCRIPTION_CHARS} characters")
    if schemas.hides_something(description) or any(map(schemas.hides_something, tags)):
        return fault("message.malformed", "the description has invisible or direction-changing characters")
    schema, output = bytes(tool.input_schema), bytes(tool.output_schema)
    output = b"" if output in {b"", b"null"} else _envelope(output)
    for what, text in (("inputSchema", schema), ("outputSchema", output)):
        if text and (problem := schemas.judge(text)) is not None:
            code = "tool.schema_too_large" if len(text) > schemas.MAX_SCHEMA_BYTES else "tool.schema_invalid"
            return fault(code, f"{what}: {problem}")
    return ToolDefinition(
        tool_id,
        description,
        Raw(schema),
        Raw(output) if output else None,
        capabilities=CANCELABLE,
        side_effects=not (server.trust_annotations and "readOnlyHint:true" in tags),
        tags=tags,
    )


def _envelope(schema: bytes) -> bytes:
    """The schema of the whole result; one that cannot be read stays as it is, to be refused as that."""
    if len(schema) > schemas.MAX_SCHEMA_BYTES:
        return schema
    try:
        return encode(tool_results.enveloped(strictjson.load(schema, schemas.MAX_SCHEMA_DEPTH)))
    except strictjson.NotStrictJson:
        return schema


def _claims(annotations: Raw, title: str) -> tuple[str, ...]:
    """What a server says of its tool beside the description: part of its definition, so that a change is seen."""
    said = messages.part(dict[str, Any], annotations) if bytes(annotations) else None
    found = [f"title:{title[:MAX_TITLE_CHARS]}"] if title else []
    if isinstance(said, dict):
        found += [f"{hint}:{str(said[hint]).lower()}" for hint in _HINTS if isinstance(said.get(hint), bool)]
    return tuple(found)


# --- calls ------------------------------------------------------------------------------------------------------------


def parameters(bound: Bound, body: Raw) -> tuple[bytes, str]:
    """What a call asks, as the inside of an object, and what a header repeats of it."""
    if bound.name:
        return b'"name":%b,"arguments":%b' % (encode(bound.name), body), bound.name
    said = messages.part(dict[str, Raw], body) or {}
    said.pop("_meta", None)
    repeated = messages.part(str, said[key]) if (key := mcp_words.NAMED_BY.get(bound.method)) in said else ""
    return encode(said)[1:-1], repeated or ""


class Outcome(Struct, frozen=True):
    """How a call ended."""

    status: Status
    output: Raw | None = None
    fault: Fault | None = None


def outcome(bound: Bound, result: Raw | None, error: messages.Error | None) -> Outcome:
    """What a server's answer means; neither result nor error is an answer that never comes."""
    if error is not None:
        said = {"code": error.code, "message": error.message[:MAX_MESSAGE_CHARS]}
        text = _words(error.message) or f"the server answered with error {error.code}"
        return Outcome(Status.FAILED, fault=fault("tool.failed", text, details={"error": said}))
    if result is None:
        if bound.side_effects:
            return Outcome(Status.UNKNOWN, fault=fault("agent.lost"))
        return Outcome(Status.FAILED, fault=fault("tool.unavailable", "the server did not answer"))
    kind = messages.part(messages.ResultKind, result)
    if kind is None:
        return Outcome(Status.FAILED, fault=fault("tool.invalid_output", "the server's result cannot be read"))
    if kind.result_type != "complete":
        asked = [one.get("method") for one in (kind.input_requests or {}).values() if isinstance(one, dict)]
        wanted = (
            ", ".join(sorted({str(method)[:_SHOWN_CHARS] for method in asked[:_SHOWN_METHODS]}))
            or kind.result_type[:_SHOWN_CHARS]
        )
        text = f"the server asks for more before it goes on ({_words(wanted)}), and a mounted server does not get it"
        return Outcome(Status.FAILED, fault=fault("tool.failed", text))
    if kind.is_error:
        return Outcome(Status.FAILED, fault=_failure(result))
    return Outcome(Status.SUCCEEDED, result)


def _failure(result: Raw) -> Fault:
    """A tool that says itself that it failed: its words, and the whole result for whoever can show it."""
    whole = messages.part(dict[str, Any], result) or {}
    blocks = whole.get("content")
    texts = [block.get("text") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    text = _words(" ".join(text for text in texts if isinstance(text, str)))
    details: dict[str, object] | None = {"result": whole} if len(result) <= MAX_DETAIL_BYTES else None
    return fault("tool.failed", text or "the server says that the tool failed", details=details)


def _words(text: str) -> str:
    """A server's words, as far as they can be shown on one line."""
    return "".join(char if char.isprintable() else " " for char in text[:MAX_MESSAGE_CHARS]).strip()
