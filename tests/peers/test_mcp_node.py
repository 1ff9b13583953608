"""Programs of MCP's own project against a real exchange: the inspector's command line and the conformance suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.npm import installed, npm_of
from tests.peers.mcp_token_proxy import AGENT, token_proxy
from tests.peers.test_chiffon_example import playbook_agent, steps
from tests.peers.test_ossa_example import started
from tests.running import EXAMPLES, ROOT, WAIT_S, Running, running

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


# --- a client that moves over -----------------------------------------------------------------------------------------

MOVED = f"""
[ossa]
listen = "127.0.0.1:0"

[[agent]]
id = "com.example.echo"
command = [{json.dumps(sys.executable)}, {json.dumps(str(EXAMPLES / "echo.py"))}]

[[policy.rule]]
caller = "mcp:cursor"
tool = "space.lab/create_file"
decision = "ask"
reason = "files are for people"

[[policy.rule]]
caller = "mcp:cursor"
tool = "*"
decision = "allow"
"""


CREATED = ("space.lab/create_file", "mcp:cursor")


class Cursor:
    """A person with Cursor and one server in it; the inspector stands in for Cursor and reads the same file."""

    def __init__(self, node: str, packages: Path, exchange: Running, folder: Path) -> None:
        self._program = [node, str(packages / "node_modules" / ".bin" / "mcp-inspector"), "--cli"]
        self._packages = packages
        self._exchange = exchange
        self.file = folder / ".cursor" / "mcp.json"
        self.file.parent.mkdir()
        server = {"command": sys.executable, "args": [str(FOLDER / "mcp_servers" / "sample_server.py")]}
        self.file.write_text(json.dumps({"mcpServers": {"sample": server}}))
        self.env = {**exchange.env, "HOME": str(folder)}

    def trunkline(self, *words: str) -> None:
        command = [sys.executable, "-m", "trunkline", "--home", str(self._exchange.home), *words]
        subprocess.run(command, env=self.env, check=True, capture_output=True, timeout=60)

    def ask(self, era: str, *words: str) -> Any:
        """What the server that Cursor now has answers, in this era; a result that is an error too."""
        config = self.file.with_name("inspected.json")
        if not config.exists():
            # A server is given no more of the environment than what the file names.
            moved = json.loads(self.file.read_text())
            moved["mcpServers"]["trunkline"]["env"] = {"PYTHONPATH": self.env.get("PYTHONPATH", "")}
            config.write_text(json.dumps(moved))
        command = [*self._program, "--config", str(config), "--server", "trunkline", "--protocol-era", era, *words]
        done = subprocess.run(
            command, env=self.env, cwd=self._packages, capture_output=True, text=True, check=False, timeout=90
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def call(self, era: str, tool: str, **arguments: Any) -> Any:
        words = ("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        return self.ask(era, *words)


def test_a_client_moves_over_with_its_servers_and_reaches_every_protocol_in_both_eras(
    node: str, packages: Path, short_path: Path
) -> None:
    with running(short_path / "home", MOVED) as exchange, playbook_agent(exchange, short_path):
        _, keys = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": "stock", "type": "worker"})
        (short_path / "stock.json").touch(0o600)
        (short_path / "stock.json").write_text(json.dumps(keys))
        stock = started(exchange, short_path)
        try:
            assert exchange.request("POST", "/v1/spaces", {"name": "lab"})[0] == 201
            exchange.call("space.lab/create_file", {"path": "b.txt", "content": "there"})
            cursor = Cursor(node, packages, exchange, short_path)
            for verb in (("import", "cursor"), ("connect", "cursor"), ("reload",)):
                cursor.trunkline(*verb)
            for tool in ("com.example.echo/echo", "stock/count", "mcp.sample/add"):
                exchange.wait_tool(tool)
            calls: dict[str, dict[str, Any]] = {
                "com_example_echo__echo": {"text": "hi"},
                "infra-1__run_playbook": {"playbook": steps("echo hello")},
                "stock__count": {"item": "tea"},
                "space_lab__read_file": {"path": "b.txt"},
                "mcp_sample__add": {"a": 2, "b": 3},
            }
            for era in ("legacy", "modern"):
                listed = cursor.ask(era, "--method", "tools/list")
                names = {tool["name"] for tool in listed["tools"]}
                assert calls.keys() <= names, names
                with ThreadPoolExecutor(2) as pool:
                    made = {tool: pool.submit(cursor.call, era, tool, **given) for tool, given in calls.items()}
                results = {tool: one.result() for tool, one in made.items()}
                assert not [one for one in results.values() if one.get("isError")], results
                assert results["com_example_echo__echo"]["structuredContent"] == {"text": "hi"}
                assert results["infra-1__run_playbook"]["structuredContent"]["output"] == "hello\n"
                assert results["space_lab__read_file"]["structuredContent"]["content"] == "there"
                assert results["stock__count"]["structuredContent"] == {"item": "tea", "count": 0}
                assert "5" in results["mcp_sample__add"]["content"][0]["text"]
            _asked_approved_and_repeated(cursor, exchange)
        finally:
            stock.terminate()
            stock.wait(WAIT_S)


def _asked_approved_and_repeated(cursor: Cursor, exchange: Running) -> None:
    """A call that a person is asked about ends at once, with an address; after his yes its repeat has the outcome."""
    wanted = {"path": "a.txt", "content": "hi"}
    asked = cursor.call("legacy", "space_lab__create_file", **wanted)
    [question] = exchange.request("GET", "/v1/approvals")[1]["approvals"]
    text = asked["content"][0]["text"]
    assert asked["isError"]
    assert f"{exchange.ready['http']}/#/approvals/{question['approval_id']}" in text
    answer = {"decision": "approved"}
    assert exchange.request("POST", f"/v1/approvals/{question['approval_id']}", answer)[0] == 200
    repeated = cursor.call("modern", "space_lab__create_file", **wanted)
    assert not repeated.get("isError"), repeated
    accepted = exchange.entries(kind="call.accepted")
    ran = [entry["call_id"] for entry in accepted if (entry["tool_id"], entry["caller"]) == CREATED]
    assert ran == [question["call_id"]], "one execution, and the repeat is not another call"


# --- the conformance suite --------------------------------------------------------------------------------------------


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
