"""``edges.known``: what the lists of ``model.py`` say fits the edges that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trunkline
from trunkline.cli.token import new
from trunkline.config import Config, McpServer
from trunkline.edges.edge import Edge
from trunkline.edges.known import EDGES, UNBUILT
from trunkline.model import CALLER_EDGES, MOUNT_PREFIX, RESERVED_PREFIXES

# Edges without callers or agents of their own kind: what they offer belongs to an agent of the exchange itself.
OF_THE_EXCHANGE = {"jobs", "console"}
# Whose agents are `mcp.<id>`, and never call.
MOUNTING = {"mounts"}


# Another word for OpenSentience; a protocol that the README says is on its way, so that its rules can be written.
NO_EDGES = {"agent", "a2a"}


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
def test_rules_may_name_the_callers_of_every_edge(edge: Edge) -> None:
    assert edge.name in CALLER_EDGES or edge.name in OF_THE_EXCHANGE | MOUNTING
    assert not edge.section or edge.section in Config.__struct_fields__


def test_rules_may_name_no_callers_that_there_never_are() -> None:
    """A rule for such a caller would be taken and never hold."""
    assert set(CALLER_EDGES) - {edge.name for edge in EDGES} == NO_EDGES


def test_what_stands_before_a_mounted_servers_id_is_written_in_one_place() -> None:
    source = Path(trunkline.__file__).parent
    found = [path.relative_to(source).as_posix() for path in source.rglob("*.py") if '"mcp."' in path.read_text()]
    assert found == ["model.py"]
    assert McpServer(id="files", command=("x",)).agent_id.startswith(MOUNT_PREFIX)


def test_agents_of_the_exchange_have_prefixes_that_nobody_else_may_use() -> None:
    for edge in EDGES:
        # Whose agents are processes or people of their own keep their own ids.
        is_of_others = (
            edge.launcher is not None or edge.is_operators or edge.name in {"ossa", *OF_THE_EXCHANGE, *MOUNTING}
        )
        if not is_of_others:
            assert f"{edge.name}." in RESERVED_PREFIXES


def test_the_help_of_token_new_names_the_edges_that_have_tokens() -> None:
    said = re.search(r"on an EDGE: ([\w, ]+)\.", str(new.callback.__doc__))
    assert said is not None
    assert set(re.split(r", | or ", said[1])) == {edge.name for edge in EDGES if edge.tokens is not None}


def test_every_section_of_the_configuration_is_an_edges_or_the_exchanges_own() -> None:
    own = {"agents", "mcp_servers", "approvals", "policy_table", "limits", "ledger", "log", "otel", "given"}
    of_edges = {edge.section for edge in EDGES} - {""}
    assert set(Config.__struct_fields__) - own == of_edges | set(UNBUILT)
