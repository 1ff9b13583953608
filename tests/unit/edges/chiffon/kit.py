"""The Chiffon edge in a whole exchange in memory (``trunkline.testing.memory``), seen from outside.

``Kit.agent`` and ``Kit.orchestrator`` are peers that speak raw messages, ``Kit.call`` is a call by the operator.
``Kit.advance`` lets time pass.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from trunkline.config import Chiffon, Config
from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.conversation import Conversation
from trunkline.edges.chiffon.edge import CHIFFON, ChiffonEdge
from trunkline.edges.chiffon.outbox import Outgoing
from trunkline.edges.chiffon.peers import Caller
from trunkline.edges.chiffon.session import AgentSession
from trunkline.edges.edge import Surroundings
from trunkline.entries import CallNoted
from trunkline.events import CancelRequested, Event, SettingsChanged, TokenIssued
from trunkline.model import HubSettings, Policy, ToolDefinition
from trunkline.testing.memory import ALLOW_ALL, ANY_OBJECT, BOSS, AttachedAgent, MadeCall, MemoryExchange

# Nobody waits for the answer to what is fed under it.
NOBODY = 0
# An agent that is there gives a sign of life so often.
BEAT_S = 1.0


class Kit:
    """The edge, from outside: tokens, agents that speak raw messages, calls, time."""

    def __init__(
        self,
        policy: Policy = ALLOW_ALL,
        *,
        timeout_s: float = 30.0,
        before: MemoryExchange | None = None,
        **work: str,
    ) -> None:
        edges = (msgspec.structs.replace(CHIFFON, make=self._make),)
        if before is None:
            config = Config(chiffon=Chiffon(timeout_s=timeout_s, work=work))
            self.exchange = MemoryExchange(policy, edges=edges, config=config)
        else:
            self.exchange = before.restarted(edges=edges)

    def _make(self, given: Surroundings) -> ChiffonEdge:
        edge = ChiffonEdge(given)
        self.peers = edge.peers
        return edge

    def restarted(self) -> Kit:
        """Another process on the same record; nobody is connected."""
        return Kit(before=self.exchange)

    def feed(self, *happened: Event) -> None:
        """These happened."""
        self.exchange.feed.feed(happened)

    # -- people --------------------------------------------------------------------------------------------------------

    def token(self, agent: str, kind: str) -> bytes:
        """A token, made by the operator."""
        return self.exchange.token("chiffon", agent, kind).encode()

    def other_token(self, agent: str, kind: str, secret: bytes) -> Caller:
        """One more token for an agent, and who shows it."""
        digest = hashlib.sha256(secret).hexdigest()
        self.feed(TokenIssued(NOBODY, "other", BOSS, "chiffon", agent, digest, (), kind))
        return self.peers.identify(secret)

    def call(self, tool_id: str, value: object = None, **terms: Any) -> MadeCall:
        """A call, by the operator unless ``by`` names another; what came of it so far."""
        return self.exchange.call(tool_id, value, **terms)

    def cancel(self, called: MadeCall) -> None:
        """The operator wants a call stopped."""
        self.feed(CancelRequested(NOBODY, "stop", BOSS, call_id=called.call_id))

    def only_warn_of_schemas(self) -> None:
        """From here on an input that its schema does not allow is taken all the same."""
        self.feed(SettingsChanged(HubSettings(self.exchange.policy, schema_strict=False)))

    # -- agents --------------------------------------------------------------------------------------------------------

    async def agent(
        self, agent_id: str = "infra-1", kind: str = "infra", work: Sequence[str] = ("run",), **terms: Any
    ) -> RawAgent:
        """An agent that registered."""
        caller = self.peers.identify(self.token(str(agent_id), kind))
        fields = {"agent_id": agent_id, "agent_type": kind, "supported_versions": ["1.0"], "work_types": list(work)}
        answer = await self.peers.register(caller, as_fields({**fields, **terms}), "test")
        return RawAgent(self, caller, kind, answer)

    async def register_again(self, agent: RawAgent, work: Sequence[str]) -> dict[str, Any]:
        """An agent says that it does other work now; what it is told."""
        fields = {"agent_id": agent.caller.agent_id, "agent_type": agent.kind, "supported_versions": ["1.0"]}
        return await self.peers.register(agent.caller, as_fields({**fields, "work_types": list(work)}), "test")

    def offer(self, agent_id: str, *definitions: ToolDefinition) -> AttachedAgent:
        """An agent of another edge, with tools of its own."""
        return self.exchange.attach(agent_id, *definitions)

    def orchestrator(self, agent_id: str = "boss") -> RawAgent:
        """Another orchestrator, known by its token."""
        caller = self.peers.identify(self.token(agent_id, "orchestrator"))
        return RawAgent(self, caller, "orchestrator", {})

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float, *alive: RawAgent) -> None:
        """Let time pass. Agents that are named give a sign of life all the while."""
        clock = self.exchange.clock
        until = clock.mono + seconds
        while clock.mono < until - 1e-9:
            self.exchange.advance(min(BEAT_S, until - clock.mono))
            for agent in alive:
                agent.beat()
        self.check()

    def check(self) -> None:
        """The exchange goes on; a broken invariant of the hub would end it, and look like a defect of the edge."""
        assert self.exchange.died is None

    def notices(self) -> list[str]:
        """The codes of what was noticed."""
        return self.exchange.notices()

    def notes(self) -> list[str]:
        """What was noted about calls."""
        return [entry.note for entry in self.exchange.recorded(CallNoted)]


def tool(tool_id: str, **terms: Any) -> ToolDefinition:
    """A tool of an agent of another edge."""
    return ToolDefinition(tool_id, "a tool", terms.pop("schema", ANY_OBJECT), **terms)


class RawAgent:
    """A peer that speaks raw messages. ``fetch`` is its poll."""

    def __init__(self, kit: Kit, caller: Caller, kind: str, answer: dict[str, Any]) -> None:
        self.kit = kit
        self.caller = caller
        self.kind = kind
        self.answer = answer

    @property
    def conversation(self) -> Conversation[AgentSession]:
        return self.kit.peers.agents[self.caller.agent_id]

    @property
    def session(self) -> AgentSession:
        return self.conversation.session

    def beat(self) -> None:
        """A sign of life."""
        self.kit.peers.heard(self.caller)

    def fetch(self) -> list[dict[str, Any]]:
        """What there is to fetch, every message judged by the rules of the wire."""
        return [valid(json.loads(message.data)) for message in self.kit.peers.heard(self.caller).session.take_output()]

    def fetch_one(self) -> dict[str, Any]:
        """The one message that is there."""
        (found,) = self.fetch()
        return found

    def say(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """One message in; the reply if there is one at once."""
        envelope, conversation = self.kit.peers.receive(self.caller, as_fields(message))
        self.kit.check()
        reply: Outgoing | None = conversation.session.outbox.take_answer(envelope.message_id)
        return None if reply is None else valid(json.loads(reply.data))

    def status(self, request: dict[str, Any], percent: int = 10, status: str = "running", **step: Any) -> None:
        payload = {"task_id": request["payload"]["task_id"], "status": status, "progress_percent": percent}
        self.say(reply_to(request, "work_status", {**payload, **({"step": step} if step else {})}, self.kind))

    def result(self, request: dict[str, Any], output: str = "done", exit_code: int = 0, **fields: Any) -> None:
        payload = {
            "task_id": request["payload"]["task_id"],
            "status": "failed" if exit_code else "success",
            "exit_code": exit_code,
            "output": output,
            "resources_used": {"duration_seconds": 1, "gpu_vram_mb": 0, "cpu_time_ms": 5},
        }
        self.say(reply_to(request, "work_result", payload, self.kind, **fields))

    def error(self, request: dict[str, Any], code: int, text: str = "no", **context: Any) -> None:
        payload = {"error_code": code, "error_message": text, "error_context": context}
        self.say(reply_to(request, "error", payload, self.kind))


def as_fields(message: dict[str, Any]) -> messages.Fields:
    """A message as a rim hands it on."""
    return messages.read_object(json.dumps(message).encode())


def envelope(kind: str, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message with an envelope around it."""
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "orchestrator" if kind == "work_request" else "infra",
        "to_agent": "infra" if kind == "work_request" else "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": str(uuid.uuid4()),
        "type": kind,
        "payload": payload,
        **fields,
    }


def request(work_type: str = "run", parameters: object = None, **fields: Any) -> dict[str, Any]:
    """A work_request of another orchestrator."""
    payload: dict[str, Any] = {"task_id": str(uuid.uuid4()), "work_type": work_type, "parameters": parameters or {}}
    hints = fields.pop("hints", None)
    if hints is not None:
        payload["hints"] = hints
    return envelope("work_request", payload, **fields)


def reply_to(request: dict[str, Any], kind: str, payload: dict[str, Any], sender: str, **fields: Any) -> dict[str, Any]:
    """A message about a request, with its ids."""
    ids = {"trace_id": request["trace_id"], "request_id": request["request_id"]}
    return envelope(kind, payload, from_agent=sender, to_agent="orchestrator", **{**ids, **fields})


# What the payloads need by the authors' own OpenAPI file (silent point 20), where that is more than we demand.
AUTHORS_NEED = {
    "work_request": ("task_id", "work_type", "parameters"),
    "work_status": ("task_id", "status", "progress_percent", "step"),
    "work_result": ("task_id", "status", "exit_code", "resources_used"),
    "error": ("error_code", "error_message"),
}


def check_as_authors(message: dict[str, Any]) -> None:
    """A message of ours as the authors' models read it."""
    payload = message["payload"]
    assert set(AUTHORS_NEED[message["type"]]) <= set(payload)
    if message["type"] == "work_status":
        assert isinstance(payload["step"]["number"], int)
        assert isinstance(payload["step"]["name"], str)
    if message["type"] == "work_result":
        assert isinstance(payload["resources_used"]["duration_seconds"], int)


EMITTED: list[dict[str, Any]] = []


def valid(message: dict[str, Any]) -> dict[str, Any]:
    """A message of ours; it has to read back by its own rules."""
    read = messages.read_envelope(as_fields(message))
    messages.read_payload(read)
    check_as_authors(message)
    assert message["timestamp"].endswith("Z")
    EMITTED.append(message)
    return message
