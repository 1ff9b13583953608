"""What another configuration changes, in words: for the person who had it read again, and wants to know what holds now.

Owns these sentences. Does not own what becomes of agents (``supervisor``), nor what cannot change (``edges``, ``up``).

Invariant: a value is shown only where it can be no secret: numbers, switches and how much is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import fields

from trunkline.config import AgentProgram, Config, Section
from trunkline.host.supervised import AgentSpec

# The sections that hold as soon as they are read; those of edges need a restart.
LIVE: Final = ("approvals", "limits", "ledger", "log")
# What is set for an agent and does not start it anew.
_BESIDE_ITS_PROCESS: Final = tuple(
    name for name in AgentProgram.__struct_fields__ if name not in {"id", *AgentSpec.__struct_fields__}
)


def changes(before: Config, after: Config) -> list[str]:
    """One line for each thing that is otherwise."""
    return [*_rules(before, after), *_sections(before, after), *_agents(before, after)]


def _rules(before: Config, after: Config) -> Iterator[str]:
    old, new = before.policy_table, after.policy_table
    if old.rule != new.rule:
        was = f"were {len(old.rule)}" if len(old.rule) != len(new.rule) else "not the same as before"
        yield f"rules: {len(new.rule)}, {was}"
    if old.builtin != new.builtin:
        yield f"policy.builtin: {_shown(new.builtin)}, was {_shown(old.builtin)}"


def _sections(before: Config, after: Config) -> Iterator[str]:
    for section in LIVE:
        old, new = getattr(before, section), getattr(after, section)
        for field in fields(new):
            was, now = getattr(old, field.name), getattr(new, field.name)
            if was != now:
                yield _changed(f"{section}.{field.encode_name}", was, now, is_open=section == "log")


def _agents(before: Config, after: Config) -> Iterator[str]:
    known = {agent.id: agent for agent in before.agents}
    for agent in after.agents:
        was = known.get(agent.id)
        if was is not None:
            yield from (
                _changed(f"{agent.id}: {name}", getattr(was, name), getattr(agent, name), is_open=False)
                for name in _BESIDE_ITS_PROCESS
                if getattr(was, name) != getattr(agent, name)
            )


def _changed(name: str, was: object, now: object, *, is_open: bool) -> str:
    if is_open or (isinstance(was, int | float) and isinstance(now, int | float)):
        return f"{name}: {_shown(now)}, was {_shown(was)}"
    if isinstance(was, Section | None) and isinstance(now, Section | None):
        what = "set" if was is None else "not set any more" if now is None else "another one"
        return f"{name}: {what}"
    return name


def _shown(value: object) -> str:
    """As it is written in the file."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
