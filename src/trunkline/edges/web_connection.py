"""One connection of a web listener: uvicorn's HTTP/1.1, with the bounds that it lacks.

Owns how many connections there are, how long a head may take, how large it may be, in which order requests are
answered, and who is let into a handshake of TLS. Does not own the address (``listener``), what is said on a connection
(an ASGI application), how long a reader may not read (``patience``), nor what becomes of one that is a WebSocket
(``websocket``).

Invariant: no connection lives without either a request being answered or a deadline running.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast
from weakref import ref

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from trunkline.edges.answers import error_body
from trunkline.edges.bodies import LATE
from trunkline.edges.patience import Patience
from trunkline.edges.request_scope import ANSWER, CLOSED, LOST, PEER_PIN, RESERVED, TryTake
from trunkline.edges.tls import pin_of
from trunkline.model import Fault, fault

# From the first byte (or the connect) to the end of the head, in total and not for each byte.
HEAD_TIMEOUT_S: Final = 5.0
# A body that takes longer to arrive is not coming; the same bound as for one frame on the socket edges.
BODY_TIMEOUT_S: Final = 30.0
# Request line and headers. Others chose 8 KiB (nginx) to 64 KiB (h11); ours are a token and a few names. As much may
# come at a time between two pieces of a body, or after the last: sizes and extensions of chunks, trailers.
MAX_HEAD_BYTES: Final = 32_768
# Between two requests on one connection.
KEEP_ALIVE_S: Final = 15
# Requests of one connection that wait for the answer to the one before: some 2 KiB each.
MAX_PIPELINED: Final = 256
# After an answer that came before the body was read: time for the client to see it.
LINGER_S: Final = 2.0
# Half of the usual limit of 1,024 open files; an idle connection makes room for a new one.
MAX_CONNECTIONS: Final = 512
# More that the application is told of: it keeps them for somebody who must always get through.
RESERVED_CONNECTIONS: Final = 32
# When to try whether one that closed its side still reads, after the first time. Five interim answers at most: some
# clients take no more.
TRY_AFTER_S: Final = (0.1, 0.5, 2.5, 12.5)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

# What is said to what is not taken.
LARGE_HEAD: Final = 431, fault("message.malformed", f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
MUCH_BESIDE: Final = 431, fault("message.malformed", f"more than {MAX_HEAD_BYTES} bytes beside the request's body")
MANY_PIPELINED: Final = 429, fault("limit.inflight", f"{MAX_PIPELINED} requests wait on this connection")
NOT_HTTP: Final = 400, fault("message.malformed", "this is not HTTP/1.1")

# What every answer says: nothing here belongs in a cache, and nothing is to be guessed.
DEFAULT_HEADERS: Final = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_JSON_HEAD: Final = (
    b"".join(b"%b: %b\r\n" % header for header in [*DEFAULT_HEADERS, (b"content-type", b"application/json")])
    + b"content-length: "
)


def answer_at_once(asked: ref[RequestResponseCycle], status: int, body: bytes) -> None:
    """Answer a request with JSON, head and body in one write: two take 10 µs more, a sixth of a whole call."""
    cycle = asked()
    if cycle is None or cycle.disconnected or cycle.response_started:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    cycle.transport.write(b"%b%b%d%b%b" % (STATUS_LINE[status], _JSON_HEAD, len(body), end, body))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class Connections(ServerState):
    """All connections of one listener, and the moment when none is left."""

    def __init__(self) -> None:
        super().__init__()
        self.default_headers = DEFAULT_HEADERS
        self.gone = asyncio.Event()
        # Those that are not encrypted yet, where there is TLS, the oldest first.
        self.handshakes: dict[asyncio.Task[bool], None] = {}


class Flow(FlowControl):
    """When a connection is read. uvicorn reads on for each answer; here not before the waiting requests were begun."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_held = False

    def resume_reading(self) -> None:
        """Read on, unless something of what was read is still to be begun, or an answer to be read."""
        if not self.is_held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """One connection, with a deadline whenever it is the client's turn."""

    server_state: Connections
    flow: Flow

    def __init__(self, config: Config, server_state: Connections, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._in_head = True
        self._in_body = False
        # Of a head that is on its way: what surely belongs to it, and what may, since it came in the same reads.
        self._head_bytes = 0
        self._head_bytes_at_most = 0
        self._read_bytes = 0
        # Why the parser was stopped at a head.
        self._refusal: tuple[int, Fault] | None = None
        self._head_deadline: asyncio.TimerHandle | None = None
        # Until when it may rest between two requests; 0 while it does not. One timer looks at it now and then: one for
        # each rest takes 4 µs of a request.
        self._rests_until = 0.0
        self._rest_timer: asyncio.TimerHandle | None = None
        self._body_deadline: asyncio.TimerHandle | None = None
        self._patience: Patience
        # What came of the body of a request since its last piece that was no piece of it.
        self._beside_body = 0
        # Nothing is read any more: the connection ends with the answers to what was read.
        self._is_deaf = False
        # What is said to what cannot be taken, after those answers.
        self._last_word: tuple[int, Fault] | None = None
        # An answer is complete and waits to be read: only then the next request is looked at.
        self._awaits_reader = False
        self._try: asyncio.TimerHandle | None = None
        # The request whose turn it is, until all that came with it was looked at.
        self._unbegun: tuple[RequestResponseCycle, ASGIApp] | None = None
        self._try_take: TryTake | None = getattr(config.loaded_app, "try_take", None)
        # It came when all others were busy; it is an ordinary one as soon as one of them is gone.
        self._may_be_reserved = False
        # Told when the connection is lost: requests that still wait for something.
        self._lost: list[Callable[[], None]] = []
        # The same, where a client that closed its side is not waited for.
        self._closed: list[Callable[[], None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered here."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def _is_reserved(self) -> bool:
        return self._may_be_reserved and len(self.connections) > MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new client, at the expense of an idle one if there is no room."""
        if len(self.connections) >= MAX_CONNECTIONS:
            idle = next((other for other in self.connections if isinstance(other, Connection) and other.is_idle), None)
            if idle is not None:
                idle.transport.abort()
                self.connections.discard(idle)
        super().connection_made(transport)
        self.flow = Flow(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and (certificate := tls.getpeercert(binary_form=True)):
            # In the scope's state of each request, and of a WebSocket.
            self.app_state[PEER_PIN] = pin_of(certificate)
        self._patience = Patience(self.loop, transport)
        self.server_state.gone.clear()
        self._may_be_reserved = len(self.connections) > MAX_CONNECTIONS
        if len(self.connections) > MAX_CONNECTIONS + RESERVED_CONNECTIONS:
            self._say(503, fault("limit.resource", "too many connections"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers with the connection."""
        for deadline in (self._head_deadline, self._body_deadline, self._rest_timer, self._try):
            if deadline is not None:
                deadline.cancel()
        self._patience.end()
        super().connection_lost(exc)
        for told in self._lost + self._closed:
            told()
        if not self.connections:
            self.server_state.gone.set()

    def data_received(self, data: bytes) -> None:
        """Bytes. Of a head only so many, and only for so long."""
        if self._is_deaf or self.transport.is_closing():
            return
        self._read_bytes = len(data)
        if self._in_head:
            self._head_bytes += self._read_bytes
            self._head_bytes_at_most += self._read_bytes
        else:
            self._beside_body += self._read_bytes
        self._rests_until = 0.0
        super().data_received(data)
        if self._in_head and self._head_bytes and self.is_idle:
            # Behind a request that is being answered it has time: an empty line too many is no reason to end that.
            self._await_head()
        if self._in_body:
            if self._body_deadline is None:
                self._body_deadline = self.loop.call_later(BODY_TIMEOUT_S, self._say_late)
            if self._beside_body > MAX_HEAD_BYTES:
                self._refuse(*MUCH_BESIDE)
        elif self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(*LARGE_HEAD)
        self._begin()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._unbegun = cycle, app

    def _begin(self) -> None:
        """Begin with the request whose turn it is, in a task unless the application takes it without one."""
        if self._unbegun is None:
            return
        cycle, app = self._unbegun
        self._unbegun = None
        serve: Callable[[Any], None] = partial(super()._start_asgi_task, cycle)
        scope: Any = cycle.scope
        if cycle.more_body or self._try_take is None or not self._try_take(scope, bytes(cycle.body), serve):
            serve(app)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's contract; uvicorn never keeps it open
        """The client will say no more; whoever has asked and waits may still read the answer (RFC 9112 9.6).

        One that closed its side and one that left look the same. An answer that has begun (a stream) is not for
        somebody who may have left; before that, an interim answer tells: to one that left it ends the connection.
        """
        if self.is_idle or self._in_body or self._closed or self.scheme != "http":
            return False
        if self.cycle.response_started and not self.pipeline:
            return False
        if not self._is_deaf:
            self._hear_no_more()
            self._try_reader(0)
        return True

    def _try_reader(self, count: int) -> None:
        cycle = self.cycle
        if (
            self.pipeline
            or cycle.response_started
            or self.transport.is_closing()
            or self.scope["http_version"] != "1.1"
        ):
            return
        self.transport.write(CONTINUE)
        if count < len(TRY_AFTER_S):
            self._try = self.loop.call_later(TRY_AFTER_S[count], self._try_reader, count + 1)

    def _hear_no_more(self) -> None:
        """Answer what was read, in its order, and close."""
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _refuse(self, status: int, found: Fault) -> None:
        """Answer what cannot be taken, and close; after the answers to what came before it."""
        if self._is_deaf or self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_body and cycle is not None:
            # It is the body of this request that cannot be taken.
            if self.pipeline or (cycle.response_started and not cycle.response_complete):
                self._end()
            elif cycle.response_complete:
                # It has its answer, and a moment to see it.
                self._is_deaf = True
            else:
                self._say(status, found)
                cycle.disconnected = True
                cycle.message_event.set()
        elif self.is_idle:
            self._say(status, found)
        else:
            self._is_deaf = True
            self._last_word = status, found

    def _await_head(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._end)

    def _end(self) -> None:
        # abort, not close: close would wait for a reader who may never read.
        self.transport.abort()

    def on_headers_complete(self) -> None:
        """The head is there, and is judged by its size; what follows has a deadline of its own."""
        if self._head_bytes_at_most > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES:
            self._refusal = LARGE_HEAD
        elif self.pipeline and len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = MANY_PIPELINED
        if self._refusal is not None:
            # The parser stops, and has ``send_400_response`` called.
            raise ValueError
        extensions: dict[str, Any] = {LOST: self._lost, CLOSED: self._closed}
        if self._is_reserved:
            extensions[RESERVED] = True
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self.pipeline:
            self.flow.is_held = True
        # From here on it is a request: what is wrong with its head was found above.
        self._in_head = False
        self._in_body = True
        self._head_bytes = self._head_bytes_at_most = self._beside_body = 0
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        cycle: RequestResponseCycle | None = self.cycle
        # What becomes a WebSocket has none.
        if cycle is not None:
            # Weakly: the cycle holds this scope, and a circle would be left to the collector, 6 µs a call.
            extensions[ANSWER] = partial(answer_at_once, ref(cycle))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. What comes under that name after the body (a trailer) nobody asked for: it is not kept."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._beside_body = 0
        super().on_body(body)

    def handle_websocket_upgrade(self) -> None:
        """A conversation that lasts does not take a reserved place, nor the place of a request before it."""
        if not self.is_idle or self.flow.write_paused:
            self._hear_no_more()
        elif self._is_reserved:
            self._say(503, fault("limit.resource", "too many connections"))
        else:
            super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Another protocol was offered; we answer in this one, and the parser takes nothing more."""
        self._hear_no_more()

    def _head_size(self) -> int:
        """Of the head that was just read, however many reads it came in and whatever else came with it."""
        # A colon, a space and the line's end for each header.
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _say_late(self) -> None:
        """The body did not come in time: whoever reads it is woken, and finds it so."""
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_body and cycle is not None:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[LATE] = True
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request is complete; the next bytes are another head, and may have come already."""
        self._in_head = True
        self._head_bytes_at_most = self._read_bytes
        self._in_body = False
        if self._body_deadline is not None:
            self._body_deadline.cancel()
            self._body_deadline = None
        super().on_message_complete()
        if self.flow.read_paused:
            # It was paused for the body, which is here: who leaves now is to be noticed.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """An answer is complete. If its request is not, the client gets a moment to notice."""
        if self.flow.write_paused and not self.transport.is_closing():
            # Whoever does not read is not answered again: answers would pile up.
            self._awaits_reader = self.flow.is_held = True
            self.flow.pause_reading()
            return
        # The next one is begun below.
        self.flow.is_held = len(self.pipeline) > 1
        if self._last_word is not None and not self.pipeline and not self.transport.is_closing():
            self._say(*self._last_word)
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._rest()
        self._begin()
        if self._in_body and self._head_deadline is None:
            self._head_deadline = self.loop.call_later(LINGER_S, self._end)

    def _rest(self) -> None:
        """Nothing is asked; it may be so for a while."""
        self._rests_until = self.loop.time() + KEEP_ALIVE_S
        if self._rest_timer is None:
            self._rest_timer = self.loop.call_later(KEEP_ALIVE_S, self._look_at_rest)

    def _look_at_rest(self) -> None:
        self._rest_timer = None
        left_s = self._rests_until - self.loop.time()
        if self._rests_until and left_s > 0:
            self._rest_timer = self.loop.call_later(left_s, self._look_at_rest)
        elif self._rests_until:
            self._end()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._patience.begin()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._patience.end()
        if self._awaits_reader:
            self._awaits_reader = False
            self.on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  its words are not ours
        """What the parser cannot read, or was not let read on, in our words."""
        self._refuse(*(self._refusal or NOT_HTTP))

    def _say(self, status: int, found: Fault) -> None:
        """Answer without a request, and end."""
        body = error_body(found)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class Handshake(asyncio.Protocol):
    """A connection that is to be encrypted: it counts as one from the start, and has only so long.

    asyncio tells nobody of a connection before its handshake is done, so nobody could count or end it. So this one
    takes the bare connection and does the handshake in a task; who has been at it the longest makes room for others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext,
        connections: Connections,
        connection: Callable[[], Connection],
    ) -> None:
        self._loop = loop
        self._tls = tls
        self._connections = connections
        self._connection = connection
        self._socket: socket.socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there. Nothing was read yet: the socket goes on without this transport."""
        try:
            self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:
            # No file is left, or he is gone.
            return
        finally:
            cast("asyncio.Transport", transport).abort()
        task = self._loop.create_task(self._shake_hands())
        waiting = self._connections.handshakes
        waiting[task] = None
        task.add_done_callback(self._done)
        if len(waiting) + len(self._connections.connections) > MAX_CONNECTIONS + RESERVED_CONNECTIONS:
            next(iter(waiting)).cancel()

    async def _shake_hands(self) -> bool:
        try:
            await self._loop.connect_accepted_socket(
                self._connection,
                self._socket,
                ssl=self._tls,
                ssl_handshake_timeout=HEAD_TIMEOUT_S,
                ssl_shutdown_timeout=LINGER_S,
            )
        except OSError:
            # Too slow, gone, or no TLS that we take.
            return False
        return True

    def _done(self, task: asyncio.Task[bool]) -> None:
        del self._connections.handshakes[task]
        if task.cancelled() or not task.result():
            self._socket.close()
