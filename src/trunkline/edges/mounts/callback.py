"""Where a browser comes back to from an authorization server: ``/oauth/callback``, for strangers too.

Owns the page. Whoever comes shows a state that only the person who began was given, and which counts once; everybody
else is told the same, whatever is wrong. Host and Origin were checked before (``edges.doors``).
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trunkline.edges.answers import application
from trunkline.edges.doors import Door
from trunkline.edges.exchange import Feed
from trunkline.edges.mounts.names import EDGE

CALLBACK_PATH: Final = "/oauth/callback"
# Codes and states are far shorter.
MAX_QUERY_CHARS: Final = 8192
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
UNKNOWN: Final = "nobody began this, or it was used before; begin again"
PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Trunkline</title>
<h1>{title}</h1>
<p>{text}</p>
</html>
"""

# State, code, issuer if it is said, error: what came of it, empty if all went well; None if nobody has this state.
Finish = Callable[[str, str, str | None, str], Awaitable[str | None]]


def door(feed: Feed, finish: Finish) -> Door:
    """The path, open to everybody."""

    async def back(request: Request) -> Response:
        given = request.query_params
        texts = {name: given.getlist(name) for name in ("state", "code", "iss", "error")}
        problem: str | None = None
        if len(request.url.query) <= MAX_QUERY_CHARS and all(len(found) <= 1 for found in texts.values()):
            issuer = given.get("iss")
            problem = await finish(given.get("state", ""), given.get("code", ""), issuer, given.get("error", ""))
        if problem == "":
            return _page(200, "Signed in", "You can close this page.")
        return _page(400, "Not signed in", UNKNOWN if problem is None else problem)

    return Door((CALLBACK_PATH,), application(feed, {CALLBACK_PATH: {"GET": back}}), gate_of=EDGE)


def _page(status: int, title: str, text: str) -> Response:
    return HTMLResponse(PAGE.format(title=title, text=html.escape(text)), status, HEADERS)
