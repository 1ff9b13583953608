"""One MCP client calls agents of four protocols: OpenSentience, Chiffon, OSSA and a space."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.mcp import McpClient
from tests.peers.test_chiffon_example import playbook_agent, steps
from tests.peers.test_ossa_example import started
from tests.running import EXAMPLES, WAIT_S, running

CONFIG = f"""
[ossa]
listen = "127.0.0.1:0"

[[agent]]
id = "com.example.echo"
command = [{json.dumps(sys.executable)}, {json.dumps(str(EXAMPLES / "echo.py"))}]

[[policy.rule]]
caller = "mcp:editor"
tool = "*"
decision = "allow"
"""


def test_a_client_calls_agents_of_every_protocol(tmp_path: Path) -> None:
    with running(tmp_path / "home", CONFIG) as exchange, playbook_agent(exchange, tmp_path):
        _, keys = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": "stock", "type": "worker"})
        (tmp_path / "stock.json").touch(0o600)
        (tmp_path / "stock.json").write_text(json.dumps(keys))
        stock = started(exchange, tmp_path)
        try:
            for tool in ("com.example.echo/echo", "stock/count"):
                exchange.wait_tool(tool)
            assert exchange.request("POST", "/v1/spaces", {"name": "lab"})[0] == 201
            client = McpClient(exchange, "editor")
            echoed = client.call("com_example_echo__echo", {"text": "hi"})
            assert echoed["structuredContent"] == {"text": "hi"}
            played = client.call("infra-1__run_playbook", {"playbook": steps("echo hello")})
            assert played["structuredContent"]["output"] == "hello\n"
            counted = client.call("stock__count", {"item": "tea"})
            assert counted["structuredContent"] == {"item": "tea", "count": 0}
            written = client.call("space_lab__create_file", {"path": "a.txt", "content": "hello"})
            assert "isError" not in written, written
            read = client.call("space_lab__read_file", {"path": "a.txt"})
            assert read["structuredContent"]["content"] == "hello"
        finally:
            stock.terminate()
            stock.wait(WAIT_S)
        calls = [
            entry["tool_id"] for entry in exchange.entries(kind="call.accepted") if entry["caller"] == "mcp:editor"
        ]
        assert calls == [
            "com.example.echo/echo", "infra-1/run_playbook", "stock/count", "space.lab/create_file",
            "space.lab/read_file",
        ]  # fmt: skip
