"""Who is here and which tools they offer.

Owns the live agents, the tools with their compiled validators, and the fingerprint of each definition. A definition
that differs from the one in force (the pin, durable in ``state``) is held back until a person approves it. Does not own
the pins themselves, nor policy.

Invariant: a tool is callable only while its agent's session is open, its health allows it, and its pin is its
fingerprint.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from trunkline import schemas
from trunkline.canonical import canonical
from trunkline.entries import encode
from trunkline.hub.abandoned import Abandoned
from trunkline.hub.breaker import Breaker
from trunkline.hub.queues import Queue
from trunkline.hub.state import Call
from trunkline.model import (
    MAX_INPUT_BYTES,
    MAX_OUTPUT_BYTES,
    Circumstances,
    Health,
    ProcessIdentity,
    RetryPolicy,
    ToolDefinition,
    Verdict,
    tool_agent,
)

# P-C7: more tools than any real agent has, few enough that a flood of them costs nothing.
MAX_TOOLS: Final = 1000


def fingerprint_of(definition: ToolDefinition) -> str:
    """The hash of everything an agent said about what a tool does, whatever the order of its keys.

    Limits are left out: those of sizes are ours, and a tool that may take longer is the same tool.
    """
    said = replace(definition, max_input_bytes=MAX_INPUT_BYTES, max_output_bytes=MAX_OUTPUT_BYTES, timeout_ms=None)
    return hashlib.sha256(canonical(encode(said))).hexdigest()


class Agent(Struct):
    """An agent with an open session. ``identity`` is how policy names it."""

    agent_id: str
    edge: str
    identity: str
    session: int
    version: str
    capabilities: frozenset[str]
    max_inflight: int
    timeout_s: float | None
    dedupes: bool
    credential: str
    # None where nobody knows which it is.
    process: ProcessIdentity | None
    # Of the manifest it was launched with, if any: what its permissions were asked in.
    manifest_sha256: str | None = None
    # How its failed attempts are repeated, and when it gets a rest; only some edges have such rules.
    retry: RetryPolicy | None = None
    breaker: Breaker | None = None
    # Part of the exchange: changed definitions of its tools are taken without asking.
    is_resident: bool = False
    only_records: bool = False
    permissions: tuple[str, ...] = ()
    health: Health = Health.OK
    # Numbers of the calls that were sent and not settled, and of those waiting for a slot, in order.
    running: dict[int, None] = {}
    queue: Queue = field(default_factory=Queue)
    tools: dict[str, None] = {}
    # When somebody looks whether its calls took too long (monotonic); 0.0: nobody has to.
    alarm_at: float = 0.0
    # Calls that ended without its word.
    abandoned: Abandoned = field(default_factory=Abandoned)
    # Calls in a row that ran out of time without a word, though its heartbeats may be fine.
    unanswered: int = 0
    # How often it spoke about calls that are not its own or not open, and the last of these calls.
    ignored: int = 0
    last_ignored: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether it is given calls."""
        is_well = self.health is Health.OK or self.health is Health.DEGRADED
        return is_well and (self.breaker is None or not self.breaker.is_open)

    def abandon(self, call: Call, now: float) -> None:
        """A call ended, or was lost, and the agent did not say so."""
        self.abandoned.add(call, now)


class Tool(Struct):
    """A tool that is or was offered. ``agent`` is None while nobody offers it.

    Its schemas are compiled when they are needed and while somebody offers it: who is away holds no memory for them.
    """

    definition: ToolDefinition
    fingerprint: str
    agent: Agent | None
    # What its schemas take when they are compiled.
    schema_bytes: int = 0
    # Input and output.
    compiled: tuple[schemas.Validator, schemas.Validator | None] | None = None
    suspended: bool = False
    quarantined_until: float = 0.0
    verdicts: dict[tuple[tuple[str, ...], Circumstances], Verdict] = {}
    verdicts_epoch: int = -1
    # As of the same epoch: whether a rule wants to see each input.
    is_judged_by_input: bool = False
    succeeded: int = 0
    failed: int = 0

    def compile(self) -> tuple[schemas.Validator, schemas.Validator | None]:
        """The validators of its input and output. ``BadSchema`` if one of its schemas cannot be used."""
        if self.compiled is None:
            output = self.definition.output_schema
            self.compiled = (
                schemas.compile(bytes(self.definition.input_schema)),
                None if output is None else schemas.compile(bytes(output)),
            )
            self.schema_bytes = sum(each.held_bytes for each in self.compiled if each is not None)
        return self.compiled

    @property
    def validator(self) -> schemas.Validator:
        """Of its input."""
        return self.compile()[0]

    @property
    def output_validator(self) -> schemas.Validator | None:
        """Of its output, if it says what that is."""
        return self.compile()[1]

    @property
    def is_usable(self) -> bool:
        """Whether calls can be sent to it: somebody offers it, in a definition that is in force, and is well."""
        return self.agent is not None and not self.suspended and self.agent.is_usable

    @property
    def is_cancelable(self) -> bool:
        """Whether a cancel would be heard: the agent or the tool declared it."""
        if "cancellation" in self.definition.capabilities:
            return True
        return self.agent is not None and "cancellation" in self.agent.capabilities

    @property
    def dedupes(self) -> bool:
        """Whether the provider promised not to run the same call twice (decision 1b)."""
        return "idempotency" in self.definition.capabilities or (self.agent is not None and self.agent.dedupes)

    def status(self, now: float) -> str:
        """``available``, ``unavailable``, ``suspended`` or ``quarantined``, as a person is shown it."""
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
        # Counts changes of which tools there are and what they are, for whoever shows them.
        self.version = 0
        # Ids of the tools with a name, whoever offers them.
        self._by_name: dict[str, dict[str, None]] = {}
        # Case-folded id → the one in use, so that two look-alikes never stand side by side (decision 19).
        self._folded: dict[str, str] = {}
        self._folded_tools: dict[str, str] = {}
        # What an agent that is away may still be working on, and who it was (None: before the exchange was restarted).
        self._left: dict[str, tuple[tuple[str, ProcessIdentity | None] | None, Abandoned]] = {}
        # Agents that the host ended or is about to, until they come again: the run, and why.
        self.stopping: dict[str, tuple[str, str]] = {}

    def look_alike(self, agent_id: str) -> str | None:
        """Another id that equals this one but for case."""
        other = self._folded.get(agent_id.casefold())
        return other if other is not None and other != agent_id else None

    def tool_look_alike(self, tool_id: str) -> str | None:
        """Another tool that somebody offers and whose id equals this one but for case."""
        other = self._folded_tools.get(tool_id.casefold())
        return other if other is not None and other != tool_id and self.tools[other].agent is not None else None

    def attach(self, agent: Agent, *, is_launched: bool) -> None:
        """An agent is here."""
        self.agents[agent.agent_id] = agent
        self.stopping.pop(agent.agent_id, None)
        self.by_session[agent.session] = agent
        self._folded[agent.agent_id.casefold()] = agent.agent_id
        who, abandoned = self._left.pop(agent.agent_id, (None, None))
        # The same one is back: its connection broke, or the exchange was restarted, which no launched one outlives.
        if abandoned and (who == (agent.credential, agent.process) or (who is None and not is_launched)):
            agent.abandoned = abandoned

    def why_stopping(self, agent_id: str) -> str:
        """Why the host ended an agent, or is about to; empty if it did not, or the agent is back."""
        return self.stopping.get(agent_id, ("", ""))[1]

    def why_away(self, agent_id: str) -> str:
        """Why an agent is given no calls, in words that every caller may read."""
        agent, why = self.agents.get(agent_id), self.why_stopping(agent_id)
        if agent is None:
            return f"{agent_id} is not connected" + (f": {why}" if why else "")
        if why:
            # One that is told to end says that it is unhealthy, and lets end what it has.
            return f"{agent_id} takes no more calls: {why}"
        if agent.breaker is not None and agent.breaker.is_open:
            return f"{agent_id} gets a rest, since attempts at it failed again and again"
        return f"{agent_id} does not offer it now" if agent.is_usable else f"{agent_id} is {agent.health.value}"

    def left_behind(self, agent_id: str, call: Call, now: float) -> None:
        """The exchange restarted while an agent worked on this call."""
        _, abandoned = self._left.setdefault(agent_id, (None, Abandoned()))
        abandoned.add(call, now)

    def abandoned_by(self, agent_id: str) -> Abandoned | None:
        """The calls that ended or were lost without the word of an agent, here or away."""
        agent = self.agents.get(agent_id)
        if agent is not None:
            return agent.abandoned
        _, abandoned = self._left.get(agent_id, (None, None))
        return abandoned

    def detach(self, session: int) -> Agent | None:
        """An agent is gone; its tools stay known but unavailable."""
        agent = self.by_session.pop(session, None)
        if agent is not None and self.agents.get(agent.agent_id) is agent:
            del self.agents[agent.agent_id]
            self._left[agent.agent_id] = ((agent.credential, agent.process), agent.abandoned)
            for tool_id in agent.tools:
                tool = self.tools[tool_id]
                tool.agent = tool.compiled = None
        return agent

    def tool(self, definition: ToolDefinition, fingerprint: str) -> Tool:
        """The tool of a definition, known or new. ``BadSchema`` if one of its schemas cannot be used."""
        known = self.tools.get(definition.tool_id)
        if known is not None and known.fingerprint == fingerprint:
            known.definition = definition
            return known
        tool = Tool(definition, fingerprint, None)
        tool.compile()
        return tool

    def put(self, agent: Agent, tool: Tool, *, suspended: bool) -> None:
        """An agent offers a tool."""
        self.version += 1
        tool.agent, tool.suspended, tool.verdicts_epoch = agent, suspended, -1
        definition = tool.definition
        known = self._folded_tools.get(definition.tool_id.casefold())
        if known is not None and known != definition.tool_id and self.tools[known].agent is None:
            self._forget(known)  # nobody offers it any more, and its look-alike takes its place
        self._folded_tools[definition.tool_id.casefold()] = definition.tool_id
        self.tools[definition.tool_id] = tool
        self._by_name.setdefault(definition.name, {})[definition.tool_id] = None
        agent.tools[definition.tool_id] = None

    def remove(self, agent: Agent, tool_id: str) -> None:
        """An agent takes a tool back: from here on it is not found."""
        agent.tools.pop(tool_id, None)
        self._forget(tool_id)

    def forget(self, agent_id: str) -> None:
        """A person took this agent away: what it offered, and nobody offers now, is not known any more."""
        gone = [
            tool_id for tool_id, tool in self.tools.items() if tool.agent is None and tool_agent(tool_id) == agent_id
        ]
        for tool_id in gone:
            self._forget(tool_id)

    def _forget(self, tool_id: str) -> None:
        self.version += 1
        removed = self.tools.pop(tool_id, None)
        if removed is not None:
            if self._folded_tools.get(tool_id.casefold()) == tool_id:
                del self._folded_tools[tool_id.casefold()]
            same = self._by_name[removed.definition.name]
            del same[tool_id]
            if not same:
                del self._by_name[removed.definition.name]

    def named(self, name: str) -> list[Tool]:
        """The tools with this name, whoever offers them."""
        return [self.tools[tool_id] for tool_id in self._by_name.get(name, ())]
