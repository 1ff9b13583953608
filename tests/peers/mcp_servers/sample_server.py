"""A server of the Model Context Protocol, made with the protocol's own SDK: on stdio, or on a port of this machine.

``python sample_server.py [stdio | http PORT_FILE] [handshake]``. With ``handshake`` it does not know the era
without one, as servers did not before 2026-07-28. ``SAMPLE_WORDS`` in its environment is part of a tool's description,
and ``SAMPLE_SECRET`` is what ``tell`` tells.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ImageContent, TextContent, ToolAnnotations

server = MCPServer("sample", version="1.2.3")
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@server.tool(annotations=ToolAnnotations(readOnlyHint=True), description=f"Add. {os.environ.get('SAMPLE_WORDS', '')}")
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def count(ctx: Context, to: int) -> str:
    """Count, and show it."""
    for number in range(to):
        await ctx.report_progress(number, to, f"at {number}")
        await asyncio.sleep(0.06)
    return "done"


@server.tool()
async def wait(name: str) -> str:
    """Wait for ever; a file says that it began, and one that it was canceled."""
    Path(f"{name}.began").touch()  # noqa: ASYNC240
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        Path(f"{name}.canceled").touch()  # noqa: ASYNC240
        raise
    return "never"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it went wrong")


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text and a picture."""
    return [TextContent(type="text", text="a dot"), ImageContent(type="image", data=DOT, mimeType="image/png")]


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask a person for something."""
    answer = await ctx.elicit("your name?", schema=dict)
    return str(answer)


@server.tool()
def tell() -> str:
    """Tell what it was given, here and in the log."""
    secret = os.environ["SAMPLE_SECRET"]
    data = secret.encode()
    told = " ".join(
        (secret, data.hex(), base64.b64encode(data).decode(), base64.urlsafe_b64encode(b"u:" + data).decode())
    )
    sys.stderr.write(f"the secret is {told}\n")
    sys.stderr.flush()
    return told


@server.resource("note://one")
def one() -> str:
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    return f"hello {name}"


class WithHandshake:
    """An application that answers as those do which do not know the era without a handshake."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version") == b"2026-07-28":
            await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"no such version"})
        else:
            await self._app(scope, receive, send)


def serve_http(port_file: Path, *, handshake: bool) -> None:
    import uvicorn

    app: Any = server.streamable_http_app()
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(WithHandshake(app) if handshake else app, log_level="warning")
    started = port_file.with_suffix(".part")
    started.write_text(str(listening.getsockname()[1]))
    started.rename(port_file)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        serve_http(Path(sys.argv[2]), handshake="handshake" in sys.argv)
    else:
        server.run("stdio")
