"""Which rows of each protocol have a test: ``make requirements``.

Reads the tables of ``docs/protocols/*.md`` and, without importing them, the ``@requirement`` markers under ``tests/``.
It does not run a test; that a marked test passes is what ``make test`` shows.

Fails on a MUST row without a test, on a marker that names no row, and on a page that contradicts itself or has no
rows. A SHOULD or MAY row may go without a test; one left out on purpose has its reason under "Not covered, and why".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LEVELS: Final = ("MUST", "SHOULD", "MAY")
REASONS_HEADING: Final = "not covered, and why"

_ROW: Final = re.compile(r"\|\s*([A-Z]{2,4}-\d{3})\s*\|(.+)\|\s*")
_CELL: Final = re.compile(r"(?<!\\)\|")
# A test that never runs, or is known to fail, proves nothing.
_NOT_RUN: Final = re.compile(r"(?:pytest\.)?mark\.(?:skip|xfail)\b")


@dataclass
class Row:
    """One line of a protocol's table."""

    id: str
    level: str
    text: str
    tests: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass
class Protocol:
    """One page: its rows, in order."""

    title: str
    rows: list[Row]


def read_page(path: Path, problems: list[str]) -> Protocol:
    """The rows of one page and the reasons beside them."""
    title, heading, is_quoted = "", "", False
    rows: dict[str, Row] = {}
    reasons: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_quoted = not is_quoted
        if is_quoted:
            continue
        if line.startswith("#"):
            title = title or (line.removeprefix("# ") if line.startswith("# ") else "")
            heading = line.lstrip("# ").lower()
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            continue
        row_id, cells = match[1], [cell.strip() for cell in _CELL.split(match[2])]
        known = reasons if heading == REASONS_HEADING else rows
        if row_id in known:
            problems.append(f"{path}:{number}: {row_id} stands here twice")
        elif heading == REASONS_HEADING:
            reasons[row_id] = cells[-1]
        elif len(cells) < 3 or cells[0] not in LEVELS:
            problems.append(f"{path}:{number}: expected | {row_id} | {' or '.join(LEVELS)} | section | requirement |")
        else:
            rows[row_id] = Row(row_id, cells[0], cells[2])
    for row_id, reason in reasons.items():
        if row_id in rows and reason:
            rows[row_id].reason = reason
        else:
            problems.append(f"{path}: {row_id} under {REASONS_HEADING!r} is no row of this page, or has no reason")
    if not rows:
        problems.append(f"{path}: this page has no rows")
    return Protocol(title or path.stem, list(rows.values()))


def read_markers(path: Path, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Each row that a test of this file proves, with the test's name."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    counted: set[ast.Call] = set()
    for name, marks in _marked_tests(tree):
        calls = [call for mark in marks for call in _requirement_calls(mark)]
        counted.update(calls)
        if any(_NOT_RUN.match(ast.unparse(mark)) for mark in marks):
            continue
        for call in calls:
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, f"{path}::{name}"
                else:
                    problems.append(f"{path}:{call.lineno}: write the row's id as a plain string")
    stray = [call for call in _requirement_calls(tree) if call not in counted]
    problems.extend(f"{path}:{call.lineno}: this marker is on no test" for call in stray)


def _marked_tests(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test"):
                yield name, node.decorator_list
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield name, node.decorator_list
            case ast.Assign(targets=[ast.Name(id="pytestmark")]):
                yield "all", [node.value]


def _requirement_calls(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "requirement":
            yield child


def collect(root: Path) -> tuple[list[Protocol], list[str]]:
    """All pages with their tests, and everything that is wrong with them."""
    problems: list[str] = []
    protocols = [read_page(path, problems) for path in sorted((root / "docs" / "protocols").glob("*.md"))]
    rows = {row.id: row for protocol in protocols for row in protocol.rows}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for row_id, test in read_markers(path, problems):
            if row_id in rows:
                rows[row_id].tests.append(test)
            else:
                problems.append(f"{test}: {row_id} is no row of docs/protocols/*.md")
    for row in rows.values():
        if row.tests and row.reason:
            problems.append(f"{row.id} has a test, and a reason for having none")
        if not row.tests and row.level == "MUST":
            problems.append(f"{row.id} is a MUST and has no test")
    return protocols, [problem.replace(f"{root}/", "") for problem in problems]


def report(protocols: list[Protocol]) -> Iterator[str]:
    """What a person reads."""
    for protocol in protocols:
        yield protocol.title
        for level in LEVELS:
            of_level = [row for row in protocol.rows if row.level == level]
            if of_level:
                yield f"  {level:<7}{sum(bool(row.tests) for row in of_level):>4} of {len(of_level)}"
        missing = [row for row in protocol.rows if not row.tests and not row.reason]
        if missing:
            yield "  without a test:"
            yield from (f"    {row.id}  {row.level:<7}{row.text}" for row in missing)
        excused = [row for row in protocol.rows if row.reason]
        if excused:
            yield "  not covered, and why:"
            yield from (f"    {row.id}  {row.level:<7}{row.reason}" for row in excused)
        yield ""


def main(root: Path) -> int:
    """Print the report; the exit code says whether it will do."""
    protocols, problems = collect(root)
    rows = [row for protocol in protocols for row in protocol.rows]
    lines = [*report(protocols), *(f"error: {problem}" for problem in problems)]
    print(*lines, f"requirements: {sum(bool(row.tests) for row in rows)} of {len(rows)} covered", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
