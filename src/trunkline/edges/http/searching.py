"""``GET /v1/calls`` with something to look for: how the query is read. What is found, the exchange says."""

from __future__ import annotations

import datetime as dt
from typing import Final

from starlette.requests import Request

from trunkline.edges.bodies import BadRequest
from trunkline.model import Principal, Status
from trunkline.shown import CallSearch

# Parameters that make a list of calls a search.
PARAMETERS: Final = ("search", "tool", "caller", "status", "from", "to")
MAX_CHARS: Final = 256


def search_of(request: Request, principal: Principal, limit: int, before: int | None) -> CallSearch | None:
    """What a request looks for; None if it looks for nothing."""
    given = {name: value for name in PARAMETERS if (value := request.query_params.get(name))}
    if not given:
        return None
    for name, value in given.items():
        if len(value) > MAX_CHARS:
            raise BadRequest(400, f"{name}: expected at most {MAX_CHARS} characters")
    status = given.get("status", "")
    if status and status not in {one.value for one in Status}:
        raise BadRequest(400, f"status: expected {', '.join(one.value for one in Status)}")
    return CallSearch(
        limit,
        given.get("search", ""),
        given.get("tool", ""),
        given.get("caller", ""),
        "" if principal.is_operator else principal.identity,
        status,
        _moment("from", given.get("from")),
        _moment("to", given.get("to")),
        before,
    )


def _moment(name: str, text: str | None) -> int | None:
    """A time as RFC 3339 writes it, or in milliseconds since 1970."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 16:
        return int(text)
    try:
        found = dt.datetime.fromisoformat(text)
        return int((found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadRequest(400, f"{name}: expected a time such as 2026-01-31T09:30:00Z") from None
