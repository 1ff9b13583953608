"""The bare answer, 1.00 of the HTTP rows: the exchange's own HTTP server, and behind it nothing but a fixed answer.

The same connection class, parser, loop and headers as in ``trunkline.edges.web_connection``, with an application that
reads the request's body and sends what a small call would be answered with. No routes, no token, no JSON, no record:
what is left is what any answer over HTTP costs here. ``python -m bench.bare_answer PORT``.
"""

from __future__ import annotations

import sys
from typing import Final

import uvloop
from starlette.types import Receive, Scope, Send

from bench.loads import SMALL, Load, Texts, wait_for_end
from trunkline.edges.address import Address
from trunkline.edges.listener import WebListener

# As the exchange answers, byte for byte but for the names and the times: a test compares the two.
ANSWER: Final = (
    b'{"call_id":"00000000-0000-8000-a000-000000000000","status":"succeeded","output":%s,'
    b'"started_at":"2026-01-01T00:00:00.000Z","finished_at":"2026-01-01T00:00:00.000Z",'
    b'"tool_id":"bench.http-read-only/echo","caller":"http:bench.http-read-only"}'
)


def fixed_answer() -> bytes:
    """The body of every answer."""
    texts = Texts()
    texts.use(Load(1, SMALL, fresh=False))
    return ANSWER % texts.body()


class BareAnswer:
    """An ASGI application that answers every request with the same."""

    def __init__(self, body: bytes) -> None:
        size = b"%d" % len(body)
        headers = [(b"content-length", size), (b"content-type", b"application/json")]
        self._start = {"type": "http.response.start", "status": 200, "headers": headers}
        self._body = {"type": "http.response.body", "body": body}

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body to its end, then answer."""
        while (await receive()).get("more_body"):
            pass
        await send(self._start)
        await send(self._body)


async def listen(port: int) -> WebListener:
    """Answer on this port of loopback."""
    listener = WebListener(BareAnswer(fixed_answer()), Address("127.0.0.1", port, "bench"))
    await listener.start()
    return listener


async def main(port: str) -> None:
    """Stay until the run ends us."""
    listener = await listen(int(port))
    await wait_for_end()
    await listener.stop()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
