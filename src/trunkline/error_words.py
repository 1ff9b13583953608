"""What went wrong with a connection, a file or a library, in words for the person who reads of it.

Owns the sentence for each kind of exception that sockets, TLS and files raise. Whatever is told to a person of an
exception passes here, so that nobody reads the name of a Python class. Does not own faults (``model``), nor texts about
defects, which are for whoever mends the code.

Invariant: no word comes from a peer. The text of an exception may quote one, so it is never used; what the operating
system or OpenSSL says of a code of theirs is.
"""

from __future__ import annotations

import errno
import re
from typing import Final

__all__ = ["in_words"]

_CLOSED: Final = "the connection was closed before an answer was complete"
# What OpenSSL says of bytes that are no TLS, by its releases: an answer in plain HTTP, for one.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|\d+|[a-z]+")


def in_words(error: BaseException) -> str:
    """Why it did not work."""
    # Here, because a command that works needs none of them: together they take 50 ms.
    import asyncio
    import socket
    import ssl

    match error:
        case socket.gaierror():
            return "there is no host of this name"
        case TimeoutError():
            return "there was no answer in time"
        case ssl.SSLCertVerificationError():
            # An error that is raised by Python code has none of OpenSSL's fields.
            return f"its certificate is not trusted ({getattr(error, 'verify_message', '') or 'no reason is given'})"
        case ssl.SSLError() if getattr(error, "reason", None) in _NO_TLS:
            return "no TLS is spoken there"
        case ssl.SSLError():
            return f"TLS does not work with it ({_lower(getattr(error, 'reason', None)) or 'the handshake failed'})"
        case ConnectionRefusedError():
            return "nobody listens there"
        case ConnectionError() | asyncio.IncompleteReadError():
            return _CLOSED
        case UnicodeError():
            return "it is not text in UTF-8"
        case asyncio.LimitOverrunError():
            return "the answer is too long"
        case OSError():
            return _of_system(error)
        case ValueError():
            return "the answer cannot be read"
        case _:
            return _name(error)


def _of_system(error: OSError) -> str:
    if error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    # Of a host with several addresses asyncio has one text for all of them.
    if f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "nobody listens there"
    return "it cannot be reached" if type(error) is OSError else _name(error)


def _lower(reason: str | None) -> str:
    return (reason or "").replace("_", " ").lower()


def _name(error: BaseException) -> str:
    """Of a library's own exception its name, as words: ``NoServersError`` is "no servers"."""
    words = [word if word.isupper() and len(word) > 1 else word.lower() for word in _WORD.findall(type(error).__name__)]
    kept = [word for word in words if word not in {"error", "exception"}]
    return " ".join(kept) or "it does not say why"
