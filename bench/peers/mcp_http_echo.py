"""A server of MCP over streamable HTTP with the tool ``echo`` and nothing else, without an SDK, so that it is cheap.

It is behind whatever is measured, the same for each: ``python -m bench.peers.mcp_http_echo PORT``. It has no sessions.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import uvloop

from bench.loads import wait_for_end
from bench.peers.mcp_echo import answered


class Connection(asyncio.Protocol):
    """One request after the other, HTTP/1.1 with keep-alive."""

    def __init__(self) -> None:
        self._heard = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self._heard += data
        while (end := self._heard.find(b"\r\n\r\n")) >= 0:
            head = self._heard[: end + 2].lower()
            at = head.find(b"\r\ncontent-length:")
            size = int(head[at + 17 : head.index(b"\r\n", at + 2)]) if at >= 0 else 0
            if len(self._heard) < end + 4 + size:
                return
            body, self._heard = self._heard[end + 4 : end + 4 + size], self._heard[end + 4 + size :]
            self._transport.write(_answer(body) if head.startswith(b"post ") else _head(405, 0))


def _answer(body: bytes) -> bytes:
    message = json.loads(body)
    if "id" not in message or "method" not in message:
        return _head(202, 0)
    result = answered(message["method"], message.get("params") or {})
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        said["error"] = {"code": -32601, "message": "unknown"}
    else:
        said["result"] = result
    data = json.dumps(said).encode()
    return _head(200, len(data)) + data


def _head(status: int, size: int) -> bytes:
    return b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, size)


async def main(port: int) -> None:
    """Serve on loopback until the run ends us."""
    await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    await wait_for_end()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
