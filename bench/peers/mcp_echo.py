"""A server of MCP on stdin and stdout with the tool ``echo`` and nothing else, without an SDK, so that it is cheap.

It is behind whatever is measured, the same for each: ``python -m bench.peers.mcp_echo``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "echo",
    "description": "Returns what it is given.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request; None for what it does not know."""
    match method:
        case "initialize":
            version = params["protocolVersion"]
            server = {"name": "bench", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    """Answer lines until there are no more."""
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answered(message["method"], message.get("params") or {})
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            said["error"] = {"code": -32601, "message": "unknown"}
        else:
            said["result"] = result
        out.write(json.dumps(said).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
