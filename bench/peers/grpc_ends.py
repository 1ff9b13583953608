"""grpc.aio: a client and one server with a unary echo, over a Unix socket. One hop: nobody is between the two.

The payloads are the bytes that the raw ends send, decoded as they decode them, so there is no protobuf either.
``python -m bench.peers.grpc_ends provider`` or ``caller``, and the socket's path.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from bench import wire
from bench.loads import Texts, obey, wait_for_end

SERVICE: Final = "bench.Echo"
METHOD: Final = "Call"


async def provide(path: str) -> None:
    """Answer each call with what it holds."""
    numbers = itertools.count(1)

    async def echo(request: bytes, _context: Any) -> bytes:
        heard = wire.envelope(request)
        return wire.result(next(numbers), heard, wire.tool_call(heard.payload))

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await wait_for_end()
    await server.stop(None)


async def call(path: str) -> None:
    """Make the calls that are asked for."""
    numbers = itertools.count(1)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        echo = channel.unary_unary(f"/{SERVICE}/{METHOD}")

        async def one(texts: Texts) -> None:
            reply: bytes = await echo(wire.call(next(numbers), b"bench.provider/echo", texts.body()))
            assert wire.tool_result(wire.envelope(reply).payload).status == "succeeded"

        await obey(one)


if __name__ == "__main__":
    uvloop.run({"provider": provide, "caller": call}[sys.argv[1]](sys.argv[2]))
