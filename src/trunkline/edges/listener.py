"""A web listener for whichever edge needs one: HTTP/1.1 and WebSockets on one address, on our loop, TLS if wanted.

Owns the address and the end of all that came by it. Does not own what holds for one connection (``web_connection``).
uvicorn's ``Server`` is not used: it polls ten times a second, takes the signals and sleeps while it stops; its protocol
class is all we need.

Invariant: after ``stop`` no connection is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Final

from starlette.types import ASGIApp
from uvicorn.config import Config

from trunkline.addresses import shown
from trunkline.edges.address import Address
from trunkline.edges.log_lines import FewLines, without_text
from trunkline.edges.patience import LastWords
from trunkline.edges.web_connection import Connection, Connections, Handshake
from trunkline.edges.websocket import MAX_SOCKET_MESSAGE_BYTES, PING_S, Socket

BACKLOG: Final = 1024
# How long `stop` waits for answers that are on their way.
STOP_S: Final = 3.0


class WebListener:
    """Serves an application on one address. ``start`` once, ``stop`` once."""

    def __init__(self, app: ASGIApp, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._address = address
        self._tls = tls
        # Where it listens, once it does.
        self.url = ""
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None
        self._last_words: LastWords
        self._few_lines = FewLines()

    async def start(self) -> None:
        """Listen (port 0 takes a free one). ``ConfigError`` or ``EdgeOff`` if the address is taken."""
        connections = self._connections = Connections()
        config = Config(
            self._app,
            interface="asgi3",
            http=Connection,
            ws=Socket,
            ws_max_size=MAX_SOCKET_MESSAGE_BYTES,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            # Below that uvicorn has a line for each request that is not HTTP: a stranger could fill the log.
            log_level="error",
            access_log=False,
            proxy_headers=False,
        )
        config.load()
        log = logging.getLogger("uvicorn.error")
        log.addFilter(without_text)
        address, tls = self._address, self._tls
        loop = asyncio.get_running_loop()

        def plain() -> Connection:
            return Connection(config, connections, {})

        factory = plain if tls is None else lambda: Handshake(loop, tls, connections, plain)
        try:
            self._server = await loop.create_server(factory, address.host, address.port, backlog=BACKLOG)
        except OSError as error:
            raise address.taken(error) from None
        log.addFilter(self._few_lines)
        self._last_words = LastWords(loop)
        self._last_words.watch(connections.connections)
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://{shown(host, port)}"

    def close(self) -> None:
        """Take nobody new, and no new request on what is open. Once: a WebSocket says goodbye only once."""
        if self._server is not None and self._connections is not None and self._server.is_serving():
            self._server.close()
            for handshake in tuple(self._connections.handshakes):
                handshake.cancel()
            for connection in tuple(self._connections.connections):
                connection.shutdown()

    async def stop(self) -> None:
        """Give answers that are on their way a moment, then end what is left."""
        self.close()
        if self._server is None or self._connections is None:
            return
        if self._connections.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._connections.gone.wait()
        for connection in tuple(self._connections.connections):
            connection.transport.abort()
        self._last_words.stop()
        logging.getLogger("uvicorn.error").removeFilter(self._few_lines)
        self._server = None
