"""What the console answers over HTTP: the page's files, signing in and out, new codes, signatures for the live line.

Owns these routes and how a sign-in is shown: a cookie, and the key in a header of the page's own. Does not own codes
and sign-ins (``signing_in``), the live line (``live``), nor ``/v1/…``, to which ``admitted`` lets a page in as the
operator. Host and Origin were judged by the listener's gate before anything comes here.

Invariant: nothing but files of the page is answered to somebody who is not signed in.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.edges.answers import Refused, application, json_answer, principal_of
from trunkline.edges.bearer import Throttle
from trunkline.edges.bodies import read_as
from trunkline.edges.console import files
from trunkline.edges.console.messages import CHANNELS, EDGE
from trunkline.edges.console.signing_in import CODE_S, SIGN_IN_S, SignIn, SignIns
from trunkline.edges.edge import Surroundings
from trunkline.edges.pusher.session import signature
from trunkline.edges.request_scope import address_of
from trunkline.events import Noticed
from trunkline.model import OPERATOR, Principal, fault, stamp

# What a page shows its key in. No form, link, image or script of another page can send a header.
KEY_HEADER: Final = b"x-trunkline-console"
# Cookies of one name: a page of another port of this machine can add some.
MAX_COOKIES: Final = 16
MAX_BODY_BYTES: Final = 4096
# Under which pages sign their subscriptions; a name, and no secret.
APP_KEY: Final = EDGE

USED: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Trunkline: sign in</title>
<h1>This address does not work</h1>
<p>Its code was used already, is older than {minutes} minutes, or is not one of this exchange.</p>
<p>In a terminal on this machine, <code>trunkline console</code> prints a new address.</p>
<p>If this browser is signed in already: <a href="/">open the console</a>.</p>
</html>
"""


class AuthBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /console/auth``, with the names that Pusher's clients use."""

    socket_id: str
    channel_name: str


class Routes:
    """The routes of one exchange. ``ended`` is told of a sign-in that was ended."""

    def __init__(self, given: Surroundings, sign_ins: SignIns, ended: Callable[[SignIn], None]) -> None:
        self._feed = given.feed
        self._views = given.views
        self._version = given.version
        self._instance = given.instance
        self._sign_ins = sign_ins
        self._ended = ended
        self._throttle = Throttle(given.feed, EDGE)
        self._files = files.page_files()
        self._router = application(
            given.feed,
            {
                "/": {"GET": self.index},
                "/console/page/{path:path}": {"GET": self.file},
                "/console/session": {"GET": self.session, "DELETE": self.sign_out},
                "/console/auth": {"POST": self.auth},
            },
        )
        # Behind the listener's own gate: who asks has shown a token.
        self.codes = application(given.feed, {"/console/code": {"POST": self.new_code}})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await self._router(scope, receive, send)

    # -- who asks ------------------------------------------------------------------------------------------------------

    def cookie_of(self, scope: Scope) -> SignIn | None:
        """Whose cookie a request shows."""
        name, now = _cookie_name(scope), self._feed.now()
        shown = (value for value in _cookies(scope, name) if value)
        return next((found for value in shown if (found := self._sign_ins.find(value, now)) is not None), None)

    def signed_in(self, scope: Scope) -> SignIn | None:
        """Who shows both a cookie and the key that belongs to it."""
        found = self.cookie_of(scope)
        keys = [value for name, value in scope["headers"] if name == KEY_HEADER]
        if found is None or len(keys) != 1:
            return None
        return found if self._sign_ins.is_key_of(found, keys[0].decode("latin-1")) else None

    def admitted(self, scope: Scope) -> Principal | None:
        """The operator, if the page of somebody who is signed in asks."""
        return None if self.signed_in(scope) is None else Principal(OPERATOR)

    def _needed(self, request: HTTPConnection) -> SignIn:
        found = self.signed_in(request.scope)
        if found is None:
            raise Refused(fault("auth.failed"))
        return found

    # -- files ---------------------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> ASGIApp:
        """``GET /``: the page; with ``?code=`` somebody signs in."""
        codes = request.query_params.getlist("code")
        if codes and "prefetch" in request.headers.get("sec-purpose", ""):
            # A browser that looks ahead must not spend the code; it asks again when a person wants the page.
            return Response(status_code=503)
        if codes and request.method == "GET":
            return await self._sign_in(request, codes)
        return self._answered(request, files.INDEX)

    async def file(self, request: Request) -> ASGIApp:
        """``GET /console/page/{path}``."""
        return self._answered(request, request.path_params["path"])

    def _answered(self, request: Request, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            raise Refused(fault("not_found", "the page has no such file"))
        more = {**files.headers(_host(request)), "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=more)
        return Response(found.data, headers={**more, "content-type": found.media_type})

    # -- signing in ----------------------------------------------------------------------------------------------------

    async def new_code(self, request: Request) -> ASGIApp:
        """``POST /console/code``: an address for the operator, who has shown his token."""
        # Not for a page: an address that it asks for would outlive its sign-in.
        if not principal_of(request).is_operator or self.cookie_of(request.scope) is not None:
            raise Refused(fault("not_allowed", "only the operator's token opens the console"))
        now = self._feed.now()
        code = self._sign_ins.new_code(now)
        expires = stamp(int((now.wall + CODE_S) * 1000))
        return json_answer({"path": f"/?code={code}", "expires_at": expires}, 201)

    async def _sign_in(self, request: Request, codes: list[str]) -> Response:
        now = self._feed.now()
        shown, address = _host(request), address_of(request.scope)
        if len(codes) != 1 or not self._sign_ins.try_spend(codes[0], now):
            await self._throttle.refused(address)
            text = USED.format(minutes=html.escape(f"{CODE_S / 60:g}"))
            return HTMLResponse(text, 403, files.headers(shown))
        made = self._sign_ins.begin(now)
        self._feed.feed([Noticed("console.signed_in", EDGE, who=address)])
        answer = RedirectResponse(f"/#key={made.key}", 303, files.headers(shown))
        _set_cookie(answer, request.scope, made.cookie, SIGN_IN_S)
        return answer

    async def session(self, request: Request) -> ASGIApp:
        """``GET /console/session``: whether somebody is signed in, and where."""
        found = self._needed(request)
        return json_answer(
            {
                "expires_at": stamp(found.expires * 1000),
                "version": self._version,
                "instance": self._instance,
                "last": self._views.last_entry(),
            }
        )

    async def sign_out(self, request: Request) -> ASGIApp:
        """``DELETE /console/session``."""
        found = self._needed(request)
        self._sign_ins.end(found)
        self._ended(found)
        self._feed.feed([Noticed("console.signed_out", EDGE, who=address_of(request.scope))])
        answer = Response(status_code=204)
        _set_cookie(answer, request.scope, "", 0)
        return answer

    async def auth(self, request: Request) -> ASGIApp:
        """``POST /console/auth``: the signature of a subscription on a live line of the same sign-in."""
        found = self._needed(request)
        body = await read_as(request, AuthBody, MAX_BODY_BYTES)
        if not CHANNELS.base_of(body.channel_name):
            raise Refused(fault("not_found", f"channel_name: expected {' or '.join(CHANNELS.names)}"))
        secret = self._sign_ins.channel_secret(found)
        return json_answer({"auth": signature(secret, APP_KEY, body.socket_id, body.channel_name)})


def _host(request: Request) -> str:
    return request.headers["host"]


def _cookie_name(scope: Scope) -> str:
    """With our port in it: browsers do not tell the exchanges of one machine apart."""
    return f"trunkline_{scope['server'][1]}"


def _cookies(scope: Scope, name: str) -> list[str]:
    """The values under a name. Not by a library's parser: one that another page set must not hide ours."""
    wanted, found = name.encode(), []
    for header, value in scope["headers"]:
        if header == b"cookie":
            for part in value.split(b";"):
                known, _, text = part.strip().partition(b"=")
                if known == wanted:
                    found.append(text.decode("latin-1"))
    return found[:MAX_COOKIES]


def _set_cookie(answer: Response, scope: Scope, value: str, max_age: int) -> None:
    """Not ``Secure``: this is plain HTTP on a loopback address, where some browsers would not keep it."""
    answer.set_cookie(_cookie_name(scope), value, max_age=max_age, path="/", httponly=True, samesite="strict")
