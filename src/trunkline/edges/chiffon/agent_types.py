"""``chiffon.<type>``: an agent of the exchange's own whose tools stand for those of all agents of a type.

A call of ``chiffon.infra/run_playbook`` is served by one instance's ``run_playbook``. Owns what a type offers, and in
which order its instances come into question (``route``). Whether one of them is well, has room and may be called, and
whether a call moves to the next one, the hub decides (``hub.routing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Raw

from trunkline.edges.chiffon import translate
from trunkline.edges.chiffon.messages import VERSION
from trunkline.edges.chiffon.session import AgentSession, State
from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.resident import Resident
from trunkline.effects import Cancel, Deliver
from trunkline.events import HealthReported, ToolsOffered
from trunkline.model import Health, Now, ProcessIdentity, Status, ToolDefinition, fault


class AgentType(Resident):
    """One type of agents as an agent. It comes in with the first of its instances and stays."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        agent_type: str,
        instances: Callable[[], Iterable[AgentSession]],
        process: ProcessIdentity,
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(feed, EDGE, f"{EDGE}.{agent_type}", VERSION, process, entropy)
        self._views = views
        self._agent_type = agent_type
        self._instances = instances
        self._work_types: tuple[str, ...] = ()
        self._is_well = True

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Everything that its instances do, or did."""
        return self._defined(self._work_types)

    def _defined(self, work_types: Iterable[str]) -> tuple[ToolDefinition, ...]:
        return tuple(translate.type_definition(self._agent_type, work_type) for work_type in work_types)

    def refresh(self) -> None:
        """Instances came, went or changed: offer what they do, say whether anybody is there."""
        there = [one for one in self._of_type() if one.state is not State.ARRIVING]
        known = tuple(sorted({*self._work_types, *(work_type for one in there for work_type in one.work_types)}))
        if known != self._work_types:
            before, self._work_types = set(self._work_types), known
            if not before:
                self.arrive()
            elif self.number:
                # Only what is new: the whole list each time, and one agent's names one by one took seconds.
                new = self._defined(work_type for work_type in known if work_type not in before)
                self._feed.feed([ToolsOffered(self.number, "offer", new)])
        if bool(there) is not self._is_well and self.number:
            self._is_well = bool(there)
            self._feed.feed([HealthReported(self.number, Health.OK if there else Health.SILENT)])

    async def refreshed(self) -> None:
        """The same, and wait until it is there to be called."""
        self.refresh()
        if self._work_types:
            await self.wait_ready()

    def _of_type(self) -> list[AgentSession]:
        return [one for one in self._instances() if one.agent_type == self._agent_type]

    def route(self, tool_id: str, body: Raw) -> list[str]:
        """The tools that can serve this call, the best first: with the means for it, then the least loaded.

        Silent point 25. An input may pin one instance.
        """
        work_type, wishes = tool_id.partition("/")[2], translate.wishes(body)

        def rank(one: AgentSession) -> tuple[bool, int, str]:
            there, view = one.capacity.memory_mb, self._views.agent(one.agent_id)
            is_small = wishes.memory_mb is not None and there is not None and there < wishes.memory_mb
            # What the hub counts, not our tasks: a call that waits for its entry to be on disk is at nobody yet.
            return is_small, 0 if view is None else view.open_calls, one.agent_id

        able = [one for one in self._of_type() if work_type in one.work_types]
        if wishes.agent_id is not None:
            able = [one for one in able if one.agent_id == wishes.agent_id]
        return [f"{one.agent_id}/{work_type}" for one in sorted(able, key=rank)]

    def deliver(self, effect: Deliver, now: Now) -> None:
        """Only of a record in which calls were given to the type itself: nobody knows who worked on it."""
        del now
        self.finish(effect.call_id, Status.UNKNOWN, fault("agent.lost"))

    def cancel(self, effect: Cancel, now: Now) -> None:
        """Its tools cannot be canceled."""
