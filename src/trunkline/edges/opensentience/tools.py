"""The tools of one conversation: offered and taken back by the agent, confirmed by the hub.

Owns their messages, which of them can be canceled, and how much an agent may have judged before the hub is asked. It
does not decide which are taken.
"""

from __future__ import annotations

import math
from typing import Any, Final

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
from trunkline.model import Fault, Now, fault

# Registration costs about 0.2 ms a tool; the hub takes no more than this from one agent anyway.
MAX_TOOLS_A_MESSAGE: Final = 1_000


# What an agent may have judged at once: the largest list twice, at 4 KiB a tool. A schema of 64 KiB takes 36 ms at
# worst, so that going on without end takes a fourteenth of the loop's time.
JUDGED_BYTES: Final = 8_388_608
JUDGED_BYTES_PER_S: Final = 131_072
# What a tool costs however short it is.
LEAST_TOOL_BYTES: Final = 1024


class JudgingBudget:
    """What agents may still have judged of tools they offer, by agent: it outlives a conversation."""

    def __init__(self) -> None:
        # What was used, as of when.
        self._used: dict[str, tuple[float, float]] = {}

    def try_take(self, agent_id: str, size: int, now: Now) -> Fault | None:
        """Count so many bytes before they are looked at, or say when to come back."""
        used, at = self._used.get(agent_id, (0.0, now.mono))
        used = max(0.0, used - (now.mono - at) * JUDGED_BYTES_PER_S)
        over = used + size - JUDGED_BYTES
        if over > 0:
            wait_ms = math.ceil(over / JUDGED_BYTES_PER_S * 1000)
            return fault("limit.rate", "too many tools were offered", details={"retry_after_ms": wait_ms})
        self._used[agent_id] = used + size, now.mono
        return None


class OfferedTools:
    """What the agent offers. ``cancelable`` is kept up to date: the calls of these tools hear a cancel."""

    def __init__(
        self,
        session: int,
        outbox: Outbox,
        cancelable: set[str],
        limits: translate.Limits,
        judging: JudgingBudget,
    ) -> None:
        self._session = session
        self._outbox = outbox
        self._cancelable = cancelable
        self._limits = limits
        self._judging = judging
        # By the id of the message that offered them: which can be canceled.
        self._offers: dict[str, dict[str, bool]] = {}
        # Who the agent is, once it said so.
        self.agent_id = ""

    def offered(self, message: Message[RegisterTools], _value: Any, now: Now) -> ToolsOffered:
        """Read ``agent.tools.register``."""
        register = message.payload
        if len(register.tools) > MAX_TOOLS_A_MESSAGE:
            raise invalid(message, f"more than {MAX_TOOLS_A_MESSAGE} tools - at `$.tools`")

        def too_often(size: int) -> Fault | None:
            return self._judging.try_take(self.agent_id, max(size, LEAST_TOOL_BYTES), now)

        tools, rejected = translate.offered_tools(register, self.agent_id, self._limits, too_often)
        self._offers[message.id] = {tool.tool_id: "cancellation" in tool.capabilities for tool in tools}
        return ToolsOffered(self._session, message.id, tools, rejected, replace=register.replace is True)

    def withdrawn(self, message: Message[UnregisterTools], _value: Any, _now: Now) -> ToolsWithdrawn:
        """Read ``agent.tools.unregister``."""
        return ToolsWithdrawn(self._session, message.id, message.payload.tool_ids)

    def confirm(self, effect: ConfirmTools, now: Now) -> None:
        """Say which were taken."""
        offered = self._offers.pop(effect.ref, {})
        for tool_id in effect.registered:
            if offered.get(tool_id):
                self._cancelable.add(tool_id)
            else:
                self._cancelable.discard(tool_id)
        registered = ToolsRegistered(effect.registered, translate.rejections(effect.rejected))
        self._outbox.put(now, "core.tools.registered", registered, effect.ref)

    def confirm_withdrawal(self, effect: ConfirmWithdrawal, now: Now) -> None:
        """Say which are gone."""
        gone = ToolsUnregistered(effect.withdrawn, translate.rejections(effect.rejected))
        self._outbox.put(now, "core.tools.unregistered", gone, effect.ref)
