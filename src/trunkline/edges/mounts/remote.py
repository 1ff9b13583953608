"""A server that is reached at a URL: streamable HTTP, in both eras of the protocol.

Owns the requests that are under way, the session that a server gave us, and connecting again after it was lost: after
waits that double, for as long as it is configured; after a person signed in where it wants that. Does not own what is
said (``session``), connections (``http_streams``), nor tokens (``signing_in``).

Each message of ours is a POST. Its answer, and what the server says before it, come back as the body: one message, or
a stream of them. A server of the older era may have more to say on a stream of its own (GET). Without a handshake the
end of a request's stream is how it is canceled.

Invariant: at most one conversation with the server at a time, and nothing of an old one is heard in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Final

from trunkline.edges import mcp_words, tls
from trunkline.edges.background import Background
from trunkline.edges.client import Unreachable, endpoint_of
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import AgentAction
from trunkline.edges.framing.lines import MAX_LINE_BYTES
from trunkline.edges.mounts import messages
from trunkline.edges.mounts.http_streams import Answer, Connections, EventReader, NotConnected
from trunkline.edges.mounts.mount import Mount
from trunkline.edges.mounts.names import AGENT_EDGE
from trunkline.edges.mounts.notices import Notices
from trunkline.edges.mounts.session import Outgoing
from trunkline.edges.mounts.signing_in import SigningIn
from trunkline.edges.shares import Share
from trunkline.errors import SecretMissing
from trunkline.secret_references import Found, may_wait
from trunkline.shown import AgentView

log = logging.getLogger("trunkline")

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
# A conversation that lasted so long worked: the next wait is short again.
STEADY_S: Final = 60.0
# From a connection to its tools, and from a ping without an answer to the end: as for agents that run here.
READY_S: Final = 120.0
HUNG_S: Final = 60.0
LOOK_S: Final = 1.0
GOODBYE_S: Final = 2.0
# How often a stream that broke off is asked for what is missing.
RESUMES: Final = 2
RESUME_WAIT_S: Final = 1.0

SESSION_HEADER: Final = "mcp-session-id"
# What servers make up is a UUID or a signed token.
MAX_SESSION_CHARS: Final = 1024
_STREAMS: Final = "text/event-stream"
_CHALLENGE: Final = "www-authenticate"
# The state of a server that waits until a person has signed in.
SIGNED_OUT: Final = "signed-out"


class RemoteServer:
    """One of them: ``mount.Link``, while there is a conversation."""

    def __init__(self, given: Surroundings, mount: Mount, background: Background, share: Share) -> None:
        """``share`` is its own, of what is kept of answers that have not ended."""
        self._given = given
        self._share = share
        self._mount = mount
        self._background = background
        assert mount.server.url is not None
        self._place = endpoint_of(mount.server.url)
        self._headers: dict[str, str] = {}
        # None where the operator set the header that tokens stand in.
        has_own = any(name.lower() == "authorization" for name in mount.server.headers)
        self.signing_in = None if has_own else SigningIn(given, mount.server)
        self._state, self._note = "stopped", ""
        self._restarts = 0
        self._keeping: asyncio.Task[None] | None = None
        # Of the conversation: its connections, the session that the server gave it, requests by number, other tasks,
        # that its handshake is done, and why it is over.
        self._connections: Connections | None = None
        self._session_id = ""
        # What is said of it while it is ready.
        self._wants_more = ""
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._notices = Notices(background, self._post)
        self._greeting: asyncio.Task[None] | None = None
        self._over: asyncio.Future[str] | None = None

    # -- for whoever mounted it ----------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing is tried: a person stopped it, or a secret was missing."""
        return self._keeping is None

    def problem(self) -> str:
        """Why it could not be connected to now, as far as can be told at once: a keyring may wait for its owner."""
        try:
            headers = self._mount.server.headers
            _checked(Found({name: text for name, text in headers.items() if not may_wait({name: text})}, os.environ))
        except SecretMissing as missing:
            return f"a secret is missing: {missing}"
        return ""

    def start(self) -> None:
        """Connect from now on."""
        if self._keeping is None:
            self._state = "starting"
            self._keeping = self._background.spawn(self._keep())

    def stop(self, reason: str) -> None:
        """Let go of it."""
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._end(reason)
        self._state, self._note = "stopped", reason

    def steer(self, action: AgentAction) -> None:
        """What a person wants done."""
        if action != "start":
            self.stop(f"stopped by the operator; `trunkline start {self._mount.agent_id}` starts it again")
        if action != "stop":
            self._restarts = 0
            self.start()

    def view(self) -> AgentView:
        """How it is."""
        return AgentView(self._mount.agent_id, AGENT_EDGE, self._state, restarts=self._restarts, note=self._note)

    # -- conversations, one after the other ----------------------------------------------------------------------------

    async def _keep(self) -> None:
        waits = 0
        while True:
            try:
                await self._look_up()
            except SecretMissing as missing:
                again = f"`trunkline restart {self._mount.agent_id}` tries again"
                self._state, self._note = "crashed", f"a secret is missing: {missing}; {again}"
                log.warning("%s stays off: %s", self._mount.agent_id, self._note)
                self._keeping = None
                return
            began = asyncio.get_running_loop().time()
            reason = await self._converse()
            self._note = reason
            if self.signing_in is not None and self.signing_in.is_wanted:
                await self._signed_in(self.signing_in)
                waits = 0
                continue
            self._state = "backoff"
            waits = 0 if asyncio.get_running_loop().time() - began >= STEADY_S else waits
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**waits)
            if not waits:
                log.warning("%s is not connected: %s", self._mount.agent_id, reason)
            waits += 1
            await asyncio.sleep(wait_s)
            self._restarts += 1
            self._state = "starting"

    async def _signed_in(self, signing_in: SigningIn) -> None:
        """Wait for a person. Nothing is asked of the server meanwhile: it has said what it wants."""
        self._state = SIGNED_OUT
        name = self._mount.server.id
        self._note = f"it wants you to sign in: `trunkline mcp login {name}`, or the console"
        log.warning("%s: %s", self._mount.agent_id, self._note)
        signing_in.done.clear()
        await signing_in.done.wait()
        self._state, self._note = "starting", ""

    @property
    def is_signed_out(self) -> bool:
        """Whether it waits for a person."""
        return self._state == SIGNED_OUT

    def start_anew(self) -> None:
        """There are other tokens: speak with it under those."""
        self.give_up("you signed in")

    async def sign_out(self) -> None:
        """Forget what a person signed in for."""
        if self.signing_in is not None:
            await self.signing_in.forget()
            self.give_up("you signed out")

    async def _look_up(self) -> None:
        """The headers, with the secrets that they refer to; a keyring may take its time."""
        found = await asyncio.to_thread(Found, self._mount.server.headers, os.environ)
        for name, secret in found.secrets:
            self._given.know_secret(name, secret)
        self._headers = _checked(found)

    async def _converse(self) -> str:
        """One conversation, to its end; why it ended."""
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._over = over
        trust = tls.client_context() if self._place.is_tls else None
        self._connections = Connections(self._place, trust, self._share)
        self._session_id, self._greeting, self._wants_more = "", None, ""
        self._mount.connected(self, None)
        began = asyncio.get_running_loop().time()
        silent_since: float | None = None
        try:
            while not over.done():
                await asyncio.wait([over], timeout=LOOK_S)
                now = asyncio.get_running_loop().time()
                if self._mount.is_ready:
                    self._state, self._note = "ready", self._wants_more
                elif now - began > READY_S:
                    self.give_up(f"it was not ready within {READY_S:g} s")
                silent_since = None if not self._mount.is_silent else silent_since or now
                if silent_since is not None and now - silent_since > HUNG_S:
                    self.give_up(f"it was silent for {HUNG_S:g} s")
                self._drop_unwanted()
            await self._say_goodbye()
            return over.result()
        finally:
            self._end("the conversation is over")

    async def _say_goodbye(self) -> None:
        if self._session_id and self._connections is not None:
            with contextlib.suppress(Unreachable, TimeoutError):
                async with (
                    asyncio.timeout(GOODBYE_S),
                    self._connections.request("DELETE", await self._own_headers(self._version)),
                ):
                    pass

    def _end(self, reason: str) -> None:
        """Nothing of this conversation is heard any more."""
        if self._over is None:
            return
        if self._over.done():
            reason = self._over.result()
        self._over = None
        for task in (*self._requests.values(), *self._tasks):
            task.cancel()
        self._requests.clear()
        self._tasks.clear()
        self._notices.clear()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        self._mount.disconnected(reason)

    # -- the link ------------------------------------------------------------------------------------------------------

    def send(self, messages_: list[Outgoing]) -> None:
        """Send each as a request of its own."""
        for one in messages_:
            if one.method == messages.CANCELLED and one.version == mcp_words.MODERN_VERSION:
                if one.number is not None and (task := self._requests.pop(one.number, None)) is not None:
                    task.cancel()
                continue
            if one.method == messages.INITIALIZED:
                # Once in a conversation, and everything else waits for it.
                self._greeting = self._background.spawn(self._post(one))
                self._tasks.add(self._greeting)
                self._greeting.add_done_callback(self._tasks.discard)
            elif one.number is not None and one.method != messages.CANCELLED:
                self._requests[one.number] = self._background.spawn(self._post(one))
            elif not self._notices.try_put(one):
                self.give_up("it asks for more than it takes answers to")

    def _drop_unwanted(self) -> None:
        """Let go of the connections of requests that nobody waits for any more: canceled, and not answered since."""
        for number in [number for number in self._requests if not self._is_owed(number)]:
            self._requests.pop(number).cancel()

    def give_up(self, reason: str) -> None:
        """End this conversation."""
        if self._over is not None and not self._over.done():
            self._over.set_result(reason)

    @property
    def _version(self) -> str:
        return "" if self._mount.session is None else self._mount.session.version

    async def _own_headers(self, version: str) -> dict[str, str]:
        """``NotConnected`` if a token that is over cannot be renewed now."""
        found = {**self._headers, "accept": f"application/json, {_STREAMS}"}
        if self.signing_in is not None:
            try:
                authorization = await self.signing_in.authorization()
            except Unreachable as problem:
                raise NotConnected(f"its token cannot be renewed: {problem}") from None
            if authorization:
                found["authorization"] = authorization
        if version:
            found["mcp-protocol-version"] = version
        if self._session_id:
            found[SESSION_HEADER] = self._session_id
        return found

    # -- one message ---------------------------------------------------------------------------------------------------

    async def _post(self, one: Outgoing) -> None:
        number = None if one.method == messages.CANCELLED else one.number
        if self._greeting is not None and one.method != messages.INITIALIZED:
            # A server need not understand anything before it has heard that the handshake is done.
            await asyncio.wait([self._greeting])
        if (connections := self._connections) is None:
            return
        last_id = ""
        try:
            last_id = await self._exchange(connections, one, number)
        except NotConnected as problem:
            if number is not None:
                self._mount.not_sent(number)
            self.give_up(f"it cannot be reached: {problem}")
            return
        except Unreachable as problem:
            if number is None or not self._is_owed(number):
                return
            if one.method in {messages.DISCOVER, messages.INITIALIZE, messages.LIST_TOOLS}:
                self.give_up(f"it cannot be reached: {problem}")
                return
        if number is not None and self._is_owed(number):
            await self._resume(number, last_id)
        if one.method == messages.INITIALIZED and self._mount.session is not None:
            self._listen()
        if number is not None:
            self._requests.pop(number, None)

    async def _exchange(self, connections: Connections, one: Outgoing, number: int | None) -> str:
        """Send it and read what comes back; once more with another token, if the server did not take the first."""
        for is_last in (False, True):
            headers = {**await self._own_headers(one.version), "content-type": "application/json"}
            if one.version == mcp_words.MODERN_VERSION:
                headers["mcp-method"] = one.method
                if one.name:
                    headers["mcp-name"] = mcp_words.header_value(one.name)
                headers.update(one.headers)
            async with connections.request("POST", headers, one.body) as answer:
                if answer.status == 401 and not is_last and await self._has_another_token(headers, answer):
                    continue
                if one.method == messages.INITIALIZE:
                    self._session_id = _session_of(answer.headers)
                return await self._read(answer, number)
        return ""

    async def _has_another_token(self, sent: Mapping[str, str], answer: Answer) -> bool:
        if self.signing_in is None:
            return False
        try:
            return await self.signing_in.refused(sent.get("authorization", ""), answer.headers.get(_CHALLENGE, ""))
        except Unreachable as problem:
            # The request itself was refused: nothing was done.
            raise NotConnected(f"its token cannot be renewed: {problem}") from None

    def _is_owed(self, number: int) -> bool:
        """Whether this request has no answer yet."""
        return self._mount.session is not None and self._mount.session.is_open(number)

    async def _read(self, answer: Answer, number: int | None) -> str:
        """What came back; the id of the last event, if a stream broke off that can be asked for the rest."""
        if answer.status >= 300:
            await self._refused(answer, number)
        elif number is None:
            with contextlib.suppress(Unreachable):
                await answer.body(MAX_LINE_BYTES)
        elif answer.kind == _STREAMS:
            return await self._read_events(answer, number)
        elif answer.kind == "application/json":
            self._mount.heard(await answer.body(MAX_LINE_BYTES))
        return ""

    async def _read_events(self, answer: Answer, number: int | None) -> str:
        events, last_id = EventReader(MAX_LINE_BYTES), ""
        async for piece in answer.pieces():
            for event in events.receive(piece):
                last_id = event.event_id or last_id
                if event.data:
                    self._mount.heard(event.data)
            answer.keep(events.kept)
            if events.is_broken:
                self.give_up(f"an event has more than {MAX_LINE_BYTES} bytes")
                return ""
            if number is not None and not self._is_owed(number):
                return ""
        return last_id

    async def _refused(self, answer: Answer, number: int | None) -> None:
        status = answer.status
        if status == 401:
            if number is not None:
                self._mount.not_sent(number)
            if self.signing_in is not None:
                self.signing_in.is_wanted = True
            self.give_up("it did not take the token of `headers` (HTTP 401)" if self.signing_in is None else "HTTP 401")
            return
        asked = answer.headers.get(_CHALLENGE, "")
        if status == 403 and self.signing_in is not None and self.signing_in.wants_more(asked):
            self._wants_more = f"a call needs another permission there: `trunkline mcp login {self._mount.server.id}`"
        if status == 404 and self._session_id:
            self.give_up("its session is over (HTTP 404)")
            return
        if number is None or status >= 500:
            if status >= 500 and number is not None:
                raise Unreachable(f"HTTP {status}")
            return
        error: messages.Error | None = None
        if answer.kind == "application/json":
            said = messages.read(await answer.body(MAX_LINE_BYTES))
            error = None if said is None else messages.part(messages.Error, said.error)
        error = error or messages.Error(0, f"HTTP {status}")
        self._mount.heard(messages.encode({"jsonrpc": "2.0", "id": number, "error": error}))

    async def _resume(self, number: int, last_id: str) -> None:
        """A stream broke off before the answer: ask for the rest, if it said where it was."""
        for _ in range(RESUMES if last_id else 0):
            await asyncio.sleep(RESUME_WAIT_S)
            with contextlib.suppress(Unreachable):
                if self._connections is None:
                    return
                headers = await self._own_headers(self._version)
                headers |= {"accept": _STREAMS, "last-event-id": last_id}
                async with self._connections.request("GET", headers) as answer:
                    if answer.status == 200 and answer.kind == _STREAMS:
                        last_id = await self._read_events(answer, number) or last_id
            if not self._is_owed(number):
                return
        self._mount.lost(number)

    # -- what a server says by itself ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        session = self._mount.session
        if session is not None and not session.is_stateless and session.tells_changes:
            task = self._background.spawn(self._hear_by_itself())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hear_by_itself(self) -> None:
        waits = 0
        while self._connections is not None:
            with contextlib.suppress(Unreachable):
                headers = {**await self._own_headers(self._version), "accept": _STREAMS}
                async with self._connections.request("GET", headers) as answer:
                    if answer.status != 200 or answer.kind != _STREAMS:
                        return
                    await self._read_events(answer, None)
            await asyncio.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**waits))
            waits += 1


def _session_of(headers: Mapping[str, str]) -> str:
    """The session that a server gave us; one that cannot be a header is none."""
    found = headers.get(SESSION_HEADER, "")
    return found if len(found) <= MAX_SESSION_CHARS and found.isascii() and found.isprintable() else ""


def _checked(found: Found) -> dict[str, str]:
    if not all(value.isascii() and value.isprintable() for value in found.texts.values()):
        raise SecretMissing("what a header refers to is no line of printable characters")
    return found.texts
