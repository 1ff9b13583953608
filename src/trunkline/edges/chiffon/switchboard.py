"""Everybody who speaks Chiffon with us, whatever their transport: who they are, and which conversation is theirs.

Start reading here. A message comes from a rim (``serve``, ``queue``) with its token; ``receive`` judges it in the order
that ``decisions.md`` gives, and hands it to the conversation of its sender: ``AgentSession`` for those who work for us,
``OrchestratorSession`` for those we work for. ``register`` lets an agent in.

Owns the conversations and their clock. Does not own sockets or queues.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from typing import Final

from trunkline.edges.chiffon import client, messages
from trunkline.edges.chiffon.mailbox import Mailbox
from trunkline.edges.chiffon.messages import (
    ORCHESTRATOR,
    VERSION,
    Envelope,
    Fields,
    Registration,
    invalid,
    read_envelope,
    unauthorized,
)
from trunkline.edges.chiffon.orchestrators import OrchestratorSession, supported
from trunkline.edges.chiffon.process import RETRY
from trunkline.edges.chiffon.session import AgentSession, Settings
from trunkline.edges.chiffon.types import TypeAgent
from trunkline.edges.exchange import Exchange
from trunkline.effects import ConfirmTools, Refuse, ToSession
from trunkline.events import AgentArrived, ToolsOffered
from trunkline.model import RESERVED_PREFIXES, TOOL_NAME, BreakerPolicy, Now, Peer, Principal, ProcessIdentity

log = logging.getLogger("trunkline")

# How often timers are looked at; the shortest of them is a second.
TICK_S: Final = 0.25
# An admission waits for the disk; a disk that takes longer is broken.
ADMISSION_S: Final = 30.0
# What an agent should not stay below, so that its silence is noticed by nobody.
HEARTBEAT_INTERVAL_S: Final = 10
MAX_WORK_TYPES: Final = 1000


class Caller:
    """Who a token belongs to."""

    __slots__ = ("principal", "token_sha256")

    def __init__(self, principal: Principal, token_sha256: str) -> None:
        self.principal = principal
        self.token_sha256 = token_sha256

    @property
    def agent_id(self) -> str:
        """The id that the token was made for."""
        return self.principal.identity.partition(":")[2]


def orchestrator_token(token_sha256: str) -> str:
    """The token that we show to an agent (silent point 6): it follows from the agent's own, so nothing is kept."""
    return hmac.digest(token_sha256.encode(), b"trunkline orchestrator", "sha256").hex()[:32]


class Switchboard:
    """All conversations."""

    def __init__(self, exchange: Exchange, settings: Settings, process: ProcessIdentity) -> None:
        self.exchange = exchange
        self.settings = settings
        self._process = process
        self.agents: dict[str, AgentSession] = {}
        self._orchestrators: dict[str, OrchestratorSession] = {}
        self._types: dict[str, TypeAgent] = {}
        self._refs = 0
        self._clock: asyncio.Task[None] | None = None
        # Transports that look after one peer are told when it is gone, or comes anew and perhaps another way.
        self.on_left: list[Callable[[str], None]] = []

    # -- who it is -----------------------------------------------------------------------------------------------------

    def identify(self, token: bytes | None) -> Caller:
        """Whose token this is (CH-101); malformed, unknown, revoked and expired ones are told the same."""
        if not token:
            raise unauthorized(None, "missing")
        digest = hashlib.sha256(token).hexdigest()
        principal = self.exchange.identify("chiffon", digest)
        # Nobody speaks for the exchange's own agents, whatever token was made.
        if principal is None or principal.identity.removeprefix("chiffon:").startswith(RESERVED_PREFIXES):
            raise unauthorized(None, "invalid")
        return Caller(principal, digest)

    # -- coming in -----------------------------------------------------------------------------------------------------

    async def register(self, caller: Caller, fields: Fields, origin: str) -> dict[str, object]:
        """An agent says what it is and what it does (CH-092); what it is told."""
        registration = messages.read_registration(fields)
        if (registration.agent_id, registration.agent_type) != (caller.agent_id, caller.principal.type):
            raise unauthorized(caller.agent_id, "mismatch")
        version = messages.common_version(registration.supported_versions)  # CH-093
        if version is None:
            versions = ", ".join(registration.supported_versions)
            raise messages.unsupported("register", registration.work_types, versions)
        if registration.callback_url is not None:
            try:
                client.place_of(registration.callback_url)
            except ValueError as error:
                raise invalid(str(error), "callback_url") from None
        if len(registration.work_types) > MAX_WORK_TYPES:
            raise invalid(f"at most {MAX_WORK_TYPES}", "work_types")
        for work_type in registration.work_types:
            if TOOL_NAME.fullmatch(work_type) is None:
                raise invalid(f"expected names like run_playbook: {TOOL_NAME.pattern}", "work_types")
        rejected: dict[str, str] = {}
        if registration.agent_type == ORCHESTRATOR:
            self.orchestrator(caller).heard(self.exchange.now())
        else:
            rejected = await self._admit(caller, registration, version, origin)
        self._release(caller.agent_id)
        return {
            "registered": True,
            "agent_id": registration.agent_id,
            "agent_type": registration.agent_type,
            "protocol_version": version,
            "work_types": [name for name in registration.work_types if name not in rejected],
            "rejected": rejected,
            "heartbeat_interval_seconds": HEARTBEAT_INTERVAL_S,
            "orchestrator_token": orchestrator_token(caller.token_sha256),
        }

    async def _admit(self, caller: Caller, registration: Registration, version: str, origin: str) -> dict[str, str]:
        session = self.agents.get(registration.agent_id)
        if session is not None and (session.is_closed or session.token_sha256 != caller.token_sha256):
            self._drop(session, "replaced")
            session = None
        is_new = session is None
        if session is None:
            session = AgentSession(self.exchange, registration, caller.token_sha256, self.settings)
            self.agents[registration.agent_id] = session
        session.registered(registration, version, self.exchange.now())
        rejected: dict[str, str] = {}
        try:
            async with asyncio.timeout(ADMISSION_S):
                if is_new:
                    await self._arrive(session, registration, caller, origin)
                confirmed = await self._offer(session)
        except TimeoutError:
            self._drop(session, "not admitted in time")
            raise messages.unavailable(registration.agent_id, None, "the exchange cannot admit anybody now") from None
        if isinstance(confirmed, ConfirmTools):
            rejected = {tool_id.partition("/")[2]: problem.code for tool_id, problem in confirmed.rejected}
        self._refresh_type(session.agent_type)
        return rejected

    async def _arrive(self, session: AgentSession, registration: Registration, caller: Caller, origin: str) -> None:
        ref = self._ref()
        arrived = AgentArrived(
            session.number,
            ref,
            "chiffon",
            registration.agent_id,
            registration.version or VERSION,
            caller.token_sha256,
            Peer(origin),
            timeout_s=None,
            dedupes=True,
            retry=RETRY,
            breaker=BreakerPolicy(),
        )
        answer = self._expect(session, ref)
        self.exchange.feed([arrived])
        if isinstance(await answer, Refuse):
            self._forget(session)
            raise unauthorized(registration.agent_id, "invalid")
        session.is_admitted = True
        session.on_close = lambda: self._drop(session, "token revoked")

    async def _offer(self, session: AgentSession) -> ToSession:
        ref = self._ref()
        answer = self._expect(session, ref)
        self.exchange.feed([ToolsOffered(session.number, ref, session.definitions(), replace=True)])
        return await answer

    def _expect(self, session: AgentSession, ref: str) -> asyncio.Future[ToSession]:
        future: asyncio.Future[ToSession] = asyncio.get_running_loop().create_future()
        session.expect(ref, lambda effect: None if future.done() else future.set_result(effect))
        return future

    def _ref(self) -> str:
        self._refs += 1
        return f"r{self._refs}"

    def orchestrator(self, caller: Caller) -> OrchestratorSession:
        """The conversation with this orchestrator, new or not."""
        session = self._orchestrators.get(caller.agent_id)
        if session is None:
            session = OrchestratorSession(self.exchange, caller.principal, self.settings)
            self._orchestrators[caller.agent_id] = session
        return session

    def session_of(self, caller: Caller) -> AgentSession | OrchestratorSession:
        """The conversation of a peer; an agent has to register first."""
        if caller.principal.type == ORCHESTRATOR:
            return self.orchestrator(caller)
        session = self.agents.get(caller.agent_id)
        if session is None or session.is_closed or session.token_sha256 != caller.token_sha256:
            raise messages.unavailable(caller.agent_id, None, "not registered: POST /api/agent/register first")
        return session

    def mailbox_of(self, caller: Caller) -> Mailbox:
        """What a peer has to be sent."""
        session = self.session_of(caller)
        session.heard(self.exchange.now())
        return session.mailbox

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, caller: Caller, fields: Fields) -> Envelope | None:
        """Judge a message and hand it on; the reply, if there is one at once. ``Refused`` if it is not taken."""
        envelope, now = read_envelope(fields), self.exchange.now()
        kind = caller.principal.type
        if envelope.protocol_version != VERSION:  # CH-096
            raise self._other_version(envelope)
        if envelope.from_agent != kind:  # silent point 5
            raise unauthorized(caller.agent_id, "mismatch")
        session = self.session_of(caller)
        if isinstance(session, OrchestratorSession):
            return session.receive(envelope, caller.principal, now)
        session.receive(envelope, now)
        return None

    def _other_version(self, envelope: Envelope) -> messages.Refused:
        fields = messages.read_object(bytes(envelope.payload))
        requested = envelope.type
        if envelope.type == "work_request" and "work_type" in fields:
            requested = bytes(fields["work_type"]).decode().strip('"')
        known = supported(self.exchange.tools(), self.settings.work)
        return messages.unsupported(requested, known, envelope.protocol_version)

    # -- time ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let the clock run."""
        self._clock = asyncio.get_running_loop().create_task(self._run())
        self._clock.add_done_callback(_say_why)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.due(self.exchange.now())

    def due(self, now: Now) -> None:
        """What follows from the time that passed."""
        for session in list(self.agents.values()):
            if session.is_admitted and not session.due(now):
                self._forget(session)
                self._refresh_type(session.agent_type)
        for agent_id, other in list(self._orchestrators.items()):
            if not other.due(now):
                del self._orchestrators[agent_id]
                self._release(agent_id)
        for type_agent in self._types.values():
            type_agent.forget_ended()

    def _refresh_type(self, kind: str) -> None:
        found = self._types.get(kind)
        if found is None:
            found = TypeAgent(self.exchange, kind, lambda: list(self.agents.values()), self._process)
            self._types[kind] = found
        found.refresh()

    def _drop(self, session: AgentSession, reason: str) -> None:
        if self.agents.get(session.agent_id) is session:
            session.leave(reason)
            self._forget(session)
            if session.is_admitted:
                self._refresh_type(session.agent_type)

    def _forget(self, session: AgentSession) -> None:
        if self.agents.get(session.agent_id) is session:
            del self.agents[session.agent_id]
            self._release(session.agent_id)

    def _release(self, agent_id: str) -> None:
        for left in self.on_left:
            left(agent_id)

    def stop(self) -> None:
        """No clock any more; what is open stays on record and goes on after the next start."""
        if self._clock is not None:
            self._clock.cancel()


def _say_why(clock: asyncio.Task[None]) -> None:
    """A clock that stands still would leave tasks without an end."""
    if not clock.cancelled() and (error := clock.exception()) is not None:
        log.critical("the clock of the Chiffon edge ended by %s", type(error).__name__)
