"""Texts that a shell takes whole before it reads what stands in them: backticks and here-documents.

Pure. It finds where such a text ends and what it is; ``shell_grammar`` reads it.

Invariant: where two shells find two ends, or two texts, it is ``NotUnderstood``.
"""

from __future__ import annotations

import re

from trunkline.workspace.shell_words import NotUnderstood


def backticks_at(text: str, at: int) -> tuple[str, int]:
    """What stands between this backtick and the next that is not escaped, and where it goes on after that."""
    end = at + 1
    while text[end : end + 1] != "`":
        if end >= len(text):
            raise NotUnderstood("a backtick is not closed")
        end += 2 if text[end] == "\\" else 1
    inner = re.sub(r"\\([$`\\])", r"\1", text[at + 1 : end])
    # Inside double quotes `\"` loses its backslash too, in some shells.
    if '\\"' in inner:
        raise NotUnderstood("quotes inside backticks")
    # Before it looks at quotes, comments and here-documents inside, dash joins continued lines everywhere.
    if "\\\n" in inner or "<<" in inner or re.search(r"(?:^|[\s;&|()])#", inner):
        raise NotUnderstood("a continued line, a comment or a here-document inside backticks")
    return inner, end + 1


def document_at(text: str, at: int, end: str, *, expands: bool, strips: bool) -> tuple[str, int]:
    """The here-document that begins here and ends at the line `end`, and where it goes on after that."""
    body: list[str] = []
    continued = ""  # what a backslash at the end of a line joins with the next one
    while True:
        if at >= len(text):
            raise NotUnderstood("a here-document has no end")
        line_end = text.find("\n", at)
        line_end = len(text) if line_end < 0 else line_end
        line = text[at:line_end]
        at = min(line_end + 1, len(text))
        found = (line.lstrip("\t") if strips else line) == end
        if continued and (found or continued + line == end):
            raise NotUnderstood("the end of a here-document is joined with the line before it")
        if found:
            return "\n".join(body), at
        body.append(line)
        is_joined = expands and (len(line) - len(line.rstrip("\\"))) % 2
        continued = continued + line[:-1] if is_joined else ""
        if is_joined and not continued:
            raise NotUnderstood("a line of a here-document is a backslash alone")
