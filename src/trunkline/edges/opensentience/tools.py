"""The tools of one conversation: offered and taken back by the agent, confirmed by the hub.

Owns their messages and which of them can be canceled. It does not decide which are taken.
"""

from __future__ import annotations

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
from trunkline.model import Now

# Registration costs about 0.2 ms a tool; the hub takes no more than this from one agent anyway.
MAX_TOOLS_A_MESSAGE: Final = 1_000


class OfferedTools:
    """What the agent offers. ``cancelable`` is kept up to date: the calls of these tools hear a cancel."""

    def __init__(self, session: int, outbox: Outbox, cancelable: set[str], limits: translate.Limits) -> None:
        self._session = session
        self._outbox = outbox
        self._cancelable = cancelable
        self._limits = limits
        # By the id of the message that offered them: which can be canceled.
        self._offers: dict[str, dict[str, bool]] = {}
        # Who the agent is, once it said so.
        self.agent_id = ""

    def offered(self, message: Message[RegisterTools], _value: Any, _now: Now) -> ToolsOffered:
        """Read ``agent.tools.register``."""
        register = message.payload
        if len(register.tools) > MAX_TOOLS_A_MESSAGE:
            raise invalid(message, f"more than {MAX_TOOLS_A_MESSAGE} tools - at `$.tools`")
        tools, rejected = translate.offered_tools(register, self.agent_id, self._limits)
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
