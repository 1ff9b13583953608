"""The body of an HTTP request, read within bounds: the same for every edge behind the listener.

Owns size, time and media type. Each edge says a refusal in its own form.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect, Request

# A body that takes longer to arrive is not coming; the same bound as for one frame on the socket edges.
BODY_TIMEOUT_S: Final = 30.0
TOO_SLOW: Final = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"


class BadBody(ValueError):
    """A body that is not taken: the HTTP status that says so, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


async def read_body(request: Request, limit: int) -> bytes:
    """A request's body of at most ``limit`` bytes of JSON. Its size is judged before it is read, and again while it is.

    An empty body has no media type to judge.
    """
    too_large = BadBody(413, f"the body is larger than {limit} bytes")
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                data += piece
                if len(data) > limit:
                    raise too_large
    except TimeoutError:
        raise BadBody(408, TOO_SLOW) from None
    except ClientDisconnect:
        raise BadBody(400, "the connection ended inside the body") from None
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and media_type != "application/json":
        raise BadBody(415, "the body must be application/json")
    return bytes(data)
