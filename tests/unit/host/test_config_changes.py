"""What a reload says about what is otherwise now."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from trunkline.config import AgentProgram, Approvals, Config, LedgerTable, Log, Notify, PolicyTable, RuleLine
from trunkline.edges.known import EDGES
from trunkline.host.config_changes import LIVE, changes
from trunkline.model import Limits

ALLOW = RuleLine(caller="*", tool="com.a/x", decision="allow")
DENY = RuleLine(caller="*", tool="com.a/x", decision="deny")
AGENT = AgentProgram(id="com.a", command=("a",))
BEFORE = Config(policy_table=PolicyTable(rule=(ALLOW,)), agents=(AGENT,))
SECRET = "https://hooks.example/secret"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"policy_table": PolicyTable(rule=(ALLOW, DENY))}, ["rules: 2, were 1"]),
        ({"policy_table": PolicyTable(rule=(DENY,))}, ["rules: 1, not the same as before"]),
        ({"policy_table": PolicyTable(rule=(ALLOW,), builtin=False)}, ["policy.builtin: false, was true"]),
        ({"log": Log(level="debug", format="json")}, ["log.level: debug, was info", "log.format: json, was text"]),
        ({"approvals": Approvals(expire_s=60.0)}, ["approvals.expire_s: 60, was 3600"]),
        ({"ledger": LedgerTable(retention_days=7)}, ["ledger.retention_days: 7, was 0"]),
        ({"limits": Limits(open_calls=3)}, ["limits.open_calls: 3, was 4096"]),
        ({"agents": (replace(AGENT, pin_definitions=False),)}, ["com.a: pin_definitions: false, was true"]),
        ({"agents": (replace(AGENT, reads_untrusted=True),)}, ["com.a: reads_untrusted: true, was false"]),
        # These are told of as agents that were started, restarted and stopped.
        ({"agents": (replace(AGENT, command=("b",)),)}, []),
        ({"agents": ()}, []),
    ],
)
def test_what_is_otherwise_is_said_in_a_line_each(change: dict[str, Any], said: list[str]) -> None:
    assert changes(BEFORE, replace(BEFORE, **change)) == said


def test_where_people_are_told_of_questions_is_named_and_not_shown() -> None:
    told = replace(BEFORE, approvals=Approvals(notify=Notify(command=("say", SECRET))))
    other = replace(BEFORE, approvals=Approvals(notify=Notify(command=("tell", SECRET))))
    assert changes(BEFORE, told) == ["approvals.notify: set"]
    assert changes(told, other) == ["approvals.notify: another one"]
    assert changes(told, BEFORE) == ["approvals.notify: not set any more"]


def test_every_section_is_told_of_or_needs_a_restart_or_has_no_effect() -> None:
    of_edges = {edge.section for edge in EDGES}
    elsewhere = {"agents", "mcp_servers", "policy_table", "otel", "cluster", "given"}
    assert set(Config.__struct_fields__) - of_edges == elsewhere | set(LIVE)
