"""The connection of an agent to the exchange: one socket at a time, opened again when it is lost.

Owns the attempts and the waits between them, and the requests that this agent made and waits for. It does not own the
protocol (``AgentSession``), the socket (``agent_socket``) or the tools that run (``running_calls``).

Invariant: there is at most one session; what belongs to an earlier one is answered or dropped before the next starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.agent_events import (
    AgentEvent,
    Answered,
    Called,
    CancelAsked,
    Complained,
    DirectiveAnswered,
    Dismissed,
    Progressed,
    Refused,
    ToolsConfirmed,
    Welcomed,
)
from trunkline.edges.opensentience.agent_session import AgentSession, HealthWord, Offer
from trunkline.errors import LocalProtocolError, NotAdmitted
from trunkline.model import Channel, Fault, Now, Status, fault
from trunkline.sdk.agent_socket import AgentSocket, End, open_socket
from trunkline.sdk.output_files import OutputFiles
from trunkline.sdk.running_calls import CallOutcome, RunningCalls

# Between attempts: quick after a hiccup, polite to an exchange that is down. Each wait is cut by up to half at random,
# so that a hundred agents do not come back in the same instant.
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 10.0
# An exchange may still hold our old connection when we come back and refuse the token until it notices (decision 16).
REFUSALS_AFTER_RECONNECT: Final = 5
# How long a call waits for a lost connection before it fails.
CALL_WAITS_S: Final = 30.0
# Longer than any sane goodbye; a number beyond it is a mistake.
LONGEST_RETRY_AFTER_S: Final = 300.0

log: Final = logging.getLogger("trunkline.agent")


class Token:
    """A credential that does not print itself, so that it is in no log."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret, for the hello."""
        return self._value

    def __repr__(self) -> str:  # OS-137
        return "<token>"


class Identity(Struct, frozen=True):
    """Who the agent is and where the exchange listens; the same for every connection."""

    agent_id: str
    version: str
    address: str
    token: Token
    manifest_hash: str | None = None
    sdk_version: str = "0.0.0"


class PendingRequest(Struct):
    """A call, or a request for a directive, that this agent made and that has no answer yet."""

    answer: asyncio.Future[Answered | DirectiveAnswered]
    send: Callable[[AgentSession, Now], str]
    # Whether it may be sent again on the next connection: with the same key it is the same request.
    keyed: bool = False
    progressed: Callable[[Progressed], None] | None = None


class ExchangeConnection:
    """Keeps an agent connected; calls and results travel over it.

    ``calls`` is given what the exchange wants to be run or stopped; set it before ``run``.
    """

    calls: RunningCalls

    def __init__(self, identity: Identity, offers: list[Offer], home: Path | None = None) -> None:
        self._identity = identity
        self._offers = offers
        self._output_files = None if home is None else OutputFiles(home, identity.agent_id)
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._socket: AgentSocket | None = None
        self._pending: dict[str, PendingRequest] = {}
        self._health: tuple[HealthWord, bytes | None] = ("ok", None)
        self._closing = asyncio.Event()
        self._was_admitted = False
        self._attempt = 0
        # Set while the exchange knows us and our tools.
        self.ready = asyncio.Event()
        # Called each time the tools are registered.
        self.when_ready: Callable[[], None] = lambda: None

    # -- keeping it up -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay attached until ``close``; ``NotAdmitted`` when the exchange does not want us."""
        refusals = 0
        try:
            while not self._closing.is_set():
                end = await self._one_connection()
                if self._attempt == 0:
                    refusals = 0
                wait_s = self._wait_s()
                if isinstance(end, Refused):
                    refusals += 1
                    if not self._was_admitted or refusals > REFUSALS_AFTER_RECONNECT:
                        raise NotAdmitted(end.code, end.message)
                elif isinstance(end, Dismissed):
                    if end.reason == "replaced":
                        raise NotAdmitted("replaced", "another process took this agent's place")
                    if end.retry_after_ms is not None:  # OS-076
                        wait_s = min(max(end.retry_after_ms / 1000, FIRST_WAIT_S / 2), LONGEST_RETRY_AFTER_S)
                self._attempt += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), wait_s)
        finally:
            self._fail_all()

    def close(self) -> None:
        """Close, and stay closed."""
        self._closing.set()
        if self._socket is not None:
            self._socket.close()

    async def _one_connection(self) -> End | None:
        """One conversation from hello to the end, and what was said about the end."""
        identity = self._identity
        session = AgentSession(
            identity.agent_id,
            identity.version,
            identity.token.reveal(),
            self._offers,
            Now(self._loop.time(), time.time()),
            os.urandom(messages.ID_SEED_BYTES),
            started=self._started,
            manifest_hash=identity.manifest_hash,
            sdk=messages.Sdk("trunkline", identity.sdk_version),
        )
        socket = AgentSocket(session, self._on_event)
        try:
            await open_socket(identity.address, socket)
        except OSError as exc:
            if self._attempt == 0:
                log.warning("%s: no exchange answers (%s); trying on", identity.address, exc.strerror or exc)
            return None
        self._socket = socket
        try:
            if self._closing.is_set():
                socket.close()
            await socket.closed
        finally:
            socket.abort()
            self._socket = None
            self.ready.clear()
            self._fail_unkeyed()
        if not self._closing.is_set():
            log.warning("the exchange is gone%s", "" if socket.end is None else f": {_reason(socket.end)}")
        return socket.end

    def _wait_s(self) -> float:
        longest = min(FIRST_WAIT_S * 2.0 ** min(self._attempt, 16), LONGEST_WAIT_S)
        return longest * random.uniform(0.5, 1.0)

    # -- what happens --------------------------------------------------------------------------------------------------

    def _on_event(self, event: AgentEvent) -> None:
        match event:
            case Called():
                self.calls.start(event)
            case CancelAsked():
                self.calls.cancel(event.call_id)
            case Answered() | DirectiveAnswered():
                self._answered(event)
            case Progressed():
                request = self._pending.get(event.ref)
                if request is not None and request.progressed is not None:
                    # Not from here: what somebody else's code raises would end the connection.
                    self._loop.call_soon(request.progressed, event)
            case Welcomed():
                self._welcomed(event)
            case ToolsConfirmed():
                for tool_id, why in event.rejected:
                    log.error("%s is not taken: %s: %s", tool_id, why.code, why.message)
                self.ready.set()
                self.when_ready()
            case Complained():
                log.warning("the exchange complains: %s: %s", event.code, event.message)

    def _welcomed(self, event: Welcomed) -> None:
        self._was_admitted = True
        self._attempt = 0
        log.info("%s: attached to exchange %s", self._identity.agent_id, event.instance_id)
        if self._health[0] != "ok":
            self.report(*self._health)
        waiting, self._pending = self._pending, {}
        for request in waiting.values():
            self._send(request)
        if not self._offers:
            self.ready.set()

    def _answered(self, event: Answered | DirectiveAnswered) -> None:
        request = self._pending.pop(event.ref, None)
        if request is not None and not request.answer.done():
            request.answer.set_result(event)

    # -- what is sent --------------------------------------------------------------------------------------------------

    def stream(self, call_id: str, channel: Channel, data: bytes) -> None:
        """Show something of a call, if the exchange still listens."""
        socket = self._socket
        if socket is not None and socket.session.is_open(call_id):
            socket.session.stream(call_id, channel, data, socket.now())
            socket.write_soon()

    def finish(self, call_id: str, outcome: CallOutcome) -> None:
        """Say how a call ended, if the exchange still listens."""
        socket = self._socket
        if socket is None or not socket.session.is_open(call_id):
            log.info("call %s ended after its connection; nobody is told", call_id)
            return
        output = outcome.output
        if output is not None and self._output_files is not None and not socket.session.fits(output):
            outcome = self._as_file_reference(call_id, output, outcome, socket.session.max_frame_bytes)
        socket.session.finish(call_id, outcome.status, socket.now(), output=outcome.output, error=outcome.fault)
        socket.write_soon()

    def _as_file_reference(
        self, call_id: str, output: bytes, outcome: CallOutcome, max_frame_bytes: int
    ) -> CallOutcome:
        """A result that no frame holds: a reference to a file with it (OS-153)."""
        assert self._output_files is not None
        try:
            kept = self._output_files.try_keep(call_id, output)
        except OSError:
            log.exception("a result of %d bytes could not be kept", len(output))
            return outcome
        if kept is None:
            return outcome
        if outcome.may_be_file:
            return CallOutcome(Status.SUCCEEDED, msgspec.json.encode(kept))
        text = f"{messages.no_room('the result', max_frame_bytes)}; it is in the file that the details name"
        return CallOutcome(Status.FAILED, fault=fault("tool.output_too_large", text, details=kept))

    def report(self, health: HealthWord, details: bytes | None) -> None:
        """Say how the agent is."""
        self._health = (health, details)
        socket = self._socket
        if socket is not None:
            socket.session.report(health, socket.now(), details)
            socket.write_soon()

    async def ask(
        self,
        send: Callable[[AgentSession, Now], str],
        *,
        keyed: bool = False,
        progressed: Callable[[Progressed], None] | None = None,
    ) -> Answered | DirectiveAnswered:
        """Send a request and wait for its answer. Given up by its caller, a call is cancelled at the exchange too."""
        if not self.ready.is_set():
            try:
                await asyncio.wait_for(self.ready.wait(), CALL_WAITS_S)
            except TimeoutError:
                return Answered("", Status.FAILED, fault=fault("hub.unavailable", "no exchange answers"))
        request = PendingRequest(self._loop.create_future(), send, keyed, progressed)
        self._send(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._give_up(request)
            raise

    def _send(self, request: PendingRequest) -> None:
        socket = self._socket
        if socket is None or socket.session.is_closed():
            request.answer.set_result(
                Answered("", Status.FAILED, fault=fault("hub.unavailable", "the exchange is gone"))
            )
            return
        try:
            ref = request.send(socket.session, socket.now())
        except LocalProtocolError as exc:
            refusal = Answered("", Status.FAILED, fault=Fault("tool.unavailable", str(exc)))
            request.answer.set_result(refusal)
        else:
            self._pending[ref] = request
            socket.write_soon()

    def _give_up(self, request: PendingRequest) -> None:
        for ref, one in self._pending.items():
            if one is request:
                del self._pending[ref]
                if self._socket is not None:
                    self._socket.session.cancel(ref, "the caller gave up", self._socket.now())
                    self._socket.write_soon()
                return

    def _fail_unkeyed(self) -> None:
        for ref, request in tuple(self._pending.items()):
            if not request.keyed:
                del self._pending[ref]
                _lost(request)

    def _fail_all(self) -> None:
        for request in self._pending.values():
            _lost(request)
        self._pending.clear()


def _lost(request: PendingRequest) -> None:
    if not request.answer.done():
        text = "the exchange was lost before the outcome came; whether the tool ran is not known"
        lost = fault("agent.lost", text, details={"outcome": Status.UNKNOWN.value})
        request.answer.set_result(Answered("", Status.UNKNOWN, fault=lost))


def _reason(end: End) -> str:
    return end.reason if isinstance(end, Dismissed) else f"{end.code}: {end.message}"
