"""The MCP SDK: its low-level server and its client, over stdio or streamable HTTP. One hop: nobody is between the two.

``python -m bench.peers.mcp_ends stdio-server``, ``http-server PORT``, ``stdio-caller`` (which starts its server, as MCP
clients do) or ``http-caller URL``. One session carries all calls in flight; all settings are the SDK's defaults.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp_types as types
import uvicorn
import uvloop
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from bench import wire
from bench.loads import Texts, obey, wait_for_end


def _server() -> Any:
    async def tools(_context: Any, _params: Any) -> Any:
        tool = types.Tool(name="echo", description="Returns what it is given.", input_schema=wire.INPUT_SCHEMA)
        return types.ListToolsResult(tools=[tool])

    async def echo(_context: Any, params: Any) -> Any:
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.arguments["text"])])

    return Server("bench", on_list_tools=tools, on_call_tool=echo)


async def serve_stdio() -> None:
    """Serve whoever started us."""
    server = _server()
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def serve_http(port: str) -> None:
    """Serve on loopback until the run ends us."""
    config = uvicorn.Config(_server().streamable_http_app(), port=int(port), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    await wait_for_end()
    server.should_exit = True
    await serving


async def call(target: Any) -> None:
    """Make the calls that are asked for."""
    async with Client(target) as client:

        async def one(texts: Texts) -> None:
            result = await client.call_tool("echo", {"text": texts.text()})
            assert not result.is_error

        await obey(one)


def main() -> None:
    """One of the four."""
    match sys.argv[1:]:
        case ["stdio-server"]:
            uvloop.run(serve_stdio())
        case ["http-server", port]:
            uvloop.run(serve_http(port))
        case ["stdio-caller"]:
            server = StdioServerParameters(command=sys.executable, args=["-m", "bench.peers.mcp_ends", "stdio-server"])
            uvloop.run(call(stdio_client(server)))
        case ["http-caller", url]:
            uvloop.run(call(url))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
