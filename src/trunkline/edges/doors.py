"""Another edge behind the HTTP listener: which paths are its own, and who judges its callers.

Edges do not know each other; the host hands the doors of some to the listener of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.edges.request_scope import Serve
from trunkline.model import Principal


class TakingApp(Protocol):
    """An application that may do without a task for some of its requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

    def try_take(self, scope: Scope, data: bytes, serve: Serve, ended: Callable[[], None]) -> bool:
        """Take a request with this body (``request_scope.TryTake``), and call ``ended`` when that is over."""


class Door(Struct, frozen=True):
    """An ASGI application under some paths of ``http.listen``. Host and Origin are checked before it is asked.

    ``prefixes`` are whole parts of a path: ``/v1/spaces`` stands for itself and for everything under ``/v1/spaces/``.
    Unless it has a gate of its own, the caller has shown a bearer token of the HTTP edge: ``scope["principal"]`` says
    whose it is, and of a WebSocket, which may be open for days, ``scope["is_known"]()`` says whether it is still valid.
    ``gate_of`` says that it has one, and names its edge: whoever shows a bearer token of that edge has his requests
    counted for himself, all others (strangers, and everybody at an edge that has no such tokens) together.

    ``taking`` are those requests, by method and path, that its application may take without a task.

    ``admits`` is another way to show who one is, for whatever needs a token of the HTTP edge: it is asked about
    requests that show none. It has to keep requests out that another page made a browser send.
    """

    prefixes: tuple[str, ...]
    app: ASGIApp
    gate_of: str = ""
    admits: Callable[[Scope], Principal | None] | None = None
    taking: Mapping[tuple[str, str], TakingApp] = {}

    def leads_to(self, path: str) -> bool:
        """Whether this path is behind it."""
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self.prefixes)
