"""Messages of an MCP client on stdin to the exchange's ``/mcp``, and what it answers to stdout.

A line is a message. Owns connections to the exchange and which answer belongs to which request; reads of a message only
what tells how to send it: its method, its id, the version. Threads, because each request waits on its own and importing
an event loop and an HTTP client for it would double the time to start.

Invariant: each request that was read is answered with one line, by the exchange or with an error of ours.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from trunkline.error_words import in_words

# The exchange takes messages of a little more than one MiB; a line that does not end is no message.
MAX_LINE_BYTES: Final = 4_194_304
# Requests that wait for an answer at the same time; more of them wait for their turn.
MAX_REQUESTS: Final = 64
# The exchange shows a sign of life every 15 s.
TIMEOUT_S: Final = 45.0
# After the client closed our stdin: time for answers that are on their way.
LAST_ANSWERS_S: Final = 5.0

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
# Which parameter of a method stands in a header, too.
NAMED_BY: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
# These last as long as the client wants: each has a thread of its own.
LASTING: Final = frozenset({"subscriptions/listen"})
INTERNAL_ERROR: Final = -32603
PARSE_ERROR: Final = -32700


class Bridge:
    """One client, until it closes our stdin."""

    def __init__(self, url: str, token: str, find: Callable[[], str]) -> None:
        self._url = url
        self._token = token
        # Where the exchange is now, if it was started again.
        self._find = find
        self._source: BinaryIO = sys.stdin.buffer
        self._out_lock = threading.Lock()
        self._session_id = ""
        # Connections of requests that wait, by the requests' ids.
        self._waiting: dict[object, http.client.HTTPConnection] = {}
        self._idle: list[http.client.HTTPConnection] = []
        self._is_listening = False

    def run(self) -> None:
        """Pass messages on until there are no more."""
        workers = ThreadPoolExecutor(MAX_REQUESTS)
        running: set[Future[None]] = set()
        while line := self._source.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                self._refuse(None, PARSE_ERROR, f"a message has at most {MAX_LINE_BYTES} bytes")
                break
            if line.strip():
                running = {one for one in running if not one.done()}
                self._take(line.strip(), workers, running)
        wait(running, LAST_ANSWERS_S)
        sys.stdout.buffer.flush()
        # Streams of the exchange last, and their threads with them; nobody reads them any more.
        os._exit(0)

    def _take(self, line: bytes, workers: ThreadPoolExecutor, running: set[Future[None]]) -> None:
        """One message: what has to be in order is done here, the rest beside."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(None, PARSE_ERROR, "not JSON")
            return
        if not isinstance(message, dict):
            message = {}
        method, request_id = message.get("method"), _id_of(message)
        if request_id is None:
            self._notified(message, line)
        elif method == "initialize":
            self._ask(message, line)
        elif isinstance(method, str) and method in LASTING:
            threading.Thread(target=self._ask, args=(message, line), daemon=True).start()
        else:
            running.add(workers.submit(self._ask, message, line))

    def _notified(self, message: dict[str, Any], line: bytes) -> None:
        params = message.get("params")
        if not self._session_id:
            # A client of 2026-07-28 cancels by closing the connection of its request: here we do that for it.
            canceled = params.get("requestId") if isinstance(params, dict) else None
            if message.get("method") == "notifications/cancelled" and isinstance(canceled, int | str):
                self._close(self._waiting.pop(canceled, None))
                return
        self._ask(message, line)
        if message.get("method") == "notifications/initialized" and self._session_id and not self._is_listening:
            self._is_listening = True
            threading.Thread(target=self._listen, daemon=True).start()

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, message: dict[str, Any], line: bytes) -> None:
        request_id = _id_of(message)
        try:
            self._pass_on(message, line, request_id)
        except (OSError, http.client.HTTPException) as error:
            if request_id is not None and request_id in self._waiting:
                text = f"the exchange went away ({in_words(error)}); start it with `trunkline up`"
                self._refuse(request_id, INTERNAL_ERROR, text)
        finally:
            self._waiting.pop(request_id, None)

    def _pass_on(self, message: dict[str, Any], line: bytes, request_id: object) -> None:
        headers = self._headers(message)
        connection = self._sent("POST", line, headers, request_id)
        answer = connection.getresponse()
        session_id = answer.getheader("mcp-session-id")
        if session_id:
            self._session_id = session_id
        if answer.status == 202:
            answer.read()
        elif answer.status in {401, 403}:
            answer.read()
            text = "the token of this client is not valid (any more); `trunkline token list` shows those that are"
            self._refuse(request_id, INTERNAL_ERROR, text)
        elif (answer.getheader("content-type") or "").startswith("text/event-stream"):
            for data in _events(answer):
                self._write(data)
        else:
            data = answer.read()
            if request_id is not None or answer.status >= 400:
                self._write(data)
        if answer.isclosed() and not answer.will_close:
            self._idle.append(connection)
        else:
            connection.close()

    def _listen(self) -> None:
        """What belongs to no request, in a session."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            headers = {"Accept": "text/event-stream", "Mcp-Session-Id": self._session_id}
            connection = self._sent("GET", None, headers, None)
            answer = connection.getresponse()
            if answer.status == 200:
                for data in _events(answer):
                    self._write(data)
        self._is_listening = False

    def _sent(
        self, method: str, body: bytes | None, headers: dict[str, str], request_id: object
    ) -> http.client.HTTPConnection:
        """A connection on which this request was sent: one that is there, else a new one, to wherever it is now."""
        headers = {**headers, "Authorization": f"Bearer {self._token}"}
        while (connection := self._taken()) is not None:
            self._waiting[request_id] = connection
            if not _is_closed(connection):
                connection.request(method, "/mcp", body, headers)
                return connection
            connection.close()
        try:
            connection = self._connected(request_id)
        except ConnectionRefusedError:
            # It may have been started again, on another port.
            self._url = self._found()
            connection = self._connected(request_id)
        connection.request(method, "/mcp", body, headers)
        return connection

    def _taken(self) -> http.client.HTTPConnection | None:
        """A connection that nobody uses; another thread may be quicker."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connected(self, request_id: object) -> http.client.HTTPConnection:
        place = urlsplit(self._url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)
        self._waiting[request_id] = connection
        connection.connect()
        return connection

    def _found(self) -> str:
        from trunkline.errors import ExchangeUnreachable

        try:
            return self._find()
        except ExchangeUnreachable as error:
            raise ConnectionRefusedError(str(error)) from None

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if isinstance(params, dict) and isinstance(version, str):
            headers |= {"MCP-Protocol-Version": _header(version), "Mcp-Method": _header(str(message.get("method")))}
            name = params.get(NAMED_BY.get(str(message.get("method")), ""))
            if isinstance(name, str):
                headers["Mcp-Name"] = _header(name)
        elif self._session_id:
            headers["Mcp-Session-Id"] = self._session_id
        return headers

    # -- answering -----------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        """One line; a break that a tool's output has between two of its parts is as good as a space."""
        line = data.replace(b"\r", b" ").replace(b"\n", b" ")
        with self._out_lock:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()

    def _refuse(self, request_id: object, code: int, text: str) -> None:
        error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
        self._write(json.dumps(error).encode())

    def _close(self, connection: http.client.HTTPConnection | None) -> None:
        if connection is not None and connection.sock is not None:
            import socket

            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _id_of(message: dict[str, Any]) -> int | str | None:
    """A request's id; None of a notification, and of what the exchange will refuse."""
    found = message.get("id")
    return found if isinstance(found, int | str) else None


def _events(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The data of server-sent events, as they come."""
    data: list[bytes] = []
    while line := answer.readline():
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"data":
            data.append(value)
        elif not field and data:
            yield b" ".join(data)
            data = []


def _header(value: str) -> str:
    """A text as a header can hold it; any other in base64, between marks."""
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side ended an idle connection meanwhile."""
    import select

    if connection.sock is None:
        return True
    readable, _, _ = select.select([connection.sock], [], [], 0)
    return bool(readable)
