"""``model``: the one table of faults holds every code that the source names; what is told of, now and then."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.model import FAULTS, is_told_of, uuid_4

SOURCE = Path(__file__).parents[2] / "src" / "trunkline"
AREAS = {code.partition(".")[0] for code in FAULTS if "." in code}
TRANSLATIONS = sorted(SOURCE.glob("edges/*/translate.py"))


def texts(node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression may be, where that can be read off."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp():
            yield from texts(node.body)
            yield from texts(node.orelse)
        case ast.Set() | ast.Tuple() | ast.List():
            for element in node.elts:
                yield from texts(element)
        case ast.Call(func=ast.Name(id="frozenset"), args=[inner]):
            yield from texts(inner)


def made(tree: ast.Module) -> Iterator[str]:
    """The codes of the faults that a module makes."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "trunkline.model")
    makers = {alias.name for node in imports for alias in node.names} & {"Fault", "fault"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
            named = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            yield from texts(node.args[0] if node.args else named)


def is_code(text: str) -> bool:
    return text.partition(".")[0] in AREAS and text.count(".") == 1 and text.replace("_", "").replace(".", "").isalpha()


def translated(tree: ast.Module) -> Iterator[str]:
    """Our codes in the columns of an edge and in what it compares with. A column maps from them, or to them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [text for key in node.keys for text in texts(key)]
            values = [text for value in node.values for text in texts(value)]
            yield from filter(is_code, keys if any(map(is_code, keys)) else values)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "code":
            yield from (text for compared in node.comparators for text in texts(compared))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from filter(is_code, texts(node.value))


@pytest.mark.slow
def test_every_fault_that_the_source_makes_stands_in_the_table() -> None:
    found = {
        code: str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for code in made(ast.parse(path.read_text()))
    }
    assert {"tool.not_found", "tool.schema_too_large", "idempotency.conflict"} <= set(found)
    assert {code: path for code, path in found.items() if code not in FAULTS} == {}


@pytest.mark.parametrize("path", TRANSLATIONS, ids=lambda path: path.parent.name)
def test_every_code_that_an_edge_translates_stands_in_the_table(path: Path) -> None:
    assert set(translated(ast.parse(path.read_text()))) <= set(FAULTS)


def test_the_columns_of_the_edges_are_found() -> None:
    found = {path.parent.name: set(translated(ast.parse(path.read_text()))) for path in TRANSLATIONS}
    assert "agent.lost" in found["opensentience"]
    assert {"idempotency.conflict", "limit.resource"} <= found["chiffon"]
    assert "tool.timeout" in found["spaces"]


def test_of_the_same_the_first_the_tenth_and_the_hundredth_are_told_of() -> None:
    assert [count for count in range(2000) if is_told_of(count)] == [1, 10, 100, 1000]


@given(st.binary(min_size=16, max_size=16))
def test_sixteen_bytes_are_the_uuid_that_the_standard_library_makes_of_them(data: bytes) -> None:
    assert uuid_4(data) == str(uuid.UUID(bytes=data, version=4))
