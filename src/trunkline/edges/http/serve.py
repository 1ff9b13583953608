"""The listener: uvicorn's HTTP/1.1 protocol on our loop, with the deadlines and bounds it lacks.

Owns connections: how many, how long a head may take, how large it may be, how long a reader may not read. Does not
own what is said on them (``routes``). uvicorn's ``Server`` is not used: it polls ten times a second, takes the
signals and sleeps while it stops; its protocol class is all we need.

Invariant: no connection lives without either a request being answered or a deadline running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import traceback
from collections.abc import Sequence
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from trunkline.edges.doors import Door
from trunkline.edges.exchange import Exchange
from trunkline.edges.http import translate
from trunkline.edges.http.routes import Api
from trunkline.edges.http.session import HttpSession
from trunkline.errors import ConfigError
from trunkline.model import Fault, fault

# From the first byte (or the connect) to the end of the head, in total and not for each byte.
HEAD_TIMEOUT_S: Final = 5.0
# Request line and headers. Others chose 8 KiB (nginx) to 64 KiB (h11); ours are a token and a few names.
MAX_HEAD_BYTES: Final = 32_768
# Between two requests on one connection.
KEEP_ALIVE_S: Final = 15
# A reader who takes nothing for so long is gone.
WRITE_TIMEOUT_S: Final = 10.0
# After an answer that came before the body was read: time for the client to see it.
LINGER_S: Final = 2.0
# Half of the usual limit of 1,024 open files; an idle connection makes room for a new one.
MAX_CONNECTIONS: Final = 512
BACKLOG: Final = 1024
# A message on a WebSocket: the largest that a door behind this listener takes (an operations message).
MAX_SOCKET_MESSAGE_BYTES: Final = 16_777_216
# A WebSocket's sign of life, and how long its answer may take.
PING_S: Final = 20.0
# How long `stop` waits for answers that are on their way.
STOP_S: Final = 3.0

# What every answer says: nothing here belongs in a cache, and nothing is to be guessed.
DEFAULT_HEADERS: Final = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class Connections(ServerState):
    """All connections of one listener, and the moment when none is left."""

    def __init__(self) -> None:
        super().__init__()
        self.default_headers = DEFAULT_HEADERS
        self.gone = asyncio.Event()


class Connection(HttpToolsProtocol):
    """One connection, with a deadline whenever it is the client's turn."""

    server_state: Connections

    def __init__(self, config: Config, server_state: Connections, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._unwritten = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered here."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new client, at the expense of an idle one if there is no room."""
        if len(self.connections) >= MAX_CONNECTIONS:
            idle = next((other for other in self.connections if isinstance(other, Connection) and other.is_idle), None)
            if idle is not None:
                idle.transport.abort()
                self.connections.discard(idle)
        super().connection_made(transport)
        self.server_state.gone.clear()
        if len(self.connections) > MAX_CONNECTIONS:
            self._say(503, fault("limit.resource", "too many connections"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers with the connection."""
        for deadline in (self._head_deadline, self._write_deadline):
            if deadline is not None:
                deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if not self.connections:
            self.server_state.gone.set()

    def data_received(self, data: bytes) -> None:
        """Bytes. Of a head only so many, and only for so long."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            self._await_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._say(431, fault("message.malformed", f"the request's head is larger than {MAX_HEAD_BYTES} bytes"))

    def _await_head(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._end)

    def _end(self) -> None:
        # abort, not close: close would wait for a reader who may never read.
        self.transport.abort()

    def on_headers_complete(self) -> None:
        """The head is there; what follows has its own deadline in ``routes``."""
        self._in_head = False
        self._in_body = True
        self._head_bytes = 0
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is complete; the next bytes are another head."""
        self._in_head = True
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is complete. If its request is not, the client gets a moment to notice."""
        super().on_response_complete()
        if self._in_body and self._head_deadline is None:
            self._head_deadline = self.loop.call_later(LINGER_S, self._end)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for a while."""
        self._end()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._unwritten = self.transport.get_write_buffer_size()
        self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_S, self._judge_reader)

    def _judge_reader(self) -> None:
        """A slow reader is patience; one who took nothing at all since the last look is gone."""
        unwritten = self.transport.get_write_buffer_size()
        if unwritten >= self._unwritten:
            self._end()
            return
        self._unwritten = unwritten
        self._write_deadline = self.loop.call_later(WRITE_TIMEOUT_S, self._judge_reader)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  its words are not ours
        """What the parser cannot read, in our words."""
        self._say(400, fault("message.malformed", "this is not HTTP/1.1"))

    def _say(self, status: int, found: Fault) -> None:
        """Answer without a request, and end."""
        body = translate.error(found)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class Socket(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket; only doors have any."""

    def __init__(self, config: Config, server_state: Connections, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._gone = server_state.gone

    def connection_lost(self, exc: Exception | None) -> None:
        """The listener waits for the last one when it stops."""
        super().connection_lost(exc)
        if not self.connections:
            self._gone.set()

    async def send(self, message: Any) -> None:
        """A refusal is an answer, and no reason to complain of a handshake that was not completed."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True


def without_text(record: logging.LogRecord) -> bool:
    """Log where a defect of ours is, without the exception's text: that may hold a payload."""
    if record.exc_info and record.exc_info[1] is not None:
        frames = traceback.extract_tb(record.exc_info[2])
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
        record.msg, record.args = "a request failed: %s at %s", (type(record.exc_info[1]).__name__, place)
        record.exc_info = record.exc_text = None
    return True


class HttpListener:
    """Serves the routes on one address. ``start`` once, ``stop`` once."""

    def __init__(self, exchange: Exchange, host: str, port: int, doors: Sequence[Door] = ()) -> None:
        self._exchange = exchange
        self._doors = doors
        self._host = host
        self._port = port
        # Where it listens, once it does.
        self.url = ""
        self._session: HttpSession | None = None
        self._connections: Connections | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; the address in use (port 0 takes a free one). ``ConfigError`` if it is taken."""
        self._session = HttpSession(self._exchange)
        connections = self._connections = Connections()
        config = Config(
            Api(self._exchange, self._session, self._doors).app(),
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
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(without_text)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(config, connections, {}), self._host, self._port, backlog=BACKLOG
            )
        except OSError as error:
            self._session.forget()
            place = f"{self._host}:{self._port}"
            problem = f"cannot listen here: {os.strerror(error.errno or 0)}; choose another address in [http] listen"
            raise ConfigError(problem, place) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return str(host), int(port)

    async def stop(self) -> None:
        """Take nobody new, end the streams, give answers that are on their way a moment, then end what is left."""
        if self._server is None or self._session is None or self._connections is None:
            return
        self._server.close()
        self._session.close()
        for connection in tuple(self._connections.connections):
            connection.shutdown()
        if self._connections.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._connections.gone.wait()
        for connection in tuple(self._connections.connections):
            connection.transport.abort()
        self._session.forget()
        self._server = None
