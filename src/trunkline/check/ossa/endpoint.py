"""An OSSA endpoint as it is reached: HTTPS requests, WebSockets, and what TLS it speaks.

Owns connections and nothing of what is said in them. The certificate that is shown is trusted, and its fingerprint kept
for the report: the suite asks what an endpoint does, not who it is.

Invariant: nothing here waits without an end.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from trunkline.check.ossa.wire import MAX_MESSAGE_BYTES, Message
from trunkline.check.suite import Failed
from trunkline.error_words import in_words

MESSAGES: Final = "/ossa/v1/messages"
SOCKET: Final = "/ossa/v1/ws"
KEYS: Final = "/ossa/v1/keys"
# An endpoint that takes longer for an ordinary answer is as good as gone.
PATIENCE_S: Final = 10.0
# Requests on their way at once: one thread each.
AT_ONCE: Final = 32
NEEDS_SOCKET: Final = (
    f"Serve a WebSocket at {SOCKET}, with one message in each text frame: the suite is called, told of events and sent "
    "streams by it, and cannot try these cases without."
)
# What is shown of an answer in a report.
_SHOWN_CHARS: Final = 160

Returned = TypeVar("Returned")


class Unreachable(Exception):
    """Nobody speaks TLS there, or it went away."""


@dataclass(frozen=True)
class Answer:
    """What came back on an HTTP request."""

    status: int
    body: bytes

    @property
    def value(self) -> Any:
        """The body as JSON; None if it is empty or no JSON."""
        try:
            return json.loads(self.body) if self.body.strip() else None
        except (ValueError, RecursionError):
            return None

    @property
    def message(self) -> Message:
        """The one message in it; empty if there is none."""
        value = self.value
        return value if isinstance(value, dict) else {}

    @property
    def messages(self) -> list[Message]:
        """All messages in it."""
        value = self.value
        return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else [self.message]

    def __str__(self) -> str:
        return f"HTTP {self.status}, {described(self.message) if self.message else _cut(self.body)}"


def described(message: Message) -> str:
    """A message in a few words."""
    header, body = message.get("header"), message.get("body")
    if not isinstance(header, dict) or not isinstance(body, dict):
        return _cut(json.dumps(message).encode())
    if isinstance(error := body.get("error"), dict):
        return f"{header.get('type')} {error.get('code')} ({str(error.get('message'))[:_SHOWN_CHARS]})"
    return f"{header.get('type')} with payload {_cut(json.dumps(body.get('payload')).encode())}"


def _cut(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return "an empty body" if not text else text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Endpoint:
    """Where the endpoint is, and connections to it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        if parts.scheme not in {"https", "wss"} or not parts.hostname:
            raise ValueError("expected https://HOST:PORT")
        self.host = parts.hostname
        self.port = parts.port or 443
        self._prefix = parts.path.removesuffix(MESSAGES).removesuffix(SOCKET).rstrip("/")
        self._tls = _trusting()
        self._threads = ThreadPoolExecutor(AT_ONCE, "ossa-check")
        self._idle: list[http.client.HTTPSConnection] = []
        self.fingerprint = ""
        self.tls_version = ""
        self._had_socket = False
        self._no_socket: Failed | None = None

    @property
    def url(self) -> str:
        """Its address, without what is below it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self._prefix}"

    async def reach(self) -> None:
        """Connect once, for the certificate; ``Unreachable`` if that is not possible."""
        try:
            await self._in_thread(self._look)
        except OSError as error:
            raise Unreachable(f"{self.url}: {in_words(error)}") from None

    def _look(self) -> None:
        address = (self.host, self.port)
        with (
            socket.create_connection(address, PATIENCE_S) as plain,
            self._tls.wrap_socket(plain, server_hostname=self.host) as secure,
        ):
            shown = secure.getpeercert(binary_form=True) or b""
            self.fingerprint = hashlib.sha256(shown).hexdigest()
            self.tls_version = secure.version() or ""

    async def post(self, body: bytes, timeout_s: float = PATIENCE_S) -> Answer:
        """Send what may be a message."""
        return await self._in_thread(self._request, "POST", MESSAGES, body, timeout_s)

    async def get(self, path: str) -> Answer:
        """Ask for a page below the endpoint's address."""
        return await self._in_thread(self._request, "GET", path, None, PATIENCE_S)

    async def open_socket(self) -> ClientConnection:
        """A new WebSocket; ``Failed`` if there is none, with the same words for every case that needs one."""
        if self._no_socket is not None:
            raise self._no_socket
        uri = "wss" + self.url.removeprefix("https") + SOCKET
        try:
            opened = await connect(
                uri, ssl=self._tls, open_timeout=PATIENCE_S, close_timeout=1, max_size=2 * MAX_MESSAGE_BYTES, proxy=None
            )
        except (OSError, WebSocketException) as error:
            failed = Failed(f"no WebSocket at {uri}: {error}", NEEDS_SOCKET)
            if not self._had_socket:
                self._no_socket = failed  # each case would wait for it
            raise failed from None
        self._had_socket = True
        return opened

    async def speaks(self, version: ssl.TLSVersion) -> bool:
        """Whether a handshake of exactly this version of TLS succeeds."""
        context = _trusting()
        # Python says that 1.2 is old: that is why it is tried.
        context.minimum_version = context.maximum_version = version

        def shake() -> bool:
            try:
                with (
                    socket.create_connection((self.host, self.port), PATIENCE_S) as plain,
                    context.wrap_socket(plain, server_hostname=self.host) as secure,
                ):
                    return secure.version() is not None
            except OSError:
                return False

        return await self._in_thread(shake)

    async def speaks_plainly(self) -> str:
        """The first line of an answer to a message without TLS; empty if there was none."""

        def ask() -> str:
            try:
                with socket.create_connection((self.host, self.port), PATIENCE_S) as plain:
                    plain.settimeout(PATIENCE_S)
                    plain.sendall(f"GET {self._prefix}{KEYS} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
                    return plain.recv(1024).split(b"\r\n")[0].decode("latin-1")
            except OSError:
                return ""

        return await self._in_thread(ask)

    def close(self) -> None:
        """Close what is open."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[..., Returned], *arguments: Any) -> Returned:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Answer:
        if self._idle:
            connection = self._idle.pop()
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            with suppress(http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
                return self._exchange(connection, method, path, body)
            connection.close()  # Most likely it was closed while nobody used it. A repeat is the same message.
        fresh = http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self._tls)
        return self._exchange(fresh, method, path, body)

    def _exchange(self, connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None) -> Answer:
        try:
            # An endpoint may refuse a large body before it has read all of it.
            with suppress(BrokenPipeError):
                headers = {} if body is None else {"Content-Type": "application/json"}
                connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return answer


GONE: Final = (OSError, WebSocketException, http.client.HTTPException)
