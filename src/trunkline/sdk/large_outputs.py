"""Large outputs of calls: what an answer looks like that stands for one, and how all of it is put together.

Above 1 MiB an exchange answers with a reference (decision 8), and gives the output piece by piece to whoever made the
call. Does not own how a call is made (``agent``).

Invariant: what is put together has the size and the hash that the reference names, or it is a ``ToolFailed``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline.errors import ToolFailed
from trunkline.model import EXCHANGE, MAX_OUTPUT_BYTES, Status, fault

READ_OUTPUT: Final = f"{EXCHANGE}/read_output"
_REFERENCE: Final = re.compile(r"sha256:[0-9a-f]{64}")

CallTool = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Reference(Struct, frozen=True):
    """What stands for a large output."""

    ref: str
    size: int


def reference_in(output: Mapping[str, Any]) -> Reference | None:
    """The reference that an output is, if it is one."""
    ref, size = output.get("$ref"), output.get("bytes")
    if output.keys() != {"$ref", "bytes", "head"} or not isinstance(ref, str) or not isinstance(size, int):
        return None
    return Reference(ref, size) if _REFERENCE.fullmatch(ref) and 0 <= size <= MAX_OUTPUT_BYTES else None


async def whole_output(tool_id: str, reference: Reference, call: CallTool) -> dict[str, Any]:
    """All of a large output of ``tool_id``, asked for with ``call``."""
    pieces: list[bytes] = []
    at: int | None = 0
    while at is not None:
        answer = await call(READ_OUTPUT, {"ref": reference.ref, "offset": at})
        pieces.append(str(answer["text"]).encode())
        before, at = at, answer["next"]
        if at is not None and (not isinstance(at, int) or not before < at < reference.size):
            break
    data = b"".join(pieces)
    is_whole = len(data) == reference.size and f"sha256:{hashlib.sha256(data).hexdigest()}" == reference.ref
    if not is_whole:
        raise ToolFailed(tool_id, Status.FAILED, fault("tool.invalid_output", "its large output is not whole"))
    return msgspec.json.decode(data, type=dict[str, Any])
