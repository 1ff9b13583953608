"""The map in ARCHITECTURE.md: each module of the rooms that it lists is on it, and what is on it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
MAP = (ROOT / "ARCHITECTURE.md").read_text().partition("## The rooms")[2].partition("```\n")[2].partition("```")[0]
MODULE = re.compile(r"(?<![\w/])(\w+\.py)\b")
# The others are folders whose docstrings say it, or whose files have the same names in each edge.
LISTED = ("", "hub", "money", "jobs", "edges")


def rooms() -> dict[str, str]:
    """What the map says of each folder; of the files beside them under an empty name."""
    found: dict[str, str] = {"": ""}
    room = ""
    for line in MAP.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            folder = re.match(r"  (\w+)/", line)
            room = "" if folder is None else folder[1]
        found[room] = found.get(room, "") + line + "\n"
    return found


@pytest.mark.parametrize("room", LISTED)
def test_each_module_is_on_the_map(room: str) -> None:
    there = {path.name for path in (SOURCE / room).glob("*.py") if not path.name.startswith("__")}
    assert there - set(MODULE.findall(rooms()[room])) == set()
    assert there


def test_each_folder_is_on_the_map() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"testing"}
    assert folders - rooms().keys() == set()


@pytest.mark.parametrize("room", rooms())
def test_what_is_on_the_map_is_there(room: str) -> None:
    below = SOURCE.glob("*.py") if room == "" else (SOURCE / room).rglob("*.py")
    there = {path.name for path in below}
    assert set(MODULE.findall(rooms()[room])) - there == set()
