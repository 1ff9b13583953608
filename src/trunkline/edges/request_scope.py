"""What an application behind the web listener finds in a request besides HTTP, and how it is used.

Owns the names under which the listener's connections put it into an ASGI scope, and the words for what is done with
them. Does not own the connections (``listener``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

from starlette.types import ASGIApp, Scope

# In the scope's extensions: whom to tell of a lost connection, and of one whose client closed
# its side, how to answer in one write, and whether the connection is one of those that are reserved.
LOST: Final = "trunkline.lost"
CLOSED: Final = "trunkline.closed"
ANSWER: Final = "trunkline.answer"
RESERVED: Final = "trunkline.reserved"
# Of a WebSocket: how to say a text at once (``Say``).
SAY: Final = "trunkline.say"


# In the scope's state.
PEER_PIN: Final = "trunkline.peer_pin"


def peer_pin(scope: Scope) -> str:
    """The pin of the key whose certificate this client has shown and had vouched for; empty if it has shown none."""
    found: str = scope["state"].get(PEER_PIN, "")
    return found


def address_of(scope: Scope) -> str:
    """Where a request comes from: the client's host, empty if it has none (a socket with a file)."""
    client = scope["client"]
    return client[0] if client else ""


class when_lost:  # noqa: N801  (read as `with when_lost(scope, told):`)
    """Call ``told`` if the connection of this request is lost meanwhile. Cheaper than a task that waits for it."""

    __slots__ = ("_lost", "_told")
    _NAME = LOST

    def __init__(self, scope: Scope, told: Callable[[], None]) -> None:
        self._lost: list[Callable[[], None]] = scope["extensions"][self._NAME]
        self._told = told

    def __enter__(self) -> None:
        self._lost.append(self._told)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lost.remove(self._told)


class when_closed(when_lost):  # noqa: N801
    """The same, and who closes only its side counts as lost: for answers that are gone with one that has left."""

    __slots__ = ()
    _NAME = CLOSED


# Asks that a task serves a request after all, by this application.
Serve = Callable[[ASGIApp], None]
# An application may have this beside its coroutine, as ``try_take``: take a request whose body is here as a whole, and
# answer it later by ``ANSWER``, or have it served after all. False: nothing has happened, and a task serves it.
# A task, the coroutines in it and their waking take 10 µs of a call.
TryTake = Callable[[Scope, bytes, Serve], bool]
# Says a text on a WebSocket in the same turn; False if it has to wait for its reader, and is to be sent as usual, by a
# task that is woken for it.
Say = Callable[[bytes], bool]
