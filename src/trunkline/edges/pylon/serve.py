"""Pylon over WebSockets: ``/app/{app_key}`` on an address of its own.

Owns who may open a socket (Host, Origin, key, version), and what all clients share: the snapshot of what the exchange
can do, and who is on the presence channels. Does not own a connection's own life and protocol (``edges.pusher``), nor
what is said on one (``client``).

The key stands in the page of everybody who uses it, so it opens nothing by itself. What keeps others out is the
browser: it says from which page a connection comes (Origin), and which name led it here (Host). Programs that are no
browsers say no Origin; they run on this machine as somebody who could do more without us.

Invariant: a defect met in one connection ends that one alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from trunkline.edges.answers import refusal
from trunkline.edges.background import Background
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import Timer
from trunkline.edges.hosts import is_our_host
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.connection import PusherConnections, turn_away
from trunkline.edges.pusher.frames import Code
from trunkline.edges.pusher.presence import Members
from trunkline.edges.pusher.session import PusherSession, Subscribed
from trunkline.edges.pylon import messages, translate
from trunkline.edges.pylon.agent import CodexAgent
from trunkline.edges.pylon.client import Client
from trunkline.edges.pylon.origins import Origins, origin_of
from trunkline.edges.request_scope import address_of
from trunkline.edges.shares import SHARE, Share, Shares
from trunkline.model import fault
from trunkline.shown import ToolView

PREFIX: Final = "/app/"
# Pages of one person, and some that were not closed.
MAX_CLIENTS: Final = 64
# What may wait for a client that does not read: a whole answer of the app-server, and as much again.
MAX_WAITING_BYTES: Final = 33_554_432
# How soon a change of the tools is told to those who listen. A look at 1,000 tools takes 2 ms.
LOOK_S: Final = 0.5
LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# For a person who opens the address in a browser, to have the browser trust our certificate.
PAGE: Final = "This is the Pylon bridge of Trunkline. If you can read this, your browser takes its certificate.\n"


def is_allowed_origin(origin: str, allowed: Sequence[str]) -> bool:
    """Whether a page of this origin may connect: one of this machine, or one that the configuration names."""
    if origin.lower() in (one.lower() for one in allowed):
        return True
    try:
        parts = urlsplit(origin)
        _ = parts.port
    except ValueError:
        return False
    is_bare = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return parts.scheme in {"http", "https"} and is_bare and parts.hostname in LOOPBACK_HOSTS


class PylonServer:
    """The application, and the clients that are connected: ``client.Bridge``."""

    def __init__(self, given: Surroundings, background: Background) -> None:
        self.feed = given.feed
        self.views = given.views
        self._config = given.config.pylon
        self._version = given.version
        self._connections = PusherConnections(given.feed, background, given.entropy)
        self._incoming = Shares()
        self._members = {f"{frames.PRESENCE}{base}": Members() for base in messages.CHANNELS.events}
        self.clients: dict[str, Client] = {}
        self._origins = Origins()
        self.agent = CodexAgent(given, self.clients.get)
        # What private channels are signed with.
        self.secret = b""
        self._look: Timer | None = None
        self._seen: object = None
        self._is_stopping = False
        # Connections that were refused by their origin or host.
        self.turned_away = 0

    # -- who comes in --------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one connection."""
        problem = self._problem(scope)
        if problem:
            self.turned_away += 1
            answer: Response = refusal(fault("not_allowed", problem), 403)
        elif scope["type"] == "websocket" and scope["path"].startswith(PREFIX):
            await self._connection(WebSocket(scope, receive, send))
            return
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}:
            answer = PlainTextResponse(PAGE)
        else:
            answer = refusal(fault("not_found", f"connect a WebSocket to {PREFIX}{{app_key}}"), 404)
        if scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send)
            await socket.send_denial_response(answer)
        else:
            await answer(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        """Why a page must not reach us; empty if it may."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        default_port = 443 if self._config.tls else 80
        if len(hosts) != 1 or not is_our_host(hosts[0].decode("latin-1"), scope["server"], default_port):
            return "the Host header must be localhost or this machine's loopback address, with our port"
        allowed = self._config.allowed_origins
        if any(not is_allowed_origin(origin.decode("latin-1"), allowed) for origin in origins):
            return "pages of this origin are refused; [pylon] allowed_origins names others than those of this machine"
        return ""

    def _origin(self, scope: Scope) -> str:
        """Where a client comes from, by its own word."""
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        return origin_of(origins, self._config.allowed_origins)

    def _unwelcome(self, socket: WebSocket) -> tuple[Code, str] | None:
        """What is wrong with how it connects, by Pusher's codes."""
        key = socket.scope["path"].removeprefix(PREFIX)
        if "/" in key or not key:
            return Code.PATH_NOT_FOUND, f"the path is {PREFIX}{{app_key}}"
        if key != self._config.app_key:
            return Code.NO_SUCH_APP, "there is no app with this key; [pylon] app_key says which there is"
        # Pusher's clients always say a version; whoever does not is taken to mean ours.
        query = parse_qs(socket.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=None)
        version = query.get("protocol", ["7"])[-1]
        if not version.isascii() or not version.isdecimal():
            return Code.BAD_VERSION, "protocol: expected a number"
        if version not in frames.PROTOCOLS:
            return Code.UNSUPPORTED_VERSION, f"protocol: {', '.join(sorted(frames.PROTOCOLS))} are spoken here"
        if len(self.clients) >= MAX_CLIENTS:
            return Code.OVER_CAPACITY, f"{MAX_CLIENTS} clients are connected"
        if not self._origins.has_room(self._origin(socket.scope)):
            return Code.OVER_CAPACITY, "too many clients from there are connected"
        if self._is_stopping or self.views.closed() is not None:
            return Code.STOPPING, "the exchange is stopping"
        return None

    # -- one connection ------------------------------------------------------------------------------------------------

    async def _connection(self, socket: WebSocket) -> None:
        socket.scope[SHARE] = Share(self._incoming, address_of(socket.scope))
        problem = self._unwelcome(socket)
        await socket.accept()
        if problem is not None:
            await turn_away(socket, *problem)
            return
        socket_id, now = self._connections.new_socket_id(), self.feed.now()
        key, origin = self._config.app_key, self._origin(socket.scope)
        session = PusherSession(messages.CHANNELS, socket_id, key, self.secret, now, MAX_WAITING_BYTES)
        await self._connections.converse(socket, session, partial(self._came, session, origin), self._left)

    def _came(self, session: PusherSession, origin: str, on_output: Callable[[], None]) -> Client:
        client = Client(self, session, on_output, origin)
        self.clients[client.socket_id] = client
        self._origins.came(origin)
        return client

    def _left(self, client: Client) -> None:
        del self.clients[client.socket_id]
        self._origins.left(client.origin)
        client.leave()

    # -- what clients share (``client.Bridge``) ------------------------------------------------------------------------

    def snapshot(self) -> str:
        """What the exchange can do now."""
        return self._shown(self.views.tools(translate.MAX_TOOLS + 1))

    def _shown(self, tools: list[ToolView]) -> str:
        found = translate.capabilities(tools, self._version, self.agent.figures(), self.feed.now())
        return frames.encode(found).decode()

    def joined(self, client: Client, wanted: Subscribed) -> None:
        """A client listens to a channel."""
        session, channel = client.session, wanted.channel
        if wanted.member is not None:
            is_new = self._members[channel].try_join(client.socket_id, wanted.member)
            if is_new is None:
                session.turn_away(channel, "there are too many members")
                return
            if is_new:
                member = {"user_id": wanted.member.user_id, "user_info": wanted.member.user_info}
                self._tell_others(client, channel, frames.MEMBER_ADDED, member)
            session.confirm(channel, self._members[channel].roster())
        else:
            session.confirm(channel, {})
        if messages.CHANNELS.base_of(channel) == messages.SYSTEM:
            session.tell_on_encoded(channel, messages.CAPABILITIES, self.snapshot())
            self._look_soon()

    def left(self, client: Client, channel: str) -> None:
        """A client does not listen to a channel any more."""
        members = self._members.get(channel)
        user_id = "" if members is None else members.leave(client.socket_id)
        if user_id:
            self._tell_others(client, channel, frames.MEMBER_REMOVED, {"user_id": user_id})

    def may_ask(self, client: Client) -> bool:
        """Whether a person may be asked for a client now."""
        return self._origins.try_ask(client.origin, self.feed.now().mono)

    def _tell_others(self, client: Client, channel: str, event: str, data: object) -> None:
        for other in list(self.clients.values()):
            if other is not client:
                other.session.tell_on(channel, event, data)
                other.flush()

    # -- changes of the tools ------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if self._look is None:
            self._seen = translate.tool_key(self.views.tools(translate.MAX_TOOLS + 1))
            self._look = self.feed.call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Tell those who listen if the tools are others than before; while nobody listens, do not look."""
        self._look = None
        listening = [one for one in self.clients.values() if one.session.listens_to(messages.SYSTEM)]
        if not listening:
            return
        self._look = self.feed.call_later(LOOK_S, self._look_again)
        tools = self.views.tools(translate.MAX_TOOLS + 1)
        key = translate.tool_key(tools)
        if key != self._seen:
            self._seen = key
            snapshot = self._shown(tools)
            for client in listening:
                client.tell_capabilities(snapshot)

    # -- figures, and the end ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """For ``trunkline status``."""
        trouble = self.agent.trouble()
        return {
            "clients": len(self.clients),
            "workspaces": self.agent.count,
            "codex": "available" if trouble is None else trouble[0],
            "turned_away": self.turned_away,
            **({"not_installed": trouble[1]} if trouble is not None and trouble[0] == translate.UNAVAILABLE else {}),
        }

    async def stop(self) -> None:
        """End the workspaces, then say goodbye."""
        self._is_stopping = True
        if self._look is not None:
            self._look.cancel()
            self._look = None
        quiet = asyncio.Event()
        self.agent.stop(quiet.set)
        await quiet.wait()
        for client in list(self.clients.values()):
            client.end(Code.STOPPING, "the exchange is stopping")
        await self._connections.wait_closed()
