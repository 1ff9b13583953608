"""Side effects: notes in a file. Agents other than the operator are asked about, and need the permission notes:write.

Try: trunkline call com.example.notes/append '{"text": "buy milk"}', then com.example.notes/recent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import Meta

from trunkline import Agent

agent = Agent("com.example.notes", version="1.0.0")
FILE = Path(os.environ.get("OPENSENTIENCE_HOME", ".")) / "notes.jsonl"


class Note(TypedDict):
    """One line of the file."""

    id: str
    text: str


@agent.tool(idempotent=True, permissions=["notes:write"], tags=["notes"])
def append(text: Annotated[str, Meta(min_length=1, max_length=10_000)]) -> dict[str, int]:
    """Keeps a note."""
    call = agent.current()
    # The call's own name is kept with the note, so that a call which is sent again after a crash adds nothing.
    name = call.call_id if call else "direct"
    notes = _read()
    if name not in {note["id"] for note in notes}:
        with FILE.open("a") as file:
            file.write(json.dumps(Note(id=name, text=text)) + "\n")
        notes.append(Note(id=name, text=text))
    return {"notes": len(notes)}


@agent.tool(side_effects=False, tags=["notes"])
def recent(count: Annotated[int, Meta(ge=1, le=100)] = 10) -> list[str]:
    """The latest notes, the newest first."""
    return [note["text"] for note in reversed(_read())][:count]


@agent.tool(requires_directive=True, permissions=["notes:write"], tags=["notes"])
def clear() -> dict[str, int]:
    """Throws all notes away. Somebody has to state that intent first: `trunkline directive new`."""
    count = len(_read())
    FILE.unlink(missing_ok=True)
    return {"removed": count}


def _read() -> list[Note]:
    if not FILE.exists():
        return []
    return [json.loads(line) for line in FILE.read_text().splitlines()]


if __name__ == "__main__":
    agent.run()
