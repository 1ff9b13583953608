"""The least HTTP/1.1 client that is needed: one request, one answer, on one connection.

For edges that ask or tell somebody something (a callback, a mint), and for agents of the SDK. Owns nothing but bytes
and bounds; whom to trust is in the TLS context that it is given (``tls``).

Invariant: plain HTTP leaves for this machine only; everything else is TLS.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from trunkline.addresses import is_loopback, shown
from trunkline.error_words import in_words

MAX_ANSWER_BYTES: Final = 8_388_608
MAX_HEAD_BYTES: Final = 32_768
MAX_URL_CHARS: Final = 2048
EXPECTED_ENDPOINT: Final = (
    "expected https://HOST[:PORT]/PATH, or http:// on this machine; printable ASCII, no user, no fragment"
)
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_PATH: Final = re.compile(r"[!-~]*")


class Answer(Struct, frozen=True):
    """What came back."""

    status: int
    body: bytes


class Unreachable(OSError):
    """No answer: nobody there, or nobody who speaks HTTP."""


class Endpoint(Struct, frozen=True):
    """Where a request goes."""

    host: str
    port: int
    # What the first line of the request says: path and query.
    target: str
    is_tls: bool


def endpoint_of(url: str) -> Endpoint:
    """Where a URL leads: https to anywhere, http on this machine. ``ValueError`` for any other."""
    parts = urlsplit(url)
    # The port is read first: it raises for what is no number.
    port, host, scheme = parts.port, parts.hostname, parts.scheme
    if len(url) > MAX_URL_CHARS or not host or parts.username is not None or parts.fragment or port == 0:
        raise ValueError(EXPECTED_ENDPOINT)
    if scheme != "https" and not (scheme == "http" and is_loopback(host)):
        raise ValueError(EXPECTED_ENDPOINT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _HOST.fullmatch(host) is None or _PATH.fullmatch(target) is None:
        raise ValueError(EXPECTED_ENDPOINT)
    return Endpoint(host, port or (443 if scheme == "https" else 80), target, scheme == "https")


def loopback_place(url: str) -> tuple[str, int, str]:
    """Host, port and path of a loopback URL; ``ValueError`` says what is wrong with any other."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.username is not None:
        raise ValueError("expected http://HOST:PORT/PATH")
    if not is_loopback(parts.hostname):
        raise ValueError("only loopback addresses are allowed")
    # It becomes the first line of a request.
    if _PATH.fullmatch(parts.path) is None:
        raise ValueError("only printable ASCII without spaces is allowed in the path; %-encode the rest")
    return parts.hostname, parts.port or 80, parts.path or "/"


async def request(
    url: str,
    method: str,
    *,
    path: str | None = None,
    body: bytes = b"",
    token: str = "",
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """One request; ``Unreachable`` if there is no answer in time, or not by whom ``tls`` trusts (``client_context``).

    Without ``tls`` only loopback URLs can be asked, ``ValueError`` for others.
    """
    if tls is None:
        host, port, target = loopback_place(url)
    else:
        found = endpoint_of(url)
        host, port, target = found.host, found.port, found.target
        tls = tls if found.is_tls else None
    place = f"{shown(host)}:{port}"
    head = _head(method, path or target, place, len(body), token)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                host, port, limit=MAX_HEAD_BYTES, ssl=tls, server_hostname=None if tls is None else host
            )
            writer.write(head.encode("latin-1") + body)
            await writer.drain()
            return await _read(reader)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise Unreachable(f"{in_words(error)} ({place})") from error
    finally:
        if writer is not None:
            # abort for TLS: a goodbye would wait for the other side, and there is nothing left to be said.
            if tls is None:
                writer.close()
            else:
                writer.transport.abort()


def _head(method: str, target: str, place: str, size: int, token: str) -> str:
    """The first lines of a request with a body of so many bytes."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {place}", "Connection: close", f"Content-Length: {size}"]
    if size:
        lines.append("Content-Type: application/json")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join(lines) + "\r\n\r\n"


async def _read(reader: asyncio.StreamReader) -> Answer:
    status, headers = await _read_head(reader)
    while 100 <= status < 200:
        # "Go on", "wait": not the answer.
        status, headers = await _read_head(reader)
    if status in {204, 304}:
        return Answer(status, b"")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(status, await _read_chunks(reader))
    if "content-length" in headers:
        size = int(headers["content-length"])
        if not 0 <= size <= MAX_ANSWER_BYTES:
            raise ValueError("too large")
        return Answer(status, await reader.readexactly(size))
    parts, size = [], 0
    while piece := await reader.read(65_536):
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise ValueError("too large")
        parts.append(piece)
    return Answer(status, b"".join(parts))


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError("not HTTP/1.1")
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in pieces, each after its size; what may follow the last one nobody needs (RFC 9112 7.1)."""
    parts, total = [], 0
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0].strip(), 16):
        total += size
        if not 0 < size <= total <= MAX_ANSWER_BYTES:
            raise ValueError("too large")
        parts.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("not where a piece ends")
    return b"".join(parts)
