"""Names of tools as MCP clients are shown them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.mcp.names import shown_name

TOOL_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", fullmatch=True)
# Ids that differ little: what a name leaves out is what tells them apart.
CLOSE_IDS = st.from_regex(r"[ab][._-]{0,3}[ab]?/[_a][._-]{0,3}", fullmatch=True)


def test_an_ordinary_name_can_be_read_by_a_person() -> None:
    assert shown_name("com.example.echo/say_it") == "com_example_echo__say_it"
    assert shown_name("mcp.files/read-file") == "mcp_files__read-file"


@given(TOOL_IDS)
def test_every_name_is_one_that_clients_take(tool_id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", shown_name(tool_id))


@given(CLOSE_IDS | TOOL_IDS, CLOSE_IDS | TOOL_IDS)
def test_two_tools_never_have_one_name(first: str, second: str) -> None:
    assert first == second or shown_name(first) != shown_name(second)


def test_a_name_that_looks_as_if_it_had_a_hash_gets_one() -> None:
    hashed = shown_name("a_b/c")
    imitation = "a.b/" + hashed.partition("__")[2]
    assert shown_name(imitation) != hashed


def test_long_ids_are_cut_and_stay_apart() -> None:
    long = "com." + "x" * 100
    names = {shown_name(f"{long}/{tool}") for tool in ("one", "two")}
    assert len(names) == 2
    assert all(len(name) == 64 for name in names)
