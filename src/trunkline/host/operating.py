"""What only the person who runs the exchange may see and do: ``edges.exchange.Operator``.

Owns what ``status`` shows: the hub's figures, the ledger's, how far it is signed and proved, those of the disk and of
each edge, what is off and why, which agents run without isolation, and how often a conversation failed by a defect of
ours. Does not own how a configuration is read again (``up``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trunkline import standing_rules
from trunkline.edges.edge import TokenKind
from trunkline.edges.exchange import AgentAction, Operator, SignInAddress, Watcher
from trunkline.host.anchoring import Anchoring
from trunkline.host.edges import Edges
from trunkline.host.runner import Runner
from trunkline.host.verifying import Verifying
from trunkline.hub import views
from trunkline.model import Policy, tool_agent
from trunkline.rule_remarks import about_nothing, never_reached
from trunkline.shown import SubscriptionView, TokenView
from trunkline.standing_rules import NoStandingRule, StandingRule


class Operating(Operator):
    """The operator's side of one exchange."""

    def __init__(
        self,
        runner: Runner,
        edges: Edges,
        *,
        reload: Callable[[], dict[str, list[str]]],
        steer: Callable[[str, AgentAction], bool],
        warnings: Callable[[], list[str]],
        anchoring: Anchoring | None,
        verifying: Verifying | None = None,
        storage: Callable[[], dict[str, int]] = dict,
        agent_log: Callable[[str, int], list[str] | None] = lambda _agent_id, _count: None,
        config_file: Path | None = None,
        awaited: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._runner = runner
        self._edges = edges
        self._reload = reload
        self._steer = steer
        self._warnings = warnings
        self._anchoring = anchoring
        self._verifying = verifying
        self._storage = storage
        self._agent_log = agent_log
        self._config_file = config_file
        # Agents that the configuration names, here or not yet.
        self._awaited = awaited
        # What is said of the rules, and of which epoch that is.
        self._judged_at = -1
        self._rule_warnings: list[str] = []

    def tokens(self) -> list[TokenView]:
        """The standing credentials."""
        return views.tokens(self._runner.hub)

    def subscriptions(self, limit: int, after: int = 0) -> list[SubscriptionView]:
        """Who is told of which topics, oldest first."""
        return self._runner.hub.topics.listed(limit, after)

    def token_kinds(self) -> Mapping[str, TokenKind]:
        """By edge: which credentials can be made there."""
        return self._edges.token_kinds()

    def policy(self) -> Policy:
        """The rules in force."""
        return self._runner.hub.in_force.settings.policy

    def rule_warnings(self) -> list[str]:
        """Which of them decide nothing, and why."""
        hub = self._runner.hub
        if self._judged_at != hub.judge.epoch:
            rules = hub.in_force.settings.policy.rules
            tools = {pin.definition.tool_id: pin.definition.input_schema for pin in hub.state.pins.values()}
            tools |= {tool_id: tool.definition.input_schema for tool_id, tool in hub.registry.tools.items()}
            warnings = [*never_reached(rules), *about_nothing(rules, tools, self._awaited())]
            self._judged_at, self._rule_warnings = hub.judge.epoch, warnings
        return self._rule_warnings

    def status(self) -> dict[str, object]:
        """Figures for a person and for /metrics."""
        figures = {**self._runner.figures(), **views.figures(self._runner.hub), **self._edges.status()}
        figures.update(self._storage())
        warnings = [*self._edges.warnings(), *self._warnings(), *self.rule_warnings()]
        if self._anchoring is not None:
            figures["entries_signed"] = self._anchoring.signed
            figures["entries_anchored"] = self._anchoring.published
            figures["anchored_head"] = self._anchoring.published_hash
            warnings += self._anchoring.warnings()
        if self._verifying is not None:
            figures.update(self._verifying.figures())
        return {**figures, "warnings": warnings}

    def check_rule(self, rule: StandingRule) -> None:
        """``NoStandingRule`` if these rules cannot be put into the configuration's file."""
        standing_rules.check(self._rule_file(rule), rule)

    def put_in_force(self, rule: StandingRule) -> None:
        """Write rules into the configuration's file and read it again."""
        standing_rules.put_in_force(self._rule_file(rule), rule, self._reload)

    def _rule_file(self, rule: StandingRule) -> Path:
        if self._config_file is None:
            raise NoStandingRule("there is no file of rules here", rule.text)
        return self._config_file

    def reload(self) -> dict[str, list[str]]:
        """Read the configuration again."""
        return {**self._reload(), "warnings": self.rule_warnings()}

    def verify_record(self) -> bool:
        """Begin to walk through the whole record."""
        return self._verifying is not None and self._verifying.walk()

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Start, stop or restart an agent that the exchange launches."""
        return self._steer(agent_id, action)

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:
        """Where a person signs in for an agent."""
        return await self._edges.sign_in(agent_id, base)

    def sign_in_state(self, agent_id: str) -> str | None:
        """How that is going."""
        return self._edges.sign_in_state(agent_id)

    async def sign_out(self, agent_id: str) -> bool:
        """Forget it."""
        return await self._edges.sign_out(agent_id)

    def known_tools(self, agent_id: str) -> list[str]:
        """The tools that an agent offers, or has ever offered."""
        hub = self._runner.hub
        return sorted(
            tool_id for tool_id in hub.state.pins.keys() | hub.registry.tools.keys() if tool_agent(tool_id) == agent_id
        )

    def agent_log(self, agent_id: str, count: int) -> list[str] | None:
        """The last lines that an agent printed."""
        return self._agent_log(agent_id, count)

    def watch(self, watcher: Watcher) -> None:
        """Hand every entry and progress to ``watcher``."""
        self._runner.watch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop handing them over."""
        self._runner.unwatch(watcher)
