"""One request to an authorization server: whom may be asked, and within which bounds.

A mounted server names the authorization server, so a hostile one could have us ask any address that this machine
reaches. Hence (decision 114): https, or http on this machine; and an address that is not of the public network only
where the mounted server is itself not of it, or where the operator named the authorization server. The address that
was looked up is the one that is connected to, so that a name cannot lead elsewhere in between. Redirects are not
followed.

Owns that rule. Does not own what is asked (``signing_in``), nor its meaning (``oauth``).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import Final

from trunkline.edges import tls
from trunkline.edges.client import Endpoint, Unreachable, endpoint_of
from trunkline.edges.mounts.http_streams import Connections
from trunkline.edges.shares import Share, Shares
from trunkline.error_words import in_words
from trunkline.errors import SignInRefused

# Descriptions have a few kilobytes, answers with tokens less.
MAX_ANSWER_BYTES: Final = 262_144
# A person waits, and so may calls whose token is being renewed.
TIMEOUT_S: Final = 15.0
# Forms of IPv4 addresses in IPv6: what they lead to may be private.
_CARRIERS: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))


async def addresses_of(host: str, port: int) -> list[str]:
    """Where a name leads."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]


def is_public(address: str) -> bool:
    """Whether this is an address of the public network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found.sixtofour is not None or found.teredo is not None or any(found in one for one in _CARRIERS):
            return False
    return found.is_global and not found.is_multicast


async def is_public_place(url: str) -> bool:
    """Whether the mounted server itself is on the public network; one that cannot be looked up is taken to be."""
    place = endpoint_of(url)
    try:
        found = await addresses_of(place.host, place.port)
    except OSError:
        return True
    return any(map(is_public, found))


async def check_place(url: str, *, may_be_private: bool) -> None:
    """``SignInRefused`` if a person's browser may not be sent there; it asks from where the person is, as we would."""
    place = endpoint_of(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await addresses_of(place.host, place.port)
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"{place.host}: {in_words(error)}") from None
    _check_addresses(place, found, may_be_private=may_be_private)


def _check_addresses(place: Endpoint, found: list[str], *, may_be_private: bool) -> None:
    if not may_be_private and not all(map(is_public, found)):
        raise SignInRefused(
            f"{place.host} is not on the public network, and the server that names it is: "
            "if that is meant to be so, name it as `issuer` of the server's `oauth`"
        )


async def ask(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b"", *, may_be_private: bool
) -> tuple[int, bytes]:
    """Status and body of the answer. ``SignInRefused`` if it may not be asked, ``Unreachable`` if there is none."""
    try:
        place = endpoint_of(url)
    except ValueError:
        raise SignInRefused("an address that it names is none: expected https, or http on this machine") from None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await addresses_of(place.host, place.port)
            _check_addresses(place, found, may_be_private=may_be_private)
            trust = tls.client_context() if place.is_tls else None
            # One answer, which has a bound of its own.
            connections = Connections(place, trust, Share(Shares(), ""), address=found[0])
            try:
                async with connections.request(method, {"accept": "application/json", **headers}, body) as answer:
                    return answer.status, await answer.body(MAX_ANSWER_BYTES)
            finally:
                connections.close()
    except Unreachable as problem:
        raise Unreachable(f"{place.host}: {problem}") from None
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"{place.host}: {in_words(error)}") from None
