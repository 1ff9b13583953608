"""Calls that cause calls: how deep, and never in a circle.

An agent that calls while it works for somebody acts for that somebody too. It may name the call it works on; if it
does not, it might be working on any of its open calls, and is judged against the chains of all of them (decision 7).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from trunkline.hub.state import Call
from trunkline.model import Fault, fault

# Deeper chains were loops in every trace seen; other gateways stop between 5 and 10.
MAX_DEPTH: Final = 8


class Chain(Struct, frozen=True):
    """The callers behind a call, first one first; the calls it may belong to, and the one if there is exactly one."""

    callers: tuple[str, ...] = ()
    depth: int = 1
    causes: tuple[Call, ...] = ()
    cause: Call | None = None


NO_CHAIN: Final = Chain()


def chain_of(named: Call | None, running: Iterable[Call]) -> Chain:
    """The chain of a new call by an agent that runs ``running`` and named ``named`` (or nothing)."""
    causes = (named,) if named is not None else tuple(running)
    if not causes:
        return NO_CHAIN
    callers: dict[str, None] = {}
    depth = 1
    for call in causes:
        for caller in (*call.entry.chain, call.entry.caller):
            callers[caller] = None
        depth = max(depth, call.entry.depth + 1)
    return Chain(tuple(callers), depth, causes, causes[0] if len(causes) == 1 else None)


def refusal(chain: Chain, caller: str, target: str) -> Fault | None:
    """Why a chain may not go on to ``target`` (an agent's identity), if it may not."""
    if target == caller or target in chain.callers:
        return fault("chain.refused", f"{target} is already part of this chain of calls")
    if chain.depth > MAX_DEPTH:
        return fault("chain.refused", f"a chain of calls may be {MAX_DEPTH} deep")
    return None
