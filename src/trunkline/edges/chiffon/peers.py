"""Everybody who speaks Chiffon with us, whatever their transport: who they are, and which conversation is theirs.

Start reading here. A message comes from a transport (``serve``, ``sockets``, ``queue``) with its token; ``receive``
judges it in the order that docs/protocols/chiffon.md gives, and hands it to the conversation of its sender, with an
``AgentSession`` for those who work for us, an ``OrchestratorSession`` for those we work for. ``register`` lets an
agent in.

Owns the conversations, and the agents that stand for types. Does not own connections or queues.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import itertools
import uuid
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trunkline.config import Chiffon
from trunkline.edges import client
from trunkline.edges.bearer import token_sha256, whose
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.agent_types import AgentType
from trunkline.edges.chiffon.conversation import Conversation
from trunkline.edges.chiffon.messages import ORCHESTRATOR, Envelope, Fields, Refused, Registration, unauthorized
from trunkline.edges.chiffon.orchestrator_session import OrchestratorSession
from trunkline.edges.chiffon.session import AgentSession, State
from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.chiffon.work_types import WorkTypes
from trunkline.edges.edge import TOKEN_PREFIX
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.offers import LEAST_TOOL_BYTES, JudgingBudget
from trunkline.effects import ConfirmTools, Refuse
from trunkline.model import TOOL_NAME, Fault, Principal, ProcessIdentity, reserved_prefix

# An admission waits for the disk; a disk that takes longer is broken.
ADMISSION_S: Final = 30.0
# How often an agent is asked to give a sign of life: two may be lost before it counts as silent (``HEARTBEAT_S``).
HEARTBEAT_INTERVAL_S: Final = 10
MAX_WORK_TYPES: Final = 1000

AnyConversation = Conversation[AgentSession] | Conversation[OrchestratorSession]


class Caller(Struct, frozen=True):
    """Whose token was shown."""

    principal: Principal
    token_sha256: str
    # The token that we show to this peer (silent point 6).
    orchestrator_token: str

    @property
    def agent_id(self) -> str:
        """The id that the token was made for."""
        return self.principal.identity.partition(":")[2]


class Peers:
    """All conversations. ``key`` makes the tokens that we show to peers, ``entropy`` so many random bytes for ids."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        config: Chiffon,
        process: ProcessIdentity,
        key: bytes,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.feed = feed
        self._key = key
        self._entropy = entropy
        self._views = views
        self._timeout_s = config.timeout_s
        self._work_types = WorkTypes(views, config.work)
        self.agents: dict[str, Conversation[AgentSession]] = {}
        self.orchestrators: dict[str, Conversation[OrchestratorSession]] = {}
        self._types = {
            agent_type: AgentType(feed, views, agent_type, self._sessions, process, entropy)
            for agent_type in messages.AGENT_TYPES
            if agent_type != ORCHESTRATOR
        }
        self._refs = itertools.count(1)
        self._judging = JudgingBudget(EDGE, feed.offer_refused)

    def new_id(self) -> str:
        """A UUID that nobody can foresee."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))

    def prepare(self) -> None:
        """Let tools of types be served by those of instances."""
        for of_type in self._types.values():
            self.feed.route(of_type.agent_id, of_type.route)

    def stop(self) -> None:
        """Say nothing more; what is open stays on record and goes on after the next start."""
        everybody: list[AnyConversation] = [*self.agents.values(), *self.orchestrators.values()]
        for conversation in everybody:
            conversation.stop()

    # -- who it is -----------------------------------------------------------------------------------------------------

    def identify(self, token: bytes | None) -> Caller:
        """Whose token this is (CH-101); malformed, unknown, revoked and expired ones are told the same."""
        if token is None:
            raise unauthorized(None, "missing")
        principal = whose(self.feed, EDGE, token)
        # Nobody speaks for the exchange's own agents, whatever token was made.
        if principal is None or reserved_prefix(principal.identity.removeprefix(f"{EDGE}:")):
            raise unauthorized(None, "invalid")
        digest = token_sha256(token)
        return Caller(principal, digest, self._shown_to(digest))

    def _shown_to(self, digest: str) -> str:
        """The token that we show to who has the token of this hash: it follows from it, so nothing is kept.

        The hash is on record; with it alone nobody can play the orchestrator to that agent, since the key is not.
        """
        mac = hmac.digest(self._key, b"trunkline orchestrator " + digest.encode(), "sha256")
        return f"{TOKEN_PREFIX}{base64.urlsafe_b64encode(mac[:21]).decode()}"

    def conversation_of(self, caller: Caller) -> AnyConversation:
        """The conversation of a peer; an agent has to register first."""
        if caller.principal.type == ORCHESTRATOR:
            return self._orchestrator(caller)
        found = self.agents.get(caller.agent_id)
        if found is None or found.session.token_sha256 != caller.token_sha256:
            raise messages.unavailable(caller.agent_id, None, "not registered: POST /api/agent/register first")
        return found

    def heard(self, caller: Caller) -> AnyConversation:
        """A peer gives a sign of life; its conversation."""
        found = self.conversation_of(caller)
        found.step(found.session.heard)
        if found.is_over:
            raise messages.defect()
        return found

    def _orchestrator(self, caller: Caller) -> Conversation[OrchestratorSession]:
        found = self.orchestrators.get(caller.agent_id)
        if found is None:
            found = self.orchestrators[caller.agent_id] = Conversation(
                self.feed,
                lambda number, now: OrchestratorSession(
                    number,
                    caller.principal,
                    find_keyed=self._views.keyed,
                    tool_for=self._work_types.tool_for,
                    supported=self._work_types.supported,
                    new_id=self.new_id,
                    now=now,
                ),
                self._orchestrator_left,
            )
        found.session.principal = caller.principal
        return found

    def _orchestrator_left(self, conversation: Conversation[OrchestratorSession]) -> None:
        del self.orchestrators[conversation.session.agent_id]

    def _sessions(self) -> list[AgentSession]:
        return [conversation.session for conversation in self.agents.values()]

    # -- coming in -----------------------------------------------------------------------------------------------------

    async def register(self, caller: Caller, fields: Fields, origin: str) -> dict[str, object]:
        """A peer says what it is and what it does (CH-092); what it is told."""
        registration, version = self._read_registration(caller, fields)
        rejected: dict[str, str] = {}
        if registration.agent_type == ORCHESTRATOR:
            self.heard(caller)
        else:
            rejected = await self._admit(caller, registration, version, origin)
        return {
            "registered": True,
            "agent_id": registration.agent_id,
            "agent_type": registration.agent_type,
            "protocol_version": version,
            "work_types": [name for name in registration.work_types if name not in rejected],
            "rejected": rejected,
            "heartbeat_interval_seconds": HEARTBEAT_INTERVAL_S,
            "orchestrator_token": caller.orchestrator_token,
        }

    def _read_registration(self, caller: Caller, fields: Fields) -> tuple[Registration, str]:
        registration = messages.read_registration(fields)
        if (registration.agent_id, registration.agent_type) != (caller.agent_id, caller.principal.type):
            raise unauthorized(caller.agent_id, "mismatch")
        version = messages.common_version(registration.supported_versions)  # CH-093
        if version is None:
            versions = ", ".join(registration.supported_versions)
            raise messages.unsupported("register", registration.work_types, versions)
        if registration.callback_url is not None:
            try:
                client.loopback_place(registration.callback_url)
            except ValueError as error:
                raise messages.invalid(str(error), "callback_url") from None
        if len(registration.work_types) > MAX_WORK_TYPES:
            raise messages.invalid(f"at most {MAX_WORK_TYPES}", "work_types")
        for work_type in registration.work_types:
            if TOOL_NAME.fullmatch(work_type) is None:
                raise messages.invalid(f"expected names like run_playbook: {TOOL_NAME.pattern}", "work_types")
        return registration, version

    async def _admit(self, caller: Caller, registration: Registration, version: str, origin: str) -> dict[str, str]:
        """Let an agent in, or hear what an admitted one does now; the work types that were not taken."""
        too_often = self._too_often(caller, len(registration.work_types))
        if too_often is not None:
            self.heard(caller)
            return dict.fromkeys(registration.work_types, too_often.code)
        conversation = self._agent(caller)
        ref = f"r{next(self._refs)}"
        answer = conversation.answer_to(ref)
        conversation.step(lambda now: conversation.session.register(ref, registration, version, origin, now))
        try:
            async with asyncio.timeout(ADMISSION_S):
                told = await answer
                if isinstance(told, ConfirmTools):
                    await self._types[registration.agent_type].refreshed()
        except TimeoutError:
            conversation.step(lambda _: conversation.session.leave("not admitted in time"))
            told = None
        if isinstance(told, Refuse):
            raise unauthorized(caller.agent_id, "invalid")
        if not isinstance(told, ConfirmTools):
            raise messages.unavailable(caller.agent_id, None, "the exchange cannot admit anybody now")
        return {tool_id.partition("/")[2]: problem.code for tool_id, problem in told.rejected}

    def _too_often(self, caller: Caller, tools: int) -> Fault | None:
        """Why nothing of this registration is looked at; ``Refused`` for one who is not admitted yet."""
        found = self.agents.get(caller.agent_id)
        is_admitted = (
            found is not None
            and found.session.token_sha256 == caller.token_sha256
            and found.session.state is not State.ARRIVING
        )
        refused = self._judging.refused(caller.agent_id, tools) if is_admitted else None
        if refused is None:
            size = (1 + tools) * LEAST_TOOL_BYTES
            refused = self._judging.try_take(caller.agent_id, size, self.feed.now())
        if refused is not None and not is_admitted:
            raise messages.unavailable(caller.agent_id, None, "too many registrations in a short time")
        return refused

    def _agent(self, caller: Caller) -> Conversation[AgentSession]:
        """The agent's conversation under this token, new or not; one under another token is over."""
        found = self.agents.get(caller.agent_id)
        if found is not None and found.session.token_sha256 != caller.token_sha256:
            replaced = found.session
            found.step(lambda _: replaced.leave("replaced"))
            found = None
        if found is None:
            found = self.agents[caller.agent_id] = Conversation(
                self.feed,
                lambda number, now: AgentSession(
                    number,
                    caller.agent_id,
                    caller.principal.type,
                    caller.token_sha256,
                    self._timeout_s,
                    find_call=self._views.call,
                    new_id=self.new_id,
                    now=now,
                ),
                self._agent_left,
            )
        return found

    def _agent_left(self, conversation: Conversation[AgentSession]) -> None:
        session = conversation.session
        del self.agents[session.agent_id]
        self._types[session.agent_type].refresh()

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, caller: Caller, fields: Fields) -> tuple[Envelope, AnyConversation]:
        """Judge a message and hand it on; it, and the conversation that it was for. ``Refused`` if it is not taken."""
        envelope = messages.read_envelope(fields)
        if envelope.protocol_version != messages.VERSION:  # CH-096
            raise self._other_version(envelope)
        if envelope.from_agent != caller.principal.type:  # silent point 5
            raise unauthorized(caller.agent_id, "mismatch")
        conversation = self.heard(caller)
        conversation.step(lambda now: conversation.session.receive(envelope, now))
        if conversation.is_over:
            raise messages.defect()
        return envelope, conversation

    def _other_version(self, envelope: Envelope) -> Refused:
        fields = messages.read_object(bytes(envelope.payload))
        requested = envelope.type
        if envelope.type == "work_request" and "work_type" in fields:
            requested = bytes(fields["work_type"]).decode().strip('"')
        return messages.unsupported(requested, self._work_types.supported(), envelope.protocol_version)

    def refusal(self, refused: Refused, fields: Fields | None, to: str = "") -> Envelope:
        """What the sender of a message that was not taken is told."""
        return messages.error_reply(refused.error, to, fields, self.feed.now().ms, self.new_id)
