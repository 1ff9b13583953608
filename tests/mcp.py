"""A small MCP client for end-to-end tests: messages as the specification has them, nothing of ours or of an SDK."""

from __future__ import annotations

import http.client
import itertools
import json
from typing import Any

from tests.running import WAIT_S, Running

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
_PREFIX = "io.modelcontextprotocol/"


class McpClient:
    """One client of a running exchange, over HTTP."""

    def __init__(self, exchange: Running, name: str = "client", *, era: str = MODERN, token: str | None = None) -> None:
        self.exchange = exchange
        self.token = exchange.new_token(name, "mcp") if token is None else token
        self.era = era
        self.session_id = ""
        self._ids = itertools.count(1)

    def begin(self) -> McpClient:
        """The handshake of 2025-11-25."""
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.exchange_messages("initialize", params)
        return self

    def send(
        self, method: str, params: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPConnection:
        """A request on its way; its answer is read by whoever wants it."""
        given = dict(params or {})
        all_headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        all_headers["accept"] = "application/json, text/event-stream"
        if self.era == MODERN:
            envelope = {f"{_PREFIX}protocolVersion": MODERN, f"{_PREFIX}clientCapabilities": {}}
            given["_meta"] = {**envelope, **given.get("_meta", {})}
            all_headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            if "name" in given or "uri" in given:
                all_headers["mcp-name"] = given.get("name", given.get("uri"))
        elif self.session_id:
            all_headers["mcp-session-id"] = self.session_id
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": given}
        address = self.exchange.ready["http"].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=WAIT_S + 20)
        connection.request("POST", "/mcp", json.dumps(body), {**all_headers, **(headers or {})})
        return connection

    def exchange_messages(
        self, method: str, params: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request: the status and the last message of its answer."""
        connection = self.send(method, params, headers)
        try:
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        self.session_id = answer.headers.get("mcp-session-id") or self.session_id
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            data = [line for line in data.splitlines() if line.startswith(b"data: ")][-1].removeprefix(b"data: ")
        return answer.status, json.loads(data) if data else None

    def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The result of a call."""
        status, said = self.exchange_messages("tools/call", {"name": name, "arguments": arguments or {}, **more})
        assert status == 200, said
        found: dict[str, Any] = said["result"]
        return found
