"""What the code cites exists: decisions, promises, rows of the protocols, and our readings of them.

``decision 7`` is a paragraph of docs/decisions.md, ``P-A1`` a row of docs/promises.md, ``OS-023`` a row of a page under
docs/protocols. ``silent point 3``, ``contradiction 5`` and ``reading "Paths"`` are paragraphs of one page: that of the
protocol whose files cite them. In any other file they would mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((DOCS / "protocols").glob("*.md"))}
PROMISES_PAGE = DOCS / "promises.md"
PLACES = ("src/**/*.py", "tests/**/*.py", "tools/*.py", "bench/**/*.py", "docs/**/*.md", "docs/*.json", "*.md")


def numbered(text: str) -> dict[str, str]:
    """The paragraphs of a numbered list; one that has parts (a), (b) also by number and letter."""
    items = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(items) == len(dict(items)), "a number stands for two paragraphs"
    parts = {f"{number}{letter}": item for number, item in items for letter in re.findall(r"\(([a-z])\) ", item)}
    return {**dict(items), **parts}


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one; empty if a page has no such heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


DECISIONS = numbered((DOCS / "decisions.md").read_text(encoding="utf-8"))
PROMISES = set(re.findall(r"^\| (P-[A-Z]\d+) \|", PROMISES_PAGE.read_text(encoding="utf-8"), re.MULTILINE))
ROWS = {row for page in PAGES.values() for row in re.findall(r"^\| ([A-Z]{2}-\d{3}) \|", page, re.MULTILINE)}

# "decision 1b", "decisions 3, 5 and 14", "silent points 2 to 4"
NUMBERED = re.compile(
    r"\b(decision|silent point|contradiction)s? (\d+[a-z]?(?:(?:, | and | to )\d+[a-z]?)*)", re.IGNORECASE
)
READING = re.compile(r'\breading "([^"]+)"')
ID = rf"\b(?:(?:{'|'.join(sorted({row[:2] for row in ROWS}))})-\d+|P-[A-Z]\d+)\b"


# Folders that are named after another thing of the protocol than its page.
ALSO = {"nostr": "openagents", "money": "openagents"}


def protocol_of(file: Path) -> str:
    """The protocol whose page has the readings that a file cites; empty for a file that belongs to none."""
    words = re.split(r"[_./]", str(file.relative_to(ROOT)))
    return next((ALSO.get(name, name) for name in (*PAGES, *ALSO) if name in words), "")


def each(cited: str) -> Iterator[str]:
    """``OS-040 to OS-042``, ``3, 5 and 14``: each one that is meant."""
    for part in re.split(r", | and ", cited):
        first, _, last = part.partition(" to ")
        yield first
        if last:
            prefix, digits = re.findall(r"^(.*?)(\d+)$", first)[0]
            up_to = int(re.findall(r"\d+$", last)[0])
            yield from (f"{prefix}{number:0{len(digits)}}" for number in range(int(digits) + 1, up_to + 1))


def wrong_citations(text: str, protocol: str) -> list[str]:
    """What a text cites and is not where it is said to be."""
    # A citation may go on in the next line, that of a comment too.
    text = re.sub(r"\s*\n[ \t]*(?:# ?)?", " ", text)
    page = PAGES.get(protocol, "")
    known = {
        "decision": DECISIONS,
        "silent point": numbered(section(page, "Where it is silent")),
        "contradiction": numbered(section(page, "Where it says two things")),
    }
    numbers = [(kind.lower(), number) for kind, cited in NUMBERED.findall(text) for number in each(cited)]
    readings = re.findall(r"^\*\*([^*]+?)\.?\*\*", page, re.MULTILINE)
    ids = {one for cited in re.findall(rf"{ID}(?: to {ID})?", text) for one in each(cited)}
    return [
        *(f"{kind} {number}" for kind, number in numbers if number not in known[kind]),
        *(f'reading "{name}"' for name in READING.findall(text) if name not in readings),
        *sorted(ids - ROWS - PROMISES),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_everything_that_a_file_cites_is_where_it_is_said_to_be(place: str) -> None:
    # This file cites what does not exist.
    files = [file for file in ROOT.glob(place) if file != Path(__file__)]
    assert files
    found = {
        str(file.relative_to(ROOT)): wrong_citations(file.read_text(encoding="utf-8"), protocol_of(file))
        for file in files
    }
    # Promises that are not made yet are named on their own page, without a row.
    of_promises = found.pop(str(PROMISES_PAGE.relative_to(ROOT)), [])
    assert {file: wrong for file, wrong in found.items() if wrong} == {}
    assert [one for one in of_promises if not one.startswith("P-")] == []


@pytest.mark.parametrize(
    ("text", "protocol", "wrong"),
    [
        ("as decision 7 says", "", []),
        ("(decisions 1b, 3 and 999)", "", ["decision 999"]),
        ("Decision 1z", "", ["decision 1z"]),
        ("decisions 998 to 999", "", ["decision 998", "decision 999"]),
        ("the timers of\n    # silent point 8", "chiffon", []),
        ("the timers of silent\npoint 80", "chiffon", ["silent point 80"]),
        ("silent point 8", "spaces", ["silent point 8"]),
        ("contradiction 1", "", ["contradiction 1"]),
        ('(reading "Approvals")', "spaces", []),
        ('(reading "Approvals")', "chiffon", ['reading "Approvals"']),
        ("# OS-023, CH-078 to CH-080, P-A1", "", []),
        ("# OS-23, SP-999, OS-159 to OS-161, P-A8", "", ["OS-161", "OS-23", "P-A8", "SP-999"]),
    ],
)
def test_a_citation_of_nothing_is_found(text: str, protocol: str, wrong: list[str]) -> None:
    assert wrong_citations(text, protocol) == wrong


def test_a_reading_is_looked_for_on_the_page_of_its_own_protocol() -> None:
    files = ("src/trunkline/edges/spaces/serve.py", "src/trunkline/sdk/chiffon_jobs.py", "src/trunkline/hub/calls.py")
    assert [protocol_of(ROOT / file) for file in files] == ["spaces", "chiffon", ""]
