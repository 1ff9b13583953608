"""``approve --always``: the rule that would have allowed what was asked, by what the exchange says of its rules.

Which rule that is and how it is written is in ``trunkline.standing_rules``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trunkline import standing_rules
from trunkline.cli.client import ExchangeClient, at
from trunkline.cli.terminal import CommandFailed
from trunkline.standing_rules import NoStandingRule, StandingRule


def rule_for(exchange: ExchangeClient, question: dict[str, Any], *, also_untrusted: bool = False) -> StandingRule:
    """The rules that let through what a question asks about, from now on; ``CommandFailed`` says why there are none."""

    def check(caller: str) -> dict[str, Any]:
        body = {"caller": caller, "tool_id": question["tool_id"], "input": question.get("input", {})}
        if also_untrusted:
            body["circumstance"] = "untrusted"
        verdict: dict[str, Any] = exchange.post(at("policy", "check"), body)
        return verdict

    try:
        return standing_rules.rule_for(
            question, exchange.get(at("policy"))["rules"], check, also_untrusted=also_untrusted
        )
    except NoStandingRule as none:
        raise _failed(none) from None


def put_in_force(exchange: ExchangeClient, file: Path, rule: StandingRule) -> None:
    """Write the rules into the file and have it read again; if it cannot be used, it is as it was."""
    try:
        standing_rules.put_in_force(file, rule, lambda: exchange.post(at("reload")))
    except NoStandingRule as none:
        raise _failed(none) from None


def _failed(none: NoStandingRule) -> CommandFailed:
    return CommandFailed("state.conflict", str(none), below=none.rule)
