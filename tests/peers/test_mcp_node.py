"""Programs of MCP's own project against a real exchange: the inspector's command line and the conformance suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.npm import installed, npm_of
from tests.peers.mcp_token_proxy import AGENT, token_proxy
from tests.running import ROOT, Running, running

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("mcp-node")]
FOLDER = Path(__file__).parent
PACKAGES = FOLDER / "mcp"
PAGE = ROOT / "docs" / "conformance.md"
CONFIG = f"""
[[agent]]
id = "{AGENT}"
command = [{json.dumps(sys.executable)}, {json.dumps(str(FOLDER / "mcp_conformance_agent.py"))}]
"""
TEXT = "com_example_conformance__test_simple_text"


@pytest.fixture(scope="module")
def packages(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that the lock names, as they were published; left out where no registry can be reached."""
    # Not `ci`: it wants packages for every platform in the lock, and some registries have only their own.
    words = ("install", "--omit=optional")
    needed = "@modelcontextprotocol/conformance"
    return installed(npm_of(node), PACKAGES, tmp_path_factory.mktemp("npm"), needed, *words, timeout_s=150)


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("mcp") / "home", CONFIG) as found:
        found.wait_tool(f"{AGENT}/test_simple_text")
        yield found


def inspected(node: str, packages: Path, exchange: Running, way: str, *words: str) -> Any:
    """What the inspector prints."""
    program = [node, str(packages / "node_modules" / ".bin" / "mcp-inspector")]
    env = {**exchange.env, "HOME": str(packages), "MCP_CATALOG_PATH": str(packages / "catalog.json")}
    if way == "http":
        token = exchange.new_token("inspector", "mcp")
        target = [f"{exchange.ready['http']}/mcp", "--transport", "http", "--header", f"Authorization: Bearer {token}"]
    else:
        target = [sys.executable, "-m", "trunkline", "--home", str(exchange.home), "mcp", "--as", "inspector-stdio"]
    # It gives a server no more of its environment than it has to.
    given = ["-e", f"PYTHONPATH={env['PYTHONPATH']}"] if env.get("PYTHONPATH") else []
    command = [*program, "--cli", *target, *given, *words]
    done = subprocess.run(command, env=env, cwd=packages, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector_lists_and_calls_tools(node: str, packages: Path, exchange: Running, way: str) -> None:
    listed = inspected(node, packages, exchange, way, "--method", "tools/list")
    assert TEXT in [tool["name"] for tool in listed["tools"]]
    called = inspected(node, packages, exchange, way, "--method", "tools/call", "--tool-name", TEXT)
    assert "This is a simple text response for testing." in called["content"][0]["text"]


def expected_failures(version: str) -> set[str]:
    rows = re.findall(r"^\| ([^|]*) \| `([^`]*)` \|", PAGE.read_text(), re.MULTILINE)
    return {scenario for versions, scenario in rows if version in versions}


@pytest.mark.parametrize(("version", "words"), [("2025-11-25", "--spec-version"), ("2026-07-28", "--requirements")])
def test_the_conformance_suite_fails_where_the_page_says_and_nowhere_else(
    node: str, packages: Path, exchange: Running, version: str, words: str
) -> None:
    program = packages / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    with token_proxy(exchange.ready["http"], exchange.new_token(f"suite-{version}", "mcp")) as url:
        command = [node, str(program), "server", "--url", f"{url}/mcp", words, version]
        done = subprocess.run(
            command, cwd=packages, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=250
        )
    summary = done.stdout.partition("=== SUMMARY ===")[2].partition("Total:")[0]
    marked = re.findall(r"^(?:\x1b\[\d+m)?([✓✗])(?:\x1b\[\d+m)? (\S+):", summary, re.MULTILINE)
    results = {name: mark for mark, name in marked}
    assert len(results) > 25, done.stdout[-2000:] + done.stderr[-2000:]
    failed = {name for name, mark in results.items() if mark == "✗"}
    assert failed == expected_failures(version)
