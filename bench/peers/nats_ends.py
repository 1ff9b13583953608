"""NATS request-reply: a requester and a responder with nats-py, joined by a nats-server. Two hops, nothing is kept.

The payloads are the bytes that the raw ends send, decoded as they decode them. ``python -m bench.peers.nats_ends
provider`` or ``caller``, and the server's address.
"""

from __future__ import annotations

import itertools
import sys
from typing import Final

import nats
import uvloop
from nats.aio.msg import Msg

from bench import wire
from bench.loads import Texts, obey, wait_for_end

SUBJECT: Final = "bench.echo"
# Longer than any load takes; the default of half a second would be measured instead of the load.
TIMEOUT_S: Final = 60.0


async def provide(address: str) -> None:
    """Answer each request with what it holds."""
    connection = await nats.connect(address)
    numbers = itertools.count(1)

    async def echo(message: Msg) -> None:
        heard = wire.envelope(message.data)
        await message.respond(wire.result(next(numbers), heard, wire.tool_call(heard.payload)))

    await connection.subscribe(SUBJECT, cb=echo)
    await connection.flush()
    await wait_for_end()
    await connection.close()


async def call(address: str) -> None:
    """Make the requests that are asked for."""
    connection = await nats.connect(address)
    numbers = itertools.count(1)

    async def one(texts: Texts) -> None:
        request = wire.call(next(numbers), b"bench.provider/echo", texts.body())
        reply = await connection.request(SUBJECT, request, timeout=TIMEOUT_S)
        assert wire.tool_result(wire.envelope(reply.data).payload).status == "succeeded"

    await obey(one)
    await connection.close()


if __name__ == "__main__":
    uvloop.run({"provider": provide, "caller": call}[sys.argv[1]](sys.argv[2]))
