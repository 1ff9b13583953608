"""A mounted server that wants OAuth, the authorization server that it names, and a person with a browser.

Both servers are strict: each wrong step is refused and noted in ``refusals``, so that a test in which all went well
says that nothing was wrong either.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from msgspec import Raw

from tests.unit.edges.mounts.http_server import HttpServer, answered
from tests.unit.edges.mounts.kit import ECHO, WAIT_S, HasMounted
from trunkline.config import Config, McpServer, McpSignIn
from trunkline.edges.client import Answer, request
from trunkline.edges.http.edge import HTTP
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.entries import CallSettled
from trunkline.testing.memory import OPERATOR_TOKEN, MemoryExchange

CALLBACK = "/oauth/callback"


class Asked:
    """One request."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.headers, self.body = method, headers, body
        self.path, _, self.query = target.partition("?")

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))


Said = tuple[int, object, dict[str, str]]


class Site(HttpServer):
    """Answers by method and path; what is not there is 404."""

    def __init__(self) -> None:
        super().__init__()
        self.on: dict[tuple[str, str], Callable[[Asked], Said]] = {}
        self.got: list[Asked] = []
        self.refusals: list[str] = []
        self.origin = ""

    async def start(self, host: str) -> None:
        await self.listen()
        self.origin = f"http://{host}:{self.port}"

    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        asked = Asked(method, target, headers, body)
        self.got.append(asked)
        status, shape, more = self.on.get((method, asked.path), lambda _: (404, None, {}))(asked)
        return answered(status, b"" if shape is None else json.dumps(shape).encode(), "application/json", **more)

    def refuse(self, why: str, status: int = 400) -> Said:
        self.refusals.append(why)
        return status, {"error": why, "error_description": "secret words of the server"}, {}


class AuthorizationServer(Site):
    """Registers clients, gives codes to whoever opens the address, and tokens for codes."""

    def __init__(self) -> None:
        super().__init__()
        self.resource = ""
        self._numbers = itertools.count(1)
        self.clients: dict[str, list[str]] = {}
        # What is found at the addresses that clients have for names.
        self.documents: dict[str, dict[str, Any]] = {}
        # By code: what the address said. A code that was used is None.
        self.codes: dict[str, dict[str, str] | None] = {}
        self.access: set[str] = set()
        self.renewing: set[str] = set()
        self.issued: list[str] = []
        self.secrets: dict[str, str] = {}
        self.lifetime: object = 3600
        self.metadata: dict[str, object] = {}
        self.on["GET", "/.well-known/oauth-authorization-server"] = lambda _: (200, self.described(), {})
        self.on["POST", "/register"] = self._register
        self.on["POST", "/token"] = self._token
        self.on["GET", "/authorize"] = self._authorize

    def described(self) -> dict[str, object]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize?tenant=t",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["read", "write", "offline_access"],
            **self.metadata,
        }

    def _register(self, asked: Asked) -> Said:
        wanted = json.loads(asked.body)
        uris = wanted.get("redirect_uris", [])
        if wanted.get("application_type") != "native" or wanted.get("token_endpoint_auth_method") != "none":
            return self.refuse("invalid_client_metadata")
        if len(uris) != 1 or urlsplit(uris[0]).hostname != "127.0.0.1" or urlsplit(uris[0]).path != CALLBACK:
            return self.refuse("invalid_redirect_uri")
        client_id = f"client-{next(self._numbers)}"
        self.clients[client_id] = uris
        return 201, {"client_id": client_id, **wanted}, {}

    def known(self, client_id: str) -> list[str]:
        """Where a client may be sent back to: as it registered, or as the document says that its name leads to."""
        document = self.documents.get(client_id)
        if document is None:
            return self.clients.get(client_id, [])
        assert self.metadata.get("client_id_metadata_document_supported") is True
        assert document["client_id"] == client_id
        assert document["client_name"]
        assert document["token_endpoint_auth_method"] == "none"
        redirects: list[str] = document["redirect_uris"]
        return redirects

    def opened(self, url: str) -> dict[str, str]:
        """A person opens the address and says yes: what his browser is sent back with."""
        said = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.origin}/authorize?")
        assert said["tenant"] == "t", "a parameter of the endpoint's own stays"
        assert said["response_type"] == "code"
        assert said["code_challenge_method"] == "S256"
        assert said["redirect_uri"] in self.known(said["client_id"])
        assert said["resource"] == self.resource
        code = f"code-of-{next(self._numbers)}-which-nobody-may-see"
        self.codes[code] = said
        return {"code": code, "state": said["state"]}

    def _authorize(self, asked: Asked) -> Said:
        """For a real browser: whoever opens the address says yes."""
        given = self.opened(f"{self.origin}{asked.path}?{asked.query}")
        said = dict(parse_qsl(asked.query))
        return 302, None, {"Location": f"{said['redirect_uri']}?{urlencode(given)}"}

    def _token(self, asked: Asked) -> Said:
        form = asked.form
        client_id = form.get("client_id", "")
        if asked.headers.get("content-type") != "application/x-www-form-urlencoded":
            return self.refuse("invalid_request")
        if not self.known(client_id):
            return self.refuse("invalid_client", 401)
        secret = self.secrets.get(client_id)
        if secret is not None:
            pair = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
            if asked.headers.get("authorization") != f"Basic {pair}" or "client_secret" in form:
                return self.refuse("invalid_client", 401)
        if form.get("resource") != self.resource:
            return self.refuse("invalid_target")
        if form.get("grant_type") == "refresh_token":
            token = form.get("refresh_token", "")
            if token not in self.renewing:
                return self.refuse("invalid_grant")
            self.renewing.discard(token)
            return self._granted()
        code = form.get("code", "")
        said = self.codes.get(code)
        if said is None:
            if code in self.codes:
                self.access.clear()
            return self.refuse("invalid_grant")
        self.codes[code] = None
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != said["code_challenge"]:
            return self.refuse("invalid_grant")
        if (said["client_id"], said["redirect_uri"]) != (client_id, form.get("redirect_uri")):
            return self.refuse("invalid_grant")
        return self._granted()

    def _granted(self) -> Said:
        number = next(self._numbers)
        access, renewing = f"access-token-{number}-correct-horse", f"refresh-token-{number}-battery-staple"
        self.access = {access}
        self.renewing.add(renewing)
        self.issued += [access, renewing]
        shape = {"access_token": access, "token_type": "Bearer", "refresh_token": renewing, "scope": "read"}
        return 200, {**shape, "expires_in": self.lifetime}, {}


class ProtectedServer(Site):
    """A server of MCP that wants a token of ``signs_in``."""

    def __init__(self, signs_in: AuthorizationServer) -> None:
        super().__init__()
        self.signs_in = signs_in
        self.described: dict[str, object] = {}
        self.wants_scope = ""
        self.tokens: list[str] = []
        self.on["POST", "/mcp"] = self._mcp
        self.on["GET", "/.well-known/oauth-protected-resource/mcp"] = self._describe

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def _describe(self, asked: Asked) -> Said:
        if "authorization" in asked.headers:
            return self.refuse("a token went to a description")
        return 200, {"resource": self.url, "authorization_servers": [self.signs_in.origin], **self.described}, {}

    def _mcp(self, asked: Asked) -> Said:
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.append(token)
        if token not in self.signs_in.access:
            place = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
            return 401, None, {"WWW-Authenticate": f'Bearer resource_metadata="{place}", scope="read"'}
        message = json.loads(asked.body)
        if message["method"] == "tools/call" and self.wants_scope:
            wanted = f'Bearer error="insufficient_scope", scope="{self.wants_scope}"'
            return 403, None, {"WWW-Authenticate": wanted}
        results: dict[str, object] = {
            "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
            "tools/list": {"tools": [ECHO]},
            "tools/call": {"content": [{"type": "text", "text": "hi"}]},
        }
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}, {}


@contextlib.contextmanager
def sites() -> Iterator[ProtectedServer]:
    """Both servers beside a test that has no loop, for an exchange in a process of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    issuer = AuthorizationServer()
    server = ProtectedServer(issuer)

    def done(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(WAIT_S)

    try:
        done(issuer.start("127.0.0.1"))
        done(server.start("localhost"))
        issuer.resource = server.url
        yield server
    finally:
        done(server.stop())
        done(issuer.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


class World(HasMounted):
    """An exchange that has mounted such a server, its operator, and a browser on this machine."""

    def __init__(self, home: Path, *, server_host: str = "localhost", **sign_in: str) -> None:
        self.home = home
        self._server_host = server_host
        self._sign_in = sign_in
        self.issuer = AuthorizationServer()
        self.server = ProtectedServer(self.issuer)
        self.base = ""

    async def __aenter__(self) -> Self:
        (self.home / "keys").mkdir(mode=0o700, exist_ok=True)
        await self.issuer.start("127.0.0.1")
        await self.server.start(self._server_host)
        self.issuer.resource = self.server.url
        if self._sign_in.get("issuer") == "own":
            self._sign_in["issuer"] = self.issuer.origin
        await self.begin()
        return self

    async def begin(self) -> None:
        server = McpServer(id="x", url=self.server.url, oauth=McpSignIn(**self._sign_in))
        config = Config(mcp_servers=(server,))
        self.exchange = MemoryExchange(
            edges=(MOUNTS, HTTP), config=config, live=asyncio.get_running_loop(), home=self.home
        )
        await self.exchange.edges.start()
        self.base = str(self.exchange.edges.ready()["http"])

    async def end(self) -> None:
        await self.exchange.edges.stop()
        await self.exchange.edges.stop_last()

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        await self.server.stop()
        await self.issuer.stop()

    async def signed_out(self) -> None:
        await self.until(lambda: self.view.state == "signed-out")

    async def ready(self) -> None:
        await self.until(lambda: self.view.state == "ready")

    async def operator(self, method: str, token: str = OPERATOR_TOKEN) -> tuple[int, Any]:
        found = await self._ask(method, "/v1/agents/mcp.x/sign-in", token)
        return found.status, json.loads(found.body)

    async def begun(self) -> str:
        """The address that the operator is shown."""
        status, made = await self.operator("POST")
        assert status == 200, made
        assert made["issuer"] == self.issuer.origin
        return str(made["url"])

    async def back(self, **query: str) -> Answer:
        """The browser comes back."""
        return await self._ask("GET", f"{CALLBACK}?{urlencode(query)}")

    async def _ask(self, method: str, path: str, token: str = "") -> Answer:
        return await request(self.base, method, path=path, token=token, timeout_s=WAIT_S)

    async def sign_in(self) -> None:
        """All of it, as it should be."""
        assert (await self.back(**self.issuer.opened(await self.begun()))).status == 200
        await self.ready()

    async def called(self) -> CallSettled:
        before = len(self.exchange.recorded(CallSettled))
        self.exchange.call("mcp.x/echo", Raw(b"{}"))
        await self.until(lambda: len(self.exchange.recorded(CallSettled)) > before)
        settled: CallSettled = self.exchange.recorded(CallSettled)[-1]
        return settled
