"""FastMCP's proxy before a server on stdio, over streamable HTTP: ``python -m bench.peers.fastmcp_proxy PORT``.

One session with the server carries all calls, as its documentation calls a shared session: without it each request
would start a server of its own. All other settings are its defaults.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

from bench.loads import wait_for_end


async def main(port: int) -> None:
    """Serve on loopback until the run ends us."""
    client = Client(StdioTransport(sys.executable, ["-m", "bench.peers.mcp_echo"]))
    # One that is connected is shared.
    async with client:
        proxy = create_proxy(client, name="bench")
        serving = asyncio.create_task(
            proxy.run_async(
                "http",
                host="127.0.0.1",
                port=port,
                path="/mcp",
                show_banner=False,
                log_level="error",
                uvicorn_config={"access_log": False},
            )
        )
        await wait_for_end()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
