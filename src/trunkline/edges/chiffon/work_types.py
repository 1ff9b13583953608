"""Which tool serves a work type of an orchestrator, and which work types there are.

Owns the order of silent point 25: as configured, else the tool of the instance or of the type that is addressed, else
the one tool of that name. Reads the exchange's views; nothing here is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.exchange import Views
from trunkline.shown import ToolView

# Names in a refusal; more help nobody.
MAX_SUPPORTED: Final = 200


class WorkTypes:
    """``mapped`` is what the configuration says: the tool of a work type."""

    def __init__(self, views: Views, mapped: Mapping[str, str]) -> None:
        self._views = views
        self._mapped = mapped

    def tool_for(self, work_type: str, agent_type: str, agent_id: str | None) -> ToolView | None:
        """The tool that serves a work type, for an agent type or, if one is named, an instance (decision 24)."""
        if work_type in self._mapped:
            return self._views.tool(self._mapped[work_type])
        if agent_id is not None:
            return self._views.tool(f"{agent_id}/{work_type}")
        of_type = self._views.tool(f"{EDGE}.{agent_type}/{work_type}")
        if of_type is not None:
            return of_type
        # Chiffon's own are addressed by their type, or pinned; they do not make a name ambiguous.
        named = [tool for tool in self._views.tools_named(work_type) if EDGE not in tool.tags]
        return named[0] if len(named) == 1 else None

    def supported(self) -> tuple[str, ...]:
        """The work types that could be asked for. Looks at every tool: for errors only."""
        names = {tool.tool_id.partition("/")[2] for tool in self._views.tools()} | set(self._mapped)
        return tuple(sorted(names)[:MAX_SUPPORTED])
