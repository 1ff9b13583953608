"""The edge as the host knows it: what it imports, what it says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.edges.mcp.conftest import SHELL_NAME, Served


@pytest.mark.slow
@pytest.mark.parametrize("module", ["trunkline.edges.known", "trunkline.cli.mcp_bridge", "trunkline.cli.call"])
def test_nothing_of_the_sdk_is_imported(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules), sep='\\n')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    names = {name.partition(".")[0] for name in found.stdout.split()}
    assert not names & {"mcp", "mcp_types", "pydantic", "anyio" if "cli" in module else "pydantic"}
    if "cli" in module:
        assert "trunkline.edges.mcp" not in found.stdout.split()


async def test_status_counts_what_waits_for_a_person(served: Served) -> None:
    await served.client().call(SHELL_NAME, {"command": "ls"})
    edges = served.exchange.edges.status()["edges"]
    assert edges["mcp"]["awaited_calls"] == 1  # type: ignore[index]
