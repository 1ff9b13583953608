"""One client of the bridge: what its events on Pylon's channels lead to, and what it is told of them.

Owns which workspaces it has connected, and its calls that are open. Does not own the connection's own protocol
(``session``), the socket (``serve``), nor what codex does (``workspace``). Nothing here waits: a call's outcome comes
to ``send``, as to every conversation.

Invariant: a client is told of, and reaches, only the workspaces that it has connected itself. What it has open is
bounded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Raw, Struct

from trunkline.edges.exchange import Feed, Views
from trunkline.edges.pusher.connection import PusherClient
from trunkline.edges.pusher.frames import Code, encode
from trunkline.edges.pusher.session import ClientEvent, PusherSession, Subscribed, Unsubscribed
from trunkline.edges.pylon import messages, translate
from trunkline.edges.pylon.messages import BadPayload
from trunkline.edges.pylon.origins import PROGRAMS
from trunkline.edges.pylon.workspace import Workspace, not_connected
from trunkline.effects import Answer, Close, ToSession, Wait
from trunkline.events import AgentLeft, CallRequested, CancelRequested
from trunkline.model import Decision, Now, Status, fault

if TYPE_CHECKING:
    from trunkline.edges.pylon.agent import CodexAgent

# Calls of one client without an outcome, and those of them that may ask a person.
MAX_OPEN: Final = 64
MAX_CONNECTS: Final = 4


class Bridge(Protocol):
    """All clients together, as one of them sees it."""

    feed: Feed
    views: Views
    agent: CodexAgent

    def snapshot(self) -> str:
        """The payload of ``pylon.capabilities`` as a JSON text."""

    def joined(self, client: Client, wanted: Subscribed) -> None:
        """It listens to a channel."""

    def left(self, client: Client, channel: str) -> None:
        """It does not any more."""

    def may_ask(self, client: Client) -> bool:
        """Whether a person may be asked for it now; counted if so."""


class Open(Struct):
    """A call without an outcome, and for what."""

    payload: messages.Payload
    # Known once it waits for a person.
    call_id: str = ""


class Client(PusherClient):
    """One connection."""

    def __init__(
        self, bridge: Bridge, session: PusherSession, on_output: Callable[[], None], origin: str = PROGRAMS
    ) -> None:
        super().__init__(bridge.feed, session, on_output)
        self._bridge = bridge
        self.origin = origin
        self._agent = bridge.agent
        self.socket_id = session.socket_id
        # By the name that the client gave them.
        self.workspaces: dict[str, Workspace] = {}
        self._open: dict[str, Open] = {}
        self._refs = itertools.count(1)
        # Set while the disk is not behind.
        self._is_ready = asyncio.Event()
        self._is_ready.set()
        self.number = self._feed.open_session(self)

    # -- what it says --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """One message."""
        match self.session.receive(data, self._feed.now()):
            case Subscribed() as wanted:
                self._bridge.joined(self, wanted)
            case Unsubscribed() as gone:
                self._bridge.left(self, gone.channel)
            case ClientEvent() as event:
                self._take(event)
            case None:
                pass
        self._on_output()

    def _take(self, event: ClientEvent) -> None:
        match event.event:
            case messages.DISCOVER:
                self.tell_capabilities(self._bridge.snapshot())
            case messages.SYSTEM_PING:
                self._say(messages.SYSTEM_PONG, translate.pong(self._feed.now()), messages.SYSTEM)
            case _:
                try:
                    payload = messages.read_payload(event.event, event.data)
                except BadPayload as problem:
                    self._bad(event.event, problem)
                else:
                    self._codex(payload)

    def _bad(self, event: str, problem: BadPayload) -> None:
        self._say(messages.CODEX_ERROR, translate.error(problem.workspace_id, f"{event}: {problem}"))
        if event == messages.REQUEST and problem.request_id is not None:
            said = fault("message.malformed", str(problem))
            self._say(messages.CODEX_RESPONSE, translate.refused(problem.workspace_id, problem.request_id, said))

    def _codex(self, payload: messages.Payload) -> None:
        match payload:
            case messages.Connect():
                self._connect(payload)
            case messages.Disconnect():
                self._disconnect(payload)
            case messages.Request():
                self._request(payload)
            case messages.Respond():
                self._respond(payload)

    def _connect(self, wanted: messages.Connect) -> None:
        workspace_id = wanted.workspace_id
        known = self.workspaces.get(workspace_id)
        connects = [one.payload for one in self._open.values() if isinstance(one.payload, messages.Connect)]
        if known is not None and known.cwd == wanted.cwd:
            self._status(workspace_id, translate.CONNECTED)
        elif known is not None or any(one.workspace_id == workspace_id for one in connects):
            self._error(workspace_id, "this workspace is connected, or asked for; disconnect it first")
        elif (trouble := self._agent.trouble()) is not None:
            self._status(workspace_id, *trouble)
        elif len(connects) >= MAX_CONNECTS:
            self._error(workspace_id, f"{MAX_CONNECTS} workspaces wait to be connected")
        elif not self._bridge.may_ask(self):
            self._error(workspace_id, "workspaces are connected too often from there; wait a minute")
        else:
            body = translate.ConnectInput(workspace_id, wanted.cwd, self.socket_id)
            self._call(translate.CONNECT, body, wanted)

    def _disconnect(self, wanted: messages.Disconnect) -> None:
        workspace_id = wanted.workspace_id
        for ref, one in list(self._open.items()):
            if isinstance(one.payload, messages.Connect) and one.payload.workspace_id == workspace_id:
                self._withdraw(ref, one)
        workspace = self.workspaces.pop(workspace_id, None)
        if workspace is not None:
            workspace.detach(self.socket_id)
        self._status(workspace_id, translate.DISCONNECTED)

    def _request(self, wanted: messages.Request) -> None:
        problem = None
        if wanted.workspace_id not in self.workspaces:
            problem = not_connected()
        elif len(self._open) >= MAX_OPEN:
            problem = fault("limit.inflight", f"{MAX_OPEN} requests of yours are open")
        if problem is not None:
            payload = translate.refused(wanted.workspace_id, wanted.request_id, problem)
            self._say(messages.CODEX_RESPONSE, payload)
            return
        body = translate.RequestInput(wanted.workspace_id, self.socket_id, wanted.method, wanted.params)
        self._call(translate.REQUEST, body, wanted)

    def _respond(self, wanted: messages.Respond) -> None:
        workspace = self.workspaces.get(wanted.workspace_id)
        question = "" if workspace is None else workspace.open_question(wanted.request_id)
        if not question:
            text = not_connected().message if workspace is None else "codex does not wait for this answer any more"
            self._error(wanted.workspace_id, text)
            return
        body = translate.RespondInput(wanted.workspace_id, self.socket_id, question, wanted.result)
        judged = self._bridge.views.check(self._agent.principal.identity, translate.RESPOND, Raw(encode(body)))
        if judged.decision is not Decision.ALLOW:
            # To ask a person whether a page may answer would be the very question that the person has before him.
            self._error(wanted.workspace_id, "by the rules only a person answers this: `trunkline approvals`")
            return
        self._call(translate.RESPOND, body, wanted)

    def _call(self, tool_id: str, body: Struct, payload: messages.Payload) -> None:
        ref = str(next(self._refs))
        self._open[ref] = Open(payload)
        by = self._agent.principal
        self._feed.feed([CallRequested(self.number, ref, by, tool_id, Raw(encode(body)), announce=True)])

    def _withdraw(self, ref: str, one: Open) -> None:
        """Nobody waits for this any more, and nobody needs to be asked about it."""
        del self._open[ref]
        if one.call_id:
            by, reason = self._agent.principal, "the client left"
            self._feed.feed([CancelRequested(self.number, "withdraw", by, call_id=one.call_id, reason=reason)])

    # -- what it is told -----------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  (no clock is needed)
        """The exchange says something about a call of this client."""
        match effect:
            case Wait() if effect.approval_id and effect.ref in self._open:
                one = self._open[effect.ref]
                one.call_id = effect.call_id
                if isinstance(one.payload, messages.Connect):
                    detail = f"a person is asked: `trunkline approve {effect.approval_id}`"
                    self._status(one.payload.workspace_id, translate.DISCONNECTED, detail)
            case Answer():
                one_open = self._open.pop(effect.ref, None)
                if one_open is not None:
                    self._answered(one_open.payload, effect)
            case Close():
                self.end(Code.STOPPING, effect.reason)
            case _:
                pass

    def flush(self) -> None:
        """Something may have been said."""
        self._on_output()

    def _answered(self, payload: messages.Payload, answer: Answer) -> None:
        match payload:
            case messages.Request():
                said = translate.response(payload.workspace_id, payload.request_id, answer)
                self._say(messages.CODEX_RESPONSE, said)
            case messages.Connect():
                self._connected(payload, answer)
            case _ if answer.fault is not None:
                self._error(payload.workspace_id, answer.fault.message)
            case _:
                pass

    def _connected(self, wanted: messages.Connect, answer: Answer) -> None:
        workspace_id = wanted.workspace_id
        if answer.status is Status.SUCCEEDED:
            workspace = self._agent.admit(self, workspace_id, wanted.cwd)
            if workspace is None:
                self._status(workspace_id, translate.FAILED, "codex ended as soon as it had started")
            else:
                self.workspaces[workspace_id] = workspace
                self._status(workspace_id, translate.CONNECTED)
            return
        problem = answer.fault or fault("tool.failed")
        word = str((problem.details or {}).get("status", translate.DISCONNECTED))
        self._error(workspace_id, problem.message)
        self._status(workspace_id, word, problem.message)

    def workspace_over(self, workspace: Workspace, word: str, detail: str) -> None:
        """The app-server of one of its workspaces is gone."""
        if self.workspaces.get(workspace.workspace_id) is workspace:
            del self.workspaces[workspace.workspace_id]
            if word == translate.FAILED:
                self._error(workspace.workspace_id, detail)
            self._status(workspace.workspace_id, word, detail)
            self._on_output()

    def tell(self, event: str, data: str) -> None:
        """Something of one of its workspaces, as a JSON text."""
        self.session.tell(messages.CODEX, event, data)
        self._on_output()

    def tell_capabilities(self, snapshot: str) -> None:
        """What the exchange can do now."""
        self.session.tell(messages.SYSTEM, messages.CAPABILITIES, snapshot)
        self._on_output()

    def _status(self, workspace_id: str, word: str, detail: str = "") -> None:
        self._say(messages.CODEX_STATUS, translate.status(workspace_id, word, detail))

    def _error(self, workspace_id: str, text: str) -> None:
        self._say(messages.CODEX_ERROR, translate.error(workspace_id, text))

    def _say(self, event: str, payload: dict[str, object], base: str = messages.CODEX) -> None:
        self.session.tell(base, event, encode(payload).decode())

    # -- reading, and the end ------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """The disk is behind."""
        self._is_ready.clear()

    def resume_reading(self) -> None:
        """It has caught up."""
        self._is_ready.set()

    async def wait_ready(self) -> None:
        """While the disk is behind, nothing is taken."""
        await self._is_ready.wait()

    def end(self, code: Code, reason: str) -> None:
        """Say why, and close. Whoever reads for it must see the end, also while the disk is behind."""
        super().end(code, reason)
        self.resume_reading()

    def leave(self) -> None:
        """The connection is gone."""
        for channel in list(self.session.channels):
            self._bridge.left(self, channel)
        self.workspaces.clear()
        if self.number:
            for ref, one in list(self._open.items()):
                if isinstance(one.payload, messages.Connect):
                    self._withdraw(ref, one)
            self._feed.feed([AgentLeft(self.number, "disconnected")])
            self._feed.close_session(self.number)
            self.number = 0
        self._agent.client_left(self.socket_id)
