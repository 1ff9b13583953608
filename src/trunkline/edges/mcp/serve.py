"""``/mcp``: MCP over streamable HTTP, behind ``http.listen`` with a gate of its own, for both eras of the protocol.

Owns the token in the header, which era a request belongs to, sessions, and the status of each answer. Host and Origin
are checked before (``http.gate``). Does not own what a message means (``steps``) or what becomes of a call
(``calls``).

Invariant: nothing of a request's body is looked at before its token is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from trunkline.edges import mcp_words
from trunkline.edges.answers import error_body
from trunkline.edges.bearer import Throttle, bearer_token, whose
from trunkline.edges.bodies import BadRequest, is_json, read_body
from trunkline.edges.doors import Door
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.framing import json_rpc
from trunkline.edges.framing.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, Id
from trunkline.edges.mcp import messages, steps
from trunkline.edges.mcp.answering import Answering, Header
from trunkline.edges.mcp.calls import Calls, Request
from trunkline.edges.mcp.catalogue import Catalogue
from trunkline.edges.mcp.changes import Changes
from trunkline.edges.mcp.messages import MAX_MESSAGE_BYTES, RESOURCE_NOT_FOUND, BadMessage, Message
from trunkline.edges.mcp.resources import FileCall, Resources
from trunkline.edges.mcp.session_ids import SessionIds
from trunkline.edges.mcp.steps import CallTool, Client
from trunkline.edges.mcp.translate import EDGE, Wording
from trunkline.edges.mcp_words import HANDSHAKE_VERSIONS, MODERN_VERSION
from trunkline.edges.request_scope import Serve, address_of, when_closed
from trunkline.edges.server_events import PING_S
from trunkline.edges.shares import SHARE, Share, Shares
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, Requests, stored
from trunkline.model import Principal, fault

PATH: Final = "/mcp"
SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"
UNAUTHORIZED: Final = error_body(fault("auth.failed"))


class McpDoor:
    """The application behind ``/mcp``."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        requests: Requests,
        catalogue: Catalogue,
        calls: Calls,
        session_ids: SessionIds,
        version: str,
        home: str,
    ) -> None:
        self._feed = feed
        self._requests = requests
        self._catalogue = catalogue
        self._calls = calls
        self._session_ids = session_ids
        self._resources = Resources(views, catalogue)
        self.changes = Changes(feed, catalogue)
        self._throttle = Throttle(feed, EDGE)
        self._incoming = Shares()
        self._unread = Shares()
        self._handshake_wording = Wording(version, is_modern=False, home=home)
        self._modern_wording = Wording(version, is_modern=True, home=home)
        self.door = Door((PATH,), self, gate_of=EDGE, taking={("POST", PATH): self})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        request = self._known(scope)
        if request is None:
            await self._throttle.refused(address_of(scope))
            out = Answering(scope, b"", Share(self._unread, ""), send)
            await out.say(UNAUTHORIZED, 401, (b"www-authenticate", b'Bearer realm="trunkline"'))
            return
        request.out.attended(send)
        scope[SHARE] = Share(self._incoming, request.principal.identity)
        if scope["path"] != PATH:
            await request.out.say_nothing(404)
            return
        try:
            await self._serve(request, receive)
        except BadMessage as bad:
            await self._refuse(request, bad)
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(0, error)
            await self._refuse(request, BadMessage(INTERNAL_ERROR, fault("hub.unavailable").message))

    def try_take(self, scope: Scope, data: bytes, serve: Serve, ended: Callable[[], None]) -> bool:
        """Take a new call without a task. Whatever else a message wants, or is to be refused, is left to one."""
        request = self._known(scope)
        if request is None or not request.out.takes_both or not is_json(request.headers.get(b"content-type", ())):
            return False
        try:
            client, step = self._understood(request, data)
            asked = self._requested(request, client, step) if isinstance(step, CallTool) else None
            if asked is None or not self._calls.is_new(asked):
                return False
        except Exception:  # noqa: BLE001  (the task meets it again, within its boundary)
            return False
        self._calls.take(asked, serve, ended)
        return True

    def _known(self, scope: Scope) -> _HttpRequest | None:
        """A request, if its token is known."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        token = bearer_token(headers.get(b"authorization", ()))
        principal = whose(self._feed, EDGE, token)
        if principal is None:
            return None
        version = headers.get(VERSION_HEADER)
        is_modern = version is not None and version[0].decode("latin-1") not in HANDSHAKE_VERSIONS
        accepted = b",".join(headers.get(b"accept", ()))
        out = Answering(scope, accepted, Share(self._unread, principal.identity))
        return _HttpRequest(scope, headers, principal, out, is_modern=is_modern)

    async def _serve(self, request: _HttpRequest, receive: Receive) -> None:
        match request.scope["method"]:
            case "POST":
                await self._post(request, receive)
            case "GET" if not request.is_modern:
                await self._listen_in_session(request)
            case "DELETE" if not request.is_modern:
                await self._end_session(request)
            case _:
                allowed = b"POST" if request.is_modern else b"GET, POST, DELETE"
                await request.out.say_nothing(405, (b"allow", allowed))

    async def _post(self, request: _HttpRequest, receive: Receive) -> None:
        if not request.out.takes_both:
            raise _Refused(406, INVALID_REQUEST, "Accept has to name application/json and text/event-stream")
        try:
            data = await read_body(request.scope, receive, MAX_MESSAGE_BYTES)
        except BadRequest as bad:
            raise _Refused(bad.status, PARSE_ERROR, bad.text) from None
        client, step = self._understood(request, data)
        match step:
            case CallTool():
                await self._calls.run(self._requested(request, client, step))
            case steps.Answered():
                await self._say(request, step.result)
            case steps.ListTools():
                page = self._catalogue.of(client.principal.identity).page(step.cursor)
                await self._say(request, client.wording.cacheable(page))
            case steps.Begun():
                caller = client.principal.identity
                session_id = self._session_ids.new(caller, step.version, opens_urls=step.opens_urls)
                await self._say(request, step.result, (SESSION_HEADER, session_id.encode()))
            case steps.ListResources():
                await self._say(request, self._resources.listed(client))
            case steps.ReadResource():
                await self._read(request, client, step.uri)
            case steps.Listen():
                await self._listen(request, client, step)
            case steps.Cancel():
                self._calls.cancel(client, step.request_id)
                await request.out.say_nothing(202)
            case steps.Nothing():
                await request.out.say_nothing(202)

    # -- who asks ------------------------------------------------------------------------------------------------------

    def _understood(self, request: _HttpRequest, data: bytes) -> tuple[Client, steps.Step]:
        """Who sent a message, and what he wants."""
        message = messages.read(data)
        request.request_id = message.request_id
        client = self._modern(request, message) if request.is_modern else self._in_session(request, message)
        return client, steps.step_of(message, data, client)

    def _modern(self, request: _HttpRequest, message: Message) -> Client:
        """Whose request of 2026-07-28 this is, by what it says of itself."""
        if not message.is_request:
            return Client(request.principal, MODERN_VERSION, self._modern_wording)
        problem = steps.envelope_problem(message, request.headers)
        if problem is not None:
            raise problem
        opens_urls = messages.opens_urls(message.meta[mcp_words.CLIENT_CAPABILITIES_KEY])
        return Client(request.principal, MODERN_VERSION, self._modern_wording, opens_urls)

    def _in_session(self, request: _HttpRequest, message: Message) -> Client:
        """Whose request of a session this is; one that begins one needs none."""
        if message.method == "initialize" and message.is_request:
            return Client(request.principal, HANDSHAKE_VERSIONS[0], self._handshake_wording)
        return self._session(request)

    def _session(self, request: _HttpRequest) -> Client:
        session_id = request.header(SESSION_HEADER)
        if session_id is None:
            raise _Refused(400, INVALID_REQUEST, "the header mcp-session-id is missing: begin with initialize")
        found = self._session_ids.find(session_id, request.principal.identity)
        if found is None:
            raise _Refused(404, INVALID_REQUEST, "there is no such session: begin with initialize")
        return Client(request.principal, found.version, self._handshake_wording, found.opens_urls, session_id)

    # -- what is asked -------------------------------------------------------------------------------------------------

    def _requested(self, request: _HttpRequest, client: Client, step: CallTool) -> Request:
        tool = self._catalogue.of(client.principal.identity).find(step.name)
        if tool is None:
            raise BadMessage(INVALID_PARAMS, "name: there is no such tool")
        return Request(request.request_id, client, step, tool, request.out, request.scope, request.url)

    async def _read(self, request: _HttpRequest, client: Client, uri: str) -> None:
        # Trajectories are read from the disk, and somebody may ask for one whose last call was just told.
        await stored(self._feed)
        found = self._resources.find(uri, client)
        if not isinstance(found, FileCall):
            await self._say(request, found)
            return
        step = CallTool(found.tool.name, found.arguments, found.value, None, None, None, None, None, is_declined=False)
        await self._calls.run(
            Request(
                request.request_id,
                client,
                step,
                found.tool,
                request.out,
                request.scope,
                request.url,
                lambda outcome: self._resources.file(client, uri, outcome),
            )
        )

    async def _listen(self, request: _HttpRequest, client: Client, step: steps.Listen) -> None:
        """``subscriptions/listen`` of 2026-07-28: its answer is a stream, and its result the end of it."""
        meta = {mcp_words.SUBSCRIPTION_KEY: request.request_id}
        honored = {"toolsListChanged": True} if step.tools else {}
        first = json_rpc.notification(
            "notifications/subscriptions/acknowledged", {"notifications": honored, "_meta": meta}
        )
        changed = json_rpc.notification("notifications/tools/list_changed", {"_meta": meta}) if step.tools else b""
        if await self._tell_changes(request, client, changed, first):
            await request.out.say(json_rpc.result(request.request_id, client.wording.result({"_meta": meta})))

    async def _listen_in_session(self, request: _HttpRequest) -> None:
        """``GET``: the stream of a session, for what belongs to no request."""
        if not request.out.takes_stream:
            raise _Refused(406, INVALID_REQUEST, "Accept has to name text/event-stream")
        client = self._session(request)
        changed = json_rpc.notification("notifications/tools/list_changed")
        if await self._tell_changes(request, client, changed, b""):
            await request.out.finish()

    async def _tell_changes(self, request: _HttpRequest, client: Client, changed: bytes, first: bytes) -> bool:
        """Tell a client of changes until it leaves, or we do; whether it is still there."""
        with self._requests.waiting() as listener, when_closed(request.scope, listener.leave):
            if changed:
                self.changes.listen(listener, client.principal.identity, changed)
            if client.session_id:
                self._calls.completions.listen(listener, client.principal.identity, client.session_id)
            try:
                await request.out.start()
                await (request.out.tell(first) if first else request.out.live())
                while True:
                    item = await listener.next(PING_S)
                    if item is LEFT:
                        return False
                    if item is CLOSING or item is FAILED:
                        return True
                    if whose(self._feed, EDGE, request.token) is None:
                        return True
                    await (request.out.tell(item) if isinstance(item, bytes) else request.out.live())
            finally:
                self.changes.leave(listener)
                self._calls.completions.leave(listener)

    async def _end_session(self, request: _HttpRequest) -> None:
        """``DELETE``."""
        self._session_ids.end(self._session(request).session_id)
        await request.out.say_nothing(200)

    # -- what is said --------------------------------------------------------------------------------------------------

    async def _say(self, request: _HttpRequest, result: bytes, *headers: Header) -> None:
        await request.out.say(json_rpc.result(request.request_id, result), 200, *headers)

    async def _refuse(self, request: _HttpRequest, bad: BadMessage) -> None:
        request_id = request.request_id if bad.request_id is None else bad.request_id
        code, status = bad.code, 200
        if isinstance(bad, _Refused):
            status = bad.status
        elif request.is_modern:
            # A code that the later version has no more.
            code = INVALID_PARAMS if code == RESOURCE_NOT_FOUND else code
            status = messages.HTTP_STATUS.get(code, 200)
        elif request.request_id is None:
            status = 400
        await request.out.say(json_rpc.error(request_id, code, bad.text, bad.data), status)


class _Refused(BadMessage):
    """A request that is refused with a status of its own."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(code, text)
        self.status = status


class _HttpRequest:
    """One HTTP request of somebody who is known."""

    def __init__(
        self,
        scope: Scope,
        headers: dict[bytes, list[bytes]],
        principal: Principal,
        out: Answering,
        *,
        is_modern: bool,
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.principal = principal
        self.out = out
        self.is_modern = is_modern
        # That of its message, once that was read.
        self.request_id: Id = None

    def header(self, name: bytes) -> str | None:
        """What a header says; the first one counts."""
        found = self.headers.get(name)
        return None if not found else found[0].decode("latin-1")

    @property
    def token(self) -> bytes | None:
        """The token that it shows."""
        return bearer_token(self.headers.get(b"authorization", ()))

    @property
    def url(self) -> str:
        """Our address, as this client reaches it; its Host header was found to name us."""
        return f"http://{self.header(b'host')}"
