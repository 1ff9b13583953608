"""Names of tools as MCP clients are shown them: ``[A-Za-z0-9_-]{1,64}``, because most of them take no others.

``com.example.echo/say_it`` is shown as ``com_example_echo__say_it``. A tool whose id could not be read back from such a
name (an underscore before the slash, a dot behind it, too long) is shown with a part of the id's hash at the end.

Invariant: two tools never have the same name, and a tool's name follows from its id alone: it stays the same whoever
comes or goes (decision 62).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from typing import Final

MAX_NAME_CHARS: Final = 64
# 65 bits of a hash: nobody finds a second id for a name that somebody else has.
HASH_CHARS: Final = 13
_HASHED: Final = re.compile(rf"-[a-z2-7]{{{HASH_CHARS}}}$")
# What can be read back: no underscore and no two dots in a row before the slash, no dot behind it.
_PLAIN: Final = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*/[A-Za-z0-9_-]+")


@functools.lru_cache(maxsize=16_384)
def shown_name(tool_id: str) -> str:
    """The name by which a client calls this tool."""
    agent, _, tool = tool_id.partition("/")
    name = f"{agent}__{tool}".replace(".", "_")
    if len(name) <= MAX_NAME_CHARS and _PLAIN.fullmatch(tool_id) and not _HASHED.search(name):
        return name
    digest = base64.b32encode(hashlib.sha256(tool_id.encode()).digest()).decode().lower()[:HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - HASH_CHARS - 1]}-{digest}"
