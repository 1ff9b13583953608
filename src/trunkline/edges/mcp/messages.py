"""The wire of MCP, typed: JSON-RPC messages, the parameters of each method, and the codes of errors.

Owns what a message must look like to be understood at all, in both eras of the protocol: 2025-11-25 and before begin
with ``initialize`` and have sessions; in 2026-07-28 each request says everything in its ``_meta``. Does not own what a
message leads to (``steps``).

Invariant: ``read`` accepts a message or raises ``BadMessage``; a field that is null is the same as one that is not
there (decision 20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.edges.bodies import clip
from trunkline.edges.framing.json_rpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Id
from trunkline.edges.mcp_words import HANDSHAKE_VERSIONS, MODERN_VERSION, UNSUPPORTED_VERSION
from trunkline.model import EMPTY_OBJECT, MAX_INPUT_BYTES

VERSIONS: Final = (MODERN_VERSION, *HANDSHAKE_VERSIONS)
# The first version in which a client can be asked to open an address.
URL_VERSION: Final = "2025-11-25"

# An input of the largest size with its envelope around it.
MAX_MESSAGE_BYTES: Final = MAX_INPUT_BYTES + 65_536
# A request's id comes back in its answer; what clients make up is a number or a UUID.
MAX_ID_CHARS: Final = 256
MAX_KEY_CHARS: Final = 128
# As over HTTP: 30 days.
MAX_TIMEOUT_MS: Final = 2_592_000_000

REQUEST_CANCELLED: Final = -32800
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
URL_ELICITATION_REQUIRED: Final = -32042

# What 2026-07-28 wants an error's HTTP status to be; others are 200.
HTTP_STATUS: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}

IDEMPOTENCY_KEY: Final = "trunkline/idempotency_key"
TIMEOUT_KEY: Final = "trunkline/timeout_ms"
CORRELATION_KEY: Final = "trunkline/correlation_id"

encode: Final = msgspec.json.Encoder().encode
Fields = dict[str, Any]


class BadMessage(ValueError):
    """A message that is not understood, or asks for what is not there: the error that answers it."""

    def __init__(self, code: int, text: str, data: object = None, *, request_id: Id = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.data = data
        self.request_id = request_id


class Message(Struct, frozen=True):
    """One message of a client. ``request_id`` is None in a notification; ``method`` is empty in an answer to us."""

    request_id: Id
    method: str
    params: Fields

    @property
    def is_request(self) -> bool:
        """Whether it is to be answered."""
        return self.request_id is not None

    @property
    def meta(self) -> Fields:
        """What it says about itself."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


def read(data: bytes) -> Message:
    """One message."""
    try:
        value = strictjson.load(data)
    except ValueError as error:
        raise BadMessage(PARSE_ERROR, clip(f"not strict JSON: {error}")) from None
    if not isinstance(value, dict):
        raise BadMessage(INVALID_REQUEST, "expected one message, a JSON object")
    request_id = _id_of(value)
    method, params = value.get("method"), value.get("params")
    if value.get("jsonrpc") != "2.0":
        raise BadMessage(INVALID_REQUEST, 'jsonrpc: expected "2.0"', request_id=request_id)
    if method is None and request_id is not None and ("result" in value or "error" in value):
        return Message(request_id, "", {})
    if not isinstance(method, str) or not method:
        raise BadMessage(INVALID_REQUEST, "method: expected a text", request_id=request_id)
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise BadMessage(INVALID_PARAMS, "params: expected an object", request_id=request_id)
    return Message(request_id, method, params)


def _id_of(value: Fields) -> Id:
    """A request's id; None of a notification."""
    if "id" not in value:
        return None
    found = value["id"]
    is_number = isinstance(found, int) and not isinstance(found, bool)
    if not is_number and not (isinstance(found, str) and len(found) <= MAX_ID_CHARS):
        raise BadMessage(INVALID_REQUEST, f"id: expected an integer or a text of at most {MAX_ID_CHARS} characters")
    return found  # type: ignore[no-any-return]


class _Arguments(Struct):
    arguments: Raw = EMPTY_OBJECT


class _CallEnvelope(Struct):
    params: _Arguments


_call_decoder: Final = msgspec.json.Decoder(_CallEnvelope)


def arguments_of(data: bytes) -> Raw:
    """The arguments of a call, as the bytes they arrived as; ``read`` has accepted the message."""
    found = _call_decoder.decode(data).params.arguments
    return EMPTY_OBJECT if bytes(found) == b"null" else Raw(bytes(found))


# --- fields -----------------------------------------------------------------------------------------------------------


def text_of(fields: Mapping[str, Any], name: str, most: int, *, where: str = "") -> str:
    """A text that has to be there."""
    found = fields.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= most:
        raise BadMessage(INVALID_PARAMS, f"{where}{name}: expected a text of 1 to {most} characters")
    return found


def object_of(fields: Mapping[str, Any], name: str, *, where: str = "") -> Fields:
    """An object, empty if it is not there."""
    found = fields.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadMessage(INVALID_PARAMS, f"{where}{name}: expected an object")
    return found


def progress_token(meta: Mapping[str, Any]) -> int | str | None:
    """By which a request's progress is told, if it wants to be told."""
    found = meta.get("progressToken")
    if found is None:
        return None
    is_number = isinstance(found, int) and not isinstance(found, bool)
    if is_number or (isinstance(found, str) and len(found) <= MAX_ID_CHARS):
        return found  # type: ignore[no-any-return]
    raise BadMessage(INVALID_PARAMS, "_meta.progressToken: expected an integer or a text")


def name_of(meta: Mapping[str, Any], key: str) -> str | None:
    """What its caller calls something of a call, under a key of ours: a repeat, a correlation."""
    if meta.get(key) is None:
        return None
    found = text_of(meta, key, MAX_KEY_CHARS, where="_meta.")
    if not found.isprintable():
        raise BadMessage(INVALID_PARAMS, f"_meta.{key}: expected no control characters")
    return found


def timeout_of(meta: Mapping[str, Any]) -> int | None:
    """How long a call may take, if its caller says."""
    found = meta.get(TIMEOUT_KEY)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MAX_TIMEOUT_MS:
        raise BadMessage(INVALID_PARAMS, f"_meta.{TIMEOUT_KEY}: expected a number of milliseconds")
    return found


def opens_urls(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client can be asked to open an address."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, dict) and isinstance(elicitation.get("url"), dict)
