"""Tools that stand for others: which tool serves a call of one.

An edge that is part of the exchange gives a *router* for an agent of its own. A call of a tool of that agent is then
served by the first of the router's candidates that can take it: it is offered, its agent is well, and policy does not
deny it to anybody who stands behind the call. One that policy asks about comes last, unless a person is asked about the
call anyway. It stays one call, of the tool that was asked for; the one who serves it is its *provider*.

Owns the choice. Does not own whether the call may be made at all (``judging``), the provider's slots (``calls``), or
whether a call may go from one provider to another (``retry``).

Invariant: through a routed tool nobody reaches a tool that they may not call themselves, and nobody is called in a
circle.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw
from msgspec.structs import replace

from trunkline.hub.policy import Judge
from trunkline.hub.registry import Registry, Tool
from trunkline.hub.state import Call
from trunkline.model import Circumstances, Decision, Now, Router, Verdict, agent_of, tool_agent


class Routing:
    """The routers, by the agent whose tools they are for."""

    def __init__(self, registry: Registry, judge: Judge) -> None:
        self._registry = registry
        self._judge = judge
        self.routers: dict[str, Router] = {}

    def is_routed(self, tool_id: str) -> bool:
        """Whether a tool stands for others."""
        return bool(self.routers) and tool_agent(tool_id) in self.routers

    def routes_for(self, agent_id: str) -> bool:
        """Whether an agent's tools stand for others."""
        return agent_id in self.routers

    def provider(
        self,
        tool_id: str,
        body: Raw,
        callers: tuple[str, ...],
        circumstances: Circumstances,
        now: Now,
        *,
        agrees: Callable[[Tool, Verdict], bool],
        waits_for: str = "",
        tried: tuple[str, ...] = (),
    ) -> Tool | None:
        """Who serves a call of a routed tool. One that it ``waits_for`` keeps its turn; those it ``tried`` are out.

        One that policy asks about, and to whom no person ``agrees`` by what he is asked about the call or answered, is
        given only if nobody else is left: then a person has to be asked.
        """
        found = asking = None
        for candidate in self.routers[tool_agent(tool_id)](tool_id, body):
            if candidate in tried or (found is not None and candidate != waits_for):
                continue
            tool = self._registry.tools.get(candidate)
            is_leaf = candidate == tool_id or not self.is_routed(candidate)
            if tool is None or not is_leaf or not _can_serve(tool, callers, now):
                continue
            verdict = self.verdict(tool, body, callers, circumstances)
            decision = verdict.decision
            if decision is Decision.ALLOW or (decision is Decision.ASK and agrees(tool, verdict)):
                found = tool
            elif decision is Decision.ASK and (asking is None or candidate == waits_for):
                asking = tool
        return found or asking

    def verdict(self, tool: Tool, body: Raw, callers: tuple[str, ...], circumstances: Circumstances) -> Verdict:
        """What policy and its guard say to one that may serve a call."""
        return self._judge.whole_verdict(tool, callers, circumstances, body)

    def provider_of(self, call: Call, now: Now, *, is_other: bool = False, is_asked: bool = False) -> Tool | None:
        """Who serves a call that was taken on and is at nobody; or, of one that is, who else could.

        ``is_asked``: a person is asked about the call anyway.
        """
        entry, route = call.entry, call.route
        shown = "" if call.answered is None else call.answered.provider or ""
        waits_for, tried = (shown, ()) if route is None else (route.provider or shown, route.tried)
        if is_other:
            waits_for, tried = "", (*tried, call.served_by)
        callers, circumstances = (*entry.chain, entry.caller), frozenset(entry.circumstances)
        return self.provider(
            entry.tool_id,
            entry.input,
            callers,
            circumstances,
            now,
            agrees=lambda tool, verdict: is_asked or covers(call, tool, verdict),
            waits_for=waits_for,
            tried=tried,
        )


def covers(call: Call, tool: Tool, verdict: Verdict) -> bool:
    """Whether the yes that a person gave to a call is to this tool, about which policy asks: it was shown as the one
    that serves the call, or for the same reason by the same rule.
    """
    if not call.is_answered:
        return False
    shown, tool_id = call.answered, tool.definition.tool_id
    if shown is None or shown.provider is None or tool_id == call.entry.tool_id:
        return True
    if tool_id == shown.provider:
        return tool.fingerprint == shown.provider_fingerprint
    return (verdict.reason, verdict.rule) == (shown.reason, shown.rule or call.entry.rule)


def with_own(verdict: Verdict, own: Verdict, provider: str) -> Verdict:
    """What a person is asked about a call of a tool that stands for others, when policy asks about who serves it."""
    if verdict.decision is not Decision.ASK:
        return own
    if own.reason in {"", verdict.reason}:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {provider}: {own.reason}" if verdict.reason else own.reason)


def _can_serve(tool: Tool, callers: tuple[str, ...], now: Now) -> bool:
    """Whether it is there, well, and not part of the chain."""
    return (
        tool.agent is not None
        and tool.is_usable
        and tool.quarantined_until <= now.mono
        and tool.agent.agent_id not in map(agent_of, callers)
    )
