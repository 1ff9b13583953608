"""``edges.edge``: its words are on the page for authors of edges, and what is said there of it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trunkline.edges.edge import Edge, KeyTerms, RunningEdge, Surroundings, TokenKind
from trunkline.edges.exchange import BaseSink, Sink
from trunkline.key_files import KEYS_FOLDER

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "edges.md").read_text(encoding="utf-8")
EDGES_FOLDER = ROOT / "src" / "trunkline" / "edges"


def rows(head: str) -> list[str]:
    """The names in the first column of the table whose head begins so."""
    table = PAGE.partition(f"\n| {head}")[2].partition("\n\n")[0]
    return [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]


def public(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def test_the_table_of_an_edge_has_each_of_its_fields() -> None:
    assert sorted(rows("of `Edge`")) == sorted(Edge.__struct_fields__)


def test_the_table_of_surroundings_has_everything_that_an_edge_is_given() -> None:
    assert sorted(rows("of `Surroundings`")) == public(Surroundings)
    assert set(Surroundings.__struct_fields__) <= set(public(Surroundings))


def test_the_table_of_methods_has_each_that_an_edge_may_override() -> None:
    assert sorted(rows("method")) == public(RunningEdge)


def test_what_a_sink_may_override_is_told_where_conversations_are() -> None:
    seam = PAGE.partition("\n## The seam\n")[2].partition("\n## ")[0]
    assert public(BaseSink) == sorted(set(public(Sink)) - {"send"})
    assert [name for name in public(BaseSink) if f"`{name}`" not in seam] == []


def test_each_module_that_edges_share_is_on_the_page() -> None:
    shared = {path.stem for path in EDGES_FOLDER.glob("*.py")} - {"__init__"}
    assert sorted(name for name in shared if not re.search(rf"`(edges/|\.)?{name}(\.py)?`|edges\.{name}`", PAGE)) == []


def test_each_file_that_the_page_names_is_there() -> None:
    named = set(
        re.findall(r"`((?:tests|tools|bench|docs|trunkline|hub|ledger|trajectory|cli)/[\w/]+\.(?:py|md))`", PAGE)
    )
    places = (ROOT, ROOT / "src", ROOT / "src" / "trunkline")
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert {name for name in missing if "NAME" not in name} == set()
    assert len(named) > 20


def test_keys_of_an_edge_are_in_the_folder_of_all_keys() -> None:
    given = Surroundings(*[None] * 4, Path("/h"), *[None] * 6)  # type: ignore[arg-type]
    assert given.keys == Path("/h") / KEYS_FOLDER


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        (KeyTerms("me"), ""),
        (KeyTerms("core"), "agent: core is the exchange itself"),
        (KeyTerms("me", type="worker"), "type: agents of this edge have none"),
        (KeyTerms("me", url="https://a.example"), "url: credentials of this edge have none"),
    ],
)
def test_terms_that_a_credential_cannot_have_are_refused_with_what_is_wrong(terms: KeyTerms, problem: str) -> None:
    assert TokenKind(own_ids=frozenset({"core"})).refusal(terms) == problem
