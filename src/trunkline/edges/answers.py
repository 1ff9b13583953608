"""Answers over HTTP in our own form: JSON, and ``{"error": {code, message, retryable, details}}`` for every refusal.

Shared by the edges behind the listener whose protocol has no form of its own. Owns the status of a fault and what is
said of a defect (its place is on record, the wire has the table's words). Does not own anybody's shapes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from trunkline.edges.bodies import BadRequest
from trunkline.edges.exchange import Feed
from trunkline.model import FAULTS, Fault, Principal, fault

encode: Final = msgspec.json.Encoder().encode
Handler = Callable[[Request], Awaitable[ASGIApp]]


class ErrorShape(Struct, frozen=True):
    """A fault with all its fields, as our own wire shows it."""

    code: str
    message: str
    retryable: bool
    details: Mapping[str, object]


class Refused(Exception):
    """A request that is answered with a fault."""

    def __init__(self, found: Fault, status: int = 0) -> None:
        super().__init__(found.code)
        self.fault = found
        self.status = status or status_of(found)


def error_shape(found: Fault | None) -> ErrorShape | None:
    """A fault with all its fields."""
    return None if found is None else ErrorShape(found.code, found.message, found.retryable, found.details or {})


def error_body(found: Fault) -> bytes:
    """The body of every answer that is an error."""
    return encode({"error": error_shape(found)})


def status_of(found: Fault) -> int:
    """The HTTP status of a request that was refused with this fault."""
    row = FAULTS.get(found.code)
    # 200 in the table belongs to a call that ran; a *request* that ends with such a fault did not succeed.
    return 500 if row is None or row.http == 200 else row.http


def json_answer(shape: object, status: int = 200) -> Response:
    """An answer."""
    headers = {"retry-after": "1"} if status in {429, 503} else None
    return Response(encode(shape), status, headers, media_type="application/json")


def refusal(found: Fault, status: int = 0) -> Response:
    """A request that was refused."""
    status = status or status_of(found)
    headers = {"retry-after": str(retry_after_s(found))} if status in {429, 503} else None
    return Response(error_body(found), status, headers, media_type="application/json")


def retry_after_s(found: Fault) -> int:
    """When to come again, if the fault says so; else in a second."""
    wait_ms = (found.details or {}).get("retry_after_ms")
    return max(1, -(-int(wait_ms) // 1000)) if isinstance(wait_ms, int | float) else 1


def principal_of(connection: HTTPConnection) -> Principal:
    """Who asks; the gate of the listener put it there."""
    principal = connection.scope["principal"]
    assert isinstance(principal, Principal)
    return principal


# --- applications -----------------------------------------------------------------------------------------------------


def application(feed: Feed, table: Mapping[str, Mapping[str, Handler]], *more: BaseRoute) -> Starlette:
    """An application of these routes (by path, then by method) whose refusals and defects are answered in our form."""

    async def on_defect(_: Request, error: Exception) -> Response:
        feed.failed(0, error)
        return refusal(fault("hub.unavailable", retryable=False), 500)

    routes: list[BaseRoute] = [
        Route(path, by_method(methods), methods=list(methods)) for path, methods in table.items()
    ]
    handlers: dict[Any, Any] = {
        Refused: on_refused,
        BadRequest: on_bad_request,
        HTTPException: on_http_exception,
        Exception: on_defect,
    }
    app = Starlette(routes=[*routes, *more], exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def by_method(methods: Mapping[str, Handler]) -> Handler:
    """One endpoint for a path."""

    async def endpoint(request: Request) -> ASGIApp:
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


async def on_refused(_: Request, error: Exception) -> Response:
    """What a handler refused."""
    assert isinstance(error, Refused)
    return refusal(error.fault, error.status)


async def on_bad_request(_: Request, error: Exception) -> Response:
    """What could not be read."""
    assert isinstance(error, BadRequest)
    return refusal(fault(error.code, error.text), error.status)


async def on_http_exception(_: Request, error: Exception) -> Response:
    """What the router refused."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal(fault("not_found", "no such route"))
    allowed = (error.headers or {}).get("Allow", "")
    answer = refusal(fault("message.malformed", f"this route takes {allowed}"), error.status_code)
    answer.headers["allow"] = allowed
    return answer
