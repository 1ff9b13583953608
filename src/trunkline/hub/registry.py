"""Who is here and which tools they offer.

Owns the live agents, the tools with their compiled validators, and the fingerprint of each definition. A definition that
differs from the one in force (the pin, durable in ``state``) is held back until a person approves it. Does not own the
pins themselves, nor policy.

Invariant: a tool is callable only while its agent's session is open, its health allows it, and its pin is its fingerprint.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

from msgspec import Struct, field

from trunkline import schemas
from trunkline.canonical import canonical
from trunkline.entries import encode
from trunkline.model import Health, ToolDefinition, Verdict

# Calls that wait for a free slot of one agent (decision 21); beyond it a caller is told at once.
MAX_QUEUED: Final = 1024
# P-C7: more tools than any real agent has, few enough that a flood of them costs nothing.
MAX_TOOLS: Final = 1000


def fingerprint_of(definition: ToolDefinition) -> str:
    """The hash of everything an agent said about a tool, whatever the order of its keys."""
    return hashlib.sha256(canonical(encode(definition))).hexdigest()


class Agent(Struct):
    """An agent with an open session."""

    agent_id: str
    edge: str
    session: int
    version: str
    capabilities: frozenset[str]
    max_inflight: int
    timeout_s: float | None
    dedupes: bool
    credential: str
    permissions: tuple[str, ...] = ()
    health: Health = Health.OK
    # Numbers of the calls that were sent and not settled, and of those waiting for a slot.
    running: dict[int, None] = {}
    queue: deque[int] = field(default_factory=deque)
    tools: dict[str, None] = {}

    @property
    def identity(self) -> str:
        """How policy names it."""
        return f"{self.edge}:{self.agent_id}"

    @property
    def is_usable(self) -> bool:
        """Whether it is given calls."""
        return self.health is Health.OK or self.health is Health.DEGRADED


class Tool(Struct):
    """A tool that is or was offered. ``agent`` is None while nobody offers it."""

    definition: ToolDefinition
    fingerprint: str
    validator: schemas.Validator
    output_validator: schemas.Validator | None
    agent: Agent | None
    suspended: bool = False
    quarantined_until: float = 0.0
    verdicts: dict[tuple[tuple[str, ...], bool], Verdict] = {}
    verdicts_epoch: int = -1
    succeeded: int = 0
    failed: int = 0

    @property
    def is_cancelable(self) -> bool:
        """Whether a cancel would be heard: the agent or the tool declared it."""
        agent = self.agent
        return "cancellation" in self.definition.capabilities or (agent is not None and "cancellation" in agent.capabilities)

    @property
    def dedupes(self) -> bool:
        """Whether the provider promised not to run the same call twice (decision 1b)."""
        return "idempotency" in self.definition.capabilities or (self.agent is not None and self.agent.dedupes)

    def status(self, now: float) -> str:
        """In one word, for a person."""
        if self.suspended:
            return "suspended"
        if self.agent is None or not self.agent.is_usable:
            return "unavailable"
        return "quarantined" if self.quarantined_until > now else "available"


class Registry:
    """The agents and their tools."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.by_session: dict[int, Agent] = {}
        self.tools: dict[str, Tool] = {}
        # Case-folded agent id → the one in use, so that two look-alikes never stand side by side (decision 19).
        self._folded: dict[str, str] = {}

    def look_alike(self, agent_id: str) -> str | None:
        """Another id that equals this one but for case."""
        other = self._folded.get(agent_id.casefold())
        return other if other is not None and other != agent_id else None

    def attach(self, agent: Agent) -> None:
        """An agent is here."""
        self.agents[agent.agent_id] = agent
        self.by_session[agent.session] = agent
        self._folded[agent.agent_id.casefold()] = agent.agent_id

    def detach(self, session: int) -> Agent | None:
        """An agent is gone; its tools stay known but unavailable."""
        agent = self.by_session.pop(session, None)
        if agent is not None and self.agents.get(agent.agent_id) is agent:
            del self.agents[agent.agent_id]
            for tool_id in agent.tools:
                self.tools[tool_id].agent = None
        return agent

    def put(self, agent: Agent, definition: ToolDefinition, fingerprint: str, *, suspended: bool) -> Tool:
        """An agent offers a tool."""
        old = self.tools.get(definition.tool_id)
        if old is not None and old.fingerprint == fingerprint:
            tool = old
            tool.agent, tool.suspended = agent, suspended
        else:
            output = definition.output_schema
            tool = Tool(
                definition,
                fingerprint,
                schemas.compile(bytes(definition.input_schema)),
                None if output is None else schemas.compile(bytes(output)),
                agent,
                suspended,
            )
            self.tools[definition.tool_id] = tool
        tool.verdicts_epoch = -1
        agent.tools[definition.tool_id] = None
        return tool

    def remove(self, agent: Agent, tool_id: str) -> None:
        """An agent takes a tool back: from here on it is not found."""
        agent.tools.pop(tool_id, None)
        self.tools.pop(tool_id, None)
