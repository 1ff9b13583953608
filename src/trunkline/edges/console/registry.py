"""Who is here, for pages: all agents and tools once, then what changed.

Owns what was told last. Does not own when somebody looks (``live``), nor agents and tools. What a tool is stands in
``GET /v1/tools``; here is only that it is another one.

Invariant: who was told ``whole`` and each of the ``changes`` after it knows what is here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trunkline.edges.console.messages import CHANGED, REGISTRY_CHANNEL
from trunkline.edges.exchange import Views
from trunkline.edges.pusher import frames
from trunkline.shown import AgentView


class Registry:
    """What pages were told of it."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._agents: dict[str, AgentView] = {}
        self._tools: dict[str, dict[str, Any]] = {}
        self._is_known = False

    def forget(self) -> None:
        """Nobody listens any more."""
        self._agents, self._tools, self._is_known = {}, {}, False

    def whole(self) -> bytes:
        """Everything, for a page that begins to listen; what the others were told stays what they were told."""
        agents, tools = self._looked_up()
        if not self._is_known:
            self._agents, self._tools, self._is_known = agents, tools, True
        return _told(list(agents.values()), [], list(tools.values()), [])

    def changes(self) -> bytes | None:
        """What is new or other since the last look; None if nothing is."""
        agents, tools = self._looked_up()
        changed = [agent for name, agent in agents.items() if self._agents.get(name) != agent]
        gone = [name for name in self._agents if name not in agents]
        changed_tools = [tool for name, tool in tools.items() if self._tools.get(name) != tool]
        gone_tools = [name for name in self._tools if name not in tools]
        self._agents, self._tools = agents, tools
        if not (changed or gone or changed_tools or gone_tools):
            return None
        return _told(changed, gone, changed_tools, gone_tools)

    def _looked_up(self) -> tuple[dict[str, AgentView], dict[str, dict[str, Any]]]:
        # How busy an agent is changes with every call, and a page counts calls itself.
        agents = {
            agent.agent_id: msgspec.structs.replace(agent, open_calls=0, succeeded=0, failed=0)
            for agent in self._views.agents()
        }
        tools = {
            tool.tool_id: {"tool_id": tool.tool_id, "status": tool.status, "fingerprint": tool.fingerprint}
            for tool in self._views.tools()
        }
        return agents, tools


def _told(agents: list[AgentView], gone: list[str], tools: list[dict[str, Any]], tools_gone: list[str]) -> bytes:
    data = {"agents": agents, "gone": gone, "tools": tools, "tools_gone": tools_gone}
    return frames.frame(CHANGED, data, REGISTRY_CHANNEL)
