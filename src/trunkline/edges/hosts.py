"""Host headers: whether a request names this listener, or something that was made to lead here (DNS rebinding).

For every edge that a browser can reach on a loopback address.
"""

from __future__ import annotations

from typing import Final

from trunkline.addresses import shown

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def is_our_host(host: str, server: tuple[str, int], default_port: int = 80) -> bool:
    """Whether a Host header names this listener by a loopback name or by the address that was connected to.

    ``default_port`` is the one that clients leave out.
    """
    address, port = server
    names = (*LOOPBACK_NAMES, shown(address))
    host = host.lower()
    return any(host == f"{name}:{port}" or (port == default_port and host == name) for name in names)
