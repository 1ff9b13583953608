"""JSON-RPC 2.0 as it is written: requests, notifications, results and errors, each as the bytes of one message; pure.

Owns the envelope and the codes of its errors. Does not own reading: how strict a side is with its peer is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

Id = int | str | None

_encode: Final = msgspec.json.Encoder().encode


def request(number: int, method: str, params: bytes | msgspec.Raw) -> bytes:
    """Something that is answered. ``params`` are JSON already: an input is not read to be sent on."""
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (number, _encode(method), params)


def notification(method: str, params: Mapping[str, object] | None = None) -> bytes:
    """Something that is not."""
    said: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    return _encode({**said, "params": params} if params else said)


def result(request_id: Id, value: bytes) -> bytes:
    """An answer; ``value`` is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(request_id), value)


def error(request_id: Id, code: int, text: str, data: object = None) -> bytes:
    """A refusal."""
    said: dict[str, object] = {"code": code, "message": text}
    if data is not None:
        said["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": said})
