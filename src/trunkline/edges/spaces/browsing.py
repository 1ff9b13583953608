"""Looking into a space: what its folders hold, and the beginning of a file. An operator's look; nothing is changed.

Owns how much of it is shown. Does not own who may ask (``routes``), nor how a path is walked (``workspace.paths``).

Invariant: no link is followed, so that nothing outside of the space is shown.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from trunkline.edges.answers import Refused
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.errors import WorkspaceError
from trunkline.model import fault, stamp
from trunkline.workspace import files
from trunkline.workspace.paths import IS_FOLDER

# More names than that nobody reads in a list.
MAX_NAMES: Final = 1000
# What a person reads of a file; the tool `read_file` has all of it.
SHOWN_BYTES: Final = 65_536


async def look(agent: SpaceAgent, path: str) -> dict[str, Any]:
    """A folder, or a file, whichever stands at this path."""
    try:
        return await asyncio.to_thread(_look, agent, path or ".")
    except WorkspaceError as error:
        code = "message.malformed" if error.kind == "validation" else "not_found"
        raise Refused(fault(code, error.message)) from None


def _look(agent: SpaceAgent, path: str) -> dict[str, Any]:
    workspace = agent.space.workspace
    if path != ".":
        try:
            return _file(files.read_file(workspace, path))
        except WorkspaceError as error:
            if error.message != IS_FOLDER:
                raise
    found = files.list_folder(workspace, path, MAX_NAMES)
    items = [
        {"name": item.name, "kind": item.kind, "bytes": item.size, "changed_at": stamp(item.changed_ms)}
        for item in found.items
    ]
    return {"files": items, "count": found.count}


def _file(found: files.FileContent) -> dict[str, Any]:
    shown = found.data[:SHOWN_BYTES]
    # What is cut may end in the middle of a character.
    return {
        "content": shown.decode(errors="replace"),
        "bytes": found.size,
        "sha256": found.sha256,
        "cut": found.size > SHOWN_BYTES,
    }
