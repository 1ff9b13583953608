"""Why there is no connection to the exchange, as a sentence: what was seen, and what to do about it.

Owns the way from errors of sockets, TLS and WebSockets to ``ExchangeUnreachable``. Does not own whether it is tried
again (``ossa_connection``).
"""

from __future__ import annotations

import socket
import ssl

from websockets.exceptions import InvalidStatus, WebSocketException

from trunkline.edges import client, tls
from trunkline.error_words import in_words
from trunkline.errors import ExchangeUnreachable


class Distrusted(ExchangeUnreachable):
    """Somebody is there, but nobody vouches that it is the exchange: to try again does not help by itself."""


# What goes wrong on the way to an exchange.
FOREIGN = (OSError, ssl.SSLError, TimeoutError, WebSocketException)


def explained(error: Exception, url: str, *, open_s: float) -> ExchangeUnreachable:
    """What an attempt to reach the exchange at ``url`` met."""
    if isinstance(error, client.Unreachable) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    match error:
        case tls.WrongPin():
            return Distrusted(
                f"{url} shows the key {error.seen}, which is not the pinned one. If that is the key of the exchange's "
                "keys/tls.pem, pin it; if not, this is somebody else"
            )
        case ssl.SSLCertVerificationError():
            return Distrusted(
                f"{url} shows a certificate that nobody vouches for here ({error.verify_message}): give the "
                "exchange's `pin`, its `ca`, or, on the same machine, its `home`"
            )
        case ssl.SSLError():
            return ExchangeUnreachable(
                f"{url} does not speak TLS 1.3 ({getattr(error, 'reason', None) or 'the handshake failed'})"
            )
        case socket.gaierror():
            return ExchangeUnreachable(f"{url}: there is no host of this name")
        case TimeoutError():
            return ExchangeUnreachable(f"{url} did not answer within {open_s:g} s")
        case ConnectionRefusedError():
            return ExchangeUnreachable(f"nobody listens at {url}: does the exchange run there? `trunkline status` says")
        case InvalidStatus():
            return ExchangeUnreachable(f"{url} has no WebSocket for OSSA: HTTP {error.response.status_code}")
        case _:
            return ExchangeUnreachable(f"{url} ended the attempt to connect ({in_words(error)})")
