"""Edits on a text: each replaces one passage by another, each on the result of the one before.

Pure. It does not own files, encodings or modes.

Invariant: all edits or none. A passage that is missing, or that stands in several places, fails the whole list: no
silent first match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Sequence

# No text may grow beyond this on the way. The same figure as the largest file that may be written; a character is at
# least one byte, so a longer text could never be.
MAX_TEXT_CHARACTERS: Final = 10_485_760


class Edit(Struct, frozen=True):
    """Replace ``old``, which must stand in exactly one place unless ``replace_all``, by ``new``."""

    old: str
    new: str
    replace_all: bool = False


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text after all edits, in order (SP-030)."""
    if not edits:
        raise WorkspaceError("validation", "edits is empty: give at least one edit")
    for number, edit in enumerate(edits, start=1):
        if not edit.old:
            raise WorkspaceError("validation", f"Edit {number}: oldContent is empty")
    for number, edit in enumerate(edits, start=1):
        text = _apply(text, edit, number)
    return text


def _apply(text: str, edit: Edit, number: int) -> str:
    places = text.count(edit.old) if edit.replace_all else _places(text, edit.old)
    if places == 0:
        raise WorkspaceError("execution", f"Edit {number}: oldContent not found")
    if places > 1 and not edit.replace_all:
        raise WorkspaceError("execution", f"Edit {number}: oldContent occurs {places} times")
    if len(text) + places * (len(edit.new) - len(edit.old)) > MAX_TEXT_CHARACTERS:
        raise WorkspaceError("execution", f"Edit {number}: the file would grow beyond {MAX_TEXT_CHARACTERS} characters")
    return text.replace(edit.old, edit.new)


def _places(text: str, passage: str) -> int:
    places = text.count(passage)
    # `aa` stands in two places of `aaa`, and either could be meant; str.count sees one.
    if places == 1 and text.find(passage, text.find(passage) + 1) >= 0:
        return 2
    return places
