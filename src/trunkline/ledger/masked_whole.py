"""An entry whose contents could not be masked one by one: what it is stays readable, what it holds does not.

The last resort of the writer, so that no bytes of anybody cost an entry. Every text inside a body goes, unless it is
short and certainly no secret; numbers and names of fields stay, so that the entry can still be read as its kind. The
entry says so (``masked_whole``) and has its MAC, like every masked entry.
"""

from __future__ import annotations

import json
from typing import Any, Final

from trunkline.ledger.masking import Masker

GONE: Final = "[masked:whole]"
# Words of ours (codes, statuses, decisions) are shorter.
LONGEST_KEPT: Final = 32
# Deeper is nothing that an entry's own fields have.
DEEPEST_KEPT: Final = 32


def masked_whole(data: bytes, masker: Masker) -> bytes:
    """The entry ``data`` with all that could hold a secret replaced."""
    # On first use, which is rare: it is a sixth of the writer's start.
    import msgspec

    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    found: dict[str, Any] = {name: _field(bytes(value), masker) for name, value in fields.items()}
    found["masked_whole"] = True
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _field(value: bytes, masker: Masker) -> Any:
    if value[:1] not in b'{["':
        return json.loads(value)
    if value[:1] == b'"':
        return masker.mask_text(json.loads(value))
    try:
        return _stripped(json.loads(value), masker, DEEPEST_KEPT)
    except RecursionError:
        return GONE


def _stripped(value: Any, masker: Masker, depth: int) -> Any:
    if depth == 0:
        return GONE
    if isinstance(value, dict):
        return {_kept(name, masker): _stripped(item, masker, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item, masker, depth - 1) for item in value]
    return _kept(value, masker) if isinstance(value, str) else value


def _kept(text: str, masker: Masker) -> str:
    is_plain = len(text) <= LONGEST_KEPT and text.isascii() and masker.is_clean(json.dumps(text).encode())
    return text if is_plain else GONE
