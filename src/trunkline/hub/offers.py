"""One list of tools that an agent announces: which definitions are taken, and why the others are not.

Owns the bounds of what one agent may offer: how many tools, how much their schemas take together, and that no two names
look alike. Does not own what follows (``agents``): what is taken may still be held back until a person approves it.

Invariant: reading a list changes nothing but the list; each definition is taken or rejected for itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from trunkline import schemas
from trunkline.hub.registry import MAX_TOOLS, Agent, Registry, Tool, fingerprint_of
from trunkline.model import TOOL_NAME, Fault, ToolDefinition, fault
from trunkline.schema_subset import BadSchema


class Offer:
    """What is found out about one list, of which ``taken`` and ``rejected`` are the result.

    ``pinned`` are the agent's tools that have a pin: pins outlive a session, and are counted with those that are new,
    or an agent could fill the state one session after the other. ``replace``: the list takes the place of what the
    agent offered before. ``is_shared``: the agent's tools stand for others and belong to nobody; what they are called
    counts for those who serve them.
    """

    def __init__(
        self, agent: Agent, registry: Registry, pinned: Iterable[str], *, replace: bool, is_shared: bool
    ) -> None:
        self._agent = agent
        self._registry = registry
        self._replace = replace
        self._is_shared = is_shared
        self._known = set() if is_shared else set(pinned)
        self._schema_bytes = {
            tool_id: tool.schema_bytes for tool_id in self._known if (tool := registry.tools.get(tool_id))
        }
        self._together_bytes = sum(self._schema_bytes.values())
        # Names on this list, whatever their case.
        self._folded: set[str] = set()
        self.taken: dict[str, Tool] = {}
        self.rejected: list[tuple[str, Fault]] = []

    def read(self, definition: ToolDefinition) -> None:
        """One more of the list."""
        tool_id = definition.tool_id
        read = self._try_read(definition)
        if isinstance(read, Tool) and not self._is_shared:
            problem = self._look_alike(tool_id) or self._too_large(read)
            read = problem or read
        if isinstance(read, Fault):
            self.rejected.append((tool_id, read))
            return
        self.taken[tool_id] = read
        self._folded.add(tool_id.casefold())
        if not self._is_shared:
            self._known.add(tool_id)
            self._together_bytes += self._more_bytes(read)

    def _try_read(self, definition: ToolDefinition) -> Tool | Fault:
        """The tool of one definition, or why it is none."""
        tool_id, agent = definition.tool_id, self._agent
        if definition.agent_id != agent.agent_id or TOOL_NAME.fullmatch(definition.name) is None:  # OS-078
            return fault("tool.invalid_tool_id", f"must be {agent.agent_id}/NAME")
        fingerprint = fingerprint_of(definition)
        old = self._registry.tools.get(tool_id)
        is_changed = old is not None and old.fingerprint != fingerprint
        if tool_id in self.taken or (tool_id in agent.tools and not self._replace and is_changed):  # OS-092
            return fault("tool.name_conflict")
        if len(self._known) >= MAX_TOOLS and tool_id not in self._known:
            return fault("limit.resource", f"an agent may have {MAX_TOOLS} tools")
        try:
            return self._registry.tool(definition, fingerprint)
        except BadSchema as exc:  # OS-091
            return fault("tool.schema_invalid", str(exc))

    def _look_alike(self, tool_id: str) -> Fault | None:
        """Another name equals this one but for case (decision 19); names that a new list replaces may go."""
        is_on_list = tool_id.casefold() in self._folded
        if is_on_list or (not self._replace and self._registry.tool_look_alike(tool_id) is not None):
            return fault("tool.name_conflict", "another tool's name equals this one but for case")
        return None

    def _too_large(self, tool: Tool) -> Fault | None:
        more = self._more_bytes(tool)
        if more <= 0 or self._together_bytes + more <= schemas.MAX_TOGETHER_BYTES:
            return None
        text = f"the schemas of this agent's tools would take more than {schemas.MAX_TOGETHER_BYTES} bytes"
        return fault("tool.schema_too_large", text)

    def _more_bytes(self, tool: Tool) -> int:
        """What this definition's schemas take beyond those that the tool had."""
        return tool.schema_bytes - self._schema_bytes.get(tool.definition.tool_id, 0)
