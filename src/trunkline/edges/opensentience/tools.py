"""The tools of one conversation: offered and taken back by the agent, confirmed by the hub.

Owns their messages, which of them can be canceled, and that nothing is judged of a list that the hub would refuse
(``edges.offers``). It does not decide which are taken.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from trunkline.edges.offers import LEAST_TOOL_BYTES, JudgingBudget
from trunkline.edges.opensentience import translate
from trunkline.edges.opensentience.messages import (
    Message,
    RegisterTools,
    ToolsRegistered,
    ToolsUnregistered,
    UnregisterTools,
    invalid,
)
from trunkline.edges.opensentience.outbox import Outbox
from trunkline.effects import ConfirmTools, ConfirmWithdrawal
from trunkline.events import ToolsOffered, ToolsWithdrawn
from trunkline.model import Fault, Now

# Registration costs about 0.2 ms a tool; the hub takes no more than this from one agent anyway.
MAX_TOOLS_A_MESSAGE: Final = 1_000


class OfferedTools:
    """What the agent offers. ``cancelable`` is kept up to date: the calls of these tools hear a cancel."""

    def __init__(
        self,
        session: int,
        outbox: Outbox,
        cancelable: set[str],
        limits: translate.ToolSizes,
        judging: JudgingBudget,
    ) -> None:
        self._session = session
        self._outbox = outbox
        self._cancelable = cancelable
        self._limits = limits
        self._judging = judging
        # By the id of the message that offered them: which can be canceled.
        self._offers: dict[str, dict[str, bool]] = {}
        # Of lists that the hub has not answered, in their order: entries that it will count for each.
        self._unanswered: deque[int] = deque()
        # Who the agent is, once it said so.
        self.agent_id = ""

    def offered(self, message: Message[RegisterTools], _value: Any, now: Now) -> ToolsOffered | None:
        """Read ``agent.tools.register``; None if it is refused at once, and then nothing changes."""
        register = message.payload
        if len(register.tools) > MAX_TOOLS_A_MESSAGE:
            raise invalid(message, f"more than {MAX_TOOLS_A_MESSAGE} tools - at `$.tools`")
        refused = self._judging.refused(self.agent_id, len(register.tools) + sum(self._unanswered))
        if refused is not None:
            rejected = tuple((translate.claimed_id(raw), refused) for raw in register.tools)
            self._confirm(message.id, (), rejected, now)
            return None

        def too_often(size: int) -> Fault | None:
            return self._judging.try_take(self.agent_id, max(size, LEAST_TOOL_BYTES), now)

        tools, rejected = translate.offered_tools(register, self.agent_id, self._limits, too_often)
        self._unanswered.append(1 + len(register.tools))
        self._offers[message.id] = {tool.tool_id: "cancellation" in tool.capabilities for tool in tools}
        return ToolsOffered(self._session, message.id, tools, rejected, replace=register.replace is True)

    def withdrawn(self, message: Message[UnregisterTools], _value: Any, _now: Now) -> ToolsWithdrawn:
        """Read ``agent.tools.unregister``."""
        return ToolsWithdrawn(self._session, message.id, message.payload.tool_ids)

    def confirm(self, effect: ConfirmTools, now: Now) -> None:
        """Say which were taken."""
        offered = self._offers.pop(effect.ref, {})
        self._unanswered.popleft()
        for tool_id in effect.registered:
            if offered.get(tool_id):
                self._cancelable.add(tool_id)
            else:
                self._cancelable.discard(tool_id)
        self._confirm(effect.ref, effect.registered, effect.rejected, now)

    def _confirm(
        self, ref: str, registered: tuple[str, ...], rejected: tuple[tuple[str, Fault], ...], now: Now
    ) -> None:
        payload = ToolsRegistered(registered, translate.rejections(rejected))
        self._outbox.put(now, "core.tools.registered", payload, ref)

    def confirm_withdrawal(self, effect: ConfirmWithdrawal, now: Now) -> None:
        """Say which are gone."""
        gone = ToolsUnregistered(effect.withdrawn, translate.rejections(effect.rejected))
        self._outbox.put(now, "core.tools.unregistered", gone, effect.ref)
