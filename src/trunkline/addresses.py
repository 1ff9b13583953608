"""Hosts and ports as people write them: ``127.0.0.1:7411``, ``[::1]:7411``; and which of them are this machine."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s]+)):([0-9]{1,5})")
_LAST_PORT: Final = 65_535


def host_and_port(address: str) -> tuple[str, int]:
    """An address in its two parts; ``ValueError`` says what is wrong."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > _LAST_PORT:
        raise ValueError('expected "host:port", such as "127.0.0.1:7411" or "[::1]:0"')
    return match[1] or match[2], int(match[3])


def shown(host: str, port: int | None = None) -> str:
    """A host, with a port if there is one, as it stands in a URL."""
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
