"""Between OSSA and the exchange: which call a message is, and which message an outcome is.

Owns the column of OSSA's ten codes beside our faults (decision 65), the names under which actions are
tools, and the form of the values that pass. Pure: it knows no conversation and no key.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.edges.ossa import messages, reading
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    FORBIDDEN,
    INSUFFICIENT,
    INTERNAL_ERROR,
    NOT_FOUND,
    RATE_LIMITED,
    TIMEOUT,
    UNAUTHORIZED,
    UNAVAILABLE,
    ErrorInfo,
    Identity,
    Message,
    Refused,
)
from trunkline.edges.ossa.messages import ERROR as ERROR_TYPE
from trunkline.model import AGENT_ID, EMPTY_OBJECT, TOOL_NAME, Fault, RetryPolicy, ToolDefinition, fault, stamp, uuid_4

EDGE: Final = "ossa"
# The exchange itself, as a recipient and as a sender.
EXCHANGE: Final = "trunkline"
US: Final = Identity(EXCHANGE, "orchestrator")
PUBLISH, SUBSCRIBE, UNSUBSCRIBE = (f"{EXCHANGE}/{name}" for name in ("publish", "subscribe", "unsubscribe"))
REGISTER: Final = "register"
OWN_ACTIONS: Final = {"subscribe": SUBSCRIBE, "unsubscribe": UNSUBSCRIBE, "publish": PUBLISH}
# Decision 64: three attempts in all, after 0, 1 and 2 s.
RETRY: Final = RetryPolicy((0.0, 1.0, 2.0))
# A provider that answers with one of these did nothing yet (OSSA-067); replies of ours with them are not kept, since
# what was asked may succeed later (silent point 17).
RETRYABLE: Final = frozenset({UNAVAILABLE, TIMEOUT, RATE_LIMITED})
# A payload is two levels deep in its message, and one more where it is wrapped.
MAX_WRAPPED_DEPTH: Final = messages.MAX_DEPTH - 3
# Of our identities an OSSA agent is shown the id; what has no type of its own is an integrator.
OTHER_TYPE: Final = "integrator"

CODE_OF: Final[Mapping[str, int]] = {
    "tool.not_found": NOT_FOUND,
    "tool.unavailable": UNAVAILABLE,
    "tool.suspended": FORBIDDEN,
    "tool.invalid_input": BAD_REQUEST,
    "tool.invalid_output": INTERNAL_ERROR,
    "tool.output_too_large": INTERNAL_ERROR,
    "tool.invalid_tool_id": BAD_REQUEST,
    "tool.name_conflict": BAD_REQUEST,
    "tool.schema_invalid": BAD_REQUEST,
    "tool.schema_too_large": BAD_REQUEST,
    "tool.failed": INTERNAL_ERROR,
    "tool.timeout": TIMEOUT,
    "tool.canceled": INTERNAL_ERROR,
    "agent.lost": INTERNAL_ERROR,
    "policy.denied": FORBIDDEN,
    "policy.directive_required": FORBIDDEN,
    "approval.expired": FORBIDDEN,
    "chain.refused": FORBIDDEN,
    "idempotency.conflict": BAD_REQUEST,
    "limit.rate": RATE_LIMITED,
    "limit.inflight": RATE_LIMITED,
    "limit.resource": INSUFFICIENT,
    "hub.unavailable": UNAVAILABLE,
    "call.expired": TIMEOUT,
    "message.malformed": BAD_REQUEST,
    "config.invalid": BAD_REQUEST,
    "auth.failed": UNAUTHORIZED,
    "not_found": NOT_FOUND,
    "state.conflict": BAD_REQUEST,
    "not_allowed": FORBIDDEN,
}
# What a provider's code is to us, where it is not simply a failure of the tool.
_FAULT_OF: Final = {
    BAD_REQUEST: "tool.invalid_input",
    TIMEOUT: "tool.timeout",
    RATE_LIMITED: "limit.rate",
    UNAVAILABLE: "tool.unavailable",
    INSUFFICIENT: "limit.resource",
}


class Extras(Struct, frozen=True, omit_defaults=True):
    """What of a message passes through the exchange unread, as the ``context`` of its call or its event."""

    # Fields of the header that mean nothing here (OSSA-098).
    header: dict[str, Raw] = {}
    action: str = ""
    priority: Annotated[int, msgspec.Meta(ge=0, le=messages.LOWEST_PRIORITY)] = messages.DEFAULT_PRIORITY
    sender: dict[str, Any] = {}
    # It came encrypted, and goes on encrypted.
    is_sealed: bool = False
    # When it is not to be delivered any more.
    expires_ms: int | None = None


_extras: Final = msgspec.json.Decoder(dict[str, Extras])


def context_of(message: Message, agent_type: str, *, is_sealed: bool) -> Raw:
    """What is handed on beside the payload; ``agent_type`` is the sender's by his key, whatever he says."""
    sender = messages.written(of_class(message.sender, agent_type))
    extras = Extras(dict(message.others), message.action, message.urgency, sender, is_sealed, message.expires_ms)
    return Raw(msgspec.json.encode({EDGE: extras}))


def of_class(sender: Identity, agent_type: str) -> Identity:
    """An identity with the class that its key was made for, if it was made for one."""
    return msgspec.structs.replace(sender, agent_type=agent_type) if agent_type else sender


def extras_of(context: Raw | None) -> Extras:
    """What an OSSA sender handed on; of anybody else's call there is nothing.

    Callers of other protocols may write a context of their own: what reads as ours still says nothing that the exchange
    says itself.
    """
    if context is None:
        return Extras()
    try:
        found = _extras.decode(context).get(EDGE, Extras())
        if found.sender:
            reading.read_identity(found.sender)
        if found.action:
            reading.text_of(found.action, "body.action")
    except (msgspec.DecodeError, Refused):
        return Extras()
    if found.header.keys() & messages.KNOWN:
        kept = {name: value for name, value in found.header.items() if name not in messages.KNOWN}
        return msgspec.structs.replace(found, header=kept)
    return found


# --- inwards ----------------------------------------------------------------------------------------------------------


def tool_of(recipient: str, action: str, aliases: Mapping[str, str]) -> str:
    """The tool that a message asks for (decision 62); ``Refused`` if no tool can have this name."""
    if recipient != EXCHANGE:
        tool_id = f"{recipient}/{action}"
    else:
        tool_id = aliases.get(action) or OWN_ACTIONS.get(action) or action
    agent_id, _, name = tool_id.partition("/")
    if AGENT_ID.fullmatch(agent_id) is None or TOOL_NAME.fullmatch(name) is None:
        # An action of the exchange that it does not have, or an agent that cannot be.
        if recipient == EXCHANGE:
            known = ", ".join(sorted({"register", *OWN_ACTIONS, *aliases}))
            raise Refused(NOT_FOUND, f"no such action; there are {known}, and every tool as agent/tool")
        raise Refused(NOT_FOUND, "no such agent or action")
    return tool_id


def check_depth(payload: Raw) -> None:
    """``Refused`` if ``input_of`` makes it deeper than what the agent that is asked would read."""
    if bytes(payload).startswith(b"{"):
        return
    try:
        strictjson.check(bytes(payload), max_depth=MAX_WRAPPED_DEPTH)
    except strictjson.NotStrictJson:
        text = f"payload: nested deeper than {MAX_WRAPPED_DEPTH}, and no object; objects may have one level more"
        raise Refused(BAD_REQUEST, text) from None


def input_of(payload: Raw) -> Raw:
    """The input of a call: an object as it is, any other value wrapped (silent point 27)."""
    return payload if bytes(payload).startswith(b"{") else Raw(b'{"value":%b}' % bytes(payload))


def fault_of(error: ErrorInfo) -> Fault:
    """Why a provider's work failed, in our words."""
    code = _FAULT_OF.get(error.code, "tool.failed")
    details: dict[str, object] = {"ossa_code": error.code}
    if error.details is not msgspec.UNSET:
        details["details"] = strictjson.load(bytes(error.details), messages.MAX_DEPTH)
    return fault(code, error.message, retryable=error.code in RETRYABLE, details=details)


def definition_of(agent_id: str, given: object, place: str) -> ToolDefinition:
    """One action of a ``register`` message; ``Refused`` says what is wrong with it."""
    try:
        found = msgspec.convert(given, Action)
    except msgspec.ValidationError:
        text = f"{place}: expected name, description, input_schema, and optionally output_schema, side_effects"
        raise Refused(BAD_REQUEST, text) from None
    if TOOL_NAME.fullmatch(found.name) is None:
        raise Refused(BAD_REQUEST, f"{place}.name: expected {TOOL_NAME.pattern}")
    output = None if found.output_schema is None else Raw(msgspec.json.encode(found.output_schema))
    return ToolDefinition(
        f"{agent_id}/{found.name}",
        found.description,
        Raw(msgspec.json.encode(found.input_schema)),
        output,
        side_effects=found.side_effects,
    )


class Action(Struct, frozen=True):
    """What an agent says of one thing it does (decision 62)."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    side_effects: bool = True


# --- outwards ---------------------------------------------------------------------------------------------------------


def identity_of(caller: str, extras: Extras) -> Identity:
    """How an OSSA agent is shown who asks: what he said of himself if he speaks OSSA, else his id."""
    sender = extras.sender
    agent_id = caller.partition(":")[2] or caller
    if sender.get("agentId") == agent_id:
        return reading.read_identity(sender)
    return Identity(agent_id, OTHER_TYPE)


def error_info(found: Fault, ms: int, trace_id: str | None) -> ErrorInfo:
    """A fault as an OSSA peer is told it."""
    details = dict(found.details or {})
    if found.code == "agent.lost":
        details["outcome"] = "unknown"
    wait_ms = details.pop("retry_after_ms", None)
    code = CODE_OF.get(found.code, INTERNAL_ERROR)
    if code == RATE_LIMITED or isinstance(wait_ms, int):
        details["retryAfterMs"] = wait_ms if isinstance(wait_ms, int) else 1000
    details["fault"] = found.code
    return ErrorInfo(code, found.message, stamp(ms), Raw(msgspec.json.encode(details)), trace_id)


def failed(to: Message, info: ErrorInfo, message_id: str, sender: Identity) -> Message:
    """The error that answers a message, as 9.2 of the specification prints it."""
    return Message(
        message_id,
        ERROR_TYPE,
        sender,
        (to.sender,),
        info.timestamp,
        "error",
        EMPTY_OBJECT,
        info,
        correlation_id=to.correlation,
    )


def derived_id(key: bytes, *parts: str) -> str:
    """A UUID of version 4 that follows from these: what is said again has the same id, also after a restart."""
    mac = hmac.digest(key, "\n".join(("ossa", *parts)).encode(), "sha256")
    return uuid_4(mac[:16])
