"""Each module of some length says what it is for: what it owns, what it leaves to others, what always holds of it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trunkline"
# A shorter one is read as a whole before a docstring of several paragraphs would be.
LONG = 60
SAYS_SO = re.compile(r"\b[Oo]wns\b|\b[Nn]ot own\b|^Invariant", re.MULTILINE)


@cache
def docstrings() -> dict[str, str]:
    """Of all modules with more lines than that."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return {
        path.relative_to(SOURCE).as_posix(): ast.get_docstring(ast.parse(text)) or ""
        for path, text in texts.items()
        if len(text.splitlines()) > LONG
    }


def test_each_long_module_says_what_it_owns_or_what_always_holds_of_it() -> None:
    found = docstrings()
    assert [name for name, text in found.items() if not SAYS_SO.search(text)] == []
    assert len(found) > 300


def test_a_docstring_begins_with_one_sentence_about_the_module() -> None:
    """Of one line: that is what a list of modules shows."""
    bad = []
    for name, text in docstrings().items():
        first, *rest = text.splitlines() or [""]
        if not first.rstrip().endswith((".", "?", ":")) or (rest and rest[0].strip()):
            bad.append(name)
    assert bad == []
