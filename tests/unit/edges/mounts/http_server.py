"""A server of HTTP/1.1 on a port of its own that answers whatever a test wants, bytes as they are."""

from __future__ import annotations

import abc
import asyncio

# At the end of an answer: close the connection after it.
CLOSE = b"<close>"


class HttpServer(abc.ABC):
    """Answers each request with what its child's ``respond`` gives."""

    def __init__(self) -> None:
        # How many connections there were, and how many there are.
        self.connections = self.open = 0
        self.port = 0
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    @abc.abstractmethod
    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        """The whole answer to one request."""

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = head[0].split()
                said = self.respond(method, target, headers, body)
                writer.write(said.removesuffix(CLOSE))
                if said.endswith(CLOSE):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        self.open -= 1
        writer.transport.abort()


def answered(status: int, body: bytes = b"", kind: str = "text/plain", **headers: str) -> bytes:
    """A whole answer; a dash in the name of a header is an underscore here."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body
