"""The bare two-hop relay, 1.00 of the table: frames from the one connection to the other, and nothing else.

It finds where a frame ends, as anything must that can send two of them to two places, and writes every few frames, as
the exchange does. No JSON, no checks, no record. ``python -m bench.relay SOCKET``: the first to connect is the
provider, the second the caller.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import uvloop

from bench.loads import wait_for_end

# As in the exchange, so that the shape of the traffic is the same.
FLUSH_EVERY: Final = 8


class Side(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self, sides: list[Side]) -> None:
        self._sides = sides
        self._rest = b""
        self.other: Side | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The second finds the first."""
        self.transport = cast("asyncio.Transport", transport)
        self._sides.append(self)
        if len(self._sides) == 2:
            self.other = self._sides[0]
            self.other.other = self

    def data_received(self, data: bytes) -> None:
        """Each frame by itself to the other side."""
        assert self.other is not None
        write = self.other.transport.write
        if self._rest:
            data = self._rest + data
        size = len(data)
        at = 0
        frames: list[bytes] = []
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > size:
                break
            frames.append(data[at:end])
            at = end
            if len(frames) == FLUSH_EVERY:
                write(b"".join(frames))
                frames.clear()
        if frames:
            write(b"".join(frames))
        self._rest = data[at:]


async def main(path: str) -> None:
    """Listen until the run ends us."""
    sides: list[Side] = []
    server = await asyncio.get_running_loop().create_unix_server(lambda: Side(sides), path)
    await wait_for_end()
    server.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
